"""The rows of a table by pages, against the table API: each row once, in PostgreSQL's order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live.console.browsing import Running, Tab
from tests.live.sql import run_sql

# Names and values that have to be quoted, nulls, and many rows that are equal but for the key.
SCHEMA = """
create table walked ("a ""b\\, c" text not null, "é.x" int not null, word text, at timestamptz, big bigint,
  flag boolean, many jsonb, primary key ("a ""b\\, c", "é.x"));
insert into walked select (array['one', 'two, "three"', 'four\\', '', 'null'])[1 + i % 5], i,
  case when i % 3 > 0 then repeat(chr(97 + i % 7), 1 + i % 2) end,
  case when i % 4 > 0 then '2026-01-01T00:00:00Z'::timestamptz + i / 10 * interval '1.000001 seconds' end,
  9007199254740993 + i / 50, (array[true, false, null])[1 + i % 3],
  jsonb_build_object('a', i) from generate_series(1, 1037) i;
create table keyless as select i, i % 7 as word from generate_series(1, 250) i;
grant select on walked, keyless to service_role;
analyze walked;
notify pgrst
"""
KEY = ['a "b\\, c', "é.x"]
WALK = """async ([table, key, order, estimate]) => {
  const base = document.querySelector('script[type=module]').src.replace(/main\\.js$/, '')
  const { TableRows } = await import(base + 'ideas/rows.js')
  const { api } = await import(base + 'core/api.js')
  const ways = []
  const source = new TableRows({
    columns: [], key, order,
    async fetchPage({ order, after, offset, limit, count, signal }) {
      ways.push(count === 'exact' ? 'count' : after === null ? offset : 'after')
      const query = { limit }
      if (order) query.order = order
      if (after !== null) query.and = after
      if (offset) query.offset = offset
      const headers = count ? { Prefer: `count=${count}` } : {}
      const answer = await api.request(`/dev/db/main/rest/${table}`, { query, headers, signal })
      const total = /\\/(\\d+)$/.exec(answer.headers.get('Content-Range') ?? '')
      return { rows: await answer.json(), total: total && (count === 'exact' ? 0 : estimate ?? 0) + Number(total[1]) }
    },
  })
  const { signal } = new AbortController()
  const rows = []
  for (let from = 0; source.count === null || from < source.count; from += 100)
    rows.push(...await source.rows(from, from + 100, signal))
  return { rows: rows.map(row => key.map(name => row[name])), ways, count: source.count, exact: source.exact }
}"""


@pytest.fixture(scope="module", autouse=True)
def dsn(running: Running) -> str:
    found = str(json.loads((running.data_dir / "credentials.json").read_text())["dsn"])
    run_sql(found, SCHEMA)
    return found


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def walk(tab: Tab, *args: Any) -> Any:
    return tab.page.evaluate(WALK, list(args))


@pytest.mark.parametrize(
    ("order", "goes_on"),
    [
        ([], True),
        ([(KEY[0], True)], True),
        ([(KEY[1], True)], True),
        ([("word", False)], True),
        ([("word", True)], True),
        ([("at", False), ("word", True)], True),
        ([("at", True), (KEY[1], False)], True),
        ([("flag", True)], True),
        # Values that lose digits in JSON, or have no end: by their numbers.
        ([("big", True)], False),
        ([("many", False)], False),
    ],
)
def test_each_row_comes_once_and_in_order(
    tab: Tab, dsn: str, order: list[tuple[str, bool]], goes_on: bool
) -> None:
    asked = [{"column": column, "descending": descending} for column, descending in order]
    found = walk(tab, "walked", KEY, asked)
    by = [f"{quoted(column)} {'desc' if descending else 'asc'}" for column, descending in order]
    by += [quoted(column) for column in KEY]
    names = ", ".join(map(quoted, KEY))
    assert found["rows"] == [
        list(row) for row in run_sql(dsn, f"select {names} from walked order by {', '.join(by)}")
    ]
    assert (found["count"], found["exact"]) == (1037, True)
    assert found["ways"][0] == 0
    assert found["ways"][1:] == (["after"] * 10 if goes_on else [100 * page for page in range(1, 11)])


def test_rows_without_a_key_come_by_their_numbers(tab: Tab) -> None:
    found = walk(tab, "keyless", [], [{"column": "i", "descending": False}])
    assert found["ways"] == [0, 100, 200]
    assert (found["count"], found["exact"]) == (250, True)


def test_an_estimate_that_was_too_high_is_mended(tab: Tab) -> None:
    found = walk(tab, "walked", [], [{"column": KEY[1], "descending": False}], 400)
    assert (found["count"], found["exact"]) == (1037, True)


def test_an_estimate_that_was_too_low_is_mended(tab: Tab) -> None:
    found = walk(tab, "walked", KEY, [], -1000)
    assert (found["count"], found["exact"], len(found["rows"])) == (1037, True, 1037)
