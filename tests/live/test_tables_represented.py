"""Types that functions turn into JSON and read from it, where something else than a client gives the value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted

from tests.live.tables_service import Tables, tables

__all__ = ["tables"]

# A degree is stored as a number and told in words.
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
DEFAULTS = {"heat": "180 C", "most": "251 C", "note": "new", "spare": None}


@pytest.fixture(scope="module")
def ovens(tables: Tables) -> Iterator[Tables]:
    tables.sql(SCHEMA)
    yield tables
    tables.sql("drop table ovens; drop domain degree cascade")


@pytest_twisted.ensureDeferred
async def test_a_default_is_nothing_that_a_client_has_said(ovens: Tables) -> None:
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
    # Alone, and where nothing but such a column has a default.
    one = {"id": 4, "pgrst_given": {"heat": 1}}
    assert await written("POST", f"/ovens?{columns}", one) == [{**DEFAULTS, "id": 4}]
    assert await written("POST", "/ovens?columns=id,heat", {"id": 5}) == [{**DEFAULTS, "id": 5}]
    changed = await written("PATCH", "/ovens?id=eq.2&columns=heat,note", {"note": "used"})
    assert changed == [{**DEFAULTS, "id": 2, "note": "used"}]
