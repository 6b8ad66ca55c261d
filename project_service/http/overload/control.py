"""Applies ``admission`` to requests: each one goes in, waits for its turn, or is answered 503 at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service import errors
from project_service.http.exchange import Exchange
from project_service.http.metrics import Metrics
from project_service.http.outbound import Reply, error_reply
from project_service.http.overload.accept_throttle import AcceptThrottle
from project_service.http.overload.admission import Lane, Limits, Pauses, Place, Reason
from project_service.http.overload.fairness import FairLane
from project_service.http.overload.lanes import lane_of

# Refusals are logged together, at most this often: a line for each would make a flood of requests one of lines.
LOG_SECONDS = 1.0


class AdmissionControl:
    """Stands in front of every handler. ``answer`` sends its refusals. ``accepting``, where set, is told of
    refusals that close their connection.

    ``limits`` are by lane, named as ``lane_of`` names them. Requests of other lanes are always served; they cost next
    to nothing.
    """

    log = Logger()

    def __init__(
        self,
        limits: Mapping[str, Limits],
        clock: IReactorTime,
        metrics: Metrics,
        answer: Callable[[Exchange, Reply], None],
    ) -> None:
        self.lanes = {name: _lane(name, one, clock.seconds) for name, one in limits.items()}
        self._unlimited = _lane("-", Limits(sys.maxsize, 0, 0.0), clock.seconds)
        self._pauses = Pauses()
        self._clock = clock
        self._metrics = metrics
        self._answer = answer
        self._watched: set[Lane] = set()
        self.accepting: AcceptThrottle | None = None
        self._unreported = 0
        self._reported_at = float("-inf")

    def enter(
        self, exchange: Exchange, turn: Callable[[Exception | None], None], who: Callable[[], str]
    ) -> Place | None:
        """Let the request in: its place, to be left when the service's own work for it is done. None where there is
        no room for it; it has been answered with 503 then.

        As long as the place is ``waiting``, nothing must be done for the request. ``turn`` is then called once: with
        None when its turn has come, otherwise with the error to answer with. ``who`` names the client.
        """
        lane = self.lanes.get(lane_of(exchange.method, exchange.target), self._unlimited)
        place = lane.enter(partial(self._turned, lane, turn), who() if lane.limits.spare else "")
        if not isinstance(place, Place):
            self._refuse(exchange, lane, place)
            return None
        if place.waiting:
            self._watch(lane)
        exchange.on_client_awaited = place.awaits_client
        return place

    def no_connection(self) -> None:
        """Count a connection that was refused before it could ask for anything."""
        self._metrics.refused("-", "connections")
        self._metrics.failed(errors.overloaded())
        if self.accepting is not None:
            self.accepting.refused()
        self._report(self._clock.seconds())

    def _turned(self, lane: Lane, turn: Callable[[Exception | None], None], mine: bool) -> None:
        if mine:
            turn(None)
        else:
            self._metrics.refused(lane.name, "late")
            turn(errors.overloaded())

    def _watch(self, lane: Lane) -> None:
        if lane not in self._watched:
            self._watched.add(lane)
            self._clock.callLater(lane.limits.patience_seconds, self._expire, lane)

    def _expire(self, lane: Lane) -> None:
        again = lane.expire()
        if again is None:
            self._watched.discard(lane)
        else:
            self._clock.callLater(again, self._expire, lane)

    def _refuse(self, exchange: Exchange, lane: Lane, reason: Reason) -> None:
        now = self._clock.seconds()
        error = errors.overloaded()
        reply = error_reply(error, lane.name.startswith("tables:"))
        if not exchange.closes:
            exchange.pause_after(self._pauses.after(now, lane.spacing))
        elif self.accepting is not None:
            self.accepting.refused(lane.spacing)
        self._answer(exchange, reply)
        self._metrics.refused(lane.name, reason)
        self._metrics.failed(error)
        self._metrics.observe(exchange.method, "-", reply.status, 0.0, len(reply.body))
        self._report(now)

    def _report(self, now: float) -> None:
        self._unreported += 1
        if now - self._reported_at >= LOG_SECONDS:
            self.log.warn("overloaded: {count} refused", count=self._unreported)
            self._unreported, self._reported_at = 0, now


def _lane(name: str, limits: Limits, clock: Callable[[], float]) -> Lane:
    return (FairLane if limits.spare else Lane)(name, limits, clock)
