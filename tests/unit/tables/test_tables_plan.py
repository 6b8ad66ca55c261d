"""From requests to SQL: what is found in the schema cache, and where the request's values end up."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.call import Call
from project_service.tables.catalog.hints import nearest
from project_service.tables.catalog.views import base_columns
from project_service.tables.config import TablesConfig
from project_service.tables.errors import TableError
from project_service.tables.plan.aliases import alias
from project_service.tables.planner import Planned, Planner
from project_service.tables.probe import UNKNOWN_ROWS
from project_service.tables.sql.names import cast_type, ident, literal
from tests.unit.tables.rendered import anything
from tests.unit.tables.schema import cache

CACHE = cache()


def _as_json(value: object) -> bytes:
    return json.dumps(value).encode()


CONFIG = TablesConfig(schemas=("api",), max_rows=0, unfiltered_writes="allow")


def planned(
    method: str,
    path: str,
    *pairs: tuple[str, str],
    body: bytes = b"",
    prefer: str = "",
    media: str = "",
    planner: Planner | None = None,
    config: TablesConfig = CONFIG,
) -> Planned:
    planner = planner or Planner(config)
    headers = tuple(pair for pair in (("prefer", prefer), ("content-type", media)) if pair[1])
    call = Call(method, tuple(path.split("/")), pairs, headers, body)
    head, key = planner.head(call)
    shape, request, operands = planner.request(call, head)
    return planner.plan(CACHE, key, shape, request, operands)


def text(found: Planned) -> str:
    return found.prepared.statement.sql.for_prepare


class Embedding(SynchronousTestCase):
    def refused(self, path: str, *pairs: tuple[str, str]) -> TableError:
        error = self.assertRaises(TableError, planned, "GET", path, *pairs)
        assert isinstance(error, TableError)
        return error

    def test_a_constraint_tells_two_ways_apart(self) -> None:
        error = self.refused("works", ("select", "authors(*)"))
        self.assertEqual((error.status, error.code), (300, "PGRST201"))
        self.assertEqual(
            [choice["relationship"] for choice in error.payload],
            [
                "works_author_fkey using works(author_id) and authors(id)",
                "works_editor_fkey using works(editor_id) and authors(id)",
            ],
        )
        for hint in ("works_author_fkey", "author_id"):
            self.assertIn('"author_id"', text(planned("GET", "works", ("select", f"authors!{hint}(name)"))))

    def test_a_column_is_a_way_too(self) -> None:
        self.assertIn('."editor_id"', text(planned("GET", "works", ("select", "editor:editor_id(name)"))))

    def test_a_junction_is_passed_through(self) -> None:
        found = text(planned("GET", "works", ("select", "tags(label)")))
        self.assertIn('"api"."works_tags"', found)

    def test_a_view_shows_its_tables_keys(self) -> None:
        self.assertEqual(CACHE.relations["api", "recent"].primary_key, ("work",))
        found = text(planned("GET", "authors", ("select", "recent(work)")))
        self.assertIn('."author" = "authors"."id"', found)

    def test_no_way_names_what_is_near(self) -> None:
        error = self.refused("authors", ("select", "wokrs(id)"))
        self.assertEqual(
            (error.code, error.hint), ("PGRST200", "Perhaps you meant 'works' instead of 'wokrs'.")
        )

    def test_only_rows_of_one_can_be_ordered_by(self) -> None:
        error = self.refused("authors", ("select", "works!works_author_fkey(id)"), ("order", "works(id)"))
        self.assertEqual(error.code, "PGRST118")

    def test_what_is_not_embedded_cannot_be_filtered(self) -> None:
        self.assertEqual(self.refused("authors", ("works.id", "eq.1")).code, "PGRST108")

    def test_aggregates_can_be_switched_off(self) -> None:
        config = TablesConfig(schemas=("api",), aggregates=False)
        error = self.assertRaises(TableError, planned, "GET", "works", ("select", "id.sum()"), config=config)
        self.assertEqual(error.code, "PGRST123")


class Writing(SynchronousTestCase):
    def test_a_write_without_a_filter_is_refused_unless_allowed(self) -> None:
        careful = TablesConfig(schemas=("api",))
        for method in ("PATCH", "DELETE"):
            error = self.assertRaises(
                TableError, planned, method, "works", body=b'{"title": "x"}', config=careful
            )
            self.assertEqual((error.status, error.code), (400, "21000"))
            planned(method, "works", ("id", "eq.1"), body=b'{"title": "x"}', config=careful)

    def test_columns_are_looked_up(self) -> None:
        error = self.assertRaises(TableError, planned, "POST", "works", body=b'{"nope": 1}')
        self.assertEqual(error.code, "PGRST204")

    def test_put_wants_its_primary_key_and_nothing_else(self) -> None:
        for pairs in ([], [("id", "gt.1")], [("id", "eq.1"), ("title", "eq.x")], [("id", "not.eq.1")]):
            error = self.assertRaises(TableError, planned, "PUT", "works", *pairs, body=b'{"id": 1}')
            self.assertEqual((error.status, error.code), (405, "PGRST105"))
        self.assertIn("ON CONFLICT", text(planned("PUT", "works", ("id", "eq.1"), body=b'{"id": 1}')))

    def test_a_limited_write_says_in_which_order(self) -> None:
        error = self.assertRaises(TableError, planned, "DELETE", "works", ("limit", "1"), ("id", "gt.0"))
        self.assertEqual(error.code, "PGRST109")
        found = text(planned("DELETE", "works", ("limit", "1"), ("order", "id.desc"), ("id", "gt.0")))
        self.assertIn('ORDER BY "works"."id" DESC LIMIT 1', found)


class Calling(SynchronousTestCase):
    def test_overloads_go_by_their_arguments_names(self) -> None:
        self.assertIn('"b" := ', text(planned("GET", "rpc/add", ("a", "1"), ("b", "2"))))
        self.assertIn('"c" := ', text(planned("GET", "rpc/add", ("a", "1"), ("c", "2"))))

    def test_a_body_goes_whole_to_an_argument_without_a_name(self) -> None:
        found = planned("POST", "rpc/whole", body=b'{"x": 1}')
        self.assertIn("::json", text(found))

    def test_a_missing_function_names_what_is_near(self) -> None:
        error = self.assertRaises(TableError, planned, "GET", "rpc/fnd")
        self.assertEqual((error.status, error.hint), (404, "Perhaps you meant to call the function api.find"))
        error = self.assertRaises(TableError, planned, "GET", "rpc/add", ("a", "1"), ("d", "2"))
        self.assertIn("Searched for the function api.add with parameters a, d", error.payload)

    def test_rows_of_a_function_are_filtered_like_a_tables(self) -> None:
        found = text(planned("GET", "rpc/find", ("q", "x"), ("id", "gt.1"), ("select", "title,tags(label)")))
        self.assertIn('"works"."id" > ', found)


class NoValueInTheText(SynchronousTestCase):
    """Operands, arguments and bodies are parameters; their text never is SQL's."""

    marked = anything.map(lambda value: f"<~{value}~>")

    @given(marked, st.sampled_from(["eq", "like", "not.match", "fts", "plfts(english)", "isdistinct", "cs"]))
    def test_operands(self, value: str, operator: str) -> None:
        found = planned("GET", "works", ("title", f"{operator}.{value}"))
        self.assertNotIn("<~", text(found))
        values = found.prepared.statement.sql.values(found.operands, found.body)
        self.assertTrue(any(isinstance(one, str) and "<~" in one for one in values))

    @given(marked.filter(lambda value: '"' not in value and "\\" not in value))
    def test_lists_and_trees(self, value: str) -> None:
        found = planned(
            "GET", "works", ("title", f'in.("{value}")'), ("or", f'(title.eq."{value}",id.is.null)')
        )
        self.assertNotIn("<~", text(found))

    @given(marked)
    def test_arguments(self, value: str) -> None:
        found = planned("GET", "rpc/find", ("q", value))
        self.assertNotIn("<~", text(found))

    @given(marked)
    def test_bodies(self, value: str) -> None:
        import json

        found = planned("POST", "works", body=json.dumps({"title": value}).encode())
        self.assertNotIn("<~", text(found))
        self.assertIn("<~", found.body)

    @given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
    def test_names_are_closed_by_their_own_quotes(self, name: str) -> None:
        self.assertEqual((ident(name)[0], ident(name)[-1]), ('"', '"'))
        self.assertNotIn('"', ident(name)[1:-1].replace('""', ""))
        self.assertNotIn("\0", ident(name))
        self.assertNotIn("'", literal(name).strip().removeprefix("E")[1:-1].replace("''", ""))
        self.assertLessEqual(len(alias(name, 12345).encode()), 63)

    def test_casts_are_types_and_nothing_else(self) -> None:
        self.assertEqual(cast_type("double  precision"), "double precision")
        self.assertEqual(cast_type("int[]"), "int[]")
        self.assertEqual(cast_type("mine"), '"mine"')


class Keeping(SynchronousTestCase):
    def test_one_shape_is_planned_once(self) -> None:
        planner = Planner(CONFIG)
        one = planned("GET", "works", ("id", "eq.1"), ("title", "in.(a,b)"), planner=planner)
        two = planned("GET", "works", ("id", "eq.2"), ("title", "in.(c)"), planner=planner)
        self.assertIs(one.prepared, two.prepared)
        self.assertEqual(two.prepared.statement.sql.values(two.operands)[:2], ["2", '{"c"}'])

    def test_another_shape_is_planned_anew(self) -> None:
        planner = Planner(CONFIG)
        one = planned("GET", "works", ("id", "eq.1"), planner=planner)
        for pairs, prefer in (
            ([("id", "neq.1")], ""),
            ([("title", "eq.1")], ""),
            ([("id", "eq.1"), ("limit", "1")], ""),
            ([("id", "eq.1")], "count=exact"),
        ):
            other = planned("GET", "works", *pairs, prefer=prefer, planner=planner)
            self.assertIsNot(one.prepared, other.prepared)

    def test_bodies_of_one_shape_share_a_plan(self) -> None:
        planner = Planner(CONFIG)
        one = planned("POST", "works", body=b'{"title": "a"}', planner=planner)
        two = planned("POST", "works", body=b'{"title": "b"}', planner=planner)
        self.assertIs(one.prepared, two.prepared)
        self.assertIn('{"title": "b"}', two.prepared.statement.sql.values(two.operands, two.body))

    def sent(self, found: Planned) -> tuple[str, list[str | bytes | None]]:
        return text(found), found.prepared.statement.sql.values(found.operands, found.body, found.raw)

    objects = st.fixed_dictionaries({"q": st.text(st.characters(exclude_categories=["Cs"]), max_size=9)})
    documents = st.one_of(objects, st.lists(objects, max_size=2), st.integers())
    writes = st.tuples(
        st.sampled_from(["rpc/whole", "rpc/whole_jsonb", "rpc/find", "works"]), documents.map(_as_json)
    ).map(lambda found: (*found, "application/json"))
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
    def test_what_was_kept_never_sends_another_body(self, requests: list[tuple[str, bytes, str]]) -> None:
        """Each request on a planner that remembers says what it says on a new one."""
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

    def test_a_whole_body_is_each_requests_own(self) -> None:
        planner = Planner(CONFIG)
        for path in ("rpc/whole", "rpc/whole_jsonb"):
            for body in (b'{"x": 1}', b'{"x": 2}'):
                found = planned("POST", path, body=body, planner=planner)
                self.assertEqual(self.sent(found)[1], [body.decode()])
        for path, media in (
            ("rpc/whole_text", "text/plain"),
            ("rpc/whole_bytea", "application/octet-stream"),
        ):
            for body in (b"one", b"two"):
                found = planned("POST", path, body=body, media=media, planner=planner)
                self.assertEqual(self.sent(found)[1], [body if path == "rpc/whole_bytea" else body.decode()])

    def test_what_is_large_is_not_kept(self) -> None:
        """Nor prepared: what is kept is bounded in bytes, however clients ask."""
        large = "x" * 9000
        pairs = [
            ("works", "title", f"eq.{large}"),
            ("works", "or", f"(title.eq.{large},id.eq.1)"),
            ("works", "select", ",".join(["id", "title"] * 800)),
            ("rpc/find", "q", large),
        ]
        for path, name, value in pairs:
            planner = Planner(CONFIG)
            one, two = (planned("GET", path, (name, value), planner=planner) for _ in range(2))
            self.assertFalse(one.kept or two.kept)
            self.assertIsNot(one.prepared, two.prepared)
            self.assertIsNot(one.request.query, two.request.query)
        planner = Planner(CONFIG)
        one, two = (planned("GET", "works", prefer=f"x={large}", planner=planner) for _ in range(2))
        self.assertFalse(one.kept or two.kept)
        self.assertIsNot(one.request.head, two.request.head)

    def test_what_asks_little_and_means_much_is_not_kept(self) -> None:
        embeds = ",".join(f"a{number}:tags(label)" for number in range(60))
        found = planned("GET", "works", ("select", embeds), planner=Planner(CONFIG))
        self.assertLess(len(embeds), 2000)
        self.assertFalse(found.kept)

    def test_nothing_of_a_body_is_kept(self) -> None:
        for path in ("works", "rpc/whole", "rpc/find"):
            found = planned(
                "POST", path, body=b'{"q": "secret"}' if path == "rpc/find" else b'{"title": "secret"}'
            )
            plan = found.prepared.plan
            assert plan is not None and plan.payload is not None
            self.assertEqual((plan.payload.text, plan.payload.raw), ("", b""))


class Probing(SynchronousTestCase):
    def test_of_rows_nobody_has_measured_few_are_read_at_once(self) -> None:
        found = planned("GET", "works").prepared
        assert found.probe is not None
        self.assertEqual(found.probe.rows, UNKNOWN_ROWS)
        self.assertIn("101", found.statement.sql.values(probe=101))

    def test_what_is_learnt_of_rows_holds_for_other_conditions_on_them(self) -> None:
        planner = Planner(CONFIG)
        one = planned("GET", "works", ("select", "id"), planner=planner).prepared.probe
        other = planned("GET", "works", ("select", "id"), ("id", "gt.1"), planner=planner).prepared.probe
        wide = planned("GET", "works", ("select", "title"), planner=planner).prepared.probe
        self.assertIs(one, other)
        self.assertIsNot(one, wide)

    def test_a_row_that_is_named_by_its_key_is_never_too_many(self) -> None:
        for condition, probed in (
            (("id", "eq.1"), False),
            (("id", "not.eq.1"), True),
            (("id", "gt.1"), True),
            (("id", "eq(any).{1,2}"), True),
            (("author_id", "eq.1"), True),
            (("or", "(id.eq.1,id.eq.2)"), True),
        ):
            self.assertEqual(planned("GET", "works", condition).prepared.probe is not None, probed, condition)

    def test_a_head_has_no_body_to_be_large(self) -> None:
        found = planned("HEAD", "works").prepared
        self.assertIsNone(found.probe)
        self.assertNotIn("json_agg", found.statement.sql.text)


class NoNul(SynchronousTestCase):
    """PostgreSQL has no text with a NUL; that a request of the same shape was good before changes nothing."""

    def refused(self, planner: Planner, path: str, *pairs: tuple[str, str], **more: Any) -> None:
        method = "POST" if more else "GET"
        error = self.assertRaises(TableError, planned, method, path, *pairs, planner=planner, **more)
        self.assertEqual(error.status, 400)

    def test_in_the_query(self) -> None:
        planner = Planner(CONFIG)
        planned("GET", "works", ("title", "eq.a"), planner=planner)
        planned("GET", "works", ("id", "in.(1)"), planner=planner)
        planned("GET", "rpc/find", ("q", "a"), planner=planner)
        self.refused(planner, "works", ("title", "eq.\0"))
        self.refused(planner, "works", ("id", "in.(\0)"))
        self.refused(planner, "rpc/find", ("q", "\0"))

    def test_in_the_body(self) -> None:
        planner = Planner(CONFIG)
        self.refused(planner, "rpc/whole_text", body=b"a\0", media="text/plain")
        self.refused(planner, "rpc/whole_xml", body=b"<a/>\0", media="text/xml")
        for form in (b"q=%00", b"%00=1"):
            self.refused(planner, "rpc/find", body=form, media="application/x-www-form-urlencoded")
        octets = planned("POST", "rpc/whole_bytea", body=b"\0", media="application/octet-stream")
        self.assertEqual(octets.raw, b"\0")


class Catalogue(SynchronousTestCase):
    def test_views_of_views_lead_to_tables(self) -> None:
        entry = (
            "({{QUERY :x ({{SUB :y ({{TARGETENTRY :resno 9 :resname n :resorigtbl 7 :resorigcol 7 "
            ":resjunk false}})}}) :targetList ({{TARGETENTRY :expr {{VAR}} :resno 1 :resname a :ressortgroupref 0 "
            ":resorigtbl {table} :resorigcol {column} :resjunk false}})}})"
        )
        rules = {10: entry.format(table=11, column=1), 11: entry.format(table=1, column=4)}
        self.assertEqual(base_columns(rules), {10: {(1, 4): [1]}, 11: {(1, 4): [1]}})

    def test_the_nearest_name_scores_by_edits(self) -> None:
        self.assertEqual(nearest("projectx", ["projects", "tasks"], 0.75), "projects")
        self.assertIsNone(nearest("projxxxx", ["projects", "tasks"], 0.75))
        self.assertIsNone(nearest("same", ["same"]))
        self.assertIsNone(nearest("name", ["nama", *(f"t{number}" for number in range(500))]))
