"""Access tokens (RFC 7519): made by ``Issuer.mint``, checked by ``Verifier``.

The algorithm is always taken from the key, never from the token (RFC 8725).
"""

from __future__ import annotations

import math
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jwt
from attrs import frozen
from jwt.exceptions import PyJWTError

from project_service.auth.keyset import Key, KeySet
from project_service.auth.model import User
from project_service.errors import expired_token, invalid_token, session_revoked
from project_service.http.caller import Claims

AUDIENCE = "authenticated"
ROLE = "authenticated"
LEEWAY_SECONDS = 30
# Our tokens have about 500 characters. Headers are limited anyway; this limits tokens that come in other ways.
MAX_TOKEN_CHARACTERS = 8192
# The library's own checks of times are off, because times are checked here, by the clock that was passed in.
_OPTIONS: Any = {
    "require": ["exp", "iat", "iss", "aud", "sub", "sid", "role"],
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
    "strict_aud": True,
}


@frozen
class Minted:
    """An access token and its ``exp``, in Unix seconds."""

    text: str
    expires_at: int


class Revocations(Protocol):
    def is_revoked(self, session_id: str) -> bool:
        """Whether the session has ended. Raises if that cannot be known at the moment."""


@frozen
class Issuer:
    """What all tokens have in common: the keys, the issuer's name, and how many seconds they are valid."""

    keys: KeySet
    name: str
    seconds: int

    def mint(self, user: User, session_id: str, now: float, token_id: str) -> Minted:
        """A token for a session of ``user``, valid from ``now``, in Unix time. ``token_id`` becomes its ``jti``."""
        issued = int(now)
        expires = issued + self.seconds
        claims = {
            "iss": self.name,
            "sub": user.id,
            "aud": AUDIENCE,
            "role": ROLE,
            "email": user.email,
            "sid": session_id,
            "iat": issued,
            "exp": expires,
            "jti": token_id,
        }
        key = self.keys.signing
        return Minted(jwt.encode(claims, key.private, key.algorithm, {"kid": key.kid}), expires)


class Verifier:
    """Implements ``http.caller.TokenVerifier``, without I/O, since it is called for every request.

    A signature is checked only once: the claims are cached until the token expires, and the ones that were least
    recently used are dropped first. Expiry and revocation are checked every time.
    """

    def __init__(
        self, issuer: Issuer, revocations: Revocations, now: Callable[[], float], capacity: int = 10_000
    ) -> None:
        self._issuer = issuer
        self._revocations = revocations
        self._now = now
        self._capacity = capacity
        self._known: OrderedDict[str, Claims] = OrderedDict()

    @property
    def issuer(self) -> Issuer:
        return self._issuer

    def replace(self, issuer: Issuer) -> None:
        """Use another issuer from now on. All tokens are checked again."""
        self._issuer = issuer
        self._known.clear()

    def verify(self, token: str) -> Claims:
        """The claims of a valid token. Raises ``invalid_token``, ``expired_token`` or ``session_revoked``, and
        ``database_unavailable`` if it is unknown whether the session has ended."""
        claims = self._known.get(token)
        if claims is None:
            claims = self._checked(token)
            self._keep(token, claims)
        else:
            self._known.move_to_end(token)
        if claims.exp + LEEWAY_SECONDS <= self._now():
            # It must not take up space in the cache.
            self._known.pop(token, None)
            raise expired_token()
        if self._revocations.is_revoked(claims.sid):
            raise session_revoked()
        return claims

    def _keep(self, text: str, claims: Claims) -> None:
        self._known[text] = claims
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def _checked(self, text: str) -> Claims:
        if len(text) > MAX_TOKEN_CHARACTERS:
            raise invalid_token()
        try:
            key = self._key_of(jwt.get_unverified_header(text))
            payload = jwt.decode(
                text,
                key.public,
                # The key decides on the algorithm, not the token (RFC 8725 section 3.1).
                algorithms=[key.algorithm],
                audience=AUDIENCE,
                issuer=self._issuer.name,
                options=_OPTIONS,
            )
        except (PyJWTError, ValueError, RecursionError):
            raise invalid_token() from None
        return self._claims(payload)

    def _key_of(self, header: Mapping[str, Any]) -> Key:
        key = self._issuer.keys.find(header.get("kid"))
        if key is None:
            raise invalid_token()
        return key

    def _claims(self, payload: Mapping[str, Any]) -> Claims:
        exp, issued, starts = times = (payload["exp"], payload["iat"], payload.get("nbf", 0))
        if not all(map(_is_number, times)):
            raise invalid_token()
        if max(issued, starts) > self._now() + LEEWAY_SECONDS:
            raise invalid_token("The access token is not valid yet.")
        sub, sid = (_id(payload[name]) for name in ("sub", "sid"))
        email, role = (_text(payload.get(name)) for name in ("email", "role"))
        return Claims(sub=sub, email=email, role=role, sid=sid, exp=int(exp), raw=dict(payload))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise invalid_token()
    return value


def _id(value: object) -> str:
    """An id in the form that the database has. It is checked because others may sign with our keys too, and queries
    need a UUID."""
    try:
        return str(uuid.UUID(_text(value)))
    except ValueError:
        raise invalid_token() from None


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False
