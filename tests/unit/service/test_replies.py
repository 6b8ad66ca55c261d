"""The recorder of replies (``benchmarks.replies``): what it reads of its list, masks, and takes off the wire."""

from __future__ import annotations

import random
import socket
from collections import defaultdict

from twisted.trial.unittest import TestCase

from benchmarks.replies.requests import MANNERS, sections
from benchmarks.replies.wire import Connection, shown


class Listed(TestCase):
    def test_each_line_is_a_request_that_can_be_sent_in_its_manner(self) -> None:
        known: defaultdict[str, bytes] = defaultdict(lambda: b"known")
        replies = 0
        for section in sections():
            for line in section.lines:
                request = section.request(line, known)
                steps = list(MANNERS[section.manner](request, random.Random(1)))
                replies += sum(len(exchange.methods) for step in steps for exchange in step)
                self.assertTrue(request.method.isupper(), line)
                self.assertNotIn(b" ", request.target.replace(b"a space", b""), line)
        self.assertGreater(replies, 1000)


class Masked(TestCase):
    def test_what_differs_from_run_to_run_is_masked(self) -> None:
        for text, masked in (
            (b"Date: Thu, 26 Nov 2026 20:00:00 GMT\r\nA: b", "Date: <time>\r\nA: b"),
            (b"X-Request-Id: " + b"0f" * 16, "X-Request-Id: <made>"),
            (b'{"id":"5e9d3a00-0000-4000-8000-000000000001"}', '{"id":"<uuid>"}'),
            (b'{"iat": 1795233845, "n": 1795233845}', '{"iat": <time>, "n": 1795233845}'),
            (b'"2026-11-21T03:04:05.678Z"', '"<time>"'),
        ):
            self.assertEqual(shown(text), masked)

    def test_what_a_request_chose_itself_is_not(self) -> None:
        for text in (
            "X-Request-Id: own-id.1",
            "00000000-0000-4000-8000-000000000007",
            "2026-01-01T00:00:00+00:00",
        ):
            self.assertEqual(shown(text.encode()), text)

    def test_long_texts_differ_by_their_digests(self) -> None:
        one, other = (b"x" * 50_000 + end + b"y" * 1000 for end in (b"1", b"2"))
        self.assertNotEqual(shown(one), shown(other))


class Received(TestCase):
    def receive(self, sent: bytes, *methods: str, to_the_end: bool = False) -> tuple[list[bytes], str]:
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        theirs.sendall(sent)
        theirs.close()
        connection = Connection(ours)
        connection.send([])
        answered = connection.receive(methods, to_the_end)
        return [reply.body for reply in answered.replies], answered.then

    def test_bodies_end_where_their_framing_says(self) -> None:
        sent = (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
            b"HTTP/1.1 100 Continue\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
            b"HTTP/1.1 204 No Content\r\n\r\n"
        )
        found = self.receive(sent, "GET", "HEAD", "POST", "DELETE")
        self.assertEqual(found, ([b"ab", b"", b"", b"abc", b""], "open"))

    def test_replies_that_nobody_asked_for_are_seen(self) -> None:
        sent = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" * 2
        self.assertEqual(self.receive(sent, "GET"), ([b"", b""], "closed"))

    def test_a_missing_reply_is_seen(self) -> None:
        self.assertEqual(self.receive(b"", "GET"), ([], "closed"))
