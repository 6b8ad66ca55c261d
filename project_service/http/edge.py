"""From an exchange to its handler and back."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from attrs import define, evolve
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service import errors
from project_service.errors import ApiError, has_header
from project_service.http import cors
from project_service.http.arrival import Arrival, EdgeSettings, arrival_of, client_of, inbound_of
from project_service.http.body import ClientGone
from project_service.http.caller import Callers
from project_service.http.exchange import Exchange
from project_service.http.inbound import Inbound
from project_service.http.metrics import Metrics
from project_service.http.outbound import Reply, StreamReply
from project_service.http.overload.admission import Lane, Limits, Place
from project_service.http.overload.lanes import LANE_BYTES, lane_of
from project_service.http.overload.refusals import Refusals
from project_service.http.protocol.unreadable import UnreadableReplies
from project_service.http.responses import Responses
from project_service.http.router import SHORT_PATH, ErrorStyle, Match, Router
from project_service.log import journal


class Edge:
    """Implements ``dispatch.Dispatch``. ``translate`` is that of ``Responses``.

    ``log_later`` is the reactor's ``callLater``; without it each request is logged at once.
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
        log_later: journal.Later | None = None,
    ) -> None:
        self.settings = settings
        self._router = router
        self._callers = callers
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics
        self._responses = Responses(metrics, translate, date)
        self._access = journal.AccessLog(self.log, log_later)
        self._unread = UnreadableReplies(router, metrics, self._access, date, new_id)
        self._refusals = Refusals(clock, metrics)
        self.lanes = {name: Lane(name, one, clock, self._refusals) for name, one in limits.items()}
        self._unlimited = Lane("-", Limits(sys.maxsize, 0.0), clock, self._refusals)
        # The requests that are being answered, or that wait for their turn.
        self.requests: dict[Exchange, Deferred[None]] = {}
        metrics.requests = self.requests
        self._idle: Deferred[None] | None = None
        self._closing = False

    def begin(self, exchange: Exchange, peer: IAddress, secure: bool) -> None:
        """Start answering, now or when it is this request's turn. Until then nothing is made for it."""
        started = self._clock.seconds()
        if self._closing:
            exchange.close_after()
        path, _, query = exchange.target.partition(b"?")
        place = Place(self.lanes.get(lane_of(exchange.method, path[:LANE_BYTES]), self._unlimited))
        one = _Request(exchange, peer, secure, path, query, started, place)
        if place.take_if_free():
            self._start(one)
            return
        turn = self.requests[exchange] = self._turn(one)
        self._metrics.gather()
        exchange.on_gone = turn.cancel
        turn.addBoth(self._turned, one)

    def refusal(self, error: ApiError, peer: IAddress, target: bytes) -> bytes:
        return self._unread.refusal(error, peer, target, self.settings.cors_origins)

    def turned_away(self) -> bytes:
        self._refusals.count("-", "connections")
        self._metrics.failed(errors.overloaded())
        return self._unread.overloaded(self.settings.cors_origins)

    def drained(self) -> Deferred[None]:
        """Fires when no request is being answered or waits for its turn. To be called once."""
        if not self.requests:
            return succeed(None)
        self._idle = Deferred()
        return self._idle

    def close_connections(self) -> None:
        """From now on each connection closes after its current answer, and the log has each at once."""
        self._closing = True
        self._access.flush()

    def cancel_all(self) -> None:
        """Cancel every request that is not answered yet; those to which nothing was sent get a 503."""
        for lane in self.lanes.values():
            lane.close()
        for running in list(self.requests.values()):
            running.cancel()

    def _turn(self, one: _Request) -> Deferred[None]:
        return one.place.turn(client_of(self.settings, one.exchange, one.peer), one.exchange.size)

    async def _turn_after_body(self, one: _Request) -> None:
        if not one.place.take_if_free():
            await self._turn(one)

    def _turned(self, result: Failure | None, one: _Request) -> None:
        """It is this request's turn; or it is refused, or its client has left."""
        del self.requests[one.exchange]
        self._start(one, result.value if isinstance(result, Failure) else None)

    def _start(self, one: _Request, refused: BaseException | None = None) -> None:
        """Run the handler. Its Deferred is kept until the answer is out, and cancelled if the client leaves."""
        exchange = one.exchange
        arrival: Arrival | None = exchange.headers.arrival
        if arrival is None or arrival.settings is not self.settings:
            arrival = arrival_of(self.settings, exchange, one.peer, one.secure)
        inbound = inbound_of(
            exchange, one.path, one.query, arrival, arrival.request_id or self._new_id(), one.place
        )
        exchange.on_client_awaited = one.place.await_client
        if not inbound.body.complete:
            inbound.turn = partial(self._turn_after_body, one)
        running = Deferred.fromCoroutine(self._answer(one, arrival, inbound, refused))
        if not running.called:
            self.requests[exchange] = running
            if not self._metrics.gathering:
                self._metrics.gather()
            exchange.on_gone = running.cancel
        running.addErrback(self._broken, exchange, inbound)

    def _broken(self, failure: Failure, exchange: Exchange, inbound: Inbound) -> None:
        if not failure.check(CancelledError, ClientGone):
            self.log.failure("answering failed id={request_id}", failure, request_id=inbound.request_id)
            exchange.abort()

    async def _answer(
        self, one: _Request, arrival: Arrival, inbound: Inbound, refused: BaseException | None
    ) -> None:
        exchange, place = one.exchange, one.place
        route = "-"
        style: ErrorStyle = "envelope"
        try:
            try:
                match = self._matched(inbound) if inbound.method == "OPTIONS" else self._match(inbound)
                if isinstance(match, Match):
                    route, style = match.route.url, match.route.error_style
                    if refused is not None:
                        raise refused
                    reply = await self._handled(match, inbound)
                else:
                    reply = match
            except (CancelledError, ClientGone):
                # Cancelled by ``cancel_all``, or by the client's leaving; in the latter case nothing is written.
                reply = self._responses.failed(errors.shutting_down(), style, inbound)
            except Exception as failure:
                reply = self._responses.failed(failure, style, inbound)
                # A Deferred that failed keeps the failure, and this its traceback, which holds all that the request
                # held: a reference cycle.
                failure.__traceback__ = None
            if reply.status == 405 and not has_header(reply.headers, "Allow"):
                # A trigger of the project's own chose the status.
                others = [one for one in self._router.allowed(inbound.raw_path) if one != inbound.method]
                reply = evolve(reply, headers=(*reply.headers, ("Allow", ", ".join(others))))
            if self._closing:
                exchange.close_after()
            if isinstance(reply, Reply):
                self._responses.send(exchange, arrival, inbound, reply)
            else:
                place.leave()  # from here on the time is spent by the client, who reads
                await self._responses.stream(exchange, arrival, inbound, reply)
        finally:
            place.leave()
            self._account(one, inbound, route)

    def _match(self, inbound: Inbound) -> Match | Reply:
        try:
            path = inbound.raw_path
            find = self._router.recent if len(path) <= SHORT_PATH else self._router.match
            return find(inbound.method, path)
        except ApiError as fault:
            if inbound.method == "OPTIONS" and fault.status == 405:
                return Reply(204, fault.headers)
            return self._responses.failed(fault, self._router.style_of(inbound.raw_path), inbound)

    def _matched(self, inbound: Inbound) -> Match | Reply:
        """As ``_match``, for OPTIONS, which may be a preflight."""
        if not cors.is_preflight(inbound.method, inbound.headers) or inbound.raw_path in cors.FOR_OPERATORS:
            return self._match(inbound)
        methods = self._router.allowed(inbound.raw_path)
        if self._router.style_of(inbound.raw_path) == "tables":
            return Reply(200, cors.table_preflight_headers(inbound.headers))
        return Reply(204, cors.preflight_headers(methods, inbound.headers))

    def _handled(self, match: Match, inbound: Inbound) -> Awaitable[Reply | StreamReply]:
        """The handler's reply. Raises as ``Callers.identify``, now or when it is awaited."""
        inbound.path_args = match.path_args
        access, headers = match.route.access, inbound.headers
        caller = self._callers.at_once(access, headers)
        if not inbound.body.complete:
            inbound.identify = partial(self._callers.identify, access, headers)
        if caller is None:
            return self._handled_later(match, inbound)
        inbound.caller = caller
        if b"content-encoding" in headers.first:
            inbound.refuse_coded_body()
        return match.route.handler(inbound)

    async def _handled_later(self, match: Match, inbound: Inbound) -> Reply | StreamReply:
        inbound.caller = await self._callers.identify(match.route.access, inbound.headers)
        inbound.refuse_coded_body()
        return await match.route.handler(inbound)

    def _account(self, one: _Request, inbound: Inbound, route: str) -> None:
        """The request is done."""
        exchange, now = one.exchange, self._clock.seconds()
        exchange.on_gone = None
        self.requests.pop(exchange, None)
        # 499 is what nginx logs for a client that left before its answer.
        sent = exchange.sent_bytes if exchange.stream is None else exchange.stream.sent_bytes
        status, seconds = exchange.status or 499, now - one.started
        self._metrics.observe(inbound.method, route, status, seconds, sent)
        path = one.path.decode("latin-1")
        self._access.append(
            inbound.request_id, inbound.method, path, status, sent, seconds, inbound.client_address
        )
        if self._closing:
            self._access.flush()
        if self._idle is not None and not self.requests:
            idle, self._idle = self._idle, None
            idle.callback(None)


@define(eq=False)
class _Request:
    """A request on its way, as it came: ``path`` and ``query`` are of its target, not decoded. ``started`` is when
    its head had come."""

    exchange: Exchange
    peer: IAddress
    secure: bool
    path: bytes
    query: bytes
    started: float
    place: Place
