"""Several processes on one port: the parent opens the ports, the workers adopt them and are replaced when they die.

A worker reads what it has to know from its standard input, so that no secret shows in the process list. That pipe
stays open as long as the parent lives; a worker that reads its end stops.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any

from attrs import evolve
from prometheus_client.multiprocess import mark_process_dead
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import Factory, ProcessProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service import log
from project_service.auth.assemble import issuer_of
from project_service.certificates import Certificates
from project_service.http.metrics import MULTIPROCESS
from project_service.lifecycle import CHILD_PAUSES, STEADY_SECONDS, Backoff, cancel
from project_service.network import bind_endpoints, leave
from project_service.settings.model import Settings
from project_service.settings.reading import Launch
from project_service.workers.shared import RENEW, MetricsFolder, Readiness, assignment

# Where a worker finds the ports, after its standard streams and the status pipe.
STATUS_FD = 3
FIRST_PORT_FD = 4
READY = b"ready"
# How much longer than shutdown_seconds a worker may take before it is killed.
STOP_MARGIN_SECONDS = 5.0


class Workers:
    """The parent's side: ``start`` returns when every worker answers requests, ``stop`` when all are gone.

    ``settings`` are the totals for all ``count`` workers together. ``certificates`` registers those that the parent
    reads when it opens the ports.
    """

    log = Logger()

    def __init__(
        self, reactor: Any, launch: Launch, settings: Settings, count: int, certificates: Certificates
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._certificates = certificates
        self._assignment = assignment(launch, settings, count)
        self._count = count
        self._ports: list[IListeningPort] = []
        self._workers: dict[int, _Worker] = {}
        self._backoffs = [Backoff(*CHILD_PAUSES) for _ in range(count)]
        self._readiness = Readiness(reactor, count, self._serving)
        self._stopping = False
        self._metrics: MetricsFolder | None = None

    @property
    def addresses(self) -> list[Any]:
        return [port.getHost() for port in self._ports]

    async def start(self) -> None:
        server = self._settings.server
        endpoints = [*server.listen, *([server.admin_listen] if server.admin_listen else [])]
        ports: Any = await bind_endpoints(self._reactor, endpoints, self._certificates)(Factory())
        self._ports = ports
        for port in ports:
            port.stopReading()  # the workers accept, not we
        self._metrics = MetricsFolder.made()
        waiting = [self._spawn(number) for number in range(self._count)]
        ended = await DeferredList([worker.ready for worker in waiting], consumeErrors=True)
        failures: list[Any] = [result for good, result in ended if not good]
        if failures:
            failures[0].raiseException()

    def reload(self, settings: Settings) -> None:
        """Have each worker read the configuration again, and start later ones with ``settings``.

        Raises ``KeySetError`` for a key file that cannot be used, before any worker is told.
        """
        issuer_of(settings)
        self._assignment = evolve(self._assignment, settings=settings)
        for worker in self._workers.values():
            worker.reload()

    def renew(self) -> None:
        """Have each worker read the certificates again. One that is still starting finds the line in its pipe
        later."""
        for worker in self._workers.values():
            worker.tell(RENEW)

    def _serving(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.was_ready and not worker.ended.called]

    async def stop(self) -> None:
        self._stopping = True
        ports, self._ports = self._ports, []
        for port in ports:
            await leave(port)
        workers = list(self._workers.values())
        for worker in workers:
            worker.signal(signal.SIGTERM)
        patience = self._settings.server.shutdown_seconds + STOP_MARGIN_SECONDS

        def kill_all() -> None:
            for worker in workers:
                worker.signal(signal.SIGKILL)

        kill = self._reactor.callLater(patience, kill_all)
        for worker in workers:
            await worker.ended
        cancel(kill)
        if self._metrics is not None:
            self._metrics.remove()
            self._metrics = None

    def _spawn(self, number: int) -> _Worker:
        ports: Any = self._ports
        worker = _Worker(self._assignment.to_json(), self._readiness)
        descriptors = {0: "w", 1: "r", 2: "r", STATUS_FD: "r"}
        descriptors |= {FIRST_PORT_FD + n: one.fileno() for n, one in enumerate(ports)}
        self._reactor.spawnProcess(
            worker,
            sys.executable,
            [sys.executable, "-m", "project_service.workers.worker"],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                MULTIPROCESS: self._metrics_path(),
            },
            childFDs=descriptors,
            path=None,  # the current directory, even if it has been removed
        )
        self._workers[number] = worker
        born = self._reactor.seconds()
        worker.ended.addCallback(lambda _: self._died(number, worker, born))
        return worker

    def _metrics_path(self) -> str:
        """The folder for the workers' metrics; a new one if somebody has removed it."""
        assert self._metrics is not None
        if not self._metrics.there:
            self.log.warn("{path} is gone, and what its workers had counted", path=self._metrics.path)
            gone, self._metrics = self._metrics, MetricsFolder.made()
            gone.remove()
        return self._metrics.path

    def _died(self, number: int, worker: _Worker, born: float) -> None:
        if self._metrics is not None:
            mark_process_dead(worker.pid, self._metrics.path)
        if self._stopping:
            return
        uptime = self._reactor.seconds() - born
        pause = self._pause(number, worker.was_ready, uptime)
        self.log.error(
            "worker {number} died after {uptime:.1f} s ({why}); the next one starts in {pause} s",
            number=number,
            uptime=uptime,
            why=worker.why,
            pause=pause,
        )
        self._reactor.callLater(pause, self._replace, number)

    def _pause(self, number: int, was_ready: bool, uptime: float) -> float:
        """How many seconds to wait before the next start.

        The first death, and the first one after ``STEADY_SECONDS`` of life, is answered by a new worker at once. A
        worker that dies again and again is started after longer and longer pauses.
        """
        backoff = self._backoffs[number]
        if uptime >= STEADY_SECONDS:
            backoff.succeeded()
        if was_ready and not backoff.pause:
            backoff.pause = backoff.first / 2  # so that the next pause is the first one
            return 0.0
        return backoff.failed()

    def _replace(self, number: int) -> None:
        if self._stopping:
            return
        try:
            worker = self._spawn(number)
        except OSError as fault:
            # There is no memory at the moment, or there are too many processes.
            self.log.error("worker {number} cannot be started: {why}", number=number, why=str(fault))
            self._reactor.callLater(self._backoffs[number].failed(), self._replace, number)
        else:
            worker.ready.addErrback(lambda _: None)  # its end has been logged


class _Worker(ProcessProtocol):
    """One worker process, as the parent sees it.

    ``ready`` fires when it answers requests, and fails where it ends before that; ``ended`` fires at its end.
    """

    log = Logger()

    def __init__(self, told: bytes, readiness: Readiness) -> None:
        self._told = told
        self._readiness = readiness
        self._rests: dict[int, bytes] = {}
        self.ready: Deferred[None] = Deferred()
        self.ended: Deferred[None] = Deferred()
        self.was_ready = False
        self._outdated = False
        self.why = ""
        self.pid = 0

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.pid = self.transport.pid
        # The pipe stays open after this line: its end tells the worker that we are gone.
        self.transport.write(self._told + b"\n")

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        *lines, self._rests[childFD] = (self._rests.get(childFD, b"") + data).split(b"\n")
        if childFD != STATUS_FD:
            log.write_lines([line.decode("utf-8", "replace") for line in lines])
            return
        for line in lines:
            self._heard(line)

    def _heard(self, line: bytes) -> None:
        if line != READY:
            self._readiness.heard(self, line)
        elif not self.ready.called:
            self.was_ready = True
            if self._outdated:
                self.signal(signal.SIGHUP)
            self.ready.callback(None)

    def reload(self) -> None:
        """Have it read the configuration again. One that is still starting, and would die of the signal, gets it when
        it has started."""
        self._outdated = not self.was_ready
        if self.was_ready:
            self.signal(signal.SIGHUP)

    def tell(self, line: bytes) -> None:
        assert self.transport is not None
        self.transport.write(line + b"\n")  # lost where nobody is there to read it

    def processEnded(self, reason: Failure) -> None:
        value: Any = reason.value
        self._rests.pop(STATUS_FD, None)
        for rest in self._rests.values():
            if rest:
                log.write_lines([rest.decode("utf-8", "replace")])
        self.why = f"signal {value.signal}" if value.signal else f"exit code {value.exitCode}"
        if not self.ready.called:
            self.ready.errback(RuntimeError(f"a worker ended while starting: {self.why}"))
        self.ended.callback(None)
        self._readiness.gone(self)

    def signal(self, number: int) -> None:
        assert self.transport is not None
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess(number)
