"""Sign-up and login."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from attrs import frozen

from project_service.auth import errors, passwords
from project_service.auth.context import Context
from project_service.auth.hashing import Hashes
from project_service.auth.metadata import checked
from project_service.auth.model import Account, Email, IssuedSession, Origin, User
from project_service.auth.passwords import Candidates
from project_service.auth.ports import Event, NewSession, Sessions, Users
from project_service.auth.recovery import Letters
from project_service.auth.throttle import Attempt, Throttle
from project_service.deferreds import shield
from project_service.errors import ApiError, require_texts

T = TypeVar("T")


@frozen
class Accounts:
    users: Users
    sessions: Sessions
    throttle: Throttle
    hashes: Hashes
    letters: Letters
    context: Context

    async def sign_up(
        self, email: object, password: object, metadata: object, origin: Origin
    ) -> IssuedSession | User:
        """Create a user. Returns his first session, or only the user if his address has to be confirmed first.

        Raises ``signup_disabled``, ``validation_failed``, ``weak_password``, ``email_taken``, ``rate_limited``,
        ``overloaded`` and, if addresses have to be confirmed but there is no mail server, ``email_not_configured``.
        """
        settings = self.context.settings
        if not settings.allow_signup:
            raise errors.signup_disabled()
        require_texts({"email": email, "password": password})
        address = Email.parse_new(email)
        raw = passwords.acceptable(password, address, settings.password_min_bytes)
        if settings.confirm_email:
            self.letters.require()
        return await shield(self._sign_up(address, raw, checked(metadata), origin))

    async def _sign_up(
        self, email: Email, password: bytes, metadata: Mapping[str, Any], origin: Origin
    ) -> IssuedSession | User:
        attempt = await self.throttle.reserve_by_address("signup", origin, self.context.signups())
        hashed = await attempt.during(self.hashes.hash(password))
        confirm = self.context.settings.confirm_email
        session, refresh = self.context.new_session(origin)
        event = Event(session.created_at, "signup", email=email.address, origin=origin)
        account = await self.users.create(
            email=email,
            password_hash=hashed,
            metadata=metadata,
            confirmed=False,
            session=None if confirm else session,
            event=event,
        )
        # An attempt with a taken address counts too, because it tells who has an account.
        await attempt.settle("failed")
        if account is None:
            raise errors.email_taken()
        if confirm:
            await self.letters.send(email, "confirmation", origin)
            return account.user
        return self.context.issued(account.user, session.id, refresh, session.created_at)

    async def log_in(self, email: object, password: object, origin: Origin) -> IssuedSession:
        """Start a new session of an existing user.

        Raises ``invalid_credentials`` for an unknown email as for a wrong password, after the same time;
        ``user_disabled`` and ``email_not_confirmed``, but only to those who know the password; ``rate_limited``,
        ``overloaded`` and ``validation_failed``.
        """
        require_texts({"email": email, "password": password})
        address = Email.parse(email)
        candidates = passwords.candidates(password)
        # Shielded, so that an attempt is counted even if the client hangs up.
        return await shield(self._log_in(address, candidates, origin))

    async def _log_in(self, email: Email, password: Candidates, origin: Origin) -> IssuedSession:
        attempt = await self.throttle.reserve_login(email, origin)
        failure = self._event("login", email, attempt.account, origin, "invalid_credentials")
        account = await self.check_password(password, attempt.account, attempt, failure)
        refusal = self._refusal(account)
        if refusal is not None:
            await attempt.settle("released", self._event("login", email, account, origin, refusal.code))
            raise refusal
        session, refresh = self.context.new_session(origin)
        event = self._event("login", email, account, origin)
        user = await attempt.during(self._begun(account, password, session, event))
        await attempt.settle("cleared" if user is not None else "released")
        if user is None:
            raise errors.invalid_credentials()
        return self.context.issued(user, session.id, refresh, session.created_at)

    async def _begun(
        self, account: Account, password: Candidates, session: NewSession, event: Event
    ) -> User | None:
        """Start the session, with the password hashed again if its hash is outdated. None as ``with_password``."""

        async def start(known: Account) -> User | None:
            new_hash = None
            if self.hashes.outdated(known.password_hash):
                new_hash = await self.hashes.hash(password[0])
            return await self.sessions.start(known, new_hash, session, event)

        return await self.with_password(password, account, start)

    async def with_password(
        self, password: Candidates, account: Account, change: Callable[[Account], Awaitable[T]]
    ) -> T | None:
        """What ``change`` returns. It is given the account as it was when ``password`` was checked, and has to return
        nothing if the hash has changed since, or the user was disabled or deleted.

        It is called once more if only the hash is new: another login may have replaced an outdated one.
        """
        made = await change(account)
        if made:
            return made
        again = await self.users.find(account.user.id)
        if again is None or not await self.hashes.matches(password, again.password_hash):
            return None
        return await change(again)

    async def check_password(
        self, password: Candidates, account: Account | None, attempt: Attempt, failure: Event
    ) -> Account:
        """The account, if the password is right; the caller has to settle the attempt. Otherwise it is settled as
        ``failure``, and ``invalid_credentials`` is raised. Raises ``overloaded`` too."""
        stored = account.password_hash if account else None
        right = await attempt.during(self.hashes.matches(password, stored))
        if account is None or not right:
            await attempt.settle("failed", failure)
            raise errors.invalid_credentials()
        return account

    def _refusal(self, account: Account) -> ApiError | None:
        if account.disabled_at is not None:
            return errors.user_disabled()
        # Users who have logged in before ``confirm_email`` was switched on are not locked out by it.
        unconfirmed = account.confirmed_at is None and account.last_login_at is None
        if self.context.settings.confirm_email and unconfirmed:
            return errors.email_not_confirmed()
        return None

    def _event(
        self, action: str, email: Email, account: Account | None, origin: Origin, result: str = "ok"
    ) -> Event:
        return Event(
            at=self.context.now(),
            action=action,
            result=result,
            user_id=account.user.id if account else None,
            email=email.address,
            origin=origin,
        )
