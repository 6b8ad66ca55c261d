"""Sockets: what the kernel is given at once."""

from __future__ import annotations

from typing import Any

from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection
from twisted.trial.unittest import SynchronousTestCase

from project_service.sockets import SEND_BYTES, tune, write_now


class Kernel:
    """A socket that takes everything and remembers how much came in each call."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def send(self, data: Any) -> int:
        self.taken.append(len(data))
        return len(data)

    def fileno(self) -> int:
        return 0

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def setsockopt(self, *_: object) -> None:
        """Nothing to set."""


class Sends(SynchronousTestCase):
    def setUp(self) -> None:
        self.kernel = Kernel()
        self.transport: Any = Connection(self.kernel, Protocol(), Clock())  # type: ignore[arg-type]  # what it uses
        self.transport.connected = True
        tune(self.transport)

    def test_what_was_read_of_the_store_in_one_call_is_sent_in_one(self) -> None:
        write_now(self.transport, bytes(SEND_BYTES))
        self.assertEqual(self.kernel.taken, [SEND_BYTES])

    def test_more_is_sent_piece_by_piece_in_the_same_turn(self) -> None:
        write_now(self.transport, bytes(2 * SEND_BYTES + 1))
        self.assertEqual(self.kernel.taken, [SEND_BYTES, SEND_BYTES, 1])
