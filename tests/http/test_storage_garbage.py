"""What requests of storage have held is free once they are answered, without the garbage collector.

The buffers of an upload's parts are large, and one that waits costs as much memory as one that is in use.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from twisted.trial.unittest import TestCase

from project_service.storage.attempt import Attempt
from project_service.storage.upload import PartBuffer
from tests.http.storage_app import StorageApp


class Garbage(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp(part_bytes=10)
        self.alive: WeakSet[object] = WeakSet()
        for kind in (PartBuffer, Attempt):
            self.patch(kind, "__init__", self.remembering(kind.__init__))
        gc.disable()
        self.addCleanup(gc.enable)

    def remembering(self, real: Callable[..., None]) -> Callable[..., None]:
        def made(one: object, *args: Any, **more: Any) -> None:
            self.alive.add(one)
            real(one, *args, **more)

        return made

    def test_uploads_leave_no_buffers(self) -> None:
        for size in (5, 35):
            self.assertIn(self.app.put("k", b"x" * size).status, (200, 201))
        self.assertEqual(list(self.alive), [])

    def test_copies_leave_no_attempts(self) -> None:
        self.app.put("k", b"x")
        answer = self.app.post("/storage/buckets/open/copy", {"from": "k", "to": "l"})
        self.assertEqual(answer.status, 201)
        self.assertEqual(list(self.alive), [])
