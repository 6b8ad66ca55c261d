"""ORDER BY, also by columns of embedded to-one relations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache as once

from attrs import frozen

from project_service.tables.plan.nodes import Embedded, Order, ReadPlan
from project_service.tables.plan.outputs import NOTHING_MADE, Made, made_columns, repeated_names
from project_service.tables.sql.embed import is_read
from project_service.tables.sql.fields import field_sql
from project_service.tables.sql.fragment import Sql, joined


@frozen
class _Ordering:
    """An embedded relation that is ordered by, prepared once for all terms that name it. ``made`` says which columns
    its joined rows have (``plan.outputs``), and ``twice`` which names are ambiguous. ``rows`` makes the FROM for a
    column that cannot be taken from the joined rows."""

    embedded: Embedded
    made: Made
    twice: frozenset[str]
    rows: Callable[[], Sql]


def order_sql(plan: ReadPlan, rows: Callable[[Embedded], Sql], joins: bool = True) -> Sql:
    """The ORDER BY clause. ``rows`` makes the FROM and WHERE that read an embedded relation's rows by themselves.
    Without ``joins`` the statement does not join the embedded relations that are ordered by."""
    names = {order.embedded for order in plan.order if order.embedded is not None}
    orderings = {name: _ordering(plan, name, rows, joins) for name in names}
    terms = [_order(plan, order, orderings) for order in plan.order]
    return " ORDER BY " + joined(terms) if terms else Sql("")


def _ordering(plan: ReadPlan, name: str, rows: Callable[[Embedded], Sql], joins: bool) -> _Ordering:
    embedded = plan.embedding(name)
    assert embedded is not None
    inner = embedded.plan
    made = made_columns(inner) if joins and is_read(embedded) else NOTHING_MADE
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
    if order.embedded is None:
        return Sql(field_sql(plan.alias, order.field, order.column))
    ordering = orderings[order.embedded]
    embedded, name = ordering.embedded, order.field.name
    if ordering.made.of(name) is False and name not in ordering.twice:
        return Sql(field_sql(embedded.alias, order.field, order.column))
    # The column may not be selected, or it is JSON there, which has no order: then it is read from the relation.
    column = field_sql(embedded.plan.alias, order.field, order.column)
    return f"(SELECT {column}" + ordering.rows() + " LIMIT 1)"
