"""Media types, the choice of the schema, and the errors for functions that do not exist."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables import described
from project_service.tables.catalog.model import Argument, Column, Handler, Relation, Relationship, Routine
from project_service.tables.errors import TableError
from project_service.tables.openapi.document import document
from project_service.tables.openapi.relations import definition_of
from project_service.tables.parse.media import OBJECT, parse_accept, parse_media
from project_service.tables.parse.request import parse_head
from project_service.tables.plan.media import Rendering, negotiate
from project_service.tables.sql.body import body_sql
from tests.unit.tables.planning import CACHE, CONFIG, as_json, planned, text


class Missing(SynchronousTestCase):
    def refused(self, name: str, *arguments: str) -> TableError:
        body = as_json(dict.fromkeys(arguments, 1))
        found: TableError = self.assertRaises(TableError, planned, "POST", f"rpc/{name}", body=body)
        return found

    def test_arguments_are_named_in_alphabetical_order(self) -> None:
        found = self.refused("add", "b", "a", "zzz")
        self.assertIn("api.add(a, b, zzz)", found.message)
        self.assertIn("with parameters a, b, zzz or with", found.json_details)

    def test_the_nearest_arguments_are_those_with_the_fewest_edits(self) -> None:
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
    def test_nothing_sent_is_an_empty_object_for_one_argument_too(self) -> None:
        self.assertEqual(planned("POST", "rpc/whole").raw, b"{}")
        self.assertEqual(planned("POST", "rpc/whole_text", media="text/plain").raw, b"")


class Schemas(SynchronousTestCase):
    def head(self, method: str, *headers: tuple[str, str], schemas: tuple[str, ...] = ("a", "b")) -> object:
        found = parse_head(method, ("books",), headers, schemas)
        return found.schema, found.profiled

    def test_what_is_sent_has_its_own_header(self) -> None:
        both = (("accept-profile", "a"), ("content-profile", "b"))
        for method in ("GET", "HEAD", "OPTIONS"):
            self.assertEqual(self.head(method, *both), ("a", True), method)
        for method in ("POST", "PATCH", "PUT", "DELETE"):
            self.assertEqual(self.head(method, *both), ("b", True), method)

    def test_the_documents_name_the_header_that_is_read(self) -> None:
        asking = (
            *(described.READ, described.CALL, described.ROOT),
            *(described.RELATION_OPTIONS, described.ROUTINE_OPTIONS, described.ROOT_OPTIONS),
        )
        for one in (*described.AT_ROOT, *described.BELOW):
            profiles = [found for found in one.parameters if found.name.endswith("-Profile")]
            expected = described.READS if one in asking else described.WRITES
            self.assertEqual(profiles, [expected], one.name)

    def test_one_schema_is_named_only_to_who_names_it(self) -> None:
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

    def test_a_function_s_value_is_a_body_of_its_own(self) -> None:
        drawn = Routine("api", "drawn", return_media="image/png", is_bytes=True)
        found = self.answered("text/html, image/png;q=0.5, */*;q=0.1", drawn)
        self.assertEqual((found.form, found.content_type), ("routine", "image/png"))
        self.assertEqual(body_sql(found, True, True), "_t.pgrst_scalar")
        self.assertEqual(body_sql(evolve(found, is_bytes=False), True, True), "_t.pgrst_scalar::text")

    def test_of_what_a_function_makes_itself_nothing_can_be_selected(self) -> None:
        drawn = Routine("api", "drawn", return_media="image/png", is_bytes=True)
        self.assertRaises(TableError, self.answered, "image/png", drawn, whole=False)
        self.assertEqual(self.answered("image/png, */*", drawn, whole=False).form, "json")

    def test_who_takes_anything_is_given_json(self) -> None:
        drawn = Routine("api", "drawn", return_media="image/png", is_bytes=True)
        self.assertEqual(self.answered("*/*", drawn).form, "json")
        self.assertEqual(self.answered("", evolve(drawn, return_media="application/json")).form, "routine")
        for accept in ("*/*", "text/plain"):
            found = self.answered(accept, evolve(drawn, return_media="*/*"))
            self.assertEqual((found.form, found.content_type), ("routine", "application/octet-stream"))

    def test_an_aggregate_of_anything_takes_what_functions_return(self) -> None:
        found = self.answered("text/x-lines", Routine("api", "name"))
        self.assertEqual(body_sql(found, True, True), '"api"."lined"(_t.pgrst_scalar)')
        self.assertEqual(body_sql(self.answered("text/x-lines")), '"api"."lined"(_t.*)')

    def test_an_aggregate_of_one_relation_takes_its_rows_whole(self) -> None:
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

    def test_what_nobody_makes_is_refused(self) -> None:
        works = ("api", "works")
        catch_all = evolve(CACHE, handlers=(Handler(("api", "any"), "*/*", None),))
        for accept, cache, relation, explain in (
            ("text/x-lines, image/png", CACHE, works, False),
            ("image/png", catch_all, works, False),
            ("image/png", catch_all, None, False),
            ("application/geo+json", CACHE, works, False),
            ("application/vnd.pgrst.plan", CACHE, works, False),
            ('application/vnd.pgrst.plan; for="image/png"', CACHE, works, True),
        ):
            error = self.assertRaises(
                TableError, negotiate, cache, parse_accept(accept), relation, None, explain, True
            )
            self.assertEqual((error.status, error.code), (406, "PGRST107"), accept)
            self.assertEqual(error.message, f"None of these media types are available: {accept}")

    def test_what_cannot_be_answered_at_all_is_said_first(self) -> None:
        """Of a relation as of a function: no media type would help."""
        nowhere = ("select", "nowhere(*)")
        for method, path, more in (
            ("GET", "works", ()),
            ("DELETE", "works", (("id", "eq.1"),)),
            ("GET", "rpc/find", (("q", "x"),)),
        ):
            for pairs, code in ((more, "PGRST107"), ((*more, nowhere), "PGRST200")):
                error = self.assertRaises(TableError, planned, method, path, *pairs, accept="image/png")
                self.assertEqual(error.code, code, (method, path, pairs))

    def test_geometries_are_made_where_postgis_is(self) -> None:
        found = negotiate(
            evolve(CACHE, has_postgis=True), parse_accept("application/geo+json"), None, None, False, False
        )
        self.assertEqual((found.form, found.content_type), ("geojson", "application/geo+json; charset=utf-8"))

    def test_only_the_object_itself_loses_its_nulls(self) -> None:
        found = self.answered("application/vnd.pgrst.object;nulls=stripped")
        self.assertEqual(
            body_sql(found), "coalesce(json_strip_nulls((pg_catalog.json_agg(_t.*) -> 0)), 'null')"
        )

    def test_a_plan_says_whether_nulls_are_stripped(self) -> None:
        of = 'for="application/vnd.pgrst.object+json;nulls=stripped"'
        found = self.answered(f"application/vnd.pgrst.plan+json; {of}", explain=True)
        self.assertTrue(found.nulls_stripped and found.explain)
        self.assertEqual(found.content_type, f"application/vnd.pgrst.plan+json; {of}; charset=utf-8")

    def test_a_plan_has_two_forms(self) -> None:
        self.assertFalse(parse_media("application/vnd.pgrst.plan+xml").is_plan)
        self.assertFalse(parse_media("application/vnd.pgrst.planned").is_plan)
        self.assertRaises(TableError, self.answered, "application/vnd.pgrst.plan+xml", None, True)


class Counted(SynchronousTestCase):
    def test_a_function_s_values_are_counted_not_estimated_by_the_planner(self) -> None:
        for count, expected in (("exact", True), ("estimated", True), ("planned", False)):
            found = text(planned("GET", "rpc/add", ("a", "1"), prefer=f"count={count}"))
            self.assertEqual("pgrst_count" in found, expected, count)

    def test_rows_that_are_not_cut_are_counted_once(self) -> None:
        whole = text(planned("GET", "rpc/find", ("q", "x"), prefer="count=exact"))
        self.assertIn(
            "SELECT pg_catalog.count(_t.*) AS total_result_set, pg_catalog.count(_t.*) AS page_total", whole
        )
        for cut in (("limit", "2"), ("offset", "1")):
            found = text(planned("GET", "rpc/find", ("q", "x"), cut, prefer="count=exact"))
            self.assertIn("pgrst_count", found)

    def test_an_estimate_of_a_function_s_rows_is_their_number_whatever_may_be_read_of_them(self) -> None:
        for config in (CONFIG, evolve(CONFIG, max_rows=2)):
            found = [
                text(planned("GET", "rpc/find", ("q", "x"), prefer=f"count={count}", config=config))
                for count in ("exact", "estimated")
            ]
            self.assertEqual(*found)

    def test_one_value_is_not_counted(self) -> None:
        self.assertIn("1::bigint AS page_total", text(planned("GET", "rpc/add", ("a", "1"))))
        self.assertIn("count(_t.*) AS page_total", text(planned("GET", "rpc/find", ("q", "x"))))

    def test_the_body_of_a_write_stands_fourth_where_plans_show_it(self) -> None:
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

    def test_a_computed_column_comes_once_and_only_where_it_is_selected(self) -> None:
        columns = (
            f'"works"."{name}" AS "{name}"' for name in ("id", "title", "author_id", "editor_id", "data")
        )
        own = "(SELECT " + ", ".join(columns)
        for found in self.texts(("select", "*,age")):
            self.assertIn(f'{own}, "works"."age" AS "age" FROM', found)
        self.assertIn(f"{own} FROM", self.texts(("age", "gt.1"))[0])
        for found in self.texts(("title", "eq.x")):
            self.assertIn('(SELECT "works".* FROM', found)


class Described(SynchronousTestCase):
    def test_a_foreign_key_leads_to_a_table_before_its_views(self) -> None:
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

    def test_of_overloads_the_one_with_the_most_arguments_is_shown(self) -> None:
        few, many = (Routine("api", "f", (Argument("a", "text", "text"),) * number) for number in (0, 1))
        cache = evolve(CACHE, routines={("api", "f"): (few, many)})
        shown = document(cache, "api", "http://here/", None, None)["paths"]["/rpc/f"]["post"]
        self.assertEqual(shown["parameters"][0]["schema"]["required"], ["a"])
