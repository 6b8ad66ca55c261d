"""Expressions that make the response body in PostgreSQL, from the rows that are called ``_t``: the whole body, or the
part of it that is one row, for a stream."""

from __future__ import annotations

from project_service.tables.plan.media import Rendering
from project_service.tables.sql.call import SCALAR
from project_service.tables.sql.names import qualified

ROWS = "_t"
# A whole row. The bare name would mean a column, if there is one of that name. Functions that take such a row are
# called with their schema, because an application's computed column, such as ``count(authors)``, would match it too.
ROW = f"{ROWS}.*"
NUMBER = f"pg_catalog.count({ROW})"


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
    """A line with the names of the columns, taken from the first row, then the rows."""
    names = f"(SELECT string_agg(k, ',') FROM json_object_keys((pg_catalog.json_agg({ROW}) -> 0)) AS k)"
    return f"coalesce({names}, '') || E'\\n' || coalesce(string_agg({_csv_row()}, E'\\n'), '')"


def is_streamable(rendering: Rendering) -> bool:
    """Whether the body is simply its rows, one after the other."""
    return rendering.explain is None and rendering.form in ("json", "csv", "ndjson", "geojson")


def row_sql(rendering: Rendering, scalar: bool) -> tuple[str, str]:
    """Of a body that ``is_streamable``: a row as its text in the body; and for CSV, with the first row, that row as
    JSON, for the columns' names."""
    item = f"{ROWS}.{SCALAR}" if scalar else ROW
    if rendering.form == "csv":
        return _csv_row(), f"CASE WHEN row_number() OVER () = 1 THEN row_to_json({ROW}) END"
    if rendering.form == "ndjson":
        return _ndjson_row(item), "null"
    if rendering.form == "geojson":
        return f"ST_AsGeoJSON({ROW})", "null"
    text = _json_row(item)
    return f"json_strip_nulls({text})" if rendering.nulls_stripped else text, "null"


def _json_row(item: str) -> str:
    """A value as JSON. SQL's null becomes JSON's: it is an item like any other."""
    return f"coalesce(pg_catalog.to_json({item}), 'null')"


def _ndjson_row(item: str) -> str:
    """A value as JSON on one line. PostgreSQL breaks lines in the arrays that it makes, and keeps line breaks that a
    ``json`` value has."""
    return f"replace(replace({_json_row(item)}::text, E'\\n', ' '), E'\\r', ' ')"


def _csv_row() -> str:
    """A row as CSV, made as PostgREST does it: PostgreSQL's text of the row without its brackets."""
    text = f"({ROW})::text"
    return f"substring({text}, 2, length({text}) - 2)"
