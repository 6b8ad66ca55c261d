"""What all parts of authentication share: settings, clock, randomness, and how a session is issued."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from attrs import define

from project_service.audit import Event, Origin
from project_service.auth.mail_templates import MailTemplates
from project_service.auth.tokens import MAX_BYTES, OpaqueToken, Randomness, Verifier
from project_service.auth.values import (
    APP_METADATA,
    Account,
    Email,
    IssuedSession,
    Method,
    NewSession,
    Profile,
    SignIn,
    User,
    moment,
)
from project_service.http.caller import Claims
from project_service.settings.model import Auth as AuthSettings

if TYPE_CHECKING:
    from project_service.auth.hooks import Hooks


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
    hooks: Hooks
    # A user as hooks see them.
    view: Callable[[Profile], Mapping[str, Any]]

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

    async def issued(
        self,
        user: User,
        session_id: str,
        began: SignIn,
        refresh: OpaqueToken,
        now: datetime,
        origin: Origin,
        how: str | None = None,
    ) -> IssuedSession:
        """The session as it is returned to the client, with a new access token, whose claims the project may change.
        ``how`` the user got it is how the session began, if nothing else is said. Raises ``hook_refused`` and
        ``hook_failed``."""
        issuer = self.verifier.issuer
        claims = issuer.claims(user, session_id, now.timestamp(), self.new_id(), began)
        changed = await self.hooks.custom_access_token(claims, how or began.method, origin.address)
        access = issuer.signed(changed)
        if len(access.text) > MAX_BYTES:
            raise self.hooks.too_large()
        return IssuedSession(user, access.text, refresh.text, access.expires_at)

    async def issued_to(self, user: User, session: NewSession, refresh: OpaqueToken) -> IssuedSession:
        """A session that has just begun."""
        return await self.issued(user, session.id, session.began, refresh, session.created_at, session.origin)

    async def new_user(
        self,
        email: Email | None,
        metadata: Mapping[str, Any],
        origin: Origin,
        *,
        app_metadata: Mapping[str, Any] = APP_METADATA,
        is_anonymous: bool = False,
    ) -> str | None:
        """Ask the project whether somebody may become a user: the id that they get then; None if nobody asks for one.
        Raises ``hook_refused`` and ``hook_failed``."""
        if not self.hooks.has("before_user_created"):
            return None
        now, address = self.now(), "" if email is None else email.address
        user = User(
            self.new_id(), address, now, metadata, app_metadata, updated_at=now, is_anonymous=is_anonymous
        )
        shown = self.view(Profile(Account(user)))
        await self.hooks.before_user_created(shown, origin.address, origin.captcha_token or None)
        return user.id
