"""Wraps the handlers of storage: turns failures of the store into errors, and completes the headers of refusals."""

from __future__ import annotations

from twisted.logger import Logger

from project_service.errors import ApiError, Headers, store_unavailable
from project_service.http.inbound import Inbound
from project_service.http.outbound import NO_STORE, Reply, StreamReply
from project_service.http.router import Handler
from project_service.storage.disposition import NO_SNIFFING
from project_service.storage.errors import STORE_FAILURES
from project_service.storage.s3.errors import kind_of

_log = Logger()

# Unless it is told otherwise, a cache may keep a 404 (RFC 9110 section 15.1), and so hide an object that is uploaded
# a moment later. And a browser must not guess the type of a refusal either.
_OF_REFUSALS = (NO_STORE, NO_SNIFFING)


def translated(handler: Handler, headers: Headers = ()) -> Handler:
    """``handler``, with failures of the store turned into ``store_unavailable`` and their kind logged.

    Errors get ``headers`` and those that all refusals of storage have.
    """

    async def handling(inbound: Inbound) -> Reply | StreamReply:
        # No variable outlives its clause here: an error that is kept by a call in its own traceback waits for the
        # garbage collector, with all that the request holds.
        try:
            try:
                return await handler(inbound)
            except STORE_FAILURES as failure:
                kind, request_id = kind_of(failure), inbound.request_id
                _log.warn("The store failed: {kind} id={request_id}", kind=kind, request_id=request_id)
                raise store_unavailable() from None
        except ApiError as refusal:
            refusal.headers = (*refusal.headers, *_OF_REFUSALS, *headers)
            raise

    return handling
