"""Thousands of malformed requests from a fixed seed: each gets a proper response or a closed connection."""

from __future__ import annotations

import random

from twisted.trial.unittest import TestCase

from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Router
from tests.fakes.common import ANON_KEY, App
from tests.http.edge.random_requests import STATUS, spoiled
from tests.route_description import operation_at

ROUNDS = 20_000


def app() -> App:
    async def answer(request: Request) -> Reply:
        request.query()
        value = await request.json() if request.method == "POST" else None
        return envelope({"value": value, "path": ascii(request.path_args)})

    router = Router()
    for url, methods in (("/x", ("GET", "POST")), ("/o/<bucket>/k/<path:key>", ("GET", "PUT"))):
        router.route(url, operation_at(url), methods=methods, key="optional")(answer)
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
