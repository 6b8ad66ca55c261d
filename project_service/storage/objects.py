"""Changes of objects, in an order of steps that makes every crash harmless.

An upload announces its version in the database, sends the bytes to the store, and then switches the object's row to
the new version in one transaction, which also marks the version replaced as garbage. A crash in between leaves either
the old object or the new one, whole, and garbage that the sweeper knows of or finds. ``docs/storage.rst`` has the
state diagram.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from uuid import UUID

from attrs import frozen
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.deferreds import shield
from project_service.errors import ApiError
from project_service.storage import errors
from project_service.storage.attempt import Attempt
from project_service.storage.conditions import refusal, without_date
from project_service.storage.download import ATTEMPTS, ObjectLost
from project_service.storage.model import UNCONDITIONAL, Bucket, Conditions, ObjectRow, Writer, store_path
from project_service.storage.ports import GarbageRows, NewObject, ObjectRows, Store, Switched
from project_service.storage.removal import Removal
from project_service.storage.s3.body import KeepAlive
from project_service.storage.s3.errors import NoSuchObject, StoreUnreachable
from project_service.storage.upload import PartSizes, PartStream, SizeLimit

_log = Logger()

# How often an upload tells the database that it goes on. The sweeper gives up one that was silent for much longer.
KEEP_ALIVE_SECONDS = 60.0


@frozen
class Received:
    """The key and type of an upload, which may be known only after its last byte."""

    key: str
    content_type: str


Fill = Callable[[PartStream], Awaitable[Received]]


def unobserved(step: str) -> None:
    """The ``steps`` of production: nobody watches."""


async def unchecked() -> None:
    """No check at the end, for changes that take seconds at most."""


@frozen(eq=False)
class Objects:
    """Every method raises the refusals of ``errors.refused`` and what the store raises."""

    rows: ObjectRows
    garbage: GarbageRows
    store: Store
    removal: Removal
    clock: IReactorTime
    new_version: Callable[[], UUID]
    part_bytes: int
    steps: Callable[[str], None] = unobserved

    async def upload(
        self,
        bucket: Bucket,
        writer: Writer,
        conditions: Conditions,
        limit: SizeLimit,
        expected: int,
        fill: Fill,
    ) -> Switched:
        """Store what ``fill`` writes as a new version, then switch. An upload that fails leaves nothing behind.

        ``expected`` is the greatest size to be prepared for; the sizes of the parts follow from it.
        """
        version = self.new_version()
        path = store_path(bucket.name, version)
        await self._announce(version, bucket.name)
        sizes = PartSizes.up_to(expected, self.part_bytes)
        parts = PartStream(self.store, path, sizes, limit, self._keep_alive(version))
        attempt = Attempt(version, bucket.name, parts)
        try:
            received = await fill(parts)
            etag = await attempt.answered(parts.finish())
            self.steps("stored")
            new = NewObject(bucket.name, received.key, version, parts.size, received.content_type, etag)
            return await shield(self._switch(new, writer, conditions))
        except Exception as failure:
            await self._clean_up(failure, attempt)
            raise

    async def copy(
        self,
        bucket: Bucket,
        source: str,
        target: str,
        writer: Writer,
        conditions: Conditions = UNCONDITIONAL,
        still: Callable[[], Awaitable[object]] = unchecked,
    ) -> Switched:
        """Make a second object of the same bytes, copied inside the store.

        ``still`` is called before the switch, and raises where the copy must not be made any more.
        """
        await self.check_write(bucket, target, writer, conditions)
        row = await self._existing(bucket, source)
        await self.check_room(bucket, target, row.size)
        version = self.new_version()
        await self._announce(version, bucket.name)
        attempt = Attempt(version, bucket.name)
        try:
            row, etag = await self._copied(attempt, bucket, row)
            self.steps("stored")
            await still()
            new = NewObject(bucket.name, target, version, row.size, row.content_type, etag)
            return await shield(self._switch(new, writer, conditions))
        except Exception as failure:
            await self._clean_up(failure, attempt)
            raise

    async def move(
        self, bucket: Bucket, source: str, target: str, writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Switched:
        """The same bytes under another key: a change of rows alone."""

        async def moved() -> Switched:
            stated = await self._without_date(bucket.name, target, conditions)
            switched = await self.rows.move(bucket.name, source, target, writer, stated)
            self.steps("switched")
            await self._removed([switched.replaced], bucket.name)
            return switched

        return await shield(moved())

    async def delete(
        self,
        bucket: Bucket,
        keys: Sequence[str],
        writer: Writer,
        conditions: Conditions = UNCONDITIONAL,
    ) -> Mapping[str, UUID]:
        """The rows go first, all in one transaction; then the bytes. Returns the versions deleted, by key."""

        async def deleted() -> Mapping[str, UUID]:
            stated = await self._without_date(bucket.name, keys[0], conditions)
            versions = await self.rows.delete(bucket.name, keys, writer, stated)
            self.steps("switched")
            await self._removed(versions.values(), bucket.name)
            return versions

        return await shield(deleted())

    async def delete_prefix(self, bucket: Bucket, prefix: str) -> int:
        """Delete everything under ``prefix`` with the service's rights; the number of objects deleted."""
        service = Writer(None, is_service=True)
        count = 0
        while keys := await self.rows.keys(bucket.name, prefix, 1000):
            count += len(await self.delete(bucket, keys, service))
        return count

    async def check_write(self, bucket: Bucket, key: str, writer: Writer, conditions: Conditions) -> None:
        """Refuse early what the switch would refuse, before any byte moves."""
        guarded = bucket.rules.owner_only_writes and not writer.is_service
        if not guarded and conditions == UNCONDITIONAL:
            return
        row = await self.rows.find(bucket.name, key)
        outcome = refusal(row, guarded, writer, conditions)
        if outcome is not None:
            raise errors.refused(outcome)

    async def check_room(self, bucket: Bucket, key: str, size: int) -> None:
        """Raise ``bucket_full`` early where ``size`` more bytes cannot fit into the bucket's quota now.

        Without it an upload would be streamed whole before it is refused, and a small request could make the store
        copy any number of bytes. The counters in ``bucket`` may be old, so they are read again before anything is
        refused.
        """
        quota = bucket.rules.max_bucket_bytes
        if quota is None or bucket.total_bytes + size <= quota:
            return
        room = await self.rows.room(bucket.name, key)
        if room is not None and size > room:
            raise errors.bucket_full()

    async def _announce(self, version: UUID, bucket: str) -> None:
        """Announce a version, before its first byte. If the client leaves meanwhile, the announcement is undone."""
        left = False

        async def announced() -> None:
            await self.rows.begin_upload(version, bucket)
            if left:
                await self._give_up(Attempt(version, bucket))

        try:
            await shield(announced())
        except CancelledError:
            left = True
            raise
        self.steps("announced")

    async def _existing(self, bucket: Bucket, key: str) -> ObjectRow:
        row = await self.rows.find(bucket.name, key)
        if row is None:
            raise errors.object_not_found()
        return row

    async def _copied(self, attempt: Attempt, bucket: Bucket, row: ObjectRow) -> tuple[ObjectRow, str]:
        """Copy the bytes of ``row``, or of its successor where it was replaced; the row copied, and the copy's
        ETag."""
        path, touch = store_path(bucket.name, attempt.version), self._keep_alive(attempt.version)

        async def keep_alive() -> None:
            if attempt.left:
                raise errors.upload_expired()
            await touch()

        for _ in range(ATTEMPTS):
            copying = self.store.copy(row.path, path, row.size, row.content_type, keep_alive)
            try:
                # The store goes on copying when the client hangs up, which costs the client nothing. So the request
                # keeps its place until the store has answered, and there are never more copies than places.
                return row, await attempt.seen_through(copying)
            except NoSuchObject:
                # The object was replaced or deleted after its row was read.
                missing, row = row.version, await self._existing(bucket, row.key)
                if row.version == missing:
                    raise ObjectLost(f"the store has no {row.path}") from None
        raise StoreUnreachable("every version that a row named was gone")

    async def _switch(self, new: NewObject, writer: Writer, conditions: Conditions) -> Switched:
        stated = await self._without_date(new.bucket, new.key, conditions)
        switched = await self.rows.put(new, writer, stated)
        self.steps("switched")
        await self._removed([switched.replaced], new.bucket)
        return switched

    async def _without_date(self, bucket: str, key: str, conditions: Conditions) -> Conditions:
        if conditions.unmodified_since is None:
            return conditions
        return without_date(await self.rows.find(bucket, key), conditions)

    async def _removed(self, versions: Iterable[UUID | None], bucket: str) -> None:
        garbage = [version for version in versions if version is not None]
        if garbage:
            await self.removal.replaced(garbage, bucket)
            self.steps("removed")

    async def _clean_up(self, failure: Exception, attempt: Attempt) -> None:
        """Give up after ``failure``. Where the database or the store failed, that is done in the background: the
        client does not wait for the same part a second time."""
        giving_up = shield(self._give_up(attempt))
        error = failure if isinstance(failure, ApiError) else errors.translate(failure)
        if error is not None and error.status >= 500:
            giving_up.addErrback(_left_to_sweeper)
        else:
            await giving_up

    async def _give_up(self, attempt: Attempt) -> None:
        """Delete the version's bytes, if the database confirms that they are garbage: the switch may have
        happened."""
        if attempt.parts is not None:
            # First, because everything after it may take time or fail.
            attempt.parts.stop()
        await attempt.over()
        # Where the store has not answered, it may still make the bytes after the deletion below. The version then
        # stays announced, and the sweeper deletes it again later.
        claimed = [] if attempt.asked else await self.garbage.discard([attempt.version])
        if attempt.parts is not None:
            await attempt.parts.abandon()
        # After a long pause of this process the sweeper may have deleted nothing, because the bytes came later.
        if attempt.asked or (not claimed and await self.garbage.unknown([attempt.version])):
            await self.removal.tried(attempt.version, attempt.bucket)
        else:
            await self.removal.remove(claimed, attempt.bucket)

    def _keep_alive(self, version: UUID) -> KeepAlive:
        seen = self.clock.seconds()

        async def keep_alive() -> None:
            nonlocal seen
            if self.clock.seconds() - seen >= KEEP_ALIVE_SECONDS:
                seen = self.clock.seconds()
                if not await self.rows.touch_upload(version):
                    raise errors.upload_expired()

        return keep_alive


def _left_to_sweeper(problem: Failure) -> None:
    _log.warn("An upload is left to the sweeper: {kind}", kind=type(problem.value).__name__)
