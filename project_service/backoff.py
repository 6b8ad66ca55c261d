"""How long to wait before a child that died is started again."""

from __future__ import annotations

from attrs import frozen

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
# Who was up for this long had recovered: the next death starts from the first pause again.
STEADY_SECONDS = 60.0


@frozen
class Backoff:
    """``pause`` before the next start; None when there was no death yet."""

    pause: float | None = None

    def after(self, uptime: float) -> Backoff:
        """The pause after a child that lived for ``uptime`` seconds died."""
        if self.pause is None or uptime >= STEADY_SECONDS:
            return Backoff(FIRST_SECONDS)
        return Backoff(min(self.pause * 2, LONGEST_SECONDS))
