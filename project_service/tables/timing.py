"""Measures the stages of a request."""

from __future__ import annotations

from time import perf_counter

from attrs import define, field

_STAGES = ("jwt", "parse", "plan", "transaction", "response")


@define
class Timing:
    """How long each stage took, in milliseconds, for ``Server-Timing``.

    A stage that a request does not have took no time.
    """

    _taken: dict[str, float] = field(factory=dict, init=False)
    _since: float = field(factory=perf_counter, init=False)

    def mark(self, stage: str) -> None:
        """``stage`` has ended, and the next one begins."""
        now = perf_counter()
        self._taken[stage] = (now - self._since) * 1000
        self._since = now

    def header(self) -> tuple[str, str]:
        found = (f"{stage};dur={self._taken.get(stage, 0.0):.3f}" for stage in _STAGES)
        return ("Server-Timing", ", ".join(found))
