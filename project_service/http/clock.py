"""The ``Date`` header, formatted once a second (RFC 9110 section 6.6.1)."""

from __future__ import annotations

from email.utils import formatdate

from twisted.internet.interfaces import IReactorTime


class HttpDate:
    """Calling it gives the current date in HTTP's form."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._second = -1
        self._text = ""

    def __call__(self) -> str:
        second = int(self._clock.seconds())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True)
        return self._text
