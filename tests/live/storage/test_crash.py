"""SIGKILL at every step of every change: nothing acknowledged is lost or mixed up, and the sweeper removes the
rest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_twisted

from project_service.database.connecting import Connector
from project_service.database.pool import Pool
from project_service.dsn import read_dsn
from project_service.errors import ApiError
from project_service.http.head import HeaderView
from project_service.settings.model import Storage as StorageSettings
from project_service.settings.model import Store
from project_service.storage.assemble import Storage, assemble
from project_service.storage.durations import KEEP_EXPIRED_LINKS
from project_service.storage.links import Links
from project_service.storage.resumables import NewUpload, Piece
from project_service.storage.sha256 import MissingDigests, Reader
from project_service.storage.upload import SizeLimit
from project_service.storage.values import (
    NO_DETAILS,
    UNCONDITIONAL,
    BucketRules,
    Details,
    ObjectRow,
    UploadTerms,
    Writer,
)
from tests.fakes.store import Collected
from tests.live.services import wait
from tests.live.sql import run_sql
from tests.live.storage import crash as storage_crash

NO_HEADERS = HeaderView(())
SERVICE = Writer(None, is_service=True)
OLD = b"old"
BIG = 3 * storage_crash.PART + 100

SMALL_UPLOAD = ("reserved", "stored", "committed", "done")
CASES = [
    *(("upload", 4000, False, step) for step in SMALL_UPLOAD),
    *(("upload", 4000, True, step) for step in (*SMALL_UPLOAD, "removed")),
    *(("upload", BIG, True, step) for step in ("reserved", "half way", "parts sent", "stored", "committed")),
    ("upload", BIG, False, "half way"),
    ("upload", 4000, True, "bytes deleted"),
    *(("copy", 4000, True, step) for step in ("reserved", "stored", "committed", "removed")),
    *(("move", 4000, True, step) for step in ("committed", "removed")),
    *(("delete", 4000, True, step) for step in ("committed", "bytes deleted", "removed")),
    *(("bulk delete", 4000, True, step) for step in ("committed", "bytes deleted")),
]


@contextmanager
def storage_on(dsn: str, store: Store) -> Iterator[Storage]:
    from twisted.internet import reactor

    pool = Pool(Connector(reactor, read_dsn(dsn), 30, timezone="UTC"), 4, 30.0, reactor)
    storage = assemble(reactor, StorageSettings(part_bytes=storage_crash.PART), store, pool)
    wait(storage.start)
    try:
        yield storage
    finally:
        wait(storage.stop)
        wait(pool.close)


@pytest.fixture(scope="module")
def storage(module_database: str, store_settings: Store) -> Iterator[Storage]:
    with storage_on(module_database, store_settings) as made:
        wait(lambda: two_buckets(made))
        yield made


async def two_buckets(storage: Storage) -> None:
    await storage.buckets.create("b", BucketRules())
    await storage.buckets.create("c", BucketRules())


async def put(
    storage: Storage,
    key: str,
    payload: bytes,
    bucket: str = "b",
    details: Details = NO_DETAILS,
    content_type: str = "text/plain",
) -> None:
    async with await storage.objects.uploads.begin(bucket, SizeLimit(len(payload))) as upload:
        await upload.write(payload)
        await upload.store()
        await upload.commit(key, content_type, details, SERVICE, UNCONDITIONAL)


async def content(storage: Storage, key: str, bucket: str = "b") -> bytes | None:
    row = await storage.objects.rows.find(bucket, key)
    if row is None:
        return None
    sink = Collected()
    await (await storage.objects.uploads.store.open(row.path, 0, row.size, row.size)).pipe_to(sink)
    return bytes(sink.data)


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.live.storage.crash"]
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        yield running


@pytest.fixture
def crash(program: subprocess.Popen[str], module_database: str, store_settings: Store) -> Callable[..., None]:
    """Does ``given`` in a process of its own, and asserts that it dies."""
    assert store_settings.secret_access_key is not None
    access = {
        "endpoint_url": store_settings.endpoint_url,
        "region": store_settings.region,
        "bucket": store_settings.bucket,
        "access_key_id": store_settings.access_key_id,
        "secret_access_key": store_settings.secret_access_key.reveal(),
    }

    def crash(**given: Any) -> None:
        assert program.stdin is not None
        assert program.stdout is not None
        print(json.dumps({"dsn": module_database, "store": access, **given}), file=program.stdin, flush=True)
        assert program.stdout.readline() == "-9\n"

    return crash


@pytest.mark.parametrize(("what", "size", "exists", "step"), CASES)
@pytest_twisted.ensureDeferred
async def test_a_process_killed_at_any_step_loses_nothing_acknowledged(
    storage: Storage, crash: Callable[..., None], what: str, size: int, exists: bool, step: str
) -> None:
    key = f"{what}-{size}-{exists}-{step}"
    new = storage_crash.new_payload(size)
    if exists:
        await put(storage, key, OLD)
    if what in ("copy", "move"):
        await put(storage, "source", new)
    keys = [key]
    if what == "bulk delete":
        what, keys = "delete", [key, f"{key}/2"]
        await put(storage, keys[1], OLD)
    crash(what=what, size=size, step=step, key=key, keys=keys)
    switched = step in ("committed", "bytes deleted", "removed", "done")
    expected = OLD if exists else None
    if switched:
        expected = None if what == "delete" else new
    assert [await content(storage, one) for one in keys] == [expected] * len(keys)
    source_left = what == "copy" or (what == "move" and not switched)
    if what in ("copy", "move"):
        assert await content(storage, "source") == (new if source_left else None)
    report = await storage.sweeper.verify()
    assert report.sound, report
    # The sweeper knows of everything that was left behind, without searching the store.
    assert report.orphans == []
    left = {entry.key for entry in await stored(storage)} - {
        row.path for row in await storage.sweeper.rows.objects_from(None, 1000)
    }
    # What this process has reserved in advance is silent, and would be swept as well.
    await storage.reservations.release_all()
    swept = await storage.sweeper.sweep(timedelta(0))
    assert swept.versions >= len(left)
    assert len(await stored(storage)) == report.objects
    assert await storage.objects.uploads.store.list_multiparts() == ()
    assert await content(storage, key) == expected
    if not switched:
        assert swept.uploads == 1
    if step in ("half way", "parts sent"):
        assert swept.multiparts == 1
    if step in ("committed", "bytes deleted") and exists:
        assert swept.versions == len(keys)
    bucket = await storage.buckets.fresh("b")
    assert bucket.object_count == report.objects


@pytest.mark.parametrize("step", ["reserved", "half way", "parts sent", "stored", "committed", "removed"])
@pytest_twisted.ensureDeferred
async def test_a_link_is_used_by_the_upload_that_made_an_object_and_by_no_other(
    storage: Storage, crash: Callable[..., None], step: str
) -> None:
    key = f"by link {step}"
    await put(storage, key, OLD)
    terms = UploadTerms(overwrite=True, as_service=True)
    (token,) = await storage.links.make("b", [key], 3600, upload=terms)
    crash(what="upload", size=BIG, step=step, key=key, token=token)
    if step in ("committed", "removed"):
        assert await content(storage, key) == storage_crash.new_payload(BIG)
        with pytest.raises(ApiError) as refused:
            await storage.links.for_upload(token)
        assert refused.value.code == "token_used"
    else:
        assert await content(storage, key) == OLD
        by_link = await storage.links.for_upload(token)
        async with await storage.objects.uploads.begin("b", SizeLimit(5)) as upload:
            await upload.write(b"again")
            await upload.store()
            await upload.commit(
                key, "text/plain", NO_DETAILS, by_link.writer, by_link.narrowed(UNCONDITIONAL), by_link.digest
            )
        assert await content(storage, key) == b"again"
    await storage.reservations.release_all()
    await storage.sweeper.sweep(timedelta(0))
    report = await storage.sweeper.verify()
    assert report.sound and report.orphans == []
    assert len(await stored(storage)) == report.objects


DETAILS = Details(60, "max-age=60", '{"album":"trip"}', "de")


@pytest.mark.parametrize("step", ["reserved", "stored", "committed", "bytes deleted", "removed"])
@pytest.mark.parametrize("what", ["copy away", "move away"])
@pytest_twisted.ensureDeferred
async def test_an_object_on_its_way_into_another_bucket_is_whole_in_one_of_them(
    storage: Storage, crash: Callable[..., None], what: str, step: str
) -> None:
    key, new = f"{what} {step}", storage_crash.new_payload(4000)
    await put(storage, "source", new, details=DETAILS)
    await put(storage, key, OLD, "c")
    before = await storage.objects.rows.find("b", "source")
    assert before is not None and before.sha256 is not None
    crash(what=what, size=4000, step=step, key=key)
    switched = step in ("committed", "bytes deleted", "removed")
    target = await storage.objects.rows.find("c", key)
    assert target is not None
    assert await content(storage, key, "c") == (new if switched else OLD)
    assert (shown(target) == shown(before)) is switched
    there = what == "copy away" or not switched
    assert await content(storage, "source") == (new if there else None)
    await left_clean(storage)
    assert await content(storage, key, "c") == (new if switched else OLD)
    await storage.objects.delete_prefix(await storage.buckets.fresh("b"), "source")


def shown(row: ObjectRow) -> dict[str, Any]:
    return {**row.as_info(with_owner=True), "metadata": row.metadata, "key": None, "last_modified": None}


@pytest.mark.parametrize("step", ["reserved", "stored", "committed", "bytes deleted", "done"])
@pytest_twisted.ensureDeferred
async def test_a_rendition_that_makes_room_for_another_leaves_nothing_behind(
    storage: Storage, crash: Callable[..., None], step: str
) -> None:
    key = f"picture {step}"
    await put(storage, key, b"picture", content_type="image/jpeg")
    row = await storage.objects.rows.find("b", key)
    assert row is not None
    crash(what="rendition", size=0, step="done", key=key, width=1)
    crash(what="rendition", size=0, step=step, key=key, width=2)
    names = [f"1-inside-{width}x-80.jpeg" for width in (1, 2)]
    first, second = [await storage.renditions.rows.find(row.version, name) for name in names]
    assert (first is None, second is None) == (
        (False, True) if step in ("reserved", "stored") else (True, False)
    )
    await left_clean(storage, renditions=1)
    left = second if first is None else first
    assert (
        left is not None and (await storage.objects.uploads.store.stat(f"b/{left.version}")).size == left.size
    )
    await storage.objects.delete_prefix(await storage.buckets.fresh("b"), key)
    await left_clean(storage)


# The step at which a request that appends up to a byte is killed, from which byte on it appends, and how many bytes
# the client of the upload sees then, at least.
P = storage_crash.PART
KILLED = [
    ("parts sent", 1000, 0, 0),  # the first tail is stored, and not recorded
    ("recorded", 1000, 0, 1000),
    ("parts sent", 2000, 1000, 1000),
    ("recorded", 2000, 1000, 2000),
    ("recorded", 3 * P + 5, 1000, P),  # after the first part, which has the tail in it
    ("parts sent", 2 * P + 5, P + 7, P + 7),
    ("recorded", 2 * P, P + 7, P + 7),
    ("whole sent", 4000, 1000, 1000),
    ("recorded", 4000, 1000, 4000),
    ("stored", 4000, 1000, 4000),
    ("committed", 4000, 1000, 4000),
    ("parts sent", BIG, P + 7, P + 7),
    ("completing", BIG, P + 7, BIG),
    ("stored", BIG, P + 7, BIG),
    ("committed", BIG, P + 7, BIG),
]


async def has_its_digest(storage: Storage, key: str, payload: bytes) -> None:
    """At once where one process received all bytes or the client said what it is, else when it is computed."""
    from twisted.internet import reactor

    digest = sha256(payload).hexdigest()
    row = await storage.objects.rows.find("b", key)
    assert row is not None and row.sha256 in (digest, None)
    uploads = storage.objects.uploads
    await MissingDigests(uploads.garbage, Reader(uploads.store, reactor), storage.live).compute()
    row = await storage.objects.rows.find("b", key)
    assert row is not None and row.sha256 == digest


@pytest.mark.parametrize(("step", "until", "before", "least"), KILLED)
@pytest_twisted.ensureDeferred
async def test_a_resumable_upload_outlives_the_process_at_any_step(
    storage: Storage,
    crash: Callable[..., None],
    module_database: str,
    step: str,
    until: int,
    before: int,
    least: int,
) -> None:
    size = 4000 if until <= 4000 else BIG
    payload, key = storage_crash.payload_of(size), f"resumable {step} {until} {before}"
    resumables, bucket = storage.resumables, await storage.buckets.fresh("b")
    # Where the client has said which digest the whole has, it is compared before there is an object.
    expected = sha256(payload).hexdigest() if before else None
    new = NewUpload(key, "text/plain", size, UNCONDITIONAL, NO_DETAILS, "", expected)
    row = await resumables.begin(bucket, new, SERVICE)
    assert row.first_part == P
    if before:
        await resumables.append(row, storage_crash.request_with(payload[:before]), Piece(0), SERVICE)
    crash(what="append", version=str(row.version), size=size, until=until, step=step)
    seen = await resumables.find("b", row.version, SERVICE)
    assert least <= seen.received <= until
    if (step, until, before, least) != KILLED[0]:
        # The first of these tests waits until the hold ends by itself, the others are as if that time had passed.
        ended = (
            "update storage.resumable set held_until = now() where version = %s returning holder is not null"
        )
        assert run_sql(module_database, ended, str(row.version)) == [(True,)]
    # What a client would see: the hold of the process that was killed ends, and what was whole becomes the object.
    seen = await resumables.current(seen, storage_crash.request_with(b""), SERVICE)
    assert least <= seen.received <= until
    assert (await storage.sweeper.verify()).orphans == []
    rest = storage_crash.request_with(payload[seen.received :])
    done = await resumables.append(seen, rest, Piece(seen.received), SERVICE)
    assert done.committed_at is not None
    assert await content(storage, key) == payload
    await has_its_digest(storage, key, payload)
    report = await storage.sweeper.verify()
    assert (report.sound, report.orphans) == (True, [])
    await storage.reservations.release_all()
    await storage.sweeper.sweep(timedelta(0))
    assert len(await stored(storage)) == report.objects
    assert await storage.objects.uploads.store.list_multiparts() == ()


@pytest.mark.parametrize("step", ["made", "used"])
@pytest_twisted.ensureDeferred
async def test_a_link_outlives_the_process_and_is_never_used_twice(
    storage: Storage, crash: Callable[..., None], step: str
) -> None:
    await put(storage, "linked", OLD)
    crash(what="link", size=0, step=step, key="linked", token=f"token {step}")
    rows = storage.sweeper.links
    links = Links(rows, storage.sweeper.now, lambda: "old", uuid4)
    if step == "made":
        use = await links.use("token made", NO_HEADERS)
        assert use.link.key == "linked"
        await use.take()
    with pytest.raises(ApiError) as refused:
        await links.use(f"token {step}", NO_HEADERS)
    assert refused.value.code == "token_used"
    # A link that expired a day ago is deleted by the sweeper, and no other.
    await links.make("b", ["linked"], -int(KEEP_EXPIRED_LINKS.total_seconds()) - 1)
    assert (await storage.sweeper.sweep()).links == 1
    with pytest.raises(ApiError) as refused:
        await links.use("old", NO_HEADERS)
    assert refused.value.code == "token_not_found"
    await storage.objects.delete(await storage.buckets.fresh("b"), ["linked"], SERVICE)


async def stored(storage: Storage) -> list[Any]:
    entries = (await storage.objects.uploads.store.list()).objects
    return [entry for entry in entries if entry.key.startswith(("b/", "c/"))]


async def left_clean(storage: Storage, renditions: int = 0) -> None:
    """Asserts that the sweeper knows of everything that was left behind without searching the store, and that nothing
    is left after it but the objects and so many renditions."""
    report = await storage.sweeper.verify()
    assert report.sound and report.orphans == []
    await storage.reservations.release_all()
    await storage.sweeper.sweep(timedelta(0))
    assert len(await stored(storage)) == report.objects + renditions
    assert await storage.objects.uploads.store.list_multiparts() == ()
    buckets = await storage.buckets.rows.all()
    assert sum(bucket.object_count for bucket in buckets) == report.objects


@pytest_twisted.ensureDeferred
async def test_verify_and_sweep_find_what_is_wrong(storage: Storage) -> None:
    await put(storage, "lost", b"lost")
    await put(storage, "torn", b"torn")
    lost = await storage.objects.rows.find("b", "lost")
    torn = await storage.objects.rows.find("b", "torn")
    assert lost is not None
    assert torn is not None
    store = storage.objects.uploads.store
    await store.delete(lost.path)
    await store.put(torn.path, b"other bytes", "text/plain", {})
    orphan = lost.path[:-4] + "0000"
    await store.put(orphan, b"x", "text/plain", {})
    await store.put("b/not-a-version", b"x", "text/plain", {})
    report = await storage.sweeper.verify()
    assert (report.missing, report.torn, report.orphans) == (["b/lost"], ["b/torn"], [orphan])
    assert not report.sound
    assert (await storage.sweeper.sweep()).orphans == 0
    assert (await storage.sweeper.sweep(orphans=True)).orphans == 1
    assert (await storage.sweeper.verify()).orphans == []
    assert (await store.stat("b/not-a-version")).size == 1
    await storage.objects.delete(await storage.buckets.fresh("b"), ["lost", "torn"], SERVICE)
    await store.delete("b/not-a-version")
