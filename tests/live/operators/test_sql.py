"""``/admin/sql`` and the saving of migrations, on a real database."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
import treq
from twisted.internet.defer import Deferred
from twisted.web._newclient import ResponseNeverReceived

from project_service.settings.model import Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open
from tests.live.sql import run_sql
from tests.live.waiting import until

NOT_BY_ITSELF = (
    "select set_config(name, '0', false) from pg_settings where name = 'client_connection_check_interval'"
)
OTHER = "select count(*) from pg_stat_activity where application_name = 'project-service sql'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("migrations")


@pytest.fixture(scope="module")
def api(
    module_database: str, store_settings: Store, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    settings = settings_for(
        module_database,
        store_settings,
        tmp_path_factory.mktemp("sql"),
        server={"console_sql": True, "migrations_dir": str(folder)},
    )
    with held_open(serving(settings)) as api:
        yield api


async def run(api: Api, sql: str, **more: Any) -> dict[str, Any]:
    body = {"stage": "dev", "database": "main", "sql": sql, **more}
    status, _, answer = await api.request("POST", "/admin/sql", key="service", json=body)
    assert status == 200, answer
    answered: dict[str, Any] = answer
    return answered


async def refused(api: Api, sql: str, **more: Any) -> dict[str, Any]:
    error: dict[str, Any] = (await run(api, sql, **more))["error"]
    assert error is not None
    return error


@pytest_twisted.ensureDeferred
async def test_each_statement_has_its_result(api: Api) -> None:
    answer = await run(
        api,
        "create temporary table t (id int8, price numeric(6,2), name text);\n"
        "insert into t values (9007199254740993, 1.50, 'é;'), (2, null, '');\n\n"
        "do $$ begin raise notice 'seen %', 1 using hint = 'go on'; end $$;\n"
        "select * from t; select 1 as a, 2 as a",
    )
    assert answer["error"] is None
    assert (answer["one_transaction"], answer["undone"]) == (True, False)
    assert [(one["command"], one["line"]) for one in answer["results"]] == [
        ("CREATE TABLE", 1),
        ("INSERT 0 2", 2),
        ("DO", 4),
        ("SELECT 2", 5),
        ("SELECT 1", 5),
    ]
    rows, twice = answer["results"][3:]
    assert rows["columns"] == [
        {"name": "id", "type": "bigint"},
        {"name": "price", "type": "numeric(6,2)"},
        {"name": "name", "type": "text"},
    ]
    assert rows["rows"] == [["9007199254740993", "1.50", "é;"], ["2", None, ""]]
    assert (rows["row_count"], rows["truncated"]) == (2, False)
    assert rows["milliseconds"] >= 0
    assert twice["rows"] == [["1", "2"]]
    assert answer["results"][0]["columns"] is None
    (notice,) = answer["results"][2]["notices"]
    assert (notice["severity"], notice["message"], notice["hint"]) == ("NOTICE", "seen 1", "go on")


@pytest_twisted.ensureDeferred
async def test_errors_have_their_place_in_the_text(api: Api) -> None:
    error = await refused(api, "select 'é𝄞' as ok;\n\n  select 'é𝄞', nothing\n  from pg_class")
    assert (error["sqlstate"], error["statement_line"]) == ("42703", 3)
    assert (error["line"], error["column"]) == (3, 16)
    error = await refused(api, "select 1;\nselect 'é' || nothing", explain=False)
    assert (error["line"], error["column"]) == (2, 15)
    error = await refused(api, "-- a comment é\nselect x", explain=True)
    assert (error["line"], error["column"]) == (2, 8)


@pytest_twisted.ensureDeferred
async def test_an_error_has_all_that_postgresql_says(api: Api) -> None:
    error = await refused(
        api,
        "do $$ begin raise exception 'no' using errcode = 'P0042', detail = 'because', hint = 'then do'; end $$",
    )
    assert (error["message"], error["sqlstate"]) == ("no", "P0042")
    assert (error["detail"], error["hint"]) == ("because", "then do")
    assert error["context"].startswith("PL/pgSQL function")
    assert error["line"] is None
    assert "psql" in (await refused(api, "\\dt"))["hint"]
    # But no more than anybody reads.
    error = await refused(api, "do $$ begin raise exception '%', repeat('x', 1000000); end $$")
    assert error["message"] == "x" * 4000


@pytest_twisted.ensureDeferred
async def test_several_statements_are_one_transaction(api: Api) -> None:
    answer = await run(api, "create table halves (id int); select 7; select 1/0; select 8")
    assert [one["command"] for one in answer["results"]] == ["CREATE TABLE", "SELECT 1"]
    assert answer["error"]["sqlstate"] == "22012"
    assert (answer["one_transaction"], answer["undone"]) == (True, True)
    assert run_sql(api.dsn, "select to_regclass('halves')") == [(None,)]
    # Constraints that are checked at the end.
    deferred = (
        "create table later (id int unique deferrable initially deferred); insert into later values (1), (1)"
    )
    answer = await run(api, deferred)
    assert (answer["error"]["sqlstate"], answer["error"]["statement_line"], answer["undone"]) == (
        "23505",
        None,
        True,
    )


@pytest_twisted.ensureDeferred
async def test_what_has_its_own_transactions_runs_statement_by_statement(api: Api) -> None:
    answer = await run(
        api, "-- no transaction\ncreate table kept (id int); vacuum kept; select 1/0; select 1"
    )
    assert [one["command"] for one in answer["results"]] == ["CREATE TABLE", "VACUUM"]
    assert (answer["one_transaction"], answer["undone"]) == (False, False)
    assert run_sql(api.dsn, "select to_regclass('kept')::text") == [("kept",)]
    answer = await run(api, "begin; insert into kept values (1); commit; begin; insert into kept values (2)")
    assert answer["error"] is None
    assert (answer["one_transaction"], answer["undone"]) == (False, True)
    assert run_sql(api.dsn, "select id from kept") == [(1,)]
    # One statement alone needs no comment.
    assert (await run(api, "vacuum kept;"))["error"] is None
    error = await refused(api, "select 1; vacuum kept")
    assert "-- no transaction" in error["hint"]


@pytest_twisted.ensureDeferred
async def test_nothing_reaches_the_next_caller(api: Api) -> None:
    await run(
        api,
        "-- no transaction\nset search_path = nowhere; set role anon; set statement_timeout = 1;"
        "reset role; create temporary table mine (id int); select pg_advisory_lock(4711); listen something",
    )
    # Its session ends, and only then the lock that it holds.
    await until(lambda: run_sql(api.dsn, OTHER) == [(0,)])
    answer = await run(
        api,
        "select current_setting('search_path'), current_user = session_user, to_regclass('mine'),"
        " pg_try_advisory_lock(4711), current_setting('statement_timeout')",
    )
    assert answer["results"][0]["rows"] == [['"$user", public', "t", None, "t", "30s"]]
    await until(lambda: run_sql(api.dsn, OTHER) == [(0,)])
    status, _, _ = await api.request("GET", "/dev/db/main/rest/", key="service")
    assert status == 200


@pytest_twisted.ensureDeferred
async def test_a_statement_has_a_time_limit(api: Api) -> None:
    error = await refused(api, "select 1; select pg_sleep(60)", timeout_seconds=1)
    assert (error["sqlstate"], error["statement_line"]) == ("57014", 1)
    assert "timeout" in error["message"]


@pytest_twisted.ensureDeferred
async def test_who_leaves_cancels_the_statement(api: Api) -> None:
    run_sql(api.dsn, "create table written (id int)")
    body = {
        "stage": "dev",
        "database": "main",
        # Without the setting, by which the server itself looks whether its client is there.
        "sql": f"{NOT_BY_ITSELF}; insert into written values (1); select pg_sleep(600)",
        "timeout_seconds": 600,
    }
    running = (
        "select count(*) from pg_stat_activity where state = 'active' and query = 'select pg_sleep(600)'"
    )
    headers: dict[str | bytes, str | bytes] = {"X-Service-Key": api.service_key}
    requested: Deferred[Any] = treq.post(
        f"{api.base_url}/admin/sql", json=body, headers=headers, persistent=False
    )
    await until(lambda: run_sql(api.dsn, running) == [(1,)])
    requested.cancel()
    with pytest.raises(ResponseNeverReceived):
        await requested
    await until(lambda: run_sql(api.dsn, running) == [(0,)])
    await until(lambda: run_sql(api.dsn, OTHER) == [(0,)])
    assert run_sql(api.dsn, "select * from written") == []


@pytest_twisted.ensureDeferred
async def test_who_closes_the_connection_in_the_ordinary_way_cancels_it_too(api: Api) -> None:
    """As a browser does, and a client that is killed: what they sent ends, and nothing is reset."""
    body = json.dumps(
        {
            "stage": "dev",
            "database": "main",
            "sql": f"{NOT_BY_ITSELF}; select pg_sleep(601)",
            "timeout_seconds": 600,
        }
    )
    head = (
        f"POST /admin/sql HTTP/1.1\r\nHost: localhost\r\nX-Service-Key: {api.service_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    running = (
        "select count(*) from pg_stat_activity where state = 'active' and query = 'select pg_sleep(601)'"
    )
    with socket.create_connection(("127.0.0.1", api.port)) as client:
        client.sendall((head + body).encode())
        await until(lambda: run_sql(api.dsn, running) == [(1,)])
    await until(lambda: run_sql(api.dsn, running) == [(0,)])


@pytest_twisted.ensureDeferred
async def test_more_rows_are_counted_and_have_their_effect(api: Api) -> None:
    answer = await run(
        api,
        "create table many (id int); insert into many select generate_series(1, 25000) returning id;"
        "select count(*) from many",
        limit=10,
    )
    inserted, counted = answer["results"][1:]
    assert (len(inserted["rows"]), inserted["row_count"], inserted["truncated"]) == (10, 25000, True)
    assert inserted["command"] == "INSERT 0 25000"
    assert counted["rows"] == [["25000"]]
    # What only reads, and is alone, ends early: this would take minutes.
    answer = await run(api, "select generate_series(1, 1000000000) as n", limit=3, read_only=True)
    (result,) = answer["results"]
    assert answer["error"] is None
    assert (result["rows"], result["row_count"], result["truncated"]) == ([["1"], ["2"], ["3"]], None, True)
    assert (await run(api, "select 1 where false", limit=0))["results"][0]["truncated"] is False
    assert (await run(api, " ; -- nothing"))["results"] == []


@pytest_twisted.ensureDeferred
async def test_results_are_bounded_in_memory(api: Api) -> None:
    # Both have been run once, so that what the process needs in any case is not counted.
    await run(api, "select repeat('x', 100000) from generate_series(1, 20)")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = await run(api, "select repeat('x', 100000) from generate_series(1, 5000)", limit=10_000)
    (result,) = answer["results"]
    assert (result["row_count"], result["truncated"]) == (5000, True)
    assert 100 < len(result["rows"]) < 170
    answer = await run(api, "select 1 as a, null as b from generate_series(1, 1000000)", limit=10_000)
    assert (answer["results"][0]["row_count"], len(answer["results"][0]["rows"])) == (1000000, 10000)
    error = await refused(api, "select 1; select repeat('x', 100000000)")
    assert error["sqlstate"] == ""
    assert "16777216 bytes" in error["message"]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # 500 MB, a million rows, and a row of 100 MB: kept are 16 MiB, and their JSON, which is also read here.
    assert grown < 150 * 1024, f"{grown} KiB"


@pytest_twisted.ensureDeferred
async def test_what_runs_at_the_end_of_the_transaction_is_heard(api: Api) -> None:
    answer = await run(
        api,
        "create table heard (id int);"
        "create function say() returns trigger language plpgsql as"
        " $$ begin raise notice 'at the end'; return null; end $$;"
        "create constraint trigger late after insert on heard deferrable initially deferred"
        " for each row execute function say(); insert into heard values (1)",
    )
    assert answer["error"] is None
    assert [one["message"] for one in answer["results"][-1]["notices"]] == ["at the end"]


@pytest_twisted.ensureDeferred
async def test_read_only_refuses_to_write(api: Api) -> None:
    assert (await refused(api, "create table w (id int)", read_only=True))["sqlstate"] == "25006"


@pytest_twisted.ensureDeferred
async def test_plans(api: Api) -> None:
    run_sql(api.dsn, "create table planned (id int)")
    answer = await run(api, "insert into planned values (1);", explain=True)
    ((plan,),) = answer["results"][0]["rows"]
    assert json.loads(plan)[0]["Plan"]["Node Type"] == "ModifyTable"
    answer = await run(api, "insert into planned values (1)", explain="analyze")
    ((plan,),) = answer["results"][0]["rows"]
    assert json.loads(plan)[0]["Plan"]["Actual Loops"] == 1
    assert answer["undone"] is True
    assert run_sql(api.dsn, "select count(*) from planned") == [(0,)]
    assert (await refused(api, "create table x (id int)", explain=True))["sqlstate"] == "42601"


@pytest_twisted.ensureDeferred
async def test_copy_of_the_client_is_refused(api: Api) -> None:
    for copy in ("copy (select 1) to stdout", "create temporary table c (id int); copy c from stdin"):
        error = await refused(api, copy)
        assert error["message"].startswith("COPY can neither read"), error
    assert (await run(api, "select 1"))["error"] is None


@pytest_twisted.ensureDeferred
async def test_a_lost_connection_is_an_error_of_the_statement(api: Api) -> None:
    answer = await run(
        api, "-- no transaction\nselect 1; select pg_terminate_backend(pg_backend_pid()); select 2"
    )
    assert answer["results"][0]["rows"] == [["1"]]
    assert answer["error"]["sqlstate"] == "57P01"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"sql": "select 1\0"}, 422, "validation_failed"),
        ({"sql": "select 1; select 2", "explain": True}, 422, "validation_failed"),
        ({"sql": "explain select 2", "explain": True}, 422, "validation_failed"),
        ({"explain": "yes"}, 422, "validation_failed"),
        ({"limit": 10_001}, 422, "validation_failed"),
        ({"timeout_seconds": 0}, 422, "validation_failed"),
        ({"sql": ";" + "select;" * 5001}, 422, "validation_failed"),
        ({"database": "none"}, 404, "database_not_found"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_what_cannot_be_run_is_refused(api: Api, body: Any, status: int, code: str) -> None:
    sent = {"stage": "dev", "database": "main", "sql": "select 1", **body}
    answered, _, answer = await api.request("POST", "/admin/sql", key="service", json=sent)
    assert (answered, answer["error"]["code"]) == (status, code)


@pytest_twisted.ensureDeferred
async def test_it_needs_the_service_key(api: Api) -> None:
    sent = {"stage": "dev", "database": "main", "sql": "select 1"}
    assert (await api.request("POST", "/admin/sql", json=sent))[0] == 403
    assert (await api.request("POST", "/admin/sql", key=None, json=sent))[0] == 401


@asynccontextmanager
async def without_settings(dsn: str, store: Store, data_dir: Path) -> AsyncIterator[Api]:
    async with serving(settings_for(dsn, store, data_dir)) as api:
        yield api


@pytest_twisted.ensureDeferred
async def test_without_the_settings_nothing_is_run_or_saved(
    module_database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with without_settings(module_database, store_settings, tmp_path) as api:
        sent = {"stage": "dev", "database": "main", "sql": "create table forbidden (id int)"}
        status, _, answer = await api.request("POST", "/admin/sql", key="service", json=sent)
        assert (status, answer["error"]["code"]) == (403, "console_sql_off")
        assert "server.console_sql" in answer["error"]["message"]
        assert run_sql(api.dsn, "select to_regclass('forbidden')") == [(None,)]
        saved = {"name": "a", "sql": "select 1"}
        path = "/admin/databases/dev/main/migrations"
        status, _, answer = await api.request("POST", path, key="service", json=saved)
        assert (status, answer["error"]["code"]) == (403, "migrations_dir_not_set")
        assert (await api.request("GET", path, key="service"))[2]["folder"] is None
        assert "server.migrations_dir" in answer["error"]["message"]


@pytest_twisted.ensureDeferred
async def test_only_so_many_run_at_once(api: Api) -> None:
    with closing(psycopg2.connect(api.dsn)) as holding, holding.cursor() as cursor:
        cursor.execute("select pg_advisory_lock(99)")
        waiting = [Deferred.fromCoroutine(run(api, "select pg_advisory_lock(99)")) for _ in range(4)]
        waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        await until(lambda: run_sql(api.dsn, waits) == [(4,)])
        sent = {"stage": "dev", "database": "main", "sql": "select 1"}
        status, _, answer = await api.request("POST", "/admin/sql", key="service", json=sent)
        assert (status, answer["error"]["code"]) == (503, "overloaded")
    for each in waiting:
        assert (await each)["error"] is None


@pytest_twisted.ensureDeferred
async def test_what_was_run_is_in_the_audit(api: Api) -> None:
    entries = (
        "select result from auth.audit where action = 'run_sql' and subject = 'dev/main' order by id desc"
    )
    await run(api, "create role somebody password 'a secret in the text'; drop role somebody")
    await refused(api, "select 1/0")
    assert run_sql(api.dsn, entries)[:2] == [("22012",), ("ok",)]
    assert run_sql(api.dsn, "select count(*) from auth.audit a where a::text like '%secret%'") == [(0,)]


# Migrations


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest_twisted.ensureDeferred
async def test_a_migration_is_saved_under_the_next_number(api: Api, folder: Path) -> None:
    path = "/admin/databases/dev/main/migrations"

    async def save(**body: Any) -> tuple[int, Any]:
        status, _, answer = await api.request("POST", path, key="service", json=body)
        return status, answer

    first = {"name": "notes", "sql": "create table m1 (id int);\r\n\r\n"}
    assert await save(**first) == (
        201,
        {"file": "0001_notes.sql", "folder": str(folder), "number": 1, "applied": False},
    )
    assert (folder / "0001_notes.sql").read_bytes() == b"create table m1 (id int);\n"
    (folder / "0009_other.sql").write_text("select 9;\n")
    status, answer = await save(name="tags", sql="create table m2 (id int)", applied=True)
    assert (status, answer["file"]) == (201, "0010_tags.sql")
    names = "select number, name from _project_service.project_migrations"
    assert run_sql(api.dsn, names) == [(10, "0010_tags.sql")]
    # Number 10 was applied, whatever the folder has.
    (folder / "0010_tags.sql").unlink()
    assert (await api.request("GET", path, key="service"))[2] == {"folder": str(folder), "next": "0011"}
    assert (await save(name="more", sql="select 1"))[1]["file"] == "0011_more.sql"
    before = names_in(folder)
    for body in (
        {"name": "../x", "sql": "select 1"},
        {"name": "A b", "sql": "select 1"},
        {"name": "a", "sql": "begin; select 1; commit"},
        {"name": "a", "sql": "-- nothing"},
        {"name": "a", "sql": "select 1\0"},
    ):
        status, answer = await save(**body)
        assert (status, answer["error"]["code"]) == (422, "validation_failed"), body
    # What cannot be recorded is not saved either.
    run_sql(api.dsn, "alter table _project_service.project_migrations add check (number < 12)")
    status, answer = await save(name="a", sql="select 1", applied=True)
    assert (status, answer["error"]["code"]) == (409, "migration_not_saved")
    assert names_in(folder) == before


@pytest_twisted.ensureDeferred
async def test_names_for_completion(api: Api) -> None:
    run_sql(
        api.dsn,
        'create schema "o""dd"; create table "o""dd"."t;" ("a b" int, c int);'
        "create table named (id int); create function doubled(int) returns int language sql as 'select 2 * $1';"
        "create type mood as enum ('ok')",
    )
    status, _, names = await api.request("GET", "/admin/databases/dev/main/names", key="service")
    assert status == 200
    assert {"schema": 'o"dd', "name": "t;", "visible": False, "columns": ["a b", "c"]} in names["relations"]
    assert {"schema": "public", "name": "named", "visible": True, "columns": ["id"]} in names["relations"]
    assert {"schema": "public", "name": "doubled", "visible": True} in names["functions"]
    assert {"schema": "public", "name": "mood"} in names["types"]
    assert "anon" in names["roles"]
    assert (await api.request("GET", "/admin/databases/dev/none/names", key="service"))[0] == 404


# SQL that others have made, which is not to run as whoever connects


@pytest_twisted.ensureDeferred
async def test_operators_of_others_do_not_run_when_names_are_asked_for(api: Api) -> None:
    # It fits better than PostgreSQL's own operator, which compares a name with a text.
    run_sql(
        api.dsn,
        "create table ran (who text);"
        "create function public.taken(name, name) returns boolean language plpgsql as"
        " 'begin insert into public.ran values (current_user); return true; end';"
        "create operator public.!~ (leftarg = name, rightarg = name, function = public.taken)",
    )
    try:
        status, _, names = await api.request("GET", "/admin/databases/dev/main/names", key="service")
        assert status == 200
        assert {"schema": "public", "name": "ran", "visible": True, "columns": ["who"]} in names["relations"]
        assert run_sql(api.dsn, "select who from ran") == []
    finally:
        run_sql(api.dsn, "drop operator public.!~ (name, name); drop function public.taken(name, name)")


@pytest_twisted.ensureDeferred
async def test_of_two_tables_of_the_same_name_the_first_in_the_search_path_is_visible(api: Api) -> None:
    run_sql(
        api.dsn,
        "create table public.doubly (id int); create schema later; create table later.doubly (id int);"
        "create table public.pg_class (id int)",
    )
    (database,) = run_sql(api.dsn, "select current_database()")[0]
    run_sql(api.dsn, f'alter database "{database}" set search_path = public, later')
    try:
        _, _, names = await api.request("GET", "/admin/databases/dev/main/names", key="service")
    finally:
        run_sql(api.dsn, f'alter database "{database}" reset search_path; drop table public.pg_class')
    visible = {(one["schema"], one["name"]): one["visible"] for one in names["relations"]}
    assert visible["public", "doubly"] is True
    assert visible["later", "doubly"] is False
    assert visible["public", "pg_class"] is False


@pytest_twisted.ensureDeferred
async def test_types_that_a_lesser_role_has_made_do_not_run_as_the_one_that_connects(api: Api) -> None:
    run_sql(
        api.dsn,
        "create table ran_too (who text); grant insert on ran_too to anon;"
        "create function public.seen(pg_catalog.oid) returns boolean language plpgsql as"
        " 'begin insert into public.ran_too values (current_user); return true; end'",
    )
    answer = await run(
        api,
        "-- no transaction\nset role anon; create temporary table of_anon (id int);"
        "create domain pg_temp.oid as pg_catalog.oid check (public.seen(value)); select 1 as a",
    )
    assert answer["error"] is None
    assert answer["results"][-1]["columns"] == [{"name": "a", "type": "integer"}]
    assert run_sql(api.dsn, "select who from ran_too") == []
