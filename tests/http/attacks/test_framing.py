"""The attack corpus in memory, sent whole and in pieces: what is no valid request is refused, and no request can be
hidden behind it."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from tests.attacks.app import PROBE, PROBED, answers_in, fault_in, router
from tests.attacks.cases import Case, Then
from tests.attacks.corpus import CORPUS
from tests.fakes.common import App

WHOLE = 1 << 20


class Corpus(TestCase):
    def faults(self, size: int) -> list[str]:
        """Sends each case on a connection of its own, ``size`` bytes at a time, and returns what is wrong."""
        app = App(router())
        found = [self.fault(app, case, size) for case in CORPUS]
        self.assertEqual(self.flushLoggedErrors(), [])
        return [fault for fault in found if fault is not None]

    def fault(self, app: App, case: Case, size: int) -> str | None:
        client = app.connect()
        # Cases of 70,000 bytes are sent in somewhat larger pieces.
        step = max(size, len(case.sent) // 10_000)
        for start in range(0, len(case.sent), step):
            client.send(case.sent[start : start + step])
        raw = client.received()
        # After an early response the rest of a body is read for a moment.
        client.clock.advance(6)
        if client.transport.ended:
            then: Then = "closed"
            client.send(PROBE)
            raw += client.received()
        elif any(outcome.then == "waiting" for outcome in case.outcomes):
            then = "waiting"
            client.clock.advance(61)
            client.clock.advance(6)
            self.assertTrue(client.transport.ended, case.name)
        else:
            then = "open"
            client.send(PROBE)
            probed = answers_in(client.received())
            if probed != [PROBED]:
                return f"{case.name}: {answers_in(raw)}, then {probed} to another request"
        client.hang_up()
        return fault_in(case, answers_in(raw, case.sent.startswith(b"HEAD ")), then)

    def test_whole(self) -> None:
        self.assertEqual(self.faults(WHOLE), [])

    def test_byte_by_byte(self) -> None:
        self.assertEqual(self.faults(1), [])

    def test_in_pieces(self) -> None:
        for size in (2, 7, 64):
            self.assertEqual(self.faults(size), [], size)
