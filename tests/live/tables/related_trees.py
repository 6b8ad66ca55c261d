"""Trees of related rows as a request asks for them, and the expected result, computed in Python from the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import Factory, define, frozen

Row = dict[str, Any]
# The rows of each table.
Data = Mapping[str, list[Row]]


@frozen
class Way:
    """A relationship: which rows of ``target`` belong to a row, whether there is one or many, and how it is
    ``written`` in a select."""

    written: str
    target: str
    one: bool
    of: Callable[[Row], list[Row]]

    @property
    def name(self) -> str:
        return self.written.partition("!")[0]


@frozen
class Found:
    """A row of the result with what is embedded in it: what is shown of it, and what sums are made of."""

    row: Row
    below: dict[str, list[Found]]
    shown: Row
    summed: Row


Test = Callable[[Found], bool | None]
Key = Callable[[Found], Any]


@define
class Asked:
    table: str
    way: Way | None = None
    name: str = ""
    spread: bool = False
    inner: bool = False
    columns: list[tuple[str, str]] = Factory(list)
    sums: list[tuple[str, str, str]] = Factory(list)
    children: list[Asked] = Factory(list)
    tests: list[Test] = Factory(list)
    order: list[tuple[Key, bool, bool]] = Factory(list)
    parameters: list[str] = Factory(list)
    first: int = 0
    most: int = 1000

    @property
    def one(self) -> bool:
        return self.way is not None and self.way.one

    def of(self, row: Row) -> list[Row]:
        return self.way.of(row) if self.way is not None else []

    def select(self) -> str:
        items = [f"{alias}:{column}" for alias, column in self.columns]
        items += [
            alias + ":" + (column and column + ".") + function + "()" for alias, function, column in self.sums
        ]
        for child in self.children:
            assert child.way is not None
            before = "..." if child.spread else child.name + ":"
            items.append(f"{before}{child.way.written}{'!inner' if child.inner else ''}({child.select()})")
        return ",".join(items)

    def conditions(self, path: str = "") -> Iterator[str]:
        yield from (path + parameter for parameter in self.parameters)
        for child in self.children:
            yield from child.conditions(f"{path}{child.name}.")

    def names(self) -> list[str]:
        """What is shown of a row."""
        found = [alias for alias, _ in self.columns]
        for child in self.children:
            found.extend(child.names() if child.spread else [child.name] if child.shows else [])
        return found

    @property
    def shows(self) -> bool:
        return bool(self.columns or self.sums or any(child.shows for child in self.children))

    def functions(self) -> dict[str, str]:
        found = {alias: function for alias, function, _ in self.sums}
        for child in self.children:
            found |= child.functions() if child.spread else {}
        return found


def kept(asked: Asked, rows: Iterable[Row]) -> list[Found]:
    """The rows that meet the conditions, in order, without regard to the range."""
    found = []
    for row in rows:
        below = {child.name: cut(child, kept(child, child.of(row))) for child in asked.children}
        one = Found(row, below, *_said(asked, row, below))
        inner = all(below[child.name] for child in asked.children if child.inner)
        if inner and all(test(one) for test in asked.tests):
            found.append(one)
    for key, descending, nulls_first in reversed(asked.order):
        unknown = [one for one in found if key(one) is None]
        known = [one for one in found if key(one) is not None]
        known.sort(key=key, reverse=descending)
        found = unknown + known if nulls_first else known + unknown
    return found


def cut(asked: Asked, found: list[Found]) -> list[Found]:
    return found[asked.first : asked.first + asked.most]


def _said(asked: Asked, row: Row, below: dict[str, list[Found]]) -> tuple[Row, Row]:
    shown = {alias: row[column] for alias, column in asked.columns}
    summed = {alias: row[column] if column else 1 for alias, _, column in asked.sums}
    for child in asked.children:
        found = below[child.name]
        values = [one.shown for one in found]
        if not child.spread:
            shown |= (
                {child.name: values if not child.one else values[0] if found else None} if child.shows else {}
            )
        elif child.one:
            shown |= {name: values[0][name] if found else None for name in child.names()}
            summed |= found[0].summed if found else {}
        else:
            shown |= {name: [value[name] for value in values] for name in child.names()}
    return shown, summed


def grouped(asked: Asked, found: list[Found]) -> list[Row]:
    """One row for all that show the same values."""
    groups: dict[str, list[Found]] = {} if asked.names() else {"{}": []}
    for one in found:
        groups.setdefault(json.dumps(one.shown), []).append(one)
    made = []
    for shown, members in groups.items():
        row = json.loads(shown)
        for alias, function in asked.functions().items():
            values = [one.summed[alias] for one in members if one.summed.get(alias) is not None]
            row[alias] = len(values) if function == "count" else _sum(function, values)
        made.append(row)
    return made


def _sum(function: str, values: list[int]) -> int | None:
    functions: dict[str, Callable[[list[int]], int]] = {"sum": sum, "max": max, "min": min}
    return functions[function](values) if values else None
