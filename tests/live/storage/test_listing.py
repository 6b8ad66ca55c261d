"""The cost of a page of a listing in PostgreSQL: it reads about as many rows as it shows, wherever it begins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from project_service.database.pipeline import numbered
from project_service.storage import postgres

OBJECTS, LIMIT = 20_000, 20


@pytest.fixture(scope="module")
def cursor(module_database: str) -> Iterator[Any]:
    """Makes the buckets ``folders`` (100 folders of 200 objects) and ``flat`` (one folder with all); rows in no
    order."""
    with closing(psycopg2.connect(module_database)) as connection:
        made = connection.cursor()
        for bucket, key in (
            ("folders", "'d' || lpad((n / 200)::text, 4, '0') || '/' || lpad(n::text, 5, '0')"),
            ("flat", "'one/' || lpad(n::text, 5, '0')"),
        ):
            made.execute("select storage.create_bucket(%s, 'private', null, null, null, false)", (bucket,))
            made.execute(
                "insert into storage.objects (bucket, key, version, size, content_type, etag)"
                f" select %s, {key}, gen_random_uuid(), 1, 'a/b', 'e' from generate_series(0, %s) n"
                " order by md5(n::text)",
                (bucket, OBJECTS - 1),
            )
        made.execute("analyze storage.objects")
        yield made


def looked_at(plan: dict[str, Any]) -> int:
    """The number of rows of ``storage.objects`` that a plan has read, whether it used them or not."""
    read = sum(looked_at(below) for below in plan.get("Plans", ()))
    if plan.get("Relation Name") == "objects":
        read += plan["Actual Loops"] * (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0))
    return int(read)


@pytest.mark.parametrize(
    ("bucket", "prefix", "after", "recursive"),
    [
        ("folders", "", None, False),
        ("folders", "", "d0050/", False),
        ("folders", "", "d0098/", False),
        ("folders", "d0050/", None, False),
        ("folders", "", "d0090/18100", True),
        ("flat", "", None, False),
        ("flat", "one/", None, False),
        ("flat", "one/", "one/10000", False),
        ("flat", "one/", "one/19900", True),
    ],
)
def test_a_page_reads_about_the_rows_it_shows(
    cursor: Any, bucket: str, prefix: str, after: str | None, recursive: bool
) -> None:
    sql, params = postgres.json_query(bucket, prefix, after, LIMIT, recursive)
    cursor.execute("explain (analyze, timing off, costs off, format json) " + sql, params)
    plan = cursor.fetchone()[0][0]["Plan"]
    assert 0 < looked_at(plan) <= LIMIT + 1


@pytest.mark.parametrize(("bucket", "recursive"), [("folders", False), ("flat", True)])
def test_a_plan_for_any_parameters_reads_no_more(cursor: Any, bucket: str, recursive: bool) -> None:
    """The query is prepared, and PostgreSQL may keep one plan for all pages."""
    sql, params = postgres.json_query(bucket, "", None, LIMIT, recursive)
    cursor.execute("set plan_cache_mode = force_generic_plan")
    cursor.execute(f"prepare page as {numbered(sql)}")
    values = ", ".join(["%s"] * len(params))
    cursor.execute(f"explain (analyze, timing off, costs off, format json) execute page ({values})", params)
    plan = cursor.fetchone()[0][0]["Plan"]
    cursor.execute("deallocate page; reset plan_cache_mode")
    assert 0 < looked_at(plan) <= LIMIT + 1


@pytest.mark.parametrize(
    ("bucket", "recursive", "shown"),
    [
        ("folders", False, [f"d{n:04}/" for n in range(LIMIT)]),
        ("folders", True, [f"d0000/{n:05}" for n in range(LIMIT)]),
        ("flat", True, [f"one/{n:05}" for n in range(LIMIT)]),
    ],
)
def test_a_page_is_in_order(cursor: Any, bucket: str, recursive: bool, shown: list[str]) -> None:
    cursor.execute(*postgres.json_query(bucket, "", None, LIMIT, recursive))
    objects, folders, last = cursor.fetchone()
    assert [one["key"] for one in json.loads(objects)] + json.loads(folders) == shown
    assert last == shown[-1]


def test_the_measure_notices_a_query_that_reads_a_whole_folder(cursor: Any) -> None:
    """Such as one that groups by folder."""
    cursor.execute(
        "explain (analyze, timing off, costs off, format json)"
        " select distinct split_part(key, '/', 1) from storage.objects where bucket = 'flat'"
    )
    assert looked_at(cursor.fetchone()[0][0]["Plan"]) >= OBJECTS
