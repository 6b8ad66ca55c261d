"""Access tokens (RFC 7519), made by ``Issuer.mint`` and checked by ``Verifier``; the keys that sign them, and their
file; and opaque tokens.

The algorithm is always taken from the key, never from the token (RFC 8725).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jwt
import orjson
from attrs import field, frozen
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt import PyJWK
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from project_service import base64url, files, whole_numbers
from project_service.auth.values import SignIn, User, moment
from project_service.errors import invalid_token, invalid_token_expired, session_revoked
from project_service.files import regular
from project_service.http.caller import Claims
from project_service.settings.reading import ConfigurationError

# The signing keys as a JWK Set (RFC 7517). The first key signs, and all of them verify.

ALGORITHMS = ("ES256", "HS256", "RS256", "EdDSA")

_TYPES = {"ES256": "EC", "HS256": "oct", "RS256": "RSA", "EdDSA": "OKP"}
# The members that make a public key. With "kty" they make its thumbprint (RFC 7638 section 3.2, RFC 8037 section 2).
_PUBLIC = {"EC": ("crv", "x", "y"), "RSA": ("n", "e"), "OKP": ("crv", "x")}
# The end of the year 9999, in Unix seconds.
_MAX_TIME = 253_402_300_799
# The least lengths that RFC 7518 allows (sections 3.2 and 3.3).
_MIN_HMAC_BYTES, _MIN_RSA_BITS = 32, 2048
_MAKERS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "ES256": lambda: ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True),
    "HS256": lambda: {"kty": "oct", "k": base64url.encode(secrets.token_bytes(_MIN_HMAC_BYTES))},
    "RS256": lambda: RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 3072), as_dict=True),
    "EdDSA": lambda: OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate(), as_dict=True),
}


class KeySetError(ConfigurationError):
    """The JWK Set cannot be used. The message says why, and contains no key material."""


@frozen
class Key:
    """One key. ``private`` signs; it is None if only the public half is known. ``public`` verifies. ``public_jwk`` is
    what is published; None for a shared secret. ``created_at`` is when it was made, in Unix seconds, if the file says
    so."""

    kid: str
    algorithm: str
    public: Any = field(repr=False, eq=False)
    private: Any = field(repr=False, eq=False)
    public_jwk: Mapping[str, str] | None = field(repr=False)
    created_at: int | None = None

    def secret_for(self, purpose: bytes) -> bytes:
        """A secret that follows from ``private`` (RFC 5869), another one for each purpose. It is not the key itself,
        so nothing that is signed for one purpose is good for another (RFC 8725 section 3.11)."""
        private = self.private
        if not isinstance(private, bytes):
            private = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return HKDF(SHA256(), 32, None, b"project-service: " + purpose).derive(private)


@frozen
class KeySet:
    """One or more keys with different ``kid``s. The first, ``signing``, has a private part."""

    keys: tuple[Key, ...]

    @classmethod
    def parse(cls, text: str | bytes) -> KeySet:
        """The keys of a JWK Set as JSON. Raises ``KeySetError``."""
        keys = tuple(_key(jwk, position) for position, jwk in enumerate(_jwks(text), 1))
        if len({key.kid for key in keys}) != len(keys):
            raise KeySetError("two keys have the same kid")
        if keys[0].private is None:
            raise KeySetError("the first key signs, but it has no private part")
        return cls(keys)

    @property
    def signing(self) -> Key:
        return self.keys[0]

    def find(self, kid: object) -> Key | None:
        return next((key for key in self.keys if key.kid == kid), None)

    def published(self) -> dict[str, list[dict[str, str]]]:
        """The public keys, for ``/.well-known/jwks.json``. Shared secrets have none and are left out."""
        return {"keys": [dict(key.public_jwk) for key in self.keys if key.public_jwk is not None]}


def generate(algorithm: str) -> dict[str, Any]:
    """A new private JWK for one of ``ALGORITHMS``. Its ``kid`` is its thumbprint (RFC 7638), or random for a shared
    secret. ``iat`` is when it was made, in Unix seconds."""
    jwk = _MAKERS[algorithm]()
    jwk.pop("key_ops", None)
    kid = secrets.token_urlsafe(16) if algorithm == "HS256" else _thumbprint(jwk)
    return {**jwk, "alg": algorithm, "use": "sig", "kid": kid, "iat": int(time.time())}


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
    made = jwk.get("iat")
    created_at = made if isinstance(made, int) and 0 <= made <= _MAX_TIME else None
    if algorithm == "HS256":
        return Key(kid, algorithm, parsed.key, parsed.key, None, created_at)
    public_jwk = {name: jwk[name] for name in _PUBLIC[jwk["kty"]]}
    public_jwk |= {"kty": jwk["kty"], "alg": algorithm, "use": "sig", "kid": kid}
    if "d" not in jwk:
        return Key(kid, algorithm, parsed.key, None, public_jwk, created_at)
    return Key(kid, algorithm, parsed.key.public_key(), parsed.key, public_jwk, created_at)


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


# The file with the signing keys.


def create_keys(path: Path, algorithm: str) -> bool:
    """Create a file with one new key. If there is a file already, it is left as it is and False is returned."""
    return files.create(path, rotated(None, algorithm).encode())


def change_keys(
    path: Path, algorithm: str, keep: int = 2, *, announce: bool = False, kid: str | None = None
) -> KeySet:
    """Let another key sign, with ``keep`` of the others: a new one, or that of the file which is ``kid``; or
    ``announce`` a new one. Returns the keys in the file then. Of several changes at once none is lost.

    Raises ``OSError``, and ``KeySetError`` if there is no such key or the file cannot be used.
    """
    with files.held(path) as old:
        if kid is not None:
            text = promoted(old, kid, keep)
        elif announce:
            text = announced(old, algorithm, keep)
        else:
            text = rotated(old, algorithm, keep)
        keys = KeySet.parse(text)
        files.replace(path, text.encode())
    return keys


def load_keys(path: Path) -> KeySet:
    """The keys in a file. Raises ``KeySetError``, whose message names the file."""
    try:
        return KeySet.parse(regular(path).read_bytes())
    except FileNotFoundError:
        raise KeySetError(f"{path}: there is none (`project-service jwt-keys create` makes it)") from None
    except (OSError, KeySetError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else fault
        raise KeySetError(f"{path}: {why}") from None


def load_or_create_keys(path: Path, algorithm: str) -> KeySet:
    """As ``load_keys``, but if there is no file one is created with a new key."""
    if not path.exists():
        create_keys(path, algorithm)
    return load_keys(path)


# Access tokens.

AUDIENCE = "authenticated"
ROLE = "authenticated"
LEEWAY_SECONDS = 30
# Our own have at most ``MAX_BYTES``. Headers are limited anyway; this limits tokens that come in other ways.
MAX_TOKEN_CHARACTERS = 8192
# How long the tokens that we make may be: servers and proxies limit headers, cookies among them, to 8 KiB and less.
MAX_BYTES = 4 * 1024
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


@frozen
class Issuer:
    """What all tokens have in common: the keys, the issuer's name, and how many seconds they are valid."""

    keys: KeySet
    name: str
    seconds: int

    def mint(
        self, user: User, session_id: str, now: float, token_id: str, began: SignIn | None = None
    ) -> Minted:
        """A token with ``claims``."""
        return self.signed(self.claims(user, session_id, now, token_id, began))

    def claims(
        self, user: User, session_id: str, now: float, token_id: str, began: SignIn | None = None
    ) -> dict[str, Any]:
        """The claims of a token for a session of ``user``, valid from ``now``, in Unix time. ``token_id`` becomes its
        ``jti``. The session ``began`` by password and now if nothing else is said."""
        issued = int(now)
        expires = issued + self.seconds
        began = began or SignIn(moment(issued))
        # The last one first, as clients of the Supabase family expect it.
        proofs = [(began.factor, began.factor_at), (began.method, began.at)]
        return {
            "iss": self.name,
            "sub": user.id,
            "aud": AUDIENCE,
            "role": ROLE,
            "email": user.email,
            "sid": session_id,
            "iat": issued,
            "exp": expires,
            "jti": token_id,
            # What clients of the Supabase family, and policies written for it, read.
            "session_id": session_id,
            "aal": "aal1" if began.factor is None else "aal2",
            "amr": [{"method": how, "timestamp": int(at.timestamp())} for how, at in proofs if how and at],
            "phone": "",
            "is_anonymous": user.is_anonymous,
            "app_metadata": _writable(user.app_metadata),
            "user_metadata": _writable(user.metadata),
        }

    def signed(self, claims: Mapping[str, Any]) -> Minted:
        """A token with these claims.

        If it would have more than ``MAX_BYTES``, ``user_metadata`` is left out of it, and then ``app_metadata``,
        which only SQL can make so large.
        """
        kept = dict(claims)
        text = self._signed(kept)
        for optional in ("user_metadata", "app_metadata"):
            if len(text) > MAX_BYTES:
                kept.pop(optional, None)
                text = self._signed(kept)
        return Minted(text, int(kept["exp"]))

    def _signed(self, claims: Mapping[str, Any]) -> str:
        key = self.keys.signing
        return jwt.encode(dict(claims), key.private, key.algorithm, {"kid": key.kid})


def _writable(metadata: Mapping[str, Any]) -> Any:
    """``metadata`` without the numbers that JSON has no form for, which SQL may have written; they become null."""
    return orjson.loads(orjson.dumps(dict(metadata)))


def signed_in_at(claims: Claims) -> float:
    """When the caller last proved who they are, in Unix time, by the claim ``amr`` (RFC 8176); -inf if it does not
    say."""
    proofs = claims.raw.get("amr")
    times: list[Any] = (
        [one.get("timestamp") for one in proofs if isinstance(one, dict)] if isinstance(proofs, list) else []
    )
    return max([float(one) for one in times if whole_numbers.is_finite(one)], default=-math.inf)


class Verifier:
    """Implements ``http.caller.TokenVerifier``, without I/O, since it is called for every request.

    ``is_revoked`` says whether a session has ended, and raises if that cannot be known at the moment.

    A signature is checked only once: the claims of the most recently used tokens are cached. What depends on the
    time, and revocation, is checked every time.
    """

    def __init__(
        self,
        issuer: Issuer,
        is_revoked: Callable[[str], bool],
        now: Callable[[], float],
        capacity: int = 10_000,
    ) -> None:
        self._issuer = issuer
        self._is_revoked = is_revoked
        self._now = now
        self._claims = lru_cache(capacity)(self._check)

    @property
    def issuer(self) -> Issuer:
        return self._issuer

    def replace(self, issuer: Issuer) -> None:
        """Use another issuer from now on. All tokens are checked again."""
        self._issuer = issuer
        self._claims.cache_clear()

    def verify(self, token: str) -> Claims:
        """The claims of a valid token. Raises ``invalid_token`` or ``session_revoked``, and
        ``database_unavailable`` if it is unknown whether the session has ended."""
        claims, starts = self._claims(token)
        now = self._now()
        if claims.exp + LEEWAY_SECONDS <= now:
            raise invalid_token_expired()
        if starts > now + LEEWAY_SECONDS:
            raise invalid_token("The access token is not valid yet.")
        if self._is_revoked(claims.sid):
            raise session_revoked()
        return claims

    def _check(self, token: str) -> tuple[Claims, float]:
        """The claims, and from when on the token is valid, in Unix seconds."""
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise invalid_token()
        try:
            key = self._issuer.keys.find(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                raise invalid_token()
            payload = jwt.decode(
                token,
                key.public,
                # The key decides on the algorithm, not the token (RFC 8725 section 3.1).
                algorithms=[key.algorithm],
                audience=AUDIENCE,
                issuer=self._issuer.name,
                options=_OPTIONS,
            )
        except (PyJWTError, ValueError, RecursionError):
            raise invalid_token() from None
        exp, issued, starts = times = (payload["exp"], payload["iat"], payload.get("nbf", 0))
        if not all(map(whole_numbers.is_finite, times)):
            raise invalid_token()
        sub, sid = (_id(payload[name]) for name in ("sub", "sid"))
        email, role = (_text(payload.get(name)) for name in ("email", "role"))
        claims = Claims(sub=sub, email=email, role=role, sid=sid, exp=int(exp), raw=dict(payload))
        return claims, max(issued, starts)


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


# Opaque tokens: refresh tokens and one-time tokens. Only their SHA-256 digests are stored.

OPAQUE_BYTES = 32
# The length of 32 bytes in base64url without padding.
OPAQUE_LENGTH = 43

Randomness = Callable[[int], bytes]


@frozen
class OpaqueToken:
    """A token as its owner has it, and the digest that is stored."""

    text: str = field(repr=False)

    @classmethod
    def new(cls, randomness: Randomness) -> OpaqueToken:
        """A token of 256 random bits."""
        return cls(base64url.encode(randomness(OPAQUE_BYTES)))

    @classmethod
    def parse(cls, text: str) -> OpaqueToken | None:
        """A token that a client has sent; None for a text that cannot be a token."""
        return cls(text) if len(text) == OPAQUE_LENGTH and text.isascii() else None

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.text.encode("ascii")).digest()

    def successor(self, salt: bytes) -> OpaqueToken:
        """The refresh token that follows this one, derived from it with ``salt``.

        Because it is derived, a client that uses a token twice (a retry, two tabs) gets the same successor, although
        only digests are stored. To anybody who does not have both the old token and the 256-bit salt it is as
        unpredictable as a random one; and the salt is deleted when the old token is good for nothing any more.
        """
        return OpaqueToken(base64url.encode(hmac.digest(salt, self.text.encode("ascii"), "sha256")))

    def seal(self, data: bytes) -> bytes:
        """``data`` so that only somebody with this token can read it, for whom it is stored."""
        return Fernet(self._sealing_key()).encrypt(data)

    def unseal(self, sealed: bytes) -> bytes:
        """What ``seal`` was given."""
        return Fernet(self._sealing_key()).decrypt(sealed)

    def _sealing_key(self) -> bytes:
        return urlsafe_b64encode(hmac.digest(self.text.encode("ascii"), b"sealed", "sha256"))

    def latest(self, salts: Mapping[bytes, bytes]) -> OpaqueToken:
        """The last of the tokens that follow this one. ``salts`` has each salt by the digest of the token that it was
        used with."""
        token = self
        while (salt := salts.get(token.digest)) is not None:
            token = token.successor(salt)
        return token
