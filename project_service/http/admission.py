"""Which requests are served now and which wait for their turn.

Requests that use the same resource form an *admission class*, which has a number of slots: about as many as there
are connections to the database or to the store. Requests beyond these wait. Clients take turns, so that one with very
many requests does not keep others out. A request that has waited for ``timeout_seconds`` is refused with 503; none is
refused before, unless the waiting requests take more memory than they may.

This is also what keeps the service fast when there is far too much to do: a client that waits cannot ask again, so
refusing costs next to nothing.

A request has a slot only while it waits for the service. While it waits for a client, it has none: for its own, to
send its body or to read its response, or for those who read the streams before its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from attrs import frozen
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service import errors
from project_service.errors import ApiError
from project_service.wait_queue import WaitQueue

# Refusals are logged together, at most this often, so that a flood of requests is not one of lines.
LOG_SECONDS = 1.0


class Refusals:
    """Counts what is refused because there is too much to do, with ``metric``, and logs it."""

    log = Logger()

    def __init__(self, clock: IReactorTime, metric: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._metric = metric
        self._unreported = 0
        self._reported_at = float("-inf")

    def count(self, part: str, reason: str) -> None:
        """Count one refusal in ``part``, which is the name of an admission class, or ``-``."""
        self._metric(part, reason)
        self._unreported += 1
        now = self._clock.seconds()
        if now - self._reported_at >= LOG_SECONDS:
            self.log.warn("overloaded: {count} refused", count=self._unreported)
            self._unreported, self._reported_at = 0, now


# What the waiting requests of one class may take in memory, in one process.
MAX_WAITING_BYTES = 64 * 1024 * 1024


@frozen
class Limits:
    """``slots`` requests are served at a time. Others wait, each for at most ``timeout_seconds``, and all of them in
    ``max_waiting_bytes`` of memory."""

    slots: int
    timeout_seconds: float
    max_waiting_bytes: int = MAX_WAITING_BYTES


class AdmissionClass:
    """The requests that share a number of slots: ``served`` of them are being served, ``waiting`` wait."""

    def __init__(self, name: str, limits: Limits, clock: IReactorTime, refusals: Refusals) -> None:
        self.name = name
        self.limits = limits
        self.served = 0
        self._refusals = refusals
        late, full = partial(self._refused, "late"), partial(self._refused, "full")
        self.queue: WaitQueue[None] = WaitQueue(
            clock, limits.timeout_seconds, late, full, limits.max_waiting_bytes
        )
        self._serving = False

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def serve_next(self) -> None:
        """Serve those that wait, as far as there are slots."""
        # A loop rather than recursion: a request that is answered at once releases its slot within its own turn.
        if self._serving:
            return
        self._serving = True
        try:
            while self.queue.waiters and self.served < self.limits.slots:
                self.served += 1
                self.queue.serve(None)
        finally:
            self._serving = False

    def close(self) -> None:
        """Refuse all that wait: the service is stopping."""
        self.queue.close(errors.shutting_down)

    def _refused(self, reason: Literal["late", "full"]) -> ApiError:
        self._refusals.count(self.name, reason)
        return errors.overloaded()


class Slot:
    """A request's slot in its admission class. This one is of a request that nothing limits."""

    def take_if_free(self) -> bool:
        """Whether the request has a slot. It gets one now, if one is free and nobody waits for it."""
        return True

    def wait(self, client: str, size: int) -> Deferred[None]:
        """Fires when it is the request's turn; it has a slot then. ``size`` is what it takes in memory.

        Fails with ``overloaded``. Cancelling it leaves the queue.
        """
        return succeed(None)

    def release(self) -> None:
        """Give the slot to the next request, while this one waits for a client."""

    def retake(self) -> None:
        """Take a slot again, even if that is one too many."""

    def close(self) -> None:
        """The request is done. Further calls do nothing."""


class LimitedSlot(Slot):
    """A slot in ``admission_class``. The request begins without it."""

    def __init__(self, admission_class: AdmissionClass) -> None:
        self._class = admission_class
        self._state: Literal["outside", "served", "closed"] = "outside"

    def take_if_free(self) -> bool:
        limited = self._class
        if self._state == "outside" and limited.served < limited.limits.slots and not limited.queue.waiters:
            self._state = "served"
            limited.served += 1
        return self._state == "served"

    def wait(self, client: str, size: int) -> Deferred[None]:
        return self._class.queue.join(client, size).addCallback(self._admitted)

    def _admitted(self, _: None) -> None:
        self._state = "served"

    def release(self) -> None:
        if self._state == "served":
            self._state = "outside"
            self._class.served -= 1
            if self._class.queue.waiters:
                self._class.serve_next()

    def retake(self) -> None:
        if self._state == "outside":
            self._state = "served"
            self._class.served += 1

    def close(self) -> None:
        if self._state == "served":
            self.release()
        self._state = "closed"
