"""Every process is notified of sessions that end, in whatever way: at once, only once, and with the time until
which it matters."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from math import ceil

import pytest
import pytest_twisted

from project_service.auth.postgres import PostgresRepository
from project_service.auth.repository import Repository
from project_service.auth.sessions import CHANNEL
from tests.contracts.auth.users import MINUTE, NOW, event, made, session
from tests.live.auth.service import Told, heard, listening
from tests.live.services import pool_on, wait
from tests.live.sql import run_sql

PART = timedelta(milliseconds=1)


@pytest.fixture
def repository(database: str) -> Iterator[Repository]:
    pool = pool_on(database)
    yield PostgresRepository(pool)
    wait(pool.close)


@pytest.fixture
def told(database: str) -> Iterator[Told]:
    with listening(database, CHANNEL) as connection:
        yield connection


@pytest_twisted.ensureDeferred
async def test_the_end_of_a_session_is_notified_once(
    database: str, repository: Repository, told: Told
) -> None:
    ended, deleted, alive = (session(NOW + PART) for _ in range(3))
    account = await made(repository, first=ended)
    # In whole seconds, rounded up.
    until = ceil((ended.access_expires_at + MINUTE).timestamp())
    await repository.end_sessions(account.user.id, event())
    assert heard(told) == [f"{ended.id} {until}"]
    await repository.start_session(account, None, deleted, event())
    await repository.delete_user(account.user.id, event())
    assert heard(told) == [f"{deleted.id} {until}"]
    await made(repository, first=alive)
    run_sql(database, "update auth.sessions set ended_at = null")
    assert heard(told) == []


@pytest_twisted.ensureDeferred
async def test_changes_of_an_ended_session_are_not_notified(
    database: str, repository: Repository, told: Told
) -> None:
    first = session()
    account = await made(repository, first=first)
    await repository.end_sessions(account.user.id, event())
    assert len(heard(told)) == 1
    run_sql(database, "update auth.sessions set ended_at = now()")
    assert heard(told) == []
    # An operator has revived the session.
    for moment in ("null", "now()"):
        run_sql(database, f"update auth.sessions set ended_at = {moment}")
    assert len(heard(told)) == 1
    run_sql(database, "delete from auth.sessions")
    assert heard(told) == []
    assert run_sql(database, "select session_id::text from auth.revocations") == [(first.id,)]
