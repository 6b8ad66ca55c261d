"""The operations on one store bucket that the service needs, for any S3-compatible store.

Source: Amazon S3 API Reference. Every method raises ``StoreUnreachable`` when the store gives no usable answer
and ``StoreError`` when it refuses; ``NoSuchObject`` where that is the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import md5, sha256
from typing import Any
from xml.sax.saxutils import escape

from attrs import frozen
from twisted.internet.interfaces import IReactorTime
from twisted.web.iweb import UNKNOWN_LENGTH

from project_service.storage.s3.body import ByteSink, KeepAlive, Payload, Pour
from project_service.storage.s3.errors import (
    BrokenRead,
    CorruptTransfer,
    NoSuchObject,
    StoreError,
    StoreUnreachable,
)
from project_service.storage.s3.exchange import Exchange
from project_service.storage.s3.listing import (
    OpenMultipart,
    StoredPage,
    parse_failed_deletes,
    parse_multiparts,
    parse_objects,
    text_of,
)
from project_service.storage.s3.response import StoreResponse

# Above this, hashing takes long enough to be worth a thread.
INLINE_DIGEST_BYTES = 128 * 1024
# One CopyObject takes at most 5 GiB (S3 API Reference, CopyObject); above, parts of this size are copied.
COPY_PART_BYTES = 1024 * 1024 * 1024


@frozen
class Digests:
    """``sha256`` is the signed payload hash; ``md5`` is what the store must answer as ETag."""

    sha256: str
    md5: bytes

    @classmethod
    def of(cls, payload: Payload) -> Digests:
        return cls(sha256(payload).hexdigest(), md5(payload, usedforsecurity=False).digest())

    @property
    def content_md5(self) -> str:
        return base64.b64encode(self.md5).decode("ascii")


@frozen
class Stat:
    """What a HEAD says."""

    size: int
    etag: str
    content_type: str


@frozen(eq=False)
class OpenedObject:
    """An object whose head has arrived and whose bytes wait at the store until somebody takes or drops them."""

    length: int
    _response: StoreResponse
    _clock: IReactorTime
    _idle_seconds: float

    def at_hand(self) -> bytes | None:
        """All of it, where it came together with its head, as small objects do: then there is nothing to pour."""
        whole = self._response.whole()
        return whole if whole is not None and len(whole) == self.length else None

    async def pour(self, sink: ByteSink) -> None:
        """Every byte into ``sink``, as fast as it reads; raises ``BrokenRead``."""
        pour = Pour(sink, self.length, self._clock, self._idle_seconds)
        self._response.deliverBody(pour)
        pour.watch()
        await pour.finished

    def drop(self) -> None:
        """Nobody wants it."""
        self._response.loseConnection()


@frozen(eq=False)
class S3Store:
    """``in_thread`` runs a function off the reactor thread; ``close`` ends the idle connections."""

    exchange: Exchange
    in_thread: Callable[..., Any]
    close: Callable[[], Any] = lambda: None

    async def digest(self, payload: Payload) -> Digests:
        """The digests of ``payload``; large ones are computed in a thread."""
        if len(payload) <= INLINE_DIGEST_BYTES:
            return Digests.of(payload)
        result: Digests = await self.in_thread(Digests.of, payload)
        return result

    async def put(self, key: str, payload: Payload, content_type: str, metadata: Mapping[str, str]) -> str:
        """Store a whole object; its ETag. Raises ``CorruptTransfer``."""
        headers = {"content-type": content_type, **_metadata(metadata)}
        return await self._sent(key, None, payload, headers)

    async def start_multipart(self, key: str, content_type: str, metadata: Mapping[str, str]) -> str:
        """Begin a multipart upload; its upload id."""
        headers = {"content-type": content_type, **_metadata(metadata)}
        answer = await self.exchange.whole("POST", key, query={"uploads": ""}, headers=headers)
        return text_of(answer.body, "UploadId")

    async def put_part(self, key: str, upload_id: str, number: int, payload: Payload) -> str:
        """Send part ``number`` (from 1); its ETag. Raises ``CorruptTransfer``."""
        query = {"partNumber": str(number), "uploadId": upload_id}
        return await self._sent(key, query, payload, {})

    async def complete_multipart(self, key: str, upload_id: str, etags: Sequence[str]) -> str:
        """Make one object of the parts; its ETag. Completing again what is complete is no error."""
        parts = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{escape(etag)}"</ETag></Part>'
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        query = {"uploadId": upload_id}
        try:
            answer = await self.exchange.whole(
                "POST", key, query=query, body=body, digest=Digests.of(body).sha256
            )
        except NoSuchObject:
            # An earlier try may have succeeded without its answer reaching us.
            return (await self.stat(key)).etag
        return text_of(answer.body, "ETag").strip('"')

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """Drop a multipart upload and its parts; one that is gone already is no error."""
        try:
            await self.exchange.whole("DELETE", key, query={"uploadId": upload_id})
        except NoSuchObject:
            return

    async def open(self, key: str, first: int, length: int, whole: int) -> OpenedObject:
        """``length`` bytes from ``first`` of an object of ``whole`` bytes; they stay at the store until poured.

        Raises ``NoSuchObject``, and ``BrokenRead`` where the store has another number of bytes.
        """
        headers = {} if length == whole else {"range": f"bytes={first}-{first + length - 1}"}
        response = await self.exchange.opened(key, headers)
        if response.code != (206 if headers else 200) or response.length not in (length, UNKNOWN_LENGTH):
            response.loseConnection()
            raise BrokenRead("the store has another number of bytes")
        return OpenedObject(length, response, self.exchange.clock, self.exchange.idle_seconds)

    async def stat(self, key: str) -> Stat:
        answer = await self.exchange.whole("HEAD", key)
        etag = answer.header("etag").strip('"')
        return Stat(int(answer.header("content-length") or 0), etag, answer.header("content-type"))

    async def delete(self, key: str) -> None:
        """Delete an object; one that is gone already is no error."""
        try:
            await self.exchange.whole("DELETE", key)
        except NoSuchObject:
            return

    async def delete_many(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Delete up to 1,000 objects in one request; the keys that could not be deleted."""
        listed = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
        body = f"<Delete><Quiet>true</Quiet>{listed}</Delete>".encode()
        digests = Digests.of(body)
        headers = {"content-md5": digests.content_md5, "content-type": "application/xml"}
        answer = await self.exchange.whole(
            "POST", "", query={"delete": ""}, headers=headers, body=body, digest=digests.sha256
        )
        return parse_failed_deletes(answer.body)

    async def copy(
        self, source: str, target: str, size: int, content_type: str, keep_alive: KeepAlive
    ) -> str:
        """Copy inside the store, without the bytes passing through here; the ETag of the copy.

        A large object is copied in parts, with ``keep_alive`` before each; a failure drops those that are there.
        """
        if size > COPY_PART_BYTES:
            upload_id = await self.start_multipart(target, content_type, {})
            try:
                etags = await self._copied_parts(source, target, size, upload_id, keep_alive)
                return await self.complete_multipart(target, upload_id, etags)
            except BaseException:
                # Else the sweeper drops it.
                with suppress(StoreError, StoreUnreachable):
                    await self.abort_multipart(target, upload_id)
                raise
        answer = await self.exchange.whole("PUT", target, headers=self._copy_source(source))
        return text_of(answer.body, "ETag").strip('"')

    async def _copied_parts(
        self, source: str, target: str, size: int, upload_id: str, keep_alive: KeepAlive
    ) -> list[str]:
        etags = []
        for number, first in enumerate(range(0, size, COPY_PART_BYTES), 1):
            await keep_alive()
            last = min(first + COPY_PART_BYTES, size) - 1
            answer = await self.exchange.whole(
                "PUT",
                target,
                query={"partNumber": str(number), "uploadId": upload_id},
                headers={**self._copy_source(source), "x-amz-copy-source-range": f"bytes={first}-{last}"},
            )
            etags.append(text_of(answer.body, "ETag").strip('"'))
        return etags

    def _copy_source(self, source: str) -> dict[str, str]:
        return {"x-amz-copy-source": f"/{self.exchange.address.bucket}/{source}"}

    async def list(self, prefix: str = "", token: str | None = None, limit: int = 1000) -> StoredPage:
        """One page of the objects under ``prefix``, in key order."""
        query = {"list-type": "2", "max-keys": str(limit), "prefix": prefix}
        if token is not None:
            query["continuation-token"] = token
        answer = await self.exchange.whole("GET", "", query=query)
        return parse_objects(answer.body)

    async def list_multiparts(self) -> tuple[OpenMultipart, ...]:
        """Every multipart upload that is neither complete nor aborted."""
        found: list[OpenMultipart] = []
        query = {"uploads": "", "max-uploads": "1000"}
        while True:
            page, markers = parse_multiparts((await self.exchange.whole("GET", "", query=query)).body)
            found.extend(page)
            if markers is None or not page:
                return tuple(found)
            query = {**query, "key-marker": markers[0], "upload-id-marker": markers[1]}

    async def ensure_bucket(self) -> None:
        """Create the store bucket unless it is there."""
        try:
            await self.exchange.whole("HEAD", "")
        except NoSuchObject:
            await self.exchange.whole("PUT", "")

    async def _sent(
        self, key: str, query: Mapping[str, str] | None, payload: Payload, headers: Mapping[str, str]
    ) -> str:
        digests = await self.digest(payload)
        answer = await self.exchange.whole(
            "PUT",
            key,
            query=query,
            headers={**headers, "content-md5": digests.content_md5},
            body=payload,
            digest=digests.sha256,
        )
        etag = answer.header("etag").strip('"')
        # An ETag is no MD5 where the store encrypts with a key of its own (S3 API Reference, Object).
        encrypted = answer.header("x-amz-server-side-encryption") not in ("", "AES256")
        if etag != digests.md5.hex() and not encrypted:
            raise CorruptTransfer(f"the store's checksum of {key} differs from ours")
        return etag


def _metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    return {f"x-amz-meta-{name}": value for name, value in metadata.items()}
