"""Which media type a reply has, and what makes it."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.plan.media import Rendering, negotiate
from project_service.tables.request.headers import OBJECT, parse_accept, parse_media
from project_service.tables.sql.statement import body_sql
from project_service.tables.values import Handler, Routine
from tests.unit.tables.planning import CACHE, planned


class Negotiation(SynchronousTestCase):
    def answered(
        self, accept: str, routine: Routine | None = None, explain: bool = False, whole: bool = True
    ) -> Rendering:
        cache = evolve(CACHE, handlers=(Handler(("api", "lined"), "text/x-lines", None),))
        relation = ("api", "works") if routine is None else None
        return negotiate(cache, parse_accept(accept), relation, routine, explain, whole)

    def test_a_function_with_a_media_type_domain_makes_the_body_itself(self) -> None:
        drawn = Routine("api", "drawn", return_media="image/png", is_bytes=True)
        rendering = self.answered("text/html, image/png;q=0.5, */*;q=0.1", drawn)
        self.assertEqual((rendering.form, rendering.content_type), ("routine", "image/png"))
        self.assertEqual(body_sql(rendering, True, True), "_t.pgrst_scalar")
        self.assertEqual(body_sql(evolve(rendering, is_bytes=False), True, True), "_t.pgrst_scalar::text")

    def test_the_body_a_function_makes_itself_cannot_be_selected_from(self) -> None:
        drawn = Routine("api", "drawn", return_media="image/png", is_bytes=True)
        self.assertRaises(TableError, self.answered, "image/png", drawn, whole=False)
        self.assertEqual(self.answered("image/png, */*", drawn, whole=False).form, "json")

    def test_accepting_anything_is_answered_with_json(self) -> None:
        drawn = Routine("api", "drawn", return_media="image/png", is_bytes=True)
        self.assertEqual(self.answered("*/*", drawn).form, "json")
        self.assertEqual(self.answered("", evolve(drawn, return_media="application/json")).form, "routine")
        for accept in ("*/*", "text/plain"):
            rendering = self.answered(accept, evolve(drawn, return_media="*/*"))
            self.assertEqual(
                (rendering.form, rendering.content_type), ("routine", "application/octet-stream")
            )

    def test_an_aggregate_for_anyelement_takes_scalar_results_and_rows(self) -> None:
        rendering = self.answered("text/x-lines", Routine("api", "name"))
        self.assertEqual(body_sql(rendering, True, True), '"api"."lined"(_t.pgrst_scalar)')
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
            rendering = negotiate(cache, parse_accept(accept), relation, None, False, whole)
            self.assertEqual((rendering.handler, rendering.content_type), expected, (accept, relation, whole))

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
        rendering = negotiate(
            evolve(CACHE, has_postgis=True), parse_accept("application/geo+json"), None, None, False, False
        )
        self.assertEqual(
            (rendering.form, rendering.content_type), ("geojson", "application/geo+json; charset=utf-8")
        )

    def test_nulls_are_stripped_from_the_object_only(self) -> None:
        rendering = self.answered("application/vnd.pgrst.object;nulls=stripped")
        self.assertEqual(
            body_sql(rendering), "coalesce(json_strip_nulls((pg_catalog.json_agg(_t.*) -> 0)), 'null')"
        )

    def test_the_plan_media_type_says_whether_nulls_are_stripped(self) -> None:
        of = 'for="application/vnd.pgrst.object+json;nulls=stripped"'
        rendering = self.answered(f"application/vnd.pgrst.plan+json; {of}", explain=True)
        self.assertTrue(rendering.nulls_stripped and rendering.explain)
        self.assertEqual(rendering.content_type, f"application/vnd.pgrst.plan+json; {of}; charset=utf-8")

    def test_the_plan_is_text_or_json_only(self) -> None:
        self.assertFalse(parse_media("application/vnd.pgrst.plan+xml").is_plan)
        self.assertFalse(parse_media("application/vnd.pgrst.planned").is_plan)
        self.assertRaises(TableError, self.answered, "application/vnd.pgrst.plan+xml", None, True)
