"""Whole statements: the rows, how many there are, the body made of them and what SQL said about the response."""

from __future__ import annotations

from attrs import frozen

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

    ``rows`` is what a stream reads row by row; ``count`` is what an estimate of the total explains.
    """

    sql: Sql
    rows: Sql | None = None
    count: Sql | None = None


def read_statement(
    cache: SchemaCache, plan: ReadPlan, rendering: Rendering, count: str | None, max_rows: int
) -> Statement:
    rows = select_sql(cache, plan)
    counted, total = _total(cache, plan, count, max_rows)
    sql = (
        f"WITH {SOURCE} AS ("
        + rows
        + ")"
        + counted
        + f" SELECT {total} AS total_result_set, count({ROWS}) AS page_total, {body_sql(rendering)} AS body, {_GUCS}"
        + f" FROM (SELECT * FROM {SOURCE}) AS {ROWS}"
    )
    return Statement(_explained(sql, rendering), rows, count_sql(cache, plan) if count else None)


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
    cache: SchemaCache, plan: CallPlan, rendering: Rendering, count: str | None, max_rows: int, range_: Range
) -> Statement:
    routine = plan.routine
    counted, total = Sql(""), "null::bigint"
    if plan.read is not None:
        rows = select_sql(cache, plan.read)
        counted, total = _total(cache, plan.read, count, max_rows)
    else:
        rows = Sql(f"SELECT {SCALAR} FROM {SOURCE}") + _cut(range_ if routine.is_set else Range())
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
    streamed = f"WITH {SOURCE} AS (" + call_sql(plan) + ") " + rows
    return Statement(_explained(sql, rendering), streamed if routine.is_set else None)


_COUNT = "(SELECT count(*) FROM pgrst_count)"


def _total(cache: SchemaCache, plan: ReadPlan, count: str | None, max_rows: int) -> tuple[Sql, str]:
    if count == "exact":
        return ", pgrst_count AS (" + count_sql(cache, plan) + ")", _COUNT
    if count == "estimated":
        most = max_rows + 1 if max_rows else None
        return ", pgrst_count AS (" + count_sql(cache, plan, most) + ")", _COUNT
    return Sql(""), "null::bigint"


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
