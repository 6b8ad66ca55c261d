"""What 0.1.0 sends to its database about tokens in e-mails, and about those that have expired."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta

import psycopg2
from attrs import frozen

_ISSUE = """
with u as (
    select * from auth.users
    where email_key = %(email_key)s and disabled_at is null
        and (%(purpose)s <> 'confirmation' or confirmed_at is null)
    for key share),
t as (
    insert into auth.one_time_tokens as known (token_hash, user_id, purpose, created_at, expires_at)
    select %(digest)s, id, %(purpose)s, %(at)s, %(expires)s from u
    on conflict (user_id, purpose) do update set
        token_hash = excluded.token_hash, created_at = excluded.created_at, expires_at = excluded.expires_at
        where known.created_at <= %(at)s - %(pause)s
    returning user_id)
select u.id::text from u join t on t.user_id = u.id
"""
_LOCK_OWNER = """
select u.id::text from auth.one_time_tokens t join auth.users u on u.id = t.user_id
where t.token_hash = %(digest)s and t.purpose = %(purpose)s and t.expires_at > %(at)s
for no key update of u
"""
_CONSUME = """
delete from auth.one_time_tokens
where token_hash = %(digest)s and purpose = %(purpose)s and expires_at > %(at)s returning user_id::text
"""
_EXPIRED = """
with gone as (
    select ctid from auth.one_time_tokens where expires_at < %(at)s limit 5000 for update skip locked)
delete from auth.one_time_tokens where ctid in (select ctid from gone) returning 1
"""


@frozen
class Tokens:
    """Of a host of 0.1.0 on the database of this DSN."""

    dsn: str

    def issue(self, email_key: str, purpose: str, digest: bytes, at: datetime, lifetime: timedelta) -> bool:
        given = {"email_key": email_key, "purpose": purpose, "digest": digest, "at": at}
        sent = {**given, "expires": at + lifetime, "pause": timedelta(minutes=1)}
        return bool(self._rows((_ISSUE,), sent))

    def use(self, digest: bytes, purpose: str, at: datetime) -> str | None:
        """Whose it was, if it was good."""
        rows = self._rows((_LOCK_OWNER, _CONSUME), {"digest": digest, "purpose": purpose, "at": at})
        return rows[0][0] if rows else None

    def remove_expired(self, at: datetime) -> int:
        return len(self._rows((_EXPIRED,), {"at": at}))

    def _rows(self, statements: tuple[str, ...], given: dict[str, object]) -> list[tuple[str, ...]]:
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement, given)
            return cursor.fetchall()
