"""Sessions and their refresh tokens."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from attrs import frozen

from project_service.auth.model import Account, Origin, SessionInfo, User
from project_service.auth.ports import Event, NewSession, Rotation
from project_service.auth.sql.query import Database, Query
from project_service.auth.sql.rows import ADD_SESSION, RECORD, USER, event_params, session_params, user

# Locking the user's row first settles who wins against a change of password or a disabling: a session that
# starts before is ended by it, one that starts after is not started.
_START = Query(
    "begin a session for a user whose password was right",
    f"""
with u as (
    update auth.users set last_login_at = %(started)s,
        password_hash = coalesce(%(new_hash)s, password_hash)
    where id = %(id)s::uuid and password_hash = %(old_hash)s and disabled_at is null
    returning *),
{ADD_SESSION},
a as ({RECORD} from u)
select {USER} from u
""",
)

# The session is locked by a statement of its own: a second refresh with the same token waits there, and what follows
# sees the rows as the first left them. Salts of more than two windows ago lead nowhere (two: hosts' clocks differ).
_ROTATE = Query(
    "exchange a refresh token: rotate, repeat or revoke",
    f"""
select from auth.sessions
    where id = (select session_id from auth.refresh_tokens where token_hash = %(digest)s) for no key update;
with j as (
    select s.*, u.email, case
        when s.current_hash = %(digest)s then 'rotated'
        when s.previous_hash = %(digest)s and s.salt is not null and s.rotated_at > %(now)s - %(reuse_window)s
            or t.salt is not null and t.replaced_at > %(now)s - %(reuse_window)s then 'repeated'
        else 'stolen' end as outcome
    from auth.refresh_tokens t join auth.sessions s on s.id = t.session_id join auth.users u on u.id = s.user_id
    where t.token_hash = %(digest)s and u.disabled_at is null and s.ended_at is null and s.expires_at > %(now)s),
rotated as (
    update auth.sessions s set previous_hash = s.current_hash, current_hash = %(successor)s, salt = %(salt)s,
        rotated_at = %(now)s, refreshed_at = %(now)s, expires_at = %(expires)s, address = %(address)s,
        access_expires_at = greatest(s.access_expires_at, %(access_expires)s)
    from j where s.id = j.id and j.outcome = 'rotated'),
added as (
    insert into auth.refresh_tokens (token_hash, session_id)
    select %(successor)s, id from j where outcome = 'rotated'),
kept as (
    update auth.refresh_tokens t set salt = j.salt, replaced_at = j.rotated_at
    from j where j.outcome = 'rotated' and t.token_hash = j.previous_hash and j.salt is not null
        and j.rotated_at > %(now)s - %(reuse_window)s),
repeated as (
    update auth.sessions s set access_expires_at = greatest(s.access_expires_at, %(access_expires)s)
    from j where s.id = j.id and j.outcome = 'repeated'),
stolen as (
    update auth.sessions s set ended_at = %(now)s, end_reason = 'refresh_token_reused'
    from j where s.id = j.id and j.outcome = 'stolen'),
audited as (
    insert into auth.audit (at, actor, user_id, email, action, result, address, user_agent, request_id)
    select %(now)s, 'anonymous', user_id, email, 'refresh', 'refresh_token_reused', %(address)s, %(user_agent)s,
        %(request_id)s from j where outcome = 'stolen')
select {USER}, j.id::text, j.outcome, case when j.outcome = 'repeated' then (
    select json_object_agg(encode(hash, 'hex'), encode(known.salt, 'hex'))::text from (
        select j.previous_hash, j.salt
        union all select token_hash, t.salt from auth.refresh_tokens t
            where t.session_id = j.id and t.replaced_at > %(now)s - 2 * %(reuse_window)s) known (hash, salt)
    where known.salt is not null) end
from j join auth.users u on u.id = j.user_id
""",
)

_LIST = Query(
    "the sessions of a user that are alive, the newest first",
    """
select id::text, created_at, refreshed_at, expires_at, user_agent, address from auth.sessions
where user_id = %(user_id)s::uuid and ended_at is null and expires_at > %(now)s
order by created_at desc, id
""",
)

_END = Query(
    "end sessions of a user; a trigger tells every worker",
    f"""
with ended as (
    update auth.sessions set ended_at = %(at)s, end_reason = %(action)s
    where user_id = %(user_id)s::uuid and ended_at is null
        and (%(only)s is null or id = %(only)s::uuid) and (%(but)s is null or id <> %(but)s::uuid)
    returning id, access_expires_at),
a as ({RECORD})
select id::text, extract(epoch from access_expires_at + interval '1 minute')::float8 from ended
""",
)

_REVOKED = Query(
    "ended sessions whose access tokens may still be valid",
    """
select session_id::text, extract(epoch from expires_at)::float8 from auth.revocations
where expires_at > %(now)s and (%(since)s is null or added_at > %(since)s)
""",
)


@frozen
class SqlSessions:
    """Implements ``ports.Sessions``."""

    database: Database

    async def start(
        self, account: Account, new_hash: bytes | None, session: NewSession, event: Event
    ) -> User | None:
        row = await _START.one(
            self.database,
            id=account.user.id,
            old_hash=account.password_hash.decode("ascii"),
            new_hash=None if new_hash is None else new_hash.decode("ascii"),
            **session_params(session),
            **event_params(event),
        )
        return None if row is None else user(row)

    async def rotate(
        self,
        *,
        digest: bytes,
        successor: bytes,
        salt: bytes,
        now: datetime,
        reuse_window: timedelta,
        expires_at: datetime,
        access_expires_at: datetime,
        origin: Origin,
    ) -> Rotation | None:
        row = await _ROTATE.one(
            self.database,
            digest=digest,
            successor=successor,
            salt=salt,
            now=now,
            reuse_window=reuse_window,
            expires=expires_at,
            access_expires=access_expires_at,
            address=origin.address,
            user_agent=origin.user_agent,
            request_id=origin.request_id,
        )
        if row is None:
            return None
        session_id, outcome, salts = row[4:]
        return Rotation(outcome, session_id, user(row), _bytes_by_bytes(salts))

    async def alive(self, user_id: str, now: datetime) -> list[SessionInfo]:
        return [SessionInfo(*row) for row in await _LIST.run(self.database, user_id=user_id, now=now)]

    async def end(
        self, user_id: str, event: Event, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        rows = await _END.run(self.database, user_id=user_id, only=only, but=but, **event_params(event))
        return [(row[0], row[1]) for row in rows]

    async def revoked(self, now: datetime, since: datetime | None = None) -> list[tuple[str, float]]:
        return [(row[0], row[1]) for row in await _REVOKED.run(self.database, now=now, since=since)]


def _bytes_by_bytes(text: str | None) -> dict[bytes, bytes]:
    found = json.loads(text) if text is not None else {}
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in found.items()}
