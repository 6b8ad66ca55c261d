"""A store in memory. The fake has the methods of ``S3Store``, and passes
``tests/contracts/storage/test_store_bytes.py``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from hashlib import md5
from typing import Any, cast
from uuid import uuid4

from attrs import define, field, frozen
from twisted.internet.defer import Deferred, succeed

from project_service.storage.s3.client import S3Store
from project_service.storage.s3.connection import ByteSink, ObjectStream, Payload
from project_service.storage.s3.errors import NoSuchObject, StoreError, StoreUnreachable
from project_service.storage.s3.xml import OpenMultipart, StoredObject, StoredPage, StoredStat

BUFFERED_BYTES = 4096


@frozen
class FakeObject:
    payload: bytes
    etag: str
    content_type: str
    metadata: Mapping[str, str]


@define(eq=False)
class FakeStream:
    """An object that is read. A small one has its bytes at once, others are piped in pieces. ``closed`` says how it
    ended."""

    payload: bytes
    closed: bool = False

    @property
    def length(self) -> int:
        return len(self.payload)

    def buffered(self) -> bytes | None:
        return self.payload if len(self.payload) <= BUFFERED_BYTES else None

    async def pipe_to(self, sink: ByteSink) -> None:
        sink.register_producer(self)
        for first in range(0, len(self.payload), 65536):
            sink.write(self.payload[first : first + 65536])
        sink.unregister_producer()

    def close(self) -> None:
        self.closed = True

    def pauseProducing(self) -> None:
        """What is piped is in memory already."""

    def resumeProducing(self) -> None:
        """See above."""

    def stopProducing(self) -> None:
        """See above."""


@define(eq=False)
class MemoryStore:
    """With ``away`` all calls fail. ``calls`` counts them by name."""

    objects: dict[str, FakeObject] = field(factory=dict)
    multiparts: dict[tuple[str, str], dict[int, bytes]] = field(factory=dict)
    streams: list[FakeStream] = field(factory=list)
    calls: list[str] = field(factory=list)
    away: bool = False
    _types: dict[str, tuple[str, Mapping[str, str]]] = field(factory=dict)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.away:
            raise StoreUnreachable("away")

    def _present(self, key: str) -> FakeObject:
        if key not in self.objects:
            raise NoSuchObject(404, "NoSuchKey")
        return self.objects[key]

    async def put(
        self,
        key: str,
        payload: Payload,
        content_type: str,
        metadata: Mapping[str, str],
        sha256: str | None = None,
    ) -> str:
        self._called("put")
        assert sha256 in (None, hashlib.sha256(payload).hexdigest())
        etag = md5(payload).hexdigest()
        self.objects[key] = FakeObject(bytes(payload), etag, content_type, metadata)
        return etag

    async def start_multipart(self, key: str, content_type: str, metadata: Mapping[str, str]) -> str:
        self._called("start_multipart")
        upload_id = uuid4().hex
        self.multiparts[key, upload_id] = {}
        self._types[upload_id] = (content_type, metadata)
        return upload_id

    async def put_part(self, key: str, upload_id: str, number: int, payload: Payload) -> str:
        self._called("put_part")
        if (key, upload_id) not in self.multiparts:
            raise NoSuchObject(404, "NoSuchUpload")
        self.multiparts[key, upload_id][number] = bytes(payload)
        return md5(payload).hexdigest()

    async def complete_multipart(self, key: str, upload_id: str, etags: Sequence[str]) -> str:
        self._called("complete_multipart")
        parts = self.multiparts.pop((key, upload_id), None)
        if parts is None:
            return self._present(key).etag
        content_type, metadata = self._types.pop(upload_id)
        digest = md5(b"".join(bytes.fromhex(etag) for etag in etags)).hexdigest()
        payload = b"".join(parts[number] for number in range(1, len(etags) + 1))
        self.objects[key] = FakeObject(payload, f"{digest}-{len(etags)}", content_type, metadata)
        return self.objects[key].etag

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        self._called("abort_multipart")
        self.multiparts.pop((key, upload_id), None)

    async def open(self, key: str, first: int, length: int, whole: int) -> ObjectStream:
        self._called("open")
        stream = FakeStream(self._present(key).payload[first : first + length])
        self.streams.append(stream)
        return stream

    async def stat(self, key: str) -> StoredStat:
        self._called("stat")
        stored = self._present(key)
        return StoredStat(len(stored.payload), stored.etag, stored.content_type)

    async def copy(self, source: str, target: str) -> str:
        self._called("copy")
        self.objects[target] = self._present(source)
        return self.objects[target].etag

    async def copy_part(
        self, source: str, target: str, upload_id: str, number: int, first: int, last: int
    ) -> str:
        self._called("copy_part")
        part = self._present(source).payload[first : last + 1]
        self.multiparts[target, upload_id][number] = part
        return md5(part).hexdigest()

    async def delete(self, key: str) -> None:
        self._called("delete")
        self.objects.pop(key, None)

    async def delete_many(self, keys: Sequence[str]) -> tuple[str, ...]:
        self._called("delete_many")
        if not keys:
            # S3 API Reference, DeleteObjects: the document must name an object.
            raise StoreError(400, "MalformedXML")
        for key in keys:
            self.objects.pop(key, None)
        return ()

    async def list(self, prefix: str = "", token: str | None = None, limit: int = 1000) -> StoredPage:
        self._called("list")
        keys = [key for key in sorted(self.objects) if key.startswith(prefix) and key > (token or "")]
        shown = tuple(StoredObject(key, len(self.objects[key].payload)) for key in keys[:limit])
        return StoredPage(shown, keys[limit - 1] if len(keys) > limit else None)

    async def list_multiparts(self) -> tuple[OpenMultipart, ...]:
        self._called("list_multiparts")
        return tuple(OpenMultipart(key, upload_id) for key, upload_id in sorted(self.multiparts))

    async def ensure_bucket(self) -> None:
        self._called("ensure_bucket")

    def close(self) -> Deferred[None]:
        """Nothing is open."""
        return succeed(None)


def in_place_of_s3(fake: MemoryStore) -> S3Store:
    """The fake for who takes the client (see ``tests/fakes/auth.py``)."""
    return cast(S3Store, fake)


class Collected:
    """A sink that accepts everything at once."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data

    def take(self, source: int, limit: int) -> int:
        return 0

    def register_producer(self, producer: Any) -> None:
        """It never pauses."""

    def unregister_producer(self) -> None:
        """See above."""
