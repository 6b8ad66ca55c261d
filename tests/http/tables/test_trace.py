"""The trace header (``trace_header`` of a database): what was sent is returned with every response."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.http.admission import Limits
from project_service.http.response import Reply, Sink, StreamReply
from project_service.http.routing import Router
from project_service.tables.api import TableRoutes
from project_service.tables.request.request import RawRequest
from tests.fakes.common import App, raw_request
from tests.http.toy_app import ANON

TABLE = "/dev/db/main/rest/works"
LANE = "tables:dev/main"


class Tables:
    """A fake table API that responds as the last segment of the path says."""

    async def answer(self, incoming: RawRequest) -> Reply | StreamReply:
        last = incoming.segments[-1]
        if last == "revoked":
            raise errors.session_revoked()
        if last == "broken":
            raise RuntimeError
        if last == "slow":
            await Deferred()
        return StreamReply(200, (), None, _one_piece) if last == "streamed" else Reply()


async def _one_piece(sink: Sink) -> None:
    sink.write(b"[]")


class Traced(TestCase):
    def app(self, name: str | None = "X-Trace") -> App:
        tables: Any = Tables()
        router = Router()
        TableRoutes({("dev", "main"): tables, ("dev", "other"): tables}).mount(router)
        names = {LANE: name} if name is not None else {}
        return App(router, trace_headers=names, limits={LANE: Limits(1, 5.0, 0)})

    def answered(self, target: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str | None]:
        response = self.app().request(method, target, {"x-trace": "a 1", **headers})
        return response.status, response.header("X-Trace")

    def test_by_the_table_api_and_by_the_edge_before_it(self) -> None:
        for target, headers, status in (
            (TABLE, ANON, 200),
            (f"{TABLE}/streamed", ANON, 200),
            (TABLE, {}, 401),
            (TABLE, {"X-Service-Key": "none"}, 401),
            (f"{TABLE}/revoked", ANON, 401),
            (f"{TABLE}?a=%ff", ANON, 400),
            (f"{TABLE}/%ff", ANON, 404),
        ):
            self.assertEqual(self.answered(target, headers), (status, "a 1"), target)
        preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
        self.assertEqual(self.answered(TABLE, preflight, "OPTIONS"), (200, "a 1"))

    def test_with_an_internal_error(self) -> None:
        self.assertEqual(self.answered(f"{TABLE}/broken", ANON), (500, "a 1"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_under_overload(self) -> None:
        app = self.app()
        app.connect().send(raw_request("GET", f"{TABLE}/slow", ANON, None))
        refused = app.request("GET", TABLE, {**ANON, "x-trace": "a 1"})
        self.assertEqual((refused.status, refused.header("X-Trace")), (503, "a 1"))

    def test_with_each_of_its_values(self) -> None:
        client = self.app().connect()
        client.send(raw_request("GET", TABLE, {**ANON, "X-Trace": "1", "x-trace": "2"}, None))
        self.assertIn(b"X-Trace: 1\r\nX-Trace: 2\r\n", client.received())

    def test_the_trace_header_is_returned_only_if_sent_and_configured(self) -> None:
        self.assertIsNone(self.app().request("GET", TABLE, ANON).header("X-Trace"))
        self.assertIsNone(self.answered("/dev/db/other/rest/works", ANON)[1])
        self.assertIsNone(self.app(None).request("GET", TABLE, {**ANON, "X-Trace": "1"}).header("X-Trace"))

    def test_headers_that_every_response_has_are_not_repeated(self) -> None:
        for name, times in {"X-Request-Id": 1, "Date": 1, "Content-Length": 1, "Connection": 0}.items():
            response = self.app(name).request("GET", TABLE, {**ANON, name: "0"})
            self.assertEqual([key.lower() for key, _ in response.headers].count(name.lower()), times, name)
