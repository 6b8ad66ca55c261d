"""What all parts of authentication share: settings, clock, randomness, and how a session is issued."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from attrs import define, field, frozen

from project_service import base64url
from project_service.auth.repository import Event, Limit, NewSession
from project_service.auth.tokens import Verifier
from project_service.auth.values import IssuedSession, Origin, User, moment
from project_service.http.caller import Claims
from project_service.settings.model import Auth as AuthSettings

# Opaque tokens: refresh tokens and one-time tokens. Only their SHA-256 digests are stored.


BYTES = 32
# The length of 32 bytes in base64url without padding.
LENGTH = 43

Randomness = Callable[[int], bytes]


@frozen
class Opaque:
    """A token as its owner has it, and the digest that is stored."""

    text: str = field(repr=False)
    digest: bytes = field(repr=False)


def fresh(randomness: Randomness) -> Opaque:
    """A token of 256 random bits."""
    return _opaque(base64url.encode(randomness(BYTES)))


def successor(text: str, salt: bytes) -> Opaque:
    """The token that follows the token ``text``, derived from it with ``salt``.

    Because it is derived, a client that uses a token twice (a retry, two tabs) gets the same successor, although only
    digests are stored. To anybody who does not have both the old token and the 256-bit salt it is as unpredictable as
    a random one; and the salt is deleted when the old token is good for nothing any more.
    """
    return _opaque(base64url.encode(hmac.digest(salt, text.encode("ascii"), "sha256")))


def latest(text: str, salts: Mapping[bytes, bytes]) -> Opaque:
    """The last of the tokens that follow the token ``text``. ``salts`` has each salt by the digest of the token that
    it was used with."""
    token = _opaque(text)
    while token.digest in salts:
        token = successor(token.text, salts[token.digest])
    return token


def digest(text: str) -> bytes | None:
    """The digest of a token that a client has sent; None for a text that cannot be a token."""
    if len(text) != LENGTH or not text.isascii():
        return None
    return _opaque(text).digest


def _opaque(text: str) -> Opaque:
    return Opaque(text, hashlib.sha256(text.encode("ascii")).digest())


SIGNUP_WINDOW = timedelta(hours=1)


@define
class Context:
    """``settings`` is replaced when the configuration is read again, so nobody may keep it. ``clock`` returns the
    Unix time."""

    settings: AuthSettings
    verifier: Verifier
    clock: Callable[[], float]
    randomness: Randomness
    new_id: Callable[[], str]

    def now(self) -> datetime:
        return moment(self.clock())

    def per_email(self) -> Limit:
        return Limit(self.settings.login_failures_max, self._window())

    def per_address(self) -> Limit:
        return Limit(self.settings.login_failures_max_per_address, self._window())

    def signups(self) -> Limit:
        return Limit(self.settings.signups_max_per_address, SIGNUP_WINDOW)

    def _window(self) -> timedelta:
        return timedelta(seconds=self.settings.login_failures_window_seconds)

    def reuse_window(self) -> timedelta:
        return timedelta(seconds=self.settings.refresh_reuse_seconds)

    def expires(self, now: datetime) -> datetime:
        """When a refresh token expires if it is not used after ``now``."""
        return now + self.refresh_lifetime()

    def refresh_lifetime(self) -> timedelta:
        return timedelta(seconds=self.settings.refresh_token_seconds)

    def access_expires(self, now: datetime) -> datetime:
        """When an access token that is made ``now`` expires."""
        return now + timedelta(seconds=self.verifier.issuer.seconds)

    def new_session(self, origin: Origin) -> tuple[NewSession, Opaque]:
        """A new session, to be stored, and its refresh token."""
        now = self.now()
        refresh = fresh(self.randomness)
        session = NewSession(
            id=self.new_id(),
            digest=refresh.digest,
            created_at=now,
            expires_at=self.expires(now),
            access_expires_at=self.access_expires(now),
            origin=origin,
        )
        return session, refresh

    def done_by(self, action: str, caller: Claims, origin: Origin) -> Event:
        """The entry of the audit for what a user did to his own account."""
        return Event(self.now(), action, actor="user", user_id=caller.sub, email=caller.email, origin=origin)

    def issued(self, user: User, session_id: str, refresh: Opaque, now: datetime) -> IssuedSession:
        """The session as it is returned to the client, with a new access token."""
        access = self.verifier.issuer.mint(user, session_id, now.timestamp(), self.new_id())
        return IssuedSession(user, access.text, refresh.text, access.expires_at)
