"""The rows of resumable uploads in PostgreSQL. Times are the database's, so that all hosts agree about them."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from attrs import asdict, frozen
from orjson import dumps, loads
from psycopg2.errors import ForeignKeyViolation

from project_service.database.acting import Actor
from project_service.database.connection import Row
from project_service.database.pool import Pool
from project_service.storage import errors
from project_service.storage.durations import WAITING_SECONDS
from project_service.storage.rows.columns import plain_text, uuid_of
from project_service.storage.rows.objects import PUT, changed, put_values, switched_from, tags_of
from project_service.storage.values import (
    Conditions,
    Details,
    NewObject,
    Progress,
    ResumableUpload,
    Switched,
    Writer,
)

_COLUMNS = (
    "version, bucket, key, content_type, owner, by_service, details::text, if_match, if_none_match,"
    " unmodified_since, metadata, length, first_part, part_step, received, upload_id, etags, tail, etag, expires_at,"
    " committed_at, coalesce(holder is not null and held_until > now(), false), sha256"
)

_CREATE = """
with reserved as (
    insert into storage.uploads (version, bucket, seen_at) values (%(version)s, %(bucket)s, now() + %(lasts)s)
)
insert into storage.resumable (version, bucket, key, content_type, owner, by_service, details, if_match,
    if_none_match, unmodified_since, metadata, length, first_part, part_step, sha256, expires_at)
values (%(version)s, %(bucket)s, %(key)s, %(content_type)s, %(owner)s, %(by_service)s, %(details)s::jsonb,
    %(if_match)s::text[], %(if_none_match)s::text[], %(unmodified_since)s, %(metadata)s, %(length)s, %(first_part)s,
    %(part_step)s, %(sha256)s, now() + %(lasts)s)
returning expires_at
"""

# The object is put only if the upload is held, because PostgreSQL evaluates a condition without columns first. The
# upload's row is locked before the object's, as it is by advance_upload.
_COMMIT = f"""
with held as materialized (
    select from storage.resumable where version = %s::uuid and holder = %s::uuid for update
),
put as ({PUT} where exists (select from held)),
marked as (
    update storage.resumable r set committed_at = put.updated_at, etag = put.etag
    from put where r.version = %s::uuid and put.outcome = 'stored'
)
select * from put
"""


def _upload(row: Row) -> ResumableUpload:
    version, bucket, key, content_type, owner, by_service, details, matching, differing, unmodified, *rest = (
        row
    )
    metadata, length, first_part, part_step, received, upload_id, etags, tail, etag, *more = rest
    return ResumableUpload(
        UUID(version),
        bucket,
        key,
        content_type,
        uuid_of(owner),
        by_service,
        Details(**loads(details)),
        Conditions(_tags(matching), _tags(differing), unmodified),
        metadata,
        length,
        first_part,
        part_step,
        received,
        upload_id,
        tuple(etags),
        uuid_of(tail),
        etag,
        *more,
    )


def _tags(given: list[str] | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(given)


@frozen(eq=False)
class ResumableRows:
    """Uploads that take several requests (``resumable``), each held by one request at a time.

    Nothing here counts in a bucket's quota. Their versions and tails are reserved like those of other uploads, but
    the sweeper gives them up only after they have expired.
    """

    database: Pool
    actor: Actor

    async def create(self, upload: ResumableUpload, lasts: timedelta) -> datetime:
        """Add an upload and reserve its version; returns when it expires. Raises ``bucket_not_found``."""
        matching, differing = tags_of(upload.conditions)
        values = asdict(upload, recurse=False) | {
            "version": str(upload.version),
            "owner": plain_text(upload.owner),
            "details": dumps(asdict(upload.details)).decode(),
            "if_match": matching,
            "if_none_match": differing,
            "unmodified_since": upload.conditions.unmodified_since,
            "lasts": lasts,
        }
        try:
            rows = await self.database.query(_CREATE, values)
        except ForeignKeyViolation:
            raise errors.bucket_not_found() from None
        expires_at: datetime = rows[0][0]
        return expires_at

    async def find(self, version: UUID) -> ResumableUpload | None:
        rows = await self.database.query(
            f"select {_COLUMNS} from storage.resumable where version = %s", (str(version),)
        )
        return _upload(rows[0]) if rows else None

    async def hold(self, version: UUID, holder: UUID, lasts: timedelta) -> ResumableUpload | None:
        """Hold the upload for ``lasts``. None if another request holds it (which then learns from ``renew`` that it
        is waited for), or if there is no such upload."""
        rows = await self.database.query(
            "update storage.resumable set holder = %s, held_until = now() + %s, wanted_at = null"
            f" where version = %s and (holder is null or held_until <= now()) returning {_COLUMNS}",
            (str(holder), lasts, str(version)),
        )
        if not rows:
            await self.database.query(
                "update storage.resumable set wanted_at = now() where version = %s returning 1",
                (str(version),),
            )
        return _upload(rows[0]) if rows else None

    async def renew(self, version: UUID, holder: UUID, lasts: timedelta) -> bool | None:
        """Hold the upload for longer. Whether others wait for it; None if it is not held by ``holder`` any more."""
        rows = await self.database.query(
            "update storage.resumable set held_until = now() + %s where version = %s and holder = %s"
            " returning coalesce(wanted_at > now() - %s, false)",
            (lasts, str(version), str(holder), timedelta(seconds=WAITING_SECONDS)),
        )
        return bool(rows[0][0]) if rows else None

    async def release(self, version: UUID, holder: UUID) -> None:
        """Hold the upload no longer, if ``holder`` does."""
        await self.database.query(
            "update storage.resumable set holder = null where version = %s and holder = %s returning 1",
            (str(version), str(holder)),
        )

    async def advance(
        self, version: UUID, holder: UUID, progress: Progress, lasts: timedelta
    ) -> ResumableUpload | None:
        """Record progress, extend the expiry, and turn a tail that is replaced into garbage, in one transaction.

        Returns the upload as it is now; None, with nothing changed, if ``holder`` does not hold it or it has been
        given up.
        """
        rows = await self.database.query(
            f"select {_COLUMNS} from storage.advance_upload(%s, %s, %s, %s, %s, %s::text[], %s, %s, %s)"
            " where version is not null",
            (
                str(version),
                str(holder),
                progress.received,
                progress.length,
                progress.upload_id,
                list(progress.etags),
                plain_text(progress.tail),
                progress.etag,
                lasts,
            ),
        )
        return _upload(rows[0]) if rows else None

    async def expect_sha256(self, version: UUID, holder: UUID, sha256: str) -> bool:
        """Record which SHA-256 the whole must have. False, with nothing changed, if ``holder`` does not hold it."""
        rows = await self.database.query(
            "update storage.resumable set sha256 = %s where version = %s and holder = %s returning 1",
            (sha256, str(version), str(holder)),
        )
        return bool(rows)

    async def commit(
        self, version: UUID, holder: UUID, new: NewObject, writer: Writer, conditions: Conditions
    ) -> Switched | None:
        """As ``ObjectRows.put``, and record it with the upload in the same transaction. None if ``holder`` does not
        hold the upload."""
        params = (str(version), str(holder), *put_values(new, writer, conditions), str(version))
        rows = await changed(self.database, self.actor, writer, _COMMIT, params)
        return switched_from(rows[0]) if rows else None

    async def remove(self, version: UUID, holder: UUID) -> list[UUID]:
        """Forget the upload; the versions that have become garbage. None have if it was committed."""
        rows = await self.database.query(
            "with gone as (delete from storage.resumable where version = %s and holder = %s returning version, tail)"
            " select storage.discard_uploads(array[version, tail]) from gone",
            (str(version), str(holder)),
        )
        return [UUID(removed) for (removed,) in rows]

    async def sweep(self, expired_before: datetime) -> int:
        """Delete uploads that had expired by then; returns how many."""
        rows = await self.database.query(
            "with gone as (delete from storage.resumable where expires_at < %s returning 1)"
            " select count(*) from gone",
            (expired_before,),
        )
        return int(rows[0][0])
