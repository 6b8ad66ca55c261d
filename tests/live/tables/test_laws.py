"""What holds between the answers to several requests, whatever they ask for. Requests are put together at random,
from a seed. The answer to a read follows from those to simpler ones, that to a write from a read with the same
parameters and the rows before and after it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from io import StringIO
from random import Random
from typing import Any, Literal
from urllib.parse import quote

import pytest
import pytest_twisted
from attrs import frozen

from tests.live.tables.service import Tables, tables, until_answered

__all__ = ["tables"]
SCHEMA = """
create table shops (id int primary key, name text, opened int, above int references shops);
create table goods (id int primary key, shop_id int references shops, name text, price int, tags text[], data jsonb);
insert into shops select i, nullif('shop ' || i % 4, 'shop 2'), nullif(1990 + i % 3, 1991), nullif(i / 2, 0)
  from generate_series(1, 9) i;
insert into goods select i, nullif(1 + i % 7, 4), nullif('a,"b" ' || i % 5, 'a,"b" 3'), nullif(i % 6, 0),
  case i % 4 when 0 then null when 1 then '{}' when 2 then '{x,y}' else '{y,null}' end::text[],
  case i % 3 when 0 then null when 1 then jsonb_build_object('k', i % 4, 'n', null) else '[1, {"k": "z"}]' end
  from generate_series(1, 40) i;
grant select on shops, goods to anon
"""


GOODS = (
    *("id=gt.20", "id=in.(3,5,8,13)", "shop_id=is.null", "shop_id=lte.3", "name=like.*2", 'name=eq."x"'),
    *('name=in.("a,\\"b\\" 1")', "name=isdistinct.x", "price=gt.2", "price=neq.5", "price=eq(any).{1,4}"),
    *("price=lt(all).{3,4}", "tags=cs.{y}", "tags=ov.{x}", "tags=eq.{}", "tags->>0=eq.x", "data->k=eq.2"),
    *("data->>k=gte.1", "data->1->>k=eq.z", "data=cs.[1]", "data->n=is.null"),
)
ORDERS = ("price.desc,id", "name.asc.nullsfirst,id.desc", "data->>k.desc.nullslast,id", "shop_id,price,id")
EXACT = {"Prefer": "count=exact"}
Verdicts = dict[int, bool | None]


@frozen
class Tree:
    operator: Literal["and", "or"]
    terms: tuple[Tree | str, ...]
    negated: bool

    def __str__(self) -> str:
        return (
            ("not." if self.negated else "") + self.operator + "(" + ",".join(map(_written, self.terms)) + ")"
        )

    def verdict(self, result: dict[str, Verdicts], row: int) -> bool | None:
        """AND or OR of three-valued logic: the least of all values, or the greatest, with unknown between false and
        true."""
        rank = {False: 0, None: 1, True: 2}
        terms = [result[one][row] if isinstance(one, str) else one.verdict(result, row) for one in self.terms]
        chosen = (min if self.operator == "and" else max)(terms, key=rank.__getitem__)
        return chosen if chosen is None else chosen != self.negated


def _written(term: Tree | str) -> str:
    if isinstance(term, Tree):
        return str(term)
    name, _, condition = term.partition("=")
    operator, _, value = condition.partition(".")
    if "{" in value or not any(mark in value for mark in ',()"'):
        return f"{name}.{condition}"
    return f"{name}.{condition}" if operator == "in" else f"{name}.{operator}." + json.dumps(value)


def tree(random: Random, conditions: Sequence[str], depth: int = 2) -> Tree:
    terms = [
        tree(random, conditions, depth - 1) if depth and random.random() < 0.3 else random.choice(conditions)
        for _ in range(random.randint(1, 3))
    ]
    return Tree(random.choice(("and", "or")), tuple(terms), random.random() < 0.3)


@pytest.fixture(scope="module")
def lawful(tables: Tables) -> Iterator[Tables]:
    tables.sql(SCHEMA)
    yield tables
    tables.sql("drop table goods, shops")


async def rows(tables: Tables, path: str, total: int | None = None) -> Any:
    """The rows of a response. Asserts that it also says their number, and ``total`` if that is given."""
    status, headers, body = await tables.request("GET", quote(path, "/?&="), headers=EXACT)
    assert status in (200, 206), (path, body)
    known = headers.getRawHeaders("content-range")[0].rpartition("/")[2]
    assert known == str(len(body) if total is None else total), path
    return body


async def represented(tables: Tables, path: str, accept: str) -> str:
    _, _, body = await tables.request("GET", quote(path, "/?&="), headers={"Accept": accept})
    return (body or b"").decode()


async def ids(tables: Tables, path: str) -> list[int]:
    return [row["id"] for row in await rows(tables, path)]


async def verdicts(tables: Tables, path: str, condition: str) -> Verdicts:
    name, _, operation = condition.partition("=")
    true = await ids(tables, f"{path}&{condition}")
    false = await ids(tables, f"{path}&{name}=not.{operation}")
    assert not set(true) & set(false), condition
    return {id_: True if id_ in true else False if id_ in false else None for id_ in range(1, 41)}


@pytest_twisted.ensureDeferred
async def test_conditions_follow_three_valued_logic(lawful: Tables) -> None:
    random, path = Random(1), "/goods?select=id,shops()&order=id"
    conditions = (*GOODS, "shops=is.null")
    result = {condition: await verdicts(lawful, path, condition) for condition in conditions}
    for _ in range(60):
        asked = tree(random, conditions)
        expected = [row for row in range(1, 41) if asked.verdict(result, row)]
        name, _, terms = str(asked).partition("(")
        assert await ids(lawful, f"{path}&{name}=({terms}") == expected, str(asked)


@pytest_twisted.ensureDeferred
async def test_embedded_rows_are_those_read_by_their_key(lawful: Tables) -> None:
    random, shops = Random(2), range(1, 10)
    for _ in range(25):
        condition, order = random.choice(GOODS), random.choice(ORDERS)
        offset, limit = random.choice(((0, 50), (0, 2), (1, 2), (2, 50)))
        goods = await rows(lawful, f"/goods?select=id,name,shop_id&{condition}&order={order}")
        expected = {
            shop: [{"id": row["id"], "name": row["name"]} for row in goods if row["shop_id"] == shop]
            for shop in shops
        }
        expected = {shop: result[offset : offset + limit] for shop, result in expected.items()}
        inside = (
            f"goods.{condition}&goods.order={order}&goods.limit={limit}&goods.offset={offset}&order=id.desc"
        )
        for select, test, wanted in (
            ("goods(id,name)", "", list(shops)),
            ("goods!inner(id,name)", "", [shop for shop in shops if expected[shop]]),
            ("goods(id,name)", "&goods=not.is.null&limit=9", [shop for shop in shops if expected[shop]]),
            ("goods(id,name)", "&goods=is.null", [shop for shop in shops if not expected[shop]]),
        ):
            result = await rows(lawful, f"/shops?select=id,{select}&{inside}{test}")
            assert result == [{"id": shop, "goods": expected[shop]} for shop in reversed(wanted)], (
                inside,
                test,
            )
        result = await rows(lawful, f"/shops?select=id,...goods(own:id)&{inside}")
        assert {row["id"]: row["own"] for row in result} == {
            shop: [row["id"] for row in some] for shop, some in expected.items()
        }, inside


@pytest_twisted.ensureDeferred
async def test_rows_are_the_same_in_every_format_and_page(lawful: Tables) -> None:
    random = Random(4)
    for _ in range(15):
        select = random.choice(
            ("*", "id,name,shops(*)", "id,data,tags,...shops(shop:name)", "id,shops(goods(id))")
        )
        path = f"/goods?select={select}&{random.choice(GOODS)}&order={random.choice(ORDERS)}"
        whole, size = await rows(lawful, path), random.randint(1, 9)
        pages = [
            await rows(lawful, f"{path}&limit={size}&offset={first}", len(whole))
            for first in range(0, len(whole), size)
        ]
        assert [row for page in pages for row in page] == whole, path
        lines = await represented(lawful, path, "application/x-ndjson")
        assert [json.loads(line) for line in lines.splitlines()] == whole, path
        table = csv.DictReader(StringIO(await represented(lawful, path, "text/csv"), newline=""))
        assert [int(row["id"]) for row in table] == [row["id"] for row in whole], path


@pytest_twisted.ensureDeferred
async def test_a_count_without_parentheses_is_one_with_them(lawful: Tables) -> None:
    """PostgreSQL makes it an aggregate, also of no rows: it is there for every shop, in whatever order they come."""
    for asked in (
        "/shops?select=id,goods!inner({})&goods.price=gt.4&order=id",
        "/shops?select=id,goods({})&goods.price=gt.4&goods=not.is.null&order=id",
        "/shops?select=id,goods({})&goods.price=gt.4&goods=is.null",
        "/shops?select=id,goods!inner({})&goods.price=gt.4&order=id&limit=2",
        "/shops?select={}",
    ):
        spelt = [
            await lawful.request("GET", asked.format(word), headers=EXACT) for word in ("count()", "count")
        ]
        answers = [(status, headers.getRawHeaders("content-range"), body) for status, headers, body in spelt]
        assert answers[0] == answers[1], asked
    shops = await rows(lawful, "/shops?select=id,goods!inner(count)&goods.price=gt.4&order=id")
    assert [shop["id"] for shop in shops] == list(range(1, 10))


RACKS_SCHEMA = """
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
THING_ORDERS = ("kept", "label.desc.nullslast,kept", "n.nullsfirst,kept.desc", "racks(room).desc,kept")
LABELS = ("x", "a,b", '"', "null", " ", "é\\", "")
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def written(tables: Tables) -> Iterator[Tables]:
    tables.sql(RACKS_SCHEMA)
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
    order = random.choice(THING_ORDERS)
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
        limit = max(0, len(ids) - random.randint(0, 1))
        few = f"{shown}, handling=strict, max-affected={limit}"
        status, _ = await ask(written, "PATCH", path, few, json={"label": "new"})
        assert status == (400 if len(ids) > limit else 200), path
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
