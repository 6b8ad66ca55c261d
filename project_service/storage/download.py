"""Downloads: conditions and ranges are decided by the row, and the bytes flow from the store straight to the client.

Small objects that were read lately come from memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import lru_cache
from uuid import UUID
from wsgiref.handlers import format_date_time

from attrs import evolve, frozen

from project_service.errors import Headers, store_unavailable
from project_service.http.body import ClientGone
from project_service.http.inbound import Inbound
from project_service.http.outbound import Reply, Sink, StreamReply
from project_service.storage import conditions, errors
from project_service.storage.disposition import ANY_ORIGIN, NO_SNIFFING, presentation
from project_service.storage.links import LinkUse
from project_service.storage.model import ObjectRow
from project_service.storage.ports import ObjectRows, Opened, Store
from project_service.storage.ranges import ByteRange, parse_range
from project_service.storage.s3.errors import NoSuchObject, ReaderLeft, StoreUnreachable
from project_service.storage.small_objects import SmallObjects

# How often to read the row where its bytes are gone. Each time the object must have been overwritten between
# the two reads; the limit is for a store whose new objects appear late while somebody keeps overwriting one.
MOST_READINGS = 5


class ObjectLost(Exception):
    """A row names a version whose bytes are not in the store. ``project-service storage verify`` lists such rows."""


@frozen
class Terms:
    """How an object is to be sent. ``headers`` are added to its own.

    ``public_max_age_seconds``: everybody may keep it, for so long unless the object has an age of its own. With None
    ``headers`` say how to cache it.

    ``use`` is taken when the bytes are available and before any is sent; where that raises, nothing is sent.
    """

    inline: bool
    headers: Headers = ()
    public_max_age_seconds: int | None = None
    use: LinkUse | None = None


@frozen(eq=False)
class Downloads:
    rows: ObjectRows
    store: Store
    small: SmallObjects
    now: Callable[[], datetime]

    async def answer(self, inbound: Inbound, bucket: str, key: str, terms: Terms) -> Reply | StreamReply:
        """200, 206 or 304; raises ``object_not_found``, ``precondition_failed``, ``range_not_satisfiable``."""
        missing: UUID | None = None
        for _ in range(MOST_READINGS):
            row = await self.rows.find(bucket, key)
            if row is None:
                raise errors.object_not_found()
            if row.version == missing:
                raise ObjectLost(f"the store has no {row.path}")
            try:
                return await self._answer(inbound, row, terms)
            except NoSuchObject:
                # Overwritten since its row was read: the new row names the new bytes.
                missing = row.version
        raise StoreUnreachable("every version that a row named was gone")

    async def _answer(self, inbound: Inbound, row: ObjectRow, terms: Terms) -> Reply | StreamReply:
        if terms.use is not None and not terms.use.counts(inbound.headers, row):
            terms = evolve(terms, use=None)
        status, headers, part = _head(inbound, row, terms, self.now)
        if status == 304:
            return Reply(status, headers)
        if inbound.method == "HEAD":
            return StreamReply(status, headers, part.length, _nothing)
        if part.length == 0:
            # An empty object needs nothing of the store.
            if terms.use is not None:
                await terms.use.take()
            return Reply(status, headers)
        known = self.small.find(row.version)
        if known is not None:
            if terms.use is not None:
                await terms.use.take()
            return Reply(status, headers, known[part.first : part.first + part.length])
        opened = await self.store.open(row.path, part.first, part.length, row.size)
        if terms.use is not None:
            try:
                await terms.use.take()
            except Exception:
                opened.drop()
                raise
        body = opened.at_hand()
        if body is None:
            return StreamReply(status, headers, part.length, _pouring(opened))
        if part.length == row.size:
            self.small.keep(row.version, body)
        # A whole reply: head and body are written together.
        return Reply(status, headers, body)


def _head(
    inbound: Inbound, row: ObjectRow, terms: Terms, now: Callable[[], datetime]
) -> tuple[int, Headers, ByteRange]:
    """The status (200, 206 or 304), the headers, and which bytes are to be sent with them."""
    sent = inbound.headers
    validators = _validators(row, terms)
    if inbound.any_origin:
        validators = (*validators, ANY_ORIGIN)
    whole = ByteRange(0, row.size)
    if conditions.for_read(sent, row):
        return 304, (*validators, NO_SNIFFING), whole
    headers = (*presentation(row.key, row.content_type, terms.inline), *validators)
    if b"range" in sent.first and conditions.range_applies(sent, row, now()):
        part = parse_range(sent.text(b"range"), row.size)
        if part is not None:
            return 206, (*headers, ("Content-Range", part.content_range(row.size))), part
    return 200, headers, whole


def _validators(row: ObjectRow, terms: Terms) -> Headers:
    return (
        ("ETag", f'"{row.etag}"'),
        ("Last-Modified", _http_date(row.updated_at)),
        ("Accept-Ranges", "bytes"),
        *_caching(row, terms),
        *terms.headers,
    )


def _caching(row: ObjectRow, terms: Terms) -> Headers:
    """With an age of 0 a cache asks each time whether it still has the object, so that nobody sees an old one."""
    if terms.public_max_age_seconds is None:
        return ()
    age = terms.public_max_age_seconds if row.max_age_seconds is None else row.max_age_seconds
    return (("Cache-Control", f"public, max-age={age}" if age else "public, no-cache"),)


# Cached, because the same objects are asked for again and again.
@lru_cache(maxsize=1024)
def _http_date(moment: datetime) -> str:
    return format_date_time(moment.timestamp())


def _pouring(opened: Opened) -> Callable[[Sink], Awaitable[None]]:
    async def source(sink: Sink) -> None:
        try:
            await opened.pour(sink)
        except ReaderLeft:
            raise ClientGone from None
        except errors.STORE_FAILURES as failure:
            raise store_unavailable() from failure

    return source


async def _nothing(_: Sink) -> None:
    return
