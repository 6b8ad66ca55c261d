"""Sockets, ports and the PROXY protocol."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from project_service.network import SEND_BYTES, proxied, socket_progress, tune, url_of, write_now


class Reactor(Clock):
    """A reactor that watches nothing: a test says when something can be written."""

    def addWriter(self, writer: Any) -> None: ...
    def removeWriter(self, writer: Any) -> None: ...
    def removeReader(self, reader: Any) -> None: ...


class Kernel:
    """A fake socket that accepts everything, or as much as there is ``room`` for, and records each call."""

    family: int = socket.AF_INET6

    def __init__(self, peer: str = "2001:db8::1") -> None:
        self.taken: list[bytes] = []
        self.room = 1 << 40
        self.broken = False
        self.algorithms: list[object] = []
        self._peer = peer

    def send(self, data: Any) -> int:
        if self.broken:
            raise OSError(errno.EPIPE, "broken pipe")
        if not self.room:
            raise BlockingIOError(errno.EAGAIN, "full")
        sent = bytes(data[: self.room])
        self.room -= len(sent)
        self.taken.append(sent)
        return len(sent)

    def fileno(self) -> int:
        return 0

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def getpeername(self) -> tuple[str, int]:
        return self._peer, 1

    def setsockopt(self, level: int, option: int, value: object) -> None:
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION):
            self.algorithms.append(value)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def connected(handle: Any) -> Any:
    transport: Any = Connection(handle, Protocol(), Reactor())  # type: ignore[arg-type]  # what it uses
    transport.connected = True
    return transport


class Sends(SynchronousTestCase):
    def setUp(self) -> None:
        self.kernel = Kernel()
        self.transport = connected(self.kernel)
        tune(self.transport)

    def test_up_to_send_bytes_are_sent_in_one_call(self) -> None:
        write_now(self.transport, bytes(SEND_BYTES))
        self.assertEqual([len(sent) for sent in self.kernel.taken], [SEND_BYTES])

    def test_more_is_sent_in_several_calls_at_once(self) -> None:
        write_now(self.transport, bytes(2 * SEND_BYTES + 1))
        self.assertEqual([len(sent) for sent in self.kernel.taken], [SEND_BYTES, SEND_BYTES, 1])

    def test_what_a_full_socket_does_not_accept_is_sent_later_in_order(self) -> None:
        self.kernel.room = 5
        write_now(self.transport, b"01234567")
        self.kernel.room = 1 << 40
        write_now(self.transport, b"89")
        self.assertEqual(self.kernel.taken, [b"01234"])
        self.transport.doWrite()
        self.assertEqual(b"".join(self.kernel.taken), b"0123456789")
        write_now(self.transport, b"ab")
        self.assertEqual(self.kernel.taken[-1], b"ab", "at once again")

    def test_a_closed_peer_is_reported_by_the_transport(self) -> None:
        self.kernel.broken = True
        write_now(self.transport, b"ab")
        self.assertIsInstance(self.transport.doWrite(), ConnectionLost)

    def test_nothing_is_sent_on_a_closed_connection(self) -> None:
        self.transport.connected = False
        write_now(self.transport, b"ab")
        self.assertEqual(self.kernel.taken, [])

    def test_other_transports_use_their_own_write(self) -> None:
        transport = StringTransport()
        write_now(transport, b"ab")
        self.assertEqual(transport.value(), b"ab")


class CongestionControl(SynchronousTestCase):
    def test_over_loopback_nothing_is_paced(self) -> None:
        hosts = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
        for family, host in hosts[: 1 + has_ipv6()]:
            with socket.create_server((host, 0), family=family) as server:
                ours = socket.create_connection(server.getsockname()[:2])
                self.addCleanup(ours.close)
                paced = server.accept()[0]
                self.addCleanup(paced.close)
            for one in (ours, paced):
                # Whichever else there is that this user may choose.
                for other in (b"cubic", b"bbr"):
                    with contextlib.suppress(OSError):
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, other)
                tune(connected(one))
                algorithm = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                self.assertEqual(algorithm.rstrip(b"\0"), b"reno", host)

    def test_it_is_left_to_the_host_for_every_other_peer(self) -> None:
        for peer, algorithms in (
            ("::ffff:127.0.0.1", [b"reno"]),
            ("::ffff:192.0.2.127", []),
            ("192.0.2.1", []),
            ("2001:db8::1", []),
        ):
            kernel = Kernel(peer)
            tune(connected(kernel))
            self.assertEqual(kernel.algorithms, algorithms, peer)

    def test_a_unix_socket_and_a_peer_that_has_left_are_no_matter(self) -> None:
        kernel = Kernel("")
        kernel.family = socket.AF_UNIX
        tune(connected(kernel))
        self.assertEqual(kernel.algorithms, [])
        with socket.socket() as left:
            tune(connected(left))


class Progress(SynchronousTestCase):
    """How it is noticed that the peer reads: by what is left in the kernel's send buffer."""

    def setUp(self) -> None:
        ours, self.peer = socket.socketpair()
        for one in (ours, self.peer):
            self.addCleanup(one.close)
            one.setblocking(False)
        self.transport = connected(ours)

    def test_progress_changes_only_when_the_peer_reads(self) -> None:
        write_now(self.transport, bytes(10_000_000))
        before = socket_progress(self.transport)
        self.assertEqual(socket_progress(self.transport), before)
        self.transport.doWrite()
        self.assertEqual(socket_progress(self.transport), before, "it is full")
        self.peer.recv(1 << 20)
        taken = socket_progress(self.transport)
        self.assertNotEqual(taken, before)
        self.transport.doWrite()
        self.assertNotEqual(socket_progress(self.transport), before)

    def test_under_tls_progress_is_that_of_the_socket_below(self) -> None:
        write_now(self.transport, b"ab")
        wrapped = type("Wrapping", (), {"transport": self.transport})()
        self.assertEqual(socket_progress(wrapped), socket_progress(self.transport))
        self.assertIsNotNone(socket_progress(wrapped))

    def test_without_a_socket_there_is_no_progress(self) -> None:
        self.assertIsNone(socket_progress(StringTransport()))


class Urls(SynchronousTestCase):
    def test_the_url_of_a_port(self) -> None:
        for address, expected in (
            (IPv4Address("TCP", "192.0.2.1", 80), "http://192.0.2.1:80"),
            (IPv4Address("TCP", "0.0.0.0", 80), "http://127.0.0.1:80"),  # shown, not bound
            (IPv6Address("TCP", "::", 80), "http://[::1]:80"),
            (IPv6Address("TCP", "2001:db8::1", 80), "http://[2001:db8::1]:80"),
            (UNIXAddress(b"/run/x"), None),
        ):
            self.assertEqual(url_of(address), expected)
        self.assertEqual(url_of(IPv4Address("TCP", "127.0.0.1", 443), secure=True), "https://127.0.0.1:443")


PROXY = IPv4Address("TCP", "10.0.0.10", 4000)
CLIENT = "192.0.2.7"


class Remembering(Protocol):
    """A protocol that records what it received, and from whom."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, str]] = []

    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        peer = self.transport.getPeer()
        self.seen.append((data, getattr(peer, "host", "-")))


@implementer(IHalfCloseableProtocol)
class HalfClosing(Remembering):
    """One that notices when the client sends nothing more."""

    def readConnectionLost(self) -> None:
        self.seen.append((b"", "the end"))

    def writeConnectionLost(self) -> None: ...


class Port:
    """A fake endpoint, to which a test connects."""

    def listen(self, factory: Any) -> None:
        self.factory = factory


class Headers(SynchronousTestCase):
    def received(self, *pieces: bytes) -> tuple[list[tuple[bytes, str]], bool]:
        """What the protocol behind the proxy's has received, and whether the connection was closed."""
        remembering, transport = Remembering(), StringTransport(peerAddress=PROXY)
        port = Port()
        proxied(port).listen(Factory.forProtocol(lambda: remembering))
        wrapper = port.factory.buildProtocol(PROXY)
        wrapper.makeConnection(transport)
        for piece in pieces:
            wrapper.dataReceived(piece)
        return remembering.seen, transport.disconnecting

    def test_the_clients_address_is_taken_from_the_header(self) -> None:
        for header, client in (
            (b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n", CLIENT),
            (b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n", "2001:db8::7"),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc6\x33\x64\x01\x12\x67\x01\xbb", CLIENT),
        ):
            self.assertEqual(
                self.received(header + b"a", b"b"), ([(b"a", client), (b"b", client)], False), header
            )
            self.assertEqual(
                self.received(header[:20], header[20:] + b"a"), ([(b"a", client)], False), header
            )

    def test_a_header_without_an_address_keeps_the_proxys(self) -> None:
        """HAProxy and nginx write such headers for clients of Unix sockets, and for their own health checks."""
        for header in (
            b"PROXY UNKNOWN\r\n",
            b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n",
            b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
        ):
            self.assertEqual(self.received(header + b"a"), ([(b"a", PROXY.host)], False), header)
            self.assertEqual(self.received(header, b"a"), ([(b"a", PROXY.host)], False), header)

    def test_the_end_of_what_a_client_sends_is_passed_on_where_it_is_understood(self) -> None:
        for kind, seen in (
            (HalfClosing, [(b"a", CLIENT), (b"", "the end")]),
            (Remembering, [(b"a", CLIENT)]),
        ):
            transport, port = StringTransport(peerAddress=PROXY), Port()
            proxied(port).listen(Factory.forProtocol(kind))
            wrapper = port.factory.buildProtocol(PROXY)
            wrapper.makeConnection(transport)
            wrapper.dataReceived(b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\na")
            IHalfCloseableProtocol(wrapper).readConnectionLost()
            self.assertEqual(
                (wrapper.wrappedProtocol.seen, transport.disconnecting), (seen, kind is Remembering)
            )

    def test_only_the_first_line_is_a_header(self) -> None:
        header = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n"
        self.assertEqual(self.received(header, header), ([(header, CLIENT)], False))

    def test_anything_else_closes_the_connection(self) -> None:
        for header in (
            b"GET / HTTP/1.1\r\n",
            b"PROXY UNKNOWNS\r\n",
            b"PROXY TCP4\r\n",
            b"PROXY TCP4 192.0.2.7 198.51.100.1 a b\r\n",
            b"PROXY TCP4 \xff 198.51.100.1 1 2\r\n",
            b"PROXY TCP4 a\0b 198.51.100.1 1 2\r\n",
            b"PROXY TCP4 somebody 198.51.100.1 1 2\r\n",
            b"PROXY TCP4 192.0.2.7 somewhere 1 2\r\n",
            b"PROXY " + b"1" * 200,
        ):
            self.assertEqual(self.received(header), ([], True), header)
