"""The client of one store bucket, with the operations that the service needs, for any S3-compatible store.

The operations on single objects are here, those on the whole bucket in ``bucket``.

Source: Amazon S3 API Reference. Every method raises ``StoreUnreachable`` when the store gives no usable answer
and ``StoreError`` when it refuses; ``NoSuchObject`` where that is the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any
from xml.sax.saxutils import escape

from attrs import frozen

from project_service.settings.model import Store
from project_service.storage.s3.body import KeepAlive, Payload
from project_service.storage.s3.bucket import WholeBucket
from project_service.storage.s3.digests import INLINE_DIGEST_BYTES, Digests, bare
from project_service.storage.s3.errors import (
    NO_SIZE,
    BrokenRead,
    CorruptTransfer,
    NoSuchObject,
    StoreError,
    StoreUnreachable,
)
from project_service.storage.s3.listing import document, text_of
from project_service.storage.s3.opened import OpenedObject
from project_service.storage.s3.sign import Signer

# One CopyObject takes at most 5 GiB (S3 API Reference, CopyObject); above, parts of this size are copied.
COPY_PART_BYTES = 1024 * 1024 * 1024


@frozen
class Stat:
    """What a HEAD says."""

    size: int
    etag: str
    content_type: str
    coding: str = ""


@frozen(eq=False)
class S3Store(WholeBucket):
    """``in_thread`` runs a function off the reactor's thread. ``close`` closes the idle connections."""

    in_thread: Callable[..., Any]
    close: Callable[[], Any] = lambda: None

    def sign_as(self, settings: Store) -> None:
        """Sign with the key pair of ``settings`` from now on."""
        self.requests.sender.signer = Signer.of(settings)

    async def digest(self, payload: Payload) -> Digests:
        """The digests of ``payload``; large ones are computed in a thread."""
        if len(payload) <= INLINE_DIGEST_BYTES:
            return Digests.of(payload)
        result: Digests = await self.in_thread(Digests.of, payload)
        return result

    def put(
        self, key: str, payload: Payload, content_type: str, metadata: Mapping[str, str]
    ) -> Coroutine[Any, Any, str]:
        """Store a whole object; its ETag. Raises ``CorruptTransfer``."""
        headers = {"content-type": content_type, **_metadata(metadata)}
        return self._sent(key, None, payload, headers)

    async def start_multipart(self, key: str, content_type: str, metadata: Mapping[str, str]) -> str:
        """Begin a multipart upload; its upload id."""
        headers = {"content-type": content_type, **_metadata(metadata)}
        answer = await self.requests.whole("POST", key, query={"uploads": ""}, headers=headers)
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
        body = document("CompleteMultipartUpload", parts)
        query = {"uploadId": upload_id}
        try:
            answer = await self.requests.whole(
                "POST", key, query=query, body=body, digest=Digests.of(body).sha256
            )
        except NoSuchObject:
            # An earlier try may have succeeded, with only its answer lost.
            return (await self.stat(key)).etag
        return bare(text_of(answer.body, "ETag"))

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """Drop a multipart upload and its parts; one that is gone already is no error."""
        try:
            await self.requests.whole("DELETE", key, query={"uploadId": upload_id})
        except NoSuchObject:
            return

    async def open(self, key: str, first: int, length: int, whole: int) -> OpenedObject:
        """Open ``length`` bytes from position ``first`` of an object of ``whole`` bytes. They stay at the store until
        they are poured.

        Raises ``NoSuchObject``, and ``BrokenRead`` where the store has another number of bytes.
        """
        headers = {} if length == whole else {"range": f"bytes={first}-{first + length - 1}"}
        response = (await self.requests.opened(key, headers)).response
        if response.code != (206 if headers else 200) or response.length not in (length, None):
            response.loseConnection()
            raise BrokenRead("the store has another number of bytes")
        return OpenedObject(length, response, self.requests.clock, self.requests.idle_seconds)

    async def stat(self, key: str) -> Stat:
        """What the store knows of an object. Raises ``StoreUnreachable`` where it does not tell the size."""
        answer = await self.requests.whole("HEAD", key)
        size = answer.header("content-length")
        if not size.isdecimal():
            raise StoreUnreachable(NO_SIZE)
        etag, content_type, coding = (
            answer.header(name) for name in ("etag", "content-type", "content-encoding")
        )
        return Stat(int(size), bare(etag), content_type, coding)

    async def copy(
        self, source: str, target: str, size: int, content_type: str, keep_alive: KeepAlive
    ) -> str:
        """Copy inside the store, without the bytes passing through here; the ETag of the copy.

        A large object is copied in parts, and ``keep_alive`` is called before each. After a failure the parts are
        dropped.
        """
        if size > COPY_PART_BYTES:
            try:
                return await self._copied_in_parts(source, target, size, content_type, keep_alive)
            except StoreError as refused:
                if not refused.not_offered:
                    raise
        # In one piece also for stores that cannot copy parts (Storj): they may take larger objects at once than AWS.
        answer = await self.requests.whole("PUT", target, headers=self._copy_source(source))
        return bare(text_of(answer.body, "ETag"))

    async def _copied_in_parts(
        self, source: str, target: str, size: int, content_type: str, keep_alive: KeepAlive
    ) -> str:
        upload_id = await self.start_multipart(target, content_type, {})
        try:
            etags = await self._copied_parts(source, target, size, upload_id, keep_alive)
            return await self.complete_multipart(target, upload_id, etags)
        except BaseException:
            # If this fails too, the sweeper aborts it.
            with suppress(StoreError, StoreUnreachable):
                await self.abort_multipart(target, upload_id)
            raise

    async def _copied_parts(
        self, source: str, target: str, size: int, upload_id: str, keep_alive: KeepAlive
    ) -> list[str]:
        etags = []
        for number, first in enumerate(range(0, size, COPY_PART_BYTES), 1):
            await keep_alive()
            last = min(first + COPY_PART_BYTES, size) - 1
            answer = await self.requests.whole(
                "PUT",
                target,
                query={"partNumber": str(number), "uploadId": upload_id},
                headers={**self._copy_source(source), "x-amz-copy-source-range": f"bytes={first}-{last}"},
            )
            etags.append(bare(text_of(answer.body, "ETag")))
        return etags

    def _copy_source(self, source: str) -> dict[str, str]:
        return {"x-amz-copy-source": f"/{self.requests.sender.address.bucket}/{source}"}

    async def _sent(
        self, key: str, query: Mapping[str, str] | None, payload: Payload, headers: Mapping[str, str]
    ) -> str:
        digests = await self.digest(payload)
        answer = await self.requests.whole(
            "PUT",
            key,
            query=query,
            headers={**headers, "content-md5": digests.content_md5},
            body=payload,
            digest=digests.sha256,
        )
        etag = bare(answer.header("etag"))
        # Where the store encrypts with a key of its own, an ETag may look like an MD5 and not be one.
        encrypted = answer.header("x-amz-server-side-encryption") not in ("", "AES256")
        if not encrypted and not digests.may_have(etag):
            raise CorruptTransfer(f"the store's checksum of {key} differs from ours")
        return etag


def _metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    return {f"x-amz-meta-{name}": value for name, value in metadata.items()}
