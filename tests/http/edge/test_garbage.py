"""What a request has held is free once it is answered, without the garbage collector.

The collector costs time, and what waits for it costs memory: the buffers of an upload's parts are large.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from twisted.internet.defer import fail
from twisted.trial.unittest import TestCase

from project_service.errors import rate_limited
from project_service.http.admission import LimitedSlot, Limits
from project_service.http.body import Body
from project_service.http.exchange import Exchange, Stream
from project_service.http.routing import Policy, Router
from project_service.storage.s3.parts import PartBuffer
from project_service.storage.upload import Upload
from tests.fakes.common import App, Client, raw_request
from tests.http.storage.app import OBJECTS, USER, StorageApp
from tests.http.toy_app import app_of, echo, hello
from tests.route_description import operation_at


class Uploads(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp(part_bytes=10)
        self.alive: WeakSet[object] = WeakSet()
        for kind in (PartBuffer, Upload):
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

    def test_copies_leave_no_uploads(self) -> None:
        self.app.put("k", b"x")
        answer = self.app.post("/storage/buckets/open/copy", {"from": "k", "to": "l"})
        self.assertEqual(answer.status, 201)
        self.assertEqual(list(self.alive), [])


class Requests(TestCase):
    """Requests of any kind, over one connection that is kept alive."""

    def left(
        self, client: Client, *requests: bytes, statuses: tuple[bytes, ...] = (b"200", b"206")
    ) -> list[object]:
        """What the collector finds of ``requests``, after each has been made ten times more."""

        def ask() -> None:
            for request in requests:
                client.send(request)
                self.assertIn(client.received()[9:12], statuses)

        ask()
        # Held, so that nothing that other tests have left becomes garbage just now and is counted.
        earlier = gc.get_objects()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(10):
                ask()
            gc.collect()
            return [one for one in gc.garbage if isinstance(one, (Exchange, Body, LimitedSlot, Stream))]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            del earlier

    def test_an_answered_request_leaves_nothing(self) -> None:
        for limits in ({}, {"auth": Limits(8, 5.0)}):
            router = Router().of_part(Policy(admission="auth"))
            for handler, url in ((hello, "/auth/hello"), (echo, "/auth/echo")):
                router.route(url, operation_at(url), methods=("GET", "POST"), key="optional")(handler)
            client = App(router, limits=limits).connect()
            bodies = (raw_request("POST", "/auth/echo", {}, body) for body in (b"", b"x" * 100_000))
            self.assertEqual(self.left(client, raw_request("GET", "/auth/hello", {}, None), *bodies), [])

    def test_a_download_leaves_nothing(self) -> None:
        storage = StorageApp()
        storage.put("k", b"x" * 5000)
        ranges: tuple[dict[str, str], ...] = ({}, {"Range": "bytes=1-"})
        requests = (raw_request("GET", f"{OBJECTS}/k", {**USER, **one}, None) for one in ranges)
        self.assertEqual(self.left(storage.connect(), *requests), [])

    def test_a_failed_deferred_leaves_nothing(self) -> None:
        client = app_of(lambda request: fail(rate_limited(1))).connect()
        self.assertEqual(self.left(client, raw_request("GET", "/x", {}, None), statuses=(b"429",)), [])

    def test_a_refusal_leaves_nothing(self) -> None:
        storage = StorageApp(cache_bytes=0)
        storage.put("k", b"x")
        paths = ("/nowhere", "/storage/buckets/none/objects/k", f"{OBJECTS}/none", f"{OBJECTS}/k")
        requests = (raw_request("GET", path, {**USER, "If-Match": '"other"'}, None) for path in paths)
        self.assertEqual(self.left(storage.connect(), *requests, statuses=(b"404", b"412")), [])
        storage.store.away = True
        away = raw_request("GET", f"{OBJECTS}/k", USER, None)
        self.assertEqual(self.left(storage.connect(), away, statuses=(b"503",)), [])
