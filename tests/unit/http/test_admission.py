"""Admission classes and the queue in which requests wait: who is served next, and who is refused."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.errors import ApiError
from project_service.http.admission import AdmissionClass, LimitedSlot, Limits, Refusals
from project_service.http.metrics import Metrics
from project_service.wait_queue import WaitQueue

TIMEOUT = 5.0


class Queue:
    """A class of requests, and the names of its requests in the order in which they were served."""

    def __init__(self, slots: int = 2, max_waiting_bytes: int = 1000) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        refusals = Refusals(self.clock, self.metrics.refused)
        limits = Limits(slots, TIMEOUT, max_waiting_bytes)
        self.limited = AdmissionClass("storage", limits, self.clock, refusals)
        self.served: list[str] = []
        self.refused: Counter[str] = Counter()
        self.turns: dict[LimitedSlot, Deferred[None]] = {}

    def enter(self, name: str = "", client: str = "", size: int = 1) -> LimitedSlot:
        slot = LimitedSlot(self.limited)
        if slot.take_if_free():
            self.served.append(name)
        else:
            self.turns[slot] = turn = slot.wait(client, size)
            turn.addCallback(lambda _: self.served.append(name))
            turn.addErrback(self._refused, name)
        return slot

    def _refused(self, failure: object, name: str) -> None:
        failure.trap(ApiError, CancelledError)  # type: ignore[attr-defined]  # it is a Failure
        self.refused[name] += 1

    def counted(self, reason: str) -> float:
        labels = {"part": "storage", "reason": reason}
        self.metrics.exposition()
        return self.metrics.registry.get_sample_value("project_service_requests_refused_total", labels) or 0


def _close(slot: LimitedSlot, _: object) -> None:
    slot.close()


class Lanes(SynchronousTestCase):
    def test_requests_fill_the_slots_and_then_wait(self) -> None:
        queue = Queue(slots=2)
        for name in "abcde":
            queue.enter(name)
        self.assertEqual((queue.served, queue.limited.served, queue.limited.waiting), (["a", "b"], 2, 3))

    def test_whoever_has_waited_longest_is_next(self) -> None:
        queue = Queue(slots=1)
        served = queue.enter("first")
        queue.enter("a")
        queue.enter("b")
        served.close()
        self.assertEqual(queue.served, ["first", "a"])
        served.close()
        self.assertEqual(queue.served, ["first", "a"], "a slot is released once")

    def test_a_request_that_gives_up_is_not_served(self) -> None:
        queue = Queue(slots=1)
        served = queue.enter()
        given_up = queue.enter("a")
        queue.enter("b")
        queue.turns[given_up].cancel()
        given_up.close()
        served.close()
        self.assertEqual((queue.served, queue.limited.served, queue.limited.waiting), (["", "b"], 1, 0))

    def test_a_request_waits_for_the_timeout_and_no_longer(self) -> None:
        queue = Queue(slots=1)
        queue.enter()
        queue.enter("a")
        queue.clock.advance(TIMEOUT - 0.1)
        self.assertEqual(queue.refused, {})
        queue.clock.advance(0.2)
        self.assertEqual((queue.refused, queue.counted("late")), ({"a": 1}, 1))

    def test_while_there_is_memory_nobody_is_refused_before_the_timeout(self) -> None:
        queue = Queue(slots=1, max_waiting_bytes=10)
        queue.enter()
        for _ in range(10):
            queue.enter("small")
        self.assertEqual(queue.refused, {})
        queue.enter("one more")
        self.assertEqual((queue.refused, queue.counted("full")), ({"one more": 1}, 1))

    def test_clients_take_turns(self) -> None:
        queue = Queue(slots=1)
        last = queue.enter()
        for name, client in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c")):
            slot = queue.enter(name, client)
            queue.turns[slot].addCallback(partial(_close, slot))
        last.close()
        self.assertEqual(queue.served[1:], ["a1", "b1", "c1", "a2", "b2", "a3"])

    def test_a_request_that_waits_for_its_client_gives_its_slot_to_the_next(self) -> None:
        queue = Queue(slots=1)
        uploading = queue.enter()
        waiting = queue.enter("a")
        uploading.release()
        self.assertEqual(queue.served, ["", "a"])
        uploading.retake()
        self.assertEqual(queue.limited.served, 2, "it was admitted before")
        waiting.close()
        queue.enter("b")
        self.assertEqual(queue.served, ["", "a"])
        uploading.close()
        self.assertEqual((queue.limited.served, queue.served), (1, ["", "a", "b"]))

    def test_a_request_whose_body_has_arrived_waits_for_its_turn_again(self) -> None:
        queue = Queue(slots=1)
        reading = queue.enter("reading")
        queue.enter("a")
        reading.release()
        self.assertFalse(reading.take_if_free())
        turn = reading.wait("", 1)
        self.assertNoResult(turn)
        queue.clock.advance(TIMEOUT + 0.1)
        self.failureResultOf(turn, ApiError)

    def test_two_thousand_requests_that_end_within_each_others_turns(self) -> None:
        queue = Queue(slots=1, max_waiting_bytes=2000)
        served = queue.enter()
        for _ in range(2000):
            slot = queue.enter()
            queue.turns[slot].addCallback(partial(_close, slot))
        served.close()
        self.assertEqual((len(queue.served), queue.limited.served, queue.limited.waiting), (2001, 0, 0))


class Simulated(SynchronousTestCase):
    """Clients that ask again ``pause`` seconds after each answer, and a pool of ten connections."""

    def run_load(
        self, clients: int, work: float, pause: float, seconds: float
    ) -> tuple[list[tuple[float, str]], int]:
        """When each request was served, and for which client; and how many were refused."""
        queue = Queue(slots=12, max_waiting_bytes=64 * 1024 * 1024)
        events: list[tuple[float, int, Callable[[], None]]] = []
        numbers = itertools.count()
        served: list[tuple[float, str]] = []
        free, behind, refused = 10, list[Callable[[], None]](), 0

        def at(when: float, call: Callable[[], None]) -> None:
            heappush(events, (when, next(numbers), call))

        def ask(client: str) -> None:
            slot = LimitedSlot(queue.limited)
            if slot.take_if_free():
                connect(client, slot)
                return
            turn = slot.wait(client, 5000)
            turn.addCallbacks(lambda _: connect(client, slot), lambda _: again(client))

        def connect(client: str, slot: LimitedSlot) -> None:
            nonlocal free
            if free:
                free -= 1
                at(queue.clock.seconds() + work, lambda: done(client, slot))
            else:
                behind.append(lambda: connect(client, slot))

        def done(client: str, slot: LimitedSlot) -> None:
            nonlocal free
            free += 1
            served.append((queue.clock.seconds(), client))
            if behind:
                behind.pop(0)()
            slot.close()
            at(queue.clock.seconds() + pause, lambda: ask(client))

        def again(client: str) -> None:
            nonlocal refused
            refused += 1
            at(queue.clock.seconds() + pause, lambda: ask(client))

        for number in range(clients):
            at(0.0, lambda number=number: ask(f"c{number}"))  # type: ignore[misc]  # bound now
        while events and (when := events[0][0]) <= seconds:
            if when > queue.clock.seconds():
                queue.clock.advance(when - queue.clock.seconds())
                continue
            heappop(events)[2]()
        return served, refused

    def test_twenty_clients_of_a_function_of_200_ms_are_all_served(self) -> None:
        for clients in (15, 20, 50):
            served, refused = self.run_load(clients, 0.2, 0.05, 10.0)
            self.assertEqual(refused, 0)
            self.assertGreater(len(served), 0.95 * 10 * min(50, clients / 0.25))

    def test_a_burst_of_two_hundred_is_served_completely(self) -> None:
        served, refused = self.run_load(200, 0.2, 60.0, 20.0)
        self.assertEqual((len(served), refused), (200, 0))

    def test_ten_times_the_load_is_served_at_full_rate(self) -> None:
        for clients, work in ((120, 0.2), (500, 0.2), (500, 0.02)):
            served, _ = self.run_load(clients, work, 0.0, 12.0)
            self.assertGreater(len(served), 0.98 * 12 * 10 / work, (clients, work))

    def test_what_is_refused_could_not_be_served_in_time(self) -> None:
        _, refused = self.run_load(240, 0.2, 0.0, 12.0)
        self.assertEqual(refused, 0, "with 50 a second, 228 wait for less than five seconds")
        _, refused = self.run_load(500, 0.2, 0.0, 12.0)
        self.assertGreater(refused, 0)


class Always(SynchronousTestCase):
    @given(st.lists(st.tuples(st.sampled_from(["enter", "close", "out", "in", "later"]), st.integers(0, 30))))
    def test_slots_and_queue_are_never_lost_or_counted_twice(self, steps: list[tuple[str, int]]) -> None:
        queue = Queue(slots=3, max_waiting_bytes=4)
        inside: list[LimitedSlot] = []
        for step, number in steps:
            if step == "enter":
                inside.append(queue.enter(client=str(number % 3)))
            elif step == "later":
                queue.clock.advance(number)
            elif inside:
                slot = inside[number % len(inside)]
                if step == "close":
                    if (turn := queue.turns.get(slot)) is not None and not turn.called:
                        turn.cancel()
                    slot.close()
                elif slot not in queue.turns or queue.turns[slot].called:
                    {"out": slot.release, "in": slot.retake}[step]()
            self.assertEqual(queue.limited.served, sum(one._state == "served" for one in inside))
            self.assertLessEqual(queue.limited.waiting, 4)
            if queue.limited.waiting:
                self.assertGreaterEqual(queue.limited.served, 3, "nobody waits beside a free slot")
        for slot in inside:
            if (turn := queue.turns.get(slot)) is not None and not turn.called:
                turn.cancel()
            slot.close()
        self.assertEqual((queue.limited.served, queue.limited.waiting), (0, 0))
        self.assertEqual(queue.limited.queue._sizes, {})


class TooLate(Exception):
    pass


class Closed(Exception):
    pass


class Full(Exception):
    pass


class TestLine(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.line: WaitQueue[str] = WaitQueue(self.clock, 5.0, TooLate)

    def joined_after(self, seconds: float) -> Deferred[str]:
        self.clock.advance(seconds)
        return self.line.join()

    def test_each_waiter_has_its_own_timeout(self) -> None:
        first = self.line.join()
        second = self.joined_after(2.0)
        self.clock.advance(2.9)
        self.assertNoResult(first)
        self.clock.advance(0.1)
        self.failureResultOf(first, TooLate)
        self.clock.advance(1.9)
        self.assertNoResult(second)
        self.clock.advance(0.1)
        self.failureResultOf(second, TooLate)
        self.assertEqual(len(self.line), 0)

    def test_one_timer_serves_all_waiters_and_ends_with_the_last(self) -> None:
        for _ in range(50):
            self.line.join().addErrback(lambda _: None)
            self.clock.advance(0.01)
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        for _ in range(50):
            self.line.serve("a")
        self.clock.advance(5.0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_an_earlier_timer_does_not_shorten_later_waits(self) -> None:
        self.line.join()
        self.line.serve("a")
        late = self.joined_after(4.0)
        self.clock.pump([1.0, 3.9])
        self.assertNoResult(late)
        self.clock.advance(0.1)
        self.failureResultOf(late, TooLate)

    def test_a_waiter_may_join_again_from_its_timeout(self) -> None:
        again: list[Deferred[str]] = []
        self.line.join().addErrback(lambda _: again.append(self.line.join()))
        self.clock.advance(5.0)
        self.assertEqual((len(again), len(self.line), len(self.clock.getDelayedCalls())), (1, 1, 1))

    def test_closing_fails_all_waiters(self) -> None:
        waiting = [self.line.join(), self.line.join()]
        self.line.close(Closed)
        for one in waiting:
            self.failureResultOf(one, Closed)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_client_whose_only_caller_has_left_has_no_turn(self) -> None:
        self.line.join("a")
        left, last = self.line.join("b"), self.line.join("c")
        left.addErrback(lambda _: None).cancel()
        self.line.serve("x")
        self.line.serve("y")
        self.assertEqual(self.successResultOf(last), "y")
        self.assertEqual(len(self.line), 0)


class Sizes(SynchronousTestCase):
    """Once callers exceed ten together, the client with the most callers in the queue makes room."""

    def setUp(self) -> None:
        self.line: WaitQueue[str] = WaitQueue(Clock(), 5.0, TooLate, Full, 10)

    def test_the_last_caller_of_that_client_leaves(self) -> None:
        many = [self.line.join("many", 2) for _ in range(5)]
        other = self.line.join("other", 1)
        self.failureResultOf(many[4], Full)
        for waiting in (*many[:4], other):
            self.assertNoResult(waiting)

    def test_that_client_gets_nothing_more_into_a_full_queue(self) -> None:
        many = [self.line.join("many", 2) for _ in range(6)]
        self.failureResultOf(many[5], Full)
        self.assertNoResult(many[4])

    def test_what_counts_is_the_size_and_not_the_number(self) -> None:
        small = [self.line.join("small", 1) for _ in range(4)]
        large = self.line.join("large", 6)
        small.append(self.line.join("small", 1))
        self.failureResultOf(large, Full)
        self.assertNoResult(small[4])

    def test_a_caller_that_is_served_or_leaves_makes_room(self) -> None:
        first = self.line.join("a", 5)
        self.line.join("a", 5).addErrback(lambda _: None).cancel()
        self.line.serve("x")
        self.assertEqual(self.successResultOf(first), "x")
        self.assertNoResult(self.line.join("a", 10))

    def test_one_that_is_larger_than_the_queue_leaves_the_others_in_it(self) -> None:
        small = self.line.join("small", 3)
        self.failureResultOf(self.line.join("large", 11), Full)
        self.assertNoResult(small)

    def test_a_caller_may_join_again_as_soon_as_it_has_made_room(self) -> None:
        again: list[Deferred[str]] = []
        self.line.join("a", 9).addErrback(lambda _: again.append(self.line.join("a", 9)))
        other = self.line.join("b", 8)
        self.failureResultOf(again[0], Full)
        self.assertNoResult(other)
