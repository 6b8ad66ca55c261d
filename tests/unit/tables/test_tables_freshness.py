"""How long a request waits to learn whether what it asks for is new."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.deferreds import start
from project_service.tables.catalog.freshness import WAIT_SECONDS, Echo


class Sending:
    """A pool through which marks are sent, numbered."""

    def __init__(self) -> None:
        self.sent = 0

    async def query(self, sql: str, params: object) -> list[tuple[bytes]]:
        self.sent += 1
        return [(str(self.sent).encode(),)]


class Echoes(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.echo = Echo(cast(Any, Sending()), self.clock)

    def asked(self) -> Deferred[None]:
        return start(self.echo.come_back())

    def test_it_is_over_when_the_mark_is_heard(self) -> None:
        waiting = self.asked()
        self.assertNoResult(waiting)
        self.echo.heard("1")
        self.successResultOf(waiting)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_mark_may_be_heard_before_it_is_waited_for(self) -> None:
        self.echo.heard("1")
        self.successResultOf(self.asked())

    def miss_one(self) -> None:
        waiting = self.asked()
        self.clock.advance(WAIT_SECONDS)
        self.successResultOf(waiting)

    def test_where_nothing_is_heard_one_waits_and_the_others_do_not(self) -> None:
        self.miss_one()
        self.successResultOf(self.asked())
        self.echo.heard("2")
        self.assertNoResult(self.asked())

    def test_a_new_connection_is_listened_to(self) -> None:
        self.miss_one()
        self.successResultOf(start(self.echo.listening()))
        self.assertNoResult(self.asked())

    def test_who_leaves_says_nothing_of_the_rest(self) -> None:
        leaving = self.asked()
        leaving.cancel()
        self.failureResultOf(leaving)
        self.assertNoResult(self.asked())
