"""Answers to what could not be read as a request; often not even its target is known."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from twisted.internet.interfaces import IAddress

from project_service import errors
from project_service.errors import ApiError
from project_service.http import cors
from project_service.http.metrics import Metrics
from project_service.http.outbound import Reply, error_reply
from project_service.http.protocol import wire
from project_service.http.protocol.framing import origin_form
from project_service.http.router import Router
from project_service.log.journal import AccessLog


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
        return wire.head(reply.status, headers) + reply.body
