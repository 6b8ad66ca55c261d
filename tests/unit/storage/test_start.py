"""A store that does not respond does not hold up a start, because authentication and tables work without it."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.lifecycle import start
from project_service.settings.model import Settings
from project_service.storage.assemble import Rows, build
from project_service.storage.durations import START_TIMEOUT_SECONDS
from tests.captured_log import captured_logs


class Silent:
    """A store whose requests are never answered; ``given_up`` counts those that were cancelled."""

    given_up = 0

    def open(self, *what: Any) -> Deferred[Any]:
        def count(waiting: Deferred[Any]) -> None:
            self.given_up += 1

        return Deferred(count)


class Starting(TestCase):
    def test_the_start_goes_on_without_a_silent_store_and_logs_it(self) -> None:
        clock, store, none = Clock(), Silent(), cast(Any, None)
        rows = Rows(none, none, none, none, none, none)
        storage = build(clock, Settings().storage, cast(Any, store), rows, endpoint="http://store.test")
        starting = start(storage.start())
        clock.advance(START_TIMEOUT_SECONDS - 0.1)
        self.assertNoResult(starting)
        with captured_logs() as events:
            clock.advance(0.2)
        self.assertIsNone(self.successResultOf(starting))
        self.assertEqual(
            [formatEvent(event) for event in events],
            ["the store http://store.test cannot be used yet: timed out"],
        )
        self.assertEqual(store.given_up, 1)
