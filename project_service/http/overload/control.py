"""Applies ``admission`` to requests: each one goes in, waits for its turn, or is answered 503 at once."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service import errors
from project_service.http.exchange import Exchange
from project_service.http.metrics import Metrics
from project_service.http.outbound import Reply, error_reply
from project_service.http.overload.accept_throttle import AcceptThrottle
from project_service.http.overload.admission import Admission, Lane, Place, Reason

# Refusals are logged together, at most this often: a line for each would make a flood of requests one of lines.
LOG_SECONDS = 1.0


@define(eq=False)
class Ticket:
    """Given to a request that was admitted or may wait. Call ``leave`` when the service's own work for it is done.

    ``place`` is None in lanes without limits.
    """

    place: Place | None = None

    @property
    def waiting(self) -> bool:
        return self.place is not None and self.place.waiting

    def leave(self) -> None:
        if self.place is not None:
            self.place.leave()


class AdmissionControl:
    """Stands in front of every handler. ``answer`` sends its refusals. ``accepting``, where set, is told of
    refusals that close their connection."""

    log = Logger()

    def __init__(
        self,
        admission: Admission,
        clock: IReactorTime,
        metrics: Metrics,
        answer: Callable[[Exchange, Reply], None],
    ) -> None:
        self._admission = admission
        self._clock = clock
        self._metrics = metrics
        self._answer = answer
        self._watched: set[str] = set()
        self.accepting: AcceptThrottle | None = None
        self._unreported = 0
        self._reported_at = float("-inf")

    def enter(
        self, exchange: Exchange, turn: Callable[[Exception | None], None], who: Callable[[], str]
    ) -> Ticket | None:
        """Let the request in. None where there is no room for it; it has been answered with 503 then.

        As long as the pass is ``waiting``, nothing must be done for the request. ``turn`` is then called once: with
        None when its turn has come, otherwise with the error to answer with. ``who`` names the client.
        """
        name, lane = self._admission.lane(exchange.method, exchange.target)
        if lane is None:
            return Ticket()
        place = lane.enter(lambda mine: self._turned(name, turn, mine), who() if lane.limits.spare else "")
        if not isinstance(place, Place):
            self._refuse(exchange, name, place, lane.spacing)
            return None
        if place.waiting:
            self._watch(name, lane)
        exchange.on_body_awaited = place.awaits_client
        return Ticket(place)

    def no_connection(self) -> None:
        """Count a connection that was refused before it could ask for anything."""
        self._metrics.refused("-", "connections")
        self._metrics.failed(errors.overloaded())
        if self.accepting is not None:
            self.accepting.refused()
        self._report(self._clock.seconds())

    def _turned(self, name: str, turn: Callable[[Exception | None], None], mine: bool) -> None:
        if mine:
            turn(None)
        else:
            self._metrics.refused(name, "late")
            turn(errors.overloaded())

    def _watch(self, name: str, lane: Lane) -> None:
        if name not in self._watched:
            self._watched.add(name)
            self._clock.callLater(lane.limits.patience_seconds, self._expire, name, lane)

    def _expire(self, name: str, lane: Lane) -> None:
        again = lane.expire()
        if again is None:
            self._watched.discard(name)
        else:
            self._clock.callLater(again, self._expire, name, lane)

    def _refuse(self, exchange: Exchange, name: str, reason: Reason, spacing: float) -> None:
        now = self._clock.seconds()
        error = errors.overloaded()
        reply = error_reply(error, name.startswith("tables:"))
        if not exchange.closes:
            exchange.pause_after(self._admission.pauses.after(now, spacing))
        elif self.accepting is not None:
            self.accepting.refused(spacing)
        self._answer(exchange, reply)
        self._metrics.refused(name, reason)
        self._metrics.failed(error)
        self._metrics.observe(exchange.method, "-", reply.status, 0.0, len(reply.body))
        self._report(now)

    def _report(self, now: float) -> None:
        self._unreported += 1
        if now - self._reported_at >= LOG_SECONDS:
            self.log.warn("overloaded: {count} refused", count=self._unreported)
            self._unreported, self._reported_at = 0, now
