"""Users, sessions and bodies of requests as clients of the Supabase family know them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from project_service.auth.admin import imported_hash, imported_id
from project_service.auth.routes import PASSWORD
from project_service.auth.tokens import AUDIENCE, ROLE
from project_service.auth.values import (
    EMAIL_MAX_BYTES,
    Account,
    IssuedSession,
    User,
    check_app_metadata,
    check_metadata,
)
from project_service.http.describe import MOMENT, STRING, UUID, Named, array, obj
from project_service.http.json_body import FLAG, TEXT, Kind, member, text
from project_service.lifecycle import timestamp


def user_view(user: User, *, made_up: bool = False, more: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The ``User`` of these clients. What is empty is left out, and some of it is always empty here."""
    # Where addresses need not be confirmed, these servers take them for confirmed from the beginning.
    confirmed = user.confirmed_at or (None if user.awaits_confirmation else user.created_at)
    moments = {
        "email_confirmed_at": confirmed,
        "confirmed_at": confirmed,
        "last_sign_in_at": user.last_login_at,
    }
    return {
        "id": user.id,
        "aud": AUDIENCE,
        "role": ROLE,
        "email": user.email,
        "phone": "",
        **{name: timestamp(at) for name, at in moments.items() if at is not None},
        "app_metadata": dict(user.app_metadata),
        "user_metadata": dict(user.metadata),
        "identities": [] if made_up else [_identity(user)],
        "created_at": timestamp(user.created_at),
        "updated_at": timestamp(user.updated_at or user.created_at),
        **more,
        "is_anonymous": False,
    }


def _identity(user: User) -> dict[str, Any]:
    created = timestamp(user.created_at)
    return {
        # The same each time, and another one than the user's.
        "identity_id": str(uuid.uuid5(uuid.UUID(user.id), "email")),
        "id": user.id,
        "user_id": user.id,
        "identity_data": {
            "email": user.email,
            "email_verified": user.confirmed_at is not None,
            "phone_verified": False,
            "sub": user.id,
        },
        "provider": "email",
        "last_sign_in_at": timestamp(user.last_login_at or user.created_at),
        "created_at": created,
        "updated_at": created,
        "email": user.email,
    }


def account_view(account: Account) -> dict[str, Any]:
    """A user as operators see it. One who is disabled is banned for as long as dates go."""
    banned = {} if account.disabled_at is None else {"banned_until": "9999-12-31T23:59:59Z"}
    return user_view(account.user, more=banned)


def session_view(session: IssuedSession, now: float) -> dict[str, Any]:
    """The ``Session`` of these clients. ``now`` is the Unix time."""
    return {
        "access_token": session.access_token,
        "token_type": "bearer",
        "expires_in": max(1, session.expires_at - int(now)),
        "expires_at": session.expires_at,
        "refresh_token": session.refresh_token,
        "user": user_view(session.user),
    }


_IDENTITY = obj(
    ("identity_id", "id", "user_id", "identity_data", "provider"),
    identity_id=UUID,
    id=STRING,
    user_id=UUID,
    identity_data={"type": "object"},
    provider=STRING,
    last_sign_in_at=MOMENT,
    created_at=MOMENT,
    updated_at=MOMENT,
    email=STRING,
)
USER = Named(
    "ClientUser",
    obj(
        (
            *("id", "aud", "role", "email", "phone", "app_metadata", "user_metadata", "identities"),
            *("created_at", "updated_at", "is_anonymous"),
        ),
        id=UUID,
        aud={"const": AUDIENCE},
        role={"const": ROLE},
        email=STRING,
        phone={"const": ""},
        email_confirmed_at=MOMENT,
        confirmed_at=MOMENT,
        last_sign_in_at=MOMENT,
        app_metadata={"type": "object"},
        user_metadata={"type": "object"},
        identities=array(_IDENTITY),
        created_at=MOMENT,
        updated_at=MOMENT,
        banned_until=MOMENT,
        is_anonymous={"const": False},
    ),
)
SESSION = Named(
    "ClientSession",
    obj(
        ("access_token", "token_type", "expires_in", "expires_at", "refresh_token", "user"),
        access_token=STRING,
        token_type={"const": "bearer"},
        expires_in={"type": "integer", "description": "Seconds."},
        expires_at={"type": "integer", "description": "Unix seconds."},
        refresh_token=STRING,
        user=USER,
    ),
)


# Bodies. Clients send members that mean nothing here, and null for what they do not set.

_METADATA = Kind({"type": "object", "description": "Merged; null removes a member."}, check_metadata)
_APP_METADATA = Kind({"type": "object", "description": "Merged; null removes a member."}, check_app_metadata)
_ADDRESS = text({"type": "string", "maxLength": EMAIL_MAX_BYTES, "description": "An e-mail address."})


@frozen
class SignUp:
    email: str = member(_ADDRESS, default="")
    phone: str = member(TEXT, default="")
    password: str = member(PASSWORD, default="")
    data: Mapping[str, Any] = member(_METADATA, default={})


@frozen
class Grant:
    """Of ``/token``; which members are needed depends on ``grant_type``."""

    email: str = member(_ADDRESS, default="")
    phone: str = member(TEXT, default="")
    password: str = member(TEXT, default="")
    refresh_token: str = member(TEXT, default="")


@frozen
class Changes:
    email: str = member(_ADDRESS, default="")
    phone: str = member(TEXT, default="")
    password: str | None = member(PASSWORD, default=None)
    current_password: str | None = member(TEXT, default=None)
    nonce: str = member(TEXT, default="")
    data: Mapping[str, Any] = member(_METADATA, default={})


@frozen
class Recover:
    email: str = member(_ADDRESS, default="")


@frozen
class Resend:
    type: str = member(TEXT, default="")
    email: str = member(_ADDRESS, default="")
    phone: str = member(TEXT, default="")


@frozen
class Verify:
    type: str = member(TEXT, default="")
    token_hash: str = member(TEXT, default="")


@frozen
class UserAttributes:
    """What operators make or change a user with."""

    email: str = member(_ADDRESS, default="")
    phone: str = member(TEXT, default="")
    password: str | None = member(PASSWORD, default=None)
    email_confirm: bool = member(FLAG, default=False)
    user_metadata: Mapping[str, Any] = member(_METADATA, default={})
    app_metadata: Mapping[str, Any] = member(_APP_METADATA, default={})
    role: str = member(TEXT, default="")
    ban_duration: str = member(TEXT, default="", schema={"description": "none, or at least 876000h."})


@frozen
class NewUser(UserAttributes):
    id: str | None = member(Kind(UUID, imported_id), default=None)
    password_hash: bytes | None = member(Kind(STRING, imported_hash), default=None)


@frozen
class Deletion:
    should_soft_delete: bool = member(FLAG, default=False)
