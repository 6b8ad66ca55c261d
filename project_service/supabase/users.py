"""Users, sessions and bodies of requests as clients of the Supabase family know them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from project_service.auth import admin_routes
from project_service.auth.admin import imported_hash, imported_id
from project_service.auth.routes import PASSWORD
from project_service.auth.tokens import AUDIENCE, ROLE
from project_service.auth.values import (
    EMAIL_MAX_BYTES,
    Identity,
    IssuedSession,
    Profile,
    User,
    check_app_metadata,
    check_metadata,
)
from project_service.errors import validation_failed
from project_service.http.describe import BOOLEAN, MOMENT, STRING, UUID, Named, array, obj
from project_service.http.json_body import FLAG, TEXT, Kind, member, text
from project_service.lifecycle import timestamp

_FOR_EVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
# What says when a challenge was mailed, by its purpose.
_SENT = {
    "confirmation": "confirmation_sent_at",
    "recovery": "recovery_sent_at",
    "magic_link": "recovery_sent_at",
    "email_change": "email_change_sent_at",
    "reauthentication": "reauthentication_sent_at",
}


def user_view(profile: Profile) -> dict[str, Any]:
    """The ``User`` of these clients. What is empty is left out. One who is disabled for good is banned for as long as
    dates go."""
    user, account = profile.user, profile.account
    # Where addresses need not be confirmed, these servers take them for confirmed from the beginning.
    confirmed = user.confirmed_at or (None if user.awaits_confirmation or not user.email else user.created_at)
    moments = {
        "invited_at": profile.invited_at,
        "email_confirmed_at": confirmed,
        "confirmed_at": confirmed,
        "last_sign_in_at": user.last_login_at,
        **{_SENT[purpose]: at for purpose, at in profile.sent.items() if purpose in _SENT},
        "banned_until": None if account.disabled_at is None else account.disabled_until or _FOR_EVER,
    }
    return {
        "id": user.id,
        "aud": AUDIENCE,
        "role": ROLE,
        "email": user.email,
        "phone": "",
        **{name: timestamp(at) for name, at in moments.items() if at is not None},
        **({"new_email": profile.new_email} if profile.new_email else {}),
        "app_metadata": dict(user.app_metadata),
        "user_metadata": dict(user.metadata),
        "identities": [_identity(one, user) for one in profile.identities],
        **({"factors": [one.view() for one in profile.factors]} if profile.factors else {}),
        "created_at": timestamp(user.created_at),
        "updated_at": timestamp(user.updated_at or user.created_at),
        "is_anonymous": user.is_anonymous,
    }


def _identity(identity: Identity, user: User) -> dict[str, Any]:
    last = user.last_login_at if identity.provider == "email" else identity.last_sign_in_at
    email = identity.data.get("email")
    return {
        "identity_id": identity.id,
        "id": identity.subject,
        "user_id": identity.user_id,
        "identity_data": dict(identity.data),
        "provider": identity.provider,
        "last_sign_in_at": timestamp(last or identity.created_at),
        "created_at": timestamp(identity.created_at),
        "updated_at": timestamp(identity.updated_at),
        **({"email": email} if isinstance(email, str) else {}),
    }


def session_view(session: IssuedSession, profile: Profile, now: float) -> dict[str, Any]:
    """The ``Session`` of these clients. ``now`` is the Unix time."""
    return {
        "access_token": session.access_token,
        "token_type": "bearer",
        "expires_in": max(1, session.expires_at - int(now)),
        "expires_at": session.expires_at,
        "refresh_token": session.refresh_token,
        "user": user_view(profile),
        **session.provider_tokens,
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
FACTOR = Named("ClientFactor", admin_routes.FACTOR)
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
        factors=array(FACTOR),
        created_at=MOMENT,
        updated_at=MOMENT,
        banned_until=MOMENT,
        invited_at=MOMENT,
        confirmation_sent_at=MOMENT,
        recovery_sent_at=MOMENT,
        email_change_sent_at=MOMENT,
        reauthentication_sent_at=MOMENT,
        new_email=STRING,
        is_anonymous=BOOLEAN,
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
        provider_token=STRING,
        provider_refresh_token=STRING,
    ),
)


# Bodies. Clients send members that mean nothing here, and null for what they do not set.

_METADATA = Kind({"type": "object", "description": "Merged; null removes a member."}, check_metadata)
_APP_METADATA = Kind({"type": "object", "description": "Merged; null removes a member."}, check_app_metadata)
# RFC 7636 section 4.2.
CODE_CHALLENGE_CHARACTERS = 128
_CODE_CHALLENGE = text({"type": "string", "maxLength": CODE_CHALLENGE_CHARACTERS})
_ADDRESS = text({"type": "string", "maxLength": EMAIL_MAX_BYTES, "description": "An e-mail address."})


def _meta_security(name: str, value: object) -> str:
    """The captcha token among what clients say besides; "" if there is none that can be one. Raises
    ``validation_failed``."""
    if not isinstance(value, dict):
        raise validation_failed({name: "must be an object"})
    token = value.get("captcha_token")
    return token if isinstance(token, str) and len(token) <= _CAPTCHA_MAX_CHARACTERS else ""


_CAPTCHA_MAX_CHARACTERS = 4096
_META_SECURITY = Kind({"type": "object"}, _meta_security)


@frozen
class Pkce:
    """How a client will show that it was the one that asked (RFC 7636 section 4.3)."""

    code_challenge: str = member(_CODE_CHALLENGE, default="")
    code_challenge_method: str = member(TEXT, default="")


@frozen
class SignUp(Pkce):
    gotrue_meta_security: str = member(_META_SECURITY, default="")
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
    auth_code: str = member(TEXT, default="")
    code_verifier: str = member(TEXT, default="")
    provider: str = member(TEXT, default="")
    id_token: str = member(TEXT, default="")
    access_token: str = member(TEXT, default="")
    nonce: str = member(TEXT, default="")
    link_identity: bool = member(FLAG, default=False)
    gotrue_meta_security: str = member(_META_SECURITY, default="")


@frozen
class Changes(Pkce):
    email: str = member(_ADDRESS, default="")
    phone: str = member(TEXT, default="")
    password: str | None = member(PASSWORD, default=None)
    current_password: str | None = member(TEXT, default=None)
    nonce: str = member(TEXT, default="")
    data: Mapping[str, Any] = member(_METADATA, default={})


@frozen
class Recover(Pkce):
    email: str = member(_ADDRESS, default="")


@frozen
class Resend(Pkce):
    type: str = member(TEXT, default="")
    email: str = member(_ADDRESS, default="")
    phone: str = member(TEXT, default="")


@frozen
class Otp(Pkce):
    gotrue_meta_security: str = member(_META_SECURITY, default="")
    email: str = member(_ADDRESS, default="")
    phone: str = member(TEXT, default="")
    create_user: bool = member(FLAG, default=True)
    data: Mapping[str, Any] = member(_METADATA, default={})


@frozen
class Verify:
    """Either the token of the link, or the address and the code."""

    type: str = member(TEXT, default="")
    token_hash: str = member(TEXT, default="")
    email: str = member(_ADDRESS, default="")
    phone: str = member(TEXT, default="")
    token: str = member(TEXT, default="")


@frozen
class NewFactor:
    factor_type: str = member(TEXT, default="")
    friendly_name: str = member(TEXT, default="")
    issuer: str = member(TEXT, default="", schema={"description": "What applications show beside the code."})


def _object(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise validation_failed({name: "must be an object"})
    return value


_OBJECT = Kind({"type": "object"}, _object)


@frozen
class FactorAnswer:
    challenge_id: str = member(TEXT, default="")
    code: str = member(TEXT, default="", schema={"description": "Of the factor, or a recovery code."})
    webauthn: Mapping[str, Any] = member(
        _OBJECT, default={}, schema={"description": "For a key: credential_response, what the page got."}
    )


@frozen
class PasskeyAnswer:
    challenge_id: str = member(TEXT, default="")
    credential: Mapping[str, Any] = member(
        _OBJECT, default={}, schema={"description": "What navigator.credentials gave, as JSON."}
    )


@frozen
class PasskeyName:
    friendly_name: str = member(TEXT, default="")


@frozen
class Invitation:
    email: str = member(_ADDRESS, default="")
    data: Mapping[str, Any] = member(_METADATA, default={})


@frozen
class NewLink(Invitation):
    type: str = member(TEXT, default="")
    password: str = member(PASSWORD, default="")
    new_email: str = member(_ADDRESS, default="")
    redirect_to: str = member(TEXT, default="")


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
    ban_duration: str = member(TEXT, default="", schema={"description": "none, or a time such as 24h."})


@frozen
class NewUser(UserAttributes):
    id: str | None = member(Kind(UUID, imported_id), default=None)
    password_hash: bytes | None = member(Kind(STRING, imported_hash), default=None)


@frozen
class Deletion:
    should_soft_delete: bool = member(FLAG, default=False)
