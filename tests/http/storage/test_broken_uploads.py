"""Uploads that break off, in every state: nothing is left but what the sweeper removes."""

from __future__ import annotations

from base64 import b64encode
from hashlib import md5
from typing import Any
from unittest.mock import patch
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.database.connection import DatabaseGone
from project_service.errors import database_unavailable
from project_service.lifecycle import start
from project_service.storage import upload
from project_service.storage.durations import STALE_AFTER
from project_service.storage.s3.errors import StoreError, StoreUnreachable
from tests.captured_log import captured_logs
from tests.fakes.storage import FakeGarbage, FakeObjects
from tests.fakes.store import MemoryStore
from tests.http.storage.app import OBJECTS, StorageApp, head, refused


class Broken(TestCase):
    def test_a_store_that_is_away_is_503_and_the_sweeper_cleans_up(self) -> None:
        app = StorageApp(part_bytes=10)
        app.store.away = True
        for length in (5, 35):
            response = app.put("k", b"x" * length)
            self.assertEqual(refused(response), (503, "store_unavailable"))
            self.assertIsNotNone(response.header("retry-after"))
        self.assertEqual(app.tables.objects, {})
        # The sweeper has to delete what is left, and what the store may still complete.
        self.assertEqual((len(app.tables.garbage), len(app.uploading)), (1, 1))
        app.store.away = False
        app.clock.advance(15 * 60)
        self.successResultOf(start(app.storage.sweeper.sweep()))
        self.assertEqual(app.stored(), [])

    def test_what_the_store_completes_after_the_client_has_left_is_deleted(self) -> None:
        """The store goes on though nobody waits: the bytes appear after they were deleted."""
        for name, part_bytes, method, path, body in (
            ("put", 10, "PUT", OBJECTS + "/k", b"x"),
            ("complete_multipart", 10, "PUT", OBJECTS + "/k", b"x" * 25),
            ("copy", 10, "POST", "/storage/buckets/open/copy", b'{"from": "a", "to": "k"}'),
        ):
            app = StorageApp(part_bytes=part_bytes)
            app.put("a", b"first")
            asked: list[Any] = []

            async def late(store: MemoryStore, *how: Any, asked: list[Any] = asked) -> str:
                asked.append(how)
                return await Deferred()

            client = app.connect()
            with patch.object(MemoryStore, name, late):
                sent = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
                client.send(head(sent, method, path) + body)
                client.hang_up()
            where = asked[0][1 if name == "copy" else 0]
            self.assertNotIn(where, app.store.objects, name)
            app.store.objects[where] = app.store.objects[next(iter(app.store.objects))]
            for minutes, left in ((14, 2), (1, 1)):
                app.clock.advance(60 * minutes)
                self.successResultOf(start(app.storage.sweeper.sweep()))
                self.assertEqual(len(app.store.objects), left, name)
            self.assertEqual(app.stored(), [b"first"])

    def test_a_client_that_hangs_up_leaves_no_bytes_in_memory(self) -> None:
        """Twisted's failures are in reference cycles with their frames, which hold the part that was to be sent."""
        mebibyte = 1024 * 1024
        for name, size, sent in (("put", 3, 3), ("put_part", 16, 6), ("put_part", 16, 9), ("put_part", 9, 9)):
            app = StorageApp(part_bytes=4 * mebibyte)
            views: list[memoryview] = []

            async def taken(store: MemoryStore, *how: Any, views: list[memoryview] = views) -> str:
                views.append(next(one for one in how if isinstance(one, memoryview)))
                return await Deferred()

            client = app.connect()
            with patch.object(MemoryStore, name, taken):
                client.send(head({"Content-Length": str(size * mebibyte)}, "PUT", OBJECTS + "/k"))
                for _ in range(sent):
                    client.send(b"x" * mebibyte)
                self.assertEqual({bytes(view[:1]) for view in views}, {b"x"}, (name, sent))
                client.hang_up()
            self.assertEqual({bytes(view).strip(b"\0") for view in views}, {b""}, (name, sent))

    def test_a_copy_whose_client_has_left_is_waited_for(self) -> None:
        """It keeps its slot until then: otherwise a hundred bytes and a hang-up would fill a store past every
        quota."""
        for is_multipart, answered in ((False, None), (False, StoreError(403, "AccessDenied")), (True, None)):
            app = StorageApp()
            app.put("a", b"first")
            answer: Deferred[None] = Deferred()
            copied: list[str] = []

            async def slow(
                store: MemoryStore,
                source: str,
                target: str,
                *how: Any,
                wait: Deferred[None] = answer,
                copied: list[str] = copied,
            ) -> str:
                await wait
                copied.append(target)
                if not how:
                    store.objects[target] = store.objects[source]
                return "e"

            client = app.connect()
            body = b'{"from": "a", "to": "k"}'
            with (
                patch.object(MemoryStore, "copy", slow),
                patch.object(MemoryStore, "copy_part", slow),
                patch.object(upload, "COPY_PART_BYTES", 4 if is_multipart else 5),
            ):
                sent = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
                client.send(head(sent, path="/storage/buckets/open/copy") + body)
                client.hang_up()
                ended = app.edge.drained()
                self.assertNoResult(ended)
                if answered is None:
                    answer.callback(None)
                else:
                    answer.errback(answered)
            self.successResultOf(ended)
            # Of a copy in parts only the one that was under way.
            self.assertEqual(len(copied), int(answered is None))
            self.assertEqual(app.stored(), [b"first"])

    def test_parts_that_could_not_be_aborted_are_left_to_the_sweeper(self) -> None:
        app = StorageApp(part_bytes=10)
        abort = MemoryStore.abort_multipart

        async def away(*_: object) -> None:
            raise StoreUnreachable("away")

        self.patch(MemoryStore, "abort_multipart", away)
        with captured_logs() as events:
            refusal = app.put("k", b"x" * 25, Content_MD5=b64encode(md5(b"other").digest()).decode())
        self.assertEqual(refused(refusal), (400, "bad_digest"))
        logged = [event["kind"] for event in events if "multipart upload is left" in event["log_format"]]
        self.assertEqual(logged, ["StoreUnreachable"])
        self.assertEqual(len(app.store.multiparts), 1)
        self.patch(MemoryStore, "abort_multipart", abort)
        swept = self.successResultOf(start(app.storage.sweeper.sweep()))
        self.assertEqual((swept.multiparts, app.stored()), (1, []))

    def test_no_parts_are_sent_after_the_client_has_left_though_the_database_is_away(self) -> None:
        app = StorageApp(part_bytes=10)
        ended: list[Deferred[str]] = []

        async def slow(store: MemoryStore, *args: object) -> str:
            return await Deferred(ended.append)

        async def away(rows: FakeGarbage, versions: object) -> list[UUID]:
            raise database_unavailable()

        self.patch(MemoryStore, "put_part", slow)
        client = app.connect()
        client.send(head({"Content-Length": "35"}, "PUT", OBJECTS + "/k") + b"x" * 25)
        self.patch(FakeGarbage, "discard", away)
        client.hang_up()
        self.assertEqual(len(ended), 2)
        app.store.away = True
        self.assertEqual(refused(app.put("k")), (503, "store_unavailable"))

    def test_a_slow_upload_that_goes_on_is_not_swept(self) -> None:
        app = StorageApp(part_bytes=10)
        client = app.connect()
        client.send(head({"Content-Length": "40"}, "PUT", OBJECTS + "/k"))
        for _ in range(40):
            app.clock.advance(59)
            client.send(b"x")
            self.successResultOf(start(app.storage.sweeper.sweep()))
        self.assertIn(b" 201 ", client.received())
        self.assertEqual(app.stored(), [b"x" * 40])

    def test_an_upload_whose_last_parts_take_long_is_not_swept(self) -> None:
        app = StorageApp(part_bytes=10)
        going: list[Deferred[None]] = []
        sent, completed = MemoryStore.put_part, MemoryStore.complete_multipart

        async def part(store: MemoryStore, *how: Any) -> str:
            going.append(Deferred())
            await going[-1]
            return await sent(store, *how)

        async def complete(store: MemoryStore, *how: Any) -> str:
            going.append(Deferred())
            await going[-1]
            return await completed(store, *how)

        self.patch(MemoryStore, "put_part", part)
        self.patch(MemoryStore, "complete_multipart", complete)
        client = app.connect()
        client.send(head({"Content-Length": "20"}, "PUT", OBJECTS + "/k") + b"x" * 20)
        self.assertEqual(len(going), 2)
        for number in range(3):
            app.clock.advance(14 * 60)
            self.successResultOf(start(app.storage.sweeper.sweep()))
            going[number].callback(None)
        self.assertIn(b" 201 ", client.received())
        self.assertEqual(app.stored(), [b"x" * 20])

    def test_a_copy_in_parts_is_not_swept(self) -> None:
        """If it was swept all the same, no further part is copied."""
        for silent_after, status, parts in ((30, 201, 20), (7, 408, 6)):
            app = StorageApp()
            app.put("a", b"first" * 20)
            real = MemoryStore.copy_part
            copied: list[int] = []

            async def copy_part(
                store: MemoryStore,
                *how: Any,
                app: StorageApp = app,
                real: Any = real,
                copied: list[int] = copied,
                last: int = silent_after,
            ) -> str:
                self.successResultOf(start(app.storage.sweeper.sweep()))
                etag: str = await real(store, *how)
                copied.append(len(copied) + 1)
                app.clock.advance(60)
                if len(copied) + 1 == last:
                    app.tables.uploads.clear()
                return etag

            with (
                patch.object(MemoryStore, "copy_part", copy_part),
                patch.object(upload, "COPY_PART_BYTES", 5),
            ):
                response = app.post("/storage/buckets/open/copy", {"from": "a", "to": "b"})
            self.assertEqual((response.status, len(copied)), (status, parts))
            self.assertEqual(app.stored(), [b"first" * 20] * (2 if status == 201 else 1))

    def test_an_upload_is_marked_as_alive_once_a_minute(self) -> None:
        app = StorageApp(part_bytes=10)
        objects = type(app.tables.rows().objects)
        renew, times = objects.renew_upload, []

        async def noted(rows: Any, version: UUID) -> bool:
            times.append(app.clock.seconds())
            return await renew(rows, version)

        self.patch(objects, "renew_upload", noted)
        client = app.connect()
        client.send(head({"Content-Length": "18"}, "PUT", OBJECTS + "/k"))
        for _ in range(18):
            app.clock.advance(10)
            client.send(b"x")
        self.assertEqual(times, [60, 120, 180])

    def test_a_slow_upload_that_was_swept_is_408(self) -> None:
        app = StorageApp()
        client = app.connect()
        client.send(head({"Content-Length": "2"}, "PUT", OBJECTS + "/k"))
        app.tables.uploads.clear()
        app.clock.advance(59)
        client.send(b"x")
        app.clock.advance(2)
        client.send(b"x")
        answer = client.received()
        self.assertTrue(answer.startswith(b"HTTP/1.1 408 ") and b'"request_timeout"' in answer, answer)
        self.assertEqual((app.stored(), app.store.calls), ([], ["delete"]))


COPY = "/storage/buckets/open/copy"
# The store's last operation before the object is switched, and a request that leads to it.
LAST = (
    ("put", "PUT", OBJECTS + "/k", b"x"),
    ("complete_multipart", "PUT", OBJECTS + "/k", b"x" * 25),
    ("copy", "POST", COPY, b'{"from": "a", "to": "k"}'),
)


class GivenUp(TestCase):
    def sweep(self, app: StorageApp) -> None:
        self.successResultOf(start(app.storage.sweeper.sweep()))

    def app_with(self, payload: bytes) -> StorageApp:
        app = StorageApp(part_bytes=10)
        app.put("a", payload)
        return app

    def sent(self, app: StorageApp, method: str, path: str, body: bytes) -> Any:
        client = app.connect()
        lines = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
        client.send(head(lines, method, path) + body)
        return client

    def test_bytes_that_arrive_after_the_sweep_are_deleted(self) -> None:
        for name, method, path, body in LAST:
            for stays in (True, False):
                app, going = self.app_with(b"first"), Deferred[None]()
                real = getattr(MemoryStore, name)

                async def late(store: MemoryStore, *how: Any, real: Any = real, going: Any = going) -> str:
                    await going
                    etag: str = await real(store, *how)
                    return etag

                with patch.object(MemoryStore, name, late):
                    client = self.sent(app, method, path, body)
                    app.clock.advance(STALE_AFTER.total_seconds())
                    aborted = dict(app.store.multiparts)
                    self.sweep(app)
                    self.assertEqual((app.uploading, app.tables.garbage), (set(), {}), name)
                    # The store had received all parts before the upload was aborted.
                    app.store.multiparts.update(aborted)
                    if not stays:
                        client.hang_up()
                    going.callback(None)
                if stays:
                    self.assertTrue(client.received().startswith(b"HTTP/1.1 408 "), name)
                self.assertEqual(app.stored(), [b"first"], (name, stays))

    def test_an_object_that_was_switched_is_kept(self) -> None:
        """The switch succeeded, and only its confirmation was lost."""
        for _, method, path, body in LAST:
            app = self.app_with(b"first")
            put = FakeObjects.put

            async def unheard(rows: FakeObjects, *how: Any, put: Any = put) -> None:
                await put(rows, *how)
                raise database_unavailable()

            with patch.object(FakeObjects, "put", unheard):
                client = self.sent(app, method, path, body)
            self.assertTrue(client.received().startswith(b"HTTP/1.1 503 "))
            self.assertEqual(app.stored(), sorted([b"first", b"first" if path == COPY else body]))


class CleanUp(TestCase):
    def test_a_store_that_is_away_is_waited_for_once(self) -> None:
        """A store that does not respond costs the client one timeout, and not another one for the clean-up."""
        app = StorageApp()
        app.store.away = True
        silence: Deferred[None] = Deferred()
        self.patch(MemoryStore, "delete", lambda store, path: silence)
        self.assertEqual(refused(app.put("k")), (503, "store_unavailable"))
        asked = len(app.store.calls)
        silence.callback(None)
        self.assertEqual(len(app.store.calls), asked)

    def test_a_database_that_is_away_is_waited_for_once(self) -> None:
        app = StorageApp()
        self.patch(MemoryStore, "delete", lambda store, path: Deferred())
        # What the database raises is translated by the application, which is not there.
        for fault, status in ((database_unavailable(), 503), (DatabaseGone("lost"), 500)):

            async def away(*_: object, fault: Exception = fault) -> None:
                raise fault

            with patch.object(FakeObjects, "put", away):
                self.assertEqual(app.put("k").status, status)
        self.flushLoggedErrors(DatabaseGone)

    def test_what_a_lost_connection_leaves_to_the_sweeper_is_logged(self) -> None:
        app = StorageApp()

        async def gone(*_: object) -> None:
            raise DatabaseGone("the connection was lost")

        with (
            patch.object(FakeObjects, "put", gone),
            patch.object(FakeGarbage, "discard", gone),
            captured_logs() as events,
        ):
            app.put("k")
        self.flushLoggedErrors(DatabaseGone)
        logged = [formatEvent(event) for event in events]
        self.assertIn("An upload is left to the sweeper: DatabaseGone", logged)

    def test_a_refusal_is_sent_once_nothing_is_left(self) -> None:
        app = StorageApp()
        removing: Deferred[None] = Deferred()
        self.patch(MemoryStore, "delete", lambda store, path: removing)
        client = app.connect()
        wrong = b64encode(md5(b"other").digest()).decode()
        client.send(head({"Content-Length": "1", "Content-MD5": wrong}, "PUT", OBJECTS + "/k") + b"x")
        self.assertEqual(client.received(), b"")
        removing.callback(None)
        self.assertTrue(client.received().startswith(b"HTTP/1.1 400 "))
        self.assertNotIn("abort_multipart", app.store.calls)

    def test_a_fault_of_ours_there_is_logged_as_one(self) -> None:
        app = StorageApp()

        async def away(*_: object) -> None:
            raise database_unavailable()

        async def faulty(*_: object) -> None:
            raise TypeError("ours")

        with patch.object(FakeObjects, "put", away), patch.object(FakeGarbage, "discard", faulty):
            self.assertEqual(refused(app.put("k")), (503, "database_unavailable"))
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
