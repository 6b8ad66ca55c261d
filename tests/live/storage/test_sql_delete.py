"""``storage.delete``, for triggers of a project: a deletion as by storage, in the transaction of its caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from psycopg2 import errors as pg
from twisted.internet.threads import deferToThread

from project_service.lifecycle import start
from project_service.settings.model import Store
from project_service.storage.assemble import Rows
from project_service.storage.values import BucketRules
from tests.contracts.storage.rows import SERVICE, put
from tests.live.application import Api, serving, settings_for
from tests.live.service.documented import blocks
from tests.live.sql import run_each, run_sql
from tests.live.storage.service import Running
from tests.live.storage.test_locks import Other, from_now_on
from tests.live.storage.test_renditions import get, picture, stored_and_known
from tests.live.storage.test_renditions import put as put_picture
from tests.live.waiting import until

COUNTERS = "select sum(object_count)::int, sum(total_bytes)::int from storage.usage where bucket = %s"
GARBAGE = "select count(*)::int from storage.garbage"
# Rows that are their objects' both ways, as in docs/howto/row-for-each-file.
BOTH_WAYS = """
create table files (bucket text, key text, primary key (bucket, key),
    foreign key (bucket, key) references storage.objects on update cascade on delete cascade);
create function delete_files() returns trigger language plpgsql security definer set search_path = '' as $$ begin
    perform storage.delete(bucket, array_agg(key)) from gone group by bucket;
    return null;
end $$;
create trigger delete_files after delete on files
    referencing old table as gone for each statement execute function delete_files();
"""


@pytest.fixture
def other(database: str) -> Any:
    made = Other(database)
    yield made
    made.connection.close()


@pytest_twisted.ensureDeferred
async def test_it_deletes_what_there_is_once(database: str, rows: Rows) -> None:
    for key in ("a", "b", "c"):
        await put(rows, key, size=5)
    assert run_sql(database, COUNTERS, "b") == [(3, 15)]
    for call_, answer in (
        ("'b', 'a'", True),
        ("'b', 'a'", False),
        ("'none', 'a'", False),
        ("'b', null", False),
        ("bucket => 'b', key => 'none'", False),
        ("null, array['b']", 0),
        ("'b', array[]::text[]", 0),
        ("bucket => 'b', keys => array['a', 'b', 'b', null, 'c']", 2),
    ):
        assert run_sql(database, f"select storage.delete({call_})") == [(answer,)], call_
    assert run_sql(database, COUNTERS, "b") == [(0, 0)]
    assert run_sql(database, GARBAGE) == [(3,)]


@pytest_twisted.ensureDeferred
async def test_it_is_the_same_as_a_deletion_by_storage(database: str, rows: Rows) -> None:
    await rows.buckets.create("other", BucketRules())
    run_sql(database, "update storage.buckets set policies = true, owner_only_writes = true where name = 'b'")
    seen = []
    for bucket in ("other", "b"):
        await put(rows, "k", size=7, bucket=bucket, writer=SERVICE)
        if bucket == "other":
            await rows.objects.delete(bucket, ["k"], SERVICE)
        else:
            run_sql(database, "select storage.delete('b', 'k')")
        usage = (
            "select slot, object_count, total_bytes, removed_at is null from storage.usage where bucket = %s"
        )
        seen.append(sorted(run_sql(database, usage, bucket)))
    assert seen[0] == seen[1]
    assert run_sql(database, "select bucket, rendition_of from storage.garbage order by 1") == [
        ("b", None),
        ("other", None),
    ]


@pytest.mark.parametrize("role", ["anon", "authenticated", "service_role"])
def test_nobody_may_execute_it_until_the_owner_grants_it(database: str, role: str) -> None:
    run_sql(database, f"grant usage on schema storage to {role}")
    for call_ in ("'b', 'k'", "'b', array['k']"):
        with pytest.raises(pg.InsufficientPrivilege):
            run_each(database, f"set role {role}", f"select storage.delete({call_})")
    run_sql(database, f"grant execute on function storage.delete(text, text) to {role}")
    assert run_each(database, f"set role {role}", "select storage.delete('b', 'k')") == [(False,)]


@pytest_twisted.ensureDeferred
async def test_the_sweeper_removes_the_bytes_and_those_of_renditions(running: Running) -> None:
    for key in ("kept.jpg", "gone.jpg"):
        await deferToThread(put_picture, running, key, picture(seed=len(key)))
        assert (await deferToThread(get, running, key, "width=20")).status_code == 200
    with closing(psycopg2.connect(running.api.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("select storage.delete('private', 'gone.jpg')")
        connection.rollback()
    assert (await deferToThread(get, running, "gone.jpg", "width=20")).status_code == 200
    run_sql(running.api.dsn, "select storage.delete('private', 'gone.jpg')")
    for query in ("", "width=20", "width=30"):
        assert (await deferToThread(get, running, "gone.jpg", query)).status_code == 404
    await running.behind.sweeper.sweep()
    assert run_sql(running.api.dsn, GARBAGE) == [(0,)]
    assert await stored_and_known(running)
    assert (await deferToThread(get, running, "kept.jpg", "width=20")).status_code == 200


@pytest_twisted.ensureDeferred
async def test_an_upload_to_the_key_waits_and_is_a_new_object(
    database: str, rows: Rows, other: Other
) -> None:
    await put(rows, "k", size=3)
    other.connection.cursor().execute("select storage.delete('b', 'k')")
    switched = await other.commits(put(rows, "k", size=4))
    assert switched.replaced is None
    assert run_sql(database, COUNTERS, "b") == [(1, 4)]


@pytest_twisted.ensureDeferred
async def test_many_calls_in_one_transaction_and_uploads_under_a_quota_do_not_block_each_other(
    database: str, rows: Rows, other: Other
) -> None:
    """An upload holds the bucket and waits for counters that the transaction has changed and changes again."""
    await rows.buckets.change("b", {"max_bucket_bytes": 1000})
    slot = "select n::text from generate_series(1, 500) n where storage.slot(n::text) = 1 limit 3"
    keys = [key for (key,) in run_sql(database, slot)]
    for key in keys[:2]:
        await put(rows, key)
    cursor = other.connection.cursor()
    cursor.execute("select storage.delete('b', %s)", (keys[0],))
    uploading = await other.holds_up(put(rows, keys[2]))
    cursor.execute("select storage.delete('b', %s)", (keys[1],))
    other.connection.commit()
    await uploading
    assert run_sql(database, COUNTERS, "b") == [(1, 1)]


@pytest_twisted.ensureDeferred
async def test_a_row_that_goes_with_its_object_waits_for_nobody(
    database: str, rows: Rows, other: Other
) -> None:
    """Its trigger finds no object: who deletes that holds counters, and must not wait for the bucket."""
    run_sql(database, BOTH_WAYS)
    await rows.buckets.change("b", {"max_bucket_bytes": 1000})
    for key in ("a", "b", "c"):
        await put(rows, key)
        run_sql(database, "insert into files values ('b', %s)", key)
    other.connection.cursor().execute("select from storage.buckets for update")
    from_now_on(database, "lock_timeout = 1")
    run_sql(database, "select storage.delete_objects('b', array['a'], null, true, null, null, null, null)")
    run_sql(database, "select storage.move_object('b', 'b', 'c', null, true, null, null, null, null)")
    assert run_sql(database, "select key from files") == [("c",)]
    assert run_sql(database, "select key from storage.objects") == [("c",)]
    other.connection.rollback()
    run_sql(database, "delete from files")
    assert run_sql(database, "select key from storage.objects") == []


@asynccontextmanager
async def documented(database: str, store: Store, tmp_path: Path) -> AsyncIterator[Api]:
    """A service with the SQL of docs/howto/row-for-each-file, and the bucket that it is about."""
    (sql,) = [one.text for one in blocks("howto/row-for-each-file.rst") if one.file == "photos.sql"]
    async with serving(settings_for(database, store, tmp_path, storage={"sweep_seconds": 0.05})) as api:
        made = {"name": "album", "visibility": "private"}
        assert (await api.request("POST", "/admin/buckets", key="service", json=made))[0] == 201
        run_sql(database, sql)
        yield api


@pytest_twisted.ensureDeferred
async def test_objects_go_with_the_rows_of_a_user_who_is_deleted(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    """And where something refuses it, everything stays."""
    async with documented(database, store_settings, tmp_path) as api:
        ann = await api.sign_up("ann@example.test")
        user, token = ann["user"]["id"], ann["access_token"]
        for number in range(40):
            path = f"/storage/buckets/album/objects/{number}"
            assert (await api.request("PUT", path, token=token, data=b"x"))[0] == 201
        kept = "/storage/buckets/private/objects/kept"
        assert (await api.request("PUT", kept, token=token, data=b"x"))[0] == 201
        both = "select (select count(*)::int from photos), (select count(*)::int from storage.objects)"
        assert run_sql(database, both) == [(40, 41)]

        run_sql(
            database,
            "create table kept (bucket text, key text, foreign key (bucket, key) references storage.objects);"
            "insert into kept values ('album', '7')",
        )
        status, _, answer = await api.request("DELETE", f"/admin/users/{user}", key="service")
        assert (status, answer["error"]["code"]) == (409, "user_in_use")
        assert run_sql(database, both) == [(40, 41)]
        run_sql(database, "drop table kept")

        assert (await api.request("DELETE", f"/admin/users/{user}", key="service"))[0] == 200
        assert run_sql(database, "select (select count(*)::int from photos), key from storage.objects") == [
            (0, "kept")
        ]
        await until(lambda: run_sql(database, GARBAGE) == [(0,)])


@pytest_twisted.ensureDeferred
async def test_an_upload_that_ends_after_its_user_was_deleted_leaves_nothing(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with documented(database, store_settings, tmp_path) as api:
        token = (await api.sign_up("ann@example.test"))["access_token"]
        with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute("delete from auth.users")
            uploading = start(api.request("PUT", "/storage/buckets/album/objects/k", token=token, data=b"x"))
            await until(lambda: bool(run_sql(database, "select 1 from pg_locks where not granted")))
            connection.commit()
        status, _, answer = await uploading
        assert (status, answer["error"]["code"]) == (409, "refused_by_project")
        assert run_sql(database, "select key from storage.objects") == []
        left = "select version from storage.uploads union all select version from storage.garbage"
        await until(lambda: run_sql(database, left) == [])
