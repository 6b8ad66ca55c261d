"""Asking providers who somebody is: OAuth 2.0 (RFC 6749) with PKCE (RFC 7636), and OpenID Connect on top of it.

``Providers`` makes the address that somebody is sent to, exchanges the code that they come back with, and checks ID
tokens that apps bring. State, and the verifier and nonce of a sign-in, are kept by whoever calls. Endpoints of a
provider are read from its documents when they are needed, so one that cannot be reached costs only those who use it.

No protocol library is used beside PyJWT: the clients of those there are do their own I/O, not on the reactor, and
what they have without I/O is less than what is left here.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import jwt
from attrs import define, field, frozen
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from twisted.logger import Logger

from project_service import base64url
from project_service.auth import errors
from project_service.auth.id_tokens import (
    TENANT,
    Expected,
    IdTokenFault,
    UnknownKey,
    read_header,
    usable_keys,
    verified,
)
from project_service.auth.profiles import (
    OPENID_CONNECT,
    PRESETS,
    NoProfile,
    Preset,
    Profile,
    from_claims,
    with_apples_name,
)
from project_service.outgoing import Documents, Outgoing, OutgoingFailed, Reply
from project_service.public_addresses import why_not_url
from project_service.settings.model import Auth, Provider

_log = Logger()

# Where somebody comes back to, below server.public_url.
CALLBACK = "/auth/v1/callback"
_DISCOVERY = "/.well-known/openid-configuration"
# How long the secret that is signed for Apple is valid; it is made for each call.
_SIGNED_SECRET_SECONDS = 300
# What clients may not say in the address that somebody is sent to, because we do, or because it would change what
# comes back.
OURS = frozenset(
    {
        *("client_id", "client_secret", "code_challenge", "code_challenge_method", "nonce", "redirect_uri"),
        *("registration", "request", "request_uri", "response_mode", "response_type", "scope", "state"),
    }
)
# As long as a verifier has to be (RFC 7636 section 4.1).
_NOBODYS_VERIFIER = "0" * 43
# The error codes that say that the client is not known, or its secret is wrong.
_OF_CLIENTS = frozenset({"invalid_client", "unauthorized_client", "incorrect_client_credentials"})
# Error codes of the token endpoint (RFC 6749 section 5.2, and GitHub's own) that may be logged.
_KNOWN_CODES = frozenset(
    {
        *(
            "invalid_request",
            "invalid_client",
            "invalid_grant",
            "unauthorized_client",
            "unsupported_grant_type",
        ),
        *("invalid_scope", "bad_verification_code", "incorrect_client_credentials", "redirect_uri_mismatch"),
    }
)


@frozen
class SentTo:
    """What somebody is sent to a provider with. ``state`` comes back as it is; ``verifier`` (RFC 7636 section 4.1)
    and ``nonce`` are needed again for the code. ``scopes`` are asked for in addition, and ``extra`` parameters are
    those that clients choose, such as ``prompt``; ``OURS`` are left out."""

    redirect_uri: str
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    scopes: Sequence[str] = ()
    extra: Mapping[str, str] = field(factory=dict)


@frozen
class CameBack:
    """What somebody came back with: the ``code``, and for Apple the field ``user`` of its form. The rest is as it was
    in ``SentTo``."""

    redirect_uri: str
    code: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    user: str | None = field(default=None, repr=False)


@frozen
class Identified:
    """Who came back. The tokens are the provider's, for those who want to call it in the user's name."""

    profile: Profile
    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)


@frozen
class _Metadata:
    """Where a provider's endpoints are, and what they understand (OpenID Connect Discovery section 3)."""

    issuers: tuple[str, ...]
    authorization_url: str
    exchange_url: str
    keys_url: str | None = None
    userinfo_url: str | None = None
    client_auth: str = "post"


class _Unusable(Exception):
    """What a provider has sent cannot be used. The message says why, without what was sent."""


def challenge_of(verifier: str) -> str:
    """The code challenge for a verifier, by the method S256 (RFC 7636 section 4.2)."""
    return base64url.encode(hashlib.sha256(verifier.encode("ascii")).digest())


@define(eq=False)
class Providers:
    """The providers of ``settings()``, which are read again for each call. ``now`` returns the Unix time."""

    settings: Callable[[], Auth]
    outgoing: Outgoing
    documents: Documents
    now: Callable[[], float]
    presets: Mapping[str, Preset] = PRESETS

    def names(self) -> list[str]:
        return sorted(self.settings().providers)

    def require(self, name: str) -> None:
        """Raises ``provider_disabled`` if there is no provider of this name."""
        self._found(name)

    async def authorization_url(self, name: str, sent: SentTo) -> str:
        """The address to send somebody to. Raises ``provider_disabled`` and ``provider_unavailable``."""
        preset, provider = self._found(name)
        with _explained(name):
            metadata = await self._metadata(name, preset, provider)
        scopes = dict.fromkeys([*preset.scopes, *provider.scopes, *sent.scopes])
        parameters = {
            **{key: value for key, value in sent.extra.items() if key not in OURS},
            "response_type": "code",
            "client_id": provider.client_ids[0],
            "redirect_uri": sent.redirect_uri,
            "scope": " ".join(scopes),
            "state": sent.state,
        }
        if preset.by_id_token:
            parameters["nonce"] = sent.nonce
        if preset.pkce:
            parameters |= {"code_challenge": challenge_of(sent.verifier), "code_challenge_method": "S256"}
        parameters |= preset.parameters
        joint = "&" if urlsplit(metadata.authorization_url).query else "?"
        return f"{metadata.authorization_url}{joint}{urlencode(parameters)}"

    async def exchange(self, name: str, back: CameBack) -> Identified:
        """Who came back with a code. Raises ``provider_disabled``, ``provider_refused``, ``provider_unavailable``,
        and ``invalid_id_token``."""
        preset, provider = self._found(name)
        with _explained(name):
            metadata = await self._metadata(name, preset, provider)
            tokens = await self._tokens(name, preset, provider, metadata, back)
            access_token = _text(tokens, "access_token")
            if preset.by_id_token:
                profile = await self._by_id_token(name, provider, metadata, tokens, access_token, back.nonce)
            else:
                profile = await self._asked(preset, provider, access_token)
        if name == "apple":
            profile = with_apples_name(profile, back.user)
        refresh_token = tokens.get("refresh_token")
        return Identified(profile, access_token, refresh_token if isinstance(refresh_token, str) else None)

    async def by_id_token(
        self, name: str, id_token: str, nonce: str | None = None, access_token: str | None = None
    ) -> Profile:
        """Who an ID token is about that an app brings, with its ``nonce`` in clear if it asked for one. Raises
        ``provider_disabled``, ``provider_unavailable`` and ``invalid_id_token``."""
        preset, provider = self._found(name)
        if preset.issuer is None and provider.issuer is None:
            raise errors.invalid_id_token("this provider makes none")
        with _explained(name):
            read_header(id_token)  # before the provider is asked for its keys
            metadata = await self._discovered(name, preset, provider)
            claims = await self._verified(provider, metadata, id_token, nonce, False, access_token)
            return from_claims(name, claims)

    async def faults(self, name: str, redirect_uri: str) -> list[str]:
        """What is wrong with a provider, as sentences without a capital. Its documents are read, and it is sent a
        code that it cannot know, which shows whether it knows the client. Raises ``provider_disabled``."""
        preset, provider = self._found(name)
        found: list[str] = []
        if provider.secret is None and provider.private_key_file is None:
            found.append("client_secret is missing, which most providers need for a code")
        try:
            metadata = await self._metadata(name, preset, provider)
            if metadata.keys_url is not None and not usable_keys(
                await self.documents.read(metadata.keys_url)
            ):
                found.append("it publishes no key that could sign an ID token")
            nobody = CameBack(redirect_uri, "not-a-code", nonce="", verifier=_NOBODYS_VERIFIER)
            tokens = await self._answer_to(preset, provider, metadata, nobody)
            if isinstance(code := tokens.get("error"), str) and code in _OF_CLIENTS:
                found.append(f"it does not take client_id and client_secret: {code}")
        except (OutgoingFailed, _Unusable) as fault:
            found.append(str(fault))
        return found

    # What is known of a provider

    def _found(self, name: str) -> tuple[Preset, Provider]:
        provider = self.settings().providers.get(name)
        if provider is None:
            raise errors.provider_disabled()
        return self.presets.get(name, OPENID_CONNECT), provider

    async def _metadata(self, name: str, preset: Preset, provider: Provider) -> _Metadata:
        if preset.authorization_url is None or preset.exchange_url is None:
            return await self._discovered(name, preset, provider)
        return _Metadata((), preset.authorization_url, preset.exchange_url, client_auth=preset.client_auth)

    async def _discovered(self, name: str, preset: Preset, provider: Provider) -> _Metadata:
        issuer = provider.issuer or preset.issuer
        assert issuer is not None, "the settings see to it"
        document = await self.documents.read(issuer.rstrip("/") + _DISCOVERY)
        stated = _text(document, "issuer")
        if stated.rstrip("/") != issuer.rstrip("/") and not _is_of_microsoft(name, stated, issuer):
            raise _Unusable("its discovery document is that of another issuer")
        other = preset.other_issuers if provider.issuer is None else ()
        understood = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        posts = isinstance(understood, list) and "client_secret_post" in understood
        userinfo = document.get("userinfo_endpoint")
        authorization_url = _text(document, "authorization_endpoint")
        if why := why_not_url(authorization_url, self.settings().allow_private_hosts):
            raise _Unusable(f"its authorization_endpoint {why}")
        return _Metadata(
            (stated, *other),
            authorization_url,
            _text(document, "token_endpoint"),
            _text(document, "jwks_uri"),
            userinfo if isinstance(userinfo, str) else None,
            "post" if posts else "basic",
        )

    # Codes

    async def _tokens(
        self, name: str, preset: Preset, provider: Provider, metadata: _Metadata, back: CameBack
    ) -> Mapping[str, Any]:
        tokens = await self._answer_to(preset, provider, metadata, back)
        if (code := tokens.get("error")) is not None:
            shown = code if isinstance(code, str) and code in _KNOWN_CODES else "an error of its own"
            _log.warn("the provider {name} refuses a code: {code}", name=name, code=shown)
            raise errors.provider_refused()
        return tokens

    async def _answer_to(
        self, preset: Preset, provider: Provider, metadata: _Metadata, back: CameBack
    ) -> Mapping[str, Any]:
        """What the token endpoint answers to a code: tokens, or an ``error``."""
        form = {"grant_type": "authorization_code", "code": back.code, "redirect_uri": back.redirect_uri}
        if preset.pkce:
            form["code_verifier"] = back.verifier
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        client_id, secret = provider.client_ids[0], self._client_secret(provider)
        if metadata.client_auth == "basic" and secret is not None:
            # RFC 6749 section 2.3.1: both are encoded as in a form first.
            pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": client_id} | ({} if secret is None else {"client_secret": secret})
        body = urlencode(form).encode()
        return _answer_in(await self.outgoing.call("POST", metadata.exchange_url, headers=headers, body=body))

    def _client_secret(self, provider: Provider) -> str | None:
        """The secret, or one signed by the key in its place (Apple, "Creating a client secret")."""
        if provider.private_key_file is None or provider.secret is not None:
            return None if provider.secret is None else provider.secret.reveal()
        now = int(self.now())
        claims = {
            "iss": provider.team_id,
            "iat": now,
            "exp": now + _SIGNED_SECRET_SECONDS,
            "aud": "https://appleid.apple.com",
            "sub": provider.client_ids[0],
        }
        try:
            key = load_pem_private_key(provider.private_key_file.reveal().encode(), None)
        except (ValueError, TypeError):
            raise _Unusable("private_key_file holds no private key in PEM without a password") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise _Unusable("private_key_file holds no key for ES256")
        return jwt.encode(claims, key, "ES256", {"kid": provider.key_id})

    # Profiles

    async def _by_id_token(
        self,
        name: str,
        provider: Provider,
        metadata: _Metadata,
        tokens: Mapping[str, Any],
        access_token: str,
        nonce: str,
    ) -> Profile:
        id_token = _text(tokens, "id_token")
        claims = await self._verified(provider, metadata, id_token, nonce, True, access_token)
        other = None
        if claims.get("email") is None and metadata.userinfo_url is not None:
            headers = {"Authorization": f"Bearer {access_token}"}
            other = _json_of(await self.outgoing.call("GET", metadata.userinfo_url, headers=headers))
            if other.get("sub") != claims["sub"]:
                # OpenID Connect Core section 5.3.2.
                raise _Unusable("its userinfo is about somebody else")
        return from_claims(name, claims, other)

    async def _verified(
        self,
        provider: Provider,
        metadata: _Metadata,
        id_token: str,
        nonce: str | None,
        nonce_as_sent: bool,
        access_token: str | None,
    ) -> Mapping[str, Any]:
        assert metadata.keys_url is not None
        # Of a code of ours, a token can only be for the client that sent it.
        client_ids = provider.client_ids[:1] if nonce_as_sent else provider.client_ids
        expected = Expected(metadata.issuers, client_ids, self.now(), nonce, nonce_as_sent, access_token)
        try:
            return verified(id_token, await self.documents.read(metadata.keys_url), expected)
        except UnknownKey:
            # The provider may have changed its keys since they were read.
            return verified(id_token, await self.documents.read_again(metadata.keys_url), expected)

    async def _asked(self, preset: Preset, provider: Provider, access_token: str) -> Profile:
        assert preset.read is not None
        headers = {"Authorization": f"Bearer {access_token}"}
        if preset.sends_client_id:
            headers["Client-Id"] = provider.client_ids[0]
        proof = ""
        if preset.proves_secret and provider.secret is not None:
            key = provider.secret.reveal().encode()
            proof = f"&appsecret_proof={hmac.new(key, access_token.encode(), 'sha256').hexdigest()}"
        found = {}
        for kind, url in preset.profile_urls.items():
            reply = await self.outgoing.call("GET", url + proof, headers=headers)
            if reply.status != 200:
                raise _Unusable(f"{reply.host} answered {reply.status} when it was asked for a profile")
            found[kind] = reply.json()
        return preset.read(found)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turns what may be wrong with a provider into errors, and says in the log why."""
    try:
        yield
    except IdTokenFault as fault:
        raise errors.invalid_id_token(str(fault)) from None
    except (OutgoingFailed, _Unusable, NoProfile) as fault:
        _log.warn("the provider {name} cannot be used: {why}", name=name, why=str(fault))
        raise errors.provider_unavailable() from None


def _is_of_microsoft(name: str, stated: str, issuer: str) -> bool:
    """Whether ``stated`` is what the endpoint for many tenants says of itself: the form of their issuers, or that of
    the one tenant of personal accounts."""
    ours, theirs = urlsplit(issuer), urlsplit(stated)
    return (
        name == "azure"
        and ours.path.strip("/") in ("common/v2.0", "organizations/v2.0", "consumers/v2.0")
        and (theirs.scheme, theirs.netloc) == (ours.scheme, ours.netloc)
        and (TENANT in stated or ours.path.startswith("/consumers"))
    )


def _json_of(reply: Reply) -> Mapping[str, Any]:
    """The object in a reply of status 200."""
    if reply.status != 200:
        raise _Unusable(f"{reply.host} answered {reply.status}")
    content = reply.json()
    if not isinstance(content, dict):
        raise _Unusable(f"{reply.host} answered with something else than a JSON object")
    return content


def _answer_in(reply: Reply) -> Mapping[str, Any]:
    """As ``_json_of``, also for a refusal (RFC 6749 section 5.2), which then has an ``error`` that can be told apart
    from others only if it is a text."""
    if reply.status not in (400, 401, 403):
        return _json_of(reply)
    content = reply.json()
    code = content.get("error") if isinstance(content, dict) else None
    return {"error": code if isinstance(code, str) else ""}


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise _Unusable(f"it does not say its {name}")
    return value
