"""ORDER BY, also by columns of embedded to-one relations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache as once

from attrs import evolve, frozen

from project_service.tables import errors
from project_service.tables.plan.nodes import Embedded, Order, ReadPlan
from project_service.tables.plan.outputs import made_columns, repeated_names
from project_service.tables.sql.embed import is_read
from project_service.tables.sql.fields import column_sql, field_sql
from project_service.tables.sql.fragment import NOTHING, Sql, joined
from project_service.tables.sql.names import ident

# The columns that a page has besides those of its relation.
MARK = "pgrst_order"


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


@frozen
class PageOrder:
    """The order of a page (see ``sql.layout``).

    ``joins`` add the embedded columns that are ordered by, and decide for the embedded relations that are ``joined``,
    by alias. ``marks`` are columns that the page hands on, with their names. ``within`` is the ORDER BY of the page,
    and ``after`` that of its rows after they were joined to others. With ``numbered`` the page's rows are numbered,
    because their order is not known, and joins may change it.
    """

    joins: Sql = NOTHING
    joined: frozenset[str] = frozenset()
    marks: tuple[tuple[str, Sql], ...] = ()
    within: Sql = NOTHING
    after: Sql = NOTHING
    numbered: bool = False


def page_order(plan: ReadPlan, rows: Callable[[Embedded], Sql], key: Iterable[str]) -> PageOrder:
    """``key`` are the columns to sort by if the plan has no order; ``rows`` as for ``order_sql``."""
    if plan.order:
        return _sorted_page(plan, rows)
    source = ident(plan.alias)
    if by := [f"{source}.{ident(name)}" for name in key]:
        sql = Sql(" ORDER BY " + ", ".join(by))
        return PageOrder(within=sql, after=sql)
    return PageOrder(after=Sql(f" ORDER BY {source}.{MARK}"), numbered=True)


def _sorted_page(plan: ReadPlan, rows: Callable[[Embedded], Sql]) -> PageOrder:
    marks: dict[str, Sql] = {}
    columns: dict[str, list[str]] = {}
    within: list[Sql] = []
    after: list[Sql] = []
    for number, order in enumerate(plan.order):
        embedded = plan.embedding(order.embedded) if order.embedded is not None else None
        if embedded is None:
            # Computed columns are columns like others once the page has them.
            for source, terms in ((plan, within), (evolve(plan, computed={}), after)):
                value = field_sql(column_sql(source, order.field.name), order.field, order.column)
                terms.append(_directed(Sql(value), order))
            continue
        mark = f"{MARK}_{number}"
        column = field_sql(column_sql(embedded.plan, order.field.name), order.field, order.column)
        if _has_one_row(embedded):
            columns.setdefault(embedded.name, []).append(f"{column} AS {mark}")
            marks[mark] = Sql(f"{ident(embedded.alias)}.{mark}")
        else:
            marks[mark] = f"(SELECT {column}" + rows(embedded) + " LIMIT 1)"
        within.append(_directed(marks[mark], order))
        after.append(_directed(Sql(f"{ident(plan.alias)}.{mark}"), order))
    joins, inner = NOTHING, []
    for embedded in plan.embeddings:
        if shown := columns.pop(embedded.name, None):
            kind = "INNER" if embedded.join == "inner" else "LEFT"
            inner.extend([embedded.alias] if embedded.join == "inner" else [])
            joins = joins + f" {kind} JOIN LATERAL (SELECT {', '.join(shown)}" + rows(embedded)
            joins = joins + f") AS {ident(embedded.alias)} ON TRUE"
    inside, outside = (" ORDER BY " + joined(terms) for terms in (within, after))
    return PageOrder(joins, frozenset(inner), tuple(marks.items()), inside, outside)


def _has_one_row(embedded: Embedded) -> bool:
    """Whether a constraint ensures that the parent's row has no second row there."""
    relation = embedded.plan.relation
    if relation is None or relation.is_view or relation.inherited:
        return False
    return embedded.relationship.routine is None


def _ordering(plan: ReadPlan, name: str, rows: Callable[[Embedded], Sql], joins: bool) -> _Ordering:
    embedded = plan.embedding(name)
    assert embedded is not None
    inner = embedded.plan
    made = made_columns(inner) if joins and is_read(embedded) else {}
    # In a spread relation a name is never ambiguous: the last column counts.
    twice = frozenset[str]() if embedded.spread else repeated_names(inner)
    return _Ordering(embedded, made, twice, once(lambda: rows(embedded)))


def _order(plan: ReadPlan, order: Order, orderings: Mapping[str, _Ordering]) -> Sql:
    return _directed(_ordered_by(plan, order, orderings), order)


def _directed(value: Sql, order: Order) -> Sql:
    found = value
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
