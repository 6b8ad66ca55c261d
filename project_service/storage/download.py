"""Downloads: conditions and ranges are decided by the row, and the bytes flow from the store straight to the client.

Small objects that were read lately come from memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID
from wsgiref.handlers import format_date_time

from attrs import evolve, frozen

from project_service.errors import ApiError, Headers
from project_service.http.body import ClientGone
from project_service.http.request import Request
from project_service.http.response import Reply, Sink, StreamReply
from project_service.storage import errors
from project_service.storage.cache_control import Caching
from project_service.storage.links import LinkUse
from project_service.storage.parsing import conditions
from project_service.storage.parsing.conditions import ByteRange, parse_range
from project_service.storage.parsing.digests import repr_digest, wants_sha256
from project_service.storage.pictures.images import VARY, Rendition, Wanted
from project_service.storage.pictures.renditions import Renditions
from project_service.storage.presentation import ANY_ORIGIN, NO_SNIFFING, presentation
from project_service.storage.reading import Reading
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.connection import ObjectStream
from project_service.storage.s3.errors import NoSuchObject, ReaderLeft, StoreUnreachable
from project_service.storage.s3.reading import MAX_READS, ObjectLost, SmallObjects
from project_service.storage.values import ObjectRow, StoredRendition, Viewer

# The ETag of what has not been made, which no request can name.
_NO_ETAG = '"'


@frozen
class Terms:
    """How an object is to be sent. ``headers`` are added to its own, and what ``caching`` makes of what it says.

    With ``viewer`` an object that this one may not see counts as missing.

    ``use`` is taken when the bytes are available and before any is sent; where that raises, nothing is sent.

    ``inline``, ``filename`` and ``unquoted`` are as ``presentation`` takes them.
    """

    inline: bool | None
    caching: Caching
    headers: Headers = ()
    use: LinkUse | None = None
    viewer: Viewer | None = None
    filename: str = ""
    unquoted: bool = False


@frozen(eq=False)
class Downloads:
    reading: Reading
    store: S3Store
    small: SmallObjects
    renditions: Renditions
    now: Callable[[], datetime]

    def answer(
        self, request: Request, bucket: str, key: str, terms: Terms
    ) -> Coroutine[Any, Any, Reply | StreamReply]:
        """As ``send``, in the size and format that the parameters of the request ask for."""
        wanted = self.renditions.wanted(request) if request.raw_query else None
        return self.send(request, bucket, key, terms, wanted)

    async def send(
        self, request: Request, bucket: str, key: str, terms: Terms, wanted: Wanted | None = None
    ) -> Reply | StreamReply:
        """200, 206 or 304; raises ``object_not_found``, ``precondition_failed``, ``range_not_satisfiable``, and for a
        picture in another size or format what ``Renditions`` raises."""
        # A picture may have to be made, and the use of a link be counted: the primary says of what.
        if self.reading.readers is not None and wanted is None and terms.use is None:
            row = await self.reading.shown(request, bucket, key, terms.viewer)
            if row is not None:
                with suppress(NoSuchObject, ApiError):  # the primary may know better
                    return await self._answer(request, row, terms)
        missing: UUID | None = None
        for _ in range(MAX_READS):
            row = await self.reading.rows.find(bucket, key, terms.viewer)
            if row is None:
                raise errors.object_not_found()
            if row.version == missing:
                raise ObjectLost(f"the store has no {row.path}")
            try:
                if wanted is not None and not wanted.is_whole(row.content_type):
                    return await self._answer_rendition(request, row, terms, wanted)
                return await self._answer(request, row, terms)
            except NoSuchObject:
                # Overwritten since its row was read: the new row names the new bytes.
                missing = row.version
        raise StoreUnreachable("every version that a row named was gone")

    async def _answer_rendition(
        self, request: Request, row: ObjectRow, terms: Terms, wanted: Wanted
    ) -> Reply | StreamReply:
        if wanted.format == "auto":
            terms = evolve(terms, headers=(*terms.headers, VARY))
        rendition = self.renditions.rendition(request, row, wanted)
        for _ in range(MAX_READS):
            picture = await self.renditions.stored(row, rendition)
            taken = picture is None and terms.use is not None and terms.use.limited
            if taken:
                without = self._unmade(request, row, terms, rendition)
                if without is not None:
                    return without
            if picture is None:
                picture = await self.renditions.make(request, row, rendition)
            try:
                return await self._answer(request, picture.row, terms, picture.body, taken)
            except NoSuchObject:
                # The object may have been replaced, or the rendition made room for another, or the store has lost it.
                # It can be made again; where the object itself is gone, that raises.
                await self.renditions.forget(picture)
        raise StoreUnreachable("every version that was made of a picture was gone")

    def _unmade(
        self, request: Request, row: ObjectRow, terms: Terms, rendition: Rendition
    ) -> Reply | StreamReply | None:
        """The response to a request that takes no use of a link that counts them, and so has nothing made: otherwise
        whoever has the link could have any number made. None for a request that takes one.

        Conditions are decided by what is known: nobody has an ETag of what has not been made. A HEAD does not say
        what only the picture would show.
        """
        assert terms.use is not None
        if terms.use.link.uses_left == 0:
            raise errors.token_used()
        stored = StoredRendition(row.version, 0, _NO_ETAG)
        unmade = row.as_rendition(stored, rendition.key(row.key), rendition.content_type)
        status, headers, _ = _head(request, unmade, terms, self.now, ranges=False)
        headers = tuple(one for one in headers if one[0] != "ETag")
        if status == 304:
            return Reply(status, headers)
        return StreamReply(status, headers, None, _nothing) if request.method == "HEAD" else None

    async def _answer(
        self,
        request: Request,
        row: ObjectRow,
        terms: Terms,
        body: bytes | None = None,
        taken: bool = False,
    ) -> Reply | StreamReply:
        """``body`` is all of the object, where it is in memory already. With ``taken`` it has been made for this
        request, which is sent all of it and takes a use."""
        if taken:
            status, headers, part = 200, _headers(request, row, terms), ByteRange(0, row.size)
        else:
            if terms.use is not None and not terms.use.counts(request.headers, row):
                terms = evolve(terms, use=None)
            status, headers, part = _head(request, row, terms, self.now)
        if status == 304:
            return Reply(status, headers)
        if request.method == "HEAD":
            return StreamReply(status, headers, part.length, _nothing)
        if part.length == 0:
            body = b""  # an empty object needs nothing of the store
        known = self.small.get(row.version) if body is None else body
        if known is not None:
            if terms.use is not None:
                await terms.use.take()
            return Reply(status, headers, known[part.first : part.first + part.length])
        stream = await self.store.open(row.path, part.first, part.length, row.size)
        if terms.use is not None:
            try:
                await terms.use.take()
            except Exception:
                stream.close()
                raise
        body = stream.buffered()
        if body is None:
            return StreamReply(status, headers, part.length, _piping(stream))
        if part.length == row.size:
            self.small.add(row.version, body)
        # A whole reply: head and body are written together.
        return Reply(status, headers, body)


def _head(
    request: Request, row: ObjectRow, terms: Terms, now: Callable[[], datetime], ranges: bool = True
) -> tuple[int, Headers, ByteRange]:
    """The status (200, 206 or 304), the headers, and which bytes are to be sent with them."""
    sent = request.headers
    whole = ByteRange(0, row.size)
    if conditions.is_not_modified(sent, row):
        return 304, (*_validators(request, row, terms), NO_SNIFFING), whole
    headers = _headers(request, row, terms)
    wanted = ranges and b"range" in sent.first
    if wanted and (b"if-range" not in sent.first or conditions.range_applies(sent, row, now())):
        part = parse_range(sent.text(b"range"), row.size)
        if part is not None:
            return 206, (*headers, ("Content-Range", part.content_range(row.size))), part
    return 200, headers, whole


def _headers(request: Request, row: ObjectRow, terms: Terms) -> Headers:
    """The headers of a response that has the object's bytes."""
    shown = presentation(
        row.key, row.content_type, terms.inline, terms.filename, row.content_language, terms.unquoted
    )
    headers = (*shown, *_validators(request, row, terms))
    if (
        b"want-repr-digest" in request.headers.first
        and row.sha256 is not None
        and wants_sha256(request.headers)
    ):
        headers = (*headers, repr_digest(row.sha256))
    return headers


def _validators(request: Request, row: ObjectRow, terms: Terms) -> Headers:
    """The headers of every response about the object: with its bytes, of HEAD, and 304."""
    return (
        ("ETag", f'"{row.etag}"'),
        ("Last-Modified", _http_date(row.updated_at)),
        ("Accept-Ranges", "bytes"),
        *terms.caching(row.cache_control, row.max_age_seconds),
        *terms.headers,
        *((ANY_ORIGIN,) if request.any_origin else ()),
    )


# Cached, because the same objects are requested again and again.
@lru_cache(maxsize=1024)
def _http_date(moment: datetime) -> str:
    return format_date_time(moment.timestamp())


def _piping(stream: ObjectStream) -> Callable[[Sink], Awaitable[None]]:
    async def source(sink: Sink) -> None:
        try:
            await stream.pipe_to(sink)
        except ReaderLeft:
            raise ClientGone from None
        except errors.STORE_FAILURES as failure:
            raise errors.store_unavailable() from failure

    return source


async def _nothing(_: Sink) -> None:
    return
