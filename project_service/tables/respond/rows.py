"""Puts a body together from rows that are texts already, piece by piece, for a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from project_service.tables.plan.media import Rendering
from project_service.tables.respond.outcome import as_bytes


def joined(rendering: Rendering, rows: Sequence[Any], first: bool) -> bytes:
    """The piece of the body with these rows; ``first`` if the body begins with them. In CSV the first row comes with
    the names of the columns."""
    if rendering.form == "csv":
        head = _names(rows[0][2]) + b"\n" if first else b"\n"
        return head + b"\n".join([row[0] for row in rows])
    if rendering.form == "ndjson":
        return b"\n".join([row[0] for row in rows]) + b"\n"
    # The same separators as of PostgreSQL's json_agg.
    return (_begin(rendering) if first else b", \n ") + b", \n ".join([row[0] for row in rows])


def _names(first_row: Any) -> bytes:
    """The names of the columns, unquoted, as PostgREST writes them. The JSON may contain the same name twice."""
    names = json.loads(as_bytes(first_row), object_pairs_hook=lambda pairs: [name for name, _ in pairs])
    return ",".join(names).encode()


def _begin(rendering: Rendering) -> bytes:
    return b'{"type" : "FeatureCollection", "features" : [' if rendering.form == "geojson" else b"["


def end(rendering: Rendering, empty: bool) -> bytes:
    """The end of the body; if it is ``empty``, the whole body."""
    if rendering.form in ("json", "geojson"):
        closed = b"]}" if rendering.form == "geojson" else b"]"
        return _begin(rendering) + closed if empty else closed
    return b"\n" if rendering.form == "csv" and empty else b""
