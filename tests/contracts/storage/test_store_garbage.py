"""The contract of reserved uploads, garbage and links, for the fake and for PostgreSQL, also under many changes
at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from project_service.storage.assemble import Rows
from project_service.storage.repository import NewObject
from project_service.storage.values import BucketRules, Conditions, Link
from tests.contracts.storage.rows import ALICE, ETAG, put, refused, together


@pytest_twisted.ensureDeferred
async def test_uploads_and_garbage(rows: Rows) -> None:
    going, dead = uuid4(), uuid4()
    for version in (going, dead):
        await rows.objects.reserve_uploads([version], "b")
    known = (await put(rows, "k")).row.version
    never = uuid4()
    assert await rows.garbage.unknown([going, dead, known, never]) == {never}
    assert await rows.garbage.reserved([going, known, never]) == {going}
    assert await rows.garbage.current([going, known, never]) == {known}
    assert set(await rows.garbage.stale_uploads(timedelta(0), 10)) == {going, dead}
    assert await rows.garbage.stale_uploads(timedelta(hours=1), 10) == []
    assert await rows.objects.renew_upload(going)
    # The one that has been silent for longest comes first.
    assert await rows.garbage.stale_uploads(timedelta(0), 1) == [dead]
    assert await rows.garbage.discard([dead, known, never]) == [dead]
    assert await rows.garbage.discard([dead]) == []
    assert not await rows.objects.renew_upload(dead)
    assert await rows.garbage.garbage(10) == [(dead, "b")]
    assert await rows.garbage.garbage(10, dead) == []
    assert await rows.garbage.garbage(10, removed_for=timedelta(hours=1)) == []
    assert await rows.garbage.unknown([dead, never]) == {never}
    late = NewObject("b", "late", dead, 1, "a/b", ETAG)
    assert await refused(rows.objects.put(late, ALICE)) == "request_timeout"


@pytest_twisted.ensureDeferred
async def test_versions_that_nobody_uses_are_withdrawn(rows: Rows) -> None:
    used, unused, other = versions = [uuid4() for _ in range(3)]
    await rows.objects.reserve_uploads(versions, "b")
    assert await rows.garbage.reserved(versions) == set(versions)
    await rows.objects.put(NewObject("b", "k", used, 1, "a/b", ETAG), ALICE)
    await rows.objects.release_uploads([unused, used])
    assert await rows.garbage.reserved(versions) == {other}
    assert await rows.garbage.unknown(versions) == {unused}
    assert await rows.garbage.garbage(10) == []


@pytest_twisted.ensureDeferred
async def test_garbage_is_listed_page_by_page_until_it_is_forgotten(rows: Rows) -> None:
    versions = sorted((uuid4() for _ in range(5)), reverse=True)
    for version in versions:
        await rows.objects.reserve_uploads([version], "b")
        await rows.garbage.discard([version])
    await rows.garbage.forget(versions[:2])
    left = versions[:1:-1]
    first = await rows.garbage.garbage(2)
    assert [version for version, _ in first] == left[:2]
    assert [version for version, _ in await rows.garbage.garbage(2, left[1])] == left[2:]


@pytest_twisted.ensureDeferred
async def test_all_objects_are_listed_in_order(rows: Rows) -> None:
    await rows.buckets.create("a", BucketRules())
    for key in ("y", "x"):
        await put(rows, key)
    await put(rows, "z", bucket="a")
    objects = await rows.garbage.objects_from(None, 2)
    assert [(row.bucket, row.key) for row in objects] == [("a", "z"), ("b", "x")]
    for after, left in ((("b", "x"), [("b", "y")]), (("a", "z"), [("b", "x"), ("b", "y")])):
        objects = await rows.garbage.objects_from(after, 2)
        assert [(row.bucket, row.key) for row in objects] == left


@pytest_twisted.ensureDeferred
async def test_links(rows: Rows) -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    once = Link("b", "k", now + timedelta(seconds=10), 1)
    always = Link("b", "ö", now + timedelta(seconds=20), None, owner=ALICE.user_id)
    await rows.links.add(b"1", once)
    await rows.links.add(b"2", always)
    assert (await rows.links.find(b"1"), await rows.links.find(b"3")) == (once, None)
    assert [await rows.links.use(b"1", now) for _ in range(2)] == [True, False]
    assert [await rows.links.use(b"2", now) for _ in range(3)] == [True, True, True]
    assert not await rows.links.use(b"2", now + timedelta(seconds=20))
    assert not await rows.links.use(b"3", now)
    unlimited = await rows.links.find(b"2")
    assert unlimited is not None and (unlimited.uses_left, unlimited.used_at) == (None, now)
    assert unlimited.owner == ALICE.user_id
    left = await rows.links.find(b"1")
    assert left is not None
    assert left.uses_left == 0
    assert await rows.links.sweep(now + timedelta(seconds=15)) == 1
    assert await rows.links.find(b"1") is None
    await rows.buckets.delete("b")
    assert await rows.links.find(b"2") is None
    assert await refused(rows.links.add(b"4", always)) == "bucket_not_found"


@pytest_twisted.ensureDeferred
async def test_many_changes_at_once(rows: Rows) -> None:
    """The quota is exact, one creator wins, a link is used once, and there are no deadlocks."""
    await rows.buckets.change("b", {"max_bucket_bytes": 100})
    outcomes = await together(*(put(rows, f"k{number}", 15) for number in range(30)))
    assert sorted(outcomes) == ["done"] * 6 + ["payload_too_large"] * 24
    await rows.buckets.change("b", {"max_bucket_bytes": None})
    create = Conditions(if_none_match=("*",))
    outcomes = await together(*(put(rows, "one", conditions=create) for _ in range(20)))
    assert sorted(outcomes) == ["done"] + ["object_exists"] * 19
    now = datetime(2026, 11, 21, tzinfo=UTC)
    await rows.links.add(b"t", Link("b", "one", now + timedelta(1), 1))
    used = await gatherResults([Deferred.fromCoroutine(rows.links.use(b"t", now)) for _ in range(50)])
    assert used.count(True) == 1
    keys = [f"m{number}" for number in range(40)]
    await together(*(put(rows, key) for key in keys))
    mixed = [rows.objects.delete("b", keys[::-1], ALICE), rows.objects.delete("b", keys, ALICE)]
    mixed += [rows.objects.delete("b", keys[number::3], ALICE) for number in range(3)]
    moves = [rows.objects.move("b", f"k{number}", f"n{number}", ALICE) for number in range(30)]
    await together(*mixed, *moves, *(put(rows, f"n{number}", 2) for number in range(30)))
    bucket = await rows.buckets.find("b")
    assert bucket is not None
    left = [row for row in await rows.garbage.objects_from(None, 1000) if row.bucket == "b"]
    assert (bucket.object_count, bucket.total_bytes) == (len(left), sum(row.size for row in left))
    assert not [row for row in left if row.key.startswith("m")]
