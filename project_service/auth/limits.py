"""Limits on login attempts, sign-ups and e-mails. They are counted in the database, so that they hold for all workers
and hosts together.

An attempt is reserved before its outcome is known, and finished afterwards, so that many at once cannot exceed the
limit. Whoever reserves one has to call ``finish``, whatever happens.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from attrs import frozen
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from project_service.audit import Event, Origin
from project_service.auth.context import Context
from project_service.auth.postgres import Repository
from project_service.auth.values import Email, Limit, Outcome, Reservation
from project_service.errors import rate_limited
from project_service.http.head import address_block

HOUR = timedelta(hours=1)
FACTOR_WINDOW = timedelta(minutes=15)
# Attempts in progress may turn out not to be failures, so if they use up the limit, the next one asks again so often.
PAUSE_SECONDS = 0.1
PAUSES = 50

T = TypeVar("T")


@frozen
class Throttle:
    """Reserving raises ``rate_limited``, with the seconds until another attempt is allowed."""

    repository: Repository
    context: Context
    reactor: IReactorTime

    async def reserve_login(self, email: Email, origin: Origin) -> Reservation:
        """A login, counted by its e-mail address and by client address. The reservation has the account."""
        address = address_block(origin.address)
        return await self._reserved(
            lambda: self.repository.reserve_login(
                email, address, self._per_email(), self._per_address(), self.context.now()
            )
        )

    async def reserve_signup(self, origin: Origin) -> Reservation:
        """A sign-up, counted by client address."""
        limit = Limit(self.context.settings.signups_max_per_address, HOUR)
        return await self._reserve("signup", address_block(origin.address), limit)

    async def reserve_mail(self, origin: Origin) -> Reservation:
        """An e-mail that anybody may ask for, counted by client address."""
        return await self._reserve("mail", address_block(origin.address), self._per_address())

    async def count_signup(self, origin: Origin) -> None:
        """Count a sign-up without a password."""
        await self.finish(await self.reserve_signup(origin), "failed")

    async def count_anonymous(self, origin: Origin) -> None:
        """Count an anonymous user, by client address."""
        await self._count(
            "anonymous", address_block(origin.address), self.context.settings.anonymous_max_per_address
        )

    async def count_mail(self, email: Email, origin: Origin) -> None:
        """Count an e-mail that a client asks for: by client address, and by that and the address that it goes to,
        whether or not there is a user of it. What strangers ask for elsewhere keeps nobody from theirs; what a user
        gets of all is limited by ``auth.email_seconds``."""
        settings, client = self.context.settings, address_block(origin.address)
        await self._count("mail_client", client, settings.emails_max_per_address)
        await self._count("mail_account", f"{email.key} {client}", settings.emails_max_per_account)

    async def count_verification(self, origin: Origin) -> None:
        """Count an answer to a challenge, by client address."""
        maximum = self.context.settings.verifications_max_per_address
        await self._count("verification", address_block(origin.address), maximum)

    async def count_provider(self, origin: Origin) -> None:
        """Count somebody who is sent to a provider, or whose ID token is to be checked, by client address."""
        await self._count("oauth", address_block(origin.address), self.context.settings.oauth_max_per_address)

    async def _count(self, scope: str, subject: str, maximum: int) -> None:
        await self.finish(await self._reserve(scope, subject, Limit(maximum, HOUR)), "failed")

    async def reserve_password_check(self, session_id: str) -> Reservation:
        """A check of a signed-in user's password, counted by session: what others do, at the login or from the
        same address, must not keep them from their own account."""
        return await self._reserve("session", session_id, self._per_email())

    async def reserve_factor(self, factor_id: str) -> Reservation:
        """An answer by a further factor, counted by the factor: wrong ones do not lock the password."""
        limit = Limit(self.context.settings.mfa_failures_max, FACTOR_WINDOW)
        return await self._reserve("factor", factor_id, limit)

    async def finish(self, reservation: Reservation, outcome: Outcome, event: Event | None = None) -> None:
        """Store the outcome of an attempt, and record it in the audit as ``event`` if there is one."""
        # If there are no limits nothing was counted, and the query can be spared.
        if event is not None or reservation.is_counted:
            await self.repository.record_outcome(reservation, outcome, event)

    async def during(self, reservation: Reservation, step: Awaitable[T]) -> T:
        """The result of ``step``, a step of the attempt. If it raises, the attempt is released first."""
        try:
            return await step
        except BaseException:
            await self.finish(reservation, "released")
            raise

    async def _reserve(self, scope: str, subject: str, limit: Limit) -> Reservation:
        return await self._reserved(
            lambda: self.repository.reserve_attempt(scope, subject, limit, self.context.now())
        )

    async def _reserved(self, reserve: Callable[[], Awaitable[Reservation]]) -> Reservation:
        """The attempt, once it may begin. While attempts in progress use up the limit, it asks again."""
        for _ in range(PAUSES):
            reservation = await reserve()
            if reservation.verdict == "refused":
                raise rate_limited(math.ceil(reservation.wait_seconds))
            if reservation.verdict == "free":
                return reservation
            await deferLater(self.reactor, PAUSE_SECONDS)
        raise rate_limited(1)

    def _per_email(self) -> Limit:
        return Limit(self.context.settings.login_failures_max, self._window())

    def _per_address(self) -> Limit:
        return Limit(self.context.settings.login_failures_max_per_address, self._window())

    def _window(self) -> timedelta:
        return timedelta(seconds=self.context.settings.login_failures_window_seconds)
