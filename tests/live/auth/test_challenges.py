"""Challenges that two hosts on one database issue and answer at the same time."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from itertools import combinations, cycle
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from project_service.auth.postgres import Repository
from project_service.auth.values import MAX_TRIES, Answer, AuthCode, NewChallenge
from project_service.lifecycle import start
from project_service.settings.model import Store
from tests.contracts.auth.users import (
    HASH,
    HOUR,
    MINUTE,
    NOW,
    OTHER_HASH,
    address,
    all_of,
    digest,
    event,
    issue,
    made,
    session,
)
from tests.live.application import Api
from tests.live.auth.service import api_on, post
from tests.live.services import pool_on
from tests.live.sql import run_sql
from tests.live.waiting import until

EMAIL = "ada@example.test"
RIGHT, WRONG = b"r" * 32, b"w" * 32
# Of each pair of works: 368 in all.
ROUNDS = 4

Work = Callable[[Repository], Coroutine[Any, Any, Any]]


@asynccontextmanager
async def two_services(
    database: str, store: Store, folder: Path
) -> AsyncIterator[tuple[Api, Api, Callable[[], Awaitable[str]]]]:
    """Two on one database, which e-mail into one folder; and the code of the next e-mail there."""
    mails = folder / "mails"
    sections = {"smtp": {"mail_dir": str(mails)}, "auth": {"email_seconds": 0}}
    seen: set[Path] = set()

    async def mailed() -> str:
        def new() -> set[Path]:
            return set(mails.glob("*.eml")) - seen

        async def arrived() -> bool:
            return bool(new())

        await until(arrived)
        (file,) = new()
        seen.add(file)
        found = re.search("^[0-9]{6}$", file.read_text(), re.M)
        assert found is not None
        return found[0]

    async with (
        api_on(database, store, folder, **sections) as one,
        api_on(database, store, folder, **sections) as other,
    ):
        yield one, other, mailed


async def ask(api: Api) -> None:
    assert await post(api, "/auth/v1/otp", {"email": EMAIL}) == (200, {})


async def answer(api: Api, code: str) -> int:
    status, body = await post(api, "/auth/v1/verify", {"type": "email", "email": EMAIL, "token": code})
    assert status == 200 or body["error_code"] == "otp_expired", body
    return status


@pytest_twisted.ensureDeferred
async def test_a_code_answered_at_two_hosts_at_once_begins_one_session(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with two_services(database, store_settings, tmp_path) as (here, there, mailed):
        for number in range(1, 11):
            await ask((here, there)[number % 2])
            code = await mailed()
            statuses = await all_of(*(answer(api, code) for api in (here, there) * 2))
            assert sorted(statuses) == [200, 403, 403, 403]
            assert run_sql(database, "select count(*) from auth.sessions") == [(number,)]


@pytest_twisted.ensureDeferred
async def test_five_wrong_codes_at_two_hosts_end_it_at_both(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with two_services(database, store_settings, tmp_path) as (here, there, mailed):
        for wrong in (MAX_TRIES - 1, MAX_TRIES):
            await ask(here)
            code = await mailed()
            guesses = [f"{(int(code) + n) % 10**6:06}" for n in range(1, wrong + 1)]
            hosts = cycle((here, there))
            tried = await all_of(*(answer(api, guess) for api, guess in zip(hosts, guesses, strict=False)))
            assert tried == [403] * wrong
            assert run_sql(database, "select tries from auth.challenges") == [(wrong,)]
            assert await answer(there, code) == (403 if wrong == MAX_TRIES else 200)


@asynccontextmanager
async def two_repositories(database: str) -> AsyncIterator[tuple[Repository, Repository]]:
    pools = [pool_on(database) for _ in range(2)]
    try:
        yield Repository(pools[0]), Repository(pools[1])
    finally:
        for pool in pools:
            await pool.close()


async def works_on_one_user(repository: Repository) -> dict[str, Work]:
    """What may happen to a new user who has challenges of all kinds."""
    email, new, at = address(), address(), event(at=NOW + MINUTE)
    user = (await made(repository, email, session())).user.id
    code = AuthCode(digest(), NOW + HOUR)
    first, _ = await issue(repository, email, purpose="magic_link", data={"code_challenge": "s256 x"})
    await repository.redeem(Answer(("magic_link",), first), session(), code, event())
    link, _ = await issue(repository, email, purpose="magic_link", code_hash=RIGHT)
    reset, _ = await issue(repository, email)

    async def issue_change(host: Repository, key: bytes) -> None:
        data = {"email": new.address, "email_key": new.key}
        change = NewChallenge("email_change", "email_change", key, NOW, NOW + HOUR, new, user, data=data)
        await host.issue(change, timedelta(0), at)

    moved = digest()
    await issue_change(repository, moved)
    by_code = [Answer(("magic_link",), None, email.key, (one,)) for one in (RIGHT, WRONG)]
    return {
        "its code": lambda host: host.redeem(by_code[0], session(), None, at),
        "a wrong code": lambda host: host.redeem(by_code[1], session(), None, at),
        "its link": lambda host: host.redeem(Answer(("magic_link",), link), session(), None, at),
        "an exchange": lambda host: host.exchange(code.digest, ("s256 x",), session(), at),
        "a change of address": lambda host: host.redeem(Answer(("email_change",), moved), None, None, at),
        "an operator's": lambda host: host.change_email(user, address(), at),
        "a reset": lambda host: host.reset_password(reset, OTHER_HASH, at),
        "a password": lambda host: host.set_password(user, HASH, None, at),
        "another code": lambda host: issue(host, email, at.at, "magic_link", code_hash=RIGHT),
        "another reset": lambda host: issue(host, email, at.at),
        "a claim": lambda host: issue(host, email, at.at, "magic_link", data={"takes_over": True}),
        "another change": lambda host: issue_change(host, digest()),
        "a ban": lambda host: host.set_disabled(user, True, at),
        "a deletion": lambda host: host.delete_user(user, at),
    }


@pytest_twisted.ensureDeferred
async def test_whatever_happens_to_a_user_at_once_does_not_deadlock(database: str) -> None:
    """Neither by two, nor all of it: each locks the user's row first, and exclusively."""
    async with two_repositories(database) as hosts:
        names = list(await works_on_one_user(hosts[0]))
        for pair in [*combinations(names, 2), names] * ROUNDS:
            works = await works_on_one_user(hosts[0])
            await all_of(*(works[name](host) for name, host in zip(pair, cycle(hosts), strict=False)))


@pytest.mark.parametrize("change", ["a change of address", "an operator's"])
@pytest_twisted.ensureDeferred
async def test_a_challenge_waits_for_a_change_of_address_and_is_not_sent(database: str, change: str) -> None:
    """What was sent to the address before is good for nothing after the change, however late it was sent."""

    async def waiting(count: int) -> None:
        async def seen() -> bool:
            return len(run_sql(database, "select 1 from pg_locks where not granted")) >= count

        await until(seen)

    async with two_repositories(database) as (here, there):
        works = await works_on_one_user(here)
        with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
            cursor.execute("select from auth.challenges for update")
            changing: Deferred[Any] = start(works[change](here))
            await waiting(1)
            issuing: Deferred[Any] = start(works["another code"](there))
            await waiting(2)
            other.rollback()
        assert await changing is not None
        assert (await issuing)[1] is None
        assert run_sql(database, "select purpose from auth.challenges where user_id is not null") == []


@pytest_twisted.ensureDeferred
async def test_every_statement_finds_its_rows_by_an_index(database: str) -> None:
    """Where there is one that it could use, PostgreSQL does so here, however few rows there are."""
    (name,) = run_sql(database, "select current_database()")[0]
    run_sql(database, f'alter database "{name}" set enable_seqscan = off')
    async with two_repositories(database) as (repository, _):
        for work in (await works_on_one_user(repository)).values():
            await work(repository)
        account, token = await made(repository), digest()
        await repository.profile(account.user.id)
        await repository.users_from(0, 10)
        await repository.owner_of_token(token, ("recovery",), NOW)
        await repository.pending(("recovery",), NOW, digest=token)
        await repository.pending(("email_change",), NOW, email_key="ada@example.test")
        await repository.exchange(token, ("s256 x",), session(), event())
        await repository.unused_anonymous_users(NOW)
    scans = (
        "select relname, seq_scan from pg_stat_user_tables"
        " where schemaname = 'auth' and (idx_scan > 0 or seq_scan > 0)"
    )

    async def counted() -> bool:
        # Backends report what they have done when they end.
        return {"users", "sessions", "challenges"} <= {table for table, *_ in run_sql(database, scans)}

    await until(counted)
    assert [table for table, read in run_sql(database, scans) if read] == []
