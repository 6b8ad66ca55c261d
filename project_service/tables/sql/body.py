"""Expressions that make the response body in PostgreSQL, from the rows that are called ``_t``: the whole body, or the
part of it that is one row, for a stream."""

from __future__ import annotations

from project_service.tables.model import SCALAR
from project_service.tables.plan.media import Rendering
from project_service.tables.sql.fragment import Sql
from project_service.tables.sql.names import qualified

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
    if rendering.form == "ndjson":
        return _ndjson_row(item)
    if rendering.form == "geojson":
        return f"ST_AsGeoJSON({ROW})"
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
