"""The bytes of one version on their way into the store: in one request where they fit into one part, else in the
parts of a multipart upload. ``upload`` sends a request's body so, ``resumable`` those of several requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any
from urllib.parse import quote

from attrs import define, frozen
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from project_service.lifecycle import start
from project_service.storage.keys import DEFAULT_CONTENT_TYPE
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import BrokenRead, kind_of

_log = Logger()

# S3 API Reference, "Multipart upload limits".
MAX_PARTS = 10_000
PARTS_PER_SIZE = 1000
GROWING_BYTES = 1024 * 1024
# S3 allows 2 KB of user metadata in all.
_MAX_METADATA_BYTES = 1800
# How many parts of one upload are in memory at most.
MAX_PARTS_IN_MEMORY = 2


@frozen
class PartSizes:
    """The sizes of an upload's parts. They grow every thousand parts if S3's 10,000 would not be enough otherwise.

    Parts become large only after many bytes have been sent, so that a client which merely declares a large object
    costs no memory.
    """

    first: int
    step: int

    @classmethod
    def up_to(cls, expected: int, part_bytes: int) -> PartSizes:
        """For an object of at most ``expected`` bytes, beginning with ``part_bytes``."""
        missing = expected - MAX_PARTS * part_bytes
        if missing <= 0:
            return cls(part_bytes, 0)
        steps = sum(range(MAX_PARTS // PARTS_PER_SIZE)) * PARTS_PER_SIZE
        return cls(part_bytes, -(-missing // steps))

    def of(self, number: int) -> int:
        """The size of a part; the first has the number 1."""
        return self.first + (number - 1) // PARTS_PER_SIZE * self.step

    def total(self, count: int) -> int:
        """The size of the first ``count`` parts together."""
        larger, rest = divmod(count, PARTS_PER_SIZE)
        steps = PARTS_PER_SIZE * larger * (larger - 1) // 2 + rest * larger
        return count * self.first + steps * self.step


class PartBuffer:
    """The bytes of one part. It grows up to ``GROWING_BYTES``, and is then replaced by a mapping for the whole part.

    A buffer that kept growing would be moved by the allocator again and again, which fragments memory. The system
    provides memory only for those pages of the mapping that were written to, so a client that stalls holds no more
    than it has sent.
    """

    def __init__(self, size: int) -> None:
        self.used = 0
        self.size = size
        self._bytes: bytearray | mmap = bytearray()

    @property
    def full(self) -> bool:
        return self.used >= self.size

    def take(self, data: memoryview) -> int:
        """Copy as much of ``data`` as there is room for; returns the number of bytes copied."""
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


@define(eq=False)
class _IntoBuffer:
    """A sink that adds what is read from the store to a part."""

    buffer: PartBuffer

    def write(self, data: bytes) -> None:
        self.buffer.take(memoryview(data))

    def take(self, source: int, limit: int) -> int:
        return 0

    def register_producer(self, producer: Any) -> None:
        """Not used: a buffer takes whatever comes, so the producer is never paused."""

    def unregister_producer(self) -> None:
        """As ``register_producer``."""


class Parts:
    """The parts of one version. At most ``MAX_PARTS_IN_MEMORY`` are in memory.

    ``etags`` are of the parts that the store has, from the first; ``upload_id`` is None as long as no multipart
    upload has begun. Both may come from an earlier process. Every method raises what the store raises.
    """

    def __init__(
        self,
        store: S3Store,
        path: str,
        sizes: PartSizes,
        upload_id: str | None = None,
        etags: Sequence[str] = (),
    ) -> None:
        self.upload_id = upload_id
        self.etags = list(etags)
        self._content_type = DEFAULT_CONTENT_TYPE
        self._metadata: Mapping[str, str] = {}
        self._store = store
        self._path = path
        self._sizes = sizes
        self._filling = PartBuffer(sizes.of(len(etags) + 1) if etags else sizes.first)
        self._spare: PartBuffer | None = None
        self._sending: deque[tuple[Deferred[str], PartBuffer]] = deque()

    def describe(self, content_type: str, key: str | None) -> None:
        """Set the metadata that the store gets; ``key`` is None if it is not known before the first byte."""
        self._content_type = content_type
        encoded = quote(key or "")
        if encoded and len(encoded) <= _MAX_METADATA_BYTES:
            self._metadata = {"key": encoded}

    @property
    def sending(self) -> bool:
        """Whether the store does not have all parts yet that were sent to it."""
        return bool(self._sending)

    @property
    def rest(self) -> PartBuffer:
        """The bytes that were not sent yet."""
        return self._filling

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more, which slows down a client that is faster than the store."""
        left = memoryview(data)
        while left:
            if self._filling.used >= self._filling.size:
                await self.send_rest()
                await self._make_room()
            left = left[self._filling.take(left) :]

    async def read_back(self, path: str, size: int) -> None:
        """Begin with the ``size`` bytes, less than a part, that the store has under ``path``. Raises ``BrokenRead``
        where it has others."""
        stream = await self._store.open(path, 0, size, size)
        body = stream.buffered()
        if body is not None:
            self._filling.take(memoryview(body))
        else:
            await stream.pipe_to(_IntoBuffer(self._filling))
        if self._filling.used != size:
            raise BrokenRead("the store has another number of bytes")

    def put_whole(self, sha256: str | None = None) -> Coroutine[Any, Any, str]:
        """Send everything in one request, where no multipart upload has begun; the ETag. ``sha256`` is as
        ``S3Store.put`` takes it."""
        return self._store.put(self._path, self._filling.view(), self._content_type, self._metadata, sha256)

    async def send_rest(self) -> None:
        """Begin to send the part that was being filled. The next one begins with ``write``."""
        if self.upload_id is None:
            self.upload_id = await self._store.start_multipart(self._path, self._content_type, self._metadata)
        part, self._filling = self._filling, PartBuffer(0)
        number = len(self.etags) + len(self._sending) + 1
        self._sending.append(
            (start(self._store.put_part(self._path, self.upload_id, number, part.view())), part)
        )

    async def part_sent(self) -> None:
        """Wait until the store has the part that was sent first. Its buffer is used for another part."""
        sending, part = self._sending.popleft()
        try:
            self.etags.append(await sending)
        except BaseException:
            part.drop()
            raise
        part.clear()
        self._spare = part

    async def parts_sent(self) -> None:
        """As ``part_sent`` for each that the store has by now, without waiting."""
        while self._sending and self._sending[0][0].called:
            await self.part_sent()

    async def complete(self) -> str:
        """Make one object of the parts, all of which have been sent; the ETag of the whole."""
        assert self.upload_id is not None
        return await self._store.complete_multipart(self._path, self.upload_id, self.etags)

    async def _make_room(self) -> None:
        if len(self._sending) == MAX_PARTS_IN_MEMORY:
            await self.part_sent()
        size = self._sizes.of(len(self.etags) + len(self._sending) + 1)
        spare, self._spare = self._spare, None
        self._filling = spare if spare is not None and spare.size == size else PartBuffer(size)

    def stop(self) -> None:
        """Cancel what is being sent, send nothing more, and give up the memory."""
        self._filling.drop()
        self._filling, self._spare = PartBuffer(0), None
        while self._sending:
            sending, part = self._sending.popleft()
            sending.addErrback(lambda _: "")
            sending.cancel()
            part.drop()

    async def abort(self) -> None:
        """Drop the parts that are at the store. Failures are left to the sweeper."""
        upload_id, self.upload_id, self.etags = self.upload_id, None, []
        if upload_id is not None:
            try:
                await self._store.abort_multipart(self._path, upload_id)
            except Exception as problem:
                _log.warn("A multipart upload is left to the sweeper: {kind}", kind=kind_of(problem))
