"""What handlers have in common."""

from __future__ import annotations

from functools import partial

from twisted.logger import Logger

from project_service.errors import ApiError, Headers
from project_service.http.request import Request
from project_service.http.response import Reply, StreamReply, json_reply
from project_service.http.routing import Handler
from project_service.storage import access, errors
from project_service.storage.buckets import Buckets
from project_service.storage.cache_control import Caching, for_caller, for_everybody
from project_service.storage.presentation import NO_SNIFFING
from project_service.storage.s3.errors import kind_of
from project_service.storage.values import Bucket, Live, ObjectRow, Viewer, Writer

_log = Logger()

# What tells callers from each other, where the service key may be what lets one in.
VARY_BY_KEY = "Authorization, apikey, X-Service-Key"


def translated(handler: Handler, headers: Headers = ()) -> Handler:
    """``handler``, with failures of the store turned into ``store_unavailable`` and their kind logged.

    Errors get ``headers``, and a browser must not guess the type of one either.
    """

    async def handling(request: Request) -> Reply | StreamReply:
        # No variable outlives its clause here: an error that a variable in its own traceback refers to holds a
        # reference cycle, with all that the request holds.
        try:
            try:
                return await handler(request)
            except errors.STORE_FAILURES as failure:
                kind, request_id = kind_of(failure), request.request_id
                _log.warn("The store failed: {kind} id={request_id}", kind=kind, request_id=request_id)
                raise errors.store_unavailable() from None
        except ApiError as refusal:
            refusal.headers = (*refusal.headers, NO_SNIFFING, *headers)
            raise

    return handling


async def readable(buckets: Buckets, request: Request) -> tuple[Bucket, Viewer | None]:
    """The bucket, and what the caller may see of it; None: everything."""
    bucket = await buckets.get(request.path_args["bucket"])
    return bucket, access.check_read(request.caller, bucket)


async def writable(buckets: Buckets, request: Request) -> tuple[Bucket, Writer]:
    """The bucket and the writer, decided by the headers alone: the body has not been requested yet."""
    writer = access.writer_of(request.caller, request.headers.text(b"x-object-owner"))
    return await buckets.get(request.path_args["bucket"]), writer


async def changeable(buckets: Buckets, request: Request) -> tuple[Bucket, Writer]:
    """As ``writable``, for a request that makes no object, and so must not name an owner in a header."""
    bucket_and_writer = await writable(buckets, request)
    if b"x-object-owner" in request.headers:
        raise errors.bad_request_object_owner()
    return bucket_and_writer


def caching_of(bucket: Bucket, viewer: Viewer | None, live: Live, vary: str) -> Caching:
    """How what ``viewer`` downloads may be cached. ``vary`` are the headers that tell callers from each other."""
    # With policies, what the service key or a user sees need not be for everybody.
    if bucket.public and (not bucket.rules.policies if viewer is None else viewer.is_anybody):
        return partial(for_everybody, bucket.rules.cache_control, live.settings.public_max_age_seconds)
    return partial(for_caller, bucket.rules.cache_control, vary)


def created(request: Request, row: ObjectRow, headers: Headers = ()) -> Reply:
    """The response to a request that made an object: what it is and where."""
    location = request.location(f"/storage/buckets/{row.bucket}/objects/{row.key}")
    return json_reply(row.as_json(), 201, (location, *headers))
