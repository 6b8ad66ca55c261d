"""Fake worker processes, for tests of what their parent does."""

from __future__ import annotations

import tempfile
from signal import SIGKILL, SIGTERM
from typing import Any

from attrs import define, field
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service.certificates import Certificates
from project_service.lifecycle import start
from project_service.settings.model import Server, Settings
from project_service.settings.reading import Launch, Source
from project_service.workers.assignment import READY, STATUS_FD
from project_service.workers.supervisor import Workers
from tests.live.logged import errors_logged
from tests.temporary import temporary_directory

SETTINGS = Settings(server=Server(listen=(), workers=2, shutdown_seconds=30.0))


class FakeReactor(Clock):
    """A clock with fake ports and processes. With ``full`` no process can be started."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: list[FakePort] = []
        self.spawned: list[Any] = []
        self.full = False

    def listenTCP(self, port: int, factory: object, **more: object) -> FakePort:
        self.ports.append(FakePort(port))
        return self.ports[-1]

    def spawnProcess(self, protocol: Any, program: str, argv: list[str], **more: Any) -> Any:
        if self.full:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        process = FakeProcess(2**22 + 1 + len(self.spawned), protocol, [program, *argv[1:]], more)
        self.spawned.append(process)
        protocol.makeConnection(process)
        return process


@define(eq=False)
class FakePort:
    """A port. If it is ``slow``, it is closed only when ``left`` says so."""

    number: int
    reading: bool = True
    closed: bool = False
    slow: bool = False
    left: Deferred[None] = field(factory=Deferred)
    # Whether closing it shuts its socket down, which the workers share.
    _shouldShutdown: bool = field(default=True, init=False)

    @property
    def shut_down(self) -> bool:
        return self.closed and self._shouldShutdown

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", self.number)

    def fileno(self) -> int:
        return 1000 + self.number

    def stopReading(self) -> None:
        self.reading = False

    def stopListening(self) -> Deferred[None] | None:
        self.closed = True
        return self.left if self.slow else None


@define(eq=False)
class FakeProcess:
    pid: int
    protocol: Any
    argv: list[str]
    options: dict[str, Any]
    written: bytes = b""
    ended: bool = False
    stubborn: bool = False
    signals: list[int] = field(factory=list)

    def write(self, data: bytes) -> None:
        self.written += data

    def signalProcess(self, number: int) -> None:
        if self.ended:
            raise ProcessExitedAlready
        self.signals.append(number)
        if number == SIGKILL or (number == SIGTERM and not self.stubborn):
            self.die()

    def die(self) -> None:
        self.ended = True
        self.protocol.processEnded(Failure(ProcessTerminated(1, None, None)))


def two_workers(reactor: FakeReactor, settings: Settings = SETTINGS) -> Workers:
    return Workers(reactor, Launch(settings, Source()), settings, 2, Certificates())


class TwoWorkers(TestCase):
    """A parent with two workers that have been started but have not yet said that they are ready."""

    settings = SETTINGS

    def setUp(self) -> None:
        self.reactor = FakeReactor()
        self.errors = errors_logged(self)
        # The workers' metrics are kept below this directory.
        self.patch(tempfile, "tempdir", str(temporary_directory(self)))
        self.workers = two_workers(self.reactor, self.settings)
        self.starting = start(self.workers.start())
        self.first, self.second = self.reactor.spawned

    def say(self, process: FakeProcess, line: bytes = READY) -> None:
        process.protocol.childDataReceived(STATUS_FD, line + b"\n")

    def begin(self) -> None:
        for process in (self.first, self.second):
            self.say(process)
        self.successResultOf(self.starting)
        for process in (self.first, self.second):
            process.written = b""
