"""What authentication does in PostgreSQL that its contract suite cannot show: locks, what is rolled back together,
the audit log, notifications, the cleanup."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from project_service.audit import Event, Origin
from project_service.auth import postgres
from project_service.auth.postgres import BATCH, Repository
from project_service.auth.sessions import CHANNEL
from project_service.auth.values import Answer, Limit, NewChallenge
from project_service.database.connecting import Connector
from project_service.database.listener import Listener
from project_service.database.locks import AUTH_UPKEEP
from project_service.database.pool import Pool
from project_service.dsn import read_dsn
from project_service.lifecycle import start
from tests.contracts.auth.users import (
    HASH,
    HERE,
    HOUR,
    LONG_AGO,
    MINUTE,
    NOW,
    OTHER_HASH,
    SECOND,
    address,
    confirm,
    digest,
    event,
    issue,
    made,
    rotate,
    session,
)
from tests.live.auth.service import Notifications, listening, payloads, repository_on
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
    repository, now, limit = Repository(pool), datetime.now(UTC), Limit(1, timedelta(hours=1))
    first = await repository.reserve_attempt("t", "subject", limit, now)
    await repository.record_outcome(first, "released")
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
    repository, first, child = Repository(pool), session(), digest()
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
    repository, email = Repository(pool), address()
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
async def test_wrong_codes_are_recorded_also_for_addresses_of_nobody(database: str, pool: Pool) -> None:
    """By the time of a commit one could tell whose address is known."""
    repository, known, unknown = Repository(pool), address(), address()
    await made(repository, known)
    await issue(repository, known, purpose="magic_link", code_hash=digest())
    for email in (known, unknown):
        wrong = Answer(("magic_link",), None, email.key, (digest(),))
        assert await repository.redeem(wrong, None, None, event("answer")) is None
    query = "select email, result, user_id from auth.audit where action = 'answer' order by id"
    assert run_sql(database, query) == [
        (email.key, "invalid_one_time_token", None) for email in (known, unknown)
    ]


@pytest_twisted.ensureDeferred
async def test_the_audit_log_has_what_was_done_and_nothing_else(database: str, pool: Pool) -> None:
    repository, nobody, first = Repository(pool), str(uuid.uuid4()), session()
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
    assert await confirm(repository, token, session(), event("confirm_email")) is None
    assert run_sql(database, "select action, result, user_id::text from auth.audit order by id") == [
        ("test", "ok", account.user.id),
        ("taken", "email_taken", None),
        ("refresh", "refresh_token_reused", account.user.id),
        ("login", "ok", None),
        ("mail", "ok", account.user.id),
    ]


@pytest_twisted.ensureDeferred
async def test_an_audit_entry_has_who_did_what_to_whom_when_and_from_where(database: str, pool: Pool) -> None:
    repository, email, first, at = Repository(pool), address(), session(), NOW + HOUR
    origin = Origin("2001:db8::1", "a browser", "request-2")
    user = (await made(repository, email, first)).user
    wrong = Event(NOW, "login", "invalid_credentials", "operator", user.id, user.email, HERE)
    reservation = await repository.reserve_login(email, "192.0.2.0", Limit(9, HOUR), Limit(9, HOUR), NOW)
    await repository.record_outcome(reservation, "failed", wrong)
    child = digest()
    await rotate(repository, first.digest, child)
    await rotate(repository, child, digest())
    await rotate(repository, first.digest, digest(), at, origin=origin)
    # The database knows whose mail it is, even if it is too soon for another; the address is the one that was
    # asked for.
    token = b""
    for action, to in (("recover", email), ("resend", address()), ("again", email)):
        key = digest()
        token = key if action == "recover" else token
        asked = NewChallenge("recovery", "recovery", key, at, at + HOUR, email=to)
        await repository.issue(asked, HOUR, Event(at, action, email="as@asked.test", origin=origin))
    await repository.reset_password(token, HASH, Event(at, "reset", "ok", "user", origin=HERE))
    await made(repository, (late := address()), session(), at=at)
    token, somebody = await issue(repository, late, at, "confirmation")
    await confirm(repository, token, session(at), Event(at, "verify", origin=origin))
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
        (at, "anonymous", somebody.id, somebody.email, "confirm_email", "ok", *there),
        (at, "user", somebody.id, somebody.email, "logout", "ok", *here),
    ]
    ends = "select end_reason from auth.sessions where user_id = %s"
    assert run_sql(database, ends, somebody.id) == [("logout",), ("logout",)]


@pytest_twisted.ensureDeferred
async def test_a_session_ends_once_and_keeps_its_first_reason(database: str, pool: Pool) -> None:
    repository, email, later = Repository(pool), address(), NOW + HOUR / 2
    user = (await made(repository, email, session())).user.id
    token, _ = await issue(repository, email)
    await repository.end_sessions(user, event("logout"))
    assert await repository.reset_password(token, OTHER_HASH, event("recover", later)) is not None
    await repository.set_password(user, HASH, None, event("set_password", later))
    await repository.set_disabled(user, True, event("disable_user", later))
    assert run_sql(database, "select ended_at, end_reason from auth.sessions") == [(NOW, "logout")]


@pytest_twisted.ensureDeferred
async def test_every_change_of_an_account_is_in_the_audit_log(database: str, pool: Pool) -> None:
    repository = Repository(pool)
    user = (await made(repository)).user.id

    def by_service(action: str) -> Event:
        return Event(NOW, action, "ok", "service", user)

    await repository.set_metadata(user, {"a": 1}, by_service("set_metadata"))
    await repository.set_password(user, OTHER_HASH, None, by_service("set_password"))
    await repository.set_disabled(user, True, by_service("disable_user"))
    await repository.set_disabled(user, False, by_service("enable_user"))
    await repository.delete_user(user, by_service("delete_user"))
    actions = ["set_metadata", "set_password", "disable_user", "enable_user", "delete_user"]
    entries = run_sql(database, "select action, actor, user_id::text from auth.audit order by id")[1:]
    assert entries == [(action, "service", user) for action in actions]


@pytest_twisted.ensureDeferred
async def test_the_reason_for_the_end_of_a_session_is_kept(database: str, pool: Pool) -> None:
    repository, email = Repository(pool), address()
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
    repository = Repository(pool)
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
    for scan in ("indexscan", "indexonlyscan", "bitmapscan"):
        run_sql(database, f'alter database "{name}" set enable_{scan} = off')
    repository = Repository(pool)
    ids = [(await made(repository)).user.id for _ in range(8)]
    rows = [one.user.id for one in await repository.list_users(None, 8)]
    assert rows == sorted(ids)


@pytest_twisted.ensureDeferred
async def test_frequent_queries_are_prepared(pool: Pool) -> None:
    repository, email = Repository(pool), address()
    account = await made(repository, email)
    assert [await repository.find_user(account.user.id), await repository.find_user_by_email(email)] == [
        account
    ] * 2
    rows = await pool.query("select count(*) from pg_prepared_statements")
    assert rows == [(2,)]


async def until_waiting(database: str, count: int = 1) -> None:
    async def waiting() -> bool:
        return len(run_sql(database, "select 1 from pg_locks where not granted")) >= count

    await until(waiting)


@pytest_twisted.ensureDeferred
async def test_a_token_invalidated_while_its_use_waits_for_a_lock_is_refused(database: str) -> None:
    email = address()
    async with repository_on(database) as repository:
        account = await made(repository, email)
        token, _ = await issue(repository, email)
        with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
            cursor.execute("select from auth.users for update")
            using = start(repository.reset_password(token, OTHER_HASH, event()))
            await until_waiting(database)
            cursor.execute("update auth.one_time_tokens set expires_at = '-infinity'")
            other.commit()
        assert await using is None
        assert await repository.find_user(account.user.id) == account


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("other", ["the same mail", "a new password"])
async def test_simultaneous_uses_do_not_deadlock(database: str, other: str) -> None:
    """Each locks the user's row first, and exclusively."""
    email = address()
    async with repository_on(database) as repository:
        user = (await made(repository, email)).user.id
        token, _ = await issue(repository, email)
        with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute("select from auth.one_time_tokens for update")
            first = start(repository.reset_password(token, OTHER_HASH, event()))
            await until_waiting(database)
            second: Deferred[object] = start(
                repository.reset_password(token, OTHER_HASH, event())
                if other == "the same mail"
                else repository.set_password(user, HASH, None, event())
            )
            await until_waiting(database, 2)
            connection.commit()
        assert await first is not None
        assert (await second is None) == (other == "the same mail")


@pytest_twisted.ensureDeferred
async def test_a_session_that_begins_does_not_keep_a_reset_waiting(database: str) -> None:
    """A foreign key locks the user's row as this statement does."""
    email = address()
    async with repository_on(database) as repository:
        await made(repository, email)
        token, _ = await issue(repository, email)
        with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
            cursor.execute("select from auth.users for key share")
            assert await repository.reset_password(token, OTHER_HASH, event()) is not None


@pytest_twisted.ensureDeferred
async def test_other_ways_in_end_when_the_address_is_proven_and_factors_stay(database: str) -> None:
    """Whoever had signed up with the address before could have added them. Nobody gets in by a factor alone."""
    async with repository_on(database) as repository:
        for by_email in (True, False):
            for how in ("magic_link", "recovery"):
                account = await made(repository, email := address())
                user = account.user.id
                if not by_email:
                    run_sql(database, "delete from auth.identities where user_id = %s", user)
                run_sql(
                    database,
                    "insert into auth.identities (user_id, provider, provider_id) values (%s, 'github', %s)",
                    user,
                    user,
                )
                run_sql(
                    database,
                    "insert into auth.mfa_factors (id, user_id, factor_type, status)"
                    " values (gen_random_uuid(), %s, 'webauthn', 'verified');"
                    "insert into auth.webauthn_credentials (id, user_id, factor_id, credential_id, public_key)"
                    " select gen_random_uuid(), user_id, factor, id::text::bytea || first, ''"
                    " from auth.mfa_factors"
                    " cross join lateral (values (id, 'a'::bytea), (null, 'b')) c (factor, first)"
                    " where user_id = %s",
                    user,
                    user,
                )
                key, _ = await issue(repository, email, purpose=how)
                if how == "recovery" and by_email:
                    assert await repository.reset_password(key, OTHER_HASH, event()) is not None
                else:
                    assert await repository.redeem(Answer((how,), key), None, None, event()) is not None
                profile = await repository.profile(user)
                assert profile is not None
                assert [(one.provider, one.data["email"]) for one in profile.identities] == [
                    ("email", email.address)
                ]
                assert len(profile.factors) == 1
                passkeys = "select factor_id::text from auth.webauthn_credentials where user_id = %s"
                assert run_sql(database, passkeys, user) == [(profile.factors[0].id,)]
                assert profile.user.app_metadata == {"provider": "email", "providers": ["email"]}


@pytest_twisted.ensureDeferred
async def test_a_token_whose_use_fails_stays_valid(database: str) -> None:
    email, first = address(), session()
    async with repository_on(database) as repository:
        account = await made(repository, email, first)
        recovery, _ = await issue(repository, email)
        confirmation, _ = await issue(repository, email, purpose="confirmation")
        with pytest.raises(psycopg2.errors.CheckViolation):
            await repository.reset_password(recovery, b"no hash", event())
        with pytest.raises(psycopg2.errors.UniqueViolation):
            await confirm(repository, confirmation, evolve(session(), id=first.id), event())
        assert await repository.find_user(account.user.id) == account
        assert await repository.owner_of_token(recovery, ("recovery",), NOW) == account.user
        assert await repository.owner_of_token(confirmation, ("confirmation",), NOW) == account.user


PART = timedelta(milliseconds=1)


@pytest.fixture
def repository(database: str) -> Iterator[Repository]:
    pool = pool_on(database)
    yield Repository(pool)
    wait(pool.close)


@pytest.fixture
def notifications(database: str) -> Iterator[Notifications]:
    with listening(database, CHANNEL) as connection:
        yield connection


@pytest_twisted.ensureDeferred
async def test_the_end_of_a_session_is_notified_once(
    database: str, repository: Repository, notifications: Notifications
) -> None:
    ended, deleted, alive = (session(NOW + PART) for _ in range(3))
    account = await made(repository, first=ended)
    # In whole seconds, rounded up.
    until = ceil((ended.access_expires_at + MINUTE).timestamp())
    await repository.end_sessions(account.user.id, event())
    assert payloads(notifications) == [f"{ended.id} {until}"]
    await repository.start_session(account, None, deleted, event())
    await repository.delete_user(account.user.id, event())
    assert payloads(notifications) == [f"{deleted.id} {until}"]
    await made(repository, first=alive)
    run_sql(database, "update auth.sessions set ended_at = null")
    assert payloads(notifications) == []


@pytest_twisted.ensureDeferred
async def test_changes_of_an_ended_session_are_not_notified(
    database: str, repository: Repository, notifications: Notifications
) -> None:
    first = session()
    account = await made(repository, first=first)
    await repository.end_sessions(account.user.id, event())
    assert len(payloads(notifications)) == 1
    run_sql(database, "update auth.sessions set ended_at = now()")
    assert payloads(notifications) == []
    # An operator has revived the session.
    for moment in ("null", "now()"):
        run_sql(database, f"update auth.sessions set ended_at = {moment}")
    assert len(payloads(notifications)) == 1
    run_sql(database, "delete from auth.sessions")
    assert payloads(notifications) == []
    assert run_sql(database, "select session_id::text from auth.revocations") == [(first.id,)]


@pytest_twisted.ensureDeferred
async def test_whoever_hears_that_sessions_have_ended_is_not_told_before_this_process_knows(
    database: str, pool: Pool
) -> None:
    from twisted.internet import reactor

    heard: list[str] = []

    async def nothing() -> None: ...

    listener = Listener(Connector(reactor, read_dsn(database), 10.0), reactor)
    listener.subscribe(CHANNEL, heard.append, nothing)
    listener.startService()
    try:
        await listener.ready()
        ((pid,),) = await listener.query("select pg_backend_pid()")
        repository = Repository(pool, listener)
        changes: tuple[Callable[[str], Awaitable[Any]], ...] = (
            lambda user_id: repository.set_password(user_id, OTHER_HASH, None, event()),
            lambda user_id: repository.set_disabled(user_id, True, event()),
            lambda user_id: repository.delete_user(user_id, event()),
        )
        for change in changes:
            first = session()
            account = await made(repository, address(), first=first)
            # Where notifications come late.
            os.kill(pid, signal.SIGSTOP)
            late = deferLater(reactor, 0.3, os.kill, pid, signal.SIGCONT)
            await change(account.user.id)
            assert [one.partition(" ")[0] for one in heard] == [first.id]
            await late
            heard.clear()
    finally:
        os.kill(pid, signal.SIGCONT)
        stopping = listener.stopService()
        assert stopping is not None
        await stopping


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
    async with repository_on(database) as repository:
        await made(repository, first=session())
        with closing(psycopg2.connect(database)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(LOOK, {"now": NOW, "many": postgres.BATCH + 1})
        assert await repository.delete_expired(later, later, LONG_AGO, NOW - timedelta(days=90)) is True
    assert run_sql(database, "select count(*) from auth.refresh_tokens where salt is not null") == [(0,)]
    assert run_sql(database, "select count(*) from auth.audit where action = ''") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_locked_rows_are_left_for_the_next_time(database: str) -> None:
    later = NOW + HOUR
    async with repository_on(database) as repository:
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
    async with repository_on(database) as repository:
        account = await made(repository, first=ended, at=now)
        await repository.start_session(account, None, expired, event(at=now))
        await repository.end_sessions(account.user.id, event(at=now))
        assert await repository.delete_expired(now + 3 * HOUR, now, LONG_AGO, LONG_AGO) is True
        assert [key for key, _ in await repository.ended_sessions(LONG_AGO)] == [ended.id]
