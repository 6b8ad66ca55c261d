"""Related rows in large tables beside the SQL that an expert would write for them, and the description at the root:
``python -m benchmarks.related [--rounds 7]``.

Each figure is the median of interleaved rounds of one request and one query, with HTTP in ours. Both have to give the
same rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg2
from attrs import frozen

from benchmarks.report import HEADING, Row, interleaved, show
from benchmarks.running import Running, service
from project_service.tables.description.openapi import rights_sql

ROWS = 200_000
TABLES = 1500
# PostgreSQL plans a statement anew for its first five executions.
_WARM = 6
SCHEMA = f"""
create table parents (id int primary key, v int);
create table big (id int primary key, name text, k int, parent_id int references parents);
create table child (id int primary key, big_id int references big, t text, n int);
create table leaves (id int primary key, child_id int references child, x text);
create table tags (id int primary key, name text);
create table big_tags (big_id int references big, tag_id int references tags, primary key (big_id, tag_id));
insert into parents select i, i * 7919 % 200003 from generate_series(1, {ROWS}) i;
insert into big select i, 'name ' || i, i % 1000, 1 + i * 31 % {ROWS} from generate_series(1, {ROWS}) i;
insert into child select i, 1 + (i::int8 * 7919 % 150000)::int, 'c' || i % 2000, i % 10
  from generate_series(1, {ROWS}) i;
insert into leaves select i, 1 + (i::int8 * 13 % {ROWS})::int, 'x' || i % 2000 from generate_series(1, {ROWS}) i;
insert into tags select i, 'tag' || i % 2000 from generate_series(1, {ROWS}) i;
insert into big_tags select i, 1 + (i::int8 * 7 % {ROWS})::int from generate_series(1, {ROWS}) i;
create index on big (parent_id);
create index on child (big_id);
create index on leaves (child_id);
create index on big_tags (tag_id);
create function all_big() returns setof big language sql stable as 'select * from big';
grant select on parents, big, child, leaves, tags, big_tags to anon;
vacuum analyze parents;
vacuum analyze big;
vacuum analyze child;
vacuum analyze leaves;
vacuum analyze tags;
vacuum analyze big_tags;
notify pgrst
"""


@frozen
class Case:
    name: str
    path: str
    sql: str


def _gathered(columns: str, more: str = "") -> str:
    rows = f"select {columns} from child c where c.big_id = b.id{more}"
    return f"(select coalesce(json_agg(x), '[]') from ({rows}) x) as child"


_C77 = " and c.t = 'c77'"
_HAS = "exists (select from child c where c.big_id = b.id" + _C77 + ")"
_NONE = "not exists (select from child c where c.big_id = b.id)"
_PARENT = "(select row_to_json(p) from (select v from parents where id = b.parent_id) p) as parents"
_TAG = "big_tags j join tags t on t.id = j.tag_id where j.big_id = b.id and t.name = 'tag77'"
_LEAF = "exists (select from leaves l where l.child_id = c.id and l.x = 'x77')"
_LEAVES = (
    "(select json_agg(y) from (select x from leaves l where l.child_id = c.id and l.x = 'x77') y) as leaves"
)
CASES = (
    Case(
        "inner, child filtered",
        "/big?select=id,child!inner(id)&child.t=eq.c77",
        f"select b.id, {_gathered('c.id', _C77)} from big b where {_HAS} limit 1000",
    ),
    Case(
        "inner, child filtered, sorted",
        "/big?select=id,child!inner(id)&child.t=eq.c77&order=id",
        f"select b.id, {_gathered('c.id', _C77)} from big b where {_HAS} order by b.id limit 1000",
    ),
    Case(
        "inner, two levels",
        "/big?select=id,child!inner(id,leaves!inner(x))&child.leaves.x=eq.x77",
        f"select b.id, {_gathered(f'c.id, {_LEAVES}', f' and {_LEAF}')} from big b "
        f"where exists (select from child c where c.big_id = b.id and {_LEAF}) limit 1000",
    ),
    Case(
        "inner, many-to-many",
        "/big?select=id,tags!inner(name)&tags.name=eq.tag77",
        f"select b.id, (select json_agg(x) from (select t.name from {_TAG}) x) as tags from big b "
        f"where exists (select from {_TAG}) limit 1000",
    ),
    Case(
        "inner, spread",
        "/big?select=id,...child!inner(cid:id)&child.t=eq.c77",
        f"select b.id, (select json_agg(c.id) from child c where c.big_id = b.id{_C77}) as cid from big b "
        f"where {_HAS} limit 1000",
    ),
    Case(
        "inner, to-one",
        "/child?select=id,big!inner(id)&big.k=eq.5",
        "select c.id, json_build_object('id', b.id) as big from child c join big b on b.id = c.big_id "
        "where b.k = 5 limit 1000",
    ),
    Case(
        "to-one tested, nothing of it shown",
        "/child?select=id,big()&big.k=eq.5&big=not.is.null",
        "select c.id from child c where exists (select from big b where b.id = c.big_id and b.k = 5) limit 1000",
    ),
    Case(
        "inner, rows of a function, sorted",
        "/rpc/all_big?select=id,child!inner(id)&child.t=eq.c77&order=id",
        f"select b.id, {_gathered('c.id', _C77)} from all_big() b where {_HAS} order by b.id limit 1000",
    ),
    Case(
        "or with an embedded relation",
        "/big?select=id,child()&child.t=eq.c77&or=(child.not.is.null,k.eq.5)",
        f"select b.id from big b where {_HAS} or b.k = 5 limit 1000",
    ),
    Case(
        "count, inner",
        "/big?select=count(),child!inner()",
        "select count(*) from big b where exists (select from child c where c.big_id = b.id)",
    ),
    Case(
        "sum, inner, child filtered",
        "/big?select=k.sum(),child!inner()&child.t=eq.c77",
        f"select sum(k) from big b where {_HAS}",
    ),
    Case(
        "rows without related rows",
        "/big?select=id,child()&child=is.null",
        f"select id from big b where {_NONE} limit 1000",
    ),
    Case(
        "offset, to-many embedded",
        "/big?select=id,child(id)&order=id&limit=10&offset=150000",
        f"select b.id, {_gathered('c.id')} from (select id from big order by id limit 10 offset 150000) b",
    ),
    Case(
        "offset, to-one embedded",
        "/big?select=id,parents(v)&order=id&limit=10&offset=150000",
        f"select b.id, {_PARENT} from (select * from big order by id limit 10 offset 150000) b",
    ),
    Case(
        "offset without an order",
        "/big?select=id,child(id)&limit=10&offset=150000",
        f"select b.id, {_gathered('c.id')} from (select id from big limit 10 offset 150000) b",
    ),
    Case(
        "ordered by a parent's column",
        "/big?select=id,parents()&order=parents(v).desc&limit=5",
        "select b.id from big b left join parents p on p.id = b.parent_id order by p.v desc limit 5",
    ),
    Case(
        "ordered by a parent's column, shown",
        "/big?select=id,parents(v)&order=parents(v).desc&limit=5",
        "select b.id, json_build_object('v', p.v) as parents from big b left join parents p on p.id = b.parent_id "
        "order by p.v desc limit 5",
    ),
    Case(
        "sorted and limited, to-one embedded",
        "/big?select=id,parents(v)&order=name&limit=5",
        f"select b.id, {_PARENT} from (select * from big order by name limit 5) b",
    ),
)


def measure(running: Running, rounds: int) -> Iterator[Row]:
    with closing(psycopg2.connect(running.dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("set jit = off")
        cursor.execute("set role anon")
        client = _Client(running)
        for case in CASES:
            query = f"select coalesce(json_agg(x), '[]')::text from ({case.sql}) x"

            def theirs(query: str = query) -> list[tuple[Any, ...]]:
                cursor.execute(query)
                return cursor.fetchall()

            def ours(path: str = case.path) -> bytes:
                return client.get(path)

            for _ in range(_WARM):
                body = ours()
            assert _sorted(body) == _sorted(theirs()[0][0]), case.path
            yield _row(f"related: {case.name}", rounds, ours, theirs)
        yield _described(running, client, cursor, rounds)


def _described(running: Running, client: _Client, cursor: Any, rounds: int) -> Row:
    """The description at the root for a client that has it, beside the query for what the role may use."""
    with closing(psycopg2.connect(running.dsn)) as connection, connection:
        many = [f"create table many_{number} (id int primary key, name text)" for number in range(TABLES)]
        connection.cursor().execute(";".join([*many, "grant select on all tables in schema public to anon"]))
    rights = rights_sql("public")
    client.until_described(f"/many_{TABLES - 1}")

    def theirs() -> None:
        cursor.execute(rights.for_driver, rights.values())
        cursor.fetchall()

    return _row(f"description of {TABLES:,} tables, 304", rounds, lambda: client.get("/"), theirs)


def _row(name: str, rounds: int, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Row:
    took, least = interleaved(rounds, lambda: _milliseconds(ours), lambda: _milliseconds(theirs))
    return Row(name, f"{took:.1f} ms", f"SQL {least:.1f} ms", took / least, 1.5, "at most")


def _milliseconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _sorted(body: str | bytes) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in json.loads(body))


class _Client:
    """One connection, which is kept."""

    def __init__(self, running: Running) -> None:
        self._connection = HTTPConnection(urlsplit(running.url).netloc)
        self._headers = {"X-Service-Key": running.anon_key}

    def get(self, path: str) -> bytes:
        url = "/dev/db/main/rest" + quote(path, "/?&=,()!.*:")
        self._connection.request("GET", url, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        assert response.status in (200, 206, 304), (response.status, body[:500])
        if path == "/" and response.status == 200:
            self._headers = {**self._headers, "If-None-Match": str(response.getheader("ETag"))}
        return body

    def until_described(self, path: str) -> None:
        """Asks until the schema cache has ``path``, and keeps the description's tag."""
        while f'"{path}"'.encode() not in (self.get("/") or b""):
            self._headers.pop("If-None-Match", None)
            time.sleep(0.2)


def measured(rounds: int) -> list[Row]:
    with service(1) as running:
        running.sql(SCHEMA)
        return show(measure(running, rounds))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=7)
    print(HEADING)
    measured(options.parse_args().rounds)


if __name__ == "__main__":
    main()
