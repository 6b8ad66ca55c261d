"""The rows of objects, and their listing.

Changes of objects are functions of the schema ``storage``, each one transaction: ``put_object``, ``delete_objects``,
``move_object``, ``change_object``. ``refusal`` is their rule on owners and conditions, ``sees`` the rule on what a
writer may see, and ``judge`` asks policies about a change. They are in ``database/sql/storage``.

What policies let a caller see is read in the caller's own role (``ObjectRows._policed``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg2
from attrs import define, field
from orjson import Fragment, dumps
from psycopg2 import DatabaseError
from psycopg2.errors import ForeignKeyViolation, RestrictViolation
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
from project_service.storage.rows import listing
from project_service.storage.rows.columns import (
    ALL_COLUMNS,
    COLUMNS,
    object_row,
    plain_text,
    role_and_claims,
    uuid_array,
    uuid_of,
)
from project_service.storage.rows.listing import entries_query, page_query, sorted_query
from project_service.storage.values import (
    UNCONDITIONAL,
    Conditions,
    Details,
    Entries,
    Identity,
    NewObject,
    ObjectRow,
    Page,
    SortedPage,
    Sorting,
    Switched,
    Viewer,
    Writer,
    validation_failed_too_many_entries,
)

_log = Logger()

# SQLSTATEs that speak of the server: connections, resources, the system, a shutdown. Whatever else a read by policies
# fails with is taken for the fault of a policy.
_OUTAGES = ("08", "53", "58", "57P")

# A page of at most so many entries takes about a millisecond, and may be read on a shared connection.
QUICK_PAGE = 100

# The writer and the conditions, as parameters of the functions that change objects.
_TERMS = "%s::uuid, %s, %s::text[], %s::text[], %s, %s"


def _terms(writer: Writer, conditions: Conditions) -> tuple[object, ...]:
    user_id = None if writer.user_id is None else str(writer.user_id)
    tags = _NO_TAGS if conditions is UNCONDITIONAL else tags_of(conditions)
    return user_id, writer.is_service, *tags, *role_and_claims(writer.identity)


_NO_TAGS = (None, None)


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


def acting_as(identity: Identity, trust: Trust, pooled: bool = False) -> Preamble:
    """What is set where policies decide what ``identity`` may see. ``pooled``: on sessions of a pooler."""
    pairs = (_JUDGING, ("request.jwt.claims", identity.claims), ("role", identity.role))
    return Preamble(pairs, identity.role, trust=trust, prepares=not pooled, has_no_path=True)


# Policies that have been quick so many times in a row may be asked on a connection that reads share.
_QUICK_RUNS = 20


def log_failed_policy(reason: str, table: str = "storage.objects") -> None:
    """The caller is refused without the reason."""
    _log.warn("A policy on {table} failed: {reason}", table=table, reason=reason)


def is_outage(fault: psycopg2.Error) -> bool:
    """Whether it is the database's own fault, and not that of a policy."""
    return fault.pgcode is None or fault.pgcode.startswith(_OUTAGES)


# What ``storage.judge`` says; after ": " may come why a policy failed. Another outcome may have another value there.
_JUDGED = ("not_allowed", "object_not_found", "missing")


def _outcomes(*outcomes: str) -> list[str]:
    """Outcomes of changes without the reason for which a policy failed, which goes to the log."""
    plain = []
    for outcome in outcomes:
        code, _, reason = outcome.partition(": ")
        if reason and code in _JUDGED:
            log_failed_policy(reason)
        plain.append(code)
    return plain


def _allowed(rows: list[Row] | None) -> list[Row]:
    """``rows``, unless a policy has failed."""
    if rows is None:
        raise errors.not_allowed()
    return rows


@define(eq=False)
class ObjectRows:
    """Objects in the database. Every change is one transaction; one that is refused (``errors.refused``) changes
    nothing. ``conditions`` have entity tags only: dates are replaced before (``conditions.without_date``).

    ``actor`` runs statements in which policies and triggers of the project decide. ``_quickness`` is that of
    policies.
    """

    database: Pool
    actor: Actor
    _quickness: Quickness = field(factory=lambda: Quickness(_QUICK_RUNS), init=False)

    async def find(self, bucket: str, key: str, viewer: Viewer | None = None) -> ObjectRow | None:
        """The object; None if there is none, or ``viewer`` may not see it. A policy that fails shows nothing."""
        rows = await self._seen(viewer, _FIND, (bucket, key), quick=True, short=True)
        if not rows:
            return None
        row = object_row(rows[0])
        return row if viewer is None or viewer.owns(row) else None

    async def find_many(
        self, bucket: str, keys: Sequence[str], viewer: Viewer | None = None
    ) -> dict[str, ObjectRow]:
        """Those of the objects that exist and that ``viewer`` may see, by key."""
        found = map(object_row, await self._seen(viewer, _FIND_MANY, (bucket, list(keys))) or ())
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
        """Up to ``limit`` objects and folders under ``prefix`` after the entry ``after``, ordered by key.

        With ``viewer`` as if there were only what this one may see. Raises ``not_allowed`` if a policy fails.
        """
        sql, params = page_query(bucket, prefix, after, limit, recursive, _owner_of(viewer))
        ((objects, folders, last),) = _allowed(
            await self._seen(viewer, sql, params, quick=limit <= QUICK_PAGE)
        )
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
        """Up to ``limit`` objects under ``prefix`` after ``after``, the ``last`` of the page before."""
        sql, params = sorted_query(bucket, prefix, sorting, after, limit, _owner_of(viewer))
        ((objects, last),) = _allowed(await self._seen(viewer, sql, params))
        return SortedPage(objects.encode(), None if last is None else (last[0][0], last[0][1]))

    async def entries(
        self,
        bucket: str,
        wanted: Entries,
        offset: int,
        limit: int,
        after: str | None = None,
        viewer: Viewer | None = None,
    ) -> list[ObjectRow | str]:
        """Up to ``limit`` objects, and folders as text, ``offset`` entries after the entry ``after``.

        With ``viewer`` as if there were only what this one may see. Raises ``not_allowed`` if a policy fails, and
        ``validation_failed`` where more than ``listing.MAX_PASSED`` entries would have to be passed.
        """
        if offset + limit > listing.MAX_PASSED:
            raise validation_failed_too_many_entries(listing.MAX_PASSED)
        sql, params = entries_query(bucket, wanted, offset, limit, after, _owner_of(viewer))
        rows = _allowed(await self._seen(viewer, sql, params))
        if rows[0][0] > listing.MAX_PASSED:
            raise validation_failed_too_many_entries(listing.MAX_PASSED)
        return [folder or object_row(tuple(row)) for _, folder, *row in rows if row[0] is not None]

    async def keys(self, bucket: str, prefix: str, limit: int) -> list[str]:
        end = keys.end_of_prefix(prefix)
        rows = await self.database.query(
            "select key from storage.objects where bucket = %(bucket)s and key >= %(prefix)s"
            f"{'' if end is None else ' and key < %(end)s'} order by key limit %(limit)s",
            {"bucket": bucket, "prefix": prefix, "end": end, "limit": limit},
        )
        return [key for (key,) in rows]

    async def usage(self, bucket: str, prefix: str) -> tuple[int, int]:
        """How many objects there are under ``prefix``, and their bytes. All of them are counted."""
        end = keys.end_of_prefix(prefix)
        rows = await self.database.query(
            "select count(*), coalesce(sum(size), 0)::bigint from storage.objects"
            f" where bucket = %(bucket)s and key >= %(prefix)s{'' if end is None else ' and key < %(end)s'}",
            {"bucket": bucket, "prefix": prefix, "end": end},
        )
        count, size = rows[0]
        return count, size

    async def check_policies(
        self, bucket: str, key: str, size: int, content_type: str, details: Details, writer: Writer
    ) -> None:
        """Raise ``not_allowed`` if policies would refuse that ``writer``, not the service, puts such an object."""
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
                *role_and_claims(writer.identity),
            ),
        )
        if (outcome := rows[0][0]) is not None:
            raise errors.refused(*_outcomes(outcome))

    async def room(self, bucket: str, key: str) -> int | None:
        # One statement, so that the object and the counters are of the same moment.
        """How large an object at ``key`` may be at present by the bucket's quota; None without a quota."""
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
        """Make a new object current. Raises ``request_timeout`` unless its version is reserved.

        It belongs to ``writer.user_id``; if the service writes without one, to the owner of the object replaced.
        ``link`` is the hash of the token of an upload link, of which the same transaction takes the use: raises
        ``token_used``, or ``token_not_found`` where it was revoked.
        """
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
        """Delete those of ``keys`` that ``writer`` sees and return their versions, or delete none and raise what
        ``access.check_write`` raises of one, or ``object_in_use`` if rows of the project's tables refer to one."""
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
        """Raises ``object_in_use`` if rows of the project's own tables refer to the object, or to one at
        ``target``."""
        with _keys_referred_to():
            rows = await self._changed(writer, _MOVE, (bucket, source, target, *_terms(writer, conditions)))
        return switched_from(rows[0])

    async def move_to_bucket(
        self, row: ObjectRow, new: NewObject, writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Switched:
        """Make the object ``row`` that of another bucket and key, as ``new`` names them, with a copy of its bytes.
        The old version becomes garbage. Raises ``object_changed`` if it has been replaced, and otherwise what a
        deletion and ``put`` raise."""
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
        """Change ``owner`` and members of ``Details``, by their names, and nothing else. Raises ``object_not_found``,
        also where ``writer`` does not see the object."""
        rows = await self._changed(
            writer, _CHANGE, (bucket, key, _as_columns(changes), *_terms(writer, conditions))
        )
        outcome, *changed = rows[0]
        if outcome != "changed":
            raise errors.refused(*_outcomes(outcome))
        return object_row(tuple(changed))

    async def reserve_uploads(self, versions: Sequence[UUID], bucket: str) -> None:
        """Reserve versions, before any of their bytes go to the store."""
        await self.database.prepared(
            "insert into storage.uploads (version, bucket) select unnest(%s::uuid[]), %s",
            (uuid_array(versions), bucket),
        )

    async def release_uploads(self, versions: Sequence[UUID]) -> None:
        """Release reserved versions under which nothing was ever sent to the store."""
        await self.database.query(
            "delete from storage.uploads where version = any (%s::uuid[])", (uuid_array(versions),)
        )

    async def renew_upload(self, version: UUID) -> bool:
        """Record that the version is still being uploaded. False if it has been given up."""
        rows = await self.database.query(
            "update storage.uploads set seen_at = now() where version = %s::uuid returning 1", (str(version),)
        )
        return bool(rows)

    def _seen(
        self,
        viewer: Viewer | None,
        sql: str,
        params: Sequence[Any],
        quick: bool = False,
        short: bool = False,
    ) -> Awaitable[list[Row] | None]:
        """The rows of ``sql`` as far as policies show them to ``viewer``; None if one fails. It may share its
        connection where no policy is asked if it is ``quick``, and where some are if it is ``short``."""
        if viewer is not None and viewer.identity is not None:
            return self._policed(viewer.identity, sql, params, short)
        return self.database.read(sql, params) if quick else self.database.prepared(sql, params)

    async def _policed(
        self, identity: Identity, sql: str, params: Sequence[Any], short: bool = False
    ) -> list[Row] | None:
        """The rows of ``sql`` in the role and with the claims of ``identity``; None, and the reason in the log, if a
        policy fails. A ``short`` query takes no longer than its policies do.

        Raises failures that are the database's own.
        """
        trust = self.actor.trust()
        preamble = acting_as(identity, trust, self.actor.pool.pooled)
        step = Step(numbered(sql), as_texts(params), identity.role)

        async def run(session: Session) -> list[Row]:
            if not session.prepares:
                return await session.text(sql, params)
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
            if is_outage(fault):
                raise
            log_failed_policy(describe(fault))
            return None

    def _changed(self, writer: Writer, sql: str, params: Sequence[Any]) -> Awaitable[list[Row]]:
        """The rows of a function that changes objects. It asks the policies itself, and fires triggers."""
        return changed(self.database, self.actor, writer, sql, params)


def changed(
    database: Pool, actor: Actor, writer: Writer, sql: str, params: Sequence[Any]
) -> Awaitable[list[Row]]:
    """The rows of a function that changes objects for ``writer``. On connections of their own where it may take as
    long as the project's SQL does: where policies are asked, or triggers are fired."""
    if writer.identity is not None:
        preamble = acting_as(writer.identity, actor.trust(), actor.pool.pooled)
        return actor.use(preamble, "", lambda session: session.own(sql, params))
    fires = any(change.startswith("storage.objects ") for change in actor.trust().triggers)
    return (actor.pool if fires else database).prepared(sql, params)
