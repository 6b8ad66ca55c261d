"""The HTTP parser: it gives the same requests into whatever pieces the bytes are split, and only raises
``ApiError``."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.errors import ApiError
from project_service.http.head import MAX_HEAD_BYTES, MAX_TARGET_BYTES, HeaderView, RequestHead, RequestParser

GET = b"GET /a?b HTTP/1.1\r\nHost: x\r\nX-Mark: \t1 \t\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"PUT /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;e\r\nde\r\n1\r\nf\r\n0\r\nT: 1\r\n\r\n"
UPGRADE = b"POST /u HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi"


class Recorder:
    """Records what was parsed: heads, bodies, and where each ended."""

    def __init__(self) -> None:
        self.heads: list[RequestHead] = []
        self.bodies: list[bytes] = []
        self.ended = 0

    def head_begun(self) -> None: ...

    def head_received(self, head: RequestHead) -> None:
        self.heads.append(head)
        self.bodies.append(b"")

    def body_received(self, data: bytes) -> None:
        self.bodies[-1] += data

    def request_received(self) -> None:
        self.ended += 1

    @property
    def received(self) -> list[tuple[str, bytes, int | None, bytes]]:
        return [
            (head.method, head.target, head.length, body)
            for head, body in zip(self.heads, self.bodies, strict=True)
        ]


def parsed(raw: bytes, cuts: list[int]) -> Recorder:
    recorder = Recorder()
    parser = RequestParser(recorder)
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    for start, end in pairwise(edges):
        if start < end:
            parser.feed(raw[start:end])
    return recorder


class Requests(TestCase):
    EXPECTED = (
        ("GET", b"/a?b", 0, b""),
        ("POST", b"/p", 3, b"abc"),
        ("PUT", b"/c", None, b"def"),
        ("POST", b"/u", 2, b"hi"),
    )

    @given(st.lists(st.integers(0, 500), max_size=12), st.permutations(range(4)))
    def test_pieces_make_no_difference(self, cuts: list[int], order: list[int]) -> None:
        raw = b"".join((GET, POST, CHUNKED, UPGRADE)[index] for index in order)
        requests = parsed(raw, cuts)
        self.assertEqual(requests.received, [self.EXPECTED[index] for index in order])
        self.assertEqual(requests.ended, 4)

    @given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
    def test_noise_is_refused_or_waits_for_more(self, noise: bytes, cuts: list[int]) -> None:
        try:
            parsed(noise, cuts)
            parsed(GET[:-2] + noise, cuts)
            parsed(CHUNKED.partition(b"2;e")[0] + noise, cuts)
        except ApiError as fault:
            self.assertIn(fault.status, (400, 405, 414, 431))

    def test_header_values_are_stripped_of_white_space(self) -> None:
        self.assertEqual(parsed(GET, []).heads[0].headers.get(b"x-mark"), b"1")

    def test_identical_headers_share_one_parsed_view(self) -> None:
        requests = parsed(GET + GET + POST, [])
        self.assertIs(requests.heads[0].headers, requests.heads[1].headers)
        self.assertIsNot(requests.heads[0].headers, requests.heads[2].headers)

    def test_long_headers_are_not_kept_between_requests(self) -> None:
        raw = GET[:-2] + b"A: " + b"a" * 5000 + b"\r\n\r\n"
        requests = parsed(raw + raw, [])
        self.assertEqual(list(requests.heads[0].headers), list(requests.heads[1].headers))
        self.assertIsNot(requests.heads[0].headers, requests.heads[1].headers)

    def test_endless_request_lines_headers_and_chunks_are_refused(self) -> None:
        for start in (
            b"GET /",
            GET[:-2] + b"A: ",
            GET[:-2] + b"A",
            CHUNKED.partition(b"2;e")[0] + b"1;",
            CHUNKED[:-2] + b"A: ",
        ):
            recorder = Recorder()
            parser = RequestParser(recorder)
            parser.feed(start)
            with self.assertRaises(ApiError):
                for _ in range(200):
                    parser.feed(b"x" * 1000)

    def test_endless_white_space_is_refused(self) -> None:
        recorder = Recorder()
        parser = RequestParser(recorder)
        parser.feed(GET[:-2])
        with self.assertRaises(ApiError) as refused:
            for number in range(100):
                parser.feed(b"A%d:" % number + b" " * 3000 + b"b\r\n")
        self.assertEqual(refused.exception.status, 431)

    def test_a_body_before_the_head_in_the_same_piece_does_not_count_towards_its_size(self) -> None:
        size = 3 * MAX_HEAD_BYTES
        upload = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        start, rest = GET[:-2], b"A: " + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n"
        recorder = Recorder()
        parser = RequestParser(recorder)
        for piece in (upload, b"x" * size + start, rest[:100], rest[100:]):
            parser.feed(piece)
        self.assertEqual(recorder.ended, 2)
        with self.assertRaises(ApiError):
            parser.feed(upload + b"x" * size + start + 3 * (b"A: " + b"a" * 30_000 + b"\r\n") + b"\r\n")

    def test_the_longest_target_may_come_with_an_upgrade(self) -> None:
        target = b"/" + b"u" * (MAX_TARGET_BYTES - 1)
        requests = parsed(UPGRADE.replace(b"/u", target), [])
        self.assertEqual(requests.received, [("POST", target, 2, b"hi")])


class Derived(TestCase):
    """Values that are computed from a view of headers."""

    def test_a_derived_value_is_computed_once_for_a_view(self) -> None:
        made: list[HeaderView] = []

        def count(view: HeaderView) -> int:
            made.append(view)
            return len(list(view))

        view = HeaderView([(b"a", b"1"), (b"a", b"2")])
        self.assertEqual((view.derived(count), view.derived(count)), (2, 2))
        self.assertEqual(len(made), 1)
        self.assertEqual((view.get(b"a"), view.all(b"a")), (b"1", [b"1", b"2"]))
