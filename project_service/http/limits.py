"""What bounds a process's connections and the memory of what their clients do not read.

``ConnectionLimit``: how many connections there are. ``AcceptThrottle``: how fast those beyond are rejected.
``UnsentLimit``: how much has been written that clients have not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from attrs import define
from twisted.internet.interfaces import IReactorTime

# A client that has just connected, or was just asked for its body, has this long before it counts as idle or slow.
GRACE_SECONDS = 5.0
# A body that arrives faster than this on average is never broken off: the new client might well be slower.
SLOW_BYTES_PER_SECOND = 1024
# Looking through all connections is not cheap. One search collects candidates, a hundredth of the connections; if
# there were fewer, the next search is made only after so long.
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
    """Room for ``max_connections``: once there are that many, an old one is closed for each new one.

    Below the limit no connection is closed for being slow. At the limit the first to be closed are those that have
    been idle for longest, then those whose body arrives most slowly (they are answered 408), and last those that have
    only just been made and have not sent a request yet. Those that are closing do not count, up to a tenth of
    ``max_connections``.
    """

    def __init__(self, max_connections: int, now: Callable[[], float]) -> None:
        self.connections: set[Connection] = set()
        self._max = max_connections
        self._now = now
        # Ordered: those that were timed out, longest ago first; and the candidates of the last search, best first.
        self._closing: dict[Connection, None] = {}
        self._candidates: dict[Connection, None] = {}
        self._searched_at = float("-inf")
        self._enough_candidates = True

    def enter(self, connection: Connection) -> None:
        self.connections.add(connection)

    def leave(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._closing.pop(connection, None)
        self._candidates.pop(connection, None)

    def for_one_more(self) -> bool:
        """Whether there is room for a new connection; if necessary, another one is timed out for it."""
        if len(self.connections) - len(self._closing) < self._max:
            return True
        now = self._now()
        late = now - self._searched_at >= SEARCH_SECONDS
        candidate = None if late else self._candidate(now)
        if candidate is None and (late or self._enough_candidates):
            self._search(now)
            candidate = self._candidate(now)
        if candidate is None:
            return False
        self._time_out(candidate)
        return True

    def _search(self, now: float) -> None:
        wanted = self._max // 100 + 1
        ranked = [
            (rank, connection)
            for connection in self.connections - self._closing.keys()
            if (rank := _rank(connection, now)) is not None
        ]
        first = nsmallest(wanted, ranked, key=itemgetter(0))
        self._candidates = dict.fromkeys(connection for _, connection in first)
        self._enough_candidates = len(first) == wanted
        self._searched_at = now

    def _candidate(self, now: float) -> Connection | None:
        """The first candidate of the last search that is still idle or slow."""
        while self._candidates:
            connection = next(iter(self._candidates))
            del self._candidates[connection]
            if _rank(connection, now) is not None:
                return connection
        return None

    def _time_out(self, connection: Connection) -> None:
        if len(self._closing) > self._max // 10:
            # The one that has been closing for longest is cut off. It is gone in the reactor's next turn.
            slowest = next(iter(self._closing))
            self._closing[slowest] = self._closing.pop(slowest)
            slowest.abort()
        self._closing[connection] = None
        connection.time_out()


def _rank(connection: LimitedConnection, now: float) -> tuple[int, float] | None:
    """The order in which connections are closed, lowest first; None for one that is not closed at all."""
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


# After a rejection nothing is accepted for so long, and then only so many; Twisted would accept a hundred.
PAUSE_SECONDS = 0.02
FIRST_ACCEPTS = 10


class Port(Protocol):
    """The part of a ``twisted.internet.tcp.Port`` that is used here."""

    connected: bool
    numberAccepts: int

    def stopReading(self) -> None: ...
    def startReading(self) -> None: ...


class AcceptThrottle:
    """Stops accepting on ``ports`` for a moment after a connection was rejected for lack of room.

    Purpose: a client that was rejected comes back at once on a new connection, and accepting one only to reject it
    costs as much as serving a request. Plan: such connections wait in the kernel's queue, where they cost nothing and
    where another process that shares the port may accept them. Cost: a rejection comes up to ``PAUSE_SECONDS`` later,
    and some more under a flood. Figure: beside 64 clients that came back at once, those that were connected kept
    three quarters of their responses a second, and without it a seventh; beside 1,000, more than half and a fiftieth.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self.ports: Sequence[Port] = ()
        self._clock = clock
        self._paused = False

    def rejected(self) -> None:
        """To be called for each connection that is rejected."""
        if self.ports and not self._paused:
            self._paused = True
            for port in self._open():
                port.stopReading()
            self._clock.callLater(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._paused = False
        for port in self._open():
            port.numberAccepts = FIRST_ACCEPTS
            port.startReading()

    def _open(self) -> list[Port]:
        return [port for port in self.ports if port.connected]


# The bytes that may wait for their clients in one process.
MAX_UNSENT_BYTES = 256 * 1024 * 1024
# Less than this is not counted: streamed responses hold as much.
LARGE_BYTES = 512 * 1024


class UnsentConnection(Protocol):
    """What ``UnsentLimit`` needs of a connection."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes that were written and that the kernel has not been given yet."""

    def abort(self) -> None: ...


@define
class _Unsent:
    """``bytes`` were unsent at ``since``; there may be fewer now."""

    bytes: int
    since: float


class UnsentLimit:
    """Once more than ``max_bytes`` are waiting for their clients, the client that takes them most slowly is cut off.

    Purpose: a streamed response waits for its client, but one that is written whole stays in memory until the client
    has taken it, and that may be as large as a database can make it. Plan: large ones are counted. Clients that have
    had ``GRACE_SECONDS`` for theirs are cut off first, and those that have had less than a second last. Cost: one
    comparison for each write. Figure: 200 clients that asked for 6 MB each and read nothing took at most 363 MiB, and
    without it 676 MiB and more with each further one.
    """

    def __init__(self, now: Callable[[], float], max_bytes: int = MAX_UNSENT_BYTES) -> None:
        self._now = now
        self._max = max_bytes
        self._counted: dict[UnsentConnection, _Unsent] = {}
        # Never less than there is.
        self._total = 0

    def wrote(self, connection: UnsentConnection) -> None:
        """Much has been written to ``connection``, which is never cut off for it: others have had more time."""
        self.leave(connection)
        unsent = connection.unsent_bytes
        if unsent < LARGE_BYTES:
            return
        self._counted[connection] = _Unsent(unsent, self._now())
        self._total += unsent
        if self._total > self._max:
            self._make_room(connection)

    def leave(self, connection: UnsentConnection) -> None:
        counted = self._counted.pop(connection, None)
        if counted is not None:
            self._total -= counted.bytes

    def _make_room(self, last: UnsentConnection) -> None:
        still = {connection: connection.unsent_bytes for connection in self._counted}
        for connection in [connection for connection, unsent in still.items() if unsent < LARGE_BYTES]:
            self.leave(connection)
            del still[connection]
        total, now = sum(still.values()), self._now()

        def pace(connection: UnsentConnection) -> tuple[bool, bool, float]:
            counted = self._counted[connection]
            seconds = now - counted.since
            taken = counted.bytes - still[connection]
            return seconds < GRACE_SECONDS, seconds < 1.0, taken / max(seconds, 1.0)

        for connection in sorted(still.keys() - {last}, key=pace):
            if total <= self._max:
                return
            total -= still[connection]
            self.leave(connection)
            connection.abort()
