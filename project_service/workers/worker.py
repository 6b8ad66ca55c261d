"""``python -m project_service.workers.worker``: one of several serving processes. Only ``supervisor`` starts it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from attrs import frozen
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger, globalLogBeginner
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from project_service.application import Application
from project_service.certificates import Certificates, let_clients_half_close
from project_service.http.metrics import MULTIPROCESS
from project_service.lifecycle import start, use_monotonic_clock
from project_service.log import Levels, any_text, observer
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
from project_service.process import tune_memory
from project_service.settings.model import Settings
from project_service.settings.reading import log_failed_reload
from project_service.workers.shared import Assignment, Parent, hold, share
from project_service.workers.supervisor import FIRST_PORT_FD, READY, STATUS_FD

log = Logger()


def adopt(reactor: Any, endpoints: Sequence[str], first: int, certificates: Certificates) -> Binder:
    """A binder for ports that the parent has opened as ``endpoints``; their descriptors are ``first`` and the
    next."""

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
    """An endpoint that does not open a port but takes over the one that the parent opened, at ``descriptor``."""

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
        with socket.socket(fileno=os.dup(self.descriptor)) as seen:
            family = seen.family
        port: Any
        if family == socket.AF_UNIX:
            # The socket's file belongs to the parent, which sets its mode and removes it.
            length = queue_length(self.reactor, self.endpoint)
            port = adopt_unix(self.reactor, self.descriptor, serving, length)
        else:
            port = self.reactor.adoptStreamPort(self.descriptor, family, serving)
        os.close(self.descriptor)
        let_clients_half_close(port)
        take_turns(port)
        return succeed(port)


class Worker:
    """The process: an ``Application`` on adopted ports that ends when told to, or when the parent ends."""

    def __init__(self, reactor: Any, told: Assignment) -> None:
        self._reactor = reactor
        self._told = told
        self._stopping = False
        self._settings = self._load() if told.settings is None else share(told.settings, told.processes)
        self.levels = Levels(self._settings.server.log_level)
        server = self._settings.server
        certificates = Certificates()
        admin = None
        if server.admin_listen is not None:
            admin = adopt(reactor, [server.admin_listen], FIRST_PORT_FD + len(server.listen), certificates)
        self._parent = Parent(reactor, self._works, self.stop, certificates.renew, 0, STATUS_FD)
        ports = adopt(reactor, server.listen, FIRST_PORT_FD, certificates)
        self._application = Application(
            reactor, self._settings, ports, admin, told.processes, self._parent.all_work
        )

    @property
    def settings(self) -> Settings:
        return self._settings

    def _load(self) -> Settings:
        return share(self._told.source.read_again(os.environ), self._told.processes)

    def run(self) -> None:
        reactor = self._reactor
        reactor.callWhenRunning(self._begin)
        reactor.addSystemEventTrigger("before", "shutdown", lambda: start(self._application.stop()))
        reactor.run()

    def _begin(self) -> None:
        def stop(signum: int, frame: object) -> None:
            self._reactor.callFromThread(self.stop)

        signal.signal(signal.SIGTERM, stop)
        # Ctrl-C at a terminal reaches every process of the group, but it is for the parent to stop the workers.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, lambda *_: self._reactor.callFromThread(self._reload))
        self._parent.watch()
        start(self._application.start()).addCallbacks(self._ready, self._failed)

    async def _works(self) -> None:
        await self._application.works()

    def _ready(self, result: None) -> None:
        tune_memory()
        self._parent.tell(READY)

    def _failed(self, failure: Failure) -> None:
        log.critical("the worker cannot start: {why}", why=failure.getErrorMessage())
        sys.stdout.flush()
        os._exit(1)

    def stop(self) -> None:
        """Called for SIGTERM and at the parent's end, so possibly several times."""
        if self._reactor.running and not self._stopping:
            self._stopping = True
            self._reactor.stop()

    def _reload(self) -> None:
        try:
            current = self._settings.changed_without_restart(self._load())
            self._application.reload(current)
        except Exception as fault:
            log_failed_reload(fault)
        else:
            self.levels.set_default(current.server.log_level)
            self._settings = current


def main() -> None:
    from twisted.internet import reactor

    use_monotonic_clock(reactor)
    told = Assignment.from_json(_first_line(0))
    hold(os.environ[MULTIPROCESS])  # a lock of our own, since we may outlive our parent
    worker = Worker(reactor, told)
    server = worker.settings.server
    assert sys.__stdout__ is not None
    out = any_text(sys.__stdout__, "utf-8")  # as the parent reads it
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
