"""Both sides of ``/ready`` with several workers: the parent asks all of them, and each answers whether it works."""

from __future__ import annotations

import os

from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service.lifecycle import start
from project_service.workers.shared import (
    ASK,
    CHECK,
    FAILS,
    ROUND_SECONDS,
    WORKER_SECONDS,
    WORKS,
    Parent,
    Readiness,
)


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
        self.call = Readiness(self.clock, 2, lambda: self.peers)

    def said(self, peer: FakePeer) -> list[bytes]:
        told, peer.told = peer.told, []
        return told

    def asked(self) -> bytes:
        """The question that all peers are sent once one has asked."""
        self.call.heard(self.peers[0], ASK)
        (check,) = {one for peer in self.peers for one in self.said(peer)}
        word, _, number = check.partition(b" ")
        self.assertEqual(word, CHECK)
        return number

    def test_ready_if_each_worker_works(self) -> None:
        number = self.asked()
        self.call.heard(self.peers[1], WORKS + b" " + number)
        self.assertEqual(self.said(self.peers[0]), [])
        self.call.heard(self.peers[0], WORKS + b" " + number)
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + WORKS])
        self.assertEqual(self.said(self.peers[1]), [])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_not_ready_if_one_worker_fails(self) -> None:
        number = self.asked()
        self.call.heard(self.peers[1], FAILS + b" " + number)
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + FAILS])

    def test_not_ready_if_one_is_missing_dies_or_does_not_answer(self) -> None:
        self.asked()
        self.call.gone(self.peers[1])
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + FAILS])
        self.asked()
        self.clock.advance(ROUND_SECONDS)
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + FAILS])
        del self.peers[1]
        self.call.heard(self.peers[0], ASK)
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + FAILS])

    def test_not_ready_if_one_dies_after_its_answer(self) -> None:
        number = self.asked()
        self.call.heard(self.peers[1], ASK)
        self.call.heard(self.peers[1], WORKS + b" " + number)
        self.call.gone(self.peers[1])
        self.assertEqual(self.said(self.peers[0]), [ASK + b" " + FAILS])
        self.assertEqual(self.said(self.peers[1]), [], "nobody is there to be told")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_answers_to_an_earlier_round_are_ignored(self) -> None:
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

    def test_questions_during_a_round_share_its_result(self) -> None:
        number = self.asked()
        self.call.heard(self.peers[1], ASK)
        for peer in self.peers:
            self.assertEqual(self.said(peer), [])
            self.call.heard(peer, WORKS + b" " + number)
        for peer in self.peers:
            self.assertEqual(self.said(peer), [ASK + b" " + WORKS])


class PipeReactor(Clock):
    """A clock that also records readers."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[object] = []

    def addReader(self, reader: object) -> None:
        self.readers.append(reader)

    def removeReader(self, reader: object) -> None:
        self.readers.remove(reader)


class Answers(TestCase):
    """A worker's side."""

    def setUp(self) -> None:
        self.reactor = PipeReactor()
        incoming, self.to_worker = os.pipe()
        self.from_worker, outgoing = os.pipe()
        for descriptor in (incoming, self.from_worker, outgoing):
            self.addCleanup(os.close, descriptor)
        os.set_blocking(self.from_worker, False)
        self.checks: list[Deferred[None]] = []
        self.ended = 0
        self.renewed = 0
        self.parent = Parent(self.reactor, self.works, self.gone, self.renew, incoming, outgoing)
        self.parent.watch()

    async def works(self) -> None:
        self.checks.append(Deferred())
        await self.checks[-1]

    def gone(self) -> None:
        self.ended += 1

    def renew(self) -> None:
        self.renewed += 1

    def hear(self, data: bytes) -> None:
        os.write(self.to_worker, data)
        self.assertEqual(self.reactor.readers, [self.parent])
        self.parent.doRead()

    def told(self) -> bytes:
        try:
            return os.read(self.from_worker, 1000)
        except BlockingIOError:
            return b""

    def test_a_worker_answers_with_the_number_of_the_round(self) -> None:
        self.hear(b"check 1\nche")
        self.hear(b"ck 2\ncheck 3\n")
        self.assertEqual((len(self.checks), self.told()), (3, b""))
        self.checks[1].callback(None)
        self.checks[0].errback(RuntimeError("away"))
        self.assertEqual(self.told(), b"works 2\nfails 1\n")
        self.reactor.advance(WORKER_SECONDS)
        self.assertEqual(self.told(), b"fails 3\n")

    def test_all_requests_waiting_in_a_worker_share_one_question(self) -> None:
        for verdict in (b"works", b"fails"):
            first, leaving, last = (start(self.parent.all_work()) for _ in range(3))
            leaving.addErrback(lambda _: None)
            leaving.cancel()
            self.assertEqual(self.told(), b"all\n")
            self.hear(b"all " + verdict + b"\n")
            for one in (first, last):
                if verdict == b"works":
                    self.successResultOf(one)
                else:
                    self.failureResultOf(one, RuntimeError)

    def test_a_cancelled_request_is_forgotten(self) -> None:
        first = start(self.parent.all_work())
        first.cancel()
        self.failureResultOf(first, CancelledError)
        second = start(self.parent.all_work())
        self.assertEqual(self.told(), b"all\nall\n")
        self.hear(b"all works\nall works\n")
        self.successResultOf(second)

    def test_certificates_are_renewed_when_the_parent_says_so(self) -> None:
        self.hear(b"check 1\nrenew\n")
        self.assertEqual((self.renewed, self.told()), (1, b""))

    def test_the_end_of_the_pipe_means_that_the_parent_has_ended(self) -> None:
        os.close(self.to_worker)
        self.parent.doRead()
        self.assertEqual((self.ended, self.reactor.readers), (1, []))

    def test_so_does_a_lost_pipe_that_the_reactor_reports(self) -> None:
        os.close(self.to_worker)
        self.parent.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.ended, 1)

    def test_a_parent_that_does_not_read_does_not_block_a_worker(self) -> None:
        for _ in range(20_000):
            self.parent.tell(b"works 1")
        os.close(self.to_worker)
