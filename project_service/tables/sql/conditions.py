"""The conditions of WHERE clauses. Operators come from a fixed list; operands are parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache as once

from attrs import evolve, frozen

from project_service.tables import errors
from project_service.tables.plan.nodes import (
    Embedded,
    EmbedIsNull,
    Hoisted,
    Order,
    Output,
    PlannedCondition,
    ReadPlan,
    Tree,
    made_columns,
    repeated_names,
    result_names,
)
from project_service.tables.plan.read import sql_alias
from project_service.tables.request.syntax import OPERATORS, Compare, Field, Filter, In, Is, Search
from project_service.tables.sql.fragment import (
    NOTHING,
    Sql,
    cast_type,
    ident,
    joined,
    literal,
    parameter,
    qualified,
    refuse_long_name,
)
from project_service.tables.values import Column, Computed, Key

# Columns and JSON paths in SQL.


_JSON_TYPES = ("json", "jsonb")


def column_sql(plan: ReadPlan, name: str) -> str:
    """A column of the relation that the plan reads. The planner has made sure that there is one of that name."""
    computed = plan.computed.get(name)
    return f"{ident(plan.alias)}.{ident(name)}" if computed is None else computed_sql(plan.alias, computed)


def computed_sql(alias: str, computed: Computed) -> str:
    """The call that makes a computed column. A name put after the relation's would do as well, but might mean another
    function or an aggregate."""
    row = f"({ident(alias)}.*)"
    return f"{qualified(computed.routine)}({row if computed.row is None else f'{row}::{qualified(computed.row)}'})"


def field_sql(base: str, field: Field, column: Column | None) -> str:
    """The column ``base``, an SQL expression, or a JSON path into it.

    A path into anything but JSON goes through ``to_jsonb``: arrays, composites, and columns of unknown types
    (computed columns, and those of a function that RETURNS TABLE).
    """
    if not field.path:
        return base
    if column is None or column.base_type not in _JSON_TYPES:
        base = f"to_jsonb({base})"
    for step in field.path:
        key = str(step.key) if isinstance(step.key, int) else literal(step.key)
        base += ("->>" if step.as_text else "->") + key
    return base


def expression(plan: ReadPlan, output: Output) -> str:
    """The SQL expression of an output, without its aggregate and without its name."""
    if output.field is None:
        return "1"
    found = field_sql(column_sql(plan, output.field.name), output.field, output.column)
    if output.format is not None:
        found = f"{qualified(output.format)}({found})"
    if output.cast is not None:
        found = f"CAST({found} AS {cast_type(output.cast)})"
    return found


def output_sql(plan: ReadPlan, output: Output) -> str:
    found = expression(plan, output)
    if output.aggregate is not None:
        found = aggregated(output.aggregate, "*" if output.field is None else found, output.aggregate_cast)
    return f"{found} AS {ident(output.name)}"


def hoisted_sql(alias: str, hoisted: Hoisted) -> str:
    carrier = f"{ident(alias)}.{ident(hoisted.carrier)}"
    return f"{aggregated(hoisted.aggregate, carrier, hoisted.cast)} AS {ident(hoisted.name)}"


def aggregated(function: str, argument: str, cast: str | None) -> str:
    """``function`` is one of the five aggregates that the grammar allows.

    An application may define the others for types of its own. PostgreSQL's ``count`` takes every type, but a function
    ``count(text)`` would be called instead of it.
    """
    name = "pg_catalog.count" if function == "count" else function.upper()
    found = f"{name}({argument})"
    return f"CAST({found} AS {cast_type(cast)})" if cast is not None else found


# Embedded relations in SQL: where their rows come from, how they are tied to the parent's row, and which columns of
# theirs the parent shows.


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


# ORDER BY, also by columns of embedded to-one relations.


# The columns that a page has besides those of its relation.
MARK = "pgrst_order"


@frozen
class _Ordering:
    """An embedded relation that is ordered by, prepared once for all terms that name it. ``made`` are the columns
    of its joined rows (``made_columns``), and ``twice`` are the ambiguous names. ``rows`` makes the FROM for a column
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


Presence = Callable[[EmbedIsNull], Sql]


def condition_sql(plan: ReadPlan, condition: PlannedCondition, presence: Presence | None = None) -> Sql:
    """A planned condition as SQL. ``presence`` renders tests whether an embedded relation has rows, where the
    embedded relations are not joined."""
    if isinstance(condition, Tree):
        terms = [condition_sql(plan, term, presence) for term in condition.terms]
        body = "(" + joined(terms, f" {condition.operator.upper()} ") + ")"
        return "NOT " + body if condition.negated else body
    if isinstance(condition, EmbedIsNull):
        return presence(condition) if presence is not None else Sql(presence_sql(plan, condition))
    name = condition.field.name
    column = plan.column(name)
    return filtered_value(field_sql(column_sql(plan, name), condition.field, column), column, condition)


def presence_sql(plan: ReadPlan, condition: EmbedIsNull) -> str:
    """The test whether a joined relation has rows."""
    embedded = plan.embedding(condition.embedded)
    assert embedded is not None
    tested = ident(embedded.alias) + (".*" if embedded.to_one else ".pgrst_rows")
    return f"{tested} IS {'DISTINCT' if condition.negated else 'NOT DISTINCT'} FROM NULL"


def filtered_value(field: str, column: Column | None, found: Filter) -> Sql:
    """The filter applied to ``field``, an SQL expression of the column's type."""
    reader = None if column is None or found.field.path else column.representation.from_text
    body = _operation(field, column, found, reader)
    return "NOT " + body if found.negated else body


def _operation(field: str, column: Column | None, found: Filter, reader: Key | None) -> Sql:
    operation = found.operation
    if isinstance(operation, Is):
        return Sql(f"{field} IS {operation.value.upper().replace('_', ' ')}")
    if isinstance(operation, In):
        return _in(field, operation, reader)
    if isinstance(operation, Search):
        return _search(field, column, found, operation)
    return _compare(field, operation, reader)


def _compare(field: str, operation: Compare, reader: Key | None) -> Sql:
    operator, value = OPERATORS[operation.operator], parameter(operation.operand)
    if operator.operand == "pattern":
        # A pattern is no value of the column's type, so it is not read as one.
        reader = None
    if operation.quantifier is not None:
        value = value if reader is None else _read(reader, value)
        return f"{field} {operator.quantified_sql} {operation.quantifier.upper()} (" + value + ")"
    if reader is not None:
        value = f"{qualified(reader)}(" + value + "::text)"
    return f"{field} {operator.sql} " + value


def _in(field: str, operation: In, reader: Key | None) -> Sql:
    values = parameter(operation.operand)
    return f"{field} = ANY (" + (values if reader is None else _read(reader, values)) + ")"


def _read(reader: Key, values: Sql) -> Sql:
    return f"SELECT {qualified(reader)}(v) FROM unnest(" + values + "::text[]) AS v"


def _search(field: str, column: Column | None, found: Filter, operation: Search) -> Sql:
    language = Sql("")
    if operation.language:
        refuse_long_name(operation.language, "text search configuration")
        language = parameter(operation.language) + ", "
    document = Sql(field)
    if column is not None and (found.field.path or column.base_type != "tsvector"):
        document = "to_tsvector(" + language + document + ")"
    return (
        document + f" @@ {OPERATORS[operation.operator].sql}(" + language + parameter(operation.operand) + ")"
    )
