"""``OPTIONS`` of the table API: it is answered from the schema cache alone, and timed like every other request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.response import Reply, StreamReply
from project_service.http.routing import Router
from project_service.lifecycle import start
from project_service.tables.api import POLICY, TableRoutes, TableService
from project_service.tables.errors import TableError
from project_service.tables.planner import Planner
from project_service.tables.request.request import RawRequest, parse_head
from project_service.tables.response import options_reply, other_methods
from project_service.tables.values import TablesConfig
from tests.unit.tables.schema import cache


class Options(SynchronousTestCase):
    def answered(self, incoming: RawRequest, **settings: Any) -> Deferred[Reply | StreamReply]:
        config = TablesConfig(schemas=("api",), **settings)
        parts: Any = SimpleNamespace(current=cache(), identify=lambda *_: None)
        unused = cast(Any, None)
        service = TableService(config, parts, parts, Planner(config), unused, unused, unused, unused, unused)
        return start(self.finished(service, incoming))

    async def finished(self, service: TableService, incoming: RawRequest) -> Reply | StreamReply:
        try:
            return await service.answer(incoming)
        except TableError as fault:
            service.complete_error(fault, incoming)
            raise

    def headers(self, *segments: str, server_timing: bool = True) -> dict[str, str]:
        reply = self.successResultOf(
            self.answered(RawRequest("OPTIONS", segments), server_timing=server_timing)
        )
        self.assertEqual(reply.status, 200)
        return dict(reply.headers)

    def test_allow_names_the_methods_the_relation_or_function_has(self) -> None:
        self.assertEqual(self.headers()["Allow"], "OPTIONS,GET,HEAD")
        self.assertEqual(self.headers("works")["Allow"], "OPTIONS,GET,HEAD,POST,PUT,PATCH,DELETE")
        self.assertEqual(self.headers("recent")["Allow"], "OPTIONS,GET,HEAD")
        self.assertEqual(self.headers("rpc", "find")["Allow"], "OPTIONS,GET,HEAD,POST")
        self.assertEqual(self.headers("rpc", "whole")["Allow"], "OPTIONS,POST")

    def test_unknown_methods_are_405_pgrst117(self) -> None:
        router = Router()
        TableRoutes({}).mount(router)
        for method in ("TRACE", "CONNECT", "PROPFIND", "LINK"):
            self.assertEqual(router.match(method, b"/dev/db/main/rest/works").route.policy, POLICY)
            fault = self.failureResultOf(self.answered(RawRequest(method, ("works",))), TableError).value
            self.assertEqual((fault.status, fault.code), (405, "PGRST117"))
            self.assertEqual(dict(fault.headers)["Allow"], "OPTIONS,GET,HEAD,POST,PUT,PATCH,DELETE")

    def test_vary_is_sent_with_every_reply(self) -> None:
        self.assertEqual(self.headers("works")["Vary"], "Accept, Prefer, Range")
        self.assertEqual(self.headers()["Vary"], "Accept, Prefer, Range")
        fault = self.failureResultOf(self.answered(RawRequest("OPTIONS", ("none", "x"))), TableError).value
        self.assertEqual(dict(fault.headers)["Vary"], "Accept, Prefer, Range")

    def test_an_error_may_not_be_cached(self) -> None:
        fault = self.failureResultOf(self.answered(RawRequest("OPTIONS", ("none",))), TableError).value
        self.assertEqual(dict(fault.headers)["Cache-Control"], "no-store")

    def test_a_table_without_a_primary_key_does_not_allow_put(self) -> None:
        known = cache()
        heap = evolve(known.relations["api", "works"], name="heap", primary_key=())
        head = parse_head("OPTIONS", ("heap",), (), ("api",))
        found = options_reply(evolve(known, relations={heap.key: heap}), head)
        self.assertEqual(dict(found.headers)["Allow"], "OPTIONS,GET,HEAD,POST,PATCH,DELETE")

    def test_the_allow_of_a_405_leaves_out_what_was_refused(self) -> None:
        for method, segments, only_reads, allow in (
            ("PUT", ("works",), False, "OPTIONS,GET,HEAD,POST,PATCH,DELETE"),
            ("GET", ("rpc", "find"), True, "OPTIONS,POST"),
            ("HEAD", ("rpc", "whole"), True, "OPTIONS,POST"),
            ("POST", ("works",), True, "OPTIONS,GET,HEAD"),
            ("POST", ("rpc", "find"), True, "OPTIONS"),
            ("POST", ("rpc", "find"), False, "OPTIONS,GET,HEAD"),
            ("GET", (), False, "OPTIONS"),
        ):
            head = parse_head(method, segments, (), ("api",))
            self.assertEqual(other_methods(cache(), head, only_reads), ("Allow", allow), (method, segments))

    def test_unknown_relations_and_functions_are_404(self) -> None:
        for segments, code, what in (
            (("rpc", "none"), "PGRST202", "function api.none without parameters"),
            (("none",), "PGRST205", "table 'api.none'"),
        ):
            fault = self.failureResultOf(self.answered(RawRequest("OPTIONS", segments)), TableError).value
            self.assertEqual((fault.status, fault.code), (404, code))
            self.assertEqual(fault.message, f"Could not find the {what} in the schema cache")

    def test_server_timing_names_every_stage(self) -> None:
        stages = [entry.partition(";")[0] for entry in self.headers("works")["Server-Timing"].split(", ")]
        self.assertEqual(stages, ["jwt", "parse", "plan", "transaction", "response"])
        self.assertNotIn("Server-Timing", self.headers("works", server_timing=False))
