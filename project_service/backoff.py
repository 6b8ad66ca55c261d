"""How long to wait before a child that died is started again."""

from __future__ import annotations

from attrs import frozen

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
# A child that ran for this long counts as recovered: when it dies, the pauses begin with the first one again.
STEADY_SECONDS = 60.0


@frozen
class Backoff:
    """``pause`` is the number of seconds to wait before the next start; None as long as the child has never died."""

    pause: float | None = None

    def after(self, uptime: float) -> Backoff:
        """The state after a death that followed ``uptime`` seconds of life: the pause doubles, up to the longest."""
        if self.pause is None or uptime >= STEADY_SECONDS:
            return Backoff(FIRST_SECONDS)
        return Backoff(min(self.pause * 2, LONGEST_SECONDS))
