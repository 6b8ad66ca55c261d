"""Authentication of the table API: the role that a request acts in, and the claims that SQL may read."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from itertools import chain
from typing import Any, NoReturn

import jwt
import orjson
from attrs import field, frozen
from cachetools import LRUCache
from jwt.algorithms import get_default_algorithms

from project_service import base64url, whole_numbers
from project_service.errors import EXPIRED, ApiError
from project_service.http.caller import TokenVerifier
from project_service.role_claim import RoleClaim, parse_role_claim
from project_service.settings.model import StageDatabase
from project_service.tables import errors
from project_service.tables.request.request import RequestHeaders

LEEWAY_SECONDS = 30
# How many tokens with a valid signature are remembered, and up to which length in characters.
_CACHED_TOKENS = 4096
_LONGEST_CACHED_TOKEN = 8192
_SYMMETRIC = ("HS256", "HS384", "HS512")
_UNREADABLE = "JWT cryptographic operation failed"
_BY_TYPE = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
    "oct": _SYMMETRIC,
}
_BY_CURVE = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}
_ALGORITHMS = frozenset(chain.from_iterable(_BY_TYPE.values()))


@frozen
class TokenKey:
    """A key, and the algorithms that it may be used with: the token alone never chooses them."""

    key: Any = field(repr=False)
    algorithms: tuple[str, ...]
    kid: str | None = None


def parse_keys(secret: str | None, jwks: str | None) -> tuple[TokenKey, ...]:
    """The keys that verify a database's own tokens. ``secret`` is a shared secret or, as PostgREST allows, a JWK or
    JWK Set; ``jwks`` is a JWK Set or a JWK.

    Raises ``ValueError`` for keys that cannot be used. A secret that looks like a broken JWK is refused too: a public
    key must never be used as a shared secret.
    """
    keys: list[TokenKey] = []
    for name, text in (("jwt_secret", secret), ("jwks", jwks)):
        if not text:
            continue
        document = _json_object(text)
        if document is not None:
            keys.extend(_from_jwks(name, document))
        elif name == "jwks" or '"kty"' in text:
            raise ValueError(f"{name} is neither a JWK nor a JWK Set")
        else:
            keys.append(_shared(text.encode()))
    return tuple(keys)


def _shared(secret: bytes) -> TokenKey:
    try:
        get_default_algorithms()["HS256"].prepare_key(secret)
    except jwt.InvalidKeyError:
        raise ValueError("jwt_secret is a key in PEM or SSH form: give it as a JWK") from None
    return TokenKey(secret, _SYMMETRIC)


def _from_jwks(name: str, document: Mapping[str, Any]) -> list[TokenKey]:
    items = document.get("keys", [document])
    if not isinstance(items, list):
        raise ValueError(f"{name} is not a JWK Set")
    return [_from_jwk(item) for item in items if _verifies(item)]


def from_base64(secret: str) -> str:
    """The JWK of a shared secret that is given in base64. Raises ``ValueError``.

    Padding is optional, and both alphabets are allowed (PostgREST's documentation, "jwt-secret-is-base64").
    """
    plain = secret.strip().replace("+", "-").replace("/", "_").rstrip("=")
    try:
        base64url.decode(plain)
    except ValueError:
        raise ValueError("jwt_secret is not base64") from None
    return json.dumps({"kty": "oct", "k": plain})


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _verifies(item: Any) -> bool:
    """Whether a key of a JWK Set is for verifying: not if it is for encryption, such as providers publish in the same
    set (RFC 7517 section 4.2)."""
    return not (isinstance(item, dict) and item.get("use") == "enc")


def _from_jwk(document: Mapping[str, Any]) -> TokenKey:
    try:
        algorithms = _BY_TYPE[document["kty"]]
        if document["kty"] == "EC":
            algorithms = _BY_CURVE[document["crv"]]
        if document.get("alg") in algorithms:
            algorithms = (document["alg"],)
        key = jwt.PyJWK(dict(document), algorithm=algorithms[0]).key
    except (jwt.PyJWTError, KeyError, TypeError) as error:
        raise ValueError(f"not a usable JWK: {error}") from None
    # To verify, the public part of a private key is enough.
    public = key.public_key() if hasattr(key, "public_key") else key
    return TokenKey(public, algorithms, document.get("kid"))


@frozen
class OwnTokens:
    """Verifies tokens with the database's own keys, with PostgREST's errors PGRST301 and PGRST303."""

    keys: tuple[TokenKey, ...]
    audience: str | None
    now: Callable[[], float]
    _claims: LRUCache[str, Mapping[str, Any]] = field(
        factory=lambda: LRUCache(_CACHED_TOKENS), init=False, eq=False, repr=False
    )

    def claims(self, token: str) -> Mapping[str, Any]:
        """The claims of a valid token. Its signature is verified once; whether it is valid now, each time."""
        try:
            claims = self._claims[token]
        except KeyError:
            claims = self._verified(token)
            if len(token) <= _LONGEST_CACHED_TOKEN:
                self._claims[token] = claims
        _check_times(claims, self.now())
        _check_audience(claims, self.audience)
        return claims

    def _verified(self, token: str) -> dict[str, Any]:
        if token.count(".") != 2:
            raise errors.undecodable_token(f"Expected 3 parts in JWT; got {token.count('.') + 1}")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            raise errors.undecodable_token(_UNREADABLE) from None
        if "crit" in header:
            # It lists extensions that the reader must understand; none is supported (RFC 7515 section 4.1.11).
            raise errors.undecodable_token(_UNREADABLE)
        message, _, signature = token.rpartition(".")
        self._check_signature(header, message.encode(), base64url.decode(signature))
        payload = base64url.decode(message.partition(".")[2])
        try:
            claims = json.loads(payload, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            claims = None
        if not isinstance(claims, dict):
            raise errors.invalid_claims("Parsing claims failed")
        return claims

    def _check_signature(self, header: Mapping[str, Any], message: bytes, signature: bytes) -> None:
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm == "none":
            raise errors.undecodable_token(
                "Wrong or unsupported encoding algorithm",
                "JWT is unsecured but expected 'alg' was not 'none'",
            )
        if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
            raise errors.undecodable_token(_UNREADABLE)
        # If the token names a key, only that one counts.
        fitting = [key for key in self.keys if algorithm in key.algorithms and kid in (None, key.kid)]
        if not fitting:
            raise errors.no_key("No suitable key was found to decode the JWT")
        verifier = get_default_algorithms()[algorithm]
        if not any(verifier.verify(message, verifier.prepare_key(key.key), signature) for key in fitting):
            raise errors.no_key("None of the keys was able to decode the JWT")


def _no_constant(constant: str) -> NoReturn:
    """Rejects NaN and the infinities, which are not JSON though Python reads them. With an ``exp`` of NaN a token
    would never expire."""
    raise ValueError(constant)


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is not None and not whole_numbers.is_finite(value):
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


# SET ROLE none means the role of the connection itself, so a token that claims it must be refused. (That role's own
# name is known only where the database is: ``claimed_roles``.)
_RESET = "none"
# The claim that stands for the configured role.
_OF_USERS = "authenticated"


@frozen(cache_hash=True)
class Identity:
    """The role that a request acts in, and its claims as JSON. ``authenticated``: it is not the anonymous role.
    ``max_rows`` is how many rows it may read at once; 0 means no limit. ``claimed``: a token names the role."""

    role: str
    claims: str
    authenticated: bool
    max_rows: int = 0
    claimed: bool = False


_NO_CLAIMS: Mapping[str, Any] = {}


@frozen
class _Cached:
    """The identity that followed from these claims, cached with the headers that they came in."""

    claims: Mapping[str, Any]
    is_service: bool
    identity: Identity


@frozen
class Identities:
    """Tokens are verified by the database's own keys where it has any, else by the service's."""

    config: StageDatabase
    role_claim: RoleClaim
    own: OwnTokens | None
    service: TokenVerifier | None

    def identify(self, sent: RequestHeaders, is_service: bool) -> Identity:
        """The identity by bearer token and project key. The token is checked each time; what follows from its claims
        is cached with the headers.

        Raises PGRST300, 301, 302 and 303, ``session_revoked`` for a token of the service's own, and 22023 for a role
        that cannot exist.
        """
        cached: _Cached | None = sent.identity
        if sent.bearer is None:
            claims = _NO_CLAIMS
        elif not sent.bearer:
            raise errors.undecodable_token("Empty JWT is sent in Authorization header")
        elif self.own is not None:
            claims = self.own.claims(sent.bearer)
        else:
            claims = self._service_claims(sent.bearer)
        if cached is None or cached.claims is not claims or cached.is_service is not is_service:
            cached = sent.identity = _Cached(claims, is_service, self._identity(claims, is_service))
        return cached.identity

    @staticmethod
    def caller_of(sent: RequestHeaders, client: str) -> Hashable:
        """Who sent a request that has been identified, to tell callers apart: the user of the token, or else the
        project key and the address of the ``client``."""
        cached: _Cached | None = sent.identity
        user = None if cached is None else cached.claims.get("sub")
        return (sent.key, client) if not isinstance(user, str) else user

    def _service_claims(self, token: str) -> Mapping[str, Any]:
        if self.service is None:
            raise errors.no_jwt_secret()
        try:
            verified = self.service.verify(token)
            return _NO_CLAIMS if verified.is_nobody else verified.raw
        except ApiError as error:
            # PGRST303 and 301 make clients renew their token; ``session_revoked`` stays as it is.
            if error.code != "invalid_token":
                raise
            if error.message == EXPIRED:
                raise errors.invalid_claims("JWT expired") from None
            raise errors.undecodable_token(error.message) from None

    def _identity(self, claims: Mapping[str, Any], is_service: bool) -> Identity:
        try:
            claimed = self.role_claim.of(claims)
        except ValueError as error:
            raise errors.undecodable_token(str(error)) from None
        if is_service:
            role = self.config.service_role
        elif claimed == _RESET:
            raise errors.from_sqlstate("22023", f'role "{claimed}" does not exist')
        elif claimed is not None:
            role = self.config.authenticated_role if claimed == _OF_USERS else claimed
        elif self.config.anon_role:
            role = self.config.anon_role
        else:
            raise errors.anonymous_disabled()
        shown = {**claims, "role": role if is_service or claimed is None else claimed}
        max_rows = self.config.max_rows_of(role)
        of_token = claimed is not None and not is_service and claimed != _OF_USERS
        return Identity(role, _as_json(shown), role != self.config.anon_role, max_rows, of_token)


def _as_json(claims: Mapping[str, Any]) -> str:
    """The claims as JSON, also with integers beyond 64 bits. Raises PGRST301 for text that is not valid Unicode."""
    try:
        return orjson.dumps(claims).decode()
    except TypeError:
        pass
    try:
        text = json.dumps(claims, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        raise errors.undecodable_token("The claims cannot be read") from None
    return text


def identities_of(
    config: StageDatabase, verifier: TokenVerifier | None, now: Callable[[], float]
) -> Identities:
    """How callers of a database are identified: by its own keys where it has any, else by ``verifier``. Raises
    ``ValueError`` for keys or a path to the role that cannot be used."""
    secret = config.jwt_secret.reveal() if config.jwt_secret is not None else None
    if secret and config.jwt_secret_is_base64:
        secret = from_base64(secret)
    keys = parse_keys(secret, config.jwks)
    # Even where none of the configured keys is usable: then no token is accepted, and not the service's own tokens.
    own = OwnTokens(keys, config.jwt_aud, now) if secret or config.jwks else None
    return Identities(config, parse_role_claim(config.role_claim), own, verifier)
