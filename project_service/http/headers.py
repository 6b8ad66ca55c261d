"""Request headers as sent: order and repetition kept, names in lower case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class HeaderView:
    """Read-only. Made of pairs whose names are lower-case bytes and whose values have no white space around them.

    ``first`` has the first value of each name. ``arrival`` and ``caller`` are kept here by the modules of these
    names, like what is ``derived``.
    """

    __slots__ = ("_derived", "_pairs", "arrival", "caller", "first")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._pairs = tuple(pairs)
        # Reversed, so that of several headers of one name the first one sent is kept.
        self.first = dict(reversed(self._pairs))
        self.arrival: Any = None
        self.caller: Any = None
        self._derived: dict[Callable[[HeaderView], Any], Any] = {}

    def is_of(self, pairs: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether ``pairs`` are the same headers in the same order."""
        return self._pairs == tuple(pairs)

    def derived(self, make: Callable[[HeaderView], T]) -> T:
        """``make(self)``, called once for this view and remembered.

        This pays because a connection keeps its view as long as its client sends the same headers (see
        ``request_parser``). ``make`` serves as the key, so it has to be a function of a module and not one made for
        each call. What it raises is not remembered.
        """
        try:
            found: T = self._derived[make]
        except KeyError:
            found = self._derived[make] = make(self)
        return found

    def get(self, name: bytes) -> bytes | None:
        """The first value of that (lower-case) name."""
        return self.first.get(name)

    def all(self, name: bytes) -> list[bytes]:
        """Every value of that (lower-case) name, in the order sent."""
        if name not in self.first:
            return []
        return [value for key, value in self._pairs if key == name]

    def text(self, name: bytes) -> str | None:
        """The first value as text. RFC 9110 section 5.5: bytes above 127 are opaque, hence Latin-1."""
        value = self.first.get(name)
        return None if value is None else value.decode("latin-1")

    def __contains__(self, name: bytes) -> bool:
        return name in self.first

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._pairs)
