"""What a request has held is free once it is answered, without the garbage collector.

The collector costs time, and what waits for it costs memory: the buffers of an upload's parts are large.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from twisted.trial.unittest import TestCase

from project_service.http.body import Body
from project_service.http.exchange import Exchange
from project_service.http.overload.admission import Limits, Place
from project_service.http.router import Router
from project_service.http.stream import Stream
from project_service.storage.attempt import Attempt
from project_service.storage.upload import PartBuffer
from tests.fakes import App, Client, raw_request
from tests.http.storage_app import OBJECTS, USER, StorageApp
from tests.http.toy_app import echo, hello
from tests.told import told


class Uploads(TestCase):
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


class Requests(TestCase):
    """Requests of any kind, over one connection that is kept alive."""

    def left(self, client: Client, *requests: bytes) -> list[object]:
        """What the collector finds of ``requests``, after each has been made ten times more."""

        def ask() -> None:
            for request in requests:
                client.send(request)
                self.assertIn(client.received()[:12], (b"HTTP/1.1 200", b"HTTP/1.1 206"))

        ask()
        # What other tests have left may take several rounds: the end of one thing may be the beginning of another.
        while gc.collect():
            pass
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(10):
                ask()
            gc.collect()
            return [one for one in gc.garbage if isinstance(one, (Exchange, Body, Place, Stream))]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    def test_an_answered_request_leaves_nothing(self) -> None:
        for limits in ({}, {"auth": Limits(8, 8, 5.0)}):
            router = Router()
            for handler, url in ((hello, "/auth/hello"), (echo, "/auth/echo")):
                router.route(url, told(url), methods=("GET", "POST"), key="optional")(handler)
            client = App(router, limits=limits).connect()
            bodies = (raw_request("POST", "/auth/echo", {}, body) for body in (b"", b"x" * 100_000))
            self.assertEqual(self.left(client, raw_request("GET", "/auth/hello", {}, None), *bodies), [])

    def test_a_download_leaves_nothing(self) -> None:
        storage = StorageApp()
        storage.put("k", b"x" * 5000)
        ranges: tuple[dict[str, str], ...] = ({}, {"Range": "bytes=1-"})
        requests = (raw_request("GET", f"{OBJECTS}/k", {**USER, **one}, None) for one in ranges)
        self.assertEqual(self.left(storage.connect(), *requests), [])
