"""The table API beside its limit: ``pgbench`` running the same SQL in the same way, with the same number of clients.

The SQL of each case is what the service's own planner makes of the request: settings and ``EXECUTE`` of the prepared
query, in one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psycopg2
from attrs import frozen

from benchmarks.load import CLIENTS, Costed, Request, pgbench, wrk
from benchmarks.report import Row, interleaved
from benchmarks.running import Running
from project_service.deferreds import start
from project_service.tables.catalog.load import build, read
from project_service.tables.catalog.model import SchemaCache
from project_service.tables.config import TablesConfig
from project_service.tables.identity import Identity
from project_service.tables.incoming import Incoming
from project_service.tables.planner import Planner
from project_service.tables.preamble import preamble

SCHEMA = """
create table customers (id int primary key, name text);
create table orders (id int primary key, customer_id int references customers, total numeric, note text);
create table items (id int primary key generated always as identity, order_id int references orders, what text);
create index on orders (customer_id);
create index on items (order_id);
insert into customers select i, 'customer ' || i from generate_series(1, 1000) i;
insert into orders select i, i % 1000 + 1, i, 'note ' || i from generate_series(1, 10000) i;
insert into items (order_id, what) select i % 10000 + 1, 'thing ' || i from generate_series(1, 30000) i;
grant select, insert on customers, orders, items to anon;
vacuum analyze customers;
vacuum analyze orders;
vacuum analyze items;
notify pgrst
"""


@frozen
class Case:
    name: str
    path: str
    goal: float
    body: str = ""

    def request(self, running: Running) -> Request:
        headers = {"X-Service-Key": running.anon_key}
        url = f"{running.url}/dev/db/main/rest{self.path}"
        if not self.body:
            return Request(url, headers)
        headers |= {"Content-Type": "application/json", "Prefer": "return=representation"}
        return Request(url, headers, "POST", self.body)


SINGLE = Case("table: one row by key", "/orders?id=eq.7", 0.6)
CASES = (
    SINGLE,
    Case("table: 100 rows", "/orders?id=gt.7&limit=100", 0.7),
    Case("table: insert, representation", "/items?select=id,what", 0.6, '{"order_id": 7, "what": "thing"}'),
    Case("table: two levels embedded", "/customers?id=eq.7&select=name,orders(total,items(what))", 0.5),
)


def measure(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    peak = cost = 0.0
    for case in CASES:
        rate, most, spent = beside(running, case, rounds, seconds)
        if case is SINGLE:
            peak, cost = rate, spent
        yield Row(case.name, f"{rate:.0f}/s", f"pgbench {most:.0f}/s", rate / most, case.goal)
    yield Row("CPU per single-row request", f"{cost:.0f} us", "-", cost, 150, "at most")
    yield half_load(running, peak, 3 * seconds)


def beside(running: Running, case: Case, rounds: int, seconds: float) -> tuple[float, float, float]:
    """Requests and ``pgbench``'s transactions a second, and the microseconds of CPU that a request takes."""
    settings, query, arguments = message(running, case)
    sql = f"{settings} \\; EXECUTE q({arguments})"
    ours = Costed(case.request(running), running.cpu_seconds)
    wrk(ours.request, 1)
    rate, most = interleaved(
        rounds, lambda: ours.rate(seconds), lambda: pgbench(running.dsn, sql, seconds, query)
    )
    return rate, most, ours.microseconds


def half_load(running: Running, peak: float, seconds: float) -> Row:
    """The latencies at half of ``peak`` requests a second: each client waits between its requests."""
    load = wrk(SINGLE.request(running), seconds, pause_ms=CLIENTS / (peak / 2) * 1000)
    name = f"p99 / p50 of one row at {load.rate / peak:.0%} of the peak"
    return Row(name, f"{load.p99:.2f} ms", f"p50 {load.p50:.2f} ms", load.p99 / load.p50, 5, "at most")


def message(running: Running, case: Case) -> tuple[str, str, str]:
    """The settings, the prepared query and its arguments, as the service would send them."""
    config = TablesConfig(statement_timeout="30000ms")
    incoming = _incoming(running, case)
    with closing(psycopg2.connect(running.dsn)) as connection, connection.cursor() as cursor:
        cache = _schema_cache(cursor)
        planner = Planner(config)
        head, key = planner.head(incoming)
        planned = planner.plan(cache, key, *planner.request(incoming, head))
        identity = Identity("anon", '{"role":"anon"}', False)
        told = preamble(config, cache, incoming, head, identity, planned.compiled.read_only, None)
        statement = planned.compiled.statement.sql
        probe = planned.compiled.probe
        values = statement.values(planned.operands, planned.body, planned.raw, probe.rows + 1 if probe else 0)
        settings = cursor.mogrify(told.text, told.values).decode()
        arguments = cursor.mogrify(", ".join(["%s"] * len(values)), values).decode()
        # pgbench takes a semicolon for the end of its command, and a colon before a name for a variable of its own;
        # in these texts there are none but those between statements and of casts.
        return settings.replace("; ", " \\; "), statement.for_prepare, arguments


def _incoming(running: Running, case: Case) -> Incoming:
    request = case.request(running)
    where = urlsplit(case.path)
    headers = {"Host": urlsplit(running.url).netloc, **request.headers}
    return Incoming(
        request.method,
        (where.path.strip("/"),),
        tuple(parse_qsl(where.query)),
        tuple((name.lower(), value) for name, value in headers.items()),
        case.body.encode(),
    )


def _schema_cache(cursor: Any) -> SchemaCache:
    cursor.execute("set search_path = ''")

    async def run(sql: str, params: Mapping[str, Any]) -> str:
        cursor.execute(sql, params)
        ((answer,),) = cursor.fetchall()
        return str(answer)

    # Nothing in it waits, so it is over at once.
    answers: Any = start(read(run, ("public",), ("public",))).result
    return build(answers, ("public",), 1)
