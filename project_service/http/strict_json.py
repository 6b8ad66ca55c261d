"""JSON as RFC 8259 defines it, refusing what two parsers might read differently (such as duplicate keys)."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import orjson

from project_service import errors

# Deeper than any real body, and far below what would exhaust a stack in PostgreSQL or Python.
MAX_DEPTH = 200

_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())


def loads(raw: bytes) -> Any:
    """The value of ``raw``; raises ``invalid_json`` (also for duplicate keys, lone surrogates, NaN, great depth).

    Depth and duplicates are found by counting in the text. Walking through the values would be slow for a body that
    is all brackets, which anybody may send.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise errors.invalid_json() from None
    bare = _without_strings(raw)
    if _is_deep(bare):
        raise errors.invalid_json(f"The body is nested deeper than {MAX_DEPTH} levels.")
    # orjson silently keeps the last of several equal keys, and then the value has fewer keys than the text.
    keys = bare.count(b":")
    if keys > 1 and keys != _without_strings(orjson.dumps(value)).count(b":"):
        raise errors.invalid_json("An object in the body has the same key twice.")
    return value


def _without_strings(text: bytes) -> bytes:
    """``text``, which has to be valid JSON, without the strings in it."""
    if b"\\" in text:
        # Pairs first, from the left: a backslash that is left over then is one that escapes a quote.
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.split(b'"')[::2])


def _is_deep(bare: bytes) -> bool:
    if bare.count(b"[") + bare.count(b"{") <= MAX_DEPTH:
        return False
    return max(accumulate(map(_STEPS.__getitem__, bare.translate(None, _NO_BRACKETS)))) > MAX_DEPTH
