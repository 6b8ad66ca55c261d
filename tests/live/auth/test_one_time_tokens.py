"""One-time tokens in PostgreSQL, where their contract suite cannot show it: what waits for which lock, and what is
rolled back together."""

from __future__ import annotations

from contextlib import closing

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve
from twisted.internet.defer import Deferred

from project_service.lifecycle import start
from tests.contracts.auth.users import HASH, NOW, OTHER_HASH, address, event, issue, made, session
from tests.live.auth.service import stores_on
from tests.live.sql import run_sql
from tests.live.waiting import until


async def until_waiting(database: str, count: int = 1) -> None:
    async def waiting() -> bool:
        return len(run_sql(database, "select 1 from pg_locks where not granted")) >= count

    await until(waiting)


@pytest_twisted.ensureDeferred
async def test_a_token_invalidated_while_its_use_waits_for_a_lock_is_refused(database: str) -> None:
    email = address()
    async with stores_on(database) as repository:
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
    async with stores_on(database) as repository:
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
    async with stores_on(database) as repository:
        await made(repository, email)
        token, _ = await issue(repository, email)
        with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
            cursor.execute("select from auth.users for key share")
            assert await repository.reset_password(token, OTHER_HASH, event()) is not None


@pytest_twisted.ensureDeferred
async def test_a_token_whose_use_fails_stays_valid(database: str) -> None:
    email, first = address(), session()
    async with stores_on(database) as repository:
        account = await made(repository, email, first)
        recovery, _ = await issue(repository, email)
        confirmation, _ = await issue(repository, email, purpose="confirmation")
        with pytest.raises(psycopg2.errors.CheckViolation):
            await repository.reset_password(recovery, b"no hash", event())
        with pytest.raises(psycopg2.errors.UniqueViolation):
            await repository.confirm_email(confirmation, evolve(session(), id=first.id), event())
        assert await repository.find_user(account.user.id) == account
        assert await repository.owner_of_token(recovery, "recovery", NOW) == account.user
        assert await repository.owner_of_token(confirmation, "confirmation", NOW) == account.user
