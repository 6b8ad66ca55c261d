"""Failures of the store, at the edge of storage."""

from __future__ import annotations

from twisted.logger import Logger

from project_service.http.inbound import Inbound
from project_service.http.outbound import Reply, StreamReply
from project_service.http.router import Handler
from project_service.storage.errors import translate

_log = Logger()


def told(handler: Handler) -> Handler:
    """``handler``, whose failures of the store become ``store_unavailable``; the log has their kind."""

    async def telling(inbound: Inbound) -> Reply | StreamReply:
        try:
            return await handler(inbound)
        except Exception as failure:
            error = translate(failure)
            if error is None:
                raise
            kind = getattr(failure, "code", "") or type(failure).__name__
            _log.warn("The store failed: {kind} id={request_id}", kind=kind, request_id=inbound.request_id)
            raise error from None

    return telling
