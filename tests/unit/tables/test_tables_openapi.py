"""The description at the root: what its settings change."""

from __future__ import annotations

from typing import Any

import orjson
from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.outbound import Reply
from project_service.tables.call import Call
from project_service.tables.config import TablesConfig
from project_service.tables.errors import TableError, anonymous_disabled
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

    def test_the_caller_is_always_looked_at(self) -> None:
        async def refused(sql: object) -> list[tuple[Any, ...]]:
            raise anonymous_disabled()

        call = Call("GET", (), path="/rest/", base_url="http://here")
        for method, config in (
            ("GET", CONFIG),
            ("GET", evolve(CONFIG, openapi="ignore-privileges")),
            ("HEAD", CONFIG),
        ):
            head = parse_head(method, (), (), config.schemas)
            answering = Root(config).answer(CACHE, call, head, refused)
            self.assertRaises(TableError, answering.send, None)

    def test_a_function_of_a_schema_may_answer_instead(self) -> None:
        head = parse_head("GET", (), (), ("api", "more"))
        self.assertIsNone(Root(CONFIG).delegated(head))
        for said, key in {"root": ("api", "root"), "more.root": ("more", "root")}.items():
            found = Root(evolve(CONFIG, root_spec=said)).delegated(head)
            assert found is not None
            self.assertEqual((found.kind, found.schema, found.name), ("routine", *key))

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
