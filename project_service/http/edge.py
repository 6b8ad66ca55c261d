"""From an exchange to its handler and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

from attrs import evolve
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service import errors
from project_service.errors import ApiError, has_header
from project_service.http import cors
from project_service.http.arrival import EdgeSettings, client_of, inbound_of
from project_service.http.body import ClientGone
from project_service.http.caller import Callers
from project_service.http.exchange import Exchange
from project_service.http.inbound import Inbound
from project_service.http.metrics import Metrics
from project_service.http.outbound import Reply, StreamReply
from project_service.http.overload.accept_throttle import AcceptThrottle
from project_service.http.overload.admission import Lane, Limits, Place
from project_service.http.overload.lanes import lane_of
from project_service.http.overload.refusals import Refusals
from project_service.http.protocol.unreadable import UnreadableReplies
from project_service.http.responses import Responses
from project_service.http.router import ErrorStyle, Match, Router
from project_service.log import journal


class Edge:
    """Implements ``dispatch.Dispatch``. ``translate`` is that of ``Responses``.

    ``limits`` are by lane, named as ``lane_of`` names them. Requests of other lanes never wait; they cost next to
    nothing.
    """

    log = Logger()

    def __init__(
        self,
        router: Router,
        callers: Callers,
        settings: EdgeSettings,
        clock: IReactorTime,
        new_id: Callable[[], str],
        metrics: Metrics,
        translate: Callable[[BaseException], ApiError | None],
        date: Callable[[], str],
        limits: Mapping[str, Limits],
    ) -> None:
        self.settings = settings
        self._router = router
        self._callers = callers
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics
        self._responses = Responses(metrics, translate, date)
        self._unread = UnreadableReplies(router, metrics, date, new_id)
        self._refusals = Refusals(clock, metrics)
        self.lanes = {name: Lane(name, one, clock, self._refusals) for name, one in limits.items()}
        self._unlimited = Lane("-", Limits(sys.maxsize, 0.0), clock, self._refusals)
        self._accepting: AcceptThrottle | None = None
        self._waiting = 0
        self._running: set[Deferred[None]] = set()
        self._idle: Deferred[None] | None = None
        self._closing = False

    def throttle(self, accepting: AcceptThrottle) -> None:
        """Set the ports' ``AcceptThrottle``, which is told of connections that are refused."""
        self._accepting = accepting

    def begin(self, exchange: Exchange, peer: IAddress, secure: bool) -> None:
        """Start answering, now or when it is this request's turn. Until then nothing is made for it."""
        started = self._clock.seconds()
        if self._closing:
            exchange.close_after()
        place = Place(self.lanes.get(lane_of(exchange.method, exchange.target), self._unlimited))
        if place.take_if_free():
            self._start(exchange, peer, secure, started, place)
            return
        self._waiting += 1
        self._metrics.begun()
        turn = self._turn(place, exchange, peer)
        exchange.on_gone = turn.cancel
        turn.addBoth(self._turned, exchange, peer, secure, started, place)

    def refusal(self, error: ApiError, peer: IAddress, target: bytes) -> bytes:
        return self._unread.refusal(error, peer, target, self.settings.cors_origins)

    def turned_away(self) -> bytes:
        self._refusals.count("-", "connections")
        self._metrics.failed(errors.overloaded())
        if self._accepting is not None:
            self._accepting.refused()
        return self._unread.overloaded(self.settings.cors_origins)

    def drained(self) -> Deferred[None]:
        """Fires when no request is being answered or waits for its turn. To be called once."""
        if not self._running and not self._waiting:
            return succeed(None)
        self._idle = Deferred()
        return self._idle

    def close_connections(self) -> None:
        """From now on each connection closes after its current answer."""
        self._closing = True

    def cancel_all(self) -> None:
        """Cancel every request that is not answered yet; those to which nothing was sent get a 503."""
        for lane in self.lanes.values():
            lane.close()
        for running in list(self._running):
            running.cancel()

    def _turn(self, place: Place, exchange: Exchange, peer: IAddress) -> Deferred[None]:
        return place.turn(client_of(self.settings, exchange, peer), exchange.size)

    async def _turn_after_body(self, place: Place, exchange: Exchange, peer: IAddress) -> None:
        if not place.take_if_free():
            await self._turn(place, exchange, peer)

    def _turned(
        self,
        result: Failure | None,
        exchange: Exchange,
        peer: IAddress,
        secure: bool,
        started: float,
        place: Place,
    ) -> None:
        """It is this request's turn; or it is refused, or its client has left."""
        self._waiting -= 1
        self._metrics.ended()
        refused = result.value if isinstance(result, Failure) else None
        self._start(exchange, peer, secure, started, place, refused)

    def _start(
        self,
        exchange: Exchange,
        peer: IAddress,
        secure: bool,
        started: float,
        place: Place,
        refused: BaseException | None = None,
    ) -> None:
        """Run the handler. Its Deferred is kept until the answer is out, and cancelled if the client leaves."""
        request_id = journal.request_id(exchange.headers.get(b"x-request-id"), self._new_id)
        inbound = inbound_of(self.settings, exchange, peer, secure, request_id)
        exchange.on_client_awaited = place.await_client
        if not inbound.body.complete:
            inbound.turn = partial(self._turn_after_body, place, exchange, peer)
        running = Deferred.fromCoroutine(self._answer(exchange, inbound, started, place, refused))
        self._running.add(running)
        self._metrics.begun()
        exchange.on_gone = running.cancel
        running.addBoth(self._ended, running, exchange, inbound)

    def _ended(
        self, result: Failure | None, running: Deferred[None], exchange: Exchange, inbound: Inbound
    ) -> None:
        exchange.on_gone = None
        self._running.discard(running)
        self._metrics.ended()
        if isinstance(result, Failure) and not result.check(CancelledError, ClientGone):
            self.log.failure("answering failed id={request_id}", result, request_id=inbound.request_id)
            exchange.abort()
        if self._idle is not None and not self._running and not self._waiting:
            idle, self._idle = self._idle, None
            idle.callback(None)

    async def _answer(
        self,
        exchange: Exchange,
        inbound: Inbound,
        started: float,
        place: Place,
        refused: BaseException | None,
    ) -> None:
        route = "-"
        style: ErrorStyle = "envelope"
        try:
            try:
                found = self._matched(inbound)
                if isinstance(found, Match):
                    route, style = found.route.url, found.route.error_style
                    if refused is not None:
                        raise refused
                    reply = await self._handled(found, inbound)
                else:
                    reply = found
            except (CancelledError, ClientGone):
                # Cancelled by ``cancel_all``, or by the client's leaving; in the latter case nothing is written.
                reply = self._responses.failed(errors.shutting_down(), style, inbound)
            except Exception as failure:
                reply = self._responses.failed(failure, style, inbound)
                # A Deferred that failed keeps the failure, and this its traceback, which holds all that the request
                # held. Together they would wait for the garbage collector.
                failure.__traceback__ = None
            if reply.status == 405 and not has_header(reply.headers, "Allow"):
                # A trigger of the project's own chose the status.
                others = [one for one in self._router.allowed(inbound.raw_path) if one != inbound.method]
                reply = evolve(reply, headers=(*reply.headers, ("Allow", ", ".join(others))))
            if isinstance(reply, StreamReply):
                place.leave()  # from here on the time is spent by the client, who reads
            if self._closing:
                exchange.close_after()
            await self._responses.deliver(self.settings, exchange, inbound, reply)
        finally:
            place.leave()
            self._account(exchange, inbound, route, started)

    def _matched(self, inbound: Inbound) -> Match | Reply:
        if cors.is_preflight(inbound.method, inbound.headers) and cors.for_pages(inbound.raw_path):
            methods = self._router.allowed(inbound.raw_path)
            if self._router.style_of(inbound.raw_path) == "tables":
                return Reply(200, cors.table_preflight_headers(inbound.headers))
            return Reply(204, cors.preflight_headers(methods, inbound.headers))
        try:
            return self._router.match(inbound.method, inbound.raw_path)
        except ApiError as fault:
            if inbound.method == "OPTIONS" and fault.status == 405:
                return Reply(204, fault.headers)
            return self._responses.failed(fault, self._router.style_of(inbound.raw_path), inbound)

    async def _handled(self, match: Match, inbound: Inbound) -> Reply | StreamReply:
        inbound.path_args = match.path_args
        who = match.route.access, inbound.headers
        inbound.caller = self._callers.at_once(*who) or await self._callers.identify(*who)
        if not inbound.body.complete:
            inbound.identify = partial(self._callers.identify, *who)
        inbound.refuse_coded_body()
        return await match.route.handler(inbound)

    def _account(self, exchange: Exchange, inbound: Inbound, route: str, started: float) -> None:
        seconds = self._clock.seconds() - started
        # 499 is what nginx logs for a client that left before its answer.
        status = exchange.status or 499
        self._metrics.observe(inbound.method, route, status, seconds, exchange.sent_bytes)
        journal.access_event(
            self.log,
            inbound.request_id,
            inbound.method,
            inbound.raw_path.decode("latin-1"),
            status,
            exchange.sent_bytes,
            seconds,
            inbound.client_address,
        )
