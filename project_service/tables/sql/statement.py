"""Whole statements: the rows, their number, the body made of them, and what SQL has set for the response."""

from __future__ import annotations

from attrs import frozen

from project_service.tables.plan.call import CallPlan
from project_service.tables.plan.media import Rendering
from project_service.tables.plan.nodes import ReadPlan
from project_service.tables.plan.write import WritePlan
from project_service.tables.request.syntax import Range
from project_service.tables.sql.fragment import PROBE, Sql, ident
from project_service.tables.sql.read import (
    NUMBER,
    ROWS,
    SOURCE,
    body_sql,
    count_sql,
    header_sql,
    is_streamable,
    range_sql,
    row_sql,
    select_sql,
    with_header,
)
from project_service.tables.sql.write import CHOSEN, UPDATED, call_sql, chosen_sql, location_sql, write_sql
from project_service.tables.values import SCALAR

_GUCS = (
    "nullif(current_setting('response.headers', true), '') AS response_headers, "
    "nullif(current_setting('response.status', true), '') AS response_status"
)
# Reads what SQL has set for the response so far.
RESPONSE_SETTINGS = f"SELECT {_GUCS}"


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

    With ``bodiless`` nobody reads the body (HEAD), so rows are only counted. With ``counts_all``
    rows beyond the probe are counted too. With ``to_the_end`` a function may write, so it runs to its end whatever is
    shown of it.
    """

    at_once: int = 0
    threshold_bytes: int = 0
    bodiless: bool = False
    counts_all: bool = False
    to_the_end: bool = False

    def streams(self, range_: Range, rendering: Rendering) -> bool:
        if self.at_once == 0 or self.bodiless or not is_streamable(rendering):
            return False
        return range_.limit is None or range_.limit > self.at_once

    def leaves_out(self, rendering: Rendering) -> bool:
        """Whether the statement makes no body. It does for EXPLAIN, and for a handler of the application's, which may
        set headers or refuse."""
        return self.bodiless and rendering.explain is None and rendering.handler is None


def read_statement(
    plan: ReadPlan, rendering: Rendering, count: str | None, max_rows: int, bounds: Bounds
) -> Statement:
    rows = select_sql(plan)
    counted, total = _total(plan, count, max_rows)
    estimate = count_sql(plan) if count in ("planned", "estimated") else None
    body = "''" if bounds.leaves_out(rendering) else body_sql(rendering)
    # Made of the rows' own SELECT, since PostgreSQL would compute the source apart if the header read it too.
    counted = with_header(rendering, rows) + counted
    if bounds.streams(plan.range, rendering):
        sql = f"WITH {_apart(SOURCE, plan)} (" + rows + ")" + counted + _probing(total, body, bounds, SOURCE)
        header = header_sql(rows) if rendering.form == "csv" else None
        if count != "exact":
            return Statement(sql, estimate, _streamed(rendering, rows), header)
        counted = "WITH pgrst_count AS (" + count_sql(plan) + ")"
        return Statement(sql, None, counted + _streamed(rendering, rows, total), header)
    if count == "exact" and plan.range.whole:
        counted, total = with_header(rendering, rows), NUMBER
    source = f"WITH {SOURCE} AS (" + rows + ")"
    sql = source + counted + _answer(total, body) + f" FROM (SELECT * FROM {SOURCE}) AS {ROWS}"
    return Statement(_explained(sql, rendering), estimate)


def _answer(total: str, body: str, number: str = NUMBER) -> str:
    return f" SELECT {total} AS total_result_set, {number} AS page_total, {body} AS body, {_GUCS}"


def _apart(name: str, plan: ReadPlan | None) -> str:
    """The head of the CTE that the probe reads its rows from.

    With a LIMIT PostgreSQL may join relations in another order than without, and then rows that are not sorted come
    in another order than from PostgREST's statement, which has no LIMIT here. A materialized CTE is planned as if it
    had none, and still no more rows are read than are wanted.
    """
    unsorted = plan is not None and not plan.order and any(plan.embeddings)
    return f"{name} AS MATERIALIZED" if unsorted else f"{name} AS"


def _probing(total: str, body: str, bounds: Bounds, source: str) -> Sql:
    """The SELECT that makes a body of the first rows, and returns it if it is not too large."""
    made = f"SELECT {total} AS total_result_set, {NUMBER} AS page_total, ({body})::text AS body"
    size = "octet_length(body)"
    number = f", (SELECT count(*) FROM {source}) AS all_rows" if bounds.counts_all else ""
    return (
        f" SELECT total_result_set, page_total, CASE WHEN {size} <= {bounds.threshold_bytes} THEN body END AS body, "
        + f"{_GUCS}, {size} AS body_size{number} FROM ({made} FROM (SELECT * FROM {source} AS {ROWS} LIMIT "
        + PROBE
        + f") AS {ROWS}) AS pgrst_made"
    )


def write_statement(plan: WritePlan, rendering: Rendering) -> Statement:
    body, rows = "''", Sql(f"SELECT * FROM {SOURCE}")
    if plan.representation == "representation":
        body, rows = body_sql(rendering), select_sql(plan.read)
    updated = f"nullif(current_setting('{UPDATED}', true), '')" if plan.merges else "null"
    written = _written(plan)
    if written:
        updated = _at_its_end(updated)
    sql = (
        "WITH "
        + (f"{CHOSEN} AS (" + chosen_sql(plan) + "), " if plan.may_write_more else "")
        + f"{SOURCE} AS ("
        + write_sql(plan)
        + ")"
        + (with_header(rendering, rows) if plan.representation == "representation" else "")
        + f" SELECT {updated} AS updated, {NUMBER} AS page_total, {location_sql(plan)} AS location, "
        + f"{body} AS body, {_GUCS}{written} FROM ("
        + rows
        + f") AS {ROWS}"
    )
    return Statement(_explained(sql, rendering))


def _at_its_end(first: str, rows: str = SOURCE) -> str:
    """The statement's first column, computed after the source has run to its end, and so are the columns after it,
    which read what SQL has set for the response.

    Without this, if a limit or a condition that no row can meet leaves little to show, PostgreSQL would run a
    function only as far as that needs, and a write only after the other columns were computed. ``rows`` are those
    that have to be read for the source to be at its end.
    """
    return f"CASE WHEN (SELECT count(*) FROM {rows}) IS NOT NULL THEN {first} END"


def _written(plan: WritePlan) -> str:
    """Further columns: the number of rows written, if the representation may show fewer; and the number that were
    chosen, if more may have been written."""
    fewer = plan.read.grouped or any(found.join == "inner" for found in plan.read.embeddings)
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
    empty = routine.is_void or bounds.leaves_out(rendering)
    # PostgreSQL would not call a stable function whose result nobody reads: counting the rows makes it do so.
    number = "1::bigint" if single and not (empty and plan.read is None) else NUMBER
    rows = _rows_of_call(plan, range_)
    all_there = number if range_.whole and not single else None
    counted, total = _total_of_call(plan, count, all_there)
    body = "''" if empty else body_sql(rendering, routine.is_scalar, not routine.is_set)
    source = f"WITH {SOURCE} AS (" + call_sql(plan) + ")"
    # A function that PostgreSQL may inline is named once more for the header: two reads of the source prevent that.
    header = with_header(rendering, source + " " + rows if routine.may_be_inlined else rows)
    if routine.is_set and count is None and bounds.streams(range_, rendering):
        streamed = source + _streamed(rendering, rows, scalar=routine.is_scalar)
        whole = source + f", {_apart('pgrst_rows', plan.read)} (" + rows + ")" + header
        alone = source + " " + header_sql(rows) if rendering.form == "csv" else None
        return Statement(whole + _probing(total, body, bounds, "pgrst_rows"), None, streamed, alone)
    if bounds.to_the_end and (routine.is_set or plan.read is not None):
        # A function in FROM has run to its end before PostgreSQL hands on its first row.
        total = _at_its_end(
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
        + _answer(total, body, number)
        + f" FROM {begin}("
        + rows
        + f") AS {ROWS}{end}"
    )
    return Statement(_explained(sql, rendering))


_COUNT = "(SELECT count(*) FROM pgrst_count)"


def _total(plan: ReadPlan, count: str | None, max_rows: int) -> tuple[Sql, str]:
    if count == "exact":
        return ", pgrst_count AS (" + count_sql(plan) + ")", _COUNT
    if count == "estimated":
        most = max_rows + 1 if max_rows else None
        return ", pgrst_count AS (" + count_sql(plan, most) + ")", _COUNT
    return Sql(""), "null::bigint"


def _total_of_call(plan: CallPlan, count: str | None, all_there: str | None) -> tuple[Sql, str]:
    """The function has run, so an estimate counts its rows too: no plan could know better. ``all_there`` is the
    expression of their number if the reply has all of them."""
    if count not in ("exact", "estimated"):
        return Sql(""), "null::bigint"
    if all_there is not None:
        return Sql(""), all_there
    counting = count_sql(plan.read) if plan.read is not None else Sql(f"SELECT 1 FROM {SOURCE}")
    return ", pgrst_count AS (" + counting + ")", _COUNT


def _streamed(rendering: Rendering, rows: Sql, total: str = "null", scalar: bool = False) -> Sql:
    """The SELECT of a stream: each row as its text in the body, and the total."""
    return f" SELECT {row_sql(rendering, scalar)}::text, {total} FROM (" + rows + f") AS {ROWS}"


def _rows_of_call(plan: CallPlan, range_: Range) -> Sql:
    if plan.read is not None:
        return select_sql(plan.read)
    alias = ident(plan.routine.name)
    values = Sql(f"SELECT {alias}.{SCALAR} FROM {SOURCE} AS {alias}")
    return values + range_sql(range_) if plan.routine.is_set else values


def _explained(sql: Sql, rendering: Rendering) -> Sql:
    if rendering.explain is None:
        return sql
    # ``request.headers`` lets none through that is not one of EXPLAIN's.
    options = [name.upper() for name in rendering.explain.plan_options]
    options.append("FORMAT " + ("JSON" if rendering.explain.name.endswith("+json") else "TEXT"))
    return f"EXPLAIN ({', '.join(options)}) " + sql
