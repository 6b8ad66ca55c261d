"""The ``Range`` header (RFC 9110 section 14). Pure."""

from __future__ import annotations

import re

from attrs import frozen

from project_service import whole_numbers
from project_service.storage import errors

_SPEC = re.compile(r"(\d*)-(\d*)", re.ASCII)


@frozen
class ByteRange:
    first: int
    length: int

    def content_range(self, size: int) -> str:
        return f"bytes {self.first}-{self.first + self.length - 1}/{size}"


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The one range asked for, or None where the whole object is to be sent.

    That is the case for units other than bytes, which have to be ignored (section 14.2), and for several ranges,
    which may be. Raises ``range_not_satisfiable`` for what is not a range or lies outside the object.
    """
    if not header:
        return None
    unit, equals, specs = header.partition("=")
    if unit.lower() != "bytes":
        if equals and unit:
            return None
        raise errors.range_not_satisfiable(size)
    pieces = [piece.strip() for piece in specs.split(",") if piece.strip()]
    found = [_resolve(piece, size) for piece in pieces]
    if not any(found):
        raise errors.range_not_satisfiable(size)
    return found[0] if len(found) == 1 else None


def _resolve(spec: str, size: int) -> ByteRange | None:
    """The part of an object of ``size`` bytes that ``spec`` names, or None where there is none."""
    match = _SPEC.fullmatch(spec)
    if match is None or spec == "-":
        raise errors.range_not_satisfiable(size)
    if not match[1]:
        length = min(_position(match[2]), size)
        return ByteRange(size - length, length) if length else None
    first = _position(match[1])
    last = _position(match[2]) if match[2] else whole_numbers.BEYOND
    if last < first:
        raise errors.range_not_satisfiable(size)
    return ByteRange(first, min(last, size - 1) - first + 1) if first < size else None


def _position(digits: str) -> int:
    """Section 14.1.2 allows any number of digits."""
    number = whole_numbers.from_digits(digits)
    assert number is not None
    return number
