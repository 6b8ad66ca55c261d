"""Bytes that pass between sockets inside the kernel: whole, in order, and never to somebody else."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import select
import socket
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.error import ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from project_service.network import unsent
from project_service.splicing import Splicing, ask_first, ask_no_more
from tests.unit.http.test_network import connected

BUFFER = 64 * 1024


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection that does not hold much."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        near.connect(server.getsockname())
        far = server.accept()[0]
    for one in (near, far):
        one.setblocking(False)
    return near, far


def taken(reader: socket.socket, max_bytes: int = 1 << 24) -> bytes:
    """What has come, up to ``max_bytes``."""
    data = b""
    try:
        while len(data) < max_bytes and (piece := reader.recv(max_bytes - len(data))):
            data += piece
    except BlockingIOError:
        pass
    return data


def arrives(reader: socket.socket) -> bool:
    return bool(select.select([reader], [], [], 5.0)[0])


class Client:
    """A transport of the service's, and the client's end of its connection."""

    def __init__(self) -> None:
        near, self.far = pair()
        self.near = near
        self.transport: Any = connected(near)

    def receives(self, size: int) -> bytes:
        """``size`` bytes, as they come, or fewer where no more come."""
        # Lets go of what the kernel holds back for what is to follow it.
        self.near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        while len(data) < size and arrives(self.far):
            data += taken(self.far, size - len(data))
            if unsent(self.transport):
                self.transport.doWrite()
        return data

    def close(self) -> None:
        self.near.close()
        self.far.close()


class SpliceCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.splicing = Splicing()
        self.store, source = pair()
        self.source = source
        self.client = self.new_client()
        for one in (self.store, source):
            self.addCleanup(one.close)

    def new_client(self) -> Client:
        client = Client()
        self.addCleanup(client.close)
        return client

    def send(self, data: bytes) -> None:
        self.store.send(data)
        self.assertTrue(arrives(self.source))

    def move(self, client: Client | None = None, max_bytes: int = 1 << 40) -> int:
        target = (client or self.client).transport
        return self.splicing.move(self.source.fileno(), target, max_bytes)


class Moves(SpliceCase):
    def test_what_has_come_is_moved_to_the_client(self) -> None:
        self.send(b"some bytes")
        self.assertEqual((self.move(), self.client.receives(10)), (10, b"some bytes"))

    def test_little_is_sent_at_once_even_if_nothing_follows(self) -> None:
        """The kernel would hold it back for 200 ms: a store that trickles would be that late, piece by piece."""
        flags: list[int] = []
        splice = os.splice

        def recorded(*given: Any, **more: Any) -> int:
            flags.append(more["flags"])
            return splice(*given, **more)

        self.patch(os, "splice", recorded)
        self.send(b"some bytes")
        self.move()
        self.assertFalse(flags[-1] & os.SPLICE_F_MORE)

    def test_no_more_is_moved_than_was_asked_for(self) -> None:
        self.send(b"some bytes")
        self.assertEqual((self.move(max_bytes=4), self.client.receives(4)), (4, b"some"))
        self.assertEqual(taken(self.source), b" bytes")

    def test_what_a_full_socket_does_not_take_is_sent_later_in_order(self) -> None:
        sent, moved = b"", 0
        while not unsent(self.client.transport):
            data = os.urandom(BUFFER // 4)
            sent += data[: self.store.send(data)]
            moved += self.move()
        self.assertEqual(self.client.receives(moved), sent[:moved])
        taken(self.source)
        self.send(b"and more")
        self.assertEqual((self.move(), self.client.receives(8)), (8, b"and more"))

    def test_nothing_is_moved_past_bytes_that_wait_to_be_sent(self) -> None:
        self.client.transport.write(b"first ")
        self.send(b"second")
        self.assertEqual((self.move(), taken(self.source)), (0, b"second"))

    def test_other_transports_have_to_be_written_to(self) -> None:
        self.send(b"some bytes")
        self.client.transport.TLS = True
        for target in (StringTransport(), self.client.transport):
            self.assertEqual(self.splicing.move(self.source.fileno(), target, 10), 0)
        self.assertEqual(taken(self.source), b"some bytes")

    def test_a_source_that_is_empty_or_at_its_end_gives_nothing(self) -> None:
        self.assertEqual(self.move(), 0)
        self.store.close()
        self.assertEqual(self.move(), 0)

    def test_a_client_that_has_left_is_noticed_by_its_transport(self) -> None:
        self.client.near.shutdown(socket.SHUT_WR)
        self.send(b"some bytes")
        self.assertEqual(self.move(), 10)
        self.assertIsInstance(self.client.transport.doWrite(), ConnectionLost)

    @given(
        st.lists(st.tuples(st.booleans(), st.integers(1, BUFFER), st.integers(0, 2 * BUFFER)), max_size=20)
    )
    def test_each_client_gets_its_own_bytes_and_no_others(self, steps: list[tuple[bool, int, int]]) -> None:
        clients, due, read = (self.new_client(), self.new_client()), [b"", b""], [b"", b""]
        on_its_way = b""
        for first, size, reads in steps:
            which = 0 if first else 1
            data = os.urandom(size)
            with contextlib.suppress(BlockingIOError):
                on_its_way += data[: self.store.send(data)]
            moved = self.move(clients[which])
            due[which] += on_its_way[:moved]
            on_its_way = on_its_way[moved:]
            read[which] += taken(clients[which].far, reads)
        for which, client in enumerate(clients):
            self.assertEqual(read[which] + client.receives(len(due[which]) - len(read[which])), due[which])
            client.close()
        while on_its_way and arrives(self.source):
            on_its_way = on_its_way[len(taken(self.source)) :]


class Pipes(SpliceCase):
    def test_after_an_error_nothing_that_was_left_reaches_another_client(self) -> None:
        def broken(descriptor: int, size: int) -> bytes:
            raise MemoryError

        self.client.near.shutdown(socket.SHUT_WR)
        self.send(b"one client's")
        before = descriptors()
        patch = self.patch(os, "read", broken)
        self.assertRaises(MemoryError, self.move)
        patch.restore()
        self.assertLessEqual(descriptors(), before, "its pipe is closed")
        self.send(b"another's")
        other = self.new_client()
        self.assertEqual((self.move(other), other.receives(9)), (9, b"another's"))

    def test_where_no_large_pipe_may_be_made_it_is_not_tried_again(self) -> None:
        asked: list[int] = []

        def refused(*_: object) -> int:
            asked.append(1)
            raise PermissionError(errno.EPERM, "too much")

        self.patch(fcntl, "fcntl", refused)
        self.send(b"some bytes")
        before = descriptors()
        self.assertEqual((self.move(), self.move(), len(asked)), (0, 0, 1))
        self.assertEqual((descriptors(), taken(self.source)), (before, b"some bytes"))

    def test_where_there_is_no_descriptor_left_it_is_tried_again(self) -> None:
        def none_left(_: int) -> tuple[int, int]:
            raise OSError(errno.EMFILE, "too many open files")

        self.send(b"some bytes")
        patch = self.patch(os, "pipe2", none_left)
        self.assertEqual(self.move(), 0)
        patch.restore()
        self.assertEqual(self.move(), 10)

    def test_the_pipe_goes_with_its_owner(self) -> None:
        gc.collect()
        before = descriptors()
        self.send(b"some bytes")
        self.move()
        self.assertEqual(len(descriptors() - before), 2)
        del self.splicing
        gc.collect()
        self.assertLessEqual(descriptors(), before)


class Asking(SynchronousTestCase):
    def setUp(self) -> None:
        client = Client()
        self.addCleanup(client.close)
        self.near, self.transport, self.far = client.near, client.transport, client.far
        self.read: list[bytes] = []
        self.transport.protocol.dataReceived = self.read.append
        self.far.send(b"some bytes")

    def test_the_transport_reads_what_is_not_taken(self) -> None:
        for taking, read in ((True, []), (False, [b"some bytes"])):
            asked: list[int] = []

            def take(source: int, asked: list[int] = asked, taking: bool = taking) -> bool:
                asked.append(source)
                return taking

            self.transport.__dict__.pop("doRead", None)
            ask_first(self.transport, take)
            self.assertIsNone(self.transport.doRead())
            self.assertEqual((asked, self.read), ([self.near.fileno()], read))

    def test_when_the_connection_is_lost_it_is_as_it_was(self) -> None:
        ask_first(self.transport, self.fail)
        for _ in range(2):
            ask_no_more(self.transport)
        self.transport.doRead()
        self.assertEqual(self.read, [b"some bytes"])

    def test_what_has_to_be_decrypted_is_not_asked_about(self) -> None:
        self.transport.TLS = True
        ask_first(self.transport, self.fail)
        self.transport.doRead()
        self.assertEqual(self.read, [b"some bytes"])


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}
