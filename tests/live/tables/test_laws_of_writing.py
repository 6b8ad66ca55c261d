"""What holds between a write, a read with the same parameters and the rows before and after it: requests are put
together at random, from a seed."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
import pytest_twisted

from tests.live.tables.service import Tables, tables, until_answered

__all__ = ["tables"]

SCHEMA = """
create table racks (id int primary key, room text);
create table crates (id int primary key, rack_id int references racks, label text, n int default 5, kept int);
create view seen_crates as select id, rack_id, label, n, kept from crates;
insert into racks select i, nullif('room ' || i % 3, 'room 0') from generate_series(1, 6) i;
grant all on racks, crates, seen_crates to anon
"""
FRESH = """
truncate crates;
insert into crates select i, nullif(1 + i % 7, 7), nullif('a,"b" ' || i % 4, 'a,"b" 2'), nullif(i % 5, 0), i
  from generate_series(1, 20) i
"""
CONDITIONS = (
    *(
        "id=gt.8",
        "id=in.(3,5,8,13)",
        "rack_id=is.null",
        "rack_id=lte.3",
        "label=like.*1",
        "label=not.is.null",
    ),
    *('label=in.("a,\\"b\\" 1")', "n=gt.2", "n=isdistinct.4", "n=not.eq.3", "or=(n.is.null,id.lt.4)"),
    "not.and=(n.gt.1,rack_id.gt.2)",
)
RACKS = ("room=eq.room 1", "room=is.null", "id=gt.3", "or=(room.eq.room 2,id.lt.3)")
ORDERS = ("kept", "label.desc.nullslast,kept", "n.nullsfirst,kept.desc", "racks(room).desc,kept")
LABELS = ("x", "a,b", '"', "null", " ", "é\\", "")

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def written(tables: Tables) -> Iterator[Tables]:
    tables.sql(SCHEMA)
    yield tables
    tables.sql("drop table crates, racks cascade")


def state(tables: Tables) -> Rows:
    return [row[0] for row in tables.sql("select row_to_json(crates) from crates order by id")]


async def ask(tables: Tables, method: str, path: str, prefer: str = "", **more: Any) -> tuple[int, Any]:
    headers = {"Prefer": prefer, **more.pop("headers", {})}
    status, _, body = await tables.request(method, quote(path, "/?&="), headers=headers, **more)
    return status, body


def selection(random: Random) -> str:
    """Makes parameters that select rows and columns."""
    parts = random.sample(CONDITIONS, random.randint(1, 2))
    order = random.choice(ORDERS)
    related = random.choice(("racks", "racks!inner"))
    parts += [f"racks.{random.choice(RACKS)}"] if random.random() < 0.6 else []
    parts += [f"order={order}&limit={random.randint(0, 6)}"] if random.random() < 0.5 else ["order=kept"]
    parts += [f"offset={random.randint(0, 3)}"] if "limit=" in parts[-1] and random.random() < 0.6 else []
    return f"{random.choice(('crates', 'seen_crates'))}?select=id,kept,label,{related}(id,room)&" + "&".join(
        parts
    )


@pytest_twisted.ensureDeferred
async def test_a_write_affects_the_rows_that_a_read_shows(written: Tables) -> None:
    await until_answered(written, "GET", "/seen_crates?select=id,racks(id)", 200)
    random, shown = Random(5), "return=representation"
    for _ in range(12):
        path = "/" + selection(random)
        written.sql(FRESH)
        before = state(written)
        status, read = await ask(written, "GET", path)
        if status == 416:
            continue
        ids = {row["id"] for row in read}
        most = max(0, len(ids) - random.randint(0, 1))
        few = f"{shown}, handling=strict, max-affected={most}"
        status, _ = await ask(written, "PATCH", path, few, json={"label": "new"})
        assert status == (400 if len(ids) > most else 200), path
        if status == 400:
            assert state(written) == before, path
        written.sql(FRESH)
        status, changed = await ask(written, "PATCH", path, shown, json={"label": "new"})
        assert status == 200, changed
        expected = [{**row, "label": "new"} if row["id"] in ids else row for row in before]
        assert state(written) == expected, path
        by_key = {row["id"]: row for row in changed}
        assert by_key == {row["id"]: {**row, "label": "new"} for row in read}, path
        written.sql(FRESH)
        assert (await ask(written, "PATCH", path, json={"label": "new"}))[0] == 204
        assert state(written) == expected, path
        written.sql(FRESH)
        assert await ask(written, "DELETE", path, shown) == (200, read), path
        assert state(written) == [row for row in before if row["id"] not in ids], path


def new_rows(random: Random) -> Rows:
    ids = random.sample(range(30, 60), random.randint(1, 4))
    names = ["id", *random.sample(("rack_id", "label", "n"), random.randint(1, 3))]
    values = {"rack_id": (None, 1, 6), "label": (None, *LABELS), "n": (None, 0, -7)}
    return [{name: id_ if name == "id" else random.choice(values[name]) for name in names} for id_ in ids]


def as_csv(rows: Rows) -> str:
    text = StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    table.writerows(
        [{name: "NULL" if value is None else value for name, value in row.items()} for row in rows]
    )
    return text.getvalue()


@pytest_twisted.ensureDeferred
async def test_rows_are_the_same_however_they_are_inserted(written: Tables) -> None:
    random = Random(6)
    for _ in range(8):
        rows, old = new_rows(random), random.randint(1, 20)
        written.sql(FRESH)
        before = state(written)
        status, shown = await ask(written, "POST", "/crates", "return=representation", json=rows)
        expected = state(written)
        assert (status, shown) == (201, [row for id_ in rows for row in expected if row["id"] == id_["id"]])
        for inserts in (
            [("/crates", "", {"json": row}) for row in rows],
            [
                (
                    "/seen_crates?columns=" + ",".join(rows[0]),
                    "",
                    {"json": [{**row, "other": 1} for row in rows]},
                )
            ],
            [("/crates", "", {"data": as_csv(rows).encode(), "headers": {"Content-Type": "text/csv"}})],
            [("/crates", "missing=default", {"json": rows})],
            [("/crates", "resolution=merge-duplicates", {"json": rows})] * 2,
            [("/crates", "resolution=ignore-duplicates", {"json": [*rows, {**rows[0], "id": old}]})] * 2,
        ):
            written.sql("delete from crates where id > 20")
            for path, prefer, more in inserts:
                status, _ = await ask(written, "POST", path, prefer, **more)
                assert status in (200, 201), (path, prefer, more)
            assert (state(written), inserts) == (expected, inserts)
        written.sql(FRESH)
        refused = [*rows, {**rows[0], "id": old}]
        random.shuffle(refused)
        assert (await ask(written, "POST", "/crates", json=refused))[0] == 409
        assert state(written) == before


@pytest_twisted.ensureDeferred
async def test_filters_on_embedded_aggregates_select_rows_by_their_related_rows(written: Tables) -> None:
    """An aggregate of no rows is there as well, so otherwise every row would match."""
    written.sql(FRESH)
    await until_answered(written, "GET", "/racks?select=id,crates(id)", 200)
    holding = "select array_agg(distinct rack_id order by rack_id) from crates where n > 3"
    ((expected,),) = written.sql(f"{holding} and rack_id is not null")
    assert 0 < len(expected) < 6
    shown: dict[str, Any] = {"json": {"room": "x"}, "headers": {"Prefer": "return=representation"}}
    for summed, filters in (
        ("crates!inner(n.sum())", "crates.n=gt.3"),
        ("crates!inner(count)", "crates.n=gt.3"),
        ("crates!inner(rack_id,n.sum())", "crates.n=gt.3"),
        ("crates!inner(id,racks!inner(count()))", "crates.n=gt.3&crates.racks.id=gt.0"),
        ("crates!inner(id,below:racks(count()))", "crates.n=gt.3&crates.below=not.is.null"),
    ):
        path = f"/racks?select=id,{summed}&{filters}"
        status, _, rows = await written.request("PATCH", path, **shown)
        assert (status, sorted(row["id"] for row in rows)) == (200, expected), path


@pytest_twisted.ensureDeferred
async def test_a_limited_write_affects_no_more_rows_however_they_are_found(written: Tables) -> None:
    written.sql(
        "create table split (n int) partition by list (n); create table split_1 partition of split for values in (1);"
        " create table split_2 partition of split for values in (2); insert into split values (1), (2), (1), (2);"
        " create table above (id int primary key); create table beneath () inherits (above);"
        " insert into above values (1), (2); insert into beneath values (1), (2);"
        " create view joined as select racks.id, number from racks, generate_series(1, 3) number;"
        " create function gone() returns trigger language plpgsql as 'begin return old; end';"
        " create trigger gone instead of delete on joined for each row execute function gone();"
        " grant all on split, above, joined to anon"
    )
    try:
        await until_answered(written, "GET", "/joined", 200)
        for path in ("split?n=gt.0&order=n", "above?id=gt.0&order=id"):
            shown = {"Prefer": "return=representation"}
            status, _, rows = await written.request("DELETE", f"/{path}&limit=1", headers=shown)
            assert (status, len(rows)) == (200, 1), path
        for cut in ("order=number&limit=2", "order=number&offset=1", "order=id,number&offset=1&limit=1000"):
            status, _, body = await written.request("DELETE", f"/joined?id=gt.0&{cut}")
            assert (status, body["code"]) == (400, "PGRST127"), cut
        for cut in ("limit=3", "offset=3", "offset=3&limit=3"):
            assert (await written.request("DELETE", f"/joined?id=gt.0&order=id,number&{cut}"))[0] == 204, cut
    finally:
        written.sql("drop view joined; drop function gone; drop table split; drop table above cascade")
