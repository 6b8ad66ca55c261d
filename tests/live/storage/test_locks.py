"""Which locks wait for each other when several write into one bucket."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar
from uuid import uuid4

import psycopg2
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from project_service.lifecycle import start
from project_service.storage.assemble import Rows
from project_service.storage.values import BucketRules, Conditions
from tests.contracts.storage.rows import ALICE, ETAG, bucket_b, put, refused
from tests.live.sql import run_sql
from tests.live.waiting import until

T = TypeVar("T")

PUT = "select * from storage.put_object('b', %s, %s, %s, 'a/b', 'e', null, null, true, null, null)"
DELETE = "select * from storage.delete_objects('b', %s, null, true, null, null)"
MOVE = "select * from storage.move_object('b', %s, %s, null, true, null, null)"


@pytest.fixture
def keys(database: str) -> list[str]:
    """Keys that have different locks."""
    rows = run_sql(
        database, "select min(n::text) from generate_series(1, 500) n group by storage.slot(n::text)"
    )
    return [key for (key,) in rows]


class Other:
    """Another transaction, which is under way until ``commits``."""

    def __init__(self, database: str) -> None:
        self._database = database
        self.connection = psycopg2.connect(database)
        self._cursor = self.connection.cursor()

    def does(self, statement: str, *params: Any) -> None:
        self._cursor.execute(statement, params)
        ((outcome, *_),) = self._cursor.fetchall()
        assert outcome in {"stored", "deleted", "moved"}

    def puts(self, key: str, size: int = 1) -> None:
        version = str(uuid4())
        self._cursor.execute("insert into storage.uploads (version, bucket) values (%s, 'b')", (version,))
        self.does(PUT, key, version, size)

    async def holds_up(self, work: Coroutine[Any, Any, T]) -> Deferred[T]:
        waiting = start(work)

        async def held_up() -> bool:
            return waiting.called or bool(run_sql(self._database, "select 1 from pg_locks where not granted"))

        await until(held_up)
        assert not waiting.called, "it did not wait"
        return waiting

    async def commits(self, before: Coroutine[Any, Any, T]) -> T:
        """Commits, and returns the result of ``before``, which has had to wait for that."""
        waiting = await self.holds_up(before)
        self.connection.commit()
        return await waiting


@pytest.fixture
def other(database: str) -> Iterator[Other]:
    made = Other(database)
    yield made
    made.connection.close()


@pytest.fixture
def nobody_waits(database: str) -> None:
    """Makes statements fail that have to wait for a lock."""
    from_now_on(database, "lock_timeout = 1")


@pytest.fixture
def as_they_lie(database: str) -> None:
    """Makes PostgreSQL read rows in the order in which they lie in the table."""
    for way in ("indexscan", "bitmapscan"):
        from_now_on(database, f"enable_{way} = off")


def from_now_on(database: str, setting: str) -> None:
    """Sets something for connections that are made from now on."""
    (name,) = run_sql(database, "select current_database()")[0]
    run_sql(database, f'alter database "{name}" set {setting}')


@pytest_twisted.ensureDeferred
async def test_deletes_and_moves_delay_neither_bucket_changes_nor_uploads(
    keys: list[str], nobody_waits: None, rows: Rows, other: Other
) -> None:
    """A lock that many share is hardly ever free, so a transaction that wanted it alone would wait for good."""
    for key in keys[:2]:
        await put(rows, key)
    await rows.buckets.change("b", {"max_bucket_bytes": 100})
    other.does(DELETE, keys[:1])
    other.does(MOVE, keys[1], keys[2])
    await put(rows, keys[3])
    await rows.buckets.change("b", {"visibility": "public"})


@pytest_twisted.ensureDeferred
async def test_moves_within_a_slot_or_onto_an_object_delay_no_upload(
    database: str, keys: list[str], nobody_waits: None, rows: Rows, other: Other
) -> None:
    """Otherwise an upload under a quota, which locks the bucket, could wait for a slot whose holder waits for the
    bucket."""
    beside = "select n::text from generate_series(1, 500) n where storage.slot(n::text) = storage.slot(%s)"
    one, another = (key for (key,) in run_sql(database, f"{beside} limit 2", keys[2]))
    for key in (*keys[:2], one):
        await put(rows, key)
    await rows.buckets.change("b", {"max_bucket_bytes": 100})
    for source, target in ((keys[0], keys[1]), (one, another)):
        other.does(MOVE, source, target)
        await put(rows, keys[3])
        other.connection.commit()


@pytest_twisted.ensureDeferred
async def test_without_a_quota_an_upload_delays_nothing(
    keys: list[str], nobody_waits: None, rows: Rows, other: Other
) -> None:
    other.puts(keys[0])
    await put(rows, keys[1])
    assert await rows.objects.delete("b", [keys[1]], ALICE)
    await rows.buckets.change("b", {"visibility": "public"})


@pytest_twisted.ensureDeferred
async def test_operations_on_one_bucket_do_not_delay_another(
    nobody_waits: None, rows: Rows, other: Other
) -> None:
    other.puts("k")
    await rows.buckets.create("another", BucketRules())
    await put(rows, "k", bucket="another")
    await rows.objects.move("another", "k", "l", ALICE)
    assert list(await rows.objects.delete("another", ["k", "l"], ALICE)) == ["l"]


@pytest_twisted.ensureDeferred
async def test_a_new_quota_counts_uploads_that_are_under_way(
    keys: list[str], rows: Rows, other: Other
) -> None:
    other.puts(keys[0], 6)
    await rows.buckets.change("b", {"max_bucket_bytes": 10})
    assert await other.commits(refused(put(rows, keys[1], 6))) == "payload_too_large"


@pytest_twisted.ensureDeferred
async def test_with_a_quota_uploads_take_turns(keys: list[str], rows: Rows, other: Other) -> None:
    await rows.buckets.change("b", {"max_bucket_bytes": 10})
    other.puts(keys[0], 6)
    assert await other.commits(refused(put(rows, keys[1], 6))) == "payload_too_large"


@pytest_twisted.ensureDeferred
async def test_of_two_uploads_to_one_key_the_second_sees_the_first(rows: Rows, other: Other) -> None:
    other.puts("k")
    create = put(rows, "k", conditions=Conditions(if_none_match=("*",)))
    assert await other.commits(refused(create)) == "object_exists"


@pytest_twisted.ensureDeferred
async def test_a_delete_or_move_sees_what_the_one_before_left(rows: Rows, other: Other) -> None:
    for key in ("k", "l"):
        await put(rows, key)
    seen = Conditions(if_match=(ETAG,))
    for change in (
        lambda: rows.objects.delete("b", ["k"], ALICE, seen),
        lambda: rows.objects.move("b", "l", "k", ALICE, seen),
    ):
        other.puts("k")
        assert await other.commits(refused(change())) == "precondition_failed"
        await put(rows, "k")
    other.does(DELETE, ["k"])
    assert await other.commits(refused(rows.objects.move("b", "k", "l", ALICE))) == "object_not_found"


@pytest_twisted.ensureDeferred
async def test_locks_are_taken_in_one_order(
    database: str, keys: list[str], as_they_lie: None, rows: Rows, other: Other
) -> None:
    """Otherwise two transactions could wait for each other. The rows that are locked lie in another order here."""
    first, last = sorted(keys[:2], key=lambda key: run_sql(database, "select storage.slot(%s)", key))
    lock = "from storage.usage where slot = storage.slot(%s)"
    for key in (first, last):
        await put(rows, key)
    for change in (
        lambda: rows.objects.move("b", last, first, ALICE),
        lambda: rows.objects.delete("b", [last, first], ALICE),
    ):
        run_sql(database, "update storage.usage set slot = slot where slot = storage.slot(%s)", first)
        lying = run_sql(
            database, f"select slot = storage.slot(%s) {lock} or slot = storage.slot(%s)", last, first, last
        )
        assert lying == [(True,), (False,)]
        other.puts(last)
        waiting = await other.holds_up(change())
        assert run_sql(database, f"select 1 {lock} for update skip locked", first) == []
        other.connection.commit()
        await waiting


@pytest_twisted.ensureDeferred
async def test_a_bucket_that_is_being_filled_is_not_deleted(rows: Rows, other: Other) -> None:
    other.puts("k")
    assert await other.commits(refused(rows.buckets.delete("b"))) == "bucket_not_empty"


@pytest_twisted.ensureDeferred
async def test_nothing_is_put_into_a_bucket_that_is_being_deleted(rows: Rows, other: Other) -> None:
    for quota in (None, 100):
        await rows.buckets.change("b", {"max_bucket_bytes": quota})
        other.does("select storage.delete_bucket('b')")
        assert await other.commits(refused(put(rows, "k"))) == "bucket_not_found"
        await bucket_b(rows)
