"""From an exchange to its handler and back: the only place where failures become responses.

A request passes through ``Edge.begin`` (route, admission class), ``_answer`` (caller, handler) and ``_send`` or
``_stream`` (the headers that all responses have), and ends in ``_account`` (metrics, access log).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from email.utils import formatdate
from typing import Any, Protocol

from attrs import evolve, field, frozen
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service import errors
from project_service.errors import ApiError, Headers, has_header
from project_service.http import cors
from project_service.http.admission import AdmissionClass, LimitedSlot, Limits, Refusals, Slot
from project_service.http.body import ClientGone
from project_service.http.caller import Callers
from project_service.http.exchange import Exchange
from project_service.http.head import Forwarded, HeaderView, Network, locate, origin_form
from project_service.http.metrics import Metrics
from project_service.http.request import Request
from project_service.http.response import OURS, Reply, StreamReply, error_reply, fault_of, head_bytes
from project_service.http.routing import Match, Policy, Router
from project_service.log import AccessLog, Later, request_at_work, sent_request_id

_DEFAULT_POLICY = Policy()


@frozen
class EdgeSettings:
    """The settings that the edge needs for each request.

    ``trace_headers`` are the names of the request headers that are sent back with the response, by admission class
    (PostgREST's reference, "server-trace-header").
    """

    public_url: str | None
    cors_origins: tuple[str, ...]
    trusted: tuple[Network, ...]
    max_json_bytes: int
    trace_headers: Mapping[str, str] = field(factory=dict)


@frozen
class Arrival:
    """What follows from the header lines of a connection's requests and from ``settings``; cached with the lines.

    ``request_id`` is the client's own, None if it sent none that may be used. ``cors`` are the CORS headers of
    responses, None if they depend on the response.
    """

    settings: EdgeSettings
    where: Forwarded
    base_url: str
    any_origin: bool
    request_id: str | None
    cors: Headers | None


def arrival_of(settings: EdgeSettings, exchange: Exchange, peer: IAddress, secure: bool) -> Arrival:
    """``peer`` is the other end of the connection: the client, or a proxy."""
    headers = exchange.headers
    where = locate(getattr(peer, "host", None), secure, headers, settings.trusted)
    any_origin = "*" in settings.cors_origins
    varies = any_origin and b"origin" not in headers
    arrival = headers.arrival = Arrival(
        settings,
        where,
        settings.public_url or f"{where.scheme}://{where.host}",
        any_origin,
        sent_request_id(headers.get(b"x-request-id")),
        None if varies else cors.origin_headers(settings.cors_origins, headers, ()),
    )
    return arrival


class Traces(Protocol):
    """Traces requests (``tracing``)."""

    def traced(
        self,
        answering: Coroutine[Deferred[Any], Any, None],
        exchange: Exchange,
        request: Request,
        match: Match | None,
        waited: bool,
    ) -> Coroutine[Deferred[Any], Any, None]:
        """What is to run in place of ``answering``, which answers ``request``. ``waited``: it had to wait for
        admission."""


class HttpDate:
    """Calling it gives the current date for the ``Date`` header (RFC 9110 section 6.6.1), formatted once a second.

    ``now`` is the wall clock, in seconds since the epoch.
    """

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
    """Implements ``exchange.Dispatch``.

    ``limits`` are by admission class; requests of other classes never wait. ``translate`` turns a failure of the
    database into an ``ApiError``, and returns None for any other failure. ``log_later`` is the reactor's
    ``callLater``; without it each request is logged at once. Without ``traces`` no request is traced.
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
        traces: Traces | None = None,
    ) -> None:
        self.settings = settings
        self._router = router
        self._callers = callers
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics
        self._translate = translate
        self._date = date
        self._access = AccessLog(self.log, log_later)
        self._traces = traces
        self._refusals = Refusals(clock, metrics.refused)
        self.classes = {
            name: AdmissionClass(name, one, clock, self._refusals) for name, one in limits.items()
        }
        # The requests that are being answered, or that wait for their turn.
        self.requests: dict[Exchange, Deferred[None]] = {}
        metrics.requests = self.requests
        self._idle: Deferred[None] | None = None
        self._closing = False

    # What the connections call.

    def begin(self, exchange: Exchange, peer: IAddress, secure: bool) -> None:
        """Start answering, now or when it is this request's turn."""
        if self._closing:
            exchange.close_after()
        path, _, query = exchange.target.partition(b"?")
        fault: ApiError | None = None
        try:
            match: Match | None = self._router.match(exchange.method, path)
        except ApiError as refused:
            # The tracebacks hold the frames below, and these the fault: a reference cycle.
            refused.__context__ = None
            match, fault = self._router.at(path), refused.with_traceback(None)
        limited = self.classes.get(match.admission) if match is not None else None
        slot = Slot() if limited is None else LimitedSlot(limited)
        headers = exchange.headers
        arrival: Arrival | None = headers.arrival
        if arrival is None or arrival.settings is not self.settings:
            arrival = arrival_of(self.settings, exchange, peer, secure)
        where = arrival.where
        request = Request(
            exchange.method,
            path,
            query,
            headers,
            exchange.body,
            arrival.request_id or self._new_id(),
            where.address,
            where.scheme,
            where.host,
            arrival.base_url,
            arrival.settings.max_json_bytes,
            slot,
            self._clock.seconds(),
            arrival.any_origin,
        )
        if slot.take_if_free():
            self._start(exchange, request, match, fault)
            return
        turn = self.requests[exchange] = request.wait_for_slot()
        self._metrics.gather()
        exchange.on_gone = turn.cancel
        turn.addBoth(self._turned, exchange, request, match, fault)

    def refusal(self, error: ApiError, peer: IAddress, target: bytes) -> bytes:
        """As ``Dispatch.refusal``; it is logged like any other response."""
        path, _, _ = (origin_form(target) or target).partition(b"?")
        if error.status == 405:
            error = self._router.unknown_method(path)
        reply = _policy_of(self._router.at(path)).error_form.answer(error)
        request_id, client = self._new_id(), getattr(peer, "host", "-")
        self._access.append(request_id, "-", "-", error.status, len(reply.body), 0.0, client)
        return self._unrouted(reply, request_id)

    def rejection(self) -> bytes:
        """As ``Dispatch.rejection``. It is not logged, since there may be very many."""
        self._refusals.count("-", "connections")
        self._metrics.failed(errors.overloaded())
        return self._unrouted(error_reply(errors.overloaded()), self._new_id())

    def _unrouted(self, reply: Reply, request_id: str) -> bytes:
        size = len(reply.body)
        self._metrics.observe("-", "-", reply.status, 0.0, size)
        headers = [
            ("Date", self._date()),
            *reply.headers,
            ("X-Request-Id", request_id),
            *cors.unread_headers(self.settings.cors_origins),
            ("Content-Length", str(size)),
            ("Connection", "close"),
        ]
        return head_bytes(reply.status, headers) + reply.body

    # What the application calls at its end.

    def drained(self) -> Deferred[None]:
        """Fires when no request is being answered or waits for its turn. To be called once."""
        if not self.requests:
            return succeed(None)
        self._idle = Deferred()
        return self._idle

    def close_connections(self) -> None:
        """From now on each connection closes after its current answer, and each is logged at once."""
        self._closing = True
        self._access.flush()

    def cancel_all(self) -> None:
        """Cancel every request that is not answered yet; those to which nothing was sent get a 503."""
        for limited in self.classes.values():
            limited.close()
        for running in list(self.requests.values()):
            running.cancel()

    # The way of a request.

    def _turned(
        self,
        result: Failure | None,
        exchange: Exchange,
        request: Request,
        match: Match | None,
        fault: ApiError | None,
    ) -> None:
        """What becomes of a request when its wait for a slot ends. ``result`` is a ``Failure`` if its turn did not
        come: it is refused, or its client has left."""
        del self.requests[exchange]
        refused = result.value if isinstance(result, Failure) else None
        self._start(exchange, request, match, fault, refused, waited=True)

    def _start(
        self,
        exchange: Exchange,
        request: Request,
        match: Match | None,
        fault: ApiError | None,
        refused: BaseException | None = None,
        waited: bool = False,
    ) -> None:
        """Run the handler. Its Deferred is kept until the response is out, and cancelled if the client leaves."""
        exchange.slot = request.slot
        answering = self._answer(exchange, request, match, fault, refused)
        if self._traces is not None:
            answering = self._traces.traced(answering, exchange, request, match, waited)
        running = Deferred.fromCoroutine(answering)
        if not running.called:
            self.requests[exchange] = running
            if not self._metrics.gathering:
                self._metrics.gather()
            exchange.on_gone = running.cancel
        running.addErrback(self._broken, exchange, request)

    def _broken(self, failure: Failure, exchange: Exchange, request: Request) -> None:
        if not failure.check(CancelledError, ClientGone):
            self.log.failure(
                "answering failed id={request_id}",
                failure,
                request_id=request.request_id,
                trace_id=request.trace_id,
            )
            exchange.abort()

    async def _answer(
        self,
        exchange: Exchange,
        request: Request,
        match: Match | None,
        fault: ApiError | None,
        refused: BaseException | None,
    ) -> None:
        request_at_work.set(request)
        route = "-"
        try:
            try:
                reply: Reply | StreamReply | None = None
                if fault is not None or request.method == "OPTIONS":
                    reply = self._without_handler(request, match, fault)
                if reply is None:
                    assert match is not None
                    route = match.route.url
                    if refused is not None:
                        raise refused
                    reply = await self._handled(match, request)
            except (CancelledError, ClientGone):
                # Cancelled by ``cancel_all``, or by the client's leaving; in the latter case nothing is written.
                reply = self._failed(errors.shutting_down(), match, request)
            except Exception as failure:
                reply = self._failed(failure, match, request)
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
                self._send(exchange, request, match, reply)
            else:
                request.slot.close()  # from here on the request waits for its client
                await self._stream(exchange, request, match, reply)
        finally:
            request.slot.close()
            self._account(exchange, request, route)

    def _without_handler(self, request: Request, match: Match | None, fault: ApiError | None) -> Reply | None:
        """The response to a preflight, to OPTIONS where no handler takes it, and to what has no handler."""
        policy = _policy_of(match)
        if policy.cors and cors.is_preflight(request.method, request.headers):
            return policy.preflight(self._router.allowed(request.raw_path), request.headers)
        if fault is None:
            return None
        if request.method == "OPTIONS" and fault.status == 405:
            return Reply(204, fault.headers)
        raise fault

    def _handled(self, match: Match, request: Request) -> Awaitable[Reply | StreamReply]:
        """The handler's reply. Raises as ``Callers.identify``, now or when it is awaited."""
        request.path_args = match.path_args
        access = match.route.access
        if access.key_anywhere:
            request.headers = self._callers.with_key(access, request.headers, request.query_key)
        headers = request.headers
        caller = self._callers.at_once(access, headers)
        if not request.body.complete:
            request.callers, request.access = self._callers, access
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

    def _account(self, exchange: Exchange, request: Request, route: str) -> None:
        """The request is done."""
        now = self._clock.seconds()
        exchange.on_gone = None
        self.requests.pop(exchange, None)
        # 499 is what nginx logs for a client that left before its answer.
        sent = exchange.sent_bytes if exchange.stream is None else exchange.stream.sent_bytes
        status, seconds = exchange.status or 499, now - request.started
        self._metrics.observe(request.method, route, status, seconds, sent)
        path = request.raw_path.decode("latin-1")
        self._access.append(
            request.request_id,
            request.method,
            path,
            status,
            sent,
            seconds,
            request.client_address,
            request.trace_id,
        )
        if self._closing:
            self._access.flush()
        if self._idle is not None and not self.requests:
            idle, self._idle = self._idle, None
            idle.callback(None)

    # Responses on their way to the client.

    def _failed(self, failure: Exception, match: Match | None, request: Request) -> Reply:
        """The response to a failure. A fault of ours is logged with its traceback, and is 500 ``internal_error``."""
        error = self._api_error(failure, request)
        if error is None:
            self.log.failure(
                "{method} {path} failed id={request_id}",
                method=request.method,
                path=request.raw_path.decode("latin-1"),
                request_id=request.request_id,
                trace_id=request.trace_id,
            )
            error = errors.internal_error(request.request_id)
        self._metrics.failed(error)
        return _policy_of(match).error_form.answer(error, request.headers)

    def _api_error(self, failure: Exception, request: Request) -> ApiError | None:
        """The error to answer with; None for a fault of ours. The reason behind it (``why``) is only logged here."""
        error = failure if isinstance(failure, ApiError) else self._translate(failure)
        if error is not None and error.why is not None:
            self.log.warn(
                "{code}: {why} id={request_id}",
                code=error.code,
                why=error.why,
                request_id=request.request_id,
                trace_id=request.trace_id,
            )
        return error

    def _send(self, exchange: Exchange, request: Request, match: Match | None, reply: Reply) -> None:
        fault = fault_of(reply.status, reply.headers)
        if fault is not None:
            reply = self._unwritable(fault, request)
        exchange.send(reply, self._headers(request, match, reply.headers))

    async def _stream(
        self, exchange: Exchange, request: Request, match: Match | None, reply: StreamReply
    ) -> None:
        """Returns when all of the reply has been written. One that breaks off ends the connection."""
        fault = fault_of(reply.status, reply.headers)
        if fault is not None:
            self._send(exchange, request, match, self._unwritable(fault, request))
            return
        sink = exchange.start(reply.status, self._headers(request, match, reply.headers), reply.length)
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

    def _headers(self, request: Request, match: Match | None, own: Headers) -> list[tuple[str, str]]:
        """``own`` with those that all responses have. Framing is not among them."""
        arrival: Arrival = request.headers.arrival
        headers = [("Date", self._date()), *own, ("X-Request-Id", request.request_id)]
        policy = _DEFAULT_POLICY if match is None else match.route.policy
        if policy.any_origin:
            headers += cors.ANY
        elif policy.cors:
            crossing = cors.for_caches(own) if arrival.cors is None else arrival.cors
            headers += crossing
            if policy.exposed:
                headers += cors.exposing(policy.exposed, crossing)
        traced = arrival.settings.trace_headers
        if traced and match is not None and (name := traced.get(match.admission)) is not None:
            headers += echoed(name, request.headers)
        return headers

    def _unwritable(self, fault: str, request: Request) -> Reply:
        """A 500 in place of a reply whose head cannot be written without breaking the framing."""
        self.log.error(
            "a response was not sent: {fault} id={request_id}",
            fault=fault,
            request_id=request.request_id,
            trace_id=request.trace_id,
        )
        return self._failed(errors.internal_error(request.request_id), None, request)

    def _log_broken_off(self, failure: Exception, request: Request) -> None:
        error = self._api_error(failure, request)
        self._metrics.failed(error or errors.internal_error(request.request_id))
        if error is None:
            self.log.failure(
                "streaming failed id={request_id}", request_id=request.request_id, trace_id=request.trace_id
            )
        else:
            # The database or the store is away, which needs no traceback.
            self.log.warn(
                "streaming broke off: {why} id={request_id}",
                why=error.code,
                request_id=request.request_id,
                trace_id=request.trace_id,
            )


def _policy_of(match: Match | None) -> Policy:
    return _DEFAULT_POLICY if match is None else match.route.policy


def echoed(name: str, headers: HeaderView) -> Headers:
    """The request's headers of that name, to be sent back; none if every response sets that header itself, or if it
    frames the response."""
    if name.lower() in OURS:
        return ()
    return tuple((name, value.decode("latin-1")) for value in headers.all(name.lower().encode()))
