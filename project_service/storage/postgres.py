"""The rows of storage in PostgreSQL: buckets, links, garbage, and objects with their listing.

Changes of objects are functions of the schema ``storage``, each one transaction: ``put_object``, ``delete_objects``,
``move_object``, ``change_object``. ``refusal`` is their rule on owners and conditions, ``sees`` the rule on what a
writer may see, and ``judge`` asks policies about a change. ``docs/architecture.rst`` says which migration has the
newest definition of each.

What policies let a caller see is read in the caller's own role (``SqlObjects._policed``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg2
from attrs import asdict, define, field, frozen
from orjson import Fragment, dumps
from psycopg2 import DatabaseError
from psycopg2.errors import CheckViolation, ForeignKeyViolation, RestrictViolation
from twisted.logger import Logger

from project_service.database.acting import Actor, Preamble, Session
from project_service.database.connection import Row
from project_service.database.errors import describe
from project_service.database.pipeline import Step, as_texts, may_be_stale, numbered
from project_service.database.pool import Pool
from project_service.database.quickness import Quickness
from project_service.database.sharing import answered
from project_service.database.trust import Trust
from project_service.storage import errors, keys
from project_service.storage.postgres_listing import page_query, sorted_query
from project_service.storage.repository import NewObject, Switched
from project_service.storage.values import (
    RULE_SCHEMAS,
    UNCONDITIONAL,
    Bucket,
    BucketRules,
    Conditions,
    Details,
    Identity,
    Link,
    ObjectRow,
    Page,
    SortedPage,
    Sorting,
    StoredRendition,
    UploadTerms,
    Viewer,
    Writer,
    validation_failed_anonymous_reads,
    validation_failed_owner_only_reads,
)

_log = Logger()

_RULE_COLUMNS = ", ".join(f"b.{rule}" for rule in RULE_SCHEMAS)
_BUCKET_COLUMNS = f"b.name, {_RULE_COLUMNS}, u.object_count, u.total_bytes, b.created_at"
_BUCKETS_AND_USAGE = """
    storage.buckets b cross join lateral (
        select sum(object_count)::bigint as object_count, sum(total_bytes)::bigint as total_bytes
        from storage.usage where bucket = b.name
    ) u
"""


def _bucket(row: Row) -> Bucket:
    name, *rules, count, size, created_at = row
    values: Iterator[Any] = (tuple(value) if isinstance(value, list) else value for value in rules)
    return Bucket(name, BucketRules(*values), count, size, created_at)


# Rules that do not go with the visibility, by the constraint that says so.
_RULES_APART = {
    "buckets_owner_only_reads": validation_failed_owner_only_reads,
    "buckets_anonymous_reads": validation_failed_anonymous_reads,
}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@frozen(eq=False)
class SqlBuckets:
    database: Pool

    async def find(self, name: str) -> Bucket | None:
        rows = await self.database.read(
            f"select {_BUCKET_COLUMNS} from {_BUCKETS_AND_USAGE} where b.name = %s", (name,)
        )
        return _bucket(rows[0]) if rows else None

    async def all(self) -> list[Bucket]:
        return [
            _bucket(row)
            for row in await self.database.query(
                f"select {_BUCKET_COLUMNS} from {_BUCKETS_AND_USAGE} order by b.name"
            )
        ]

    async def create(self, name: str, rules: BucketRules) -> Bucket:
        made = await self.database.query(
            "select storage.create_bucket(%s, %s, %s, %s, %s::text[], %s, %s, %s, %s, %s)",
            (
                name,
                rules.visibility,
                rules.max_object_bytes,
                rules.max_bucket_bytes,
                _plain(rules.allowed_content_types),
                rules.owner_only_writes,
                rules.owner_only_reads,
                rules.anonymous_reads,
                rules.policies,
                rules.cache_control,
            ),
        )
        if not made[0][0]:
            raise errors.bucket_exists()
        return await self._existing(name)

    async def change(self, name: str, changes: Mapping[str, Any]) -> Bucket:
        if not changes.keys() <= RULE_SCHEMAS.keys():
            raise ValueError("not a rule of a bucket")
        if changes:
            settings = ", ".join(f"{rule} = %({rule})s" for rule in sorted(changes))
            values = {rule: _plain(value) for rule, value in changes.items()}
            try:
                await self.database.query(
                    f"update storage.buckets set {settings} where name = %(name)s", {**values, "name": name}
                )
            except CheckViolation as violated:
                # The other values have been checked. What the visibility is by now only the database knows.
                apart = _RULES_APART.get(str(violated.diag.constraint_name))
                if apart is None:
                    # A constraint of the project's own.
                    raise
                raise apart() from None
        return await self._existing(name)

    async def delete(self, name: str) -> None:
        try:
            outcome = (await self.database.query("select storage.delete_bucket(%s)", (name,)))[0][0]
        except (ForeignKeyViolation, RestrictViolation):
            raise errors.bucket_in_use() from None
        if outcome != "deleted":
            raise errors.refused(outcome)

    async def _existing(self, name: str) -> Bucket:
        bucket = await self.find(name)
        if bucket is None:
            raise errors.bucket_not_found()
        return bucket


_LINK_TYPES = {
    "bucket": "text",
    "key": "text",
    "expires_at": "timestamptz",
    "uses_left": "integer",
    "id": "uuid",
    "created_at": "timestamptz",
    "created_by": "uuid",
    "used_at": "timestamptz",
    "owner": "uuid",
    "method": "text",
    "by_prefix": "boolean",
    "max_bytes": "bigint",
    "content_types": "text[]",
    "overwrite": "boolean",
    "as_service": "boolean",
    "role": "text",
    "claims": "text",
}
_LINK_COLUMNS = ", ".join(_LINK_TYPES)
# A thousand links are one parameter and one statement.
_ADD_LINKS = (
    f"insert into storage.links (token_hash, {_LINK_COLUMNS})"
    f" select decode(l.token_hash, 'hex'), {', '.join(f'l.{column}' for column in _LINK_TYPES)}"
    " from jsonb_to_recordset(%s::jsonb) as l (token_hash text,"
    f" {', '.join(f'{column} {kind}' for column, kind in _LINK_TYPES.items())})"
    " join storage.buckets b on b.name = l.bucket for key share of b returning 1"
)


def _link(row: Row) -> Link:
    bucket, key, expires_at, uses_left, link_id, created_at, created_by, used_at, owner, *terms = row
    method, by_prefix, max_bytes, content_types, overwrite, as_service, role, claims = terms
    types = None if content_types is None else tuple(content_types)
    return Link(
        bucket,
        key,
        expires_at,
        uses_left,
        UUID(link_id),
        created_at,
        uuid_of(created_by),
        used_at,
        uuid_of(owner),
        UploadTerms(by_prefix, max_bytes, types, overwrite, as_service) if method == "PUT" else None,
        None if role is None else Identity(role, claims),
    )


def _link_as_json(token_hash: bytes, link: Link) -> dict[str, Any]:
    values = asdict(link, recurse=False)
    terms = values.pop("upload") or UploadTerms()
    role, claims = _role_and_claims(values.pop("identity"))
    known = {"token_hash": token_hash.hex(), "method": link.method, "role": role, "claims": claims}
    return {**known, **values, **asdict(terms)}


@frozen(eq=False)
class SqlLinks:
    database: Pool

    async def add(self, links: Mapping[bytes, Link]) -> None:
        rows = await self.database.prepared(
            _ADD_LINKS, (dumps([_link_as_json(*one) for one in links.items()]).decode(),)
        )
        if len(rows) < len(links):
            raise errors.bucket_not_found()

    async def find(self, token_hash: bytes) -> Link | None:
        rows = await self.database.read(
            f"select {_LINK_COLUMNS} from storage.links where token_hash = %s", (token_hash,)
        )
        return _link(rows[0]) if rows else None

    async def page(
        self,
        bucket: str,
        now: datetime,
        creator: UUID | None,
        after: tuple[datetime, UUID] | None,
        limit: int,
    ) -> list[Link]:
        conditions, values = ["bucket = %s", "expires_at > %s"], [bucket, now]
        if creator is not None:
            conditions.append("created_by = %s")
            values.append(str(creator))
        if after is not None:
            conditions.append("(created_at, id) < (%s, %s)")
            values += [after[0], str(after[1])]
        rows = await self.database.query(
            f"select {_LINK_COLUMNS} from storage.links where {' and '.join(conditions)}"
            " order by created_at desc, id desc limit %s",
            (*values, limit),
        )
        return [_link(row) for row in rows]

    async def revoke(self, bucket: str, link_id: UUID, creator: UUID | None) -> bool:
        rows = await self.database.query(
            "delete from storage.links where bucket = %s and id = %s"
            " and (%s::uuid is null or created_by = %s::uuid) returning 1",
            (bucket, str(link_id), plain_text(creator), plain_text(creator)),
        )
        return bool(rows)

    async def use(self, token_hash: bytes, now: datetime) -> bool:
        rows = await self.database.prepared(
            "update storage.links set uses_left = uses_left - 1, used_at = %s::timestamptz"
            " where token_hash = %s and expires_at > %s and (uses_left is null or uses_left > 0) returning 1",
            (now, token_hash, now),
        )
        return bool(rows)

    async def sweep(self, expired_before: datetime) -> int:
        rows = await self.database.query(
            "with gone as (delete from storage.links where expires_at < %s returning 1) select count(*) from gone",
            (expired_before,),
        )
        return int(rows[0][0])


# The columns that ``object_row`` takes, in this order.
COLUMNS = (
    "bucket",
    "key",
    "version",
    "size",
    "content_type",
    "etag",
    "owner",
    "updated_at",
    "max_age_seconds",
    "changed_twice",
    "cache_control",
    "metadata::text",
    "content_language",
    "sha256",
)
ALL_COLUMNS = ", ".join(COLUMNS)


def object_row(row: Row) -> ObjectRow:
    bucket, key, version, size, content_type, etag, owner, *more = row
    owner_id = None if owner is None else UUID(owner)
    return ObjectRow(bucket, key, UUID(version), size, content_type, etag, owner_id, *more)


def uuid_array(values: Iterable[UUID]) -> str:
    """A parameter for an array of uuids. psycopg2 would write a list as an array of texts, which EXECUTE refuses."""
    return f"{{{','.join(map(str, values))}}}"


@frozen(eq=False)
class SqlGarbage:
    database: Pool

    async def discard(self, versions: Sequence[UUID]) -> list[UUID]:
        rows = await self.database.query(
            "select storage.discard_uploads(%s::uuid[])", (uuid_array(versions),)
        )
        return [UUID(version) for (version,) in rows]

    async def stale_uploads(self, silent_for: timedelta, limit: int) -> list[UUID]:
        rows = await self.database.query(
            "select version from storage.uploads where seen_at <= now() - %s order by seen_at limit %s",
            (silent_for, limit),
        )
        return [UUID(version) for (version,) in rows]

    async def garbage(
        self, limit: int, after: UUID | None = None, removed_for: timedelta = timedelta(0)
    ) -> list[tuple[UUID, str]]:
        rows = await self.database.query(
            "select version, bucket from storage.garbage"
            " where (%(after)s::uuid is null or version > %(after)s::uuid) and added_at <= now() - %(removed_for)s"
            " order by version limit %(limit)s",
            {"after": None if after is None else str(after), "limit": limit, "removed_for": removed_for},
        )
        return [(UUID(version), bucket) for version, bucket in rows]

    async def forget(self, versions: Sequence[UUID]) -> list[UUID]:
        array = uuid_array(versions)
        rows = await self.database.prepared(
            "with gone as (delete from storage.garbage where version = any (%s::uuid[]))"
            " select version from storage.garbage where rendition_of = any (%s::uuid[])",
            (array, array),
        )
        return [UUID(version) for (version,) in rows]

    async def unknown(self, versions: Sequence[UUID]) -> set[UUID]:
        rows = await self.database.query(
            "select v from unnest(%s::uuid[]) v where not exists (select from storage.objects where version = v)"
            " and not exists (select from storage.renditions where version = v)"
            " and not exists (select from storage.uploads where version = v)"
            " and not exists (select from storage.garbage where version = v)",
            (uuid_array(versions),),
        )
        return {UUID(version) for (version,) in rows}

    async def reserved(self, versions: Sequence[UUID]) -> set[UUID]:
        rows = await self.database.query(
            "select version from storage.uploads where version = any (%s::uuid[])", (uuid_array(versions),)
        )
        return {UUID(version) for (version,) in rows}

    async def current(self, versions: Sequence[UUID]) -> set[UUID]:
        rows = await self.database.query(
            "select version from storage.objects where version = any (%s::uuid[])", (uuid_array(versions),)
        )
        return {UUID(version) for (version,) in rows}

    async def objects_from(self, after: tuple[str, str] | None, limit: int) -> list[ObjectRow]:
        rows = await self.database.query(
            f"select {ALL_COLUMNS} from storage.objects where (bucket, key) > (%s, %s) order by bucket, key limit %s",
            (*(after or ("", "")), limit),
        )
        return [object_row(row) for row in rows]

    async def without_sha256(self, after: tuple[str, str] | None, limit: int) -> list[ObjectRow]:
        rows = await self.database.query(
            f"select {ALL_COLUMNS} from storage.objects where sha256 is null and (bucket, key) > (%s, %s)"
            " order by bucket, key limit %s",
            (*(after or ("", "")), limit),
        )
        return [object_row(row) for row in rows]

    async def set_sha256(self, version: UUID, sha256: str) -> bool:
        rows = await self.database.query(
            "update storage.objects set sha256 = %s where version = %s::uuid and sha256 is null returning 1",
            (sha256, str(version)),
        )
        return bool(rows)


# SQLSTATEs that speak of the server: connections, resources, the system, a shutdown. Whatever else a read by policies
# fails with is taken for the fault of a policy.
_OUTAGES = ("08", "53", "58", "57P")

# A page of at most so many entries takes about a millisecond, and may be read on a shared connection.
QUICK_PAGE = 100

# The writer and the conditions, as parameters of the functions that change objects.
_TERMS = "%s::uuid, %s, %s::text[], %s::text[], %s, %s"


def _terms(writer: Writer, conditions: Conditions) -> tuple[object, ...]:
    identity = _role_and_claims(writer.identity)
    return plain_text(writer.user_id), writer.is_service, *tags_of(conditions), *identity


def _role_and_claims(identity: Identity | None) -> tuple[str | None, str | None]:
    return (None, None) if identity is None else (identity.role, identity.claims)


def tags_of(conditions: Conditions) -> tuple[list[str] | None, ...]:
    matching, differing = conditions.if_match, conditions.if_none_match
    return None if matching is None else list(matching), None if differing is None else list(differing)


def _fields_of(composite: str) -> str:
    """The columns of a whole row that a function returned under that name."""
    return ", ".join(f"({composite}).{column}" for column in COLUMNS)


PUT = (
    f"select outcome, replaced, {_fields_of('stored')}"
    f" from storage.put_object(%s, %s, %s::uuid, %s, %s, %s, %s::integer, %s, %s::jsonb, %s, %s, {_TERMS})"
)


def put_values(new: NewObject, writer: Writer, conditions: Conditions) -> tuple[object, ...]:
    """The parameters of ``PUT``."""
    return (
        new.bucket,
        new.key,
        str(new.version),
        new.size,
        new.content_type,
        new.etag,
        new.details.max_age_seconds,
        new.details.cache_control,
        new.details.metadata,
        new.details.content_language,
        new.sha256,
        *_terms(writer, conditions),
    )


def switched_from(row: Row) -> Switched:
    """What a row of ``PUT`` or of a move says. Raises the refusals of ``errors.refused``."""
    outcome, replaced, *current = row
    if outcome not in ("stored", "moved"):
        raise errors.refused(*_outcomes(outcome))
    return Switched(object_row(tuple(current)), uuid_of(replaced))


# One statement, so that a link that cannot be used undoes the object.
_PUT_BY_LINK = f"select storage.use_upload_link(%s::bytea, put.outcome), put.* from ({PUT}) put"
# The SQLSTATE that ``storage.use_upload_link`` raises; its message is the outcome.
_LINK_REFUSED = "PSL01"
_MOVE = f"select outcome, replaced, {_fields_of('moved')} from storage.move_object(%s, %s, %s, {_TERMS})"
_MOVE_TO_BUCKET = (
    f"select outcome, replaced, {_fields_of('moved')}"
    f" from storage.move_to_bucket(%s, %s, %s::uuid, %s, %s, %s::uuid, %s, {_TERMS})"
)
_CHANGE = f"select outcome, {_fields_of('changed')} from storage.change_object(%s, %s, %s::jsonb, {_TERMS})"


def _as_columns(changes: Mapping[str, Any]) -> str:
    """Changes of an object as a JSON object of columns; its metadata is JSON already."""
    columns = {
        name: Fragment(value) if name == "metadata" and value is not None else value
        for name, value in changes.items()
    }
    return dumps(columns).decode()


def plain_text(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def uuid_of(value: str | None) -> UUID | None:
    return None if value is None else UUID(value)


def _owner_of(viewer: Viewer | None) -> UUID | None:
    return None if viewer is None else viewer.owner


@contextmanager
def _keys_referred_to() -> Iterator[None]:
    """The project's own tables may have foreign keys to ``storage.objects``, which decide whether a key may go."""
    try:
        yield
    except (ForeignKeyViolation, RestrictViolation):
        raise errors.object_in_use() from None


_FIND = f"select {ALL_COLUMNS} from storage.objects where bucket = %s and key = %s"
_FIND_MANY = f"select {ALL_COLUMNS} from storage.objects where bucket = %s and key = any (%s::text[])"
# Why row-level security shows rows to the caller's role here and nowhere else.
_JUDGING = ("storage.judging", "on")


def acting_as(identity: Identity, trust: Trust) -> Preamble:
    """What is set where policies decide what ``identity`` may see."""
    pairs = (_JUDGING, ("request.jwt.claims", identity.claims), ("role", identity.role))
    return Preamble(pairs, identity.role, trust=trust, has_no_path=True)


# Policies that have been quick so many times in a row may be asked on a connection that reads share.
_QUICK_RUNS = 20


def log_failed_policy(reason: str) -> None:
    """The caller is refused without the reason."""
    _log.warn("A policy on storage.objects failed: {reason}", reason=reason)


def _outcomes(*outcomes: str) -> list[str]:
    """Outcomes of changes without the reason for which a policy failed, which goes to the log."""
    plain = []
    for outcome in outcomes:
        code, failed, reason = outcome.partition(": ")
        if failed:
            log_failed_policy(reason)
        plain.append(code)
    return plain


@define(eq=False)
class SqlObjects:
    """``actor`` runs statements in which policies and triggers of the project decide. ``_quickness`` is that of
    policies."""

    database: Pool
    actor: Actor
    _quickness: Quickness = field(factory=lambda: Quickness(_QUICK_RUNS), init=False)

    async def find(self, bucket: str, key: str, viewer: Viewer | None = None) -> ObjectRow | None:
        if viewer is None or viewer.identity is None:
            rows = await self.database.read(_FIND, (bucket, key))
        else:
            rows = await self._policed(viewer.identity, _FIND, (bucket, key), short=True) or []
        if not rows:
            return None
        row = object_row(rows[0])
        return row if viewer is None or viewer.owns(row) else None

    async def find_many(
        self, bucket: str, keys: Sequence[str], viewer: Viewer | None = None
    ) -> dict[str, ObjectRow]:
        params = (bucket, list(keys))
        if viewer is None or viewer.identity is None:
            rows = await self.database.prepared(_FIND_MANY, params)
        else:
            rows = await self._policed(viewer.identity, _FIND_MANY, params) or []
        found = map(object_row, rows)
        return {row.key: row for row in found if viewer is None or viewer.owns(row)}

    async def page(
        self,
        bucket: str,
        prefix: str,
        after: str | None,
        limit: int,
        recursive: bool,
        viewer: Viewer | None = None,
    ) -> Page:
        sql, params = page_query(bucket, prefix, after, limit, recursive, _owner_of(viewer))
        objects, folders, last = await self._page(sql, params, viewer, quick=limit <= QUICK_PAGE)
        return Page(objects.encode(), folders.encode(), last)

    async def sorted_page(
        self,
        bucket: str,
        prefix: str,
        sorting: Sorting,
        after: tuple[str, str] | None,
        limit: int,
        viewer: Viewer | None = None,
    ) -> SortedPage:
        sql, params = sorted_query(bucket, prefix, sorting, after, limit, _owner_of(viewer))
        objects, last = await self._page(sql, params, viewer, quick=False)
        return SortedPage(objects.encode(), None if last is None else (last[0][0], last[0][1]))

    async def _page(self, sql: str, params: Sequence[str], viewer: Viewer | None, quick: bool) -> Row:
        rows: list[Row] | None
        if viewer is not None and viewer.identity is not None:
            rows = await self._policed(viewer.identity, sql, params)
        else:
            rows = await (self.database.read(sql, params) if quick else self.database.prepared(sql, params))
        if rows is None:
            raise errors.not_allowed()
        return rows[0]

    async def keys(self, bucket: str, prefix: str, limit: int) -> list[str]:
        end = keys.end_of_prefix(prefix)
        rows = await self.database.query(
            "select key from storage.objects where bucket = %(bucket)s and key >= %(prefix)s"
            f"{'' if end is None else ' and key < %(end)s'} order by key limit %(limit)s",
            {"bucket": bucket, "prefix": prefix, "end": end, "limit": limit},
        )
        return [key for (key,) in rows]

    async def check_policies(
        self, bucket: str, key: str, size: int, content_type: str, details: Details, writer: Writer
    ) -> None:
        rows = await self._changed(
            writer,
            "select storage.check_put(%s, %s, %s, %s, %s::integer, %s, %s::jsonb, %s, %s::uuid, %s, %s)",
            (
                bucket,
                key,
                size,
                content_type,
                details.max_age_seconds,
                details.cache_control,
                details.metadata,
                details.content_language,
                plain_text(writer.user_id),
                *_role_and_claims(writer.identity),
            ),
        )
        if (outcome := rows[0][0]) is not None:
            raise errors.refused(*_outcomes(outcome))

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

    async def put(
        self,
        new: NewObject,
        writer: Writer,
        conditions: Conditions = UNCONDITIONAL,
        link: bytes | None = None,
    ) -> Switched:
        values = put_values(new, writer, conditions)
        if link is None:
            rows = await self._changed(writer, PUT, values)
        else:
            rows = await self._put_by_link(writer, link, values)
        return switched_from(rows[0])

    async def _put_by_link(self, writer: Writer, link: bytes, params: Sequence[object]) -> list[Row]:
        try:
            rows = await self._changed(writer, _PUT_BY_LINK, (link, *params))
        except DatabaseError as refusal:
            if refusal.pgcode == _LINK_REFUSED:
                raise errors.refused(refusal.diag.message_primary or "") from None
            raise
        return [row[1:] for row in rows]

    async def delete(
        self, bucket: str, keys: Sequence[str], writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Mapping[str, UUID]:
        with _keys_referred_to():
            rows = await self._changed(
                writer,
                f"select * from storage.delete_objects(%s, %s::text[], {_TERMS})",
                (bucket, list(keys), *_terms(writer, conditions)),
            )
        if refusals := {*_outcomes(*(outcome for outcome, _, _ in rows))} - {"deleted", "missing"}:
            raise errors.refused(*refusals)
        return {key: UUID(version) for _, key, version in rows if version is not None}

    async def move(
        self, bucket: str, source: str, target: str, writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Switched:
        with _keys_referred_to():
            rows = await self._changed(writer, _MOVE, (bucket, source, target, *_terms(writer, conditions)))
        return switched_from(rows[0])

    async def move_to_bucket(
        self, row: ObjectRow, new: NewObject, writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Switched:
        with _keys_referred_to():
            rows = await self._changed(
                writer,
                _MOVE_TO_BUCKET,
                (
                    row.bucket,
                    row.key,
                    str(row.version),
                    new.bucket,
                    new.key,
                    str(new.version),
                    new.etag,
                    *_terms(writer, conditions),
                ),
            )
        return switched_from(rows[0])

    async def change(
        self,
        bucket: str,
        key: str,
        changes: Mapping[str, Any],
        writer: Writer,
        conditions: Conditions = UNCONDITIONAL,
    ) -> ObjectRow:
        rows = await self._changed(
            writer, _CHANGE, (bucket, key, _as_columns(changes), *_terms(writer, conditions))
        )
        outcome, *changed = rows[0]
        if outcome != "changed":
            raise errors.refused(*_outcomes(outcome))
        return object_row(tuple(changed))

    async def reserve_uploads(self, versions: Sequence[UUID], bucket: str) -> None:
        await self.database.prepared(
            "insert into storage.uploads (version, bucket) select unnest(%s::uuid[]), %s",
            (uuid_array(versions), bucket),
        )

    async def release_uploads(self, versions: Sequence[UUID]) -> None:
        await self.database.query(
            "delete from storage.uploads where version = any (%s::uuid[])", (uuid_array(versions),)
        )

    async def renew_upload(self, version: UUID) -> bool:
        rows = await self.database.query(
            "update storage.uploads set seen_at = now() where version = %s::uuid returning 1", (str(version),)
        )
        return bool(rows)

    async def _policed(
        self, identity: Identity, sql: str, params: Sequence[Any], short: bool = False
    ) -> list[Row] | None:
        """The rows of ``sql`` in the role and with the claims of ``identity``; None, and the reason in the log, if a
        policy fails. A ``short`` query takes no longer than its policies do.

        Raises failures that are the database's own.
        """
        trust = self.actor.trust()
        preamble = acting_as(identity, trust)
        step = Step(numbered(sql), as_texts(params), identity.role)

        async def run(session: Session) -> list[Row]:
            try:
                run = await session.run(step, timed=True)
            except psycopg2.Error as fault:
                if not may_be_stale(fault.pgcode):
                    raise
                return await session.text(sql, params)
            self._quickness.ran(run.took)
            return run.typed()

        try:
            if short:
                shared = self.actor.share(preamble, "", step, trust.version, self._quickness)
                if shared is not None:
                    if await answered(shared, self._quickness):
                        return shared.typed()
                    return await self.actor.use_again(preamble, "", run, self._quickness)
            return await self.actor.use(preamble, "", run)
        except psycopg2.Error as fault:
            self._quickness.failed()
            if fault.pgcode is None or fault.pgcode.startswith(_OUTAGES):
                raise
            log_failed_policy(describe(fault))
            return None

    async def _changed(self, writer: Writer, sql: str, params: Sequence[Any]) -> list[Row]:
        """The rows of a function that changes objects. It asks the policies itself, and fires triggers."""
        return await changed(self.database, self.actor, writer, sql, params)


async def changed(database: Pool, actor: Actor, writer: Writer, sql: str, params: Sequence[Any]) -> list[Row]:
    """The rows of a function that changes objects for ``writer``. On connections of their own where it may take as
    long as the project's SQL does: where policies are asked, or triggers are fired."""
    if writer.identity is not None:
        preamble = acting_as(writer.identity, actor.trust())
        return await actor.use(preamble, "", lambda session: session.own(sql, params))
    fires = any(change.startswith("storage.objects ") for change in actor.trust().triggers)
    return await (actor.pool if fires else database).prepared(sql, params)


@frozen(eq=False)
class SqlRenditions:
    database: Pool

    async def find(self, of: UUID, name: str) -> StoredRendition | None:
        rows = await self.database.read(
            "select version, size, etag from storage.renditions where rendition_of = %s::uuid and name = %s",
            (str(of), name),
        )
        return _rendition(rows[0]) if rows else None

    async def keep(
        self,
        bucket: str,
        of: UUID,
        name: str,
        new: StoredRendition,
        max_per_object: int,
        used: Mapping[UUID, float],
    ) -> tuple[StoredRendition | None, list[UUID]]:
        rows = await self.database.query(
            "select version, size, etag, evicted::text[] from storage.store_rendition("
            "%s, %s::uuid, %s, %s::uuid, %s, %s, %s, %s::uuid[], %s::double precision[])",
            (
                bucket,
                str(of),
                name,
                str(new.version),
                new.size,
                new.etag,
                max_per_object,
                uuid_array(used),
                list(used.values()),
            ),
        )
        *stored, evicted = rows[0]
        return None if stored[0] is None else _rendition(tuple(stored)), [UUID(one) for one in evicted]

    async def forget(self, version: UUID) -> None:
        await self.database.query("delete from storage.renditions where version = %s::uuid", (str(version),))


def _rendition(row: Row) -> StoredRendition:
    version, size, etag = row
    return StoredRendition(UUID(version), size, etag)
