"""Random trees of related rows: what is read equals what is computed in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
import pytest_twisted

from tests.live.tables.service import Tables, tables
from tests.live.tables.trees import Data, RandomRequests, Relationship, Row, Tree, cut, grouped, matching

__all__ = ["tables"]

SCHEMA = """
create table towns (id int primary key, size int, name text);
create table people (id int primary key, age int, name text, above int references people,
  home int references towns);
create table notes (id int primary key, marks int, person_id int references people);
create table visits (person_id int references people, town_id int references towns, days int,
  primary key (person_id, town_id));
create table badges (id int primary key references people, number int);
create function dwellers(towns) returns setof people language sql stable as
  $$ select * from people where home = $1.id $$;
create function dwelling(people) returns setof towns rows 1 language sql stable as
  $$ select * from towns where id = $1.home $$;
create function all_people() returns setof people language sql stable as 'select * from people';
insert into towns select i, nullif(i % 4, 2), (array['p', 'q', null, 'r'])[1 + i % 4] from generate_series(1, 8) i;
insert into people select i, nullif(i * 7 % 5, 3), (array['q', null, 'p'])[1 + i % 3], nullif(i / 4, 0),
  case when i % 4 > 0 then 1 + i * 5 % 8 end from generate_series(1, 13) i;
insert into notes select i, nullif(i % 5, 4), case when i % 6 > 0 then 1 + i * 3 % 10 end
  from generate_series(1, 24) i;
insert into visits select i, j, nullif((i + j) % 4, 1) from generate_series(1, 13) i, generate_series(1, 8) j
  where (i * 3 + j * j) % 5 = 0;
insert into badges select i, nullif(i % 3, 1) from generate_series(2, 12, 2) i;
create view described as select id, age, name, above, home from people;
grant select on towns, people, notes, visits, badges, described to anon
"""
EXACT = {"Prefer": "count=exact"}


@pytest.fixture(scope="module")
def grown(tables: Tables) -> Iterator[Tables]:
    tables.sql(SCHEMA)
    yield tables
    tables.sql(
        "drop view described; drop function all_people; drop table badges, visits, notes, people, towns cascade"
    )


def data(tables: Tables) -> Data:
    names = ("towns", "people", "notes", "visits", "badges", "described")
    return {name: tables.sql(f"select json_agg(found) from {name} found")[0][0] for name in names}


def relationships(result: Data) -> dict[str, tuple[Relationship, ...]]:
    def to_one(written: str, target: str, column: str) -> Relationship:
        return Relationship(
            written, target, True, lambda row: [one for one in result[target] if one["id"] == row[column]]
        )

    def to_many(written: str, target: str, column: str) -> Relationship:
        return Relationship(
            written, target, False, lambda row: [one for one in result[target] if one[column] == row["id"]]
        )

    def through(written: str, target: str, ours: str, theirs: str) -> Relationship:
        def of(row: Row) -> list[Row]:
            keys = [visit[theirs] for visit in result["visits"] if visit[ours] == row["id"]]
            return [one for one in result[target] if one["id"] in keys]

        return Relationship(written, target, False, of)

    badge = Relationship(
        "badges", "badges", True, lambda row: [one for one in result["badges"] if one["id"] == row["id"]]
    )
    person = (
        to_one("towns!home", "towns", "home"),
        through("towns!visits", "towns", "person_id", "town_id"),
        to_many("notes", "notes", "person_id"),
        to_many("visits", "visits", "person_id"),
        badge,
    )
    return {
        "people": (
            *person,
            to_one("above", "people", "above"),
            to_many("people", "people", "above"),
            to_one("dwelling", "towns", "home"),
        ),
        "described": person,
        "towns": (
            to_many("people!home", "people", "home"),
            to_many("dwellers", "people", "home"),
            to_many("visits", "visits", "town_id"),
            through("people!visits", "people", "town_id", "person_id"),
        ),
        "notes": (to_one("people", "people", "person_id"), to_one("described", "described", "person_id")),
        "visits": (to_one("people", "people", "person_id"), to_one("towns", "towns", "town_id")),
        "badges": (to_one("people", "people", "id"),),
    }


async def read(tables: Tables, tree: Tree, resource: str) -> tuple[str, int, Any]:
    """Reads, and returns the request, the total number of rows, and the rows."""
    path = f"{resource}?" + "&".join([f"select={tree.select()}", *tree.conditions()])
    status, headers, body = await tables.request("GET", quote(path, "/?&="), headers=EXACT)
    assert status in (200, 206), (path, body)
    return path, int(headers.getRawHeaders("content-range")[0].rpartition("/")[2]), body


@pytest_twisted.ensureDeferred
async def test_embedded_rows_are_those_computed_in_python(grown: Tables) -> None:
    random, result = Random(1), data(grown)
    for _ in range(400):
        requests = RandomRequests(random, result, relationships(result))
        tree = requests.tree(random.choice(("people", "people", "described", "towns", "notes", "visits")))
        requests.page(tree)
        expected = matching(tree, result[tree.table])
        resource = "/rpc/all_people" if tree.table == "people" and random.random() < 0.3 else f"/{tree.table}"
        if tree.first > len(expected):
            continue
        path, total, rows = await read(grown, tree, resource)
        assert rows == [one.shown for one in cut(tree, expected)], path
        assert total == len(expected), path


@pytest_twisted.ensureDeferred
async def test_unsorted_rows_are_the_same_whatever_is_embedded_and_their_pages_have_each_row_once(
    grown: Tables,
) -> None:
    random, result = Random(3), data(grown)
    for _ in range(150):
        requests = RandomRequests(random, result, relationships(result))
        tree = requests.tree(random.choice(("people", "people", "described", "towns", "visits")))
        tree.parameters = [one for one in tree.parameters if not one.startswith("order=")]
        expected = [one.shown for one in matching(tree, result[tree.table])]
        path, total, rows = await read(grown, tree, f"/{tree.table}")
        assert sorted(map(_text, rows)) == sorted(map(_text, expected)), path
        assert total == len(expected), path
        parameters, size = tree.parameters, random.choice((1, 2, 3, 5))
        paged: list[Row] = []
        for first in range(0, len(rows), size):
            tree.parameters = [*parameters, f"limit={size}", f"offset={first}"]
            paged += (await read(grown, tree, f"/{tree.table}"))[2]
        assert paged == rows, path


@pytest_twisted.ensureDeferred
async def test_aggregates_are_grouped_by_the_columns_shown(grown: Tables) -> None:
    random, result = Random(2), data(grown)
    for _ in range(300):
        requests = RandomRequests(random, result, relationships(result))
        tree = requests.tree(random.choice(("people", "described", "notes", "visits", "badges")), sums=True)
        expected = grouped(tree, matching(tree, result[tree.table]))
        path, total, rows = await read(grown, tree, f"/{tree.table}")
        assert sorted(map(_text, rows)) == sorted(map(_text, expected)), path
        assert total == len(expected), path


def _text(row: Row) -> str:
    return json.dumps(row, sort_keys=True)
