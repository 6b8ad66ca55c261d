"""The response body, made by PostgreSQL from the rows ``_t``."""

from __future__ import annotations

from project_service.tables.plan.media import Rendering
from project_service.tables.sql.call import SCALAR
from project_service.tables.sql.names import qualified

ROWS = "_t"


def body_sql(rendering: Rendering, scalar: bool = False, single: bool = False) -> str:
    """``scalar``: the rows hold one value each; ``single``: there is one row and it is the result itself."""
    if rendering.form == "routine":
        # What a function returns in several rows is one body as much as what it returns in one.
        return f"string_agg({ROWS}.{SCALAR}::{'bytea' if rendering.binary else 'text'}, '')"
    if rendering.handler is not None:
        aggregate = qualified(rendering.handler.aggregate)
        relation = rendering.handler.relation
        row = ROWS if relation is None else f"{ROWS}::{qualified(relation)}"
        return f"{aggregate}({row})"
    if rendering.form == "csv":
        return _csv()
    if rendering.form == "geojson":
        return (
            "json_build_object('type', 'FeatureCollection', 'features', "
            f"coalesce(json_agg(ST_AsGeoJSON({ROWS})::json), '[]'))"
        )
    item = f"{ROWS}.{SCALAR}" if scalar else ROWS
    if rendering.form == "ndjson":
        return f"coalesce(string_agg(to_json({item})::text || E'\\n', ''), '')"
    return _json(item, rendering, single)


def _json(item: str, rendering: Rendering, single: bool) -> str:
    rows = f"json_agg({item})"
    if rendering.nulls_stripped:
        rows = f"json_strip_nulls({rows})"
    if single or rendering.singular:
        return f"coalesce(({rows} -> 0), 'null')"
    return f"coalesce({rows}, '[]')"


def _csv() -> str:
    """The column names of the first row, then each row in the text form of its type without the brackets."""
    names = f"(SELECT string_agg(k, ',') FROM json_object_keys((json_agg({ROWS}) -> 0)) AS k)"
    text = f"{ROWS}::text"
    lines = f"string_agg(substring({text}, 2, length({text}) - 2), E'\\n')"
    return f"coalesce({names}, '') || E'\\n' || coalesce({lines}, '')"
