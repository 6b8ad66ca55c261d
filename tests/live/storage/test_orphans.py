"""``project-service storage orphans``: objects that no row names, rows that name no object."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted

from project_service.cli.invocation import Failed
from project_service.cli.orphans import BATCH, Names
from project_service.settings.model import Store
from project_service.storage.assemble import Rows
from tests.contracts.storage.rows import SERVICE, put
from tests.live.cli.command_here import Command, beside_the_reactor, commands_of, failed
from tests.live.services import pool_on
from tests.live.sql import connection_to, run_each, run_sql
from tests.live.storage.cli import config_file

# As many objects of ``photos`` as are asked for, stored two hours ago.
OBJECTS = """
insert into storage.objects (bucket, key, version, size, content_type, etag, updated_at)
select 'photos', to_char(n, 'fm0000'), gen_random_uuid(), 1, 'a/b', 'e', now() - interval '2 hours'
from generate_series(1, %s) n
"""
KEYS = "select array_agg(key order by key) from storage.objects"


@pytest.fixture
def project(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """Commands on a database with the buckets ``photos`` and ``other`` and the table ``files``."""
    run_sql(
        database,
        "select storage.create_bucket(name, 'private', null, null, null, false, false)"
        " from unnest(array['photos', 'other']) name; create table files (key text, path text)",
    )
    yield commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path))


def orphans(project: Command, *words: str) -> Any:
    done = project("storage", "orphans", "--table", "files", *words, "--json")
    assert done.code == 0, done.err
    return done.json


@beside_the_reactor
def test_both_are_listed_of_one_bucket(database: str, project: Command) -> None:
    run_sql(database, OBJECTS, 4)
    run_sql(database, "update storage.objects set updated_at = now() where key = '0004'")
    run_sql(
        database, "insert into files (key) values ('0001'), ('0001'), ('lost'), ('lost'), (E'a\\tb'), (null)"
    )
    words = ("--column", "key", "--bucket", "photos")
    assert orphans(project, *words) == {"objects": ["photos/0002", "photos/0003"], "rows": ["a\tb", "lost"]}
    assert orphans(project, *words, "--older-than", "0")["objects"][-1] == "photos/0004"
    assert orphans(project, *words, "--older-than", "9999")["objects"] == []
    assert project("storage", "orphans", "--table", "files", *words).out.splitlines() == [
        "objects  photos/0002",
        "objects  photos/0003",
        r"rows     a\tb",
        "rows     lost",
        "2 objects that no row names, 2 rows that name no object",
    ]
    assert run_sql(database, KEYS) == [(["0001", "0002", "0003", "0004"],)]
    run_sql(
        database,
        "insert into files (key) select key from storage.objects; delete from files where key ~ '^[al]'",
    )
    assert orphans(project, *words) == {"objects": [], "rows": []}
    assert project("storage", "orphans", "--table", "files", *words).out.splitlines() == [
        "0 objects that no row names, 0 rows that name no object"
    ]


@beside_the_reactor
def test_a_column_may_have_the_bucket_too(database: str, project: Command) -> None:
    """Then buckets that no row has are none of the table's."""
    run_sql(database, OBJECTS, 2)
    run_sql(database, OBJECTS.replace("'photos'", "'other'"), 2)
    run_sql(
        database,
        "insert into files (path) values ('photos/0001'), ('photos/x/y'), ('no-slash'), ('gone/1'), ('')",
    )
    words = ("--column", "path")
    assert orphans(project, *words) == {
        "objects": ["photos/0002"],
        "rows": ["", "gone/1", "no-slash", "photos/x/y"],
    }
    assert orphans(project, *words, "--delete")["deleted"] == ["photos/0002"]
    assert run_sql(database, KEYS) == [(["0001", "0001", "0002"],)]


@beside_the_reactor
def test_what_no_row_names_is_deleted_and_nothing_else(database: str, project: Command) -> None:
    """More than are read at once. Their bytes are the sweeper's."""
    count = 2 * BATCH + 7
    run_sql(database, OBJECTS, count)
    run_sql(database, "insert into files (key) values ('0003'), ('lost')")
    run_sql(
        database,
        "update storage.usage u set object_count = c.n, total_bytes = c.n from (select storage.slot(key) as slot,"
        " count(*) as n from storage.objects group by 1) c where u.bucket = 'photos' and u.slot = c.slot",
    )
    words = ("--column", "key", "--bucket", "photos")
    assert len(orphans(project, *words)["objects"]) == count - 1
    deleted = orphans(project, *words, "--delete")
    assert (len(deleted["deleted"]), deleted["rows"]) == (count - 1, ["lost"])
    assert run_sql(database, KEYS) == [(["0003"],)]
    assert run_sql(database, "select sum(object_count)::int, sum(total_bytes)::int from storage.usage") == [
        (1, 1)
    ]
    assert run_sql(database, "select count(*)::int from storage.garbage") == [(count - 1,)]
    assert run_sql(database, "select count(*)::int from files") == [(2,)]


@beside_the_reactor
def test_a_wrong_column_deletes_nothing(database: str, project: Command) -> None:
    run_sql(database, OBJECTS, 3)
    run_sql(database, "insert into files (key, path) values ('0001', 'photos/0001')")
    words = ("storage", "orphans", "--table", "files", "--delete")
    for column in (("path", "--bucket", "photos"), ("key",)):
        done = project(*words, "--column", *column)
        assert done == failed(
            f"no row of files names an object by {column[0]}: is it another column? Nothing was deleted"
        )
    assert run_sql(database, KEYS) == [(["0001", "0002", "0003"],)]


@beside_the_reactor
def test_names_are_as_in_sql_and_what_is_not_there_is_named(database: str, project: Command) -> None:
    run_sql(database, OBJECTS, 1)
    run_each(
        database,
        'create schema app; create table app."My %s Files" (id int, "100%" varchar)',
        """insert into app."My %s Files" values (1, '0001'), (2, 'lost')""",
    )
    words = ("storage", "orphans", "--bucket", "photos", "--json", "--table")
    done = project(*words, 'app."My %s Files"', "--column", "100%")
    assert (done.code, done.json) == (0, {"objects": [], "rows": ["lost"]})
    for table, column, why in (
        ("nothing", "key", "there is no table nothing in the system database"),
        ("files", "keys", "public.files has no column keys"),
        ("files", "ctid", "public.files has no column ctid"),
        ('app."My %s Files"', "key", 'app."My %s Files" has no column key'),
    ):
        assert project(*words, table, "--column", column) == failed(why)
    assert project(*words, "files; drop table files", "--column", "key").code == 1
    assert run_sql(database, "select count(*)::int from files") == [(0,)]
    done = project("storage", "orphans", "--table", "files", "--column", "key", "--bucket", "none")
    assert done == failed("there is no bucket none")
    assert project("storage", "orphans", "--table", "files").code == 2


@pytest_twisted.ensureDeferred
async def test_what_has_changed_since_it_was_listed_is_not_deleted(database: str, rows: Rows) -> None:
    """It has a row by now, or was stored again."""
    run_sql(database, "create table files (key text)")
    for key in ("named", "replaced", "gone", "left"):
        await put(rows, key)
    pool, connection = pool_on(database), await connection_to(database)
    try:
        names = await Names.of(connection, "files", "key", "b")
        await connection.execute("begin")
        (found,) = [batch async for batch in names.objects(connection, timedelta(0))]
        assert [key for _, key, _ in found] == ["gone", "left", "named", "replaced"]
        run_sql(database, "insert into files values ('named')")
        await put(rows, "replaced")
        await rows.objects.delete("b", ["gone"], SERVICE)
        assert await names.delete(pool, found) == ["b/left"]
    finally:
        connection.close()
        await pool.close()
    assert run_sql(database, KEYS) == [(["named", "replaced"],)]


@pytest_twisted.ensureDeferred
async def test_rows_that_policies_hide_are_not_taken_for_missing_ones(database: str) -> None:
    run_sql(
        database,
        "create table files (key text); alter table files enable row level security;"
        " grant usage on schema storage, public to anon; grant select on files to anon",
    )
    connection = await connection_to(database)
    await connection.query("set role anon")
    try:
        with pytest.raises(Failed, match=r"row-level security hides rows of public\.files"):
            await Names.of(connection, "files", "key", None)
    finally:
        connection.close()
