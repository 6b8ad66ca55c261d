"""A store that does not respond when removed bytes are to be deleted: no request waits for it for long."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.lifecycle import start
from project_service.storage.durations import REMOVAL_TIMEOUT_SECONDS
from tests.captured_log import captured_logs
from tests.fakes.store import MemoryStore
from tests.http.storage.app import OBJECTS, StorageApp, head

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
            said = [
                (event["count"], event["kind"])
                for event in events
                if "left to the sweeper" in event["log_format"]
            ]
            self.assertEqual((left, said), (asked, [(gone, "the store is slow")]), path)
            self.assertEqual(len(app.tables.garbage), gone)
            self.doCleanups()
            swept = self.successResultOf(start(app.storage.sweeper.sweep()))
            self.assertEqual((swept.versions, app.tables.garbage), (gone, {}), path)
            self.assertEqual(len(app.stored()), len(app.tables.objects))
