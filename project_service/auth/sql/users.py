"""Creates, finds, changes and deletes users."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import psycopg2
from attrs import frozen

from project_service.auth import errors
from project_service.auth.model import Account, Email
from project_service.auth.ports import Event, NewSession, Proof
from project_service.auth.sql.query import Often, Query, jsonb
from project_service.auth.sql.rows import (
    ACCOUNT,
    ADD_SESSION,
    AUDIT,
    RECORD,
    account,
    event_params,
    session_params,
)
from project_service.database.pool import Pool
from project_service.database.session import Row

_OK_OR_TAKEN = "case when exists (select from u) then 'ok' else 'email_taken' end"
_CREATE = Query(
    "a new user, with a first session where one is given; no row where the email is taken",
    f"""
with u as (
    insert into auth.users
        (id, email, email_key, password_hash, metadata, created_at, confirmed_at, last_login_at)
    values (coalesce(%(id)s::uuid, gen_random_uuid()), %(email)s, %(email_key)s, %(hash)s, %(metadata)s::jsonb,
        %(at)s, case when %(confirmed)s then %(at)s::timestamptz end, %(started)s)
    on conflict (email_key) do nothing
    returning *),
{ADD_SESSION},
a as ({AUDIT.format(who="(select id from u)", result=_OK_OR_TAKEN)})
select {ACCOUNT} from u
""",
)
_FIND = Often("a user by id", f"select {ACCOUNT} from auth.users u where id = %s::uuid")
_FIND_BY_EMAIL = Often("a user by email", f"select {ACCOUNT} from auth.users u where email_key = %s")
_PAGE = Query(
    "users in the order they were made, from a place on",
    f"""
select {ACCOUNT} from auth.users u
where %(after)s is null or (created_at, id) > (%(after)s::timestamptz, %(after_id)s::uuid)
order by created_at, id limit %(limit)s
""",
)
_SET_METADATA = Query(
    "replace a user's metadata",
    f"""
with u as (update auth.users set metadata = %(metadata)s::jsonb where id = %(id)s::uuid returning *),
a as ({RECORD} from u)
select {ACCOUNT} from u
""",
)

# Each statement of a message has a snapshot of its own. So the later ones see all sessions that were started before
# the first statement locked the user's row.
_END_SESSIONS = """update auth.sessions set ended_at = %(at)s, end_reason = %(action)s
    where user_id = %(id)s::uuid and ended_at is null and (%(keep)s is null or id <> %(keep)s::uuid)"""
# If there are two changes at once, the second waits for the user's row, and its proof is checked against what the
# first has made of it.
_PROVEN = """(%(known_hash)s is null or password_hash = %(known_hash)s and disabled_at is null
        and not exists (select from auth.sessions where id = %(keep)s::uuid and ended_at is not null))"""
# Hashes are salted, so this cannot be true because of somebody else's change.
_IS_SET = "exists (select from auth.users where id = %(id)s::uuid and password_hash = %(hash)s)"
_SET_PASSWORD = Query(
    "a new password ends the other sessions, and guesses at the old one do not count any more",
    f"""
update auth.users set password_hash = %(hash)s where id = %(id)s::uuid and {_PROVEN};
{_END_SESSIONS} and {_IS_SET};
delete from auth.one_time_tokens where user_id = %(id)s::uuid and purpose = 'recovery' and {_IS_SET};
update auth.throttle set failed = '{{}}'
    where scope = 'login' and subject = (select email_key from auth.users where id = %(id)s::uuid) and {_IS_SET};
{RECORD} where {_IS_SET};
select {ACCOUNT} from auth.users u where id = %(id)s::uuid and password_hash = %(hash)s
""",
)
_DISABLE = Query(
    "a disabled user has no sessions",
    f"""
update auth.users set disabled_at = coalesce(disabled_at, %(at)s) where id = %(id)s::uuid;
{_END_SESSIONS};
{RECORD} where exists (select from auth.users where id = %(id)s::uuid);
select {ACCOUNT} from auth.users u where id = %(id)s::uuid
""",
)
_ENABLE = Query(
    "let a user log in again",
    f"""
with u as (update auth.users set disabled_at = null where id = %(id)s::uuid returning *),
a as ({RECORD} from u)
select {ACCOUNT} from u
""",
)
_DELETE = Query(
    "delete a user; sessions and tokens go with him, and the workers hear of it",
    f"""
with u as (delete from auth.users where id = %(id)s::uuid and {_PROVEN} returning id),
a as ({RECORD} from u)
select id::text from u
""",
)


@frozen
class SqlUsers:
    """Implements ``ports.Users``."""

    database: Pool

    async def create(
        self,
        *,
        email: Email,
        password_hash: bytes | None,
        metadata: Mapping[str, Any],
        confirmed: bool,
        session: NewSession | None,
        event: Event,
        user_id: str | None = None,
    ) -> Account | None:
        try:
            row = await _CREATE.one(
                self.database,
                id=user_id,
                email=email.address,
                email_key=email.key,
                hash=None if password_hash is None else password_hash.decode("ascii"),
                metadata=jsonb(metadata),
                confirmed=confirmed,
                **session_params(session),
                **event_params(event),
            )
        except psycopg2.errors.UniqueViolation as refusal:
            # A trigger of the project's own may have met another key.
            if user_id is None or refusal.diag.constraint_name != "users_pkey":
                raise
            raise errors.id_taken() from None
        return _maybe(row)

    async def find(self, user_id: str) -> Account | None:
        return _maybe(await _FIND.one(self.database, user_id))

    async def find_by_email(self, email: Email) -> Account | None:
        return _maybe(await _FIND_BY_EMAIL.one(self.database, email.key))

    async def page(self, after: tuple[datetime, str] | None, limit: int) -> list[Account]:
        moment, user_id = after if after is not None else (None, None)
        return [
            account(row)
            for row in await _PAGE.run(self.database, after=moment, after_id=user_id, limit=limit)
        ]

    async def set_metadata(self, user_id: str, metadata: Mapping[str, Any], event: Event) -> Account | None:
        return _maybe(
            await _SET_METADATA.one(
                self.database, id=user_id, metadata=jsonb(metadata), **event_params(event)
            )
        )

    async def set_password(
        self, user_id: str, password_hash: bytes, proof: Proof | None, event: Event
    ) -> Account | None:
        return _maybe(
            await _SET_PASSWORD.one(
                self.database,
                id=user_id,
                hash=password_hash.decode("ascii"),
                **_proof_params(proof),
                **event_params(event),
            )
        )

    async def set_disabled(self, user_id: str, disabled: bool, event: Event) -> Account | None:
        query = _DISABLE if disabled else _ENABLE
        return _maybe(await query.one(self.database, id=user_id, keep=None, **event_params(event)))

    async def delete(self, user_id: str, event: Event, proof: Proof | None = None) -> bool:
        params = _proof_params(proof) | event_params(event)
        try:
            return await _DELETE.one(self.database, id=user_id, **params) is not None
        except psycopg2.IntegrityError:
            # The project's own tables may have foreign keys to auth.users, which decide on this.
            raise errors.user_in_use() from None


def _proof_params(proof: Proof | None) -> dict[str, Any]:
    return {
        "known_hash": None if proof is None else proof.password_hash.decode("ascii"),
        "keep": None if proof is None else proof.session_id,
    }


def _maybe(row: Row | None) -> Account | None:
    return None if row is None else account(row)
