"""Passkeys: the signed-in user's, signing in by one, and for operators those of any user."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from project_service.audit import origin_of
from project_service.auth import admin_routes, errors
from project_service.auth.accounts import Accounts
from project_service.auth.admin import Administration, parse_user_id
from project_service.auth.context import Context
from project_service.auth.passkeys import Offered, Passkeys, parse_passkey_id
from project_service.auth.routes import CHANGES, signed_in
from project_service.errors import rate_limited
from project_service.http.describe import UUID, Answer, Named, array, in_path, obj
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply
from project_service.supabase.auth.common import (
    HOOKED,
    answer,
    declare,
    read,
    reply,
    validation_failed_missing,
)
from project_service.supabase.users import SESSION, PasskeyAnswer, PasskeyName, session_view

_OFF, _NOT_FOUND = errors.passkey_disabled(), errors.passkey_not_found()
_REFUSED = (
    errors.passkey_challenge_expired(),
    errors.passkey_verification_failed(),
)
_ONE = (in_path("passkey_id", "The passkey's id."),)
_USER = in_path("user_id", "The user's id.")
PASSKEY = Named("ClientPasskey", admin_routes.PASSKEY)
_OFFERED = obj(
    ("challenge_id", "options", "expires_at"),
    challenge_id=UUID,
    options={"type": "object", "description": "For navigator.credentials, as JSON."},
    expires_at={"type": "integer", "description": "Unix seconds."},
)


@frozen
class OwnPasskeys:
    accounts: Accounts
    passkeys: Passkeys
    administration: Administration
    context: Context

    @declare(
        "POST",
        "/passkeys/registration/options",
        "OfferPasskey",
        "What the page needs to have a passkey made",
        answer("A challenge, for five minutes", _OFFERED),
        bearer="required",
        errors=(_OFF, errors.insufficient_aal(), errors.too_many_passkeys()),
    )
    async def offer_registration(self, request: Request) -> Reply:
        return _offered(await self.passkeys.offer_registration(signed_in(request)))

    @declare(
        "POST",
        "/passkeys/registration/verify",
        "AddPasskey",
        "Keep a passkey that was made",
        answer("The passkey", PASSKEY),
        body=PasskeyAnswer,
        admission=CHANGES,
        bearer="required",
        errors=(
            _OFF,
            *_REFUSED,
            errors.insufficient_aal(),
            errors.passkey_taken(),
            errors.too_many_passkeys(),
        ),
    )
    async def register(self, request: Request) -> Reply:
        caller, body = signed_in(request), await _answer(request)
        made = await self.passkeys.register(caller, body.challenge_id, body.credential, origin_of(request))
        return reply(made.view())

    @declare(
        "POST",
        "/passkeys/authentication/options",
        "OfferSignIn",
        "What the page needs to sign somebody in by a passkey",
        answer("A challenge, for five minutes", _OFFERED),
        errors=(_OFF, rate_limited(1)),
    )
    async def offer_sign_in(self, request: Request) -> Reply:
        return _offered(await self.passkeys.offer_sign_in(origin_of(request)))

    @declare(
        "POST",
        "/passkeys/authentication/verify",
        "SignInByPasskey",
        "Begin a session by a passkey",
        answer("The session", SESSION),
        body=PasskeyAnswer,
        admission=CHANGES,
        errors=(
            _OFF,
            *_REFUSED,
            errors.user_disabled(),
            errors.email_not_confirmed(),
            rate_limited(1),
            *HOOKED,
        ),
    )
    async def sign_in(self, request: Request) -> Reply:
        body = await _answer(request)
        session = await self.passkeys.sign_in(body.challenge_id, body.credential, origin_of(request))
        profile = await self.accounts.profile(session.user.id)
        return reply(session_view(session, profile, self.context.clock()))

    @declare(
        "GET",
        "/passkeys",
        "ListPasskeys",
        "The signed-in user's passkeys",
        answer("The passkeys, the oldest first", array(PASSKEY)),
        bearer="required",
        errors=(_OFF,),
    )
    async def list_own(self, request: Request) -> Reply:
        return await self._listed(signed_in(request).sub)

    async def _listed(self, user_id: str) -> Reply:
        return reply([one.view() for one in await self.passkeys.own(user_id)])

    @declare(
        "PATCH",
        "/passkeys/<passkey_id>",
        "RenamePasskey",
        "Give a passkey another name",
        answer("The passkey", PASSKEY),
        body=PasskeyName,
        admission=CHANGES,
        bearer="required",
        parameters=_ONE,
        errors=(_OFF, _NOT_FOUND),
    )
    async def rename(self, request: Request) -> Reply:
        caller, body = signed_in(request), await read(request, PasskeyName)
        passkey_id = request.path_args["passkey_id"]
        renamed = await self.passkeys.rename(caller, passkey_id, body.friendly_name, origin_of(request))
        return reply(renamed.view())

    @declare(
        "DELETE",
        "/passkeys/<passkey_id>",
        "DeletePasskey",
        "Delete a passkey",
        Answer(204, "Done."),
        admission=CHANGES,
        bearer="required",
        parameters=_ONE,
        errors=(_OFF, _NOT_FOUND, errors.insufficient_aal()),
    )
    async def delete(self, request: Request) -> Reply:
        passkey_id = request.path_args["passkey_id"]
        await self.passkeys.delete(signed_in(request), passkey_id, origin_of(request))
        return Reply(204, (NO_STORE,))

    @declare(
        "GET",
        "/admin/users/<user_id>/passkeys",
        "ListUsersPasskeys",
        "A user's passkeys",
        answer("The passkeys, the oldest first", array(PASSKEY)),
        key="service",
        parameters=(_USER,),
        errors=(_OFF, errors.user_not_found()),
    )
    async def list_users(self, request: Request) -> Reply:
        user_id = parse_user_id(request.path_args["user_id"])
        await self.administration.find(user_id)
        return await self._listed(user_id)

    @declare(
        "DELETE",
        "/admin/users/<user_id>/passkeys/<passkey_id>",
        "DeleteUsersPasskey",
        "Delete one of a user's passkeys",
        Answer(204, "Done."),
        admission=CHANGES,
        key="service",
        parameters=(_USER, *_ONE),
        errors=(_NOT_FOUND, errors.user_not_found()),
    )
    async def delete_users(self, request: Request) -> Reply:
        user_id = parse_user_id(request.path_args["user_id"])
        passkey_id = parse_passkey_id(request.path_args["passkey_id"])
        await self.administration.delete_passkey(user_id, passkey_id, origin_of(request))
        return Reply(204, (NO_STORE,))


async def _answer(request: Request) -> PasskeyAnswer:
    body = await read(request, PasskeyAnswer)
    for name, value in (("challenge_id", body.challenge_id), ("credential", body.credential)):
        if not value:
            raise validation_failed_missing(name)
    return body


def _offered(one: Offered) -> Reply:
    told: dict[str, Any] = {"challenge_id": one.id, "options": one.options, "expires_at": one.expires_at}
    return reply(told)
