"""A client that waits for ``100 Continue`` is not timed out for its body, however long the invitation takes."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Router
from tests.fakes.common import App, Client, held, parse_response, raw_request
from tests.route_description import operation_at

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WAITING = raw_request("PUT", "/x", {"Content-Length": "3", "Expect": "100-continue"}, None)
# The idle timeout of the connections here is a minute.
LONG = (40, 40, 40, 40)


class Invitations(TestCase):
    def setUp(self) -> None:
        self.answers: list[Deferred[None]] = []
        router = Router()
        router.route("/x", operation_at(), methods=("GET", "PUT"), key="optional")(self.slow)
        self.client: Client = App(router).connect()

    async def slow(self, request: Request) -> Reply:
        await held(self.answers)
        return envelope(len(await request.body.read(100)))

    def invited(self, raw: bytes) -> None:
        """Asserts that the last request in ``raw`` is invited after a long time, when the handlers go on."""
        self.client.send(raw)
        self.client.clock.pump(LONG)
        for answer in self.answers:
            answer.callback(None)
        self.assertTrue(self.client.received().endswith(CONTINUE))

    def test_a_slow_handler_invites_the_body_late(self) -> None:
        self.invited(WAITING)
        self.client.clock.pump((20, 20))
        self.client.send(b"abc")
        self.assertEqual(parse_response(self.client.received()).body, b'{"data":3,"error":null}')

    def test_a_client_that_does_not_send_after_the_invitation_is_408(self) -> None:
        self.invited(WAITING)
        self.client.clock.pump(LONG)
        self.assertEqual(parse_response(self.client.received()).status, 408)

    def test_a_client_that_waits_without_reading_the_previous_response_is_aborted(self) -> None:
        self.client.send(raw_request("GET", "/x", {}, None) + WAITING)
        self.client.transport.full = True
        self.answers.pop().callback(None)
        self.client.clock.pump(2 * LONG)
        self.assertTrue(self.client.transport.aborted)


class Behind(Invitations):
    """The invitation is for a request behind another slow one."""

    def invited(self, raw: bytes) -> None:
        self.client.send(raw_request("GET", "/x", {}, None) + raw)
        self.client.clock.pump(LONG)
        self.answers.pop().callback(None)
        self.assertEqual(parse_response(self.client.received()).status, 200)
        super().invited(b"")
