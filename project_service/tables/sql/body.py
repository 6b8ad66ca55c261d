"""The response body, made by PostgreSQL from the rows ``_t``."""

from __future__ import annotations

from project_service.tables.plan.media import Rendering
from project_service.tables.sql.call import SCALAR
from project_service.tables.sql.names import qualified

ROWS = "_t"
# One of them whole: the bare name would be a column, where there is one that is called so. What takes such a row is
# called with its schema: a computed column of any table, ``count(authors)``, would take it as well.
ROW = f"{ROWS}.*"
NUMBER = f"pg_catalog.count({ROW})"


def body_sql(rendering: Rendering, scalar: bool = False, single: bool = False) -> str:
    """``scalar``: the rows hold one value each; ``single``: there is one row and it is the result itself."""
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
        return f"coalesce(string_agg({ndjson_row(item)} || E'\\n', ''), '')"
    return _json(item, rendering, single)


def _json(item: str, rendering: Rendering, single: bool) -> str:
    rows, nothing = f"pg_catalog.json_agg({item})", "[]"
    if single or rendering.singular:
        rows, nothing = f"({rows} -> 0)", "null"
    if rendering.nulls_stripped:
        rows = f"json_strip_nulls({rows})"
    return f"coalesce({rows}, '{nothing}')"


def _csv() -> str:
    """The column names of the first row, then the rows."""
    names = f"(SELECT string_agg(k, ',') FROM json_object_keys((pg_catalog.json_agg({ROW}) -> 0)) AS k)"
    return f"coalesce({names}, '') || E'\\n' || coalesce(string_agg({csv_row()}, E'\\n'), '')"


def json_row(item: str) -> str:
    """A value as JSON; one that is null too, for it is an item like any other."""
    return f"coalesce(pg_catalog.to_json({item}), 'null')"


def ndjson_row(item: str) -> str:
    """One value on one line: PostgreSQL breaks the arrays that it makes, and keeps the breaks in a ``json`` value."""
    return f"replace(replace({json_row(item)}::text, E'\\n', ' '), E'\\r', ' ')"


def csv_row() -> str:
    """A row in the text form of its type without the brackets, as in PostgREST's CSV."""
    text = f"({ROW})::text"
    return f"substring({text}, 2, length({text}) - 2)"
