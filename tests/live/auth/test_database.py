"""What authentication does in PostgreSQL that its contract suites cannot show: locks, the audit log, the cleanup."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
import pytest_twisted

from project_service.auth.postgres import BATCH, PostgresRepository
from project_service.auth.repository import Event, Limit
from project_service.auth.values import Origin
from project_service.database.listener import AUTH_UPKEEP
from project_service.database.pool import Pool
from project_service.lifecycle import start
from tests.contracts.auth.users import (
    HASH,
    HERE,
    HOUR,
    LONG_AGO,
    NOW,
    OTHER_HASH,
    SECOND,
    address,
    digest,
    event,
    issue,
    made,
    rotate,
    session,
)
from tests.live.services import pool_on, wait
from tests.live.sql import run_sql
from tests.live.waiting import until


@pytest.fixture
def pool(database: str) -> Iterator[Pool]:
    pool = pool_on(database)
    yield pool
    wait(pool.close)


def waiting(database: str, count: int) -> Callable[[], Awaitable[bool]]:
    """A condition to wait for: that so many queries wait for a lock."""

    async def looked() -> bool:
        return len(run_sql(database, "select 1 from pg_locks where not granted")) == count

    return looked


@pytest_twisted.ensureDeferred
async def test_an_attempt_waits_for_the_one_in_progress_and_counts_it(database: str, pool: Pool) -> None:
    repository, now, limit = PostgresRepository(pool), datetime.now(UTC), Limit(1, timedelta(hours=1))
    first = await repository.reserve_attempt("t", "subject", limit, now)
    await repository.finish_attempt(first, "released")
    other = psycopg2.connect(database)
    try:
        with other.cursor() as cursor:
            cursor.execute("select from auth.throttle where scope = 't' for update")
            second = start(repository.reserve_attempt("t", "subject", limit, now))

            await until(waiting(database, 1))
            # The holder of the row is first; the waiting attempt counts what it finds afterwards.
            cursor.execute(
                "select verdict from auth.reserve_attempt('t', 'subject', 1, '1 hour', %s)", (now,)
            )
            assert cursor.fetchall() == [("free",)]
        other.commit()
        assert (await second).verdict == "busy"
    finally:
        other.close()


@pytest_twisted.ensureDeferred
async def test_refreshes_that_wait_for_each_other_rotate_once(database: str, pool: Pool) -> None:
    repository, first, child = PostgresRepository(pool), session(), digest()
    await made(repository, first=first)
    other = psycopg2.connect(database)
    try:
        with other.cursor() as cursor:
            cursor.execute("select from auth.sessions for update")
            both = [start(rotate(repository, first.digest, successor)) for successor in (child, digest())]
            await until(waiting(database, 2))
        other.commit()
        assert sorted([(await one).outcome for one in both]) == ["repeated", "rotated"]
    finally:
        other.close()
    assert run_sql(database, "select count(*) from auth.refresh_tokens") == [(2,)]


@pytest_twisted.ensureDeferred
async def test_a_mail_to_a_user_who_is_being_deleted_is_not_sent(database: str, pool: Pool) -> None:
    repository, email = PostgresRepository(pool), address()
    await made(repository, email)
    other = psycopg2.connect(database)
    try:
        with other.cursor() as cursor:
            cursor.execute("delete from auth.users")
            mail = start(issue(repository, email))
            await until(waiting(database, 1))
        other.commit()
        assert (await mail)[1] is None
    finally:
        other.close()
    assert run_sql(database, "select user_id from auth.audit where action = 'mail'") == [(None,)]


@pytest_twisted.ensureDeferred
async def test_the_audit_log_has_what_was_done_and_nothing_else(database: str, pool: Pool) -> None:
    repository, nobody, first = PostgresRepository(pool), str(uuid.uuid4()), session()
    email = address()
    run_sql(database, "insert into auth.users (email, email_key) values ('other@a.test', 'other@a.test')")
    account = await made(repository, email, first)
    again = repository.create_user(
        email=email, password_hash=None, metadata={}, confirmed=True, session=None, event=event("taken")
    )
    assert await again is None
    child, grandchild = digest(), digest()
    await rotate(repository, first.digest, child)
    await rotate(repository, first.digest, digest())
    await rotate(repository, child, grandchild)
    await rotate(repository, first.digest, digest())
    assert run_sql(database, "select ended_at, end_reason from auth.sessions") == [(None, None)]
    await rotate(repository, first.digest, digest(), NOW + 10 * SECOND)
    assert run_sql(database, "select ended_at is null, end_reason from auth.sessions") == [
        (False, "refresh_token_reused")
    ]
    # Disabled by hand, in SQL: the session is not ended, but its tokens are refused.
    await repository.start_session(account, None, second := session(), event("login"))
    run_sql(database, "update auth.users set disabled_at = now()")
    assert await rotate(repository, second.digest, digest()) is None
    await repository.set_password(nobody, HASH, None, event("set_password"))
    await repository.set_metadata(nobody, {}, event("set_metadata"))
    await repository.set_disabled(nobody, True, event("disable_user"))
    await repository.set_disabled(nobody, False, event("enable_user"))
    await repository.delete_user(nobody, event("delete_user"))
    run_sql(database, "update auth.users set disabled_at = null")
    token, _ = await issue(repository, email, purpose="confirmation")
    run_sql(database, "update auth.users set disabled_at = now()")
    assert await repository.confirm_email(token, session(), event("confirm_email")) is None
    assert run_sql(database, "select action, result, user_id::text from auth.audit order by id") == [
        ("test", "ok", account.user.id),
        ("taken", "email_taken", None),
        ("refresh", "refresh_token_reused", account.user.id),
        ("login", "ok", None),
        ("mail", "ok", account.user.id),
    ]


@pytest_twisted.ensureDeferred
async def test_an_audit_entry_has_who_did_what_to_whom_when_and_from_where(database: str, pool: Pool) -> None:
    repository, email, first, at = PostgresRepository(pool), address(), session(), NOW + HOUR
    origin = Origin("2001:db8::1", "a browser", "request-2")
    user = (await made(repository, email, first)).user
    wrong = Event(NOW, "login", "invalid_credentials", "operator", user.id, user.email, HERE)
    reservation = await repository.reserve_login(email, "192.0.2.0", Limit(9, HOUR), Limit(9, HOUR), NOW)
    await repository.finish_attempt(reservation, "failed", wrong)
    child = digest()
    await rotate(repository, first.digest, child)
    await rotate(repository, child, digest())
    await rotate(repository, first.digest, digest(), at, origin=origin)
    # The database knows whose mail it is, even if it is too soon for another; the address is the one that was
    # asked for.
    for action, to in (("recover", email), ("resend", address()), ("again", email)):
        await repository.issue_one_time_token(
            email=to,
            purpose="recovery",
            digest=(token := digest()) if action == "recover" else digest(),
            pause=HOUR,
            expires_at=at + HOUR,
            event=Event(at, action, email="as@asked.test", origin=origin),
        )
    await repository.reset_password(token, HASH, Event(at, "reset", "ok", "user", origin=HERE))
    await made(repository, (late := address()), session(), at=at)
    token, somebody = await issue(repository, late, at, "confirmation")
    await repository.confirm_email(token, session(at), Event(at, "verify", origin=origin))
    logout = Event(at, "logout", "ok", "user", somebody.id, somebody.email, HERE)
    await repository.end_sessions(somebody.id, logout)
    here, there = (HERE.address, HERE.user_agent, HERE.request_id), ("2001:db8::1", "a browser", "request-2")
    columns = "at, actor, user_id::text, email, action, result, address, user_agent, request_id"
    assert run_sql(database, f"select {columns} from auth.audit order by id")[1:] == [
        (NOW, "operator", user.id, user.email, "login", "invalid_credentials", *here),
        (at, "anonymous", user.id, user.email, "refresh", "refresh_token_reused", *there),
        (at, "anonymous", user.id, "as@asked.test", "recover", "ok", *there),
        (at, "anonymous", None, "as@asked.test", "resend", "ok", *there),
        (at, "anonymous", user.id, "as@asked.test", "again", "ok", *there),
        (at, "user", user.id, user.email, "reset", "ok", *here),
        (at, "anonymous", somebody.id, None, "test", "ok", *here),
        (at, "anonymous", somebody.id, None, "mail", "ok", *here),
        (at, "anonymous", somebody.id, somebody.email, "verify", "ok", *there),
        (at, "user", somebody.id, somebody.email, "logout", "ok", *here),
    ]
    ends = "select end_reason from auth.sessions where user_id = %s"
    assert run_sql(database, ends, somebody.id) == [("logout",), ("logout",)]


@pytest_twisted.ensureDeferred
async def test_a_session_ends_once_and_keeps_its_first_reason(database: str, pool: Pool) -> None:
    repository, email, later = PostgresRepository(pool), address(), NOW + HOUR / 2
    user = (await made(repository, email, session())).user.id
    token, _ = await issue(repository, email)
    await repository.end_sessions(user, event("logout"))
    assert await repository.reset_password(token, OTHER_HASH, event("recover", later)) is not None
    await repository.set_password(user, HASH, None, event("set_password", later))
    await repository.set_disabled(user, True, event("disable_user", later))
    assert run_sql(database, "select ended_at, end_reason from auth.sessions") == [(NOW, "logout")]


@pytest_twisted.ensureDeferred
async def test_every_change_of_an_account_is_in_the_audit_log(database: str, pool: Pool) -> None:
    repository = PostgresRepository(pool)
    user = (await made(repository)).user.id

    def told(action: str) -> Event:
        return Event(NOW, action, "ok", "service", user)

    await repository.set_metadata(user, {"a": 1}, told("set_metadata"))
    await repository.set_password(user, OTHER_HASH, None, told("set_password"))
    await repository.set_disabled(user, True, told("disable_user"))
    await repository.set_disabled(user, False, told("enable_user"))
    await repository.delete_user(user, told("delete_user"))
    actions = ["set_metadata", "set_password", "disable_user", "enable_user", "delete_user"]
    kept = run_sql(database, "select action, actor, user_id::text from auth.audit order by id")[1:]
    assert kept == [(action, "service", user) for action in actions]


@pytest_twisted.ensureDeferred
async def test_the_reason_for_the_end_of_a_session_is_kept(database: str, pool: Pool) -> None:
    repository, email = PostgresRepository(pool), address()
    users = [(await made(repository, to, session())).user.id for to in (email, address(), address())]
    token, _ = await issue(repository, email)
    await repository.reset_password(token, OTHER_HASH, event("recover"))
    assert run_sql(database, "select ended_at from auth.sessions where end_reason = 'recover'") == [(NOW,)]
    await repository.set_password(users[1], OTHER_HASH, None, event("set_password"))
    await repository.set_disabled(users[2], True, event("disable_user"))
    ends = dict(run_sql(database, "select user_id::text, end_reason from auth.sessions"))
    assert [ends[user] for user in users] == ["recover", "set_password", "disable_user"]


@pytest_twisted.ensureDeferred
async def test_one_process_at_a_time_cleans_up(database: str, pool: Pool) -> None:
    more_than_a_batch = """insert into auth.audit (at, actor, action, result)
        select now() - interval '91 days', '', '', '' from generate_series(1, %s)"""
    run_sql(database, more_than_a_batch, 2 * BATCH + 1)
    run_sql(
        database,
        "insert into auth.audit (at, actor, action, result) values (now() - interval '89 days', '', '', '')",
    )
    run_sql(database, "insert into auth.revocations values (gen_random_uuid(), now() - interval '1 second')")
    run_sql(
        database, "insert into auth.throttle values ('login', 'x', '{}', '{}', now() - interval '1 second')"
    )
    now = datetime.now(UTC)
    repository = PostgresRepository(pool)
    other = psycopg2.connect(database)
    try:
        with other.cursor() as cursor:
            cursor.execute("select pg_advisory_xact_lock(%s)", (AUTH_UPKEEP,))
            assert await repository.delete_expired(now, now, LONG_AGO, now - timedelta(days=90)) is False
        other.rollback()
        assert await repository.delete_expired(now, now, LONG_AGO, now - timedelta(days=90)) is True
    finally:
        other.close()
    for table, left in (("audit", 1), ("revocations", 0), ("throttle", 0)):
        assert run_sql(database, f"select count(*) from auth.{table}") == [(left,)], table


@pytest_twisted.ensureDeferred
async def test_users_are_listed_in_order_without_the_index_too(database: str, pool: Pool) -> None:
    """An index scan would return them in order anyway."""
    (name,) = run_sql(database, "select current_database()")[0]
    for way in ("indexscan", "indexonlyscan", "bitmapscan"):
        run_sql(database, f'alter database "{name}" set enable_{way} = off')
    repository = PostgresRepository(pool)
    ids = [(await made(repository)).user.id for _ in range(8)]
    found = [one.user.id for one in await repository.list_users(None, 8)]
    assert found == sorted(ids)


@pytest_twisted.ensureDeferred
async def test_frequent_queries_are_prepared(pool: Pool) -> None:
    repository, email = PostgresRepository(pool), address()
    account = await made(repository, email)
    assert [await repository.find_user(account.user.id), await repository.find_user_by_email(email)] == [
        account
    ] * 2
    found = await pool.query("select count(*) from pg_prepared_statements")
    assert found == [(2,)]
