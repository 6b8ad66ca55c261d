"""A program that does one thing to storage and dies by SIGKILL at a given step, for ``test_storage_crash``.

Each line on standard input says what to do, and is answered with the exit code of the process that did it. That is a
fork, so that modules are imported only once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any, NoReturn
from uuid import UUID, uuid4

from twisted.internet import default
from twisted.internet.defer import Deferred
from twisted.internet.task import react

from project_service.database.connecting import Connector
from project_service.database.pool import Pool
from project_service.dsn import read_dsn
from project_service.http.admission import Slot
from project_service.http.body import OVER, Body
from project_service.http.head import HeaderView
from project_service.settings.model import Images, Secret, Storage, Store
from project_service.storage.assemble import assemble
from project_service.storage.links import Links
from project_service.storage.objects import Objects
from project_service.storage.pictures.images import Wanted
from project_service.storage.resumables import Piece
from project_service.storage.rows.links import LinkRows
from project_service.storage.upload import SizeLimit
from project_service.storage.values import NO_DETAILS, UNCONDITIONAL, Writer
from tests.fakes.images import FakeImagePool

PART = 5 * 1024 * 1024
SERVICE = Writer(None, is_service=True)
LONGEST_SECONDS = 60


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def new_payload(size: int) -> bytes:
    return b"new!" * (size // 4)


async def die_instead(*_: Any) -> None:
    die()


def die_between_steps(step: str, objects: Objects) -> None:
    """Die at a step that ``steps`` does not report, by replacing the function that would come next."""
    if step in ("parts sent", "completing"):
        store: Any = type(objects.uploads.store)
        store.complete_multipart = die_instead
    elif step == "bytes deleted":
        garbage: Any = type(objects.uploads.garbage)
        garbage.forget = die_instead


def payload_of(size: int) -> bytes:
    """Bytes of which no two pieces are the same."""
    return Random(size).randbytes(size)


def request_with(payload: bytes) -> Any:
    """A request of which the whole body has come."""
    body = Body(OVER, len(payload), False)
    for first in range(0, len(payload), 65536):
        body.feed(payload[first : first + 65536])
    body.finish()
    return SimpleNamespace(body=body, slot=Slot())


async def append(storage: Any, given: dict[str, Any]) -> None:
    """Append to a resumable upload what is missing up to the byte ``until``."""
    resumables = storage.resumables
    row = await resumables.find("b", UUID(given["version"]), SERVICE)
    payload = payload_of(given["size"])[row.received : given["until"]]
    await resumables.append(row, request_with(payload), Piece(row.received), SERVICE)


async def render(storage: Any, given: dict[str, Any]) -> None:
    """Make a picture in another size, of which an object may have one."""
    storage.renditions.pool, storage.renditions.installed = FakeImagePool(), True
    row = await storage.objects.rows.find("b", given["key"])
    request: Any = SimpleNamespace(headers=HeaderView(()), slot=Slot(), client_address="192.0.2.1")
    wanted = Wanted(given["width"], None, "cover", None, None)
    rendition = storage.renditions.rendition(request, row, wanted)
    if await storage.renditions.stored(row, rendition) is None:
        await storage.renditions.make(request, row, rendition)


async def link(pool: Pool, given: dict[str, Any]) -> None:
    links = Links(LinkRows(pool), lambda: datetime.now(UTC), lambda: given["token"], uuid4)
    await links.make("b", [given["key"]], 3600)
    if given["step"] == "used":
        await (await links.use(given["token"], HeaderView(()))).take()
    die()


async def work(reactor: Any, given: dict[str, Any]) -> None:
    def at_step(step: str) -> None:
        if step == given["step"]:
            die()

    connector = Connector(reactor, read_dsn(given["dsn"]), 30, timezone="UTC")
    pool = Pool(connector, 2, 30.0, reactor)
    store = Store(**{**given["store"], "secret_access_key": Secret(given["store"]["secret_access_key"])})
    images = Images(max_per_object=1)
    storage = assemble(reactor, Storage(part_bytes=PART), store, pool, steps=at_step, images=images)
    bucket = await storage.buckets.fresh("b")
    size = given["size"]

    if given["what"] == "link":
        await link(pool, given)
    if given["what"] == "append":
        if given["step"] == "completing":
            die_between_steps("completing", storage.objects)
        await append(storage, given)
        die()
    objects = storage.objects
    die_between_steps(given["step"], objects)
    # An upload by the link that the test has made, or by none.
    token = given.get("token")
    digest = (await storage.links.for_upload(token)).digest if token else None
    if given["what"] == "upload":
        async with await objects.uploads.begin("b", SizeLimit(2 * size + 1), size) as upload:
            payload = new_payload(size)
            for first in range(0, size, 65536):
                if given["step"] == "half way" and first > size // 2:
                    die()
                await upload.write(payload[first : first + 65536])
            await upload.store()
            await upload.commit(given["key"], "text/plain", NO_DETAILS, SERVICE, UNCONDITIONAL, digest)
    elif given["what"] == "delete":
        await objects.delete(bucket, given["keys"], SERVICE)
    elif given["what"] == "rendition":
        await render(storage, given)
    elif given["what"] == "copy":
        await objects.copy(bucket, "source", bucket, given["key"], SERVICE, UNCONDITIONAL)
    elif given["what"] == "move":
        await objects.move(bucket, "source", given["key"], SERVICE, UNCONDITIONAL)
    else:
        other = await storage.buckets.fresh("c")
        change = objects.copy if given["what"] == "copy away" else objects.move_to_bucket
        await change(bucket, "source", other, given["key"], SERVICE, UNCONDITIONAL)
    # The change has been acknowledged: from here on it must not be lost.
    die()


def end_by(given: dict[str, Any]) -> NoReturn:
    """Runs in a fork, with a reactor of its own: the inherited one would share its epoll with the parent."""
    del sys.modules["twisted.internet.reactor"]
    default.install()
    signal.alarm(LONGEST_SECONDS)
    react(lambda reactor: Deferred.fromCoroutine(work(reactor, given)))


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            end_by(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    main()
