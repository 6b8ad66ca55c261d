"""The contract of renditions, for the fake and for PostgreSQL: each belongs to a version of an object, and becomes
garbage with it, whatever happens at the same time."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from project_service.lifecycle import start
from project_service.storage.assemble import Rows
from project_service.storage.repository import NewObject
from project_service.storage.values import StoredRendition
from tests.contracts.storage.rows import ALICE, ETAG, put

NAME = "1-cover-10x10-80.webp"


async def keep(
    rows: Rows, of: UUID, name: str = NAME, at_most: int = 10
) -> tuple[UUID, StoredRendition | None]:
    """The version of a new rendition, and what is stored then."""
    version = uuid4()
    await rows.objects.reserve_uploads([version], "b")
    return version, await rows.renditions.keep("b", of, name, StoredRendition(version, 7, ETAG), at_most)


async def garbage(rows: Rows) -> set[UUID]:
    return {version for version, _ in await rows.garbage.garbage(100)}


@pytest_twisted.ensureDeferred
async def test_the_first_of_a_name_is_stored(rows: Rows) -> None:
    of = (await put(rows, "k")).row.version
    assert await rows.renditions.find(of, NAME) is None
    first, stored = await keep(rows, of)
    assert stored == StoredRendition(first, 7, ETAG) == await rows.renditions.find(of, NAME)
    second, still = await keep(rows, of)
    assert still == stored
    assert await garbage(rows) == {second}
    assert await rows.renditions.find(of, "other") is None
    never = uuid4()
    assert await rows.garbage.unknown([first, second, never]) == {never}


@pytest_twisted.ensureDeferred
async def test_only_so_many_are_stored_for_each_object(rows: Rows) -> None:
    of = (await put(rows, "k")).row.version
    assert (await keep(rows, of, "a", 2))[1] and (await keep(rows, of, "b", 2))[1]
    version, stored = await keep(rows, of, "c", 2)
    assert stored is None and await garbage(rows) == {version}
    other = (await put(rows, "l")).row.version
    assert (await keep(rows, other, "c", 2))[1]


@pytest_twisted.ensureDeferred
async def test_none_is_stored_for_what_is_no_object_s_version(rows: Rows) -> None:
    version, stored = await keep(rows, uuid4())
    assert stored is None and await garbage(rows) == {version}


@pytest_twisted.ensureDeferred
async def test_one_whose_upload_was_given_up_is_not_stored(rows: Rows) -> None:
    of = (await put(rows, "k")).row.version
    lost = StoredRendition(uuid4(), 7, ETAG)
    await rows.objects.reserve_uploads([lost.version], "b")
    await rows.garbage.discard([lost.version])
    assert await rows.renditions.keep("b", of, NAME, lost, 10) is None
    assert await rows.renditions.find(of, NAME) is None
    assert await garbage(rows) == {lost.version}


@pytest_twisted.ensureDeferred
async def test_a_rendition_becomes_garbage_with_its_object(rows: Rows) -> None:
    old = (await put(rows, "k")).row.version
    made, _ = await keep(rows, old)
    new = (await put(rows, "k")).row.version
    assert await rows.renditions.find(old, NAME) is None
    assert await garbage(rows) == {old, made}
    # Both are forgotten together.
    assert await rows.garbage.forget([old]) == [made]
    assert await rows.garbage.forget([made]) == []
    again, _ = await keep(rows, new)
    await rows.objects.move("b", "k", "m", ALICE)
    assert await rows.renditions.find(new, NAME) is not None
    target = (await put(rows, "t")).row.version
    onto, _ = await keep(rows, target)
    await rows.objects.move("b", "m", "t", ALICE)
    assert await garbage(rows) == {target, onto}
    await rows.objects.delete("b", ["t"], ALICE)
    assert await garbage(rows) == {target, onto, new, again}


@pytest_twisted.ensureDeferred
async def test_a_change_of_metadata_leaves_it(rows: Rows) -> None:
    of = (await put(rows, "k")).row.version
    made, _ = await keep(rows, of)
    await rows.objects.change("b", "k", {"max_age_seconds": 5}, ALICE)
    stored = await rows.renditions.find(of, NAME)
    assert stored is not None and stored.version == made


@pytest_twisted.ensureDeferred
async def test_one_that_is_lost_is_forgotten(rows: Rows) -> None:
    of = (await put(rows, "k")).row.version
    made, _ = await keep(rows, of)
    await rows.renditions.forget(uuid4())
    await rows.renditions.forget(made)
    assert await rows.renditions.find(of, NAME) is None
    assert await rows.garbage.unknown([made]) == {made}


@pytest_twisted.ensureDeferred
async def test_none_is_left_behind_whatever_comes_first(rows: Rows) -> None:
    """Renditions are stored while their object is overwritten and deleted: each ends as a current object's, or as
    garbage."""
    for round_ in range(10):
        of = (await put(rows, "k")).row.version
        new = NewObject("b", "k", uuid4(), 1, "a/b", ETAG)
        await rows.objects.reserve_uploads([new.version], "b")
        change = rows.objects.put(new, ALICE) if round_ % 2 else rows.objects.delete("b", ["k"], ALICE)
        doing: list[Deferred[object]] = [start(keep(rows, of, f"{one}")) for one in range(4)]
        doing.insert(round_ % 5, start(change))
        done = await gatherResults(doing, consumeErrors=True)
        made = {one[0] for one in done if isinstance(one, tuple)}
        assert len(made) == 4
        assert made <= await garbage(rows)
        assert [await rows.renditions.find(of, f"{one}") for one in range(4)] == [None] * 4
