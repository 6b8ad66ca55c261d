"""Fairness: clients of one lane take turns, so that one with very many requests does not keep others out."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.overload.admission import PACE_SECONDS, Limits, Place, Reason
from project_service.http.overload.fairness import FairLane


class Taking(SynchronousTestCase):
    """Four places, of which the last two are for clients that have none, and a queue of four."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.lane = FairLane("passwords", Limits(4, 4, 5.0, 5.0, spare=2), self.clock.seconds)
        self.turns: list[tuple[str, bool]] = []

    def ask(self, who: str) -> Place | Reason:
        return self.lane.enter(lambda mine: self.turns.append((who, mine)), who)

    def enter(self, who: str) -> Place:
        place = self.ask(who)
        assert isinstance(place, Place), place
        return place

    def test_the_last_places_are_for_clients_that_have_none(self) -> None:
        many = [self.enter("many") for _ in range(4)]
        self.assertEqual([place.waiting for place in many], [False, False, True, True])
        self.assertEqual([self.enter(who).waiting for who in ("one", "two", "three")], [False, False, True])
        self.assertEqual(self.turns, [])

    def test_the_client_with_fewer_requests_under_way_is_next(self) -> None:
        many = [self.enter("many") for _ in range(4)]
        others = [self.enter(who) for who in ("one", "two", "three")]
        others[0].leave()
        self.assertEqual(self.turns, [("three", True)])
        others[1].leave()
        self.assertEqual(self.turns, [("three", True)])
        many[0].leave()
        self.assertEqual(self.turns, [("three", True), ("many", True)])

    def test_the_client_with_the_most_waiting_requests_makes_room_in_a_full_queue(self) -> None:
        for _ in range(6):
            self.enter("many")
        self.assertEqual(self.ask("many"), "full")
        others = [self.enter(who) for who in ("one", "two", "three", "three")]
        self.assertEqual([place.waiting for place in others], [False, False, True, True])
        self.assertEqual(self.turns, [("many", False)] * 2)
        self.assertEqual(self.ask("three"), "full")
        self.assertEqual(self.lane.waiting, 4)

    def test_no_request_is_dropped_for_one_that_is_refused_anyway(self) -> None:
        many = [self.enter("many") for _ in range(6)]
        for place in many[:4]:
            self.clock.advance(PACE_SECONDS + 2.0)
            place.leave()
        for who in ("many", "many", "one", "two", "three", "four"):
            self.enter(who)
        self.turns.clear()
        self.assertEqual(self.ask("five"), "late")
        self.assertEqual((self.turns, self.lane.waiting), ([], 4))

    def test_a_dropped_request_cannot_take_its_place_again_at_once(self) -> None:
        def again(mine: bool) -> None:
            self.assertEqual((mine, self.ask("many")), (False, "full"))
            self.turns.append(("many", mine))

        for _ in range(6):
            self.lane.enter(again, "many")
        for who in ("one", "two", "three"):
            self.enter(who)
        self.assertEqual((self.turns, self.lane.waiting), ([("many", False)], 4))

    def test_the_expected_wait_depends_on_the_client(self) -> None:
        many = [self.enter("many") for _ in range(6)]
        for place in many[:4]:
            self.clock.advance(PACE_SECONDS + 2.0)
            place.leave()
        for who in ("many", "many", "many", "one", "two"):
            self.enter(who)
        self.assertEqual(self.ask("many"), "late")
        self.assertTrue(self.enter("three").waiting)

    def test_a_request_that_waits_for_its_client_frees_its_place_meanwhile(self) -> None:
        first = self.enter("many")
        self.enter("many")
        third = self.enter("many")
        first.awaits_client(True)
        self.assertEqual(third.state, "served")
        first.awaits_client(False)
        first.leave()
        third.leave()
        self.assertEqual((self.lane.served, self.enter("many").waiting), (1, False))
