"""What a start says to whoever asked for it."""

from __future__ import annotations

import os
import sys
from io import StringIO

from twisted.trial.unittest import TestCase

from project_service.startup import say


class Saying(TestCase):
    def test_it_is_said_on_a_line(self) -> None:
        out = StringIO()
        self.patch(sys, "__stdout__", out)
        say("ready")
        self.assertEqual(out.getvalue(), "ready\n")

    def test_nobody_has_to_listen(self) -> None:
        """Started without standard output, or it was closed since, or its disk is full: the start goes on."""
        closed = StringIO()
        closed.close()
        full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
        for out in (None, closed, full):
            self.patch(sys, "__stdout__", out)
            say("ready")
        # What is left in its buffer cannot be written at its end either.
        self.assertRaises(OSError, full.close)
