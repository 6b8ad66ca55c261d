"""Requests whose framing two servers might read differently."""

from __future__ import annotations

import random
import re
from pathlib import Path

from twisted.trial.unittest import TestCase

from project_service.http.head import CachedHead
from tests.attacks.app import PROBE, PROBED, answers_in, fault_in, router
from tests.attacks.corpus import CORPUS, Case, Then
from tests.fakes.common import App, Client
from tests.http.edge.random_requests import spoiled

WHOLE = 1 << 20


class Corpus(TestCase):
    def faults(self, size: int) -> list[str]:
        """Sends each case on a connection of its own, ``size`` bytes at a time, and returns what is wrong."""
        app = App(router())
        faults = [self.fault(app, case, size) for case in CORPUS]
        self.assertEqual(self.flushLoggedErrors(), [])
        return [fault for fault in faults if fault is not None]

    def fault(self, app: App, case: Case, size: int) -> str | None:
        client = app.connect()
        # Cases of 70,000 bytes are sent in somewhat larger pieces.
        step = max(size, len(case.sent) // 10_000)
        for start in range(0, len(case.sent), step):
            client.send(case.sent[start : start + step])
        raw = client.received()
        # After an early response the rest of a body is read for a moment.
        client.clock.advance(6)
        if client.transport.ended:
            then: Then = "closed"
            client.send(PROBE)
            raw += client.received()
        elif any(outcome.then == "waiting" for outcome in case.outcomes):
            then = "waiting"
            client.clock.advance(61)
            client.clock.advance(6)
            self.assertTrue(client.transport.ended, case.name)
        else:
            then = "open"
            client.send(PROBE)
            probed = answers_in(client.received())
            if probed != [PROBED]:
                return f"{case.name}: {answers_in(raw)}, then {probed} to another request"
        client.hang_up()
        return fault_in(case, answers_in(raw, case.sent.startswith(b"HEAD ")), then)

    def test_whole(self) -> None:
        self.assertEqual(self.faults(WHOLE), [])

    def test_byte_by_byte(self) -> None:
        self.assertEqual(self.faults(1), [])

    def test_in_pieces(self) -> None:
        for size in (2, 7, 64):
            self.assertEqual(self.faults(size), [], size)


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
        self.cached = 0
        again = CachedHead.again

        def counted(head: CachedHead, data: bytes) -> object:
            again_head = again(head, data)
            self.cached += again_head is not None
            return again_head

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
            # A response to HEAD cannot be known from the outside.
            if b"HEAD" in raw:
                continue
            keeping = self.app.connect()
            keeping.send(good)
            keeping.received()
            self.assertEqual(self.outcome(keeping, raw), self.outcome(self.app.connect(), raw), raw)
        self.assertGreater(self.cached, ROUNDS // 50)


TESTS = Path(__file__).parents[2]
SECURITY = TESTS.parent / "SECURITY.rst"
NAMED = re.compile(r"``((?:\w+/)?test_\w+)``")


class Documented(TestCase):
    def test_every_test_that_is_named_exists(self) -> None:
        # Not as a mapping: modules of tests/unit and tests/live may have the same name.
        modules = [
            (f"{path.parent.name}/{path.stem}", path.read_text("utf-8")) for path in TESTS.rglob("test_*.py")
        ]
        tests = {name for _, text in modules for name in re.findall(r"def (test_\w+)\(", text)}
        named = set(NAMED.findall(SECURITY.read_text("utf-8")))
        self.assertGreater(len(named), 30)
        self.assertEqual(named - tests - {module for module, _ in modules}, set())
        for module, text in modules:
            if module.startswith("attacks/"):
                shown = {module, *re.findall(r"def (test_\w+)\(", text)}
                self.assertTrue(shown & named, f"SECURITY.rst says nothing of {module}")
