"""Describes PostgreSQL's types as JSON Schema, and the defaults of columns as JSON."""

from __future__ import annotations

import re
from typing import Any

import orjson

_TYPES = {
    "boolean": "boolean",
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "numeric": "number",
    "real": "number",
    "double precision": "number",
}
_FORMATS = {"smallint": "int32", "integer": "int32", "bigint": "int64"}
_LENGTH = re.compile(r"\(\d+(,\d+)?\)")
_QUOTED = re.compile(r"'((?:[^']|'')*)'(::.*)?", re.DOTALL)


def _plain(type_: str) -> str:
    """A type without its length: ``character varying(20)`` is ``character varying``."""
    return _LENGTH.sub("", type_)


def schema_of(type_: str) -> dict[str, Any]:
    """The JSON Schema of a type. ``format`` has the type's name; json and jsonb have no ``type``, for they may be
    anything."""
    name = _plain(type_)
    found: dict[str, Any] = {"format": _FORMATS.get(name, name)}
    if name in ("json", "jsonb"):
        return found
    if name.endswith("[]"):
        item = _item(name.removesuffix("[]"))
        return {**found, "type": "array", "items": item}
    return {**found, "type": _TYPES.get(name, "string")}


def _item(name: str) -> dict[str, Any]:
    return {} if name in ("json", "jsonb") else {"type": _TYPES.get(name, "string")}


def default_of(type_: str, expression: str) -> Any | None:
    """A default as a JSON value if it is a constant. If not: for a type that is shown as a string the SQL expression
    itself, and None for others."""
    quoted = _QUOTED.fullmatch(expression)
    text = quoted.group(1).replace("''", "'") if quoted else expression
    kind = schema_of(type_).get("type")
    if kind == "string":
        return text
    if kind == "array":
        # Otherwise it is in PostgreSQL's notation, which is not JSON.
        return [] if text == "{}" else None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
