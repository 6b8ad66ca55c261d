"""A lane in which no client can occupy all places, or the whole queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from attrs import define, field

from project_service.http.overload.admission import Lane, Place


@define(eq=False)
class FairLane(Lane):
    """Clients take turns, and none of them has the last ``limits.spare`` places.

    The client with the fewest requests being served is next; of several such, whoever came first. A full queue makes
    room for whoever has less in it.
    """

    _served_by: Counter[str] = field(factory=Counter, init=False)

    def take(self, place: Place) -> None:
        self._served_by[place.who] += 1
        super().take(place)

    def free(self, place: Place) -> None:
        self._served_by -= Counter((place.who,))  # which forgets those that have none
        super().free(place)

    def _is_next(self, place: Place) -> bool:
        return self._next_of([*self._queue, place]) is place

    def _next(self) -> Place | None:
        return self._next_of(self._queue)

    def _next_of(self, queue: Iterable[Place]) -> Place | None:
        if self.served >= self.limits.places:
            return None
        first = min(queue, key=lambda place: self._served_by[place.who], default=None)
        most = self.limits.places - self.limits.spare
        return first if first is not None and self._served_by[first.who] < most else None

    def _wait(self, who: str, now: float) -> float:
        counts = Counter(place.who for place in self._queue)
        mine = counts.pop(who, 0)
        before = mine + sum(min(count, mine + 1) for count in counts.values())
        return before * self._pace

    def _gives_way_to(self, who: str) -> Place | None:
        """The last request of the client that has most in the queue, unless that is no more than ``who`` would
        have."""
        counts = Counter(place.who for place in self._queue)
        most = max(counts, key=counts.__getitem__, default=who)
        if counts[most] <= counts[who] + 1:
            return None
        return next(place for place in reversed(self._queue) if place.who == most)
