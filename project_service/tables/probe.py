"""How many rows are read at once to see whether they fit into one reply; what does not fit is streamed.

PostgreSQL makes the body of at most so many rows and hands it over if it is not too large, so one statement answers
whatever fits. How wide rows are is learnt from those that came: for a relation and what is selected of it, not for
each request.
"""

from __future__ import annotations

from attrs import define

from project_service.tables.respond.outcome import Outcome

# More small rows than these take PostgreSQL longer to gather than a cursor takes to begin.
MOST_ROWS = 10_000
# Where nothing is known of their size: of views, partitioned and foreign tables, or before ANALYZE.
UNKNOWN_ROWS = 100


@define
class Probe:
    """``rows`` are read at once; a body beyond ``threshold_bytes`` is not handed over."""

    rows: int
    threshold_bytes: int

    def fits(self, outcome: Outcome, asked: int) -> bool:
        """Whether the body is there and whole, ``asked`` rows having been allowed."""
        return outcome.rows <= asked and outcome.size <= self.threshold_bytes

    def again(self, outcome: Outcome, asked: int) -> bool:
        """What does not fit, of ``asked`` rows, teaches how many would: True if many more than that."""
        likely = self.threshold_bytes * outcome.rows // max(outcome.size, 1)
        # Some more, since rows differ; never more of such that proved too wide.
        likely = max(1, min(MOST_ROWS, likely + likely // 4))
        if outcome.size > self.threshold_bytes:
            self.rows = min(asked, likely)
            return False
        self.rows = max(asked, likely)
        return likely >= 2 * asked


@define
class LastTime:
    """How the last request of a shape was answered."""

    streamed: bool = False


def first_probe(row_bytes: int, threshold_bytes: int) -> Probe:
    """``row_bytes`` is what the catalogue says of a row's size, 0 where it says nothing."""
    most = MOST_ROWS if row_bytes else UNKNOWN_ROWS
    return Probe(max(1, min(most, threshold_bytes // max(row_bytes, 1))), threshold_bytes)
