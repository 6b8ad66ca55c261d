"""ID tokens (OpenID Connect Core section 2): who a provider says somebody is. ``verified`` checks one, without I/O.

The algorithm has to be one of ``ALGORITHMS``, which all are asymmetric, and to go with the key that the provider
publishes (RFC 8725 sections 3.1 and 3.2).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jwt
from attrs import field, frozen
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from project_service import base64url, whole_numbers

# By what a key of them is (RFC 7518 section 3.1, RFC 8037).
_FAMILIES = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
ALGORITHMS = frozenset(name for names in _FAMILIES.values() for name in names)
_HASHES = {"256": hashlib.sha256, "384": hashlib.sha384, "512": hashlib.sha512}
_MIN_RSA_BITS = 2048
LEEWAY_SECONDS = 60
MAX_CHARACTERS = 16 * 1024
# In an issuer it stands for the tenant, which the token's claim "tid" names (Microsoft's common endpoint).
TENANT = "{tenantid}"
_TENANT_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
# All checks but that of the signature are made here, by the clock that was passed in.
_OPTIONS: Any = {"verify_signature": True} | {
    f"verify_{name}": False for name in ("exp", "iat", "nbf", "aud", "iss", "sub", "jti")
}


class IdTokenFault(Exception):
    """A token that proves nothing. The message says why, and contains nothing of the token."""


class UnknownKey(IdTokenFault):
    """The provider's keys, as they were read, do not have the one that signed the token."""


@frozen
class Expected:
    """What a token has to say. ``issuers`` may contain ``TENANT``. It has to be for one of ``client_ids``.

    With ``nonce_as_sent`` the token has to have exactly this ``nonce``. Otherwise an app has brought it: the nonce
    may be that or its SHA-256 in hexadecimal, and must be in both or in neither.
    """

    issuers: tuple[str, ...]
    client_ids: tuple[str, ...]
    now: float
    nonce: str | None = field(repr=False)
    nonce_as_sent: bool
    access_token: str | None = field(default=None, repr=False)


def verified(token: str, keys: Mapping[str, Any], expected: Expected) -> Mapping[str, Any]:
    """The claims of ``token``, which the provider with these ``keys`` (a JWK Set) has signed. Raises
    ``IdTokenFault``, and its ``UnknownKey`` where newer keys may help."""
    algorithm, key_id = read_header(token)
    jwk = _key(keys, key_id, algorithm)
    claims = _signed(token, jwk, algorithm)
    _check_issuer(claims, jwk, expected.issuers)
    _check_audience(claims, expected.client_ids)
    _check_times(claims, expected.now)
    if not isinstance(claims.get("sub"), str) or not claims["sub"]:
        raise IdTokenFault("it has no sub")
    _check_nonce(claims.get("nonce"), expected)
    _check_access_token(claims.get("at_hash"), expected.access_token, algorithm)
    return claims


def read_header(token: str) -> tuple[str, Any]:
    """The algorithm of ``token`` and the name of its key. Raises ``IdTokenFault`` for what no key can make valid."""
    if len(token) > MAX_CHARACTERS:
        raise IdTokenFault("it is too long")
    try:
        header = jwt.get_unverified_header(token)
    except (PyJWTError, ValueError, RecursionError):
        raise IdTokenFault("it is not a signed token") from None
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise IdTokenFault("its algorithm is not allowed")
    return algorithm, header.get("kid")


def issuer_of(token: str) -> str | None:
    """The issuer that ``token`` names, which is not checked."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (PyJWTError, ValueError, RecursionError):
        return None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None


def usable_keys(keys: Mapping[str, Any]) -> int:
    """How many keys of a JWK Set could have signed a token."""
    return sum(1 for jwk in _jwks(keys) if any(_goes_with(jwk, one) for one in ALGORITHMS))


def _jwks(keys: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    listed = keys.get("keys")
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, dict):
            yield one


def _goes_with(jwk: Mapping[str, Any], algorithm: str) -> bool:
    kind = jwk.get("kty")
    return (
        isinstance(kind, str)
        and algorithm in _FAMILIES.get(kind, ())
        and jwk.get("use", "sig") == "sig"
        and jwk.get("alg", algorithm) == algorithm
    )


def _key(keys: Mapping[str, Any], kid: Any, algorithm: str) -> Mapping[str, Any]:
    """A token without a ``kid`` may only be of a provider with one such key (OpenID Connect Core section 10.1)."""
    candidates = [one for one in _jwks(keys) if _goes_with(one, algorithm)]
    if kid is not None:
        candidates = [one for one in candidates if one.get("kid") == kid]
    if len(candidates) != 1:
        raise UnknownKey("it is signed by a key that the provider does not publish")
    return candidates[0]


def _signed(token: str, jwk: Mapping[str, Any], algorithm: str) -> Mapping[str, Any]:
    try:
        key: Any = PyJWK(dict(jwk), algorithm).key
        if jwk["kty"] == "RSA" and key.key_size < _MIN_RSA_BITS:
            raise IdTokenFault("the provider's key is too short")
        claims: Mapping[str, Any] = jwt.decode(token, key, algorithms=[algorithm], options=_OPTIONS)
    except (PyJWTError, ValueError, TypeError, KeyError, NotImplementedError, RecursionError):
        raise IdTokenFault("its signature is wrong") from None
    return claims


def _check_issuer(claims: Mapping[str, Any], jwk: Mapping[str, Any], issuers: tuple[str, ...]) -> None:
    issuer, tenant = claims.get("iss"), claims.get("tid")

    def is_of(form: str) -> bool:
        if TENANT not in form:
            return bool(issuer == form)
        named = isinstance(tenant, str) and _TENANT_ID.match(tenant)
        return bool(named and issuer == form.replace(TENANT, str(tenant)))

    if not isinstance(issuer, str) or not any(map(is_of, issuers)):
        raise IdTokenFault("it is of another issuer")
    # Microsoft publishes the keys of all tenants together, and says which are those of one.
    of_key = jwk.get("issuer")
    if isinstance(of_key, str) and not is_of(of_key):
        raise IdTokenFault("it is signed by a key of another issuer")


def _check_audience(claims: Mapping[str, Any], client_ids: tuple[str, ...]) -> None:
    """OpenID Connect Core section 3.1.3.7, numbers 3 to 5."""
    given = claims.get("aud")
    audiences = given if isinstance(given, list) else [given]
    if not any(isinstance(one, str) and one in client_ids for one in audiences):
        raise IdTokenFault("it is for another application")
    party = claims.get("azp")
    if (party is not None or len(audiences) > 1) and party not in client_ids:
        raise IdTokenFault("it was issued to another application")


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    for name in ("exp", "iat"):
        if not whole_numbers.is_finite(claims.get(name)):
            raise IdTokenFault(f"it has no {name}")
    starts = claims.get("nbf", claims["iat"])
    if claims["exp"] + LEEWAY_SECONDS <= now:
        raise IdTokenFault("it has expired")
    if not whole_numbers.is_finite(starts) or max(starts, claims["iat"]) > now + LEEWAY_SECONDS:
        raise IdTokenFault("it is not valid yet")


def _check_nonce(of_token: Any, expected: Expected) -> None:
    if expected.nonce_as_sent:
        allowed = [expected.nonce or ""]
    elif expected.nonce is None:
        if of_token is None:
            return
        raise IdTokenFault("it has a nonce, so the nonce is needed too")
    else:
        allowed = [hashlib.sha256(expected.nonce.encode()).hexdigest(), expected.nonce]
    if not isinstance(of_token, str) or not any(
        one and hmac.compare_digest(one.encode(), of_token.encode()) for one in allowed
    ):
        raise IdTokenFault("its nonce is another one")


def _check_access_token(at_hash: Any, access_token: str | None, algorithm: str) -> None:
    """OpenID Connect Core section 3.1.3.6."""
    if at_hash is None or access_token is None:
        return
    hashed = _HASHES.get(algorithm[-3:], hashlib.sha512)(access_token.encode()).digest()
    wanted = base64url.encode(hashed[: len(hashed) // 2])
    if not isinstance(at_hash, str) or not hmac.compare_digest(wanted.encode(), at_hash.encode()):
        raise IdTokenFault("it belongs to another access token")
