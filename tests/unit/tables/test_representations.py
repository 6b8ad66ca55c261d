"""Hints for unknown functions, the choice of the schema, media types, counts, and descriptions of keys and
overloads."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables import endpoints
from project_service.tables.errors import TableError
from project_service.tables.openapi import definition_of, document
from project_service.tables.plan.media import Rendering, negotiate
from project_service.tables.request.headers import OBJECT, parse_accept, parse_media
from project_service.tables.request.request import parse_head
from project_service.tables.sql.statement import body_sql
from project_service.tables.values import Argument, Column, Handler, Relation, Relationship, Routine
from tests.unit.tables.planning import CACHE, CONFIG, as_json, planned, text


class Missing(SynchronousTestCase):
    def refused(self, name: str, *arguments: str) -> TableError:
        body = as_json(dict.fromkeys(arguments, 1))
        found: TableError = self.assertRaises(TableError, planned, "POST", f"rpc/{name}", body=body)
        return found

    def test_arguments_in_errors_are_sorted_by_name(self) -> None:
        found = self.refused("add", "b", "a", "zzz")
        self.assertIn("api.add(a, b, zzz)", found.message)
        self.assertIn("with parameters a, b, zzz or with", found.json_details)

    def test_the_hint_for_arguments_is_the_overload_with_the_fewest_edits(self) -> None:
        for arguments, near in (
            (("b", "a", "something"), "add(a, b)"),
            (("c",), "add(a, c)"),
            (("a", "cc"), "add(a, c)"),
            (("wrong_one",), None),
            ((), None),
        ):
            hint = f"Perhaps you meant to call the function api.{near}" if near else None
            self.assertEqual(self.refused("add", *arguments).hint, hint, arguments)


class Empty(SynchronousTestCase):
    def test_an_empty_body_is_an_empty_object_for_json_and_empty_text_otherwise(self) -> None:
        self.assertEqual(planned("POST", "rpc/whole").raw, b"{}")
        self.assertEqual(planned("POST", "rpc/whole_text", media="text/plain").raw, b"")


class Schemas(SynchronousTestCase):
    def head(self, method: str, *headers: tuple[str, str], schemas: tuple[str, ...] = ("a", "b")) -> object:
        found = parse_head(method, ("books",), headers, schemas)
        return found.schema, found.profiled

    def test_reads_use_accept_profile_and_writes_content_profile(self) -> None:
        both = (("accept-profile", "a"), ("content-profile", "b"))
        for method in ("GET", "HEAD", "OPTIONS"):
            self.assertEqual(self.head(method, *both), ("a", True), method)
        for method in ("POST", "PATCH", "PUT", "DELETE"):
            self.assertEqual(self.head(method, *both), ("b", True), method)

    def test_the_openapi_description_names_the_profile_header_that_is_read(self) -> None:
        asking = (
            *(endpoints.READ, endpoints.CALL, endpoints.ROOT),
            *(endpoints.RELATION_OPTIONS, endpoints.ROUTINE_OPTIONS, endpoints.ROOT_OPTIONS),
        )
        for one in (*endpoints.AT_ROOT, *endpoints.BELOW):
            profiles = [found for found in one.parameters if found.name.endswith("-Profile")]
            expected = endpoints.READS if one in asking else endpoints.WRITES
            self.assertEqual(profiles, [expected], one.name)

    def test_a_single_schema_is_reported_only_if_the_request_named_it(self) -> None:
        self.assertEqual(self.head("GET", schemas=("a",)), ("a", False))
        self.assertEqual(self.head("GET", ("accept-profile", "a"), schemas=("a",)), ("a", True))
        refused = self.assertRaises(TableError, self.head, "GET", ("accept-profile", "b"), schemas=("a",))
        self.assertEqual(refused.code, "PGRST106")


class Negotiation(SynchronousTestCase):
    def answered(
        self, accept: str, routine: Routine | None = None, explain: bool = False, whole: bool = True
    ) -> Rendering:
        cache = evolve(CACHE, handlers=(Handler(("api", "lined"), "text/x-lines", None),))
        relation = ("api", "works") if routine is None else None
        return negotiate(cache, parse_accept(accept), relation, routine, explain, whole)

    def test_a_function_with_a_media_type_domain_makes_the_body_itself(self) -> None:
        drawn = Routine("api", "drawn", return_media="image/png", is_bytes=True)
        found = self.answered("text/html, image/png;q=0.5, */*;q=0.1", drawn)
        self.assertEqual((found.form, found.content_type), ("routine", "image/png"))
        self.assertEqual(body_sql(found, True, True), "_t.pgrst_scalar")
        self.assertEqual(body_sql(evolve(found, is_bytes=False), True, True), "_t.pgrst_scalar::text")

    def test_the_body_a_function_makes_itself_cannot_be_selected_from(self) -> None:
        drawn = Routine("api", "drawn", return_media="image/png", is_bytes=True)
        self.assertRaises(TableError, self.answered, "image/png", drawn, whole=False)
        self.assertEqual(self.answered("image/png, */*", drawn, whole=False).form, "json")

    def test_accepting_anything_is_answered_with_json(self) -> None:
        drawn = Routine("api", "drawn", return_media="image/png", is_bytes=True)
        self.assertEqual(self.answered("*/*", drawn).form, "json")
        self.assertEqual(self.answered("", evolve(drawn, return_media="application/json")).form, "routine")
        for accept in ("*/*", "text/plain"):
            found = self.answered(accept, evolve(drawn, return_media="*/*"))
            self.assertEqual((found.form, found.content_type), ("routine", "application/octet-stream"))

    def test_an_aggregate_for_anyelement_takes_scalar_results_and_rows(self) -> None:
        found = self.answered("text/x-lines", Routine("api", "name"))
        self.assertEqual(body_sql(found, True, True), '"api"."lined"(_t.pgrst_scalar)')
        self.assertEqual(body_sql(self.answered("text/x-lines")), '"api"."lined"(_t.*)')

    def test_an_aggregate_of_one_relation_takes_only_its_whole_rows(self) -> None:
        works, tags = ("api", "works"), ("api", "tags")
        own = Handler(("api", "of_works"), "text/x-lines", works)
        general = Handler(("api", "lined"), "text/x-lines", None)
        catch_all = Handler(("api", "any_works"), "*/*", works)
        table = evolve(own, media="text/csv")
        for accept, handlers, relation, whole, expected in (
            ("text/x-lines", (general, own), works, True, (own, "text/x-lines")),
            ("text/x-lines", (general, own), works, False, (general, "text/x-lines")),
            ("text/x-lines", (general, own), tags, True, (general, "text/x-lines")),
            ("text/x-lines", (own, catch_all), works, True, (catch_all, "application/octet-stream")),
            ("image/png", (own, catch_all), works, True, (catch_all, "application/octet-stream")),
            ("image/png", (general, catch_all), works, True, (catch_all, "application/octet-stream")),
            ("*/*", (catch_all,), works, True, (catch_all, "application/octet-stream")),
            ("*/*", (catch_all,), works, False, (None, "application/json; charset=utf-8")),
            ("*/*", (catch_all,), tags, True, (None, "application/json; charset=utf-8")),
            ("text/csv", (table,), works, True, (table, "text/csv; charset=utf-8")),
            ("text/csv", (table,), works, False, (None, "text/csv; charset=utf-8")),
            (
                "application/vnd.pgrst.object+json",
                (catch_all,),
                works,
                True,
                (None, f"{OBJECT}; charset=utf-8"),
            ),
        ):
            cache = evolve(CACHE, handlers=handlers)
            found = negotiate(cache, parse_accept(accept), relation, None, False, whole)
            self.assertEqual((found.handler, found.content_type), expected, (accept, relation, whole))

    def test_media_types_that_nothing_makes_are_406(self) -> None:
        works = ("api", "works")
        catch_all = evolve(CACHE, handlers=(Handler(("api", "any"), "*/*", None),))
        for accept, cache, relation, explain in (
            ("text/x-lines, image/png", CACHE, works, False),
            ("image/png", catch_all, works, False),
            ("image/png", catch_all, None, False),
            ("application/geo+json", CACHE, works, False),
            ("application/vnd.pgrst.plan", CACHE, works, False),
            ('application/vnd.pgrst.plan; for="image/png"', CACHE, works, True),
            ("application/json;q=0", CACHE, works, False),
            ("*/*; q=0.0", CACHE, works, False),
            ("image/png, text/csv;q=0, application/json;q=0.000", CACHE, works, False),
        ):
            error = self.assertRaises(
                TableError, negotiate, cache, parse_accept(accept), relation, None, explain, True
            )
            self.assertEqual((error.status, error.code), (406, "PGRST107"), accept)
            self.assertEqual(error.message, f"None of these media types are available: {accept}")

    def test_other_errors_of_a_request_come_before_406(self) -> None:
        """No media type would help such a request, to a relation or to a function."""
        nowhere = ("select", "nowhere(*)")
        for method, path, more in (
            ("GET", "works", ()),
            ("DELETE", "works", (("id", "eq.1"),)),
            ("GET", "rpc/find", (("q", "x"),)),
        ):
            for pairs, code in ((more, "PGRST107"), ((*more, nowhere), "PGRST200")):
                error = self.assertRaises(TableError, planned, method, path, *pairs, accept="image/png")
                self.assertEqual(error.code, code, (method, path, pairs))

    def test_geojson_is_available_if_postgis_is(self) -> None:
        found = negotiate(
            evolve(CACHE, has_postgis=True), parse_accept("application/geo+json"), None, None, False, False
        )
        self.assertEqual((found.form, found.content_type), ("geojson", "application/geo+json; charset=utf-8"))

    def test_nulls_are_stripped_from_the_object_only(self) -> None:
        found = self.answered("application/vnd.pgrst.object;nulls=stripped")
        self.assertEqual(
            body_sql(found), "coalesce(json_strip_nulls((pg_catalog.json_agg(_t.*) -> 0)), 'null')"
        )

    def test_the_plan_media_type_says_whether_nulls_are_stripped(self) -> None:
        of = 'for="application/vnd.pgrst.object+json;nulls=stripped"'
        found = self.answered(f"application/vnd.pgrst.plan+json; {of}", explain=True)
        self.assertTrue(found.nulls_stripped and found.explain)
        self.assertEqual(found.content_type, f"application/vnd.pgrst.plan+json; {of}; charset=utf-8")

    def test_the_plan_is_text_or_json_only(self) -> None:
        self.assertFalse(parse_media("application/vnd.pgrst.plan+xml").is_plan)
        self.assertFalse(parse_media("application/vnd.pgrst.planned").is_plan)
        self.assertRaises(TableError, self.answered, "application/vnd.pgrst.plan+xml", None, True)


class Counted(SynchronousTestCase):
    def test_an_exact_or_estimated_count_of_a_functions_rows_is_counted(self) -> None:
        for count, expected in (("exact", True), ("estimated", True), ("planned", False)):
            found = text(planned("GET", "rpc/add", ("a", "1"), prefer=f"count={count}"))
            self.assertEqual("pgrst_count" in found, expected, count)

    def test_rows_without_a_range_are_counted_once(self) -> None:
        whole = text(planned("GET", "rpc/find", ("q", "x"), prefer="count=exact"))
        self.assertIn(
            "SELECT pg_catalog.count(_t.*) AS total_result_set, pg_catalog.count(_t.*) AS page_total", whole
        )
        for cut in (("limit", "2"), ("offset", "1")):
            found = text(planned("GET", "rpc/find", ("q", "x"), cut, prefer="count=exact"))
            self.assertIn("pgrst_count", found)

    def test_an_estimated_count_of_a_functions_rows_is_exact_whatever_max_rows(self) -> None:
        for config in (CONFIG, evolve(CONFIG, max_rows=2)):
            found = [
                text(planned("GET", "rpc/find", ("q", "x"), prefer=f"count={count}", config=config))
                for count in ("exact", "estimated")
            ]
            self.assertEqual(*found)

    def test_a_scalar_result_is_not_counted(self) -> None:
        self.assertIn("1::bigint AS page_total", text(planned("GET", "rpc/add", ("a", "1"))))
        self.assertIn("count(_t.*) AS page_total", text(planned("GET", "rpc/find", ("q", "x"))))

    def test_columns_of_a_write_keep_their_order_for_explain(self) -> None:
        written = text(planned("DELETE", "works", ("id", "eq.1"), prefer="return=representation"))
        columns = ("updated", "page_total", "location", "body", "response_headers", "response_status")
        places = [written.index(f" AS {name}") for name in columns]
        self.assertEqual(places, sorted(places))


class Computed(SynchronousTestCase):
    def texts(self, *pairs: tuple[str, str]) -> tuple[str, str]:
        """The statement's text for the rows of a function, and for written rows."""
        called = planned("GET", "rpc/find", ("q", "x"), *pairs)
        written = planned("DELETE", "works", *pairs, prefer="return=representation")
        return text(called), text(written)

    def test_a_computed_column_is_added_once_and_only_if_selected(self) -> None:
        columns = (
            f'"works"."{name}" AS "{name}"' for name in ("id", "title", "author_id", "editor_id", "data")
        )
        own = "(SELECT " + ", ".join(columns)
        for found in self.texts(("select", "*,age")):
            self.assertIn(f'{own}, "works"."age" AS "age" FROM', found)
            self.assertEqual(found.count('"api"."age"('), 1)
        self.assertIn(f"{own} FROM", self.texts(("age", "gt.1"))[0])
        for found in self.texts(("title", "eq.x")):
            self.assertIn('(SELECT "works".* FROM', found)


class Operation(SynchronousTestCase):
    def test_a_foreign_key_is_described_by_its_table_not_by_a_view(self) -> None:
        column = Column("author", "integer", "integer")
        ways = [
            Relationship(
                ("api", "books"),
                ("api", name),
                "m2o",
                name,
                (("author", "id"),),
                target_is_view=name != "people",
            )
            for name in ("authors", "people", "persons")
        ]
        found = definition_of(Relation("api", "books", {"author": column}), ways)
        self.assertIn("Foreign Key to `people.id`", found["properties"]["author"]["description"])

    def test_the_overload_with_the_most_arguments_is_described(self) -> None:
        few, many = (Routine("api", "f", (Argument("a", "text", "text"),) * number) for number in (0, 1))
        cache = evolve(CACHE, routines={("api", "f"): (few, many)})
        shown = document(cache, "api", "http://here/", None, None)["paths"]["/rpc/f"]["post"]
        self.assertEqual(shown["parameters"][0]["schema"]["required"], ["a"])
