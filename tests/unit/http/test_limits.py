"""Which connections are closed when there are too many, and which clients are cut off when too much is unsent."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.limits import (
    GRACE_SECONDS,
    LARGE_BYTES,
    SEARCH_SECONDS,
    SLOW_BYTES_PER_SECOND,
    ConnectionLimit,
    UnsentLimit,
)

LONG = 10 * GRACE_SECONDS


class Client:
    """A connection. ``idle``: since when; ``body``: bytes received, and the seconds they took; without either it is
    busy."""

    def __init__(self, idle: float | None = None, body: tuple[int, float] | None = None) -> None:
        self.idle = idle
        self.body = body
        self.looked_at = 0
        self.timed_out = 0
        self.cut_off = 0

    @property
    def idle_since(self) -> float | None:
        self.looked_at += 1
        return self.idle

    def sent(self, now: float) -> tuple[int, float] | None:
        return self.body

    def time_out(self) -> None:
        self.timed_out += 1

    def abort(self) -> None:
        self.cut_off += 1


class WhoGoes(SynchronousTestCase):
    """The order: idle connections first, then slow request bodies, then connections that have only just come."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(LONG)

    def full(self, *there: Client) -> ConnectionLimit[Client]:
        """A limit that is reached with these connections."""
        limit: ConnectionLimit[Client] = ConnectionLimit(len(there), self.clock.seconds)
        for one in there:
            self.assertTrue(limit.for_one_more())
            limit.enter(one)
        return limit

    def gone(self, *there: Client) -> list[bool]:
        """Which of these connections are timed out for a new one."""
        self.full(*there).for_one_more()
        return [bool(one.timed_out) for one in there]

    def test_the_longest_idle_connection_is_closed(self) -> None:
        self.assertEqual(self.gone(Client(2.0), Client(1.0), Client(3.0)), [False, True, False])

    def test_an_idle_connection_is_closed_before_a_slow_one(self) -> None:
        self.assertEqual(self.gone(Client(body=(0, LONG)), Client(LONG - GRACE_SECONDS)), [False, True])

    def test_a_slow_connection_is_closed_before_a_new_one(self) -> None:
        """That is so even if it is nearly fast enough."""
        body = (int(LONG) * (SLOW_BYTES_PER_SECOND - 1), LONG)
        for idle_for in (0.0, GRACE_SECONDS - 0.1):
            self.assertEqual(self.gone(Client(LONG - idle_for), Client(body=body)), [False, True])

    def test_a_new_idle_connection_is_closed_if_there_is_no_other(self) -> None:
        self.assertEqual(self.gone(Client(), Client(LONG)), [False, True])

    def test_the_slowest_is_the_one_with_the_fewest_bytes_per_second(self) -> None:
        bodies = [(50, 10.0), (100, 40.0), (1000, 50.0), (400, 100.0)]
        self.assertEqual(self.gone(*(Client(body=body) for body in bodies)), [False, True, False, False])

    def test_no_body_is_slow_in_its_first_seconds(self) -> None:
        self.assertEqual(self.gone(Client(body=(0, GRACE_SECONDS - 0.1))), [False])
        self.assertEqual(self.gone(Client(body=(0, GRACE_SECONDS))), [True])

    def test_a_body_that_comes_fast_enough_is_not_interrupted(self) -> None:
        enough = SLOW_BYTES_PER_SECOND * 100
        self.assertEqual(self.gone(Client(body=(enough, 100.0))), [False])
        self.assertEqual(self.gone(Client(body=(enough - 1, 100.0))), [True])

    def test_no_connection_is_closed_or_examined_while_there_are_free_places(self) -> None:
        there = [Client(0.0), Client(body=(0, LONG))]
        limit = self.full(*there, Client())
        limit.leave(next(one for one in limit.connections if one not in there))
        self.assertTrue(limit.for_one_more())
        self.assertEqual([(one.timed_out, one.looked_at) for one in there], [(0, 0), (0, 0)])

    def test_each_closed_connection_makes_room_for_one(self) -> None:
        there = [Client(float(since)) for since in range(4)]
        limit = self.full(*there)
        for number in range(1, 5):
            self.assertTrue(limit.for_one_more())
            limit.enter(Client())
            self.assertEqual([one.timed_out for one in there], [1] * number + [0] * (4 - number))
        self.assertFalse(limit.for_one_more())

    def test_connections_slow_to_close_are_aborted_if_they_are_more_than_a_tenth(self) -> None:
        """Where more than a tenth do."""
        there = [Client(since / 10) for since in range(90)]
        limit = self.full(*there)
        for _ in range(12):
            self.assertTrue(limit.for_one_more())
            limit.enter(Client())
        self.assertEqual([one.cut_off for one in there[:12]], [1, 1] + [0] * 10)
        for one in there[:12]:
            limit.leave(one)
        limit.for_one_more()
        self.assertEqual([one.cut_off for one in there[:14]], [1, 1] + [0] * 12)


class Looking(SynchronousTestCase):
    """How often all connections are looked at, since new ones may come by the thousand."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(LONG)
        self.limit: ConnectionLimit[Client] = ConnectionLimit(1000, self.clock.seconds)

    def fill(self, *there: Client) -> Client:
        """Opens these and with busy connections, of which one is returned."""
        busy = [Client() for _ in range(1000 - len(there))]
        for one in (*there, *busy):
            self.limit.enter(one)
        return busy[0]

    def ask(self, times: int) -> int:
        """For how many of so many new connections there is room. They stay and do nothing."""
        came = 0
        for _ in range(times):
            if self.limit.for_one_more():
                self.limit.enter(Client())
                came += 1
        return came

    def test_after_a_search_without_result_none_is_made_for_a_while(self) -> None:
        busy = self.fill()
        self.assertEqual((self.ask(50), busy.looked_at), (0, 1))
        self.clock.advance(SEARCH_SECONDS)
        self.assertEqual((self.ask(50), busy.looked_at), (0, 2))

    def test_after_a_search_that_found_few_none_is_made_for_a_while(self) -> None:
        busy = self.fill(*(Client(0.0) for _ in range(3)))
        self.assertEqual((self.ask(50), busy.looked_at), (3, 1))

    def test_one_search_serves_a_hundredth_of_the_connections(self) -> None:
        busy = self.fill(*(Client(0.0) for _ in range(25)))
        self.assertEqual((self.ask(12), busy.looked_at), (12, 2))
        self.assertEqual((self.ask(10), busy.looked_at), (10, 2))
        self.assertEqual((self.ask(11), busy.looked_at), (3, 3))

    def test_old_search_results_are_not_used(self) -> None:
        self.fill(*(Client(float(since)) for since in range(1, 21)))
        self.assertEqual(self.ask(1), 1)
        older = Client(0.0)
        self.limit.leave(next(one for one in self.limit.connections if one.idle is None))
        self.limit.enter(older)
        self.clock.advance(SEARCH_SECONDS)
        self.assertEqual((self.ask(1), older.timed_out), (1, 1))

    def test_a_connection_that_has_become_busy_is_not_closed(self) -> None:
        idle = [Client(float(since)) for since in range(20)]
        self.fill(*idle)
        self.ask(1)
        idle[1].idle = None
        self.assertEqual(self.ask(1), 1)
        self.assertEqual([one.timed_out for one in idle[:4]], [1, 0, 1, 0])

    def test_a_connection_that_has_left_makes_no_further_room(self) -> None:
        idle = [Client(float(since)) for since in range(20)]
        self.fill(*idle)
        self.ask(1)
        self.limit.leave(idle[1])
        self.assertEqual(self.ask(1), 1, "there is a place")
        self.assertEqual(self.ask(1), 1)
        self.assertEqual([one.timed_out for one in idle[:4]], [1, 0, 1, 0])


MIB = 1024 * 1024


class SlowReader:
    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class Cut(SynchronousTestCase):
    def setUp(self) -> None:
        self.now = 0.0
        self.limit = UnsentLimit(lambda: self.now, 10 * MIB)

    def written(self, size: int) -> SlowReader:
        client = SlowReader()
        client.unsent_bytes = size
        self.limit.wrote(client)
        return client

    def test_no_connection_is_aborted_below_the_limit(self) -> None:
        self.assertFalse(any(one.aborted for one in [self.written(5 * MIB), self.written(5 * MIB)]))

    def test_the_slowest_reader_is_aborted_first(self) -> None:
        slow, slower, fast = [self.written(3 * MIB) for _ in range(3)]
        self.now = 10.0
        slow.unsent_bytes, fast.unsent_bytes, slower.unsent_bytes = 2 * MIB, MIB, 3 * MIB
        last = self.written(6 * MIB)
        self.assertEqual([one.aborted for one in (slow, slower, fast, last)], [False, True, False, False])
        self.written(3 * MIB)
        self.assertEqual([one.aborted for one in (slow, fast, last)], [True, False, False])

    def test_a_client_that_has_hardly_begun_is_aborted_last(self) -> None:
        stalled = self.written(6 * MIB)
        stalled.unsent_bytes = 3 * MIB
        self.now = 2.0
        begun = self.written(4 * MIB)
        self.now = 2.1
        begun.unsent_bytes = 3 * MIB + 1
        self.written(6 * MIB)
        self.assertEqual([stalled.aborted, begun.aborted], [True, False])

    def test_a_single_connection_is_not_limited(self) -> None:
        self.assertFalse(self.written(100 * MIB).aborted)

    def test_a_client_with_little_left_to_read_is_not_aborted(self) -> None:
        first = self.written(8 * MIB)
        first.unsent_bytes = LARGE_BYTES - 1
        self.assertFalse(self.written(8 * MIB).aborted)
        self.written(8 * MIB)
        self.assertFalse(first.aborted)

    def test_closed_connections_no_longer_count(self) -> None:
        first = self.written(8 * MIB)
        self.limit.leave(first)
        self.limit.leave(first)
        second = self.written(8 * MIB)
        self.assertFalse(first.aborted or second.aborted)
