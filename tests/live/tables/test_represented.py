"""Data representations (types that functions convert to and from JSON) for values that do not come from a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted

from tests.live.tables.service import Tables, tables

__all__ = ["tables"]

# A degree is stored as a number and represented as text.
SCHEMA = """
create domain degree as int;
create function told(degree) returns json language sql immutable as $$ select to_json($1 || ' C') $$;
create function read_degree(json) returns degree language sql immutable
  as $$ select split_part($1 #>> '{}', ' ', 1)::int * case when $1 #>> '{}' like '% C' then 1 end $$;
create cast (degree as json) with function told(degree) as implicit;
create cast (json as degree) with function read_degree(json) as implicit;
create table ovens (
  id int primary key, heat degree default 180, most degree default 250.6, note text default 'new', spare degree
);
grant all on ovens to anon
"""
# A key with a representation, in filters too, and an aggregate that makes a body of such rows.
KEYED = """
create domain code as int;
create function told(code) returns json language sql immutable as $$ select to_json('n/' || $1) $$;
create function read_code(text) returns code language sql immutable as $$ select split_part($1, '/', 2)::int $$;
create function read_code(json) returns code language sql immutable as $$ select read_code($1 #>> '{}') $$;
create cast (code as json) with function told(code) as implicit;
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
    tables.sql(SCHEMA)
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
        status, _, found = await ovens.request(method, path, headers=prefer, json=body)
        assert status in (200, 201), found
        return found

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
        status, _, found = await boxes.request("PUT", f"/boxes?id=eq.{key}", headers=whole, json=body)
        return status, found

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
    status, _, found = await boxes.request("GET", location, base="")
    assert (status, [row["id"] for row in found]) == (200, ["n/7"])
    boxes.sql("delete from boxes where id > 2")


@pytest_twisted.ensureDeferred
async def test_a_location_names_a_time_without_ambiguity(tables: Tables) -> None:
    tables.sql(MOMENTS)
    prefer, moment = {"Prefer": "return=headers-only"}, {"at": "2020-02-01T10:00:00Z", "day": "2020-02-03"}
    _, headers, _ = await tables.request("POST", "/moments", headers=prefer, json=moment)
    (location,) = headers.getRawHeaders("Location")
    assert location.endswith("?at=eq.2020-02-01T15%3A30%3A00%2B05%3A30")
    _, _, found = await tables.request("GET", location, base="")
    assert found == [{"at": "2020-02-01T10:00:00+00:00", "day": "2020-02-03"}]
    tables.sql("drop table moments; drop function abroad")


@pytest_twisted.ensureDeferred
async def test_a_custom_media_type_is_made_from_stored_values(boxes: Tables) -> None:
    accept = {"Accept": "text/x-boxes"}
    for path in ("/boxes?order=id", "/rpc/own_boxes?order=id", "/rpc/own_boxes?double=lt.9&order=id"):
        status, _, found = await boxes.request("GET", path, headers=accept)
        assert (status, found) == (200, b"1one;2two;"), path
    prefer = {**accept, "Prefer": "return=representation"}
    status, _, found = await boxes.request("POST", "/boxes", headers=prefer, json={"id": "n/8", "note": "x"})
    assert (status, found) == (201, b"8x;")
    boxes.sql("delete from boxes where id > 2")
    # In JSON the values have their representation as before.
    _, _, found = await boxes.request("GET", "/boxes?select=id&order=id")
    assert found == [{"id": "n/1"}, {"id": "n/2"}]
