"""Responses on their way to the client: the one place where failures become responses."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from project_service import errors
from project_service.errors import ApiError, Headers
from project_service.http import cors, trace
from project_service.http.arrival import Arrival
from project_service.http.body import ClientGone
from project_service.http.exchange import Exchange
from project_service.http.inbound import Inbound
from project_service.http.metrics import Metrics
from project_service.http.outbound import Reply, StreamReply, error_reply
from project_service.http.protocol import wire
from project_service.http.router import ErrorStyle


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

    def failed(self, failure: Exception, style: ErrorStyle, inbound: Inbound) -> Reply:
        """What to answer with. A fault of ours is logged with its traceback, and is 500 ``internal_error``."""
        error = self._as_told(failure, inbound)
        if error is None:
            self.log.failure(
                "{method} {path} failed id={request_id}",
                method=inbound.method,
                path=inbound.raw_path.decode("latin-1"),
                request_id=inbound.request_id,
            )
            error = errors.internal_error(inbound.request_id)
        self.metrics.failed(error)
        return error_reply(error, style == "tables")

    def send(self, exchange: Exchange, arrival: Arrival, inbound: Inbound, reply: Reply) -> None:
        """Send a whole reply."""
        fault = wire.fault_of(reply.status, reply.headers)
        if fault is not None:
            reply = self._unwritable(fault, inbound)
        exchange.send(reply, self._headers(arrival, inbound, reply.headers))

    async def stream(
        self, exchange: Exchange, arrival: Arrival, inbound: Inbound, reply: StreamReply
    ) -> None:
        """Send a reply that is written as it is made; returns when all of it has been written. One that breaks off
        ends the connection."""
        fault = wire.fault_of(reply.status, reply.headers)
        if fault is not None:
            self.send(exchange, arrival, inbound, self._unwritable(fault, inbound))
            return
        headers = self._headers(arrival, inbound, reply.headers)
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
            self._log_broken_off(failure, inbound)
            exchange.abort()

    def _headers(self, arrival: Arrival, inbound: Inbound, own: Headers) -> list[tuple[str, str]]:
        """``own`` with those that all responses have. Framing is not among them."""
        found = [("Date", self.date()), *own, ("X-Request-Id", inbound.request_id)]
        if inbound.raw_path not in cors.FOR_OPERATORS:
            found += cors.for_caches(own) if arrival.cors is None else arrival.cors
        names = arrival.settings.trace_headers
        if names:
            found += trace.echoed(names, inbound.method, inbound.raw_path, inbound.headers)
        return found

    def _unwritable(self, fault: str, inbound: Inbound) -> Reply:
        """A 500 in place of a reply whose head cannot be written without breaking the framing."""
        self.log.error(
            "a response was not sent: {fault} id={request_id}", fault=fault, request_id=inbound.request_id
        )
        return self.failed(errors.internal_error(inbound.request_id), "envelope", inbound)

    def _log_broken_off(self, failure: Exception, inbound: Inbound) -> None:
        error = self._as_told(failure, inbound)
        self.metrics.failed(error or errors.internal_error(inbound.request_id))
        if error is None:
            self.log.failure("streaming failed id={request_id}", request_id=inbound.request_id)
        else:
            # The database or the store is away, which needs no traceback.
            self.log.warn(
                "streaming broke off: {why} id={request_id}", why=error.code, request_id=inbound.request_id
            )

    def _as_told(self, failure: Exception, inbound: Inbound) -> ApiError | None:
        """The error to answer with; None for a fault of ours. The reason behind it (``why``) is only logged here."""
        error = failure if isinstance(failure, ApiError) else self.translate(failure)
        if error is not None and error.why is not None:
            self.log.warn(
                "{code}: {why} id={request_id}", code=error.code, why=error.why, request_id=inbound.request_id
            )
        return error
