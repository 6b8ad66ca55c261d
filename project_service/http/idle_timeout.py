"""Notices when nothing has moved for a while, for instance if a client does not read what it is sent."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from project_service.deferreds import cancel


class IdleTimeout:
    """While watching, compares ``progress()`` every ``seconds`` and calls ``drop`` when it has not changed."""

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
        self._call = self._clock.callLater(self._seconds, self._look, self._progress())

    def stop(self) -> None:
        cancel(self._call)
        self._call = None

    def _look(self, seen: object) -> None:
        self._call = None
        if self._progress() == seen:
            self._drop()
        else:
            self.watch()
