"""The queries of storage on PostgreSQL: objects, listings and their plans."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg2
import pytest
import pytest_twisted

from project_service.database.pipeline import numbered
from project_service.errors import ApiError
from project_service.lifecycle import start
from project_service.storage.assemble import Rows, sql_rows
from project_service.storage.rows import listing
from project_service.storage.values import Conditions, Details, Sorting
from tests.contracts.storage.rows import ALICE, BOB, ETAG, SERVICE, bucket_b, put, refused
from tests.fakes.storage import some_link
from tests.live.services import pool_on
from tests.live.sql import run_sql
from tests.live.waiting import until


@pytest_twisted.ensureDeferred
async def test_a_link_into_a_bucket_that_is_being_deleted_is_refused(database: str, rows: Rows) -> None:
    async def waiting() -> bool:
        return bool(run_sql(database, "select 1 from pg_locks where not granted"))

    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        cursor.execute("select storage.delete_bucket('b')")
        adding = start(refused(rows.links.add({b"1": some_link()})))
        await until(waiting)
        other.commit()
        assert await adding == "bucket_not_found"


@pytest_twisted.ensureDeferred
async def test_the_upload_that_has_been_silent_longest_is_given_up_first(database: str, rows: Rows) -> None:
    versions = [uuid4() for _ in range(3)]
    for age, version in enumerate(versions):
        await rows.objects.reserve_uploads([version], "b")
        ago = timedelta(minutes=age)
        run_sql(
            database, "update storage.uploads set seen_at = now() - %s where version = %s", ago, str(version)
        )
    assert await rows.garbage.stale_uploads(timedelta(0), 2) == [versions[2], versions[1]]


@pytest_twisted.ensureDeferred
async def test_objects_are_listed_in_order_without_an_index_too(database: str, rows: Rows) -> None:
    """Read through the index they would come in order by themselves."""
    (name,) = run_sql(database, "select current_database()")[0]
    for way in ("indexscan", "indexonlyscan", "bitmapscan"):
        run_sql(database, f'alter database "{name}" set enable_{way} = off')
    fresh = pool_on(database)
    for key in ("c", "a", "b"):
        await put(rows, key)
    objects = await sql_rows(fresh).garbage.objects_from(("a", ""), 2)
    await fresh.close()
    assert [row.key for row in objects] == ["a", "b"]


@pytest_twisted.ensureDeferred
async def test_a_process_of_the_version_before_changes_objects_that_have_details(
    database: str, rows: Rows
) -> None:
    """It calls the functions that it knows. What it cannot know of an object does not outlive the bytes or the age
    that it was about."""
    details = Details(60, "max-age=60, immutable", '{"a": 1}', "de")
    for key in ("put", "aged"):
        await put(rows, key, details=details, sha256="0" * 64)
    version = uuid4()
    await rows.objects.reserve_uploads([version], "b")
    older = "'b', 'put', %s, 1, 'text/plain', 'e', 7, %s, false, null, null"
    outcome = run_sql(
        database, f"select outcome from storage.put_object({older})", str(version), str(ALICE.user_id)
    )
    assert outcome == [("stored",)]
    row = await rows.objects.find("b", "put")
    assert row is not None and (row.version, row.details, row.sha256) == (version, Details(7), None)
    for sets_owner, sets_age, expected in (
        (True, False, details),
        (False, True, Details(8, None, '{"a": 1}', "de")),
    ):
        change = "select outcome from storage.change_object('b', 'aged', %s, %s, %s, 8, null, null)"
        assert run_sql(database, change, sets_owner, str(BOB.user_id), sets_age) == [("changed",)]
        row = await rows.objects.find("b", "aged")
        assert row is not None and (row.owner, row.details) == (BOB.user_id, expected)


@pytest_twisted.ensureDeferred
async def test_an_object_put_or_moved_has_the_current_time(database: str, rows: Rows) -> None:
    await put(rows, "k")
    for change in (lambda: put(rows, "k"), lambda: rows.objects.move("b", "k", "l", ALICE)):
        run_sql(database, "update storage.objects set updated_at = '2000-01-01'")
        changed = await change()
        assert changed.row.updated_at.year > 2000 and changed.row.updated_at.microsecond % 1000 == 0
        assert await rows.objects.find("b", changed.row.key) == changed.row


@pytest_twisted.ensureDeferred
async def test_foreign_keys_to_objects_follow_them_or_keep_them(database: str, rows: Rows) -> None:
    """A foreign key says what becomes of the rows; without a word it keeps the object under its key."""
    tables = {
        "kept": "",
        "kept_by_name": "on update restrict on delete restrict",
        "cascading": "on update cascade on delete cascade",
    }
    for table, rule in tables.items():
        run_sql(
            database,
            f"create table {table} (bucket text, key text,"
            f" foreign key (bucket, key) references storage.objects {rule})",
        )
    for key in ("a", "b"):
        await put(rows, key)
        run_sql(database, "insert into cascading values ('b', %s)", key)
    for table in ("kept", "kept_by_name"):
        run_sql(database, f"insert into {table} values ('b', 'a')")
        for change in (
            rows.objects.delete("b", ["a", "b"], ALICE),
            rows.objects.move("b", "a", "c", ALICE),
            rows.objects.move("b", "b", "a", ALICE),
        ):
            assert await refused(change) == "object_in_use"
        run_sql(database, f"delete from {table}")
    await put(rows, "a")
    assert run_sql(database, "select key from cascading order by key") == [("a",), ("b",)]
    await rows.objects.move("b", "a", "c", ALICE)
    assert run_sql(database, "select key from cascading order by key") == [("b",), ("c",)]
    await rows.objects.delete("b", ["b", "c"], ALICE)
    assert run_sql(database, "select key from cascading") == []


@pytest_twisted.ensureDeferred
async def test_foreign_keys_to_buckets_keep_them(database: str, rows: Rows) -> None:
    for number, rule in enumerate(("", "on delete restrict")):
        run_sql(database, f"create table kept_{number} (bucket text references storage.buckets {rule})")
        run_sql(database, f"insert into kept_{number} values ('b')")
        assert await refused(rows.buckets.delete("b")) == "bucket_in_use"
        run_sql(database, f"delete from kept_{number}")
    await rows.buckets.delete("b")
    assert await rows.buckets.all() == []


def test_names_and_keys_are_ordered_bytewise_in_any_database(database: str) -> None:
    """The tests' database orders all text so; one with the collation of a language does not."""
    ordered = run_sql(
        database,
        "select c.relname, a.attname, a.attcollation = '\"C\"'::regcollation from pg_attribute a"
        " join pg_class c on c.oid = a.attrelid where c.relnamespace = 'storage'::regnamespace and c.relkind = 'r'"
        " and a.attname in ('name', 'bucket', 'key')",
    )
    assert len(ordered) == 12
    assert all(bytewise for _, _, bytewise in ordered), ordered


async def done_or_refused(change: Awaitable[object]) -> None:
    with suppress(ApiError):
        await change


@pytest_twisted.ensureDeferred
async def test_frequent_queries_run_as_they_were_prepared(database: str) -> None:
    """A parameter of the wrong type would have each of them refused, and sent again unprepared."""
    pool = pool_on(database, 1)
    rows = sql_rows(pool)
    await bucket_b(rows)
    tags = (None, ("*",), (ETAG,))
    for conditions in (Conditions(if_match, if_none_match) for if_match in tags for if_none_match in tags):
        for writer in (ALICE, SERVICE):
            await done_or_refused(put(rows, "k", writer=writer, conditions=conditions))
            await rows.objects.find("b", "k")
            await rows.buckets.find("b")
            uses = None if writer == SERVICE else 1
            await rows.links.add({uuid4().bytes: some_link(uses=uses)})
            await rows.links.find(b"1")
            await rows.links.use(b"1", datetime.now(UTC))
            await rows.garbage.forget([uuid4(), uuid4()])
            await done_or_refused(rows.objects.delete("b", ["k", "l"], writer, conditions))
            await done_or_refused(rows.objects.move("b", "m", "n", writer, conditions))
    plans = await pool.query("select custom_plans + generic_plans from pg_prepared_statements")
    await pool.close()
    assert [count >= 18 for (count,) in plans] == [True] * 10


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
            made.execute(
                "select storage.create_bucket(%s, 'private', null, null, null, false, false)", (bucket,)
            )
            made.execute(
                "insert into storage.objects (bucket, key, version, size, content_type, etag)"
                f" select %s, {key}, gen_random_uuid(), 1, 'a/b', 'e' from generate_series(0, %s) n"
                " order by md5(n::text)",
                (bucket, OBJECTS - 1),
            )
        # Ten of them are Alice's, in four folders, and the others Bob's.
        made.execute(
            "update storage.objects set owner = case when key ~ '[05]777$' or key ~ '0[12]80[0-2]$'"
            " then %s::uuid else %s::uuid end",
            (str(ALICE.user_id), str(BOB.user_id)),
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
    sql, params = listing.page_query(bucket, prefix, after, LIMIT, recursive)
    cursor.execute("explain (analyze, timing off, costs off, format json) " + sql, params)
    plan = cursor.fetchone()[0][0]["Plan"]
    assert 0 < looked_at(plan) <= LIMIT + 1


@pytest.mark.parametrize(("bucket", "recursive"), [("folders", False), ("flat", True)])
def test_a_plan_for_any_parameters_reads_no_more(cursor: Any, bucket: str, recursive: bool) -> None:
    """The query is prepared, and PostgreSQL may keep one plan for all pages."""
    sql, params = listing.page_query(bucket, "", None, LIMIT, recursive)
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
    cursor.execute(*listing.page_query(bucket, "", None, LIMIT, recursive))
    objects, folders, last = cursor.fetchone()
    assert [one["key"] for one in json.loads(objects)] + json.loads(folders) == shown
    assert last == shown[-1]


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("prefix", ["", "d00"])
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_page_of_own_objects_reads_about_the_rows_it_shows(
    cursor: Any, mode: str, prefix: str, recursive: bool
) -> None:
    """However many objects of others lie between them."""
    cursor.execute(
        "select key from storage.objects where bucket = 'folders' and owner = %s order by key",
        (str(ALICE.user_id),),
    )
    own = [key for (key,) in cursor.fetchall() if key.startswith(prefix)]
    assert 0 < len(own) < LIMIT
    sql, params = listing.page_query("folders", prefix, None, LIMIT, recursive, ALICE.user_id)
    cursor.execute(sql, params)
    objects, folders, last = cursor.fetchone()
    shown = [one["key"] for one in json.loads(objects)] + json.loads(folders)
    assert last is None
    assert shown == (own if recursive else sorted({key.split("/")[0] + "/" for key in own}))
    cursor.execute(f"set plan_cache_mode = {mode}")
    cursor.execute(f"prepare page as {numbered(sql)}")
    values = ", ".join(["%s"] * len(params))
    cursor.execute(f"explain (analyze, timing off, costs off, format json) execute page ({values})", params)
    plan = cursor.fetchone()[0][0]["Plan"]
    cursor.execute("deallocate page; reset plan_cache_mode")
    assert 0 < looked_at(plan) <= len(own) + 1


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("by", ["key", "size", "last_modified"])
@pytest.mark.parametrize("descending", [False, True])
def test_a_sorted_page_reads_the_rows_it_shows_and_a_search_a_limited_number(
    cursor: Any, monkeypatch: pytest.MonkeyPatch, mode: str, by: Any, descending: bool
) -> None:
    monkeypatch.setattr(listing, "SCANNED_ROWS", 2 * LIMIT)

    def read(search: str, after: tuple[str, str] | None) -> tuple[Any, int]:
        sorting = Sorting(by, descending, search)
        sql, params = listing.sorted_query("flat", "", sorting, after, LIMIT)
        cursor.execute(sql, params)
        page = cursor.fetchone()
        cursor.execute(f"set plan_cache_mode = {mode}")
        cursor.execute(f"prepare page as {numbered(sql)}")
        values = ", ".join(["%s"] * len(params))
        explained = f"explain (analyze, timing off, costs off, format json) execute page ({values})"
        cursor.execute(explained, params)
        plan = cursor.fetchone()[0][0]["Plan"]
        cursor.execute("deallocate page; reset plan_cache_mode")
        return page, looked_at(plan)

    (objects, last), rows = read("", None)
    assert (len(json.loads(objects)), 0 < rows <= LIMIT + 1) == (LIMIT, True)
    (objects, last), rows = read("", tuple(last[0]))
    assert (len(json.loads(objects)), 0 < rows <= LIMIT + 1) == (LIMIT, True)
    (objects, last), rows = read("nowhere", None)
    assert (json.loads(objects), 0 < rows <= 2 * LIMIT) == ([], True)
    assert last is not None


def test_the_measure_notices_a_query_that_reads_a_whole_folder(cursor: Any) -> None:
    """Such as one that groups by folder."""
    cursor.execute(
        "explain (analyze, timing off, costs off, format json)"
        " select distinct split_part(key, '/', 1) from storage.objects where bucket = 'flat'"
    )
    assert looked_at(cursor.fetchone()[0][0]["Plan"]) >= OBJECTS
