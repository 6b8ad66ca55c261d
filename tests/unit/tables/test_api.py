"""The way of a request: the root, ``OPTIONS``, large bodies, and what the parts are put together from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import orjson
from attrs import evolve
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.acting import Preamble
from project_service.database.pool import Pool
from project_service.errors import RETRY_AFTER
from project_service.http.admission import Slot as NoSlot
from project_service.http.response import Reply, StreamReply
from project_service.http.routing import Router
from project_service.lifecycle import start
from project_service.settings.model import Secret, Settings, Stage, StageDatabase
from project_service.tables import assemble as assembling
from project_service.tables import errors
from project_service.tables.access import Identity
from project_service.tables.api import POLICY, Access, Root, TableRoutes, TableService
from project_service.tables.assemble import assemble, one_at_a_time
from project_service.tables.errors import TableError
from project_service.tables.planner import Planned, Planner
from project_service.tables.reply.outcome import Outcome
from project_service.tables.reply.response import options_reply, other_methods
from project_service.tables.request.body import INLINE_BYTES
from project_service.tables.request.request import RawRequest, RequestHeaders, parse_head
from project_service.tables.schema_cache.holder import CacheHolder
from project_service.tables.sql.fragment import Sql
from project_service.tables.values import SchemaCache, TablesConfig
from tests.unit.tables.planning import CACHE, CONFIG
from tests.unit.tables.schema import cache

T = TypeVar("T")
PLAIN = evolve(CONFIG, openapi="ignore-privileges")


class Executor:
    """An executor that returns one row for calls, and the table ``works`` for what the caller may use."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.usable = b'["works"]'
        self.refusal: Exception | None = None

    async def execute(self, planned: Planned, preamble: Preamble, path: str, slot: object) -> Outcome:
        assert planned.compiled.routine is not None
        self.asked.append(planned.compiled.routine.name)
        return Outcome(rows=1, body=b'"instead"')

    async def read(self, preamble: Preamble, path: str, sql: Sql) -> list[tuple[bytes, bytes]]:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(sql.text)
        return [(self.usable, b'["find"]')]


class AtRoot(SynchronousTestCase):
    def setUp(self) -> None:
        self.executor = Executor()
        self.cache = CACHE
        self.made = 0

    async def here(self, function: Callable[[], T]) -> T:
        self.made += 1
        return function()

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
        fakes: Any = SimpleNamespace(
            cache=self.cache, current=self.cache, identify=lambda *_: identity, expected=lambda planned: False
        )
        access = Access(cast(Any, self.executor), fakes)
        service = TableService(config, fakes, fakes, Planner(config), fakes, access, root, fakes, self.here)
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
            content_type, actual = self.described(PLAIN, accept)
            self.assertEqual((content_type, actual["swagger"]), (expected, "2.0"))

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


class OnStandbys(SynchronousTestCase):
    """A read that was sent to a standby."""

    def test_one_that_is_run_again_on_the_primary_has_its_place_among_the_requests_served(self) -> None:
        """A standby that dies while connections to it are shared would otherwise send its readers to the primary
        past the admission of requests."""
        held: list[str] = []

        class Slot(NoSlot):
            def release(self) -> None:
                held.clear()

            def retake(self) -> None:
                held.append("a place")

        class Dying(Executor):
            async def execute(self, planned: Planned, preamble: Preamble, path: str, slot: Any) -> Outcome:
                slot.release()
                raise errors.database_away()

        class Primary(Executor):
            async def execute(self, planned: Planned, preamble: Preamble, path: str, slot: Any) -> Outcome:
                assert held == ["a place"]
                return Outcome(rows=1, body=b'"from the primary"')

        fakes: Any = SimpleNamespace(
            cache=CACHE,
            current=CACHE,
            identify=lambda *_: Identity("anon", "{}", False),
            caller_of=lambda *_: "somebody",
            expected=lambda planned: False,
            choose=lambda ask: Access(cast(Any, Dying()), fakes),
            repeats=lambda fault: True,
        )
        access = Access(cast(Any, Primary()), fakes)
        service = TableService(
            CONFIG, fakes, fakes, Planner(CONFIG), fakes, access, fakes, fakes, fakes, fakes
        )
        incoming = RawRequest("GET", ("rpc", "find"), pairs=(("q", "x"),), slot=Slot())
        reply = self.successResultOf(start(service.answer(incoming)))
        assert isinstance(reply, Reply)
        self.assertEqual(reply.body, b'"from the primary"')


class Options(SynchronousTestCase):
    def answered(self, incoming: RawRequest, **settings: Any) -> Deferred[Reply | StreamReply]:
        config = TablesConfig(schemas=("api",), **settings)
        fakes: Any = SimpleNamespace(current=cache(), identify=lambda *_: Identity("anon", "{}", False))
        unused = cast(Any, None)
        service = TableService(
            config, fakes, fakes, Planner(config), unused, unused, unused, unused, unused, unused
        )
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

    def test_a_body_that_is_not_said_to_be_json_has_a_hint_unless_switched_off(self) -> None:
        unused = cast(Any, None)
        hints = []
        for error_hints in (True, False):
            config = evolve(CONFIG, error_hints=error_hints)
            service = TableService(
                config, unused, unused, Planner(config), unused, unused, unused, unused, unused, unused
            )
            fault = errors.invalid_body("Content-Type not acceptable: text/plain")
            service.complete_error(fault, RawRequest("POST", ("works",), body=b"{}"))
            hints.append(fault.hint)
        self.assertIn("application/json", hints[0] or "")
        self.assertIsNone(hints[1])

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
        actual = options_reply(evolve(known, relations={heap.key: heap}), head)
        self.assertEqual(dict(actual.headers)["Allow"], "OPTIONS,GET,HEAD,POST,PATCH,DELETE")

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


class Large(SynchronousTestCase):
    def setUp(self) -> None:
        self.threads: list[Deferred[None]] = []
        self.written: list[int] = []
        fakes: Any = SimpleNamespace(
            cache=CACHE, identify=lambda *_: Identity("anon", "{}", False), expected=lambda planned: False
        )
        access, unused = Access(cast(Any, self), fakes), cast(Any, None)
        self.service = TableService(
            CONFIG, fakes, fakes, Planner(CONFIG), unused, access, unused, unused, self.in_thread
        )

    async def in_thread(self, function: Callable[[], T]) -> T:
        self.threads.append(Deferred())
        await self.threads[-1]
        return function()

    async def execute(self, planned: Planned, preamble: Preamble, path: str, slot: object) -> Outcome:
        self.written.append(len(planned.body))
        return Outcome(rows=0)

    def post(self, body: bytes, media: str = "text/csv") -> Deferred[Reply | StreamReply]:
        headers = RequestHeaders.of((("content-type", media),))
        return start(self.service.answer(RawRequest("POST", ("works",), headers=headers, body=body)))

    def test_large_csv_is_read_in_a_thread_and_a_small_one_at_once(self) -> None:
        large = self.post(b"id\n" + b"1\n" * (INLINE_BYTES // 2))
        self.assertEqual(self.successResultOf(self.post(b"id\n1\n")).status, 201)
        self.assertNoResult(large)
        self.threads.pop().callback(None)
        self.assertEqual(self.successResultOf(large).status, 201)
        self.assertEqual((len(self.written), self.threads), (2, []))

    def test_its_faults_are_refused_as_those_of_any_other(self) -> None:
        refused = self.post(b"id\n" + b"1,2\n" * INLINE_BYTES)
        self.threads.pop().callback(None)
        self.assertEqual(self.failureResultOf(refused, TableError).value.code, "PGRST102")

    def test_more_of_json_than_of_csv_is_read_at_once(self) -> None:
        rows = b"[" + b",".join([b'{"id":1}'] * (INLINE_BYTES // 4)) + b"]"
        self.assertEqual(self.successResultOf(self.post(rows, "application/json")).status, 201)
        large = self.post(rows.ljust(16 * INLINE_BYTES), "application/json")
        self.assertNoResult(large)
        self.threads.pop().callback(None)
        self.assertEqual(self.successResultOf(large).status, 201)

    def test_a_client_that_leaves_while_it_waits_writes_nothing(self) -> None:
        left = self.post(b"id\n" + b"1\n" * INLINE_BYTES)
        left.cancel()
        self.failureResultOf(left, CancelledError)
        self.assertEqual(self.written, [])


class Threads:
    """A reactor with a pool of threads in which nothing ends by itself. ``begun`` is what was handed to it."""

    def __init__(self) -> None:
        self.begun: list[tuple[Callable[[bool, Any], None], Callable[[], Any]]] = []

    def getThreadPool(self) -> Threads:
        return self

    def callFromThread(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)

    def callInThreadWithCallback(
        self, reported: Callable[[bool, Any], None], function: Callable[[], Any], *_: Any
    ) -> None:
        self.begun.append((reported, function))

    def end(self) -> None:
        reported, function = self.begun.pop()
        try:
            result = function()
        except Exception:
            reported(False, Failure())
        else:
            reported(True, result)


class OneAtATime(SynchronousTestCase):
    def setUp(self) -> None:
        self.threads = Threads()
        self.in_thread = one_at_a_time(self.threads)

    def run_in_thread(self, function: Callable[[], T]) -> Deferred[T]:
        async def ran() -> T:
            return await self.in_thread(function)

        return start(ran())

    def test_the_next_begins_when_the_first_has_ended_well_or_not(self) -> None:
        first, second, third = (self.run_in_thread(partial(divmod, 1, number)) for number in (0, 1, 1))
        for one in (first, second, third):
            self.assertEqual(len(self.threads.begun), 1)
            self.assertNoResult(one)
            self.threads.end()
        self.failureResultOf(first, ZeroDivisionError)
        self.assertEqual((self.successResultOf(second), self.successResultOf(third)), ((1, 0), (1, 0)))

    def test_a_caller_who_leaves_makes_no_room_while_his_function_runs(self) -> None:
        first, second = self.run_in_thread(int), self.run_in_thread(int)
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.assertEqual(len(self.threads.begun), 1)
        self.threads.end()
        self.threads.end()
        self.assertEqual(self.successResultOf(second), 0)

    def test_what_nobody_waits_for_any_more_never_begins(self) -> None:
        first, second, third = (self.run_in_thread(int) for _ in range(3))
        second.cancel()
        self.failureResultOf(second, CancelledError)
        self.threads.end()
        self.threads.end()
        self.assertEqual((self.successResultOf(first), self.successResultOf(third)), (0, 0))
        self.assertEqual(self.threads.begun, [])


class Notifications(SynchronousTestCase):
    def test_only_postgrests_reload_notifications_reload_the_schema_cache(self) -> None:
        read: list[int] = []

        async def load(version: int) -> SchemaCache:
            read.append(version)
            return SchemaCache(version)

        holder = CacheHolder(load, MemoryReactorClock())
        for payload, expected in {
            "": 1,
            "reload schema": 2,
            "reload config": 3,
            "reload": 3,
            "something else": 3,
        }.items():
            holder.notified(payload)
            self.assertEqual(len(read), expected, payload)


class Connection:
    """A fake with all that the pool uses of a connection."""

    usable, altered, own, pooled = True, False, "", False

    async def query(self, sql: str) -> list[tuple[bool]]:
        return [(False,)]

    def close(self) -> None:
        self.usable = False


class NoConnection(SynchronousTestCase):
    """Errors of requests that get no connection from one of the pools."""

    def test_no_free_connection_in_time_is_504_pgrst003(self) -> None:
        async def connected() -> Any:
            return Connection()

        self.patch(assembling, "raw", lambda connector: connected)
        for size in (1, 2):
            clock, pools = self.pools(size)
            for pool in pools:
                held = [self.successResultOf(start(pool.acquire())) for _ in range(pool.size)]
                self.assertEqual(self.refusal(clock, pool), (504, "PGRST003"))
                for connection in held:
                    pool.release(connection)
                self.successResultOf(start(pool.close()))

    def test_no_connection_can_be_made_is_503_pgrst000(self) -> None:
        for size in (1, 2):
            clock, pools = self.pools(size)
            self.assertEqual(len(pools), 3 - size)
            for pool in pools:
                self.assertEqual(self.refusal(clock, pool), (503, "PGRST000"))
                self.successResultOf(start(pool.close()))

    def pools(self, size: int) -> tuple[MemoryReactorClock, list[Pool]]:
        clock = MemoryReactorClock()
        database = StageDatabase(dsn=Secret("postgresql://x@127.0.0.1:1/x"), pool_size=size)
        settings = Settings(stages={"dev": Stage(databases={"main": database})})
        return clock, list(assemble(clock, settings, None, lambda: 0.0).pools)

    def refusal(self, clock: MemoryReactorClock, pool: Pool) -> tuple[int, str]:
        waiting = start(pool.acquire())
        clock.advance(Settings().database.acquire_timeout_seconds)
        error = self.failureResultOf(waiting, TableError).value
        self.assertIn(RETRY_AFTER, error.headers)
        return error.status, error.code
