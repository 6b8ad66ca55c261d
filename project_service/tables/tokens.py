"""Tokens of a database that names its own ``jwt_secret`` or JWK Set, with PostgREST's errors (PGRST301, 303)."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jwt
from attrs import define, field, frozen
from jwt.algorithms import get_default_algorithms

from project_service import base64url
from project_service.tables import errors

LEEWAY_SECONDS = 30
_KEPT = 4096
_SYMMETRIC = ("HS256", "HS384", "HS512")
_BY_TYPE = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
    "oct": _SYMMETRIC,
}


@frozen
class TokenKey:
    """A key and the algorithms it may verify: never chosen by the token alone."""

    key: Any = field(repr=False)
    algorithms: tuple[str, ...]
    kid: str | None = None


def parse_keys(secret: str | None, jwks: str | None) -> tuple[TokenKey, ...]:
    """``secret`` is a shared secret, or a JWK or JWK Set as PostgREST allows there. Raises ``ValueError``."""
    found: list[TokenKey] = []
    for text in filter(None, (secret, jwks)):
        document = _json_object(text)
        if document is None:
            found.append(TokenKey(text.encode(), _SYMMETRIC))
        else:
            found.extend(_from_jwk(item) for item in document.get("keys", [document]))
    return tuple(found)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _from_jwk(document: Mapping[str, Any]) -> TokenKey:
    try:
        algorithms = _BY_TYPE[document["kty"]]
        if document.get("alg") in algorithms:
            algorithms = (document["alg"],)
        key = jwt.PyJWK(dict(document), algorithm=algorithms[0]).key
    except (jwt.PyJWTError, KeyError) as fault:
        raise ValueError(f"not a usable JWK: {fault}") from None
    return TokenKey(key, algorithms, document.get("kid"))


@define
class OwnTokens:
    """Verifies tokens by the database's own keys; a signature that was good is remembered."""

    keys: tuple[TokenKey, ...]
    audience: str | None
    now: Callable[[], float]
    _known: OrderedDict[str, dict[str, Any]] = field(factory=OrderedDict, init=False)

    def claims(self, token: str) -> Mapping[str, Any]:
        """The claims of a good token. Raises PGRST301 or PGRST303."""
        claims = self._known.get(token)
        if claims is None:
            claims = self._decoded(token)
            self._known[token] = claims
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(token)
        _check_times(claims, self.now())
        _check_audience(claims, self.audience)
        return claims

    def _decoded(self, token: str) -> dict[str, Any]:
        parts = token.split(".")
        if len(parts) != 3:
            raise errors.undecodable_token(f"Expected 3 parts in JWT; got {len(parts)}")
        header = _part(parts[0])
        if header is None:
            raise errors.undecodable_token("JWT cryptographic operation failed")
        if not self._signed(header, parts):
            raise errors.undecodable_token(
                "No suitable key or wrong key type", "None of the keys was able to decode the JWT"
            )
        claims = _part(parts[1])
        if claims is None:
            raise errors.invalid_claims("Parsing claims failed")
        return claims

    def _signed(self, header: Mapping[str, Any], parts: list[str]) -> bool:
        algorithm, kid = header.get("alg"), header.get("kid")
        message = f"{parts[0]}.{parts[1]}".encode()
        try:
            signature = base64url.decode(parts[2])
        except ValueError:
            return False
        for key in self.keys:
            if algorithm in key.algorithms and (kid is None or key.kid is None or kid == key.kid):
                verifier = get_default_algorithms()[algorithm]
                prepared = verifier.prepare_key(key.key)
                if verifier.verify(message, prepared, signature):
                    return True
        return False


def _part(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(base64url.decode(text))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise errors.invalid_claims(f"The JWT '{name}' claim must be a number")
    if claims.get("exp") is not None and claims["exp"] + LEEWAY_SECONDS < now:
        raise errors.invalid_claims("JWT expired")
    if claims.get("nbf") is not None and claims["nbf"] - LEEWAY_SECONDS > now:
        raise errors.invalid_claims("JWT not yet valid")
    if claims.get("iat") is not None and claims["iat"] - LEEWAY_SECONDS > now:
        raise errors.invalid_claims("JWT issued at future")


def _check_audience(claims: Mapping[str, Any], wanted: str | None) -> None:
    given = claims.get("aud")
    named = [given] if isinstance(given, str) else given
    if named is not None and not (isinstance(named, list) and all(isinstance(one, str) for one in named)):
        raise errors.invalid_claims("The JWT 'aud' claim must be a string or an array of strings")
    if wanted is not None and named and wanted not in named:
        raise errors.invalid_claims("JWT not in audience")
