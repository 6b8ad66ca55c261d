"""The PROXY protocol: what is accepted, and what is refused."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from project_service.network import proxied

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
    """One that is told when the client sends nothing more."""

    def readConnectionLost(self) -> None:
        self.seen.append((b"", "the end"))

    def writeConnectionLost(self) -> None: ...


class Port:
    """A fake endpoint, to which a test connects."""

    def listen(self, factory: Any) -> None:
        self.factory = factory


class Headers(SynchronousTestCase):
    def told(self, *pieces: bytes) -> tuple[list[tuple[bytes, str]], bool]:
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
                self.told(header + b"a", b"b"), ([(b"a", client), (b"b", client)], False), header
            )
            self.assertEqual(self.told(header[:20], header[20:] + b"a"), ([(b"a", client)], False), header)

    def test_a_header_without_an_address_keeps_the_proxys(self) -> None:
        """HAProxy and nginx write such headers for clients of Unix sockets, and for their own health checks."""
        for header in (
            b"PROXY UNKNOWN\r\n",
            b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n",
            b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
        ):
            self.assertEqual(self.told(header + b"a"), ([(b"a", PROXY.host)], False), header)
            self.assertEqual(self.told(header, b"a"), ([(b"a", PROXY.host)], False), header)

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
        self.assertEqual(self.told(header, header), ([(header, CLIENT)], False))

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
            self.assertEqual(self.told(header), ([], True), header)
