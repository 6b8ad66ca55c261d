"""Users, for operators: with the service key only."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from attrs import frozen

from project_service import whole_numbers
from project_service.audit import origin_of
from project_service.auth import errors
from project_service.auth.admin import MAX_PAGE_SIZE, PAGE_SIZE, Administration, parse_user_id
from project_service.auth.factors import parse_factor_id
from project_service.auth.invitations import Invitations
from project_service.auth.routes import CHANGES
from project_service.auth.tokens import AUDIENCE, ROLE
from project_service.errors import validation_failed
from project_service.http.describe import STRING, UUID, Parameter, Schema, array, in_path, obj
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.supabase import errors as theirs
from project_service.supabase.auth.common import (
    HOOKED,
    NOTHING,
    ONE_USER,
    Links,
    answer,
    declare,
    read,
    reply,
    validation_failed_missing,
)
from project_service.supabase.users import (
    FACTOR,
    USER,
    Deletion,
    Invitation,
    NewLink,
    NewUser,
    UserAttributes,
    user_view,
)

_ONE = (in_path("user_id", "The user's id."),)
_UNKNOWN = errors.user_not_found()
_CHANGED = (
    errors.weak_password("why"),
    errors.email_taken(),
    theirs.feature_disabled_in_part("x"),
    theirs.phone_provider_disabled(),
)
_ACTIONS = {
    "signup": "signup",
    "magiclink": "magiclink",
    "recovery": "recovery",
    "invite": "invite",
    "email_change_current": "email_change",
    "email_change_new": "email_change",
}
# How long a user is banned at most, for whom a date can still be written.
_FOR_GOOD = timedelta(days=100 * 365)
_BAN_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# The largest number of a page that is asked for.
_MAX_NUMBER = 10**9


_OF_LINK: dict[str, Schema] = {
    "action_link": STRING,
    "email_otp": STRING,
    "hashed_token": STRING,
    "verification_type": {"enum": [*_ACTIONS]},
    "redirect_to": STRING,
}
# A user, with what the challenge can be answered with.
_LINK: Schema = {
    **USER.schema,
    "properties": {**USER.schema["properties"], **_OF_LINK},
    "required": [*USER.schema["required"], *_OF_LINK],
}


@frozen
class Operators:
    """For the service key only."""

    administration: Administration
    invitations: Invitations
    links: Links

    @declare(
        "GET",
        "/admin/users",
        "ListUsers",
        "Users, the newest first",
        answer(
            "A page",
            obj(("users", "aud"), users=array(USER), aud={"const": AUDIENCE}),
            **{
                "X-Total-Count": "How many users there are.",
                "Link": "The next page and the last (RFC 8288).",
            },
        ),
        key="service",
        parameters=(
            Parameter("page", "From 1."),
            Parameter("per_page", f"Users on a page, {PAGE_SIZE} by default and at most {MAX_PAGE_SIZE}."),
        ),
    )
    async def list_users(self, request: Request) -> Reply:
        page, size = _from_one(request, "page", default=1), _from_one(request, "per_page", default=PAGE_SIZE)
        size = min(size, MAX_PAGE_SIZE)
        accounts, total = await self.administration.numbered_page(page, size)
        last = max(1, -(-total // size))
        # Clients look for the number behind the first "=".
        path = request.raw_path.decode("latin-1")
        links = {"next": page + 1, "last": last} if page < last else {"last": last}
        link = ", ".join(f'<{path}?page={n}&per_page={size}>; rel="{rel}"' for rel, n in links.items())
        return json_reply(
            {"users": [user_view(one) for one in accounts], "aud": AUDIENCE},
            headers=(NO_STORE, ("X-Total-Count", str(total)), ("Link", link)),
        )

    @declare(
        "POST",
        "/admin/users",
        "CreateUser",
        "Make a user with a password, an imported bcrypt hash, or neither",
        ONE_USER,
        body=NewUser,
        admission=CHANGES,
        key="service",
        errors=(errors.id_taken(), *_CHANGED),
    )
    async def create_user(self, request: Request) -> Reply:
        body = await read(request, NewUser)
        if not body.email:
            raise theirs.phone_provider_disabled() if body.phone else validation_failed_missing("email")
        banned, origin = _checked(body), origin_of(request)
        account = await self.administration.create(
            body.email,
            origin,
            user_id=body.id,
            password=body.password or None,
            password_hash=body.password_hash,
            metadata=body.user_metadata,
            app_metadata=body.app_metadata,
            confirmed=body.email_confirm,
        )
        if banned is not None and banned:
            until = self._until(banned)
            account = await self.administration.change(account.user.id, origin, disabled=True, until=until)
        return await self._profile(account.user.id)

    def _until(self, banned: timedelta) -> datetime | None:
        """Until when; None for good."""
        return None if banned >= _FOR_GOOD else self.administration.now() + banned

    async def _profile(self, user_id: str) -> Reply:
        return reply(user_view(await self.administration.profile(user_id)))

    @declare(
        "GET",
        "/admin/users/<user_id>",
        "ShowUser",
        "One user",
        ONE_USER,
        key="service",
        parameters=_ONE,
        errors=(_UNKNOWN,),
    )
    async def show_user(self, request: Request) -> Reply:
        return await self._profile(_user_id(request))

    @declare(
        "PUT",
        "/admin/users/<user_id>",
        "ChangeUser",
        "Change a user's address, metadata of either kind, password, confirmation, or whether they are banned",
        ONE_USER,
        body=UserAttributes,
        admission=CHANGES,
        key="service",
        parameters=_ONE,
        errors=(_UNKNOWN, *_CHANGED),
    )
    async def change_user(self, request: Request) -> Reply:
        body = await read(request, UserAttributes)
        banned = _checked(body)
        account = await self.administration.revise(
            _user_id(request),
            origin_of(request),
            metadata=body.user_metadata,
            app_metadata=body.app_metadata,
            confirm=body.email_confirm,
            password=body.password or None,
            disabled=None if banned is None else bool(banned),
            until=self._until(banned) if banned else None,
            email=body.email,
        )
        return await self._profile(account.user.id)

    @declare(
        "DELETE",
        "/admin/users/<user_id>",
        "DeleteUser",
        "Delete a user",
        NOTHING,
        admission=CHANGES,
        key="service",
        parameters=_ONE,
        errors=(_UNKNOWN, errors.user_in_use(), theirs.feature_disabled_in_part("x")),
    )
    async def delete_user(self, request: Request) -> Reply:
        if request.body.length != 0 and request.declares_json():
            body = await read(request, Deletion)
            if body.should_soft_delete:
                raise theirs.feature_disabled_in_part("Deleting a user without deleting the row")
        await self.administration.delete(_user_id(request), origin_of(request))
        return reply({})

    @declare(
        "GET",
        "/admin/users/<user_id>/factors",
        "ListFactors",
        "A user's further factors",
        answer("The factors", array(FACTOR)),
        key="service",
        parameters=_ONE,
        errors=(_UNKNOWN,),
    )
    async def list_factors(self, request: Request) -> Reply:
        profile = await self.administration.profile(_user_id(request))
        return reply([one.view() for one in profile.factors])

    @declare(
        "DELETE",
        "/admin/users/<user_id>/factors/<factor_id>",
        "DeleteFactor",
        "Delete one of a user's further factors",
        answer("Its id", obj(("id",), id=UUID)),
        admission=CHANGES,
        key="service",
        parameters=(*_ONE, in_path("factor_id", "The factor's id.")),
        errors=(_UNKNOWN, errors.factor_not_found()),
    )
    async def delete_factor(self, request: Request) -> Reply:
        user_id, factor_id = _user_id(request), parse_factor_id(request.path_args["factor_id"])
        _, count = await self.administration.delete_factors(user_id, origin_of(request), factor_id)
        if not count:
            raise errors.factor_not_found()
        return reply({"id": factor_id})

    @declare(
        "POST",
        "/invite",
        "Invite",
        "Make a user and mail an invitation",
        ONE_USER,
        body=Invitation,
        admission=CHANGES,
        key="service",
        errors=(errors.email_taken(), errors.email_not_configured(), *HOOKED),
    )
    async def invite(self, request: Request) -> Reply:
        body = await read(request, Invitation)
        if not body.email:
            raise validation_failed_missing("email")
        asked = self.links.asked(request)
        profile = await self.invitations.invite(body.email, body.data, origin_of(request), asked)
        return reply(user_view(profile))

    @declare(
        "POST",
        "/admin/generate_link",
        "GenerateLink",
        "A link and a code as they are mailed, without a mail",
        answer(
            "The user, with what the challenge can be answered with",
            _LINK,
        ),
        body=NewLink,
        admission=CHANGES,
        key="service",
        errors=(_UNKNOWN, errors.email_taken(), errors.user_disabled(), errors.weak_password("why"), *HOOKED),
    )
    async def generate_link(self, request: Request) -> Reply:
        body = await read(request, NewLink)
        if not body.email:
            raise validation_failed_missing("email")
        asked = self.links.asked(request, redirect_to=body.redirect_to)
        profile, sent = await self.invitations.link(
            body.type,
            body.email,
            origin_of(request),
            asked,
            password=body.password,
            metadata=body.data,
            new_email=body.new_email,
        )
        assert asked.link is not None
        return reply(
            {
                **user_view(profile),
                "action_link": asked.link(sent.token.text, sent.purpose) or "",
                "email_otp": sent.code,
                "hashed_token": sent.token.text,
                "verification_type": body.type,
                "redirect_to": asked.data.get("redirect_to", ""),
            }
        )


def _user_id(request: Request) -> str:
    """Raises ``user_not_found`` for what is no id, such as the address that an id may stand for elsewhere."""
    return parse_user_id(request.path_args["user_id"])


def _from_one(request: Request, name: str, *, default: int) -> int:
    """A number from 1 of the query, which clients may also leave empty."""
    given = request.query_value(name)
    if not given:
        return default
    number = whole_numbers.from_digits(given)
    if number is None or not 1 <= number <= _MAX_NUMBER:
        raise validation_failed({name: f"must be a number from 1 to {_MAX_NUMBER}"})
    return number


def _checked(body: UserAttributes) -> timedelta | None:
    """For how long the user is to be banned, if ``body`` says so; refuses what cannot be set."""
    if body.phone:
        raise theirs.phone_provider_disabled()
    if body.role not in ("", ROLE):
        raise theirs.feature_disabled_in_part(f"A role other than {ROLE}")
    if not body.ban_duration:
        return None
    if body.ban_duration == "none":
        return timedelta(0)
    parts = _BAN_PART.findall(body.ban_duration)
    if "".join(number + unit for number, unit in parts) != body.ban_duration:
        raise validation_failed({"ban_duration": "must be none or a time such as 24h"})
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return min(timedelta(seconds=min(seconds, _FOR_GOOD.total_seconds())), _FOR_GOOD)
