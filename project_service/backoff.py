"""Growing pauses between the attempts at something that fails."""

from __future__ import annotations

from attrs import define, field

# The first and the longest pause before a child that died is started again, in seconds.
CHILD_PAUSES = (1.0, 30.0)
# A child that ran for this long counts as recovered: when it dies, the pauses begin with the first one again.
STEADY_SECONDS = 60.0


@define
class Backoff:
    """``pause`` is the number of seconds to wait before the next attempt; 0 as long as the last one succeeded.

    It is ``first`` after one failure and doubles with each further one, up to ``longest``.
    """

    first: float
    longest: float
    pause: float = field(default=0.0, init=False)

    def failed(self) -> float:
        """To be told that an attempt has failed. Returns the new pause."""
        self.pause = min(max(self.pause * 2, self.first), self.longest)
        return self.pause

    def succeeded(self) -> None:
        self.pause = 0.0
