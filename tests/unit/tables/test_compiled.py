"""What is known of a statement before it runs: whether it only reads, what it may leave on the connection, how many
rows are read at once."""

from __future__ import annotations

from typing import Literal

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.outcome import UNKNOWN_ROWS
from project_service.tables.planner import Compiled
from project_service.tables.values import SchemaCache
from tests.unit.tables.planning import CACHE, CONFIG, planned

ROW = b'{"id": 1, "title": "a", "author_id": 1, "editor_id": 1, "data": {}}'
KEY = ("api", "find")
Volatility = Literal["i", "s", "v"]


def with_volatility(volatility: Volatility) -> SchemaCache:
    (found,) = CACHE.routines[KEY]
    return evolve(CACHE, routines={**CACHE.routines, KEY: (evolve(found, volatility=volatility),)})


def compiled(
    method: str,
    path: str,
    *pairs: tuple[str, str],
    cache: SchemaCache = CACHE,
    pre_request: str | None = None,
) -> Compiled:
    calls = path.startswith("rpc")
    pairs = (("q", "x"), *pairs) if calls and method == "GET" else pairs
    body = b'{"q": "x"}' if calls else ROW
    config = evolve(CONFIG, pre_request=pre_request)
    return planned(method, path, *pairs, body=body, cache=cache, config=config).compiled


class Transactions(SynchronousTestCase):
    def test_which_requests_run_in_read_only_transactions(self) -> None:
        """GET never writes, whatever a function's volatility; POST of a function may write only if the function is
        volatile."""
        cases: tuple[tuple[str, str, Volatility, bool], ...] = (
            ("GET", "works", "v", True),
            ("POST", "works", "v", False),
            ("GET", "rpc/find", "v", True),
            ("GET", "rpc/find", "s", True),
            ("POST", "rpc/find", "v", False),
            ("POST", "rpc/find", "s", True),
            ("POST", "rpc/find", "i", True),
        )
        for method, path, volatility, expected in cases:
            # So few rows are not streamed, whatever the method.
            limit = [("limit", "1")] if path.startswith("rpc") else []
            found = compiled(method, path, *limit, cache=with_volatility(volatility))
            self.assertIs(found.read_only, expected, (method, path, volatility))
            # Of a call that may write, every row has to be made, shown or not.
            ends = "LIMIT 1) AS pgrst_first" in found.statement.sql.text
            self.assertIs(ends, path.startswith("rpc") and not expected, (method, path, volatility))

    def test_only_function_calls_writes_and_pre_requests_may_leave_session_state(self) -> None:
        """Functions are called by name, by triggers of a write and before each request. Session state has to be
        cleared only if the source of some function can leave any."""
        leaves = evolve(CACHE, leaves_state=True)
        for method, path, pre_request, expected in (
            ("GET", "works", None, False),
            ("GET", "works", "check", True),
            ("GET", "rpc/find", None, True),
            ("POST", "works", None, True),
        ):
            for cache, left in ((leaves, expected), (CACHE, False)):
                found = compiled(method, path, cache=cache, pre_request=pre_request)
                self.assertIs(found.leaves_state, left, (method, path, pre_request))

    def test_reading_views_and_computed_fields_may_leave_session_state(self) -> None:
        """That is so only if the source of some function can leave session state in a read-only transaction."""
        leaves = evolve(CACHE, leaves_state=True, reads_leave_state=True)
        for path, pairs, expected in (
            ("works", (("select", "id,a:data->b,tags(label)"), ("title", "eq.a"), ("order", "id")), False),
            ("works", (("tags.label", "eq.a"), ("select", "*,tags()"), ("tags", "is.null")), False),
            ("recent", (), True),
            ("works", (("select", "computed"),), True),
            ("works", (("order", "computed"),), True),
            ("works", (("or", "(id.eq.1,computed.eq.1)"),), True),
            ("works", (("select", "tags(computed)"),), True),
        ):
            for cache, left in ((leaves, expected), (evolve(CACHE, leaves_state=True), False)):
                self.assertIs(compiled("GET", path, *pairs, cache=cache).leaves_state, left, (path, pairs))


class Sizes(SynchronousTestCase):
    def test_the_probe_reads_as_many_rows_as_fit_by_their_measured_size(self) -> None:
        """Rows of a function have the size of the relation that it returns."""
        works = evolve(CACHE.relations["api", "works"], row_bytes=1024)
        measured = evolve(CACHE, relations={**CACHE.relations, works.key: works})
        for path in ("works", "rpc/find"):
            for cache, expected in ((measured, CONFIG.stream_threshold_bytes // 1024), (CACHE, UNKNOWN_ROWS)):
                probe = compiled("GET", path, cache=cache).probe
                assert probe is not None
                self.assertEqual(probe.rows, expected, path)
        # In a view several rows may have the same value of its table's key.
        view = evolve(CACHE, relations={**CACHE.relations, works.key: evolve(works, is_view=True)})
        self.assertIsNone(compiled("GET", "works", ("id", "eq.1"), cache=measured).probe)
        self.assertIsNotNone(compiled("GET", "works", ("id", "eq.1"), cache=view).probe)
        # A scalar result is always sent in one piece.
        found = planned("GET", "rpc/add", ("a", "1")).compiled
        self.assertIsNone(found.probe)

    def test_only_unbounded_plain_rows_are_probed(self) -> None:
        config = evolve(CONFIG, plan=True)
        for limit, accept, tried in (
            (None, "", True),
            (None, "text/csv", True),
            (UNKNOWN_ROWS, "", False),
            (UNKNOWN_ROWS + 1, "", True),
            (None, "application/vnd.pgrst.object+json", False),
            (None, "application/vnd.pgrst.plan+json", False),
        ):
            pairs = () if limit is None else (("limit", str(limit)),)
            found = planned("GET", "works", *pairs, accept=accept, config=config).compiled
            self.assertIs(found.probe is not None, tried, (limit, accept))

    def test_a_stream_strips_nulls_if_the_media_type_says_so(self) -> None:
        for accept, stripped in (("", False), ("application/vnd.pgrst.array+json;nulls=stripped", True)):
            stream = planned("GET", "works", accept=accept).compiled.statement.stream
            assert stream is not None
            self.assertEqual("json_strip_nulls" in stream.text, stripped)


class Names(SynchronousTestCase):
    def test_names_replaced_by_an_alias_are_named_in_a_warning(self) -> None:
        select = ("select", "id,writer:authors!works_author_fkey(name)")
        for used in (
            ("authors.name", "eq.x"),
            ("authors", "is.null"),
            ("or", "(authors.not.is.null,id.eq.1)"),
        ):
            for path in ("works", "rpc/find"):
                headers = dict(compiled("GET", path, select, used).headers)
                self.assertIn("Update `authors` to `writer` in query string", headers["Warning"])
        headers = dict(compiled("GET", "works", select, ("writer", "is.null")).headers)
        self.assertNotIn("Warning", headers)
