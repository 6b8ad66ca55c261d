"""Which rows a write affects, and which values it sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg2
import pytest
import pytest_twisted

from project_service.lifecycle import start
from tests.live.tables.service import Tables, tables, until_answered
from tests.live.waiting import until

__all__ = ["tables"]

SCHEMA = """
create table kept (id int primary key, name text);
create table held (id int primary key, kept_id int references kept, note text default '');
insert into kept values (1, 'one'), (2, 'two');
insert into held values (1, 1), (2, 1), (3, 2), (4, null);
create extension citext;
create table noted (name citext primary key, note text);
create table told (id int primary key, note text);
create table jobs (id int primary key, state text default 'waiting');
insert into jobs values (1), (2);
create table dropped_in (n int);
create table heap (n int); insert into heap values (1), (2), (3);
grant all on kept, held, jobs, noted, heap to anon; grant insert on dropped_in to anon;
grant select, insert, update (note) on told to anon
"""


@pytest.fixture(scope="module")
def writes(tables: Tables) -> Iterator[Tables]:
    tables.sql(SCHEMA)
    yield tables
    tables.sql("drop table heap, dropped_in, jobs, told, noted, held, kept; drop extension citext")


async def written(tables: Tables, method: str, path: str, **more: Any) -> list[int]:
    headers = {"Prefer": "return=representation"}
    status, _, body = await tables.request(method, path, headers=headers, **more)
    assert status in (200, 201), body
    return sorted(row["id"] for row in body)


@pytest_twisted.ensureDeferred
async def test_tests_of_embedded_relations_select_the_rows_of_a_read(writes: Tables) -> None:
    writes.sql(
        "create table trees (id int primary key, name text);"
        "create table leaves (id int primary key, tree_id int references trees, name text);"
        "create table nests (id int primary key, leaf_id int references leaves, tree_id int references trees);"
        "create view groves as select * from trees;"
        "insert into trees select n, 'tree' || n from generate_series(1, 5) n;"
        "insert into leaves values (1, 1, 'a'), (2, 1, 'b'), (3, 2, 'a'), (4, null, 'c');"
        "insert into nests values (1, 1, 2), (2, null, 4);"
        "create function leaf(trees) returns setof leaves rows 1 language sql stable as "
        "$$ select * from leaves where tree_id = $1.id order by id limit 1 $$;"
        "grant all on trees, leaves, nests, groves to anon"
    )
    for path, expected in {
        "/trees?select=id,leaves()&leaves=is.null": [3, 4, 5],
        "/trees?select=id,leaves()&leaves=not.is.null": [1, 2],
        "/trees?select=id,of:leaves(name)&of=is.null": [3, 4, 5],
        "/trees?select=id,of:leaves(name)&leaves=is.null": [3, 4, 5],
        "/trees?select=id,leaves()&leaves.name=eq.b&leaves=is.null": [2, 3, 4, 5],
        "/trees?select=id,leaves(),nests()&or=(leaves.is.null,nests.not.is.null)": [2, 3, 4, 5],
        "/trees?select=id,leaves(),nests()&not.and=(leaves.is.null,id.gt.3)": [1, 2, 3],
        "/trees?select=id,leaves(nests())&leaves.nests=is.null&leaves=not.is.null": [1, 2],
        "/trees?select=id,leaves!inner(nests())&leaves.nests=not.is.null": [1],
        "/trees?select=id,leaves()&leaves=is.null&order=id.desc&limit=2": [4, 5],
        "/trees?select=id,leaf()&leaf=is.null": [3, 4, 5],
        "/groves?select=id,leaves()&leaves=is.null&order=id&limit=1&offset=1": [4],
        "/leaves?select=id,trees(name)&trees=is.null": [4],
        "/leaves?select=id,...trees(tree:name)&trees.name=eq.tree2&trees=not.is.null": [3],
    }.items():
        await until_answered(writes, "GET", path, 200)
        assert sorted(row["id"] for row in (await writes.request("GET", path))[2]) == expected, path
        assert await written(writes, "PATCH", path, json={"name": "x"}) == expected, path
        writes.sql("update trees set name = 'tree' || id")
        writes.sql("update leaves set name = case id when 2 then 'b' when 4 then 'c' else 'a' end")
    assert await written(
        writes, "DELETE", "/trees?select=id,leaves(),nests()&leaves=is.null&nests=is.null"
    ) == [3, 5]
    status, _, body = await writes.request("DELETE", "/trees?select=id,leaves()&leaves=eq.1")
    assert (status, body["code"]) == (400, "PGRST120")
    writes.sql("drop table trees, leaves, nests cascade")


@pytest_twisted.ensureDeferred
async def test_a_write_that_sets_nothing_returns_nothing(writes: Tables) -> None:
    assert await written(writes, "POST", "/held", json=[]) == []
    assert await written(writes, "PATCH", "/held?id=gt.0&select=id,kept(name)", json={}) == []
    assert await written(writes, "PATCH", "/held?id=gt.0&columns=note", json=[]) == []


@pytest_twisted.ensureDeferred
async def test_a_filter_on_embedded_rows_does_not_count_as_a_filter(writes: Tables) -> None:
    for select in ("id,kept(name)&kept.name=eq.uno", "id,kept!inner(name)", "id"):
        status, _, body = await writes.request("DELETE", f"/held?select={select}")
        assert (status, body["code"]) == (400, "21000")


@pytest_twisted.ensureDeferred
async def test_a_limited_write_may_be_ordered_by_an_embedded_column(writes: Tables) -> None:
    writes.sql(
        "insert into kept values (8, 'a'), (9, 'z'); insert into held values (11, 9), (12, 8), (13, 9)"
    )
    path = "/held?select=id,kept(name)&id=gt.10&limit=2"
    assert await written(writes, "DELETE", f"{path}&order=kept(name).desc,id") == [11, 13]
    # Both relations have a column of this name.
    writes.sql("insert into held values (11, 9)")
    assert await written(writes, "DELETE", f"{path}&order=kept(id).desc&limit=1") == [11]
    # No column of the embedded relation is selected.
    path = "/held?select=id,kept()&id=gt.10&order=kept(name)&limit=1"
    assert await written(writes, "DELETE", path) == [12]


@pytest_twisted.ensureDeferred
async def test_a_limited_write_to_a_view_uses_its_tables_key(writes: Tables) -> None:
    writes.sql(
        "create view kept_seen as select * from kept; grant all on kept_seen to anon;"
        "insert into kept values (21, 'x'), (22, 'x'), (23, 'x')"
    )
    await until_answered(writes, "GET", "/kept_seen", 200)
    path = "/kept_seen?name=eq.x&order=id.desc&limit=2"
    assert await written(writes, "PATCH", f"{path}&offset=1", json={"name": "y"}) == [21, 22]
    assert await written(writes, "DELETE", path) == [23]
    assert await written(writes, "DELETE", "/kept_seen?name=eq.y&order=id&limit=2") == [21, 22]
    writes.sql("drop view kept_seen")


@pytest_twisted.ensureDeferred
async def test_an_upsert_may_set_nothing_and_a_default_may_be_null(writes: Tables) -> None:
    writes.sql("create table marks (id int primary key default 1); grant all on marks to anon")
    await until_answered(writes, "GET", "/marks", 200)
    writes.sql("insert into marks values (1)")
    for how, expected in (("merge", 200), ("ignore", 201)):
        for body in ("{}", "[{}, {}]"):
            headers = {"Prefer": f"resolution={how}-duplicates, return=representation"}
            headers["Content-Type"] = "application/json"
            status, _, answer = await writes.request("POST", "/marks", headers=headers, data=body.encode())
            assert (status, answer) == (expected, []), (how, body)
    writes.sql("drop table marks")
    headers = {"Prefer": "missing=default, return=representation"}
    sent = [{"id": 31}, {"id": 32, "name": "n"}]
    _, _, answer = await writes.request("POST", "/kept?columns=id,name", headers=headers, json=sent)
    assert answer == [{"id": 31, "name": None}, {"id": 32, "name": "n"}]


@pytest_twisted.ensureDeferred
async def test_an_upsert_also_sets_the_columns_it_conflicts_on(writes: Tables) -> None:
    """Equal values, here of citext, need not be identical."""
    await until_answered(writes, "GET", "/noted", 200)
    merging = {"Prefer": "resolution=merge-duplicates"}
    for name, status in (("Ann", 201), ("ANN", 200)):
        body = [{"name": name, "note": "x"}]
        assert (await writes.request("POST", "/noted", headers=merging, json=body))[0] == status
        assert writes.sql("select name::text from noted") == [(name,)]


@pytest_twisted.ensureDeferred
async def test_an_upsert_needs_the_right_to_update_all_columns_it_sets(writes: Tables) -> None:
    await until_answered(writes, "GET", "/told", 200)
    merging = {"Prefer": "resolution=merge-duplicates"}
    request = partial(writes.request, "POST", "/told", headers=merging, json=[{"id": 1, "note": "new"}])
    assert [(await request())[0], (await request())[2]["code"]] == [401, "42501"]
    writes.sql("grant update (id) on told to anon")
    assert [(await request())[0], (await request())[0]] == [201, 200]


@pytest_twisted.ensureDeferred
async def test_of_simultaneous_limited_updates_each_takes_another_row(writes: Tables) -> None:
    await until_answered(writes, "GET", "/jobs", 200)
    path = "/jobs?state=eq.waiting&order=id&limit=1&select=id"
    with closing(psycopg2.connect(writes.api.dsn)) as other:
        other.cursor().execute("update jobs set state = 'taken' where id = 1")
        taking = start(written(writes, "PATCH", path, json={"state": "taken"}))

        async def waits() -> bool:
            blocked = f"{other.info.backend_pid} = any(pg_blocking_pids(pid))"
            return bool(writes.sql(f"select 1 from pg_stat_activity where {blocked}"))

        await until(waits)
        other.commit()
    assert await taking == []
    assert await written(writes, "PATCH", path, json={"state": "taken"}) == [2]


@pytest_twisted.ensureDeferred
async def test_any_number_of_columns_may_have_defaults(writes: Tables) -> None:
    names = [f"c{number}" for number in range(120)]
    columns = ", ".join(f"{name} int default {number}" for number, name in enumerate(names))
    writes.sql(f"create table wide (id int primary key, {columns}); grant all on wide to anon")
    path, headers = f"/wide?columns=id,{','.join(names)}", {"Prefer": "missing=default"}
    body = [{"id": 1, "c3": 33}, {"id": 2, "c99": None}]
    status, _, answer = await writes.request("POST", path, headers=headers, json=body)
    assert (status, answer) == (201, b"")
    rows = writes.sql("select c0, c3, c49, c50, c99, c119 from wide order by id")
    assert rows == [(0, 33, 49, 50, 99, 119), (0, 3, 49, 50, None, 119)]
    path = path.replace("columns=id,", "id=eq.1&columns=")
    assert (await writes.request("PATCH", path, headers=headers, json={"c119": 7}))[0] == 204
    assert writes.sql("select c3, c119 from wide where id = 1") == [(3, 7)]


@pytest_twisted.ensureDeferred
async def test_enum_types_of_other_schemas_work_and_unasked_columns_are_not_read(
    writes: Tables,
) -> None:
    writes.sql(
        "create schema inner_; create type inner_.state as enum ('new', 'done');"
        " create table tasks (id int primary key, state inner_.state, n int); grant all on tasks to anon"
    )
    try:
        await until_answered(writes, "GET", "/tasks", 200)
        request = partial(writes.request, "POST", "/tasks?columns=id,state")
        body = {"id": 1, "state": "new", "n": "no number"}
        status, _, answer = await request(json=body)
        assert (status, answer["code"]) == (401, "42501")
        writes.sql("grant usage on schema inner_ to anon")
        assert (await request(json=body))[0] == 201
        assert writes.sql("select state::text, n from tasks") == [("new", None)]
    finally:
        writes.sql("drop table tasks; drop schema inner_ cascade")


@pytest_twisted.ensureDeferred
async def test_rows_without_a_key_are_limited_by_their_ctid(writes: Tables) -> None:
    status, _, _ = await writes.request("PATCH", "/heap?n=gt.0&order=n.desc&limit=1", json={"n": 7})
    assert (status, writes.sql("select n from heap order by n")) == (204, [(1,), (2,), (7,)])
    status, _, _ = await writes.request("DELETE", "/heap?n=gt.0&order=n&limit=1")
    assert (status, writes.sql("select n from heap order by n")) == (204, [(2,), (7,)])


@pytest_twisted.ensureDeferred
async def test_a_role_that_may_only_insert_may_insert_nothing_too(writes: Tables) -> None:
    for rows in ([{"n": 1}], []):
        assert (await writes.request("POST", "/dropped_in", json=rows))[0] == 201, rows


@pytest_twisted.ensureDeferred
async def test_rows_written_count_even_if_they_are_not_shown(writes: Tables) -> None:
    """A write may move rows out of its filter, or show only an aggregate."""
    writes.sql(
        "create table part (id int primary key, kept_id int references kept); grant all on part to anon"
    )
    try:
        writes.sql("insert into part values (1, 1), (2, 1), (3, 1)")
        moving, adding = "/part?select=id,kept!inner(id)&kept.id=eq.1", "/part?select=count()&id=gt.0"
        await until_answered(writes, "GET", moving, 200)
        one = {"Prefer": "return=representation, handling=strict, max-affected=1"}
        for path in (moving, adding):
            status, _, body = await writes.request("PATCH", path, headers=one, json={"kept_id": None})
            assert (status, body["details"]) == (400, "The query affects 3 rows"), path
        merged = {"Prefer": "return=representation, resolution=merge-duplicates"}
        for path, rows, shown in (
            (moving, [{"id": 1, "kept_id": None}], []),
            (adding, [{"id": 1}, {"id": 2}], 2),
        ):
            status, _, body = await writes.request("POST", path, headers=merged, json=rows)
            assert (status, body) == (200, [{"count": shown}] if shown else shown), path
        two: dict[str, Any] = {
            "json": [{"id": 8, "kept_id": 1}, {"id": 9, "kept_id": None}],
            "headers": dict(merged),
        }
        two["headers"]["Accept"] = "application/vnd.pgrst.object+json"
        status, _, body = await writes.request("POST", "/part?select=id,kept!inner()", **two)
        assert (status, body["details"]) == (406, "The result contains 2 rows")
        put: dict[str, Any] = {
            "json": {"id": 4, "kept_id": None},
            "headers": {"Prefer": "return=representation"},
        }
        status, _, body = await writes.request("PUT", "/part?select=kept!inner()&id=eq.4", **put)
        assert (status, body) == (201, [])
        assert writes.sql("select * from part order by id") == [(1, None), (2, 1), (3, 1), (4, None)]
    finally:
        writes.sql("drop table part")


@pytest_twisted.ensureDeferred
async def test_a_location_is_sent_for_a_single_new_row_only(writes: Tables) -> None:
    asked = {"Prefer": "return=headers-only, resolution=ignore-duplicates"}
    for ids, place in (
        ([71], "id=eq.71"),
        ([72, 73], None),
        ([71, 74], "id=eq.74"),
        ([71], None),
        ([], None),
    ):
        body = [{"id": number} for number in ids]
        status, headers, _ = await writes.request("POST", "/kept", headers=asked, json=body)
        result = headers.getRawHeaders("location")
        assert (status, result and result[0].rpartition("?")[2]) == (201, place), ids


@pytest_twisted.ensureDeferred
async def test_defaults_are_cast_to_the_type_of_their_column(writes: Tables) -> None:
    writes.sql(
        "create type place as (x int, name text); create domain two as varchar(2); create domain num as int not null;"
        " create table placed (id int, n int default 2.6, at place default row(1, 'a')); create table coded"
        " (c varchar(2) default 'abc', two two default 'abc', n num default null); grant all on placed, coded to anon"
    )
    try:
        await until_answered(writes, "GET", "/placed", 200)
        asked = partial(writes.request, "POST", headers={"Prefer": "missing=default, return=representation"})
        status, _, rows = await asked(
            "/placed?columns=id,n,at&select=n,at", json=[{"id": 1}, {"id": 2, "at": None}]
        )
        assert (status, rows) == (201, [{"n": 3, "at": {"x": 1, "name": "a"}}, {"n": 3, "at": None}])
        for given in {"c": "a", "n": 1}, {"two": "a", "n": 1}:
            status, _, error = await asked("/coded?columns=c,two,n", json=given)
            assert (status, error["code"]) == (400, "22001"), given
    finally:
        writes.sql("drop table placed, coded; drop type place; drop domain two, num")


@pytest.mark.parametrize(
    ("method", "kind", "body"),
    (
        ("PATCH", "application/json", b'[{"id": 1}, {"id": 2}]'),
        ("PATCH", "application/json", b"{"),
        ("POST", "application/json", b"1"),
        ("POST", "application/json", b'[{"a": 1}, {"b": 2}]'),
        ("PUT", "application/json", b"\xff"),
        ("POST", "text/csv", b'a,b\n1,"'),
        ("POST", "application/x-ndjson", b"{}\nno"),
        ("POST", "text/plain", b"x"),
        ("POST", "application/x-ndjson", b"no\n" * 400_000),
    ),
)
@pytest_twisted.ensureDeferred
async def test_whether_there_is_a_table_is_said_before_its_body_is_judged(
    writes: Tables, method: str, kind: str, body: bytes
) -> None:
    headers = {"Content-Type": kind}
    status, _, answer = await writes.request(method, "/nowhere?id=eq.1", headers=headers, data=body)
    assert (status, answer["code"]) == (404, "PGRST205"), answer
    status, _, answer = await writes.request(method, "/kept?id=eq.1", headers=headers, data=body)
    assert (status, answer["code"]) == (400, "PGRST102"), answer
