"""Reads in rare cases: searches within JSON, relations with names that statements use themselves."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from io import StringIO
from typing import Any
from urllib.parse import quote

import pytest
import pytest_twisted
import treq

from tests.live.tables.service import BASE, Tables, tables, until_answered

__all__ = ["tables"]

SCHEMA = """
create table notes (id int primary key, said jsonb, body text);
insert into notes values
  (1, '{"text": "des chats amusants", "parts": {"a": "un chat"}}', 'des chats'),
  (2, '{"text": "nothing"}', 'nothing');
create function letters(notes) returns int language sql stable as 'select length($1.body)';
create function count(notes) returns int language sql stable as 'select 3 * $1.id';
create function count(text) returns int language sql immutable as 'select 42';
create function json_agg(notes) returns int language sql stable as 'select 5 * $1.id';
create function to_json(notes) returns int language sql stable as 'select 7 * $1.id';
create table leaf (id int primary key, note int references notes);
create table leaf_1 (id int primary key, leaf int references leaf);
create table mixed (id int primary key, said json);
insert into mixed values (1, '{"n": 2, "a": [1]}'), (2, '{"n": 10, "a": [2]}'), (3, '[7]');
create table twig (id int primary key, _t text, twig text, leaf int references leaf);
create function grown(twig) returns setof leaf rows 1 language sql stable as
  $$ select * from leaf where id = $1.leaf $$;
create view odd as
  select i as "a ""name"", quoted", E'back\\\\slash "quoted"' as plain, '' as empty, null as nothing,
    '{"a": "\\\\"}'::json as js
  from generate_series(1, 300) i;
insert into leaf values (1, 1), (2, 2);
insert into leaf_1 values (1, 2);
insert into twig values (1, 'of', 'its own', 2);
grant select on notes, leaf, leaf_1, mixed, odd, twig to anon
"""


@pytest.fixture(scope="module")
def reading(tables: Tables) -> Iterator[Tables]:
    tables.sql(SCHEMA)
    yield tables
    tables.sql(
        "drop view odd; drop table twig cascade; drop table leaf_1, leaf, mixed; "
        "drop table notes cascade; drop function count(text)"
    )


def without_repetitions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


@pytest_twisted.ensureDeferred
async def test_no_object_has_a_key_twice_and_the_last_column_counts(reading: Tables) -> None:
    cases: dict[str, dict[str, Any]] = {
        "/leaf?id=eq.1&select=id,id": {"id": 1},
        "/leaf?id=eq.1&select=*,id::text": {"id": "1", "note": 1},
        "/leaf?id=eq.1&select=x:id,id,x:note::text": {"x": "1", "id": 1},
        "/leaf?id=eq.2&select=*,note:leaf_1(id)": {"id": 2, "note": [{"id": 1}]},
        "/leaf?id=eq.2&select=*,note:leaf_1(id)&order=id&limit=1": {"id": 2, "note": [{"id": 1}]},
        "/leaf?id=eq.2&select=note:leaf_1(id),*": {"id": 2, "note": 2},
        "/leaf_1?select=id,...leaf(*)": {"id": 2, "note": 2},
        "/leaf_1?select=...leaf(*),id": {"id": 1, "note": 2},
        "/leaf?id=eq.2&select=id,...leaf_1(id,id)": {"id": [1]},
        "/leaf_1?select=leaf(x:id,x:note,x:id)": {"leaf": {"x": 2}},
        "/leaf?select=count(),count()": {"count": 2},
        "/leaf?select=id.max(),max:id.min()": {"max": 1},
    }
    for path, expected in cases.items():
        for media in ("application/json", "application/x-ndjson", "application/vnd.pgrst.object+json"):
            url = reading.api.base_url + BASE + path
            sent: dict[bytes | str, bytes | str] = {"X-Service-Key": reading.api.anon_key, "Accept": media}
            response = await treq.get(url, headers=sent, persistent=False)
            body = (await treq.text_content(response)).strip().removeprefix("[").removesuffix("]")
            assert json.loads(body, object_pairs_hook=without_repetitions) == expected, path
        _, _, body = await reading.request("GET", path, headers={"Accept": "text/csv"})
        assert sorted(next(csv.reader(StringIO(body.decode())))) == sorted(expected), path


async def ids(tables: Tables, query: str) -> list[int]:
    status, _, body = await tables.request("GET", f"/notes?select=id&order=id&{query}")
    assert status == 200, body
    return [row["id"] for row in body]


@pytest_twisted.ensureDeferred
async def test_full_text_search_in_json_uses_the_language_named(reading: Tables) -> None:
    for query in (
        "said->>text=plfts(french).chat",
        "said->parts=fts(french).chats",
        "body=wfts(french).chat",
    ):
        # The second request prepares its statement.
        assert [await ids(reading, query) for _ in range(3)] == [[1]] * 3, query
    assert await ids(reading, "said->>text=not.fts(simple).chat") == [1, 2]


@pytest_twisted.ensureDeferred
async def test_filters_return_the_rows_of_their_operators(reading: Tables) -> None:
    for query, expected in (
        ("id=in.(2,7)", [2]),
        ("id=not.in.(2,7)", [1]),
        ("said->>text=in.(nothing)", [2]),
        ("id=eq(any).{1,7}", [1]),
        ("id=gte(all).{1,2}", [2]),
        ("body=like(any).{des*,x*}", [1]),
        ("body=not.ilike(all).{*CHAT*,d*}", [2]),
        ("body=isdistinct.nothing", [1]),
        ("body=match.^d", [1]),
        ("said->parts=is.null", [2]),
        ("said->parts=not.is.null", [1]),
        ("said->parts=is.not_null", [1]),
        ('said=cs.{"text":"nothing"}', [2]),
        ("not.or=(id.eq.1,id.eq.7)", [2]),
        ("and=(id.gt.0,not.and(id.eq.1,body.neq.x))", [2]),
        ("or=(id.eq.1,body.eq.nothing)", [1, 2]),
        # A generated column.
        ("letters=gt.8", [1]),
        ("letters=in.(7)", [2]),
    ):
        assert await ids(reading, query) == expected, query


@pytest_twisted.ensureDeferred
async def test_a_search_in_a_number_is_refused_as_by_postgresql(reading: Tables) -> None:
    status, _, body = await reading.request("GET", "/notes?id=fts(simple).x")
    assert (status, body["code"]) == (404, "42883")
    assert body["message"] == "function to_tsvector(unknown, integer) does not exist"


@pytest_twisted.ensureDeferred
async def test_an_error_names_a_relation_by_its_depth(reading: Tables) -> None:
    for select, named in (
        ("id,leaf_1(id),notes(nope)", "notes_1.nope"),
        ("id,leaf_1(id),notes(leaf(nope))", "leaf_2.nope"),
    ):
        _, _, body = await reading.request("GET", f"/leaf?select={select}")
        assert body["message"] == f"column {named} does not exist"


@pytest_twisted.ensureDeferred
async def test_relations_may_have_the_names_that_errors_use(reading: Tables) -> None:
    _, _, body = await reading.request("GET", "/leaf_1?select=id,leaf(id,leaf_1(id,leaf(id)))")
    assert body == [{"id": 1, "leaf": {"id": 2, "leaf_1": [{"id": 1, "leaf": {"id": 2}}]}}]
    _, _, body = await reading.request("GET", "/leaf_1?select=...leaf(of:id,...notes(id.sum(),count()))")
    assert body == [{"of": 2, "sum": 2, "count": 1}]


@pytest_twisted.ensureDeferred
async def test_columns_may_have_the_names_of_the_statements_aliases(reading: Tables) -> None:
    path = "/twig?select=_t,twig,grown(id),leaf(id,twig(_t))&grown=not.is.null"
    whole = {"leaf": {"id": 2, "twig": [{"_t": "of"}]}, "grown": {"id": 2}, "twig": "its own", "_t": "of"}
    _, headers, body = await reading.request("GET", path, headers={"Prefer": "count=exact"})
    assert (body, headers.getRawHeaders("content-range")) == ([whole], ["0-0/1"])
    for media, expected in (
        ("application/x-ndjson", b'{"id":1,"_t":"of","twig":"its own","leaf":2}\n'),
        ("text/csv", b'id,_t,twig,leaf\n1,of,"its own",2'),
    ):
        assert (await reading.request("GET", "/twig", headers={"Accept": media}))[2] == expected


@pytest_twisted.ensureDeferred
async def test_a_column_may_be_computed_by_a_function_named_like_an_aggregate(
    reading: Tables,
) -> None:
    """Such as ``count(text)``, which would also be called with any row by the statements of all other requests."""
    _, _, body = await reading.request(
        "GET", "/notes?select=count,to_json,n:count(),m:body.count()&count=eq.3"
    )
    assert body == [{"count": 3, "to_json": 7, "n": 1, "m": 1}]
    for limit in (1, 300):
        for media in ("application/json", "application/x-ndjson", "text/csv"):
            accept = {"Accept": media, "Prefer": "count=exact"}
            path = f"/odd?select=empty&limit={limit}"
            status, headers, _ = await reading.request("GET", path, headers=accept)
            result = (status, headers.getRawHeaders("content-range"))
            assert result == (200 if limit == 300 else 206, [f"0-{limit - 1}/300"]), media
    _, _, body = await reading.request("GET", "/notes?select=id,all:leaf(id),...leaf(leaves:id)&order=id")
    assert body == [{"id": n, "all": [{"id": n}], "leaves": [n]} for n in (1, 2)]


@pytest_twisted.ensureDeferred
async def test_json_paths_with_double_arrow_compare_and_order_as_text(reading: Tables) -> None:
    for query, expected in (
        ("said->>n=eq.10", [2]),
        ("said->n=is.null", [3]),
        ("order=said->>n", [2, 1, 3]),
        ("order=said->>n.asc", [2, 1, 3]),
        ("order=said->>n.desc", [3, 1, 2]),
        ("order=said->>n.nullsfirst", [3, 2, 1]),
        ("order=said->>n.desc.nullslast", [1, 2, 3]),
    ):
        status, _, body = await reading.request("GET", f"/mixed?select=id&{query}")
        assert (status, [row["id"] for row in body]) == (200, expected), query
    for query in ("said->n=eq.10", "order=said->n"):
        status, _, body = await reading.request("GET", f"/mixed?{query}")
        assert (status, body["code"]) == (404, "42883"), query


@pytest_twisted.ensureDeferred
async def test_csv_follows_rfc_4180(reading: Tables) -> None:
    """Both in one piece and from a stream. Nulls are empty cells, and empty texts are quoted."""
    path = '/odd?select="a \\"name\\", quoted",plain,empty,nothing,js->a,js'
    for limit in (1, 300):
        _, headers, body = await reading.request(
            "GET", f"{quote(path, safe='/?=&,')}&limit={limit}", headers={"Accept": "text/csv"}
        )
        names, *rows = csv.reader(StringIO(body.decode(), newline=""), strict=True)
        assert names == ['a "name", quoted', "plain", "empty", "nothing", "a", "js"]
        expected = ['back\\slash "quoted"', "", "", '"\\\\"', '{"a": "\\\\"}']
        assert rows == [[str(number), *expected] for number in range(1, limit + 1)]
        assert body.decode().split("\n")[1].startswith('1,"back\\slash ""quoted""","",,')
        assert (headers.getRawHeaders("content-range") is None) == (limit == 300)


@pytest_twisted.ensureDeferred
async def test_csv_begins_with_the_names_also_if_there_are_no_rows(reading: Tables) -> None:
    """And the last line has no line feed at its end, whichever it is: one row of an empty cell is not none."""
    reading.sql(
        'create table commas (id int primary key, "a,b" text); grant all on commas to anon;'
        'create function lines(n int) returns table ("x,y" int, z text) language sql stable'
        " as $$ select i, repeat('z', 100) from generate_series(1, n) i $$;"
        "create function changed() returns setof commas language sql as $$ update commas set id = id returning * $$"
    )
    accept = {"Accept": "text/csv"}
    await until_answered(reading, "POST", "/rpc/changed", 200)
    for method, path, expected in (
        ("GET", "/commas", 'id,"a,b"'),
        ("GET", '/commas?select="x,y":id,"a,b"&limit=0', '"x,y","a,b"'),
        ("GET", "/commas?select=count()", "count\n0"),
        ("GET", "/odd?select=nothing&limit=1", "nothing\n"),
        ("GET", "/leaf?select=id,...twig(branch:id)&id=lt.0", "id,branch"),
        ("GET", "/rpc/lines?n=0", '"x,y",z'),
        ("GET", "/rpc/lines?n=0&select=z", "z"),
        ("POST", "/rpc/changed", 'id,"a,b"'),
        ("PATCH", "/commas?id=eq.1", 'id,"a,b"'),
        ("DELETE", "/commas?id=eq.1&select=id", "id"),
    ):
        more: dict[str, Any] = {"json": {"id": 1}} if method == "PATCH" else {}
        headers = {**accept, "Prefer": "return=representation"}
        status, _, body = await reading.request(method, path, headers=headers, **more)
        assert (status, body.decode()) == (200, expected), path
    # After a large result of the same shape a cursor is opened at once.
    for rows in (500, 0, 1, 500):
        body = (await reading.request("GET", f"/rpc/lines?n={rows}&order=z", headers=accept))[2].decode()
        assert (body.partition("\n")[0], body.count("\n")) == ('"x,y",z', rows)
        assert not body.endswith("\n")


@pytest_twisted.ensureDeferred
async def test_nulls_stripped_is_applied_to_streams_too(reading: Tables) -> None:
    accept = {"Accept": "application/vnd.pgrst.array+json;nulls=stripped"}
    for limit in (1, 300):
        _, _, body = await reading.request("GET", f"/odd?select=empty,nothing&limit={limit}", headers=accept)
        assert json.loads(body) == [{"empty": ""}] * limit


@pytest_twisted.ensureDeferred
async def test_aggregates_gather_no_rows_for_an_order_or_of_a_function(reading: Tables) -> None:
    reading.sql(
        "create function pairs() returns table (a int, b int) language sql stable as 'select 1, 2';"
        "create function gathered() returns table (json_agg int) language sql stable as"
        " 'select i from generate_series(1, 9) i'"
    )
    await until_answered(reading, "GET", "/rpc/gathered", 200)
    for path in (
        "/rpc/pairs?select=json_agg",
        "/rpc/pairs?select=x:array_agg->0",
        "/rpc/pairs?select=count()&order=jsonb_agg",
        "/leaf?select=count()&order=jsonb_agg",
    ):
        status, _, body = await reading.request("GET", path)
        assert (status, body["code"]) == (400, "42703"), path
    path = "/rpc/gathered?select=json_agg&json_agg=gt.3&order=json_agg.desc&limit=2"
    assert (await reading.request("GET", path))[2] == [{"json_agg": 9}, {"json_agg": 8}]
