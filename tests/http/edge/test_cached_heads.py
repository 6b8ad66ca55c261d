"""Header lines that come again on a connection are not parsed again, and that makes no difference to anybody.

Each input goes to two applications: one as it is, and one that parses everything. Both have to make the same of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.http.head import CACHED_HEADER_BYTES, CachedHead
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Router
from tests.attacks.corpus import CORPUS
from tests.fakes.common import App
from tests.route_description import operation_at

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")
GET = b"GET /echo?a HTTP/1.1\r\nHost: a\r\nX-Mark: 1\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"


def router() -> Router:
    async def echo(request: Request) -> Reply:
        body = await request.body.read(1 << 20)
        headers = list(request.headers)
        return Reply(
            200, (), repr((request.method, request.raw_path, request.raw_query, headers, body)).encode()
        )

    made = Router()
    made.route("/echo", operation_at("/echo"), methods=METHODS, key="optional")(echo)
    made.route("/echo/{name}", operation_at("/echo/{name}"), methods=METHODS, key="optional")(echo)
    return made


class Alike(TestCase):
    def setUp(self) -> None:
        # How many requests were not parsed.
        self.cached = 0
        again = CachedHead.again

        def counted(cached: CachedHead, data: bytes) -> object:
            outcome = again(cached, data)
            self.cached += outcome is not None
            return outcome

        self.patch(CachedHead, "again", counted)
        self.app = App(router())

    def answered(self, pieces: Sequence[bytes]) -> tuple[bytes, bool, int]:
        """What a client gets that sends these pieces, whether its connection has ended then, and how many of its
        requests were not parsed."""
        before, client = self.cached, self.app.connect()
        for piece in pieces:
            if piece:
                client.send(piece)
        client.clock.advance(6)
        outcome = client.received(), client.transport.ended, self.cached - before
        client.hang_up()
        return outcome

    def alike(self, *pieces: bytes) -> int:
        """How many were not parsed, of pieces of which the parser makes the same."""
        received, ended, cached = self.answered(pieces)
        usual = CachedHead.of
        CachedHead.of = classmethod(lambda cls, head, data: None)  # type: ignore[assignment,method-assign]
        try:
            parsed = self.answered(pieces)
        finally:
            CachedHead.of = usual  # type: ignore[method-assign]
        self.assertEqual((received, ended, 0), parsed, pieces)
        return cached


class Same(Alike):
    def test_the_same_lines_are_not_parsed_again_whatever_the_target(self) -> None:
        other = GET.replace(b"/echo?a", b"/echo/%C3%A9?b=(c)&d=%22")
        self.assertEqual(self.alike(GET, GET, other, GET.replace(b"/echo?a", b"/none")), 3)
        self.assertEqual(self.alike(POST, POST, POST.replace(b"abc", b"\r\n\r"), POST), 3)

    def test_what_goes_through_the_parser(self) -> None:
        """After a request whose head is cached."""
        for other in (
            GET + GET,
            GET[:-1],
            GET[:20],
            GET + b"G",
            b"\r\n" + GET,
            GET.replace(b"\r\n", b"\n"),
            GET.replace(b"\r\n\r\n", b"\n\n"),
            GET.replace(b"1\r\n", b"1\r"),
            GET.replace(b"/echo?a", b"/echo?a b"),
            GET.replace(b"/echo?a", b"/echo?a\r\n"),
            GET.replace(b"/echo?a", b"/echo?\xc3\xa9"),
            GET.replace(b"/echo?a", b"/echo?a#b"),
            GET.replace(b"/echo?a", b"/echo?a\0"),
            GET.replace(b"/echo?a", b"*"),
            GET.replace(b"/echo?a", b""),
            GET.replace(b"/echo?a", b"echo"),
            GET.replace(b"/echo?a", b"http://b/echo"),
            GET.replace(b"/echo?a", b"/echo?" + b"a" * 60_000),
            GET.replace(b"GET", b"HEAD"),
            GET.replace(b"GET", b"get"),
            GET.replace(b"GET ", b"GET  "),
            GET.replace(b"HTTP/1.1", b"HTTP/1.0"),
            GET.replace(b"X-Mark: 1", b"X-Mark: 2"),
            GET.replace(b"X-Mark: 1", b"x-mark: 1"),
            GET.replace(b"X-Mark: 1", b"X-Mark:  1"),
            GET.replace(b"X-Mark: 1", b"Connection: close"),
            GET.replace(b"X-Mark: 1", b"Expect: 100-continue"),
            GET.replace(b"X-Mark: 1", b"Connection: upgrade\r\nUpgrade: h2c"),
            GET.replace(b"X-Mark: 1", b"Content-Length: 3"),
            GET.replace(b"X-Mark: 1", b"X-Mark: 1\r\n folded"),
            POST,
            CHUNKED,
        ):
            self.assertEqual(self.alike(GET, other, GET, GET), self.alike(GET, b"", other, GET, GET), other)
            counted = self.cached
            self.alike(GET, other)
            self.assertEqual(self.cached - counted, 0, other)

    def test_a_body_that_is_not_whole_or_not_alone_goes_through_the_parser(self) -> None:
        for pieces in ((POST[:-1], b"c"), (POST[:-3], b"abc"), (POST + b"G", GET[1:]), (POST + POST,)):
            self.assertEqual(self.alike(POST, *pieces), 0, pieces)

    def test_heads_that_are_never_kept(self) -> None:
        for head in (
            CHUNKED,
            GET.replace(b"HTTP/1.1", b"HTTP/1.0"),
            GET.replace(b"X-Mark: 1", b"Connection: close"),
            POST.replace(b"Host", b"Expect: 100-continue\r\nHost"),
            GET.replace(b"X-Mark: 1", b"Connection: upgrade\r\nUpgrade: h2c"),
            GET.replace(b"/echo?a", b"http://b/echo?a"),
            GET.replace(b"X-Mark: 1", b"X-Mark: " + b"1" * CACHED_HEADER_BYTES),
        ):
            self.assertEqual(self.alike(head, head, head), 0, head)

    def test_the_middle_of_a_head_is_no_head(self) -> None:
        """A piece that looks like one, but is the end of another head or of a body, is not what comes again."""
        plain = b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"
        hidden = b"GET /echo HTTP/1.1\r\nX-Secret: 1\r\nX-Long: "
        self.assertEqual(self.alike(hidden, plain, plain, plain), 1)
        body = b"GET /echo HTTP/1.1\r\nX-Other: 1\r\n"
        head = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.alike(head, body + plain, body + plain, plain)

    def test_lines_are_of_their_own_connection(self) -> None:
        self.answered([GET])
        self.assertEqual(self.answered([GET])[2], 0)


BITS = st.sampled_from(
    [
        *(b"GET /echo", b"HEAD /echo", b"POST /echo/x?y", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"Host: a\r\n"),
        *(
            b"Content-Length: 3\r\n",
            b"Content-Length: 0\r\n",
            b"Connection: close\r\n",
            b"Expect: 100-continue\r\n",
        ),
        *(
            b"X: ",
            b"1",
            b"\r\n",
            b"\r\n\r\n",
            b"\n",
            b"\r",
            b" ",
            b"abc",
            b"http://a/echo",
            b"\0",
            b"Upgrade: x\r\n",
        ),
        *(GET, POST, CHUNKED, GET[:-2], POST[:-3]),
    ]
)
WHOLE = st.sampled_from([GET, POST, CHUNKED, GET.replace(b"?a", b""), GET.replace(b"X-Mark", b"Y")])


class Random(Alike):
    @given(
        st.lists(st.one_of(WHOLE, WHOLE, st.lists(BITS, max_size=4).map(b"".join)), max_size=6),
        st.lists(st.integers(0, 400), max_size=4),
    )
    @example([b"GET /echo HTTP/1.1\r\nX: ", *([b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"] * 2)], [])
    def test_any_pieces_mean_what_they_mean_to_the_parser(self, pieces: list[bytes], cuts: list[int]) -> None:
        self.alike(*pieces)
        raw = b"".join(pieces)
        edges = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
        self.alike(GET, POST, *[raw[start:end] for start, end in pairwise(edges)])

    @given(st.binary(min_size=1, max_size=60))
    def test_any_target_is_what_it_is_to_the_parser(self, target: bytes) -> None:
        self.alike(GET, GET.replace(b"/echo?a", b"/" + target))
        self.alike(GET, GET.replace(b"/echo?a", target))

    @given(st.text("/echo%41?#[]{}|\\^`\"<>~!$&'()*+,;=:@", max_size=20))
    def test_any_visible_target_is_what_it_is_to_the_parser(self, target: str) -> None:
        self.alike(GET, GET.replace(b"/echo?a", b"/echo" + target.encode()))


class Attacks(Alike):
    def test_the_corpus_of_attacks_sent_twice_is_what_it_is_to_the_parser(self) -> None:
        """On one connection, whole and in two pieces, also behind a request of which the head is cached."""
        for case in CORPUS:
            sent = case.sent
            for pieces in (
                (sent, sent),
                (GET, sent, sent),
                (sent[: len(sent) // 2], sent[len(sent) // 2 :], sent),
                (sent[:-1], sent[-1:], sent, GET),
            ):
                self.alike(*pieces)
