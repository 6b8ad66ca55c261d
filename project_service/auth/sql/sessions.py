"""Sessions and their refresh tokens."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from attrs import frozen

from project_service.auth.model import Account, Origin, SessionInfo, User
from project_service.auth.ports import MOST_LISTED, Event, NewSession, Rotation
from project_service.auth.sql.query import Query
from project_service.auth.sql.rows import ADD_SESSION, RECORD, USER, event_params, session_params, user
from project_service.database.listener import Listener
from project_service.database.pool import Pool

# Because the user's row is locked first, a change of password, or a disabling, at the same time is safe: it ends a
# session that was started before it, and none is started after it.
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

_ROTATE = Query(
    "exchange a refresh token: rotate, repeat or revoke (see the function in ``0011_lost_refreshes.sql``)",
    f"""
select {USER}, r.session_id::text, r.outcome, r.salts::text
from auth.rotate_refresh_token(%(digest)s, %(successor)s, %(salt)s, %(now)s, %(reuse_window)s, %(expires)s,
    %(access_expires)s, %(address)s, %(user_agent)s, %(request_id)s) r
join auth.users u on u.id = r.user_id
""",
)

_LIST = Query(
    "the newest sessions of a user that are alive, the newest first",
    """
select id::text, created_at, refreshed_at, expires_at, user_agent, address from auth.sessions
where user_id = %(user_id)s::uuid and ended_at is null and expires_at > %(now)s
order by created_at desc, id limit %(most)s
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

    database: Pool

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

    async def alive(self, user_id: str, now: datetime, most: int = MOST_LISTED) -> list[SessionInfo]:
        return [
            SessionInfo(*row) for row in await _LIST.run(self.database, user_id=user_id, now=now, most=most)
        ]

    async def end(
        self, user_id: str, event: Event, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        rows = await _END.run(self.database, user_id=user_id, only=only, but=but, **event_params(event))
        return [(row[0], row[1]) for row in rows]


@frozen
class SqlEndedSessions:
    """Implements ``ports.EndedSessions``."""

    database: Pool | Listener

    async def revoked(self, now: datetime, since: datetime | None = None) -> list[tuple[str, float]]:
        return [(row[0], row[1]) for row in await _REVOKED.run(self.database, now=now, since=since)]


def _bytes_by_bytes(text: str | None) -> dict[bytes, bytes]:
    found = json.loads(text) if text is not None else {}
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in found.items()}
