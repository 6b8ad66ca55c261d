"""Objects change: the order of steps that makes every crash harmless.

An upload announces its version, sends the bytes, and then switches the row in one transaction, which also turns
the version replaced into garbage. Whatever dies in between leaves either the old object or the new one, whole, and
nothing but garbage that the sweeper knows of or finds. ``docs/storage.rst`` has the state diagram.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
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
from project_service.storage.ports import Deleted, GarbageRows, NewObject, ObjectRows, Store, Switched
from project_service.storage.removal import Removal
from project_service.storage.s3.body import KeepAlive
from project_service.storage.s3.errors import NoSuchObject, StoreUnreachable
from project_service.storage.upload import PartSizes, PartStream, SizeLimit

_log = Logger()

# How often an upload says that it is still going; the sweeper takes one that was silent far longer.
KEEP_ALIVE_SECONDS = 60.0


@frozen
class Received:
    """What an upload has turned out to be, once its last byte is read."""

    key: str
    content_type: str


Fill = Callable[[PartStream], Awaitable[Received]]


def unobserved(step: str) -> None:
    """Nobody watches the steps."""


async def unchecked() -> None:
    """What took seconds at most."""


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
        """A new version from what ``fill`` writes, then the switch. What fails leaves nothing behind.

        ``expected`` is the greatest size to make ready for.
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
        """A second object with the same bytes, copied inside the store; ``still`` raises where it must not be."""
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
    ) -> Deleted:
        """The rows go first, all in one transaction; then the bytes."""

        async def deleted() -> Deleted:
            stated = await self._without_date(bucket.name, keys[0], conditions)
            result = await self.rows.delete(bucket.name, keys, writer, stated)
            self.steps("switched")
            await self._removed(result.versions.values(), bucket.name)
            return result

        return await shield(deleted())

    async def delete_prefix(self, bucket: Bucket, prefix: str) -> int:
        """Everything under ``prefix``, by the service; how many objects that were."""
        service = Writer(None, is_service=True)
        count = 0
        while keys := await self.rows.keys(bucket.name, prefix, 1000):
            count += len((await self.delete(bucket, keys, service)).versions)
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
        """Refuse early what cannot fit as things are: an upload would be streamed whole, and the store would copy
        any number of bytes for few of a request.

        What the bucket was known to hold may have gone meanwhile, so it is looked at again.
        """
        quota = bucket.rules.max_bucket_bytes
        if quota is None or bucket.total_bytes + size <= quota:
            return
        room = await self.rows.room(bucket.name, key)
        if room is not None and size > room:
            raise errors.bucket_full()

    async def _announce(self, version: UUID, bucket: str) -> None:
        """Before the first byte. A client that leaves meanwhile leaves no announcement behind."""
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
        """The row whose bytes are the new version's now, and their ETag."""
        path, touch = store_path(bucket.name, attempt.version), self._keep_alive(attempt.version)

        async def keep_alive() -> None:
            if attempt.left:
                raise errors.upload_expired()
            await touch()

        for _ in range(ATTEMPTS):
            copying = self.store.copy(row.path, path, row.size, row.content_type, keep_alive)
            try:
                # To hang up costs nothing, and the store would copy on: whoever does so keeps his place until it has
                # answered, so that no more copies are under way than there are places.
                return row, await attempt.seen_through(copying)
            except NoSuchObject:
                # Replaced or deleted between the look at its row and the copy.
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
        """What was refused leaves nothing behind. Who failed us is asked a second time, but not waited for again."""
        giving_up = shield(self._give_up(attempt))
        error = failure if isinstance(failure, ApiError) else errors.translate(failure)
        if error is not None and error.status >= 500:
            giving_up.addErrback(_left_to_sweeper)
        else:
            await giving_up

    async def _give_up(self, attempt: Attempt) -> None:
        """Only what is claimed as garbage is deleted: the switch may have won."""
        if attempt.parts is not None:
            # Before anything that can take time, or fail.
            attempt.parts.stop()
        await attempt.over()
        # What was asked for and not waited for the store may still do, after it has deleted nothing: it stays
        # announced, and the sweeper deletes it once more when whatever goes on there has come to an end.
        claimed = [] if attempt.asked else await self.garbage.discard([attempt.version])
        if attempt.parts is not None:
            await attempt.parts.abandon()
        if attempt.asked:
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
