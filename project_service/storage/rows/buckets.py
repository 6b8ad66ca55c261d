"""The rows of buckets, and how full they are.

A caller changes and sees them in a role of their own, so that policies on ``storage.buckets`` decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg2
from attrs import frozen
from psycopg2.errors import CheckViolation, ForeignKeyViolation, RestrictViolation, UniqueViolation

from project_service import audit
from project_service.audit import By, Event
from project_service.database.acting import Actor
from project_service.database.connection import Row
from project_service.database.errors import describe
from project_service.database.pool import Pool, Transaction
from project_service.errors import ApiError
from project_service.storage import errors
from project_service.storage.rows.columns import plain_text
from project_service.storage.rows.objects import acting_as, is_outage, log_failed_policy
from project_service.storage.values import (
    RULE_SCHEMAS,
    SERVICE,
    Bucket,
    BucketRules,
    Writer,
    validation_failed_anonymous_reads,
    validation_failed_owner_only_reads,
)

_BUCKET_COLUMNS = (
    f"b.name, {', '.join(f'b.{rule}' for rule in RULE_SCHEMAS)}, u.object_count, u.total_bytes, b.created_at,"
    " b.public, coalesce(b.updated_at, b.created_at), b.owner::text"
)
_BUCKETS_AND_USAGE = """
    storage.buckets b cross join lateral (
        select sum(object_count)::bigint as object_count, sum(total_bytes)::bigint as total_bytes
        from storage.usage where bucket = b.name
    ) u
"""


def _bucket(row: Row) -> Bucket:
    name, *rules, count, size, created_at, is_open, updated_at, owner = row
    values: Iterator[Any] = (tuple(value) if isinstance(value, list) else value for value in rules)
    owner_id = None if owner is None else UUID(owner)
    return Bucket(name, BucketRules(*values), count, size, created_at, is_open, updated_at, owner_id)


# Without RETURNING, for which callers would have to see what they make.
_CREATE = (
    f"insert into storage.buckets (name, {', '.join(RULE_SCHEMAS)}, public, owner)"
    f" values ({', '.join(['%s'] * (len(RULE_SCHEMAS) + 3))})"
)
# SQLSTATEs by which the project's SQL chooses a status.
_CHOSEN = re.compile(r"PT4\d\d\Z")
_SEEN = "select name from storage.buckets"


# Rules that do not go with the visibility, by the constraint that says so.
_RULES_APART = {
    "buckets_owner_only_reads": validation_failed_owner_only_reads,
    "buckets_anonymous_reads": validation_failed_anonymous_reads,
}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@frozen(eq=False)
class BucketRows:
    """Buckets in the database. Methods that need an existing bucket raise ``bucket_not_found``.

    A ``writer`` is the service, or a caller for whom policies decide: what they do not see is ``bucket_not_found``,
    and what they may not do ``not_allowed``, also where a policy fails, with the reason in the log. ``actor`` runs
    that; without one only the service may do anything.

    What the service does for ``by`` is in ``auth.audit``, by the same transaction.
    """

    database: Pool
    actor: Actor | None = None

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

    async def seen(self, writer: Writer) -> list[Bucket]:
        """Those that policies show to a caller."""
        names = {name for (name,) in await self._run(writer, _SEEN)}
        return [bucket for bucket in await self.all() if bucket.name in names]

    async def is_seen(self, writer: Writer, name: str) -> bool:
        """Whether policies show it to a caller; a policy that fails does not."""
        try:
            return bool(await self._run(writer, f"{_SEEN} where name = %s", (name,)))
        except ApiError as refusal:
            if refusal.code != "not_allowed":
                raise
            return False

    async def create(
        self,
        name: str,
        rules: BucketRules,
        is_open: bool = False,
        writer: Writer = SERVICE,
        by: By | None = None,
    ) -> Bucket:
        """Raises ``bucket_exists``."""
        values = [
            name,
            *(_plain(getattr(rules, rule)) for rule in RULE_SCHEMAS),
            is_open,
            plain_text(writer.user_id),
        ]
        try:
            if writer.is_service:
                await self._recorded(by and by("create_bucket", name), _CREATE, values, lambda rows: True)
            else:
                await self._run(writer, _CREATE, values, creates=True)
        except UniqueViolation as there:
            if (there.diag.schema_name, there.diag.table_name) != ("storage", "buckets"):
                raise  # a constraint of the project's own
            raise errors.bucket_exists() from None
        return await self._existing(name)

    async def change(
        self,
        name: str,
        changes: Mapping[str, Any],
        is_open: bool | None = None,
        writer: Writer = SERVICE,
        by: By | None = None,
    ) -> Bucket:
        """``changes`` are names of ``BucketRules`` with their new values; None for ``is_open`` leaves that."""
        if not changes.keys() <= RULE_SCHEMAS.keys():
            raise ValueError("not a rule of a bucket")
        values = {rule: _plain(value) for rule, value in changes.items()}
        if is_open is not None:
            values["public"] = is_open
        if not writer.is_service and not await self.is_seen(writer, name):
            raise errors.bucket_not_found()
        if values:
            settings = ", ".join(f"{column} = %s" for column in values)
            update = f"update storage.buckets set {settings} where name = %s returning 1"
            try:
                if writer.is_service:
                    event = by and by("change_bucket", name)
                    changed = await self._recorded(event, update, (*values.values(), name), bool)
                else:
                    changed = await self._run(writer, update, (*values.values(), name))
                if not changed:
                    raise errors.bucket_not_found() if writer.is_service else errors.not_allowed()
            except CheckViolation as violated:
                # The other values have been checked. What the visibility is by now only the database knows.
                apart = _RULES_APART.get(str(violated.diag.constraint_name))
                if apart is None:
                    # A constraint of the project's own.
                    raise
                raise apart() from None
        return await self._existing(name)

    async def delete(self, name: str, writer: Writer = SERVICE, by: By | None = None) -> None:
        """Raises ``bucket_not_empty``, and ``bucket_in_use`` if rows of the project's own tables refer to it."""
        try:
            if writer.is_service:
                event, delete = by and by("delete_bucket", name), "select storage.delete_bucket(%s)"
                rows = await self._recorded(event, delete, (name,), lambda rows: rows[0][0] == "deleted")
                outcome = rows[0][0]
            else:
                outcome = await self._delete_as(writer, name)
        except (ForeignKeyViolation, RestrictViolation) as referred:
            if (referred.diag.schema_name, referred.diag.table_name) == ("storage", "objects"):
                raise errors.bucket_not_empty() from None
            raise errors.bucket_in_use() from None
        if outcome != "deleted":
            raise errors.refused(outcome)

    async def record(self, event: Event) -> None:
        """Write an entry into the audit by itself."""
        await audit.record(self.database, event)

    async def _recorded(
        self, event: Event | None, sql: str, values: Sequence[Any], is_done: Callable[[list[Row]], bool]
    ) -> list[Row]:
        """The rows of one statement, which is recorded if it ``is_done`` by them."""
        if event is None:
            return await self.database.query(sql, values)

        async def run(transaction: Transaction) -> list[Row]:
            rows = await transaction.query(sql, values)
            if is_done(rows):
                await audit.record(transaction, event)
            return rows

        return await self.database.transaction(run)

    async def _delete_as(self, writer: Writer, name: str) -> str:
        if not await self.is_seen(writer, name):
            return "bucket_not_found"
        # The deletion would find that out last, and take the locks of all who write to the bucket before.
        if await self.database.query("select from storage.objects where bucket = %s limit 1", (name,)):
            return "bucket_not_empty"
        deleted = await self._run(writer, "delete from storage.buckets where name = %s returning 1", (name,))
        return "deleted" if deleted else "not_allowed"

    async def _run(
        self, writer: Writer, sql: str, values: Sequence[Any] = (), creates: bool = False
    ) -> list[Row]:
        """The rows of one statement of a caller. What policies say of it counts; with ``creates`` the project's SQL
        may choose the status of a refusal, as nothing is there that may not be seen."""
        if self.actor is None or writer.identity is None:
            raise errors.not_allowed()
        preamble = acting_as(writer.identity, self.actor.trust(), self.actor.pool.pooled)
        try:
            return await self.actor.use(preamble, "", lambda session: session.text(sql, values))
        except (UniqueViolation, CheckViolation, ForeignKeyViolation, RestrictViolation):
            raise
        except psycopg2.Error as fault:
            code = fault.pgcode or ""
            if is_outage(fault) or code.startswith("40") or (creates and _CHOSEN.match(code)):
                raise
            # The message that a row is refused names the table in quotes, whatever its language.
            if code != "42501" or '"buckets"' not in str(fault):
                log_failed_policy(describe(fault), "storage.buckets")
            raise errors.not_allowed() from None

    async def _existing(self, name: str) -> Bucket:
        bucket = await self.find(name)
        if bucket is None:
            raise errors.bucket_not_found()
        return bucket
