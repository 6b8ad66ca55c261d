"""The signed-in user."""

from __future__ import annotations

from attrs import frozen

from project_service.audit import origin_of
from project_service.auth import errors
from project_service.auth.accounts import Accounts
from project_service.auth.routes import CHANGES, signed_in
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.supabase import errors as theirs
from project_service.supabase.auth.common import (
    GUESSED,
    MAILED,
    NOTHING,
    ONE_USER,
    Links,
    declare,
    read,
    reply,
)
from project_service.supabase.users import Changes, user_view


@frozen
class OwnUser:
    accounts: Accounts
    links: Links

    @declare("GET", "/user", "ReadUser", "Who is signed in", ONE_USER, bearer="required")
    async def read_user(self, request: Request) -> Reply:
        return reply(user_view(await self.accounts.profile(signed_in(request).sub)))

    @declare(
        "PUT",
        "/user",
        "UpdateUser",
        "Change the password (the other sessions end), the metadata, or the address",
        ONE_USER,
        body=Changes,
        admission=CHANGES,
        bearer="required",
        errors=(
            *GUESSED,
            errors.weak_password("why"),
            errors.same_password(),
            errors.reauthentication_needed(),
            errors.reauthentication_not_valid(),
            errors.insufficient_aal(),
            errors.email_taken(),
            errors.email_not_configured(),
            theirs.phone_provider_disabled(),
        ),
        details="A new password needs a session that signed in within a day, or current_password, or the nonce of "
        "/reauthenticate, unless auth.secure_password_change is false. Another address counts when it is confirmed.",
    )
    async def update_user(self, request: Request) -> Reply:
        caller = signed_in(request)
        body = await read(request, Changes)
        if body.phone:
            raise theirs.phone_provider_disabled()
        user = await self.accounts.revise(
            caller,
            origin_of(request),
            metadata=body.data,
            password=body.password or None,
            current_password=body.current_password,
            nonce=body.nonce,
            email=body.email,
            asked=self.links.asked(request, body),
        )
        return reply(user_view(await self.accounts.profile(user.id)))

    @declare(
        "GET",
        "/reauthenticate",
        "Reauthenticate",
        "E-mail a code with which a password can be set",
        NOTHING,
        bearer="required",
        errors=MAILED,
    )
    async def reauthenticate(self, request: Request) -> Reply:
        await self.accounts.reauthenticate(signed_in(request), origin_of(request), self.links.asked(request))
        return reply({})
