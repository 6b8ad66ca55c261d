"""Uploads that take several requests, on any worker and any host, and outlive all of them.

::

    upload = await resumables.begin(bucket, new, writer)             # its version is reserved, nothing received
    upload = await resumables.append(version, request, piece, writer)  # again and again
    # The request that brings the last byte makes the object, in the same switch as any upload.

The row in ``storage.resumable`` says how many bytes were *received*: those that the store has, whatever becomes of
this process. It never says more, so no byte is lost that was acknowledged to a client. What a request brings goes to
the store in parts (``parts``), each recorded once the store has it. The bytes at the end that fill no part go there
as well, as an object of its own, the *tail*, under a version of its own; the next request reads it back and goes on
from there. A crash between a step at the store and its record leaves a part that is sent again under the same number,
or a tail that is reserved like any version, so that the sweeper gives it up.

One request at a time *holds* an upload. The hold is a lease in the row, which a killed process loses within seconds,
and every change of the row requires it. A request that finds the upload held waits. The holder learns of that when it
renews its lease; if its own client has sent nothing since the last time, it stores what has come, gives way and is
answered 423. So a client that comes back after its connection broke goes on within seconds, and of two that send at
the same time one is answered 423 while the other goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from attrs import define, evolve, field, frozen
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.database.errors import outage_of
from project_service.errors import ApiError, payload_too_large, shutting_down
from project_service.http.body import Body, ClientGone
from project_service.http.request import Request
from project_service.lifecycle import Every, Sleep, shield, start, to_its_end, with_timeout
from project_service.storage import errors
from project_service.storage.buckets import Buckets
from project_service.storage.durations import (
    HOLD_CHECK_SECONDS,
    HOLD_RENEWAL_SECONDS,
    HOLD_SECONDS,
    HOLD_TIMEOUT_SECONDS,
    REMOVAL_TIMEOUT_SECONDS,
)
from project_service.storage.parsing import parameters
from project_service.storage.parsing.digests import BodyDigests
from project_service.storage.parsing.tus import Checksum
from project_service.storage.rows.resumables import ResumableRows
from project_service.storage.s3.errors import NoSuchObject, kind_of
from project_service.storage.s3.parts import Parts, PartSizes
from project_service.storage.sha256 import Reader, UnfinishedDigests
from project_service.storage.upload import SizeLimit, Uploads
from project_service.storage.values import (
    Bucket,
    Conditions,
    Details,
    Live,
    NewObject,
    Progress,
    ResumableUpload,
    Writer,
    store_path,
)

_log = Logger()

_HOLD = timedelta(seconds=HOLD_SECONDS)


@frozen
class NewUpload:
    """What a client says of an upload that it begins. ``length`` None: it says so later."""

    key: str
    content_type: str
    length: int | None
    conditions: Conditions
    details: Details
    metadata: str
    sha256: str | None = None


@frozen
class Piece:
    """What the head of a request says of the bytes in its body, which begin at ``offset`` of the upload. ``length``
    and ``sha256`` are those of the whole upload, where the request has them. With ``checks``, all of the body counts
    or nothing."""

    offset: int
    length: int | None = None
    checks: tuple[Checksum | BodyDigests, ...] = ()
    sha256: str | None = None


@define(eq=False)
class _Hold:
    """The right of one request to write to an upload."""

    rows: ResumableRows
    clock: IReactorTime
    version: UUID
    holder: UUID
    body: Body | None
    _received: int = field(default=0, init=False)
    _renewing: Every = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._renewing = Every(HOLD_RENEWAL_SECONDS, self._renew, self.clock, "upload hold", outage_of)
        self._renewing.startService()

    async def release(self) -> None:
        stopping = self._renewing.stopService()
        if stopping is not None:
            await stopping
        try:
            await self.rows.release(self.version, self.holder)
        except Exception as problem:
            # What the request did counts all the same.
            _log.warn("An upload is held until its lease ends: {kind}", kind=kind_of(problem))

    async def _renew(self) -> None:
        """Renew the lease, and stop reading the body if it is lost, or if others wait and nothing comes."""
        wanted = await self.rows.renew(self.version, self.holder, _HOLD)
        if self.body is None:
            return
        silent = self.body.awaited and self.body.received == self._received
        self._received = self.body.received
        if wanted is None or (wanted and silent):
            self.body.fail(errors.upload_locked())


@define(eq=False)
class _Appending:
    """One request's bytes on their way into the store. ``row`` is the upload as it was last recorded."""

    uploads: Uploads
    rows: ResumableRows
    hold: _Hold
    row: ResumableUpload
    limit: SizeLimit
    piece: Piece
    lasts: timedelta
    digests: UnfinishedDigests
    _sizes: PartSizes = field(init=False)
    _parts: Parts = field(init=False)
    # How many bytes of the upload have arrived, in the store or not.
    _arrived: int = field(init=False)
    # Of these bytes; None where other processes have received some.
    _digest: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        row = self.row
        self._sizes = PartSizes(row.first_part, row.part_step)
        self._parts = Parts(self.uploads.store, row.path, self._sizes, row.upload_id, row.etags)
        self._parts.describe(row.content_type, row.key)
        self._arrived = row.received
        self._digest = self.digests.take(row.version, row.received)

    async def run(self, body: Body) -> ResumableUpload:
        """Receive ``body``, as far as it arrives. Returns the upload with all of it; if it did not arrive whole,
        raises after what did was recorded. With ``checks`` all of it counts, or nothing."""
        try:
            if self.row.tail is not None:
                in_tail = self.row.received - self._sizes.total(len(self.row.etags))
                await self._parts.read_back(store_path(self.row.bucket, self.row.tail), in_tail)
            try:
                await self._receive(body)
            except (ClientGone, ApiError):
                if not self.piece.checks:
                    await self._store_arrived()
                raise
            for one in self.piece.checks:
                one.check()
            await self._store_arrived()
        finally:
            if self._digest is not None and self._arrived == self.row.received:
                self.digests.put(self.row.version, self._arrived, self._digest)
            # Whatever is still being sent then must not arrive after another request has begun.
            await self._stop_sending()
        return self.row

    async def _receive(self, body: Body) -> None:
        recorded = len(self._parts.etags)
        while chunk := await body.next_chunk():
            if self.row.length is None:
                self.limit.check(self._arrived + len(chunk))
            elif self._arrived + len(chunk) > self.row.length:
                raise payload_too_large(self.row.length, "its Upload-Length")
            for one in self.piece.checks:
                one.update(chunk)
            await self._parts.parts_sent()
            await self._parts.write(chunk)
            self._arrived += len(chunk)
            if self._digest is not None:
                self._digest.update(chunk)
            if not self.piece.checks and len(self._parts.etags) > recorded:
                recorded = len(self._parts.etags)
                await self._record(self._sizes.total(recorded))

    async def _store_arrived(self) -> None:
        """Send all that has arrived to the store, and record that."""
        parts, complete = self._parts, self._arrived == self.row.length
        if complete and parts.upload_id is None:
            etag = await parts.put_whole()
            self.uploads.steps("whole sent")
            await self._record(self._arrived, etag=etag)
            return
        if parts.rest.full or (complete and parts.rest.used):
            await parts.send_rest()
        while parts.sending:
            await parts.part_sent()
        tail: UUID | None = None
        if parts.rest.used and self._arrived > self.row.received:
            tail = await self.uploads.reservations.get(self.row.bucket)
            path = store_path(self.row.bucket, tail)
            await self.uploads.store.put(path, parts.rest.view(), self.row.content_type, {})
        elif parts.rest.used:
            tail = self.row.tail
        self.uploads.steps("parts sent")
        await self._record(self._arrived, tail)

    async def _record(self, received: int, tail: UUID | None = None, etag: str | None = None) -> None:
        """Record that the store has ``received`` bytes. Raises ``upload_locked`` if the hold is lost."""
        old = self.row
        etags = tuple(self._parts.etags[len(old.etags) :])
        progress = Progress(received, old.length, self._parts.upload_id, etags, tail, etag)
        row = await self.rows.advance(old.version, self.hold.holder, progress, self.lasts)
        if row is None:
            raise errors.upload_locked()
        self.row = row
        self.uploads.steps("recorded")
        if old.tail is not None and old.tail != tail:
            await self.uploads.removal.discard([old.tail], old.bucket)

    async def _stop_sending(self) -> None:
        """Return when nothing is on its way to the store, and give the memory back."""
        parts = self._parts
        while parts.sending:
            with suppress(Exception):  # what was not sent is sent again with the next request
                await parts.part_sent()
        parts.stop()
        if parts.upload_id != self.row.upload_id:
            await _abort(parts, self.uploads)


async def _abort(parts: Parts, uploads: Uploads) -> None:
    """Drop the parts that are at the store, which are left to the sweeper if the store is slow: a request waits."""
    await with_timeout(uploads.clock, REMOVAL_TIMEOUT_SECONDS, start(parts.abort()), TimeoutError)


@frozen(eq=False)
class Resumables:
    """Every method raises what the store raises, and those for an upload ``upload_not_found``, also if it is not the
    caller's, and ``upload_expired``.
    """

    rows: ResumableRows
    uploads: Uploads
    buckets: Buckets
    live: Live
    now: Callable[[], datetime]
    new_id: Callable[[], UUID]
    digests: UnfinishedDigests = field(factory=UnfinishedDigests)

    async def begin(self, bucket: Bucket, new: NewUpload, writer: Writer) -> ResumableUpload:
        """Raises what an upload of that key and size raises before its first byte."""
        limit = self.limit(bucket)
        limit.check(new.length or 0)
        await self.uploads.check(
            bucket, new.key, writer, new.conditions, new.length or 0, new.content_type, new.details
        )
        expected = limit.max_bytes if new.length is None else new.length
        sizes = PartSizes.up_to(expected, self.uploads.part_bytes)
        upload = ResumableUpload(
            self.new_id(),
            bucket.name,
            new.key,
            new.content_type,
            writer.user_id,
            writer.is_service,
            new.details,
            new.conditions,
            new.metadata,
            new.length,
            sizes.first,
            sizes.step,
            sha256=new.sha256,
        )
        expires_at = await self.rows.create(upload, self.lasts)
        self.uploads.steps("begun")
        return evolve(upload, expires_at=expires_at)

    def limit(self, bucket: Bucket) -> SizeLimit:
        return SizeLimit.of(bucket, self.live.settings.max_object_bytes)

    @property
    def lasts(self) -> timedelta:
        """For how long an upload may receive nothing."""
        return timedelta(seconds=self.live.settings.resumable_seconds)

    async def find(self, bucket: str, version: UUID, writer: Writer) -> ResumableUpload:
        """The upload as it is recorded."""
        row = await self.rows.find(version)
        mine = row is not None and (writer.is_service or (not row.by_service and row.owner == writer.user_id))
        if row is None or row.bucket != bucket or not mine:
            raise errors.upload_not_found()
        if row.expires_at <= self.now():
            raise errors.upload_expired()
        return row

    async def current(self, row: ResumableUpload, request: Request, writer: Writer) -> ResumableUpload:
        """``row`` when nobody holds it any more, if that comes soon; as an object, if a process was killed before it
        could make one of an upload that is whole.

        The service key that looks at the upload of a user makes nothing of it: that would be by its rights, which
        pass every rule, and not by those of the user."""
        if row.committed_at is not None or not (row.held or row.whole):
            return row
        try:
            return await shield(self._current(row, request, writer))
        except ApiError as refusal:
            if refusal.status != 423:
                raise
            # A client sends at this very moment: what is recorded so far is all that can be said.
            return await self.find(row.bucket, row.version, writer)

    async def _current(self, row: ResumableUpload, request: Request, writer: Writer) -> ResumableUpload:
        hold, row = await self._hold(row.version, request, None)
        try:
            return row if writer.is_service != row.by_service else await self._finished(hold, row, writer)
        except NoSuchObject:
            raise await self._lost(hold, row) from None
        finally:
            await hold.release()

    async def append(
        self, row: ResumableUpload, request: Request, piece: Piece, writer: Writer
    ) -> ResumableUpload:
        """Append the body of ``request``. What has come counts even if the client leaves in the middle, or the
        request is cancelled; then it is stored before ``shutting_down`` is raised.

        Raises ``offset_mismatch``, ``upload_locked``, ``checksum_mismatch``, ``bad_digest``, ``payload_too_large``;
        and when the upload is whole, what the switch of an upload raises. It is removed then, and so is one of which
        the store has lost what it had received (``upload_expired``).
        """

        def stopping() -> None:
            # What has come is stored all the same. Where the client has left, the body has failed already.
            request.body.fail(shutting_down())

        return await to_its_end(self._append(row, request, piece, writer), stopping)

    async def _append(
        self, row: ResumableUpload, request: Request, piece: Piece, writer: Writer
    ) -> ResumableUpload:
        hold, row = await self._hold(row.version, request, request.body)
        try:
            limit = self.limit(await self.buckets.get(row.bucket))
            row = _with_length(row, piece, limit)
            if piece.offset != row.received:
                raise errors.offset_mismatch(row.received)
            least = request.body.length or 0
            if row.length is not None and row.received + least > row.length:
                raise payload_too_large(row.length, "its Upload-Length")
            row = await self._expecting(hold, row, piece)
            if row.committed_at is None and (row.etag is None or not row.whole):
                appending = _Appending(
                    self.uploads, self.rows, hold, row, limit, piece, self.lasts, self.digests
                )
                row = await appending.run(request.body)
            return await self._finished(hold, row, writer)
        except ClientGone:
            # What has come is recorded, and nobody waits for the answer.
            return row
        except NoSuchObject:
            raise await self._lost(hold, row) from None
        finally:
            await hold.release()

    async def _expecting(self, hold: _Hold, row: ResumableUpload, piece: Piece) -> ResumableUpload:
        """``row`` with the SHA-256 that the client says the whole has. Raises ``bad_digest`` if it was another."""
        if piece.sha256 in (None, row.sha256):
            return row
        if row.sha256 is not None or row.committed_at is not None:
            raise errors.bad_digest("Repr-Digest", "is not the one of this upload, or came after its end")
        if not await self.rows.expect_sha256(row.version, hold.holder, piece.sha256):
            raise errors.upload_locked()
        return evolve(row, sha256=piece.sha256)

    async def terminate(self, row: ResumableUpload, request: Request) -> None:
        """Forget the upload, and delete what was received of it; an object that it has become stays."""
        await shield(self._terminate(row, request))

    async def _terminate(self, row: ResumableUpload, request: Request) -> None:
        hold, row = await self._hold(row.version, request, None)
        try:
            await self._remove(hold, row)
        finally:
            await hold.release()

    async def _remove(self, hold: _Hold, row: ResumableUpload) -> bool:
        """Remove the upload, and its bytes from the store. False, and no change, if the hold was lost."""
        garbage = await self.rows.remove(row.version, hold.holder)
        self.uploads.steps("removed")
        if garbage:
            await _abort(Parts(self.uploads.store, row.path, PartSizes(1, 0), row.upload_id), self.uploads)
        await self.uploads.removal.discard(garbage, row.bucket)
        return bool(garbage)

    async def _lost(self, hold: _Hold, row: ResumableUpload) -> ApiError:
        """Remove an upload whose multipart upload or tail is not in the store, as after a backup was restored; the
        error for its client. Trying again would never help."""
        if not await self._remove(hold, row):
            # Another request has taken over, and may have completed it.
            return errors.upload_locked()
        _log.warn("The store has lost what it had received of an upload: {path}", path=row.path)
        return errors.upload_expired_bytes_lost()

    async def _hold(
        self, version: UUID, request: Request, body: Body | None
    ) -> tuple[_Hold, ResumableUpload]:
        """Hold the upload, or raise ``upload_locked`` if another request does for too long."""
        clock, holder = self.uploads.clock, self.new_id()
        deadline = clock.seconds() + HOLD_TIMEOUT_SECONDS
        while (row := await self.rows.hold(version, holder, _HOLD)) is None:
            if await self.rows.find(version) is None:
                raise errors.upload_not_found()
            if clock.seconds() >= deadline:
                raise errors.upload_locked()
            request.slot.release()
            await Sleep(clock).wait(HOLD_CHECK_SECONDS)
            request.slot.retake()
        return _Hold(self.rows, clock, version, holder, body), row

    async def _finished(self, hold: _Hold, row: ResumableUpload, writer: Writer) -> ResumableUpload:
        """``row``, or where it is whole and no object yet, what it is as an object."""
        if row.committed_at is not None or not row.whole:
            return row
        try:
            return await self._commit(hold, row, writer)
        except ApiError as refusal:
            if refusal.status < 500 and refusal.status != 423:
                await self._remove(hold, row)
            raise

    async def _commit(self, hold: _Hold, row: ResumableUpload, writer: Writer) -> ResumableUpload:
        uploads = self.uploads
        # The rules may have changed since the upload began, which may be days ago.
        bucket = await self.buckets.fresh(row.bucket)
        self.limit(bucket).check(row.received)
        parameters.chosen_type(bucket, row.content_type, row.key)
        etag = row.etag
        if etag is None:
            sizes = PartSizes(row.first_part, row.part_step)
            etag = await Parts(uploads.store, row.path, sizes, row.upload_id, row.etags).complete()
        uploads.steps("stored")
        tags = await uploads.without_date(row.bucket, row.key, row.conditions)
        sha256 = await self._sha256(row)
        new = NewObject(
            row.bucket, row.key, row.version, row.received, row.content_type, etag, row.details, sha256
        )
        switched = await self.rows.commit(
            row.version, hold.holder, new, evolve(writer, user_id=row.owner), tags
        )
        if switched is None:
            raise errors.upload_locked()
        uploads.steps("committed")
        await uploads.removal.replaced([switched.replaced], row.bucket)
        return evolve(row, etag=etag, committed_at=switched.row.updated_at)

    async def _sha256(self, row: ResumableUpload) -> str | None:
        """The SHA-256 of the whole, in hexadecimal, once that is in the store; None if it has to be computed later.
        Where the client has said what it must be, the bytes are read for that if need be. Raises ``bad_digest``."""
        digest = self.digests.take(row.version, row.received)
        if digest is not None:
            sha256 = str(digest.hexdigest())
        elif row.sha256 is not None:
            reader = Reader(self.uploads.store, self.uploads.clock)
            sha256 = await reader.sha256(row.path, row.received)
        else:
            return None
        if row.sha256 not in (None, sha256):
            raise errors.bad_digest("Repr-Digest", "is not that of all bytes together")
        return sha256


def _with_length(row: ResumableUpload, piece: Piece, limit: SizeLimit) -> ResumableUpload:
    """``row`` with the length of the whole that the client now knows.

    Raises ``invalid_upload_header`` if it was known before and is another, or is less than what was received; and
    ``payload_too_large``.
    """
    if piece.length is None or piece.length == row.length:
        return row
    if row.length is not None or piece.length < row.received:
        raise errors.invalid_upload_header("Upload-Length is not that of this upload")
    limit.check(piece.length)
    return evolve(row, length=piece.length)
