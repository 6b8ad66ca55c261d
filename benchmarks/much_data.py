"""Whether a request costs the same beside a lot of data: a service with little of everything and one with much."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2

from benchmarks import tables
from benchmarks.auth import PASSWORD, Client
from benchmarks.load import Request, pgbench, wrk
from benchmarks.report import Row, interleaved
from benchmarks.running import Running
from project_service.storage.rows import listing as postgres_listing

TABLES, USERS, OBJECTS = 10_000, 1_000_000, 1_000_000
# The bucket every service begins with.
BUCKET = "private"
NOBODYS_HASH = "$2b$12$" + "." * 53


def fill(running: Running, relations: int, users: int, objects: int) -> None:
    """Rows as the service would have made them. A table is created in a transaction of a thousand."""
    with closing(psycopg2.connect(running.dsn)) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        for first in range(0, relations, 1000):
            cursor.execute(
                "do $$ begin for i in %s..%s loop execute format("
                "'create table public.many_%%s (id int primary key, note text)', i); end loop; end $$",
                (first, min(first + 1000, relations) - 1),
            )
        cursor.execute(
            "insert into auth.users (email, email_key, password_hash)"
            " select 'many' || i || '@example.test', 'many' || i || '@example.test', %s"
            " from generate_series(1, %s) i",
            (NOBODYS_HASH, users),
        )
        cursor.execute(
            "insert into storage.objects (bucket, key, version, size, content_type, etag)"
            " select %s, 'd' || lpad((i %% 1000)::text, 4, '0') || '/' || i, gen_random_uuid(), 1, 'a/b', 'e'"
            " from generate_series(0, %s) i",
            (BUCKET, objects - 1),
        )
        cursor.execute("analyze")
        cursor.execute("notify pgrst")


def measure(small: Running, large: Running, rounds: int, seconds: float) -> Iterator[Row]:
    """One request of each part; the cost of one is the time that a saturated service takes for it. ``small`` has ten
    of each, so what is listed is a page of ten."""
    for name, make in (
        ("table row", tables.ROW.request),
        ("GET /auth/user", _user),
        ("list 10 objects", lambda running: _listing(running, 10)),
    ):
        yield _compared(name, make(small), make(large), rounds, seconds)


def _compared(name: str, small: Request, large: Request, rounds: int, seconds: float) -> Row:
    wrk(large, 1)
    few, many = interleaved(rounds, lambda: wrk(small, seconds).rate, lambda: wrk(large, seconds).rate)
    return Row(
        f"{name}: much data / little", f"{many:.0f}/s", f"little {few:.0f}/s", few / many, 1.2, "at most"
    )


def listing(large: Running, rounds: int, seconds: float) -> Iterator[Row]:
    sql, params = postgres_listing.page_query(BUCKET, "", None, 100, False)
    with closing(psycopg2.connect(large.dsn)) as connection:
        text = connection.cursor().mogrify(sql, params).decode()
    request = _listing(large, 100)
    ours, limit = interleaved(
        rounds, lambda: wrk(request, seconds).rate, lambda: pgbench(large.dsn, text, seconds)
    )
    yield Row("list 100 of 1,000,000 objects", f"{ours:.0f}/s", f"pgbench {limit:.0f}/s", ours / limit, 0.5)


def _user(running: Running) -> Request:
    account = {"email": "one@example.test", "password": PASSWORD}
    session = Client(running.url).post("/auth/signup", account)
    return Request(f"{running.url}/auth/user", {"Authorization": f"Bearer {session['access_token']}"})


def _listing(running: Running, entries: int) -> Request:
    url = f"{running.url}/storage/buckets/{BUCKET}/objects?max_keys={entries}"
    return Request(url, {"X-Service-Key": running.service_key})
