"""Limits on attempts. They are counted in the database, so that they hold for all workers and hosts together."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from attrs import frozen
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from project_service.auth.context import Context
from project_service.auth.repository import Attempts, Event, Limit, Outcome, Reservation
from project_service.auth.values import Account, Email, Origin
from project_service.errors import rate_limited
from project_service.http.head import address_block

# Attempts under way may turn out not to be failures, so if they use up the limit, the next one asks again so often.
PAUSE_SECONDS = 0.1
PAUSES = 50

R = TypeVar("R", bound=Reservation)
T = TypeVar("T")


@frozen
class Attempt:
    """A reserved attempt, which has to be settled. ``account`` is the one with the email of a login, if there is
    one."""

    _settle: Callable[[Outcome, Event | None], Awaitable[None]]
    account: Account | None = None

    async def settle(self, outcome: Outcome, event: Event | None = None) -> None:
        """Say what became of the attempt, and record it in the audit as ``event`` if there is one."""
        await self._settle(outcome, event)

    async def during(self, work: Awaitable[T]) -> T:
        """The result of ``work``, a part of the attempt. Where it raises, the attempt is released first."""
        try:
            return await work
        except BaseException:
            await self.settle("released")
            raise


@frozen
class Throttle:
    """An attempt is reserved before its outcome is known, and settled afterwards, so that many at once cannot exceed
    the limit.

    Reserving raises ``rate_limited``, with the seconds until another attempt is allowed.
    """

    attempts: Attempts
    context: Context
    reactor: IReactorTime

    async def reserve_login(self, email: Email, origin: Origin) -> Attempt:
        """A login, counted by email and by client address."""
        context, address = self.context, address_block(origin.address)
        held = await self._reserved(
            lambda: self.attempts.reserve_login(
                email, address, context.per_email(), context.per_address(), context.now()
            )
        )

        async def settle(outcome: Outcome, event: Event | None) -> None:
            # If there are no limits nothing was counted, and the query can be spared.
            if event is not None or held.mark is not None or held.address_mark is not None:
                await self.attempts.settle_login(email, address, held, outcome, event)

        return Attempt(settle, held.account)

    async def reserve_by_address(self, scope: str, origin: Origin, limit: Limit) -> Attempt:
        """An attempt of another kind, ``scope``, counted by client address."""
        return await self._reserve(scope, address_block(origin.address), limit)

    async def reserve_by_session(self, session_id: str) -> Attempt:
        """An attempt at the password of a signed-in user, counted by his session: what others do, at the login or
        from the same address, must not keep him from his own account."""
        return await self._reserve("session", session_id, self.context.per_email())

    async def _reserve(self, scope: str, subject: str, limit: Limit) -> Attempt:
        held = await self._reserved(lambda: self.attempts.reserve(scope, subject, limit, self.context.now()))
        return Attempt(lambda outcome, event: self.attempts.settle(scope, subject, held.mark, outcome, event))

    async def _reserved(self, reserve: Callable[[], Awaitable[R]]) -> R:
        for _ in range(PAUSES):
            held = await reserve()
            if held.verdict == "free":
                return held
            if held.verdict == "refused":
                raise rate_limited(math.ceil(held.wait_seconds))
            await deferLater(self.reactor, PAUSE_SECONDS)
        raise rate_limited(1)
