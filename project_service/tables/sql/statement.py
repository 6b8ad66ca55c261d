"""Whole statements: the rows, how many there are, the body made of them and what SQL said about the response."""

from __future__ import annotations

from attrs import evolve, frozen

from project_service.tables.catalog.model import SchemaCache
from project_service.tables.plan.call import CallPlan
from project_service.tables.plan.media import Rendering
from project_service.tables.plan.nodes import ReadPlan
from project_service.tables.plan.write import WritePlan
from project_service.tables.sql.body import ROWS, body_sql
from project_service.tables.sql.call import SCALAR, call_sql
from project_service.tables.sql.fragment import Sql, parameter
from project_service.tables.sql.names import ident
from project_service.tables.sql.read import SOURCE, count_sql, select_sql
from project_service.tables.sql.write import UPDATED, write_sql
from project_service.tables.syntax import Range

_GUCS = (
    "nullif(current_setting('response.headers', true), '') AS response_headers, "
    "nullif(current_setting('response.status', true), '') AS response_status"
)
_EXPLAIN_OPTIONS = {
    "analyze": "ANALYZE",
    "verbose": "VERBOSE",
    "settings": "SETTINGS",
    "buffers": "BUFFERS",
    "wal": "WAL",
}


@frozen
class Statement:
    """``sql`` returns one row: total, rows, (for writes: location), body, headers, status, (for writes: updated).

    With a ``stream`` it reads at most ``probe`` rows and one more: if there are more than ``probe``, the stream's
    rows, each a text, are to be read instead. ``count`` is what an estimate of the total explains.
    """

    sql: Sql
    count: Sql | None = None
    stream: Sql | None = None
    probe: int = 0


def read_statement(
    cache: SchemaCache, plan: ReadPlan, rendering: Rendering, count: str | None, max_rows: int, probe: int
) -> Statement:
    """``probe`` 0 never streams."""
    streams = probe > 0 and (plan.range.limit is None or plan.range.limit > probe) and streamable(rendering)
    rows = select_sql(cache, evolve(plan, range=plan.range.capped(probe + 1)) if streams else plan)
    counted, total = _total(cache, plan, count, max_rows)
    if count == "exact" and plan.range.whole and not streams:
        counted, total = Sql(""), f"count({ROWS})"
    sql = (
        f"WITH {SOURCE} AS ("
        + rows
        + ")"
        + counted
        + f" SELECT {total} AS total_result_set, count({ROWS}) AS page_total, {body_sql(rendering)} AS body, {_GUCS}"
        + f" FROM (SELECT * FROM {SOURCE}) AS {ROWS}"
    )
    counting = count_sql(cache, plan) if count else None
    if not streams:
        return Statement(_explained(sql, rendering), counting)
    return Statement(sql, counting, stream_sql(rendering, select_sql(cache, plan)), probe)


def write_statement(cache: SchemaCache, plan: WritePlan, rendering: Rendering) -> Statement:
    body, rows = "''", Sql(f"SELECT * FROM {SOURCE}")
    if plan.representation == "representation":
        body, rows = body_sql(rendering), select_sql(cache, plan.read)
    updated = f"nullif(current_setting('{UPDATED}', true), '')" if plan.merges else "null"
    sql = (
        f"WITH {SOURCE} AS ("
        + write_sql(cache, plan)
        + f") SELECT '' AS total_result_set, count({ROWS}) AS page_total, {_location(plan)} AS location, "
        + f"{body} AS body, {_GUCS}, {updated} AS updated FROM ("
        + rows
        + f") AS {ROWS}"
    )
    return Statement(_explained(sql, rendering))


def call_statement(
    cache: SchemaCache,
    plan: CallPlan,
    rendering: Rendering,
    count: str | None,
    max_rows: int,
    range_: Range,
    probe: int,
) -> Statement:
    """``probe`` 0 never streams; a function that is streamed is called twice."""
    routine = plan.routine
    counted, total = Sql(""), "null::bigint"
    streams = probe > 0 and routine.is_set and (range_.limit is None or range_.limit > probe)
    streams = streams and streamable(rendering) and count is None
    cut = range_.capped(probe + 1) if streams else range_
    if plan.read is not None:
        rows = select_sql(cache, evolve(plan.read, range=cut))
        counted, total = _total(cache, plan.read, count, max_rows)
    else:
        rows = _scalars(cut if routine.is_set else Range())
        if count:
            counted, total = Sql(f", pgrst_count AS (SELECT 1 FROM {SOURCE})"), _COUNT
    body = "''" if routine.is_void else body_sql(rendering, routine.is_scalar, not routine.is_set)
    sql = (
        f"WITH {SOURCE} AS ("
        + call_sql(plan)
        + ")"
        + counted
        + f" SELECT {total} AS total_result_set, count({ROWS}) AS page_total, {body} AS body, {_GUCS} FROM ("
        + rows
        + f") AS {ROWS}"
    )
    if not streams:
        return Statement(_explained(sql, rendering))
    whole = select_sql(cache, plan.read) if plan.read is not None else _scalars(range_)
    streamed = f"WITH {SOURCE} AS (" + call_sql(plan) + ") " + stream_sql(rendering, whole, routine.is_scalar)
    return Statement(sql, None, streamed, probe)


_COUNT = "(SELECT count(*) FROM pgrst_count)"


def _total(cache: SchemaCache, plan: ReadPlan, count: str | None, max_rows: int) -> tuple[Sql, str]:
    if count == "exact":
        return ", pgrst_count AS (" + count_sql(cache, plan) + ")", _COUNT
    if count == "estimated":
        most = max_rows + 1 if max_rows else None
        return ", pgrst_count AS (" + count_sql(cache, plan, most) + ")", _COUNT
    return Sql(""), "null::bigint"


def streamable(rendering: Rendering) -> bool:
    """Whether the body is no more than its rows one after the other."""
    return rendering.explain is None and rendering.form in ("json", "csv", "ndjson")


def stream_sql(rendering: Rendering, rows: Sql, scalar: bool = False) -> Sql:
    """Each row as the text it has in the body."""
    item = f"{ROWS}.{SCALAR}" if scalar else ROWS
    text = f"to_json({item})"
    if rendering.form == "csv":
        # The names of the columns come along, for the first line.
        text = f"substring({ROWS}::text, 2, length({ROWS}::text) - 2), row_to_json({ROWS})"
        return f"SELECT {text} FROM (" + rows + f") AS {ROWS}"
    if rendering.nulls_stripped:
        text = f"json_strip_nulls({text})"
    return f"SELECT {text}::text FROM (" + rows + f") AS {ROWS}"


def _scalars(range_: Range) -> Sql:
    return Sql(f"SELECT {SCALAR} FROM {SOURCE}") + _cut(range_)


def _cut(range_: Range) -> Sql:
    found = Sql("")
    if range_.limit is not None:
        found = " LIMIT " + parameter(str(range_.limit))
    if range_.offset:
        found = found + " OFFSET " + parameter(str(range_.offset))
    return found


def _location(plan: WritePlan) -> str:
    """The primary key of the row that was inserted, as a JSON array of texts."""
    keys = plan.relation.primary_key
    if plan.representation != "headers-only" or plan.verb != "insert" or not keys:
        return "null::text"
    values = ", ".join(f"{ident(name)}::text" for name in keys)
    return f"(SELECT json_build_array({values})::text FROM {SOURCE} LIMIT 1)"


def _explained(sql: Sql, rendering: Rendering) -> Sql:
    if rendering.explain is None:
        return sql
    options = [_EXPLAIN_OPTIONS[name] for name in rendering.explain.plan_options]
    options.append("FORMAT " + ("JSON" if rendering.explain.name.endswith("+json") else "TEXT"))
    return f"EXPLAIN ({', '.join(options)}) " + sql
