"""Whole statements: the rows, their number, the body made of them, and what SQL has set for the response.

The body is made by PostgreSQL, of the rows that are called ``_t``.
"""

from __future__ import annotations

from attrs import frozen

from project_service.tables.plan.call import CallPlan
from project_service.tables.plan.media import Rendering
from project_service.tables.plan.nodes import ReadPlan
from project_service.tables.plan.write import WritePlan
from project_service.tables.request.syntax import Range
from project_service.tables.sql.expressions import without_repetitions
from project_service.tables.sql.fragment import (
    NOTHING,
    PROBE,
    ROW,
    ROW_COUNT,
    ROWS,
    SOURCE,
    Sql,
    ident,
    qualified,
)
from project_service.tables.sql.read import count_sql, range_sql, select_sql
from project_service.tables.sql.write import CHOSEN, UPDATED, call_sql, chosen_sql, location_sql, write_sql
from project_service.tables.values import SCALAR

_COUNT = "(SELECT count(*) FROM pgrst_count)"
# The part of a statement's WITH that has CSV's first line.
_HEADER = "pgrst_header"
_SETTINGS = (
    "nullif(current_setting('response.headers', true), '') AS response_headers, "
    "nullif(current_setting('response.status', true), '') AS response_status"
)
# Reads what SQL has set for the response so far.
RESPONSE_SETTINGS = f"SELECT {_SETTINGS}"


@frozen
class Statement:
    """``sql`` returns one row: total, rows, body, headers, status; for a write: updated, rows, location, body,
    headers, status. The body of a write is fourth as with PostgREST, because EXPLAIN shows outputs by their position.

    If there is a ``stream``, ``sql`` reads at most one row more than the probe allows, and leaves out a body that is
    too large. It then also returns the body's size and, if the bounds ask for it, the number of all rows. A result
    that does not fit is read by ``stream`` instead, each row of which is a text, and the total if it was asked for.
    ``header`` returns the first line of a stream of CSV. ``count`` is the query to EXPLAIN, if an estimate of the
    total was asked for.
    """

    sql: Sql
    count: Sql | None = None
    stream: Sql | None = None
    header: Sql | None = None


@frozen
class Bounds:
    """What decides whether a result is streamed. A range of at most ``at_once`` rows is not, and neither is a body of
    at most ``threshold_bytes``; with ``at_once`` 0 nothing is.

    With ``bodiless`` nobody reads the body (HEAD), so rows are only counted. With ``counts_all`` rows beyond the
    probe are counted too. With ``to_the_end`` a function may write, so it runs to its end whatever is shown of it.
    """

    at_once: int = 0
    threshold_bytes: int = 0
    bodiless: bool = False
    counts_all: bool = False
    to_the_end: bool = False

    def streams(self, range_: Range, rendering: Rendering) -> bool:
        if self.at_once == 0 or self.bodiless or not _is_streamable(rendering):
            return False
        return range_.limit is None or range_.limit > self.at_once

    def omits_body(self, rendering: Rendering) -> bool:
        """Whether the statement makes no body. It does for EXPLAIN, and for a handler of the application, which may
        set headers or raise an error."""
        return self.bodiless and rendering.explain is None and rendering.handler is None


def read_statement(
    plan: ReadPlan, rendering: Rendering, count: str | None, max_rows: int, bounds: Bounds
) -> Statement:
    rows = select_sql(plan)
    counted, total = _count_of_read(plan, count, max_rows)
    estimate = count_sql(plan) if count in ("planned", "estimated") else None
    body = "''" if bounds.omits_body(rendering) else body_sql(rendering)
    # Made of the rows' own SELECT, since PostgreSQL would compute the source apart if the header read it too.
    counted = _with_header(rendering, rows) + counted
    if bounds.streams(plan.range, rendering):
        sql = (
            f"WITH {_probed_cte(SOURCE, plan)} ("
            + rows
            + ")"
            + counted
            + _select_probed(total, body, bounds, SOURCE)
        )
        header = _header_sql(rows) if rendering.form == "csv" else None
        if count != "exact":
            return Statement(sql, estimate, _select_stream(rendering, rows), header)
        counted = "WITH pgrst_count AS (" + count_sql(plan) + ")"
        return Statement(sql, None, counted + _select_stream(rendering, rows, total), header)
    if count == "exact" and plan.range.whole:
        counted, total = _with_header(rendering, rows), ROW_COUNT
    source = f"WITH {SOURCE} AS (" + rows + ")"
    sql = source + counted + _select_outcome(total, body) + f" FROM (SELECT * FROM {SOURCE}) AS {ROWS}"
    return Statement(_explain(sql, rendering), estimate)


def _select_outcome(total: str, body: str, number: str = ROW_COUNT) -> str:
    return f" SELECT {total} AS total_result_set, {number} AS page_total, {body} AS body, {_SETTINGS}"


def _probed_cte(name: str, plan: ReadPlan | None) -> str:
    """The head of the CTE that the probe reads its rows from.

    With a LIMIT PostgreSQL may join relations in another order than without, and then rows that are not sorted come
    in another order than from PostgREST's statement, which has no LIMIT here. A materialized CTE is planned as if it
    had none, and still no more rows are read than are wanted.
    """
    unsorted = plan is not None and not plan.order and any(plan.embeddings)
    return f"{name} AS MATERIALIZED" if unsorted else f"{name} AS"


def _select_probed(total: str, body: str, bounds: Bounds, source: str) -> Sql:
    """The SELECT that makes a body of the first rows, and returns it if it is not too large."""
    made = f"SELECT {total} AS total_result_set, {ROW_COUNT} AS page_total, ({body})::text AS body"
    size = "octet_length(body)"
    number = f", (SELECT count(*) FROM {source}) AS all_rows" if bounds.counts_all else ""
    return (
        f" SELECT total_result_set, page_total, CASE WHEN {size} <= {bounds.threshold_bytes} THEN body END AS body, "
        + f"{_SETTINGS}, {size} AS body_size{number} FROM ({made} FROM (SELECT * FROM {source} AS {ROWS} LIMIT "
        + PROBE
        + f") AS {ROWS}) AS pgrst_made"
    )


def write_statement(plan: WritePlan, rendering: Rendering) -> Statement:
    body, rows = "''", Sql(f"SELECT * FROM {SOURCE}")
    if plan.representation == "representation":
        body, rows = body_sql(rendering), select_sql(plan.read)
    updated = f"nullif(current_setting('{UPDATED}', true), '')" if plan.merges else "null"
    written = _further_columns(plan)
    if written:
        updated = _after_source(updated)
    sql = (
        "WITH "
        + (f"{CHOSEN} AS (" + chosen_sql(plan) + "), " if plan.may_write_more else "")
        + f"{SOURCE} AS ("
        + write_sql(plan)
        + ")"
        + (_with_header(rendering, rows) if plan.representation == "representation" else "")
        + f" SELECT {updated} AS updated, {ROW_COUNT} AS page_total, {location_sql(plan)} AS location, "
        + f"{body} AS body, {_SETTINGS}{written} FROM ("
        + rows
        + f") AS {ROWS}"
    )
    return Statement(_explain(sql, rendering))


def _after_source(first: str, rows: str = SOURCE) -> str:
    """The statement's first column, computed after the source has run to its end, and so are the columns after it,
    which read what SQL has set for the response.

    Without this, if a limit or a condition that no row can meet leaves little to show, PostgreSQL would run a
    function only as far as that needs, and a write only after the other columns were computed. ``rows`` are those
    that have to be read for the source to be at its end.
    """
    return f"CASE WHEN (SELECT count(*) FROM {rows}) IS NOT NULL THEN {first} END"


def _further_columns(plan: WritePlan) -> str:
    """Further columns: the number of rows written, if the representation may show fewer; and the number that were
    chosen, if more may have been written."""
    fewer = plan.read.grouped or any(embedded.join == "inner" for embedded in plan.read.embeddings)
    written = f", (SELECT count(*) FROM {SOURCE}) AS written"
    if plan.may_write_more:
        return f"{written}, (SELECT count(*) FROM {CHOSEN}) AS chosen"
    return written if fewer and plan.representation == "representation" else ""


def call_statement(
    plan: CallPlan,
    rendering: Rendering,
    count: str | None,
    range_: Range,
    bounds: Bounds,
) -> Statement:
    """The statement of a call. A function whose result is streamed is called more than once."""
    routine = plan.routine
    # A single value is one row; and if it is the body itself, nothing is aggregated.
    single = rendering.form == "routine" or (plan.read is None and not routine.is_set)
    empty = routine.is_void or bounds.omits_body(rendering)
    # PostgreSQL would not call a stable function whose result nobody reads: counting the rows makes it do so.
    number = "1::bigint" if single and not (empty and plan.read is None) else ROW_COUNT
    rows = _rows_of_call(plan, range_)
    number_of_all = number if range_.whole and not single else None
    counted, total = _count_of_call(plan, count, number_of_all)
    body = "''" if empty else body_sql(rendering, routine.is_scalar, not routine.is_set)
    source = f"WITH {SOURCE} AS (" + call_sql(plan) + ")"
    # A function that PostgreSQL may inline is named once more for the header: two reads of the source prevent that.
    header = _with_header(rendering, source + " " + rows if routine.may_be_inlined else rows)
    if routine.is_set and count is None and bounds.streams(range_, rendering):
        streamed = source + _select_stream(rendering, rows, scalar=routine.is_scalar)
        whole = source + f", {_probed_cte('pgrst_rows', plan.read)} (" + rows + ")" + header
        alone = source + " " + _header_sql(rows) if rendering.form == "csv" else None
        return Statement(whole + _select_probed(total, body, bounds, "pgrst_rows"), None, streamed, alone)
    if bounds.to_the_end and (routine.is_set or plan.read is not None):
        # A function in FROM has run to its end before PostgreSQL hands on its first row.
        total = _after_source(
            total, SOURCE if routine.is_scalar else f"(SELECT FROM {SOURCE} LIMIT 1) AS pgrst_first"
        )
    # A filter may hide even the single row, but the statement has to return one.
    begin, end = (
        ("(SELECT) AS pgrst_one LEFT JOIN ", " ON TRUE") if single and plan.read is not None else ("", "")
    )
    sql = (
        source
        + header
        + counted
        + _select_outcome(total, body, number)
        + f" FROM {begin}("
        + rows
        + f") AS {ROWS}{end}"
    )
    return Statement(_explain(sql, rendering))


def _count_of_read(plan: ReadPlan, count: str | None, max_rows: int) -> tuple[Sql, str]:
    if count == "exact":
        return ", pgrst_count AS (" + count_sql(plan) + ")", _COUNT
    if count == "estimated":
        return ", pgrst_count AS (" + count_sql(plan, max_rows + 1 if max_rows else None) + ")", _COUNT
    return NOTHING, "null::bigint"


def _count_of_call(plan: CallPlan, count: str | None, number_of_all: str | None) -> tuple[Sql, str]:
    """The function has run, so an estimate counts its rows too: no plan could know better. ``number_of_all`` is the
    expression of their number if the reply has all of them."""
    if count not in ("exact", "estimated"):
        return NOTHING, "null::bigint"
    if number_of_all is not None:
        return NOTHING, number_of_all
    counting = count_sql(plan.read) if plan.read is not None else Sql(f"SELECT 1 FROM {SOURCE}")
    return ", pgrst_count AS (" + counting + ")", _COUNT


def _select_stream(rendering: Rendering, rows: Sql, total: str = "null", scalar: bool = False) -> Sql:
    """The SELECT of a stream: each row as its text in the body, and the total."""
    return f" SELECT {_row_sql(rendering, scalar)}::text, {total} FROM (" + rows + f") AS {ROWS}"


def _rows_of_call(plan: CallPlan, range_: Range) -> Sql:
    if plan.read is not None:
        return select_sql(plan.read)
    alias = ident(plan.routine.name)
    values = Sql(f"SELECT {alias}.{SCALAR} FROM {SOURCE} AS {alias}")
    return values + range_sql(range_) if plan.routine.is_set else values


def _explain(sql: Sql, rendering: Rendering) -> Sql:
    if rendering.explain is None:
        return sql
    # ``request.headers`` lets none through that is not one of EXPLAIN's.
    options = [name.upper() for name in rendering.explain.plan_options]
    options.append("FORMAT " + ("JSON" if rendering.explain.name.endswith("+json") else "TEXT"))
    return f"EXPLAIN ({', '.join(options)}) " + sql


# The body as an SQL expression: as a whole, or the part of it that is one row, for a stream.


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
        # A line with the names of the columns, then the rows. As in PostgREST no line feed ends the last line, which
        # may be that of the names.
        header = f"(SELECT line FROM {_HEADER})"
        return f"{header} || coalesce(E'\\n' || string_agg({_csv_row()}, E'\\n'), '')"
    if rendering.form == "geojson":
        return (
            "json_build_object('type', 'FeatureCollection', 'features', "
            f"coalesce(pg_catalog.json_agg(ST_AsGeoJSON({ROW})::json), '[]'))"
        )
    item = f"{ROWS}.{SCALAR}" if scalar else ROW
    if rendering.records:
        item = without_repetitions(item)
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


def _with_header(rendering: Rendering, rows: Sql) -> Sql:
    """What a statement's WITH needs for the body besides its sources: for CSV, the names of the columns of
    ``rows``."""
    return f", {_HEADER} AS (" + _header_sql(rows) + ")" if rendering.form == "csv" else NOTHING


def _header_sql(rows: Sql) -> Sql:
    """A SELECT of CSV's first line: the names of the columns of ``rows``, also if there are no rows.

    The names are those of a row of nulls, so that ``rows`` are planned but not read.
    """
    name = """CASE WHEN name ~ '[",\r\n]' THEN '"' || replace(name, '"', '""') || '"' ELSE name END"""
    return (
        f"SELECT coalesce(string_agg({name}, ','), '') AS line FROM json_object_keys(("
        "SELECT row_to_json(pgrst_nulls.*) FROM (SELECT pgrst_none.* FROM (SELECT) AS pgrst_one LEFT JOIN "
        "(SELECT * FROM (" + rows + ") AS pgrst_rows LIMIT 0) AS pgrst_none ON TRUE) AS pgrst_nulls)) AS name"
    )


def _is_streamable(rendering: Rendering) -> bool:
    """Whether the body is simply its rows, one after the other."""
    return rendering.explain is None and rendering.form in ("json", "csv", "ndjson", "geojson")


def _row_sql(rendering: Rendering, scalar: bool) -> str:
    """A row as its text in a body that ``_is_streamable``."""
    item = f"{ROWS}.{SCALAR}" if scalar else ROW
    if rendering.form == "csv":
        return _csv_row()
    if rendering.form == "geojson":
        return f"ST_AsGeoJSON({ROW})"
    if rendering.records:
        item = without_repetitions(item)
    if rendering.form == "ndjson":
        return _ndjson_row(item)
    text = _json_row(item)
    return f"json_strip_nulls({text})" if rendering.nulls_stripped else text


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
