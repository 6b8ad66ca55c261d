"""Notices when nothing has moved for a while, for instance if a client does not read what it is sent."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from project_service.deferreds import cancel

# How often it is looked within the time after which nothing has moved: what moved last is noticed that much later.
LOOKS = 10


class IdleTimeout:
    """While watching, calls ``drop`` when ``progress()`` has not changed for ``seconds``, at most a tenth late."""

    def __init__(
        self,
        clock: IReactorTime,
        seconds: float,
        progress: Callable[[], object],
        drop: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._progress = progress
        self._drop = drop
        self._call: IDelayedCall | None = None

    @property
    def watching(self) -> bool:
        return self._call is not None

    def watch(self) -> None:
        """Begin to watch, or begin anew, until ``stop`` is called or ``drop`` has been."""
        self.stop()
        self._look_later(self._progress(), self._clock.seconds())

    def stop(self) -> None:
        cancel(self._call)
        self._call = None

    def _look_later(self, seen: object, since: float) -> None:
        left = since + self._seconds - self._clock.seconds()
        self._call = self._clock.callLater(max(0, min(left, self._seconds / LOOKS)), self._look, seen, since)

    def _look(self, seen: object, since: float) -> None:
        self._call = None
        now, found = self._clock.seconds(), self._progress()
        if found != seen:
            self._look_later(found, now)
        elif now - since < self._seconds:
            self._look_later(seen, since)
        else:
            self._drop()
