"""What is known of providers: their addresses, and how what they say of somebody becomes a ``Profile``.

A ``Preset`` has what one provider needs that its documents do not say. Any other provider speaks OpenID Connect and
is found by its issuer. Sources: the providers' own documentation; for the members of ``Profile.data`` that of clients
of the Supabase family, which show them as ``identity_data``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import orjson
from attrs import field, frozen

from project_service.auth.values import Email
from project_service.errors import ApiError

SUBJECT_MAX_CHARACTERS = 255
_TEXT_MAX_CHARACTERS = 2048
# Of all claims that are kept besides the known ones, as JSON.
_CUSTOM_MAX_BYTES = 8 * 1024


class NoProfile(Exception):
    """What a provider sent does not say who somebody is. The message says what is missing, and nothing of what was
    sent."""


@frozen
class Profile:
    """What a provider says of somebody. ``subject`` is theirs for ever at that provider. ``is_verified`` says whether
    the provider says that it has checked the address. ``data`` is for ``identity_data`` and has no NUL in it."""

    subject: str
    email: str | None
    is_verified: bool
    data: Mapping[str, Any] = field(repr=False)


# What a provider has sent, by the names of ``Preset.profile_urls``.
Documents = Mapping[str, Any]


@frozen
class Preset:
    """One provider. With an ``issuer`` it speaks OpenID Connect. Those with ``profile_urls`` do not when somebody is
    sent to them, and have all of their addresses here."""

    scopes: tuple[str, ...] = ("openid", "email", "profile")
    issuer: str | None = None
    # Other names under which it issues tokens.
    other_issuers: tuple[str, ...] = ()
    authorization_url: str | None = None
    exchange_url: str | None = None
    profile_urls: Mapping[str, str] = field(factory=dict)
    read: Callable[[Documents], Profile] | None = None
    # How the client says who it is where no document says what is understood (RFC 6749 section 2.3.1).
    client_auth: Literal["post", "basic"] = "post"
    parameters: Mapping[str, str] = field(factory=dict)
    # Whether the code is bound to a verifier (RFC 7636).
    pkce: bool = True
    # The profile is asked for with the client's id in a header, or with a proof that we know its secret.
    sends_client_id: bool = False
    proves_secret: bool = False

    @property
    def by_id_token(self) -> bool:
        """Whether who somebody is follows from an ID token."""
        return not self.profile_urls


# Reading


def from_claims(name: str, claims: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> Profile:
    """The profile in the claims of a verified ID token (OpenID Connect Core section 5.1), and of what the userinfo
    endpoint said besides. Raises ``NoProfile``."""
    everything = {**(other or {}), **claims}
    if other is not None and other.get("email") is not None and claims.get("email") is None:
        # An address and whether it is verified belong together.
        everything["email_verified"] = other.get("email_verified")
    verified = _is_true(everything.get("email_verified"))
    if name == "azure":
        verified = _verified_by_microsoft(claims, everything)
    known = {member: everything.get(member) for member in _SHOWN_CLAIMS}
    if known["name"] is None:
        parts = (_text(everything.get("given_name")), _text(everything.get("family_name")))
        known["name"] = " ".join(one for one in parts if one) or None
    custom = {key: value for key, value in everything.items() if key not in _NOT_CUSTOM}
    return _profile(
        claims.get("iss"), everything.get("sub"), everything.get("email"), verified, custom, known
    )


_SHOWN_CLAIMS = (
    *("name", "given_name", "family_name", "nickname", "preferred_username", "picture", "locale"),
    *("profile", "website"),
)
# What a token says of itself, and what has a place of its own.
_NOT_CUSTOM = frozenset(
    {
        *(
            "iss",
            "sub",
            "aud",
            "azp",
            "exp",
            "iat",
            "nbf",
            "jti",
            "nonce",
            "at_hash",
            "c_hash",
            "s_hash",
            "sid",
        ),
        *("acr", "amr", "auth_time", "typ", "ver", "aio", "rh", "uti", "nonce_supported", "session_state"),
        *("email", "email_verified", "phone_number", "phone_number_verified", *_SHOWN_CLAIMS),
    }
)
# The tenant of personal accounts, whose addresses Microsoft has verified.
_PERSONAL_TENANT = "9188040d-6c67-4c5b-b112-36a304b66dad"


def _verified_by_microsoft(claims: Mapping[str, Any], everything: Mapping[str, Any]) -> bool:
    """``email`` is what the administrator of any tenant entered. ``xms_edov`` says that the tenant owns its domain;
    it has to be asked for in the registration of the application."""
    if everything.get("email") != claims.get("email"):
        return False
    return claims.get("tid") == _PERSONAL_TENANT or _is_true(claims.get("xms_edov"))


def _github(documents: Documents) -> Profile:
    """Only the primary address counts, and only if it is verified."""
    user, emails = _object(documents["user"]), documents["emails"]
    listed = [one for one in emails if isinstance(one, dict)] if isinstance(emails, list) else []
    primary = next((one for one in listed if one.get("primary") is True), {})
    known = {
        "name": user.get("name"),
        "preferred_username": user.get("login"),
        "user_name": user.get("login"),
        "picture": user.get("avatar_url"),
    }
    verified = primary.get("verified") is True
    return _profile("https://api.github.com", user.get("id"), primary.get("email"), verified, {}, known)


def _discord(documents: Documents) -> Profile:
    user = _object(documents["user"])
    subject, avatar = user.get("id"), user.get("avatar")
    picture = None
    if isinstance(subject, str) and isinstance(avatar, str) and re.fullmatch(r"\w{1,100}", avatar, re.ASCII):
        form = "gif" if avatar.startswith("a_") else "png"
        picture = f"https://cdn.discordapp.com/avatars/{subject}/{avatar}.{form}"
    name, number = _text(user.get("username")), _text(user.get("discriminator"))
    known = {
        "name": f"{name}#{number}" if name and number else name,
        "full_name": name,
        "picture": picture,
    }
    custom = {"global_name": user.get("global_name")}
    verified = user.get("verified") is True
    return _profile("https://discord.com/api", subject, user.get("email"), verified, custom, known)


def _facebook(documents: Documents) -> Profile:
    """Facebook does not say whether an address is verified."""
    user = _object(documents["user"])
    inner = _object(_object(user.get("picture") or {}).get("data") or {})
    known = {"name": user.get("name"), "nickname": user.get("name"), "picture": inner.get("url")}
    return _profile("https://graph.facebook.com", user.get("id"), user.get("email"), False, {}, known)


def _twitch(documents: Documents) -> Profile:
    """The address, where there is one, is verified (Twitch, "Get Users")."""
    users = _object(documents["user"]).get("data")
    user = _object(users[0] if isinstance(users, list) and users else None)
    known = {
        "name": user.get("login"),
        "nickname": user.get("display_name"),
        "picture": user.get("profile_image_url"),
    }
    return _profile("https://api.twitch.tv", user.get("id"), user.get("email"), True, {}, known)


def _x(documents: Documents) -> Profile:
    """``confirmed_email`` is there only if it is confirmed, and if the application may ask for it."""
    user = _object(_object(documents["user"]).get("data"))
    known = {
        "name": user.get("name"),
        "preferred_username": user.get("username"),
        "user_name": user.get("username"),
        "picture": user.get("profile_image_url"),
        "website": user.get("url"),
    }
    return _profile("https://api.x.com", user.get("id"), user.get("confirmed_email"), True, {}, known)


def with_apples_name(profile: Profile, user: str | None) -> Profile:
    """``profile`` with the name in the field ``user`` of Apple's form, which is sent the first time only, by way of
    the browser: it is what somebody calls themselves, and its address is not looked at."""
    try:
        given = _object(orjson.loads(user or "null")).get("name")
        parts = [_text(_object(given).get(name)) for name in ("firstName", "lastName")]
    except (orjson.JSONDecodeError, NoProfile):
        return profile
    name = " ".join(one for one in parts if one)
    if not name:
        return profile
    return Profile(
        profile.subject, profile.email, profile.is_verified, {**profile.data, "name": name, "full_name": name}
    )


PRESETS: Mapping[str, Preset] = {
    "apple": Preset(
        scopes=("openid", "email", "name"),
        issuer="https://appleid.apple.com",
        # Required where a name or an address is asked for: the answer is a form that the browser posts.
        parameters={"response_mode": "form_post"},
    ),
    # Accounts of any tenant, and personal ones. An issuer in the settings limits them to one tenant.
    "azure": Preset(issuer="https://login.microsoftonline.com/common/v2.0"),
    "discord": Preset(
        scopes=("identify", "email"),
        authorization_url="https://discord.com/oauth2/authorize",
        exchange_url="https://discord.com/api/oauth2/token",
        profile_urls={"user": "https://discord.com/api/users/@me"},
        read=_discord,
    ),
    "facebook": Preset(
        scopes=("email",),
        # Of ID tokens that apps bring.
        issuer="https://www.facebook.com",
        authorization_url="https://www.facebook.com/dialog/oauth",
        exchange_url="https://graph.facebook.com/oauth/access_token",
        profile_urls={"user": "https://graph.facebook.com/me?fields=id,email,name,picture"},
        read=_facebook,
        proves_secret=True,
    ),
    "github": Preset(
        scopes=("read:user", "user:email"),
        authorization_url="https://github.com/login/oauth/authorize",
        exchange_url="https://github.com/login/oauth/access_token",
        profile_urls={"user": "https://api.github.com/user", "emails": "https://api.github.com/user/emails"},
        read=_github,
    ),
    "gitlab": Preset(issuer="https://gitlab.com"),
    "google": Preset(issuer="https://accounts.google.com", other_issuers=("accounts.google.com",)),
    # LinkedIn binds codes to verifiers for native applications only.
    "linkedin_oidc": Preset(issuer="https://www.linkedin.com/oauth", pkce=False),
    "slack_oidc": Preset(issuer="https://slack.com"),
    "twitch": Preset(
        scopes=("user:read:email",),
        authorization_url="https://id.twitch.tv/oauth2/authorize",
        exchange_url="https://id.twitch.tv/oauth2/token",
        profile_urls={"user": "https://api.twitch.tv/helix/users"},
        read=_twitch,
        sends_client_id=True,
    ),
    "x": Preset(
        scopes=("users.email", "tweet.read", "users.read"),
        authorization_url="https://x.com/i/oauth2/authorize",
        exchange_url="https://api.x.com/2/oauth2/token",
        profile_urls={
            "user": "https://api.x.com/2/users/me?user.fields=confirmed_email,profile_image_url,url,username"
        },
        read=_x,
        client_auth="basic",
    ),
}
# Any provider that is found by its issuer alone, such as keycloak.
OPENID_CONNECT = Preset()


# Values


def _profile(
    issuer: Any,
    subject: Any,
    email: Any,
    is_verified: bool,
    custom: Mapping[str, Any],
    known: Mapping[str, Any],
) -> Profile:
    subject = _subject(subject)
    address = _email(email)
    shown = {name: text for name, value in known.items() if (text := _text(value)) is not None}
    data: dict[str, Any] = {
        "iss": _text(issuer),
        "sub": subject,
        "provider_id": subject,
        **({} if "name" not in shown else {"full_name": shown["name"]}),
        **({} if "picture" not in shown else {"avatar_url": shown["picture"]}),
        **shown,
        "email": address,
        "email_verified": address is not None and is_verified,
        "phone_verified": False,
        "custom_claims": _custom(custom),
    }
    kept = {name: value for name, value in data.items() if value not in (None, {})}
    return Profile(subject, address, address is not None and is_verified, kept)


def _subject(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    text = _text(value)
    if not text or len(text) > SUBJECT_MAX_CHARACTERS:
        raise NoProfile("it does not say who somebody is")
    return text


def _email(value: Any) -> str | None:
    """The address as we write it; None for what is no address, as if there were none."""
    text = _text(value)
    if text is None:
        return None
    try:
        return Email.parse(text).address
    except ApiError:
        return None


def _text(value: Any) -> str | None:
    """``value`` if it is a text that can be stored, and not too long."""
    if not isinstance(value, str) or not value or len(value) > _TEXT_MAX_CHARACTERS or "\0" in value:
        return None
    return value if _is_unicode(value) else None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _custom(claims: Mapping[str, Any]) -> dict[str, Any]:
    """Other claims; none of them if they are too long, or could not be stored."""
    kept = {name: value for name, value in claims.items() if value is not None}
    try:
        text = orjson.dumps(kept)
    except (TypeError, ValueError, RecursionError):
        return {}
    return kept if len(text) <= _CUSTOM_MAX_BYTES and rb"\u0000" not in text else {}


def _is_true(value: Any) -> bool:
    """Some providers write booleans as texts."""
    return value is True or value in ("true", "1", 1)


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise NoProfile("it is not in the expected form")
    return value
