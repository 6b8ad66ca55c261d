"""Admission: which requests are served, wait or are refused, with a clock of the test's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.http.overload.admission import (
    CALM_SECONDS,
    LEAST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    REFUSALS_PER_SECOND,
    SHORT_SECONDS,
    STANDING_SECONDS,
    Lane,
    Limits,
    Pauses,
    Place,
    Reason,
)


class Queue:
    """A lane, and the order in which its requests were served."""

    def __init__(self, places: int = 2, waiting: int = 3, patience: float = 5.0) -> None:
        self.clock = Clock()
        self.lane = Lane("storage", Limits(places, waiting, patience), self.clock.seconds)
        self.turns: list[tuple[str, bool]] = []

    def ask(self, name: str = "") -> Place | Reason:
        return self.lane.enter(lambda mine: self.turns.append((name, mine)))

    def enter(self, name: str = "") -> Place:
        place = self.ask(name)
        assert isinstance(place, Place), place
        return place

    def overload(self) -> tuple[Place, Place]:
        """Keeps a lane with one place full, and a request waiting, until that is no burst any more."""
        served, waiting = self.enter(), self.enter("first")
        self.clock.advance(STANDING_SECONDS + 0.01)
        return served, waiting


class Lanes(TestCase):
    def test_requests_fill_the_places_then_the_queue_and_then_are_refused(self) -> None:
        queue = Queue(places=2, waiting=3)
        self.assertEqual([queue.enter().waiting for _ in range(5)], [False, False, True, True, True])
        self.assertEqual(queue.ask(), "full")
        self.assertEqual((queue.lane.served, queue.lane.waiting), (2, 3))

    def test_the_queue_is_first_in_first_out(self) -> None:
        queue = Queue(places=1)
        served = queue.enter()
        for name in ("a", "b"):
            queue.enter(name)
        served.leave()
        self.assertEqual(queue.turns, [("a", True)])
        served.leave()
        self.assertEqual(queue.turns, [("a", True)], "a place is left once")

    def test_a_new_request_does_not_overtake_waiting_ones(self) -> None:
        queue = Queue(places=1)
        outside = queue.enter()
        queue.enter("a")
        outside.step_out()
        self.assertEqual(queue.turns, [("a", True)])
        self.assertTrue(queue.enter("b").waiting)

    def test_a_request_that_gives_up_is_not_served(self) -> None:
        queue = Queue(places=1)
        served = queue.enter()
        queue.enter("a").leave()
        queue.enter("b")
        served.leave()
        self.assertEqual(queue.turns, [("b", True)])

    def test_a_request_that_waits_longer_than_the_patience_is_refused(self) -> None:
        queue = Queue(places=1, patience=5.0)
        queue.enter()
        queue.enter("a")
        queue.clock.advance(0.25)
        queue.enter("b")
        queue.clock.advance(4.25)
        self.assertEqual(queue.lane.expire(), 0.5)
        queue.clock.advance(0.5)
        self.assertEqual((queue.lane.expire(), queue.turns), (0.25, [("a", False)]))
        queue.clock.advance(0.25)
        self.assertEqual((queue.lane.expire(), queue.turns[1:]), (None, [("b", False)]))

    def test_a_request_waiting_for_its_client_gives_its_place_back_meanwhile(self) -> None:
        queue = Queue(places=1)
        uploading = queue.enter()
        uploading.step_out()
        self.assertFalse(queue.enter().waiting)
        uploading.step_in()
        self.assertEqual(queue.lane.served, 2)
        self.assertTrue(queue.enter("a").waiting)
        uploading.leave()
        self.assertEqual((queue.lane.served, queue.turns), (1, []))

    def test_two_thousand_requests_that_end_within_each_others_turns(self) -> None:
        queue = Queue(places=1, waiting=2000)
        served = queue.enter()
        waiting: list[Place] = []

        def leave(number: int, mine: bool) -> None:
            waiting[number].leave()

        for number in range(2000):
            place = queue.lane.enter(partial(leave, number))
            assert isinstance(place, Place)
            waiting.append(place)
        served.leave()
        self.assertEqual((queue.lane.served, queue.lane.waiting), (0, 0))


class Standing(TestCase):
    def test_a_burst_may_queue(self) -> None:
        queue = Queue(places=1, waiting=50)
        queue.enter()
        queue.enter()
        queue.clock.advance(STANDING_SECONDS - 0.01)
        self.assertIsInstance(queue.ask(), Place)

    def test_a_queue_that_does_not_empty_is_overload(self) -> None:
        queue = Queue(places=1, waiting=50)
        queue.overload()
        self.assertEqual(queue.ask(), "standing")

    def test_under_overload_requests_with_a_short_wait_are_still_accepted(self) -> None:
        queue = Queue(places=1, waiting=50)
        served, _ = queue.overload()
        self.assertEqual(queue.ask(), "standing")
        served.leave()
        self.assertTrue(queue.enter("second").waiting, "nobody waits")
        queue.clock.advance(SHORT_SECONDS * 1.1)
        self.assertEqual(queue.ask(), "standing", "who is next has waited for long already")

    def test_overload_ends_after_a_calm_time(self) -> None:
        queue = Queue(places=1, waiting=50)
        places = queue.overload()
        self.assertEqual(queue.ask(), "standing")
        for place in places:
            place.leave()
        queue.clock.advance(CALM_SECONDS)
        for _ in range(2):
            queue.enter()
        queue.clock.advance(SHORT_SECONDS * 2)
        self.assertIsInstance(queue.ask(), Place)

    def test_overload_that_returns_before_the_calm_time_is_not_a_burst(self) -> None:
        queue = Queue(places=1, waiting=50)
        places = queue.overload()
        self.assertEqual(queue.ask(), "standing")
        for place in places:
            place.leave()
        queue.clock.advance(CALM_SECONDS / 2)
        for _ in range(2):
            queue.enter()
        queue.clock.advance(SHORT_SECONDS * 2)
        self.assertEqual(queue.ask(), "standing")

    def test_a_request_that_would_exceed_the_patience_is_refused_at_once(self) -> None:
        queue = Queue(places=1, waiting=50, patience=5.0)
        served = [queue.enter(), *(queue.enter() for _ in range(9))]
        queue.clock.advance(0.4)
        served[0].leave()
        # At 0.4 seconds a request, nine wait 3.6 seconds, but thirteen would wait for longer than five.
        answers = [queue.ask() for _ in range(10)]
        self.assertEqual([answer == "late" for answer in answers], [False] * 5 + [True] * 5)


class Simulated(TestCase):
    """Ten places of five milliseconds: two thousand requests a second."""

    def run_load(self, each: float, seconds: float) -> tuple[list[tuple[float, float]], int]:
        """For each request that was served, when it came and how long it waited; and how many were refused."""
        queue = Queue(places=10, waiting=500)
        waits: list[tuple[float, float]] = []
        events: list[tuple[float, int, Callable[[], None]]] = []
        numbers = itertools.count()
        refused = 0

        def at(when: float, work: Callable[[], None]) -> None:
            heappush(events, (when, next(numbers), work))

        def arrive() -> None:
            nonlocal refused
            begun: list[Place] = []
            place = queue.lane.enter(lambda mine: serve(begun[0]))
            if not isinstance(place, Place):
                refused += 1
            elif not place.waiting:
                serve(place)
            begun += [place] if isinstance(place, Place) else []

        def serve(place: Place) -> None:
            now = queue.clock.seconds()
            waits.append((place.since, now - place.since))
            at(now + 0.005, place.leave)

        for number in range(int(seconds / each)):
            at(number * each, arrive)
        while events:
            when, _, work = heappop(events)
            queue.clock.rightNow = when
            work()
        return waits, refused

    def test_ten_times_the_load_is_served_at_full_rate_with_short_waits(self) -> None:
        waits, refused = self.run_load(1 / 20_000, 1.5)
        self.assertGreater(len(waits), 0.98 * 1.5 * 2000)
        self.assertEqual(len(waits) + refused, 30_000)
        later = sorted(wait for came, wait in waits if came > 2 * STANDING_SECONDS)
        self.assertLess(later[len(later) // 2], 1.2 * SHORT_SECONDS)
        self.assertLess(later[-1], 2 * SHORT_SECONDS)

    def test_nine_tenths_of_the_capacity_is_served_without_refusals(self) -> None:
        waits, refused = self.run_load(1 / 1800, 3.0)
        self.assertEqual((len(waits), refused), (5400, 0))

    def test_a_burst_is_served_completely(self) -> None:
        waits, refused = self.run_load(0.0001 / 500, 0.0001)
        self.assertEqual((len(waits), refused), (500, 0))


class Always(TestCase):
    @given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "out", "in", "later"]), st.integers(0, 30))))
    def test_places_and_queue_are_never_lost_or_counted_twice(self, steps: list[tuple[str, int]]) -> None:
        queue = Queue(places=3, waiting=4)
        inside: list[Place] = []
        for step, number in steps:
            if step == "enter":
                place = queue.ask()
                if isinstance(place, Place):
                    inside.append(place)
            elif step == "later":
                queue.clock.advance(number)
                queue.lane.expire()
            elif inside:
                place = inside[number % len(inside)]
                {"leave": place.leave, "out": place.step_out, "in": place.step_in}[step]()
            self.assertEqual(queue.lane.served, sum(one.state == "served" for one in inside))
            self.assertEqual(queue.lane.waiting, sum(one.waiting for one in inside))
            self.assertLessEqual(queue.lane.waiting, 4)
            if queue.lane.waiting:
                self.assertGreaterEqual(queue.lane.served, 3, "nobody waits beside a free place")
        for place in inside:
            place.leave()
        self.assertEqual((queue.lane.served, queue.lane.waiting), (0, 0))


class Paused(TestCase):
    def test_a_single_refusal_pauses_its_client_briefly(self) -> None:
        self.assertAlmostEqual(Pauses().after(100.0), LEAST_PAUSE_SECONDS)

    def test_refused_clients_are_read_at_a_limited_rate_together(self) -> None:
        pauses = Pauses()
        back = [pauses.after(0.0) for _ in range(1000)]
        inside = [at for at in back if LEAST_PAUSE_SECONDS + 1 <= at < LEAST_PAUSE_SECONDS + 1.5]
        self.assertAlmostEqual(len(inside), REFUSALS_PER_SECOND / 2, delta=1)

    def test_the_rate_is_lower_if_fewer_requests_are_served(self) -> None:
        for each, spacing in ((0.0001, 1 / REFUSALS_PER_SECOND), (0.002, 0.008), (1.0, 0.02)):
            queue = Queue(places=1, waiting=1000)
            inside = [queue.enter()]
            for _ in range(max(60, int(0.2 / each))):
                inside.append(queue.enter())
                queue.clock.advance(each)
                inside.pop(0).leave()
            self.assertAlmostEqual(queue.lane.spacing, spacing, delta=0.05 * spacing)

    def test_the_rate_of_served_requests_is_known_after_a_while_and_a_round_of_all_places(self) -> None:
        for pauses, known in (
            ((1.0,), False),
            ((1.0, 0.0), True),
            ((0.01, 0.01), False),
            ((0.01, 0.01, 0.09), True),
        ):
            queue = Queue(places=2, waiting=100)
            queue.clock.advance(1000)
            inside = [queue.enter() for _ in range(10)]
            for place, pause in zip(inside, pauses, strict=False):
                queue.clock.advance(pause)
                place.leave()
            self.assertEqual(queue.lane.spacing > 1 / REFUSALS_PER_SECOND, known, pauses)

    def test_pauses_are_bounded_and_soon_forgotten(self) -> None:
        pauses = Pauses()
        self.assertEqual(max(pauses.after(0.0) for _ in range(100_000)), LONGEST_PAUSE_SECONDS)
        self.assertAlmostEqual(pauses.after(2 * LONGEST_PAUSE_SECONDS), LEAST_PAUSE_SECONDS)
