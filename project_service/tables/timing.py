"""Measures the stages of a request."""

from __future__ import annotations

from time import perf_counter

from attrs import define, field


@define
class Timing:
    """How long each stage took, in milliseconds, for ``Server-Timing``; without ``wanted`` nothing is measured."""

    wanted: bool = True
    _marks: list[tuple[str, float]] = field(factory=list, init=False)
    _since: float = field(factory=perf_counter, init=False)

    def mark(self, stage: str) -> None:
        if not self.wanted:
            return
        now = perf_counter()
        self._marks.append((stage, (now - self._since) * 1000))
        self._since = now

    def header(self) -> tuple[str, str]:
        return ("Server-Timing", ", ".join(f"{stage};dur={ms:.3f}" for stage, ms in self._marks))
