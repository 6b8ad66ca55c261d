"""Statements in libpq's pipeline mode on one of the service's connections: values, errors, notices, and its end."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pipeline import Run, Step, as_text
from project_service.database.pool import Pipelines, Pool
from project_service.lifecycle import start
from tests.live.sql import connection_to, connector, run_sql
from tests.live.waiting import until

reactor: Any = _reactor
VALUES = [
    ("text", "a 'b' \\ é\n"),
    ("text", ""),
    ("text", None),
    ("int", -5),
    ("bigint", 2**60),
    ("bool", True),
    ("bool", False),
    ("bytea", bytes(range(256))),
    ("bytea", b""),
    ("float8", 0.1),
    ("timestamptz", datetime.datetime(2026, 1, 2, 3, 4, 5, 678, datetime.UTC)),
    ("text[]", ["a", 'b"c', "d\\e", "{f,g}", "NULL", "", None]),
    ("int[]", [1, None, 3]),
]


@asynccontextmanager
async def connection(database: str) -> AsyncIterator[Connection]:
    made = await connection_to(database)
    try:
        yield made
    finally:
        made.close()


async def shares(pool: Pool) -> None:
    """Returns when the pool has a connection that is shared."""

    async def answered() -> bool:
        run = pool.pipelines.submit(1, [Step("select 1")])
        return run is not None and bool(await run.done)

    await until(answered)


@pytest.mark.parametrize(("kind", "value"), VALUES)
@pytest_twisted.ensureDeferred
async def test_values_come_back_as_by_psycopg2(database: str, kind: str, value: Any) -> None:
    async with connection(database) as made:
        for _ in range(2):
            ((found,),) = await made.run_typed(Step(f"select $1::{kind}", [as_text(value)]))
            ((expected,),) = await made.query(f"select %s::{kind}", (value,))
            assert (found, type(found)) == (expected, type(expected))


@pytest_twisted.ensureDeferred
async def test_an_error_is_psycopg2s_and_undoes_its_run_alone(database: str) -> None:
    run_sql(database, "create table public.kept (id int primary key)")
    async with connection(database) as made:
        add = Step("insert into public.kept values ($1)", [b"1"])
        await made.run([add])
        with pytest.raises(psycopg2.errors.UniqueViolation) as refused:
            await made.run([Step("insert into public.kept values ($1)", [b"2"]), add])
        assert refused.value.pgcode == "23505"
        assert refused.value.diag.constraint_name == "kept_pkey"
        assert "already exists" in str(refused.value.diag.message_detail)
        assert await made.run([Step("select id from public.kept")]) == [[b"1"]]
        with pytest.raises(psycopg2.errors.SyntaxError):
            await made.run([Step("selec")])
        # psycopg2 uses the connection in turns.
        assert await made.query("select count(*) from public.kept") == [(1,)]
        assert made.usable


@pytest_twisted.ensureDeferred
async def test_a_statement_that_could_not_be_prepared_is_forgotten_alone(database: str) -> None:
    async with connection(database) as made:
        good, bad = Step("select 1"), Step("select * from public.missing")
        with pytest.raises(psycopg2.errors.UndefinedTable):
            await made.run([Step("reset all", once=True), good, bad])
        assert list(made.statements.known) == [("", good.text)]
        run_sql(database, "create table public.missing (id int)")
        assert await made.run([Step("begin", once=True), good, bad, Step("commit", once=True)]) == []
        assert list(made.statements.known) == [("", good.text), ("", bad.text)]


@pytest_twisted.ensureDeferred
async def test_many_runs_on_one_connection_are_answered_in_order(database: str) -> None:
    async with connection(database) as made:
        pipeline = made.enter_pipeline()
        runs: list[Run] = []
        for number in range(300):
            text = "select 1 / $1::int" if number % 7 else "select 1 / ($1::int - $1::int)"
            runs.append(pipeline.submit(1, [Step(text, [str(number or 1).encode()])]))
        pipeline.flush_soon()
        for number, run in enumerate(runs):
            if number % 7:
                assert await run.done == [[b"1" if number == 1 else b"0"]]
            else:
                with pytest.raises(psycopg2.errors.DivisionByZero):
                    await run.done


@pytest_twisted.ensureDeferred
async def test_notices_take_no_memory(database: str) -> None:
    """psycopg2 would keep those that come while it is not asked itself: here they are 200 MB."""
    run_sql(
        database,
        "create function public.noisy() returns int language plpgsql as $$ begin"
        " for i in 1..200 loop raise notice '%', repeat('x', 10000); end loop; return 1; end $$",
    )
    async with connection(database) as made:
        for _ in range(10):
            await made.run([Step("select public.noisy()")])
        await made.query("select 1")
        assert made._connection.notices == []


@pytest_twisted.ensureDeferred
async def test_what_is_under_way_fails_when_the_connection_is_closed(database: str) -> None:
    """Also where somebody who hears of it asks for more at once."""
    pool = Pool(connector(database), 4, 5.0, reactor)
    pipelines: Pipelines = pool.pipelines
    step = Step("select pg_sleep(10)")
    await shares(pool)
    asked: list[Run | None] = []

    def again(_: object) -> None:
        asked.append(pipelines.submit(1, [Step("select 1")]))

    runs = [pipelines.submit(1, [step]) for _ in range(3)]
    ended: list[Deferred[Any]] = []
    for run in runs:
        assert run is not None
        run.done.addErrback(lambda failure: failure.trap(DatabaseGone)).addCallback(again)
        ended.append(run.done)
    (shared,) = pipelines._connections
    shared.connection_lost()
    for one in ended:
        await one
    assert asked == [None] * 3
    assert await pool.query("select 1") == [(1,)]
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_answer_is_given_up(database: str) -> None:
    pool = Pool(connector(database, 0.2), 4, 5.0, reactor)
    await shares(pool)
    (shared,) = pool.pipelines._connections
    shared.answer_seconds = 0.5
    run = pool.pipelines.submit(
        1, [Step("set statement_timeout = 0", once=True), Step("select pg_sleep(60)")]
    )
    assert run is not None
    with pytest.raises(DatabaseGone):
        await run.done
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_the_pool_closes_when_what_is_under_way_is_done(database: str) -> None:
    pool = Pool(connector(database), 4, 5.0, reactor)
    await shares(pool)
    run = pool.pipelines.submit(1, [Step("select pg_sleep(0.2)::text")])
    assert run is not None
    closed = start(pool.close())
    assert await run.done == [[b""]]
    await closed
    assert pool.pipelines.submit(1, [Step("select 1")]) is None
    assert not pool._busy
