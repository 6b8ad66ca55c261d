"""Work that goes on although nobody waits for it any more."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.deferreds import all_of, shield, start


class Shielded(TestCase):
    def left_alone(self, failure: Exception) -> int:
        """Work whose caller leaves, and which fails afterwards; how many errors were logged."""
        going: Deferred[None] = Deferred()

        async def work() -> None:
            await going

        waiting = shield(work())
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        going.errback(failure)
        return len(self.flushLoggedErrors())

    def test_a_failure_is_logged(self) -> None:
        self.assertEqual(self.left_alone(RuntimeError("ours")), 1)

    def test_a_refusal_was_for_the_caller(self) -> None:
        self.assertEqual(self.left_alone(errors.request_timeout()), 0)


class Together(TestCase):
    def test_the_first_failure_is_raised_as_it_is_and_the_others_are_nobodys(self) -> None:
        going: list[Deferred[None]] = [Deferred(), Deferred(), Deferred()]

        async def work(one: Deferred[None]) -> None:
            await one

        waiting = start(all_of(work(one) for one in going))
        going[0].callback(None)
        self.assertNoResult(waiting)
        going[1].errback(KeyError("first"))
        self.failureResultOf(waiting, KeyError)
        going[2].errback(ValueError("second"))
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_it_ends_with_the_last(self) -> None:
        last: Deferred[None] = Deferred()

        async def wait() -> None:
            await last

        waiting = start(all_of([wait(), wait()]))
        self.assertNoResult(waiting)
        last.callback(None)
        self.assertIsNone(self.successResultOf(waiting))
