"""A connection that keeps header lines reads a request as a new connection does, whatever has been done to it."""

from __future__ import annotations

import random

from twisted.trial.unittest import TestCase

from project_service.http.head import CachedHead
from tests.attacks.app import answers_in, router
from tests.fakes.common import App, Client
from tests.http.edge.random_requests import spoiled

ROUNDS = 6000
SEEDS = [
    b"GET /echo?a HTTP/1.1\r\nHost: a\r\nX-Mark: b\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 33\r\n\r\n"
    + b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PUT /echo/%C3%A9 HTTP/1.1\r\nContent-Length: 3\r\nHost: a\r\n\r\nabc",
    b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
]


class Differential(TestCase):
    def setUp(self) -> None:
        self.app = App(router())
        self.kept = 0
        again = CachedHead.again

        def counted(head: CachedHead, data: bytes) -> object:
            found = again(head, data)
            self.kept += found is not None
            return found

        self.patch(CachedHead, "again", counted)

    def outcome(self, client: Client, raw: bytes) -> tuple[object, bool]:
        """The responses to ``raw``, and whether they were the last of their connection."""
        client.send(raw)
        answers = answers_in(client.received(), b"HEAD" in raw)
        ended = client.transport.ended
        client.hang_up()
        return answers, ended

    def test_kept_header_lines_change_nothing(self) -> None:
        chance = random.Random(20261121)
        for _ in range(ROUNDS):
            good = chance.choice(SEEDS)
            line, version, rest = good.partition(b" HTTP/1.1")
            # Half of them have the lines that are kept.
            raw = (
                spoiled(chance, [good]) if chance.random() < 0.5 else spoiled(chance, [line]) + version + rest
            )
            # A response to HEAD cannot be told from the outside.
            if b"HEAD" in raw:
                continue
            keeping = self.app.connect()
            keeping.send(good)
            keeping.received()
            self.assertEqual(self.outcome(keeping, raw), self.outcome(self.app.connect(), raw), raw)
        self.assertGreater(self.kept, ROUNDS // 50)
