"""How long the machine has stood still, for tests of who waits how long: that is nobody's fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define

TICK_SECONDS = 0.05


@define
class Standstill:
    """``seconds``: for how long altogether this process was late, or its machine, since it was made."""

    seconds: float = 0.0

    def turned(self, since: float, now: float) -> None:
        """What should have waited for ``TICK_SECONDS`` at most has waited from ``since`` to ``now``."""
        self.seconds += max(0.0, now - since - TICK_SECONDS)


@contextmanager
def standstill() -> Iterator[Standstill]:
    """Of the reactor, as long as the block lasts."""
    from twisted.internet import reactor as running

    reactor: Any = running
    seen, calls = Standstill(), list[Any]()

    def tick(since: float) -> None:
        now = reactor.seconds()
        seen.turned(since, now)
        calls[:] = [reactor.callLater(TICK_SECONDS, tick, now)]

    tick(reactor.seconds())
    try:
        yield seen
    finally:
        calls[0].cancel()
