"""``GET /admin/log``: who may see it, and which lines."""

from __future__ import annotations

import json
from typing import Any

from attrs import evolve
from twisted.internet.defer import succeed
from twisted.trial.unittest import TestCase

from project_service.http.routing import Router
from project_service.kept_log import KeptLog, LogQuery
from project_service.operators.assemble import Operators
from project_service.operators.log import MAX_TEXT, Log
from project_service.settings.model import Settings
from tests.fakes.common import ANON_KEY, SERVICE_KEY, App, Response
from tests.http.storage.app import code


class LogTests(TestCase):
    def setUp(self) -> None:
        self.kept = KeptLog()
        self.silent = False
        self.shown: bool | None = True
        router = Router()
        self.app = App(router)
        Operators((Log(self.settings, self.read),)).mount(router)

    def settings(self) -> Settings:
        settings = Settings()
        return evolve(settings, server=evolve(settings.server, console_log=self.shown))

    async def read(self, query: LogQuery) -> bytes:
        if self.silent:
            raise TimeoutError
        return await self.kept.answer(query, lambda: succeed(None))

    def get(self, query: str = "", key: str = SERVICE_KEY) -> Response:
        return self.app.request("GET", f"/admin/log{query}", {"X-Service-Key": key})

    def lines(self, query: str = "") -> list[dict[str, Any]]:
        response = self.get(query)
        self.assertEqual((response.status, response.header("cache-control")), (200, "no-store"))
        lines: list[dict[str, Any]] = json.loads(response.body)["lines"]
        return lines

    def test_it_is_for_the_service_key_alone(self) -> None:
        self.assertEqual(code(self.get(key=ANON_KEY)), "service_key_required")
        self.assertEqual(self.app.request("GET", "/admin/log").status, 401)

    def test_the_setting_forbids_it(self) -> None:
        for self.shown in (False, None):
            response = self.get()
            self.assertEqual((response.status, code(response)), (403, "log_not_shown"))
            self.assertIn(b"server.console_log", response.body)

    def test_each_parameter_narrows_it(self) -> None:
        for line in (
            "2026-11-28T20:31:00.000Z info     [project_service.http.edge] GET /x 200 5B 1.5ms id=a",
            "2026-11-28T20:31:01.000Z warn     [project_service.auth.mail] an e-mail was given up",
        ):
            self.kept.write(f"{line}\n")
        cursor = json.loads(self.get("?limit=1").body)["oldest"]
        for query, numbers in (
            ("", [0, 1]),
            ("?level=warn", [1]),
            ("?part=project_service.http", [0]),
            ("?request_id=a", [0]),
            ("?text=E-Mail", [1]),
            ("?without=get+/", [1]),
            ("?limit=1", [1]),
            (f"?before={cursor}", [0]),
            (f"?after={cursor}", [1]),
            ("?text=%C3%A4&part=", []),
        ):
            self.assertEqual([line["number"] for line in self.lines(query)], numbers, query)

    def test_what_cannot_be_meant_is_refused(self) -> None:
        for query in (
            "level=loud",
            "limit=0",
            "limit=1001",
            "limit=x",
            "limit=",
            f"text={'x' * (MAX_TEXT + 1)}",
        ):
            response = self.get(f"?{query}")
            self.assertEqual((response.status, code(response)), (422, "validation_failed"), query)
            self.assertEqual(list(json.loads(response.body)["error"]["details"]), [query.partition("=")[0]])

    def test_a_supervisor_that_does_not_answer(self) -> None:
        self.silent = True
        response = self.get()
        self.assertEqual((response.status, code(response)), (503, "log_unavailable"))
