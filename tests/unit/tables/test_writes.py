"""Plans of writes: which rows they affect, what they do if rows exist already, and what they return."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.plan.write import WritePlan
from project_service.tables.request.syntax import Range
from project_service.tables.values import Column, Relation, Relationship, TablesConfig
from tests.unit.tables.planning import CACHE, CONFIG, planned, text

KEYLESS = {
    name: Relation("api", name, {"id": Column("id", "integer", "integer")}, is_view=name == "seen")
    for name in ("heap", "seen")
}
WORKS = ("api", "works")
FRIEND = Relationship(WORKS, ("api", "authors"), "m2o", routine=("api", "friend"))
WITH_MORE = evolve(
    CACHE,
    relations={**CACHE.relations, **{relation.key: relation for relation in KEYLESS.values()}},
    relationships={**CACHE.relationships, WORKS: (*CACHE.relationships[WORKS], FRIEND)},
)
ROW = b'{"id": 1}'
FIRST = (("order", "id"), ("limit", "1"))
CAREFUL = TablesConfig(schemas=("api",))


def written(method: str, path: str, *pairs: tuple[str, str], body: bytes = ROW, **more: Any) -> WritePlan:
    plan = planned(method, path, *pairs, body=body, cache=WITH_MORE, **more).compiled.plan
    assert isinstance(plan, WritePlan)
    return plan


class Conflicts(SynchronousTestCase):
    def test_conflicts_are_resolved_by_the_primary_key_or_the_columns_of_on_conflict(self) -> None:
        named = ("on_conflict", "title,author_id")
        for method, path, pairs, resolution, expected in (
            ("POST", "works", [], "merge-duplicates", (("id",), True)),
            ("POST", "works", [], "ignore-duplicates", (("id",), False)),
            ("POST", "works", [named], "merge-duplicates", (("title", "author_id"), True)),
            ("POST", "works", [named], None, ((), None)),
            ("POST", "works", [], None, ((), None)),
            ("POST", "heap", [], "merge-duplicates", ((), None)),
            ("POST", "heap", [("on_conflict", "id")], "ignore-duplicates", (("id",), False)),
            # PUT always merges by the primary key, whatever else is asked for.
            ("PUT", "works", [("id", "eq.1"), named], "ignore-duplicates", (("id",), True)),
        ):
            plan = written(method, path, *pairs, prefer=f"resolution={resolution}" if resolution else "")
            self.assertEqual((plan.conflict, plan.merges), expected, (method, path, pairs, resolution))


class Rows(SynchronousTestCase):
    """Filters and limits of the relation decide what is written, those of embedded relations what is shown."""

    related = (("select", "id,tags(label)"), ("tags.label", "eq.x"), ("tags.limit", "1"))

    def test_the_representation_of_a_write_is_not_filtered_again(self) -> None:
        plan = written("PATCH", "works", ("id", "eq.1"), ("title", "eq.x"), *self.related)
        self.assertEqual(len(plan.conditions), 2)
        self.assertEqual((plan.read.conditions, plan.read.range), ((), Range()))
        (tags,) = plan.read.embeddings
        self.assertEqual((len(tags.plan.conditions), tags.plan.range), (1, Range(0, 1)))

    def test_put_may_filter_embedded_rows(self) -> None:
        plan = written("PUT", "works", ("id", "eq.1"), *self.related)
        self.assertEqual([plan.field.name for plan in plan.key_filters], ["id"])

    def test_put_without_equality_filters_on_a_primary_key_is_refused(self) -> None:
        for path, pairs in (
            ("works", [("or", "(id.eq.1)")]),
            ("works", [("tags.id", "eq.1"), ("select", "id,tags()")]),
            ("works_tags", [("work_id", "eq.1")]),
            ("heap", []),
            ("heap", [("id", "eq.1")]),
        ):
            error = self.assertRaises(TableError, written, "PUT", path, *pairs)
            self.assertEqual((error.status, error.code), (405, "PGRST105"), (path, pairs))

    def test_only_patch_and_delete_need_a_filter(self) -> None:
        inner = "works!author_id!inner(title,tags!inner())"
        for select, filtered in ((inner, "works.title"), (inner, "works.tags.label")):
            written("DELETE", "authors", ("select", select), (filtered, "eq.x"), config=CAREFUL)
        for select, *pairs in (
            ("*,works!author_id(title)", ("works.title", "eq.x")),
            ("*,works!author_id(title,tags!inner())", ("works.tags.label", "eq.x")),
            (inner,),
        ):
            asked = (("select", select), *pairs)
            error = self.assertRaises(TableError, written, "DELETE", "authors", *asked, config=CAREFUL)
            self.assertEqual(error.code, "21000", asked)
        written("POST", "works", config=CAREFUL)

    def test_only_patch_and_delete_are_limited(self) -> None:
        for method in ("PATCH", "DELETE"):
            self.assertEqual(written(method, "works", *FIRST).limited, Range(0, 1))
        self.assertEqual(written("POST", "works", ("limit", "1")).limited, Range())

    def test_a_limited_write_of_a_view_needs_an_order_by_its_key(self) -> None:
        error = self.assertRaises(TableError, written, "DELETE", "seen", *FIRST)
        self.assertEqual((error.status, error.code), (400, "PGRST127"))
        for path, pairs in (("seen", ()), ("heap", FIRST), ("recent", (("order", "work"), FIRST[1]))):
            written("DELETE", path, *pairs)

    def test_an_invalid_limit_of_a_write_is_refused_not_ignored(self) -> None:
        asked = ("id", "gt.1"), ("order", "id")
        for method in ("PATCH", "DELETE"):
            for limit in (("limit", "1O"), ("limit", ""), ("offset", "x")):
                refused = self.assertRaises(TableError, written, method, "works", *asked, limit)
                self.assertEqual((refused.status, refused.code), (400, "PGRST100"), (method, limit))
        self.assertEqual(written("DELETE", "works", *asked, ("limit", "2")).limited, Range(0, 2))
        # Only a read ignores an invalid limit.
        planned("GET", "works", ("limit", "1O"))

    def test_missing_default_fills_in_defaults_for_post_and_patch(self) -> None:
        for method, prefer, expected in (
            ("POST", "missing=default", True),
            ("PATCH", "missing=default", True),
            ("POST", "missing=null", False),
            ("POST", "", False),
        ):
            self.assertIs(written(method, "works", prefer=prefer).fills_defaults, expected, (method, prefer))


class Answers(SynchronousTestCase):
    def test_the_return_preference_decides_what_a_write_returns(self) -> None:
        for method, prefer, expected in (
            ("POST", "", ("minimal", (), ())),
            ("POST", "return=headers-only", ("headers-only", ("id",), ("id",))),
            ("PATCH", "return=headers-only", ("minimal", (), ())),
            ("POST", "return=representation", ("representation", ("title",), ())),
        ):
            plan = written(method, "works", ("select", "title"), prefer=prefer)
            self.assertEqual((plan.representation, plan.returning, plan.location), expected, method)

    def test_a_write_returns_only_the_columns_its_representation_needs(self) -> None:
        author, order = "authors!author_id(name)", ("order", "id")
        for select, pairs, expected in (
            ("*", (), (True, ())),
            ("title,title", (), (False, ("title",))),
            ("count()", (), (False, ())),
            ("title.max()", (order,), (False, ("title", "id"))),
            (f"title,{author}", (), (False, ("title", "author_id"))),
            (f"title,{author}", (("order", "authors(name)"),), (False, ("title", "author_id"))),
            ("tags(label)", (), (False, ("id",))),
            # A computed relationship takes the whole row as its argument.
            ("title,friend(id)", (), (True, ("title",))),
        ):
            plan = written("PATCH", "works", ("select", select), *pairs, prefer="return=representation")
            self.assertEqual((plan.everything, plan.returning), expected, select)

    def test_the_representation_of_a_write_is_not_limited_by_max_rows(self) -> None:
        few = evolve(CONFIG, max_rows=1)
        prefer = "return=representation"
        plan = planned("PATCH", "works", ("select", "id,tags(label)"), body=ROW, prefer=prefer, config=few)
        self.assertNotIn("LIMIT", text(plan))
        self.assertNotIn('FROM "api"."works"', text(plan))


def put(*pairs: tuple[str, str], body: bytes, prefer: str) -> WritePlan:
    plan = planned("PUT", "works", *pairs, body=body, prefer=prefer).compiled.plan
    assert isinstance(plan, WritePlan)
    return plan


class Puts(SynchronousTestCase):
    def test_put_writes_the_whole_row_whatever_columns_are_named(self) -> None:
        body, key = b'{"id": 1, "title": "x"}', ("id", "eq.1")
        plan = put(key, ("columns", "id"), body=body, prefer="missing=default")
        self.assertEqual([column.name for column in plan.columns], ["id", "title"])
        self.assertFalse(plan.fills_defaults)

    def test_put_writes_the_first_row_of_the_body_that_has_the_key_of_the_url(self) -> None:
        plan = text(planned("PUT", "works", ("id", "eq.1"), body=b'[{"id": 2}, {"id": 1}]'))
        self.assertIn('WHERE pgrst_body."id" = ', plan)
        self.assertEqual(plan.count("LIMIT 1"), 1)
        self.assertLess(plan.index("WHERE"), plan.index("LIMIT 1"))

    def test_put_of_an_empty_object_inserts_nothing(self) -> None:
        plan = text(planned("PUT", "works", ("id", "eq.1"), body=b"{}"))
        self.assertNotIn("INSERT", plan)

    def test_put_with_limit_or_offset_is_refused_before_the_body_is_parsed(self) -> None:
        for pair in (("limit", "1"), ("offset", "1")):
            error = self.assertRaises(TableError, planned, "PUT", "works", ("id", "eq.1"), pair, body=b"}")
            self.assertEqual(error.code, "PGRST114")
        planned("PUT", "works", ("id", "eq.1"), ("offset", "0"), body=b'{"id": 1}')
        planned("PUT", "works", ("id", "eq.1"), ("id", "eq.1"), body=b'{"id": 1}')


class Locations(SynchronousTestCase):
    def test_location_names_the_primary_key_in_the_order_of_the_tables_columns(self) -> None:
        result = planned(
            "POST", "works_tags", body=b'{"tag_id": 1, "work_id": 2}', prefer="return=headers-only"
        )
        plan = result.compiled.plan
        assert isinstance(plan, WritePlan)
        relation = evolve(plan.relation, primary_key=("tag_id", "work_id"))
        self.assertEqual(evolve(plan, relation=relation).location, ("work_id", "tag_id"))
        self.assertEqual(evolve(plan, representation="representation").location, ())


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
        plan = text(planned("DELETE", "works", ("limit", "1"), ("order", "id.desc"), ("id", "gt.0")))
        self.assertIn('ORDER BY "works"."id" DESC LIMIT $', plan)


class Emptiness(SynchronousTestCase):
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
