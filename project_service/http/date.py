"""The ``Date`` header, formatted once a second (RFC 9110 section 6.6.1)."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate


class HttpDate:
    """Calling it gives the current date in HTTP's form. ``now`` is the wall clock, in seconds since the epoch."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._second = -1
        self._text = ""

    def __call__(self) -> str:
        second = int(self._now())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True)
        return self._text
