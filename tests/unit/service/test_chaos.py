"""The options of ``make chaos``; the faults themselves are run there."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO

from twisted.trial.unittest import TestCase

from tests.chaos.__main__ import FAULTS, asked_for


class Asked(TestCase):
    def test_without_arguments_every_fault_is_run(self) -> None:
        assert tuple(asked_for([]).faults) == FAULTS

    def test_single_faults_can_be_named(self) -> None:
        asked = asked_for(["kills", "restart", "--rounds", "3"])
        assert (asked.faults, asked.rounds) == (["kills", "restart"], 3)

    def test_an_unknown_fault_is_refused(self) -> None:
        with redirect_stderr(StringIO()) as stderr, self.assertRaises(SystemExit):
            asked_for(["earthquake"])
        assert "there is no earthquake" in stderr.getvalue()
