"""What counts as a column, and data representations (types that functions convert to and from JSON) where values do
not come from a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted

from tests.live.tables.service import BASE, Tables, tables, until_answered
from tests.live.waiting import until

__all__ = ["tables"]

DATABASES = ("careful",)
SCHEMA = """
create table nodes (id int primary key, parent_id int references nodes, word text, "*" text);
insert into nodes select i, 1, 'w' || i, 's' || i from generate_series(1, 50) i;
create table heirs (more int) inherits (nodes);
insert into heirs (id, word) values (100, 'heir');
create aggregate gathered_rows (anycompatible)
  (sfunc = array_append, stype = anycompatiblearray, initcond = '{}');
create domain "application/x-nodes" as text;
create function node_added(text, nodes) returns text language sql as 'select $1 || $2.id';
create aggregate as_media (nodes) (sfunc = node_added, stype = text, initcond = '');
create function shouted(nodes) returns text language sql immutable as 'select upper($1.word)';
create function counted(nodes, step int default 2) returns int language sql immutable as 'select $1.id * step';
create function row_text(anyelement) returns text language sql stable as 'select $1::text';
create function some_nodes() returns setof nodes language sql stable as 'select * from nodes';
create function named_pairs() returns table (a int, b text) language sql stable as $$ values (1, 'x'), (2, 'y') $$;
create function five() returns int language sql stable as 'select 5';
create schema aside; create table aside.labels (n int, label text);
insert into aside.labels values (1, 'a'), (2, 'b');
create function labels_of(nodes) returns setof aside.labels language sql stable as 'select * from aside.labels';
create function all_labels() returns setof aside.labels language sql stable as 'select * from aside.labels';
create function doubled(aside.labels) returns text language sql stable as 'select $1.label || $1.label';
grant usage on schema aside to anon; grant select on aside.labels, nodes, heirs to anon;
"""


@pytest.fixture(scope="module")
def nodes(tables: Tables) -> Tables:
    tables.sql(SCHEMA)
    return tables


@pytest_twisted.ensureDeferred
async def test_no_function_or_aggregate_is_reached_by_a_columns_name(nodes: Tables) -> None:
    await until_answered(nodes, "GET", "/rpc/five", 200)
    for name in ("gathered_rows", "as_media", "max", "any_value", "array_agg", "row_to_json", "num_nulls"):
        for path in (
            f"/nodes?select={name}&limit=3",
            f"/nodes?select=id,{name}->a&limit=3",
            f"/nodes?select=id,nodes!parent_id({name})&limit=3",
            f"/nodes?select=...nodes!parent_id({name})&limit=3",
            f"/nodes?select={name}.max()",
            f"/nodes?select=count()&order={name}",
            f"/nodes?select=id,parent_id(id)&order=parent_id({name})",
            f"/nodes?{name}=not.is.null",
            f"/nodes?or=(id.eq.1,{name}.not.is.null)",
            f"/rpc/some_nodes?select={name}",
            f"/rpc/some_nodes?order={name}",
            f"/rpc/named_pairs?select={name}",
            f"/rpc/named_pairs?{name}=not.is.null",
            f"/rpc/five?select={name}",
            f"/rpc/all_labels?select={name}",
            f"/nodes?select=id,labels_of({name})",
        ):
            status, _, body = await nodes.request("GET", path)
            assert (status, body["code"] in ("PGRST204", "42703")) == (400, True), (path, body)
    for method, path in (
        ("PATCH", "/nodes?max=not.is.null"),
        ("DELETE", "/nodes?id=eq.1&select=max"),
        ("POST", "/nodes?on_conflict=nodes"),
    ):
        prefer = {"Prefer": "return=representation,resolution=merge-duplicates"}
        status, _, body = await nodes.request(method, path, headers=prefer, json={"word": "x"})
        assert (status, body["code"]) in ((400, "42703"), (400, "PGRST204")), (path, body)


@pytest_twisted.ensureDeferred
async def test_functions_of_a_row_are_columns_wherever_one_can_be_named(nodes: Tables) -> None:
    await until_answered(nodes, "GET", "/rpc/five", 200)
    for path, expected in (
        ("/nodes?select=shouted,counted&id=eq.3", [{"shouted": "W3", "counted": 6}]),
        ("/nodes?select=id&shouted=eq.W3", [{"id": 3}]),
        ("/nodes?select=id&id=lt.4&order=counted.desc&limit=1", [{"id": 3}]),
        ("/nodes?select=t:row_text&id=eq.3", [{"t": "(3,1,w3,s3)"}]),
        ("/heirs?select=shouted,more", [{"shouted": "HEIR", "more": None}]),
        ("/nodes?select=parent_id(shouted)&id=eq.3", [{"parent_id": {"shouted": "W1"}}]),
        ("/nodes?select=counted.sum()&id=lt.3", [{"sum": 6}]),
        ("/rpc/some_nodes?select=shouted&counted=eq.8", [{"shouted": "W4"}]),
        ("/rpc/named_pairs?select=row_text&b=eq.y", [{"row_text": "(2,y)"}]),
        ("/rpc/all_labels?select=doubled,n&n=eq.2", [{"doubled": "bb", "n": 2}]),
        (
            "/nodes?select=labels_of(doubled,n)&id=eq.3&labels_of.n=eq.1",
            [{"labels_of": [{"doubled": "aa", "n": 1}]}],
        ),
        ("/nodes?select=...labels_of(*)&id=eq.3", [{"n": [1, 2], "label": ["a", "b"]}]),
        ("/nodes?select=count&id=lt.4", [{"count": 3}]),
        ("/nodes?select=ctid&id=eq.3", [{"ctid": "(0,3)"}]),
        ('/nodes?select=id,"*"&id=eq.3', [{"id": 3, "*": "s3"}]),
        ('/nodes?select=id&"*"=eq.s4&order="*"', [{"id": 4}]),
    ):
        status, _, body = await nodes.request("GET", path.replace('"', "%22"))
        assert (status, body) == (200, expected), path


@pytest_twisted.ensureDeferred
async def test_a_column_is_known_as_soon_as_it_exists(nodes: Tables) -> None:
    """Also one that is called like an aggregate."""
    await until_answered(nodes, "GET", "/rpc/five", 200)
    assert (await nodes.request("GET", "/nodes?select=max"))[0] == 400
    nodes.sql("alter table nodes add max int default 7")
    assert (await nodes.request("GET", "/nodes?select=max&id=eq.3"))[2] == [{"max": 7}]
    nodes.sql("create function later(nodes) returns int language sql stable as 'select 8'")
    assert (await nodes.request("GET", "/nodes?later=eq.8&select=id&limit=1"))[0] == 200


@pytest_twisted.ensureDeferred
async def test_an_index_on_a_computed_column_is_used(nodes: Tables) -> None:
    nodes.sql("create index on nodes (shouted(nodes))")
    careful = BASE.replace("main", "careful")
    plan = {"Accept": "application/vnd.pgrst.plan+json"}
    nodes.sql("alter role anon set enable_seqscan = off; notify pgrst")

    async def is_used() -> bool:
        _, _, body = await nodes.request("GET", "/nodes?shouted=eq.W3", base=careful, headers=plan)
        return "nodes_shouted_idx" in str(body)

    try:
        await until(is_used)
    finally:
        nodes.sql("alter role anon reset enable_seqscan; notify pgrst")


# A degree is stored as a number and represented as text.
OVENS = """
create domain degree as int;
create function shown_degree(degree) returns json language sql immutable as $$ select to_json($1 || ' C') $$;
create function read_degree(json) returns degree language sql immutable
  as $$ select split_part($1 #>> '{}', ' ', 1)::int * case when $1 #>> '{}' like '% C' then 1 end $$;
create cast (degree as json) with function shown_degree(degree) as implicit;
create cast (json as degree) with function read_degree(json) as implicit;
create table ovens (
  id int primary key, heat degree default 180, most degree default 250.6, note text default 'new', spare degree
);
grant all on ovens to anon
"""


# A key with a representation, in filters too, and an aggregate that makes a body of such rows.
KEYED = """
create domain code as int;
create function shown_code(code) returns json language sql immutable as $$ select to_json('n/' || $1) $$;
create function read_code(text) returns code language sql immutable as $$ select split_part($1, '/', 2)::int $$;
create function read_code(json) returns code language sql immutable as $$ select read_code($1 #>> '{}') $$;
create cast (code as json) with function shown_code(code) as implicit;
create cast (text as code) with function read_code(text) as implicit;
create cast (json as code) with function read_code(json) as implicit;
create table boxes (id code primary key, kind int default 1, note text);
insert into boxes values (1, 1, 'one'), (2, 1, 'two');
create domain "text/x-boxes" as text;
create function and_box("text/x-boxes", boxes) returns "text/x-boxes" language sql immutable
  as $$ select $1 || $2.id::int || $2.note || ';' $$;
create aggregate all_boxes(boxes) (sfunc = and_box, stype = "text/x-boxes", initcond = '');
create function own_boxes() returns setof boxes language sql stable as $$ select * from boxes $$;
create function double(boxes) returns int language sql immutable as $$ select $1.id * 2 $$;
grant all on boxes to anon
"""


# Times are represented in Indian time, with an abbreviation that PostgreSQL takes for Israel's.
MOMENTS = """
create table moments (at timestamptz primary key, day date);
create function abroad() returns trigger language plpgsql as $$ begin
  perform set_config('DateStyle', 'Postgres, DMY', true), set_config('TimeZone', 'Asia/Kolkata', true);
  return new;
end $$;
create trigger abroad before insert on moments for each row execute function abroad();
grant all on moments to anon
"""


DEFAULTS = {"heat": "180 C", "most": "251 C", "note": "new", "spare": None}


@pytest.fixture(scope="module")
def ovens(tables: Tables) -> Iterator[Tables]:
    tables.sql(OVENS)
    yield tables
    tables.sql("drop table ovens; drop domain degree cascade")


@pytest.fixture(scope="module")
def boxes(tables: Tables) -> Iterator[Tables]:
    tables.sql(KEYED)
    yield tables
    tables.sql('drop table boxes cascade; drop domain code cascade; drop domain "text/x-boxes" cascade')


@pytest_twisted.ensureDeferred
async def test_a_default_value_is_not_parsed_as_a_representation(ovens: Tables) -> None:
    columns = "columns=id,heat,most,note,spare"
    prefer = {"Prefer": "missing=default, return=representation"}

    async def written(method: str, path: str, body: Any) -> Any:
        status, _, result = await ovens.request(method, path, headers=prefer, json=body)
        assert status in (200, 201), result
        return result

    rows: list[dict[str, Any]] = [
        {"id": 1},
        {"id": 2, "heat": "30 C"},
        {"id": 3, "most": None, "note": "old"},
    ]
    expected = [{**DEFAULTS, **row} for row in rows]
    assert await written("POST", f"/ovens?{columns}", rows) == expected
    # As a single object, and if only such a column has a default.
    one = {"id": 4, "pgrst_given": {"heat": 1}}
    assert await written("POST", f"/ovens?{columns}", one) == [{**DEFAULTS, "id": 4}]
    assert await written("POST", "/ovens?columns=id,heat", {"id": 5}) == [{**DEFAULTS, "id": 5}]
    changed = await written("PATCH", "/ovens?id=eq.2&columns=heat,note", {"note": "used"})
    assert changed == [{**DEFAULTS, "id": 2, "note": "used"}]


@pytest_twisted.ensureDeferred
async def test_a_put_finds_its_row_by_the_represented_key(boxes: Tables) -> None:
    whole = {"Prefer": "return=representation"}

    async def put(key: str, body: Any) -> tuple[int, Any]:
        status, _, result = await boxes.request("PUT", f"/boxes?id=eq.{key}", headers=whole, json=body)
        return status, result

    new = {"id": "n/5", "kind": 1, "note": "new"}
    assert await put("n/5", new) == (201, [new])
    changed = {**new, "note": "changed"}
    assert await put("n/5", changed) == (200, [changed])
    status, refused = await put("n/5", {**new, "id": "n/6"})
    assert (status, refused["code"]) == (400, "PGRST115")
    assert boxes.sql("delete from boxes where id > 2 returning id, note") == [(5, "changed")]


@pytest_twisted.ensureDeferred
async def test_the_location_of_a_new_row_reads_that_row(boxes: Tables) -> None:
    prefer = {"Prefer": "return=headers-only"}
    status, headers, _ = await boxes.request("POST", "/boxes", headers=prefer, json={"id": "n/7"})
    assert status == 201
    (location,) = headers.getRawHeaders("Location")
    status, _, result = await boxes.request("GET", location, base="")
    assert (status, [row["id"] for row in result]) == (200, ["n/7"])
    boxes.sql("delete from boxes where id > 2")


@pytest_twisted.ensureDeferred
async def test_a_location_names_a_time_without_ambiguity(tables: Tables) -> None:
    tables.sql(MOMENTS)
    prefer, moment = {"Prefer": "return=headers-only"}, {"at": "2020-02-01T10:00:00Z", "day": "2020-02-03"}
    _, headers, _ = await tables.request("POST", "/moments", headers=prefer, json=moment)
    (location,) = headers.getRawHeaders("Location")
    assert location.endswith("?at=eq.2020-02-01T15%3A30%3A00%2B05%3A30")
    _, _, result = await tables.request("GET", location, base="")
    assert result == [{"at": "2020-02-01T10:00:00+00:00", "day": "2020-02-03"}]
    tables.sql("drop table moments; drop function abroad")


@pytest_twisted.ensureDeferred
async def test_a_custom_media_type_is_made_from_stored_values(boxes: Tables) -> None:
    accept = {"Accept": "text/x-boxes"}
    for path in ("/boxes?order=id", "/rpc/own_boxes?order=id", "/rpc/own_boxes?double=lt.9&order=id"):
        status, _, result = await boxes.request("GET", path, headers=accept)
        assert (status, result) == (200, b"1one;2two;"), path
    prefer = {**accept, "Prefer": "return=representation"}
    status, _, result = await boxes.request("POST", "/boxes", headers=prefer, json={"id": "n/8", "note": "x"})
    assert (status, result) == (201, b"8x;")
    boxes.sql("delete from boxes where id > 2")
    # In JSON the values have their representation as before.
    _, _, result = await boxes.request("GET", "/boxes?select=id&order=id")
    assert result == [{"id": "n/1"}, {"id": "n/2"}]
