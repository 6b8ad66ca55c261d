"""The pauses between the attempts at something that fails."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from project_service.lifecycle import CHILD_PAUSES, Backoff


class Pauses(TestCase):
    def test_it_doubles_to_the_longest(self) -> None:
        backoff = Backoff(*CHILD_PAUSES)
        self.assertEqual(backoff.pause, 0)
        self.assertEqual([backoff.failed() for _ in range(7)], [1, 2, 4, 8, 16, 30, 30])

    def test_after_a_success_it_begins_with_the_first(self) -> None:
        backoff = Backoff(0.1, 2.0)
        backoff.failed(), backoff.failed()
        self.assertEqual(backoff.pause, 0.2)
        backoff.succeeded()
        self.assertEqual((backoff.pause, backoff.failed()), (0.0, 0.1))
