"""One-time tokens for what is done by mail."""

from __future__ import annotations

from datetime import datetime, timedelta

from attrs import frozen

from project_service.auth.model import Email, User
from project_service.auth.ports import Event, NewSession, Purpose
from project_service.auth.sql.query import Query
from project_service.auth.sql.rows import (
    ADD_SESSION,
    AUDIT,
    RECORD,
    USER,
    event_params,
    session_params,
    user,
)
from project_service.database.pool import Pool, Transaction

# An entry of the audit is written for an unknown address too, so that both responses take the time of a commit.
# Without the lock a user who is being deleted would be found, and his token would violate its foreign key.
_ISSUE = Query(
    "a token for the user of an address, if there is one",
    f"""
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
    returning user_id),
a as ({AUDIT.format(who="(select id from u)", result="%(result)s")})
select {USER} from u join t on t.user_id = u.id
""",
)
_OWNER = Query(
    "whose token it is",
    f"""
select {USER} from auth.one_time_tokens t join auth.users u on u.id = t.user_id
where t.token_hash = %(digest)s and t.purpose = %(purpose)s and t.expires_at > %(now)s
""",
)
# The user's row is locked before the token's, as everywhere else, to avoid deadlocks.
_LOCK_OWNER = Query("lock the owner of a token", f"{_OWNER.text} for no key update of u")
# The token is looked for again here, because it was read before the wait for the user's row, and may be gone since.
_CONSUME = Query(
    "use a token up; of two attempts at once only one finds it",
    """
delete from auth.one_time_tokens
where token_hash = %(digest)s and purpose = %(purpose)s and expires_at > %(now)s returning user_id
""",
)
_RESET = Query(
    "a new password by mail ends every session and other letters; who reads the mail owns the address",
    f"""
update auth.users set password_hash = %(hash)s, confirmed_at = coalesce(confirmed_at, %(at)s)
    where id = %(id)s::uuid;
update auth.sessions set ended_at = %(at)s, end_reason = %(action)s
    where user_id = %(id)s::uuid and ended_at is null;
delete from auth.one_time_tokens where user_id = %(id)s::uuid;
update auth.throttle set failed = '{{}}'
    where scope = 'login' and subject = (select email_key from auth.users where id = %(id)s::uuid);
{RECORD}
""",
)
_CONFIRM = Query(
    "the address is confirmed, and the first session begins",
    f"""
with u as (
    update auth.users set confirmed_at = coalesce(confirmed_at, %(at)s), last_login_at = %(started)s
    where id = %(id)s::uuid and disabled_at is null returning *),
{ADD_SESSION},
a as ({RECORD} from u)
select {USER} from u
""",
)


@frozen
class SqlOneTimeTokens:
    """Implements ``ports.OneTimeTokens``."""

    database: Pool

    async def issue(
        self,
        *,
        email: Email,
        purpose: Purpose,
        digest: bytes,
        pause: timedelta,
        expires_at: datetime,
        event: Event,
    ) -> User | None:
        row = await _ISSUE.one(
            self.database,
            email_key=email.key,
            purpose=purpose,
            digest=digest,
            pause=pause,
            expires=expires_at,
            **event_params(event),
        )
        return None if row is None else user(row)

    async def owner(self, digest: bytes, purpose: Purpose, now: datetime) -> User | None:
        row = await _OWNER.one(self.database, digest=digest, purpose=purpose, now=now)
        return None if row is None else user(row)

    async def reset_password(self, digest: bytes, password_hash: bytes, event: Event) -> User | None:
        async def work(transaction: Transaction) -> User | None:
            owner = await _consumed(transaction, digest, "recovery", event.at)
            if owner is not None:
                params = event_params(event) | {"audit_user": owner.id, "audit_email": owner.email}
                await _RESET.run(transaction, id=owner.id, hash=password_hash.decode("ascii"), **params)
            return owner

        return await self.database.transaction(work)

    async def confirm(self, digest: bytes, session: NewSession, event: Event) -> User | None:
        async def work(transaction: Transaction) -> User | None:
            owner = await _consumed(transaction, digest, "confirmation", event.at)
            if owner is None:
                return None
            params = event_params(event) | {"audit_user": owner.id, "audit_email": owner.email}
            row = await _CONFIRM.one(transaction, id=owner.id, **session_params(session), **params)
            return None if row is None else user(row)

        return await self.database.transaction(work)


async def _consumed(transaction: Transaction, digest: bytes, purpose: Purpose, now: datetime) -> User | None:
    row = await _LOCK_OWNER.one(transaction, digest=digest, purpose=purpose, now=now)
    if row is None or not await _CONSUME.run(transaction, digest=digest, purpose=purpose, now=now):
        return None
    return user(row)
