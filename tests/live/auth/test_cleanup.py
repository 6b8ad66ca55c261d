"""The cleanup while other work goes on: it does not wait for locks, and others do not wait long for it."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest_twisted

from project_service.auth import postgres
from tests.contracts.auth.users import HOUR, LONG_AGO, MINUTE, NOW, digest, event, made, rotate, session
from tests.live.auth.service import stores_on
from tests.live.sql import run_sql

# Triggers look at every statement that removes or changes rows.
LOOK = f"""
create function looked_at() returns trigger language plpgsql as $$ begin
    if (select count(*) from touched) > {postgres.BATCH} then raise 'too many at once'; end if;
    if tg_op = 'UPDATE' and exists (select from touched where to_jsonb(touched)->'salt' = 'null') then
        raise 'a row was written for nothing';
    end if;
    return null;
end $$;
create trigger looked_at after delete on auth.audit
    referencing old table as touched for each statement execute function looked_at();
create trigger looked_at after update on auth.refresh_tokens
    referencing old table as touched for each statement execute function looked_at();
insert into auth.audit (at, actor, action, result)
    select %(now)s - interval '91 days', '', '', '' from generate_series(1, %(many)s);
insert into auth.refresh_tokens (token_hash, session_id, replaced_at, salt, issued_at)
    select int4send(n), id, %(now)s, '', %(now)s from auth.sessions, generate_series(1, %(many)s) n;
"""


@pytest_twisted.ensureDeferred
async def test_no_statement_touches_more_than_a_batch_or_changes_nothing(database: str) -> None:
    later = NOW + HOUR
    async with stores_on(database) as repository:
        await made(repository, first=session())
        with closing(psycopg2.connect(database)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(LOOK, {"now": NOW, "many": postgres.BATCH + 1})
        assert await repository.delete_expired(later, later, LONG_AGO, NOW - timedelta(days=90)) is True
    assert run_sql(database, "select count(*) from auth.refresh_tokens where salt is not null") == [(0,)]
    assert run_sql(database, "select count(*) from auth.audit where action = ''") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_locked_rows_are_left_for_the_next_time(database: str) -> None:
    later = NOW + HOUR
    async with stores_on(database) as repository:
        first = session()
        await made(repository, first=first)
        await rotate(repository, first.digest, child := digest())
        await rotate(repository, child, digest())
        run_sql(database, "insert into auth.throttle values ('login', 'x', '{}', '{}', %s)", NOW + MINUTE)
        left = "select count(salt), (select count(*) from auth.throttle) from auth.refresh_tokens"
        with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
            cursor.execute("select from auth.refresh_tokens for update")
            cursor.execute("select from auth.throttle for update")
            assert await repository.delete_expired(later, later, LONG_AGO, NOW) is True
            assert run_sql(database, left) == [(1, 1)]
            other.rollback()
        assert await repository.delete_expired(later, later, LONG_AGO, NOW) is True
    assert run_sql(database, left) == [(0, 0)]


@pytest_twisted.ensureDeferred
async def test_a_host_whose_clock_is_ahead_does_not_forget_ended_sessions_for_the_others(
    database: str,
) -> None:
    now = datetime.now(UTC)
    ended, expired = session(now), session(now - 2 * HOUR)
    async with stores_on(database) as repository:
        account = await made(repository, first=ended, at=now)
        await repository.start_session(account, None, expired, event(at=now))
        await repository.end_sessions(account.user.id, event(at=now))
        assert await repository.delete_expired(now + 3 * HOUR, now, LONG_AGO, LONG_AGO) is True
        assert [key for key, _ in await repository.ended_sessions(LONG_AGO)] == [ended.id]
