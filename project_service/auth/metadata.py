"""What a user's metadata may be."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from project_service.errors import validation_failed

MAX_BYTES = 16 * 1024


def checked(value: object) -> dict[str, Any]:
    """An object of at most 16 KiB that PostgreSQL can store; None is an empty one. Raises ``validation_failed``."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise validation_failed({"metadata": "must be an object"})
    if not all(_survives(number) for number in _numbers(value)):
        raise validation_failed({"metadata": "must not contain a number beyond 64 bits"})
    text = orjson.dumps(value)
    if len(text) > MAX_BYTES:
        raise validation_failed({"metadata": f"must be at most {MAX_BYTES} bytes as JSON"})
    # A backslash before it makes it six characters of text.
    if rb"\u0000" in text.replace(rb"\\", b""):
        raise validation_failed({"metadata": "must not contain NUL"})
    return value


def loaded(text: str) -> dict[str, Any]:
    """What the database holds, as something that can be sent: what came in by SQL may hold any number.

    An integer beyond 64 bits becomes the nearest float, one beyond all floats infinity, which is sent as null.
    """
    value: dict[str, Any]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        # There is a number beyond all floats; for every user's metadata the library's own reader would be too slow.
        value = json.loads(text, parse_int=_integer)
    return value


def _integer(digits: str) -> int | float:
    # Python itself refuses to read very long ones.
    number = int(digits) if len(digits) <= 20 else float(digits)
    return number if _fits(number) else float(number)


def _fits(number: float) -> bool:
    """Whether it is within what a JSON writer takes for an integer: 64 bits, with or without a sign."""
    return -(2**63) <= number < 2**64


def _survives(number: float) -> bool:
    """PostgreSQL keeps numbers as decimals and gives a great float back as an integer of as many digits."""
    if isinstance(number, int):
        return _fits(number)
    return math.isfinite(number) and (abs(number) < 2**63 or not number.is_integer())


def _numbers(value: object) -> list[float]:
    """Every number in it, however deep."""
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
