"""What a database's configuration switches on: a function before each request, execution plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve

from project_service.settings import Stage, StageDatabase, Store
from tests.live.application import serving, settings_for
from tests.live.services import wait
from tests.live.tables_service import BASE, Tables, run_sql

CHECK = """ returns void language plpgsql as $$ begin
  if current_setting('request.headers')::json->>'x-banned' is not null then
    raise sqlstate 'PT403' using message = 'banned'; end if;
  perform set_config('app.seen', concat_ws(' ', '{0}', current_user, current_setting('request.method'),
    current_setting('request.path')), true);
end $$;
"""
SCHEMA = f"""
create schema guards; grant usage on schema guards to anon;
create function guards."100% sure"(){CHECK.format("qualified")}
create function check_request(){CHECK.format("bare")}
create table things (id int primary key, seen text default current_setting('app.seen', true));
insert into things select generate_series(1, 3); grant all on things to anon;
create function seen() returns text language sql stable as $$ select current_setting('app.seen') $$;
"""


@pytest.fixture(scope="module")
def configured(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tables]:
    run_sql(module_database, SCHEMA)
    settings = settings_for(module_database, store_settings, Path(tmp_path_factory.mktemp("configured")))
    main = StageDatabase(pool_size=1, plan=True, pre_request="guards.100% sure")
    databases = {"main": main, "bare": evolve(main, plan=False, pre_request="check_request")}
    context = serving(evolve(settings, stages={"dev": Stage(databases=databases)}))
    yield Tables(wait(context.__aenter__), "")
    wait(lambda: context.__aexit__(None, None, None))


@pytest.mark.parametrize(("database", "name"), [("main", "qualified"), ("bare", "bare")])
@pytest_twisted.ensureDeferred
async def test_a_function_sees_each_request_first_and_may_refuse_it(
    configured: Tables, database: str, name: str
) -> None:
    base = BASE.replace("main", database)
    assert (await configured.request("GET", "/rpc/seen", base=base))[2] == f"{name} anon GET /rpc/seen"
    wanted = {"Prefer": "missing=default, return=representation"}
    _, _, body = await configured.request(
        "PATCH", "/things?id=eq.1&columns=seen", base=base, headers=wanted, json={}
    )
    assert body == [{"id": 1, "seen": f"{name} anon PATCH /things"}]
    for method, path in (
        ("GET", "/things"),
        ("DELETE", "/things?id=eq.1"),
        ("POST", "/rpc/seen"),
        ("GET", ""),
    ):
        status, _, body = await configured.request(method, path, base=base, headers={"X-Banned": "yes"})
        assert (status, body["message"]) == (403, "banned"), path
    assert configured.sql("select count(*) from things") == [(3,)]


async def planned(configured: Tables, kind: str, method: str = "GET", **more: Any) -> Any:
    accept = {"Accept": f"application/vnd.pgrst.plan{kind}"}
    status, headers, body = await configured.request(method, "/things?id=gt.1", headers=accept, **more)
    assert status == 200, body
    assert headers.getRawHeaders("content-type")[0].startswith(f"application/vnd.pgrst.plan{kind[:5]}")
    return body.decode() if isinstance(body, bytes) else body


@pytest_twisted.ensureDeferred
async def test_a_plan_tells_what_was_asked_of_it(configured: Tables) -> None:
    for option, member in (
        ("analyze", "Actual Rows"),
        ("verbose", "Output"),
        ("buffers", "Shared Hit Blocks"),
        ("analyze|wal", "WAL Records"),
        ("settings", "Settings"),
    ):
        (plan,) = json.loads(await planned(configured, f"+json; options={option}"))
        assert member in {**plan, **plan["Plan"]}, option
    (plan,) = json.loads(await planned(configured, "+json"))
    assert plan["Plan"]["Node Type"] == "Aggregate"
    assert not {"Actual Rows", "Output", "Shared Hit Blocks", "Settings"} & set({**plan, **plan["Plan"]})


@pytest_twisted.ensureDeferred
async def test_a_plan_is_text_unless_json_is_asked_for_and_changes_nothing(configured: Tables) -> None:
    for kind in ("", "+text"):
        assert (await planned(configured, kind)).startswith("Aggregate  (cost=")
    assert "Delete on things" in await planned(configured, "+text", "DELETE")
    assert configured.sql("select count(*) from things") == [(3,)]
    accept = {"Accept": "application/vnd.pgrst.plan"}
    status, _, _ = await configured.request(
        "GET", "/things", base=BASE.replace("main", "bare"), headers=accept
    )
    assert status == 406
