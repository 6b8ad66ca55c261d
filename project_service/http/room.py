"""How many connections there may be, and which of them makes room for a new one when there are so many.

Nobody has to go before that, however slow. Then who has waited for longest for its next request goes first; then who
sends its body most slowly, which is told 408; last, who has only just come and not asked for anything yet.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

# So much time is given to a client that has just come, and to one that has just been asked for its body.
GRACE_SECONDS = 5.0
# Who sends faster than this, on the whole, is not slow: it does not go for a new one, which could be slower.
SLOW_BYTES_PER_SECOND = 1024
# Looking through all connections is not cheap. What was found serves for a hundredth of them; where less was, nobody
# looks again before so long.
SEARCH_SECONDS = 0.5


class Occupant(Protocol):
    """What is asked of a connection."""

    @property
    def idle_since(self) -> float | None:
        """Since when no request is being answered here; None while one is, or when the connection is closing."""

    def sent(self, now: float) -> tuple[int, float] | None:
        """Of the body that its client is waited for: the bytes that have come, and the seconds it has had for them.
        None while it is not the client who is waited for."""

    def time_out(self) -> None:
        """What the client does not send is not waited for any more."""

    def abort(self) -> None: ...


Connection = TypeVar("Connection", bound=Occupant)


class Room(Generic[Connection]):
    """For ``most`` connections; those that were told to go do not count, but for a tenth at most."""

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self.connections: set[Connection] = set()
        self._most = most
        self._now = now
        # Both in order: who was told first, who is to go next.
        self._leaving: dict[Connection, None] = {}
        self._next: dict[Connection, None] = {}
        self._searched_at = float("-inf")
        self._found_enough = True

    def enter(self, connection: Connection) -> None:
        self.connections.add(connection)

    def leave(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._leaving.pop(connection, None)
        self._next.pop(connection, None)

    def for_one_more(self) -> bool:
        """There is room, or somebody has been told to make it."""
        if len(self.connections) - len(self._leaving) < self._most:
            return True
        now = self._now()
        late = now - self._searched_at >= SEARCH_SECONDS
        goes = None if late else self._who_goes(now)
        if goes is None and (late or self._found_enough):
            self._search(now)
            goes = self._who_goes(now)
        if goes is None:
            return False
        self._send_away(goes)
        return True

    def _search(self, now: float) -> None:
        wanted = self._most // 100 + 1
        ranked = [
            (rank, connection)
            for connection in self.connections - self._leaving.keys()
            if (rank := _rank(connection, now)) is not None
        ]
        first = nsmallest(wanted, ranked, key=itemgetter(0))
        self._next = dict.fromkeys(connection for _, connection in first)
        self._found_enough = len(first) == wanted
        self._searched_at = now

    def _who_goes(self, now: float) -> Connection | None:
        """Of those that were found, the first that would still be."""
        while self._next:
            connection = next(iter(self._next))
            del self._next[connection]
            if _rank(connection, now) is not None:
                return connection
        return None

    def _send_away(self, connection: Connection) -> None:
        if len(self._leaving) > self._most // 10:
            # Who takes its time even for that is cut off; it is gone in the reactor's next turn.
            slowest = next(iter(self._leaving))
            self._leaving[slowest] = self._leaving.pop(slowest)
            slowest.abort()
        self._leaving[connection] = None
        connection.time_out()


def _rank(connection: Occupant, now: float) -> tuple[int, float] | None:
    """The least goes first; None stays."""
    since = connection.idle_since
    if since is not None:
        return (0 if now - since >= GRACE_SECONDS else 2, since)
    sent = connection.sent(now)
    if sent is None:
        return None
    size, seconds = sent
    if seconds < GRACE_SECONDS or size >= seconds * SLOW_BYTES_PER_SECOND:
        return None
    return (1, size / seconds)
