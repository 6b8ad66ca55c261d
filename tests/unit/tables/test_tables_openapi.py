"""The description at the root: what its settings change."""

from __future__ import annotations

from typing import Any

import orjson
from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.outbound import Reply
from project_service.tables.call import Call
from project_service.tables.config import TablesConfig
from project_service.tables.parse.request import parse_head
from project_service.tables.root import Root
from tests.unit.tables.planning import CACHE, CONFIG


class Described(SynchronousTestCase):
    def described(self, config: TablesConfig) -> dict[str, Any]:
        call = Call("GET", (), path="/rest/", base_url="http://here")
        head = parse_head("GET", (), (), config.schemas)
        answering = Root(config).answer(CACHE, call, head, self.asked)
        try:
            answering.send(None)
        except StopIteration as answered:
            assert isinstance(answered.value, Reply)
            found: dict[str, Any] = orjson.loads(answered.value.body)
            return found
        raise AssertionError("it waits")

    async def asked(self, sql: object) -> list[tuple[Any, ...]]:
        return [(b'["works"]', b"[]")]

    def test_how_a_token_is_sent_is_told_where_that_is_switched_on(self) -> None:
        self.assertFalse({"security", "securityDefinitions"} & set(self.described(CONFIG)))
        found = self.described(evolve(CONFIG, openapi_security_active=True))
        self.assertEqual(found["security"], [{"JWT": []}])
        scheme = found["securityDefinitions"]["JWT"]
        self.assertEqual(
            (scheme["type"], scheme["in"], scheme["name"]), ("apiKey", "header", "Authorization")
        )

    def test_where_it_is_by_the_configuration(self) -> None:
        for said, expected in {
            None: ("here", "/rest", ["http"]),
            "https://api.example.com/v1": ("api.example.com:443", "/v1", ["https"]),
            "http://api.example.com": ("api.example.com:80", "/", ["http"]),
            "https://api.example.com:8443/": ("api.example.com:8443", "/", ["https"]),
        }.items():
            found = self.described(evolve(CONFIG, openapi_server_proxy_uri=said))
            self.assertEqual((found["host"], found["basePath"], found["schemes"]), expected)
