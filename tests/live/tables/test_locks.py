"""Reads that have to wait while a table is emptied and filled again, or rewritten, still find its rows.

Bind and Execute, by which prepared statements run, take their snapshot after they have waited. DECLARE takes it
before, and would find the table empty. With one connection, so that what is prepared is. (``test_pipelines`` has the
same for connections that reads share.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest
import pytest_twisted

from project_service.lifecycle import start
from tests.live.tables.service import BASE, Tables, tables, until_answered
from tests.live.waiting import until

__all__ = ["tables"]

DATABASES = ("narrow",)

NARROW = BASE.replace("main", "narrow")
SCHEMA = """
create table rates (id int primary key, txt text);
create table uses (id int primary key references rates);
create view shown_rates as select * from rates;
create materialized view kept_rates as select * from rates;
create table parted (id int primary key, txt text) partition by range (id);
create table parted_low partition of parted for values from (0) to (100000);
create view shown_parts as select * from parted;
create table secrets (id int primary key, txt text);
create table readers (id int);
create view all_readers as select * from readers;
alter table secrets enable row level security;
create policy of_readers on secrets using (exists (select from all_readers));
create policy by_readers on secrets for insert with check (exists (select from all_readers));
create function all_rates() returns setof rates language sql stable as 'select * from rates';
create function all_uses() returns setof uses language plpgsql stable as 'begin return query select * from uses; end';
create function made_uses() returns setof uses language plpgsql as 'begin return query select * from uses; end';
create function secret(uses) returns setof secrets rows 1 language sql stable as
  'select * from secrets where id = $1.id';
create function prepared() returns bigint language sql stable as
  $$ select count(*) from pg_prepared_statements where statement ~ 'pgrst_source' and statement !~ 'prepared' $$;
create function let_go() returns void language sql volatile as 'deallocate all';
grant all on all tables in schema public to anon
"""
FILL = """
truncate rates, uses, parted, secrets, readers;
insert into rates values (1, 'a'); insert into uses values (1); refresh materialized view kept_rates;
insert into parted values (1, 'a'); insert into secrets values (1, 'a'); insert into readers values (1);
"""
# SQL that empties a table and fills it again, or rewrites it, in one transaction.
RATES = "truncate rates, uses; insert into rates values (1, 'a'); insert into uses values (1)"
RATES_ANEW = "alter table rates add column anew float default random(); alter table rates drop column anew"
SECRETS_ANEW = RATES_ANEW.replace("rates", "secrets")
PARTED = "truncate parted_low; insert into parted values (1, 'a')"
READERS = "truncate readers; insert into readers values (1)"
KEPT = "refresh materialized view kept_rates"


@pytest_twisted.async_yield_fixture(scope="module")
async def rates(tables: Tables) -> AsyncIterator[Tables]:
    tables.sql(SCHEMA)
    tables.sql(FILL)
    await until_answered(tables, "GET", "/rpc/prepared", 200)
    yield tables


async def ask(tables: Tables, method: str, path: str, **more: Any) -> tuple[int, Any]:
    shown = {"Prefer": "return=representation"}
    status, _, body = await tables.request(method, f"/{path}", base=NARROW, headers=shown, **more)
    return status, body


async def while_it_is(tables: Tables, filled: str, method: str, path: str, **more: Any) -> tuple[int, Any]:
    """The response to a request that has to wait for a transaction with the SQL ``filled``, which is then
    committed."""
    with closing(psycopg2.connect(tables.api.dsn)) as filling:
        filling.cursor().execute(filled)
        asked = start(ask(tables, method, path, **more))
        await until(lambda: bool(tables.sql("select 1 from pg_locks where not granted")))
        filling.commit()
        return await asked


async def prepared(tables: Tables, method: str, path: str, **more: Any) -> None:
    """Repeats a request until it is prepared. A newer schema cache makes it start again."""
    await ask(tables, "POST", "rpc/let_go")

    async def result() -> bool:
        await ask(tables, method, path, **more)
        return bool((await ask(tables, "GET", "rpc/prepared"))[1])

    await until(result)


@pytest.mark.parametrize(
    ("path", "filled"),
    [
        ("rates?select=id", RATES),
        ("shown_rates?select=id", RATES),
        ("kept_rates?select=id", KEPT),
        ("parted?select=id", PARTED),
        ("shown_parts?select=id", PARTED),
        ("secrets?select=id", READERS),
        ("uses?select=id,rates(id)", RATES_ANEW),
        ("uses?select=id,secret(id)", SECRETS_ANEW),
        ("rpc/all_rates?select=id", RATES),
        ("rpc/all_uses?select=id,rates(id)", RATES_ANEW),
        ("rpc/made_uses?select=id,rates(id)", RATES_ANEW),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_read_that_waited_sees_the_new_rows(rates: Tables, path: str, filled: str) -> None:
    before = await ask(rates, "GET", path)
    assert before[0] == 200 and len(before[1]) == 1
    await prepared(rates, "GET", path)
    assert await while_it_is(rates, filled, "GET", path) == before


@pytest.mark.parametrize(
    ("method", "path", "filled", "sent", "shown"),
    [
        ("PATCH", "rates?id=eq.1", RATES, {"txt": "b"}, {"id": 1, "txt": "b"}),
        ("PATCH", "shown_rates?id=eq.1", RATES, {"txt": "b"}, {"id": 1, "txt": "b"}),
        ("PATCH", "parted?id=eq.1", PARTED, {"txt": "b"}, {"id": 1, "txt": "b"}),
        ("PATCH", "uses?id=eq.1&select=id,rates(id)", RATES_ANEW, {"id": 1}, {"id": 1, "rates": {"id": 1}}),
        ("DELETE", "rates?id=eq.1&select=id", RATES_ANEW, None, {"id": 1}),
        ("DELETE", "secrets?id=eq.1", READERS, None, {"id": 1, "txt": "a"}),
        ("POST", "secrets", READERS, {"id": 2}, {"id": 2, "txt": None}),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_write_that_waited_changes_the_new_rows(
    rates: Tables, method: str, path: str, filled: str, sent: Any, shown: Any
) -> None:
    more = {} if sent is None else {"json": sent}
    done = 201 if method == "POST" else 200
    for _ in range(3):
        rates.sql(FILL if method != "DELETE" else FILL + "truncate uses")
        assert await ask(rates, method, path, **more) == (done, [shown])
    rates.sql(FILL if method != "DELETE" else FILL + "truncate uses")
    filled = filled if "truncate rates" not in filled else filled.partition("; insert into uses")[0]
    assert await while_it_is(rates, filled, method, path, **more) == (done, [shown])
    rates.sql(FILL)


@pytest.mark.parametrize(
    ("path", "filled"), [("shown_rates", RATES), ("parted", PARTED), ("secrets", READERS)]
)
@pytest_twisted.ensureDeferred
async def test_a_large_result_that_waited_has_the_new_rows(rates: Tables, path: str, filled: str) -> None:
    """From the second reading on, when a cursor is opened at once."""
    more = "; insert into {} select i, repeat('x', 100) from generate_series(2, 2000) i"
    rates.sql(more.format("rates").lstrip("; ") + more.format("parted") + more.format("secrets"))
    filled += more.format(path.removeprefix("shown_")) if path != "secrets" else ""
    for _ in range(2):
        assert len((await ask(rates, "GET", path))[1]) == 2000
    assert len((await while_it_is(rates, filled, "GET", path))[1]) == 2000
    rates.sql(FILL)


@pytest_twisted.ensureDeferred
async def test_prepared_requests_need_no_further_rights(rates: Tables) -> None:
    rates.sql(
        "revoke all on rates from anon; grant select (id), delete on rates to anon; revoke all on uses from anon;"
        " grant select (id), insert on uses to anon; revoke all on secrets from anon; grant insert on secrets to anon"
    )
    for _ in range(3):
        rates.sql(FILL)
        for method, path, expected in (
            ("GET", "rates?select=id", 200),
            ("GET", "uses?select=id,rates(id)", 200),
            ("GET", "uses?select=id,secret()", 200),
            ("DELETE", "rates?id=eq.7&select=id", 200),
            ("GET", "rates", 401),
            ("GET", "secrets?id=eq.1", 401),
            ("GET", "secrets?id=eq.x", 400),
        ):
            status, body = await ask(rates, method, path)
            assert status == expected, (method, path, body)
    rates.sql("grant all on rates, uses, secrets to anon")
