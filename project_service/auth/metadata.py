"""Checks what a user's metadata may contain."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from project_service.errors import validation_failed

MAX_BYTES = 16 * 1024


def checked(value: object) -> dict[str, Any]:
    """The metadata, an object of at most ``MAX_BYTES`` as JSON that PostgreSQL can store; None means an empty one.
    Raises ``validation_failed``."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise validation_failed({"metadata": "must be an object"})
    if not all(_survives(number) for number in _numbers(value)):
        raise validation_failed({"metadata": "must not contain a number beyond 64 bits"})
    text = orjson.dumps(value)
    if len(text) > MAX_BYTES:
        raise validation_failed({"metadata": f"must be at most {MAX_BYTES} bytes as JSON"})
    # After an escaped backslash these six characters are ordinary text.
    if rb"\u0000" in text.replace(rb"\\", b""):
        raise validation_failed({"metadata": "must not contain NUL"})
    return value


def loaded(text: str) -> dict[str, Any]:
    """The metadata in the database, as something that can be sent. If it was written by SQL it may contain any
    number: an integer beyond 64 bits becomes the nearest float, and one beyond all floats infinity, which is sent as
    null.
    """
    value: dict[str, Any]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        # It has a number beyond all floats. The standard library can read it, but is too slow for all users'
        # metadata.
        value = json.loads(text, parse_int=_integer)
    return value


def _integer(digits: str) -> int | float:
    # Python refuses to convert very long texts to integers.
    number = int(digits) if len(digits) <= 20 else float(digits)
    return number if _fits(number) else float(number)


def _fits(number: float) -> bool:
    """Whether orjson can write it as an integer: it takes 64 bits, signed or unsigned."""
    return -(2**63) <= number < 2**64


def _survives(number: float) -> bool:
    """Whether the number can be read back. PostgreSQL stores decimals, and returns a large float as an integer with
    all its digits."""
    if isinstance(number, int):
        return _fits(number)
    return math.isfinite(number) and (abs(number) < 2**63 or not number.is_integer())


def _numbers(value: object) -> list[float]:
    """All numbers in the value, at any depth."""
    found: list[float] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
        elif isinstance(item, int | float):
            found.append(item)
    return found
