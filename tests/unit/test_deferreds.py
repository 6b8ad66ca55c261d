"""Work that goes on although nobody waits for it any more."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.deferreds import shield


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
