"""Related rows in rare cases: orders, groups and filters by them, also of JSON, which cannot be compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted

from project_service.tables.schema_cache.queries import FINGERPRINT
from tests.live.tables.service import BASE, Tables, tables

__all__ = ["tables"]

DATABASES = ("careful",)
CAREFUL = BASE.replace("main", "careful")
SCHEMA = """
create domain shade as int;
create function shown(shade) returns json language sql immutable as $$ select to_json('#' || $1::int) $$;
create cast (shade as json) with function shown(shade) as implicit;
create domain tone as text;
create function shown_tone(tone) returns json language sql immutable as $$ select to_json(upper($1)) $$;
create function read_tone(text) returns tone language sql immutable as $$ select lower($1)::tone $$;
create function read_tone(json) returns tone language sql immutable as $$ select lower($1 #>> '{}')::tone $$;
create cast (tone as json) with function shown_tone(tone) as implicit;
create cast (text as tone) with function read_tone(text) as implicit;
create cast (json as tone) with function read_tone(json) as implicit;
create table shelves (id int primary key, name text, shade shade);
create table lamps (id int primary key, tone tone, said jsonb, words tsvector);
insert into lamps values (1, 'warm', '{"a": "b"}', to_tsvector('simple', 'Lights')), (2, 'cold', null, null);
create function glow(lamps) returns text language sql stable as $$ select 'glows ' || $1.tone $$;
create function near(lamps) returns setof shelves rows 1 language sql stable as
  $$ select * from shelves where id = $1.id $$;
create function all_lamps() returns setof lamps language sql stable as 'select * from lamps';
create schema tucked; grant usage on schema tucked to anon;
create table tucked.away (shelf int, note text); insert into tucked.away values (1, 'n');
create function tucked(shelves) returns setof tucked.away rows 1 language sql stable as
  $$ select * from tucked.away where shelf = $1.id $$;
create table volumes (id int primary key, shelf_id int references shelves, name text, pages int);
insert into shelves values (1, 'upper', 7), (2, 'lower', 7);
insert into volumes values (1, 1, 'a', 10), (2, 1, 'b', 20), (3, 2, 'c', 30);
create function several(shelves) returns setof volumes rows 1 language sql stable as
  $$ select * from volumes where shelf_id = $1.id order by id $$;
create function long_name(volumes) returns text language sql stable as $$ select $1.name || '!' $$;
create function holds(volumes) returns setof shelves rows 1 language plpgsql stable as
  $$ begin return query select * from shelves order by id; end $$;
create function all_volumes() returns setof volumes language sql stable as 'select * from volumes';
grant select on shelves, volumes, tucked.away to anon; grant all on lamps to anon
"""


@pytest.fixture(scope="module")
def related(tables: Tables) -> Iterator[Tables]:
    tables.sql(SCHEMA)
    yield tables
    tables.sql(
        "drop function all_volumes, all_lamps, several, long_name, holds cascade;"
        "drop table volumes, lamps, shelves cascade;"
        "drop schema tucked cascade; drop domain shade, tone cascade"
    )


async def rows(tables: Tables, path: str) -> Any:
    status, _, body = await tables.request("GET", path)
    assert status == 200, body
    return body


@pytest_twisted.ensureDeferred
async def test_spread_rows_below_do_not_hide_the_column_ordered_by(related: Tables) -> None:
    result = await rows(related, "/volumes?select=id,shelves(at:id,...volumes(name))&order=shelves(name),id")
    lower, upper = {"at": 2, "name": ["c"]}, {"at": 1, "name": ["a", "b"]}
    assert result == [{"id": 3, "shelves": lower}, {"id": 1, "shelves": upper}, {"id": 2, "shelves": upper}]


@pytest_twisted.ensureDeferred
async def test_rows_are_ordered_by_embedded_columns_whatever_is_selected(related: Tables) -> None:
    lacking = "shelves.below.id=eq.3&order=shelves(name).nullsfirst,id"
    for asked, expected in (
        ("shelves()&order=shelves(name),id", [3, 1, 2]),
        ("shelves(*,name)&order=shelves(name),id", [3, 1, 2]),
        ("...shelves(name,shelf:name,name)&order=shelves(name),id", [3, 1, 2]),
        # A shelf that is left out has no name, selected or not.
        (f"shelves(id,below:volumes!inner())&{lacking}", [1, 2, 3]),
        (f"shelves(id,below:volumes())&shelves.below=not.is.null&{lacking}", [1, 2, 3]),
        (f"shelves(id,below:volumes())&{lacking}", [3, 1, 2]),
    ):
        result = await rows(related, f"/volumes?select=id,{asked}")
        assert [row["id"] for row in result] == expected, asked


@pytest_twisted.ensureDeferred
async def test_rows_are_grouped_by_embedded_rows_of_any_depth(related: Tables) -> None:
    groups = [{"sum": 30, "name": "lower"}, {"sum": 30, "name": "upper"}]
    ids = [[{"id": 3}], [{"id": 1}, {"id": 2}]]
    result = await rows(
        related, "/volumes?select=pages.sum(),...shelves(name,volumes(id))&order=shelves(name)"
    )
    assert result == [{**group, "volumes": below} for group, below in zip(groups, ids, strict=True)]
    result = await rows(related, "/volumes?select=pages.sum(),shelves(name,volumes(id))&shelf_id=eq.2")
    assert result == [{"sum": 30, "shelves": {"name": "lower", "volumes": [{"id": 3}]}}]
    result = await rows(related, "/shelves?select=name,count(),volumes(id)&order=name&limit=1")
    assert result == [{"name": "lower", "count": 1, "volumes": [{"id": 3}]}]


@pytest_twisted.ensureDeferred
async def test_rows_are_grouped_by_values_with_data_representations(related: Tables) -> None:
    assert await rows(related, "/shelves?select=shade,count()") == [{"shade": "#7", "count": 2}]
    assert await rows(related, "/volumes?select=count(),...shelves(shade)") == [{"count": 3, "shade": "#7"}]
    upper, lower = {"id": 1, "name": "upper", "shade": "#7"}, {"id": 2, "name": "lower", "shade": "#7"}
    result = await rows(related, "/shelves?select=*,count()&order=id")
    assert result == [{**upper, "count": 1}, {**lower, "count": 1}]
    assert await rows(related, "/volumes?select=shelf_id::bool,count()") == [{"shelf_id": True, "count": 3}]
    # A cast applies to the represented value.
    result = await rows(related, "/shelves?select=shade::text,name.max()")
    assert result == [{"shade": '"#7"', "max": "upper"}]


@pytest_twisted.ensureDeferred
async def test_rows_are_grouped_by_the_columns_shown_of_embedded_rows(related: Tables) -> None:
    assert await rows(related, "/volumes?select=count(),shelves()") == [{"count": 3}]
    # An aggregate of embedded rows is nothing to group by.
    assert await rows(related, "/volumes?select=...shelves(shade,id.sum())") == [{"shade": "#7", "sum": 4}]
    assert await rows(related, "/volumes?select=pages.sum()::text") == [{"sum": "60"}]
    result = await rows(related, "/shelves?select=count(),...volumes(name)&order=count")
    assert sorted((row["count"], row["name"]) for row in result) == [(1, ["a", "b"]), (1, ["c"])]


@pytest_twisted.ensureDeferred
async def test_the_total_of_a_grouped_query_counts_groups(related: Tables) -> None:
    for order in ("", "&order=shelf_id"):
        path, more = f"/volumes?select=shelf_id,count()&limit=1{order}", {"Prefer": "count=exact"}
        status, headers, body = await related.request("GET", path, headers=more)
        assert (status, headers.getRawHeaders("content-range"), len(body)) == (206, ["0-0/2"], 1)


@pytest_twisted.ensureDeferred
async def test_rows_excluded_by_inner_embeddings_are_not_counted(related: Tables) -> None:
    inner, tested = "volumes!inner(id)&volumes.", "volumes()&volumes.pages="
    for asked, expected in (
        (f"{inner}offset=1", [1]),
        (f"{inner}offset=2", []),
        (f"{inner}limit=0", []),
        (f"{inner}limit=1", [1, 2]),
        ("volumes!inner(pages.sum())&volumes.pages=gt.25", [1, 2]),
        ("volumes!inner(name,pages.sum())&volumes.pages=gt.25", [2]),
        ("volumes!inner(pages.sum())&volumes.offset=1", []),
        ("volumes!inner(name,pages.sum())&volumes.offset=1", [1]),
        # Of two embeddings with one name, the filters apply to the first.
        ("volumes!inner(),volumes(id)&volumes.pages=gt.25", [2]),
        ("volumes(),volumes!inner(id)&volumes.pages=gt.25", [1, 2]),
        (f"{inner}pages=gt.25&volumes=not.is.null", [2]),
        (f"{inner}pages=gt.25&volumes=is.null", []),
        (f"{tested}gt.5&volumes=is.null", []),
        (f"{tested}gt.5&volumes=not.is.null", [1, 2]),
        (f"{tested}gt.25&or=(volumes.is.null,id.eq.7)", [1]),
    ):
        path = f"/shelves?select=id,{asked}&order=id&limit=9"
        _, headers, body = await related.request("GET", path, headers={"Prefer": "count=exact"})
        assert [row["id"] for row in body] == expected, asked
        assert headers.getRawHeaders("content-range")[0].endswith(f"/{len(expected)}"), asked


@pytest_twisted.ensureDeferred
async def test_relations_outside_the_exposed_schemas_are_spread(related: Tables) -> None:
    result = await rows(related, "/shelves?select=id,...tucked(*)&order=id")
    assert result == [{"id": 1, "shelf": 1, "note": "n"}, {"id": 2, "shelf": None, "note": None}]
    result = await rows(related, "/shelves?select=id,...tucked(note)&tucked=not.is.null")
    assert result == [{"id": 1, "note": "n"}]
    # Of two columns with one name the last is shown, as of those that are not spread.
    assert await rows(related, "/volumes?select=...shelves(name,name:id)&id=eq.1") == [{"name": 1}]
    assert await rows(related, "/volumes?select=...shelves(name:id,name)&id=eq.1") == [{"name": "upper"}]
    grouped = await rows(related, "/shelves?select=count(),...tucked(*)&order=count.desc,tucked(note)")
    assert grouped == [{"count": 1, "shelf": 1, "note": "n"}, {"count": 1, "shelf": None, "note": None}]


@pytest_twisted.ensureDeferred
async def test_data_representations_apply_to_filters_and_writes(related: Tables) -> None:
    assert (await rows(related, "/lamps?id=eq.1"))[0]["tone"] == "WARM"
    for asked, expected in (
        ("tone=eq.WARM", [1]),
        ("tone=not.eq.WARM", [2]),
        ("tone=in.(WARM,COLD)", [1, 2]),
        ("tone=eq(any).{WARM,BRIGHT}", [1]),
        ("tone=gte(all).{BRIGHT,COLD}", [1, 2]),
        # Patterns are compared with the stored text.
        ("tone=like.w*", [1]),
        ("tone=like.W*", []),
        ("tone=ilike.W*", [1]),
        ("tone=like(any).{W*,c*}", [2]),
    ):
        assert await rows(related, f"/lamps?select=id&order=id&{asked}") == [
            {"id": id_} for id_ in expected
        ], asked
    wanted = {"Prefer": "return=representation"}
    status, _, body = await related.request(
        "PATCH", "/lamps?id=eq.2&select=id,tone", headers=wanted, json={"tone": "BRIGHT"}
    )
    assert (status, body) == (200, [{"id": 2, "tone": "BRIGHT"}])
    assert related.sql("select tone::text from lamps where id = 2") == [("bright",)]


@pytest_twisted.ensureDeferred
async def test_a_tsvector_column_is_searched_as_it_is(related: Tables) -> None:
    for asked, expected in (("fts(simple).lights", [1]), ("fts(english).lights", []), ("not.fts.x", [1])):
        assert await rows(related, f"/lamps?select=id&words={asked}") == [{"id": id_} for id_ in expected], (
            asked
        )


@pytest_twisted.ensureDeferred
async def test_rows_of_a_function_are_filtered_by_embedded_rows(related: Tables) -> None:
    path = (
        "/rpc/all_volumes?select=id,shelves()&shelves.name=eq.lower&or=(shelves.not.is.null,id.eq.1)&order=id"
    )
    assert await rows(related, path) == [{"id": 1}, {"id": 3}]


@pytest_twisted.ensureDeferred
async def test_rows_of_functions_and_writes_have_computed_columns_and_relationships(
    related: Tables,
) -> None:
    asked, expected = "glow,near(name)", [{"glow": "glows warm", "near": {"name": "upper"}}]
    for more in ("id=eq.1", "glow=like.*warm&near=not.is.null", "order=glow.desc&limit=1"):
        assert await rows(related, f"/rpc/all_lamps?select={asked}&{more}") == expected, more
    path, prefer = f"/lamps?id=eq.1&select={asked}", {"Prefer": "return=representation"}
    status, _, body = await related.request("PATCH", path, json={"id": 1}, headers=prefer)
    assert (status, body) == (200, expected)


def test_a_renamed_relation_function_or_constraint_changes_the_fingerprint(related: Tables) -> None:
    seen = [fingerprint(related)]
    for renamed, undone in (
        ("table volumes rename to tomes", "table tomes rename to volumes"),
        ("function all_volumes() rename to all_tomes", "function all_tomes() rename to all_volumes"),
        (
            "table volumes rename constraint volumes_shelf_id_fkey to stands_on",
            "table volumes rename constraint stands_on to volumes_shelf_id_fkey",
        ),
    ):
        related.sql(f"alter {renamed}")
        seen.append(fingerprint(related))
        related.sql(f"alter {undone}")
    assert len(set(seen)) == len(seen)


def fingerprint(tables: Tables) -> str:
    return str(tables.sql("select " + FINGERPRINT.replace("%%", "%"))[0][0])


@pytest_twisted.ensureDeferred
async def test_a_to_one_function_that_returns_several_rows_counts_its_first(related: Tables) -> None:
    first = {"name": "a", "long_name": "a!", "holds": {"name": "upper"}}
    asked = "select=id,several(name,long_name,holds(name))"
    both = [{"id": 1, "several": first}, {"id": 2, "several": {**first, "name": "c", "long_name": "c!"}}]
    assert await rows(related, f"/shelves?{asked}&order=id") == both
    assert await rows(related, f"/shelves?{asked}&order=id&limit=1") == both[:1]
    assert await rows(related, "/shelves?select=id,...several(name)&order=several(name).desc") == [
        {"id": 2, "name": "c"},
        {"id": 1, "name": "a"},
    ]
    assert await rows(related, "/shelves?select=id,several!inner()&several.name=eq.b") == []
    assert [
        one["id"] for one in await rows(related, "/shelves?select=id,several!inner()&several.name=eq.a")
    ] == [1]
    status, headers, _ = await related.request(
        "GET", f"/shelves?{asked}&limit=1", headers={"Prefer": "count=exact"}
    )
    assert (status, headers.getRawHeaders("content-range")) == (206, ["0-0/2"])


def named_in(plan: Any) -> list[str]:
    """The aliases of the relations that a plan reads."""
    if isinstance(plan, list):
        return [name for one in plan for name in named_in(one)]
    if not isinstance(plan, dict):
        return []
    return [*([plan["Alias"]] if "Relation Name" in plan else []), *named_in(list(plan.values()))]


@pytest.mark.parametrize(
    "path",
    (
        "/shelves?select=id,volumes!inner(name)&order=id&limit=1",
        "/shelves?select=id,volumes(name)&volumes=not.is.null",
        "/shelves?select=id,volumes!inner(name,shelves!inner(name))&limit=1",
    ),
)
@pytest_twisted.ensureDeferred
async def test_plans_name_what_is_shown_as_postgrest_does(related: Tables, path: str) -> None:
    accept = {"Accept": "application/vnd.pgrst.plan+json"}
    status, _, plan = await related.request("GET", path, base=CAREFUL, headers=accept)
    assert status == 200, plan
    names = named_in(json.loads(plan))
    # PostgreSQL adds a number to an alias that the statement has twice.
    assert not [name for name in names if re.search("_[0-9]+_[0-9]+$", name)], names
    assert {"volumes_1", "shelves_1"} & {*names}, names
