"""Bodies from the store arrive complete or fail, are not changed, and come no faster than they are read."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any, cast

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import BrokenRead, ReaderLeft, StoreError
from tests.fakes.store import Collected
from tests.live.storage.scripted_store import Answer, Script, Scripted, against, fine
from tests.live.waiting import until


@pytest_twisted.ensureDeferred
async def test_a_body_that_stops_early_is_an_error() -> None:
    def half_then(then: Callable[[Scripted], None]) -> Answer:
        def answer(server: Scripted, *_: Any) -> None:
            server.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            then(server)

        return answer

    async def work(store: S3Store) -> None:
        for _ in range(2):
            opened = await store.open("k", 0, 10, 10)
            sink = Collected()
            with pytest.raises(BrokenRead):
                await opened.pipe_to(sink)
            assert sink.data == b"half"
        for _ in range(2):
            with pytest.raises(BrokenRead):
                await store.open("k", 0, 10, 10)

    script = Script(
        half_then(lambda server: None),
        half_then(lambda server: server.close()),
        # A length other than the object's, and a range that is ignored.
        *[fine(body=b"elevenbytes")] * 8,
    )
    await against(script, work, idle_seconds=0.3)


@pytest_twisted.ensureDeferred
async def test_a_paused_reader_pauses_the_store_and_a_leaving_one_closes_the_connection() -> None:
    from twisted.internet import reactor

    total = 50_000_000
    sent: list[int] = []

    def pour(server: Scripted, *_: Any) -> None:
        server.write(f"HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n".encode())
        assert server.transport is not None
        endless = Endless(server, sent)
        cast(Any, server.transport).registerProducer(endless, True)
        endless.resumeProducing()

    async def work(store: S3Store) -> None:
        opened = await store.open("k", 0, total, total)
        sink = Pausing()
        pouring = Deferred.fromCoroutine(opened.pipe_to(sink))
        await until(lambda: sink.size > 0)
        # Longer than the idle timeout, which does not count while the reader is the slow one.
        before = -1
        while before != len(sent):
            before = len(sent)
            await deferLater(reactor, 0.5, lambda: None)
        assert sum(sent) < total / 2
        taken = sink.size
        sink.producer.resumeProducing()
        await until(lambda: sink.size > taken)
        sink.producer.stopProducing()
        with pytest.raises(ReaderLeft):
            await pouring
        await until(lambda: not script.open)

    script = Script(pour)
    await against(script, work, idle_seconds=0.3)


class Endless:
    """A producer that writes for as long as it may."""

    def __init__(self, server: Scripted, sent: list[int]) -> None:
        self._server, self._sent = server, sent
        self._paused = False

    def resumeProducing(self) -> None:
        self._paused = False
        for _ in range(5):
            if not self._paused and sum(self._sent) < 49_000_000:
                self._sent.append(100_000)
                self._server.write(b"x" * 100_000)

    def pauseProducing(self) -> None:
        self._paused = True

    def stopProducing(self) -> None:
        self._paused = True


class Pausing:
    """A sink that pauses at the first bytes."""

    producer: Any

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> None:
        if not self.size:
            self.producer.pauseProducing()
        self.size += len(data)

    def take(self, source: int, most: int) -> int:
        return 0

    def register_producer(self, producer: Any) -> None:
        self.producer = producer

    def unregister_producer(self) -> None:
        """Nothing to forget."""


@pytest_twisted.ensureDeferred
async def test_bytes_are_not_decoded_and_no_encoding_is_asked_for() -> None:
    packed = gzip.compress(b"hello")
    headers = {"Content-Encoding": "gzip", "Set-Cookie": "a=b"}
    script = Script(fine("200 OK", packed, **headers), fine("302 Found", Location="http://127.0.0.1:1/"))

    async def work(store: S3Store) -> None:
        sink = Collected()
        await (await store.open("k", 0, len(packed), len(packed))).pipe_to(sink)
        assert sink.data == packed
        with pytest.raises(StoreError):
            await store.stat("k")

    await against(script, work)
    for _, sent, _ in script.requests:
        assert "accept-encoding" not in sent
        assert "cookie" not in sent
        assert sent["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDVISIBLE/")
