"""Waits for a condition, with a time limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable

from twisted.internet.task import deferLater

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
