"""Hints suggest only names that the caller may use."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_twisted

from tests.live.tables.service import Tables, tables, until_answered

__all__ = ["tables"]

SCHEMA = """
create table payrolls (id int primary key, wages int);
create table payroll_items (id int primary key, payroll int references payrolls);
create table shelves (id int primary key, label text, hidden_price int);
create table shelf_secrets (id int primary key, shelf int references shelves);
create function reckoning(amount int) returns int language sql stable as 'select 1';
revoke execute on function reckoning from public;
create function overtly(amount int) returns int language sql stable as 'select 1';
create function partly(amount int) returns int language sql stable as 'select 1';
create function partly(secretly int, other int) returns int language sql stable as 'select 1';
revoke execute on function partly(int, int) from public;
create view stale as select id from shelves;
create function behind() returns int language plpgsql stable as
    $$ begin return (select s.hidden_prise from shelves s); end $$;
grant select on payroll_items to anon;
grant select (id, label) on shelves to anon;
grant all on payrolls, payroll_items, shelves, shelf_secrets to authenticated;
grant execute on function reckoning to authenticated;
grant execute on function partly(int, int) to authenticated;
notify pgrst
"""

# What is asked for, the code, and the name that may be suggested to signed-in users alone.
HIDDEN = (
    ("GET", "/payrols", "PGRST205", "payrolls"),
    ("POST", "/payrols", "PGRST205", "payrolls"),
    ("GET", "/rpc/reckonin?amount=1", "PGRST202", "reckoning"),
    ("GET", "/rpc/reckoning?amout=1", "PGRST202", "(amount)"),
    ("GET", "/rpc/partly?secretl=1&other=1", "PGRST202", "secretly"),
    ("GET", "/shelves?select=hidden_prise", "42703", "hidden_price"),
    ("GET", "/shelves?hidden_prise=eq.1", "42703", "hidden_price"),
    ("GET", "/shelves?select=id&order=hidden_prise", "42703", "hidden_price"),
    ("GET", "/shelves?select=id,shelf_secret(id)", "PGRST200", "shelf_secrets"),
    ("GET", "/payroll_items?select=id,payrols(id)", "PGRST200", "payrolls"),
)
SHOWN = (
    ("GET", "/payroll_item", "PGRST205", "payroll_items"),
    ("GET", "/rpc/overtl?amount=1", "PGRST202", "overtly"),
    ("GET", "/rpc/overtly?amout=1", "PGRST202", "(amount)"),
    ("GET", "/shelves?select=lable", "42703", "label"),
)


@pytest.fixture(scope="module")
def hiding(tables: Tables) -> Tables:
    tables.sql(SCHEMA)
    return tables


@pytest_twisted.ensureDeferred
async def test_hints_name_only_what_the_caller_may_use(hiding: Tables) -> None:
    await until_answered(hiding, "GET", "/rpc/behind", 400)
    for method, path, code, name in (*HIDDEN, *SHOWN):
        more: dict[str, Any] = {"json": {}} if method == "POST" else {}
        _, _, body = await hiding.request(method, path, token=hiding.token, **more)
        assert (body["code"], name in (body["hint"] or "")) == (code, True), (path, body)
        _, _, body = await hiding.request(method, path, **more)
        hint = body["hint"] or ""
        assert (body["code"], name in hint) == (code, (method, path, code, name) in SHOWN), (path, body)
        # The service key may use everything.
        _, _, body = await hiding.request(method, path, key=hiding.api.service_key, **more)
        assert name in (body["hint"] or ""), (path, body)


@pytest_twisted.ensureDeferred
async def test_the_nearest_usable_name_stands_in_for_a_hidden_one(hiding: Tables) -> None:
    hiding.sql("create table payrolls2 (id int primary key); grant select on payrolls2 to anon")
    await until_answered(hiding, "GET", "/payrolls2", 200)
    _, _, body = await hiding.request("GET", "/payrols")
    assert body["hint"] == "Perhaps you meant the table 'public.payrolls2'"
    _, _, body = await hiding.request("GET", "/payrols", token=hiding.token)
    assert body["hint"] == "Perhaps you meant the table 'public.payrolls'"


@pytest_twisted.ensureDeferred
async def test_postgresqls_own_hints_name_no_columns_behind_the_request(hiding: Tables) -> None:
    await until_answered(hiding, "GET", "/rpc/behind", 400)
    _, _, body = await hiding.request("GET", "/rpc/behind")
    assert (body["code"], body["hint"]) == ("42703", None)
