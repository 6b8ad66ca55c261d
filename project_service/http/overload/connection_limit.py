"""Limits the number of connections: once there are that many, an old one is closed for each new one.

Below the limit no connection is closed for being slow. At the limit the first to be closed are those that have been
idle for longest, then those whose body arrives most slowly (they are answered 408), and last those that have only
just been opened and have not sent a request yet.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

# A client that has just connected, or was just asked for its body, has this long before it counts as idle or slow.
GRACE_SECONDS = 5.0
# A body that arrives faster than this on average is never broken off: the new client might well be slower.
SLOW_BYTES_PER_SECOND = 1024
# Looking through all connections is not cheap. One search finds candidates for a hundredth of the connections; where
# it found fewer, the next search is made only after so long.
SEARCH_SECONDS = 0.5


class LimitedConnection(Protocol):
    """What ``ConnectionLimit`` needs of a connection."""

    @property
    def idle_since(self) -> float | None:
        """Since when the connection has been idle; None while a request is being answered or it is closing."""

    def sent(self, now: float) -> tuple[int, float] | None:
        """The bytes of the current body that have come, and the seconds that the client has had for them. None while
        nobody waits for the client to send a body."""

    def time_out(self) -> None:
        """Stop waiting for the client: close the connection, or answer 408 where a body is incomplete."""

    def abort(self) -> None: ...


Connection = TypeVar("Connection", bound=LimitedConnection)


class ConnectionLimit(Generic[Connection]):
    """Room for ``most`` connections. Those that were told to go do not count, up to a tenth of ``most``."""

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self.connections: set[Connection] = set()
        self._most = most
        self._now = now
        # Ordered: those told to go, longest ago first; and the candidates of the last search, best first.
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
        """Whether a new connection may be opened; where necessary another one has been told to go for it."""
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
        """The first candidate of the last search that is still idle or slow."""
        while self._next:
            connection = next(iter(self._next))
            del self._next[connection]
            if _rank(connection, now) is not None:
                return connection
        return None

    def _send_away(self, connection: Connection) -> None:
        if len(self._leaving) > self._most // 10:
            # One that was told to go, and is in no hurry, is cut off. It is gone in the reactor's next turn.
            slowest = next(iter(self._leaving))
            self._leaving[slowest] = self._leaving.pop(slowest)
            slowest.abort()
        self._leaving[connection] = None
        connection.time_out()


def _rank(connection: LimitedConnection, now: float) -> tuple[int, float] | None:
    """The order in which connections are closed, the least first; None for one that is not closed at all."""
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
