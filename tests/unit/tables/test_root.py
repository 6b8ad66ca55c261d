"""The root of the table API: the description in the form asked for, nothing, or the result of a function."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import orjson
from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.response import Reply, StreamReply
from project_service.lifecycle import start
from project_service.tables.access import Identity
from project_service.tables.api import Root, TableService
from project_service.tables.errors import TableError
from project_service.tables.outcome import Outcome
from project_service.tables.planner import Planned, Planner
from project_service.tables.request.request import RawRequest, RequestHeaders
from project_service.tables.sql.fragment import Sql
from project_service.tables.transaction_settings import Preamble
from project_service.tables.values import TablesConfig
from tests.unit.tables.planning import CACHE, CONFIG

T = TypeVar("T")
PLAIN = evolve(CONFIG, openapi="ignore-privileges")


class Executor:
    """An executor that returns one row for calls, and the table ``works`` for what the caller may use."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cleared: list[bool] = []
        self.usable = b'["works"]'
        self.refusal: Exception | None = None

    async def execute(self, planned: Planned, preamble: Preamble, path: str, place: object) -> Outcome:
        assert planned.compiled.routine is not None
        self.asked.append(planned.compiled.routine.name)
        return Outcome(rows=1, body=b'"instead"')

    async def read(
        self, preamble: Preamble, path: str, sql: Sql, leaves_state: bool
    ) -> list[tuple[bytes, bytes]]:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(sql.text)
        self.cleared.append(leaves_state)
        return [(self.usable, b'["find"]')]


class AtRoot(SynchronousTestCase):
    def setUp(self) -> None:
        self.executor = Executor()
        self.cache = CACHE
        self.made = 0

    async def here(self, work: Callable[[], T]) -> T:
        self.made += 1
        return work()

    def answering(
        self, config: TablesConfig, accept: str = "*/*", method: str = "GET", **query: str
    ) -> Deferred[Reply | StreamReply]:
        return self.answered_by(Root(config, self.here), config, accept, method, **query)

    def answered_by(
        self,
        root: Root,
        config: TablesConfig,
        accept: str = "*/*",
        method: str = "GET",
        known: str | None = None,
        **query: str,
    ) -> Deferred[Reply | StreamReply]:
        identity = Identity("anon", "{}", False)
        parts: Any = SimpleNamespace(
            cache=self.cache, current=self.cache, identify=lambda *_: identity, expected=lambda planned: False
        )
        executor = cast(Any, self.executor)
        service = TableService(config, parts, parts, Planner(config), parts, executor, root, parts, self.here)
        headers = RequestHeaders.of(
            (("accept", accept), *((("if-none-match", known),) if known is not None else ()))
        )
        return start(service.answer(RawRequest(method, (), pairs=tuple(query.items()), headers=headers)))

    def described(self, config: TablesConfig, accept: str = "*/*") -> tuple[str, Any]:
        reply = self.successResultOf(self.answering(config, accept))
        assert isinstance(reply, Reply)
        return dict(reply.headers)["Content-Type"], orjson.loads(reply.body)

    def test_the_description_is_sent_as_openapi_or_as_json(self) -> None:
        described = "application/openapi+json; charset=utf-8"
        for accept, expected in {
            "*/*": described,
            "application/openapi+json": described,
            "application/json": "application/json; charset=utf-8",
            "text/csv, application/json;q=0.5, */*;q=0.1": "application/json; charset=utf-8",
            "text/html, */*;q=0.1": described,
        }.items():
            content_type, found = self.described(PLAIN, accept)
            self.assertEqual((content_type, found["swagger"]), (expected, "2.0"))

    def test_other_media_types_are_406(self) -> None:
        for accept in ("text/csv, text/html", "application/json;q=0", "text/csv, */*;q=0"):
            error = self.failureResultOf(self.answering(PLAIN, accept), TableError).value
            self.assertEqual((error.status, error.code), (406, "PGRST107"))
            self.assertIn(accept, error.message)
        self.assertEqual(self.executor.asked, [])

    def test_openapi_mode_decides_between_permitted_and_all_relations(self) -> None:
        for config, shown in ((CONFIG, {"/", "/works", "/rpc/find"}), (PLAIN, {"/", "/tags", "/rpc/add"})):
            paths = set(self.described(config)[1]["paths"])
            self.assertTrue(paths == shown if config is CONFIG else paths > shown, paths)

    def test_openapi_mode_disabled_is_404(self) -> None:
        error = self.failureResultOf(self.answering(evolve(CONFIG, openapi="disabled")), TableError).value
        self.assertEqual((error.status, error.code), (404, "PGRST126"))

    def test_the_description_checks_the_callers_role_whatever_the_settings(self) -> None:
        self.executor.refusal = TableError(403, "42501", "permission denied")
        for method, config in (("GET", CONFIG), ("GET", PLAIN), ("HEAD", CONFIG)):
            error = self.failureResultOf(self.answering(config, method=method), TableError).value
            self.assertIs(error, self.executor.refusal)

    def test_session_state_is_cleared_only_if_a_pre_request_may_leave_some(self) -> None:
        for leaves_state in (False, True):
            self.cache = evolve(CACHE, leaves_state=leaves_state)
            for config in (PLAIN, evolve(PLAIN, pre_request="before")):
                self.successResultOf(self.answering(config))
        self.assertEqual(self.executor.cleared, [False, False, False, True])

    def test_server_timing_names_every_stage(self) -> None:
        for function in (None, "find"):
            config = evolve(PLAIN, server_timing=True, root_spec=function)
            timed = dict(self.successResultOf(self.answering(config, q="x")).headers)["Server-Timing"]
            stages = [entry.partition(";")[0] for entry in timed.split(", ")]
            self.assertEqual(stages, ["jwt", "parse", "plan", "transaction", "response"])

    def test_head_sends_no_content_length(self) -> None:
        for config in (PLAIN, evolve(PLAIN, root_spec="find")):
            reply = self.successResultOf(self.answering(config, method="HEAD", q="x"))
            assert isinstance(reply, StreamReply)
            self.assertEqual((reply.status, reply.length), (200, None))

    def test_the_description_is_made_once_for_a_schema_cache_and_what_a_role_may_use(self) -> None:
        root = Root(CONFIG, self.here)

        def tag(accept: str = "*/*", method: str = "GET") -> str:
            reply = self.successResultOf(self.answered_by(root, CONFIG, accept, method))
            return dict(reply.headers)["ETag"]

        first = tag()
        self.assertEqual([tag(), tag(method="HEAD"), self.made], [first, first, 1])
        # The same bytes as JSON are another representation.
        self.assertNotEqual(tag("application/json"), first)
        self.executor.usable = b'["works", "tags"]'
        granted = tag()
        self.assertNotEqual(granted, first)
        self.executor.usable = b'["works"]'
        self.assertEqual((tag(), self.made), (first, 2))
        self.cache = evolve(CACHE, version=CACHE.version + 1, schema_comments={"api": "Another title"})
        self.assertNotIn(tag(), (first, granted))
        self.assertEqual(self.made, 3)

    def test_a_caller_who_has_the_description_gets_304(self) -> None:
        root = Root(CONFIG, self.here)
        tag = dict(self.successResultOf(self.answered_by(root, CONFIG)).headers)["ETag"]
        for method in ("GET", "HEAD"):
            for known, status in (
                (tag, 304),
                (f'"x", W/{tag}', 304),
                ("*", 304),
                ('"x"', 200),
                (tag.strip('"'), 304),
            ):
                reply = self.successResultOf(self.answered_by(root, CONFIG, method=method, known=known))
                self.assertEqual((reply.status, dict(reply.headers)["ETag"]), (status, tag), known)
                self.assertEqual(dict(reply.headers)["Vary"], "Accept, Prefer, Range")
                self.assertEqual("Content-Type" in dict(reply.headers), status == 200)

    def test_db_root_spec_lets_a_function_answer(self) -> None:
        reply = self.successResultOf(self.answering(evolve(CONFIG, root_spec="find"), q="x"))
        assert isinstance(reply, Reply)
        self.assertEqual((reply.status, reply.body, self.executor.asked), (200, b'"instead"', ["find"]))
