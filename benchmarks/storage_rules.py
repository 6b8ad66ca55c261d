"""Objects under rules about who sees them, beside the same requests without: in one run, in the same rounds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import psycopg2

from benchmarks.auth import PASSWORD, Client
from benchmarks.bare_client import BareClient
from benchmarks.load import Request, wrk
from benchmarks.report import Row, interleaved
from benchmarks.running import Running

SMALL = 4096
OBJECTS = 1_000_000
_POLICY = """
create policy bench on storage.objects for select to authenticated
    using ((storage.folder(key))[1] = (select auth.uid())::text)
"""
# A rule, and the goal for a download under it, of the rate without.
_RULES = (("owner_only_reads", 0.95), ("policies", 0.7))


def measure(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    """Downloads under each rule, and pages of 100 of ``OBJECTS`` under a policy on the first folder."""
    session = Client(running.url).post("/auth/signup", {"email": "rules@example.test", "password": PASSWORD})
    user, token = session["user"]["id"], {"Authorization": f"Bearer {session['access_token']}"}
    running.sql(_POLICY)
    headers = {"X-Service-Key": running.anon_key, **token}
    requests = {}
    with BareClient(running.url) as client:
        for rule in ("none", *dict(_RULES)):
            bucket = f"bench-{rule.replace('_', '-')}"
            _bucket(running, bucket, "" if rule == "none" else rule)
            path = f"/storage/buckets/{bucket}/objects/{user}/small"
            owner = {"Host": "bench", "X-Service-Key": running.service_key, "X-Object-Owner": user}
            client.request("PUT", path, owner, os.urandom(SMALL))
            requests[rule] = Request(running.url + path, headers)
    for request in requests.values():
        wrk(request, 1)
    for rule, goal in _RULES:
        pair = [requests[rule], requests["none"]]
        rate, free = interleaved(rounds, *(lambda one=one: wrk(one, seconds).rate for one in pair))
        yield Row(f"object: 4 KiB GET, {rule}", f"{rate:.0f}/s", f"without {free:.0f}/s", rate / free, goal)
    yield from _pages(running, user, headers, rounds, seconds)


def _pages(
    running: Running, user: str, headers: dict[str, str], rounds: int, seconds: float
) -> Iterator[Row]:
    """Of 1,000 folders, one of which is the user's. The service key lists the same bucket without asking policies."""
    _bucket(running, "bench-pages", "policies")
    with closing(psycopg2.connect(running.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "insert into storage.objects (bucket, key, version, size, content_type, etag)"
            " select 'bench-pages', case when n / 1000 = 500 then %s else 'd' || lpad((n / 1000)::text, 4, '0') end"
            " || '/' || n, gen_random_uuid(), 1, 'a/b', 'e' from generate_series(0, %s) n",
            (user, OBJECTS - 1),
        )
        connection.commit()
        connection.autocommit = True
        cursor.execute("vacuum analyze storage.objects")
    url = f"{running.url}/storage/buckets/bench-pages/objects?prefix={user}/"
    service = {"X-Service-Key": running.service_key}
    for what, query in (("page of 100 of 1,000,000", ""), ("the same, recursive", "&recursive=true")):
        pair = [Request(url + query, headers), Request(url + query, service)]
        for request in pair:
            wrk(request, 1)
        rate, free = interleaved(rounds, *(lambda one=one: wrk(one, seconds).rate for one in pair))
        name = f"object: {what}, under a policy"
        yield Row(name, f"{1000 / rate:.2f} ms", f"without {1000 / free:.2f} ms", free / rate, 2, "at most")
    # What is measured afterwards is to find a small database again.
    running.sql("delete from storage.objects where bucket = 'bench-pages'; vacuum storage.objects")


def _bucket(running: Running, name: str, rule: str) -> None:
    running.sql(f"select storage.create_bucket('{name}', 'private', null, null, null, false, false)")
    if rule:
        running.sql(f"update storage.buckets set {rule} = true where name = '{name}'")
