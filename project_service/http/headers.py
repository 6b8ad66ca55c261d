"""Request headers as sent: order and repetition kept, names compared without case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class HeaderView:
    """Read-only. Names are lower-case bytes; values are bytes without surrounding white space."""

    __slots__ = ("_first", "_pairs")

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._pairs = tuple((name.lower(), value) for name, value in pairs)
        first: dict[bytes, bytes] = {}
        for name, value in self._pairs:
            first.setdefault(name, value)
        self._first = first

    def get(self, name: bytes) -> bytes | None:
        """The first value of that (lower-case) name."""
        return self._first.get(name)

    def all(self, name: bytes) -> list[bytes]:
        """Every value of that (lower-case) name, in the order sent."""
        if name not in self._first:
            return []
        return [value for key, value in self._pairs if key == name]

    def text(self, name: bytes) -> str | None:
        """The first value as text. RFC 9110 section 5.5: bytes above 127 are opaque, hence Latin-1."""
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    def __contains__(self, name: bytes) -> bool:
        return name in self._first

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)
