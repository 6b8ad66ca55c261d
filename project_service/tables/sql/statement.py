"""Whole statements: the rows, how many there are, the body made of them and what SQL said about the response."""

from __future__ import annotations

import re

from attrs import frozen

from project_service.tables.catalog.model import Column, Routine, SchemaCache
from project_service.tables.plan.call import CallPlan
from project_service.tables.plan.media import Rendering
from project_service.tables.plan.nodes import ReadPlan
from project_service.tables.plan.write import WritePlan
from project_service.tables.sql.body import NUMBER, ROW, ROWS, body_sql, csv_row, json_row, ndjson_row
from project_service.tables.sql.call import SCALAR, call_sql
from project_service.tables.sql.fragment import PROBE, Sql
from project_service.tables.sql.names import ident, qualified
from project_service.tables.sql.read import SOURCE, count_sql, range_sql, select_sql
from project_service.tables.sql.write import CHOSEN, UPDATED, chosen_sql, write_sql
from project_service.tables.syntax import Range

_GUCS = (
    "nullif(current_setting('response.headers', true), '') AS response_headers, "
    "nullif(current_setting('response.status', true), '') AS response_status"
)
# What SQL has said of the response so far.
SAID = f"SELECT {_GUCS}"
_MOMENT = re.compile(r"date|timestamp(\(\d\))? with(out)? time zone")
_EXPLAIN_OPTIONS = {
    "analyze": "ANALYZE",
    "verbose": "VERBOSE",
    "settings": "SETTINGS",
    "buffers": "BUFFERS",
    "wal": "WAL",
}


@frozen
class Statement:
    """``sql`` returns one row: total, rows, body, headers, status; of a write updated, rows, location, body, headers,
    status, where the body stands fourth as in PostgREST's: a plan tells the output by position.

    With a ``stream`` it reads no more rows than the probe allows and one more, leaves out a body that is too large,
    and returns its size as well, and the number of all rows where the bounds say so: what does not fit is to be read
    by the stream instead, whose rows are texts (and the total, where it was asked for). ``count`` is what an estimate
    of the total explains.
    """

    sql: Sql
    count: Sql | None = None
    stream: Sql | None = None


@frozen
class Bounds:
    """``at_once`` rows are never streamed, nor are bodies of up to ``threshold_bytes``; 0 rows: nothing is.

    With ``bodiless`` rows are only counted: nobody reads a body. With ``counts_all`` those are counted too that are
    not read at once.
    """

    at_once: int = 0
    threshold_bytes: int = 0
    bodiless: bool = False
    counts_all: bool = False

    def streams(self, range_: Range, rendering: Rendering) -> bool:
        if self.at_once == 0 or self.bodiless or not _streamable(rendering):
            return False
        return range_.limit is None or range_.limit > self.at_once

    def leaves_out(self, rendering: Rendering) -> bool:
        """Whether no body is made. A plan's has to be, and what the database makes itself: it may set headers, or
        refuse."""
        return self.bodiless and rendering.explain is None and rendering.handler is None


def read_statement(
    cache: SchemaCache, plan: ReadPlan, rendering: Rendering, count: str | None, max_rows: int, bounds: Bounds
) -> Statement:
    rows = select_sql(cache, plan)
    counted, total = _total(cache, plan, count, max_rows)
    counting = count_sql(cache, plan) if count else None
    body = "''" if bounds.leaves_out(rendering) else body_sql(rendering)
    if bounds.streams(plan.range, rendering):
        sql = f"WITH {_apart(SOURCE, plan)} (" + rows + ")" + counted + _probing(total, body, bounds, SOURCE)
        if counting is None or count != "exact":
            return Statement(sql, counting, _streamed(rendering, rows))
        counted = "WITH pgrst_count AS (" + counting + ")"
        return Statement(sql, counting, counted + _streamed(rendering, rows, total))
    if count == "exact" and plan.range.whole:
        counted, total = Sql(""), NUMBER
    source = f"WITH {SOURCE} AS (" + rows + ")"
    sql = source + counted + _answer(total, body) + f" FROM (SELECT * FROM {SOURCE}) AS {ROWS}"
    return Statement(_explained(sql, rendering), counting)


def _answer(total: str, body: str, number: str = NUMBER) -> str:
    return f" SELECT {total} AS total_result_set, {number} AS page_total, {body} AS body, {_GUCS}"


def _apart(name: str, plan: ReadPlan | None) -> str:
    """What the first rows are read from. For the first rows PostgreSQL may join relations another way round than for
    all, and rows that nobody sorted come in another order than from PostgREST's statement, which has no LIMIT.
    Materialized they are planned as without, and read no further all the same."""
    unsorted = plan is not None and not plan.order and any(plan.embeddings)
    return f"{name} AS MATERIALIZED" if unsorted else f"{name} AS"


def _probing(total: str, body: str, bounds: Bounds, source: str) -> Sql:
    """A body is made of the first rows alone, and handed over if it is not too large."""
    made = f"SELECT {total} AS total_result_set, {NUMBER} AS page_total, ({body})::text AS body"
    size = "octet_length(body)"
    number = f", (SELECT count(*) FROM {source}) AS all_rows" if bounds.counts_all else ""
    return (
        f" SELECT total_result_set, page_total, CASE WHEN {size} <= {bounds.threshold_bytes} THEN body END AS body, "
        + f"{_GUCS}, {size} AS body_size{number} FROM ({made} FROM (SELECT * FROM {source} AS {ROWS} LIMIT "
        + PROBE
        + f") AS {ROWS}) AS pgrst_made"
    )


def write_statement(cache: SchemaCache, plan: WritePlan, rendering: Rendering) -> Statement:
    body, rows = "''", Sql(f"SELECT * FROM {SOURCE}")
    if plan.representation == "representation":
        body, rows = body_sql(rendering), select_sql(cache, plan.read)
    updated = f"nullif(current_setting('{UPDATED}', true), '')" if plan.merges else "null"
    written = _written(plan)
    if written:
        updated = _at_its_end(updated)
    sql = (
        "WITH "
        + (f"{CHOSEN} AS (" + chosen_sql(cache, plan) + "), " if plan.may_find_more else "")
        + f"{SOURCE} AS ("
        + write_sql(cache, plan)
        + f") SELECT {updated} AS updated, {NUMBER} AS page_total, {_location(cache, plan)} AS location, "
        + f"{body} AS body, {_GUCS}{written} FROM ("
        + rows
        + f") AS {ROWS}"
    )
    return Statement(_explained(sql, rendering))


def _at_its_end(first: str) -> str:
    """The first column, and with it those after it, which tell what SQL has said, once the source has run to its end.
    Where a limit, or a condition that no row can meet, leaves little to show, PostgreSQL would run a function no
    further than for that, and a write only when everything has been told."""
    return f"CASE WHEN (SELECT count(*) FROM {SOURCE}) IS NOT NULL THEN {first} END"


def _written(plan: WritePlan) -> str:
    """Columns of the number of rows written, where the representation may show fewer, and of those that were to be,
    where it may be more."""
    fewer = plan.read.grouped or any(found.join == "inner" for found in plan.read.embeddings)
    written = f", (SELECT count(*) FROM {SOURCE}) AS written"
    if plan.may_find_more:
        return f"{written}, (SELECT count(*) FROM {CHOSEN}) AS chosen"
    return written if fewer and plan.representation == "representation" else ""


def call_statement(
    cache: SchemaCache,
    plan: CallPlan,
    rendering: Rendering,
    count: str | None,
    range_: Range,
    bounds: Bounds,
) -> Statement:
    """A function that is streamed is called more than once."""
    routine = plan.routine
    # One value is one row, and a body of its own is not aggregated.
    single = rendering.form == "routine" or (plan.read is None and not routine.is_set)
    empty = routine.is_void or bounds.leaves_out(rendering)
    # What nobody reads PostgreSQL would not call for, if it is stable: then it is called to be counted.
    number = "1::bigint" if single and not (empty and plan.read is None) else NUMBER
    if plan.read is not None:
        rows = select_sql(cache, plan.read)
    else:
        rows = _scalars(routine, range_ if routine.is_set else Range())
    all_there = number if range_.whole and not single else None
    counted, total = _total_of_call(cache, plan, count, all_there)
    body = "''" if empty else body_sql(rendering, routine.is_scalar, not routine.is_set)
    source = f"WITH {SOURCE} AS (" + call_sql(plan) + ")"
    if routine.is_set and count is None and bounds.streams(range_, rendering):
        streamed = source + _streamed(rendering, rows, scalar=routine.is_scalar)
        whole = source + f", {_apart('pgrst_rows', plan.read)} (" + rows + ")"
        return Statement(whole + _probing(total, body, bounds, "pgrst_rows"), None, streamed)
    if routine.volatility == "v" and (routine.is_set or plan.read is not None):
        total = _at_its_end(total)
    # A filter may hide even that one.
    begin, end = (
        ("(SELECT) AS pgrst_one LEFT JOIN ", " ON TRUE") if single and plan.read is not None else ("", "")
    )
    sql = source + counted + _answer(total, body, number) + f" FROM {begin}(" + rows + f") AS {ROWS}{end}"
    return Statement(_explained(sql, rendering))


_COUNT = "(SELECT count(*) FROM pgrst_count)"


def _total(cache: SchemaCache, plan: ReadPlan, count: str | None, max_rows: int) -> tuple[Sql, str]:
    if count == "exact":
        return ", pgrst_count AS (" + count_sql(cache, plan) + ")", _COUNT
    if count == "estimated":
        most = max_rows + 1 if max_rows else None
        return ", pgrst_count AS (" + count_sql(cache, plan, most) + ")", _COUNT
    return Sql(""), "null::bigint"


def _total_of_call(
    cache: SchemaCache, plan: CallPlan, count: str | None, all_there: str | None
) -> tuple[Sql, str]:
    """The function has run: its rows are there to be counted, and no plan could tell more. ``all_there`` is their
    number where the answer has every one."""
    if count not in ("exact", "estimated"):
        return Sql(""), "null::bigint"
    if all_there is not None:
        return Sql(""), all_there
    counting = count_sql(cache, plan.read) if plan.read is not None else Sql(f"SELECT 1 FROM {SOURCE}")
    return ", pgrst_count AS (" + counting + ")", _COUNT


def _streamable(rendering: Rendering) -> bool:
    """Whether the body is no more than its rows one after the other."""
    return rendering.explain is None and rendering.form in ("json", "csv", "ndjson", "geojson")


def _streamed(rendering: Rendering, rows: Sql, total: str = "null", scalar: bool = False) -> Sql:
    """Each row as the text it has in the body; then the total, and for CSV the first row with its names."""
    item = f"{ROWS}.{SCALAR}" if scalar else ROW
    text = json_row(item)
    names = "null"
    if rendering.form == "csv":
        text = csv_row()
        names = f"CASE WHEN row_number() OVER () = 1 THEN row_to_json({ROW}) END"
    elif rendering.form == "ndjson":
        text = ndjson_row(item)
    elif rendering.form == "geojson":
        text = f"ST_AsGeoJSON({ROW})"
    elif rendering.nulls_stripped:
        text = f"json_strip_nulls({text})"
    return f" SELECT {text}::text, {total}, {names} FROM (" + rows + f") AS {ROWS}"


def _scalars(routine: Routine, range_: Range) -> Sql:
    alias = ident(routine.name)
    return Sql(f"SELECT {alias}.{SCALAR} FROM {SOURCE} AS {alias}") + range_sql(range_)


def _location(cache: SchemaCache, plan: WritePlan) -> str:
    """The primary key of the row that was inserted, as a JSON array of texts; of several none is meant."""
    if not plan.location:
        return "null::text"
    values = ", ".join(_filtered_by(cache, plan.relation.columns[name]) for name in plan.location)
    return f"CASE WHEN {NUMBER} = 1 THEN (SELECT json_build_array({values})::text FROM {SOURCE}) END"


def _filtered_by(cache: SchemaCache, column: Column) -> str:
    """What a filter on the column takes for its value: where a function reads filters, what clients are shown."""
    shown = cache.representations.get((column.type, "json"))
    if shown is not None and ("text", column.type) in cache.representations:
        return f"{qualified(shown)}({ident(column.name)}) #>> '{{}}'"
    if _MOMENT.fullmatch(column.base_type):
        # DateStyle may name zones by letters that mean several.
        return f"to_json({ident(column.name)}) #>> '{{}}'"
    return f"{ident(column.name)}::text"


def _explained(sql: Sql, rendering: Rendering) -> Sql:
    if rendering.explain is None:
        return sql
    options = [_EXPLAIN_OPTIONS[name] for name in rendering.explain.plan_options]
    options.append("FORMAT " + ("JSON" if rendering.explain.name.endswith("+json") else "TEXT"))
    return f"EXPLAIN ({', '.join(options)}) " + sql
