"""``ObjectRows`` on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from attrs import frozen
from psycopg2.errors import ForeignKeyViolation, RestrictViolation

from project_service.database.pool import Pool
from project_service.storage import errors
from project_service.storage.model import UNCONDITIONAL, Conditions, ObjectRow, Page, Writer
from project_service.storage.ports import NewObject, Switched
from project_service.storage.sql import pages
from project_service.storage.sql.rows import ALL_COLUMNS, COLUMNS, object_row, uuid_array

# A page of so many entries takes about a millisecond, and may be read on a connection that others share.
QUICK_PAGE = 100

# How the functions that change objects are told who asks, and on what conditions.
_TERMS = "%s::uuid, %s, %s::text[], %s::text[]"


def _terms(writer: Writer, conditions: Conditions) -> tuple[object, ...]:
    return _text(writer.user_id), writer.is_service, *_tags(conditions)


def _tags(conditions: Conditions) -> tuple[list[str] | None, ...]:
    matching, differing = conditions.if_match, conditions.if_none_match
    return None if matching is None else list(matching), None if differing is None else list(differing)


def _fields_of(composite: str) -> str:
    """The columns of a whole row that a function returned under that name."""
    return ", ".join(f"({composite}).{column}" for column in COLUMNS)


_PUT = (
    f"select outcome, replaced, {_fields_of('stored')}"
    f" from storage.put_object(%s, %s, %s::uuid, %s, %s, %s, %s::integer, {_TERMS})"
)
_MOVE = f"select outcome, replaced, {_fields_of('moved')} from storage.move_object(%s, %s, %s, {_TERMS})"
_CHANGE = (
    f"select outcome, {_fields_of('changed')} from storage.change_object("
    "%s, %s, %s, %s::uuid, %s, %s::integer, %s::text[], %s::text[])"
)


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def _uuid(value: str | None) -> UUID | None:
    return None if value is None else UUID(value)


@contextmanager
def _keys_referred_to() -> Iterator[None]:
    """The project's own tables may have foreign keys to ``storage.objects``, which decide whether a key may go."""
    try:
        yield
    except (ForeignKeyViolation, RestrictViolation):
        raise errors.object_in_use() from None


@frozen(eq=False)
class SqlObjects:
    database: Pool

    async def find(self, bucket: str, key: str) -> ObjectRow | None:
        rows = await self.database.read(
            f"select {ALL_COLUMNS} from storage.objects where bucket = %s and key = %s", (bucket, key)
        )
        return object_row(rows[0]) if rows else None

    async def page(self, bucket: str, prefix: str, after: str | None, limit: int, recursive: bool) -> Page:
        sql, params = pages.json_query(bucket, prefix, after, limit, recursive)
        quick = limit <= QUICK_PAGE
        rows = await (self.database.read(sql, params) if quick else self.database.prepared(sql, params))
        objects, folders, last = rows[0]
        return Page(objects.encode(), folders.encode(), last)

    async def keys(self, bucket: str, prefix: str, limit: int) -> list[str]:
        sql, params = pages.query(bucket, prefix, None, limit, recursive=True)
        return [row[2] for row in (await self.database.query(sql, params))[:limit]]

    async def room(self, bucket: str, key: str) -> int | None:
        # One statement, so that the object and the counters are of the same moment.
        rows = await self.database.query(
            "select b.max_bucket_bytes, coalesce(o.size, 0),"
            " (select sum(total_bytes)::bigint from storage.usage where bucket = b.name)"
            " from storage.buckets b left join storage.objects o on o.bucket = b.name and o.key = %s"
            " where b.name = %s",
            (key, bucket),
        )
        if not rows or rows[0][0] is None:
            return None
        quota, there, total = rows[0]
        return int(there + max(0, quota - total))

    async def put(self, new: NewObject, writer: Writer, conditions: Conditions = UNCONDITIONAL) -> Switched:
        rows = await self.database.prepared(
            _PUT,
            (
                new.bucket,
                new.key,
                str(new.version),
                new.size,
                new.content_type,
                new.etag,
                new.max_age_seconds,
                *_terms(writer, conditions),
            ),
        )
        outcome, replaced, *stored = rows[0]
        if outcome != "stored":
            raise errors.refused(outcome)
        return Switched(object_row(tuple(stored)), _uuid(replaced))

    async def delete(
        self, bucket: str, keys: Sequence[str], writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Mapping[str, UUID]:
        with _keys_referred_to():
            rows = await self.database.prepared(
                f"select * from storage.delete_objects(%s, %s::text[], {_TERMS})",
                (bucket, list(keys), *_terms(writer, conditions)),
            )
        outcomes = {outcome for outcome, _, _ in rows}
        for refusal in ("bucket_not_found", "not_owner", "object_exists", "precondition_failed"):
            if refusal in outcomes:
                raise errors.refused(refusal)
        return {key: UUID(version) for _, key, version in rows if version is not None}

    async def move(
        self, bucket: str, source: str, target: str, writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Switched:
        with _keys_referred_to():
            rows = await self.database.prepared(
                _MOVE,
                (bucket, source, target, *_terms(writer, conditions)),
            )
        outcome, replaced, *moved = rows[0]
        if outcome != "moved":
            raise errors.refused(outcome)
        return Switched(object_row(tuple(moved)), _uuid(replaced))

    async def change(
        self, bucket: str, key: str, changes: Mapping[str, Any], conditions: Conditions = UNCONDITIONAL
    ) -> ObjectRow:
        rows = await self.database.prepared(
            _CHANGE,
            (
                bucket,
                key,
                "owner" in changes,
                _text(changes.get("owner")),
                "max_age_seconds" in changes,
                changes.get("max_age_seconds"),
                *_tags(conditions),
            ),
        )
        outcome, *changed = rows[0]
        if outcome != "changed":
            raise errors.refused(outcome)
        return object_row(tuple(changed))

    async def begin_uploads(self, versions: Sequence[UUID], bucket: str) -> None:
        await self.database.prepared(
            "insert into storage.uploads (version, bucket) select unnest(%s::uuid[]), %s",
            (uuid_array(versions), bucket),
        )

    async def withdraw_uploads(self, versions: Sequence[UUID]) -> None:
        await self.database.query(
            "delete from storage.uploads where version = any (%s::uuid[])", (uuid_array(versions),)
        )

    async def touch_upload(self, version: UUID) -> bool:
        rows = await self.database.query(
            "update storage.uploads set seen_at = now() where version = %s::uuid returning 1", (str(version),)
        )
        return bool(rows)
