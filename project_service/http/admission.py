"""Who is served, who waits for a moment, and who is told at once that there is too much to do. Pure.

Each part has a *lane*: so many requests are served at once, so many more may wait. Waiting is for bursts. A lane in
which requests have had to wait for ``STANDING_SECONDS`` without a break has more to do than it can, and a longer
queue would only make everybody later: from then on who would wait longer than its ``short_seconds`` is refused, until
nobody has had to be for ``CALM_SECONDS`` (the idea of CoDel, RFC 8289: what tells overload is not the length of a
queue but a delay that does not go away).

Only what waits for the service counts: a request that waits for its own client, to send its body or to read its
answer, has no place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal
from urllib.parse import unquote_to_bytes

from attrs import define, field, frozen

STANDING_SECONDS = 0.5
SHORT_SECONDS = 0.1
CALM_SECONDS = 2.0
# A lane's pace is measured for so long at least, and over one request of each place.
PACE_SECONDS = 0.1
# Refusing costs time too. A connection is read again only a while after a refusal, the longer the more there are of
# them: however many clients ask again at once, there are no more refusals than these, and one for four requests that
# are served where that is less.
REFUSALS_PER_SECOND = 500.0
LEAST_REFUSALS_PER_SECOND = 50.0
SERVED_FOR_EACH_REFUSAL = 4
LEAST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0

Reason = Literal["full", "standing", "late"]
# Where a request is: in the queue, being served, waiting for its own client, or done with.
State = Literal["waiting", "served", "outside", "left"]

_PASSWORD_PATHS = frozenset({b"/auth/signup", b"/auth/login", b"/auth/reset", b"/auth/user"})


@frozen
class Limits:
    """Of a lane: ``places`` are served at once, ``waiting`` more may wait, each for ``patience_seconds`` at most, and
    where waiting has become the rule for ``short_seconds``."""

    places: int
    waiting: int
    patience_seconds: float
    short_seconds: float = SHORT_SECONDS


@define(eq=False)
class Place:
    """One request in its lane. If it has to wait, ``turn`` is called once: true when its turn has come, false when
    it waited for too long and has no place any more."""

    lane: Lane
    since: float
    turn: Callable[[bool], None]
    state: State = "outside"

    @property
    def waiting(self) -> bool:
        return self.state == "waiting"

    def leave(self) -> None:
        """Served, or given up; once is enough."""
        before, self.state = self.state, "left"
        if before == "waiting":
            self.lane.forget(self)
        elif before == "served":
            self.lane.free()

    def awaits_client(self, waiting: bool) -> None:
        """Whether it waits for its own client now, or goes on."""
        if waiting:
            self.step_out()
        else:
            self.step_in()

    def step_out(self) -> None:
        """It waits for its own client now."""
        if self.state == "served":
            self.state = "outside"
            self.lane.free()

    def step_in(self) -> None:
        """It goes on. It is served whatever there is to do: it was admitted before."""
        if self.state == "outside":
            self.lane.take(self)


@define(eq=False)
class Lane:
    limits: Limits
    clock: Callable[[], float]
    served: int = 0
    _queue: OrderedDict[Place, None] = field(factory=OrderedDict)
    _full_since: float | None = None
    _strict_until: float = float("-inf")
    _calling: bool = False
    # Seconds from one freed place to the next while there is no free one.
    _pace: float = 0.0
    _freed: int = 0
    _measured_since: float = 0.0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def spacing(self) -> float:
        """The time from one refusal to the next that the lane's own work can bear."""
        bearable = max(1 / REFUSALS_PER_SECOND, SERVED_FOR_EACH_REFUSAL * self._pace)
        return min(bearable, 1 / LEAST_REFUSALS_PER_SECOND)

    def enter(self, turn: Callable[[bool], None]) -> Place | Reason:
        """A place, at once or to wait for (``Place.waiting``); otherwise why there is none."""
        now = self.clock()
        place = Place(self, now, turn)
        if self.served < self.limits.places and not self._queue:
            self.take(place)
            return place
        if self._full_since is None:
            self._full_since = self._measured_since = now
            self._freed = 0
        reason = self._why_not(now, self._full_since)
        if reason is not None:
            return reason
        place.state = "waiting"
        self._queue[place] = None
        return place

    def _why_not(self, now: float, full_since: float) -> Reason | None:
        if len(self._queue) >= self.limits.waiting:
            return "full"
        wait = self._wait(now)
        if wait > self.limits.patience_seconds:
            return "late"
        if wait > self.limits.short_seconds and (
            now < self._strict_until or now - full_since > STANDING_SECONDS
        ):
            self._strict_until = now + CALM_SECONDS
            return "standing"
        return None

    def _wait(self, now: float) -> float:
        """How long one more would have to wait, as far as can be told: at least as long as who is next has."""
        if not self._queue:
            return 0.0
        return max(now - next(iter(self._queue)).since, len(self._queue) * self._pace)

    def expire(self) -> float | None:
        """Give up on who has waited for too long; in how many seconds to look again, None with nobody waiting."""
        due = self.clock() - self.limits.patience_seconds
        while self._queue:
            first = next(iter(self._queue))
            if first.since > due:
                return first.since - due
            self._queue.popitem(last=False)
            first.state = "left"
            first.turn(False)
        return None

    def take(self, place: Place) -> None:
        place.state = "served"
        self.served += 1

    def free(self) -> None:
        """One that was served is not any more."""
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
        """One that has been waiting."""
        del self._queue[place]

    def _go_on(self) -> None:
        # One after the other: a request that is answered at once leaves its place from within its own turn.
        if self._calling:
            return
        self._calling = True
        try:
            while self._queue and self.served < self.limits.places:
                place, _ = self._queue.popitem(last=False)
                self.take(place)
                place.turn(True)
        finally:
            self._calling = False
        if self.served < self.limits.places:
            self._full_since = None


class Pauses:
    """For how long nothing more is heard from who was refused."""

    def __init__(self, least: float = LEAST_PAUSE_SECONDS, longest: float = LONGEST_PAUSE_SECONDS) -> None:
        self._least = least
        self._longest = longest
        self._next = float("-inf")

    def after(self, now: float, spacing: float = 1 / REFUSALS_PER_SECOND) -> float:
        """``spacing`` is the time from one refusal to the next that there should be."""
        at = max(self._next, now + self._least)
        at = min(at, now + self._longest)
        self._next = at + spacing
        return at - now


class Admission:
    """``limits`` by the names that ``lane_of`` gives; what has none is always served: it costs next to nothing."""

    def __init__(self, limits: Mapping[str, Limits], clock: Callable[[], float]) -> None:
        self.lanes = {name: Lane(limit, clock) for name, limit in limits.items()}
        self.pauses = Pauses()

    def lane(self, method: str, target: bytes) -> tuple[str, Lane | None]:
        name = lane_of(method, target)
        return name, self.lanes.get(name)


def lane_of(method: str, target: bytes) -> str:
    """``auth``, ``passwords`` (what hashes one), ``storage``, ``tables:STAGE/DATABASE``, or ``-`` for all others."""
    path = target.partition(b"?")[0]
    return _recent_lane(method, path) if len(method) + len(path) <= 256 else _lane_of(method, path)


def _lane_of(method: str, path: bytes) -> str:
    segments = path.split(b"/", 5)
    if len(segments) < 3:
        return "-"
    first, second = segments[1], segments[2]
    if first == b"admin" and second == b"users":
        return "passwords" if method in ("POST", "PATCH") else "auth"
    if first == b"auth":
        return "passwords" if path in _PASSWORD_PATHS and method in ("POST", "PATCH", "DELETE") else "auth"
    if first == b"storage" or (first == b"admin" and second == b"buckets"):
        return "storage"
    if second == b"db" and len(segments) > 4 and segments[4] == b"rest":
        return f"tables:{_plain(first)}/{_plain(segments[3])}"
    return "-"


_recent_lane = lru_cache(maxsize=1024)(_lane_of)


def _plain(segment: bytes) -> str:
    return unquote_to_bytes(segment).decode("utf-8", "replace")
