"""The contract of renditions, for the fake and for PostgreSQL: each belongs to a version of an object, and becomes
garbage with it, whatever happens at the same time."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from project_service.lifecycle import start
from project_service.storage.assemble import Rows
from project_service.storage.values import NewObject, StoredRendition
from tests.contracts.storage.rows import ALICE, ETAG, put

NAME = "1-cover-10x10-80.webp"


def rendition(version: UUID) -> StoredRendition:
    return StoredRendition(version, 7, ETAG)


async def make(
    rows: Rows, of: UUID, name: str, at_most: int, used: dict[UUID, float] | None = None
) -> tuple[UUID, list[UUID]]:
    """The version of a new rendition, which is stored, and those that made room for it."""
    version = uuid4()
    await rows.objects.reserve_uploads([version], "b")
    stored, evicted = await rows.renditions.keep("b", of, name, rendition(version), at_most, used or {})
    assert stored == rendition(version)
    return version, evicted


async def keep(
    rows: Rows, of: UUID, name: str = NAME, at_most: int = 10
) -> tuple[UUID, StoredRendition | None]:
    """The version of a new rendition, and what is stored then."""
    version = uuid4()
    await rows.objects.reserve_uploads([version], "b")
    stored, evicted = await rows.renditions.keep("b", of, name, rendition(version), at_most, {})
    assert not evicted
    return version, stored


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
    a, b = [(await keep(rows, of, name, 2))[0] for name in ("a", "b")]
    # Another of the same name takes no room from anybody.
    again, _ = await keep(rows, of, "a", 2)
    assert await garbage(rows) == {again}
    c, evicted = await make(rows, of, "c", 2)
    assert evicted == [a]
    assert await rows.renditions.find(of, "a") is None
    assert [await rows.renditions.find(of, name) for name in ("b", "c")] == [rendition(b), rendition(c)]
    assert await garbage(rows) == {again, a}
    other = (await put(rows, "l")).row.version
    assert (await make(rows, other, "c", 2))[1] == []
    # Where fewer are allowed by now, all that are too many go.
    d, evicted = await make(rows, of, "d", 1)
    assert (set(evicted), await rows.renditions.find(of, "d")) == ({b, c}, rendition(d))
    nothing, stored = await keep(rows, of, "e", 0)
    assert stored is None and await garbage(rows) == {again, a, b, c, nothing}


@pytest_twisted.ensureDeferred
async def test_those_that_were_used_lately_stay(rows: Rows) -> None:
    of = (await put(rows, "k")).row.version
    versions = [(await make(rows, of, name, 3))[0] for name in ("a", "b", "c")]
    # What the process knows that makes one counts, and stays known. What it says of another object's does not matter.
    assert (await make(rows, of, "d", 3, {versions[0]: 0.0, uuid4(): 0.0}))[1] == [versions[1]]
    assert (await make(rows, of, "e", 3))[1] == [versions[2]]
    # An older use than the one that is known changes nothing.
    assert (await make(rows, of, "f", 3, {versions[0]: 1000.0}))[1] == [versions[0]]


@pytest_twisted.ensureDeferred
async def test_there_are_never_too_many_and_none_is_left_behind(rows: Rows) -> None:
    """Many make renditions of one object at the same time."""
    of = (await put(rows, "k")).row.version
    made = await gatherResults([start(make(rows, of, f"{one}", 3)) for one in range(12)])
    stored = [await rows.renditions.find(of, f"{one}") for one in range(12)]
    left = {one.version for one in stored if one is not None}
    assert len(left) == 3
    evicted = [version for _, gone in made for version in gone]
    assert len(evicted) == len(set(evicted)) == 9
    assert await garbage(rows) == set(evicted) == {version for version, _ in made} - left


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
    assert await rows.renditions.keep("b", of, NAME, lost, 10, {}) == (None, [])
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
