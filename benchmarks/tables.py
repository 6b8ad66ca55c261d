"""The table API beside its limit: ``pgbench`` running the same SQL in the same way, with the same number of clients.

The SQL of each case is what the service's own planner makes of the request, in one message, prepared as the service
prepares it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import psycopg2
from attrs import frozen
from psycopg2 import extensions

from benchmarks.load import CLIENTS, Costed, Request, pgbench, wrk
from benchmarks.report import Row, interleaved
from benchmarks.running import Running
from project_service.database.statements import Statements
from project_service.deferreds import start
from project_service.tables.access.identity import Identity
from project_service.tables.assemble import AS_BYTES
from project_service.tables.catalog.load import build, read
from project_service.tables.config import TablesConfig
from project_service.tables.execution.execute import Executor
from project_service.tables.execution.preamble import preamble_of
from project_service.tables.incoming import Incoming, Sent
from project_service.tables.model import SchemaCache
from project_service.tables.parse.request import make_request
from project_service.tables.planning.planner import Planner
from project_service.tables.respond.outcome import Outcome

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
    sql, prepared = message(running, case)
    ours = Costed(case.request(running), running.cpu_seconds)
    wrk(ours.request, 1)
    rate, most = interleaved(
        rounds, lambda: ours.rate(seconds), lambda: pgbench(running.dsn, sql, seconds, prepared)
    )
    return rate, most, ours.microseconds


def half_load(running: Running, peak: float, seconds: float) -> Row:
    """The latencies at half of ``peak`` requests a second: each client waits between its requests."""
    load = wrk(SINGLE.request(running), seconds, pause_ms=CLIENTS / (peak / 2) * 1000)
    name = f"p99 / p50 of one row at {load.rate / peak:.0%} of the peak"
    return Row(name, f"{load.p99:.2f} ms", f"p50 {load.p50:.2f} ms", load.p99 / load.p50, 5, "at most")


def message(running: Running, case: Case) -> tuple[str, list[str]]:
    """What the service sends for a request that came before, and what prepared it."""
    config = TablesConfig(statement_timeout="30000ms")
    incoming, identity = _incoming(running, case), Identity("anon", '{"role":"anon"}', False)
    with closing(psycopg2.connect(running.dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cache, planner, asked = _schema_cache(cursor), Planner(config), Asked(cursor)
        extensions.register_type(AS_BYTES, cursor)
        head, key = planner.head(incoming)
        for _ in range(3):
            shape, query, operands = planner.query(incoming, head)
            request = make_request(head, query, incoming.pairs, incoming.body)
            planned = planner.plan(cache, key, shape, request, operands)
            told = preamble_of(config, cache, incoming, head, identity, planned.compiled.read_only, None)
            # Nothing in it waits, so it is over at once.
            done: Any = start(Executor(config, cast(Any, asked)).execute(planned, told)).result
            assert done.rows == 1 or case is not SINGLE, done
    # pgbench takes a semicolon for the end of its command, and a colon before a name for a variable of its own;
    # in these texts there are none but those between statements and of casts.
    sent = [text.replace("; ", " \\; ") for text in asked.sent]
    return sent[-1], [text for text in sent if text.startswith("PREPARE")]


class Asked:
    """A pool of one connection that remembers what is sent."""

    def __init__(self, cursor: Any) -> None:
        self.statements = Statements()
        self.in_transaction = False
        self.sent: list[str] = []
        self._cursor = cursor

    async def use(self, work: Callable[[Any], Awaitable[Outcome]]) -> Outcome:
        return await work(self)

    async def query(self, sql: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        self.sent.append(self._cursor.mogrify(sql, params).decode())
        self._cursor.execute(self.sent[-1])
        return list(self._cursor.fetchall()) if self._cursor.description is not None else []

    execute = query


def _incoming(running: Running, case: Case) -> Incoming:
    request = case.request(running)
    where = urlsplit(case.path)
    headers = {"Host": urlsplit(running.url).netloc, **request.headers}
    return Incoming(
        request.method,
        (where.path.strip("/"),),
        tuple(parse_qsl(where.query)),
        Sent.of((name.lower(), value) for name, value in headers.items()),
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
