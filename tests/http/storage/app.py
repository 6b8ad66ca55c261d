"""All of storage in memory: the real edge, routes and services, on the fakes of its rows and of the store."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from project_service.http.admission import Limits
from project_service.http.routing import Router
from project_service.lifecycle import background
from project_service.settings.model import Images
from project_service.settings.model import Storage as StorageSettings
from project_service.storage.assemble import build
from project_service.storage.values import BucketRules
from tests.fakes.common import ANON_KEY, SERVICE_KEY, App, Response
from tests.fakes.images import FakeImagePool
from tests.fakes.storage import START, Tables
from tests.fakes.store import MemoryStore, in_place_of_s3

ALICE = "11111111-1111-4111-8111-111111111111"
BOB = "22222222-2222-4222-8222-222222222222"
ANON = {"X-Service-Key": ANON_KEY}
SERVICE = {"X-Service-Key": SERVICE_KEY}
USER = {**ANON, "Authorization": f"Bearer user:{ALICE}"}
OTHER = {**ANON, "Authorization": f"Bearer user:{BOB}"}
BOUNDARY = "frontier"
OBJECTS = "/storage/buckets/open/objects"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def part(name: str, value: bytes, filename: str | None = None, content_type: str | None = None) -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"'
    head += "" if filename is None else f'; filename="{filename}"'
    head += "" if content_type is None else f"\r\nContent-Type: {content_type}"
    return f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def file_form(payload: bytes = b"hello", filename: str = "a.txt", key: str | None = None) -> bytes:
    parts = [part("file", payload, filename)]
    return form(*parts) if key is None else form(part("key", key.encode()), *parts)


def head(lines: dict[str, str], method: str = "POST", path: str = OBJECTS) -> bytes:
    """The head of a request by ``USER``. The test itself sends the body, or part of it."""
    sent = {"Host": "x", **USER, **lines}
    return (
        f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in sent.items()) + "\r\n"
    ).encode()


class StorageApp(App):
    """It has the buckets ``open`` (public) and ``shut`` (private). ``time`` is the edge's clock and also the date.

    A test may replace ``storage.live.settings``, as a reload does.
    """

    def __init__(
        self, images: Images | None = None, limits: Mapping[str, Limits] | None = None, **settings: Any
    ) -> None:
        self.tables = Tables(self.now)
        self.store = MemoryStore()
        self.tables.buckets["open"] = (BucketRules("public"), START)
        self.tables.buckets["shut"] = (BucketRules("private"), START)
        self.steps: list[str] = []
        self.image_pool = FakeImagePool()
        self.router = router = Router()
        super().__init__(router, limits=limits or {})
        self.storage = build(
            self.clock,
            StorageSettings(**settings),
            in_place_of_s3(self.store),
            self.tables.rows(),
            now=self.now,
            steps=self.step,
            images=images,
            image_pool=self.image_pool,
        )
        # Whether or not it is, here.
        self.storage.renditions.installed = True
        self.storage.mount(router)

    def step(self, name: str) -> None:
        """A change has come so far."""
        self.steps.append(name)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.clock.seconds() if hasattr(self, "clock") else 0)

    def rules(self, bucket: str, **rules: Any) -> None:
        """Change a bucket's rules, and let the cached ones expire."""
        visibility = self.tables.buckets[bucket][0].visibility
        self.tables.buckets[bucket] = (BucketRules(visibility, **rules), START)
        self.clock.advance(1)

    def put(self, key: str, payload: bytes = b"hello", bucket: str = "open", **headers: str) -> Response:
        sent = {**USER, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.request("PUT", f"/storage/buckets/{bucket}/objects/{key}", sent, payload)

    def get(self, key: str, bucket: str = "open", **headers: str) -> Response:
        sent = {**USER, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.request("GET", f"/storage/buckets/{bucket}/objects/{key}", sent)

    def post(self, path: str, value: Any, headers: dict[str, str] = USER) -> Response:
        sent = {**headers, "Content-Type": "application/json"}
        return self.request("POST", path, sent, json.dumps(value).encode())

    def upload(self, body: bytes, bucket: str = "open", headers: dict[str, str] = USER) -> Response:
        return self.request("POST", f"/storage/buckets/{bucket}/objects", {**headers, **FORM}, body)

    @property
    def uploading(self) -> set[UUID]:
        """The versions that are reserved, without those that were reserved in advance."""
        background(self.storage.reservations.release_all(), "releasing")
        return set(self.tables.uploads)

    def stored(self) -> list[bytes]:
        """The payloads of the versions that rows refer to, renditions last. Asserts that the store has these and no
        others."""
        paths = {row.version: row.path for row in self.tables.objects.values()}
        resized = [
            f"{paths[of].partition('/')[0]}/{one.version}" for (of, _), one in self.tables.renditions.items()
        ]
        payloads = [self.store.objects[path].payload for path in (*paths.values(), *resized)]
        assert len(self.store.objects) == len(payloads), "the store holds what no row knows"
        assert not self.uploading
        assert not self.tables.garbage
        assert not self.store.multiparts
        return payloads


def code(response: Response) -> str:
    """The error code of a refusal, which says in a sentence what is wrong."""
    error: dict[str, str] = json.loads(response.body)["error"]
    assert re.fullmatch(r"[A-Z].+\.", error["message"]), error
    return error["code"]


def refused(response: Response) -> tuple[int, str]:
    return response.status, code(response)
