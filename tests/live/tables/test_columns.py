"""What counts as a column: PostgreSQL takes a name after a relation's for any function or aggregate of the row."""

from __future__ import annotations

import pytest
import pytest_twisted

from tests.live.tables.service import BASE, Tables, tables, until_answered
from tests.live.waiting import until

__all__ = ["tables"]

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
