"""An output whose reader does not read: the service waits briefly, then drops lines and says how many."""

from __future__ import annotations

import io
import os
import threading
from time import monotonic

from twisted.trial.unittest import TestCase

from project_service import log
from project_service.log import Output

# More than a pipe holds.
MUCH = "a line of the log\n" * 10_000


class Reading(TestCase):
    def setUp(self) -> None:
        self.patch(log, "PATIENCE_SECONDS", 0.1)
        self.reader, writer = os.pipe()
        self.addCleanup(os.close, self.reader)
        self.end = os.fdopen(writer, "w", encoding="latin-1")
        self.addCleanup(self.end.close)
        self.lost: list[int] = []
        self.now = 0.0
        self.out = Output(self.end, self.lost.append, lambda: self.now)

    def read(self) -> str:
        """Reads all that is in the pipe."""
        os.set_blocking(self.reader, False)
        found = b""
        try:
            while piece := os.read(self.reader, 1 << 20):
                found += piece
        except BlockingIOError:
            os.set_blocking(self.reader, True)
        return found.decode("latin-1")

    def test_a_reader_gets_every_line(self) -> None:
        self.out.write("one\nZürich 5 \N{EURO SIGN}\n")
        self.out.flush()
        self.assertEqual(self.read(), "one\nZürich 5 \\u20ac\n")
        self.assertEqual(self.lost, [])

    def test_lines_are_lost_if_nobody_reads_and_their_number_is_reported(self) -> None:
        self.out.write(MUCH)
        self.out.write("and this\n")
        self.assertEqual(self.lost, [])
        self.read()
        self.out.write("again\n")
        self.assertEqual(self.read(), "\nagain\n")
        self.assertEqual(self.lost, [10_001])
        self.out.write("more\n")
        self.assertEqual((self.read(), self.lost), ("more\n", [10_001]))

    def test_it_waits_for_a_stuck_reader_only_once_in_a_while(self) -> None:
        self.assertTrue(self.waits())
        self.assertFalse(self.waits())
        self.now += log.IMPATIENT_SECONDS
        self.assertTrue(self.waits())

    def waits(self) -> bool:
        began = monotonic()
        self.out.write(MUCH)
        return monotonic() - began >= log.PATIENCE_SECONDS

    def test_a_slow_reader_loses_nothing(self) -> None:
        self.patch(log, "PATIENCE_SECONDS", 30.0)
        found: list[str] = []

        def read() -> None:
            while sum(map(len, found)) < len(MUCH):
                found.append(os.read(self.reader, 10_000).decode())

        reading = threading.Timer(0.1, read)
        reading.start()
        self.out.write(MUCH)
        reading.join()
        self.assertEqual("".join(found), MUCH)

    def test_a_stream_without_a_descriptor_is_refused(self) -> None:
        with self.assertRaises(OSError):
            Output(io.StringIO(), self.lost.append)
