"""Responses on their way to the client: the one place where failures become responses."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from project_service import errors
from project_service.errors import ApiError, Headers
from project_service.http import cors, trace
from project_service.http.arrival import EdgeSettings
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

    async def deliver(
        self, settings: EdgeSettings, exchange: Exchange, inbound: Inbound, reply: Reply | StreamReply
    ) -> None:
        """Send ``reply``; returns when all of it has been written. A stream that breaks off ends the connection."""
        reply = self._writable(reply, inbound)
        headers = self.headers(settings, exchange, inbound.request_id, reply.headers)
        if isinstance(reply, Reply):
            exchange.send(reply, headers)
            return
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

    def headers(
        self, settings: EdgeSettings, exchange: Exchange, request_id: str, own: Headers
    ) -> list[tuple[str, str]]:
        """``own`` with those that all responses have. Framing is not among them."""
        asked, names = exchange.headers, settings.trace_headers
        path = exchange.target.partition(b"?")[0]
        return [
            ("Date", self.date()),
            *own,
            ("X-Request-Id", request_id),
            *(cors.origin_headers(settings.cors_origins, asked, own) if cors.for_pages(path) else ()),
            *(trace.echoed(names, exchange.method, exchange.target, asked) if names else ()),
        ]

    def _writable(self, reply: Reply | StreamReply, inbound: Inbound) -> Reply | StreamReply:
        """``reply``, or a 500 in its place where its head cannot be written without breaking the framing."""
        fault = wire.fault_of(reply.status, reply.headers)
        if fault is None:
            return reply
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
