"""Embedded relations in SQL: where their rows come from, how they are tied to the parent's row, and which columns of
theirs the parent shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from project_service.tables.plan.aliases import alias as sql_alias
from project_service.tables.plan.nodes import Embedded
from project_service.tables.plan.outputs import made_columns, result_names
from project_service.tables.sql.fields import hoisted_sql
from project_service.tables.sql.names import ident, qualified


def is_read(embedded: Embedded) -> bool:
    """Whether the parent's SELECT reads the embedded relation's rows: to show them, or because they decide which rows
    the parent shows."""
    return embedded.plan.shows or embedded.needed or embedded.join == "inner"


def source_of(embedded: Embedded, origin: str) -> str:
    """What the FROM of an embedding reads: a relation, a relation and its junction, or a function of the parent's
    row, whose alias is ``origin``."""
    way = embedded.relationship
    plan = embedded.plan
    alias = ident(plan.alias)
    if way.routine is not None:
        own = ", ".join(f"{ident(origin)}.{ident(name)}" for name in embedded.row_columns)
        row = f"ROW({own})" if own else f"({ident(origin)}.*)"
        return f"{qualified(way.routine)}({row}::{qualified(way.origin)}) AS {alias}"
    found = f"{qualified(way.target)} AS {alias}"
    if way.junction is not None:
        found += f", {qualified(way.junction.key)} AS {ident(_junction_alias(embedded))}"
    return found


def condition_of_relationship(embedded: Embedded, origin: str) -> Iterator[str]:
    """The conditions that tie the embedded rows to the parent's row, whose alias is ``origin``."""
    way = embedded.relationship
    alias = ident(embedded.plan.alias)
    if way.junction is None:
        for ours, theirs in way.pairs:
            yield f"{alias}.{ident(theirs)} = {ident(origin)}.{ident(ours)}"
        return
    junction = ident(_junction_alias(embedded))
    for ours, between in way.junction.origin_pairs:
        yield f"{junction}.{ident(between)} = {ident(origin)}.{ident(ours)}"
    for between, theirs in way.junction.target_pairs:
        yield f"{alias}.{ident(theirs)} = {junction}.{ident(between)}"


def _junction_alias(embedded: Embedded) -> str:
    junction = embedded.relationship.junction
    assert junction is not None
    number = int(embedded.plan.alias.rpartition("_")[2])
    return sql_alias("pgrst_" + junction.key[1], number)


def embedded_columns(embedded: Embedded, grouped: bool) -> Iterator[tuple[str, str]]:
    """The columns that an embedding adds to its parent: (name, SQL)."""
    if not embedded.plan.shows:
        return
    if not embedded.spread:
        yield embedded.name, f"{_value(embedded, grouped)} AS {ident(embedded.name)}"
        return
    names = result_names(embedded.plan)
    carriers = {hoisted.carrier for hoisted in embedded.hoisted}
    as_json = _to_group_as_json(embedded, names) if grouped else frozenset()
    for name in names:
        if name not in carriers or embedded.carries:
            yield name, f"{_spread_value(embedded, name, name in as_json)} AS {ident(name)}"
    if not embedded.carries:
        for hoisted in embedded.hoisted:
            yield hoisted.name, hoisted_sql(embedded.alias, hoisted)


def embedded_groups(embedded: Embedded) -> Iterator[str]:
    """What an embedding adds to its parent's GROUP BY."""
    if not embedded.plan.shows:
        return
    alias = ident(embedded.alias)
    if not embedded.spread:
        yield f"row_to_json({alias}.*)::jsonb" if embedded.to_one else f"{alias}.pgrst_rows::jsonb"
        return
    carriers = {hoisted.carrier for hoisted in embedded.hoisted}
    names = result_names(embedded.plan)
    as_json = _to_group_as_json(embedded, names)
    for name in names:
        if name not in carriers:
            yield f"{alias}.{ident(name)}" + ("::jsonb" if name in as_json else "")


def _value(embedded: Embedded, grouped: bool) -> str:
    alias = ident(embedded.alias)
    if embedded.to_one:
        return f"row_to_json({alias}.*)" + ("::jsonb" if grouped else "")
    rows = f"{alias}.pgrst_rows"
    return f"COALESCE({rows}::jsonb, '[]')" if grouped else f"COALESCE({rows}, '[]')"


def _spread_value(embedded: Embedded, name: str, as_json: bool) -> str:
    column = f"{ident(embedded.alias)}.{ident(name)}" + ("::jsonb" if as_json else "")
    return column if embedded.to_one else f"COALESCE({column}, '[]')"


def _to_group_as_json(embedded: Embedded, names: Iterable[str]) -> frozenset[str]:
    """The names of the columns that are made as ``json``, which has no equality: to be grouped by they are cast to
    ``jsonb``."""
    if not embedded.to_one:
        return frozenset(names)
    made = made_columns(embedded.plan)
    return frozenset(name for name in names if made.get(name))
