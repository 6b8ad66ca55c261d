"""Thousands of malformed requests from a fixed seed: each gets a proper response or a closed connection."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from twisted.trial.unittest import TestCase

from project_service.http.inbound import Inbound
from project_service.http.outbound import Reply, envelope
from project_service.http.router import Router
from tests.fakes import ANON_KEY, App
from tests.told import told

ROUNDS = 20_000

GOOD = [
    b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n",
    b'POST /x HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}',
    b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n',
    b"PUT /o/b/k/%C3%A9?x=1&y=%20 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"OPTIONS /x HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\nAccess-Control-Request-Method: GET\r\n\r\n",
    b"GET /x HTTP/1.0\r\n\r\n",
]
SPICE = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b";",
    b"%",
    b"%zz",
    b"%00",
    b"\xff\xfe",
    b"-1",
    b"0x10",
    b"99999999999999999999",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b" folded\r\n",
    b"Host: b\r\n",
    b"Connection: close\r\n",
    b"../",
    b"//",
    b"HTTP/1.1",
    b"HTTP/2.0",
    b"GET ",
    b"\x16\x03\x01",
    b"A" * 70_000,
]
STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ")


def spoiled(chance: random.Random, good: Sequence[bytes] = GOOD) -> bytes:
    """Valid requests that are cut, doubled and mixed with noise."""
    raw = bytearray(b"".join(chance.choice(good) for _ in range(chance.randint(1, 3))))
    for _ in range(chance.randint(1, 5)):
        place = chance.randrange(len(raw) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            raw[place:place] = chance.choice(SPICE)
        elif kind == 1:
            del raw[place : place + chance.randint(1, 20)]
        elif kind == 2 and place < len(raw):
            raw[place] = chance.randrange(256)
        else:
            raw[place:place] = raw[place : place + chance.randint(1, 40)]
    return bytes(raw)


def app() -> App:
    async def answer(inbound: Inbound) -> Reply:
        inbound.query()
        value = await inbound.json() if inbound.method == "POST" else None
        return envelope({"value": value, "path": ascii(inbound.path_args)})

    router = Router()
    for url, methods in (("/x", ("GET", "POST")), ("/o/<bucket>/k/<path:key>", ("GET", "PUT"))):
        router.route(url, told(url), methods=methods, key="optional")(answer)
    return App(router)


class Fuzz(TestCase):
    def test_every_request_gets_a_proper_response_or_a_closed_connection(self) -> None:
        chance = random.Random(20261121)
        service = app()
        seen: set[int] = set()
        for _ in range(ROUNDS):
            raw = spoiled(chance)
            client = service.connect()
            for piece in self.pieces(raw, chance):
                client.send(piece)
            # A request that is incomplete times out, and its client has a moment to read why.
            client.clock.advance(61)
            client.clock.advance(6)
            answered = client.received()
            statuses = [int(found) for found in STATUS.findall(answered)]
            if answered:
                self.assertTrue(STATUS.match(answered), raw)
            self.assertNotIn(500, statuses, raw)
            seen.update(statuses)
            self.assertTrue(client.transport.ended or client.transport.aborted, raw)
            client.hang_up()
        self.assertEqual(self.flushLoggedErrors(), [])
        self.successResultOf(service.edge.drained())
        # The service still answers, and the noise was varied enough to mean something.
        self.assertEqual(service.request("GET", "/x", {"apikey": ANON_KEY}).status, 200)
        self.assertLessEqual({200, 204, 400, 404, 405, 408, 414, 415, 431}, seen)

    def pieces(self, raw: bytes, chance: random.Random) -> list[bytes]:
        """Splits the bytes into one or several segments."""
        cuts = sorted(chance.randrange(len(raw) + 1) for _ in range(chance.randrange(3)))
        return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]
