"""Responses that are streamed: framing, failures in between, back-pressure, and clients that leave."""

from __future__ import annotations

import contextlib

from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.http.body import ClientGone
from project_service.http.request import Request
from project_service.http.response import Reply, Sink, StreamReply
from project_service.storage.errors import store_unavailable
from tests.captured_log import captured_logs
from tests.fakes.common import App, Client, parse_response, raw_request
from tests.http.toy_app import Source, app_of, streaming

BODY = 500_000


@define
class FakeProducer:
    """Records its calls."""

    seen: list[object] = field(factory=list)

    def pauseProducing(self) -> None:
        self.seen.append("paused")

    def resumeProducing(self) -> None:
        self.seen.append("resumed")

    def stopProducing(self) -> None:
        self.seen.append("stopped")


class Streams(TestCase):
    def test_streams_are_chunked_or_have_a_length(self) -> None:
        called: list[Sink] = []

        async def source(sink: Sink) -> None:
            called.append(sink)
            sink.write(b"abc")
            await sink.drained()
            sink.write(b"")
            sink.write(b"de")

        self.assertEqual(streaming(source).request("GET", "/x").body, b"abcde")
        sized = streaming(source, 5).request("GET", "/x")
        self.assertEqual((sized.body, sized.header("content-length")), (b"abcde", "5"))
        self.assertEqual(streaming(source).request("HEAD", "/x").body, b"")
        self.assertEqual(len(called), 2)

    def test_streams_follow_each_other_on_a_connection(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"abc")

        client = streaming(source).connect()
        self.assertEqual([client.request("GET", "/x").body for _ in range(2)], [b"abc"] * 2)

    def test_a_status_without_a_body_writes_none(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"HTTP/1.1 200 OK\r\n\r\nforged")

        for status in (204, 304):

            async def reply(request: Request, made: int = status) -> StreamReply:
                return StreamReply(made, (), None, source)

            client = app_of(reply).connect()
            client.send(raw_request("GET", "/x", {}, None))
            raw = client.received()
            self.assertTrue(raw.startswith(b"HTTP/1.1 %d " % status))
            self.assertTrue(raw.endswith(b"\r\n\r\n"))
            self.assertNotIn(b"forged", raw)

    def test_a_failure_during_the_stream_aborts_the_connection(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"abc")
            raise RuntimeError("the store broke off")

        client = streaming(source).connect()
        client.send(raw_request("GET", "/x", {}, None))
        self.assertTrue(client.transport.aborted)
        self.assertFalse(client.received().endswith(b"0\r\n\r\n"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_an_outage_during_the_stream_aborts_and_is_logged_without_traceback(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"abc")
            raise store_unavailable()

        client = streaming(source).connect()
        with captured_logs() as events:
            client.send(raw_request("GET", "/x", {}, None))
        self.assertTrue(client.transport.aborted)
        lines = [formatEvent(event) for event in events]
        self.assertIn("streaming broke off: store_unavailable id=made-here", lines)

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

    def test_a_reader_that_reads_nothing_is_dropped(self) -> None:
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
        producer = FakeProducer()

        async def source(sink: Sink) -> None:
            sink.register_producer(producer)
            try:
                await sink.drained()
            except (ClientGone, CancelledError) as fault:
                producer.seen.append(type(fault))
                raise

        client = self.paused_client(streaming(source))
        client.hang_up()
        self.assertEqual(producer.seen, ["paused", "stopped", ClientGone])
        self.assertEqual(client.clock.getDelayedCalls(), [])

    def test_a_producer_is_paused_and_resumed_as_the_client_reads(self) -> None:
        producer = FakeProducer()
        sinks: list[Sink] = []

        async def source(sink: Sink) -> None:
            sinks.append(sink)
            sink.register_producer(producer)
            await Deferred()

        client = streaming(source).connect()
        client.send(raw_request("GET", "/x", {}, None))
        client.transport.full = True
        for _ in range(3):
            sinks[0].write(b"a")
        self.assertEqual(producer.seen, ["paused"])
        client.transport.drain()
        self.assertEqual(producer.seen, ["paused", "resumed"])
        client.clock.advance(600)
        self.assertFalse(client.transport.aborted, "it is not the client that is slow")
        client.hang_up()
        self.assertEqual((producer.seen[2:], client.clock.getDelayedCalls()), (["stopped"], []))

    def test_a_producer_that_was_not_paused_is_not_resumed(self) -> None:
        producer = FakeProducer()
        sources: list[Source] = []

        async def short(sink: Sink) -> None:
            sink.write(b"a")

        async def long(sink: Sink) -> None:
            sink.register_producer(producer)
            await Deferred()

        async def reply(request: Request) -> StreamReply:
            return StreamReply(200, (), None, sources.pop(0))

        sources.extend((short, long))
        client = app_of(reply).connect()
        client.transport.full = True
        client.send(2 * raw_request("GET", "/x", {}, None))
        self.assertEqual(sources, [long], "the client takes the first answer first")
        client.transport.drain()
        self.assertEqual((sources, producer.seen), ([], []))

    def test_writing_for_a_client_that_has_left_is_an_error_to_the_source(self) -> None:
        seen: list[object] = []

        async def handler(request: Request) -> StreamReply:
            async def source(sink: Sink) -> None:
                with contextlib.suppress(CancelledError):
                    await Deferred()
                sink.register_producer(FakeProducer(seen))
                sink.write(b"more")
                for waiting in (sink.drained, request.body.next_chunk):
                    try:
                        await waiting()
                    except ClientGone as fault:
                        seen.append(type(fault))

            return StreamReply(200, (), None, source)

        app = app_of(handler, methods=("POST",))
        client = app.connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "3", "Expect": "100-continue"}, None))
        client.received()
        client.hang_up()
        self.assertEqual(seen, ["stopped", ClientGone, ClientGone])
        self.assertEqual(client.received(), b"")
        self.successResultOf(app.edge.drained())

    def test_a_stream_to_http_1_0_ends_with_the_connection(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"abc")
            sink.write(b"de")

        client = streaming(source).connect()
        client.send(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        head, _, body = client.received().partition(b"\r\n\r\n")
        self.assertEqual((body, b"Transfer-Encoding" in head), (b"abcde", False))
        self.assertTrue(client.transport.ended)

    def test_a_body_is_not_read_while_the_client_does_not_read_the_response(self) -> None:
        async def handler(request: Request) -> StreamReply:
            async def source(sink: Sink) -> None:
                while chunk := await request.body.next_chunk():
                    sink.write(chunk)
                    await sink.drained()

            return StreamReply(200, (), BODY, source)

        client = app_of(handler, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": str(BODY)}, None) + bytes(10_000))
        client.transport.full = True
        sent = 10_000
        while client.transport.producerState == "producing" and sent < BODY:
            client.send(bytes(10_000))
            sent += 10_000
        self.assertLess(sent, BODY // 2)
        client.transport.drain()
        self.assertEqual(client.transport.producerState, "producing")
        client.send(bytes(BODY - sent))
        self.assertEqual(len(parse_response(client.received()).body), BODY)

    def test_a_client_that_leaves_cancels_its_handler(self) -> None:
        seen: list[str] = []

        async def forever(request: Request) -> Reply:
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
