"""The endpoints of authentication for end users, below ``/auth``; those of operators are in ``admin_routes``.

Each endpoint stands with what ``/openapi.json`` says of it; the models of bodies stand above the endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import AttrsInstance, evolve, frozen

from project_service.audit import origin_of
from project_service.auth import errors
from project_service.auth.accounts import Accounts
from project_service.auth.passwords import MAX_BYTES as PASSWORD_MAX_BYTES
from project_service.auth.sessions import SCOPES, SessionService
from project_service.auth.tokens import Verifier
from project_service.auth.values import EMAIL_MAX_BYTES, METADATA_MAX_BYTES, IssuedSession, check_metadata
from project_service.errors import ApiError, authentication_required, rate_limited
from project_service.http.caller import BearerDemand, Claims, KeyDemand
from project_service.http.describe import (
    BOOLEAN,
    JSON,
    LOCATION,
    MOMENT,
    STRING,
    UUID,
    Answer,
    Named,
    Operation,
    Parameter,
    Schema,
    array,
    exactly,
    in_path,
    obj,
)
from project_service.http.json_body import TEXT, Kind, body_of, member, text
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, envelope, json_reply
from project_service.http.routing import H, endpoint

TAG = "authentication"
# The admission class of requests that hash a password.
PASSWORDS = "passwords"
CHANGES = "accounts"

# Values in requests and responses.

EMAIL: Schema = {"type": "string", "format": "idn-email", "maxLength": EMAIL_MAX_BYTES}
PASSWORD = text(
    {
        "type": "string",
        "maxLength": PASSWORD_MAX_BYTES,
        "description": f"At least auth.password_min_bytes (8) characters and at most {PASSWORD_MAX_BYTES} bytes of "
        "UTF-8.",
    }
)
METADATA = Kind(
    {
        "type": ["object", "null"],
        "description": f"At most {METADATA_MAX_BYTES} bytes as JSON, no NUL, no number beyond 64 bits; null is {{}}.",
    },
    check_metadata,
)
USER_MEMBERS: Mapping[str, Schema] = {
    "id": UUID,
    # Empty for who has none: somebody anonymous, or whose provider tells none.
    "email": {"anyOf": [EMAIL, {"const": ""}]},
    "created_at": MOMENT,
    "metadata": {"type": "object"},
}
USER = Named("User", exactly(**USER_MEMBERS))
SESSION = Named(
    "Session",
    exactly(
        user=USER,
        access_token={"type": "string", "description": "A JWT, sent as a bearer token."},
        refresh_token={"type": "string", "description": "Works once, for the next Session."},
        expires_at={"type": "integer", "description": "Unix seconds."},
        token_type={"const": "Bearer"},
    ),
)
SESSION_MEMBERS: Mapping[str, Schema] = {
    "id": UUID,
    "created_at": MOMENT,
    "refreshed_at": MOMENT,
    "expires_at": MOMENT,
    "user_agent": STRING,
    "address": STRING,
}
LISTED_SESSION = Named("ListedSession", exactly(**SESSION_MEMBERS, current=BOOLEAN))
_KEY_TEXTS = dict.fromkeys(("kid", "use", "alg", "crv", "x", "y", "n", "e"), STRING)
JWKS = Named("JwkSet", obj(("keys",), keys=array(obj(("kty",), False, kty=STRING, **_KEY_TEXTS))))

# Errors of the endpoints where a password can be guessed, and of those that send an e-mail.
_GUESSED: tuple[ApiError, ...] = (errors.invalid_credentials(), rate_limited(1))
# Wherever a user or a token is made, a hook of the project may refuse or fail.
HOOKED = (errors.hook_refused(403, "why"), errors.hook_failed())
_MAILED: tuple[ApiError, ...] = (rate_limited(1), errors.email_not_configured())
WEAK = errors.weak_password("why")


def _enveloped(data: Schema | Named) -> Schema:
    return exactly(data=data, error={"type": "null"})


def answer(summary: str, data: Schema | Named) -> Answer:
    return Answer(200, summary, {JSON: _enveloped(data)}, {"Cache-Control": "no-store"})


def created(summary: str, data: Schema | Named) -> Answer:
    return evolve(answer(summary, data), status=201, headers={"Cache-Control": "no-store", **LOCATION})


NOTHING = Answer(200, "Done.", {JSON: _enveloped({"type": "null"})})


# Bodies.


@frozen
class SignUp:
    email: str = member(text(EMAIL))
    password: str = member(PASSWORD)
    metadata: Mapping[str, Any] = member(METADATA, default={})


@frozen
class LogIn:
    email: str = member(text(EMAIL))
    password: str = member(TEXT)


@frozen
class Refresh:
    refresh_token: str = member(TEXT)


@frozen
class Address:
    email: str = member(text(EMAIL))


@frozen
class Reset:
    token: str = member(TEXT)
    password: str = member(PASSWORD)


@frozen
class Verify:
    token: str = member(TEXT)


@frozen
class Nothing:
    """No members."""


@frozen
class UserChanges:
    password: str | None = member(PASSWORD, default=None)
    current_password: str | None = member(TEXT, default=None)
    metadata: Mapping[str, Any] | None = member(METADATA, default=None)


@frozen
class UserDeletion:
    current_password: str = member(TEXT)


# What handlers share.


def signed_in(request: Request) -> Claims:
    """The claims of the caller's access token, which belongs to a session. Raises ``authentication_required`` if
    there is only a project key, and ``session_required``."""
    if request.caller.user is None:
        raise authentication_required()
    return of_session(request.caller.user)


def of_session(claims: Claims) -> Claims:
    """``claims``. Raises ``session_required`` for those of a token that was made to see what its user sees."""
    if claims.impersonates:
        raise errors.session_required()
    return claims


def token_reply(data: Mapping[str, Any], status: int = 200, *more: tuple[str, str]) -> Reply:
    return envelope(data, status, (NO_STORE, *more))


def declare(
    method: str,
    url: str,
    name: str,
    summary: str,
    *answers: Answer,
    tag: str = TAG,
    body: type[AttrsInstance] | None = None,
    hashes: bool = False,
    changes: bool = False,
    key: KeyDemand = "required",
    bearer: BearerDemand,
    **more: Any,
) -> Callable[[H], H]:
    """An endpoint. ``hashes`` marks those that may hash a password, and ``changes`` those that make, change or delete
    a user, on which triggers of the project may take long; ``more`` is the rest of ``Operation``."""
    operation = Operation(name, tag, summary, answers, body=body_of(body) if body else None, **more)
    if bearer == "required":
        operation = evolve(operation, errors=(*operation.errors, errors.session_required()))
    admission = CHANGES if changes else PASSWORDS if hashes else None
    return endpoint(method, url, operation, key=key, bearer=bearer, admission=admission)


# For everybody: it needs no bearer token, and must not fail if a client sends an expired one by default.
_public = partial(declare, "POST", bearer="own")
# For signed-in users.
_own = partial(declare, bearer="required")


@frozen
class AuthRoutes:
    accounts: Accounts
    sessions: SessionService

    @_public(
        "/auth/signup",
        "signUp",
        "Make a user and a first session",
        created("The new user's session", SESSION),
        answer(
            "With auth.confirm_email: the user must first post the token that was e-mailed to /auth/verify",
            exactly(user=USER, session={"type": "null"}),
        ),
        body=SignUp,
        changes=True,
        errors=(errors.email_taken(), WEAK, errors.signup_disabled(), *_MAILED, *HOOKED),
    )
    async def sign_up(self, request: Request) -> Reply:
        body = await request.read_json(SignUp)
        result = await self.accounts.sign_up(body.email, body.password, body.metadata, origin_of(request))
        if isinstance(result, IssuedSession):
            return token_reply(result.view(), 201, request.location("/auth/user"))
        return token_reply({"user": result.view(), "session": None})

    @_public(
        "/auth/login",
        "logIn",
        "Begin a session",
        answer("The session", SESSION),
        body=LogIn,
        hashes=True,
        errors=(*_GUESSED, errors.user_disabled(), errors.email_not_confirmed(), *HOOKED),
    )
    async def log_in(self, request: Request) -> Reply:
        body = await request.read_json(LogIn)
        session = await self.accounts.log_in(body.email, body.password, origin_of(request))
        return token_reply(session.view())

    @_public(
        "/auth/refresh",
        "refreshSession",
        "Exchange a refresh token for the next tokens of its session",
        answer("The session with its next tokens", SESSION),
        body=Refresh,
        errors=(errors.invalid_refresh_token(), errors.refresh_token_reused(), *HOOKED),
    )
    async def refresh(self, request: Request) -> Reply:
        body = await request.read_json(Refresh)
        session = await self.sessions.refresh(body.refresh_token, origin_of(request))
        return token_reply(session.view())

    @_public(
        "/auth/recover",
        "recoverPassword",
        "E-mail a token for a new password",
        NOTHING,
        body=Address,
        errors=_MAILED,
        details="The answer is the same, and takes the same time, whether or not there is such a user.",
    )
    async def recover(self, request: Request) -> Reply:
        body = await request.read_json(Address)
        await self.accounts.request_mail(body.email, "recovery", origin_of(request))
        return envelope(None)

    @_public(
        "/auth/reset",
        "resetPassword",
        "Set a new password with an e-mailed token; every session ends",
        NOTHING,
        body=Reset,
        hashes=True,
        errors=(errors.invalid_one_time_token(), WEAK),
    )
    async def reset(self, request: Request) -> Reply:
        body = await request.read_json(Reset)
        await self.accounts.reset_password(body.token, body.password, origin_of(request))
        return envelope(None)

    @_public(
        "/auth/verify",
        "verifyEmail",
        "Confirm an address with an e-mailed token",
        answer("The session of its owner", SESSION),
        body=Verify,
        errors=(errors.invalid_one_time_token(), *HOOKED),
    )
    async def verify(self, request: Request) -> Reply:
        body = await request.read_json(Verify)
        session = await self.accounts.confirm_email(body.token, origin_of(request))
        return token_reply(session.view())

    @_public(
        "/auth/resend",
        "resendConfirmation",
        "E-mail another token for the confirmation of an address",
        NOTHING,
        body=Address,
        errors=_MAILED,
        details="The answer is the same, and takes the same time, whether or not there is such a user.",
    )
    async def resend(self, request: Request) -> Reply:
        body = await request.read_json(Address)
        await self.accounts.request_mail(body.email, "confirmation", origin_of(request))
        return envelope(None)

    @_own(
        "POST",
        "/auth/logout",
        "logOut",
        "End this session, all of the user's, or all others",
        NOTHING,
        parameters=(
            Parameter("scope", "Which sessions end; local, this one, by default.", {"enum": list(SCOPES)}),
        ),
    )
    async def log_out(self, request: Request) -> Reply:
        if request.body.length != 0 and request.declares_json():
            # A scope in a body would be ignored otherwise.
            await request.read_json(Nothing)
        await self.sessions.log_out(signed_in(request), request.query_value("scope"), origin_of(request))
        return envelope(None)

    @_own("GET", "/auth/user", "readUser", "Who is signed in", answer("The user", exactly(user=USER)))
    async def read_user(self, request: Request) -> Reply:
        user = await self.accounts.read(signed_in(request))
        return token_reply({"user": user.view()})

    @_own(
        "PATCH",
        "/auth/user",
        "changeUser",
        "Change the password (the other sessions end), the metadata, or both",
        answer("The user as it is now", exactly(user=USER)),
        body=UserChanges,
        changes=True,
        errors=(*_GUESSED, WEAK, errors.insufficient_aal()),
        details="A new password needs current_password, and a second factor if the user has one.",
    )
    async def change_user(self, request: Request) -> Reply:
        caller = signed_in(request)
        body = await request.read_json(UserChanges, unknown="cannot be changed here")
        user = await self.accounts.change(
            caller, body.password, body.current_password, body.metadata, origin_of(request)
        )
        return token_reply({"user": user.view()})

    @_own(
        "DELETE",
        "/auth/user",
        "deleteUser",
        "Delete the signed-in user with all sessions",
        NOTHING,
        body=UserDeletion,
        changes=True,
        errors=(*_GUESSED, errors.user_in_use(), errors.insufficient_aal()),
    )
    async def delete_user(self, request: Request) -> Reply:
        caller = signed_in(request)
        body = await request.read_json(UserDeletion)
        await self.accounts.delete(caller, body.current_password, origin_of(request))
        return envelope(None)

    @_own(
        "GET",
        "/auth/sessions",
        "listSessions",
        "The user's sessions, the newest first",
        answer("The sessions", exactly(sessions=array(LISTED_SESSION))),
    )
    async def list_sessions(self, request: Request) -> Reply:
        caller = signed_in(request)
        sessions = await self.sessions.list_own(caller)
        return token_reply({"sessions": [session.own_view(caller.sid) for session in sessions]})

    @_own(
        "DELETE",
        "/auth/sessions/<session_id>",
        "endSession",
        "End one of the user's sessions",
        NOTHING,
        parameters=(in_path("session_id", "The id of a listed session."),),
        errors=(errors.session_not_found(),),
    )
    async def end_session(self, request: Request) -> Reply:
        await self.sessions.end_one(signed_in(request), request.path_args["session_id"], origin_of(request))
        return envelope(None)


@frozen
class KeyRoutes:
    verifier: Verifier

    @endpoint(
        "GET",
        "/.well-known/jwks.json",
        Operation(
            "readKeys",
            TAG,
            "The public keys that access tokens are signed with (RFC 7517)",
            (Answer(200, "A JWK Set", {JSON: JWKS}, {"Cache-Control": "public, max-age=300"}),),
            needs=(),
        ),
        key="optional",
        bearer="own",
        admission="",
    )
    async def read_keys(self, request: Request) -> Reply:
        """Caches may keep the response for a short time only, because a new key signs as soon as it is loaded."""
        keys = self.verifier.issuer.keys.published()
        return json_reply(keys, headers=(("Cache-Control", "public, max-age=300"),))
