"""The table API in a whole service: rights, hostile input, large results, a changing schema, clients that leave."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

import pytest
import pytest_twisted
import treq
from twisted.internet.defer import DeferredList

from project_service.embedded.postgres import OWNER
from project_service.lifecycle import start
from tests.live.services import Services
from tests.live.tables.service import BASE, Tables, tables, until_answered
from tests.live.waiting import until

__all__ = ["tables"]

DATABASES = ("careful", "narrow")

HOSTILE = [
    "'; drop table canary; --",
    '"; drop table canary; --',
    "\\'; drop table canary; --",
    "1) or (1=1",
    "$$; drop table canary; $$",
    "%s %(name)s %%",
    "\u2019 or 1=1 --",
    '{"a": 1}',
    "{1,2}",
    "a,b)(c",
    "\\",
    "'",
    "\x01\x7f",
    "$1 :name ? @x",
    "E'\\x27'",
    "/* */ --",
    "x" * 3000,
]


@pytest.fixture(scope="module")
def cage(tables: Tables) -> Iterator[None]:
    """The table of the canary, one for the module, since each new table has the schema read again."""
    tables.sql(
        "create table canary (id int primary key, txt text, doc jsonb);"
        "insert into canary values (1, 'sings', '{}');"
        "grant select, insert, update, delete on canary to anon"
    )
    yield
    tables.sql("drop table canary")


@pytest.fixture
def canary(tables: Tables, cage: None) -> Iterator[None]:
    yield
    assert tables.sql("select id, txt from canary") == [(1, "sings")]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest_twisted.ensureDeferred
async def test_hostile_input_is_data_or_refused(tables: Tables, canary: None, text: str) -> None:
    escaped = quote(text, safe="")
    quoted = quote('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"', safe="")
    for path in (
        f"/canary?txt=eq.{escaped}",
        f"/canary?txt=in.({quoted})",
        f"/canary?txt=like(any).{escaped}",
        f"/canary?or=(txt.eq.{quoted},id.eq.0)",
        f"/canary?txt=fts({escaped}).x",
        f"/canary?{escaped}=eq.1",
        f"/canary?select={escaped}",
        f"/canary?select={quoted}",
        f"/canary?select=id::{escaped}",
        f"/canary?select={quoted}:txt",
        f"/canary?select=doc->>{quoted}",
        f"/canary?doc->>{quoted}=eq.1",
        f"/canary?order={quoted}.desc",
        f"/canary?select=id,{quoted}(*)",
        f"/canary?limit={escaped}&offset={escaped}",
        f"/{escaped}",
        f"/rpc/{escaped}",
        f"/rpc/add?a={escaped}",
        f"/rpc/add?{escaped}=1",
    ):
        for base in (BASE, BASE.replace("main", "careful")):
            status, _, body = await tables.request("GET", path, base=base)
            assert status < 500, (path, body)
    for headers in ({"Prefer": f"timezone={escaped}"}, {"Accept-Profile": escaped}, {"Accept": escaped}):
        status, _, body = await tables.request("GET", "/canary", headers=headers)
        assert status < 500, (headers, body)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest_twisted.ensureDeferred
async def test_hostile_values_come_back_unchanged(tables: Tables, canary: None, text: str) -> None:
    rows = [{"id": 2, "txt": text, "doc": {text: text}}]
    wanted = {"Prefer": "return=representation"}
    status, _, body = await tables.request("POST", "/canary", json=rows, headers=wanted)
    assert (status, body) == (201, rows)
    path = f"/canary?txt=eq.{quote(text, safe='')}"
    assert (await tables.request("GET", path))[2] == rows
    status, _, body = await tables.request("DELETE", path, headers=wanted)
    assert (status, body) == (200, rows)


@pytest_twisted.ensureDeferred
async def test_rights_and_policies_are_those_of_the_role(tables: Tables) -> None:
    tables.sql("create table secrets (owner uuid default auth.uid(), word text)")
    assert (await tables.request("GET", "/secrets"))[0] == 401
    assert (await tables.request("GET", "/secrets", token=tables.token))[0] == 403
    status, _, _ = await tables.request("POST", "/secrets", key="service", json={"word": "theirs"})
    assert status == 201
    tables.sql(
        "alter table secrets enable row level security;"
        "grant select, insert on secrets to authenticated;"
        "create policy own on secrets to authenticated using (owner = auth.uid())"
    )
    assert (await tables.request("POST", "/secrets", token=tables.token, json={"word": "mine"}))[0] == 201
    _, _, body = await tables.request("GET", "/secrets?select=word", token=tables.token)
    assert body == [{"word": "mine"}]
    _, _, body = await tables.request("GET", "/secrets?select=word&order=word", key="service")
    assert body == [{"word": "mine"}, {"word": "theirs"}]
    tables.sql("drop table secrets")


@pytest_twisted.ensureDeferred
async def test_each_database_has_its_own_settings(tables: Tables) -> None:
    careful = BASE.replace("main", "careful")
    _, _, body = await tables.request("GET", "/books?select=id&order=id", base=careful)
    assert body == [{"id": 1}, {"id": 2}]
    _, _, body = await tables.request("GET", "/boks", base=careful)
    assert set(body) == {"code", "message"}


@pytest_twisted.ensureDeferred
async def test_settings_of_roles_and_functions_apply(tables: Tables, services: Services) -> None:
    database = tables.sql("select quote_ident(current_database())")[0][0]
    tables.sql(
        "create function told() returns text language sql stable as "
        "$$ select concat_ws('/', current_setting('statement_timeout'), current_setting('transaction_isolation'),"
        " current_setting('transaction_read_only')) $$;"
        "create function strict() returns text language sql set default_transaction_isolation = 'serializable'"
        " set statement_timeout = '9s' as $$ select told() $$;"
    )
    # Two settings that only a superuser may set, one of them granted to the role that connects.
    services.admin(
        f"grant set on parameter log_min_duration_statement to {OWNER};"
        f"alter role anon in database {database} set log_min_duration_statement = '12min';"
        f"alter role anon in database {database} set log_parser_stats = on",
    )
    tables.sql(
        f"alter role anon in database {database} set statement_timeout = '7s';"
        "create function logged() returns text language sql stable as $$ select concat_ws('/',"
        " current_setting('log_min_duration_statement'), current_setting('log_parser_stats')) $$; create"
        " function compiles() returns text language sql stable as $$ select current_setting('jit') $$; notify pgrst"
    )
    try:
        # What was made last: a reading of the schema may have begun before it, and know the others already.
        await until_answered(tables, "GET", "/rpc/compiles", 200)
        assert (await tables.request("GET", "/rpc/told"))[2] == "7s/read committed/on"
        assert (await tables.request("GET", "/rpc/logged"))[2] == "12min/off"
        assert (await tables.request("POST", "/rpc/strict"))[2] == "9s/serializable/off"
        assert (await tables.request("GET", "/rpc/compiles"))[2] == "off"
        # Event triggers do not fire for this; PostgREST reads it with its configuration.
        tables.sql(
            f"alter role anon in database {database} set jit = on; alter role anon in database {database}"
            " set statement_timeout = '8s'; notify pgrst, 'reload config'"
        )

        async def taken_in() -> bool:
            return str((await tables.request("GET", "/rpc/told"))[2]).startswith("8s/")

        await until(taken_in)
        assert (await tables.request("GET", "/rpc/compiles"))[2] == "on"
    finally:
        services.admin(f"alter role anon in database {database} reset all")
        tables.sql("notify pgrst")


@pytest_twisted.ensureDeferred
async def test_a_statement_that_fails_leaves_the_connection_usable(tables: Tables) -> None:
    """With one connection, each request finds what the last one left, including prepared statements."""
    narrow = BASE.replace("main", "narrow")
    tables.sql("create table fragile (id int primary key, x int); grant all on fragile to anon")
    for _ in range(3):
        assert (await tables.request("POST", "/fragile", base=narrow, json={"id": 1, "x": 1}))[0] in (
            201,
            409,
        )
        assert (await tables.request("GET", "/fragile?x=eq.nonsense", base=narrow))[0] == 400
        assert (await tables.request("GET", "/fragile?x=eq.1", base=narrow))[0] == 200
    tables.sql("alter table fragile alter x type text")
    status, _, body = await tables.request("GET", "/fragile?x=eq.1", base=narrow)
    assert (status, body) == (200, [{"id": 1, "x": "1"}])
    tables.sql("drop table fragile")


@pytest_twisted.ensureDeferred
async def test_a_write_of_too_many_rows_is_undone(tables: Tables) -> None:
    tables.sql("create table many as select i as id from generate_series(1, 5) i; grant all on many to anon")
    strict = {"Prefer": "handling=strict, max-affected=2"}
    assert (await tables.request("DELETE", "/many?id=gt.0", headers=strict))[2]["code"] == "PGRST124"
    single = {"Accept": "application/vnd.pgrst.object+json", "Prefer": "return=representation"}
    assert (await tables.request("DELETE", "/many?id=gt.0", headers=single))[0] == 406
    assert tables.sql("select count(*) from many") == [(5,)]
    assert (await tables.request("DELETE", "/many?id=gt.0&order=id.desc&limit=2"))[0] == 204
    assert tables.sql("select array_agg(id order by id) from many") == [([1, 2, 3],)]
    tables.sql("drop table many")


@pytest_twisted.ensureDeferred
async def test_new_tables_and_functions_are_known_at_once(tables: Tables) -> None:
    for number in range(5):
        tables.sql(f"create table fresh_{number} (id serial); grant select on fresh_{number} to anon")
        assert (await tables.request("GET", f"/fresh_{number}"))[0] == 200
        tables.sql(f"create function made_{number}() returns int language sql stable as 'select {number}'")
        assert (await tables.request("GET", f"/rpc/made_{number}"))[2] == number
        tables.sql(
            f"alter table fresh_{number} add column more int; grant insert on fresh_{number} to anon;"
            f"grant usage on fresh_{number}_id_seq to anon"
        )
        assert (await tables.request("POST", f"/fresh_{number}", json={"more": 1}))[0] == 201
        tables.sql(
            f"alter table fresh_{number} add primary key (id);"
            f"create table leaf_{number} (of int references fresh_{number}); grant select on leaf_{number} to anon"
        )
        assert (await tables.request("GET", f"/fresh_{number}?select=id,leaf_{number}(*)"))[0] == 200


@pytest_twisted.ensureDeferred
async def test_a_changed_column_type_is_used_at_once(tables: Tables) -> None:
    """On connections with prepared statements for the old type."""
    narrow = BASE.replace("main", "narrow")
    tables.sql(
        "create table retyped (id int, at timestamp);"
        "insert into retyped values (1, '2024-01-01 12:00'); grant select on retyped to anon"
    )
    at = "/retyped?select=id&at=eq.2024-01-01T12:00:00%2B05:00"
    assert (await tables.request("GET", "/retyped?select=id&id=eq.1", base=narrow))[2] == [{"id": 1}]
    assert (await tables.request("GET", at, base=narrow))[2] == [{"id": 1}]
    tables.sql(
        "alter table retyped alter id type bigint;"
        "alter table retyped alter at type timestamptz using at at time zone 'Asia/Karachi';"
        "insert into retyped values (3000000000, null);"
        "create table after_retyped (); grant select on after_retyped to anon"
    )
    # If this new table is known, the schema cache has been read again.
    assert (await tables.request("GET", "/after_retyped", base=narrow))[0] == 200
    status, _, body = await tables.request("GET", "/retyped?select=id&id=eq.3000000000", base=narrow)
    assert (status, body) == (200, [{"id": 3000000000}])
    assert (await tables.request("GET", at, base=narrow))[2] == [{"id": 1}]
    utc = {"Prefer": "timezone=UTC"}
    assert (await tables.request("GET", at, base=narrow, headers=utc))[2] == [{"id": 1}]
    tables.sql("drop table retyped, after_retyped")


@pytest_twisted.ensureDeferred
async def test_an_unknown_timezone_is_refused_everywhere(tables: Tables) -> None:
    for path in ("/books?select=id&id=eq.1", "/rpc/add?a=1", ""):
        for handling in ("lenient", "strict"):
            asked = {"Prefer": f"handling={handling}, timezone=Nope/Nope"}
            status, _, body = await tables.request("GET", path, headers=asked)
            assert (status, body["code"]) == (400, "22023"), (path, body)
    status, headers, body = await tables.request(
        "GET", "/books?select=id&id=eq.1", headers={"Prefer": "timezone=UTC"}
    )
    assert (status, headers.getRawHeaders("preference-applied"), body) == (200, ["timezone=UTC"], [{"id": 1}])


@pytest_twisted.ensureDeferred
async def test_no_role_outlives_its_request(tables: Tables) -> None:
    """Clients with the service key hang up at random moments; later requests do not run as service_role."""
    from twisted.internet import reactor

    narrow = BASE.replace("main", "narrow")
    tables.sql("create function me() returns text language sql stable as 'select current_user::text'")
    await until_answered(tables, "GET", "/rpc/me", 200, base=narrow)
    chance = random.Random(7)

    async def hang_up() -> None:
        sent: dict[bytes | str, bytes | str] = {"X-Service-Key": tables.api.service_key}
        waiting = treq.get(f"{tables.api.base_url}{narrow}/rpc/me", headers=sent, persistent=False)
        reactor.callLater(chance.random() * 0.01, waiting.cancel)
        with suppress(Exception):  # cancelled at any point
            await treq.content(await waiting)

    for _ in range(10):
        await DeferredList([start(hang_up()) for _ in range(5)])
        status, _, body = await tables.request("GET", "/rpc/me", base=narrow)
        assert (status, body) == (200, "anon")
