"""The contract of the rows of resumable uploads, for the fake and for PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest_twisted
from attrs import evolve

from project_service.storage.assemble import Rows
from project_service.storage.values import (
    NO_DETAILS,
    UNCONDITIONAL,
    BucketRules,
    Conditions,
    Details,
    NewObject,
    Progress,
    ResumableUpload,
)
from tests.contracts.storage.rows import ALICE, ETAG, put, refused, together

DAY, LEASE = timedelta(days=1), timedelta(minutes=1)
NEVER = datetime(2000, 1, 1, tzinfo=UTC)
NOTHING = Progress(0, 25, None, (), None)


def upload(**given: Any) -> ResumableUpload:
    version, owner = uuid4(), ALICE.user_id
    made = ResumableUpload(
        version, "b", "k", "text/plain", owner, False, NO_DETAILS, UNCONDITIONAL, "", 25, 10, 0
    )
    return evolve(made, **given)


async def begun(rows: Rows, **given: Any) -> UUID:
    made = upload(**given)
    await rows.resumables.create(made, DAY)
    return made.version


async def held(rows: Rows, **given: Any) -> tuple[UUID, UUID]:
    version, holder = await begun(rows, **given), uuid4()
    assert await rows.resumables.hold(version, holder, LEASE) is not None
    return version, holder


async def tail_of(rows: Rows) -> UUID:
    tail = uuid4()
    await rows.objects.reserve_uploads([tail], "b")
    return tail


@pytest_twisted.ensureDeferred
async def test_everything_that_is_said_at_the_beginning_is_kept(rows: Rows) -> None:
    conditions = Conditions(("a", "b"), ("*",), datetime(2026, 1, 2, tzinfo=UTC))
    made = upload(
        conditions=conditions,
        by_service=True,
        owner=None,
        length=None,
        details=Details(7, "max-age=7", '{"a":"ä"}', "de"),
        metadata="key YQ==",
        part_step=3,
        sha256="ab" * 32,
    )
    expires_at = await rows.resumables.create(made, DAY)
    assert await rows.resumables.find(made.version) == evolve(made, expires_at=expires_at)
    assert await rows.resumables.find(uuid4()) is None
    assert await refused(rows.resumables.create(upload(bucket="absent"), DAY)) == "bucket_not_found"


@pytest_twisted.ensureDeferred
async def test_one_holds_an_upload_until_it_is_released(rows: Rows) -> None:
    version, one = await held(rows)
    two = uuid4()
    assert await rows.resumables.renew(version, one, LEASE) is False
    assert await rows.resumables.hold(version, two, LEASE) is None
    seen = await rows.resumables.find(version)
    assert seen is not None
    assert seen.held
    # The holder learns that somebody waits.
    assert await rows.resumables.renew(version, one, LEASE) is True
    assert await rows.resumables.renew(version, two, LEASE) is None
    await rows.resumables.release(version, two)
    assert await rows.resumables.hold(version, two, LEASE) is None
    await rows.resumables.release(version, one)
    taken = await rows.resumables.hold(version, two, LEASE)
    assert taken is not None
    assert await rows.resumables.renew(version, one, LEASE) is None
    assert await rows.resumables.renew(version, two, LEASE) is False
    assert await rows.resumables.hold(uuid4(), two, LEASE) is None


@pytest_twisted.ensureDeferred
async def test_a_hold_that_is_not_renewed_ends(rows: Rows) -> None:
    version = await begun(rows)
    one, two = uuid4(), uuid4()
    assert await rows.resumables.hold(version, one, timedelta(0)) is not None
    # Nobody else has taken it yet.
    assert await rows.resumables.renew(version, one, timedelta(0)) is False
    assert await rows.resumables.hold(version, two, LEASE) is not None
    assert await rows.resumables.advance(version, one, NOTHING, DAY) is None
    new = NewObject("b", "k", version, 25, "text/plain", ETAG)
    assert await rows.resumables.commit(version, one, new, ALICE, UNCONDITIONAL) is None
    assert await rows.objects.find("b", "k") is None
    assert await rows.resumables.remove(version, one) == []


@pytest_twisted.ensureDeferred
async def test_the_holder_says_which_digest_the_whole_must_have(rows: Rows) -> None:
    version, holder = await held(rows)
    digest = "ab" * 32
    assert not await rows.resumables.expect_sha256(version, uuid4(), digest)
    seen = await rows.resumables.find(version)
    assert seen is not None and seen.sha256 is None
    assert await rows.resumables.expect_sha256(version, holder, digest)
    row = await rows.resumables.advance(version, holder, NOTHING, DAY)
    assert row is not None and row.sha256 == digest


@pytest_twisted.ensureDeferred
async def test_of_many_that_want_to_hold_it_one_does(rows: Rows) -> None:
    version = await begun(rows)
    outcomes: list[ResumableUpload | None] = []

    async def take() -> None:
        outcomes.append(await rows.resumables.hold(version, uuid4(), LEASE))

    await together(*(take() for _ in range(6)))
    assert sum(one is not None for one in outcomes) == 1


@pytest_twisted.ensureDeferred
async def test_progress_is_recorded_and_a_tail_that_is_replaced_is_garbage(rows: Rows) -> None:
    version, holder = await held(rows, length=None)
    tail = await tail_of(rows)
    row = await rows.resumables.advance(version, holder, Progress(4, None, None, (), tail), DAY)
    assert row is not None
    assert (row.received, row.tail, row.etags, row.length) == (4, tail, (), None)
    # The tail lives as long as the upload.
    assert await rows.garbage.stale_uploads(timedelta(0), 10) == []
    row = await rows.resumables.advance(version, holder, Progress(20, 25, "u", ("one", "two"), None), DAY)
    assert row is not None
    assert (row.received, row.tail, row.etags, row.upload_id) == (20, None, ("one", "two"), "u")
    assert await rows.garbage.garbage(10) == [(tail, "b")]
    row = await rows.resumables.advance(version, holder, Progress(25, 25, "u", ("three",), None, "e"), DAY)
    assert row is not None
    assert (row.etags, row.etag, row.length, row.whole) == (("one", "two", "three"), "e", 25, True)
    assert await rows.resumables.find(version) == row


@pytest_twisted.ensureDeferred
async def test_progress_is_refused_once_the_versions_are_given_up(rows: Rows) -> None:
    version, holder = await held(rows)
    tail = await tail_of(rows)
    await rows.garbage.discard([tail])
    assert await rows.resumables.advance(version, holder, Progress(4, 25, None, (), tail), DAY) is None
    await rows.garbage.discard([version])
    assert await rows.resumables.advance(version, holder, NOTHING, DAY) is None
    row = await rows.resumables.find(version)
    assert row is not None
    assert row.received == 0


@pytest_twisted.ensureDeferred
async def test_the_sweeper_gives_it_up_only_after_it_has_expired(rows: Rows) -> None:
    version = await begun(rows)
    old = upload()
    await rows.resumables.create(old, timedelta(0))
    assert await rows.garbage.stale_uploads(timedelta(0), 10) == [old.version]
    assert await rows.garbage.unknown([version]) == set()
    row = await rows.resumables.find(old.version)
    assert row is not None
    assert await rows.resumables.sweep(row.expires_at) == 0
    assert await rows.resumables.sweep(row.expires_at + timedelta(minutes=1)) == 1
    assert await rows.resumables.find(old.version) is None
    assert await rows.resumables.find(version) is not None


@pytest_twisted.ensureDeferred
async def test_the_commit_is_the_switch_of_an_upload_and_marks_it(rows: Rows) -> None:
    replaced = (await put(rows, "k")).row.version
    version, holder = await held(rows)
    new = NewObject("b", "k", version, 25, "text/plain", ETAG)
    switched = await rows.resumables.commit(version, holder, new, ALICE, UNCONDITIONAL)
    assert switched is not None
    assert (switched.row.version, switched.replaced) == (version, replaced)
    assert await rows.objects.find("b", "k") == switched.row
    row = await rows.resumables.find(version)
    assert row is not None
    assert (row.committed_at, row.etag) == (switched.row.updated_at, ETAG)
    # Forgetting it leaves the object.
    assert await rows.resumables.remove(version, holder) == []
    assert await rows.resumables.find(version) is None
    assert await rows.garbage.current([version]) == {version}


@pytest_twisted.ensureDeferred
async def test_a_commit_that_is_refused_changes_nothing(rows: Rows) -> None:
    await put(rows, "k")
    version, holder = await held(rows)
    new = NewObject("b", "k", version, 25, "text/plain", ETAG)
    never = Conditions(if_none_match=("*",))
    assert await refused(rows.resumables.commit(version, holder, new, ALICE, never)) == "object_exists"
    row = await rows.resumables.find(version)
    assert row is not None
    assert row.committed_at is None
    assert await rows.garbage.reserved([version]) == {version}
    await rows.garbage.discard([version])
    assert (
        await refused(rows.resumables.commit(version, holder, new, ALICE, UNCONDITIONAL)) == "request_timeout"
    )


@pytest_twisted.ensureDeferred
async def test_an_upload_that_is_removed_is_garbage_with_its_tail(rows: Rows) -> None:
    version, holder = await held(rows)
    tail = await tail_of(rows)
    await rows.resumables.advance(version, holder, Progress(4, 25, None, (), tail), DAY)
    assert set(await rows.resumables.remove(version, holder)) == {version, tail}
    assert {one for one, _ in await rows.garbage.garbage(10)} == {version, tail}
    assert await rows.resumables.find(version) is None


@pytest_twisted.ensureDeferred
async def test_a_bucket_that_is_deleted_takes_its_uploads_with_it(rows: Rows) -> None:
    await rows.buckets.create("c", BucketRules())
    version = await begun(rows, bucket="c")
    await rows.buckets.delete("c")
    assert await rows.resumables.find(version) is None
    # What the store has of it is still known.
    assert await rows.garbage.unknown([version]) == set()
