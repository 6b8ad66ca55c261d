"""Run as a program: do one thing to storage and die, by SIGKILL, at a given step. For ``test_storage_crash``."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from project_service.database import dsn as dsns
from project_service.database.connect import Connector
from project_service.database.pool import Pool
from project_service.settings import Secret, Storage, Store
from project_service.storage.assemble import assemble
from project_service.storage.model import UNCONDITIONAL, Writer
from project_service.storage.objects import Described
from project_service.storage.upload import PartStream

PART = 5 * 1024 * 1024
SERVICE = Writer(None, is_service=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def new_payload(size: int) -> bytes:
    return b"new!" * (size // 4)


async def work(reactor: Any, given: dict[str, Any]) -> None:
    def at_step(step: str) -> None:
        if step == given["step"]:
            die()

    connector = Connector(reactor, dsns.parse(given["dsn"]), 30, timezone="UTC")
    pool = Pool(connector, 2, 5.0, reactor)
    store = Store(**{**given["store"], "secret_access_key": Secret(given["store"]["secret_access_key"])})
    storage = assemble(reactor, Storage(part_bytes=PART), store, pool, steps=at_step)
    bucket = await storage.buckets.fresh("b")
    size = given["size"]

    async def fill(parts: PartStream) -> Described:
        payload = new_payload(size)
        for first in range(0, size, 65536):
            if given["step"] == "half way" and first > size // 2:
                die()
            await parts.write(payload[first : first + 65536])
        return Described(given["key"], "text/plain")

    objects = storage.objects
    if given["what"] == "upload":
        await objects.upload(bucket, SERVICE, UNCONDITIONAL, 2 * size + 1, size, fill)
    elif given["what"] == "delete":
        await objects.delete(bucket, [given["key"]], SERVICE)
    elif given["what"] == "copy":
        await objects.copy(bucket, "source", given["key"], SERVICE)
    else:
        await objects.move(bucket, "source", given["key"], SERVICE)
    # Acknowledged: from here on it must be there.
    die()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(work(reactor, json.loads(sys.argv[1]))))
