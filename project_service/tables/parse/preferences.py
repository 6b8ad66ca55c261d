"""The ``Prefer`` header (RFC 7240) with the preferences that PostgREST knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from attrs import frozen

from project_service.tables import errors
from project_service.whole_numbers import from_digits

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
        return int(value) if value is not None and self.strict else None

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


def parse_preferences(headers: Iterable[str]) -> Preferences:
    """Raises PGRST122 where ``handling=strict`` comes with a preference that is not known."""
    known: dict[str, str] = {}
    unknown: list[str] = []
    for word in (piece.strip() for header in headers for piece in header.split(",")):
        if not word:
            continue
        name, _, value = word.partition("=")
        maximum = _maximum(value) if name == "max-affected" else None
        if maximum is not None:
            known.setdefault(name, str(maximum))
        elif value in _VALUES.get(name, ()) or (name == "timezone" and value):
            known.setdefault(name, value)
        else:
            unknown.append(word)
    if unknown and known.get("handling") == "strict":
        raise errors.invalid_preferences(unknown)
    return Preferences(tuple(known.items()))


def _maximum(value: str) -> int | None:
    number = from_digits(value)
    # Far more than can be affected is as good as any number, and fits into a header.
    return None if number is None or number < 0 else min(number, 2**63 - 1)
