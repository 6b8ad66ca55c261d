"""What is known of a statement before it runs: whether it only reads, what it may leave on the connection, how many
rows are read at once."""

from __future__ import annotations

from typing import Literal

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.catalog.model import SchemaCache
from project_service.tables.execution.probe import UNKNOWN_ROWS
from project_service.tables.planning.compile import Compiled
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
    def test_what_reads_only_may_not_write(self) -> None:
        """A volatile function may, unless it is called as nothing that is read may change."""
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
            # Nor does what is not shown have to be run then.
            ends = "LIMIT 1) AS pgrst_first" in found.statement.sql.text
            self.assertIs(ends, path.startswith("rpc") and not expected, (method, path, volatility))

    def test_only_functions_leave_things_and_only_where_they_hold_the_words_for_it(self) -> None:
        """They are called by name, by triggers of what is written, and before each request."""
        leaves = evolve(CACHE, leaves_things=True)
        for method, path, pre_request, expected in (
            ("GET", "works", None, False),
            ("GET", "works", "check", True),
            ("GET", "rpc/find", None, True),
            ("POST", "works", None, True),
        ):
            for cache, left in ((leaves, expected), (CACHE, False)):
                found = compiled(method, path, cache=cache, pre_request=pre_request)
                self.assertIs(found.leaves_things, left, (method, path, pre_request))

    def test_so_does_what_reads_more_than_tables(self) -> None:
        """Where their words are such that a reading transaction leaves something."""
        leaves = evolve(CACHE, leaves_things=True, leaves_by_reading=True)
        for path, pairs, expected in (
            ("works", (("select", "id,a:data->b,tags(label)"), ("title", "eq.a"), ("order", "id")), False),
            ("works", (("tags.label", "eq.a"), ("select", "*,tags()"), ("tags", "is.null")), False),
            ("recent", (), True),
            ("works", (("select", "computed"),), True),
            ("works", (("order", "computed"),), True),
            ("works", (("or", "(id.eq.1,computed.eq.1)"),), True),
            ("works", (("select", "tags(computed)"),), True),
        ):
            for cache, left in ((leaves, expected), (evolve(CACHE, leaves_things=True), False)):
                self.assertIs(compiled("GET", path, *pairs, cache=cache).leaves_things, left, (path, pairs))


class Sizes(SynchronousTestCase):
    def test_of_rows_that_are_measured_as_many_are_tried_as_fit(self) -> None:
        """A function's are those of the relation that it returns."""
        works = evolve(CACHE.relations["api", "works"], row_bytes=1024)
        measured = evolve(CACHE, relations={**CACHE.relations, works.key: works})
        for path in ("works", "rpc/find"):
            for cache, expected in ((measured, CONFIG.stream_threshold_bytes // 1024), (CACHE, UNKNOWN_ROWS)):
                probe = compiled("GET", path, cache=cache).probe
                assert probe is not None
                self.assertEqual(probe.rows, expected, path)
        # Of a view several may have what is its table's key.
        view = evolve(CACHE, relations={**CACHE.relations, works.key: evolve(works, is_view=True)})
        self.assertIsNone(compiled("GET", "works", ("id", "eq.1"), cache=measured).probe)
        self.assertIsNotNone(compiled("GET", "works", ("id", "eq.1"), cache=view).probe)
        # One value is one body.
        found = planned("GET", "rpc/add", ("a", "1")).compiled
        self.assertIsNone(found.probe)

    def test_only_what_may_be_more_than_one_body_and_is_its_rows_is_tried(self) -> None:
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

    def test_a_stream_leaves_out_the_nulls_that_its_body_would(self) -> None:
        for accept, stripped in (("", False), ("application/vnd.pgrst.array+json;nulls=stripped", True)):
            stream = planned("GET", "works", accept=accept).compiled.statement.stream
            assert stream is not None
            self.assertEqual("json_strip_nulls" in stream.text, stripped)


class Names(SynchronousTestCase):
    def test_a_name_that_was_replaced_by_an_alias_is_noted_wherever_it_is_used(self) -> None:
        pairs = (("select", "id,writer:authors!works_author_fkey(name)"), ("authors.name", "eq.x"))
        for method, path in (("GET", "works"), ("GET", "rpc/find")):
            self.assertEqual(compiled(method, path, *pairs).renamed, (("authors", "writer"),))
