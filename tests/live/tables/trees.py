"""Random trees of related rows: requests for them, and the expected results, computed in Python from the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any

from attrs import Factory, define, frozen

Row = dict[str, Any]
# The rows of each table.
Data = Mapping[str, list[Row]]


@frozen
class Relationship:
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
class Result:
    """A row of the result with what is embedded in it: what is shown of it, and what sums are made of."""

    row: Row
    below: dict[str, list[Result]]
    shown: Row
    summed: Row


Test = Callable[[Result], bool | None]
Key = Callable[[Result], Any]


@define
class Tree:
    table: str
    relationship: Relationship | None = None
    name: str = ""
    spread: bool = False
    inner: bool = False
    columns: list[tuple[str, str]] = Factory(list)
    sums: list[tuple[str, str, str]] = Factory(list)
    children: list[Tree] = Factory(list)
    tests: list[Test] = Factory(list)
    order: list[tuple[Key, bool, bool]] = Factory(list)
    parameters: list[str] = Factory(list)
    first: int = 0
    limit: int = 1000

    @property
    def one(self) -> bool:
        return self.relationship is not None and self.relationship.one

    def of(self, row: Row) -> list[Row]:
        return self.relationship.of(row) if self.relationship is not None else []

    def select(self) -> str:
        items = [f"{alias}:{column}" for alias, column in self.columns]
        items += [
            alias + ":" + (column and column + ".") + function + "()" for alias, function, column in self.sums
        ]
        for child in self.children:
            assert child.relationship is not None
            before = "..." if child.spread else child.name + ":"
            items.append(
                f"{before}{child.relationship.written}{'!inner' if child.inner else ''}({child.select()})"
            )
        return ",".join(items)

    def conditions(self, path: str = "") -> Iterator[str]:
        yield from (path + parameter for parameter in self.parameters)
        for child in self.children:
            yield from child.conditions(f"{path}{child.name}.")

    def names(self) -> list[str]:
        """What is shown of a row."""
        results = [alias for alias, _ in self.columns]
        for child in self.children:
            results.extend(child.names() if child.spread else [child.name] if child.shows else [])
        return results

    @property
    def shows(self) -> bool:
        return bool(self.columns or self.sums or any(child.shows for child in self.children))

    def functions(self) -> dict[str, str]:
        results = {alias: function for alias, function, _ in self.sums}
        for child in self.children:
            results |= child.functions() if child.spread else {}
        return results


def matching(tree: Tree, rows: Iterable[Row]) -> list[Result]:
    """The rows that meet the conditions, in order, without regard to the range."""
    results = []
    for row in rows:
        below = {child.name: cut(child, matching(child, child.of(row))) for child in tree.children}
        one = Result(row, below, *_shown_and_summed(tree, row, below))
        inner = all(below[child.name] for child in tree.children if child.inner)
        if inner and all(test(one) for test in tree.tests):
            results.append(one)
    for key, descending, nulls_first in reversed(tree.order):
        unknown = [one for one in results if key(one) is None]
        known = [one for one in results if key(one) is not None]
        known.sort(key=key, reverse=descending)
        results = unknown + known if nulls_first else known + unknown
    return results


def cut(tree: Tree, results: list[Result]) -> list[Result]:
    return results[tree.first : tree.first + tree.limit]


def _shown_and_summed(tree: Tree, row: Row, below: dict[str, list[Result]]) -> tuple[Row, Row]:
    shown = {alias: row[column] for alias, column in tree.columns}
    summed = {alias: row[column] if column else 1 for alias, _, column in tree.sums}
    for child in tree.children:
        results = below[child.name]
        values = [one.shown for one in results]
        if not child.spread:
            shown |= (
                {child.name: values if not child.one else values[0] if results else None}
                if child.shows
                else {}
            )
        elif child.one:
            shown |= {name: values[0][name] if results else None for name in child.names()}
            summed |= results[0].summed if results else {}
        else:
            shown |= {name: [value[name] for value in values] for name in child.names()}
    return shown, summed


def grouped(tree: Tree, results: list[Result]) -> list[Row]:
    """One row for all that show the same values."""
    groups: dict[str, list[Result]] = {} if tree.names() else {"{}": []}
    for one in results:
        groups.setdefault(json.dumps(one.shown), []).append(one)
    made = []
    for shown, members in groups.items():
        row = json.loads(shown)
        for alias, function in tree.functions().items():
            values = [one.summed[alias] for one in members if one.summed.get(alias) is not None]
            row[alias] = len(values) if function == "count" else _sum(function, values)
        made.append(row)
    return made


def _sum(function: str, values: list[int]) -> int | None:
    functions: dict[str, Callable[[list[int]], int]] = {"sum": sum, "max": max, "min": min}
    return functions[function](values) if values else None


KEYS = {"visits": ("person_id", "town_id")}


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


@define
class RandomRequests:
    """Makes requests. Aliases are numbered, so that no two columns of a result have the same name."""

    random: Random
    data: Data
    relationships: Mapping[str, tuple[Relationship, ...]]
    count: int = 0

    def tree(self, table: str, depth: int = 0, sums: bool = False) -> Tree:
        tree = Tree(table)
        columns = list(self.data[table][0])
        some = self.random.choices(columns, k=self.random.randint(0 if depth else 1, 3))
        tree.columns = [(self.fresh("c"), column) for column in some]
        if sums:
            tree.sums = [self.sum(columns) for _ in range(self.random.randint(0 if depth else 1, 2))]
        if depth < 3:
            self.embed(tree, columns, depth, sums)
        self.narrow(tree, columns)
        if not sums:
            self.sort(tree, columns)
        return tree

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def sum(self, columns: list[str]) -> tuple[str, str, str]:
        column = self.random.choice([name for name in columns if name != "name"])
        function = self.random.choice(("count", "count", "sum", "max", "min"))
        bare = function == "count" and self.random.random() < 0.5
        return self.fresh("s"), function, "" if bare else column

    def embed(self, tree: Tree, columns: list[str], depth: int, sums: bool) -> None:
        number = self.random.choice((0, 1, 1, 2, 3) if depth < 2 else (0, 0, 1))
        for relationship in self.random.choices(self.relationships[tree.table], k=number):
            names = [child.name for child in tree.children]
            spread = self.random.random() < 0.4 and relationship.name not in (*columns, *names)
            child = self.tree(relationship.target, depth + 1, sums and spread and relationship.one)
            child.relationship, child.spread, child.inner = relationship, spread, self.random.random() < 0.2
            child.name = relationship.name if spread else self.fresh("e")
            tree.children.append(child)

    def narrow(self, tree: Tree, columns: list[str]) -> None:
        for _ in range(self.random.choice((0, 0, 1))):
            text, test = self.condition(tree.table, columns)
            tree.parameters.append(text.replace(".", "=", 1))
            tree.tests.append(test)
        for child in tree.children:
            if self.random.random() < 0.2:
                text, test = self.presence(child)
                tree.parameters.append(text.replace(".", "=", 1))
                tree.tests.append(test)
        if self.random.random() < 0.2:
            terms = [self.condition(tree.table, columns), *map(self.presence, tree.children)]
            operator, negated = self.random.choice(("and", "or")), self.random.random() < 0.3
            texts = ",".join(text for text, _ in terms)
            tree.parameters.append(f"{'not.' if negated else ''}{operator}=({texts})")
            tree.tests.append(_joined(operator, negated, [test for _, test in terms]))

    def condition(self, table: str, columns: list[str]) -> tuple[str, Test]:
        column = self.random.choice(columns)
        known = [row[column] for row in self.data[table] if row[column] is not None]
        one, other = self.random.choice(known), self.random.choice(known)
        tests: dict[str, Callable[[Any], bool]] = {
            f"eq.{one}": lambda value: value == one,
            f"gt.{one}": lambda value: value > one,
            f"lte.{one}": lambda value: value <= one,
            f"in.({one},{other})": lambda value: value in (one, other),
            f"neq.{one}": lambda value: value != one,
        }
        operation, test = self.random.choice(list(tests.items()))
        if self.random.random() < 0.2:
            missing = self.random.random() < 0.5
            return (
                f"{column}.{'is.null' if missing else 'is.not_null'}",
                lambda f: (f.row[column] is None) == missing,
            )
        if self.random.random() < 0.2:
            return f"{column}.not.{operation}", lambda f: opposite(_of_known(f.row[column], test))
        return f"{column}.{operation}", lambda f: _of_known(f.row[column], test)

    def presence(self, child: Tree) -> tuple[str, Test]:
        missing = self.random.random() < 0.5
        return (
            f"{child.name}.{'is.null' if missing else 'not.is.null'}",
            lambda f: (not f.below[child.name]) == missing,
        )

    def sort(self, tree: Tree, columns: list[str]) -> None:
        terms = []
        for _ in range(self.random.choice((0, 1, 2))):
            descending, nulls_first = self.random.random() < 0.5, self.random.random() < 0.5
            after = f".{'desc' if descending else 'asc'}.nulls{'first' if nulls_first else 'last'}"
            ones = [child for child in tree.children if child.one]
            if ones and self.random.random() < 0.6:
                child = self.random.choice(ones)
                column = self.random.choice(list(self.data[child.table][0]))
                terms.append(f"{child.name}({column}){after}")
                tree.order.append((_below(child.name, column), descending, nulls_first))
            else:
                column = self.random.choice(columns)
                terms.append(column + after)
                tree.order.append((_own(column), descending, nulls_first))
        for column in KEYS.get(tree.table, ("id",)):
            terms.append(column)
            tree.order.append((_own(column), False, False))
        tree.parameters.append("order=" + ",".join(terms))

    def page(self, tree: Tree) -> None:
        """Limit some of the relations that may have several rows."""
        if not tree.one and self.random.random() < 0.25:
            tree.first, tree.limit = self.random.choice(((0, 0), (0, 2), (1, 3), (2, 1000)))
            tree.parameters.append(f"limit={tree.limit}")
            tree.parameters.extend([f"offset={tree.first}"] if tree.first else [])
        for child in tree.children:
            self.page(child)


def _own(column: str) -> Key:
    return lambda results: results.row[column]


def _below(name: str, column: str) -> Key:
    return lambda results: results.below[name][0].row[column] if results.below[name] else None


def _of_known(value: Any, test: Callable[[Any], bool]) -> bool | None:
    return None if value is None else test(value)


def _joined(operator: str, negated: bool, tests: list[Test]) -> Test:
    """AND or OR of three-valued logic: the least of all values, or the greatest, with unknown between false and
    true."""
    rank = {False: 0, None: 1, True: 2}

    def test(results: Result) -> bool | None:
        chosen = (min if operator == "and" else max)((one(results) for one in tests), key=rank.__getitem__)
        return opposite(chosen) if negated else chosen

    return test
