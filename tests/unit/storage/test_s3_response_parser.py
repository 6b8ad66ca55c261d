"""Responses of the store, into whatever pieces they are split, and what is no valid response."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.storage.s3.connection import MAX_HEAD_BYTES, ResponseParser
from project_service.storage.s3.errors import BrokenResponse

# A busy machine must not fail these tests.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
CUTS = st.lists(st.integers(0, 400), max_size=8)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    positions = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[first:last] for first, last in pairwise(positions)]


def read(data: bytes, cuts: list[int] | None = None, bodiless: bool = False) -> tuple[ResponseParser, bytes]:
    incoming = ResponseParser(bodiless)
    return incoming, b"".join(incoming.feed(piece) for piece in pieces(data, cuts or []) if piece)


class Whole(SynchronousTestCase):
    """Complete responses, by how their end is known."""

    @PATIENT
    @given(st.binary(max_size=300), CUTS)
    def test_a_body_with_content_length(self, body: bytes, cuts: list[int]) -> None:
        head = b'HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nETag: "x"\r\n\r\n' % len(body)
        incoming, got = read(head + body, cuts)
        self.assertEqual((incoming.code, incoming.length), (206, len(body)))
        self.assertEqual((got, incoming.complete, incoming.keep_alive), (body, True, True))
        self.assertEqual(incoming.headers[b"etag"], b'"x"')
        incoming.end()

    @PATIENT
    @given(st.lists(st.binary(min_size=1, max_size=60), max_size=5), CUTS)
    def test_a_chunked_body(self, chunks: list[bytes], cuts: list[int]) -> None:
        sent = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
        incoming, got = read(head + sent + b"0\r\nTrailer: x\r\n\r\n", cuts)
        self.assertEqual((got, incoming.complete, incoming.length), (b"".join(chunks), True, None))
        self.assertEqual(list(incoming.headers), [b"transfer-encoding"])

    @PATIENT
    @given(st.binary(max_size=100), CUTS)
    def test_a_body_until_the_connection_closes(self, body: bytes, cuts: list[int]) -> None:
        incoming, got = read(b"HTTP/1.1 200 OK\r\n\r\n" + body, cuts)
        self.assertEqual((got, incoming.complete, incoming.keep_alive), (body, False, False))
        incoming.end()
        self.assertTrue(incoming.complete)

    @PATIENT
    @given(CUTS)
    def test_interim_responses_are_skipped(self, cuts: list[int]) -> None:
        early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        incoming, got = read(early + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", cuts)
        self.assertEqual((incoming.code, got, incoming.complete), (200, b"ok", True))
        self.assertEqual(list(incoming.headers), [b"content-length"])

    def test_very_many_interim_responses_are_skipped(self) -> None:
        incoming, _ = read(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000 + b"HTTP/1.1 204 None\r\n\r\n")
        self.assertTrue(incoming.complete)

    def test_responses_without_a_body_whatever_their_headers_say(self) -> None:
        for framing in (b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n"):
            for status, bodiless in (
                (b"204 No", False),
                (b"304 Not", False),
                (b"200 OK", True),
                (b"404 No", True),
            ):
                incoming, got = read(b"HTTP/1.1 " + status + b"\r\n" + framing + b"\r\n", bodiless=bodiless)
                self.assertEqual((got, incoming.complete, incoming.length), (b"", True, 0))

    def test_which_connections_are_kept_open(self) -> None:
        for line, kept in (
            (b"HTTP/1.1 200 OK", True),
            (b"HTTP/1.1 200 OK\r\nConnection: close", False),
            (b"HTTP/1.0 200 OK", False),
            (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
        ):
            incoming, _ = read(line + b"\r\nContent-Length: 0\r\n\r\n")
            self.assertEqual((incoming.complete, incoming.keep_alive), (True, kept))


class Broken(SynchronousTestCase):
    def test_malformed_responses_are_refused(self) -> None:
        for data in (
            b"\x16\x03\x01\x00\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 20 OK\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot hex\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\nContent-Length: 1\n\n\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES,
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        ):
            with self.subTest(data[:60]):
                self.assertRaises(BrokenResponse, read, data)

    @PATIENT
    @given(st.sampled_from([b"Content-Length: 3", b"Transfer-Encoding: chunked", b"Content-Length: 0"]), CUTS)
    def test_bytes_after_the_response_are_refused(self, framing: bytes, cuts: list[int]) -> None:
        body = {b"C": b"abc", b"T": b"3\r\nabc\r\n0\r\n\r\n"}[framing[:1]] if framing[-1:] != b"0" else b""
        data = b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n" + body
        incoming, _ = read(data, cuts)
        self.assertTrue(incoming.complete)
        self.assertRaises(BrokenResponse, incoming.feed, b"HTTP/1.1 200 OK\r\n\r\n")
        self.assertRaises(BrokenResponse, read, data + b"HTTP/1.1 200 OK\r\n\r\n", cuts)

    @PATIENT
    @given(st.integers(0, 200), st.booleans())
    def test_an_incomplete_response_is_an_error_at_the_end(self, cut: int, chunked: bool) -> None:
        framing = (
            b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
            if chunked
            else b"Content-Length: 2\r\n\r\nab"
        )
        data = b"HTTP/1.1 200 OK\r\n" + framing
        incoming, _ = read(data[: min(cut, len(data) - 1)])
        self.assertRaises(BrokenResponse, incoming.end)

    @PATIENT
    @given(st.binary(max_size=300), CUTS)
    def test_any_bytes_are_a_response_or_an_error(self, data: bytes, cuts: list[int]) -> None:
        try:
            incoming, _ = read(b"HTTP/1.1 200 OK\r\n" + data, cuts)
        except BrokenResponse:
            return
        self.assertIn(incoming.code, (0, 200))
