"""The two HTTP parsers agree: no malformed request means different requests to them."""

from __future__ import annotations

import random

from twisted.trial.unittest import TestCase

from tests.attack_app import answers_in, router
from tests.attack_cases import Answer
from tests.attack_corpus import CORPUS
from tests.fakes import App
from tests.http.random_requests import spoiled

ROUNDS = 6000
SEEDS = [case.sent for case in CORPUS if len(case.sent) < 500 and not case.sent.startswith(b"HEAD")]


class Differential(TestCase):
    def taken(self, app: App, raw: bytes) -> list[Answer]:
        """The responses with 200, which tell how each request was parsed."""
        client = app.connect()
        client.send(raw)
        answered = client.received()
        client.hang_up()
        return [answer for answer in answers_in(answered) if answer[0] == 200]

    def test_what_both_parsers_accept_they_read_alike(self) -> None:
        apps = []
        for parser in ("httptools", "twisted"):
            self.patch(App, "parser", parser)
            apps.append(App(router()))
        chance = random.Random(20261121)
        both = 0
        for _ in range(ROUNDS):
            raw = spoiled(chance, SEEDS)
            # A response to HEAD cannot be told from the outside.
            if b"HEAD" in raw:
                continue
            one, other = (self.taken(app, raw) for app in apps)
            # One may refuse earlier than the other.
            length = min(len(one), len(other))
            self.assertEqual(one[:length], other[:length], raw)
            both += length
        self.assertGreater(both, ROUNDS // 10)
