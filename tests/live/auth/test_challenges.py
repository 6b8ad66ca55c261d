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
# Of each pair of works: 460 in all.
ROUNDS = 5

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
    link, _ = await issue(repository, email, purpose="magic_link", code_hash=RIGHT)
    reset, _ = await issue(repository, email)

    async def issue_change(host: Repository, key: bytes) -> None:
        data = {"email": new.address, "email_key": new.key}
        change = NewChallenge("email_change", "email_change", key, NOW, NOW + HOUR, new, user, data=data)
        await host.issue(change, timedelta(0), at)

    moved = digest()
    await issue_change(repository, moved)
    kept, left = AuthCode(digest(), NOW + HOUR), AuthCode(digest(), NOW + HOUR)
    nonce, _ = await issue(repository, email, purpose="reauthentication", data={"code_challenge": "plain x"})
    await repository.redeem(Answer(("reauthentication",), nonce), session(), left, event())
    by_code = [Answer(("magic_link",), None, email.key, (one,)) for one in (RIGHT, WRONG)]
    return {
        "its code": lambda host: host.redeem(by_code[0], session(), None, at),
        "a wrong code": lambda host: host.redeem(by_code[1], session(), None, at),
        "its link": lambda host: host.redeem(Answer(("magic_link",), link), session(), kept, at),
        "a change of address": lambda host: host.redeem(Answer(("email_change",), moved), None, None, at),
        "an operator's": lambda host: host.change_email(user, address(), at),
        "a reset": lambda host: host.reset_password(reset, OTHER_HASH, at),
        "a password": lambda host: host.set_password(user, HASH, None, at),
        "another code": lambda host: issue(host, email, at.at, "magic_link", code_hash=RIGHT),
        "another who takes over": lambda host: issue(
            host, email, at.at, "magic_link", data={"takes_over": True}
        ),
        "an exchange": lambda host: host.exchange(left.digest, ("plain x",), session(), at),
        "another reset": lambda host: issue(host, email, at.at),
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
        assert run_sql(database, "select purpose from auth.challenges") == []
