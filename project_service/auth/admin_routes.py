"""The endpoints of authentication for operators, with the service key: users below ``/admin/users``, and what is done
for operators alone. The models of bodies stand above the endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attrs import frozen

from project_service.audit import origin_of
from project_service.auth import errors
from project_service.auth.admin import (
    MAX_IMPORTED_COST,
    MAX_PAGE_SIZE,
    PAGE_SIZE,
    Administration,
    imported_hash,
    imported_id,
)
from project_service.auth.challenges import PLAIN
from project_service.auth.impersonation import SECONDS, Impersonations
from project_service.auth.inspection import ORDERS, Inspection
from project_service.auth.invitations import Invitations
from project_service.auth.routes import (
    EMAIL,
    HOOKED,
    METADATA,
    NOTHING,
    PASSWORD,
    SESSION_MEMBERS,
    USER,
    USER_MEMBERS,
    WEAK,
    answer,
    created,
    declare,
    token_reply,
)
from project_service.http.describe import (
    BOOLEAN,
    COUNT,
    MOMENT,
    STRING,
    UUID,
    Answer,
    Named,
    Parameter,
    Schema,
    array,
    exactly,
    in_path,
    obj,
)
from project_service.http.json_body import FLAG, TEXT, Kind, member, or_null, text
from project_service.http.request import Request
from project_service.http.response import Reply, envelope

TAG = "users"

# Values in requests and responses.

PASSWORD_HASH = Kind(
    {"type": "string", "description": f"bcrypt ($2a$, $2b$, $2y$) of a cost up to {MAX_IMPORTED_COST}."},
    imported_hash,
)
ADMIN_USER = Named(
    "AdminUser",
    exactly(
        **USER_MEMBERS,
        disabled=BOOLEAN,
        email_confirmed=BOOLEAN,
        last_login_at={"type": ["string", "null"], "format": "date-time"},
    ),
)
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_MOMENT_OR_NULL: Schema = {"type": ["string", "null"], "format": "date-time"}
USER_SESSION = Named("UserSession", exactly(**SESSION_MEMBERS))
IDENTITY = Named(
    "Identity",
    exactly(
        id=UUID,
        provider=STRING,
        subject=STRING,
        email=_TEXT_OR_NULL,
        created_at=MOMENT,
        last_sign_in_at=_MOMENT_OR_NULL,
    ),
)
# Also as clients of the Supabase family see them.
FACTOR = obj(
    ("id", "factor_type", "status", "created_at", "updated_at"),
    id=UUID,
    friendly_name=STRING,
    factor_type={"enum": ["totp", "webauthn"]},
    status={"enum": ["verified", "unverified"]},
    created_at=MOMENT,
    updated_at=MOMENT,
)
PASSKEY = obj(
    ("id", "friendly_name", "created_at"),
    id=UUID,
    friendly_name=STRING,
    created_at=MOMENT,
    last_used_at=MOMENT,
)
USER_DETAILS = Named(
    "UserDetails",
    exactly(
        user=ADMIN_USER,
        app_metadata={"type": "object"},
        is_anonymous=BOOLEAN,
        has_password=BOOLEAN,
        updated_at=_MOMENT_OR_NULL,
        confirmed_at=_MOMENT_OR_NULL,
        invited_at=_MOMENT_OR_NULL,
        disabled_until=_MOMENT_OR_NULL,
        identities=array(IDENTITY),
        factors=array(Named("UserFactor", FACTOR)),
        passkeys=array(Named("UserPasskey", PASSKEY)),
    ),
)
AUDIT_ENTRY = Named(
    "AuditEntry",
    exactly(
        id={"type": "integer"},
        at=MOMENT,
        actor=STRING,
        actor_id={
            **_TEXT_OR_NULL,
            "description": "Of the service key, where that is the actor; else of the user who did it to another.",
        },
        user_id=_TEXT_OR_NULL,
        email=_TEXT_OR_NULL,
        **dict.fromkeys(("subject", "action", "result", "address", "user_agent", "request_id"), STRING),
    ),
)
TOKEN = Named(
    "ImpersonationToken",
    exactly(
        access_token=STRING,
        expires_at={"type": "integer", "description": "Unix seconds."},
        token_type={"const": "Bearer"},
        user={"anyOf": [USER, {"type": "null"}]},
    ),
)
_UNKNOWN = errors.user_not_found()


# Bodies.

_IMPORTED_ID = "Of an imported user, who keeps it. A new one by default."


@frozen
class NewUser:
    email: str = member(text(EMAIL))
    id: str | None = member(Kind(UUID, imported_id), default=None, schema={"description": _IMPORTED_ID})
    password: str | None = member(PASSWORD, default=None)
    password_hash: bytes | None = member(PASSWORD_HASH, default=None)
    metadata: Mapping[str, Any] = member(METADATA, default={})
    email_confirmed: bool = member(FLAG, default=True, schema={"default": True})


@frozen
class AdminChanges:
    disabled: bool | None = member(FLAG, default=None)
    password: str | None = member(PASSWORD, default=None)
    metadata: Mapping[str, Any] | None = member(METADATA, default=None)


@frozen
class Invited:
    email: str = member(text(EMAIL))
    metadata: Mapping[str, Any] = member(METADATA, default={})


@frozen
class WantedToken:
    user: str | None = member(
        or_null(TEXT),
        schema={"description": "An id or an e-mail address; null for somebody who is not signed in."},
    )


# For operators, with the service key.
_admin = partial(declare, tag=TAG, key="service", bearer="own")
_ONE = (in_path("user_id", "The user's id or e-mail address."),)
_ONE_USER = answer("The user", exactly(user=ADMIN_USER))


_PAGED = (
    Parameter("cursor", "next_cursor of the page before."),
    Parameter(
        "limit",
        f"How many are on a page, {PAGE_SIZE} by default.",
        {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_SIZE, "default": PAGE_SIZE},
    ),
)


def _page(**items: Schema) -> Answer:
    next_cursor = {**_TEXT_OR_NULL, "description": "null on the last page."}
    return answer("A page", exactly(**items, next_cursor=next_cursor))


def query_values(request: Request, *names: str) -> dict[str, str | None]:
    return {name: request.query_value(name) for name in names}


@frozen
class AdminRoutes:
    """For the service key only."""

    administration: Administration
    inspection: Inspection
    invitations: Invitations

    @_admin(
        "GET",
        "/admin/users",
        "listUsers",
        "Users in the order they were made; with email in the order of their addresses",
        _page(users=array(ADMIN_USER)),
        parameters=(
            Parameter("email", "Part of an address: users who have it in theirs, in upper or lower case."),
            Parameter("disabled", "Whether they are disabled.", BOOLEAN),
            Parameter("email_confirmed", "Whether their address is confirmed, or waits for that.", BOOLEAN),
            Parameter("anonymous", "Whether they are anonymous.", BOOLEAN),
            Parameter("order", "oldest by default; not with email.", {"enum": list(ORDERS)}),
            *_PAGED,
        ),
    )
    async def list_users(self, request: Request) -> Reply:
        page = await self.inspection.page(
            query_values(
                request, "email", "disabled", "email_confirmed", "anonymous", "order", "cursor", "limit"
            )
        )
        users = [account.view() for account in page.accounts]
        return token_reply({"users": users, "next_cursor": page.next_cursor})

    @_admin(
        "POST",
        "/admin/users",
        "createUser",
        "Make a user with a password, an imported bcrypt hash, or neither (who then recovers one)",
        created("The new user", exactly(user=ADMIN_USER)),
        body=NewUser,
        changes=True,
        errors=(errors.email_taken(), errors.id_taken(), WEAK),
    )
    async def create_user(self, request: Request) -> Reply:
        body = await request.read_json(NewUser)
        account = await self.administration.create(
            body.email,
            origin_of(request),
            user_id=body.id,
            password=body.password,
            password_hash=body.password_hash,
            metadata=body.metadata,
            confirmed=body.email_confirmed,
        )
        location = request.location(f"/admin/users/{account.user.id}")
        return token_reply({"user": account.view()}, 201, location)

    @_admin(
        "GET",
        "/admin/users/<user_id>",
        "showUser",
        "One user",
        _ONE_USER,
        parameters=_ONE,
        errors=(_UNKNOWN,),
    )
    async def show_user(self, request: Request) -> Reply:
        account = await self.administration.find(request.path_args["user_id"])
        return token_reply({"user": account.view()})

    @_admin(
        "PATCH",
        "/admin/users/<user_id>",
        "updateUser",
        "Disable a user or set the password (either ends every session), or set the metadata",
        _ONE_USER,
        parameters=_ONE,
        body=AdminChanges,
        changes=True,
        errors=(_UNKNOWN, WEAK),
    )
    async def update_user(self, request: Request) -> Reply:
        body = await request.read_json(AdminChanges)
        account = await self.administration.change(
            request.path_args["user_id"],
            origin_of(request),
            disabled=body.disabled,
            password=body.password,
            metadata=body.metadata,
        )
        return token_reply({"user": account.view()})

    @_admin(
        "DELETE",
        "/admin/users/<user_id>",
        "removeUser",
        "Delete a user",
        NOTHING,
        parameters=_ONE,
        errors=(_UNKNOWN, errors.user_in_use()),
        changes=True,
    )
    async def remove_user(self, request: Request) -> Reply:
        await self.administration.delete(request.path_args["user_id"], origin_of(request))
        return envelope(None)

    @_admin(
        "DELETE",
        "/admin/users/<user_id>/sessions",
        "endUserSessions",
        "End every session of a user",
        answer("How many there were", exactly(ended=COUNT)),
        parameters=_ONE,
        errors=(_UNKNOWN,),
    )
    async def end_user_sessions(self, request: Request) -> Reply:
        ended = await self.administration.end_sessions(request.path_args["user_id"], origin_of(request))
        return token_reply({"ended": ended})

    @_admin(
        "GET",
        "/admin/users/<user_id>/sessions",
        "listUserSessions",
        "The sessions of a user that go on, the newest first",
        answer("The sessions", exactly(sessions=array(USER_SESSION))),
        parameters=_ONE,
        errors=(_UNKNOWN,),
    )
    async def list_user_sessions(self, request: Request) -> Reply:
        sessions = await self.inspection.sessions(request.path_args["user_id"])
        return token_reply({"sessions": [session.view() for session in sessions]})

    @_admin(
        "DELETE",
        "/admin/users/<user_id>/sessions/<session_id>",
        "endUserSession",
        "End one session of a user",
        NOTHING,
        parameters=(*_ONE, in_path("session_id", "The id of a listed session.")),
        errors=(_UNKNOWN, errors.session_not_found()),
    )
    async def end_user_session(self, request: Request) -> Reply:
        arguments = request.path_args
        await self.inspection.end_session(arguments["user_id"], arguments["session_id"], origin_of(request))
        return envelope(None)

    @_admin(
        "GET",
        "/admin/users/<user_id>/details",
        "showUserDetails",
        "One user, with all ways in, second factors and passkeys",
        answer("The user", USER_DETAILS),
        parameters=_ONE,
        errors=(_UNKNOWN,),
    )
    async def show_details(self, request: Request) -> Reply:
        return token_reply((await self.inspection.details(request.path_args["user_id"])).view())

    @_admin(
        "POST",
        "/admin/invitations",
        "inviteUser",
        "Make a user without a password and e-mail an invitation",
        answer("The user", exactly(user=ADMIN_USER)),
        body=Invited,
        changes=True,
        errors=(errors.email_taken(), errors.email_not_configured(), *HOOKED),
        details="Its token sets the first password by POST /auth/reset, so the e-mail links to auth.recover_url if "
        "there is one. Whoever has not accepted yet gets another e-mail, but at most one in auth.email_seconds.",
    )
    async def invite(self, request: Request) -> Reply:
        body = await request.read_json(Invited)
        profile = await self.invitations.invite(body.email, body.metadata, origin_of(request), PLAIN)
        return token_reply({"user": profile.account.view()})

    @_admin(
        "GET",
        "/admin/audit",
        "readAudit",
        "The audit, the newest entry first",
        _page(entries=array(AUDIT_ENTRY)),
        parameters=(
            Parameter("user", "Entries about the user of this id or e-mail address."),
            Parameter("action", "Entries of this action, such as login or create_bucket."),
            Parameter("subject", "Entries about this bucket, key or database, by its name or id."),
            *_PAGED,
        ),
        errors=(_UNKNOWN,),
    )
    async def read_audit(self, request: Request) -> Reply:
        query = query_values(request, "user", "action", "subject", "cursor", "limit")
        entries, following = await self.inspection.entries(query)
        return token_reply({"entries": [one.view() for one in entries], "next_cursor": following})


@frozen
class TokenRoutes:
    """For the service key only."""

    impersonations: Impersonations

    @_admin(
        "POST",
        "/admin/tokens",
        "impersonate",
        "Make an access token to see what a user sees, or somebody who is not signed in",
        answer("The token", TOKEN),
        body=WantedToken,
        errors=(_UNKNOWN, errors.user_disabled(), *HOOKED),
        details=f"It is valid for {SECONDS // 60} minutes at most and has no session: it is not renewed, and "
        "whatever is about the account refuses it (403 session_required). For tables and storage it is the user's, "
        "and needs no project key beside it: the service key must not be sent with it. Databases that verify tokens "
        "with keys of their own refuse it. It stays valid until it expires, also if the user's sessions end or the "
        "user is disabled.",
    )
    async def impersonate(self, request: Request) -> Reply:
        wanted = await request.read_json(WantedToken)
        origin = origin_of(request)
        if wanted.user is None:
            made = await self.impersonations.of_nobody(origin)
        else:
            made = await self.impersonations.of_user(wanted.user, origin)
        return token_reply(made.view())
