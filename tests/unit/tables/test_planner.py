"""Plans cached by shape, and what is known of a statement before it runs."""

from __future__ import annotations

from typing import Literal

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.planner import Compiled, Planned, Planner
from project_service.tables.reply.outcome import UNKNOWN_ROWS
from project_service.tables.values import SchemaCache
from tests.unit.tables.planning import CACHE, CONFIG, as_json, planned, text


class Keeping(SynchronousTestCase):
    def test_requests_of_the_same_shape_share_one_plan(self) -> None:
        planner = Planner(CONFIG)
        one = planned("GET", "works", ("id", "eq.1"), ("title", "in.(a,b)"), planner=planner)
        two = planned("GET", "works", ("id", "eq.2"), ("title", "in.(c)"), planner=planner)
        self.assertIs(one.compiled, two.compiled)
        self.assertEqual(two.compiled.statement.sql.values(two.operands)[:2], ["2", '{"c"}'])

    def test_a_plan_is_prepared_from_the_second_request_on(self) -> None:
        planner = Planner(CONFIG)
        result = [planned("GET", "works", ("id", f"eq.{number}"), planner=planner) for number in range(3)]
        self.assertEqual([one.cached for one in result], [False, True, True])

    def test_requests_of_another_shape_get_another_plan(self) -> None:
        planner = Planner(CONFIG)
        one = planned("GET", "works", ("id", "eq.1"), planner=planner)
        for pairs, prefer in (
            ([("id", "neq.1")], ""),
            ([("title", "eq.1")], ""),
            ([("id", "eq.1"), ("limit", "1")], ""),
            ([("id", "eq.1")], "count=exact"),
        ):
            other = planned("GET", "works", *pairs, prefer=prefer, planner=planner)
            self.assertIsNot(one.compiled, other.compiled)

    def test_bodies_with_the_same_columns_share_a_plan(self) -> None:
        planner = Planner(CONFIG)
        one = planned("POST", "works", body=b'{"title": "a"}', planner=planner)
        two = planned("POST", "works", body=b'{"title": "b"}', planner=planner)
        self.assertIs(one.compiled, two.compiled)
        self.assertIn('{"title": "b"}', two.compiled.statement.sql.values(two.operands, two.body))

    def sent(self, result: Planned) -> tuple[str, list[str | bytes | None]]:
        return text(result), result.compiled.statement.sql.values(result.operands, result.body, result.raw)

    objects = st.fixed_dictionaries({"q": st.text(st.characters(exclude_categories=["Cs"]), max_size=9)})
    documents = st.one_of(objects, st.lists(objects, max_size=2), st.integers())
    writes = st.tuples(
        st.sampled_from(["rpc/whole", "rpc/whole_jsonb", "rpc/find", "works"]), documents.map(as_json)
    ).map(lambda result: (*result, "application/json"))
    untouched = st.sampled_from(
        [
            ("rpc/whole_text", "text/plain"),
            ("rpc/whole_xml", "text/xml"),
            ("rpc/whole_bytea", "application/octet-stream"),
            ("rpc/find", "application/x-www-form-urlencoded"),
            ("works", "text/csv"),
        ]
    ).flatmap(
        lambda kind: st.text("qab", min_size=1, max_size=5).map(
            lambda word: (
                kind[0],
                {"rpc/find": f"q={word}", "works": f"title\n{word}"}.get(kind[0], word).encode(),
                kind[1],
            )
        )
    )

    @given(st.lists(st.one_of(writes, untouched), max_size=8))
    def test_a_kept_plan_never_sends_another_requests_body(
        self, requests: list[tuple[str, bytes, str]]
    ) -> None:
        """A planner that has kept plans sends for each request what a new planner would send."""
        planner = Planner(CONFIG)
        for path, body, media in requests:
            try:
                alone = self.sent(planned("POST", path, body=body, media=media))
            except TableError as refused:
                again = self.assertRaises(
                    TableError, planned, "POST", path, body=body, media=media, planner=planner
                )
                self.assertEqual(again.code, refused.code)
                continue
            self.assertEqual(self.sent(planned("POST", path, body=body, media=media, planner=planner)), alone)

    def test_a_body_passed_whole_is_always_the_requests_own(self) -> None:
        planner = Planner(CONFIG)
        for path in ("rpc/whole", "rpc/whole_jsonb"):
            for body in (b'{"x": 1}', b'{"x": 2}'):
                result = planned("POST", path, body=body, planner=planner)
                self.assertEqual(self.sent(result)[1], [body.decode()])
        for path, media in (
            ("rpc/whole_text", "text/plain"),
            ("rpc/whole_bytea", "application/octet-stream"),
        ):
            for body in (b"one", b"two"):
                result = planned("POST", path, body=body, media=media, planner=planner)
                self.assertEqual(self.sent(result)[1], [body if path == "rpc/whole_bytea" else body.decode()])

    def test_columns_named_in_a_body_of_any_media_type_are_part_of_the_shape(self) -> None:
        planner = Planner(CONFIG)
        for path, media, bodies in (
            ("works", "text/csv", (b"title\na", b"author_id\n1", b"title\nb")),
            ("rpc/add", "application/x-www-form-urlencoded", (b"a=1&b=2", b"a=1&c=2", b"a=2&b=2")),
        ):
            for body in bodies:
                result = planned("POST", path, body=body, media=media, planner=planner)
                self.assertEqual(self.sent(result), self.sent(planned("POST", path, body=body, media=media)))

    def test_plans_of_large_requests_are_neither_kept_nor_prepared(self) -> None:
        """The cache is bounded in bytes, whatever clients send."""
        large = "x" * 9000
        pairs = [
            ("works", "title", f"eq.{large}"),
            ("works", "or", f"(title.eq.{large},id.eq.1)"),
            ("works", "select", ",".join(f"a{n}:id" for n in range(800))),
            ("rpc/find", "q", large),
        ]
        for path, name, value in pairs:
            planner = Planner(CONFIG)
            one, two = (planned("GET", path, (name, value), planner=planner) for _ in range(2))
            self.assertFalse(one.cached or two.cached)
            self.assertIsNot(one.compiled, two.compiled)
            self.assertIsNot(one.request.query, two.request.query)
        planner = Planner(CONFIG)
        one, two = (planned("GET", "works", prefer=f"x={large}", planner=planner) for _ in range(2))
        self.assertFalse(one.cached or two.cached)
        self.assertIsNot(one.request.head, two.request.head)

    def test_headers_with_many_media_types_are_not_kept(self) -> None:
        """A media type of a few bytes is a hundred times as large once it is parsed."""
        for many, kept in ((5, True), (1000, False)):
            planner, accept = Planner(CONFIG), "a/b," * many + "application/json"
            one, two = (planned("GET", "works", accept=accept, planner=planner) for _ in range(2))
            self.assertIs(one.request.head is two.request.head, kept)

    def test_a_short_request_with_a_large_plan_is_not_kept(self) -> None:
        embeds = ",".join(f"a{number}:tags(label)" for number in range(60))
        planner = Planner(CONFIG)
        one, two = (planned("GET", "works", ("select", embeds), planner=planner) for _ in range(2))
        self.assertLess(len(embeds), 2000)
        self.assertFalse(one.cached or two.cached)

    def test_a_kept_plan_holds_nothing_of_a_body(self) -> None:
        for path in ("works", "rpc/whole", "rpc/find"):
            result = planned(
                "POST", path, body=b'{"q": "secret"}' if path == "rpc/find" else b'{"title": "secret"}'
            )
            plan = result.compiled.plan
            assert plan is not None and plan.payload is not None
            self.assertEqual((plan.payload.text, plan.payload.raw), ("", b""))


class Probing(SynchronousTestCase):
    def test_rows_of_unknown_size_are_probed_with_few(self) -> None:
        result = planned("GET", "works").compiled
        assert result.probe is not None
        self.assertEqual(result.probe.rows, UNKNOWN_ROWS)
        self.assertIn("101", result.statement.sql.values(probe=101))

    def test_the_size_of_rows_is_shared_by_requests_for_the_same_columns(self) -> None:
        planner = Planner(CONFIG)
        one = planned("GET", "works", ("select", "id"), planner=planner).compiled.probe
        other = planned("GET", "works", ("select", "id"), ("id", "gt.1"), planner=planner).compiled.probe
        wide = planned("GET", "works", ("select", "title"), planner=planner).compiled.probe
        self.assertIs(one, other)
        self.assertIsNot(one, wide)

    def test_a_row_selected_by_its_primary_key_is_not_probed(self) -> None:
        for condition, probed in (
            (("id", "eq.1"), False),
            (("id", "not.eq.1"), True),
            (("id", "gt.1"), True),
            (("id", "eq(any).{1,2}"), True),
            (("author_id", "eq.1"), True),
            (("or", "(id.eq.1,id.eq.2)"), True),
        ):
            self.assertEqual(planned("GET", "works", condition).compiled.probe is not None, probed, condition)

    def test_without_a_primary_key_everything_is_probed(self) -> None:
        works = evolve(CACHE.relations["api", "works"], primary_key=())
        keyless = evolve(CACHE, relations={**CACHE.relations, works.key: works})
        for pairs in ((), (("id", "eq.1"),)):
            self.assertIsNotNone(planned("GET", "works", *pairs, cache=keyless).compiled.probe, pairs)

    def test_head_aggregates_no_rows_and_needs_no_probe(self) -> None:
        result = planned("HEAD", "works").compiled
        self.assertIsNone(result.probe)
        self.assertNotIn("json_agg", result.statement.sql.text)
        # EXPLAIN tells what the body would cost.
        explain, config = "application/vnd.pgrst.plan+json", evolve(CONFIG, plan=True)
        self.assertIn("json_agg", text(planned("HEAD", "works", accept=explain, config=config)))

    def test_an_exact_count_is_not_computed_twice_if_all_rows_are_read(self) -> None:
        for pairs, again in (((), False), ((("limit", "5"),), True), ((("offset", "5"),), True)):
            result = text(planned("HEAD", "works", *pairs, prefer="count=exact"))
            self.assertEqual("pgrst_count" in result, again, pairs)

    def test_head_calls_a_function_though_nobody_reads_its_result(self) -> None:
        """PostgreSQL does not call a stable function whose value is not used."""
        arguments = (("a", "1"), ("b", "2"))
        self.assertIn("1::bigint AS page_total", text(planned("GET", "rpc/add", *arguments)))
        self.assertIn("count(_t.*) AS page_total", text(planned("HEAD", "rpc/add", *arguments)))


ROW = b'{"id": 1, "title": "a", "author_id": 1, "editor_id": 1, "data": {}}'
KEY = ("api", "find")
Volatility = Literal["i", "s", "v"]


def with_volatility(volatility: Volatility) -> SchemaCache:
    (result,) = CACHE.routines[KEY]
    return evolve(CACHE, routines={**CACHE.routines, KEY: (evolve(result, volatility=volatility),)})


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
            result = compiled(method, path, *limit, cache=with_volatility(volatility))
            self.assertIs(result.read_only, expected, (method, path, volatility))
            # Of a call that may write, every row has to be made, shown or not.
            ends = "LIMIT 1) AS pgrst_first" in result.statement.sql.text
            self.assertIs(ends, path.startswith("rpc") and not expected, (method, path, volatility))


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
        result = planned("GET", "rpc/add", ("a", "1")).compiled
        self.assertIsNone(result.probe)

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
            result = planned("GET", "works", *pairs, accept=accept, config=config).compiled
            self.assertIs(result.probe is not None, tried, (limit, accept))

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
