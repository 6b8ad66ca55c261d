"""``OPTIONS``: answered from the schema cache alone, and timed like every other request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.call import Call
from project_service.tables.config import TablesConfig
from project_service.tables.planner import Planner
from project_service.tables.service import TableService
from tests.unit.tables.schema import cache


class Options(SynchronousTestCase):
    def headers(self, *segments: str, server_timing: bool = True) -> dict[str, str]:
        config = TablesConfig(schemas=("api",), server_timing=server_timing)
        parts: Any = SimpleNamespace(current=cache(), identify=lambda *_: None)
        unused = cast(Any, None)
        service = TableService(config, parts, parts, Planner(config), unused, unused, unused, unused)
        reply = self.successResultOf(Deferred.fromCoroutine(service.answer(Call("OPTIONS", segments))))
        self.assertEqual(reply.status, 200)
        return dict(reply.headers)

    def test_what_may_be_done_depends_on_what_is_there(self) -> None:
        self.assertEqual(self.headers()["Allow"], "OPTIONS,GET,HEAD")
        self.assertEqual(self.headers("works")["Allow"], "OPTIONS,GET,HEAD,POST,PUT,PATCH,DELETE")
        self.assertEqual(self.headers("recent")["Allow"], "OPTIONS,GET,HEAD")
        self.assertEqual(self.headers("rpc", "find")["Allow"], "OPTIONS,GET,HEAD,POST")
        self.assertEqual(self.headers("rpc", "whole")["Allow"], "OPTIONS,POST")

    def test_every_stage_has_its_time(self) -> None:
        stages = [entry.partition(";")[0] for entry in self.headers("works")["Server-Timing"].split(", ")]
        self.assertEqual(stages, ["jwt", "parse", "plan", "transaction", "response"])
        self.assertNotIn("Server-Timing", self.headers("works", server_timing=False))
