"""``Cache-Control`` of objects that everybody may read: what an object or its bucket may have, and how it is sent.

Pure but for Werkzeug's header parser.
"""

from __future__ import annotations

import re
from functools import lru_cache

from werkzeug.datastructures import ResponseCacheControl
from werkzeug.http import parse_cache_control_header

from project_service import whole_numbers
from project_service.errors import require_text, validation_failed
from project_service.http.json_body import Kind, or_null

# RFC 9111 section 1.2.2; also PostgreSQL's largest integer.
MAX_AGE_SECONDS = 2**31 - 1
MAX_LENGTH = 255
# With these a shared cache revalidates each time, whatever the age (RFC 9111, 5.2.2).
_REVALIDATE = {"no-cache", "no-store", "private"}
# A response that says so itself, or must not be stored at all, is not made public.
_NOT_PUBLIC = {"public", "private", "no-store"}
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


# Cached, because the same values are sent again and again.
@lru_cache(maxsize=1024)
def for_everybody(cache_control: str) -> str:
    """The ``Cache-Control`` of a response that everybody may store, unless ``cache_control`` says otherwise."""
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
