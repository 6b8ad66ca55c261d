"""An upload, from a reserved version to an object, or to nothing.

::

    async with await uploads.begin(bucket, limit, length) as upload:    # RESERVED
        upload.describe(content_type, key)
        await upload.write(data)                                        # STREAMING, again and again
        await upload.store()                                            # STORED
        await upload.commit(key, content_type, details, writer, conditions)  # COMMITTED
    # A block that raises leaves the upload GIVEN_UP, and nothing of it behind.

A crash at any point leaves either the old object or the new one, whole, and perhaps garbage that the sweeper removes:
the version is in ``storage.uploads`` before its first byte, and one transaction both makes it an object's and turns
the version that it replaces into garbage. ``docs/storage.rst`` has the diagram.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from hashlib import sha256
from typing import Any, Self, TypeVar
from uuid import UUID

from attrs import frozen
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.database.errors import outage_of
from project_service.errors import ApiError, payload_too_large
from project_service.lifecycle import shield, start, to_its_end
from project_service.storage import access, errors
from project_service.storage.durations import RENEWAL_SECONDS
from project_service.storage.keys import DEFAULT_CONTENT_TYPE
from project_service.storage.parsing.conditions import without_date
from project_service.storage.removal import Removal
from project_service.storage.reservations import Reservations
from project_service.storage.rows.garbage import GarbageRows
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import StoreError, kind_of
from project_service.storage.s3.parts import Parts, PartSizes
from project_service.storage.values import (
    NO_DETAILS,
    UNCONDITIONAL,
    Bucket,
    Conditions,
    Details,
    NewObject,
    ObjectRow,
    Switched,
    Viewer,
    Writer,
    store_path,
)

_log = Logger()

T = TypeVar("T")


# One CopyObject takes at most 5 GiB (S3 API Reference, CopyObject); above, parts of this size are copied.
COPY_PART_BYTES = 1024 * 1024 * 1024


class State(Enum):
    """Where an upload stands."""

    RESERVED = "reserved"  # the version is in ``storage.uploads``, and nothing has been sent under it
    STREAMING = "streaming"  # its bytes come in, and full parts are sent to the store
    STORED = "stored"  # all of its bytes are in the store, where no reader sees them
    COMMITTED = "committed"  # it is an object's current version
    GIVEN_UP = "given up"  # it is garbage, or reserved until the sweeper comes


BUCKET_LIMIT = "the bucket's max_object_bytes"


@frozen
class SizeLimit:
    """The greatest size of an upload, the setting that it comes from, and whether that is the bucket's quota."""

    max_bytes: int
    by_quota: bool = False
    setting: str = "storage.max_object_bytes"

    @classmethod
    def of(cls, bucket: Bucket, max_object_bytes: int, by_link: int | None = None) -> SizeLimit:
        """The limit on an object in ``bucket``, as far as is known now: the commit has the last word on a quota.

        ``max_object_bytes`` is the one for all buckets, ``by_link`` the one of an upload link.
        """
        limit = cls(max_object_bytes)
        for max_bytes, setting in (
            (bucket.rules.max_object_bytes, BUCKET_LIMIT),
            (by_link, "the link's max_bytes"),
        ):
            if max_bytes is not None and max_bytes < limit.max_bytes:
                limit = cls(max_bytes, setting=setting)
        if bucket.rules.max_bucket_bytes is None:
            return limit
        # The larger of the two, since in a bucket beyond its quota objects may still be replaced by smaller ones.
        quota = max(bucket.rules.max_bucket_bytes, bucket.total_bytes)
        return cls(quota, by_quota=True) if quota < limit.max_bytes else limit

    def check(self, size: int) -> None:
        """Raises ``payload_too_large``, with ``details.bucket`` for the quota."""
        if size > self.max_bytes:
            raise (
                errors.payload_too_large_for_bucket()
                if self.by_quota
                else payload_too_large(self.max_bytes, self.setting)
            )


def unobserved(step: str) -> None:
    """The ``steps`` of production, where nothing is to be interrupted."""


class Upload:
    """One version on its way into the store, made by ``Uploads.begin`` and used as the module's docstring shows.

    Its bytes are sent as ``Parts`` says, so little of it is in memory at any time.
    """

    def __init__(
        self, uploads: Uploads, version: UUID, bucket: str, limit: SizeLimit, sizes: PartSizes
    ) -> None:
        self.state = State.RESERVED
        self.version = version
        self.bucket = bucket
        self.size = 0
        self.etag = ""
        # Of the whole object. It costs the reactor 0.7 ms for each MiB (1,450 MB/s).
        self._digest = sha256()
        self._copied: ObjectRow | None = None
        self._uploads = uploads
        self._path = store_path(bucket, version)
        self._limit = limit
        self._parts = Parts(uploads.store, self._path, sizes)
        self.describe = self._parts.describe
        self._renewed = uploads.clock.seconds()
        # True while a request to the store for the version's bytes has no response: they may still appear.
        self._unanswered = False
        # A copy that the store makes, which goes on when the client leaves.
        self._copying: Deferred[Any] | None = None
        self._client_left = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, failure: BaseException | None, traceback: object) -> None:
        """Give up after a failure; in the background if the database or the store failed, so that the client does not
        wait for the same thing twice."""
        if not isinstance(failure, Exception):
            return
        giving_up = shield(self._give_up())
        if _is_outage(failure):
            giving_up.addErrback(_left_to_sweeper)
        else:
            await giving_up

    async def write(self, data: bytes) -> None:
        """Raises ``payload_too_large`` beyond the limit, ``request_timeout`` once the sweeper has given the upload
        up, and what sending a part raises."""
        self.state = State.STREAMING
        self.size += len(data)
        if self.size > self._limit.max_bytes:
            self._limit.check(self.size)
        if self._uploads.clock.seconds() - self._renewed >= RENEWAL_SECONDS:
            await self._keep_alive()
        self._digest.update(data)
        await self._parts.write(data)

    async def store(self) -> None:
        """Send the rest. Afterwards the store has all bytes."""
        parts = self._parts
        whole = parts.upload_id is None
        # What has been received is what the store has to get: its digest is signed as that of the one part.
        sending = parts.put_whole(self._digest.hexdigest()) if whole else self._finish()
        self.etag = await self._answered(sending)
        self._enter(State.STORED)

    async def copy(self, row: ObjectRow) -> None:
        """Instead of ``write`` and ``store``: have the store copy the bytes of ``row``. Raises ``NoSuchObject``.

        The store goes on copying when the client hangs up. So a request that is cancelled keeps its slot until the
        store has responded, and there are never more copies than slots.
        """
        self.size, self._copied = row.size, row
        waiting: Deferred[str] = Deferred()

        def copied(result: str | Failure) -> None:
            # Before the callback, which may give up at once.
            self._copying = None
            # A Failure handed to callback() runs the errbacks; nobody waits where this was cancelled.
            waiting.callback(result)

        self._copying = start(self._answered(self._copy(row)))
        self._copying.addBoth(copied)
        try:
            self.etag = await waiting
        except CancelledError:
            self._client_left = True
            raise
        self._enter(State.STORED)

    def commit(
        self,
        key: str,
        content_type: str,
        details: Details,
        writer: Writer,
        conditions: Conditions,
        link: bytes | None = None,
    ) -> Coroutine[Any, Any, Switched]:
        """Make the version the object's at ``key``, in one transaction, which also takes the use of an upload
        ``link`` (see ``ObjectRows.put``). Raises the refusals of ``errors.refused``.

        It goes on to its end even if the caller is cancelled, who then gets its result all the same: a service that
        stops answers with what became of the upload. Shield it where more would follow.
        """
        assert self.state is State.STORED, self.state
        digest = self._digest.hexdigest() if self._copied is None else self._copied.sha256
        new = NewObject(self.bucket, key, self.version, self.size, content_type, self.etag, details, digest)
        return to_its_end(self._commit(new, writer, conditions, link))

    async def commit_move(self, row: ObjectRow, key: str, writer: Writer, conditions: Conditions) -> Switched:
        """As ``commit``, for bytes that were copied from ``row`` of another bucket, which ends there. Raises
        ``object_changed`` if it has been replaced since."""
        assert self.state is State.STORED, self.state
        new = NewObject(self.bucket, key, self.version, row.size, row.content_type, self.etag)

        async def moved() -> Switched:
            uploads = self._uploads
            tags = await uploads.without_date(new.bucket, new.key, conditions)
            switched = await uploads.rows.move_to_bucket(row, new, writer, tags)
            self._enter(State.COMMITTED)
            await uploads.removal.replaced([switched.replaced], new.bucket)
            await uploads.removal.replaced([row.version], row.bucket)
            return switched

        return await to_its_end(moved())

    async def _commit(
        self, new: NewObject, writer: Writer, conditions: Conditions, link: bytes | None
    ) -> Switched:
        uploads = self._uploads
        if conditions.unmodified_since is not None:
            conditions = await uploads.without_date(new.bucket, new.key, conditions)
        switched = await uploads.rows.put(new, writer, conditions, link)
        self._enter(State.COMMITTED)
        if switched.replaced is not None:
            await uploads.removal.replaced([switched.replaced], new.bucket)
        return switched

    def _enter(self, state: State) -> None:
        self.state = state
        self._uploads.steps(state.value)

    async def _answered(self, asking: Coroutine[Any, Any, T]) -> T:
        """The result of ``asking``, a request to the store for the version's bytes.

        Only a result or a refusal (ours or the store's) says what became of them. After any other failure the store
        may have received the request.
        """
        self._unanswered = True
        try:
            answer = await asking
        except (ApiError, StoreError):
            self._unanswered = False
            raise
        self._unanswered = False
        return answer

    async def _keep_alive(self) -> None:
        """Renew the reservation when it is time. Raises ``request_timeout`` once the sweeper has given it up."""
        now = self._uploads.clock.seconds()
        if now - self._renewed >= RENEWAL_SECONDS:
            self._renewed = now
            if not await self._uploads.rows.renew_upload(self.version):
                raise errors.request_timeout_of_upload()

    # Copying.

    async def _copy(self, row: ObjectRow) -> str:
        if row.size > COPY_PART_BYTES:
            try:
                return await self._copy_in_parts(row)
            except Exception as problem:
                await self._parts.abort()
                if not isinstance(problem, StoreError) or not problem.not_offered:
                    raise
        # In one piece also for stores that cannot copy parts (Storj): they may take larger objects at once than AWS.
        return await self._uploads.store.copy(row.path, self._path)

    async def _copy_in_parts(self, row: ObjectRow) -> str:
        store, parts = self._uploads.store, self._parts
        parts.upload_id = upload_id = await store.start_multipart(self._path, row.content_type, {})
        for number, first in enumerate(range(0, row.size, COPY_PART_BYTES), 1):
            if self._client_left:
                raise errors.request_timeout_of_upload()
            await self._keep_alive()
            last = min(first + COPY_PART_BYTES, row.size) - 1
            parts.etags.append(await store.copy_part(row.path, self._path, upload_id, number, first, last))
        return await parts.complete()

    async def _finish(self) -> str:
        """Send what is left of an upload in parts, and return the ETag of the whole."""
        parts = self._parts
        await parts.send_rest()
        while parts.sending:
            await parts.part_sent()
            # These parts may have taken long, and so may completing the upload.
            await self._keep_alive()
        return await parts.complete()

    # Giving up.

    async def _give_up(self) -> None:
        """Delete the version's bytes, if the database confirms that they are garbage: the commit may have
        happened."""
        self.state = State.GIVEN_UP
        uploads, version = self._uploads, self.version
        # First, because everything else may take time or fail.
        self._parts.stop()
        if self._copying is not None:
            await self._copying
        # Where the store has not answered, it may still make the bytes after the deletion below. The version then
        # stays reserved, and the sweeper deletes it again later.
        claimed = [] if self._unanswered else await uploads.garbage.discard([version])
        await self._parts.abort()
        # After a long pause of this process the sweeper may have deleted nothing, because the bytes came later.
        if self._unanswered or (not claimed and await uploads.garbage.unknown([version])):
            await uploads.removal.try_to_delete(version, self.bucket)
        else:
            await uploads.removal.remove(claimed, self.bucket)


@frozen(eq=False)
class Uploads:
    """Checks and begins uploads. ``steps`` is called with each state that one enters, for tests that interrupt it."""

    rows: ObjectRows
    garbage: GarbageRows
    store: S3Store
    removal: Removal
    reservations: Reservations
    clock: IReactorTime
    part_bytes: int
    steps: Callable[[str], None]

    async def begin(self, bucket: str, limit: SizeLimit, length: int | None = None) -> Upload:
        """Reserve a version in the database, before its first byte.

        ``length`` is the greatest size to be prepared for, that of ``limit`` if None; the sizes of the parts follow
        from it.
        """
        version = await self.reservations.get(bucket)
        self.steps(State.RESERVED.value)
        sizes = PartSizes.up_to(limit.max_bytes if length is None else length, self.part_bytes)
        return Upload(self, version, bucket, limit, sizes)

    async def check(
        self,
        bucket: Bucket,
        key: str,
        writer: Writer,
        conditions: Conditions,
        size: int = 0,
        content_type: str = DEFAULT_CONTENT_TYPE,
        details: Details = NO_DETAILS,
    ) -> None:
        """Refuse early, before any byte moves, an upload to ``key`` that the commit would refuse. ``size`` is the
        least size that it can have.

        This is the question whether ``writer`` may write this key. Raises what ``access.check_write`` raises,
        ``not_allowed`` and ``payload_too_large``.
        """
        if bucket.rules.policies and not writer.is_service:
            await self.rows.check_policies(bucket.name, key, size, content_type, details, writer)
        if conditions != UNCONDITIONAL or access.is_owner_only(bucket.rules, writer):
            row = await self.rows.find(bucket.name, key)
            access.check_write(bucket.rules, row, writer, conditions)
        if bucket.rules.max_bucket_bytes is not None:
            await self.check_room(bucket, key, size)

    async def check_keys(
        self, bucket: Bucket, keys: Sequence[str], writer: Writer, conditions: Conditions
    ) -> None:
        """As ``check``, for several uploads of any size and type, which policies judge when they come.
        ``details.keys`` of the error has the key."""
        if conditions == UNCONDITIONAL and not access.is_owner_only(bucket.rules, writer):
            return
        judged = bucket.rules.policies and not writer.is_service
        rows = await self.rows.find_many(bucket.name, keys, Viewer(None, writer.identity) if judged else None)
        for key in keys:
            try:
                access.check_write(bucket.rules, rows.get(key), writer, conditions)
            except ApiError as refusal:
                refusal.details = {"keys": key}
                raise

    async def check_room(self, bucket: Bucket, key: str, size: int) -> None:
        """Raise ``payload_too_large`` early if ``size`` more bytes cannot fit into the bucket's quota now.

        Otherwise an upload would be streamed whole before it is refused, and a small request could make the store
        copy any number of bytes. The counters in ``bucket`` may be old, so they are read again before anything is
        refused.
        """
        quota = bucket.rules.max_bucket_bytes
        if quota is None or bucket.total_bytes + size <= quota:
            return
        room = await self.rows.room(bucket.name, key)
        if room is not None and size > room:
            raise errors.payload_too_large_for_bucket()

    async def without_date(
        self, bucket: str, key: str, conditions: Conditions, viewer: Viewer | None = None
    ) -> Conditions:
        """``conditions`` on the object at ``key`` for the database; see ``conditions.without_date``.

        With ``viewer`` an object that this one may not see counts as missing.
        """
        if conditions.unmodified_since is None:
            return conditions
        return without_date(await self.rows.find(bucket, key, viewer), conditions)


def _is_outage(failure: BaseException) -> bool:
    """Whether the database or the store failed, not we."""
    return isinstance(failure, errors.STORE_FAILURES) or outage_of(failure) is not None


def _left_to_sweeper(problem: Failure) -> None:
    if problem.value is not None and _is_outage(problem.value):
        _log.warn("An upload is left to the sweeper: {kind}", kind=kind_of(problem.value))
    else:
        _log.failure("an upload is left to the sweeper", problem)
