"""Related rows where what is selected of them has no order or equality of its own: JSON that was made of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_twisted

from project_service.tables.catalog.queries import FINGERPRINT
from tests.live.tables_service import Tables, tables

__all__ = ["tables"]

SCHEMA = """
create domain shade as int;
create function shown(shade) returns json language sql immutable as $$ select to_json('#' || $1::int) $$;
create cast (shade as json) with function shown(shade) as implicit;
create table shelves (id int primary key, name text, shade shade);
create table volumes (id int primary key, shelf_id int references shelves, name text, pages int);
insert into shelves values (1, 'upper', 7), (2, 'lower', 7);
insert into volumes values (1, 1, 'a', 10), (2, 1, 'b', 20), (3, 2, 'c', 30);
create function all_volumes() returns setof volumes language sql stable as 'select * from volumes';
grant select on shelves, volumes to anon
"""


@pytest.fixture(scope="module")
def related(tables: Tables) -> Iterator[Tables]:
    tables.sql(SCHEMA)
    yield tables
    tables.sql("drop function all_volumes; drop table volumes, shelves; drop domain shade cascade")


async def rows(tables: Tables, path: str) -> object:
    status, _, body = await tables.request("GET", path)
    assert status == 200, body
    return body


@pytest_twisted.ensureDeferred
async def test_many_that_are_spread_below_do_not_hide_what_is_ordered_by(related: Tables) -> None:
    found = await rows(related, "/volumes?select=id,shelves(at:id,...volumes(name))&order=shelves(name),id")
    lower, upper = {"at": 2, "name": ["c"]}, {"at": 1, "name": ["a", "b"]}
    assert found == [{"id": 3, "shelves": lower}, {"id": 1, "shelves": upper}, {"id": 2, "shelves": upper}]


@pytest_twisted.ensureDeferred
async def test_rows_are_grouped_by_related_ones_of_any_depth(related: Tables) -> None:
    groups = [{"sum": 30, "name": "lower"}, {"sum": 30, "name": "upper"}]
    ids = [[{"id": 3}], [{"id": 1}, {"id": 2}]]
    found = await rows(
        related, "/volumes?select=pages.sum(),...shelves(name,volumes(id))&order=shelves(name)"
    )
    assert found == [{**group, "volumes": below} for group, below in zip(groups, ids, strict=True)]
    found = await rows(related, "/volumes?select=pages.sum(),shelves(name,volumes(id))&shelf_id=eq.2")
    assert found == [{"sum": 30, "shelves": {"name": "lower", "volumes": [{"id": 3}]}}]


@pytest_twisted.ensureDeferred
async def test_rows_are_grouped_by_values_whatever_represents_them(related: Tables) -> None:
    assert await rows(related, "/shelves?select=shade,count()") == [{"shade": "#7", "count": 2}]
    assert await rows(related, "/volumes?select=count(),...shelves(shade)") == [{"count": 3, "shade": "#7"}]


@pytest_twisted.ensureDeferred
async def test_rows_of_a_function_are_tested_for_related_ones(related: Tables) -> None:
    path = (
        "/rpc/all_volumes?select=id,shelves()&shelves.name=eq.lower&or=(shelves.not.is.null,id.eq.1)&order=id"
    )
    assert await rows(related, path) == [{"id": 1}, {"id": 3}]


def test_what_is_renamed_is_noticed_without_a_notice(related: Tables) -> None:
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
