"""How quick the latest reads of one kind were, which decides whether they may share a connection (``sharing``)."""

from __future__ import annotations

from attrs import define

# A statement is quick once so many runs in a row took at most so long and made at most so large a body.
QUICK_RUNS = 3
QUICK_SECONDS = 0.002
SMALL_BYTES = 64 * 1024
# After it had to be ended it needs so many more. Counted, not timed: so what is asked often is soon back after a
# stall of the whole server, and a kind that is slow on purpose holds others up once in a thousand times.
RUNS_AFTER_LIMIT = 1000


@define(eq=False)
class Quickness:
    """How quick the latest reads of one kind were: ``is_quick`` says that they do not hold up others.

    ``quick_runs`` is how many in a row were quick, and below zero for a while after one had to be ended. ``doubted``
    says that they were quick until one was slow on a shared connection, which may have been the neighbours' fault.
    """

    needed: int = QUICK_RUNS
    quick_runs: int = 0
    doubted: bool = False

    @classmethod
    def known(cls) -> Quickness:
        """Of reads that are quick unless it turns out otherwise."""
        return cls(quick_runs=QUICK_RUNS)

    @property
    def is_quick(self) -> bool:
        return self.quick_runs >= self.needed

    @property
    def is_slow(self) -> bool:
        """Whether a read of this kind had to be ended not long ago."""
        return self.quick_runs < 0

    def ran(self, seconds: float, size: int = 0) -> None:
        """A run took ``seconds`` and made ``size`` bytes."""
        if seconds > QUICK_SECONDS or size > SMALL_BYTES:
            self.failed()
        else:
            self.quick_runs += 1

    def failed(self) -> None:
        """A run was refused, or was slow."""
        self.quick_runs, self.doubted = min(self.quick_runs, 0), False

    def doubt(self) -> None:
        """A run was slow where others wait behind it."""
        if self.quick_runs >= 0:
            self.quick_runs, self.doubted = 0, True

    def exceeded(self) -> None:
        """A run exceeded the limit of a shared connection."""
        self.quick_runs, self.doubted = -RUNS_AFTER_LIMIT, False
