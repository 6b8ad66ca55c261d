"""Several processes on one port: the supervisor opens it, the workers adopt it and are replaced when they die.

``Workers`` starts, reloads and stops them; ``Readiness`` asks all of them on behalf of ``/ready``; ``MetricsFolder``
is where they keep their metrics for each other. The messages are in ``assignment``.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp
from typing import Any

from attrs import evolve, frozen
from prometheus_client.multiprocess import mark_process_dead
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IDelayedCall, IListeningPort
from twisted.internet.protocol import Factory, ProcessProtocol
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.auth.assemble import issuer_of
from project_service.auth.mail_templates import MailTemplates
from project_service.certificates import Certificates
from project_service.http.metrics import MULTIPROCESS
from project_service.kept_log import LogQuery, Turn
from project_service.lifecycle import CHILD_PAUSES, STEADY_SECONDS, Backoff, background, cancel
from project_service.log import kept, write_lines
from project_service.network import bind_endpoints, leave
from project_service.settings.model import Settings
from project_service.settings.reading import Launch
from project_service.workers.assignment import (
    ASK,
    CHECK,
    FAILS,
    FIRST_PORT_FD,
    LOG,
    READY,
    RELOAD,
    RENEW,
    STATUS_FD,
    WORKS,
    Assignment,
)

log = Logger()

# How much longer than shutdown_seconds a worker may take before it is killed.
STOP_MARGIN_SECONDS = 5.0
# How long the supervisor waits for all answers to a question about readiness: a little longer than a worker has.
ROUND_SECONDS = 4.0
# Versions that took no lock used another prefix, so that their folders are never taken for abandoned ones.
PREFIX = "project-service-numbers-"


class Workers:
    """A ``Component``: ``start`` returns when every worker answers requests, ``stop`` when all have ended.

    ``settings`` are the totals for all ``count`` workers together. ``certificates`` registers those that the
    supervisor reads when it opens the ports. ``reload_all`` does what a SIGHUP does, when a worker asks for it.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        launch: Launch,
        settings: Settings,
        count: int,
        certificates: Certificates,
        reload_all: Callable[[], None] = lambda: None,
    ) -> None:
        self._reload_all = reload_all
        self._reactor = reactor
        self._settings = settings
        self._certificates = certificates
        self._assignment = Assignment.of(launch, settings, count)
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
        self._metrics = MetricsFolder.create()
        workers = [self._spawn(number) for number in range(self._count)]
        ended = await DeferredList([worker.ready for worker in workers], consumeErrors=True)
        failures: list[Any] = [result for good, result in ended if not good]
        if failures:
            failures[0].raiseException()

    async def away(self) -> Collection[str]:
        """The parts that do not work in some worker, by the names that ``/ready`` gives them."""
        return await self._readiness.away()

    def reload(self, settings: Settings) -> None:
        """Have each worker read the configuration again, and start later ones with ``settings``.

        Raises ``KeySetError`` for a key file and ``TemplateFault`` for templates that cannot be used, before any
        worker is signalled.
        """
        issuer_of(settings)
        MailTemplates.load(settings)
        self._assignment = evolve(self._assignment, settings=settings)
        for worker in self._workers.values():
            worker.reload()

    def renew(self) -> None:
        """Have each worker read the certificates again. One that is still starting reads the line later."""
        for worker in self._workers.values():
            worker.send(RENEW)

    async def stop(self) -> None:
        self._stopping = True
        ports, self._ports = self._ports, []
        for port in ports:
            await leave(port)
        workers = list(self._workers.values())
        for worker in workers:
            worker.signal(signal.SIGTERM)

        def kill_all() -> None:
            for worker in workers:
                worker.signal(signal.SIGKILL)

        timeout = self._settings.server.shutdown_seconds + STOP_MARGIN_SECONDS
        kill = self._reactor.callLater(timeout, kill_all)
        for worker in workers:
            await worker.ended
        cancel(kill)
        if self._metrics is not None:
            self._metrics.remove()
            self._metrics = None

    async def _turn(self) -> None:
        await deferLater(self._reactor, 0)

    def _serving(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.was_ready and not worker.ended.called]

    def _spawn(self, number: int) -> _Worker:
        ports: Any = self._ports
        worker = _Worker(self._assignment.to_json(), self._readiness, self._turn, self._reload_all)
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
        started = self._reactor.seconds()
        worker.ended.addCallback(lambda _: self._worker_ended(number, worker, started))
        return worker

    def _metrics_path(self) -> str:
        """The folder for the workers' metrics; a new one if somebody has removed it."""
        assert self._metrics is not None
        if not self._metrics.exists:
            self.log.warn("{path} is gone, and what its workers had counted", path=self._metrics.path)
            lost, self._metrics = self._metrics, MetricsFolder.create()
            lost.remove()
        return self._metrics.path

    def _worker_ended(self, number: int, worker: _Worker, started: float) -> None:
        if self._metrics is not None:
            mark_process_dead(worker.pid, self._metrics.path)
        if self._stopping:
            return
        uptime = self._reactor.seconds() - started
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

        After the first death, and the first one after ``STEADY_SECONDS``, a new worker starts at once. If it dies
        again and again, the pauses grow.
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
    """One worker process, as the supervisor sees it.

    ``ready`` fires when it answers requests, and fails if it ends before that; ``ended`` fires at its end.
    """

    log = Logger()

    def __init__(
        self, assignment: bytes, readiness: Readiness, turn: Turn, reload_all: Callable[[], None]
    ) -> None:
        self._reload_all = reload_all
        self._assignment = assignment
        self._readiness = readiness
        self._turn = turn
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
        self.send(self._assignment)

    def send(self, line: bytes) -> None:
        assert self.transport is not None
        self.transport.write(line + b"\n")  # lost if the worker has ended

    def signal(self, number: int) -> None:
        assert self.transport is not None
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess(number)

    def reload(self) -> None:
        """Have the worker read the configuration again. The signal would end one that is still starting, which gets
        it when it has started."""
        self._outdated = not self.was_ready
        if self.was_ready:
            self.signal(signal.SIGHUP)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        *lines, self._rests[childFD] = (self._rests.get(childFD, b"") + data).split(b"\n")
        if childFD != STATUS_FD:
            write_lines([line.decode("utf-8", "replace") for line in lines])
            return
        for line in lines:
            if line.startswith(LOG):
                background(self._read_log(line), "reading the log")
            elif line == RELOAD:
                self._reload_all()
            elif line != READY:
                self._readiness.received(self, line)
            elif not self.ready.called:
                self.was_ready = True
                if self._outdated:
                    self.signal(signal.SIGHUP)
                self.ready.callback(None)

    async def _read_log(self, line: bytes) -> None:
        """Answer a question for lines of the log of all workers."""
        _, number, query = line.split(b" ", 2)
        answer = await kept().answer(LogQuery.from_json(query), self._turn)
        self.send(b" ".join((LOG, number, answer)))

    def processEnded(self, reason: Failure) -> None:
        value: Any = reason.value
        self._rests.pop(STATUS_FD, None)
        for rest in self._rests.values():
            if rest:
                write_lines([rest.decode("utf-8", "replace")])
        self.why = f"signal {value.signal}" if value.signal else f"exit code {value.exitCode}"
        if not self.ready.called:
            self.ready.errback(RuntimeError(f"a worker ended while starting: {self.why}"))
        self.ended.callback(None)
        self._readiness.ended(self)


class Readiness:
    """Answers a worker's ``/ready`` for all workers, and the supervisor. There is one round at a time; whoever asks
    during a round gets its verdict as well.

    A round succeeds if ``present`` returns ``count`` workers and each of them answers that it works.
    """

    def __init__(self, reactor: Any, count: int, present: Callable[[], Sequence[_Worker]]) -> None:
        self._reactor = reactor
        self._count = count
        self._present = present
        self._round = 0
        self._asking: list[_Worker] = []
        self._asking_here: list[Deferred[Collection[str]]] = []
        self._unanswered: list[_Worker] = []
        self._timeout: IDelayedCall | None = None

    def away(self) -> Deferred[Collection[str]]:
        """What does not work, for the supervisor: "workers" where one does not answer."""
        away: Deferred[Collection[str]] = Deferred(self._asking_here.remove)
        self._asking_here.append(away)
        if self._timeout is None:
            self._begin()
        return away

    def received(self, worker: _Worker, line: bytes) -> None:
        """To be called with each line that a worker sends. An answer to an earlier round is ignored."""
        word, _, rest = line.partition(b" ")
        number, _, parts = rest.partition(b" ")
        if word == ASK:
            self._asking.append(worker)
            if self._timeout is None:
                self._begin()
        elif number == b"%d" % self._round and worker in self._unanswered:
            self._unanswered.remove(worker)
            if word != WORKS:
                self._end(FAILS, parts)
            elif not self._unanswered:
                self._end(WORKS)

    def ended(self, worker: _Worker) -> None:
        """To be called when a worker has ended. The poll that is under way fails, even if this worker has already
        answered it."""
        self._asking = [one for one in self._asking if one is not worker]
        self._end(FAILS)

    def _begin(self) -> None:
        self._round += 1
        self._unanswered = list(self._present())
        if len(self._unanswered) < self._count:
            self._end(FAILS)
            return
        self._timeout = self._reactor.callLater(ROUND_SECONDS, self._end, FAILS)
        for worker in list(self._unanswered):
            worker.send(b"%s %d" % (CHECK, self._round))

    def _end(self, verdict: bytes, parts: bytes = b"workers") -> None:
        cancel(self._timeout)
        self._timeout = None
        self._unanswered = []
        asking, self._asking = self._asking, []
        for worker in asking:
            worker.send(b"%s %s" % (ASK, verdict))
        here, self._asking_here = self._asking_here, []
        for one in here:
            one.callback([] if verdict == WORKS else parts.decode().split(","))


@frozen
class MetricsFolder:
    """The temporary folder in which the workers of one service keep their metrics for each other.

    Every process that uses the folder holds a shared lock on it. The kernel drops the lock however the process ends,
    so a folder without a lock was left behind by a service that was killed, and may be removed. A process id in the
    folder's name would not do: another container may share the temporary folder and count its processes on its own.
    systemd-tmpfiles leaves a locked folder alone, too.
    """

    path: str
    _lock: int

    @classmethod
    def create(cls) -> MetricsFolder:
        """A new folder, locked by this process. Abandoned ones are removed first."""
        remove_abandoned()
        while True:
            path = mkdtemp(prefix=PREFIX)
            lock = lock_folder(path)
            if lock is not None:
                return cls(path, lock)

    @property
    def exists(self) -> bool:
        """Whether the folder is there. False once somebody who ignores locks has removed it, even if there is another
        folder of that name now."""
        try:
            return os.path.samestat(Path(self.path).lstat(), os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Remove the folder and give up the lock."""
        if self.exists:
            rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def lock_folder(path: str) -> int | None:
    """Lock the folder so that no other service removes it while this process lives. Returns the lock's descriptor;
    None if another service has just removed the folder."""
    with suppress(FileNotFoundError):
        lock = _open_folder(path)
        with suppress(OSError):  # a file system without locks: ``remove_abandoned`` does nothing there
            fcntl.flock(lock, fcntl.LOCK_SH)
        if Path(path).exists():
            return lock
        os.close(lock)
    return None


def remove_abandoned() -> None:
    """Remove those metrics folders of this user that no process holds a lock on."""
    for path in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            folder = _open_folder(path)
            try:
                if os.fstat(folder).st_uid == os.geteuid():
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    rmtree(path)
                    log.info(
                        "removed {path}, which a service that was killed had left behind", path=str(path)
                    )
            finally:
                os.close(folder)


def _open_folder(path: str | Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
