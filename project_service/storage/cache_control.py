"""``Cache-Control`` of objects: what an object or its bucket may have, and how it is sent to whom.

Pure but for Werkzeug's header parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from werkzeug.datastructures import ResponseCacheControl
from werkzeug.http import parse_cache_control_header

from project_service import whole_numbers
from project_service.errors import Headers, require_text, validation_failed
from project_service.http.json_body import Kind, or_null

# RFC 9111 section 1.2.2; also PostgreSQL's largest integer.
MAX_AGE_SECONDS = 2**31 - 1
MAX_LENGTH = 255
# With these a shared cache revalidates each time, whatever the age (RFC 9111, 5.2.2).
_REVALIDATE = {"no-cache", "no-store", "private"}
# A response that says so itself, or must not be stored at all, is not made public.
_NOT_PUBLIC = {"public", "private", "no-store"}
# What a response that is for one caller may say besides max-age. Nothing of it is about shared caches, and a browser
# must be able to ask again.
_FOR_ONE = ("no-store", "no-cache", "must-revalidate", "no-transform", "must-understand")
# With seconds (RFC 5861).
_STALE = ("stale-while-revalidate", "stale-if-error")
NOT_SHARED = ("Cache-Control", "private, no-store")

# The headers of a response, given the ``cache_control`` and the ``max_age_seconds`` of its object.
Caching = Callable[[str | None, int | None], Headers]
_PRINTABLE = re.compile(r"[\x20-\x7e]*")


def parse(text: str, name: str) -> tuple[str | None, int | None]:
    """The value without spaces around it, and its age in seconds; None for an age that it has not.

    A text without a directive, or with a ``max-age`` that has no value, says nothing: (None, None). ``name`` is that
    of the header or field. Raises ``validation_failed``.
    """
    text = text.strip()
    if len(text) > MAX_LENGTH or not _PRINTABLE.fullmatch(text):
        raise validation_failed({name: f"must be at most {MAX_LENGTH} printable ASCII characters"})
    directives = _directives(text)
    age = directives.get("max-age")
    if not directives or ("max-age" in directives and age is None):
        return None, None
    seconds = None if age is None else max_age(age, name, "must have as max-age")
    return text, 0 if _REVALIDATE & directives.keys() else seconds


def max_age(text: str, name: str, must: str = "must be") -> int:
    """The number of seconds in ``text``. Raises ``validation_failed``, whose reason begins with ``must``."""
    number = whole_numbers.from_digits(text)
    if number is None or not 0 <= number <= MAX_AGE_SECONDS:
        raise validation_failed({name: f"{must} a whole number from 0 to {MAX_AGE_SECONDS}"})
    return number


def for_everybody(by_bucket: str | None, default: int, cache_control: str | None, age: int | None) -> Headers:
    """For a response that everybody may store. What the object says counts, else ``by_bucket``, else the age
    ``default``. With an age of 0 a cache asks each time whether it still has the object, so that nobody sees an old
    one."""
    if cache_control is None and age is None:
        cache_control, age = by_bucket, default
    if cache_control is not None:
        return (("Cache-Control", _made_public(cache_control)),)
    return (("Cache-Control", f"public, max-age={age}" if age else "public, no-cache"),)


def for_caller(by_bucket: str | None, vary: str, cache_control: str | None, age: int | None) -> Headers:
    """For a response that is for its caller alone, whom the request headers ``vary`` tell from others. Nobody stores
    it unless the object or ``by_bucket`` says for how long."""
    if cache_control is None and age is None:
        cache_control = by_bucket
    text = _made_private(cache_control, age)
    return (NOT_SHARED,) if text is None else (("Cache-Control", text), ("Vary", vary))


def for_link(by_bucket: str | None, left: int, cache_control: str | None, age: int | None) -> Headers:
    """For a response by a link that works for ``left`` seconds more: its reader may keep it for as long, or for less
    where the object or ``by_bucket`` says so."""
    if cache_control is None and age is None:
        cache_control = by_bucket
    text = _made_private(cache_control, age, left)
    return (("Cache-Control", text or f"private, max-age={left}"),)


def _made_private(cache_control: str | None, age: int | None, at_most: int | None = None) -> str | None:
    """The value of ``Cache-Control`` for a response that is for one caller: as the object says, by ``cache_control``
    or an ``age`` alone, but ``private``, and with no age beyond ``at_most``. None for what does not say how long it
    may be kept."""
    if cache_control is not None:
        age, others = _kept_for_one(cache_control)
    else:
        age, others = (age, ()) if age else (None, ("no-cache",) if age == 0 else ())
    if "no-store" in others:
        return NOT_SHARED[1]
    if age is None and "no-cache" not in others:
        return None
    if at_most is not None:
        age = None if age is None else min(age, at_most)
        others = tuple(one for one in others if not one.startswith(_STALE))
    return ", ".join(("private", *(() if age is None else (f"max-age={age}",)), *others))


# Both are cached, because the same values are sent again and again.
@lru_cache(maxsize=1024)
def _kept_for_one(cache_control: str) -> tuple[int | None, tuple[str, ...]]:
    """The age, and the other directives that a response for one caller may have."""
    directives = _directives(cache_control)
    others = [name for name in _FOR_ONE if name in directives]
    for name in _STALE:
        seconds = whole_numbers.from_digits(directives.get(name) or "")
        if seconds is not None and seconds >= 0:
            others.append(f"{name}={seconds}")
    return whole_numbers.from_digits(directives.get("max-age") or ""), tuple(others)


@lru_cache(maxsize=1024)
def _made_public(cache_control: str) -> str:
    """``cache_control`` of a response that everybody may store, unless it says otherwise."""
    return cache_control if _NOT_PUBLIC & _directives(cache_control).keys() else f"public, {cache_control}"


def _directives(text: str) -> dict[str, str | None]:
    """Directives have no case (RFC 9111 section 5.2)."""
    parsed = parse_cache_control_header(text, cls=ResponseCacheControl)
    return {name.lower(): value for name, value in parsed.items()}


def _read(name: str, value: object) -> str:
    text, _ = parse(require_text(name, value), name)
    if text is None:
        raise validation_failed({name: "must have a directive, as max-age=3600"})
    return text


CACHE_CONTROL = or_null(Kind({"type": "string", "maxLength": MAX_LENGTH}, _read))
