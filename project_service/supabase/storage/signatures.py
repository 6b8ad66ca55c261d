"""Signatures of addresses that open an object until they expire: JWTs (RFC 7519) with a secret of their own, which
follows from the key that signs access tokens. Nothing is stored, so none can be revoked but with that key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from uuid import UUID

import jwt
from attrs import frozen
from jwt.exceptions import PyJWTError

from project_service import whole_numbers
from project_service.auth.tokens import Key, KeySet
from project_service.storage import errors

_ALGORITHM = "HS256"
MAX_TOKEN_CHARACTERS = 8192
# Expiries of longer lives are rounded up to a tenth of the life, so that whoever asks again gets the same address, of
# which a browser has the picture already.
_ROUNDED_FROM_SECONDS = 60
# Times are checked here, by the clock that was passed in.
_OPTIONS: Any = {"require": ["exp", "url", "scope"], "verify_exp": False}

Scope = Literal["download", "render"]


@frozen
class Signed:
    """What an address opens: the object ``key``, in a bucket with ``owner_only_reads`` only as long as it is that of
    ``owner``, if there is one. ``query`` says in which size and format."""

    bucket: str
    key: str
    scope: Scope
    expires_at: int
    owner: UUID | None = None
    query: str = ""


@frozen(eq=False)
class Signatures:
    """``keys`` returns those of access tokens, which are replaced when the configuration is read again. ``now`` is
    Unix time."""

    keys: Callable[[], KeySet]
    now: Callable[[], float]

    def sign(self, signed: Signed) -> str:
        """The same text for the same value, as long as the same key signs."""
        key = self.keys().signing
        claims: dict[str, Any] = {
            "url": f"{signed.bucket}/{signed.key}",
            "scope": signed.scope,
            "exp": signed.expires_at,
        }
        if signed.owner is not None:
            claims["owner"] = str(signed.owner)
        if signed.query:
            claims["query"] = signed.query
        return jwt.encode(claims, _secret(key), _ALGORITHM, {"kid": key.kid})

    def expiry(self, seconds: int) -> int:
        """When an address that is to live for so long expires, at least."""
        expires_at = int(self.now()) + seconds
        step = seconds // 10 if seconds >= _ROUNDED_FROM_SECONDS else 1
        return -(-expires_at // step) * step

    def read(self, token: str, scope: Scope, bucket: str, key: str) -> Signed:
        """What ``token`` says, if it is for this object and this purpose. Raises ``token_not_found`` or
        ``token_expired``."""
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise errors.token_not_found()
        try:
            signing = self.keys().find(jwt.get_unverified_header(token).get("kid"))
            if signing is None or signing.private is None:
                raise errors.token_not_found()
            claims = jwt.decode(token, _secret(signing), algorithms=[_ALGORITHM], options=_OPTIONS)
        except (PyJWTError, ValueError, RecursionError):
            raise errors.token_not_found() from None
        expires_at = whole_numbers.from_json(claims["exp"])
        if expires_at is None or (claims["scope"], claims["url"]) != (scope, f"{bucket}/{key}"):
            raise errors.token_not_found()
        if expires_at <= self.now():
            raise errors.token_expired()
        owner = claims.get("owner")
        return Signed(
            bucket, key, scope, expires_at, None if owner is None else UUID(owner), claims.get("query", "")
        )

    def seconds_left(self, signed: Signed) -> int:
        return max(0, int(signed.expires_at - self.now()))


def _secret(key: Key) -> bytes:
    return key.secret_for(b"signed addresses of objects")
