"""Signing in by a provider, and a user's identities: whoever comes back is let in, or added to whoever began it.

Whoever is sent away gets a state, which is answered once, at that provider, and by the same browser: it has a secret
in a cookie, of which the database has the digest. What the provider hears of it (nonce, and verifier of the code) is
derived from that secret and the state, so that nobody who reads the database could finish what somebody has begun.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson
from attrs import asdict, evolve, frozen

from project_service import base64url
from project_service.audit import Event, Origin
from project_service.auth import errors
from project_service.auth.challenges import AUTH_CODE_LIFETIME, Asked, Challenges
from project_service.auth.context import Context
from project_service.auth.factors import require_factor
from project_service.auth.limits import Throttle
from project_service.auth.profiles import Profile
from project_service.auth.providers import CameBack, Providers, SentTo
from project_service.auth.tokens import OpaqueToken
from project_service.auth.values import (
    AuthCode,
    ByProvider,
    Email,
    IssuedSession,
    NewSession,
    Proof,
    Redeemed,
    User,
    check_metadata,
    email_of,
)
from project_service.errors import ApiError, session_revoked
from project_service.http.caller import Claims
from project_service.lifecycle import shielded

if TYPE_CHECKING:
    from project_service.auth.postgres import Repository

# How long somebody may take at the provider, and for how long its page to add an identity is good.
STATE_LIFETIME = timedelta(minutes=10)
# Tokens of providers travel in addresses. Longer ones are not passed on.
_PASSED_ON_MAX_CHARACTERS = 4096


@frozen
class Wanted:
    """What somebody goes to a provider for. ``callback`` is where they come back to, and ``redirect_to`` the
    application, which ``code_challenge`` belongs to, as in ``Asked.data``; it is empty without one. ``user_id`` and
    ``session_id`` are those of whoever adds an identity."""

    provider: str
    callback: str
    redirect_to: str
    code_challenge: str = ""
    scopes: tuple[str, ...] = ()
    extra: Mapping[str, str] = {}
    user_id: str = ""
    session_id: str = ""


@frozen
class Browser:
    """Who is at a browser, by the secret in its cookie."""

    secret: OpaqueToken

    @property
    def digest(self) -> str:
        return base64url.encode(self.secret.digest)

    def derived(self, what: str, token: OpaqueToken) -> str:
        """A secret for one use, which nobody else can know: 43 characters."""
        text = f"{what} {token.text}".encode("ascii")
        return base64url.encode(hmac.digest(self.secret.text.encode("ascii"), text, "sha256"))


@frozen
class Identities:
    repository: Repository
    providers: Providers
    challenges: Challenges
    throttle: Throttle
    context: Context

    def browser(self, cookie: str) -> Browser:
        """The browser with this cookie, which may have begun something else as well; a new one without."""
        return Browser(OpaqueToken.parse(cookie) or OpaqueToken.new(self.context.randomness))

    # There.

    async def begin(self, wanted: Wanted, browser: Browser, origin: Origin) -> str:
        """The address to send a browser to. Raises ``provider_disabled``, ``provider_unavailable`` and
        ``rate_limited``."""
        self.providers.require(wanted.provider)
        await self.throttle.count_provider(origin)
        state, now = OpaqueToken.new(self.context.randomness), self.context.now()
        sent = SentTo(
            wanted.callback,
            state=state.text,
            nonce=browser.derived("nonce", state),
            verifier=browser.derived("verifier", state),
            scopes=wanted.scopes,
            extra=wanted.extra,
        )
        url = await self.providers.authorization_url(wanted.provider, sent)
        data = {**asdict(evolve(wanted, scopes=(), extra={})), "browser": browser.digest}
        await self.repository.keep_challenge("oauth", state.digest, now, now + STATE_LIFETIME, data)
        return url

    # And back.

    async def returned(self, state: str, cookie: str) -> Wanted:
        """What the browser with this cookie was sent away for, once. Raises ``bad_state``."""
        token, secret = OpaqueToken.parse(state), OpaqueToken.parse(cookie)
        if token is None or secret is None:
            raise errors.bad_state()
        data = await self.repository.take_challenge(
            "oauth", token.digest, self.context.now(), browser=Browser(secret).digest
        )
        if data is None:
            raise errors.bad_state()
        return _wanted(data)

    # Shielded, so that a code that the provider has taken is good for something even if the client hangs up.
    @shielded
    async def finish(
        self,
        wanted: Wanted,
        state: str,
        cookie: str,
        code: str,
        user: str | None,
        origin: Origin,
        asked: Asked,
    ) -> IssuedSession | OpaqueToken:
        """The session of whoever comes back with a ``code``; or, if the client sent a code challenge, a code of ours
        that it exchanges for one. ``user`` is Apple's. ``asked`` makes the link of a mail that confirms an address.

        Raises what ``Providers.exchange``, ``Repository.enter`` and ``link`` raise, ``signup_disabled``,
        ``provider_address_unconfirmed`` (the address has been mailed a challenge), and ``rate_limited``.
        """
        browser, token = Browser(OpaqueToken(cookie)), OpaqueToken(state)
        nonce, verifier = browser.derived("nonce", token), browser.derived("verifier", token)
        came = CameBack(wanted.callback, code, nonce, verifier, user)
        found = await self.providers.exchange(wanted.provider, came)
        tokens = _passed_on(found.access_token, found.refresh_token)
        ours, kept = OpaqueToken.new(self.context.randomness), None
        if wanted.code_challenge:
            sealed = ours.seal(orjson.dumps(tokens)).decode("ascii")
            kept = AuthCode(
                ours.digest,
                self.context.now() + AUTH_CODE_LIFETIME,
                {"code_challenge": wanted.code_challenge, "sealed": sealed},
            )
        session = await self._let_in(
            self._by(wanted.provider, found.profile),
            origin,
            asked,
            kept,
            (wanted.user_id, wanted.session_id) if wanted.user_id else None,
        )
        return ours if session is None else evolve(session, provider_tokens=tokens)

    @shielded
    async def by_id_token(
        self,
        provider: str,
        id_token: str,
        nonce: str | None,
        access_token: str | None,
        link_to: Claims | None,
        origin: Origin,
        asked: Asked,
    ) -> IssuedSession:
        """The session of whoever an app brings an ID token of, who is added to ``link_to`` if that is given. Raises
        what ``finish`` raises, and ``invalid_id_token``."""
        self.providers.require(provider)
        await self.throttle.count_provider(origin)
        if link_to is not None:
            await self._changing(link_to)
        profile = await self.providers.by_id_token(provider, id_token, nonce, access_token)
        of = None if link_to is None else (link_to.sub, link_to.sid)
        session = await self._let_in(self._by(provider, profile), origin, asked, None, of)
        assert session is not None  # there is no code challenge
        return session

    def _by(self, provider: str, profile: Profile) -> ByProvider:
        return ByProvider(
            provider,
            profile.subject,
            _reachable(profile.email),
            profile.is_verified,
            profile.data,
            confirm=self.context.settings.confirm_email,
        )

    async def _let_in(
        self,
        who: ByProvider,
        origin: Origin,
        asked: Asked,
        kept: AuthCode | None,
        link_to: tuple[str, str] | None,
    ) -> IssuedSession | None:
        session, refresh = self.context.new_session(origin, "oauth")
        if link_to is None:
            redeemed = await self._entered(who, session, kept, origin)
        else:
            event = Event(
                session.created_at, "link_identity", actor="user", user_id=link_to[0], origin=origin
            )
            redeemed = await self.repository.link(who, Proof(b"", link_to[1]), session, kept, event)
        user = redeemed.user
        if redeemed.session is not None:
            return await self.context.issued_to(user, redeemed.session, refresh)
        if who.confirm and user.email and user.awaits_confirmation:
            address = email_of(user)
            self.challenges.require_mailer()
            await self.throttle.count_mail(address, origin)
            await self.challenges.mail(address, "confirmation", origin, asked, user_id=user.id)
            raise errors.provider_address_unconfirmed()
        return None

    async def _entered(
        self, who: ByProvider, session: NewSession, kept: AuthCode | None, origin: Origin
    ) -> Redeemed:
        event = Event(session.created_at, "login_by_provider", origin=origin)
        redeemed = await self.repository.enter(who, session, kept, event)
        if redeemed is None:
            if not self.context.settings.allow_signup:
                raise errors.signup_disabled()
            if who.confirm and who.email is not None and not who.is_verified:
                self.challenges.require_mailer()
            metadata = _metadata(who.data)
            named = {"provider": who.provider, "providers": [who.provider]}
            user_id = await self.context.new_user(who.email, metadata, origin, app_metadata=named)
            new = evolve(who, new_id=user_id or self.context.new_id(), metadata=metadata)
            redeemed = await self.repository.enter(new, session, kept, event)
            assert redeemed is not None
        return redeemed

    # A user's own.

    async def offer(self, wanted: Wanted, caller: Claims, origin: Origin) -> str:
        """A token for the page on which the caller adds an identity: the page is opened without the access token, and
        may be opened by anybody, so it has to say whose account it is (``offered``). Raises ``provider_disabled``,
        ``rate_limited`` and what ``_changing`` raises."""
        self.providers.require(wanted.provider)
        await self._changing(caller)
        await self.throttle.count_provider(origin)
        token, now = OpaqueToken.new(self.context.randomness), self.context.now()
        data = asdict(evolve(wanted, user_id=caller.sub, session_id=caller.sid))
        await self.repository.keep_challenge("link", token.digest, now, now + STATE_LIFETIME, data)
        return token.text

    async def offered(self, text: str) -> tuple[Wanted, User]:
        """What a token of ``offer`` is for, and whose it is. Raises ``bad_state``."""
        token = OpaqueToken.parse(text)
        pending = None
        if token is not None:
            pending = await self.repository.pending(("link",), self.context.now(), digest=token.digest)
        account = None if pending is None else await self.repository.find_user(pending[1]["user_id"])
        if pending is None or account is None:
            raise errors.bad_state()
        return _wanted(pending[1]), account.user

    async def accept(self, text: str, browser: Browser, origin: Origin) -> str:
        """Use a token of ``offer`` up: the address to send the browser to. Raises ``bad_state``, and what ``begin``
        raises."""
        token = OpaqueToken.parse(text)
        data, now = None, self.context.now()
        if token is not None:
            data = await self.repository.take_challenge("link", token.digest, now)
        if data is None:
            raise errors.bad_state()
        return await self.begin(_wanted(data), browser, origin)

    @shielded
    async def remove(self, caller: Claims, identity_id: str, origin: Origin) -> None:
        """Remove an identity of the caller's. Raises ``identity_not_found``, ``last_identity``, ``address_identity``
        and what ``_changing`` raises."""
        await self._changing(caller)
        event = self.context.user_event("unlink_identity", caller, origin)
        await self.repository.unlink(caller.sub, identity_id.lower(), event)

    async def _changing(self, caller: Claims) -> None:
        """Returns if the caller may change the ways in. Raises ``session_revoked`` and ``insufficient_aal``."""
        account = await self.repository.find_user(caller.sub)
        if account is None or account.disabled_at is not None:
            raise session_revoked()
        await require_factor(self.repository, caller)


def _wanted(data: Mapping[str, Any]) -> Wanted:
    known = {name: value for name, value in data.items() if name != "browser"}
    return Wanted(**{**known, "scopes": tuple(known["scopes"])})


def _reachable(address: str | None) -> Email | None:
    """An address that a user can have here."""
    try:
        return None if address is None else Email.parse_new(address)
    except ApiError:
        return None


def _metadata(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a provider says, as far as it fits into the metadata of a new user."""
    for left_out in ((), ("custom_claims",), tuple(data)):
        try:
            return check_metadata("data", {name: data[name] for name in data if name not in left_out})
        except ApiError:
            continue
    return {}


def _passed_on(access_token: str, refresh_token: str | None) -> Mapping[str, str]:
    tokens = {"provider_token": access_token, "provider_refresh_token": refresh_token}
    return {name: one for name, one in tokens.items() if one and len(one) <= _PASSED_ON_MAX_CHARACTERS}


def is_proof(given: str, browser: Browser, token: str) -> bool:
    """Whether ``given`` was made by ``proof_of``."""
    return hmac.compare_digest(given.encode(), proof_of(browser, token).encode())


def proof_of(browser: Browser, token: str) -> str:
    """What the page that offers to add an identity has, and no other page can know."""
    return base64url.encode(hashlib.sha256(browser.derived("link", OpaqueToken(token)).encode()).digest())
