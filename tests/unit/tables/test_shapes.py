"""Statements for rare requests: empty objects, keys of views, JSON paths into columns that are not known."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.openapi import definition_of
from project_service.tables.outcome import Outcome
from project_service.tables.plan.names import find_relationship
from project_service.tables.request.headers import MediaType
from project_service.tables.request.syntax import Field, JsonStep
from project_service.tables.response import check_outcome
from project_service.tables.sql.expressions import path_sql
from project_service.tables.values import Column, Relation, Relationship, SchemaCache
from tests.unit.tables.planning import planned, text
from tests.unit.tables.schema import cache


class Writes(SynchronousTestCase):
    def test_an_empty_object_inserts_a_row_of_defaults(self) -> None:
        one = text(planned("POST", "authors", body=b"{}"))
        self.assertIn('INSERT INTO "api"."authors" DEFAULT VALUES', one)
        many = text(planned("POST", "authors", body=b"[{},{}]"))
        self.assertIn('INSERT INTO "api"."authors" SELECT FROM json_array_elements(', many)

    def test_only_post_returns_a_location(self) -> None:
        posted = text(planned("POST", "tags", body=b'{"id":1}', prefer="return=headers-only"))
        put = text(planned("PUT", "tags", ("id", "eq.1"), body=b'{"id":1}', prefer="return=headers-only"))
        self.assertIn('RETURNING "tags"."id"', posted)
        self.assertIn("RETURNING 1", put)


class Paths(SynchronousTestCase):
    def test_a_json_path_into_an_unknown_column_converts_it_to_json(self) -> None:
        field = Field("val", (JsonStep("r", True),))
        self.assertEqual(path_sql('"t"."val"', field, None), """to_jsonb("t"."val")->>'r'""")
        known = Column("val", "jsonb", "jsonb")
        self.assertEqual(path_sql('"t"."val"', field, known), """"t"."val"->>'r'""")


class Emptiness(SynchronousTestCase):
    def test_an_embedding_of_only_empty_embeddings_is_left_out(self) -> None:
        for select in ("name,works!author_id(tags())", "name,works!author_id(...tags(),editor_id())"):
            found = text(planned("GET", "authors", ("select", select)))
            self.assertNotIn("JOIN", found)
            self.assertNotIn("pgrst_one", found)
        inner = text(planned("GET", "authors", ("select", "name,works!author_id!inner(tags())")))
        self.assertIn(" EXISTS (SELECT 1 ", inner)
        self.assertNotIn('AS "works"', inner)

    def test_a_select_of_only_empty_embeddings_selects_no_columns(self) -> None:
        found = text(planned("GET", "works", ("select", "tags()")))
        self.assertIn('SELECT  FROM "api"."works"', found)


class Aggregates(SynchronousTestCase):
    def test_aggregates_cannot_be_lifted_through_a_to_many_spread(self) -> None:
        for select in ("...tags(id.count())", "...works!author_id(...authors!author_id(id.sum()))"):
            origin = "works" if "tags" in select else "authors"
            error = self.assertRaises(TableError, planned, "GET", origin, ("select", select))
            self.assertEqual(error.code, "PGRST127")
        planned("GET", "authors", ("select", "works!author_id(...authors!author_id(id.sum()))"))


class KeysOfViews(SynchronousTestCase):
    def ways(self, *targets: str) -> SchemaCache:
        origin = ("api", "seen")
        found = tuple(
            Relationship(
                origin,
                ("api", target),
                "m2o",
                "parent_fkey",
                (("parent", "id"),),
                is_self=target == "seen",
                target_is_view=target != "nodes",
            )
            for target in targets
        )
        return evolve(cache(), relationships={origin: found})

    def reached(self, *targets: str) -> str:
        return find_relationship(self.ways(*targets), ("api", "seen"), "api", "parent", None).target[1]

    def test_a_column_leads_to_the_referenced_table_or_else_to_the_view_itself(self) -> None:
        self.assertEqual(self.reached("other", "seen", "nodes"), "nodes")
        self.assertEqual(self.reached("other", "seen"), "seen")
        self.assertRaises(TableError, self.reached, "other")


class Operation(SynchronousTestCase):
    def test_a_domain_is_described_by_its_base_type(self) -> None:
        columns = (
            Column("age", "api.years", "integer", default="18"),
            Column("at", "api.place", "api.point"),
        )
        relation = Relation("api", "people", {column.name: column for column in columns})
        self.assertEqual(
            definition_of(relation, ())["properties"],
            {
                "age": {"format": "int32", "type": "integer", "default": 18},
                "at": {"format": "api.place", "type": "string"},
            },
        )


class Explained(SynchronousTestCase):
    def test_explain_of_a_write_skips_the_check_of_its_outcome(self) -> None:
        found = planned("PUT", "tags", ("id", "eq.1"), body=b'{"id":1}')
        self.assertRaises(TableError, check_outcome, found.request, found.compiled, Outcome())
        explain = MediaType("application/vnd.pgrst.plan+json")
        rendering = evolve(found.compiled.rendering, explain=explain)
        check_outcome(found.request, evolve(found.compiled, rendering=rendering), Outcome())
