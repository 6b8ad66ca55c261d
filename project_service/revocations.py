"""How current this process is about revoked project keys and ended sessions, both of which it keeps in memory.

Notifications bring them within milliseconds. They can be lost: a listening connection may be dead for long before
anybody notices, and a proxy that pools transactions lets none through. So everything is also read a few times a
second, and what was read longer than a second ago is not trusted: whoever shows a key or a token then waits for a new
reading.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.deferreds import SharedRun, with_timeout
from project_service.errors import database_unavailable

# A revoked key and the tokens of an ended session are refused everywhere within this time, in seconds.
FRESH_SECONDS = 1.0
# How often ``poll`` has to be called: two may fail, or be late, before anybody waits.
POLL_SECONDS = 0.4


class Revocations:
    """Implements ``http.caller.Revocations``.

    ``read`` reads all that may have been missed, and raises what its queries raise. ``patience_seconds`` is how long
    a request waits for it.
    """

    log = Logger()

    def __init__(
        self, read: Callable[[], Awaitable[None]], clock: IReactorTime, patience_seconds: float
    ) -> None:
        self._read = read
        self._clock = clock
        self._patience = patience_seconds
        self._known_at = float("-inf")
        self._readings = SharedRun(self._read_once, "reading what has been revoked")
        self._failing = False

    @property
    def current(self) -> bool:
        """Whether everything that was revoked more than ``FRESH_SECONDS`` ago is known."""
        return self._clock.seconds() - self._known_at <= FRESH_SECONDS

    async def catch_up(self) -> None:
        """Returns when a reading has succeeded that began after the call, which all who wait share.

        Raises what ``read`` raises, and ``database_unavailable`` where it takes too long.
        """
        await with_timeout(self._clock, self._patience, self._readings.join(), database_unavailable)

    async def poll(self) -> None:
        """Read. It does not raise; of several failures in a row the first is logged."""
        try:
            await self.catch_up()
        except CancelledError:
            raise
        except Exception as fault:
            if not self._failing:
                why = getattr(fault, "code", None) or type(fault).__name__
                self.log.warn("revoked keys and sessions cannot be read: {why}", why=why)
            self._failing = True
        else:
            self._failing = False

    async def _read_once(self) -> None:
        began = self._clock.seconds()
        await self._read()
        self._known_at = began
