"""Counts what is refused because there is too much to do, and logs it."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.http.metrics import Metrics

# Refusals are logged together, at most this often: a line for each would make a flood of requests one of lines.
LOG_SECONDS = 1.0


class Refusals:
    log = Logger()

    def __init__(self, clock: IReactorTime, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._unreported = 0
        self._reported_at = float("-inf")

    def count(self, part: str, reason: str) -> None:
        """Count one refusal in ``part``, which is the name of a lane, or ``-``."""
        self._metrics.refused(part, reason)
        self._unreported += 1
        now = self._clock.seconds()
        if now - self._reported_at >= LOG_SECONDS:
            self.log.warn("overloaded: {count} refused", count=self._unreported)
            self._unreported, self._reported_at = 0, now
