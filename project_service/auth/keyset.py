"""The signing keys as a JWK Set (RFC 7517). The first key signs, and all of them verify."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt import PyJWK
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from project_service import base64url

ALGORITHMS = ("ES256", "HS256", "RS256", "EdDSA")

_TYPES = {"ES256": "EC", "HS256": "oct", "RS256": "RSA", "EdDSA": "OKP"}
# The members that make a public key. With "kty" they make its thumbprint (RFC 7638 section 3.2, RFC 8037 section 2).
_PUBLIC = {"EC": ("crv", "x", "y"), "RSA": ("n", "e"), "OKP": ("crv", "x")}
# The least lengths that RFC 7518 allows (sections 3.2 and 3.3).
_MIN_HMAC_BYTES, _MIN_RSA_BITS = 32, 2048
_MAKERS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "ES256": lambda: ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True),
    "HS256": lambda: {"kty": "oct", "k": base64url.encode(secrets.token_bytes(_MIN_HMAC_BYTES))},
    "RS256": lambda: RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 3072), as_dict=True),
    "EdDSA": lambda: OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate(), as_dict=True),
}


class KeySetError(Exception):
    """The JWK Set cannot be used. The message says why, and contains no key material."""


@frozen
class Key:
    """One key. ``private`` signs; it is None if only the public half is known. ``public`` verifies. ``public_jwk`` is
    what is published; None for a shared secret."""

    kid: str
    algorithm: str
    public: Any = field(repr=False, eq=False)
    private: Any = field(repr=False, eq=False)
    public_jwk: Mapping[str, str] | None = field(repr=False)


@frozen
class KeySet:
    """One or more keys. The first, ``signing``, has a private part."""

    keys: tuple[Key, ...]
    _by_kid: Mapping[str, Key] = field(repr=False, eq=False)

    @classmethod
    def parse(cls, text: str | bytes) -> KeySet:
        """The keys of a JWK Set as JSON. Raises ``KeySetError``."""
        return cls.of([_key(jwk, position) for position, jwk in enumerate(_jwks(text), 1)])

    @classmethod
    def of(cls, keys: list[Key]) -> KeySet:
        by_kid = {key.kid: key for key in keys}
        if len(by_kid) != len(keys):
            raise KeySetError("two keys have the same kid")
        if keys[0].private is None:
            raise KeySetError("the first key signs, but it has no private part")
        return cls(tuple(keys), by_kid)

    @property
    def signing(self) -> Key:
        return self.keys[0]

    def find(self, kid: object) -> Key | None:
        return self._by_kid.get(kid) if isinstance(kid, str) else None

    def published(self) -> dict[str, list[dict[str, str]]]:
        """The public keys, for ``/.well-known/jwks.json``. Shared secrets have none and are left out."""
        return {"keys": [dict(key.public_jwk) for key in self.keys if key.public_jwk is not None]}


def generate(algorithm: str) -> dict[str, str]:
    """A new private JWK for one of ``ALGORITHMS``. Its ``kid`` is its thumbprint (RFC 7638), or random for a shared
    secret."""
    made = _MAKERS[algorithm]()
    made.pop("key_ops", None)
    kid = secrets.token_urlsafe(16) if algorithm == "HS256" else _thumbprint(made)
    return {**made, "alg": algorithm, "use": "sig", "kid": kid}


def rotated(text: str | bytes | None, algorithm: str, keep: int = 2) -> str:
    """The set with a new signing key as its first, and at most ``keep`` of the older ones."""
    older = _jwks(text)[:keep] if text is not None else []
    return _written([generate(algorithm), *older])


def announced(text: str | bytes, algorithm: str, keep: int = 2) -> str:
    """The set with a new key as its second, which only verifies until ``promoted`` makes it sign."""
    signing, *older = _jwks(text)
    return _written([signing, generate(algorithm), *older[:keep]])


def promoted(text: str | bytes, kid: str, keep: int = 2) -> str:
    """The set with its key ``kid`` as the first, and at most ``keep`` others. Raises ``KeySetError`` if it has no
    such key."""
    kids = [key.kid for key in KeySet.parse(text).keys]
    if kid not in kids:
        raise KeySetError(f"has no key {kid}")
    others = _jwks(text)
    first = others.pop(kids.index(kid))
    return _written([first, *others[:keep]])


def _written(jwks: list[dict[str, Any]]) -> str:
    return json.dumps({"keys": jwks}, indent=2) + "\n"


def _jwks(text: str | bytes) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError:
        raise KeySetError("is not JSON") from None
    keys = value.get("keys") if isinstance(value, dict) else None
    if not isinstance(keys, list) or not keys or not all(isinstance(key, dict) for key in keys):
        raise KeySetError('is not a JWK Set: an object with a non-empty list "keys"')
    return keys


def _key(jwk: dict[str, Any], position: int) -> Key:
    where = f"key {position}"
    try:
        parsed = PyJWK(jwk)
    except (PyJWTError, ValueError, TypeError, KeyError, NotImplementedError):
        # The library's message contains the whole key, so it is not passed on.
        raise KeySetError(f"{where} is not a usable JWK") from None
    algorithm = parsed.algorithm_name
    if _TYPES.get(algorithm) != jwk.get("kty"):
        raise KeySetError(f"{where}: alg is none of {', '.join(ALGORITHMS)}, or does not go with its kty")
    _refuse_weak(where, algorithm, parsed.key)
    kid = jwk.get("kid") or _thumbprint(jwk)
    if not isinstance(kid, str):
        raise KeySetError(f"{where}: kid is not a string")
    if algorithm == "HS256":
        return Key(kid, algorithm, parsed.key, parsed.key, None)
    public_jwk = {name: jwk[name] for name in _PUBLIC[jwk["kty"]]}
    public_jwk |= {"kty": jwk["kty"], "alg": algorithm, "use": "sig", "kid": kid}
    if "d" not in jwk:
        return Key(kid, algorithm, parsed.key, None, public_jwk)
    return Key(kid, algorithm, parsed.key.public_key(), parsed.key, public_jwk)


def _refuse_weak(where: str, algorithm: str, key: Any) -> None:
    if algorithm == "HS256" and len(key) < _MIN_HMAC_BYTES:
        raise KeySetError(f"{where}: a shared secret needs at least {_MIN_HMAC_BYTES} bytes")
    if algorithm == "RS256" and key.key_size < _MIN_RSA_BITS:
        raise KeySetError(f"{where}: an RSA key needs at least {_MIN_RSA_BITS} bits")


def _thumbprint(jwk: Mapping[str, Any]) -> str:
    if jwk["kty"] == "oct":
        # Every token shows its kid, and the thumbprint of a shared secret would help to guess a weak one.
        return "shared"
    members = {name: jwk[name] for name in ("kty", *_PUBLIC[jwk["kty"]])}
    text = json.dumps(members, separators=(",", ":"), sort_keys=True)
    return base64url.encode(hashlib.sha256(text.encode()).digest())
