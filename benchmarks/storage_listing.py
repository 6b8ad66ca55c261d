"""Pages of a listing by PostgreSQL's own account: a bucket with 1,000 folders of 1,000 objects, one with them all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2

from benchmarks.report import Row
from benchmarks.running import Running
from project_service.storage.rows import listing as postgres_listing

_KEYS = {
    "folders": "'d' || lpad((n / 1000)::text, 4, '0') || '/' || n",
    "flat": "'one/' || lpad(n::text, 7, '0')",
}
_PAGES = (
    ("folders", "", None, False),
    ("folders", "", "d0500/", False),
    ("folders", "", "d0898/", False),
    ("folders", "d0500/", None, False),
    ("folders", "", "d0999/999800", True),
    ("flat", "", None, False),
    ("flat", "one/", None, False),
    ("flat", "one/", "one/0500000", False),
    ("flat", "one/", "one/0999000", False),
)


def measure(running: Running) -> Iterator[Row]:
    """Planning and execution of each page of 100, the worst of five."""
    with closing(psycopg2.connect(running.dsn)) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        for bucket, key in _KEYS.items():
            cursor.execute(
                "select storage.create_bucket(%s, 'private', null, null, null, false, false)", (bucket,)
            )
            cursor.execute(
                f"insert into storage.objects (bucket, key, version, size, content_type, etag) select %s, {key},"
                " gen_random_uuid(), 1, 'a/b', 'e' from generate_series(0, 999999) n",
                (bucket,),
            )
        cursor.execute("analyze storage.objects")
        for bucket, prefix, after, recursive in _PAGES:
            sql, params = postgres_listing.page_query(bucket, prefix, after, 100, recursive)
            times = []
            for _ in range(5):
                cursor.execute("explain (analyze, timing off, format json) " + sql, params)
                found = cursor.fetchone()
                assert found is not None
                plan = found[0][0]
                times.append(plan["Planning Time"] + plan["Execution Time"])
            kind = "all below" if recursive else "page of"
            what = f"{kind} {bucket}/{prefix} after {after or 'the start'}"
            yield Row(what, f"{max(times):.1f} ms", f"best {min(times):.1f} ms", max(times), 10, "at most")
