"""The parent's side of ``/ready`` with several workers."""

from __future__ import annotations

from attrs import define, field
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.roll_call import ASK, CHECK, FAILS, ROUND_SECONDS, WORKS, RollCall


@define(eq=False)
class FakePeer:
    told: list[bytes] = field(factory=list)

    def tell(self, line: bytes) -> None:
        self.told.append(line)


class Rounds(TestCase):
    """The parent's side of ``/ready``."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.peers = [FakePeer(), FakePeer()]
        self.call = RollCall(self.clock, 2, lambda: self.peers)

    def said(self, peer: FakePeer) -> list[bytes]:
        told, peer.told = peer.told, []
        return told

    def asked(self) -> bytes:
        """The check that every peer is sent once one has asked."""
        self.call.heard(self.peers[0], ASK)
        (check,) = {one for peer in self.peers for one in self.said(peer)}
        word, _, number = check.partition(b" ")
        self.assertEqual(word, CHECK)
        return number

    def test_good_when_each_works(self) -> None:
        number = self.asked()
        self.call.heard(self.peers[1], WORKS + b" " + number)
        self.assertEqual(self.said(self.peers[0]), [])
        self.call.heard(self.peers[0], WORKS + b" " + number)
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + WORKS])
        self.assertEqual(self.said(self.peers[1]), [])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_bad_when_one_does_not(self) -> None:
        number = self.asked()
        self.call.heard(self.peers[1], FAILS + b" " + number)
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + FAILS])

    def test_bad_when_one_is_missing_dies_or_says_nothing(self) -> None:
        self.asked()
        self.call.gone(self.peers[1])
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + FAILS])
        self.asked()
        self.clock.advance(ROUND_SECONDS)
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + FAILS])
        del self.peers[1]
        self.call.heard(self.peers[0], ASK)
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + FAILS])

    def test_an_answer_to_an_earlier_round_counts_for_nothing(self) -> None:
        old = self.asked()
        self.clock.advance(ROUND_SECONDS)
        self.said(self.peers[0])
        new = self.asked()
        for number in (old, old, b"", b"x"):
            self.call.heard(self.peers[1], WORKS + b" " + number)
        self.call.heard(self.peers[0], WORKS + b" " + new)
        self.assertEqual(self.said(self.peers[0]), [])
        self.call.heard(self.peers[1], WORKS + b" " + new)
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + WORKS])

    def test_who_asks_meanwhile_gets_the_same_answer(self) -> None:
        number = self.asked()
        self.call.heard(self.peers[1], ASK)
        for peer in self.peers:
            self.assertEqual(self.said(peer), [])
            self.call.heard(peer, WORKS + b" " + number)
        for peer in self.peers:
            self.assertEqual(self.said(peer), [ASK + b" " + WORKS])
