"""Statements in libpq's pipeline mode and prepared queries, on the service's own connections."""

from __future__ import annotations

import datetime
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from project_service.database import libpq, pipeline, sharing
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pipeline import Pipeline, Run, Step, as_text
from project_service.database.pool import Pool
from project_service.database.sharing import Pipelines
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


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No statement that is answered here takes too long for a shared connection, however busy the machine is."""
    monkeypatch.setattr(sharing, "LIMIT_SECONDS", 20.0)


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
        if run is not None:
            await run.done
        return run is not None

    await until(answered)


@contextmanager
def not_for_ever() -> Iterator[None]:
    """Fails if the block takes half a minute, also where the reactor never turns again."""

    def fail(number: int, frame: object) -> None:
        pytest.fail("the reactor is held up")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(30)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("kind", "value"), VALUES)
@pytest_twisted.ensureDeferred
async def test_values_come_back_as_by_psycopg2(database: str, kind: str, value: Any) -> None:
    async with connection(database) as made:
        for _ in range(2):
            ((found,),) = (await made.run([Step(f"select $1::{kind}", [as_text(value)])])).typed()
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
        assert (await made.run([Step("select id from public.kept")])).rows == [[b"1"]]
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
        assert (await made.run([Step("begin", once=True), good, bad, Step("commit", once=True)])).rows == []
        assert list(made.statements.known) == [("", good.text), ("", bad.text)]


@pytest_twisted.ensureDeferred
async def test_many_runs_on_one_connection_are_answered_in_order(database: str) -> None:
    async with connection(database) as made:
        shared = made.enter_pipeline()
        runs: list[Run] = []
        for number in range(300):
            text = "select 1 / $1::int" if number % 7 else "select 1 / ($1::int - $1::int)"
            runs.append(shared.submit(1, [Step(text, [str(number or 1).encode()])]))
        shared.flush_soon()
        for number, run in enumerate(runs):
            if number % 7:
                await run.done
                assert run.rows == [[b"1" if number == 1 else b"0"]]
            else:
                with pytest.raises(psycopg2.errors.DivisionByZero):
                    await run.done


class Failing:
    """Libpq's function ``name``, whose result is ``result`` without being called from the ``number``-th call on."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, number: int, result: int = 0) -> None:
        self.left = number
        genuine = getattr(pipeline, name)

        def called(*arguments: Any) -> Any:
            self.left -= 1
            return result if self.left <= 0 else genuine(*arguments)

        patch.setattr(pipeline, name, called)


MARKED = "insert into public.marks values ($1)"


def marked(value: bytes) -> list[Step]:
    """A transaction that sets something, writes, and is committed by what it consists of."""
    settings = Step("select set_config('x.y', $1, true)", [b"a"])
    return [Step("begin", once=True), settings, Step(MARKED, [value]), Step("commit", once=True)]


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("pq_send_prepare", 2),
        ("pq_send_query_prepared", 2),
        ("pq_send_query_params", 2),
        ("pq_pipeline_sync", 1),
    ],
)
@pytest_twisted.ensureDeferred
async def test_nothing_goes_out_of_a_transaction_that_libpq_does_not_take(
    database: str, name: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its calls. Were the settings to fail and the statement to go out, it would run in the connection's
    own role; and what waits in libpq's buffer goes out when libpq closes the connection, unless that is prevented."""
    run_sql(database, "create table public.marks (n int)")
    for number in range(1, calls + 1):
        async with connection(database) as made:
            shared = made.enter_pipeline()
            pid = made.raw.get_backend_pid()
            with monkeypatch.context() as patch:
                Failing(patch, name, number)
                runs = [shared.submit(0, marked(b"1")), shared.submit(0, marked(b"2"))]
            runs.append(shared.submit(0, marked(b"3")))
            shared.flush()
            for run in runs:
                with pytest.raises(DatabaseGone):
                    await run.done
            assert made.raw.closed
            assert not made.usable
            await until(lambda: not run_sql(database, f"select 1 from pg_stat_activity where pid = {pid}"))  # noqa: B023
            assert run_sql(database, "select n from public.marks") == [], number


@pytest_twisted.ensureDeferred
async def test_what_cannot_be_written_is_a_lost_connection(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connection(database) as made:
        Failing(monkeypatch, "pq_flush", 1, -1)
        with pytest.raises(DatabaseGone):
            await made.run([Step("select 1")])
        assert made.raw.closed


@pytest.mark.parametrize(
    ("name", "result"),
    [("pq_set_nonblocking", -1), ("pq_enter_pipeline_mode", 0), ("pq_exit_pipeline_mode", 0)],
)
@pytest_twisted.ensureDeferred
async def test_a_connection_on_which_libpq_does_not_change_its_mode_is_lost(
    database: str, name: str, result: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connection(database) as made:
        Failing(monkeypatch, name, 1, result)
        if name == "pq_exit_pipeline_mode":
            assert (await made.run([Step("select 1")])).rows == [[b"1"]]
            with pytest.raises(DatabaseGone):
                await made.query("select 1")
        else:
            with pytest.raises(DatabaseGone):
                await made.run([Step("select 1")])
        assert made.raw.closed
        assert not made.usable


@pytest_twisted.ensureDeferred
async def test_a_connection_stays_in_pipeline_mode_until_psycopg2_is_needed(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []
    enter = libpq.pq_enter_pipeline_mode

    def counted(pointer: int) -> Any:
        entered.append(pointer)
        return enter(pointer)

    monkeypatch.setattr(pipeline, "pq_enter_pipeline_mode", counted)
    async with connection(database) as made:
        for expected in (1, 2):
            for _ in range(3):
                assert (await made.run([Step("select 1")])).rows == [[b"1"]]
                assert made.usable
            assert await made.query("select 2") == [(2,)]
            assert len(entered) == expected


@pytest_twisted.ensureDeferred
async def test_one_that_is_idle_in_pipeline_mode_is_missed_when_the_server_ends_it(database: str) -> None:
    async with connection(database) as made:
        lost: list[Connection] = []
        made.on_lost = lost.append
        (row,) = (await made.run([Step("select pg_backend_pid()")])).typed()
        run_sql(database, f"select pg_terminate_backend({row[0]})")
        await until(lambda: lost == [made])
        assert not made.usable


@pytest_twisted.ensureDeferred
async def test_a_statement_that_libpq_itself_refuses_ends_its_connection(database: str) -> None:
    """It has more values than the protocol can count. Its settings have been queued before."""
    run_sql(database, "create table public.marks (n int)")
    pool = Pool(connector(database), 1, 60.0, reactor)
    many = Step(f"insert into public.marks values ({'+'.join(['$1::int'] * 3)})", [b"1"] * 70_000)
    with pytest.raises(DatabaseGone):
        await pool.use(lambda made: made.run([Step("select set_config('x.y', 'a', true)"), many]))
    assert await pool.query("select count(*) from public.marks") == [(0,)]
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_drop_that_libpq_does_not_take_ends_its_connection(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of statements that are not used any more, which go ahead of a run."""
    for name in ("pq_send_query_params", "pq_pipeline_sync"):
        async with connection(database) as made:
            await made.run([Step("select 1")], 1)
            with monkeypatch.context() as patch:
                Failing(patch, name, 1)
                with pytest.raises(DatabaseGone):
                    await made.run([Step("select 2")], 2)
            assert made.raw.closed


@pytest_twisted.ensureDeferred
async def test_a_value_that_cannot_be_sent_takes_nothing_with_it(database: str) -> None:
    """The failure is raised, and what was queued of its transaction does not become part of the next."""
    async with connection(database) as made:
        with pytest.raises(TypeError):
            await made.run([Step("select set_config('x.y', 'a', true)"), Step("select $1", ["text"])])  # type: ignore[list-item]
        assert made.raw.closed


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
    pool = Pool(connector(database), 4, 60.0, reactor)
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
async def test_a_server_that_has_ended_is_noticed_by_who_sends_more_on_its_last_answer(database: str) -> None:
    """libpq has no more results of what it could not send, and says so as often as it is asked: for ever, once."""
    async with connection(database) as made:
        ((pid,),) = (await made.run([Step("select pg_backend_pid()")])).typed()
        made.pipeline = shared = Pipeline(made)
        runs = [shared.submit(0, [Step("select 1", once=True)])]
        for _ in range(2):
            runs[0].done.addCallback(lambda _: runs.append(shared.submit(0, [Step("select 2", once=True)])))
        shared.flush()
        # The reactor reads nothing meanwhile.
        server = f"select state from pg_stat_activity where pid = {pid} and query = 'select 1'"
        while run_sql(database, server) != [("idle",)]:
            continue
        run_sql(database, f"select pg_terminate_backend({pid})")
        while run_sql(database, f"select 1 from pg_stat_activity where pid = {pid}"):
            continue
        with not_for_ever():
            await runs[0].done
            for run in runs[1:]:
                with pytest.raises(DatabaseGone):
                    await run.done


@pytest_twisted.ensureDeferred
async def test_dropping_statements_that_are_not_used_any_more_does_not_look_like_a_long_wait(
    database: str,
) -> None:
    """Each drop is sent ahead of a run, which others may join and which nobody takes for a silent server."""
    pool = Pool(connector(database), 4, 60.0, reactor)
    await shares(pool)
    (shared,) = pool.pipelines._connections
    shared.statements.limit = 1
    first = pool.pipelines.submit(1, [Step("select 0")])
    assert first is not None
    await first.done
    before = reactor.seconds()
    asked = [pool.pipelines.submit(1, [Step(f"select {number}")]) for number in (1, 2)]
    assert shared.awaiting_since is not None
    assert shared.awaiting_since >= before
    assert shared.pipeline is not None
    assert len(shared.pipeline.waiting) == 4  # each of the runs drops the statement of the one before
    for run in asked:
        assert run is not None
        await run.done
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_waiting_for_what_has_to_be_ended_does_not_become_usual(database: str) -> None:
    async with connection(database) as made:
        shared = made.enter_pipeline()
        runs = [shared.submit(0, [Step("set statement_timeout = '20ms'", once=True)])]
        runs += [shared.submit(0, [Step("select pg_sleep(9)")]) for _ in range(20)]
        shared.flush()
        await runs[0].done
        before = shared.typical
        for run in runs[1:]:
            with pytest.raises(psycopg2.errors.QueryCanceled):
                await run.done
        assert shared.typical == before


ASKED = "select note, 'a%%' from public.notes where id = %s"


@pytest_twisted.ensureDeferred
async def test_a_query_is_prepared_once_and_replaced_when_it_no_longer_fits(database: str) -> None:
    pool = Pool(connector(database), 1, 60.0, reactor)
    await pool.query("create table public.notes (id int primary key, note text)")
    await pool.query("insert into public.notes values (1, 'one'), (2, null)")

    async def statements() -> list[str]:
        return [row[0] for row in await pool.query("select statement from pg_prepared_statements")]

    assert await pool.prepared(ASKED, (1,)) == [("one", "a%")]
    assert await pool.prepared(ASKED, (2,)) == [(None, "a%")]
    assert await statements() == ["select note, 'a%' from public.notes where id = $1"]
    # A result column gets another type, so the plan no longer fits.
    await pool.query("alter table public.notes alter note type int using 5")
    assert await pool.prepared(ASKED, (1,)) == [(5, "a%")]
    assert await pool.prepared(ASKED, (2,)) == [(5, "a%")]
    # A parameter's column gets another type, which was fixed when the query was prepared.
    await pool.query("alter table public.notes alter id type text")
    assert await pool.prepared(ASKED, ("1",)) == [(5, "a%")]
    assert await pool.prepared(ASKED, ("1",)) == [(5, "a%")]
    assert len(await statements()) == 1
    await pool.query("deallocate all")
    assert await pool.prepared(ASKED, ("1",)) == [(5, "a%")]
    assert await pool.prepared(ASKED, ("1",)) == [(5, "a%")]
    assert len(await statements()) == 1
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_type_replaced_by_another_of_its_name_is_no_failure(database: str) -> None:
    pool = Pool(connector(database), 1, 60.0, reactor)
    await pool.query(
        "create type public.mood as enum ('sad'); create table public.moods (id int, mood public.mood)"
    )
    asked = "select id from public.moods where mood = %s"
    assert await pool.prepared(asked, ("sad",)) == []
    await pool.query("alter table public.moods alter mood type text; drop type public.mood")
    await pool.query(
        "create type public.mood as enum ('sad', 'glad');"
        "alter table public.moods alter mood type public.mood using 'glad'"
    )
    await pool.query("insert into public.moods values (1, 'glad')")
    for _ in range(3):
        assert await pool.prepared(asked, ("glad",)) == [(1,)]
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_dropped_column_in_the_rows_of_a_function_is_no_failure(database: str) -> None:
    pool = Pool(connector(database), 1, 60.0, reactor)
    await pool.query(
        "create table public.kept (id int, dropped int, note text); insert into public.kept values (1, 2, 'a');"
        " create function public.all_kept() returns setof public.kept language plpgsql as"
        " $$ begin return query select * from public.kept; end $$"
    )
    asked = "select found.* from public.all_kept() as found where found.id = %s"
    assert await pool.prepared(asked, (1,)) == [(1, 2, "a")]
    await pool.query("alter table public.kept drop column dropped")
    for _ in range(3):
        assert await pool.prepared(asked, (1,)) == [(1, "a")]
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_errors_of_the_query_itself_are_raised(database: str) -> None:
    pool = Pool(connector(database), 1, 60.0, reactor)
    with pytest.raises(Exception, match="nowhere"):
        await pool.prepared("select 1 from nowhere where id = %s", (1,))
    with pytest.raises(Exception, match="invalid input syntax"):
        await pool.prepared("select %s::int", ("x",))
    assert await pool.prepared("select %s::int", ("7",)) == [(7,)]
    await pool.close()
