"""Removes what has expired."""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from project_service.auth.sql.query import Query
from project_service.database.advisory_lock import AUTH_UPKEEP
from project_service.database.pool import Pool, Transaction

_LOCK = Query(
    "one worker at a time; the lock goes with the transaction", "select pg_try_advisory_xact_lock(%(lock)s)"
)
# How many rows are removed at a time, so that no statement runs long, however much there is to remove.
BATCH = 5000
_EXPIRED = tuple(
    Query(
        f"expired rows of {table}",
        f"""
with gone as (
    select ctid from {table} where {condition} limit %(batch)s for update skip locked)
delete from {table} where ctid in (select ctid from gone) returning 1
""",
    )
    for table, condition in (
        ("auth.throttle", "expires_at < %(now)s"),
        # By the database's clock as well: on another host, or when the clock of this one has been set right, access
        # tokens of the session may still be valid.
        ("auth.revocations", "expires_at < least(%(now)s, now())"),
        ("auth.one_time_tokens", "expires_at < %(now)s"),
        # An ended session stays until its refresh tokens would have expired, so that their reuse is recognised.
        ("auth.sessions", "expires_at < %(now)s and access_expires_at < %(now)s"),
        ("auth.audit", "at < %(audit_before)s"),
        (
            "auth.refresh_tokens",
            # All that would have expired by now if they had not been used, except the last two of each session.
            """issued_at < %(tokens_before)s and not exists (select from auth.sessions s
                where s.id = session_id and token_hash in (s.current_hash, s.previous_hash))""",
        ),
    )
)
# Not those of the parents of active tokens, which are in auth.sessions.
_WIPE_SALTS = Query(
    "salts of tokens whose reuse window has passed",
    """
update auth.refresh_tokens set salt = null where token_hash in (
    select token_hash from auth.refresh_tokens where salt is not null and replaced_at < %(salt_before)s
    limit %(batch)s for update skip locked)
returning 1
""",
)
_ALL = (_WIPE_SALTS, *_EXPIRED)


@frozen
class SqlHousekeeping:
    """Implements ``ports.Housekeeping``."""

    database: Pool

    async def clean(
        self, now: datetime, salt_before: datetime, tokens_before: datetime, audit_before: datetime
    ) -> bool:
        async def one_batch(transaction: Transaction) -> int | None:
            row = await _LOCK.one(transaction, lock=AUTH_UPKEEP)
            if row is None or not row[0]:
                return None
            times = {
                "now": now,
                "salt_before": salt_before,
                "tokens_before": tokens_before,
                "audit_before": audit_before,
            }
            found = [await query.run(transaction, batch=BATCH, **times) for query in _ALL]
            return max(len(rows) for rows in found)

        while (most := await self.database.transaction(one_batch)) is not None:
            if most < BATCH:
                return True
        return False
