"""What ``network``, ``splicing`` and ``certificates`` use of Twisted beyond its public interface.

Each test fails if Twisted changes there; the mend is in the module that the test names.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from twisted.internet.endpoints import SSL4ServerEndpoint, serverFromString
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.tcp import Connection, Port
from twisted.internet.unix import Port as UnixPort
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOProtocol
from twisted.trial.unittest import SynchronousTestCase

from project_service.certificates import HalfClosingTls
from project_service.network import adopt_unix, forget_unsent, is_ready, take_turns, unsent
from tests.temporary import temporary_directory


class Reactor:
    """Watches nothing: a test says when something can be read or written."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Accepts(Protocol):
    accepted = 0

    def connectionMade(self) -> None:
        Accepts.accepted += 1
        self.transport.abortConnection()  # type: ignore[union-attr]  # a TCP transport


class Ports(SynchronousTestCase):
    """``network.take_turns``, ``adopt_unix`` and ``leave``; ``limits.AcceptThrottle``."""

    def port(self) -> Any:
        port: Any = Port(0, Factory.forProtocol(Accepts), interface="127.0.0.1", reactor=Reactor())
        port.startListening()
        self.addCleanup(port.socket.close)
        return port

    def knock(self, port: Any, times: int) -> int:
        clients = [socket.create_connection(port.socket.getsockname()) for _ in range(times)]
        for client in clients:
            self.addCleanup(client.close)
        Accepts.accepted = 0
        port.doRead()
        return Accepts.accepted

    def test_a_port_accepts_as_many_as_number_accepts_says_and_raises_it(self) -> None:
        port = self.port()
        port.numberAccepts = 1
        self.assertEqual(self.knock(port, 3), 1)
        self.assertGreater(port.numberAccepts, 1, "take_turns need not keep it from being raised")

    def test_a_port_that_takes_turns_accepts_one_at_a_time(self) -> None:
        port = self.port()
        take_turns(port)
        self.assertEqual([self.knock(port, 3), self.knock(port, 0), self.knock(port, 0)], [1, 1, 1])

    def test_an_adopted_unix_port_leaves_the_file_and_the_socket_to_their_owner(self) -> None:
        path = Path(temporary_directory(self)) / "socket"
        owner = socket.socket(socket.AF_UNIX)
        self.addCleanup(owner.close)
        owner.bind(str(path))
        owner.listen()
        path.chmod(0o600)
        port = adopt_unix(Reactor(), owner.fileno(), Factory.forProtocol(Protocol), 5)
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        port.connectionLost(None)
        self.assertTrue(path.exists())
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))

    def test_a_port_shuts_its_socket_down_unless_should_shutdown_is_false(self) -> None:
        for shuts in (True, False):
            port = self.port()
            other_process = port.socket.dup()
            self.addCleanup(other_process.close)
            self.assertTrue(port._shouldShutdown)
            port._shouldShutdown = shuts
            port.connectionLost(None)
            with socket.socket() as client:
                refused = client.connect_ex(other_process.getsockname()) != 0
            self.assertEqual(refused, shuts)


class Transports(SynchronousTestCase):
    """``network.unsent``, ``is_ready`` and ``forget_unsent``."""

    def setUp(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.theirs = theirs
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        transport: Any = Connection(ours, Protocol(), Reactor())  # type: ignore[arg-type]  # what it uses
        transport.connected = True
        self.transport = transport

    def test_what_is_buffered_is_counted_and_can_be_freed(self) -> None:
        self.assertEqual((unsent(self.transport), is_ready(self.transport)), (0, True))
        self.transport.write(b"x" * 10_000_000)
        self.transport.doWrite()
        self.assertTrue(0 < unsent(self.transport) < 10_000_000)
        left = unsent(self.transport)
        self.transport.write(b"abc")
        self.assertEqual((unsent(self.transport), is_ready(self.transport)), (left + 3, False))
        forget_unsent(self.transport)
        self.assertEqual(unsent(self.transport), 0)
        held = [value for value in vars(self.transport).values() if isinstance(value, bytes | list)]
        self.assertEqual([value for value in held if value], [])

    def test_nothing_is_written_directly_after_our_end_or_with_tls(self) -> None:
        self.transport.loseWriteConnection()
        self.transport.doWrite()
        self.assertFalse(is_ready(self.transport))
        self.transport._writeDisconnected = False
        self.assertTrue(is_ready(self.transport))
        self.transport.TLS = True
        self.assertFalse(is_ready(self.transport))

    def test_a_write_takes_as_much_as_send_limit_says_and_a_read_as_buffer_size(self) -> None:
        self.assertEqual((Connection.SEND_LIMIT, Connection.bufferSize), (128 * 1024, 64 * 1024))

    def test_the_reactor_looks_do_read_up_for_each_event(self) -> None:
        """``splicing.ask_first``."""
        reactor: Any = EPollReactor()
        self.addCleanup(reactor._poller.close)
        events: list[str] = []
        self.transport.doRead = lambda: events.append("first")
        reactor.addReader(self.transport)
        self.theirs.send(b"x")
        reactor.doIteration(1)
        self.transport.doRead = lambda: events.append("second")
        reactor.doIteration(1)
        reactor.removeReader(self.transport)
        for reader in reactor.removeAll():
            reader.connectionLost(None)
        self.assertEqual(events, ["first", "second"])


class Endpoints(SynchronousTestCase):
    """``network.endpoint_from`` and ``queue_length``."""

    def test_an_endpoint_from_a_string_has_its_backlog_and_its_context_factory(self) -> None:
        endpoint: Any = serverFromString(Reactor(), "tcp:0:backlog=7:interface=127.0.0.1")
        self.assertEqual(endpoint._backlog, 7)
        secure: Any = SSL4ServerEndpoint(Reactor(), 0, "context")
        self.assertEqual(secure._sslContextFactory, "context")

    def test_a_unix_port_is_made_from_a_descriptor(self) -> None:
        self.assertTrue(callable(UnixPort._fromListeningDescriptor))


class Tls(SynchronousTestCase):
    """``certificates.HalfClosingTls``; its behaviour is tested on real connections (``tests/live``)."""

    def test_what_is_overridden_is_there(self) -> None:
        for name in ("_tlsShutdownFinished", "_shutdownTLS", "_flushReceiveBIO", "_flushSendBIO"):
            self.assertTrue(callable(getattr(BufferingTLSTransport, name)), name)
            self.assertIn(name, vars(TLSMemoryBIOProtocol), name)
        self.assertIs(TLSMemoryBIOProtocol._lostTLSConnection, False)
        self.assertTrue(issubclass(HalfClosingTls, BufferingTLSTransport))
