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
    """Room for ``most`` connections: once there are that many, an old one is closed for each new one.

    Below the limit no connection is closed for being slow. At the limit the first to be closed are those that have
    been idle for longest, then those whose body arrives most slowly (they are answered 408), and last those that have
    only just been opened and have not sent a request yet. Those that were told to go do not count, up to a tenth of
    ``most``.
    """

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


# After a rejection nothing is accepted for so long, and then so many at first; Twisted would accept a hundred.
PAUSE_SECONDS = 0.02
FIRST_ACCEPTS = 10


class Port(Protocol):
    """The part of a ``twisted.internet.tcp.Port`` that is used here."""

    connected: bool
    numberAccepts: int

    def stopReading(self) -> None: ...
    def startReading(self) -> None: ...


class AcceptThrottle:
    """Stops accepting on ``ports`` for a moment when a connection was rejected for lack of room.

    Purpose: a client that was rejected comes back at once on a new connection, and accepting one only to reject it
    costs as much as serving a request. Plan: such connections wait in the kernel's queue, where they cost nothing and
    where another process that shares the port may accept them. Cost: a rejection comes up to ``PAUSE_SECONDS`` later,
    and some more under a flood. Figure: beside 64 clients that came back at once, those that were connected kept
    three quarters of their answers a second, and without it a seventh; beside 1,000, more than half and a fiftieth.
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


# What may wait for its clients in one process.
MOST_BYTES = 256 * 1024 * 1024
# Less than this is not counted: streamed responses hold as much.
LARGE_BYTES = 512 * 1024


class Reader(Protocol):
    """What ``UnsentLimit`` needs of a connection."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes that were written and that the kernel has not been given yet."""

    def abort(self) -> None: ...


@define
class _Left:
    """``bytes`` were left at ``since``; there may be fewer now."""

    bytes: int
    since: float


class UnsentLimit:
    """Once more than ``most`` bytes are waiting for their clients, whoever takes them most slowly is cut off.

    Purpose: a streamed response waits for its client, but one that is written whole stays in memory until the client
    has taken it, and one of the table API may be as large as PostgreSQL can make it. Plan: large ones are counted.
    Those who have had ``GRACE_SECONDS`` for theirs go first, and those who have had less than a second go last.
    Cost: one comparison for each write. Figure: 200 clients that asked for 6 MB each and read nothing took 363 MiB at
    most, and without it 676 MiB and more with each further one.
    """

    def __init__(self, now: Callable[[], float], most: int = MOST_BYTES) -> None:
        self._now = now
        self._most = most
        self._left: dict[Reader, _Left] = {}
        # Never less than there is.
        self._total = 0

    def wrote(self, reader: Reader) -> None:
        """Much has been written to ``reader``, which is never cut off for it: others have had more time."""
        self.leave(reader)
        left = reader.unsent_bytes
        if left < LARGE_BYTES:
            return
        self._left[reader] = _Left(left, self._now())
        self._total += left
        if self._total > self._most:
            self._make_room(reader)

    def leave(self, reader: Reader) -> None:
        left = self._left.pop(reader, None)
        if left is not None:
            self._total -= left.bytes

    def _make_room(self, last: Reader) -> None:
        still = {reader: reader.unsent_bytes for reader in self._left}
        for reader in [reader for reader, left in still.items() if left < LARGE_BYTES]:
            self.leave(reader)
            del still[reader]
        total, now = sum(still.values()), self._now()

        def pace(reader: Reader) -> tuple[bool, bool, float]:
            left = self._left[reader]
            seconds = now - left.since
            return seconds < GRACE_SECONDS, seconds < 1.0, (left.bytes - still[reader]) / max(seconds, 1.0)

        for reader in sorted(still.keys() - {last}, key=pace):
            if total <= self._most:
                return
            total -= still[reader]
            self.leave(reader)
            reader.abort()
