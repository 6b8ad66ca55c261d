"""Makes random requests for trees of related rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from attrs import define

from tests.live.tables.related_trees import Asked, Data, Found, Key, Test, Way

KEYS = {"visits": ("person_id", "town_id")}


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


@define
class Asking:
    """Makes requests. Aliases are numbered, so that no two columns of a result have the same name."""

    random: Random
    data: Data
    ways: Mapping[str, tuple[Way, ...]]
    count: int = 0

    def tree(self, table: str, depth: int = 0, sums: bool = False) -> Asked:
        asked = Asked(table)
        columns = list(self.data[table][0])
        some = self.random.choices(columns, k=self.random.randint(0 if depth else 1, 3))
        asked.columns = [(self.fresh("c"), column) for column in some]
        if sums:
            asked.sums = [self.sum(columns) for _ in range(self.random.randint(0 if depth else 1, 2))]
        if depth < 3:
            self.embed(asked, columns, depth, sums)
        self.narrow(asked, columns)
        if not sums:
            self.sort(asked, columns)
        return asked

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def sum(self, columns: list[str]) -> tuple[str, str, str]:
        column = self.random.choice([name for name in columns if name != "name"])
        function = self.random.choice(("count", "count", "sum", "max", "min"))
        bare = function == "count" and self.random.random() < 0.5
        return self.fresh("s"), function, "" if bare else column

    def embed(self, asked: Asked, columns: list[str], depth: int, sums: bool) -> None:
        most = self.random.choice((0, 1, 1, 2, 3) if depth < 2 else (0, 0, 1))
        for way in self.random.choices(self.ways[asked.table], k=most):
            names = [child.name for child in asked.children]
            spread = self.random.random() < 0.4 and way.name not in (*columns, *names)
            child = self.tree(way.target, depth + 1, sums and spread and way.one)
            child.way, child.spread, child.inner = way, spread, self.random.random() < 0.2
            child.name = way.name if spread else self.fresh("e")
            asked.children.append(child)

    def narrow(self, asked: Asked, columns: list[str]) -> None:
        for _ in range(self.random.choice((0, 0, 1))):
            text, test = self.condition(asked.table, columns)
            asked.parameters.append(text.replace(".", "=", 1))
            asked.tests.append(test)
        for child in asked.children:
            if self.random.random() < 0.2:
                text, test = self.presence(child)
                asked.parameters.append(text.replace(".", "=", 1))
                asked.tests.append(test)
        if self.random.random() < 0.2:
            terms = [self.condition(asked.table, columns), *map(self.presence, asked.children)]
            operator, negated = self.random.choice(("and", "or")), self.random.random() < 0.3
            texts = ",".join(text for text, _ in terms)
            asked.parameters.append(f"{'not.' if negated else ''}{operator}=({texts})")
            asked.tests.append(_joined(operator, negated, [test for _, test in terms]))

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
        said, test = self.random.choice(list(tests.items()))
        if self.random.random() < 0.2:
            missing = self.random.random() < 0.5
            return (
                f"{column}.{'is.null' if missing else 'is.not_null'}",
                lambda f: (f.row[column] is None) == missing,
            )
        if self.random.random() < 0.2:
            return f"{column}.not.{said}", lambda f: opposite(_of_known(f.row[column], test))
        return f"{column}.{said}", lambda f: _of_known(f.row[column], test)

    def presence(self, child: Asked) -> tuple[str, Test]:
        missing = self.random.random() < 0.5
        return (
            f"{child.name}.{'is.null' if missing else 'not.is.null'}",
            lambda f: (not f.below[child.name]) == missing,
        )

    def sort(self, asked: Asked, columns: list[str]) -> None:
        terms = []
        for _ in range(self.random.choice((0, 1, 2))):
            descending, nulls_first = self.random.random() < 0.5, self.random.random() < 0.5
            after = f".{'desc' if descending else 'asc'}.nulls{'first' if nulls_first else 'last'}"
            ones = [child for child in asked.children if child.one]
            if ones and self.random.random() < 0.6:
                child = self.random.choice(ones)
                column = self.random.choice(list(self.data[child.table][0]))
                terms.append(f"{child.name}({column}){after}")
                asked.order.append((_below(child.name, column), descending, nulls_first))
            else:
                column = self.random.choice(columns)
                terms.append(column + after)
                asked.order.append((_own(column), descending, nulls_first))
        for column in KEYS.get(asked.table, ("id",)):
            terms.append(column)
            asked.order.append((_own(column), False, False))
        asked.parameters.append("order=" + ",".join(terms))

    def page(self, asked: Asked) -> None:
        """Limit some of the relations that may have several rows."""
        if not asked.one and self.random.random() < 0.25:
            asked.first, asked.most = self.random.choice(((0, 0), (0, 2), (1, 3), (2, 1000)))
            asked.parameters.append(f"limit={asked.most}")
            asked.parameters.extend([f"offset={asked.first}"] if asked.first else [])
        for child in asked.children:
            self.page(child)


def _own(column: str) -> Key:
    return lambda found: found.row[column]


def _below(name: str, column: str) -> Key:
    return lambda found: found.below[name][0].row[column] if found.below[name] else None


def _of_known(value: Any, test: Callable[[Any], bool]) -> bool | None:
    return None if value is None else test(value)


def _joined(operator: str, negated: bool, tests: list[Test]) -> Test:
    """AND or OR of three-valued logic: the least of all values, or the greatest, with unknown between false and
    true."""
    rank = {False: 0, None: 1, True: 2}

    def test(found: Found) -> bool | None:
        chosen = (min if operator == "and" else max)((one(found) for one in tests), key=rank.__getitem__)
        return opposite(chosen) if negated else chosen

    return test
