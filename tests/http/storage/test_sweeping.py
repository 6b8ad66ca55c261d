"""The sweeper, the check of objects against their bytes, and removal from a slow store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from attrs import evolve
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import TestCase

from project_service.lifecycle import start
from project_service.settings.model import Storage as StorageSettings
from project_service.storage.assemble import PROBE, build
from project_service.storage.durations import REMOVAL_TIMEOUT_SECONDS
from project_service.storage.s3.connection import ObjectStream
from project_service.storage.s3.errors import NO_ANSWER, NoSuchBucket, StoreError, StoreUnreachable
from project_service.storage.s3.xml import StoredStat
from project_service.storage.sha256 import Reader
from project_service.storage.sweeper import Swept, Verified
from project_service.storage.values import store_path
from tests.captured_log import captured_logs, logged_until_the_end
from tests.fakes.storage import START, some_link
from tests.fakes.store import MemoryStore, in_place_of_s3
from tests.http.storage.app import OBJECTS, StorageApp, head, refused

MINUTE = 60


class Sweeping(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.store = self.app.store

    def sweep(self, orphans: bool = False) -> Swept:
        return self.successResultOf(start(self.app.storage.sweeper.sweep(orphans=orphans)))

    def stored(self, path: str, payload: bytes = b"x") -> None:
        self.successResultOf(start(self.store.put(path, payload, "a/b", {})))

    def test_an_upload_that_is_silent_for_a_quarter_of_an_hour_is_swept(self) -> None:
        for version in (uuid4(), uuid4()):
            self.app.tables.uploads[version] = ("open", START)
            self.stored(store_path("open", version))
            self.successResultOf(start(self.store.start_multipart(store_path("open", version), "a/b", {})))
        self.app.clock.advance(15 * MINUTE - 1)
        self.assertEqual(self.sweep(orphans=True), Swept(0, 0, 0, 0, 0))
        self.app.clock.advance(1)
        self.assertEqual(self.sweep(), Swept(2, 2, 2, 0, 0))
        self.assertEqual(self.app.stored(), [])

    def test_garbage_of_every_bucket_is_deleted(self) -> None:
        for number in range(5):
            version, bucket = uuid4(), ("open", "shut")[number % 2]
            self.app.tables.garbage[version] = (bucket, START)
            self.stored(store_path(bucket, version))
        self.assertEqual(self.sweep(), Swept(0, 5, 0, 0, 0))
        self.assertEqual(
            (str(Swept(0, 5, 1, 0, 0)), str(Swept(0, 0, 0, 0, 0))), ("versions 5, multiparts 1", "")
        )
        self.assertEqual(self.app.stored(), [])

    def test_what_cannot_be_deleted_waits_for_the_next_sweep(self) -> None:
        versions = sorted(uuid4() for _ in range(3))
        for version in versions:
            self.app.tables.garbage[version] = ("open", START)

        async def all_but_one(_: object, keys: list[str]) -> tuple[str, ...]:
            return (store_path("open", versions[1]),)

        events = logged_until_the_end(self)
        self.patch(MemoryStore, "delete_many", all_but_one)
        self.assertEqual(self.sweep().versions, 2)
        # Successful removals are not logged.
        for payload in (b"one", b"two"):
            self.app.put("k", payload)
        self.assertEqual(list(self.app.tables.garbage), [versions[1]])
        self.app.tables.garbage[versions[0]] = ("open", START)

        async def away(*_: object) -> None:
            raise StoreUnreachable(NO_ANSWER)

        self.patch(MemoryStore, "delete_many", away)
        self.assertEqual((self.sweep().versions, len(self.app.tables.garbage)), (0, 2))
        left = [event for event in events if "left to the sweeper" in event["log_format"]]
        logged = [(event["count"], event["kind"]) for event in left]
        self.assertEqual(logged, [(1, "the store refused"), (2, NO_ANSWER)])

    def test_an_upload_that_the_store_does_not_abort_does_not_affect_others(self) -> None:
        paths = sorted(store_path("open", uuid4()) for _ in range(3))
        for path in paths:
            self.successResultOf(start(self.store.start_multipart(path, "a/b", {})))
        self.stored(store_path("open", uuid4()))
        abort, events = MemoryStore.abort_multipart, logged_until_the_end(self)

        async def not_the_first(store: MemoryStore, path: str, upload_id: str) -> None:
            if path == paths[0]:
                raise StoreError(403, "AccessDenied")
            await abort(store, path, upload_id)

        self.patch(MemoryStore, "abort_multipart", not_the_first)
        self.assertEqual(self.sweep(orphans=True), Swept(0, 0, 2, 0, 1))
        self.assertEqual([path for path, _ in self.store.multiparts], paths[:1])
        left = [event for event in events if "left to the next sweep" in event["log_format"]]
        self.assertEqual([(e["count"], e["why"]) for e in left], [(1, "AccessDenied (HTTP 403)")])
        self.patch(MemoryStore, "abort_multipart", abort)
        events.clear()
        self.assertEqual((self.sweep().multiparts, self.app.stored(), events), (1, [], []))

    def test_a_cancelled_sweep_ends_at_once(self) -> None:
        for bucket in ("open", "shut"):
            for _ in range(2):
                self.app.tables.garbage[uuid4()] = (bucket, START)
        asked: list[Deferred[tuple[str, ...]]] = []

        async def slow(*_: object) -> tuple[str, ...]:
            asked.append(Deferred())
            return await asked[-1]

        self.patch(MemoryStore, "delete_many", slow)
        sweeping = start(self.app.storage.sweeper.sweep())
        sweeping.cancel()
        self.failureResultOf(sweeping, CancelledError)
        self.assertEqual((len(asked), len(self.app.tables.garbage)), (1, 4))

    def test_bytes_of_no_row_are_deleted_by_a_sweep_for_orphans(self) -> None:
        self.app.put("k")
        self.stored(store_path("open", uuid4()))
        foreign = (PROBE, "open/notes.txt", f"Open/{uuid4()}")
        for path in foreign:
            self.stored(path)
        self.successResultOf(start(self.store.start_multipart("open/notes.txt", "a/b", {})))
        self.assertEqual((self.sweep().orphans, len(self.store.objects)), (0, 5))
        real = MemoryStore.delete_many

        async def none(_: object, keys: tuple[str, ...]) -> tuple[str, ...]:
            return keys

        self.patch(MemoryStore, "delete_many", none)
        self.assertEqual(self.sweep(orphans=True).orphans, 0)
        self.patch(MemoryStore, "delete_many", real)
        self.assertEqual(self.sweep(orphans=True).orphans, 1)
        self.assertEqual(self.sweep(orphans=True).orphans, 0)
        ((kept, _),) = self.store.multiparts
        self.assertEqual(kept, "open/notes.txt")
        self.store.multiparts.clear()
        for path in foreign:
            self.store.objects.pop(path)
        self.assertEqual(self.app.stored(), [b"hello"])

    def test_an_expired_link_is_remembered_for_a_day(self) -> None:
        self.app.put("k")
        made = self.app.post("/storage/buckets/open/presign", {"key": "k", "expires_in_seconds": 1})
        path = made.body.decode().partition("http://api.example.test")[2].partition('"')[0]
        for passed, swept, code in (
            (24 * 60 * MINUTE, 0, (410, "token_expired")),
            (2, 1, (404, "token_not_found")),
        ):
            self.app.clock.advance(passed)
            self.assertEqual(self.sweep().links, swept)
            self.assertEqual(refused(self.app.request("GET", path)), code)

    def test_a_store_that_refuses_to_list_uploads_does_not_stop_the_rest(self) -> None:
        async def refusing(_: object) -> None:
            raise StoreError(403, "AccessDenied")

        self.patch(MemoryStore, "list_multiparts", refusing)
        self.app.tables.garbage[uuid4()] = ("open", START)
        gone = some_link("open", "k", START - timedelta(days=2), None)
        self.app.tables.links[b"x"] = gone
        self.failureResultOf(start(self.app.storage.sweeper.sweep()), StoreError)
        self.assertEqual((self.app.tables.garbage, self.app.tables.links), ({}, {}))

    def test_it_runs_at_intervals_in_one_process_at_a_time(self) -> None:
        async def busy(_: object) -> bool:
            return False

        app = StorageApp(sweep_seconds=100)
        given, rows = StorageSettings(sweep_seconds=100), app.tables.rows()
        elsewhere = build(app.clock, given, in_place_of_s3(app.store), rows, now=app.now, sweep_lock=busy)
        for storage, left in ((elsewhere, 1), (app.storage, 0)):
            app.tables.garbage[uuid4()] = ("open", START)
            loop, _ = storage.services
            loop.startService()
            app.clock.advance(99)
            self.assertEqual(len(app.tables.garbage), 1)
            app.clock.advance(1)
            self.assertEqual(len(app.tables.garbage), left)
            loop.stopService()
            app.tables.garbage.clear()

    def test_reservations_that_nobody_uses_are_released_soon_and_at_the_end(self) -> None:
        _, loop = self.app.storage.services
        loop.startService()
        for wait in (lambda: self.app.clock.advance(4), self.stop):
            for key in "abcd":
                self.app.put(key)
            self.assertNotEqual(self.app.tables.uploads, {})
            wait()
            self.assertEqual(self.app.tables.uploads, {})
        loop.stopService()

    def stop(self) -> None:
        self.successResultOf(start(self.app.storage.stop()))


class Verifying(TestCase):
    def test_verify_compares_every_object_with_its_bytes(self) -> None:
        app = StorageApp()
        keys = ("copied", "gone", "longer", "other", "parted", "same", "torn")
        for key in keys:
            app.put(key, b"12345")
        app.put("z", b"12345", "shut")
        rows = {row.key: row for row in app.tables.objects.values()}
        sweeper, objects = app.storage.sweeper, app.store.objects

        def become(key: str, **what: Any) -> None:
            objects[rows[key].path] = evolve(objects[rows[key].path], **what)

        self.assertEqual(self.successResultOf(start(sweeper.verify())), Verified(8))
        del objects[rows["gone"].path]
        become("copied", etag="divided-1")
        app.tables.objects["open", "parted"] = evolve(rows["parted"], etag="divided-2")
        become("longer", payload=b"123456")
        become("other", etag="other")
        become("torn", payload=b"", etag="divided-3")
        orphan = store_path("open", uuid4())
        objects[orphan] = objects[rows["same"].path]
        report = self.successResultOf(start(sweeper.verify()))
        torn, unproven = ["open/longer", "open/other", "open/torn"], ["open/copied", "open/parted"]
        self.assertEqual(report, Verified(8, ["open/gone"], torn, unproven, [orphan]))

    def test_verify_reports_each_object_once_however_many_there_are(self) -> None:
        app = StorageApp()
        for number in range(40):
            app.put(f"{number:02}")
        app.store.objects.clear()
        report = self.successResultOf(start(app.storage.sweeper.verify()))
        self.assertEqual(report, Verified(40, [f"open/{number:02}" for number in range(40)]))

    def test_objects_replaced_or_deleted_during_verify_are_not_missing(self) -> None:
        app = StorageApp()
        for key in ("deleted", "lost", "replaced"):
            app.put(key)
        del app.store.objects[app.tables.objects["open", "lost"].path]
        stat = MemoryStore.stat

        async def late(store: MemoryStore, path: str) -> StoredStat:
            self.patch(MemoryStore, "stat", stat)
            app.put("replaced")
            app.post("/storage/buckets/open/delete", {"keys": ["deleted"]})
            # Moving an object does not bring back its lost bytes.
            app.post("/storage/buckets/open/move", {"from": "lost", "to": "moved"})
            return await stat(store, path)

        self.patch(MemoryStore, "stat", late)
        report = self.successResultOf(start(app.storage.sweeper.verify()))
        self.assertEqual(report, Verified(3, ["open/lost"]))

    def test_the_bytes_are_read_and_compared_with_their_digest(self) -> None:
        app = StorageApp()
        payloads = {"empty": b"", "good": b"good" * 600_000, "old": b"old", "rotten": b"rotten" * 300_000}
        for key, payload in payloads.items():
            app.put(key, payload)
        app.tables.objects["open", "old"] = evolve(app.tables.objects["open", "old"], sha256=None)
        path = app.tables.objects["open", "rotten"].path
        stored = app.store.objects[path]
        app.store.objects[path] = evolve(stored, payload=stored.payload[:-1] + b"?")
        sweeper, store, report = app.storage.sweeper, in_place_of_s3(app.store), Verified()

        async def verify(**more: Any) -> None:
            async for _ in sweeper.verifying(report, **more):
                pass

        self.successResultOf(start(verify(reader=Reader(store, app.clock))))
        self.assertEqual(report, Verified(4, damaged=["open/rotten"], without_sha256=1))
        self.assertEqual((report.last, report.sound), ("open/rotten", False))
        report = Verified()
        # 4.2 million bytes at a million in a second; the last piece is less than one.
        reading = start(verify(after=("open", "empty"), reader=Reader(store, app.clock, 1_000_000)))
        for _ in range(32):
            self.assertNoResult(reading)
            app.clock.advance(0.1)
        app.clock.pump([0.1] * 10)
        self.successResultOf(reading)
        self.assertEqual((report.objects, report.damaged), (3, ["open/rotten"]))

    def test_which_results_of_verify_are_sound(self) -> None:
        self.assertTrue(Verified(1, unproven=["x"], orphans=["y"]).sound)
        for bad in (Verified(1, missing=["x"]), Verified(1, torn=["x"]), Verified(1, damaged=["x"])):
            self.assertFalse(bad.sound)


class Readiness(TestCase):
    """Whether the store can be used: a small object, the probe, can be read."""

    def test_it_reads_a_real_object_and_creates_it_if_missing(self) -> None:
        app = StorageApp()
        self.successResultOf(start(app.storage.check()))
        self.assertEqual(app.store.calls, ["open", "ensure_bucket", "put", "open"])
        app.store.calls.clear()
        self.successResultOf(start(app.storage.check()))
        self.assertEqual(app.store.calls, ["open"])

    def test_the_stores_bucket_is_created_if_missing(self) -> None:
        app = StorageApp()
        opened, missing = MemoryStore.open, [NoSuchBucket(404, "NoSuchBucket")]

        async def first_missing(store: MemoryStore, *what: Any) -> ObjectStream:
            if missing:
                raise missing.pop()
            return await opened(store, *what)

        self.patch(MemoryStore, "open", first_missing)
        self.successResultOf(start(app.storage.check()))
        self.assertEqual(app.store.calls, ["ensure_bucket", "put", "open"])

    def test_a_store_that_is_away_does_not_prevent_the_start(self) -> None:
        app = StorageApp()
        app.store.away = True
        self.failureResultOf(start(app.storage.check()), StoreUnreachable)
        self.successResultOf(start(app.storage.start()))
        self.assertEqual(app.store.calls, ["open", "open"])

    def test_a_refusal_of_the_store_is_logged_with_the_region(self) -> None:
        async def refusing(*_: object) -> None:
            raise StoreError(301, "PermanentRedirect", "eu-west-1")

        events = logged_until_the_end(self)
        self.patch(MemoryStore, "open", refusing)
        self.successResultOf(start(StorageApp().storage.start()))
        logged = [event["kind"] for event in events if "kind" in event]
        self.assertEqual(logged, ["PermanentRedirect (HTTP 301); the region is eu-west-1"])


BUCKET = "/storage/buckets/open"
# Each removes one version or two.
REQUESTS = (
    ("DELETE", f"{OBJECTS}/a", b"", 204, 1),
    ("PUT", f"{OBJECTS}/a", b"new", 200, 1),
    ("POST", f"{BUCKET}/move", b'{"from": "a", "to": "b"}', 200, 1),
    ("POST", f"{BUCKET}/copy", b'{"from": "a", "to": "b"}', 201, 1),
    ("POST", f"{BUCKET}/delete", b'{"keys": ["a", "b"]}', 200, 2),
)


class SlowRemoval(TestCase):
    def test_the_response_is_sent_after_a_while_and_the_sweeper_deletes(self) -> None:
        for method, path, body, status, gone in REQUESTS:
            app = StorageApp()
            app.put("a", b"first")
            app.put("b", b"second")
            asked: list[Deferred[Any]] = []
            left: list[object] = []

            async def silent(*_: object, asked: list[Deferred[Any]] = asked, left: Any = left) -> None:
                asked.append(Deferred(left.append))
                await asked[-1]

            client = app.connect()
            with captured_logs() as events:
                for name in ("delete", "delete_many"):
                    self.patch(MemoryStore, name, silent)
                lines = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
                client.send(head(lines, method, path) + body)
                app.clock.advance(REMOVAL_TIMEOUT_SECONDS - 0.1)
                self.assertEqual((client.received(), len(asked), left), (b"", 1, []), path)
                app.clock.advance(0.1)
            self.assertTrue(client.received().startswith(b"HTTP/1.1 %d " % status), path)
            logged = [
                (event["count"], event["kind"])
                for event in events
                if "left to the sweeper" in event["log_format"]
            ]
            self.assertEqual((left, logged), (asked, [(gone, "the store is slow")]), path)
            self.assertEqual(len(app.tables.garbage), gone)
            self.doCleanups()
            swept = self.successResultOf(start(app.storage.sweeper.sweep()))
            self.assertEqual((swept.versions, app.tables.garbage), (gone, {}), path)
            self.assertEqual(len(app.stored()), len(app.tables.objects))
