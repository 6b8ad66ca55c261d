"""SELECT statements: one for each relation of the plan's tree.

The statement of a relation asks for the rows of one that is embedded in it in up to three positions, depending on its
layout (``layout``):

* in a lateral join (``_join_sql``), to show them;
* in an EXISTS (``_exists_sql``), which tests whether there are any;
* in a join or a subquery for ORDER BY (``order_sql``), if the column to order by is not among the joined ones.

An EXISTS has no joins, so the tests within it are EXISTS again; one that is tested twice gets a subquery of its own
(``_tests``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from functools import cached_property

from attrs import evolve, frozen

from project_service.tables import errors
from project_service.tables.plan.nodes import (
    AllColumns,
    Embedded,
    EmbedIsNull,
    Order,
    Output,
    PlannedCondition,
    ReadPlan,
    needed_columns,
    repeated_names,
    result_columns,
    sql_alias,
    tested_names,
    with_columns_listed,
)
from project_service.tables.request.syntax import Range
from project_service.tables.sql.expressions import (
    condition_sql,
    field_sql,
    hoisted_sql,
    output_sql,
    path_sql,
    returned_columns,
    value_sql,
    without_repetitions,
)
from project_service.tables.sql.fragment import (
    MAX_BIGINT,
    NOTHING,
    SOURCE,
    Sql,
    ident,
    joined,
    parameter,
    qualified,
)
from project_service.tables.sql.layout import layout_of, page_key, tested_by_exists

# The column in which an unsorted page numbers its rows; with a number behind it, one that a page hands on to order
# by.
_MARK = "pgrst_order"


def select_sql(plan: ReadPlan, parent: Embedded | None = None, origin: str = "") -> Sql:
    """The rows of ``plan``; inside an embedding, those that belong to the parent's row, whose alias is ``origin``."""
    layout = layout_of(plan, nested=parent is not None)
    if layout == "paged":
        return _paged_sql(plan, parent, origin)
    apart = tested_by_exists(plan, layout)
    shown = _deciding_nothing(plan, apart)
    joined_here = {embedded.alias for embedded in shown.embeddings if embedded.is_read}
    tested = {embedded.alias for embedded in apart}
    fenced = not (plan.grouped or plan.order) and any(not embedded.to_one for embedded in apart)
    return (
        _select_list(shown, parent)
        + _from_sql(plan, parent, origin)
        + _joins_sql(shown)
        + _where_sql(plan, _tie_terms(parent, origin), joined_here - tested, fenced)
        + _group_by(shown)
        + order_sql(shown)
        + range_sql(plan.range)
    )


def _paged_sql(plan: ReadPlan, parent: Embedded | None, origin: str) -> Sql:
    """The page's rows in a subquery that has the relation's alias, and what is embedded in them joined to it."""
    order = _page_order(plan)
    everything, names = needed_columns(plan)
    # The statement's own source has computed columns as columns of its own.
    computed = () if plan.key is None and everything else names
    columns = [Sql(returned_columns(plan.alias, plan.relation, everything, computed, plan.computed))]
    columns += [value + f" AS {mark}" for mark, value in order.marks]
    page = (
        "SELECT "
        + joined(columns)
        + _from_sql(plan, parent, origin)
        + order.joins
        + _where_sql(plan, _tie_terms(parent, origin), order.joined)
        + order.within
        + _range_in_text(plan.range)
    )
    if order.numbered:
        page = f"SELECT *, row_number() OVER () AS {_MARK} FROM (" + page + ") AS pgrst_page"
    marks = [mark for mark, _ in order.marks] + ([_MARK] if order.numbered else [])
    shown = _deciding_nothing(with_columns_listed(plan, (*names, *marks)), list(plan.embeddings))
    source = " FROM (" + page + f") AS {ident(plan.alias)}"
    return _select_list(shown, parent) + source + _joins_sql(shown) + order.after


def count_sql(plan: ReadPlan, at_most: int | None = None) -> Sql:
    """As many rows as ``plan`` has without its range, but not more than ``at_most``."""
    limit = f" LIMIT {at_most}" if at_most is not None else ""
    if plan.grouped:
        return select_sql(evolve(plan, range=Range(), order=())) + limit
    return "SELECT 1" + _from_sql(plan, None, "") + _where_sql(plan, []) + limit


def _deciding_nothing(plan: ReadPlan, apart: Collection[Embedded]) -> ReadPlan:
    """The plan in which those ``apart`` decide nothing, because they are tested by themselves."""
    aliases = {embedded.alias for embedded in apart}
    outputs = tuple(
        evolve(output, join="left", tested=False)
        if isinstance(output, Embedded) and output.alias in aliases
        else output
        for output in plan.outputs
    )
    return evolve(plan, outputs=outputs)


# SELECT and GROUP BY.


def _select_list(plan: ReadPlan, parent: Embedded | None) -> Sql:
    """SELECT with the columns of ``plan``. Of several columns of one name only the last is selected: a JSON object
    must not have a key twice, and clients take the last of several."""
    unique, grouped = bool(repeated_names(plan)), plan.grouped
    columns: list[tuple[str, str]] = []
    for output in plan.outputs:
        if isinstance(output, Output):
            columns.append((output.name, output_sql(plan, output)))
        elif not isinstance(output, AllColumns):
            columns.extend(_embedded_columns(output, grouped))
        elif output.formatted or grouped or unique:
            columns.extend((column.name, output_sql(plan, column)) for column in output.columns)
        else:
            columns.append(("", f"{ident(plan.alias)}.*"))
    if unique:
        columns = list({name or sql: (name, sql) for name, sql in columns}.values())
    if not columns and parent is not None:
        return Sql("SELECT 1 AS pgrst_one")  # only looked at for being there
    return "SELECT " + joined(sql for _, sql in columns)


def _embedded_columns(embedded: Embedded, grouped: bool) -> Iterator[tuple[str, str]]:
    """The columns that an embedding adds to its parent: (name, SQL)."""
    if not embedded.plan.shows:
        return
    if not embedded.spread:
        yield embedded.name, f"{_embedded_value(embedded, grouped)} AS {ident(embedded.name)}"
        return
    columns, carriers = result_columns(embedded.plan), embedded.carriers
    as_json = _grouped_as_json(embedded, columns) if grouped else frozenset()
    for name in columns:
        if name not in carriers or embedded.carries:
            value = f"{ident(embedded.alias)}.{ident(name)}" + ("::jsonb" if name in as_json else "")
            yield name, (value if embedded.to_one else f"COALESCE({value}, '[]')") + f" AS {ident(name)}"
    if not embedded.carries:
        for hoisted in embedded.hoisted:
            yield hoisted.name, hoisted_sql(embedded.alias, hoisted)


def _embedded_value(embedded: Embedded, grouped: bool) -> str:
    alias = ident(embedded.alias)
    value = f"row_to_json({alias}.*)" if embedded.to_one else f"{alias}.pgrst_rows"
    if grouped:
        value += "::jsonb"
    elif embedded.plan.shows_records(embedded.plan.computed):
        # Here too, for CSV, whose cells hold embedded rows as JSON.
        value = without_repetitions(value)
    return value if embedded.to_one else f"COALESCE({value}, '[]')"


def _grouped_as_json(embedded: Embedded, columns: Mapping[str, bool]) -> frozenset[str]:
    """The names of the columns that are made as ``json``, which has no equality: to be grouped by they are cast to
    ``jsonb``."""
    return frozenset(name for name, is_json in columns.items() if is_json or not embedded.to_one)


def _group_by(plan: ReadPlan) -> str:
    """The GROUP BY clause: everything that is selected beside aggregates. Empty if there is none, or if all rows are
    one group."""
    if not plan.grouped:
        return ""
    keys: list[str] = []
    for output in plan.outputs:
        if isinstance(output, Output):
            keys.extend([] if output.aggregate is not None else [_group_key(plan, output)])
        elif isinstance(output, AllColumns):
            keys.extend(_group_key(plan, column) for column in output.columns)
        else:
            keys.extend(_embedded_group_keys(output))
    return " GROUP BY " + ", ".join(keys) if keys else ""


def _group_key(plan: ReadPlan, output: Output) -> str:
    """The expression to group by. A data representation's JSON has no equality, so the value itself is grouped by."""
    if output.cast is not None:
        return value_sql(plan, output)
    # Only a count has no field. One without an aggregate is handed up by a spread relation, whose own rows are not
    # grouped.
    assert output.field is not None
    return field_sql(plan, output.field, output.column)


def _embedded_group_keys(embedded: Embedded) -> Iterator[str]:
    if not embedded.plan.shows:
        return
    alias = ident(embedded.alias)
    if not embedded.spread:
        yield f"row_to_json({alias}.*)::jsonb" if embedded.to_one else f"{alias}.pgrst_rows::jsonb"
        return
    columns, carriers = result_columns(embedded.plan), embedded.carriers
    as_json = _grouped_as_json(embedded, columns)
    for name in columns:
        if name not in carriers:
            yield f"{alias}.{ident(name)}" + ("::jsonb" if name in as_json else "")


# FROM and JOIN.


def _from_sql(plan: ReadPlan, parent: Embedded | None, origin: str) -> str:
    if parent is not None:
        return " FROM " + _source_of(parent, origin)
    return f" FROM {SOURCE} AS {ident(plan.alias)}" if plan.key is None else f" FROM {qualified(plan.key)}"


def _source_of(embedded: Embedded, origin: str) -> str:
    """What the FROM of an embedding reads: a relation, a relation and its junction, or a function of the parent's
    row, whose alias is ``origin``."""
    relationship, alias = embedded.relationship, ident(embedded.plan.alias)
    if relationship.routine is not None:
        own = ", ".join(f"{ident(origin)}.{ident(name)}" for name in embedded.row_columns)
        row = f"ROW({own})" if own else f"({ident(origin)}.*)"
        call = f"{qualified(relationship.routine)}({row}::{qualified(relationship.origin)})"
        # A function that is declared to return one row may return several, of which the first is the one.
        source = f"(SELECT * FROM {call} LIMIT 1)" if relationship.first_only else call
        return f"{source} AS {alias}"
    source = f"{qualified(relationship.target)} AS {alias}"
    if relationship.junction is not None:
        source += f", {qualified(relationship.junction.key)} AS {ident(_junction_alias(embedded))}"
    return source


def _tie_terms(embedded: Embedded | None, origin: str) -> list[Sql]:
    """The conditions that tie the embedded rows to the parent's row, whose alias is ``origin``."""
    if embedded is None:
        return []
    relationship, alias = embedded.relationship, ident(embedded.plan.alias)
    if relationship.junction is None:
        pairs = relationship.pairs
        return [Sql(f"{alias}.{ident(theirs)} = {ident(origin)}.{ident(ours)}") for ours, theirs in pairs]
    junction = ident(_junction_alias(embedded))
    return [
        *(
            Sql(f"{junction}.{ident(between)} = {ident(origin)}.{ident(ours)}")
            for ours, between in relationship.junction.origin_pairs
        ),
        *(
            Sql(f"{alias}.{ident(theirs)} = {junction}.{ident(between)}")
            for between, theirs in relationship.junction.target_pairs
        ),
    ]


def _junction_alias(embedded: Embedded) -> str:
    junction = embedded.relationship.junction
    assert junction is not None
    return sql_alias("pgrst_" + junction.key[1], int(embedded.plan.alias.rpartition("_")[2]))


def _joins_sql(plan: ReadPlan) -> Sql:
    joins = NOTHING
    for embedded in plan.embeddings:
        if embedded.is_read:
            joins = joins + _join_sql(plan, embedded)
    return joins


def _join_sql(plan: ReadPlan, embedded: Embedded) -> Sql:
    rows = select_sql(embedded.plan, embedded, plan.alias)
    alias, kind = ident(embedded.alias), embedded.join.upper()
    if embedded.to_one:
        return f" {kind} JOIN LATERAL (" + rows + f") AS {alias} ON TRUE"
    on = f"{alias}.pgrst_rows IS NOT NULL" if embedded.join == "inner" else "TRUE"
    return (
        f" {kind} JOIN LATERAL ({_gather_sql(embedded)} FROM (" + rows + f") AS {alias}) AS {alias} ON {on}"
    )


def _gather_sql(embedded: Embedded) -> str:
    """SELECTs a to-many embedding's rows as one row: a JSON array of them or, if spread, one of each column."""
    alias = ident(embedded.alias)
    if not embedded.spread:
        return f"SELECT pg_catalog.json_agg({alias}.*) AS pgrst_rows"
    names = map(ident, result_columns(embedded.plan))
    columns = [f"pg_catalog.json_agg({alias}.{name}) AS {name}" for name in names]
    return "SELECT " + ", ".join([*columns, "NULLIF(count(*), 0) AS pgrst_rows"])


# WHERE, and the tests whether embedded relations have rows.


def _where_sql(
    plan: ReadPlan, terms: list[Sql], joined_here: Container[str] = (), fenced: bool = False
) -> Sql:
    """What follows the FROM. ``terms`` are further conditions.

    Embedded relations are tested by EXISTS, except for those ``joined_here``, by alias. A test that has to hold for
    the whole is written once, however often it was asked for. With ``fenced`` PostgreSQL makes no join of it, and so
    leaves the order of rows as it is.
    """
    aliases = {embedded.name: embedded.alias for embedded in reversed([*plan.embeddings])}
    inner = [
        (embedded.alias, True)
        for embedded in plan.embeddings
        if embedded.join == "inner" and embedded.alias not in joined_here
    ]
    apart = [
        (aliases[one.embedded], one.negated)
        for one in plan.conditions
        if isinstance(one, EmbedIsNull) and aliases[one.embedded] not in joined_here
    ]
    others = [
        one
        for one in plan.conditions
        if not isinstance(one, EmbedIsNull) or aliases[one.embedded] in joined_here
    ]
    required = dict.fromkeys([*apart, *inner])
    counts = Counter([alias for alias, _ in required] + [aliases[name] for name in tested_names(others)])
    before, tests = _tests(plan, {alias: n for alias, n in counts.items() if alias not in joined_here})
    by_name = {name: tests[alias] for name, alias in aliases.items() if alias in tests}
    terms = [*terms, *(condition_sql(plan, condition, by_name) for condition in others)]
    for alias, wanted in required:
        if fenced:
            terms.append("(" + tests[alias] + f") IS {'TRUE' if wanted else 'FALSE'}")
        else:
            terms.append(tests[alias] if wanted else "NOT " + tests[alias])
    return before + where_sql(terms)


def where_sql(terms: list[Sql]) -> Sql:
    return " WHERE " + joined(terms, " AND ") if terms else NOTHING


def _tests(plan: ReadPlan, counts: Mapping[str, int]) -> tuple[Sql, dict[str, Sql]]:
    """For each tested embedded relation, by its alias, the expression that is true if it has rows; and what has to
    stand before the WHERE for it. ``counts`` says how often each is tested.

    One that is tested more than once, and that has such tests inside, is looked for only once, in a subquery:
    otherwise each level would multiply the statement's length. OFFSET keeps PostgreSQL from putting the subquery back
    into each position; it also rules out joins and hashes.
    """
    before, tests = NOTHING, {}
    for embedded in plan.embeddings:
        if embedded.alias not in counts:
            continue
        test = _exists_sql(plan, embedded)
        if counts[embedded.alias] > 1 and any(embedded.plan.deciding):
            # The embedding's own alias is that of a join beside it.
            alias = f"pgrst_there_{embedded.alias.rpartition('_')[2]}"
            before = before + ", LATERAL (SELECT " + test + f" AS pgrst_there OFFSET 0) AS {alias}"
            test = Sql(f"{alias}.pgrst_there")
        tests[embedded.alias] = test
    return before, tests


def terms_of_write(plan: ReadPlan, conditions: Sequence[PlannedCondition]) -> list[Sql]:
    """The conditions of a write, which joins nothing. ``plan`` is how the table's rows are read.

    Each inner joined embedded relation has to have rows. An aggregate always is there, so for one its source rows are
    asked for.
    """
    names = set(tested_names(conditions))
    embeddings = reversed([*plan.embeddings])
    tests = {one.name: _exists_sql(plan, one) for one in embeddings if one.name in names}
    inner = [embedded for embedded in plan.embeddings if embedded.join == "inner"]
    apart = [_without_aggregates(embedded) for embedded in inner if _is_aggregated(embedded)]
    return [
        *(condition_sql(plan, condition, tests) for condition in conditions),
        *(_exists_sql(plan, embedded) for embedded in (*inner, *apart)),
    ]


def _is_aggregated(embedded: Embedded) -> bool:
    """Whether its rows, or those of a relation embedded in it, are aggregates. A count is there even if there is
    nothing to count."""
    return embedded.plan.grouped or any(map(_is_aggregated, embedded.plan.embeddings))


def _without_aggregates(embedded: Embedded) -> Embedded:
    """The embedding without its aggregates, here and below: what they are made of."""
    inner = tuple(map(_without_aggregates, embedded.plan.embeddings))
    return evolve(embedded, plan=evolve(embedded.plan, outputs=inner), hoisted=())


def _exists_sql(plan: ReadPlan, embedded: Embedded) -> Sql:
    embedded = _under_own_alias(embedded)
    range_ = embedded.plan.range
    is_cut = range_.offset > 0 or range_.limit == 0
    if embedded.plan.grouped and not _group_by(embedded.plan):
        # An aggregate of all rows is one row, even of no rows.
        return Sql("false" if is_cut else "true")
    if embedded.plan.grouped and is_cut:
        return "EXISTS (" + select_sql(embedded.plan, embedded, plan.alias) + ")"
    # A range that begins with the first row has rows if there are any at all, so only others are cut.
    cut = range_sql(range_) if is_cut else Sql(" OFFSET 0" if _is_of_unknown_size(plan) else "")
    return "EXISTS (SELECT 1" + _rows_apart(embedded, plan.alias) + cut + ")"


def _under_own_alias(embedded: Embedded) -> Embedded:
    """The embedding with another alias than where it is shown, which PostgreSQL's plans and messages name as with
    PostgREST only if nothing else in the statement has its alias."""
    name, _, number = embedded.plan.alias.rpartition("_")
    return evolve(embedded, plan=evolve(embedded.plan, alias=sql_alias(f"pgrst_apart_{name}", int(number))))


def _is_of_unknown_size(plan: ReadPlan) -> bool:
    """Whether PostgreSQL does not know how many rows there are: those of a write, or of a function that it does not
    inline. For a thousand rows, which it assumes, it might read a large table whole, where there is only one. With an
    OFFSET it looks for related rows of one row after the other. Aggregates are expected to take their time."""
    return plan.key is None and not plan.inlined and not plan.grouped


def _rows_apart(embedded: Embedded, origin: str) -> Sql:
    """The FROM and WHERE for the rows of ``embedded`` that belong to the parent's row, read apart from any join."""
    return " FROM " + _source_of(embedded, origin) + _where_sql(embedded.plan, _tie_terms(embedded, origin))


# ORDER BY, also by columns of embedded to-one relations.


def order_sql(plan: ReadPlan, joins: bool = True) -> Sql:
    """The ORDER BY clause. Without ``joins`` the statement does not join the embedded relations that are ordered by.
    Raises 42703."""
    orderings: dict[str, _Ordering] = {}
    for order in plan.order:
        if order.embedded is not None and order.embedded not in orderings:
            embedded = plan.embedding(order.embedded)
            assert embedded is not None
            orderings[order.embedded] = _Ordering(embedded, plan.alias, joins)
    terms = [_directed(_order_value(plan, order, orderings), order) for order in plan.order]
    return " ORDER BY " + joined(terms) if terms else NOTHING


@frozen(slots=False)
class _Ordering:
    """An embedded relation that is ordered by, with what is computed once for all terms that name it."""

    embedded: Embedded
    origin: str
    joins: bool

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns of its joined rows that can be ordered by. An ambiguous name cannot, nor can JSON."""
        if not self.joins or not self.embedded.is_read:
            return frozenset()
        plan = self.embedded.plan
        # In a spread relation a name is never ambiguous: the last column counts.
        ambiguous = frozenset[str]() if self.embedded.spread else repeated_names(plan)
        return frozenset(name for name, is_json in result_columns(plan).items() if not is_json) - ambiguous

    @cached_property
    def rows(self) -> Sql:
        return _rows_apart(self.embedded, self.origin)


def _directed(value: Sql, order: Order) -> Sql:
    direction = f" {order.direction.upper()}" if order.direction is not None else ""
    nulls = {"nullsfirst": " NULLS FIRST", "nullslast": " NULLS LAST", None: ""}[order.nulls]
    return value + (direction + nulls)


def _order_value(plan: ReadPlan, order: Order, orderings: Mapping[str, _Ordering]) -> Sql:
    if order.counts:
        return Sql("pg_catalog.count(*)")
    if order.embedded is None:
        return Sql(field_sql(plan, order.field, order.column))
    ordering = orderings[order.embedded]
    embedded, name = ordering.embedded, order.field.name
    if name in ordering.columns:
        return Sql(path_sql(f"{ident(embedded.alias)}.{ident(name)}", order.field, order.column))
    # Otherwise it is read from the relation.
    if not order.own:
        raise errors.unknown_column(embedded.plan.alias, name)
    return f"(SELECT {field_sql(embedded.plan, order.field, order.column)}" + ordering.rows + " LIMIT 1)"


@frozen
class _PageOrder:
    """The order of a page.

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


def _page_order(plan: ReadPlan) -> _PageOrder:
    if plan.order:
        return _order_of_sorted_page(plan)
    source = ident(plan.alias)
    if key := [f"{source}.{ident(name)}" for name in page_key(plan)]:
        sql = Sql(" ORDER BY " + ", ".join(key))
        return _PageOrder(within=sql, after=sql)
    return _PageOrder(after=Sql(f" ORDER BY {source}.{_MARK}"), numbered=True)


def _order_of_sorted_page(plan: ReadPlan) -> _PageOrder:
    marks: dict[str, Sql] = {}
    columns: dict[str, list[str]] = {}
    within: list[Sql] = []
    after: list[Sql] = []
    for number, order in enumerate(plan.order):
        embedded = plan.embedding(order.embedded) if order.embedded is not None else None
        if embedded is None:
            # Computed columns are columns like others once the page has them.
            for source, terms in ((plan, within), (evolve(plan, computed={}), after)):
                terms.append(_directed(Sql(field_sql(source, order.field, order.column)), order))
            continue
        mark = f"{_MARK}_{number}"
        column = field_sql(embedded.plan, order.field, order.column)
        if _has_one_row(embedded):
            columns.setdefault(embedded.name, []).append(f"{column} AS {mark}")
            marks[mark] = Sql(f"{ident(embedded.alias)}.{mark}")
        else:
            marks[mark] = f"(SELECT {column}" + _rows_apart(embedded, plan.alias) + " LIMIT 1)"
        within.append(_directed(marks[mark], order))
        after.append(_directed(Sql(f"{ident(plan.alias)}.{mark}"), order))
    joins, inner = NOTHING, []
    for embedded in plan.embeddings:
        if shown := columns.pop(embedded.name, None):
            inner.extend([embedded.alias] if embedded.join == "inner" else [])
            rows = f"SELECT {', '.join(shown)}" + _rows_apart(embedded, plan.alias)
            joins = joins + f" {embedded.join.upper()} JOIN LATERAL (" + rows
            joins = joins + f") AS {ident(embedded.alias)} ON TRUE"
    inside, outside = (" ORDER BY " + joined(terms) for terms in (within, after))
    return _PageOrder(joins, frozenset(inner), tuple(marks.items()), inside, outside)


def _has_one_row(embedded: Embedded) -> bool:
    """Whether a constraint ensures that the parent's row has no second row there."""
    relation = embedded.plan.relation
    if relation is None or relation.is_view or relation.inherited:
        return False
    return embedded.relationship.routine is None


# LIMIT and OFFSET. PostgreSQL counts rows in a bigint, and no relation has more than that.


def range_sql(range_: Range) -> Sql:
    sql = NOTHING
    if range_.limit is not None:
        sql = " LIMIT " + parameter(str(min(range_.limit, MAX_BIGINT)))
    if range_.offset:
        sql = sql + " OFFSET " + parameter(str(min(range_.offset, MAX_BIGINT)))
    return sql


def _range_in_text(range_: Range) -> str:
    """The same with the numbers in the text: how to find a page best depends on its size, and for a parameter
    PostgreSQL would assume a tenth of all rows."""
    limit = f" LIMIT {min(range_.limit, MAX_BIGINT)}" if range_.limit is not None else ""
    return limit + (f" OFFSET {min(range_.offset, MAX_BIGINT)}" if range_.offset else "")
