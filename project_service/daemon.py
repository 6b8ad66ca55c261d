"""The daemon's whole life: embedded parts, migrations, the application, signals, the end."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.deferreds import start
from project_service.settings.launch import Launch
from project_service.startup import Startup


class Daemon(Service):
    """The service that ``twistd`` runs. What goes wrong at the start is logged and ends the process with exit code
    1."""

    log = Logger()

    def __init__(self, reactor: Any, launch: Launch) -> None:
        self.setName("project-service")
        self._reactor = reactor
        self._startup = Startup(reactor, launch)
        self._starting: Deferred[None] | None = None
        self._stopping = False

    def startService(self) -> None:
        super().startService()
        # The reactor installs its own signal handlers when it starts, and ours have to replace them. Nothing is begun
        # before that, because until then a signal would simply end the process, in the middle of something.
        self._reactor.callWhenRunning(self._begin)

    def _begin(self) -> None:
        self._take_signals()
        self._starting = start(self._startup.start())
        self._starting.addErrback(self._failed)

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return start(self._stop())

    async def _stop(self) -> None:
        if self._starting is not None and not self._starting.called:
            self._starting.cancel()
        await self._startup.stop()

    def _failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) or not self.running:
            return  # it was stopped while it started, and whatever was interrupted may have raised anything
        self.log.critical("the service cannot start: {why}", why=failure.getErrorMessage())
        self.log.debug("{traceback}", traceback=failure.getTraceback())
        # twistd has no exit code of its own for this; everything else has been cleaned up by then.
        atexit.register(_exit_failed)
        self._reactor.callWhenRunning(self._stop_once)

    def _take_signals(self) -> None:
        """Handle signals ourselves. With twistd's handlers SIGTERM would show as death by a signal; a stop that was
        asked for has to end with exit code 0."""

        def stop(signum: int, frame: object) -> None:
            self._reactor.callFromThread(self._stop_once)

        def reload(signum: int, frame: object) -> None:
            self._reactor.callFromThread(self._startup.reload)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, reload)

    def _stop_once(self) -> None:
        # The reactor runs until everything has been stopped, and refuses to be stopped again meanwhile.
        if self._reactor.running and not self._stopping:
            self._stopping = True
            self._reactor.stop()


def _exit_failed() -> None:
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    os._exit(1)
