"""Failures of the store and refusals, at the edge of storage."""

from __future__ import annotations

from twisted.logger import Logger

from project_service.errors import ApiError, Headers
from project_service.http.inbound import Inbound
from project_service.http.outbound import Reply, StreamReply
from project_service.http.router import Handler
from project_service.storage.disposition import NO_SNIFFING
from project_service.storage.errors import translate

_log = Logger()


def told(handler: Handler, headers: Headers = ()) -> Handler:
    """``handler``, whose failures of the store become ``store_unavailable``; the log has their kind.

    Refusals say ``nosniff`` like the objects do: where a browser expects one, it guesses nothing about the other.
    They carry ``headers`` besides.
    """

    async def telling(inbound: Inbound) -> Reply | StreamReply:
        try:
            return await handler(inbound)
        except Exception as failure:
            error = translate(failure)
            if error is not None:
                kind = getattr(failure, "code", "") or type(failure).__name__
                _log.warn(
                    "The store failed: {kind} id={request_id}", kind=kind, request_id=inbound.request_id
                )
            elif isinstance(failure, ApiError):
                error = failure
            else:
                raise
            error.headers = (*error.headers, NO_SNIFFING, *headers)
            raise error from None

    return telling
