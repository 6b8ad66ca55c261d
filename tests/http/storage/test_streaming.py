"""Downloads of large objects that are streamed, and clients that leave during a change."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.errors import database_unavailable
from project_service.lifecycle import shield, start
from project_service.storage.s3.connection import ByteSink, ObjectStream
from project_service.storage.s3.errors import BrokenRead, ReaderLeft, StoreError
from project_service.storage.s3.reading import MAX_READS
from tests.captured_log import captured_logs, logged_until_the_end
from tests.fakes.common import raw_request
from tests.fakes.storage import FakeGarbage, FakeObjects
from tests.fakes.store import FakeStream, MemoryStore
from tests.http.storage.app import ANON, OBJECTS, USER, StorageApp, refused

JSON = {"Content-Type": "application/json"}
PAYLOAD = bytes(range(250)) * 1000


class Streaming(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("k", PAYLOAD)

    def pouring(self, failure: BaseException, before: bytes = b"") -> bytes:
        """What a client gets if the stream fails after ``before``."""

        async def pipe_to(stream: FakeStream, sink: ByteSink) -> None:
            if before:
                sink.write(before)
            raise failure

        self.patch(FakeStream, "pipe_to", pipe_to)
        client = self.app.connect()
        client.send(raw_request("GET", f"{OBJECTS}/k", ANON, None))
        self.aborted = client.transport.aborted
        return client.received()

    def test_whole_objects_and_ranges(self) -> None:
        whole = self.app.get("k")
        self.assertEqual((whole.status, whole.body), (200, PAYLOAD))
        part = self.app.get("k", Range="bytes=10-200009")
        self.assertEqual((part.status, part.body), (206, PAYLOAD[10:200_010]))
        self.assertEqual(part.header("content-range"), f"bytes 10-200009/{len(PAYLOAD)}")

    def test_a_read_that_breaks_off_aborts_the_connection(self) -> None:
        answer = self.pouring(BrokenRead("x"), b"begun")
        self.assertTrue(answer.endswith(b"begun"))
        self.assertTrue(self.aborted)

    def test_a_client_that_leaves_is_no_error(self) -> None:
        self.pouring(ReaderLeft(), b"begun")
        self.assertTrue(self.aborted)

    def test_an_unexpected_error_is_logged(self) -> None:
        self.pouring(ZeroDivisionError(), b"begun")
        self.assertTrue(self.aborted)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_the_log_has_the_stores_error_code(self) -> None:
        async def refusing(*_: object) -> None:
            raise StoreError(403, "AccessDenied")

        events = logged_until_the_end(self)
        self.patch(MemoryStore, "open", refusing)
        self.assertEqual(refused(self.app.get("k")), (503, "store_unavailable"))
        self.app.store.away = True
        self.app.put("new")
        logged = [formatEvent(event).partition(" id=")[0] for event in events if "request_id" in event]
        failed = [text for text in logged if text.startswith("The store ")]
        self.assertEqual(failed, ["The store failed: AccessDenied", "The store failed: StoreUnreachable"])

    def test_an_object_that_is_replaced_again_and_again_is_503(self) -> None:
        real = MemoryStore.open

        async def late(store: MemoryStore, key: str, *args: int) -> ObjectStream:
            self.app.put("k", PAYLOAD)
            return await real(store, key, *args)

        self.patch(MemoryStore, "open", late)
        self.app.store.calls.clear()
        self.assertEqual(refused(self.app.get("k")), (503, "store_unavailable"))
        self.assertEqual(self.app.store.calls.count("open"), MAX_READS)


class Leaving(TestCase):
    """A client leaves. The database does what it was asked for all the same, since the pool shields it, and so do
    these fakes."""

    def test_an_upload_whose_client_leaves_while_it_is_reserved_stores_nothing(self) -> None:
        app = StorageApp()
        objects = type(app.tables.rows().objects)
        begin = objects.reserve_uploads
        held: Deferred[None]

        async def slow(rows: Any, *args: Any) -> None:
            async def begun() -> None:
                await held
                await begin(rows, *args)

            await shield(begun())

        app.put("old")
        app.steps.clear()
        self.patch(objects, "reserve_uploads", slow)
        copy = b'{"from": "old", "to": "k"}'
        for request in (
            raw_request("PUT", f"{OBJECTS}/k", USER, b"hello"),
            raw_request("POST", "/storage/buckets/open/copy", {**USER, **JSON}, copy),
        ):
            held = Deferred()
            client = app.connect()
            client.send(request)
            self.assertEqual(client.received(), b"")
            client.hang_up()
            held.callback(None)
            self.assertEqual((app.steps, app.stored()), ([], [b"hello"]))

    def test_a_change_whose_client_leaves_removes_what_it_replaced(
        self,
    ) -> None:
        def post(what: str) -> bytes:
            body = b'{"from": "old", "to": "k"}'
            return raw_request("POST", f"/storage/buckets/open/{what}", {**USER, **JSON}, body)

        for method, request, left in (
            ("put", raw_request("PUT", f"{OBJECTS}/k", USER, b"new"), [b"new", b"old"]),
            ("put", post("copy"), [b"old", b"old"]),
            ("move", post("move"), [b"old"]),
            ("delete", raw_request("DELETE", f"{OBJECTS}/k", USER, None), [b"old"]),
        ):
            app = StorageApp()
            for key in ("k", "old"):
                app.put(key, key.encode())
            held: Deferred[None] = Deferred()
            real = getattr(FakeObjects, method)

            async def late(
                rows: FakeObjects, *args: Any, real: Any = real, held: Deferred[None] = held
            ) -> Any:
                async def changed() -> Any:
                    result = await real(rows, *args)
                    await held
                    return result

                return await shield(changed())

            client = app.connect()
            with patch.object(FakeObjects, method, late):
                client.send(request)
                client.hang_up()
                held.callback(None)
            self.assertEqual(sorted(app.stored()), left, request)

    def test_bytes_stored_for_a_client_that_left_are_deleted_at_once_or_by_the_sweeper(self) -> None:
        put = MemoryStore.put
        for away in (False, True):
            app = StorageApp()

            async def unanswered(store: MemoryStore, *how: Any, away: bool = away) -> str:
                await put(store, *how)
                store.away = away
                return await Deferred()

            client = app.connect()
            with patch.object(MemoryStore, "put", unanswered), captured_logs() as events:
                client.send(raw_request("PUT", f"{OBJECTS}/k", USER, b"hello"))
                client.hang_up()
            self.assertEqual(len(app.store.objects), int(away))
            logged = [event for event in events if "left to the sweeper" in event["log_format"]]
            self.assertEqual([event["count"] for event in logged], [1] * int(away))
            app.store.away = False
            app.clock.advance(15 * 60)
            self.successResultOf(start(app.storage.sweeper.sweep()))
            self.assertEqual(app.stored(), [])

    def test_an_upload_that_cannot_be_withdrawn_is_left_to_the_sweeper(self) -> None:
        """The store has refused, and then the database fails: the client gets one response, and the log one line."""

        async def denied(*_: object) -> str:
            raise StoreError(403, "AccessDenied")

        async def away(*_: object) -> None:
            raise database_unavailable()

        self.patch(MemoryStore, "put", denied)
        self.patch(FakeGarbage, "discard", away)
        app = StorageApp()
        with captured_logs() as events:
            self.assertEqual(refused(app.put("k")), (503, "store_unavailable"))
        logged = [event["kind"] for event in events if "An upload is left" in event["log_format"]]
        self.assertEqual(logged, ["database_unavailable"])
