"""``python -m project_service.workers.worker``: one of several serving processes. Only ``supervisor`` starts it.

``Worker`` runs an ``Application`` on the ports that the supervisor has opened (``adopt``); ``SupervisorPipe`` is its
line to the supervisor.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocolFactory,
    IReadDescriptor,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import Factory
from twisted.logger import Logger, globalLogBeginner
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from project_service.application import Application
from project_service.certificates import Certificates, let_clients_half_close
from project_service.http.health import Check, NotReady
from project_service.http.metrics import MULTIPROCESS
from project_service.kept_log import LogQuery
from project_service.lifecycle import start, use_monotonic_clock, with_timeout
from project_service.log import Levels, accept_all_characters, observer
from project_service.network import (
    PROXIED,
    TLS,
    Binder,
    adopt_unix,
    cannot_listen,
    endpoint_from,
    proxied,
    queue_length,
    take_turns,
)
from project_service.process import let_threads_yield, tune_memory
from project_service.settings.model import Settings
from project_service.settings.reading import log_failed_reload
from project_service.shares import share
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
from project_service.workers.supervisor import lock_folder

log = Logger()

# A worker that has not checked itself by then is not ready.
WORKER_SECONDS = 3.0
# And how long it waits for a part, so that it can still name the one that does not answer.
PART_SECONDS = 2.5
# How long it waits for lines of the log.
LOG_SECONDS = 10.0
# What a pipe holds.
READ_BYTES = 65536


class Worker:
    """The process: an ``Application`` on adopted ports. It ends at SIGTERM, or when the supervisor ends."""

    def __init__(self, reactor: Any, assignment: Assignment) -> None:
        self._reactor = reactor
        self._assignment = assignment
        self._stopping = False
        processes = assignment.processes
        # Those of all workers together, and the share of this one.
        self._configured = assignment.settings or self._load()
        self._settings = share(self._configured, processes)
        self.levels = Levels(self._settings.server.log_level)
        server = self._settings.server
        certificates = Certificates()
        admin = None
        if server.admin_listen is not None:
            admin = adopt(reactor, [server.admin_listen], FIRST_PORT_FD + len(server.listen), certificates)
        self._supervisor = SupervisorPipe(reactor, self._works, self.stop, certificates.renew, 0, STATUS_FD)
        ports = adopt(reactor, server.listen, FIRST_PORT_FD, certificates)
        self._application = Application(
            reactor,
            self._settings,
            ports,
            admin,
            processes,
            self._supervisor.check_all_workers,
            self._supervisor.read_log,
            lambda: self._supervisor.send(RELOAD),
            lambda: self._configured,
        )

    @property
    def settings(self) -> Settings:
        return self._settings

    def _load(self) -> Settings:
        return self._assignment.source.read_again(os.environ)

    async def _works(self) -> None:
        await self._application.check_ready(PART_SECONDS)

    def run(self) -> None:
        reactor = self._reactor
        let_threads_yield(reactor.getThreadPool())
        reactor.callWhenRunning(self._begin)
        reactor.addSystemEventTrigger("before", "shutdown", lambda: start(self._application.stop()))
        reactor.run()

    def _begin(self) -> None:
        def stop(signum: int, frame: object) -> None:
            self._reactor.callFromThread(self.stop)

        signal.signal(signal.SIGTERM, stop)
        # Ctrl-C at a terminal reaches every process of the group, but the supervisor stops the workers.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, lambda *_: self._reactor.callFromThread(self._reload))
        self._supervisor.watch()
        start(self._application.start()).addCallbacks(self._ready, self._failed)

    def _ready(self, result: None) -> None:
        tune_memory()
        self._supervisor.send(READY)

    def _failed(self, failure: Failure) -> None:
        log.critical("the worker cannot start: {why}", why=failure.getErrorMessage())
        sys.stdout.flush()
        os._exit(1)

    def stop(self) -> None:
        """May be called several times: for SIGTERM, and at the supervisor's end."""
        if self._reactor.running and not self._stopping:
            self._stopping = True
            self._reactor.stop()

    def _reload(self) -> None:
        try:
            configured = self._configured.changed_without_restart(self._load())
            current = share(configured, self._assignment.processes)
            self._application.reload(current)
        except Exception as fault:
            log_failed_reload(fault)
        else:
            self.levels.set_default(current.server.log_level)
            self._configured, self._settings = configured, current


@implementer(IReadDescriptor)
class SupervisorPipe:
    """The supervisor, as the worker sees it.

    ``works`` raises while this worker is not ready. ``ended`` is called when the supervisor has ended, ``renew`` when
    the certificates are to be read again. ``incoming`` and ``outgoing`` are the descriptors of the pipes; the former
    reaches its end however the supervisor ends.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        works: Check,
        ended: Callable[[], None],
        renew: Callable[[], object],
        incoming: int,
        outgoing: int,
    ) -> None:
        self._reactor = reactor
        self._works = works
        self._ended = ended
        self._renew = renew
        self._incoming = incoming
        self._outgoing = outgoing
        self._rest = b""
        self._waiting: list[Deferred[None]] = []
        self._reading: dict[bytes, Deferred[bytes]] = {}
        self._questions = 0

    def watch(self) -> None:
        """Begin to read from the supervisor."""
        # A supervisor that does not read must not block a worker that has requests to answer.
        os.set_blocking(self._outgoing, False)
        self._reactor.addReader(self)

    def send(self, line: bytes) -> None:
        try:
            os.write(self._outgoing, line + b"\n")
        except OSError:
            return  # the supervisor has ended, and the other pipe shows it

    async def check_all_workers(self) -> None:
        """Raises ``NotReady`` unless every worker is there and ready."""
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            self.send(ASK)
        await waiting

    async def read_log(self, query: LogQuery) -> bytes:
        """What the supervisor answers. Raises ``TimeoutError`` if it does not."""
        self._questions += 1
        number = b"%d" % self._questions
        reading: Deferred[bytes] = Deferred()
        self._reading[number] = reading
        self.send(b" ".join((LOG, number, query.to_json())))
        try:
            return await with_timeout(self._reactor, LOG_SECONDS, reading, TimeoutError)
        finally:
            del self._reading[number]

    def fileno(self) -> int:
        return self._incoming

    def logPrefix(self) -> str:
        return "supervisor"

    def doRead(self) -> None:
        data = os.read(self._incoming, READ_BYTES)
        if not data:
            self._reactor.removeReader(self)
            self._ended()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._received(line)

    def connectionLost(self, reason: Failure) -> None:
        """Called by the reactor for a pipe that broke before its end could be read."""
        self._ended()

    def _received(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if word == CHECK:
            checked = with_timeout(self._reactor, WORKER_SECONDS, start(self._works()), TimeoutError)
            checked.addCallbacks(
                lambda _: self.send(WORKS + b" " + rest),
                lambda failure: self.send(b" ".join([FAILS, rest, _names_of(failure)])),
            )
        elif word == RENEW:
            self._renew()
        elif word == LOG:
            number, _, lines = rest.partition(b" ")
            if (reading := self._reading.get(number)) is not None:
                reading.callback(lines)
        elif word == ASK:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                if rest == WORKS:
                    one.callback(None)
                else:
                    one.errback(NotReady("another one is starting, is away, or does not work"))


def _names_of(failure: Failure) -> bytes:
    """The parts that do not work, as the supervisor reads them."""
    return failure.getErrorMessage().encode() if failure.check(NotReady) else b"workers"


def adopt(reactor: Any, endpoints: Sequence[str], first: int, certificates: Certificates) -> Binder:
    """A binder for ports that the supervisor has opened as ``endpoints``, at the descriptors from ``first`` on."""

    def endpoint(text: str, descriptor: int) -> Any:
        if text.startswith(PROXIED):
            return proxied(endpoint(text.removeprefix(PROXIED), descriptor))
        return _Adopted(reactor, text, descriptor, certificates)

    async def bind(factory: Factory) -> list[IListeningPort]:
        ports: list[IListeningPort] = []
        for n, text in enumerate(endpoints):
            try:
                ports.append(await endpoint(text, first + n).listen(factory))
            except Exception as fault:  # as a rule the certificate's files, which may have changed since
                raise cannot_listen(text, fault) from None
        return ports

    return bind


@implementer(IStreamServerEndpoint)
@frozen
class _Adopted:
    """An endpoint that does not open a port but takes over the one that the supervisor has opened."""

    reactor: Any
    endpoint: str
    descriptor: int
    certificates: Certificates

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        serving: Any = protocolFactory
        if self.endpoint.startswith(TLS):
            # This endpoint is never opened; it is only made to get at the certificate.
            options = endpoint_from(self.reactor, self.endpoint, self.certificates)._sslContextFactory
            serving = TLSMemoryBIOFactory(options, False, serving)
        with socket.socket(fileno=os.dup(self.descriptor)) as duplicate:
            family = duplicate.family
        port: Any
        if family == socket.AF_UNIX:
            # The socket's file belongs to the supervisor, which sets its mode and removes it.
            length = queue_length(self.reactor, self.endpoint)
            port = adopt_unix(self.reactor, self.descriptor, serving, length)
        else:
            port = self.reactor.adoptStreamPort(self.descriptor, family, serving)
        os.close(self.descriptor)
        let_clients_half_close(port)
        take_turns(port)
        return succeed(port)


def main() -> None:
    from twisted.internet import reactor

    use_monotonic_clock(reactor)
    assignment = Assignment.from_json(_first_line(0))
    lock_folder(os.environ[MULTIPROCESS])  # a lock of our own, since we may outlive the supervisor
    worker = Worker(reactor, assignment)
    server = worker.settings.server
    assert sys.__stdout__ is not None
    out = accept_all_characters(sys.__stdout__, "utf-8")  # as the supervisor reads it
    globalLogBeginner.beginLoggingTo(
        [observer(out, server.log_format, worker.levels)], redirectStandardIO=False
    )
    worker.run()


def _first_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            raise SystemExit("this program is started by project-service itself")
        line += byte
    return line


if __name__ == "__main__":
    main()
