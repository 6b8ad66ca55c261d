"""Runs a command's work on the reactor, until it is done or interrupted."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.task import react

from project_service.deferreds import start


class Interrupted(Exception):
    """SIGINT or SIGTERM came before the work was done. What it had opened has been closed."""


def run_on_reactor(work: Callable[[Any], Awaitable[None]]) -> None:
    """Run the reactor until ``work`` is done. Raises what it raised, or ``Interrupted``."""
    from twisted.internet import reactor

    running = _Running(work)
    try:
        react(running.begin, _reactor=reactor)
    except SystemExit as ended:
        if ended.code and running.raised is None:
            raise
    if running.raised is not None:
        raise Interrupted if running.interrupted else running.raised


@define
class _Running:
    work: Callable[[Any], Awaitable[None]]
    raised: BaseException | None = field(default=None, init=False)
    interrupted: bool = field(default=False, init=False)
    over: Deferred[None] = field(factory=Deferred, init=False)

    def begin(self, reactor: Any) -> Deferred[None]:
        working = start(self._kept(reactor))
        # On a signal react() alone would end the process in the middle of the work, with exit code 0.
        reactor.addSystemEventTrigger("before", "shutdown", self._leave, working)
        return working

    async def _kept(self, reactor: Any) -> None:
        try:
            await self.work(reactor)
        except BaseException as fault:
            self.raised = fault
        self.over.callback(None)

    def _leave(self, working: Deferred[None]) -> Deferred[None]:
        if not self.over.called:
            self.interrupted = True
            # A second signal ends the process at once.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            working.cancel()
        return self.over
