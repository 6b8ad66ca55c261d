"""One line of the benchmarks' table: what was measured, beside what, and whether the goal is met."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from attrs import asdict, frozen


@frozen
class Row:
    """``value`` is what ``goal`` is compared with: a ratio, or the measured figure where there is nothing beside."""

    work: str
    measured: str
    beside: str
    value: float
    goal: float
    sense: Literal["at least", "at most"] = "at least"

    @property
    def verdict(self) -> str:
        met = self.value >= self.goal if self.sense == "at least" else self.value <= self.goal
        return "met" if met else "missed"

    @property
    def line(self) -> str:
        sign = ">=" if self.sense == "at least" else "<="
        figures = f"{self.measured:>14}  {self.beside:<30} {self.value:8.2f}"
        return f"{self.work:<46} {figures}  {sign} {self.goal:<6g} {self.verdict}"


HEADING = f"{'work':<46} {'measured':>14}  {'beside':<30} {'value':>8}  {'goal':<9} verdict"


def show(rows: Iterable[Row]) -> list[Row]:
    """Prints each row as soon as it is there."""
    found = []
    for row in rows:
        print(row.line, flush=True)
        found.append(row)
    return found


def save(rows: Iterable[Row], path: Path, about: dict[str, Any]) -> None:
    told = [{**asdict(row), "verdict": row.verdict} for row in rows]
    path.write_text(json.dumps({**about, "rows": told}, indent=2) + "\n")


def save_table(rows: Iterable[Row], path: Path, about: str) -> None:
    """As reStructuredText, for the documentation."""
    lines = [about, "", ".. list-table::", "   :header-rows: 1", ""]
    cells = [("work", "measured", "beside", "value", "goal", "")]
    cells += [
        (row.work, row.measured, row.beside, f"{row.value:.2f}", f"{row.sense} {row.goal:g}", row.verdict)
        for row in rows
    ]
    for first, *others in cells:
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    path.write_text("\n".join(lines) + "\n")


def interleaved(rounds: int, *works: Callable[[], float]) -> list[float]:
    """The median of each of ``works``, done in turn: the machine is not the same from one second to the next."""
    found: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for values, work in zip(found, works, strict=True):
            values.append(work())
    return [statistics.median(values) for values in found]
