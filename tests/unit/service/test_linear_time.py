"""What clients and the store send, and the texts of a project's functions, take time by their length, in whatever
pieces they come."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping

from twisted.trial.unittest import SynchronousTestCase

from project_service.database.sql_lexer import Unreadable, tokens
from project_service.errors import ApiError
from project_service.http.head import RequestParser
from project_service.http.json_body import depth_of, strict_loads
from project_service.storage.parsing.form import FormReader
from project_service.storage.s3.connection import ResponseParser
from project_service.storage.s3.errors import StoreUnreachable
from project_service.storage.s3.xml import error_text, parse_objects
from project_service.tables.request.body import parse_payload
from project_service.tables.request.lines import CsvLines, JsonLines
from tests.hostile_bodies import csv_bodies, json_bodies

MIB = 1024 * 1024
JSON = "application/json"
Feed = Callable[[bytes], object]


class Requests:
    """Takes what was parsed, and keeps nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def request_parser(start: bytes) -> Callable[[], Feed]:
    def made() -> Feed:
        parser = RequestParser(Requests())
        parser.feed(start)
        return parser.feed

    return made


# What reads a body piece by piece, and a body of so many bytes.
READERS: Mapping[str, tuple[Callable[[], Feed], Callable[[int], bytes]]] = {
    "an open quote": (lambda: CsvLines(None, MIB).read, lambda size: b'a\n"' + b"x\n" * (size // 2)),
    "quotes in an open quote": (lambda: CsvLines(None, MIB).read, lambda size: b'a\n"' + b'""\n' * (size // 3)),
    "cells with line feeds": (lambda: CsvLines(None, MIB).read, lambda size: b'a\n"' + b'\n",x\n"' * (size // 7)),
    "cells of a row": (lambda: CsvLines(None, MIB).read, lambda size: b'a\n"' + b'\n","' * (size // 4)),
    "blank lines of CSV": (lambda: CsvLines(None, MIB).read, lambda size: b"a\n" + b"\n" * size),
    "many names": (lambda: CsvLines(None, MIB).read, lambda size: b"a," * (size // 4) + b"a\n" + b"\n" * (size // 2)),
    "a long line of CSV": (lambda: CsvLines(None, MIB).read, lambda size: b"a" * size),
    "short rows": (lambda: CsvLines(None, MIB).read, lambda size: b"a\n" + b"1\n" * (size // 2)),
    "blank lines of NDJSON": (lambda: JsonLines(None, MIB).read, lambda size: b"\n" * size),
    "a long line of NDJSON": (lambda: JsonLines(None, MIB).read, lambda size: b'{"a":"' + b"x" * size),
    "objects": (lambda: JsonLines(None, MIB).read, lambda size: b'{"a":1}\n' * (size // 8)),
    "a file": (
        lambda: FormReader("x").feed,
        lambda size: b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + b"\r\n--" * (size // 4),
    ),
    "what stands before a boundary": (lambda: FormReader("x").feed, lambda size: b"\r\n--" * (size // 4)),
    "chunks": (
        request_parser(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"),
        lambda size: b"1;e\r\nx\r\n" * (size // 8),
    ),
    "a target": (request_parser(b"GET "), lambda size: b"/" * min(size, 40_000)),
    "headers": (request_parser(b"GET / HTTP/1.1\r\nHost: x\r\n"), lambda size: b"A: b\r\n" * min(size // 6, 150)),
    "a header": (request_parser(b"GET / HTTP/1.1\r\nHost: x\r\nA: "), lambda size: b"b" * min(size, 40_000)),
    "a response's head": (
        lambda: ResponseParser().feed,
        lambda size: b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * min(size // 6, 10_000),
    ),
    "a response's chunks": (
        lambda: ResponseParser().feed,
        lambda size: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (size // 6),
    ),
}  # fmt: skip


def pieces_of(body: bytes, chance: random.Random) -> Iterator[bytes]:
    begin = 0
    while begin < len(body):
        end = begin + chance.choice((1, 2, 5, 40))
        yield body[begin:end]
        begin = end


def seconds(make: Callable[[], Feed], body: bytes) -> float:
    """The CPU time that reading ``body`` takes in random pieces, the same each time."""
    pieces = [*pieces_of(body, random.Random(1))]
    best = 1e9
    for _ in range(3):
        feed = make()
        begun = time.thread_time()
        with contextlib.suppress(ApiError):
            for piece in pieces:
                feed(piece)
        best = min(best, time.thread_time() - begun)
    return best


BODIES, CSV_BODIES = json_bodies(MIB), csv_bodies(MIB)
# Where something begins may look like the middle of something else.
SQL: Mapping[str, bytes] = {
    "comments after operators": b"+/**/",
    "lines of comment after operators": b"+--\n",
    "comments": b"/**/",
    "open comments": b"/*",
    "operators": b"+-",
    "dollars": b"$a",
    "quotes": b"''",
    "literals that go on": b"'a'\n",
}


class LinearTime(SynchronousTestCase):
    def test_a_body_takes_time_by_its_length_in_any_pieces(self) -> None:
        slow = {}
        for name, (make, body) in READERS.items():
            short, long = (seconds(make, body(size)) for size in (8 * 1024, 64 * 1024))
            # Eight times the length: where all is read again with each piece, it takes 64 times as long.
            if long > 24 * max(short, 0.001):
                slow[name] = (short, long)
        self.assertEqual(slow, {})

    def test_a_whole_body_takes_time_by_its_length(self) -> None:
        slow = {}
        for name, body in {**BODIES, **CSV_BODIES}.items():
            begun = time.thread_time()
            with contextlib.suppress(ApiError):
                parse_payload("text/csv" if name in CSV_BODIES else JSON, body, None, True)
            with contextlib.suppress(ApiError):
                strict_loads(body)
            depth_of(body)
            error_text(body)
            slow[name] = time.thread_time() - begun
        self.assertEqual({name: taken for name, taken in slow.items() if taken > 2.0}, {})

    def test_the_text_of_a_function_takes_time_by_its_length(self) -> None:
        slow = {}
        for name, piece in SQL.items():
            begun = time.thread_time()
            with contextlib.suppress(Unreadable):
                tokens((piece * (MIB // 2 // len(piece))).decode())
            slow[name] = time.thread_time() - begun
        self.assertEqual({name: taken for name, taken in slow.items() if taken > 5.0}, {})

    def test_documents_that_no_store_sends_are_not_read(self) -> None:
        item = b"<Contents><Key>%b</Key><Size>5</Size></Contents>" % (b"%C3%A9" * 170)
        page = b"<ListBucketResult>" + item * 1000 + b"</ListBucketResult>"
        self.assertEqual(len(parse_objects(page).objects), 1000)
        for hostile in (
            b"<a>" + b"<b/>" * MIB + b"</a>",
            b"<a>" * MIB,
            b"<a " + b" ".join([b'a%d="1"' % number for number in range(100_000)]) + b"/>",
        ):
            self.assertEqual(error_text(hostile), "")
            self.assertRaises(StoreUnreachable, parse_objects, hostile)
