"""A law: the response to a download is the same wherever the object's bytes come from and whoever asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product

from twisted.trial.unittest import TestCase

from tests.fakes.common import Response
from tests.fakes.store import FakeStream
from tests.http.storage.app import ANON, USER, StorageApp

LATER, EARLIER = "Sun, 22 Nov 2026 00:00:00 GMT", "Fri, 20 Nov 2026 00:00:00 GMT"
# "{etag}" is the object's.
RANGES: tuple[dict[str, str], ...] = (
    {},
    {"Range": "bytes=0-0"},
    {"Range": "bytes=1-2"},
    {"Range": "bytes=2-"},
    {"Range": "bytes=-2"},
    {"Range": "bytes=0-"},
    {"Range": "bytes=0-99999999"},
    {"Range": "bytes=99999999-"},
    {"Range": "bytes=2-1"},
    {"Range": "bytes=0-0,2-3"},
    {"Range": "items=0-0"},
    {"Range": "bytes=1-2", "If-Range": '"{etag}"'},
    {"Range": "bytes=1-2", "If-Range": '"other"'},
)
CONDITIONS: tuple[dict[str, str], ...] = (
    {},
    {"If-Match": '"{etag}"'},
    {"If-Match": '"other"'},
    {"If-None-Match": 'W/"{etag}"'},
    {"If-None-Match": '"other"', "If-Modified-Since": LATER},
    {"If-Modified-Since": LATER},
    {"If-Modified-Since": EARLIER},
    {"If-Unmodified-Since": EARLIER},
)
# These headers depend on who may cache the response.
OF_THE_WAY = ("cache-control", "referrer-policy", "x-request-id")


class Ways:
    """The same object reached in several ways: in a public and a private bucket, and by a link."""

    def __init__(self, payload: bytes, **settings: int) -> None:
        self.app = StorageApp(**settings)
        for bucket in ("open", "shut"):
            self.etag = json.loads(self.app.put("k.txt", payload, bucket).body)["etag"]
        made = self.app.post("/storage/buckets/shut/presign", {"key": "k.txt", "uses": 0})
        link = str(json.loads(made.body)["url"]).removeprefix("http://api.example.test")
        self.paths = {
            "anybody": ("/storage/buckets/open/objects/k.txt?", ANON),
            "a user": ("/storage/buckets/shut/objects/k.txt?", USER),
            "a link": (link + "&", {}),
        }

    def ask(self, who: str, method: str, inline: str, stated: dict[str, str]) -> Response:
        path, headers = self.paths[who]
        sent = {name: value.replace("{etag}", self.etag) for name, value in stated.items()}
        # With an Origin every response has the CORS headers, which cacheable ones have anyway.
        return self.app.request(
            method, f"{path}inline={inline}", {"Origin": "https://a.test", **headers, **sent}
        )


def essence(answer: Response) -> tuple[int, list[tuple[str, str]], bytes]:
    """The parts of a response that must be equal."""
    headers = [(name.lower(), value) for name, value in answer.headers]
    return answer.status, sorted(pair for pair in headers if pair[0] not in OF_THE_WAY), answer.body


def questions() -> Iterator[tuple[str, str, dict[str, str]]]:
    asked = [*RANGES, *CONDITIONS, *({**RANGES[2], **stated} for stated in CONDITIONS)]
    for method, stated in product(("GET", "HEAD"), asked):
        yield method, "false", stated
    yield "GET", "true", {}


class Alike(TestCase):
    def answers(self, payload: bytes, **settings: int) -> Callable[..., Response]:
        ways = Ways(payload, **settings)
        for who in ways.paths:
            self.assertEqual(ways.ask(who, "GET", "false", {}).body, payload)
        return ways.ask

    def test_from_memory_from_the_store_and_streamed(self) -> None:
        for payload in (b"", b"hello"):
            memory, fetched = self.answers(payload), self.answers(payload, cache_bytes=0)
            expected: dict[str, object] = {}
            for who in ("anybody", "a user", "a link"):
                for asked in questions():
                    found = essence(memory(who, *asked))
                    self.assertEqual(found, essence(fetched(who, *asked)), (who, asked))
                    with_body = self.patch(FakeStream, "buffered", lambda _: None)
                    self.assertEqual(found, essence(fetched(who, *asked)), (who, asked))
                    with_body.restore()
                    self.assertEqual(found, expected.setdefault(str(asked), found), (who, asked))
