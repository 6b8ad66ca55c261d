"""How many rows to read at once, to see whether a result fits into one reply. What does not fit is streamed.

PostgreSQL makes a body of at most so many rows, and returns it if it is not too large; so one statement answers
whatever fits. The number follows from the size of rows, which is learnt from earlier results: for a relation and what
is selected of it, and not for each request.
"""

from __future__ import annotations

from attrs import define, field

from project_service.tables.respond.outcome import Outcome

# PostgreSQL needs longer to make one body of more rows than these than to open a cursor.
MOST_ROWS = 10_000
# The first number where nothing is known of the size: for views, partitioned and foreign tables, or before ANALYZE.
UNKNOWN_ROWS = 100


@define
class Probe:
    """``rows`` are read at once; a body of more than ``threshold_bytes`` is left out."""

    rows: int
    threshold_bytes: int

    def fits(self, outcome: Outcome, asked: int) -> bool:
        """Whether ``outcome`` has the whole result, given that ``asked`` rows were allowed."""
        return outcome.rows <= asked and outcome.size <= self.threshold_bytes

    def again(self, outcome: Outcome, asked: int) -> bool:
        """Learn from an outcome that did not fit. True where it is worth running the statement again, because many
        more rows than ``asked`` would have fitted."""
        likely = self.threshold_bytes * outcome.rows // max(outcome.size, 1)
        # A quarter more, since rows differ, but never more than ``asked`` where those were too large.
        likely = max(1, min(MOST_ROWS, likely + likely // 4))
        if outcome.size > self.threshold_bytes:
            self.rows = min(asked, likely)
            return False
        self.rows = max(asked, likely)
        return likely >= 2 * asked


# A statement is quick once so many runs in a row took at most so long and made at most so large a body; it is no more
# after one that took longer, held others up, or failed.
QUICK_RUNS = 3
QUICK_SECONDS = 0.002
SMALL_BYTES = 64 * 1024


@define
class Pace:
    """How long the runs of a statement take the server."""

    is_quick: bool = field(default=False, init=False)
    _runs: int = field(default=0, init=False)

    def ran(self, seconds: float, size: int) -> None:
        """A run took ``seconds`` and made ``size`` bytes."""
        if seconds > QUICK_SECONDS or size > SMALL_BYTES:
            self.failed()
        else:
            self._runs += 1
            self.is_quick = self._runs >= QUICK_RUNS

    def failed(self) -> None:
        """A run was refused, or was slow where others wait behind it."""
        self._runs, self.is_quick = 0, False


@define
class LastTime:
    """How the last request of a shape was answered."""

    streamed: bool = False


def first_probe(row_bytes: int, threshold_bytes: int) -> Probe:
    """``row_bytes`` is what the catalogue says of a row's size, 0 where it says nothing."""
    most = MOST_ROWS if row_bytes else UNKNOWN_ROWS
    return Probe(max(1, min(most, threshold_bytes // max(row_bytes, 1))), threshold_bytes)
