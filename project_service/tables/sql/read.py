"""SELECT statements: one for each relation of the plan's tree.

The statement of a relation asks for the rows of one that is embedded in it in up to three places, depending on its
``layout``:

* in a lateral join (``_join``), to show them;
* in an EXISTS (``_exists``), which tests whether there are any;
* in a join or a subquery for ORDER BY (``sql.order``), if the column to order by is not among the joined ones.

An EXISTS has no joins, so the tests within it are EXISTS again; one that is tested twice gets a subquery of its own
(``_looked_for``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Mapping
from functools import partial

from attrs import evolve

from project_service.tables.plan.needs import needed_columns, spelled_out
from project_service.tables.plan.nodes import (
    Embedded,
    EmbedIsNull,
    Everything,
    Output,
    ReadPlan,
    tested_names,
)
from project_service.tables.plan.outputs import repeated_names, result_names
from project_service.tables.sql.conditions import condition_sql, presence_sql
from project_service.tables.sql.embed import (
    condition_of_relationship,
    embedded_columns,
    is_read,
    source_of,
)
from project_service.tables.sql.fields import output_sql
from project_service.tables.sql.fragment import Sql, joined, parameter
from project_service.tables.sql.grouping import group_by
from project_service.tables.sql.layout import key_of, layout_of, tested_apart
from project_service.tables.sql.names import ident, qualified
from project_service.tables.sql.order import MARK, order_sql, page_order
from project_service.tables.sql.returning import returned
from project_service.tables.syntax import Range

SOURCE = "pgrst_source"
_MOST_ROWS = 2**63 - 1


def select_sql(plan: ReadPlan, parent: Embedded | None = None, origin: str = "") -> Sql:
    """The rows of ``plan``; inside an embedding, those that belong to the parent's row, whose alias is ``origin``."""
    layout = layout_of(plan, nested=parent is not None)
    if layout == "paged":
        return _paged(plan, parent, origin)
    apart = tested_apart(plan, layout)
    shown = _deciding_nothing(plan, apart)
    joined_here = {found.alias for found in shown.embeddings if is_read(found)}
    tested = {found.alias for found in apart}
    fenced = not (plan.grouped or plan.order) and any(not found.to_one for found in apart)
    return (
        _selected(shown, parent)
        + _from(plan, parent, origin)
        + _joins(shown)
        + _filtered(plan, _tied(parent, origin), joined_here - tested, fenced)
        + group_by(shown)
        + order_sql(shown, partial(rows_apart, plan))
        + range_sql(plan.range)
    )


def _paged(plan: ReadPlan, parent: Embedded | None, origin: str) -> Sql:
    """The page's rows in a subquery that has the relation's alias, and what is embedded in them joined to it."""
    order = page_order(plan, partial(rows_apart, plan), key_of(plan))
    everything, names = needed_columns(plan)
    # The statement's own source has computed columns as columns of its own.
    computed = () if plan.key is None and everything else names
    columns = [Sql(returned(plan.alias, plan.relation, everything, computed, plan.computed))]
    columns += [value + f" AS {mark}" for mark, value in order.marks]
    page = (
        "SELECT "
        + joined(columns)
        + _from(plan, parent, origin)
        + order.joins
        + _filtered(plan, _tied(parent, origin), order.joined)
        + order.within
        + _range_as_it_is(plan.range)
    )
    if order.numbered:
        page = f"SELECT *, row_number() OVER () AS {MARK} FROM (" + page + ") AS pgrst_page"
    marks = [mark for mark, _ in order.marks] + ([MARK] if order.numbered else [])
    shown = _deciding_nothing(spelled_out(plan, (*names, *marks)), list(plan.embeddings))
    source = " FROM (" + page + f") AS {ident(plan.alias)}"
    return _selected(shown, parent) + source + _joins(shown) + order.after


def _deciding_nothing(plan: ReadPlan, apart: Collection[Embedded]) -> ReadPlan:
    """The plan in which those ``apart`` decide nothing, because they are tested by themselves."""
    aliases = {found.alias for found in apart}
    outputs = tuple(
        evolve(output, join="left", needed=False)
        if isinstance(output, Embedded) and output.alias in aliases
        else output
        for output in plan.outputs
    )
    return evolve(plan, outputs=outputs)


def _selected(plan: ReadPlan, parent: Embedded | None) -> Sql:
    columns = _columns(plan, by_name=bool(repeated_names(plan)))
    if not columns and parent is not None:
        columns = [Sql("1 AS pgrst_one")]  # only looked at for being there
    return "SELECT " + joined(columns)


def _tied(parent: Embedded | None, origin: str) -> list[Sql]:
    return [Sql(text) for text in condition_of_relationship(parent, origin)] if parent is not None else []


def count_sql(plan: ReadPlan, at_most: int | None = None) -> Sql:
    """As many rows as ``plan`` has without its range, but not more than ``at_most``."""
    limit = f" LIMIT {at_most}" if at_most is not None else ""
    if plan.grouped:
        return select_sql(evolve(plan, range=Range(), order=())) + limit
    return "SELECT 1" + _from(plan, None, "") + _filtered(plan, []) + limit


def _filtered(
    plan: ReadPlan, terms: list[Sql], joined_here: Container[str] = (), fenced: bool = False
) -> Sql:
    """What follows the FROM. ``terms`` are further conditions.

    Embedded relations are tested by EXISTS, except for those ``joined_here``, by alias. A test that has to hold for
    the whole is written once, however often it was asked for. With ``fenced`` PostgreSQL makes no join of it, and so
    leaves the order of rows as it is.
    """
    named = {embedded.name: embedded.alias for embedded in reversed([*plan.embeddings])}
    inner = [
        (found.alias, True)
        for found in plan.embeddings
        if found.join == "inner" and found.alias not in joined_here
    ]
    asked = [found for found in plan.conditions if isinstance(found, EmbedIsNull)]
    apart = [found for found in asked if named[found.embedded] not in joined_here]
    others = [found for found in plan.conditions if found not in apart]
    decided = dict.fromkeys([*((named[found.embedded], found.negated) for found in apart), *inner])
    tests = Counter([alias for alias, _ in decided] + [named[name] for name in tested_names(others)])
    before, there = _looked_for(plan, {alias: n for alias, n in tests.items() if alias not in joined_here})

    def test(condition: EmbedIsNull) -> Sql:
        alias = named[condition.embedded]
        return (
            _present(there[alias], condition.negated)
            if alias in there
            else Sql(presence_sql(plan, condition))
        )

    terms = [*terms, *(condition_sql(plan, condition, test) for condition in others)]
    terms.extend(_present(there[alias], wanted, fenced) for alias, wanted in decided)
    return before + " WHERE " + joined(terms, " AND ") if terms else Sql("")


def _looked_for(plan: ReadPlan, tests: Mapping[str, int]) -> tuple[Sql, dict[str, Sql]]:
    """For each tested embedded relation, by its alias, the expression that is true if it has rows; and what has to
    stand before the WHERE for it. ``tests`` says how often each is tested.

    One that is tested more than once, and that has such tests inside, is looked for only once, in a subquery:
    otherwise each level would multiply the statement's length. OFFSET keeps PostgreSQL from putting the subquery back
    into each place; it also rules out joins and hashes.
    """
    before, there = Sql(""), {}
    for embedded in plan.embeddings:
        if embedded.alias not in tests:
            continue
        found = _exists(plan, embedded)
        within = any(one.needed or one.join == "inner" for one in embedded.plan.embeddings)
        if within and tests[embedded.alias] > 1:
            # The embedding's own alias is that of a join beside it.
            alias = f"pgrst_there_{embedded.alias.rpartition('_')[2]}"
            before = before + ", LATERAL (SELECT " + found + f" AS pgrst_there OFFSET 0) AS {alias}"
            found = Sql(f"{alias}.pgrst_there")
        there[embedded.alias] = found
    return before, there


def _present(there: Sql, wanted: bool, fenced: bool = False) -> Sql:
    if fenced:
        return "(" + there + f") IS {'TRUE' if wanted else 'FALSE'}"
    return there if wanted else "NOT " + there


def presence(plan: ReadPlan, condition: EmbedIsNull) -> Sql:
    """The test whether an embedded relation has rows, for a statement that does not join it."""
    embedded = plan.embedding(condition.embedded)
    assert embedded is not None
    return _present(_exists(plan, embedded), condition.negated)


def inner_terms(plan: ReadPlan) -> list[Sql]:
    """The conditions of a write that each inner joined embedded relation has rows. An aggregate always is there, so
    for one its source rows are asked for."""
    inner = [embedded for embedded in plan.embeddings if embedded.join == "inner"]
    apart = [_rows_of(embedded) for embedded in inner if is_aggregated(embedded)]
    return [_exists(plan, embedded) for embedded in (*inner, *apart)]


def is_aggregated(embedded: Embedded) -> bool:
    """Whether its rows, or those of a relation embedded in it, are aggregates. A count is there even if there is
    nothing to count."""
    return embedded.plan.grouped or any(map(is_aggregated, embedded.plan.embeddings))


def _rows_of(embedded: Embedded) -> Embedded:
    """The embedding without its aggregates, here and below: what they are made of."""
    within = tuple(map(_rows_of, embedded.plan.embeddings))
    return evolve(embedded, plan=evolve(embedded.plan, outputs=within), hoisted=())


def _exists(plan: ReadPlan, embedded: Embedded) -> Sql:
    range_ = embedded.plan.range
    is_cut = range_.offset > 0 or range_.limit == 0
    if embedded.plan.grouped and not group_by(embedded.plan):
        # An aggregate of all rows is one row, even of no rows.
        return Sql("false" if is_cut else "true")
    if embedded.plan.grouped and is_cut:
        return "EXISTS (" + select_sql(embedded.plan, embedded, plan.alias) + ")"
    # A range that begins with the first row has rows if there are any at all, so only others are cut.
    cut = range_sql(range_) if is_cut else Sql("")
    return "EXISTS (SELECT 1" + rows_apart(plan, embedded) + cut + ")"


def rows_apart(plan: ReadPlan, embedded: Embedded) -> Sql:
    """The FROM and WHERE for the rows of ``embedded`` that belong to the parent's row, read apart from any join."""
    tied = [Sql(text) for text in condition_of_relationship(embedded, plan.alias)]
    return " FROM " + source_of(embedded, plan.alias) + _filtered(embedded.plan, tied)


def _columns(plan: ReadPlan, by_name: bool) -> list[Sql]:
    """What is selected. With ``by_name``, of several columns with the same name only the last is: a JSON object must
    not have a key twice, and clients take the last of several."""
    found: list[tuple[str | None, Sql | str]] = []
    grouped = plan.grouped
    for output in plan.outputs:
        if isinstance(output, Output):
            found.append((output.name, output_sql(plan, output)))
        elif not isinstance(output, Everything):
            found.extend(embedded_columns(output, grouped))
        elif output.formatted or grouped or by_name:
            found.extend((named.name, output_sql(plan, named)) for named in output.named)
        else:
            found.append((None, f"{ident(plan.alias)}.*"))
    columns = [(name, Sql(column) if isinstance(column, str) else column) for name, column in found]
    if not by_name:
        return [column for _, column in columns]
    seen: dict[str, Sql] = {}
    for name, column in columns:
        seen[name or column.text] = column
    return list(seen.values())


def _from(plan: ReadPlan, parent: Embedded | None, origin: str) -> str:
    if parent is not None:
        return " FROM " + source_of(parent, origin)
    return f" FROM {SOURCE} AS {ident(plan.alias)}" if plan.key is None else f" FROM {qualified(plan.key)}"


def _joins(plan: ReadPlan) -> Sql:
    found = Sql("")
    for embedded in plan.embeddings:
        if is_read(embedded):
            found = found + _join(plan, embedded)
    return found


def _join(plan: ReadPlan, embedded: Embedded) -> Sql:
    rows = select_sql(embedded.plan, embedded, plan.alias)
    alias = ident(embedded.alias)
    kind = "INNER" if embedded.join == "inner" else "LEFT"
    if embedded.to_one:
        return f" {kind} JOIN LATERAL (" + rows + f") AS {alias} ON TRUE"
    on = f"{alias}.pgrst_rows IS NOT NULL" if embedded.join == "inner" else "TRUE"
    return f" {kind} JOIN LATERAL ({_gathered(embedded)} FROM (" + rows + f") AS {alias}) AS {alias} ON {on}"


def _gathered(embedded: Embedded) -> str:
    """SELECTs a to-many embedding's rows as one row: a JSON array of them or, if spread, one of each column."""
    alias = ident(embedded.alias)
    if not embedded.spread:
        return f"SELECT pg_catalog.json_agg({alias}.*) AS pgrst_rows"
    names = result_names(embedded.plan)
    columns = [f"pg_catalog.json_agg({alias}.{ident(name)}) AS {ident(name)}" for name in names]
    return "SELECT " + ", ".join([*columns, "NULLIF(count(*), 0) AS pgrst_rows"])


def _range_as_it_is(range_: Range) -> str:
    """LIMIT and OFFSET with their numbers in the text: how to find a page best depends on its size, and for a
    parameter PostgreSQL would assume a tenth of all rows."""
    limit = f" LIMIT {min(range_.limit, _MOST_ROWS)}" if range_.limit is not None else ""
    return limit + (f" OFFSET {min(range_.offset, _MOST_ROWS)}" if range_.offset else "")


def range_sql(range_: Range) -> Sql:
    """LIMIT and OFFSET. PostgreSQL counts rows in a bigint, and no relation has more than that."""
    found = Sql("")
    if range_.limit is not None:
        found = " LIMIT " + parameter(str(min(range_.limit, _MOST_ROWS)))
    if range_.offset:
        found = found + " OFFSET " + parameter(str(min(range_.offset, _MOST_ROWS)))
    return found
