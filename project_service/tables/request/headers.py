"""The headers of a request: ``Prefer`` (RFC 7240), and the media types of ``Accept`` (RFC 9110 section 12.5.1) and
``Content-Type``, with PostgREST's own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from attrs import evolve, frozen

from project_service.tables import errors
from project_service.whole_numbers import from_digits

_PREFERENCES = {
    "resolution": ("merge-duplicates", "ignore-duplicates"),
    "missing": ("default", "null"),
    "return": ("minimal", "headers-only", "representation"),
    "count": ("exact", "planned", "estimated"),
    "tx": ("commit", "rollback"),
    "handling": ("strict", "lenient"),
    # Not PostgREST's: the primary is to answer (``database.readers``).
    "consistency": ("strong",),
}
# The order in which Preference-Applied lists them.
_ORDER = (*_PREFERENCES, "timezone", "max-affected")

_MAX_AFFECTED = re.compile(r"-?0+|[0-9]+")

Representation = Literal["minimal", "headers-only", "representation"]


@frozen
class Preferences:
    """``Prefer: name=value, name=value``: those that PostgREST knows, and ``consistency``. Of several values for one
    the first counts."""

    values: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str | None:
        for key, value in self.values:
            if key == name:
                return value
        return None

    def without(self, name: str) -> Preferences:
        return Preferences(tuple(pair for pair in self.values if pair[0] != name))

    @property
    def strict(self) -> bool:
        return self.get("handling") == "strict"

    @property
    def max_affected(self) -> int | None:
        value = self.get("max-affected")
        return from_digits(value) if value is not None and self.strict else None

    def applied(self, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """The Preference-Applied header for those of ``names`` that were asked for."""
        if not self.values:
            return ()
        wanted = set(names)
        if not self.strict:
            wanted.discard("max-affected")
        given = dict(self.values)
        applied = [f"{name}={given[name]}" for name in _ORDER if name in wanted and name in given]
        return (("Preference-Applied", ", ".join(applied)),) if applied else ()


def parse_preferences(headers: Iterable[str]) -> Preferences:
    """The preferences in the headers ``Prefer``; of one that is there twice the first value counts, and those that
    are not known are left out. Raises PGRST122 where ``handling=strict`` comes with a preference that is not
    known."""
    known: dict[str, str] = {}
    unknown: list[str] = []
    for word in (piece.strip() for header in headers for piece in header.split(",")):
        if not word:
            continue
        name, _, value = word.partition("=")
        if value in _PREFERENCES.get(name, ()) or _takes(name, value):
            known.setdefault(name, value)
        else:
            unknown.append(word)
    if unknown and known.get("handling") == "strict":
        raise errors.invalid_preferences(unknown)
    return Preferences(tuple(known.items()))


def _takes(name: str, value: str) -> bool:
    """Whether ``name`` is a preference with more values than can be listed, and ``value`` is such a value."""
    if name == "max-affected":
        return _MAX_AFFECTED.fullmatch(value) is not None
    return name == "timezone" and bool(value)


ANY = "*/*"
JSON = "application/json"
OBJECT = "application/vnd.pgrst.object+json"
ARRAY = "application/vnd.pgrst.array+json"
PLAN = "application/vnd.pgrst.plan"
OPENAPI = "application/openapi+json"
GEOJSON = "application/geo+json"
CSV = "text/csv"
TEXT = "text/plain"
XML = "text/xml"
OCTETS = "application/octet-stream"
FORM = "application/x-www-form-urlencoded"
NDJSON = "application/x-ndjson"

_WITH_CHARSET = {JSON, OBJECT, ARRAY, OPENAPI, GEOJSON, CSV, TEXT, XML, NDJSON}
_SHORT_NAMES = {
    "application/vnd.pgrst.object": OBJECT,
    "application/vnd.pgrst.array": ARRAY,
}
_PLANS = (PLAN + "+json", PLAN + "+text")
_PLAN_OPTIONS = ("analyze", "verbose", "settings", "buffers", "wal")
_PIECE = re.compile(r'(?:[^,"]|"[^"]*")+')
_PARAMETER = re.compile(r';\s*([\w-]+)\s*=\s*("[^"]*"|[^;\s]*)')
_WEIGHT = re.compile(r";\s*q\s*=\s*[^;\s]*", re.IGNORECASE)


@frozen
class MediaType:
    """``name;parameter=value``. ``shown`` is how the client wrote it. ``refused`` is one that it does not accept
    (``q=0``). ``plan_of`` and ``plan_options`` are for execution plans (``for="…"; options=…|…``)."""

    name: str
    shown: str = ""
    nulls_stripped: bool = False
    plan_of: str = JSON
    plan_options: tuple[str, ...] = ()
    refused: bool = False

    @property
    def is_plan(self) -> bool:
        return self.name in _PLANS

    @property
    def content_type(self) -> str:
        """The Content-Type header of a body in this type."""
        stripped = ";nulls=stripped" if self.nulls_stripped else ""
        if self.is_plan:
            options = f"; options={'|'.join(self.plan_options)}" if self.plan_options else ""
            return f'{self.name}; for="{self.plan_of}{stripped}"{options}; charset=utf-8'
        return self.name + stripped + ("; charset=utf-8" if self.name in _WITH_CHARSET else "")


@lru_cache(maxsize=64)  # few, as clients choose their length
def parse_media(text: str) -> MediaType:
    shown = text.strip()
    name = shown.partition(";")[0].strip().lower()
    given = {key.lower(): value.strip('"') for key, value in _PARAMETER.findall(shown)}
    name = _SHORT_NAMES.get(name, name)
    if name in (PLAN, *_PLANS):
        name = PLAN + ("+json" if name.endswith("+json") else "+text")
        wanted = [option.strip() for option in given.get("options", "").split("|")]
        of = parse_media(given["for"]) if "for" in given else MediaType(JSON)
        options = tuple(option for option in _PLAN_OPTIONS if option in wanted)
        return MediaType(name, shown, of.nulls_stripped, of.name, options)
    stripped = name in (OBJECT, ARRAY) and given.get("nulls") == "stripped"
    return MediaType(JSON if name == ARRAY and not stripped else name, shown, stripped)


def parse_accept(header: str) -> tuple[MediaType, ...]:
    """The types that the client accepts, best first: by weight, and the more specific first among equals. Behind them
    those that it refuses, which error messages show.

    An empty header accepts anything.
    """
    weighed: list[tuple[float, int, MediaType]] = []
    for piece in _PIECE.findall(header):
        if piece.strip():
            weight, bare = _weight(piece), _WEIGHT.sub("", piece)
            media = parse_media(bare)
            if weight <= 0:
                media = evolve(media, shown=piece.strip(), refused=True)
            weighed.append((-weight, bare.count("*") - bare.count(";"), media))
    if not weighed:
        return (MediaType(ANY, ANY),)
    return tuple(media for _, _, media in sorted(weighed, key=lambda one: one[:2]))


def _weight(piece: str) -> float:
    for key, value in _PARAMETER.findall(piece):
        if key.lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0
