"""The contract of the rows of storage, for the fake and for PostgreSQL."""

from __future__ import annotations

import itertools
import json
from uuid import uuid4

import pytest
import pytest_twisted
from attrs import asdict, evolve

from project_service.errors import ApiError
from project_service.storage.assemble import Rows
from project_service.storage.rows import listing
from project_service.storage.values import (
    UNCONDITIONAL,
    BucketRules,
    Conditions,
    Details,
    Entries,
    NewObject,
    ObjectRow,
    Sorting,
    Switched,
    Viewer,
    Writer,
)
from tests.contracts.storage.rows import ALICE, BOB, ETAG, SERVICE, put, refused, together


@pytest_twisted.ensureDeferred
async def test_buckets(rows: Rows) -> None:
    rules = BucketRules("public", 5, 2**45, ("image/*", "a/b"), True)
    made = await rows.buckets.create("a.b", rules)
    assert (made.name, made.rules, made.object_count, made.total_bytes) == ("a.b", rules, 0, 0)
    assert made.created_at.tzinfo is not None
    assert await rows.buckets.find("a.b") == made
    assert await rows.buckets.find("none") is None
    assert [bucket.name for bucket in await rows.buckets.all()] == ["a.b", "b"]
    assert await refused(rows.buckets.create("b", BucketRules())) == "bucket_exists"
    changed = await rows.buckets.change("a.b", {"visibility": "private", "allowed_content_types": None})
    assert changed.rules == BucketRules("private", 5, 2**45, None, True)
    assert (
        await rows.buckets.change("a.b", {"allowed_content_types": ("x/y",)})
    ).rules.allowed_content_types == ("x/y",)
    assert (await rows.buckets.change("a.b", asdict(rules, recurse=False))).rules == rules
    other = await rows.buckets.find("b")
    assert other is not None and other.rules == BucketRules()
    assert await refused(rows.buckets.change("none", {"visibility": "public"})) == "bucket_not_found"
    assert await refused(rows.buckets.change("none", {})) == "bucket_not_found"
    with pytest.raises((TypeError, ValueError)):
        await rows.buckets.change("b", {"name": "c"})
    await put(rows, "k")
    await rows.buckets.delete("a.b")
    assert await refused(rows.buckets.delete("a.b")) == "bucket_not_found"
    assert await refused(rows.buckets.delete("b")) == "bucket_not_empty"


@pytest_twisted.ensureDeferred
async def test_switching_an_object_to_a_new_version(rows: Rows) -> None:
    first = await put(rows, "d/ö", 3)
    assert first.replaced is None
    assert (first.row.key, first.row.size, first.row.owner, first.row.etag) == ("d/ö", 3, ALICE.user_id, ETAG)
    assert first.row.updated_at.microsecond % 1000 == 0
    assert await rows.objects.find("b", "d/ö") == first.row
    assert await rows.objects.find("b", "d") is None
    second = await put(rows, "d/ö", 5, BOB)
    assert second.replaced == first.row.version
    assert await rows.garbage.garbage(10) == [(first.row.version, "b")]
    bucket = await rows.buckets.find("b")
    assert bucket is not None
    assert (bucket.object_count, bucket.total_bytes) == (1, 5)
    await rows.garbage.forget([first.row.version])
    assert await rows.garbage.garbage(10) == []
    other = NewObject("b", "d/ö", uuid4(), 0, "a/b", "f" * 32)
    await rows.objects.reserve_uploads([other.version], "b")
    third = await rows.objects.put(other, ALICE)
    assert (third.row.size, third.row.content_type, third.row.etag) == (0, "a/b", "f" * 32)
    assert await rows.objects.find("b", "d/ö") == third.row


@pytest_twisted.ensureDeferred
async def test_the_room_left_for_a_key(rows: Rows) -> None:
    await put(rows, "k", 5)
    for key in "lmnopq":
        await put(rows, key)
    assert [await rows.objects.room(bucket, "k") for bucket in ("b", "none")] == [None, None]
    for quota, of_it, of_others in ((18, 12, 7), (11, 5, 0), (3, 5, 0)):
        await rows.buckets.change("b", {"max_bucket_bytes": quota})
        assert [await rows.objects.room("b", key) for key in ("k", "new")] == [of_it, of_others]
    await rows.buckets.create("empty", BucketRules(max_bucket_bytes=9))
    assert await rows.objects.room("empty", "k") == 9


@pytest_twisted.ensureDeferred
async def test_a_refused_switch_changes_nothing(rows: Rows) -> None:
    kept = (await put(rows, "k")).row
    conditions = {
        "object_exists": Conditions(if_none_match=("*",)),
        "precondition_failed": Conditions(if_match=("other",)),
    }
    for code, condition in conditions.items():
        assert await refused(put(rows, "k", conditions=condition)) == code
    assert (
        await refused(put(rows, "k", conditions=Conditions(if_none_match=(ETAG,)))) == "precondition_failed"
    )
    assert await refused(put(rows, "new", conditions=Conditions(if_match=("*",)))) == "precondition_failed"
    await rows.buckets.change("b", {"owner_only_writes": True})
    assert await refused(put(rows, "k", writer=BOB)) == "not_owner"
    await rows.buckets.change("b", {"max_bucket_bytes": 10})
    assert await refused(put(rows, "k", 11)) == "payload_too_large"
    assert await refused(put(rows, "l", 10)) == "payload_too_large"
    missing = NewObject("none", "k", uuid4(), 1, "a/b", ETAG)
    assert await refused(rows.objects.put(missing, ALICE)) == "bucket_not_found"
    never_reserved = NewObject("b", "k", uuid4(), 1, "a/b", ETAG)
    assert await refused(rows.objects.put(never_reserved, ALICE)) == "request_timeout"
    assert await rows.objects.find("b", "k") == kept
    assert await rows.garbage.garbage(10) == []
    good = Conditions(if_match=("x", ETAG), if_none_match=("y",))
    assert (await put(rows, "k", conditions=good)).replaced == kept.version
    assert (await put(rows, "k", writer=SERVICE, conditions=Conditions(if_match=("*",)))).row == (
        await rows.objects.find("b", "k")
    )


@pytest_twisted.ensureDeferred
async def test_whose_an_object_is(rows: Rows) -> None:
    await rows.buckets.change("b", {"owner_only_writes": True})
    assert (await put(rows, "k", writer=SERVICE)).row.owner is None
    assert await refused(put(rows, "k", writer=ALICE)) == "not_owner"
    assert (await put(rows, "k", writer=Writer(ALICE.user_id, True))).row.owner == ALICE.user_id
    assert (await put(rows, "k", writer=SERVICE)).row.owner == ALICE.user_id
    assert (await put(rows, "k", writer=ALICE)).row.owner == ALICE.user_id
    assert (await put(rows, "k", writer=Writer(BOB.user_id, True))).row.owner == BOB.user_id
    row = await rows.objects.find("b", "k")
    assert row is not None and row.owner == BOB.user_id


@pytest_twisted.ensureDeferred
async def test_metadata_that_changes_without_new_bytes(rows: Rows) -> None:
    kept = (await put(rows, "k")).row
    assert (kept.owner, kept.max_age_seconds) == (ALICE.user_id, None)
    for changes, owner, age in (
        ({"owner": BOB.user_id}, BOB.user_id, None),
        ({"max_age_seconds": 2**31 - 1}, BOB.user_id, 2**31 - 1),
        ({}, BOB.user_id, 2**31 - 1),
        ({"owner": None, "max_age_seconds": 0}, None, 0),
        ({"owner": ALICE.user_id, "max_age_seconds": None}, ALICE.user_id, None),
    ):
        changed = await rows.objects.change("b", "k", changes, SERVICE, Conditions(if_match=(ETAG,)))
        assert changed == await rows.objects.find("b", "k") == evolve(kept, owner=owner, max_age_seconds=age)
    assert await refused(rows.objects.change("b", "none", {"owner": None}, SERVICE)) == "object_not_found"
    assert await refused(rows.objects.change("none", "k", {"owner": None}, SERVICE)) == "object_not_found"
    unmet = Conditions(if_match=("other",))
    assert (
        await refused(rows.objects.change("b", "k", {"owner": None}, SERVICE, unmet)) == "precondition_failed"
    )
    await rows.objects.change("b", "k", {"max_age_seconds": 7}, ALICE)
    assert (await rows.objects.move("b", "k", "l", ALICE)).row.max_age_seconds == 7
    assert (await put(rows, "l")).row.max_age_seconds is None


DETAILS = Details(60, "max-age=60, immutable", '{"a":{"b":[1,null,"\u00fc"]},"c":2.5}', "de, en-GB")


def shown(row: ObjectRow) -> tuple[object, ...]:
    """Its details, with the metadata as a value: databases write it in other ways than it was sent."""
    metadata = None if row.metadata is None else json.loads(row.metadata)
    return row.max_age_seconds, row.cache_control, metadata, row.content_language, row.sha256


@pytest_twisted.ensureDeferred
async def test_what_an_uploader_says_of_an_object(rows: Rows) -> None:
    digest = "ab" * 32
    row = (await put(rows, "k", details=DETAILS, sha256=digest)).row
    everything = (60, DETAILS.cache_control, json.loads(DETAILS.metadata or ""), "de, en-GB", digest)
    assert shown(row) == everything
    assert await rows.objects.find("b", "k") == row
    assert await rows.garbage.objects_from(None, 10) == [row]
    moved = (await rows.objects.move("b", "k", "l", ALICE)).row
    assert shown(moved) == everything
    changes = {"metadata": '{"new": true}', "content_language": None}
    changed = await rows.objects.change("b", "l", changes, ALICE)
    assert shown(changed) == (60, DETAILS.cache_control, {"new": True}, None, digest)
    assert changed.updated_at == moved.updated_at
    changed = await rows.objects.change("b", "l", {"metadata": None, "cache_control": None}, ALICE)
    assert shown(changed) == (60, None, None, None, digest)
    # An overwrite begins anew.
    assert shown((await put(rows, "l")).row) == (None,) * 5


@pytest_twisted.ensureDeferred
async def test_who_may_change_what_an_object_has_beside_its_bytes(rows: Rows) -> None:
    await put(rows, "k")
    await put(rows, "none", writer=SERVICE)
    change = {"content_language": "de"}
    assert (await rows.objects.change("b", "k", change, BOB)).content_language == "de"
    await rows.buckets.change("b", {"owner_only_writes": True})
    for key in ("k", "none"):
        assert await refused(rows.objects.change("b", key, change, BOB)) == "not_owner"
    await rows.buckets.change("b", {"owner_only_writes": False, "owner_only_reads": True})
    unmet = Conditions(if_match=("other",))
    assert await refused(rows.objects.change("b", "k", change, BOB, unmet)) == "object_not_found"
    assert await refused(rows.objects.change("b", "k", change, ALICE, unmet)) == "precondition_failed"
    for writer in (ALICE, SERVICE):
        assert (await rows.objects.change("b", "k", change, writer)).content_language == "de"


@pytest_twisted.ensureDeferred
async def test_keys_whose_date_does_not_tell_bytes_apart(rows: Rows) -> None:
    """Changes of one key within a second. The real clock may pass into the next one, so some are tried again."""

    async def twice(number: int, way: str) -> bool:
        key, other = f"{way}{number}", f"other{way}{number}"
        await put(rows, key)
        if way == "deleted":
            await rows.objects.delete("b", [key], ALICE)
        elif way == "left":
            await rows.objects.move("b", key, other, ALICE)
        elif way == "moved onto":
            await put(rows, other)
            return (await rows.objects.move("b", other, key, ALICE)).row.changed_twice
        again = (await put(rows, key)).row
        assert again == await rows.objects.find("b", key)
        return again.changed_twice

    for way in ("overwritten", "deleted", "left", "moved onto"):
        for number in range(30):
            if await twice(number, way):
                break
        else:
            pytest.fail(way)
    await rows.buckets.create("another", BucketRules())
    assert not (await put(rows, "first", bucket="another")).row.changed_twice
    assert not (await rows.objects.move("another", "first", "second", ALICE)).row.changed_twice


@pytest_twisted.ensureDeferred
async def test_a_quota_limits_what_one_bucket_holds_after_the_switch(rows: Rows) -> None:
    await rows.buckets.create("another", BucketRules())
    await put(rows, "k", 100, bucket="another")
    await put(rows, "k", 4)
    await rows.buckets.change("b", {"max_bucket_bytes": 10})
    await put(rows, "k", 8)
    assert await refused(put(rows, "l", 3)) == "payload_too_large"
    await put(rows, "l", 2)
    assert await refused(put(rows, "l", 3)) == "payload_too_large"


@pytest_twisted.ensureDeferred
async def test_a_replacement_that_is_no_larger_always_fits(rows: Rows) -> None:
    await put(rows, "k", 10)
    await rows.buckets.change("b", {"max_bucket_bytes": 5})
    for size in (10, 9):
        assert (await put(rows, "k", size)).replaced is not None
    assert await refused(put(rows, "l", 1)) == "payload_too_large"


@pytest_twisted.ensureDeferred
async def test_deleting_objects(rows: Rows) -> None:
    kept = {key: (await put(rows, key, 2)).row.version for key in ("a", "b", "c")}
    deleted = await rows.objects.delete("b", ["a", "x", "b"], BOB)
    assert deleted == {"a": kept["a"], "b": kept["b"]}
    assert {version for version, _ in await rows.garbage.garbage(10)} == {kept["a"], kept["b"]}
    bucket = await rows.buckets.find("b")
    assert bucket is not None
    assert (bucket.object_count, bucket.total_bytes) == (1, 2)
    await put(rows, "mine", writer=BOB)
    await rows.buckets.change("b", {"owner_only_writes": True})
    assert await refused(rows.objects.delete("b", ["mine", "c"], BOB)) == "not_owner"
    assert await rows.objects.find("b", "mine") is not None
    assert len(await rows.objects.delete("b", ["mine", "c"], SERVICE)) == 2
    assert await refused(rows.objects.delete("none", ["a"], BOB)) == "bucket_not_found"


@pytest_twisted.ensureDeferred
async def test_objects_of_other_buckets_are_untouched_and_keys_named_twice_count_once(rows: Rows) -> None:
    """What is done in one bucket is done to no other; and a key that is named twice is one key."""
    await rows.buckets.create("another", BucketRules())
    for key in ("k", "l", "m"):
        await put(rows, key, 3, BOB, bucket="another")
        await put(rows, key, 5)
    await rows.buckets.change("b", {"owner_only_writes": True})
    others = await rows.buckets.find("another"), await rows.garbage.objects_from(("another", ""), 3)
    for key in ("k", "l"):
        await put(rows, key, 6)
    moved = await rows.objects.move("b", "k", "l", ALICE)
    assert moved.row.size == 6 and moved.replaced is not None
    await rows.objects.move("b", "l", "new", ALICE)
    deleted = await rows.objects.delete("b", ["m", "k", "m", "k"], ALICE)
    assert list(deleted) == ["m"]
    bucket = await rows.buckets.find("b")
    assert bucket is not None and (bucket.object_count, bucket.total_bytes) == (1, 6)
    assert (await rows.buckets.find("another"), await rows.garbage.objects_from(("another", ""), 3)) == others


@pytest_twisted.ensureDeferred
async def test_deleting_with_conditions(rows: Rows) -> None:
    kept = (await put(rows, "k")).row
    for code, conditions in (
        ("precondition_failed", Conditions(if_match=("other",))),
        ("precondition_failed", Conditions(if_none_match=(ETAG,))),
        ("object_exists", Conditions(if_none_match=("*",))),
    ):
        assert await refused(rows.objects.delete("b", ["k"], ALICE, conditions)) == code
    assert await rows.objects.find("b", "k") == kept
    there = Conditions(if_match=("*",))
    assert await refused(rows.objects.delete("b", ["none"], ALICE, there)) == "precondition_failed"
    assert await rows.objects.delete("b", ["none"], ALICE, Conditions(if_none_match=("*",))) == {}
    mine = Conditions(if_match=("x", ETAG))
    assert await rows.objects.delete("b", ["k"], ALICE, mine) == {"k": kept.version}


@pytest_twisted.ensureDeferred
async def test_moving_objects(rows: Rows) -> None:
    source, target = (await put(rows, "a", 3)).row, (await put(rows, "b", 4)).row
    none_there = Conditions(if_none_match=("*",))
    assert await refused(rows.objects.move("b", "a", "b", ALICE, none_there)) == "object_exists"
    moved = await rows.objects.move("b", "a", "b", BOB)
    assert (moved.row.key, moved.row.version, moved.row.owner) == ("b", source.version, ALICE.user_id)
    assert moved.replaced == target.version
    assert await rows.garbage.garbage(10) == [(target.version, "b")]
    assert await rows.objects.find("b", "a") is None
    assert await rows.objects.find("b", "b") == moved.row
    bucket = await rows.buckets.find("b")
    assert bucket is not None
    assert (bucket.object_count, bucket.total_bytes) == (1, 3)
    assert (await rows.objects.move("b", "b", "c", ALICE, none_there)).replaced is None
    assert await refused(rows.objects.move("b", "b", "d", ALICE)) == "object_not_found"
    assert await refused(rows.objects.move("none", "b", "d", ALICE)) == "bucket_not_found"
    await rows.buckets.change("b", {"owner_only_writes": True})
    assert await refused(rows.objects.move("b", "c", "d", BOB)) == "not_owner"
    await put(rows, "mine", writer=BOB)
    # The object at the target belongs to Alice.
    assert await refused(rows.objects.move("b", "mine", "c", BOB)) == "not_owner"
    assert (await rows.objects.move("b", "mine", "c", SERVICE)).replaced == source.version


@pytest_twisted.ensureDeferred
async def test_conditions_of_a_move_apply_to_its_target(rows: Rows) -> None:
    await put(rows, "a")
    target = NewObject("b", "b", uuid4(), 1, "a/b", "f" * 32)
    await rows.objects.reserve_uploads([target.version], "b")
    await rows.objects.put(target, ALICE)
    for refusing in (Conditions(if_match=(ETAG,)), Conditions(if_none_match=("f" * 32,))):
        assert await refused(rows.objects.move("b", "a", "b", ALICE, refusing)) == "precondition_failed"
    met = Conditions(if_match=("f" * 32,), if_none_match=(ETAG,))
    assert (await rows.objects.move("b", "a", "b", ALICE, met)).replaced == target.version


@pytest_twisted.ensureDeferred
async def test_pages_of_a_listing(rows: Rows) -> None:
    keys = [
        "Z",
        "a",
        "a!",
        "a/1",
        "a/2",
        "a/b/1",
        "a/b/2",
        "a0",
        "b/\U0010ffff",
        "z/1",
        "ä",
        "ö/1",
        "\ue000",
        "😀",
    ]
    await rows.buckets.create("another", BucketRules())
    for key in keys:
        await put(rows, key)
        await put(rows, key + "0", bucket="another")

    async def all_pages(prefix: str, limit: int, recursive: bool) -> list[str]:
        listed: list[str] = []
        after: str | None = None
        while True:
            page = await rows.objects.page("b", prefix, after, limit, recursive)
            shown, folders = json.loads(page.objects), json.loads(page.folders)
            for entry in shown:
                row = await rows.objects.find("b", entry["key"])
                assert row is not None and entry == row.as_json()
            assert [one["key"] for one in shown] == sorted((one["key"] for one in shown), key=str.encode)
            assert folders == sorted(folders, key=str.encode)
            entries = sorted([one["key"] for one in shown] + folders, key=str.encode)
            assert len(entries) <= limit
            assert not set(entries) & set(listed), "it goes round"
            assert entries or after is None, "nothing was left"
            listed.extend(entries)
            after = page.last
            if after is None:
                return listed
            assert after == entries[-1]

    for limit in (1, 2, 3, 100):
        ordered = sorted(keys, key=str.encode)
        assert await all_pages("", limit, True) == ordered
        assert await all_pages("", limit, False) == [
            "Z",
            "a",
            "a!",
            "a/",
            "a0",
            "b/",
            "z/",
            "ä",
            "ö/",
            "\ue000",
            "😀",
        ]
        assert await all_pages("a/", limit, False) == ["a/1", "a/2", "a/b/"]
        assert await all_pages("a", limit, False) == ["a", "a!", "a/", "a0"]
        # A key that equals the prefix is listed with it.
        assert await all_pages("a", limit, True) == ["a", "a!", "a/1", "a/2", "a/b/1", "a/b/2", "a0"]
        assert await all_pages("a/b", limit, False) == ["a/b/"]
        assert await all_pages("a/b/", limit, True) == ["a/b/1", "a/b/2"]
        assert await all_pages("b/", limit, False) == ["b/\U0010ffff"]
        assert await all_pages("none", limit, False) == []
    assert await rows.objects.keys("b", "a/", 3) == ["a/1", "a/2", "a/b/1"]
    assert [await rows.objects.usage("b", prefix) for prefix in ("", "a/", "none")] == [
        (len(keys), len(keys)), (4, 4), (0, 0)
    ]  # fmt: skip
    sums = [(bucket.object_count, bucket.total_bytes) for bucket in await rows.buckets.all()]
    assert sums == [(len(keys), len(keys))] * 2


async def moved(
    rows: Rows,
    row: ObjectRow,
    key: str,
    writer: Writer = ALICE,
    conditions: Conditions = UNCONDITIONAL,
    bucket: str = "c",
) -> Switched:
    """Its copy has another ETag, as one that was made in parts."""
    version = uuid4()
    await rows.objects.reserve_uploads([version], bucket)
    new = NewObject(bucket, key, version, row.size, row.content_type, "f" * 32)
    return await rows.objects.move_to_bucket(row, new, writer, conditions)


async def counted(rows: Rows) -> dict[str, tuple[int, int]]:
    return {one.name: (one.object_count, one.total_bytes) for one in await rows.buckets.all()}


@pytest_twisted.ensureDeferred
async def test_moves_into_another_bucket(rows: Rows) -> None:
    await rows.buckets.create("c", BucketRules())
    row = (await put(rows, "k", 3, details=DETAILS, sha256="ab" * 32)).row
    there = (await put(rows, "l", 5, bucket="c", writer=BOB)).row
    unmet = Conditions(if_none_match=("*",))
    assert await refused(moved(rows, row, "l", conditions=unmet)) == "object_exists"
    assert await refused(moved(rows, evolve(row, key="none"), "l")) == "object_not_found"
    assert await refused(moved(rows, evolve(row, version=uuid4()), "l")) == "object_changed"
    assert await refused(moved(rows, row, "l", bucket="none")) == "bucket_not_found"
    never = NewObject("c", "l", uuid4(), 3, "text/plain", ETAG)
    assert await refused(rows.objects.move_to_bucket(row, never, ALICE)) == "request_timeout"
    assert await counted(rows) == {"b": (1, 3), "c": (1, 5)}
    assert await rows.objects.find("b", "k") == row

    switched = await moved(rows, row, "l", BOB)
    now = switched.row
    assert (now.bucket, now.key, now.etag, now.size, now.owner) == ("c", "l", "f" * 32, 3, ALICE.user_id)
    assert (shown(now), now.content_type) == (shown(row), row.content_type)
    assert switched.replaced == there.version
    assert await rows.objects.find("b", "k") is None
    assert await rows.objects.find("c", "l") == now
    assert await counted(rows) == {"b": (0, 0), "c": (1, 3)}
    garbage = {(row.version, "b"), (there.version, "c")}
    assert garbage <= set(await rows.garbage.garbage(10))
    assert await rows.garbage.current([row.version, there.version, now.version]) == {now.version}


@pytest_twisted.ensureDeferred
async def test_moves_into_another_bucket_obey_the_rules_of_both(rows: Rows) -> None:
    await rows.buckets.create("c", BucketRules(owner_only_writes=True, max_bucket_bytes=10))
    row = (await put(rows, "k", 6)).row
    await put(rows, "of-bob", 4, writer=BOB, bucket="c")
    await put(rows, "of-alice", 4, bucket="c")
    assert await refused(moved(rows, row, "of-bob")) == "not_owner"
    assert await refused(moved(rows, row, "new")) == "payload_too_large"
    await rows.buckets.change("b", {"owner_only_writes": True})
    assert await refused(moved(rows, row, "of-bob", BOB)) == "not_owner"
    await rows.buckets.change("b", {"owner_only_writes": False, "owner_only_reads": True})
    assert await refused(moved(rows, row, "of-bob", BOB)) == "object_not_found"
    assert (await moved(rows, row, "of-alice")).row.size == 6
    assert await counted(rows) == {"b": (0, 0), "c": (2, 10)}


@pytest_twisted.ensureDeferred
async def test_moves_in_opposite_directions_do_not_wait_for_each_other(rows: Rows) -> None:
    await rows.buckets.create("c", BucketRules(max_bucket_bytes=1000))
    ways = []
    for number in range(12):
        source, target = ("b", "c") if number % 2 else ("c", "b")
        row = (await put(rows, f"{source}{number}", bucket=source)).row
        ways += [
            moved(rows, row, f"moved{number % 3}", bucket=target),
            put(rows, f"k{number}", bucket=target),
        ]
    assert await together(*ways) == ["done"] * 24
    sums = {"b": 0, "c": 0}
    for one in await rows.garbage.objects_from(None, 100):
        sums[one.bucket] += 1
    assert await counted(rows) == {name: (count, count) for name, count in sums.items()}
    assert sums == {"b": 9, "c": 9}


@pytest_twisted.ensureDeferred
async def test_sorted_and_searched_listings(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of every size show the same, also where a page may look at three rows only."""
    keys = ["a/2", "a/10", "A/Ü", "b", "b/a/1", "\U0001f600"]
    for number, key in enumerate(keys):
        await put(rows, key, number % 3, writer=BOB if number % 2 else ALICE)
    await rows.buckets.create("another", BucketRules())
    await put(rows, "z", 0, bucket="another")
    stored = {key: await rows.objects.find("b", key) for key in keys}

    def expected(prefix: str, sorting: Sorting, owner: Writer | None) -> list[str]:
        shown = [row for row in stored.values() if row is not None and row.key.startswith(prefix)]
        shown = [row for row in shown if sorting.search.lower() in row.key[len(prefix) :].lower()]
        shown = [row for row in shown if owner is None or row.owner == owner.user_id]
        by = {
            "key": lambda row: row.key.encode(),
            "size": lambda row: (row.size, row.key.encode()),
            "last_modified": lambda row: (row.updated_at, row.key.encode()),
        }[sorting.by]
        return [row.key for row in sorted(shown, key=by, reverse=sorting.descending)]

    async def listed(prefix: str, sorting: Sorting, owner: Writer | None, limit: int) -> list[str]:
        names: list[str] = []
        after: tuple[str, str] | None = None
        viewer = None if owner is None else Viewer(owner.user_id)
        for _ in range(20):
            page = await rows.objects.sorted_page("b", prefix, sorting, after, limit, viewer)
            objects = json.loads(page.objects)
            assert len(objects) <= limit
            names += [one["key"] for one in objects]
            after = page.last
            if after is None:
                return names
        raise AssertionError("the listing has no end")

    for by, scanned in (("key", 3), ("size", 5000), ("last_modified", 3)):
        monkeypatch.setattr(listing, "SCANNED_ROWS", scanned)
        for descending, search, prefix, limit in itertools.product(
            (False, True), ("", "A", "Ü", "ü"), ("", "a/"), (1, 2, 9)
        ):
            sorting = Sorting(by, descending, search)
            for owner in (None, BOB):
                names = await listed(prefix, sorting, owner, limit)
                assert names == expected(prefix, sorting, owner), (sorting, prefix, owner, limit)


@pytest_twisted.ensureDeferred
async def test_own_objects_alone(rows: Rows) -> None:
    for key in ("a", "d/1", "d/2", "e/1"):
        await put(rows, key, writer=BOB if key == "d/2" else ALICE)
    await put(rows, "f/1", writer=SERVICE)
    await rows.buckets.create("another", BucketRules())
    await put(rows, "z", writer=BOB, bucket="another")
    changed = await rows.buckets.change("b", {"owner_only_reads": True})
    assert changed.rules == BucketRules(owner_only_reads=True)

    async def listed(writer: Writer, prefix: str, recursive: bool, limit: int = 10) -> list[str]:
        names: list[str] = []
        after: str | None = None
        while True:
            page = await rows.objects.page("b", prefix, after, limit, recursive, Viewer(writer.user_id))
            objects, folders = json.loads(page.objects), json.loads(page.folders)
            assert 0 < len(objects) + len(folders) <= limit
            names += [one["key"] for one in objects] + folders
            after = page.last
            if after is None:
                return names

    for limit in (1, 2, 10):
        assert await listed(BOB, "", False, limit) == ["d/"]
        assert await listed(BOB, "d/", limit == 1, limit) == ["d/2"]
        assert await listed(ALICE, "", False, limit) == ["a", "d/", "e/"]
        assert await listed(ALICE, "d", True, limit) == ["d/1"]
        assert await listed(ALICE, "", True, limit) == ["a", "d/1", "e/1"]
        assert await listed(SERVICE, "", True, limit) == ["a", "d/1", "d/2", "e/1", "f/1"]

    assert await refused(rows.objects.move("b", "a", "n", BOB)) == "object_not_found"
    assert await refused(rows.objects.move("b", "d/2", "a", BOB)) == "not_owner"
    for condition in (Conditions(), Conditions(if_none_match=("*",)), Conditions(if_match=("x",))):
        assert await refused(put(rows, "a", writer=BOB, conditions=condition)) == "not_owner"
    matching = Conditions(if_match=("*",))
    for key in ("a", "none"):
        assert await refused(rows.objects.delete("b", [key], BOB, matching)) == "precondition_failed"
    assert (await rows.objects.delete("b", ["a", "d/2", "f/1", "none"], BOB)).keys() == {"d/2"}
    bucket = await rows.buckets.find("b")
    assert bucket is not None and bucket.object_count == 4
    assert (await rows.objects.move("b", "a", "n", ALICE)).row.key == "n"
    assert (await rows.objects.delete("b", ["n", "f/1"], SERVICE)).keys() == {"n", "f/1"}


@pytest_twisted.ensureDeferred
async def test_a_public_bucket_cannot_have_own_objects_alone(rows: Rows) -> None:
    await rows.buckets.create("own", BucketRules(owner_only_writes=True, owner_only_reads=True))
    assert await refused(rows.buckets.change("own", {"visibility": "public"})) == "validation_failed"
    await rows.buckets.change("b", {"visibility": "public"})
    assert await refused(rows.buckets.change("b", {"owner_only_reads": True})) == "validation_failed"
    opened = await rows.buckets.change("own", {"visibility": "public", "owner_only_reads": False})
    assert opened.rules == BucketRules("public", owner_only_writes=True)


@pytest_twisted.ensureDeferred
async def test_the_cache_control_of_a_bucket(rows: Rows) -> None:
    made = await rows.buckets.create("pages", BucketRules("public", cache_control="max-age=60"))
    assert made.rules == BucketRules("public", cache_control="max-age=60")
    changed = await rows.buckets.change("pages", {"cache_control": "no-store"})
    assert changed.rules.cache_control == "no-store"
    assert (await rows.buckets.change("pages", {"cache_control": None})).rules == BucketRules("public")


@pytest_twisted.ensureDeferred
async def test_a_private_bucket_cannot_have_anonymous_reads(rows: Rows) -> None:
    made = await rows.buckets.create("pages", BucketRules("public", anonymous_reads=True))
    assert made.rules == BucketRules("public", anonymous_reads=True)
    for bucket, changes in (("pages", {"visibility": "private"}), ("b", {"anonymous_reads": True})):
        with pytest.raises(ApiError) as caught:
            await rows.buckets.change(bucket, changes)
        assert (caught.value.code, "anonymous_reads" in (caught.value.details or {})) == (
            "validation_failed",
            True,
        )
    closed = await rows.buckets.change("pages", {"visibility": "private", "anonymous_reads": False})
    assert closed.rules == BucketRules()


async def _entries(
    rows: Rows, wanted: Entries, offset: int = 0, limit: int = 99, after: str | None = None
) -> list[str]:
    found = await rows.objects.entries("b", wanted, offset, limit, after)
    return [one if isinstance(one, str) else one.key for one in found]


@pytest_twisted.ensureDeferred
async def test_entries_by_offset(rows: Rows) -> None:
    for key in ("f/b", "f/a/1", "f/a/2", "f/Ab", "f/c", "g/x", "f/Äpfel"):
        await put(rows, key)
    replaced = (await put(rows, "f/b")).row
    names = ["f/Ab", "f/a/", "f/b", "f/c", "f/Äpfel"]
    assert await _entries(rows, Entries("f/")) == names
    assert await _entries(rows, Entries("f/", descending=True)) == names[::-1]
    assert await _entries(rows, Entries("")) == ["f/", "g/"]
    for wanted in (Entries("f/"), Entries("f/", search="")):
        assert await _entries(rows, wanted, 1, 2) == names[1:3]
    assert await _entries(rows, Entries("f/"), 9) == []
    assert await _entries(rows, Entries("none/"), 0) == []
    assert await _entries(rows, Entries("none/", descending=True), 0) == []
    # By when they were made and changed, folders first.
    made = ["f/a/", "f/b", "f/Ab", "f/c", "f/Äpfel"]
    times = {row.key: row for row in (await rows.objects.find_many("b", [*made, "f/a/1"])).values()}
    assert times["f/b"].created_at <= times["f/b"].updated_at == replaced.updated_at
    by_made = sorted(made[1:], key=lambda key: (times[key].created_at, key.encode()))
    by_changed = sorted(made[1:], key=lambda key: (times[key].updated_at, key.encode()))
    assert await _entries(rows, Entries("f/", "created_at")) == ["f/a/", *by_made]
    assert await _entries(rows, Entries("f/", "updated_at")) == ["f/a/", *by_changed]
    assert await _entries(rows, Entries("f/", "updated_at", descending=True)) == ["f/a/", *by_changed[::-1]]
    # What names begin with, in either case; folders too.
    assert await _entries(rows, Entries("f/", search="A")) == ["f/Ab", "f/a/"]
    assert await _entries(rows, Entries("f/", search="ä")) == ["f/Äpfel"]
    assert await _entries(rows, Entries("f/", search="pf")) == []
    everything = ["f/Ab", "f/a/1", "f/a/2", "f/b", "f/c", "f/Äpfel"]
    assert await _entries(rows, Entries("f/", recursive=True)) == everything
    assert await _entries(rows, Entries("f/"), after="f/a/") == ["f/b", "f/c", "f/Äpfel"]
    assert await _entries(rows, Entries("f/", recursive=True), after="f/a/1") == everything[2:]
    # Those of one user.
    await put(rows, "f/z", writer=BOB)
    mine = await rows.objects.entries("b", Entries("f/"), 0, 9, None, Viewer(BOB.user_id))
    assert [one if isinstance(one, str) else one.key for one in mine] == ["f/z"]


@pytest_twisted.ensureDeferred
async def test_more_entries_are_not_passed_than_a_limit(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_PASSED", 3)
    for number in range(4):
        await put(rows, f"k{number}")
    assert await _entries(rows, Entries(""), 1, 2) == ["k1", "k2"]
    assert await refused(_entries(rows, Entries(""), 2, 2)) == "validation_failed"
    assert await refused(_entries(rows, Entries("", descending=True), 0, 1)) == "validation_failed"
    await rows.objects.delete("b", ["k3"], SERVICE)
    assert await _entries(rows, Entries("", descending=True), 0, 1) == ["k2"]


@pytest_twisted.ensureDeferred
async def test_an_object_keeps_its_id_and_the_time_when_it_was_made(rows: Rows) -> None:
    first = (await put(rows, "k")).row
    assert first.id == first.version
    assert first.created_at == first.updated_at
    second = (await put(rows, "k")).row
    assert second.version != first.version
    moved = (await rows.objects.move("b", "k", "l", SERVICE)).row
    await rows.buckets.create("c", BucketRules())
    version = uuid4()
    await rows.objects.reserve_uploads([version], "c")
    new = NewObject("c", "m", version, moved.size, moved.content_type, ETAG)
    there = (await rows.objects.move_to_bucket(moved, new, SERVICE)).row
    for row in (second, moved, there):
        assert (row.id, row.created_at) == (first.id, first.created_at)
    assert there.version == version


@pytest_twisted.ensureDeferred
async def test_a_bucket_may_be_open_and_knows_when_it_was_changed(rows: Rows) -> None:
    made = await rows.buckets.create("o", BucketRules("public"), is_open=True)
    assert (made.open, made.updated_at) == (True, made.created_at)
    changed = await rows.buckets.change("o", {"policies": True})
    assert changed.open
    assert changed.rules.policies
    assert changed.updated_at >= made.created_at
    assert not (await rows.buckets.change("o", {}, is_open=False)).open
    assert not (await rows.buckets.create("p", BucketRules())).open
