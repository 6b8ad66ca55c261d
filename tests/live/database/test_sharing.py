"""Connections that reads share, on the real server: what PostgreSQL ends there, and who does not wait for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from twisted.internet import reactor as _reactor
from twisted.internet.defer import gatherResults

from project_service.database import quickness, sharing
from project_service.database.pipeline import Step
from project_service.database.pool import Pool
from project_service.database.quickness import Quickness
from project_service.database.sharing import answered
from project_service.lifecycle import start
from tests.live.sql import connector, run_sql
from tests.live.standstill import Standstill, standstill
from tests.live.waiting import until

reactor: Any = _reactor
LIMIT = "select current_setting('statement_timeout')"
LOCKED = "select n from public.locked where n > %s"
OTHER = "select n from public.other where n > %s"
# The rule is 100 ms; a busy machine takes longer, and what is locked much longer than that.
LONGEST_SECONDS, STATEMENT_SECONDS = 1.0, 3.0


@asynccontextmanager
async def sharing_pool(
    database: str, limit: float = STATEMENT_SECONDS, size: int = 12
) -> AsyncIterator[Pool]:
    pool = Pool(connector(database, limit), size, 60.0, reactor)

    async def shares() -> bool:
        run = pool.pipelines.submit(0, [Step("select 1")])
        return run is not None and await answered(run, Quickness())

    await until(shares)
    yield pool
    await pool.close()


@contextmanager
def locked(database: str) -> Iterator[None]:
    with closing(psycopg2.connect(database)) as locking:
        locking.cursor().execute("lock table public.locked in access exclusive mode")
        yield


async def timed(work: Awaitable[Any], still: Standstill) -> tuple[float, float, Any]:
    """How long ``work`` takes, how long but for the time in which the machine stands still, and its result or the
    SQLSTATE of its failure."""
    began, before = reactor.seconds(), still.seconds
    try:
        result = await work
    except psycopg2.Error as fault:
        result = fault.pgcode
    took = reactor.seconds() - began
    return took, took - (still.seconds - before), result


@pytest.mark.parametrize(("usual", "expected"), [(60.0, "20s"), (0.0, "20s"), (10.0, "10s")])
@pytest_twisted.ensureDeferred
async def test_shared_connections_have_a_limit_of_their_own(
    database: str, usual: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No statement of this test takes as long, however busy the machine is.
    monkeypatch.setattr(sharing, "LIMIT_SECONDS", 20.0)
    async with sharing_pool(database, usual, 4) as pool:
        run = pool.pipelines.submit(0, [Step(LIMIT)])
        assert run is not None
        await run.done
        assert run.rows == [[expected.encode()]]
        # On all others it is as it was.
        assert await pool.query(LIMIT) == [({60.0: "1min", 0.0: "0", 10.0: "10s"}[usual],)]


@pytest_twisted.ensureDeferred
async def test_the_limit_is_for_each_statement_and_not_for_waiting_behind_others(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each statement is far from it, for machines that stand still for some seconds, and all together exceed it.
    monkeypatch.setattr(sharing, "LIMIT_SECONDS", 6.0)
    async with sharing_pool(database, 30.0) as pool:
        sleeps = [Step(f"select pg_sleep(1.4) as number_{number}") for number in range(5)]
        runs = [pool.pipelines.submit(0, sleeps)]
        runs.append(pool.pipelines.submit(0, [Step("select 1"), Step("select pg_sleep(29)")]))
        runs.append(pool.pipelines.submit(0, [Step("select 2")]))
        assert [await answered(run, Quickness()) for run in runs if run is not None] == [True, False, True]


@pytest_twisted.ensureDeferred
async def test_reads_of_a_locked_table_wait_at_the_same_time_and_hold_up_no_others(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service's own, as well."""
    # So that they are all on the shared connection.
    monkeypatch.setattr(sharing, "MAX_AGE_SECONDS", LONGEST_SECONDS)
    run_sql(database, "create table public.locked (n int); create table public.other as select 7 as n")
    async with sharing_pool(database) as pool:
        for sql in (LOCKED, OTHER):
            await pool.read(sql, (0,))
        with locked(database), standstill() as still:
            slow, others = (
                [start(timed(pool.read(sql, (0,)), still)) for _ in range(8)] for sql in (LOCKED, OTHER)
            )
            for _, held_up, rows in await gatherResults(others):
                assert rows == [(7,)]
                assert held_up < LONGEST_SECONDS
            for seconds, held_up, code in await gatherResults(slow):
                assert code == "57014"
                assert seconds > STATEMENT_SECONDS - 0.5
                assert held_up < STATEMENT_SECONDS + LONGEST_SECONDS
        assert await pool.read(LOCKED, (0,)) == []


@pytest_twisted.ensureDeferred
async def test_a_read_that_did_not_share_any_more_shares_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it has been quick often enough."""
    monkeypatch.setattr(quickness, "RUNS_AFTER_LIMIT", 5)
    monkeypatch.setattr(quickness, "QUICK_SECONDS", 60.0)
    # Only what is locked takes as long, and that may take as long as this test.
    monkeypatch.setattr(sharing, "LIMIT_SECONDS", 1.0)
    run_sql(database, "create table public.locked (n int)")
    async with sharing_pool(database, 60.0) as pool:
        kind = pool._quickness[LOCKED]
        with locked(database):
            asked = start(pool.read(LOCKED, (0,)))
            await until(lambda: not kind.is_quick)
        assert await asked == []
        for number in range(-4, quickness.QUICK_RUNS):
            assert kind.quick_runs == number
            await pool.read(LOCKED, (0,))
        assert kind.is_quick
        await pool.read(LOCKED, (0,))
        assert kind.quick_runs == quickness.QUICK_RUNS + 1
