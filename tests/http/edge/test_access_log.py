"""The log of requests: gathered for a moment, and complete when the service stops."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Router
from project_service.log import BATCH_SECONDS
from tests.captured_log import logged_until_the_end
from tests.fakes.common import App, held
from tests.route_description import operation_at

GET = b"GET /x?token=secret HTTP/1.1\r\nHost: a\r\nX-Request-Id: %s\r\n\r\n"


class Logged(TestCase):
    def setUp(self) -> None:
        self.gates: list[Deferred[None]] = []
        self.events = logged_until_the_end(self)
        router = Router()
        router.route("/x", operation_at(), methods=("GET",), key="optional")(self.handler)
        self.app = App(router, gathers_log=True)

    async def handler(self, request: Request) -> Reply:
        if request.request_id == "slow":
            await held(self.gates)
        return Reply(200, (), b"{}")

    @property
    def lines(self) -> list[str]:
        text = "\n".join(str(formatEvent(event)) for event in self.events if "access" in event)
        return text.splitlines()

    def ask(self, *ids: bytes) -> None:
        client = self.app.connect()
        for request_id in ids:
            client.send(GET % request_id)

    def test_every_request_has_one_line_however_it_was_read(self) -> None:
        """Also where its header lines were not parsed again, and where there was no request to be read."""
        self.ask(b"a", b"a", b"b")
        client = self.app.connect()
        client.send(b"BREW /x HTTP/1.1\r\nHost: a\r\n\r\n")
        self.assertEqual(self.lines, [])
        self.app.clock.advance(BATCH_SECONDS)
        self.assertEqual([line.rpartition("id=")[2] for line in self.lines], ["a", "a", "b", "made-here"])
        self.assertNotIn("secret", "".join(self.lines))

    def test_nothing_is_lost_when_the_service_stops(self) -> None:
        self.ask(b"a")
        self.ask(b"slow")
        self.app.edge.close_connections()
        self.assertEqual(len(self.lines), 1)
        # Who is answered from now on is logged at once: the reactor may not come to it any more.
        self.gates.pop().callback(None)
        self.assertEqual([line.rpartition("id=")[2] for line in self.lines], ["a", "slow"])
        self.app.clock.advance(BATCH_SECONDS)
        self.assertEqual(len(self.lines), 2)

    def test_who_left_before_the_answer_is_logged_as_499(self) -> None:
        client = self.app.connect()
        client.send(GET % b"slow")
        client.hang_up()
        self.app.clock.advance(BATCH_SECONDS)
        (line,) = self.lines
        self.assertIn(" 499 ", line)
