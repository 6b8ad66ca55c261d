"""Media types of ``Accept`` and ``Content-Type`` (RFC 9110 section 12.5.1) and PostgREST's vendored ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from attrs import evolve, frozen

from project_service.tables import errors
from project_service.whole_numbers import from_digits

# The ``Prefer`` header (RFC 7240) with the preferences that PostgREST knows.


_VALUES = {
    "resolution": ("merge-duplicates", "ignore-duplicates"),
    "missing": ("default", "null"),
    "return": ("minimal", "headers-only", "representation"),
    "count": ("exact", "planned", "estimated"),
    "tx": ("commit", "rollback"),
    "handling": ("strict", "lenient"),
}
# The order in which Preference-Applied lists them.
_ORDER = ("resolution", "missing", "return", "count", "tx", "handling", "timezone", "max-affected")

Representation = Literal["minimal", "headers-only", "representation"]


@frozen
class Preferences:
    """The preferences that were sent and understood. Of several values for one preference the first counts."""

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
        found = [f"{name}={given[name]}" for name in _ORDER if name in wanted and name in given]
        return (("Preference-Applied", ", ".join(found)),) if found else ()


_is_digits = re.compile(r"-?0+|[0-9]+").fullmatch


def parse_preferences(headers: Iterable[str]) -> Preferences:
    """Raises PGRST122 where ``handling=strict`` comes with a preference that is not known."""
    known: dict[str, str] = {}
    unknown: list[str] = []
    for word in (piece.strip() for header in headers for piece in header.split(",")):
        if not word:
            continue
        name, _, value = word.partition("=")
        if value in _VALUES.get(name, ()) or _is_given(name, value):
            known.setdefault(name, value)
        else:
            unknown.append(word)
    if unknown and known.get("handling") == "strict":
        raise errors.invalid_preferences(unknown)
    return Preferences(tuple(known.items()))


def _is_given(name: str, value: str) -> bool:
    """Whether it is a preference that takes any value of some kind."""
    return bool(_is_digits(value)) if name == "max-affected" else name == "timezone" and bool(value)


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

_CHARSET = {JSON, OBJECT, ARRAY, OPENAPI, GEOJSON, CSV, TEXT, XML, NDJSON}
_VENDORED = {
    "application/vnd.pgrst.object": OBJECT,
    "application/vnd.pgrst.array": ARRAY,
}
_PIECE = re.compile(r'(?:[^,"]|"[^"]*")+')
_PARAMETER = re.compile(r';\s*([\w-]+)\s*=\s*("[^"]*"|[^;\s]*)')
_WEIGHT = re.compile(r";\s*q\s*=\s*[^;\s]*", re.IGNORECASE)
_PLANS = (PLAN + "+json", PLAN + "+text")
_PLAN_OPTIONS = ("analyze", "verbose", "settings", "buffers", "wal")


@frozen
class MediaType:
    """A media type. ``shown`` is how the client wrote it. ``refused`` is one that it does not accept (``q=0``).
    ``plan_of`` and ``plan_options`` are for execution plans."""

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
        """What the Content-Type header says of a body in this type."""
        stripped = ";nulls=stripped" if self.nulls_stripped else ""
        if self.is_plan:
            options = f"; options={'|'.join(self.plan_options)}" if self.plan_options else ""
            return f'{self.name}; for="{self.plan_of}{stripped}"{options}; charset=utf-8'
        return self.name + stripped + ("; charset=utf-8" if self.name in _CHARSET else "")


def parse_media(text: str) -> MediaType:
    shown = text.strip()
    name = shown.partition(";")[0].strip().lower()
    given = {key.lower(): value.strip('"') for key, value in _PARAMETER.findall(shown)}
    name = _VENDORED.get(name, name)
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
    return tuple(media for _, _, media in sorted(weighed, key=lambda found: found[:2]))


def _weight(piece: str) -> float:
    for key, value in _PARAMETER.findall(piece):
        if key.lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0
