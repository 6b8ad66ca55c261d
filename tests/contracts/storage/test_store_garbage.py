"""The contract of reserved uploads, garbage and links, for the fake and for PostgreSQL, also under many changes
at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest_twisted
from attrs import evolve
from twisted.internet.defer import Deferred, gatherResults

from project_service.storage.assemble import Rows
from project_service.storage.values import BucketRules, Conditions, Identity, NewObject, UploadTerms, Viewer
from tests.contracts.storage.rows import ALICE, BOB, ETAG, put, refused, together
from tests.fakes.storage import START, some_link


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
async def test_objects_without_a_digest_get_it_and_nothing_else_changes(rows: Rows) -> None:
    await rows.buckets.create("a", BucketRules())
    digest = "ab" * 32
    for key in ("y", "x"):
        await put(rows, key)
    await put(rows, "w", sha256=digest)
    await put(rows, "z", bucket="a")

    async def without(after: tuple[str, str] | None = None, limit: int = 10) -> list[str]:
        return [row.key for row in await rows.garbage.objects_from(after, limit, without_sha256=True)]

    assert await without() == ["z", "x", "y"]
    assert (await without(limit=2), await without(("a", "z"), 1)) == (["z", "x"], ["x"])
    counted = await rows.buckets.find("b")
    old = (await rows.garbage.objects_from(("b", "x"), 1, without_sha256=True))[0]
    assert await rows.garbage.set_sha256(old.version, digest)
    assert await rows.objects.find("b", "y") == evolve(old, sha256=digest)
    assert await rows.buckets.find("b") == counted
    assert (await without(), await rows.garbage.garbage(10)) == (["z", "x"], [])
    # One that has a digest keeps it.
    assert not await rows.garbage.set_sha256(old.version, "cd" * 32)
    # A moved object is the same version; an overwritten one is not.
    old = (await rows.garbage.objects_from(("a", "z"), 1, without_sha256=True))[0]
    await rows.objects.move("b", "x", "moved", ALICE)
    assert await rows.garbage.set_sha256(old.version, digest)
    moved = await rows.objects.find("b", "moved")
    assert moved is not None and moved.sha256 == digest
    replaced = (await put(rows, "moved")).row
    assert not await rows.garbage.set_sha256(old.version, digest)
    assert await rows.objects.find("b", "moved") == replaced


@pytest_twisted.ensureDeferred
async def test_links(rows: Rows) -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    once = some_link("b", "k", now + timedelta(seconds=10), 1)
    always = some_link(
        "b", "ö", now + timedelta(seconds=20), None, owner=ALICE.user_id, created_by=BOB.user_id
    )
    judged = some_link("b", "k", now + timedelta(days=1), 1, identity=Identity("anon", '{"a":1}'))
    await rows.links.add({b"1": once, b"2": always, b"5": judged})
    assert await rows.links.find(b"5") == judged
    assert (await rows.links.find(b"1"), await rows.links.find(b"3")) == (once, None)
    assert [await rows.links.use(b"1", now) for _ in range(2)] == [True, False]
    assert [await rows.links.use(b"2", now) for _ in range(3)] == [True, True, True]
    assert not await rows.links.use(b"2", now + timedelta(seconds=20))
    assert not await rows.links.use(b"3", now)
    unlimited = await rows.links.find(b"2")
    assert unlimited is not None and (unlimited.uses_left, unlimited.used_at) == (None, now)
    assert unlimited.viewer == Viewer(ALICE.user_id)
    left = await rows.links.find(b"1")
    assert left is not None
    assert left.uses_left == 0
    assert await rows.links.sweep(now + timedelta(seconds=15)) == 1
    assert await rows.links.find(b"1") is None
    await rows.buckets.delete("b")
    assert await rows.links.find(b"2") is None
    assert await refused(rows.links.add({b"4": evolve(always, id=uuid4())})) == "bucket_not_found"


@pytest_twisted.ensureDeferred
async def test_links_of_both_kinds_are_listed_and_revoked(rows: Rows) -> None:
    terms = UploadTerms(True, 5, ("image/*", "a/b"), True, True)
    mine = [
        some_link(
            key=f"k{number}", created_at=START + timedelta(seconds=number // 2), created_by=ALICE.user_id
        )
        for number in range(5)
    ]
    upload = some_link(key="in/", upload=terms, owner=BOB.user_id, created_by=BOB.user_id)
    service = some_link(upload=UploadTerms())
    expired = some_link(expires_at=START, created_by=ALICE.user_id)
    made = [*mine, upload, service, expired]
    await rows.links.add({bytes([number]): link for number, link in enumerate(made)})
    assert [await rows.links.find(bytes([number])) for number in range(len(made))] == made
    newest = sorted(mine, key=lambda link: (link.created_at, link.id), reverse=True)
    creator = ALICE.user_id
    assert await rows.links.page("b", START, creator, None, 9) == newest
    assert await rows.links.page("b", START, creator, None, 2) == newest[:2]
    for number, link in enumerate(newest, 1):
        after = (link.created_at, link.id)
        assert await rows.links.page("b", START, creator, after, 9) == newest[number:]
    assert await rows.links.page("b", START, BOB.user_id, None, 9) == [upload]
    assert len(await rows.links.page("b", START, None, None, 9)) == 7
    assert await rows.links.page("a", START, None, None, 9) == []
    assert not await rows.links.revoke("b", upload.id, creator)
    assert not await rows.links.revoke("a", upload.id, None)
    assert await rows.links.revoke("b", upload.id, BOB.user_id)
    assert not await rows.links.revoke("b", upload.id, BOB.user_id)
    assert await rows.links.revoke("b", service.id, None)
    assert await rows.links.find(bytes([5])) is None
    assert len(await rows.links.page("b", START, None, None, 9)) == 5


@pytest_twisted.ensureDeferred
async def test_many_links_are_added_all_or_none(rows: Rows) -> None:
    many = {number.to_bytes(32): some_link(key=f"ö{number}") for number in range(1000)}
    await rows.links.add(many)
    assert await rows.links.find((999).to_bytes(32)) == many[(999).to_bytes(32)]
    assert await refused(rows.links.add({b"x": some_link("none")})) == "bucket_not_found"
    await put(rows, "a")
    await put(rows, "ü")
    there = await rows.objects.find_many("b", ["ü", "none", "a"])
    assert there == {key: await rows.objects.find("b", key) for key in ("a", "ü")}
    assert await rows.objects.find_many("none", ["a"]) == {}


@pytest_twisted.ensureDeferred
async def test_an_upload_uses_its_link_or_makes_nothing(rows: Rows) -> None:
    links = {name: some_link(upload=UploadTerms()) for name in (b"1", b"2", b"3")}
    await rows.links.add(links)
    await put(rows, "taken")
    create = Conditions(if_none_match=("*",))
    # A refusal does not use it.
    assert await refused(put(rows, "taken", conditions=create, link=b"1")) == "object_exists"
    assert (await put(rows, "k", link=b"1")).row.key == "k"
    used = await rows.links.find(b"1")
    assert used is not None and used.uses_left == 0 and used.used_at is not None
    assert await refused(put(rows, "l", link=b"1")) == "token_used"
    # That it is used counts before other refusals.
    assert await refused(put(rows, "k", conditions=create, link=b"1")) == "token_used"
    assert await rows.links.revoke("b", links[b"2"].id, None)
    assert await refused(put(rows, "l", link=b"2")) == "token_not_found"
    assert await rows.objects.find("b", "l") is None
    # Whether it has expired was decided when the upload began.
    late = some_link(expires_at=START - timedelta(days=1), upload=UploadTerms())
    await rows.links.add({b"4": late})
    await put(rows, "late", link=b"4")
    # Versions that were refused stay reserved, until the upload gives them up.
    assert len(await rows.garbage.stale_uploads(timedelta(0), 10)) == 4
    for keys in ([f"m{number}" for number in range(20)], ["n"] * 20):
        await rows.links.add({b"5": some_link(upload=UploadTerms())})
        outcomes = await together(*(put(rows, key, link=b"5") for key in keys))
        assert sorted(outcomes) == ["done"] + ["token_used"] * 19
        one = await rows.links.find(b"5")
        assert one is not None and await rows.links.revoke("b", one.id, None)
        assert len(await rows.objects.find_many("b", keys)) == 1
    await rows.links.add({b"6": some_link(upload=UploadTerms())})
    outcomes = await together(*(put(rows, "o", conditions=create, link=b"6") for _ in range(20)))
    assert sorted(outcomes) == ["done"] + ["token_used"] * 19
    bucket = await rows.buckets.find("b")
    assert bucket is not None and bucket.object_count == 6


@pytest_twisted.ensureDeferred
async def test_a_bucket_is_deleted_with_its_links_or_gets_the_object_of_one(rows: Rows) -> None:
    """At once, and without a deadlock: both take the bucket before its links."""
    for number in range(10):
        name = f"bucket{number}"
        await rows.buckets.create(name, BucketRules())
        await rows.links.add({b"%d" % number: some_link(name, upload=UploadTerms())})
        uploads = (put(rows, f"k{one}", bucket=name, link=b"%d" % number) for one in range(5))
        deleted, *uploaded = await together(rows.buckets.delete(name), *uploads)
        if deleted == "done":
            assert {*uploaded} <= {"bucket_not_found", "token_not_found"}
        else:
            assert deleted == "bucket_not_empty"
            assert sorted(uploaded) == ["done"] + ["token_used"] * 4


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
    await rows.links.add({b"t": some_link("b", "one", now + timedelta(1), 1)})
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
