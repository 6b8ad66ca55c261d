"""Puts a body together from rows that are texts already, piece by piece, for a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from project_service.tables.plan.media import Rendering


def begin(rendering: Rendering, header: bytes) -> bytes:
    """What comes before the first row. ``header`` is the first line of CSV."""
    if rendering.form == "csv":
        return header + b"\n"
    if rendering.form == "ndjson":
        return b""
    return b'{"type" : "FeatureCollection", "features" : [' if rendering.form == "geojson" else b"["


def joined(rendering: Rendering, rows: Sequence[Any], first: bool) -> bytes:
    """The piece of the body with these rows, of which there is at least one; ``first`` if none came before them."""
    texts = [row[0] for row in rows]
    if rendering.form == "ndjson":
        return b"\n".join(texts) + b"\n"
    # Between JSON values the same separator as of PostgreSQL's json_agg.
    separator = b"\n" if rendering.form == "csv" else b", \n "
    return (b"" if first else separator) + separator.join(texts)


def end(rendering: Rendering) -> bytes:
    """What comes after the last row."""
    if rendering.form == "geojson":
        return b"]}"
    return b"]" if rendering.form == "json" else b""
