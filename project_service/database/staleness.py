"""How old what a standby shows may be: positions in the write-ahead log, and what follows from them. Pure.

The promise of ``readers`` rests on one observation. Whatever was committed, and acknowledged, before the primary was
asked for its position is before that position in the log. So a standby that has replayed that far shows all of it: it
is *fresh as of* the moment in which the question was sent. All times are those of this process's own clock, which
never goes back, so it does not matter what the clocks of the servers say.

Positions are compared within one history only: one system identifier, and one timeline. After a failover the new
primary has another timeline, and what was known is forgotten.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Hashable

from attrs import define, field, frozen

NEVER = float("-inf")
# What the log's pages begin with. A record never ends within it, so a position there is the same as the page's start,
# which is what a standby names that has replayed everything.
_PAGE_BYTES = 8192
_SHORT_HEADER, _LONG_HEADER = 24, 40
# How many callers' writes are remembered one by one.
MAX_CALLERS = 10_000
# More than one answer names, and a header that is longer is not read.
MAX_TOKENS = 20

_TOKEN = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{1,8})\.([0-9a-f]{1,16})\Z")
# The token of a write of which it is not known how far a standby has to be: only the primary serves it.
PRIMARY = "primary"


@frozen(order=False)
class Position:
    """A place in the log: all bytes before ``lsn`` of this ``timeline``, of the cluster that is ``system``."""

    system: int
    timeline: int
    lsn: int

    @classmethod
    def of_primary(cls, system: int, timeline: int, lsn: int, segment_bytes: int) -> Position:
        """Where a primary inserts next, which may be behind the header of a page that nothing has been written to."""
        header = _LONG_HEADER if lsn % segment_bytes < _PAGE_BYTES else _SHORT_HEADER
        return cls(system, timeline, lsn - header if lsn % _PAGE_BYTES == header else lsn)

    @property
    def history(self) -> tuple[int, int]:
        return self.system, self.timeline

    @property
    def token(self) -> str:
        """The same as an opaque text for clients (``read_tokens``)."""
        return f"{self.system:x}.{self.timeline:x}.{self.lsn:x}"


@frozen
class Wanted:
    """What a request says of how fresh its answer has to be: the positions of writes that it has to show. With
    ``unknown`` some of them cannot be read, and only the primary is sure to show them."""

    positions: tuple[Position, ...] = ()
    unknown: bool = False

    def shown_by(self, replayed: Position) -> bool:
        """Whether a standby that has replayed so far, and is known to be current in its history, shows all of them.

        What was written before a failover is shown by each server of the new history, as far as it was not lost.
        """
        return not self.unknown and all(
            one.system == replayed.system
            and (
                one.timeline < replayed.timeline
                or (one.timeline == replayed.timeline and one.lsn <= replayed.lsn)
            )
            for one in self.positions
        )


NOTHING_WANTED = Wanted()


def read_tokens(header: str) -> Wanted:
    """The tokens of one header, with commas between. What cannot be read counts as ``unknown``: it is not an error,
    for it may come from another version of the service, or be that of a write whose position nobody knows."""
    texts = [text.strip() for text in header.split(",", MAX_TOKENS)]
    matches = [_TOKEN.match(text) for text in texts if text]
    positions = []
    for match in matches:
        if match is not None:
            system, timeline, lsn = (int(part, 16) for part in match.groups())
            positions.append(Position(system, timeline, lsn))
    return Wanted(tuple(positions), unknown=len(positions) < len(matches) or len(texts) > MAX_TOKENS)


@define(eq=False)
class Samples:
    """Positions of the primary, each with the time before which it was asked for. They are kept for ``seconds``.
    ``server`` is which run of which server gave the latest."""

    seconds: float
    server: Hashable = field(default=None, init=False)
    _taken: deque[tuple[float, Position]] = field(factory=deque, init=False)

    @property
    def latest(self) -> Position | None:
        return self._taken[-1][1] if self._taken else None

    def add(self, asked: float, position: Position) -> bool:
        """Add what the primary answered to a question that was sent at ``asked``. Returns whether the history goes
        on: if not, because it is another one or goes back, all earlier samples are forgotten."""
        latest = self.latest
        goes_on = latest is None or (latest.history == position.history and latest.lsn <= position.lsn)
        if not goes_on:
            self._taken.clear()
        elif latest is not None and latest.lsn == position.lsn:
            # The same position, later: whoever has reached it is fresh as of the later time.
            asked = max(asked, self._taken.pop()[0])
        self._taken.append((asked, position))
        while len(self._taken) > 1 and self._taken[0][0] < asked - self.seconds:
            self._taken.popleft()
        return goes_on

    def fresh_as_of(self, replayed: Position) -> float:
        """As of when a standby is fresh that has replayed so far: all that was acknowledged before is shown there.
        ``NEVER`` if that is not known."""
        for asked, position in reversed(self._taken):
            if position.history == replayed.history and position.lsn <= replayed.lsn:
                return asked
        return NEVER

    def contradicts(self, replayed: Position) -> bool:
        """Whether no standby of this primary can have replayed so far before the latest sample was asked for: then
        the two have parted, as after a primary was set back to an earlier state."""
        latest = self.latest
        return latest is not None and latest.history == replayed.history and latest.lsn < replayed.lsn


@define(eq=False)
class Writers:
    """When callers wrote the last time. Each is remembered for ``seconds``; where there are too many, those who wrote
    longest ago count from then on as if they had written together, and so does everybody of whom nothing is known."""

    seconds: float
    limit: int = MAX_CALLERS
    _written: OrderedDict[Hashable, float] = field(factory=OrderedDict, init=False)
    _others: float = field(default=NEVER, init=False)

    def wrote(self, caller: Hashable, now: float) -> None:
        self._written[caller] = now
        self._written.move_to_end(caller)
        while self._written:
            oldest, then = next(iter(self._written.items()))
            if then < now - self.seconds:
                del self._written[oldest]
            elif len(self._written) > self.limit:
                del self._written[oldest]
                self._others = then
            else:
                return

    def last(self, caller: Hashable) -> float:
        """No earlier than when ``caller`` wrote the last time; ``NEVER`` if that is longer ago than ``seconds``."""
        return self._written.get(caller, self._others)
