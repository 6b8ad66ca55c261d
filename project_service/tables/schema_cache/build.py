"""Builds the schema cache from the answers of the catalog queries. Pure."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
from attrs import frozen

from project_service.database.trust import trust_of
from project_service.tables.values import (
    PLAIN,
    Argument,
    Column,
    Computed,
    Handler,
    Junction,
    Key,
    Pairs,
    Relation,
    Relationship,
    Representation,
    Routine,
    SchemaCache,
)

Row = Mapping[str, Any]
# A column of a relation: oid and number.
Origin = tuple[int, int]

# Updatable by UPDATE, INSERT, DELETE: bits of pg_relation_is_updatable.
_UPDATE, _INSERT, _DELETE = 4, 8, 16
_CARDINALITIES = ("o2m", "m2o", "o2o", "m2m")


def build(answers: Mapping[str, str], schemas: tuple[str, ...], version: int) -> SchemaCache:
    """The schema cache made of these answers. Slow for thousands of tables, so it should run in a thread."""
    rows = {name: orjson.loads(text) for name, text in answers.items()}
    exposed = frozenset(schemas)
    bases = base_columns({row["oid"]: row["rule"] for row in rows["rules"]})
    keyed = _keyed(rows["keys"], bases)
    primary_keys = {relation.key: relation.primary_key for relation in keyed.values()}
    direct = _from_foreign_keys(rows["foreign_keys"], _Views(keyed, bases), exposed)
    computed = [_computed_relationship(row) for row in rows["computed"]]
    represented = _representations(rows["representations"])
    extras = rows["extras"]
    routines = [_routine(row) for row in rows["routines"]]
    return SchemaCache(
        version=version,
        relations={_key(row): _relation(row, primary_keys, represented) for row in rows["relations"]},
        relationships=_by_origin([*computed, *direct, *_through_junctions(direct, primary_keys)], exposed),
        computed=_computed_columns(row for row in rows["computed_columns"] if row["relation"]),
        computed_of_any=_by_name(row for row in rows["computed_columns"] if not row["row"]),
        row_columns={_key(row): tuple(row["columns"] or ()) for row in rows["row_columns"]},
        row_functions=frozenset(extras["row_functions"]),
        routines=_overloads(one for one in routines if not one.takes_defaults_only),
        without_names=_overloads(one for one in routines if one.takes_defaults_only),
        handlers=tuple(
            Handler(_key(row), row["media"], tuple(row["relation"]) if row["relation"] else None)
            for row in rows["handlers"]
        ),
        role_settings=_role_settings(rows["roles"]),
        schema_comments={name: text for name, text in extras["comments"].items() if text},
        has_postgis=extras["postgis"],
        connects_as=extras["connects_as"],
        as_superuser=extras["as_superuser"],
        fingerprint=extras["fingerprint"],
        trust=trust_of(rows["trust"], version),
    )


def _key(row: Row) -> Key:
    return (row["schema"], row["name"])


# Relations, routines and the rest: a row each.


def _relation(
    row: Row, primary_keys: Mapping[Key, tuple[str, ...]], represented: Mapping[str, Representation]
) -> Relation:
    columns = {column[0]: _column(column, represented) for column in row["columns"] or []}
    events = row["events"]
    return Relation(
        schema=row["schema"],
        name=row["name"],
        columns=columns,
        primary_key=tuple(name for name in primary_keys.get(_key(row), ()) if name in columns),
        is_view=row["kind"] in ("v", "m"),
        insertable=bool(events & _INSERT),
        updatable=bool(events & _UPDATE),
        deletable=bool(events & _DELETE),
        description=row["description"],
        row_bytes=row["row_bytes"] or 0,
        inherited=row["inherited"],
        has_system_columns=row["kind"] != "v",
    )


def _column(row: list[Any], represented: Mapping[str, Representation]) -> Column:
    name, type_, base, nullable, default, enum, description, length = row
    representation = represented.get(type_, PLAIN)
    return Column(
        name, type_, base, nullable, default, tuple(enum or ()), description, length, representation
    )


def _representations(rows: list[Row]) -> dict[str, Representation]:
    """By type, for those that have any."""
    casts = {(row["source"], row["target"]): _key(row) for row in rows}
    types = {type_ for cast in casts for type_ in cast} - {"json", "text"}
    return {
        type_: Representation(
            casts.get((type_, "json")), casts.get(("text", type_)), casts.get(("json", type_))
        )
        for type_ in types
    }


def _computed_columns(rows: Iterable[Row]) -> dict[Key, dict[str, tuple[Computed, ...]]]:
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["relation"][0], row["relation"][1]].append(row)
    return {key: _by_name(group) for key, group in groups.items()}


def _by_name(rows: Iterable[Row]) -> dict[str, tuple[Computed, ...]]:
    groups: dict[str, list[Computed]] = defaultdict(list)
    for row in rows:
        taken = (row["row"][0], row["row"][1]) if row["row"] else None
        groups[row["name"]].append(Computed(_key(row), taken, row["is_record"]))
    return {name: tuple(group) for name, group in groups.items()}


def _overloads(routines: Iterable[Routine]) -> dict[Key, tuple[Routine, ...]]:
    groups: dict[Key, list[Routine]] = defaultdict(list)
    for one in routines:
        groups[one.key].append(one)
    return {key: tuple(group) for key, group in groups.items()}


def _routine(row: Row) -> Routine:
    returns = row["returns"]
    settings = (setting.partition("=") for setting in row["settings"])
    return Routine(
        schema=row["schema"],
        name=row["name"],
        arguments=tuple(_argument(argument) for argument in row["arguments"] or []),
        returns=(returns[0], returns[1]) if returns else None,
        is_composite=row["is_composite"],
        is_set=row["is_set"],
        is_void=row["is_void"],
        shows_records=row["shows_records"],
        volatility=row["volatility"],
        settings=tuple((name, value) for name, _, value in settings),
        description=row["description"],
        return_media=row["return_media"],
        is_bytes=row["is_bytes"],
        is_sql=row["is_sql"],
        columns=tuple(row["columns"] or ()),
    )


def _argument(row: list[Any]) -> Argument:
    name, type_, cast, required, variadic = row
    return Argument(name, type_, cast, required, bool(variadic))


def _role_settings(rows: list[Row]) -> dict[str, tuple[tuple[str, str], ...]]:
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["role"]].append((row["name"], row["value"]))
    return {role: tuple(settings) for role, settings in groups.items()}


# Which base column each column of a view shows, from the rule that defines the view.
#
# PostgreSQL stores a view's rule as a ``pg_node_tree`` text. Each entry of its outermost target list names the
# relation and column that it comes from (``resorigtbl``, ``resorigcol``), which may belong to a view again.


_BRACKET = re.compile(r"\\.|[(){}]", re.DOTALL)
_ENTRY = re.compile(r":resno (\d+) .*:resorigtbl (\d+) :resorigcol (\d+) :resjunk false\}?$", re.DOTALL)
# In "({QUERY … :targetList ({TARGETENTRY …" the fourth bracket opens an entry.
_ENTRY_DEPTH = 4


def base_columns(rules: Mapping[int, str]) -> dict[int, dict[Origin, list[int]]]:
    """For each view: by base column the numbers of the view's columns that show it, directly or through other
    views."""
    direct = {view: _target_list(rule) for view, rule in rules.items()}
    bases: dict[int, dict[Origin, list[int]]] = {}
    for view, columns in direct.items():
        shown: dict[Origin, list[int]] = defaultdict(list)
        for number, origin in columns.items():
            base = _base_of(origin, direct)
            if base is not None:
                shown[base].append(number)
        bases[view] = dict(shown)
    return bases


def _target_list(rule: str) -> dict[int, Origin]:
    """For each column of the view, by number, that shows another one unchanged: that column."""
    origins: dict[int, Origin] = {}
    depth, start = 0, -1
    for match in _BRACKET.finditer(rule):
        bracket = match.group()
        if bracket in "({":
            depth += 1
            if depth == _ENTRY_DEPTH and rule.startswith("{TARGETENTRY", match.start()):
                start = match.start()
        elif bracket in ")}":
            if depth == _ENTRY_DEPTH and start >= 0:
                entry = _ENTRY.search(rule[start : match.end()])
                if entry is not None and entry[2] != "0":
                    origins[int(entry[1])] = (int(entry[2]), int(entry[3]))
                start = -1
            depth -= 1
    return origins


def _base_of(origin: Origin, direct: Mapping[int, Mapping[int, Origin]]) -> Origin | None:
    seen = set()
    column: Origin | None = origin
    while column is not None and column[0] in direct:
        if column in seen:
            return None
        seen.add(column)
        column = direct[column[0]].get(column[1])
    return column


# Relationships from foreign keys: between tables, between views that show the keys, and through junctions.
#
# PostgREST's reference: "Resource Embedding".


@frozen
class _Keyed:
    """A relation as foreign keys refer to it: by oid, with the names of its columns by number."""

    oid: int
    key: Key
    is_view: bool
    columns: Mapping[int, str]
    primary_key: tuple[str, ...]


def _keyed(rows: list[Row], bases: Mapping[int, Mapping[Origin, list[int]]]) -> dict[int, _Keyed]:
    keys = {row["oid"]: row["key"] or [] for row in rows}
    keyed: dict[int, _Keyed] = {}
    for row in rows:
        oid, columns = row["oid"], dict(row["columns"] or [])
        numbers = _view_key(bases[oid], keys) if oid in bases else keys[oid]
        names = dict.fromkeys(columns[number] for number in numbers if number in columns)
        keyed[oid] = _Keyed(oid, _key(row), row["is_view"], columns, tuple(names))
    return keyed


def _view_key(origins: Mapping[Origin, list[int]], keys: Mapping[int, list[int]]) -> list[int]:
    """The view's columns that show the primary keys of its base tables, for those keys that it shows completely."""
    numbers: list[int] = []
    for table in dict.fromkeys(oid for oid, _ in origins):
        columns = [(table, number) for number in keys.get(table) or []]
        if all(column in origins for column in columns):
            numbers.extend(origins[column][0] for column in columns)
    return numbers


@frozen
class _Side:
    """One side of a foreign key: a relation, and its columns that are or show the key's, in the key's order."""

    relation: _Keyed
    columns: tuple[str, ...]


class _Views:
    """Which relations show given columns of a table: the table itself and views of it."""

    def __init__(self, keyed: Mapping[int, _Keyed], bases: Mapping[int, Mapping[Origin, list[int]]]) -> None:
        self._keyed = keyed
        self._by_origin: dict[Origin, list[tuple[_Keyed, str]]] = defaultdict(list)
        for oid, origins in bases.items():
            view = keyed.get(oid)
            if view is None:
                continue
            for origin, numbers in origins.items():
                names = [(view, view.columns[number]) for number in numbers if number in view.columns]
                self._by_origin[origin].extend(names)

    def sides(self, oid: int, numbers: list[int]) -> Iterator[_Side]:
        table = self._keyed.get(oid)
        if table is None:
            return
        yield _Side(table, tuple(table.columns[number] for number in numbers))
        # For each column of the key: its names by view.
        shown: list[dict[int, tuple[_Keyed, list[str]]]] = []
        for number in numbers:
            by_view: dict[int, tuple[_Keyed, list[str]]] = {}
            for view, name in self._by_origin.get((oid, number), ()):
                by_view.setdefault(view.oid, (view, []))[1].append(name)
            shown.append(by_view)
        for view_oid, (view, _) in shown[0].items() if shown else ():
            if all(view_oid in by_view for by_view in shown):
                for names in itertools.product(*(by_view[view_oid][1] for by_view in shown)):
                    yield _Side(view, names)


def _from_foreign_keys(rows: Iterable[Row], views: _Views, exposed: frozenset[str]) -> list[Relationship]:
    """Both directions of every foreign key, as far as the target is in an exposed schema: first those to the relation
    that the key refers to."""
    forward: list[Relationship] = []
    back: list[Relationship] = []
    for row in rows:
        origins = list(views.sides(row["origin"], row["origin_key"]))
        targets = list(views.sides(row["target"], row["target_key"]))
        for near, far in itertools.product(origins, targets):
            is_self = row["origin"] == row["target"] and near.relation.oid == far.relation.oid
            if far.relation.key[0] in exposed:
                forward.append(_direct(row, near, far, is_self, "m2o"))
            if near.relation.key[0] in exposed:
                back.append(_direct(row, far, near, is_self, "o2m"))
    return back + forward


def _direct(row: Row, origin: _Side, target: _Side, is_self: bool, cardinality: Any) -> Relationship:
    return Relationship(
        origin.relation.key,
        target.relation.key,
        "o2o" if row["is_unique"] else cardinality,
        row["name"],
        tuple(zip(origin.columns, target.columns, strict=True)),
        is_self,
        target.relation.is_view,
        is_parent=cardinality == "o2m",
    )


def _through_junctions(
    direct: Iterable[Relationship], primary_keys: Mapping[Key, tuple[str, ...]]
) -> list[Relationship]:
    """Many-to-many relationships, through relations two of whose foreign keys lie within the primary key.

    The junction itself need not be exposed.
    """
    by_junction: dict[Key, list[Relationship]] = defaultdict(list)
    for relationship in direct:
        if relationship.cardinality == "m2o":
            by_junction[relationship.origin].append(relationship)
    through = []
    for key, relationships in by_junction.items():
        primary = frozenset(primary_keys.get(key, ()))
        inside = [one for one in relationships if primary.issuperset(ours for ours, _ in one.pairs)]
        for one, other in itertools.permutations(inside, 2):
            if one.constraint != other.constraint:
                through.append(_through(key, one, other))
    return through


def _through(key: Key, one: Relationship, other: Relationship) -> Relationship:
    back: Pairs = tuple((theirs, ours) for ours, theirs in one.pairs)
    return Relationship(
        one.target,
        other.target,
        "m2m",
        junction=Junction(key, one.constraint, other.constraint, back, other.pairs),
        is_self=one.target == other.target,
        target_is_view=other.target_is_view,
    )


def _computed_relationship(row: Row) -> Relationship:
    return Relationship(
        (row["origin"][0], row["origin"][1]),
        (row["target"][0], row["target"][1]),
        "m2o" if row["to_one"] else "o2m",
        is_self=row["origin"] == row["target"],
        routine=_key(row),
        first_only=row.get("first_only", False),
    )


def _by_origin(
    relationships: Iterable[Relationship], exposed: frozenset[str]
) -> dict[Key, tuple[Relationship, ...]]:
    """Relationships by origin, in the order in which error messages list choices.

    Those through junctions that are not exposed are left out, but leave an (empty) group behind.
    """
    groups: dict[Key, list[Relationship]] = defaultdict(list)
    for relationship in relationships:
        group = groups[relationship.origin]
        if relationship.junction is None or relationship.junction.key[0] in exposed:
            group.append(relationship)
    return {key: tuple(sorted(group, key=_order)) for key, group in groups.items()}


def _order(one: Relationship) -> tuple[Any, ...]:
    kind = (one.routine is None, one.target, one.is_self, _CARDINALITIES.index(one.cardinality))
    junction = one.junction
    if junction is None:
        return (*kind, one.constraint, one.pairs)
    constraints = (junction.to_origin, junction.to_target)
    return (*kind, junction.key, *constraints, junction.origin_pairs, junction.target_pairs)
