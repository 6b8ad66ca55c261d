"""Request bodies, and the framing of requests."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.http.head import MAX_TARGET_BYTES
from project_service.http.request import Request
from project_service.http.response import Reply, json_reply
from project_service.http.routing import Handler
from tests.fakes.common import parse_response, raw_request
from tests.http.toy_app import app_of, echo, hello


def echo_after(gate: Deferred[None]) -> Handler:
    """A handler that reads the body only after ``gate`` has fired."""

    async def slow(request: Request) -> Reply:
        await gate
        return await echo(request)

    return slow


class Bodies(TestCase):
    def test_bodies_with_a_length_and_chunked(self) -> None:
        app = app_of(echo, methods=("POST",))
        self.assertEqual(app.request("POST", "/x", body=b"abc").body, b"abc")
        client = app.connect()
        client.send(raw_request("POST", "/x", {"Transfer-Encoding": "chunked"}, None))
        client.send(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        self.assertEqual(parse_response(client.received()).body, b"abcde")

    def test_a_length_may_have_any_number_of_leading_zeros(self) -> None:
        client = app_of(echo, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "0" * 5000 + "3"}, None) + b"abc")
        self.assertEqual(parse_response(client.received()).body, b"abc")

    def test_a_chunked_body_that_is_too_long_is_413(self) -> None:
        for surplus, status in ((b"", 200), (b"1\r\nx\r\n", 413)):
            client = app_of(echo, methods=("POST",)).connect()
            client.send(raw_request("POST", "/x", {"Transfer-Encoding": "chunked"}, None))
            for _ in range(16):
                client.send(b"10000\r\n" + bytes(0x10000) + b"\r\n")
            client.send(surplus + b"0\r\n\r\n")
            self.assertEqual(parse_response(client.received()).status, status)

    def test_the_handler_runs_before_the_body_has_arrived(self) -> None:
        client = app_of(hello, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "10"}, None))
        self.assertEqual(parse_response(client.received()).status, 200)

    def test_after_an_early_response_a_small_body_is_kept_apart_from_the_next_request(self) -> None:
        client = app_of(hello, methods=("POST", "GET")).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "24"}, None))
        self.assertEqual(parse_response(client.received()).status, 200)
        client.send(b"GET /evil HTTP/1.1\r\nA: b")
        self.assertEqual(client.received(), b"")
        client.send(raw_request("GET", "/x", {}, None))
        self.assertEqual(parse_response(client.received()).status, 200)

    def test_an_early_response_to_a_large_or_awaited_body_closes(self) -> None:
        for extra in ({"Content-Length": "99999999"}, {"Content-Length": "9", "Expect": "100-continue"}):
            client = app_of(hello, methods=("POST",)).connect()
            client.send(raw_request("POST", "/x", extra, None))
            response = parse_response(client.received())
            self.assertEqual(response.header("connection"), "close")
            client.clock.advance(5)
            self.assertTrue(client.transport.ended)

    def test_after_an_early_response_the_body_is_read_while_it_comes(self) -> None:
        """However large it is: closing a connection with unread bytes would destroy the response on its way."""
        client = app_of(hello, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": str(8 * 1024 * 1024)}, None))
        self.assertEqual(parse_response(client.received()).header("connection"), "close")
        for _ in range(7):
            client.clock.advance(4)
            client.send(bytes(1024 * 1024))
            self.assertFalse(client.transport.ended)
        client.send(bytes(1024 * 1024))
        self.assertTrue(client.transport.ended)

    def test_after_an_early_response_reading_resumes_if_it_was_paused(self) -> None:
        gate: Deferred[None] = Deferred()

        async def unread(request: Request) -> Reply:
            await gate
            return await hello(request)

        client = app_of(unread, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "300000"}, None))
        client.send(bytes(200_000))
        self.assertEqual(client.transport.producerState, "paused")
        gate.callback(None)
        self.assertEqual(parse_response(client.received()).status, 200)
        self.assertEqual(client.transport.producerState, "producing")

    def test_a_body_without_end_after_an_early_response_is_cut_off(self) -> None:
        client = app_of(hello, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Transfer-Encoding": "chunked"}, None))
        for _ in range(29):
            client.clock.advance(1)
            client.send(b"1\r\nx\r\n")
        self.assertFalse(client.transport.ended)
        client.clock.advance(1)
        self.assertTrue(client.transport.ended)

    def test_continue_is_sent_only_when_the_body_is_read(self) -> None:
        client = app_of(echo, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "3", "Expect": "100-continue"}, None))
        self.assertEqual(client.received(), b"HTTP/1.1 100 Continue\r\n\r\n")
        client.send(b"abc")
        self.assertEqual(parse_response(client.received()).body, b"abc")

    def test_reading_pauses_while_the_handler_does_not_read(self) -> None:
        gate: Deferred[None] = Deferred()
        client = app_of(echo_after(gate), methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "300000"}, None))
        sent = 0
        while client.transport.producerState == "producing" and sent < 300_000:
            client.send(b"x" * 10_000)
            sent += 10_000
        self.assertLess(sent, 200_000)
        client.clock.advance(120)  # our pause is not the client's idleness
        gate.callback(None)
        self.assertEqual(client.transport.producerState, "producing")
        client.send(b"x" * (300_000 - sent))
        self.assertEqual(len(parse_response(client.received()).body), 300_000)

    def test_tiny_chunks_count_with_their_overhead(self) -> None:
        gate: Deferred[None] = Deferred()
        client = app_of(echo_after(gate), methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Transfer-Encoding": "chunked"}, None))
        sent = 0
        while client.transport.producerState == "producing" and sent < 50_000:
            client.send(b"2\r\nxx\r\n")
            sent += 2
        self.assertLess(sent, 10_000)
        gate.callback(None)
        client.send(b"0\r\n\r\n")
        self.assertEqual(parse_response(client.received()).body, b"x" * sent)

    def test_json_is_utf8_of_at_most_a_mebibyte(self) -> None:
        async def read(request: Request) -> Reply:
            return json_reply(await request.json())

        app = app_of(read, methods=("POST",))
        kind = {"Content-Type": "application/json; charset=utf-8"}
        self.assertEqual(
            app.request("POST", "/x", kind, b'{"a": [1, "\xc3\xa9"]}').body, '{"a":[1,"é"]}'.encode()
        )
        self.assertEqual(app.request("POST", "/x", kind, b'"' + b"x" * (1 << 20) + b'"').status, 413)


class Framing(TestCase):
    """A request that cannot be parsed gets a proper response, and the connection is closed (RFC 9112)."""

    def refused(self, raw: bytes) -> int:
        app = app_of(hello, methods=("GET", "POST"))
        client = app.connect()
        client.send(raw)
        response = parse_response(client.received())
        self.assertIn(f'route="-",status="{response.status}"'.encode(), app.metrics.exposition())
        self.assertEqual(response.header("connection"), "close")
        self.assertIn("error", json.loads(response.body))
        self.assertEqual(response.header("x-request-id"), "made-here")
        self.assertEqual(response.header("cache-control"), "no-store")
        self.assertTrue(client.transport.ended)
        return response.status

    def test_malformed_requests(self) -> None:
        post = b"POST /x HTTP/1.1\r\nHost: a\r\n"
        for raw, status in {
            b"rubbish\r\n\r\n": 400,
            b"GET /x HTTP/1.1\r\n\r\n": 400,
            b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n": 400,
            b"GET /x HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n": 400,
            post + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n": 400,
            post + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n": 400,
            post + b"Content-Length: -3\r\n\r\n": 400,
            post + b"Content-Length: " + b"1" * 5000 + b"\r\n\r\n": 400,
            b"GET x HTTP/1.1\r\nHost: a\r\n\r\n": 400,
            b"GET /x HTTP/1.1\r\nHost: a b/c\r\n\r\n": 400,
            b"GET /x HTTP/2.0\r\nHost: a\r\n\r\n": 400,
            post + b"Transfer-Encoding: gzip, chunked\r\n\r\n": 400,
            post + b"Transfer-Encoding: identity\r\n\r\n": 400,
            b"GET /" + b"x" * 52_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n": 414,
            b"GET /x HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 60_000: 431,
            b"GET /x HTTP/1.1\r\nHost: a\r\n" + (b"A: " + b"x" * 9000 + b"\r\n") * 8: 431,
            b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 300 + b"\r\n": 431,
        }.items():
            self.assertEqual(self.refused(raw), status, raw[:80])

    def test_broken_chunks_are_400(self) -> None:
        client = app_of(echo, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Transfer-Encoding": "chunked"}, None) + b"zz\r\n")
        response = parse_response(client.received())
        self.assertEqual((response.status, response.header("connection")), (400, "close"))

    def test_broken_chunks_are_400_however_late_the_handler_reads(self) -> None:
        gate: Deferred[None] = Deferred()
        client = app_of(echo_after(gate), methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Transfer-Encoding": "chunked"}, None) + b"zz\r\n")
        client.clock.advance(61)
        gate.callback(None)
        response = parse_response(client.received())
        self.assertEqual((response.status, response.header("connection")), (400, "close"))

    def test_the_longest_target_leaves_room_for_headers_in_whatever_pieces(self) -> None:
        for length, headers, status in ((0, 5_000, 404), (1, 5_000, 414), (0, 20_000, 431)):
            target = b"/" + b"x" * (MAX_TARGET_BYTES - 1 + length)
            raw = b"GET " + target + b" HTTP/1.1\r\nA: " + b"a" * headers + b"\r\nHost: a\r\n\r\n"
            for size in (len(raw), 1000):
                client = app_of(hello).connect()
                for start in range(0, len(raw), size):
                    client.send(raw[start : start + size])
                self.assertEqual(parse_response(client.received()).status, status, (length, headers, size))

    def test_a_head_that_comes_too_slowly_is_cut_off(self) -> None:
        client = app_of(hello).connect()
        for byte in b"GET /x HTTP/1.1\r\nHost: a\r\n":
            client.send(bytes([byte]))
            client.clock.advance(3)
        self.assertEqual((client.received(), client.transport.ended), (b"", True))

    def test_the_time_for_a_head_begins_with_its_first_byte(self) -> None:
        client = app_of(hello).connect()
        for _ in range(2):
            client.clock.advance(50)
            client.send(b"GET /x HTTP/1.1\r\n")
            client.clock.advance(50)
            client.send(b"Host: a\r\n\r\n")
            self.assertEqual(parse_response(client.received()).status, 200)
        # The time until the next one begins with the last response.
        client.clock.advance(59)
        self.assertFalse(client.transport.ended)
        client.clock.advance(2)
        self.assertTrue(client.transport.ended)

    def test_a_slow_head_behind_another_request_is_cut_off(self) -> None:
        client = app_of(hello).connect()
        client.send(raw_request("GET", "/x", {}, None) + b"GET /x HTTP/1.1\r\nHo")
        for _ in range(5):
            client.clock.advance(15)
            client.send(b"s")
        self.assertTrue(client.transport.ended)

    def test_a_closing_connection_that_reads_nothing_is_aborted(self) -> None:
        client = app_of(hello).connect()
        client.send(raw_request("GET", "/x", {"Connection": "close"}, None))
        self.assertEqual(parse_response(client.received()).status, 200)
        self.assertFalse(client.transport.aborted)
        client.clock.advance(61)
        self.assertTrue(client.transport.aborted)

    def test_a_client_that_has_left_leaves_no_timers(self) -> None:
        closing = raw_request("GET", "/x", {"Connection": "close"}, None)
        for raw in (b"", b"GET", closing, raw_request("POST", "/x", {"Content-Length": "9999999"}, None)):
            client = app_of(hello, methods=("GET", "POST")).connect()
            client.send(raw)
            client.hang_up()
            self.assertEqual(client.clock.getDelayedCalls(), [], raw)

    def test_a_target_may_be_an_absolute_url(self) -> None:
        app = app_of(hello)
        self.assertEqual(app.request("GET", "http://api.example.test/x").status, 200)
        self.assertEqual(app.request("GET", "HTTPS://other.test/x?a=b").status, 200)
        self.assertEqual(app.request("GET", "http://api.example.test").status, 404)

    def test_a_stalled_body_is_408(self) -> None:
        client = app_of(echo, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "10"}, None))
        for _ in range(4):
            client.clock.advance(20)
            client.send(b"x")
        self.assertEqual(client.received(), b"", "it moves")
        client.clock.advance(61)
        response = parse_response(client.received())
        self.assertEqual((response.status, response.header("connection")), (408, "close"))

    def test_pipelined_requests_are_answered_in_order(self) -> None:
        client = app_of(hello, "/p/<n>").connect()
        client.send(b"".join(raw_request("GET", f"/p/{n}", {}, None) for n in range(5)))
        raw = client.received()
        self.assertEqual(
            [raw.find(f'"n":"{n}"'.encode()) for n in range(5)],
            sorted(raw.find(f'"n":"{n}"'.encode()) for n in range(5)),
        )
        self.assertEqual(raw.count(b"HTTP/1.1 200"), 5)

    def test_http_1_0_is_answered_and_closed(self) -> None:
        client = app_of(hello).connect()
        client.send(b"GET /x HTTP/1.0\r\n\r\n")
        self.assertEqual(parse_response(client.received()).header("connection"), "close")
        self.assertTrue(client.transport.ended)


class Coded(TestCase):
    def test_a_body_with_a_content_encoding_is_415_before_the_handler_sees_it(self) -> None:
        app = app_of(hello, methods=("POST", "DELETE"))
        for coding in ("gzip", "GZIP", "identity, br", "aws-chunked", "x"):
            response = app.request("POST", "/x", {"Content-Encoding": coding}, b"{}")
            self.assertEqual(json.loads(response.body)["error"]["code"], "unsupported_media_type", coding)
            self.assertEqual((response.status, response.header("accept-encoding")), (415, "identity"))
            self.assertEqual(app.request("DELETE", "/x", {"Content-Encoding": coding}, b"{}").status, 415)

    def test_also_in_a_second_header_and_chunked(self) -> None:
        client = app_of(hello, methods=("POST",)).connect()
        client.send(
            b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Encoding: identity\r\nContent-Encoding: gzip\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        self.assertEqual(parse_response(client.received()).status, 415)

    def test_identity_and_the_coding_of_no_body_are_ignored(self) -> None:
        app = app_of(hello, methods=("POST",))
        for coding in ("identity", "Identity", "", "identity,"):
            self.assertEqual(app.request("POST", "/x", {"Content-Encoding": coding}, b"{}").status, 200)
        self.assertEqual(app.request("POST", "/x", {"Content-Encoding": "gzip"}).status, 200)
