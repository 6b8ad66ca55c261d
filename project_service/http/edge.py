"""From an exchange to its handler and back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from functools import partial

from attrs import define, evolve, frozen
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service import errors
from project_service.errors import ApiError, Headers, has_header
from project_service.http import cors, exchange
from project_service.http.admission import (
    LANE_BYTES,
    AdmissionClass,
    LimitedSlot,
    Limits,
    Refusals,
    Slot,
    lane_of,
)
from project_service.http.body import ClientGone
from project_service.http.caller import Callers
from project_service.http.exchange import Exchange, fault_of
from project_service.http.head import HeaderView, origin_form
from project_service.http.metrics import Metrics
from project_service.http.request import Arrival, EdgeSettings, Request, arrival_of, client_of, inbound_of
from project_service.http.response import Reply, StreamReply, error_reply
from project_service.http.routing import SHORT_PATH, ErrorStyle, Match, Router
from project_service.log import AccessLog, Later

# Answers to what could not be read as a request; often not even its target is known.


@frozen
class UnreadableReplies:
    """Makes whole responses, as bytes, after which the connection closes. ``origins`` are those that CORS allows."""

    router: Router
    metrics: Metrics
    access: AccessLog
    date: Callable[[], str]
    new_id: Callable[[], str]

    def refusal(self, error: ApiError, peer: IAddress, target: bytes, origins: tuple[str, ...]) -> bytes:
        """The response for ``error``, which is logged like any other. ``target`` is as much of the request's target
        as could be read."""
        path, _, _ = (origin_form(target) or target).partition(b"?")
        if error.status == 405:
            error = self.router.unknown_method(path)
        reply = error_reply(error, self.router.style_of(path) == "tables")
        request_id, client = self.new_id(), getattr(peer, "host", "-")
        self.access.append(request_id, "-", "-", error.status, len(reply.body), 0.0, client)
        return self._written(reply, request_id, origins)

    def overloaded(self, origins: tuple[str, ...]) -> bytes:
        """503 ``overloaded``. It is not logged, since there may be very many of these."""
        return self._written(error_reply(errors.overloaded()), self.new_id(), origins)

    def _written(self, reply: Reply, request_id: str, origins: tuple[str, ...]) -> bytes:
        size = len(reply.body)
        self.metrics.observe("-", "-", reply.status, 0.0, size)
        headers = [
            ("Date", self.date()),
            *reply.headers,
            ("X-Request-Id", request_id),
            *cors.unread_headers(origins),
            ("Content-Length", str(size)),
            ("Connection", "close"),
        ]
        return exchange.head(reply.status, headers) + reply.body


# The trace header of a database: clients send it to follow their requests, and get it back with the answer. Pure.
#
# Source: PostgREST's reference, "server-trace-header".


def echoed(names: Mapping[str, str], method: str, path: bytes, headers: HeaderView) -> Headers:
    """The trace headers to send back. ``names`` are the headers' names by lane.

    A name that every answer sets itself, or that frames it, is never sent back.
    """
    name = names.get(lane_of(method, path[:LANE_BYTES]))
    if name is None or name.lower() in exchange.OURS:
        return ()
    return tuple((name, value.decode("latin-1")) for value in headers.all(name.lower().encode()))


# Responses on their way to the client: the one place where failures become responses.


@frozen
class Responses:
    """Makes a reply of each failure, and sends replies with the headers that all responses have.

    ``translate`` turns a failure of the database into an ``ApiError``, and returns None for any other failure.
    (Failures of the store are translated within storage.)
    """

    log = Logger()

    metrics: Metrics
    translate: Callable[[BaseException], ApiError | None]
    date: Callable[[], str]

    def failed(self, failure: Exception, style: ErrorStyle, request: Request) -> Reply:
        """What to answer with. A fault of ours is logged with its traceback, and is 500 ``internal_error``."""
        error = self._as_told(failure, request)
        if error is None:
            self.log.failure(
                "{method} {path} failed id={request_id}",
                method=request.method,
                path=request.raw_path.decode("latin-1"),
                request_id=request.request_id,
            )
            error = errors.internal_error(request.request_id)
        self.metrics.failed(error)
        return error_reply(error, style == "tables")

    def send(self, exchange: Exchange, arrival: Arrival, request: Request, reply: Reply) -> None:
        """Send a whole reply."""
        fault = fault_of(reply.status, reply.headers)
        if fault is not None:
            reply = self._unwritable(fault, request)
        exchange.send(reply, self._headers(arrival, request, reply.headers))

    async def stream(
        self, exchange: Exchange, arrival: Arrival, request: Request, reply: StreamReply
    ) -> None:
        """Send a reply that is written as it is made; returns when all of it has been written. One that breaks off
        ends the connection."""
        fault = fault_of(reply.status, reply.headers)
        if fault is not None:
            self.send(exchange, arrival, request, self._unwritable(fault, request))
            return
        headers = self._headers(arrival, request, reply.headers)
        sink = exchange.start(reply.status, headers, reply.length)
        try:
            if not exchange.is_bodiless(reply.status):
                await reply.source(sink)
            exchange.end()
        except (ClientGone, CancelledError):
            exchange.abort()
            raise
        except Exception as failure:
            # Aborted, not ended, so that a body which stops short does not look whole.
            self._log_broken_off(failure, request)
            exchange.abort()

    def _headers(self, arrival: Arrival, request: Request, own: Headers) -> list[tuple[str, str]]:
        """``own`` with those that all responses have. Framing is not among them."""
        found = [("Date", self.date()), *own, ("X-Request-Id", request.request_id)]
        if request.raw_path not in cors.FOR_OPERATORS:
            found += cors.for_caches(own) if arrival.cors is None else arrival.cors
        names = arrival.settings.trace_headers
        if names:
            found += echoed(names, request.method, request.raw_path, request.headers)
        return found

    def _unwritable(self, fault: str, request: Request) -> Reply:
        """A 500 in place of a reply whose head cannot be written without breaking the framing."""
        self.log.error(
            "a response was not sent: {fault} id={request_id}", fault=fault, request_id=request.request_id
        )
        return self.failed(errors.internal_error(request.request_id), "envelope", request)

    def _log_broken_off(self, failure: Exception, request: Request) -> None:
        error = self._as_told(failure, request)
        self.metrics.failed(error or errors.internal_error(request.request_id))
        if error is None:
            self.log.failure("streaming failed id={request_id}", request_id=request.request_id)
        else:
            # The database or the store is away, which needs no traceback.
            self.log.warn(
                "streaming broke off: {why} id={request_id}", why=error.code, request_id=request.request_id
            )

    def _as_told(self, failure: Exception, request: Request) -> ApiError | None:
        """The error to answer with; None for a fault of ours. The reason behind it (``why``) is only logged here."""
        error = failure if isinstance(failure, ApiError) else self.translate(failure)
        if error is not None and error.why is not None:
            self.log.warn(
                "{code}: {why} id={request_id}", code=error.code, why=error.why, request_id=request.request_id
            )
        return error


# The ``Date`` header, formatted once a second (RFC 9110 section 6.6.1).


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


class Edge:
    """Implements ``dispatch.Dispatch``. ``translate`` is that of ``Responses``.

    ``log_later`` is the reactor's ``callLater``; without it each request is logged at once.
    ``limits`` are by admission class, named as ``lane_of`` names them. Requests of other classes never wait; they
    cost next to nothing.
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
        log_later: Later | None = None,
    ) -> None:
        self.settings = settings
        self._router = router
        self._callers = callers
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics
        self._responses = Responses(metrics, translate, date)
        self._access = AccessLog(self.log, log_later)
        self._unread = UnreadableReplies(router, metrics, self._access, date, new_id)
        self._refusals = Refusals(clock, metrics)
        self.classes = {
            name: AdmissionClass(name, one, clock, self._refusals) for name, one in limits.items()
        }
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
        limited = self.classes.get(lane_of(exchange.method, path[:LANE_BYTES]))
        slot = Slot() if limited is None else LimitedSlot(limited)
        one = _Request(exchange, peer, secure, path, query, started, slot)
        if slot.take_if_free():
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
        for limited in self.classes.values():
            limited.close()
        for running in list(self.requests.values()):
            running.cancel()

    def _turn(self, one: _Request) -> Deferred[None]:
        return one.slot.wait(client_of(self.settings, one.exchange, one.peer), one.exchange.size)

    async def _turn_after_body(self, one: _Request) -> None:
        if not one.slot.take_if_free():
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
        request = inbound_of(
            exchange, one.path, one.query, arrival, arrival.request_id or self._new_id(), one.slot
        )
        exchange.slot = one.slot
        if not request.body.complete:
            request.turn = partial(self._turn_after_body, one)
        running = Deferred.fromCoroutine(self._answer(one, arrival, request, refused))
        if not running.called:
            self.requests[exchange] = running
            if not self._metrics.gathering:
                self._metrics.gather()
            exchange.on_gone = running.cancel
        running.addErrback(self._broken, exchange, request)

    def _broken(self, failure: Failure, exchange: Exchange, request: Request) -> None:
        if not failure.check(CancelledError, ClientGone):
            self.log.failure("answering failed id={request_id}", failure, request_id=request.request_id)
            exchange.abort()

    async def _answer(
        self, one: _Request, arrival: Arrival, request: Request, refused: BaseException | None
    ) -> None:
        exchange, slot = one.exchange, one.slot
        route = "-"
        style: ErrorStyle = "envelope"
        try:
            try:
                match = self._matched(request) if request.method == "OPTIONS" else self._match(request)
                if isinstance(match, Match):
                    route, style = match.route.url, match.route.error_style
                    if refused is not None:
                        raise refused
                    reply = await self._handled(match, request)
                else:
                    reply = match
            except (CancelledError, ClientGone):
                # Cancelled by ``cancel_all``, or by the client's leaving; in the latter case nothing is written.
                reply = self._responses.failed(errors.shutting_down(), style, request)
            except Exception as failure:
                reply = self._responses.failed(failure, style, request)
                # A Deferred that failed keeps the failure, and this its traceback, which holds all that the request
                # held: a reference cycle.
                failure.__traceback__ = None
            if reply.status == 405 and not has_header(reply.headers, "Allow"):
                # A trigger of the project's own chose the status.
                others = [one for one in self._router.allowed(request.raw_path) if one != request.method]
                reply = evolve(reply, headers=(*reply.headers, ("Allow", ", ".join(others))))
            if self._closing:
                exchange.close_after()
            if isinstance(reply, Reply):
                self._responses.send(exchange, arrival, request, reply)
            else:
                slot.close()  # from here on the time is spent by the client, who reads
                await self._responses.stream(exchange, arrival, request, reply)
        finally:
            slot.close()
            self._account(one, request, route)

    def _match(self, request: Request) -> Match | Reply:
        try:
            path = request.raw_path
            find = self._router.recent if len(path) <= SHORT_PATH else self._router.match
            return find(request.method, path)
        except ApiError as fault:
            if request.method == "OPTIONS" and fault.status == 405:
                return Reply(204, fault.headers)
            return self._responses.failed(fault, self._router.style_of(request.raw_path), request)

    def _matched(self, request: Request) -> Match | Reply:
        """As ``_match``, for OPTIONS, which may be a preflight."""
        if not cors.is_preflight(request.method, request.headers) or request.raw_path in cors.FOR_OPERATORS:
            return self._match(request)
        methods = self._router.allowed(request.raw_path)
        if self._router.style_of(request.raw_path) == "tables":
            return Reply(200, cors.table_preflight_headers(request.headers))
        return Reply(204, cors.preflight_headers(methods, request.headers))

    def _handled(self, match: Match, request: Request) -> Awaitable[Reply | StreamReply]:
        """The handler's reply. Raises as ``Callers.identify``, now or when it is awaited."""
        request.path_args = match.path_args
        access, headers = match.route.access, request.headers
        caller = self._callers.at_once(access, headers)
        if not request.body.complete:
            request.identify = partial(self._callers.identify, access, headers)
        if caller is None:
            return self._handled_later(match, request)
        request.caller = caller
        if b"content-encoding" in headers.first:
            request.refuse_coded_body()
        return match.route.handler(request)

    async def _handled_later(self, match: Match, request: Request) -> Reply | StreamReply:
        request.caller = await self._callers.identify(match.route.access, request.headers)
        request.refuse_coded_body()
        return await match.route.handler(request)

    def _account(self, one: _Request, request: Request, route: str) -> None:
        """The request is done."""
        exchange, now = one.exchange, self._clock.seconds()
        exchange.on_gone = None
        self.requests.pop(exchange, None)
        # 499 is what nginx logs for a client that left before its answer.
        sent = exchange.sent_bytes if exchange.stream is None else exchange.stream.sent_bytes
        status, seconds = exchange.status or 499, now - one.started
        self._metrics.observe(request.method, route, status, seconds, sent)
        path = one.path.decode("latin-1")
        self._access.append(
            request.request_id, request.method, path, status, sent, seconds, request.client_address
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
    slot: Slot
