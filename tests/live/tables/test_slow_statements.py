"""Statements that take long are in the log with their shape, role, time and request, and in the metrics; never with a
value. They are on every way that a statement takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve
from twisted.internet.threads import deferToThread
from twisted.logger import LogEvent, formatEvent

from project_service.database.slow import MAX_SHOWN
from project_service.lifecycle import start
from project_service.settings.model import Stage, StageDatabase, Store
from tests.captured_log import captured_logs
from tests.live.application import NOTES, serving, settings_for, use_every_part
from tests.live.services import held_open, wait
from tests.live.sql import run_sql
from tests.live.tables.service import BASE, Tables, until_answered
from tests.live.waiting import until

# A machine that stands still for some seconds ends none of the statements that are meant to have an answer.
SLOW_SECONDS, STATEMENT_SECONDS = 0.3, 8.0
SECRET = "zqj-5eat-on-the-moon"
SCHEMA = """
create table seats (id int primary key, name text);
insert into seats select n, 'seat ' || n from generate_series(1, 9) n;
create function takes(seconds float8, word text) returns text language sql stable
  as $$ select pg_sleep(seconds)::text || word $$;
create view slow_seats as select seats.*, pg_sleep(0.4)::text from seats where id = 1;
grant all on seats, slow_seats to anon, authenticated;
"""


@pytest.fixture(scope="module")
def tables(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tables]:
    run_sql(module_database, SCHEMA)
    settings = settings_for(
        module_database,
        store_settings,
        Path(tmp_path_factory.mktemp("slow")),
        database={"slow_query_seconds": SLOW_SECONDS, "statement_timeout_seconds": STATEMENT_SECONDS},
    )
    settings = evolve(settings, stages={"dev": Stage(databases={"main": StageDatabase(pool_size=4)})})
    with pytest.MonkeyPatch.context() as patch, held_open(serving(settings)) as api:
        patch.setattr("project_service.database.slow.MAX_LINES", 10_000)
        session = wait(lambda: api.sign_up("slow@example.test"))
        tables = Tables(api, str(session["access_token"]))
        wait(lambda: until_answered(tables, "GET", "/seats", 200))
        yield tables


def slow(events: Sequence[LogEvent], request_id: str | None = None) -> list[LogEvent]:
    """Those of one request. On a busy machine others, and the service itself, have slow statements now and then."""
    return [
        event
        for event in events
        if event.get("log_namespace", "").startswith("project_service.database.slow")
        and request_id in (None, event["request_id"])
    ]


async def count(tables: Tables, pool: str) -> float:
    _, _, shown = await tables.api.request("GET", "/metrics", key=None)
    line = next(
        one for one in shown.decode().splitlines() if f'slow_statements_total{{pool="{pool}"}}' in one
    )
    return float(line.rpartition(" ")[2])


async def uncounted(tables: Tables, pool: str, events: Sequence[LogEvent]) -> float:
    """What the count of ``pool`` has beside its lines among ``events``, at a moment at which nothing is slow."""

    def lines() -> int:
        return sum(event["database"] == pool for event in slow(events))

    while True:
        before = lines()
        counted = await count(tables, pool)
        if lines() == before:
            return counted - before


async def waits_for_long(tables: Tables) -> None:
    """Returns when a statement has waited for a lock for longer than what is slow."""
    waits = (
        "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        f" and now() - query_start > interval '{2 * SLOW_SECONDS} s'"
    )
    await until(lambda: bool(tables.sql(waits)))


@contextmanager
def locked(tables: Tables, text: str) -> Iterator[Any]:
    """``text`` has run in a transaction that ends with the block, or when what is given is called."""
    connection = psycopg2.connect(tables.api.dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute(text)
        yield connection.rollback
    finally:
        connection.close()


@pytest_twisted.ensureDeferred
async def test_a_slow_statement_has_a_line_on_every_way_and_a_quick_one_has_none(tables: Tables) -> None:
    ways: tuple[tuple[str, str, dict[str, Any], str], ...] = (
        # As text the first time, prepared from the second on; a POST, whose values are in the body.
        ("GET", f"/rpc/takes?seconds=0.35&word={SECRET}", {}, "/rpc/takes?seconds=$&word=$"),
        ("GET", f"/rpc/takes?seconds=0.36&word={SECRET}", {}, "/rpc/takes?seconds=$&word=$"),
        ("POST", "/rpc/takes", {"json": {"seconds": 0.35, "word": SECRET}}, "/rpc/takes"),
        ("GET", f"/slow_seats?name=neq.{SECRET}&select=id", {}, "/slow_seats?name=neq.$&select=id"),
    )
    with captured_logs() as events:
        before = await uncounted(tables, "dev/main", events)
        for number, (method, path, more, shown) in enumerate(ways, 1):
            status, _, body = await tables.request(
                method, path, token=tables.token, headers={"X-Request-Id": f"slow-{number}"}, **more
            )
            assert status == 200, body
            assert (await tables.request("GET", f"/seats?id=eq.{number}"))[0] == 200
            (event,) = slow(events, f"slow-{number}")
            assert event["statement"] == f"{method} {BASE}{shown}"
            assert (event["role"], event["database"]) == ("authenticated", "dev/main")
            assert event["seconds"] < STATEMENT_SECONDS
            assert SECRET not in formatEvent(event)
        assert await uncounted(tables, "dev/main", events) == before
    assert all(event["seconds"] >= SLOW_SECONDS for event in slow(events))


@pytest_twisted.ensureDeferred
async def test_one_that_is_cancelled_has_a_line(tables: Tables) -> None:
    with captured_logs() as events:
        path, headers = f"/rpc/takes?seconds=60&word={SECRET}", {"X-Request-Id": "cancelled"}
        status, _, _ = await tables.request("GET", path, headers=headers)
    assert status >= 500
    (event,) = slow(events, "cancelled")
    assert event["role"] == "anon"
    assert STATEMENT_SECONDS <= event["seconds"] < 60


@pytest_twisted.ensureDeferred
async def test_one_that_shares_its_connection_is_run_again_and_has_one_line(tables: Tables) -> None:
    """A lock holds up a read that has been quick: PostgreSQL ends it where it is shared."""
    for _ in range(12):
        assert (await tables.request("GET", f"/seats?name=eq.{SECRET}"))[0] == 200
    with captured_logs() as events, locked(tables, "lock table seats") as release:
        headers = {"X-Request-Id": "again"}
        asked = start(tables.request("GET", f"/seats?name=eq.{SECRET}", headers=headers))
        await waits_for_long(tables)
        await deferToThread(release)
        status, _, _ = await asked
    assert status == 200
    (event,) = slow(events, "again")
    assert event["statement"] == f"GET {BASE}/seats?name=eq.$"
    assert (event["role"], SECRET in formatEvent(event)) == ("anon", False)


@pytest_twisted.ensureDeferred
async def test_the_services_own_statements_have_their_sql_without_values(tables: Tables) -> None:
    with captured_logs() as events, locked(tables, "lock table auth.users") as release:
        before = await uncounted(tables, "system", events)
        asked = start(
            tables.api.request(
                "POST",
                "/auth/login",
                key=None,
                json={"email": f"{SECRET}@example.test", "password": "wrong for sure"},
                headers={"X-Request-Id": "own"},
            )
        )
        await waits_for_long(tables)
        await deferToThread(release)
        status, _, _ = await asked
        assert await uncounted(tables, "system", events) == before
    assert status == 401
    found = slow(events, "own")
    assert {(event["database"], event["role"]) for event in found} == {("system", "the service")}
    assert any("auth.users" in event["statement"] for event in found)
    assert not any(SECRET in formatEvent(event) for event in slow(events))


@pytest_twisted.ensureDeferred
async def test_what_is_slow_can_be_set_anew_while_running(tables: Tables) -> None:
    settings = tables.api.settings
    for seconds, lines in ((0.0, 0), (0.2, 1)):
        tables.api.application.reload(
            evolve(settings, database=evolve(settings.database, slow_query_seconds=seconds))
        )
        await until_answered(tables, "GET", "/seats", 200)
        with captured_logs() as events:
            path, headers = "/rpc/takes?seconds=0.25&word=a", {"X-Request-Id": "anew"}
            assert (await tables.request("GET", path, headers=headers))[0] == 200
        assert len(slow(events, "anew")) == lines, seconds
    tables.api.application.reload(settings)


@pytest_twisted.ensureDeferred
async def test_no_statement_of_any_part_shows_a_value(tables: Tables) -> None:
    tables.sql(NOTES)
    await until_answered(tables, "GET", "/notes", 200)
    settings = tables.api.settings
    tables.api.application.reload(
        evolve(settings, database=evolve(settings.database, slow_query_seconds=1e-9))
    )
    with captured_logs() as events:
        await use_every_part(tables.api, "zqj5eat")
    tables.api.application.reload(settings)
    lines = [formatEvent(event) for event in slow(events)]
    assert [line for line in lines if "zqj5eat" in line] == []
    # Each can be read to where it is cut off, so that nothing is only missing because it was not.
    unread = [event["statement"] for event in slow(events) if event["statement"].endswith(" ...")]
    assert [one for one in unread if len(one) < MAX_SHOWN] == []
    assert len({event["statement"] for event in slow(events)}) > 20
    for words in (
        "auth.users",
        "storage.objects",
        f"POST {BASE}/notes",
        f"{BASE}/notes?select=words&words=eq.$",
    ):
        assert any(words in line for line in lines), words
