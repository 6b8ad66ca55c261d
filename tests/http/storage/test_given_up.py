"""Uploads and copies of a host that was suspended until another host swept them: nothing of them is left."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.errors import database_unavailable
from project_service.lifecycle import start
from project_service.storage.durations import STALE_AFTER
from tests.fakes.storage import FakeObjects
from tests.fakes.store import MemoryStore
from tests.http.storage.app import OBJECTS, StorageApp, head

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
