"""ORDER BY, also by columns of embedded to-one relations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache as once

from attrs import frozen

from project_service.tables import errors
from project_service.tables.plan.nodes import Embedded, Order, ReadPlan
from project_service.tables.plan.outputs import made_columns, repeated_names
from project_service.tables.sql.embed import is_read
from project_service.tables.sql.fields import column_sql, field_sql
from project_service.tables.sql.fragment import Sql, joined
from project_service.tables.sql.names import ident


@frozen
class _Ordering:
    """An embedded relation that is ordered by, prepared once for all terms that name it. ``made`` are the columns
    of its joined rows (``plan.outputs``), and ``twice`` are the ambiguous names. ``rows`` makes the FROM for a column
    that cannot be taken from the joined rows."""

    embedded: Embedded
    made: Mapping[str, bool]
    twice: frozenset[str]
    rows: Callable[[], Sql]


def order_sql(plan: ReadPlan, rows: Callable[[Embedded], Sql], joins: bool = True) -> Sql:
    """The ORDER BY clause. ``rows`` makes the FROM and WHERE that read an embedded relation's rows by themselves.
    Without ``joins`` the statement does not join the embedded relations that are ordered by. Raises 42703."""
    names = {order.embedded for order in plan.order if order.embedded is not None}
    orderings = {name: _ordering(plan, name, rows, joins) for name in names}
    terms = [_order(plan, order, orderings) for order in plan.order]
    return " ORDER BY " + joined(terms) if terms else Sql("")


def _ordering(plan: ReadPlan, name: str, rows: Callable[[Embedded], Sql], joins: bool) -> _Ordering:
    embedded = plan.embedding(name)
    assert embedded is not None
    inner = embedded.plan
    made = made_columns(inner) if joins and is_read(embedded) else {}
    # In a spread relation a name is never ambiguous: the first column counts.
    twice = frozenset[str]() if embedded.spread else repeated_names(inner)
    return _Ordering(embedded, made, twice, once(lambda: rows(embedded)))


def _order(plan: ReadPlan, order: Order, orderings: Mapping[str, _Ordering]) -> Sql:
    found = _ordered_by(plan, order, orderings)
    if order.direction is not None:
        found = found + (" DESC" if order.direction == "desc" else " ASC")
    if order.nulls is not None:
        found = found + (" NULLS FIRST" if order.nulls == "nullsfirst" else " NULLS LAST")
    return found


def _ordered_by(plan: ReadPlan, order: Order, orderings: Mapping[str, _Ordering]) -> Sql:
    if order.counts:
        return Sql("pg_catalog.count(*)")
    if order.embedded is None:
        return Sql(field_sql(column_sql(plan, order.field.name), order.field, order.column))
    ordering = orderings[order.embedded]
    embedded, name = ordering.embedded, order.field.name
    if ordering.made.get(name) is False and name not in ordering.twice:
        return Sql(field_sql(f"{ident(embedded.alias)}.{ident(name)}", order.field, order.column))
    # The column may not be selected, or it is JSON there, which has no order: then it is read from the relation.
    if not order.own:
        raise errors.unknown_column(embedded.plan.alias, name)
    column = field_sql(column_sql(embedded.plan, name), order.field, order.column)
    return f"(SELECT {column}" + ordering.rows() + " LIMIT 1)"
