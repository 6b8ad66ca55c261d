"""What every authentication service shares: settings, clock, randomness, and how a session is issued."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from attrs import define

from project_service.auth import secrets
from project_service.auth.model import IssuedSession, Origin, User, moment
from project_service.auth.ports import Event, Limit, NewSession
from project_service.auth.secrets import Opaque, Randomness
from project_service.auth.tokens import Verifier
from project_service.http.caller import Claims
from project_service.settings import Auth as AuthSettings

SIGNUP_WINDOW = timedelta(hours=1)


@define
class Context:
    """``settings`` is replaced when the configuration is read again; services look at it each time."""

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
        """When a refresh token that is unused from ``now`` on expires."""
        return now + self.refresh_lifetime()

    def refresh_lifetime(self) -> timedelta:
        return timedelta(seconds=self.settings.refresh_token_seconds)

    def access_expires(self, now: datetime) -> datetime:
        """When an access token made at ``now`` has expired."""
        return now + timedelta(seconds=self.verifier.issuer.seconds)

    def new_session(self, origin: Origin) -> tuple[NewSession, Opaque]:
        """A session to be stored, and the refresh token that belongs to it."""
        now = self.now()
        refresh = secrets.fresh(self.randomness)
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
        """What a user did to his own account, for the audit."""
        return Event(self.now(), action, actor="user", user_id=caller.sub, email=caller.email, origin=origin)

    def issued(self, user: User, session_id: str, refresh: Opaque, now: datetime) -> IssuedSession:
        """The interface's Session, with an access token made ``now``."""
        access = self.verifier.issuer.mint(user, session_id, now.timestamp(), self.new_id())
        return IssuedSession(user, access.text, refresh.text, access.expires_at)
