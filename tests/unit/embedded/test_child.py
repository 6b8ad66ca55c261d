"""The output of a child process, in whatever pieces it arrives."""

from __future__ import annotations

from twisted.internet.error import ProcessDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service.embedded.supervised import LONGEST_LINE, Child
from tests.unit.embedded.fake_process import FakeProcess


class Words(TestCase):
    """Its lines are kept as the child's last words, for the log."""

    def _child(self) -> Child:
        child = Child("Fake", Clock(), lambda line: "debug")
        child.makeConnection(FakeProcess(child))
        return child

    def test_lines_are_joined_across_pieces_and_two_pipes(self) -> None:
        child = self._child()
        child.childDataReceived(1, b"one\ntw")
        child.childDataReceived(2, b"err")
        child.childDataReceived(1, b"o\n\n")
        child.childDataReceived(2, b"or\n")
        self.assertEqual(child.tail, "one\ntwo\nerror")

    def test_the_last_line_needs_no_line_end(self) -> None:
        child = self._child()
        child.childDataReceived(2, b"panic")
        child.processEnded(Failure(ProcessDone(None)))
        self.assertEqual(child.tail, "panic")
        self.assertEqual(child.end, "exit code 0")

    def test_kept_output_is_bounded(self) -> None:
        child = self._child()
        for _ in range(1000):
            child.childDataReceived(2, b"x" * 100)
        child.childDataReceived(2, b"\n" + b"line\n" * 1000)
        self.assertLess(len(child.tail), 21 * (LONGEST_LINE + 1))
        self.assertEqual(child.tail.splitlines()[-1], "line")

    def test_bytes_that_are_not_utf_8_are_replaced(self) -> None:
        child = self._child()
        child.childDataReceived(2, b"\xff\xfe\n")
        self.assertEqual(child.tail, "��")
