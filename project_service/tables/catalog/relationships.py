"""Derives relationships from foreign keys: between tables, between views that show the keys, and through junctions.

PostgREST's reference: "Resource Embedding".
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

from project_service.tables.catalog.views import Origin
from project_service.tables.model import Junction, Key, Pairs, Relationship


@frozen
class Keyed:
    """A relation as foreign keys refer to it: by oid, with the names of its columns by number."""

    oid: int
    key: Key
    is_view: bool
    columns: Mapping[int, str]
    primary_key: tuple[str, ...]


@frozen
class _Showing:
    """The names of a relation's columns that show the columns of a key, in the key's order."""

    relation: Keyed
    columns: tuple[str, ...]


class Shown:
    """Finds which relations show given columns of a table: the table itself and views of it."""

    def __init__(self, keyed: Mapping[int, Keyed], bases: Mapping[int, Mapping[Origin, list[int]]]) -> None:
        self._keyed = keyed
        self._by_origin: dict[Origin, list[tuple[Keyed, str]]] = defaultdict(list)
        for view, origins in bases.items():
            relation = keyed.get(view)
            if relation is None:
                continue
            for origin, numbers in origins.items():
                names = [
                    (relation, relation.columns[number]) for number in numbers if number in relation.columns
                ]
                self._by_origin[origin].extend(names)

    def showings(self, oid: int, numbers: tuple[int, ...]) -> Iterator[_Showing]:
        table = self._keyed.get(oid)
        if table is None:
            return
        yield _Showing(table, tuple(table.columns[number] for number in numbers))
        shown: list[dict[int, tuple[Keyed, list[str]]]] = []
        for number in numbers:
            by_view: dict[int, tuple[Keyed, list[str]]] = {}
            for view, name in self._by_origin.get((oid, number), ()):
                by_view.setdefault(view.oid, (view, []))[1].append(name)
            shown.append(by_view)
        for view_oid, (view, _) in shown[0].items() if shown else ():
            if all(view_oid in by_view for by_view in shown):
                for names in itertools.product(*(by_view[view_oid][1] for by_view in shown)):
                    yield _Showing(view, names)


def from_foreign_keys(
    rows: Iterable[Mapping[str, Any]], shown: Shown, exposed: frozenset[str]
) -> list[Relationship]:
    """Both directions of every foreign key, as far as the target is in an exposed schema."""
    found: list[Relationship] = []
    back: list[Relationship] = []
    for row in rows:
        origins = list(shown.showings(row["origin"], tuple(row["origin_key"])))
        targets = list(shown.showings(row["target"], tuple(row["target_key"])))
        is_self = row["origin"] == row["target"]
        for near, far in itertools.product(origins, targets):
            for way in _both_ways(row, near, far, is_self and near.relation.oid == far.relation.oid, exposed):
                (back if way.is_parent else found).append(way)
    return back + found


def _both_ways(
    row: Mapping[str, Any], near: _Showing, far: _Showing, is_self: bool, exposed: frozenset[str]
) -> Iterator[Relationship]:
    pairs: Pairs = tuple(zip(near.columns, far.columns, strict=True))
    unique = row["is_unique"]
    if far.relation.key[0] in exposed:
        yield Relationship(
            near.relation.key,
            far.relation.key,
            "o2o" if unique else "m2o",
            row["name"],
            pairs,
            is_self,
            far.relation.is_view,
        )
    if near.relation.key[0] in exposed:
        yield Relationship(
            far.relation.key,
            near.relation.key,
            "o2o" if unique else "o2m",
            row["name"],
            tuple((theirs, ours) for ours, theirs in pairs),
            is_self,
            near.relation.is_view,
            is_parent=True,
        )


def through_junctions(
    found: Iterable[Relationship], primary_keys: Mapping[Key, frozenset[str]]
) -> list[Relationship]:
    """Many-to-many relationships, through relations two of whose foreign keys lie within the primary key.

    The junction itself need not be exposed.
    """
    leading: dict[Key, list[Relationship]] = defaultdict(list)
    for way in found:
        if way.cardinality == "m2o":
            leading[way.origin].append(way)
    made = []
    for key, ways in leading.items():
        primary = primary_keys.get(key, frozenset())
        inside = [way for way in ways if primary.issuperset(ours for ours, _ in way.pairs)]
        for one, other in itertools.permutations(inside, 2):
            if one.constraint != other.constraint:
                made.append(_through(key, one, other))
    return made


def _through(key: Key, one: Relationship, other: Relationship) -> Relationship:
    back: Pairs = tuple((theirs, ours) for ours, theirs in one.pairs)
    junction = Junction(key, one.constraint, other.constraint, back, other.pairs)
    return Relationship(
        one.target,
        other.target,
        "m2m",
        junction=junction,
        is_self=one.target == other.target,
        target_is_view=other.target_is_view,
    )
