"""Admission control: which requests are served, which wait for a moment, and which are refused at once. Pure.

Each part of the service has a *lane* with a number of places. A request that is being served has a place; some more
may wait for one. Waiting is meant for bursts. When requests have had to wait for ``STANDING_SECONDS`` without a
break, the lane has more to do than it can, and a longer queue would only delay everybody. From then on a request that
would wait longer than ``short_seconds`` is refused, until none had to be refused for ``CALM_SECONDS``. (This is the
idea of CoDel, RFC 8289: a sign of overload is not a long queue but a delay that does not go away.)

A request has a place only while it waits for the service. While it waits for a client, it has none: for its own, to
send its body or to read its answer, or for those who read the streams before its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from attrs import define, field, frozen

STANDING_SECONDS = 0.5
SHORT_SECONDS = 0.1
CALM_SECONDS = 2.0
# A lane's pace is averaged over at least this long, and over at least as many requests as the lane has places.
PACE_SECONDS = 0.1
# Refusing costs time as well. A connection whose request was refused is not read for a while, so that clients which
# try again at once cannot cause more refusals than these: 500 a second, or one for every four requests served where
# that is less (but never fewer than 50 a second).
REFUSALS_PER_SECOND = 500.0
LEAST_REFUSALS_PER_SECOND = 50.0
SERVED_FOR_EACH_REFUSAL = 4
LEAST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0

Reason = Literal["full", "standing", "late"]
# The states of a request: in the queue, being served, waiting for a client (or not begun), and done.
State = Literal["waiting", "served", "outside", "left"]


@frozen
class Limits:
    """The limits of a lane.

    ``places`` requests are served at a time, and ``waiting`` more may wait, each for at most ``patience_seconds``, or
    ``short_seconds`` while the lane is overloaded. ``spare`` is that of ``fairness.FairLane``; 0 for others.
    """

    places: int
    waiting: int
    patience_seconds: float
    short_seconds: float = SHORT_SECONDS
    spare: int = 0


def _over(mine: bool) -> None:
    """In place of the ``turn`` of a request that is done."""


@define(eq=False)
class Place:
    """One request in its lane.

    If it has to wait, ``turn`` is called once: with True when it has got its place, with False when it has waited for
    too long and is out of the queue.
    """

    lane: Lane
    since: float
    turn: Callable[[bool], None]
    state: State = field(default="outside", init=False)
    who: str = ""

    @property
    def waiting(self) -> bool:
        return self.state == "waiting"

    def leave(self) -> None:
        """The request is done, answered or given up. Further calls do nothing."""
        before, self.state = self.state, "left"
        # It knows the request, and the request its place: together they would wait for the garbage collector.
        self.turn = _over
        if before == "waiting":
            self.lane.forget(self)
        elif before == "served":
            self.lane.free(self)

    def awaits_client(self, waiting: bool) -> None:
        """Tell that it begins (True) or ceases to wait for a client."""
        if waiting:
            self.step_out()
        else:
            self.step_in()

    def step_out(self) -> None:
        """Give its place to the next, while it waits for a client."""
        if self.state == "served":
            self.state = "outside"
            self.lane.free(self)

    def step_in(self) -> None:
        """Take a place again, even if that is one too many: it was admitted before."""
        if self.state == "outside":
            self.lane.take(self)


@define(eq=False)
class Lane:
    """Serves requests in the order in which they came."""

    name: str
    limits: Limits
    clock: Callable[[], float]
    served: int = field(default=0, init=False)
    # No plain dict: finding the first of that takes the longer, the more have been removed before it.
    _queue: OrderedDict[Place, None] = field(factory=OrderedDict, init=False)
    _full_since: float | None = field(default=None, init=False)
    _strict_until: float = field(default=float("-inf"), init=False)
    _calling: bool = field(default=False, init=False)
    # The average time from one place becoming free to the next, while the lane is full.
    _pace: float = field(default=0.0, init=False)
    _freed: int = field(default=0, init=False)
    _measured_since: float = field(default=0.0, init=False)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def spacing(self) -> float:
        """How many seconds there should be between refusals, so that they do not slow the lane's own work down."""
        bearable = max(1 / REFUSALS_PER_SECOND, SERVED_FOR_EACH_REFUSAL * self._pace)
        return min(bearable, 1 / LEAST_REFUSALS_PER_SECOND)

    def enter(self, turn: Callable[[bool], None], who: str = "") -> Place | Reason:
        """A place, which the request has at once or has to wait for (``Place.waiting``), or the reason for
        refusal. ``who`` is its client."""
        now = self.clock()
        place = Place(self, now, turn, who=who)
        if self._is_next(place):
            self.take(place)
            return place
        if self._full_since is None:
            self._full_since = self._measured_since = now
            self._freed = 0
        leaving = None
        if len(self._queue) >= self.limits.waiting:
            leaving = self._gives_way_to(who)
            if leaving is None:
                return "full"
        reason = self._why_not(who, now, self._full_since)
        if reason is not None:
            return reason
        place.state = "waiting"
        self._queue[place] = None
        if leaving is not None:
            # At the end: nobody makes room in vain, and whoever asks again at once finds the queue full.
            self._send_away(leaving)
        return place

    def _why_not(self, who: str, now: float, full_since: float) -> Reason | None:
        wait = self._wait(who, now)
        if wait > self.limits.patience_seconds:
            return "late"
        if wait > self.limits.short_seconds and (
            now < self._strict_until or now - full_since > STANDING_SECONDS
        ):
            self._strict_until = now + CALM_SECONDS
            return "standing"
        return None

    def expire(self) -> float | None:
        """Send those away that have waited for too long. Returns after how many seconds to call this again, None
        where nobody waits."""
        due = self.clock() - self.limits.patience_seconds
        while self._queue:
            first = next(iter(self._queue))
            if first.since > due:
                return first.since - due
            self._send_away(first)
        return None

    def _send_away(self, place: Place) -> None:
        del self._queue[place]
        place.state = "left"
        place.turn(False)

    def take(self, place: Place) -> None:
        place.state = "served"
        self.served += 1

    def free(self, place: Place) -> None:
        """A place has become free: the next in the queue gets it."""
        self.served -= 1
        if self._full_since is not None:
            self._measure()
        self._go_on()

    def _measure(self) -> None:
        self._freed += 1
        now = self.clock()
        if self._freed >= self.limits.places and now - self._measured_since >= PACE_SECONDS:
            self._pace = (now - self._measured_since) / self._freed
            self._freed, self._measured_since = 0, now

    def forget(self, place: Place) -> None:
        """Take a request out of the queue that has been given up."""
        del self._queue[place]

    def _go_on(self) -> None:
        # A loop rather than recursion: a request that is answered at once frees its place from within its own turn.
        if self._calling:
            return
        self._calling = True
        try:
            while (place := self._next()) is not None:
                del self._queue[place]
                self.take(place)
                place.turn(True)
        finally:
            self._calling = False
        if not self._queue and self.served < self.limits.places:
            self._full_since = None

    # What a lane may decide otherwise.

    def _is_next(self, place: Place) -> bool:
        """Whether a request that has just come is served before all that wait."""
        return not self._queue and self.served < self.limits.places

    def _next(self) -> Place | None:
        """The request to be served next; None while no place is free."""
        return next(iter(self._queue)) if self._queue and self.served < self.limits.places else None

    def _wait(self, who: str, now: float) -> float:
        """An estimate of how long another request would wait: at least as long as the first in the queue has."""
        first = next(iter(self._queue), None)
        return max(now - first.since, len(self._queue) * self._pace) if first is not None else 0.0

    def _gives_way_to(self, who: str) -> Place | None:
        """The request that leaves the full queue for another one of ``who``; None where none does."""
        return None


class Pauses:
    """Spreads refusals over time: how long not to listen to a client that was refused."""

    def __init__(self, least: float = LEAST_PAUSE_SECONDS, longest: float = LONGEST_PAUSE_SECONDS) -> None:
        self._least = least
        self._longest = longest
        self._next = float("-inf")

    def after(self, now: float, spacing: float = 1 / REFUSALS_PER_SECOND) -> float:
        """The pause in seconds for a client refused at ``now``, between ``least`` and ``longest``.

        Each pause ends ``spacing`` seconds after the one before it.
        """
        at = max(self._next, now + self._least)
        at = min(at, now + self._longest)
        self._next = at + spacing
        return at - now
