"""Reads the catalogue: a few queries in one read-only transaction, and then the schema cache, built in a thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import orjson
from twisted.internet.threads import deferToThreadPool

from project_service.database.pool import Pool, Transaction
from project_service.tables.catalog.holder import Load
from project_service.tables.catalog.queries import ALL, VERSION, role_settings
from project_service.tables.catalog.relationships import Keyed, Shown, from_foreign_keys, through_junctions
from project_service.tables.catalog.views import Origin, base_columns
from project_service.tables.config import TablesConfig
from project_service.tables.model import (
    PLAIN,
    Argument,
    Column,
    Computed,
    Handler,
    Key,
    Relation,
    Relationship,
    Representation,
    Routine,
    SchemaCache,
)
from project_service.tables.settings import NO_JIT, RESET, settings_text

Rows = Mapping[str, Any]
RunQuery = Callable[[str, Mapping[str, Any]], Awaitable[str]]

# Updatable by UPDATE, INSERT, DELETE: bits of pg_relation_is_updatable.
_UPDATE, _INSERT, _DELETE = 4, 8, 16

# All queries have to see the same moment. If the fingerprint were younger than the relations, a table made in between
# would never be noticed.
_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; "
# Fixes how PostgreSQL writes types and defaults, whatever the database or role has set: types are compared as text.
_WRITTEN = (("quote_all_identifiers", "off"), ("datestyle", "ISO"))


def loader(reactor: Any, pool: Pool, config: TablesConfig) -> Load:
    """A function that reads the schema cache with a connection of ``pool``, whose texts arrive as bytes."""
    # Set explicitly: an earlier request may have left another role, or a timeout too short for these queries.
    ours = (NO_JIT, ("role", "none"), ("search_path", ""), ("statement_timeout", config.statement_timeout))
    beginning = RESET + _SNAPSHOT + settings_text((*ours, *_WRITTEN))

    async def reading(transaction: Transaction) -> dict[str, str]:
        async def one(sql: str, params: Mapping[str, Any]) -> str:
            rows = await transaction.query(sql, params)
            return bytes(rows[0][0]).decode()

        await transaction.query(beginning, ())
        return await read(one, config.schemas, config.extra_search_path)

    async def load(version: int) -> SchemaCache:
        answers = await pool.transaction(reading)
        return await deferToThreadPool(
            reactor, reactor.getThreadPool(), build, answers, config.schemas, version
        )

    return load


async def read(run: RunQuery, schemas: tuple[str, ...], search_path: tuple[str, ...]) -> dict[str, str]:
    """The answers of all catalogue queries by name, still as JSON. ``run`` returns the one text that a query
    returns."""
    params = {"schemas": list(schemas), "search_path": [*schemas, *search_path]}
    queries = {**ALL, "roles": role_settings(int(await run(VERSION, params)))}
    return {name: await run(sql, params) for name, sql in queries.items()}


def build(answers: Mapping[str, str], schemas: tuple[str, ...], version: int) -> SchemaCache:
    """The schema cache made of these answers. Pure. Slow for thousands of tables, so it should run in a thread."""
    rows = {name: orjson.loads(text) for name, text in answers.items()}
    exposed = frozenset(schemas)
    bases = base_columns({row["oid"]: row["rule"] for row in rows["rules"]})
    keyed = _keyed(rows["keys"], bases)
    primary_keys = {relation.key: relation.primary_key for relation in keyed.values()}
    shown = Shown(keyed, bases)
    direct = from_foreign_keys(rows["foreign_keys"], shown, exposed)
    junctions = through_junctions(direct, {key: frozenset(names) for key, names in primary_keys.items()})
    computed = [_computed(row) for row in rows["computed"]]
    represented = _representations(rows["representations"])
    extras = rows["extras"]
    return SchemaCache(
        version=version,
        relations={
            (row["schema"], row["name"]): _relation(row, primary_keys, represented)
            for row in rows["relations"]
        },
        relationships=_grouped([*computed, *direct, *junctions], exposed),
        computed=_computed_columns(row for row in rows["computed_columns"] if row["relation"]),
        computed_of_any=_by_name(row for row in rows["computed_columns"] if not row["row"]),
        row_columns={
            (row["schema"], row["name"]): tuple(row["columns"] or ()) for row in rows["row_columns"]
        },
        row_functions=frozenset(extras["row_functions"]),
        routines=_routines(rows["routines"]),
        handlers=tuple(_handler(row) for row in rows["handlers"]),
        role_settings=_role_settings(rows["roles"]),
        schema_comments={name: text for name, text in extras["comments"].items() if text},
        has_postgis=extras["postgis"],
        fingerprint=extras["fingerprint"],
        leaves_things=extras["leaves_by_reading"] or extras["makes_temporary"],
        leaves_by_reading=extras["leaves_by_reading"],
        false_constants=tuple(extras["false_constants"]),
        sets_for_session=extras["sets_for_session"],
        changes_role=extras["changes_role"],
        guarded_within=extras["guarded_within"],
    )


def _keyed(rows: list[Rows], bases: Mapping[int, Mapping[Origin, list[int]]]) -> dict[int, Keyed]:
    found: dict[int, Keyed] = {}
    numbers: dict[int, list[int]] = {}
    for row in rows:
        columns = dict(row["columns"] or [])
        primary = [columns[number] for number in row["key"] or [] if number in columns]
        numbers[row["oid"]] = row["key"] or []
        key = (row["schema"], row["name"])
        found[row["oid"]] = Keyed(row["oid"], key, row["is_view"], columns, tuple(primary))
    for oid, origins in bases.items():
        if oid in found:
            view = found[oid]
            shown = _view_key(view, origins, numbers)
            found[oid] = Keyed(view.oid, view.key, view.is_view, view.columns, shown)
    return found


def _view_key(
    view: Keyed, origins: Mapping[Origin, list[int]], numbers: Mapping[int, list[int]]
) -> tuple[str, ...]:
    """The view's columns that show the primary keys of its base tables, for those keys that it shows completely."""
    shown: list[str] = []
    for table in dict.fromkeys(oid for oid, _ in origins):
        key = numbers.get(table) or []
        if key and all((table, number) in origins for number in key):
            names = (view.columns.get(origins[table, number][0]) for number in key)
            shown.extend(name for name in names if name is not None)
    return tuple(dict.fromkeys(shown))


def _representations(rows: list[Rows]) -> dict[str, Representation]:
    """By type, for those that have any."""
    casts = {(row["source"], row["target"]): (row["schema"], row["name"]) for row in rows}
    types = {type_ for cast in casts for type_ in cast} - {"json", "text"}
    return {
        type_: Representation(
            casts.get((type_, "json")), casts.get(("text", type_)), casts.get(("json", type_))
        )
        for type_ in types
    }


def _relation(
    row: Rows, primary_keys: Mapping[Key, tuple[str, ...]], represented: Mapping[str, Representation]
) -> Relation:
    key = (row["schema"], row["name"])
    columns = {found[0]: _column(found, represented) for found in row["columns"] or []}
    events = row["events"]
    return Relation(
        schema=row["schema"],
        name=row["name"],
        columns=columns,
        primary_key=tuple(name for name in primary_keys.get(key, ()) if name in columns),
        is_view=row["kind"] in ("v", "m"),
        insertable=bool(events & _INSERT),
        updatable=bool(events & _UPDATE),
        deletable=bool(events & _DELETE),
        description=row["description"],
        row_bytes=row["row_bytes"] or 0,
        inherited=row["inherited"],
        expands=row["expands"],
        has_system_columns=row["kind"] != "v",
    )


def _column(row: list[Any], represented: Mapping[str, Representation]) -> Column:
    name, type_, base, nullable, default, enum, description, length = row
    shown = represented.get(type_, PLAIN)
    return Column(name, type_, base, nullable, default, tuple(enum or ()), description, length, shown)


def _computed(row: Rows) -> Relationship:
    return Relationship(
        (row["origin"][0], row["origin"][1]),
        (row["target"][0], row["target"][1]),
        "m2o" if row["to_one"] else "o2m",
        is_self=row["origin"] == row["target"],
        routine=(row["schema"], row["name"]),
    )


def _computed_columns(rows: Iterable[Rows]) -> dict[Key, dict[str, tuple[Computed, ...]]]:
    groups: dict[Key, list[Rows]] = defaultdict(list)
    for row in rows:
        groups[row["relation"][0], row["relation"][1]].append(row)
    return {key: _by_name(group) for key, group in groups.items()}


def _by_name(rows: Iterable[Rows]) -> dict[str, tuple[Computed, ...]]:
    groups: dict[str, list[Computed]] = defaultdict(list)
    for row in rows:
        taken = (row["row"][0], row["row"][1]) if row["row"] else None
        groups[row["name"]].append(Computed((row["schema"], row["name"]), taken))
    return {name: tuple(group) for name, group in groups.items()}


def _grouped(found: list[Relationship], exposed: frozenset[str]) -> dict[Key, tuple[Relationship, ...]]:
    """Relationships by origin, in the order in which error messages list choices.

    Those through junctions that are not exposed are left out, but leave an (empty) group behind.
    """
    groups: dict[Key, list[Relationship]] = defaultdict(list)
    for relationship in found:
        group = groups[relationship.origin]
        if relationship.junction is None or relationship.junction.key[0] in exposed:
            group.append(relationship)
    return {key: tuple(sorted(group, key=_place)) for key, group in groups.items()}


_CARDINALITIES = ("o2m", "m2o", "o2o", "m2m")


def _place(way: Relationship) -> tuple[Any, ...]:
    kind = (way.routine is None, way.target, way.is_self, _CARDINALITIES.index(way.cardinality))
    through = way.junction
    if through is None:
        return (*kind, way.constraint, way.pairs)
    return (
        *kind,
        through.key,
        through.to_origin,
        through.to_target,
        through.origin_pairs,
        through.target_pairs,
    )


def _routines(rows: list[Rows]) -> dict[Key, tuple[Routine, ...]]:
    groups: dict[Key, list[Routine]] = defaultdict(list)
    for row in rows:
        groups[row["schema"], row["name"]].append(_routine(row))
    return {key: tuple(group) for key, group in groups.items()}


def _routine(row: Rows) -> Routine:
    returns = row["returns"]
    settings = (setting.partition("=") for setting in row["settings"])
    return Routine(
        schema=row["schema"],
        name=row["name"],
        arguments=tuple(_argument(found) for found in row["arguments"] or []),
        returns=(returns[0], returns[1]) if returns else None,
        is_composite=row["is_composite"],
        is_set=row["is_set"],
        is_void=row["is_void"],
        volatility=row["volatility"],
        settings=tuple((name, value) for name, _, value in settings),
        description=row["description"],
        return_media=row["return_media"],
        is_bytes=row["is_bytes"],
        is_sql=row["is_sql"],
        columns=tuple(row["columns"] or ()),
    )


def _argument(found: list[Any]) -> Argument:
    name, type_, cast, required, variadic = found
    return Argument(name, type_, cast, required, bool(variadic))


def _handler(row: Rows) -> Handler:
    relation = row["relation"]
    return Handler((row["schema"], row["name"]), row["media"], tuple(relation) if relation else None)


def _role_settings(rows: list[Rows]) -> dict[str, tuple[tuple[str, str], ...]]:
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["role"]].append((row["name"], row["value"]))
    return {role: tuple(found) for role, found in groups.items()}
