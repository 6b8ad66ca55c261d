"""Whole numbers in requests. They may have any number of digits; Python's ``int`` refuses texts of more than 4300."""

from __future__ import annotations

import math
import re

# Stands for all numbers with more digits: it is beyond every limit there is.
BEYOND = 10**1000

_DIGITS = re.compile(r"-?[0-9]+")


def from_digits(text: str) -> int | None:
    """The number that ``text`` is: ASCII digits, perhaps after a minus. None for any other text. A number beyond
    ``BEYOND`` becomes that, with its sign."""
    if not _DIGITS.fullmatch(text):
        return None
    significant = text.lstrip("-").lstrip("0") or "0"
    number = int(significant) if len(significant) <= 1000 else BEYOND
    return -number if text.startswith("-") else number


_FLOAT = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?(?:[eE]\+?(-?[0-9]+))?")


def as_float(text: str) -> float:
    """The number that ``text`` is in JSON, with a point or an exponent. One that is not whole does not become whole
    by rounding: up to 2**52 it is the next float that is not whole either."""
    number = float(text)
    rounded = number.is_integer() and abs(number) <= 2**52 and not _is_whole(text)
    return math.nextafter(number, 0.0 if number else math.inf) if rounded else number


def _is_whole(text: str) -> bool:
    parsed = _FLOAT.fullmatch(text)
    assert parsed is not None
    whole, fraction, exponent = parsed.groups(default="")
    digits = whole + fraction
    significant = digits.rstrip("0")
    # How many digits are behind the point, without the exponent.
    behind = len(fraction) - (len(digits) - len(significant))
    return not significant or (from_digits(exponent or "0") or 0) >= behind


def is_finite(value: object) -> bool:
    """Whether a JSON value is a number that a float can be near to. ``1e999`` is read as infinite, and a time that is
    infinite would never come."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def from_json(value: object) -> int | None:
    """The whole number that a JSON value is, or None. ``60.0`` and ``6e1`` are whole numbers as well (JSON Schema,
    "Validation", section 6.1.1)."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
