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
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Literal

from attrs import evolve

from project_service.tables.plan.media import Rendering
from project_service.tables.plan.nodes import (
    Embedded,
    EmbedIsNull,
    Everything,
    Output,
    PlannedCondition,
    ReadPlan,
    Tree,
    repeated_names,
    result_names,
    spread_names,
    tested_names,
)
from project_service.tables.plan.read import needed_columns, spelled_out
from project_service.tables.request.syntax import Field, Range
from project_service.tables.sql.conditions import (
    MARK,
    column_sql,
    computed_sql,
    condition_of_relationship,
    condition_sql,
    embedded_columns,
    embedded_groups,
    expression,
    field_sql,
    is_read,
    order_sql,
    output_sql,
    page_order,
    presence_sql,
    source_of,
)
from project_service.tables.sql.fragment import Sql, ident, joined, parameter, qualified
from project_service.tables.values import SCALAR, Computed, Relation

# GROUP BY. Everything that is selected beside aggregates is grouped by.


def group_by(plan: ReadPlan) -> str:
    """The GROUP BY clause; empty if there is none, or if all rows are one group."""
    if not plan.grouped:
        return ""
    keys: list[str] = []
    for output in plan.outputs:
        if isinstance(output, Output):
            keys.extend([] if output.aggregate is not None else [_group_key(plan, output)])
        elif isinstance(output, Everything):
            keys.extend(_group_key(plan, named) for named in output.named)
        else:
            keys.extend(embedded_groups(output))
    return " GROUP BY " + ", ".join(keys) if keys else ""


def _group_key(plan: ReadPlan, output: Output) -> str:
    """The expression to group by. A data representation's JSON has no equality, so the value itself is grouped by."""
    if output.cast is not None:
        return expression(plan, output)
    # Only a count has no field. One without an aggregate is handed up by a spread relation, whose own rows are not
    # grouped.
    assert output.field is not None
    return field_sql(column_sql(plan, output.field.name), output.field, output.column)


# Expressions that make the response body in PostgreSQL, from the rows that are called ``_t``: the whole body, or
# the part of it that is one row, for a stream.


ROWS = "_t"
# A whole row. The bare name would mean a column, if there is one of that name. Functions that take such a row are
# called with their schema, because an application's computed column, such as ``count(authors)``, would match it too.
ROW = f"{ROWS}.*"
NUMBER = f"pg_catalog.count({ROW})"
# The part of a statement's WITH that has CSV's first line.
_HEADER = "pgrst_header"


def body_sql(rendering: Rendering, scalar: bool = False, single: bool = False) -> str:
    """The body as an SQL expression. ``scalar``: each row has one value only. ``single``: the one row is the result
    itself, not an array with it."""
    if rendering.form == "routine":
        return f"{ROWS}.{SCALAR}" + ("" if rendering.is_bytes else "::text")
    if rendering.handler is not None:
        aggregate = qualified(rendering.handler.aggregate)
        relation = rendering.handler.relation
        item = f"{ROWS}.{SCALAR}" if scalar else ROW
        row = item if relation is None else f"({ROW})::{qualified(relation)}"
        return f"{aggregate}({row})"
    if rendering.form == "csv":
        return _csv()
    if rendering.form == "geojson":
        return (
            "json_build_object('type', 'FeatureCollection', 'features', "
            f"coalesce(pg_catalog.json_agg(ST_AsGeoJSON({ROW})::json), '[]'))"
        )
    item = f"{ROWS}.{SCALAR}" if scalar else ROW
    if rendering.records:
        item = _without_repetitions(item)
    if rendering.form == "ndjson":
        return f"coalesce(string_agg({_ndjson_row(item)} || E'\\n', ''), '')"
    return _json(item, rendering, single)


def _json(item: str, rendering: Rendering, single: bool) -> str:
    rows, nothing = f"pg_catalog.json_agg({item})", "[]"
    if single or rendering.singular:
        rows, nothing = f"({rows} -> 0)", "null"
    if rendering.nulls_stripped:
        rows = f"json_strip_nulls({rows})"
    return f"coalesce({rows}, '{nothing}')"


def _csv() -> str:
    """A line with the names of the columns, then the rows."""
    return f"(SELECT line FROM {_HEADER}) || E'\\n' || coalesce(string_agg({_csv_row()}, E'\\n'), '')"


def with_header(rendering: Rendering, rows: Sql) -> Sql:
    """What a statement's WITH needs for the body besides its sources: for CSV, the names of the columns of
    ``rows``."""
    return f", {_HEADER} AS (" + header_sql(rows) + ")" if rendering.form == "csv" else Sql("")


def header_sql(rows: Sql) -> Sql:
    """A SELECT of CSV's first line: the names of the columns of ``rows``, also if there are no rows.

    The names are those of a row of nulls, so that ``rows`` are planned but not read.
    """
    name = """CASE WHEN name ~ '[",\r\n]' THEN '"' || replace(name, '"', '""') || '"' ELSE name END"""
    return (
        f"SELECT coalesce(string_agg({name}, ','), '') AS line FROM json_object_keys(("
        "SELECT row_to_json(pgrst_nulls.*) FROM (SELECT pgrst_none.* FROM (SELECT) AS pgrst_one LEFT JOIN "
        "(SELECT * FROM (" + rows + ") AS pgrst_rows LIMIT 0) AS pgrst_none ON TRUE) AS pgrst_nulls)) AS name"
    )


def is_streamable(rendering: Rendering) -> bool:
    """Whether the body is simply its rows, one after the other."""
    return rendering.explain is None and rendering.form in ("json", "csv", "ndjson", "geojson")


def row_sql(rendering: Rendering, scalar: bool) -> str:
    """A row as its text in a body that ``is_streamable``."""
    item = f"{ROWS}.{SCALAR}" if scalar else ROW
    if rendering.form == "csv":
        return _csv_row()
    if rendering.form == "geojson":
        return f"ST_AsGeoJSON({ROW})"
    if rendering.records:
        item = _without_repetitions(item)
    if rendering.form == "ndjson":
        return _ndjson_row(item)
    text = _json_row(item)
    return f"json_strip_nulls({text})" if rendering.nulls_stripped else text


def _without_repetitions(item: str) -> str:
    """A value as JSON in which no object has a key twice, on any level: of several the last one stays, as in parsers
    of JSON. The other values stay as they are written, which ``jsonb`` would change.

    ``pgrst_node`` has all values by their paths; in the order of the paths, each text stands where it belongs, and
    the end of an object or array after all that is in it.
    """
    return f"""(WITH RECURSIVE pgrst_node AS (
SELECT '{{}}'::int8[] AS path, '' AS head, pg_catalog.to_json({item}) AS value
UNION ALL
SELECT path || number, CASE WHEN number > 1 THEN ',' ELSE '' END || key, member.value
FROM pgrst_node CROSS JOIN LATERAL (
  SELECT row_number() OVER (ORDER BY number) AS number, key, value FROM (
    SELECT DISTINCT ON (name) to_json(name)::text || ':' AS key, value, number
    FROM json_each(CASE json_typeof(pgrst_node.value) WHEN 'object' THEN pgrst_node.value END)
      WITH ORDINALITY AS pgrst_each (name, value, number) ORDER BY name, number DESC) AS pgrst_last
  UNION ALL
  SELECT number, '', value
  FROM json_array_elements(CASE json_typeof(pgrst_node.value) WHEN 'array' THEN pgrst_node.value END)
    WITH ORDINALITY AS pgrst_elements (value, number)) AS member)
SELECT string_agg(written, '' ORDER BY path)::json FROM (
  SELECT path, head || CASE json_typeof(value) WHEN 'object' THEN '{{' WHEN 'array' THEN '[' ELSE value::text END
    AS written FROM pgrst_node
  UNION ALL
  SELECT path || {_MOST_ROWS}, CASE json_typeof(value) WHEN 'object' THEN '}}' ELSE ']' END FROM pgrst_node
  WHERE json_typeof(value) IN ('object', 'array')) AS pgrst_written)"""


def _json_row(item: str) -> str:
    """A value as JSON. SQL's null becomes JSON's: it is an item like any other."""
    return f"coalesce(pg_catalog.to_json({item}), 'null')"


def _ndjson_row(item: str) -> str:
    """A value as JSON on one line. PostgreSQL breaks lines in the arrays that it makes, and keeps line breaks that a
    ``json`` value has."""
    return f"replace(replace({_json_row(item)}::text, E'\\n', ' '), E'\\r', ' ')"


def _csv_row() -> str:
    """A row as CSV: PostgreSQL's text of the row without its brackets, and with single backslashes."""
    return rf"replace(left(substr(({ROW})::text, 2), -1), '\\', '\')"


# How the statement of a relation is laid out: where the rows of embedded relations are asked for.
#
# An embedded relation decides which rows of its parent are shown if it is inner joined, or if a condition tests it.
# There are three layouts:
#
# ``joined``
#     All embedded relations are joined, and the joined rows decide.
# ``tested``
#     To-many relations that decide, and those that only decide, are tested by EXISTS. What is shown is joined. If
#     the order of rows has to stay as it is, PostgreSQL is kept from making joins of these tests.
# ``paged``
#     A subquery finds the rows of the parent that are shown: those that pass all tests, by EXISTS, sorted and cut.
#     Then what is shown of embedded relations is joined to these rows alone.
#
# With EXISTS PostgreSQL can begin with the relation that decides, and it gathers no embedded rows for rows of the
# parent that are left out or skipped. But rows then come in any order, while without ``order`` they are expected in
# that in which the table is read, here as with PostgREST. So an unsorted page is sorted by the columns that an
# embedded relation refers to, which are a key with an index: clients see the same order, and the same pages,
# whatever the plan.


Layout = Literal["joined", "tested", "paged"]


def layout_of(plan: ReadPlan, nested: bool) -> Layout:
    """The layout for the plan; ``nested`` says that it is embedded in another one."""
    deciding = list(deciding_of(plan))
    if plan.grouped:
        return "tested"
    if plan.names_one_row and not nested:
        return "joined"  # a single row needs no page
    pageable = _is_pageable(plan, deciding)
    if plan.order:
        paged = pageable and any(plan.embeddings) and not plan.range.whole
        return "paged" if paged else "joined" if nested else "tested"
    return "joined" if nested or not pageable else _unsorted(plan, deciding)


def _unsorted(plan: ReadPlan, deciding: list[Embedded]) -> Layout:
    required = _required(plan)
    if any(not found.to_one for found in required):
        # The rows of a function have an order of their own, which only tests that are not joins leave as it is.
        return "paged" if plan.key is not None and key_of(plan) else "tested"
    if required or plan.range.whole:
        return "tested"
    shown = [found for found in plan.embeddings if found.plan.shows]
    # PostgreSQL may join to-one relations in any order, so that the pages would not fit together.
    if any(found.to_one for found in shown) or (shown and plan.range.offset):
        return "paged"
    return "tested" if deciding else "joined"


def deciding_of(plan: ReadPlan) -> Iterator[Embedded]:
    return (found for found in plan.embeddings if found.needed or found.join == "inner")


def _required(plan: ReadPlan) -> list[Embedded]:
    """The embedded relations whose tests every row has to pass. Of a test in an ``or`` PostgreSQL makes no join, and
    so it does not change the order of rows."""
    conditions = [one for one in plan.conditions if not _is_or(one)]
    names = set(tested_names(conditions))
    return [found for found in plan.embeddings if found.join == "inner" or found.name in names]


def _is_or(condition: PlannedCondition) -> bool:
    return isinstance(condition, Tree) and condition.operator == "or" and not condition.negated


def tested_apart(plan: ReadPlan, layout: Layout) -> list[Embedded]:
    """The embedded relations that are tested by EXISTS."""
    deciding = deciding_of(plan)
    if layout != "tested":
        return list(deciding) if layout == "paged" else []
    return [
        found
        for found in deciding
        # A to-one relation that is shown is joined anyway, and a function would be called once more.
        if not found.plan.shows or not (found.to_one or _is_made_by_function(found))
    ]


def key_of(plan: ReadPlan) -> tuple[str, ...]:
    """The columns to sort an unsorted page by: those that a to-many relation that every row has to have, or not to
    have, refers to. None if there are no such columns."""
    for found in _required(plan):
        way = found.relationship
        pairs = way.pairs if way.junction is None else way.junction.origin_pairs
        if not found.to_one and pairs:
            return tuple(ours for ours, _ in pairs)
    return ()


def _is_pageable(plan: ReadPlan, deciding: list[Embedded]) -> bool:
    """Whether a page can be found first. A function that decides and is shown would be called once more for it."""
    called = any(found.plan.shows and _is_made_by_function(found) for found in deciding)
    # Without the relation's columns it is not known what ``*`` means.
    return (
        not called
        and plan.relation is not None
        and all(_is_ordered_plainly(plan, one) for one in plan.embeddings)
    )


def _is_ordered_plainly(plan: ReadPlan, embedded: Embedded) -> bool:
    """Whether the columns of ``embedded`` that are ordered by are the relation's own, and nothing else is shown under
    their names, such as an aggregate: that would be meant."""
    orders = [order for order in plan.order if order.embedded == embedded.name]
    if not orders:
        return True
    if not embedded.plan.range.whole or not all(order.own for order in orders):
        return False
    # Made once for all terms, of which there may be as many as selected columns.
    others = {name for output in embedded.plan.outputs for name in _others(output)}
    return others.isdisjoint(order.field.name for order in orders)


def _others(output: Output | Everything | Embedded) -> Iterable[str]:
    """The names under which something else is shown than the relation's column of that name."""
    if isinstance(output, Output):
        own = output.field == Field(output.name) and output.cast is None and output.aggregate is None
        return () if own else (output.name,)
    return spread_names(output) if isinstance(output, Embedded) and output.spread else ()


def _is_made_by_function(embedded: Embedded) -> bool:
    """Whether a function makes the relation, or one below it that decides."""
    if embedded.relationship.routine is not None:
        return True
    return any(map(_is_made_by_function, deciding_of(embedded.plan)))


# The list of columns that a write or a call returns: all of the relation's, or those that are needed.


def returned(
    alias: str,
    relation: Relation | None,
    everything: bool,
    names: tuple[str, ...],
    computed: Mapping[str, Computed],
) -> str:
    """``everything`` asks for ``*``, beside which ``names`` adds computed and system columns, since ``*`` does not
    contain them. The constant 1 if nothing is needed."""
    source = ident(alias)
    found = [f"{source}.*"] if everything else []
    for name in names:
        if name in computed:
            found.append(f"{computed_sql(alias, computed[name])} AS {ident(name)}")
        elif not everything or (relation is not None and name not in relation.columns):
            found.append(f"{source}.{ident(name)}")
    return ", ".join(found) or "1"


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
    cut = range_sql(range_) if is_cut else Sql(" OFFSET 0" if _is_of_unknown_size(plan) else "")
    return "EXISTS (SELECT 1" + rows_apart(plan, embedded) + cut + ")"


def _is_of_unknown_size(plan: ReadPlan) -> bool:
    """Whether PostgreSQL does not know how many rows there are: those of a write, or of a function that it does not
    inline. For a thousand rows, which it assumes, it might read a large table whole, where there is only one. With an
    OFFSET it looks for related rows of one row after the other. Aggregates are expected to take their time."""
    return plan.key is None and not plan.inlined and not plan.grouped


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
