"""Which rows a write touches, and what rights it needs for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted

from tests.live.tables_service import Tables, tables, until_answered

__all__ = ["tables"]

SCHEMA = """
create table kept (id int primary key, name text);
create table held (id int primary key, kept_id int references kept, note text default '');
insert into kept values (1, 'one'), (2, 'two');
insert into held values (1, 1), (2, 1), (3, 2), (4, null);
create table noted (id int primary key, note text);
grant all on kept, held to anon;
grant select, insert, update (note) on noted to anon
"""


@pytest.fixture(scope="module")
def writes(tables: Tables) -> Iterator[Tables]:
    tables.sql(SCHEMA)
    yield tables
    tables.sql("drop table noted, held, kept")


async def written(tables: Tables, method: str, path: str, **more: Any) -> list[int]:
    headers = {"Prefer": "return=representation"}
    status, _, body = await tables.request(method, path, headers=headers, **more)
    assert status in (200, 201), body
    return sorted(row["id"] for row in body)


@pytest_twisted.ensureDeferred
async def test_rows_left_out_by_an_inner_embedding_are_not_written(writes: Tables) -> None:
    await until_answered(writes, "GET", "/held?select=id,kept(id)", 200)
    path = "/held?select=id,kept!inner(name)&kept.name=eq.one"
    assert await written(writes, "PATCH", path, json={"note": "x"}) == [1, 2]
    assert writes.sql("select id from held where note = 'x' order by id") == [(1,), (2,)]
    # As much where nothing comes back, and together with filters and limits of the relation itself.
    assert (await writes.request("PATCH", f"{path}&id=gt.1", json={"note": "y"}))[0] == 204
    assert writes.sql("select id from held where note = 'y'") == [(2,)]
    path = "/kept?select=id,held!inner()&held.note=eq.y&order=id&limit=1"
    assert await written(writes, "PATCH", path, json={"name": "uno"}) == [1]
    path = "/held?select=id,kept!inner()&kept.name=eq.uno&order=id.desc&limit=1"
    assert await written(writes, "DELETE", path) == [2]
    # Without inner the filter is on what is shown.
    assert await written(writes, "DELETE", "/held?id=gt.2&select=id,kept(name)&kept.name=eq.uno") == [3, 4]
    assert writes.sql("select id from held") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_a_filter_on_rows_that_are_shown_anyway_is_none(writes: Tables) -> None:
    for select in ("id,kept(name)&kept.name=eq.uno", "id,kept!inner(name)", "id"):
        status, _, body = await writes.request("DELETE", f"/held?select={select}")
        assert (status, body["code"]) == (400, "21000")


@pytest_twisted.ensureDeferred
async def test_the_first_rows_may_be_those_of_a_related_order(writes: Tables) -> None:
    writes.sql(
        "insert into kept values (8, 'a'), (9, 'z'); insert into held values (11, 9), (12, 8), (13, 9)"
    )
    path = "/held?select=id,kept(name)&id=gt.10&limit=2"
    assert await written(writes, "DELETE", f"{path}&order=kept(name).desc,id") == [11, 13]
    # By a column that the relation itself has, too.
    writes.sql("insert into held values (11, 9)")
    assert await written(writes, "DELETE", f"{path}&order=kept(id).desc&limit=1") == [11]
    # Nothing of it is selected.
    path = "/held?select=id,kept()&id=gt.10&order=kept(name)&limit=1"
    assert await written(writes, "DELETE", path) == [12]


@pytest_twisted.ensureDeferred
async def test_an_upsert_does_not_set_the_key_it_found_its_row_by(writes: Tables) -> None:
    await until_answered(writes, "GET", "/noted", 200)
    merging = {"Prefer": "resolution=merge-duplicates"}
    for note, status in (("new", 201), ("merged", 200)):
        body = [{"id": 1, "note": note}]
        assert (await writes.request("POST", "/noted", headers=merging, json=body))[0] == status
        assert writes.sql("select note from noted") == [(note,)]
    assert (await writes.request("PUT", "/noted?id=eq.1", json={"id": 1, "note": "put"}))[0] == 204
    assert writes.sql("select note from noted") == [("put",)]
