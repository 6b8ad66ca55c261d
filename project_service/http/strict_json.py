"""JSON as RFC 8259 has it, without the leniencies that let two readers see two things."""

from __future__ import annotations

import json
from typing import Any

import orjson

from project_service import errors

# Deeper than any real body; far from what would exhaust a stack in PostgreSQL or Python.
MAX_DEPTH = 200


def loads(raw: bytes) -> Any:
    """The value of ``raw``; raises ``invalid_json`` (also for duplicate keys, lone surrogates, NaN, great depth)."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise errors.invalid_json() from None
    _refuse_depth(value)
    if _repeats_a_key(raw, value):
        raise errors.invalid_json("An object in the body has the same key twice.")
    return value


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper.extend(child for child in item.values() if isinstance(child, dict | list))
            elif isinstance(item, list):
                deeper.extend(child for child in item if isinstance(child, dict | list))
        if not deeper:
            return
        level = deeper
    raise errors.invalid_json(f"The body is nested deeper than {MAX_DEPTH} levels.")


class _Duplicate(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise _Duplicate


def _repeats_a_key(raw: bytes, value: Any) -> bool:
    """orjson keeps the last of two equal keys and does not say so; the standard library can be asked."""
    if not isinstance(value, dict | list):
        return False
    try:
        json.loads(raw, object_pairs_hook=_unique, parse_int=str, parse_float=str)
    except _Duplicate:
        return True
    return False
