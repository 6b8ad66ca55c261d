"""Cleaning up after an upload that failed: who waits for it, and what is said of it."""

from __future__ import annotations

from base64 import b64encode
from hashlib import md5
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.database.connection import DatabaseGone
from project_service.errors import database_unavailable
from tests.captured_log import captured_logs
from tests.fakes.storage import FakeGarbage, FakeObjects
from tests.fakes.store import MemoryStore
from tests.http.storage.app import OBJECTS, StorageApp, head, refused


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
        said = [formatEvent(event) for event in events]
        self.assertIn("An upload is left to the sweeper: DatabaseGone", said)

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
