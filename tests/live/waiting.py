"""Waiting for a condition, with a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable

from twisted.internet.task import deferLater

LONGEST_SECONDS = 30.0


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Returns once ``condition()`` (awaited where it has to be) is true; fails if no machine needs so long."""
    from twisted.internet import reactor

    deadline = reactor.seconds() + LONGEST_SECONDS
    while True:
        holds = condition()
        if await holds if isawaitable(holds) else holds:
            return
        assert reactor.seconds() < deadline, "it never came to that"
        await deferLater(reactor, 0.01, lambda: None)
