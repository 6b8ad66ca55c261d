"""JSON bodies: strict reading, and models from which both the reader and the schema of a body follow.

A body is declared once, as an attrs class whose fields are made by ``member``:

    @frozen
    class LogIn:
        email: str = member(text(EMAIL))
        password: str = member(TEXT)
        remember: bool = member(FLAG, default=False)

    @endpoint("POST", "/auth/login", Operation("logIn", ..., body=body_of(LogIn)), bearer="own")
    async def log_in(self, request: Request) -> Reply:
        body = await request.read_json(LogIn)

A field without a default is required. ``body_of`` gives the schema for ``/openapi.json``; ``read`` gives the value,
or a ``validation_failed`` that names every unknown, missing or invalid member with its reason. A PATCH for which
"not sent" and null are different takes ``read_members``, which returns only what was sent.

A ``Kind`` is one kind of value. Those of JSON are here; a part adds its own, such as a bcrypt hash, by a function
that takes the member's name and value and returns the value as handlers use it, or raises ``validation_failed``.
Rules that depend on settings, the caller or the database are not for a ``Kind``: they belong to the domain. Text may
hold NUL, which PostgreSQL cannot store: whatever keeps a text in the database rejects it first, as
``read_document`` does.

msgspec would not do: it reports only the first fault, in its own words, takes the last of several equal keys, and
refuses 60.0 as a whole number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson
from attrs import NOTHING, Attribute, AttrsInstance, evolve, field, fields, frozen

from project_service import errors, whole_numbers
from project_service.errors import ApiError, require_text, validation_failed
from project_service.http.describe import BOOLEAN, JSON, STRING, RequestBody, Schema, obj

M = TypeVar("M", bound=AttrsInstance)

# A body has room for twenty thousand unknown members.
MAX_FAULTS_NAMED = 100
# No endpoint needs as many values, and reading what else fits into a body would keep everybody waiting.
MAX_VALUES = 20_000


# Deeper than any real body, and far below what would exhaust a stack in PostgreSQL or Python.
MAX_DEPTH = 200

_MAX_BRACKETS = 256 * 1024
_LOOKED_AT = 256 * 1024
_SQUARE = bytes.maketrans(b"{}", b"[]")
_TURNS = re.compile(rb"(\[*+)(\]*+)")
# What stands before a value or a key: each but the outermost one.
_BEFORE_VALUES = (b",", b":", b"[", b"{")
_WHITESPACE = b" \t\r\n"
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def strict_loads(raw: bytes) -> Any:
    """The value of ``raw``; raises ``invalid_json`` (also for duplicate keys, lone surrogates, NaN, great depth, and
    more than about ``MAX_VALUES`` values).

    Numbers may have any number of digits. One beyond ``whole_numbers.BEYOND`` becomes that, and one with a point or
    an exponent that is beyond all floats becomes infinite. One that is not whole never becomes whole by rounding.

    Depth and duplicates are found by counting in the text. Walking through the values would be slow for a body that
    is all brackets, which anybody may send.
    """
    # Values and keys may have quotes, which are counted first: cutting the text at a million of them takes long.
    if raw.count(b'"') - raw.count(b'\\"') > 4 * MAX_VALUES:
        raise _invalid_json_too_many_values()
    bare = _without_strings(raw)
    if _depth(bare, MAX_DEPTH) > MAX_DEPTH:
        raise errors.invalid_json(f"The body is nested deeper than {MAX_DEPTH} levels.")
    if sum(map(bare.count, _BEFORE_VALUES)) > MAX_VALUES:
        raise _invalid_json_too_many_values()
    try:
        value, written = _value(raw, bare)
    except ValueError:
        raise errors.invalid_json() from None
    # Of several equal keys the last is silently kept, and then the value has fewer keys than the text.
    keys = bare.count(b":")
    if keys > 1 and keys != _without_strings(written).count(b":"):
        raise errors.invalid_json("An object in the body has the same key twice.")
    return value


# A number that a float may not tell from a whole one, as 1.00000000000000001 or 1e-400; or a long whole number.
_EXACT = re.compile(rb"[0-9.]{17}|[eE]-")


def _value(raw: bytes, bare: bytes) -> tuple[Any, bytes]:
    """The value of ``raw``, and the value as JSON; ``bare`` is ``raw`` without its strings. Raises
    ``ValueError``."""
    try:
        value = orjson.loads(raw)
        if not _EXACT.search(bare.translate(None, _WHITESPACE)):
            return value, orjson.dumps(value)
    except orjson.JSONDecodeError:
        pass  # orjson takes no number beyond the largest float
    # The standard library reads every number, but is slower.
    value = json.loads(
        raw.decode("utf-8"), parse_int=_integer, parse_float=whole_numbers.as_float, parse_constant=_refused
    )
    # Lone surrogates, which are not UTF-8, are refused here.
    return value, json.dumps(value, ensure_ascii=False).encode("utf-8")


def _invalid_json_too_many_values() -> ApiError:
    return errors.invalid_json(f"The body has more than {MAX_VALUES} values.")


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
    """How deep lists and objects are nested in ``raw``, which has to be valid JSON. What follows after a quarter of
    a mebibyte is not looked at."""
    return _depth(_without_strings(raw[:_LOOKED_AT]), 0)


def _depth(bare: bytes, enough: int) -> int:
    """The depth of a text without strings; any number up to ``enough`` where it is not greater than that.

    What follows after very many brackets is not looked at: there are more than any real body has.
    """
    brackets = bare.count(b"[") + bare.count(b"{")
    if brackets <= enough:
        return brackets
    text, removed = bare.translate(_SQUARE, _NO_BRACKETS)[:_MAX_BRACKETS], 0
    # While many lists are empty, these are removed at once. Then there are few changes of direction.
    while 8 * (len(text) - len(shorter := text.replace(b"[]", b""))) > len(text):
        text, removed = shorter, removed + 1
    depth = deepest = 0
    for turn in _TURNS.finditer(text):
        depth += len(turn[1])
        deepest = max(deepest, depth)
        depth -= len(turn[2])
    return removed + deepest


@frozen
class Kind:
    """A kind of value: its ``schema``, and ``read``, which takes a member's name and value."""

    schema: Schema
    read: Callable[[str, Any], Any]


def _read_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise validation_failed({name: "must be true or false"})
    return value


TEXT = Kind(STRING, require_text)
FLAG = Kind(BOOLEAN, _read_flag)


def text(schema: Schema) -> Kind:
    """A string. The ``schema`` may describe rules of the domain too, which are not checked here."""
    return Kind(schema, require_text)


def whole(minimum: int, maximum: int) -> Kind:
    """A whole number; ``60.0`` and ``6e1`` are whole numbers too."""

    def read_whole(name: str, value: object) -> int:
        number = whole_numbers.from_json(value)
        if number is None or not minimum <= number <= maximum:
            raise validation_failed({name: f"must be a whole number from {minimum} to {maximum}"})
        return number

    return Kind({"type": "integer", "minimum": minimum, "maximum": maximum}, read_whole)


def or_null(kind: Kind) -> Kind:
    """``kind``, or null, which is read as None."""

    def read_nullable(name: str, value: object) -> Any:
        return None if value is None else kind.read(name, value)

    return Kind({**kind.schema, "type": [kind.schema["type"], "null"]}, read_nullable)


def fits_64_bits(number: float) -> bool:
    """Whether orjson can write it as an integer: it takes 64 bits, signed or unsigned."""
    return -(2**63) <= number < 2**64


def _survives(number: float) -> bool:
    """Whether the number can be read back. PostgreSQL stores decimals, and returns a large float as an integer with
    all its digits."""
    if isinstance(number, int):
        return fits_64_bits(number)
    return math.isfinite(number) and (abs(number) < 2**63 or not number.is_integer())


def _numbers(value: object) -> list[float]:
    """All numbers in the value, at any depth."""
    numbers: list[float] = []
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, dict):
            remaining.extend(item.values())
        elif isinstance(item, list):
            remaining.extend(item)
        elif isinstance(item, int | float):
            numbers.append(item)
    return numbers


def read_document(name: str, value: object, max_bytes: int) -> tuple[dict[str, Any], bytes]:
    """An object that PostgreSQL can store as jsonb and that comes back as it was, and its text, of at most
    ``max_bytes``. Raises ``validation_failed`` for the member ``name``."""
    if not isinstance(value, dict):
        raise validation_failed({name: "must be an object"})
    if not all(_survives(number) for number in _numbers(value)):
        raise validation_failed({name: "must not contain a number beyond 64 bits"})
    text = orjson.dumps(value)
    if len(text) > max_bytes:
        raise validation_failed({name: f"must be at most {max_bytes} bytes as JSON"})
    # After an escaped backslash these six characters are ordinary text.
    if rb"\u0000" in text.replace(rb"\\", b""):
        raise validation_failed({name: "must not contain NUL"})
    return value, text


def member(
    kind: Kind, *, name: str | None = None, default: Any = NOTHING, schema: Schema | None = None
) -> Any:
    """A field of a body's model. ``name`` is the member's, if it is not the field's; ``schema`` is added to the
    kind's, such as a description."""
    if schema is not None:
        kind = evolve(kind, schema={**kind.schema, **schema})
    return field(default=default, metadata={"kind": kind, "name": name})


def read(model: type[M], given: Mapping[str, Any], unknown: str = "is not known here") -> M:
    """The body ``given`` as a ``model``. Raises ``validation_failed`` naming all faults; ``unknown`` is the reason
    for members that the model does not have."""
    known = _members(model)
    values = read_members(model, given, unknown, required=True)
    return model(**{known[name].name: value for name, value in values.items()})


def read_members(
    model: type[AttrsInstance],
    given: Mapping[str, Any],
    unknown: str = "is not known here",
    required: bool = False,
) -> dict[str, Any]:
    """The members that were sent, by name, as ``read`` checks them. Those without a default may be missing unless
    ``required`` is set."""
    known = _members(model)
    faults: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, attribute in known.items():
        if name in given:
            try:
                values[name] = attribute.metadata["kind"].read(name, given[name])
            except ApiError as fault:
                if fault.details is None:
                    raise
                faults |= fault.details
        elif required and attribute.default is NOTHING:
            faults[name] = "is required"
    strangers = [name for name in given if name not in known]
    faults |= dict.fromkeys(strangers[: MAX_FAULTS_NAMED - len(faults)], unknown)
    if faults:
        raise validation_failed(faults)
    return values


def body_of(model: type[AttrsInstance]) -> RequestBody:
    """What ``/openapi.json`` says of a body of this ``model``. Other members are refused."""
    known = _members(model)
    required = [name for name, attribute in known.items() if attribute.default is NOTHING]
    properties = {name: attribute.metadata["kind"].schema for name, attribute in known.items()}
    return RequestBody({JSON: obj(required, **properties)})


def _members(model: type[AttrsInstance]) -> dict[str, Attribute[Any]]:
    return {attribute.metadata["name"] or attribute.name: attribute for attribute in fields(model)}
