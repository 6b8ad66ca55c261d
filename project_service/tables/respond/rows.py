"""A body put together from its rows, each of which is a text already: what a stream writes, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from project_service.tables.plan.media import Rendering
from project_service.tables.respond.outcome import as_bytes


def joined(rendering: Rendering, rows: Sequence[Any], first: bool) -> bytes:
    """Some rows, ``first`` those at the beginning. Of CSV the very first brings the columns' names."""
    if rendering.form == "csv":
        head = _names(rows[0][2]) + b"\n" if first else b"\n"
        return head + b"\n".join([row[0] for row in rows])
    if rendering.form == "ndjson":
        return b"\n".join([row[0] for row in rows]) + b"\n"
    # As PostgreSQL's json_agg puts it.
    return (_begin(rendering) if first else b", \n ") + b", \n ".join([row[0] for row in rows])


def _names(first_row: Any) -> bytes:
    """As they are; two of them may be the same."""
    names = json.loads(as_bytes(first_row), object_pairs_hook=lambda pairs: [name for name, _ in pairs])
    return ",".join(names).encode()


def _begin(rendering: Rendering) -> bytes:
    return b'{"type" : "FeatureCollection", "features" : [' if rendering.form == "geojson" else b"["


def end(rendering: Rendering, empty: bool) -> bytes:
    """What comes after the last; the whole body where there are none."""
    if rendering.form in ("json", "geojson"):
        closed = b"]}" if rendering.form == "geojson" else b"]"
        return _begin(rendering) + closed if empty else closed
    return b"\n" if rendering.form == "csv" and empty else b""
