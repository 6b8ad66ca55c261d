"""From requests to SQL: names are looked up in the schema cache, and values become parameters."""

from __future__ import annotations

import json
from typing import Any

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.plan import names
from project_service.tables.plan.names import nearest
from project_service.tables.plan.nodes import sql_alias
from project_service.tables.planner import Planner
from project_service.tables.request.query import parse_query
from project_service.tables.schema_cache.build import base_columns
from project_service.tables.sql.fragment import cast_type, ident, literal
from project_service.tables.values import TablesConfig
from tests.unit.tables.planning import CACHE, CONFIG, planned, text
from tests.unit.tables.rendered import anything


class Embedding(SynchronousTestCase):
    def refused(self, path: str, *pairs: tuple[str, str]) -> TableError:
        error = self.assertRaises(TableError, planned, "GET", path, *pairs)
        assert isinstance(error, TableError)
        return error

    def test_an_ambiguous_embedding_is_pgrst201_and_a_hint_resolves_it(self) -> None:
        error = self.refused("works", ("select", "authors(*)"))
        self.assertEqual((error.status, error.code), (300, "PGRST201"))
        self.assertEqual(
            [choice["relationship"] for choice in error.json_details],
            [
                "works_author_fkey using works(author_id) and authors(id)",
                "works_editor_fkey using works(editor_id) and authors(id)",
            ],
        )
        for hint in ("works_author_fkey", "author_id"):
            self.assertIn('"author_id"', text(planned("GET", "works", ("select", f"authors!{hint}(name)"))))

    def test_a_foreign_key_column_can_be_embedded_by_its_name(self) -> None:
        self.assertIn('."editor_id"', text(planned("GET", "works", ("select", "editor:editor_id(name)"))))

    def test_many_to_many_embeddings_join_the_junction(self) -> None:
        found = text(planned("GET", "works", ("select", "tags(label)")))
        self.assertIn('"api"."works_tags"', found)

    def test_a_view_has_the_keys_of_its_base_table(self) -> None:
        self.assertEqual(CACHE.relations["api", "recent"].primary_key, ("work",))
        found = text(planned("GET", "authors", ("select", "recent(work)")))
        self.assertIn('."author" = "authors"."id"', found)

    def test_an_unknown_relationship_suggests_a_similar_name(self) -> None:
        error = self.refused("authors", ("select", "wokrs(id)"))
        self.assertEqual(
            (error.code, error.hint), ("PGRST200", "Perhaps you meant 'works' instead of 'wokrs'.")
        )

    def test_only_to_one_embeddings_can_be_ordered_by(self) -> None:
        error = self.refused("authors", ("select", "works!works_author_fkey(id)"), ("order", "works(id)"))
        self.assertEqual(error.code, "PGRST118")

    def test_an_aliased_embedding_is_filtered_by_its_alias(self) -> None:
        pairs = (("select", "writer:authors!author_id(name)"), ("order", "authors(name)"))
        headers = dict(planned("GET", "works", *pairs).compiled.headers)
        self.assertIn("Update `authors` to `writer` in query string", headers["Warning"])
        strict = evolve(CONFIG, legacy_target_names=False)
        error = self.assertRaises(TableError, planned, "GET", "works", *pairs, config=strict)
        self.assertEqual(error.hint, "Change 'authors' to 'writer' in filters, orders or limits.")
        tested = (pairs[0], ("authors", "is.null"))
        error = self.assertRaises(TableError, planned, "GET", "works", *tested, config=strict)
        self.assertEqual((error.code, error.message), ("42703", "column works.authors does not exist"))
        self.assertNotIn('"works"."authors"', text(planned("GET", "works", *tested)))

    def test_two_embeddings_of_one_name_are_refused_unless_one_is_empty(self) -> None:
        for select, name in (
            ("id,authors!author_id(id),authors!editor_id(name)", "works_authors_1"),
            ("x:authors!author_id(id),x:tags(label)", "works_x_1"),
            ("...authors!author_id(id),...authors!author_id(name)", "works_authors_1"),
            ("tags(works(id),works(title))", "tags_works_2"),
        ):
            error = self.refused("works", ("select", select))
            self.assertEqual((error.status, error.code), (400, "42712"))
            self.assertEqual(error.message, f'table name "{name}" specified more than once')
        for select in (
            "x:authors!author_id(id),authors!editor_id(name)",
            "authors!author_id(id),authors!author_id()",
        ):
            planned("GET", "works", ("select", select))

    def test_the_first_select_and_order_count_but_the_last_limit(self) -> None:
        found = text(
            planned(
                *("GET", "works", ("select", "id,tags(label)"), ("order", "id.desc")),
                *(("select", ")("), ("order", "title")),
                *(("tags.order", "label.desc"), ("tags.order", "id")),
            )
        )
        for there in ('"works"."id" DESC', '"label" DESC'):
            self.assertIn(there, found)
        for gone in ("title", 'ORDER BY "tags_1"."id"'):
            self.assertNotIn(gone, found)
        limits = ("limit", "7"), ("limit", "8")
        self.assertEqual(parse_query(limits).ranges, parse_query(limits[1:]).ranges)
        written = text(
            planned("POST", "works", ("columns", "id"), ("columns", "title"), body=b'{"id": 1, "title": "x"}')
        )
        self.assertNotIn('"title"', written.partition("RETURNING")[0])

    def test_an_embedding_that_is_not_selected_cannot_be_filtered(self) -> None:
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

    def test_strict_tx_preferences_that_cannot_be_followed_are_refused(self) -> None:
        for method, path, prefer, tx_end, refused in (
            ("POST", "works", "handling=strict, tx=rollback", "commit", True),
            ("POST", "rpc/answer", "handling=strict, tx=commit", "rollback", True),
            ("POST", "works", "handling=strict, tx=commit", "commit", False),
            ("POST", "works", "handling=strict, tx=rollback", "commit-allow-override", False),
            ("POST", "works", "tx=rollback", "commit", False),
            ("GET", "works", "handling=strict, tx=rollback", "commit", False),
        ):
            config = evolve(CONFIG, tx_end=tx_end)
            more: dict[str, Any] = {"body": b"{}", "prefer": prefer, "config": config}
            if refused:
                error = self.assertRaises(TableError, planned, method, path, **more)
                self.assertEqual((error.status, error.code), (400, "PGRST122"))
            else:
                planned(method, path, **more)

    def test_unknown_columns_of_a_body_are_refused(self) -> None:
        error = self.assertRaises(TableError, planned, "POST", "works", body=b'{"nope": 1}')
        self.assertEqual(error.code, "PGRST204")

    def test_put_needs_equality_filters_on_exactly_the_primary_key(self) -> None:
        for pairs in ([], [("id", "gt.1")], [("id", "eq.1"), ("title", "eq.x")], [("id", "not.eq.1")]):
            error = self.assertRaises(TableError, planned, "PUT", "works", *pairs, body=b'{"id": 1}')
            self.assertEqual((error.status, error.code), (405, "PGRST105"))
        self.assertIn("ON CONFLICT", text(planned("PUT", "works", ("id", "eq.1"), body=b'{"id": 1}')))

    def test_a_limited_write_needs_an_order_by_a_unique_column(self) -> None:
        error = self.assertRaises(TableError, planned, "DELETE", "works", ("limit", "1"), ("id", "gt.0"))
        self.assertEqual(error.code, "PGRST109")
        found = text(planned("DELETE", "works", ("limit", "1"), ("order", "id.desc"), ("id", "gt.0")))
        self.assertIn('ORDER BY "works"."id" DESC LIMIT $', found)


class Calling(SynchronousTestCase):
    def test_overloads_are_chosen_by_argument_names(self) -> None:
        self.assertIn('"b" := ', text(planned("GET", "rpc/add", ("a", "1"), ("b", "2"))))
        self.assertIn('"c" := ', text(planned("GET", "rpc/add", ("a", "1"), ("c", "2"))))

    def test_a_json_body_is_passed_whole_to_an_unnamed_json_argument(self) -> None:
        found = planned("POST", "rpc/whole", body=b'{"x": 1}')
        self.assertIn("::json", text(found))

    def test_an_unknown_function_suggests_a_similar_name(self) -> None:
        error = self.assertRaises(TableError, planned, "GET", "rpc/fnd")
        self.assertEqual((error.status, error.hint), (404, "Perhaps you meant to call the function api.find"))
        error = self.assertRaises(TableError, planned, "GET", "rpc/add", ("a", "1"), ("d", "2"))
        self.assertIn("Searched for the function api.add with parameters a, d", error.json_details)

    def test_rows_of_a_function_are_filtered_like_a_tables(self) -> None:
        found = text(planned("GET", "rpc/find", ("q", "x"), ("id", "gt.1"), ("select", "title,tags(label)")))
        self.assertIn('"works"."id" > ', found)

    def test_testing_an_embedding_of_a_functions_rows_selects_no_such_column(self) -> None:
        select, tested = ("select", "title,tags()"), ("or", "(tags.not.is.null,id.eq.1)")
        found = text(planned("GET", "rpc/find", ("q", "x"), select, tested))
        self.assertIn('"find"."id"', found)
        self.assertNotIn('"find"."tags"', found)


class NoValueInTheText(SynchronousTestCase):
    """Operands, arguments and bodies are parameters; they never become part of the SQL."""

    marked = anything.map(lambda value: f"<~{value}~>")

    @given(marked, st.sampled_from(["eq", "like", "not.match", "fts", "plfts(english)", "isdistinct", "cs"]))
    def test_operands_are_parameters(self, value: str, operator: str) -> None:
        found = planned("GET", "works", ("title", f"{operator}.{value}"))
        self.assertNotIn("<~", text(found))
        values = found.compiled.statement.sql.values(found.operands, found.body)
        self.assertTrue(any(isinstance(one, str) and "<~" in one for one in values))

    @given(marked.filter(lambda value: '"' not in value and "\\" not in value))
    def test_operands_in_lists_and_logic_trees_are_parameters(self, value: str) -> None:
        found = planned(
            "GET", "works", ("title", f'in.("{value}")'), ("or", f'(title.eq."{value}",id.is.null)')
        )
        self.assertNotIn("<~", text(found))

    @given(marked)
    def test_function_arguments_are_parameters(self, value: str) -> None:
        found = planned("GET", "rpc/find", ("q", value))
        self.assertNotIn("<~", text(found))

    @given(marked)
    def test_bodies_are_parameters(self, value: str) -> None:

        found = planned("POST", "works", body=json.dumps({"title": value}).encode())
        self.assertNotIn("<~", text(found))
        self.assertIn("<~", found.body)

    @given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
    def test_identifiers_and_literals_cannot_be_broken_out_of(self, name: str) -> None:
        self.assertEqual((ident(name)[0], ident(name)[-1]), ('"', '"'))
        self.assertNotIn('"', ident(name)[1:-1].replace('""', ""))
        self.assertNotIn("\0", ident(name))
        self.assertNotIn("'", literal(name).strip().removeprefix("E")[1:-1].replace("''", ""))
        self.assertLessEqual(len(sql_alias(name, 12345).encode()), 63)

    def test_a_cast_can_only_name_a_type(self) -> None:
        self.assertEqual(cast_type("double  precision"), "double precision")
        self.assertEqual(cast_type("int[]"), "int[]")
        self.assertEqual(cast_type("mine"), '"mine"')


class NoNul(SynchronousTestCase):
    """A NUL is refused, because PostgreSQL has no text with one; also if there was a valid request of the same shape
    before."""

    def refused(self, planner: Planner, path: str, *pairs: tuple[str, str], **more: Any) -> None:
        method = "POST" if more else "GET"
        error = self.assertRaises(TableError, planned, method, path, *pairs, planner=planner, **more)
        self.assertEqual(error.status, 400)

    def test_nul_in_the_path_is_404(self) -> None:
        for method, path in (("GET", "works\0"), ("GET", "\0"), ("GET", "rpc/find\0"), ("POST", "works\0")):
            self.assertEqual(self.assertRaises(TableError, planned, method, path, body=b"[]").status, 404)

    def test_nul_in_the_query_is_refused(self) -> None:
        planner = Planner(CONFIG)
        planned("GET", "works", ("title", "eq.a"), planner=planner)
        planned("GET", "works", ("id", "in.(1)"), planner=planner)
        planned("GET", "rpc/find", ("q", "a"), planner=planner)
        self.refused(planner, "works", ("title", "eq.\0"))
        self.refused(planner, "works", ("id", "in.(\0)"))
        self.refused(planner, "rpc/find", ("q", "\0"))

    def test_nul_in_a_text_body_is_refused_and_kept_in_a_binary_one(self) -> None:
        planner = Planner(CONFIG)
        self.refused(planner, "rpc/whole_text", body=b"a\0", media="text/plain")
        self.refused(planner, "rpc/whole_xml", body=b"<a/>\0", media="text/xml")
        for form in (b"q=%00", b"%00=1"):
            self.refused(planner, "rpc/find", body=form, media="application/x-www-form-urlencoded")
        octets = planned("POST", "rpc/whole_bytea", body=b"\0", media="application/octet-stream")
        self.assertEqual(octets.raw, b"\0")


class Catalogue(SynchronousTestCase):
    def test_columns_of_views_of_views_lead_to_the_base_table(self) -> None:
        entry = (
            "({{QUERY :x ({{SUB :y ({{TARGETENTRY :resno 9 :resname n :resorigtbl 7 :resorigcol 7 "
            ":resjunk false}})}}) :targetList ({{TARGETENTRY :expr {{VAR}} :resno 1 :resname a :ressortgroupref 0 "
            ":resorigtbl {table} :resorigcol {column} :resjunk false}})}})"
        )
        rules = {10: entry.format(table=11, column=1), 11: entry.format(table=1, column=4)}
        self.assertEqual(base_columns(rules), {10: {(1, 4): [1]}, 11: {(1, 4): [1]}})

    def test_hints_rank_names_by_edit_distance(self) -> None:
        self.assertEqual(nearest("projectx", ["projects", "tasks"], 0.75), "projects")
        self.assertIsNone(nearest("projxxxx", ["projects", "tasks"], 0.75))
        self.assertIsNone(nearest("same", ["same"]))
        self.assertIsNone(nearest("name", ["nama", *(f"t{number}" for number in range(500))]))

    def test_hints_need_a_common_trigram(self) -> None:
        # By edit distance alone these would be similar enough.
        self.assertIsNone(nearest("(any_arg)", ["(name)"]))
        self.assertEqual(nearest("(nam)", ["(name)"]), "(name)")
        # Trigrams decide first: a name that shares one wins over a name with fewer edits that shares none.
        self.assertEqual(nearest("abcx", ["abcdefgh", "axbx"]), "abcdefgh")
        self.assertEqual(nearest("ab-cd", ["abxcd"]), "abxcd")
        self.assertIsNone(nearest("()", ["(name)", ""]))

    def test_names_that_clients_ask_for_are_not_cached(self) -> None:
        known = ["remembered", "once"]
        nearest("remembred", known)
        before = names._groups_of_known.cache_info().misses
        for asked in ("rememberedd", "x" * 10_000):
            nearest(asked, known)
        self.assertEqual(names._groups_of_known.cache_info().misses, before)
