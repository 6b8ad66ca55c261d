"""Responses that are streamed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import TestCase

from project_service.http.body import ClientGone
from project_service.http.inbound import Inbound
from project_service.http.outbound import Reply, Sink, StreamReply
from tests.fakes import App, Client, raw_request
from tests.http.toy_app import app_of

Source = Callable[[Sink], Awaitable[None]]


def streaming(source: Source, length: int | None = None) -> App:
    async def reply(inbound: Inbound) -> StreamReply:
        return StreamReply(200, (("Content-Type", "text/plain"),), length, source)

    return app_of(reply)


class Streams(TestCase):
    def test_chunked_and_with_length(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"abc")
            await sink.drained()
            sink.write(b"")
            sink.write(b"de")

        self.assertEqual(streaming(source).request("GET", "/x").body, b"abcde")
        sized = streaming(source, 5).request("GET", "/x")
        self.assertEqual((sized.body, sized.header("content-length")), (b"abcde", "5"))
        self.assertEqual(streaming(source).request("HEAD", "/x").body, b"")

    def test_a_stream_without_a_body_writes_none(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"HTTP/1.1 200 OK\r\n\r\nforged")

        for status in (204, 304):

            async def reply(inbound: Inbound, made: int = status) -> StreamReply:
                return StreamReply(made, (), None, source)

            client = app_of(reply).connect()
            client.send(raw_request("GET", "/x", {}, None))
            raw = client.received()
            self.assertTrue(raw.startswith(b"HTTP/1.1 %d " % status))
            self.assertTrue(raw.endswith(b"\r\n\r\n"))
            self.assertNotIn(b"forged", raw)

    def test_a_failure_in_mid_stream_aborts(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"abc")
            raise RuntimeError("the store broke off")

        client = streaming(source).connect()
        client.send(raw_request("GET", "/x", {}, None))
        self.assertTrue(client.transport.aborted)
        self.assertFalse(client.received().endswith(b"0\r\n\r\n"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def paused_client(self, app: App) -> Client:
        client = app.connect()
        client.transport.full = True
        client.send(raw_request("GET", "/x", {}, None))
        return client

    def test_a_source_waits_for_a_slow_reader(self) -> None:
        done: list[str] = []

        async def source(sink: Sink) -> None:
            sink.write(b"a")
            await sink.drained()
            done.append("drained")

        client = self.paused_client(streaming(source))
        self.assertEqual(done, [])
        client.transport.drain()
        self.assertEqual(done, ["drained"])

    def test_a_reader_that_takes_nothing_is_dropped(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"a")
            await sink.drained()

        client = self.paused_client(streaming(source))
        client.clock.advance(59)
        self.assertFalse(client.transport.aborted)
        client.clock.advance(2)
        self.assertTrue(client.transport.aborted)
        client.hang_up()

    def test_a_client_that_leaves_wakes_the_source_and_stops_its_producer(self) -> None:
        seen: list[object] = []

        class Producer:
            def pauseProducing(self) -> None:
                seen.append("paused")

            def resumeProducing(self) -> None:
                seen.append("resumed")

            def stopProducing(self) -> None:
                seen.append("stopped")

        async def source(sink: Sink) -> None:
            sink.register_producer(Producer())
            try:
                await sink.drained()
            except (ClientGone, CancelledError) as fault:
                seen.append(type(fault))
                raise

        client = self.paused_client(streaming(source))
        client.hang_up()
        self.assertEqual(seen, ["paused", "stopped", ClientGone])

    def test_a_client_that_leaves_cancels_its_handler(self) -> None:
        seen: list[str] = []

        async def forever(inbound: Inbound) -> Reply:
            try:
                await Deferred()
            except CancelledError:
                seen.append("cancelled")
                raise
            raise AssertionError

        app = app_of(forever)
        client = app.connect()
        client.send(raw_request("GET", "/x", {}, None))
        client.hang_up()
        self.assertEqual(seen, ["cancelled"])
        self.successResultOf(app.edge.drained())
