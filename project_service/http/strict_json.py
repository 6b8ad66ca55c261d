"""JSON as RFC 8259 defines it, refusing what two parsers might read differently (such as duplicate keys)."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import orjson

from project_service import errors, whole_numbers

# Deeper than any real body, and far below what would exhaust a stack in PostgreSQL or Python.
MAX_DEPTH = 200

_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())


def loads(raw: bytes) -> Any:
    """The value of ``raw``; raises ``invalid_json`` (also for duplicate keys, lone surrogates, NaN, great depth).

    Numbers may have any number of digits. One beyond ``whole_numbers.BEYOND`` becomes that, and one with a point or
    an exponent that is beyond all floats becomes infinite.

    Depth and duplicates are found by counting in the text. Walking through the values would be slow for a body that
    is all brackets, which anybody may send.
    """
    bare = _without_strings(raw)
    if _depth(bare, MAX_DEPTH) > MAX_DEPTH:
        raise errors.invalid_json(f"The body is nested deeper than {MAX_DEPTH} levels.")
    try:
        value, written = _value(raw)
    except ValueError:
        raise errors.invalid_json() from None
    # Of several equal keys the last is silently kept, and then the value has fewer keys than the text.
    keys = bare.count(b":")
    if keys > 1 and keys != _without_strings(written).count(b":"):
        raise errors.invalid_json("An object in the body has the same key twice.")
    return value


def _value(raw: bytes) -> tuple[Any, bytes]:
    """The value of ``raw``, and the value as JSON. Raises ``ValueError``."""
    try:
        value = orjson.loads(raw)
        return value, orjson.dumps(value)
    except orjson.JSONDecodeError:
        # orjson takes no number beyond the largest float. The standard library does, but is slower.
        value = json.loads(raw.decode("utf-8"), parse_int=_integer, parse_constant=_refused)
        # Lone surrogates, which are not UTF-8, are refused here.
        return value, json.dumps(value, ensure_ascii=False).encode("utf-8")


def _integer(digits: str) -> int:
    # A body may hold half a million numbers, so the short ones take the short way.
    return int(digits) if len(digits) < 20 else whole_numbers.from_digits(digits) or 0


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _without_strings(text: bytes) -> bytes:
    """``text`` without the strings in it, if it is valid JSON."""
    if b"\\" in text:
        # Pairs first, from the left: a backslash that is left over then is one that escapes a quote.
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.split(b'"')[::2])


def depth_of(raw: bytes) -> int:
    """How deep lists and objects are nested in ``raw``, which has to be valid JSON."""
    return _depth(_without_strings(raw), 0)


def _depth(bare: bytes, enough: int) -> int:
    """The depth of a text without strings; any number up to ``enough`` where it is not greater than that."""
    brackets = bare.count(b"[") + bare.count(b"{")
    if brackets <= enough:
        return brackets
    return max(accumulate(map(_STEPS.__getitem__, bare.translate(None, _NO_BRACKETS))))
