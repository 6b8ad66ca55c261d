"""Waits for a condition, or for what must not take long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import LoopingCall, deferLater

T = TypeVar("T")

# Only a test that fails waits as long as this; a busy machine takes a minute for what else takes some seconds.
TIMEOUT_SECONDS = 120.0


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Returns when ``condition()``, which may be a coroutine function, is true. Fails after ``TIMEOUT_SECONDS``."""
    from twisted.internet import reactor

    deadline = reactor.seconds() + TIMEOUT_SECONDS
    while True:
        holds = condition()
        if await holds if isawaitable(holds) else holds:
            return
        assert reactor.seconds() < deadline, "the condition did not come true in time"
        await deferLater(reactor, 0.01, lambda: None)


TICK_SECONDS = 0.1


async def within(seconds: float, waiting: Deferred[T]) -> T:
    """What ``waiting`` comes to. Fails if that takes longer than ``seconds``, of which those do not count in which
    the machine stood still, and what is waited for as well."""
    left = seconds

    def tick() -> None:
        nonlocal left
        left -= TICK_SECONDS
        if left <= 0:
            waiting.cancel()

    # It leaves out the calls that it is late for.
    ticking = LoopingCall(tick)
    ticking.start(TICK_SECONDS, now=False)
    try:
        return await waiting
    except CancelledError:
        assert left > 0, f"it took longer than {seconds:g} seconds"
        raise
    finally:
        ticking.stop()
