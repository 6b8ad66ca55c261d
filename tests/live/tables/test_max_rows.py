"""How many rows a response has at most, by role, and how it says that there may be more."""

from __future__ import annotations

from typing import Any

import pytest_twisted

from tests.live.tables.service import BASE, Tables, tables, until_answered

__all__ = ["tables"]

DATABASES = ("few",)

FEW = BASE.replace("main", "few")
SCHEMA = """
create table heaps (id int primary key);
create table grains (id int primary key, heap int references heaps, text text default '');
insert into heaps values (1);
insert into grains select n, 1 from generate_series(1, 5) as n;
grant select on heaps, grains to anon, authenticated;
create function grains_of(n int) returns setof grains language sql stable
  as $$ select * from grains order by id limit n $$;
create function all_grains() returns json language sql stable as $$ select json_agg(id) from grains $$
"""


async def read(
    tables: Tables, path: str, prefer: str = "", method: str = "GET", **more: Any
) -> tuple[int, str | None]:
    """The number of rows, and ``X-Max-Rows``."""
    headers = {"Prefer": prefer} if prefer else {}
    status, answered, rows = await tables.request(method, path, base=FEW, headers=headers, **more)
    assert status in (200, 206), rows
    return len(rows), answered.getRawHeaders("X-Max-Rows", [None])[0]


@pytest_twisted.ensureDeferred
async def test_a_cut_page_says_so(tables: Tables) -> None:
    tables.sql(SCHEMA)
    await until_answered(tables, "GET", "/grains", 200, base=FEW)
    for _ in range(2):
        assert await read(tables, "/grains") == (2, "2")
        assert await read(tables, "/grains?limit=9") == (2, "2")
        assert await read(tables, "/grains?limit=1") == (1, None)
        assert await read(tables, "/grains?limit=2") == (2, None)
        assert await read(tables, "/grains?offset=4") == (1, None)
        assert await read(tables, "/heaps") == (1, None)
        # Exactly as many as allowed: there may be more, unless the total is known.
        assert await read(tables, "/grains?offset=3") == (2, "2")
        assert await read(tables, "/grains?offset=3", "count=exact") == (2, None)
        assert await read(tables, "/grains?offset=2", "count=exact") == (2, "2")
        assert await read(tables, "/rpc/grains_of?n=4") == (2, "2")
        assert await read(tables, "/rpc/grains_of?n=1") == (1, None)
        assert await read(tables, "/rpc/all_grains") == (5, None)
    status, headers, _ = await tables.request("HEAD", "/grains", base=FEW)
    assert (status, headers.getRawHeaders("X-Max-Rows")) == (200, ["2"])


@pytest_twisted.ensureDeferred
async def test_each_role_has_its_own_limit_on_one_shape(tables: Tables) -> None:
    """The statement of a shape is cached, and must not be used for a role with another limit."""
    await until_answered(tables, "GET", "/grains", 200, base=FEW)
    service = {"key": tables.api.service_key}
    for _ in range(3):
        assert await read(tables, "/grains") == (2, "2")
        assert await read(tables, "/grains", token=tables.token) == (3, "3")
        assert await read(tables, "/grains", **service) == (5, None)
        embedded = (await tables.request("GET", "/heaps?select=grains(id)", base=FEW, **service))[2]
        assert len(embedded[0]["grains"]) == 5


@pytest_twisted.ensureDeferred
async def test_streams_say_it_wherever_the_limit_applies(tables: Tables) -> None:
    await until_answered(tables, "GET", "/grains", 200, base=FEW)
    tables.sql("update grains set text = repeat('x', 200)")
    for _ in range(3):
        assert await read(tables, "/grains") == (2, "2")
        assert await read(tables, "/grains", "count=exact") == (2, "2")
        assert await read(tables, "/grains?id=gt.3", "count=exact") == (2, None)
        assert await read(tables, "/grains", key=tables.api.service_key) == (5, None)
