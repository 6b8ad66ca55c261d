"""The bytes of one new version on their way into the store."""

from __future__ import annotations

from collections import deque
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from urllib.parse import quote

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from project_service.deferreds import start
from project_service.errors import payload_too_large
from project_service.storage import errors
from project_service.storage.content_types import DEFAULT
from project_service.storage.ports import Store
from project_service.storage.s3.body import KeepAlive

_log = Logger()

# S3 API Reference, "Multipart upload limits".
MAX_PARTS = 10_000
PARTS_ALIKE = 1000
# S3 allows 2 KB of user metadata in all.
_MAX_METADATA_BYTES = 1800
GROWING_BYTES = 1024 * 1024
# How many parts of one upload are in memory at most.
PARTS_HELD = 2


@frozen
class PartSizes:
    """The sizes of an upload's parts. They grow every thousand parts where S3's 10,000 parts would not be enough
    else.

    Parts become large only after many bytes have been sent, so that a client which merely declares a large object
    costs no memory.
    """

    first: int
    step: int

    @classmethod
    def up_to(cls, expected: int, part_bytes: int) -> PartSizes:
        """For an object of at most ``expected`` bytes, beginning with ``part_bytes``."""
        missing = max(0, expected - MAX_PARTS * part_bytes)
        steps = sum(range(MAX_PARTS // PARTS_ALIKE)) * PARTS_ALIKE
        return cls(part_bytes, -(-missing // steps))

    def of(self, number: int) -> int:
        """The size of a part; the first has the number 1."""
        return self.first + (number - 1) // PARTS_ALIKE * self.step


@frozen
class SizeLimit:
    """The greatest size of an upload, and whether it is the bucket's quota that sets it."""

    most: int
    by_quota: bool = False

    def check(self, size: int) -> None:
        """Raises ``payload_too_large``, with ``details.bucket`` for the quota."""
        if size > self.most:
            raise errors.bucket_full() if self.by_quota else payload_too_large(self.most)


class PartBuffer:
    """The bytes of one part. It grows up to ``GROWING_BYTES``, and is then replaced by a mapping for the whole part.

    A buffer that kept growing would be moved about by the allocator, which leaves memory behind that is not given
    back. The system provides memory only for those pages of the mapping that were written to, so a client that stalls
    holds no more than it has sent.
    """

    def __init__(self, size: int) -> None:
        self.used = 0
        self.size = size
        self._bytes: bytearray | mmap = bytearray()

    @property
    def full(self) -> bool:
        return self.used >= self.size

    def take(self, data: memoryview) -> int:
        """Copy in as much of ``data`` as there is room for; the number of bytes copied."""
        count = min(len(data), self.size - self.used)
        end = self.used + count
        if end > GROWING_BYTES and isinstance(self._bytes, bytearray):
            room = mmap(-1, self.size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
            room[: self.used] = self._bytes[: self.used]
            self._bytes = room
        self._bytes[self.used : end] = data[:count]
        self.used = end
        return count

    def view(self) -> memoryview:
        return memoryview(self._bytes)[: self.used]

    def clear(self) -> None:
        self.used = 0

    def drop(self) -> None:
        """Give the memory back at once, even where somebody still has a view of it.

        A view may live on in the traceback of a failure until the garbage collector finds it.
        """
        if isinstance(self._bytes, mmap):
            self._bytes.madvise(MADV_DONTNEED)


class PartStream:
    """Takes the bytes of an upload and sends each part to the store when it is full.

    It never holds more than ``PARTS_HELD`` parts. ``write`` returns when there is room for more; that is what slows
    down a client that is faster than the store. What fits into one part is sent by ``finish`` in a single request.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        sizes: PartSizes,
        limit: SizeLimit,
        keep_alive: KeepAlive,
    ) -> None:
        self.size = 0
        self.content_type = DEFAULT
        self._store = store
        self._path = path
        self._sizes = sizes
        self._limit = limit
        self._keep_alive = keep_alive
        self._metadata: dict[str, str] = {}
        self._filling = PartBuffer(sizes.of(1))
        self._spare: PartBuffer | None = None
        self._upload_id: str | None = None
        self._etags: list[str] = []
        self._going: deque[tuple[Deferred[str], PartBuffer]] = deque()

    def describe(self, content_type: str, key: str | None) -> None:
        """Set what the store is told beside the bytes; ``key`` is None where it is not known before the first
        byte."""
        self.content_type = content_type
        encoded = quote(key or "")
        if encoded and len(encoded) <= _MAX_METADATA_BYTES:
            self._metadata = {"key": encoded}

    async def write(self, data: bytes) -> None:
        """Raises ``payload_too_large`` as soon as more than the limit has come, and what sending a part raises."""
        self.size += len(data)
        self._limit.check(self.size)
        await self._keep_alive()
        left = memoryview(data)
        while left:
            if self._filling.full:
                await self._send_part()
                await self._make_room()
            left = left[self._filling.take(left) :]

    async def finish(self) -> str:
        """Everything is in the store, whole, when this returns; its ETag."""
        if self._upload_id is None:
            return await self._store.put(self._path, self._filling.view(), self.content_type, self._metadata)
        await self._send_part()
        while self._going:
            await self._settle()
            # These parts may have taken long, and so may completing the upload.
            await self._keep_alive()
        return await self._store.complete_multipart(self._path, self._upload_id, self._etags)

    def stop(self) -> None:
        """Cancel what is being sent, send nothing more, and give up the memory."""
        self._filling.drop()
        self._filling, self._spare = PartBuffer(0), None
        while self._going:
            sending, part = self._going.popleft()
            sending.addErrback(lambda _: "")
            sending.cancel()
            part.drop()

    async def abandon(self) -> None:
        """Drop the parts that are at the store; to be called after ``stop``. Failures are left to the sweeper."""
        if self._upload_id is not None:
            try:
                await self._store.abort_multipart(self._path, self._upload_id)
            except Exception as problem:
                _log.warn("A multipart upload is left to the sweeper: {kind}", kind=type(problem).__name__)

    async def _send_part(self) -> None:
        """Begin to send the part that was being filled."""
        if self._upload_id is None:
            self._upload_id = await self._store.start_multipart(self._path, self.content_type, self._metadata)
        part, self._filling = self._filling, PartBuffer(0)
        number = len(self._etags) + len(self._going) + 1
        sending = start(self._store.put_part(self._path, self._upload_id, number, part.view()))
        self._going.append((sending, part))

    async def _make_room(self) -> None:
        if len(self._going) == PARTS_HELD:
            await self._settle()
        size = self._sizes.of(len(self._etags) + len(self._going) + 1)
        spare, self._spare = self._spare, None
        self._filling = spare if spare is not None and spare.size == size else PartBuffer(size)

    async def _settle(self) -> None:
        """Wait until the part that was sent first is at the store. Its buffer is kept for another part."""
        sending, part = self._going.popleft()
        try:
            self._etags.append(await sending)
        except BaseException:
            part.drop()
            raise
        part.clear()
        self._spare = part
