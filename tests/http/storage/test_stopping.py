"""Changes of objects that meet the end of ``shutdown_seconds``: each is acknowledged, or has not happened."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.lifecycle import start
from project_service.storage.durations import STALE_AFTER
from tests.fakes.common import SERVICE_KEY
from tests.fakes.storage import FakeObjects, FakeResumables
from tests.fakes.store import MemoryStore
from tests.http.storage.app import FORM, OBJECTS, StorageApp, file_form, head
from tests.http.storage.test_resumable import TusApp

BUCKET = "/storage/buckets/open"
JSON = {"Content-Type": "application/json"}


def request(method: str, path: str, body: bytes, lines: dict[str, str]) -> bytes:
    return head({"Content-Length": str(len(body)), **lines}, method, path) + body


def as_json(path: str, **members: object) -> bytes:
    return request("POST", path, json.dumps(members).encode(), JSON)


# Each with what makes the change, by name, and the keys that there are afterwards. ``a`` is there before.
CHANGES: tuple[tuple[Any, str, bytes, list[str]], ...] = (
    (FakeObjects, "put", request("PUT", f"{OBJECTS}/k", b"x", {}), ["a", "k"]),
    (FakeObjects, "put", request("PUT", f"{OBJECTS}/k", b"x" * 25, {}), ["a", "k"]),
    (FakeObjects, "put", request("POST", OBJECTS, file_form(key="k"), FORM), ["a", "k"]),
    (FakeObjects, "put", as_json(f"{BUCKET}/copy", **{"from": "a", "to": "k"}), ["a", "k"]),
    (FakeObjects, "move", as_json(f"{BUCKET}/move", **{"from": "a", "to": "k"}), ["k"]),
    (
        FakeObjects,
        "move_to_bucket",
        as_json(f"{BUCKET}/move", **{"from": "a", "to": "k", "to_bucket": "shut"}),
        ["k"],
    ),
    (FakeObjects, "delete", request("DELETE", f"{OBJECTS}/a", b"", {}), []),
    (FakeObjects, "delete", as_json(f"{BUCKET}/delete", keys=["a"]), []),
)


class Stopping(TestCase):
    def keys(self, app: StorageApp) -> list[str]:
        return sorted(key for _, key in app.tables.objects)

    def test_a_change_that_is_being_committed_is_answered_as_it_ends(self) -> None:
        for rows, name, sent, keys in CHANGES:
            app, going = StorageApp(part_bytes=10), Deferred[None]()
            app.put("a", b"first")
            real = getattr(rows, name)

            async def slow(rows: Any, *how: Any, going: Any = going, real: Any = real) -> Any:
                await going
                return await real(rows, *how)

            with patch.object(rows, name, slow):
                client = app.connect()
                client.send(sent)
                app.edge.cancel_all()
                ended = app.edge.drained()
                self.assertNoResult(ended)
                self.assertEqual((client.received(), self.keys(app)), (b"", ["a"]), name)
                going.callback(None)
            self.successResultOf(ended)
            self.assertTrue(client.received().startswith(b"HTTP/1.1 20"), sent)
            self.assertEqual(self.keys(app), keys)

    def test_an_upload_that_is_not_yet_being_committed_is_503_and_absent(self) -> None:
        for name, sent in (
            ("complete_multipart", head({"Content-Length": "25"}, "PUT", f"{OBJECTS}/k") + b"x" * 24),
            ("put", request("PUT", f"{OBJECTS}/k", b"x", {})),
            ("complete_multipart", request("PUT", f"{OBJECTS}/k", b"x" * 25, {})),
        ):
            app = StorageApp(part_bytes=10)
            with patch.object(MemoryStore, name, lambda *_: Deferred()):
                client = app.connect()
                client.send(sent)
                app.edge.cancel_all()
            self.successResultOf(app.edge.drained())
            answer = client.received()
            self.assertTrue(answer.startswith(b"HTTP/1.1 503 ") and b"shutting_down" in answer, answer)
            self.assertEqual(self.keys(app), [], sent)
            app.clock.advance(STALE_AFTER.total_seconds())
            self.successResultOf(start(app.storage.sweeper.sweep()))
            self.assertEqual(app.stored(), [], sent)

    def test_a_resumable_upload_that_is_being_committed_is_answered_as_it_ends(self) -> None:
        app, going = TusApp(), Deferred[None]()
        path = app.begun(25)
        real = FakeResumables.commit

        async def slow(rows: Any, *how: Any) -> Any:
            await going
            return await real(rows, *how)

        with patch.object(FakeResumables, "commit", slow):
            client = app.sending(path, 0, 25, b"x" * 25)
            app.edge.cancel_all()
            self.assertEqual((client.received(), self.keys(app)), (b"", []))
            going.callback(None)
        self.assertTrue(client.received().startswith(b"HTTP/1.1 204 "))
        self.assertEqual(self.keys(app), ["a.txt"])

    def test_what_has_come_of_a_resumable_upload_counts(self) -> None:
        app = TusApp()
        path = app.begun(25)
        client = app.sending(path, 0, 25, b"x" * 13)
        app.edge.cancel_all()
        self.successResultOf(app.edge.drained())
        answer = client.received()
        self.assertTrue(answer.startswith(b"HTTP/1.1 503 ") and b"shutting_down" in answer, answer)
        self.assertEqual(app.offset(path), 13)
        self.assertEqual(app.patch(path, 13, b"y" * 12).status, 204)
        self.assertEqual(app.stored(), [b"x" * 13 + b"y" * 12])

    def test_emptying_a_folder_ends_between_two_steps(self) -> None:
        app, going = StorageApp(), Deferred[None]()
        for number in range(3):
            app.put(f"a/{number}", b"x")
        real = FakeObjects.delete
        asked: list[Any] = []

        async def slow(rows: Any, *how: Any) -> Any:
            asked.append(how)
            await going
            return await real(rows, *how)

        async def one(rows: Any, bucket: str, prefix: str, limit: int) -> list[str]:
            return [key for _, key in sorted(app.tables.objects)][:1]

        with patch.object(FakeObjects, "delete", slow), patch.object(FakeObjects, "keys", one):
            client = app.connect()
            client.send(
                head({"X-Service-Key": SERVICE_KEY}, "DELETE", "/admin/buckets/open/objects?prefix=a/")
            )
            app.edge.cancel_all()
            self.assertIn(b"HTTP/1.1 503 ", client.received())
            going.callback(None)
        self.assertEqual((len(asked), self.keys(app)), (1, ["a/1", "a/2"]))
