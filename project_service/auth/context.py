"""What all parts of authentication share: settings, clock, randomness, and how a session is issued."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from attrs import define

from project_service.auth.mail_templates import MailTemplates
from project_service.auth.tokens import OpaqueToken, Randomness, Verifier
from project_service.auth.values import Event, IssuedSession, Method, NewSession, Origin, SignIn, User, moment
from project_service.http.caller import Claims
from project_service.settings.model import Auth as AuthSettings


@define
class Context:
    """``settings`` and ``templates`` are replaced when the configuration is read again, so nobody may keep them.
    ``clock`` returns the Unix time."""

    settings: AuthSettings
    templates: MailTemplates
    verifier: Verifier
    clock: Callable[[], float]
    randomness: Randomness
    new_id: Callable[[], str]

    def now(self) -> datetime:
        return moment(self.clock())

    def reuse_window(self) -> timedelta:
        return timedelta(seconds=self.settings.refresh_reuse_seconds)

    def refresh_lifetime(self) -> timedelta:
        """After how long without use a refresh token expires."""
        return timedelta(seconds=self.settings.refresh_token_seconds)

    def access_expires(self, now: datetime) -> datetime:
        """When an access token that is made ``now`` expires."""
        return now + timedelta(seconds=self.verifier.issuer.seconds)

    def new_session(self, origin: Origin, method: Method = "password") -> tuple[NewSession, OpaqueToken]:
        """A new session, to be stored, and its refresh token."""
        now, refresh = self.now(), OpaqueToken.new(self.randomness)
        session = NewSession(
            id=self.new_id(),
            digest=refresh.digest,
            created_at=now,
            expires_at=now + self.refresh_lifetime(),
            access_expires_at=self.access_expires(now),
            origin=origin,
            method=method,
        )
        return session, refresh

    def user_event(self, action: str, caller: Claims, origin: Origin) -> Event:
        """The entry of the audit for what a user did to their own account."""
        return Event(self.now(), action, actor="user", user_id=caller.sub, email=caller.email, origin=origin)

    def issued(
        self, user: User, session_id: str, began: SignIn, refresh: OpaqueToken, now: datetime
    ) -> IssuedSession:
        """The session as it is returned to the client, with a new access token."""
        access = self.verifier.issuer.mint(user, session_id, now.timestamp(), self.new_id(), began)
        return IssuedSession(user, access.text, refresh.text, access.expires_at)

    def issued_to(self, user: User, session: NewSession, refresh: OpaqueToken) -> IssuedSession:
        """A session that has just begun."""
        return self.issued(user, session.id, session.began, refresh, session.created_at)
