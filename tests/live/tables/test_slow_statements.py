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
from project_service.settings.model import Stage, StageDatabase, Store
from tests.captured_log import captured_logs
from tests.live.application import NOTES, serving, settings_for, use_every_part
from tests.live.services import held_open, wait
from tests.live.sql import run_sql
from tests.live.tables.service import BASE, Tables, until_answered

SLOW_SECONDS = 0.3
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
        database={"slow_query_seconds": SLOW_SECONDS, "statement_timeout_seconds": 1.5},
    )
    settings = evolve(settings, stages={"dev": Stage(databases={"main": StageDatabase(pool_size=4)})})
    with held_open(serving(settings)) as api:
        session = wait(lambda: api.sign_up("slow@example.test"))
        tables = Tables(api, str(session["access_token"]))
        wait(lambda: until_answered(tables, "GET", "/seats", 200))
        yield tables


def slow(events: Sequence[LogEvent]) -> list[LogEvent]:
    return [
        event
        for event in events
        if event.get("log_namespace", "").startswith("project_service.database.slow")
    ]


async def count(tables: Tables, pool: str) -> float:
    _, _, shown = await tables.api.request("GET", "/metrics", key=None)
    line = next(
        one for one in shown.decode().splitlines() if f'slow_statements_total{{pool="{pool}"}}' in one
    )
    return float(line.rpartition(" ")[2])


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
    before = await count(tables, "dev/main")
    ways: tuple[tuple[str, str, dict[str, Any], str], ...] = (
        # As text the first time, prepared from the second on; a POST, whose values are in the body.
        ("GET", f"/rpc/takes?seconds=0.35&word={SECRET}", {}, "/rpc/takes?seconds=$&word=$"),
        ("GET", f"/rpc/takes?seconds=0.36&word={SECRET}", {}, "/rpc/takes?seconds=$&word=$"),
        ("POST", "/rpc/takes", {"json": {"seconds": 0.35, "word": SECRET}}, "/rpc/takes"),
        ("GET", f"/slow_seats?name=neq.{SECRET}&select=id", {}, "/slow_seats?name=neq.$&select=id"),
    )
    for number, (method, path, more, shown) in enumerate(ways, 1):
        with captured_logs() as events:
            status, _, body = await tables.request(
                method, path, token=tables.token, headers={"X-Request-Id": f"slow-{number}"}, **more
            )
            assert (await tables.request("GET", f"/seats?id=eq.{number}"))[0] == 200
        assert status == 200, body
        (event,) = slow(events)
        assert event["statement"] == f"{method} {BASE}{shown}"
        assert (event["role"], event["request_id"]) == ("authenticated", f"slow-{number}")
        assert event["database"] == "dev/main"
        assert SLOW_SECONDS <= event["seconds"] < 1.5
        assert SECRET not in formatEvent(event)
    assert await count(tables, "dev/main") == before + len(ways)


@pytest_twisted.ensureDeferred
async def test_one_that_is_cancelled_has_a_line(tables: Tables) -> None:
    with captured_logs() as events:
        status, _, _ = await tables.request("GET", f"/rpc/takes?seconds=60&word={SECRET}")
    assert status >= 500
    (event,) = slow(events)
    assert event["role"] == "anon"
    assert 1.5 <= event["seconds"] < 5


@pytest_twisted.ensureDeferred
async def test_one_that_shares_its_connection_is_run_again_and_has_one_line(tables: Tables) -> None:
    """A lock holds up a read that has been quick: PostgreSQL ends it where it is shared."""
    for _ in range(12):
        assert (await tables.request("GET", f"/seats?name=eq.{SECRET}"))[0] == 200
    with captured_logs() as events, locked(tables, "lock table seats") as release:
        tables.api.reactor.callLater(0.6, lambda: deferToThread(release))
        status, _, _ = await tables.request("GET", f"/seats?name=eq.{SECRET}")
    assert status == 200
    (event,) = slow(events)
    assert event["statement"] == f"GET {BASE}/seats?name=eq.$"
    assert (event["role"], SECRET in formatEvent(event)) == ("anon", False)


@pytest_twisted.ensureDeferred
async def test_the_services_own_statements_have_their_sql_without_values(tables: Tables) -> None:
    before = await count(tables, "system")
    with captured_logs() as events, locked(tables, "lock table auth.users") as release:
        tables.api.reactor.callLater(0.6, lambda: deferToThread(release))
        status, _, _ = await tables.api.request(
            "POST",
            "/auth/login",
            key=None,
            json={"email": f"{SECRET}@example.test", "password": "wrong for sure"},
            headers={"X-Request-Id": "own"},
        )
    assert status == 401
    found = slow(events)
    assert {(event["database"], event["role"], event["request_id"]) for event in found} == {
        ("system", "the service", "own")
    }
    assert all("auth.users" in event["statement"] for event in found)
    assert not any(SECRET in formatEvent(event) for event in found)
    assert await count(tables, "system") == before + len(found)


@pytest_twisted.ensureDeferred
async def test_what_is_slow_can_be_set_anew_while_running(tables: Tables) -> None:
    settings = tables.api.settings
    for seconds, lines in ((0.0, 0), (0.2, 1)):
        tables.api.application.reload(
            evolve(settings, database=evolve(settings.database, slow_query_seconds=seconds))
        )
        await until_answered(tables, "GET", "/seats", 200)
        with captured_logs() as events:
            assert (await tables.request("GET", "/rpc/takes?seconds=0.25&word=a"))[0] == 200
        assert len(slow(events)) == lines, seconds
    tables.api.application.reload(settings)


@pytest_twisted.ensureDeferred
async def test_no_statement_of_any_part_shows_a_value(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("project_service.database.slow.MAX_LINES", 10_000)
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
