"""Announces versions before their first byte, and some of them in advance while a bucket gets many uploads.

An announcement is a transaction, and most of what a small upload costs the database besides its switch. With some in
advance most uploads of a burst begin without one. One that nobody took is harmless: nothing was ever sent under it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from uuid import UUID

from attrs import define, field
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.deferreds import start
from project_service.storage.ports import ObjectRows

_log = Logger()

# How many versions are announced in advance at most.
MOST_AHEAD = 31
# Versions announced in advance may be taken for this long. Afterwards they are withdrawn, and the burst is over.
FRESH_SECONDS = 2.0


@define(eq=False)
class _Stock:
    """What is announced for one bucket and taken by nobody: ``versions`` with the time since when, the oldest first.

    ``since`` is the time of the last announcement, ``ahead`` how many it made in advance, ``asking`` the number of
    those under way.
    """

    since: float
    versions: deque[tuple[float, UUID]] = field(factory=deque, init=False)
    ahead: int = field(default=0, init=False)
    asking: int = field(default=0, init=False)

    def old(self, before: float) -> list[UUID]:
        """Removes the versions that have been announced since ``before`` or longer, and returns them."""
        found = []
        while self.versions and self.versions[0][0] <= before:
            found.append(self.versions.popleft()[1])
        return found


@define(eq=False)
class Announcer:
    """``withdraw_old`` has to be called about every ``FRESH_SECONDS``."""

    rows: ObjectRows
    clock: IReactorTime
    new_version: Callable[[], UUID]
    _stocks: dict[str, _Stock] = field(factory=dict, init=False)
    _unused: list[UUID] = field(factory=list, init=False)

    def take(self, bucket: str) -> UUID | None:
        """A version that is announced for ``bucket`` and is now the caller's; None where there is none.

        The next ones are announced in the background before the last one is taken.
        """
        stock = self._stocks.get(bucket)
        if stock is None:
            return None
        self._unused += stock.old(self._late())
        if not stock.versions:
            return None
        _, version = stock.versions.popleft()
        if not stock.asking and len(stock.versions) < stock.ahead // 4:
            start(self.announce(bucket)).addErrback(_in_vain)
        return version

    async def announce(self, bucket: str) -> None:
        """Announce at least one version, to be taken.

        The faster the last ones were used up, the more are announced at a time: none in advance for the first upload,
        then 1, 3, 7, up to ``MOST_AHEAD``.
        """
        stock = self._stocks.get(bucket)
        if stock is None:
            stock = self._stocks[bucket] = _Stock(self.clock.seconds())
        # Uploads that begin at the same moment need no more than one of them to provide for others.
        elif not stock.asking:
            stock.ahead = min(2 * stock.ahead + 1, MOST_AHEAD)
        versions = [self.new_version() for _ in range(1 if stock.asking else 1 + stock.ahead)]
        stock.asking += 1
        try:
            await self.rows.begin_uploads(versions, bucket)
        finally:
            stock.asking -= 1
        stock.since = self.clock.seconds()
        stock.versions.extend((stock.since, version) for version in versions)

    async def withdraw_old(self) -> None:
        """Withdraw what nobody has taken for ``FRESH_SECONDS``."""
        late = self._late()
        for bucket, stock in list(self._stocks.items()):
            self._unused += stock.old(late)
            if stock.since <= late and not stock.asking:
                del self._stocks[bucket]
        await self._withdraw()

    async def withdraw_all(self) -> None:
        """Withdraw what nobody has taken; failures are logged, and the sweeper does it later."""
        for stock in self._stocks.values():
            self._unused += stock.old(self.clock.seconds())
        self._stocks.clear()
        try:
            await self._withdraw()
        except Exception as problem:
            _log.warn("Announcements are left to the sweeper: {kind}", kind=type(problem).__name__)

    async def _withdraw(self) -> None:
        unused, self._unused = self._unused, []
        if unused:
            await self.rows.withdraw_uploads(unused)

    def _late(self) -> float:
        """What was announced then, or before, must not be taken any more."""
        return self.clock.seconds() - FRESH_SECONDS


def _in_vain(problem: Failure) -> None:
    """The next upload finds nothing to take, announces its own version, and is told what is wrong."""
    _log.debug("Announcing in advance failed: {kind}", kind=type(problem.value).__name__)
