"""JSON as RFC 8259 has it, without the leniencies that let two readers see two things."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import orjson

from project_service import errors

# Deeper than any real body; far from what would exhaust a stack in PostgreSQL or Python.
MAX_DEPTH = 200

_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())


def loads(raw: bytes) -> Any:
    """The value of ``raw``; raises ``invalid_json`` (also for duplicate keys, lone surrogates, NaN, great depth).

    Anybody may send a body that is all brackets, so what is asked of it is asked of its text, not value by value.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise errors.invalid_json() from None
    bare = _without_strings(raw)
    if _is_deep(bare):
        raise errors.invalid_json(f"The body is nested deeper than {MAX_DEPTH} levels.")
    # orjson keeps the last of two equal keys and does not say so: then the value has fewer.
    keys = bare.count(b":")
    if keys > 1 and keys != _without_strings(orjson.dumps(value)).count(b":"):
        raise errors.invalid_json("An object in the body has the same key twice.")
    return value


def _without_strings(text: bytes) -> bytes:
    """What is between the strings of a JSON text, which is one."""
    if b"\\" in text:
        # From the left, so that what is left of a row of backslashes is the one that escapes.
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.split(b'"')[::2])


def _is_deep(bare: bytes) -> bool:
    if bare.count(b"[") + bare.count(b"{") <= MAX_DEPTH:
        return False
    return max(accumulate(map(_STEPS.__getitem__, bare.translate(None, _NO_BRACKETS)))) > MAX_DEPTH
