"""Plans of embedded relations: names, conditions, ranges, aggregates, and relations whose columns are not known."""

from __future__ import annotations

import re

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.request.query import parse_query
from project_service.tables.values import Relationship, TablesConfig
from tests.unit.tables.planning import CACHE, CONFIG, planned, text

WORKS = ("api", "works")
# Functions of a row, that return one or many rows of a relation in a schema that is not exposed.
HIDDEN = evolve(
    CACHE,
    relationships={
        **CACHE.relationships,
        WORKS: (
            *CACHE.relationships[WORKS],
            Relationship(WORKS, ("hidden", "things"), "m2o", routine=("api", "thing")),
            Relationship(WORKS, ("hidden", "things"), "o2m", routine=("api", "things")),
        ),
    },
)


def read(path: str, *pairs: tuple[str, str]) -> str:
    return text(planned("GET", path, *pairs, cache=HIDDEN))


class Presence(SynchronousTestCase):
    def test_an_embedding_can_only_be_compared_with_null(self) -> None:
        for condition, expected in (
            ("is.null", "IS NOT DISTINCT"),
            ("not.is.null", "IS DISTINCT"),
            ("is.not_null", "IS DISTINCT"),
            ("not.is.not_null", "IS NOT DISTINCT"),
        ):
            sql = read("works", ("select", "id,author:authors!author_id(id)"), ("author", condition))
            self.assertIn(f'"works_author_1".* {expected} FROM NULL', sql, condition)
            only_tested = read("works", ("select", "id,author:authors!author_id()"), ("author", condition))
            self.assertEqual(" NOT EXISTS (" in only_tested, "NOT" in expected, condition)
        for name, value in (("tags", "eq.1"), ("tags", "is.true"), ("or", "(id.eq.1,tags.gt.1)")):
            error = self.assertRaises(TableError, read, "works", ("select", "id,tags()"), (name, value))
            self.assertEqual((error.status, error.code), (400, "PGRST120"), (name, value))

    def test_a_column_wins_over_an_embedding_of_the_same_name(self) -> None:
        select = ("select", "title:authors!author_id()")
        self.assertIn('"works"."title" = ', read("works", select, ("title", "eq.x")))
        self.assertIn('"works"."data"->', read("works", ("select", "data:tags()"), ("data->x", "is.null")))

    def test_a_foreign_key_column_wins_over_an_embedding_under_another_name(self) -> None:
        for select, expected in (
            ("writer:author_id()", '"works"."author_id" IS NULL'),
            ("author_id()", "NOT EXISTS ("),
        ):
            self.assertIn(expected, read("works", ("select", f"id,{select}"), ("author_id", "is.null")))

    def test_an_exact_count_joins_the_embeddings_it_needs_instead_of_repeating_subqueries(self) -> None:
        """PostgreSQL evaluates a subquery row by row. Only what would be needed twice in the statement becomes a
        LATERAL one."""
        for select, tested, often, apart in (
            ("tags!inner()", (("tags", "not.is.null"),), 1, 0),
            ("tags()", (("tags", "not.is.null"), ("tags", "not.is.null")), 1, 0),
            ("tags()", (("or", "(tags.is.null,and(tags.not.is.null,id.eq.1))"),), 2, 0),
            ("tags(works!inner())", (("tags", "not.is.null"),), 2, 0),
            ("tags(works!inner())", (("or", "(tags.is.null,and(tags.not.is.null,id.eq.1))"),), 2, 1),
            ("tags!inner(works())", (("tags.works", "is.null"), ("tags", "is.null")), 2, 1),
            ("tags!inner(label,id.sum())", (), 1, 0),
            ("tags!inner(id.sum())", (), 0, 0),
        ):
            sql = counting("works", ("select", f"id,{select}"), *tested)
            self.assertEqual((sql.count("EXISTS ("), sql.count("LATERAL")), (often, apart), (select, tested))


def counting(path: str, *pairs: tuple[str, str]) -> str:
    statement = planned("GET", path, *pairs, prefer="count=planned").compiled.statement
    assert statement.count is not None
    return statement.count.text


class Names(SynchronousTestCase):
    def test_a_filter_on_something_that_is_not_embedded_is_refused(self) -> None:
        for name, value in (("authors.id", "eq.1"), ("tags.works.id", "eq.1"), ("authors.limit", "1")):
            error = self.assertRaises(TableError, read, "works", ("select", "id,tags(id)"), (name, value))
            self.assertEqual((error.status, error.code), (400, "PGRST108"), name)

    def test_each_embedding_has_an_alias_of_its_own(self) -> None:
        select = (
            "select",
            "id,authors!author_id(id),writer:authors!author_id!inner(name),tags(works(tags(works(id))))",
        )
        names = re.findall(r'\) AS ("\w+") ON ', read("works", select))
        self.assertEqual((len(names), len(set(names))), (6, 6))

    def test_json_paths_in_order_convert_other_types_to_json_first(self) -> None:
        """JSON is stepped into as it is, anything else as what it would be in JSON."""
        for order, expected in (
            ("data->>x", '"works"."data"->>\'x\''),
            ("title->>x", 'to_jsonb("works"."title")->>\'x\''),
            ("authors(name)", '"works_authors_1"."name"'),
        ):
            sql = read("works", ("select", "id,authors!author_id(name)"), ("order", order))
            self.assertIn(f"ORDER BY {expected}", sql)
        second = read("works", ("select", "id,tags(id),authors!author_id(name)"), ("order", "authors(name)"))
        self.assertIn('ORDER BY "works_authors_2"."name"', second)
        below = read("tags", ("select", "id,works(id)"), ("works.order", "data->x"))
        self.assertIn('ORDER BY "works_1"."data"->', below)
        related = read("works_tags", ("select", "tag_id,works(data)"), ("order", "works(data->x)"))
        self.assertIn('ORDER BY "works_tags_works_1"."data"->', related)


class Cuts(SynchronousTestCase):
    """The row limit of the configuration."""

    def test_max_rows_limits_to_many_embeddings_at_every_depth(self) -> None:
        capped = evolve(CONFIG, max_rows=9)
        for select, limits in (
            ("id,tags(id)", 1),
            ("id,tags(id,works(id))", 2),
            ("id,authors!author_id(id,works!author_id(id))", 1),
        ):
            sql = [text(planned("GET", "works", ("select", one), config=capped)) for one in (select, "id")]
            self.assertEqual(sql[0].count("LIMIT") - sql[1].count("LIMIT"), limits, select)


class Grouped(SynchronousTestCase):
    def test_aggregates_of_a_to_one_spread_are_lifted_through_each_spread(self) -> None:
        for select, grouped in (
            ("tag_id,...works(...authors!author_id(id.sum()))", '"works_tags"."tag_id"'),
            (
                "tag_id,...works(title,...authors!author_id(id.sum()))",
                '"works_tags"."tag_id", "works_tags_works_1"."title"',
            ),
            ("tag_id,...works(title,id.sum())", '"works_tags"."tag_id", "works_tags_works_1"."title"'),
            ("tag_id,works(title,...authors!author_id(id.sum()))", '"works_1"."title"'),
            ("tag_id,works(title,id.sum())", '"works_1"."title"'),
        ):
            sql = read("works_tags", ("select", select))
            self.assertEqual((sql.count("SUM("), sql.count("GROUP BY")), (1, 1), select)
            self.assertIn(f"GROUP BY {grouped}", sql)

    def test_aggregates_beneath_a_to_many_spread_are_refused_unless_embedded(self) -> None:
        for select in ("...tags(works(id))", "...tags(label,works(id.sum()))"):
            read("works", ("select", select))
        for select in ("...tags(id.sum())", "...tags(...works(id.sum()))"):
            error = self.assertRaises(TableError, read, "works", ("select", select))
            self.assertEqual((error.status, error.code), (400, "PGRST127"), select)


class NotExposed(SynchronousTestCase):
    """Relations that are not exposed, whose rows a function of an exposed schema returns."""

    def test_a_spread_of_everything_adds_all_columns(self) -> None:
        for path, select in (
            ("works", "id,...thing(*)"),
            ("works_tags", "tag_id,...works(...thing(*))"),
            ("works", "id,...things(*)"),
            ("tags", "id,...works(...thing(*))"),
        ):
            sql = read(path, ("select", select)).partition(" FROM ")[0]
            names = re.findall(r' AS "(\w+)"', sql)
            self.assertEqual(names[1:], ["k", "m", "n", "name"], select)

    def test_only_their_own_columns_can_be_named(self) -> None:
        for pairs in (
            (("select", "id,things(name,max)"),),
            (("select", "id,thing(name)"), ("order", "thing(ctid)")),
            (("select", "id,things(name)"), ("things.label", "eq.a")),
        ):
            error = self.assertRaises(TableError, read, "works", *pairs)
            self.assertEqual((error.status, error.code), (400, "42703"), pairs)

    def test_filters_and_orders_call_the_function_once(self) -> None:
        """The function is called once for all of it."""
        for select in ("id,thing(*)", "id,...thing(*)"):
            order = (("thing.name", "eq.x"), ("order", "thing(name)"))
            sql = read("works", ("select", select), *order)
            self.assertEqual(sql.count('"api"."thing"('), 1, select)
            self.assertIn('ORDER BY "works_thing_1"."name"', sql)
        below = read("works_tags", ("select", "tag_id,works(...thing(*))"), ("order", "works(name)"))
        self.assertIn('ORDER BY "works_tags_works_1"."name"', below)


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
        sql = text(planned("GET", "works", ("select", "tags(label)")))
        self.assertIn('"api"."works_tags"', sql)

    def test_a_view_has_the_keys_of_its_base_table(self) -> None:
        self.assertEqual(CACHE.relations["api", "recent"].primary_key, ("work",))
        sql = text(planned("GET", "authors", ("select", "recent(work)")))
        self.assertIn('."author" = "authors"."id"', sql)

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
        sql = text(
            planned(
                *("GET", "works", ("select", "id,tags(label)"), ("order", "id.desc")),
                *(("select", ")("), ("order", "title")),
                *(("tags.order", "label.desc"), ("tags.order", "id")),
            )
        )
        for there in ('"works"."id" DESC', '"label" DESC'):
            self.assertIn(there, sql)
        for gone in ("title", 'ORDER BY "tags_1"."id"'):
            self.assertNotIn(gone, sql)
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


class Emptiness(SynchronousTestCase):
    def test_an_embedding_of_only_empty_embeddings_is_left_out(self) -> None:
        for select in ("name,works!author_id(tags())", "name,works!author_id(...tags(),editor_id())"):
            sql = text(planned("GET", "authors", ("select", select)))
            self.assertNotIn("JOIN", sql)
            self.assertNotIn("pgrst_one", sql)
        inner = text(planned("GET", "authors", ("select", "name,works!author_id!inner(tags())")))
        self.assertIn(" EXISTS (SELECT 1 ", inner)
        self.assertNotIn('AS "works"', inner)

    def test_a_select_of_only_empty_embeddings_selects_no_columns(self) -> None:
        sql = text(planned("GET", "works", ("select", "tags()")))
        self.assertIn('SELECT  FROM "api"."works"', sql)


class Aggregates(SynchronousTestCase):
    def test_aggregates_cannot_be_lifted_through_a_to_many_spread(self) -> None:
        for select in ("...tags(id.count())", "...works!author_id(...authors!author_id(id.sum()))"):
            origin = "works" if "tags" in select else "authors"
            error = self.assertRaises(TableError, planned, "GET", origin, ("select", select))
            self.assertEqual(error.code, "PGRST127")
        planned("GET", "authors", ("select", "works!author_id(...authors!author_id(id.sum()))"))
