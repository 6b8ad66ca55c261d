"""The columns of results: their names, their data representations, computed columns, and what rows can be ordered and
grouped by."""

from __future__ import annotations

from functools import partial

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.plan.names import similar_columns
from project_service.tables.request.syntax import Field, JsonStep
from project_service.tables.sql.expressions import path_sql
from project_service.tables.values import (
    Column,
    Relation,
    Representation,
)
from tests.unit.tables.planning import CACHE, CONFIG, planned, text

_SHOWN = Representation(to_json=("api", "shown"))


def _formatted(relation: Relation) -> Relation:
    """The relation, with a data representation of its columns of type text."""
    texts = {name: column for name, column in relation.columns.items() if column.type == "text"}
    formatted = {name: evolve(column, representation=_SHOWN) for name, column in texts.items()}
    return evolve(relation, columns={**relation.columns, **formatted})


FORMATTED = evolve(CACHE, relations={key: _formatted(found) for key, found in CACHE.relations.items()})


def read(path: str, select: str, *pairs: tuple[str, str], formatted: bool = False) -> str:
    cache = FORMATTED if formatted else CACHE
    return text(planned("GET", path, ("select", select), *pairs, cache=cache))


class Names(SynchronousTestCase):
    def test_a_name_that_postgresql_would_cut_is_refused(self) -> None:
        for select in (
            "{}:id",
            "{}:id::text",
            "{}:id.max()",
            "data->{}",
            "data->>{}->0",
            "id::{}",
            "{}:authors!author_id(id)",
            "authors!author_id({}:id)",
            "...authors!author_id({}:id)",
            "...authors!author_id({}:id.max())",
        ):
            for name in ("n" * 64, "\u00e4" * 32, "n" * 63 + "1", "n" * 9000):
                error = self.assertRaises(TableError, read, "works", select.format(name))
                self.assertEqual((error.status, error.code), (400, "42622"), select)
                self.assertEqual("alias" in (error.hint or ""), select != "id::{}", error.hint)
        for name in ("n" * 63, "\u00e4" * 31 + "n"):
            self.assertIn(f'AS "{name}"', read("works", f"{name}:id"))
        read("works", f"x:data->{'n' * 9000}")
        error = self.assertRaises(TableError, read, "works", "id", ("title", f"fts({'n' * 64}).a"))
        self.assertEqual(
            (error.code, error.hint), ("42622", "There is no text search configuration of that name.")
        )

    def test_of_several_columns_with_one_name_the_last_is_returned(self) -> None:
        for select, expected in (
            ("id,id", '"works"."id" AS "id"'),
            ("x:id,title,x:title", '"works"."title" AS "x", "works"."title" AS "title"'),
        ):
            self.assertIn(f"SELECT {expected} FROM", read("works", select))
        for select, star in (
            ("*,x:id", True),
            ("*,id", False),
            ("id,*", False),
            ("*,title:authors!author_id(id)", False),
        ):
            self.assertIs('"works".*' in read("works", select), star, select)

    def test_a_json_path_is_named_by_its_last_key(self) -> None:
        for select, expected in (
            ("data->a->>b", '"works"."data"->\'a\'->>\'b\' AS "b"'),
            ("data->a->0->>1", '"works"."data"->\'a\'->0->>1 AS "a"'),
            ("data->0", '"works"."data"->0 AS "data"'),
            ("x:data->a", '"works"."data"->\'a\' AS "x"'),
            ("data->a->>b.max()", ' AS "max"'),
        ):
            self.assertIn(expected, read("works", select))

    def test_a_spread_adds_the_names_of_what_it_selects(self) -> None:
        sql = read("works_tags", "tag_id,...works(title,authors!author_id(name),tags())")
        columns = sql.partition("SELECT ")[2].partition(" FROM ")[0].split(", ")
        names = [column.rpartition(" AS ")[2] for column in columns]
        self.assertEqual(names, ['"tag_id"', '"title"', '"authors"'])

    def test_aggregate_functions_without_parentheses_are_no_columns(self) -> None:
        for select in (
            "json_agg",
            "x:array_agg->0",
            "id,tags(jsonb_agg)",
            "id,...authors!author_id(json_agg)",
        ):
            error = self.assertRaises(TableError, read, "works", select)
            self.assertEqual((error.status, error.code), (400, "PGRST204"), select)
        # A real column of that name can be selected, and "count" without brackets is the aggregate.
        works = CACHE.relations["api", "works"]
        named = evolve(works, columns={**works.columns, "json_agg": works.columns["title"]})
        known = evolve(CACHE, relations={**CACHE.relations, named.key: named})
        for select, column in (
            ("json_agg", '"works"."json_agg" AS "json_agg"'),
            ("count", 'pg_catalog.count(*) AS "count"'),
            ("n:count::text", 'CAST(pg_catalog.count(*) AS "text") AS "n"'),
            ("id,tags(count)", 'SELECT pg_catalog.count(*) AS "count" FROM "api"."tags"'),
        ):
            self.assertIn(column, text(planned("GET", "works", ("select", select), cache=known)))
        self.assertIn(
            "ORDER BY pg_catalog.count(*) DESC", read("works", "title,count()", ("order", "count.desc"))
        )
        off = evolve(CONFIG, aggregates=False)
        for pair in (("select", "count"), ("order", "count")):
            error = self.assertRaises(TableError, planned, "GET", "works", pair, config=off)
            self.assertEqual(error.code, "PGRST123")


class Known(SynchronousTestCase):
    """A name is a column only if the schema cache has it as one. PostgreSQL would take others for functions of the
    row."""

    def test_names_of_no_column_reach_no_statement(self) -> None:
        for method, pairs in (
            *(
                ("GET", (pair,))
                for pair in (
                    ("select", "max"),
                    ("select", "id,max->a"),
                    ("select", "max.sum()"),
                    ("select", "max::text"),
                    ("select", "count->a"),
                    ("select", "count.max()"),
                    ("select", "tags(max)"),
                    ("select", "...authors!author_id(max)"),
                    ("order", "max"),
                    ("order", "max->a"),
                    ("order", "count->a"),
                    ("max", "is.null"),
                    ("max->a", "is.null"),
                    ("or", "(id.eq.1,not.and(max.is.null,id.eq.2))"),
                    ("max", "in.(a,b)"),
                    ("max", "fts.a"),
                )
            ),
            ("GET", (("select", "tags(id)"), ("tags.max", "is.null"))),
            ("GET", (("select", "tags(id)"), ("tags.order", "max"))),
            ("GET", (("select", "authors!author_id(id)"), ("order", "authors(max)"))),
            ("GET", (("select", "authors!author_id(max:tags(id))"), ("order", "authors(max)"))),
            ("GET", (("order", "of_tag"),)),
            ("PATCH", (("max", "is.null"),)),
            ("DELETE", (("id", "eq.1"), ("order", "max"), ("limit", "1"))),
            ("DELETE", (("id", "eq.1"), ("select", "max"))),
            ("POST", (("select", "max"),)),
        ):
            refused = partial(
                planned, method, "works", *pairs, body=b'{"id": 1}', prefer="return=representation"
            )
            error = self.assertRaises(TableError, refused)
            self.assertEqual((error.status, error.code in ("42703", "PGRST200")), (400, True), pairs)

    def test_the_error_is_postgresqls(self) -> None:
        for name, shown in (
            ("tittle", '"works.title"'),
            ("author", '"works.author_id"'),
            ("athor_id", '"works.author_id"'),
            ("xditor_id", '"works.editor_id"'),
            ("dita", '"works.data"'),
            ("banana", None),
        ):
            error = self.assertRaises(TableError, read, "works", name)
            self.assertEqual(error.message, f"column works.{name} does not exist")
            hint = f"Perhaps you meant to reference the column {shown}." if shown else None
            self.assertEqual(error.hint, hint)
        self.assertEqual(similar_columns("xa", ["aa", "ba"]), ("aa", "ba"))
        self.assertEqual(similar_columns("xa", ["aa", "ba", "ca"]), ())

    def test_computed_columns_are_called_by_their_functions_names(self) -> None:
        age = '"api"."age"(("works".*)::"api"."works")'
        for select, pairs, expected in (
            ("age", (), f'SELECT {age} AS "age" FROM'),
            ("x:age->a", (), f"to_jsonb({age})->'a' AS \"x\""),
            ("age,id.sum()", (), f"GROUP BY {age}"),
            ("age.max()", (), f'MAX({age}) AS "max"'),
            ("id", (("age", "gt.1"),), f"WHERE {age} > $1"),
            ("id", (("order", "age"),), f"ORDER BY {age}"),
            ("of_any", (), 'SELECT "api"."of_any"(("works".*)) AS "of_any" FROM'),
        ):
            self.assertIn(expected, read("works", select, *pairs), select)
        below = read("tags", "works(age)", ("works.age", "gt.1"), ("works.order", "age"))
        made = '"api"."age"(("works_1".*)::"api"."works")'
        self.assertEqual(below.count(made), 3)
        ordered = read("works_tags", "works(id)", ("order", "works(age)"))
        self.assertIn(f"ORDER BY (SELECT {made} FROM", ordered)
        selected = read("works_tags", "works(age)", ("order", "works(age)"))
        self.assertIn('ORDER BY "works_tags_works_1"."age"', selected)
        limited = (("age", "gt.1"), ("order", "age"), ("limit", "1"))
        deleted = text(planned("DELETE", "works", *limited))
        self.assertIn(f"WHERE {age} > $1", deleted)
        self.assertIn(f"ORDER BY {age} LIMIT", deleted)

    def test_system_columns_can_be_named_in_tables_only(self) -> None:
        self.assertIn('SELECT "works"."xmin" AS "xmin" FROM', read("works", "xmin"))
        self.assertRaises(TableError, read, "recent", "xmin")
        self.assertRaises(TableError, planned, "GET", "rpc/find", ("q", "x"), ("select", "xmin"))

    def test_a_column_called_like_the_star_is_named_in_quotes(self) -> None:
        works = CACHE.relations["api", "works"]
        named = evolve(works, columns={**works.columns, "*": works.columns["title"]})
        known = evolve(CACHE, relations={**CACHE.relations, named.key: named})
        for pair, expected in (
            (("select", '"*"'), 'SELECT "works"."*" AS "*" FROM'),
            (("select", '*,x:"*"'), 'SELECT "works".*, "works"."*" AS "x" FROM'),
            (("order", '"*"'), 'ORDER BY "works"."*"'),
            (('"*"', "eq.1"), 'WHERE "works"."*" = $1'),
        ):
            self.assertIn(expected, text(planned("GET", "works", pair, cache=known)))
        self.assertRaises(TableError, read, "works", '"*"')


class Represented(SynchronousTestCase):
    """Data representations: functions that the schema has for showing a type as JSON."""

    def test_a_representation_applies_to_whole_values_of_its_type_only(self) -> None:
        made = '"api"."shown"("works"."title") AS "title"'
        for select in ("title", "*", "id,title"):
            self.assertIn(made, read("works", select, formatted=True), select)
        for select in ("title->x", "id"):
            self.assertNotIn('"api"."shown"', read("works", select, formatted=True), select)
        self.assertIn('SELECT "works".* FROM', read("works", "*"))


class Ordered(SynchronousTestCase):
    """An order by a related column uses the joined rows if the column is unchanged there, otherwise the relation's
    own row."""

    def test_order_by_a_column_selected_unchanged_uses_the_joined_rows(self) -> None:
        for select, column in (
            ("works(title)", "title"),
            ("works(*)", "title"),
            ("works(title:id)", "title"),
            ("works(...authors!author_id(name))", "name"),
            ("works(...authors!author_id(*))", "name"),
            ("works(id.sum())", "sum"),
            ("works(title,...authors!author_id(id.sum()))", "sum"),
        ):
            sql = read("works_tags", f"tag_id,{select}", ("order", f"works({column})"))
            self.assertIn(f'ORDER BY "works_tags_works_1"."{column}"', sql, select)

    def test_order_by_any_other_column_reads_the_related_row_itself(self) -> None:
        for select, column, formatted in (
            ("works(id)", "title", False),
            ("works(title)", "title", True),
            ("works(*)", "title", True),
            ("works(title:tags(id))", "title", False),
            ("works(title:authors!author_id(id))", "title", False),
            ("works(...tags(title:label))", "title", False),
            ("works(...authors!author_id(title:name))", "title", True),
            ("works(id,...authors!author_id(name))", "title", False),
        ):
            order = ("order", f"works({column})")
            sql = read("works_tags", f"tag_id,{select}", order, formatted=formatted)
            self.assertIn(f'ORDER BY (SELECT "works_1"."{column}" FROM', sql, select)


class Grouped(SynchronousTestCase):
    def test_embedded_json_is_grouped_by_as_jsonb(self) -> None:
        """Type json has no equality, jsonb has."""
        row = '"works_tags_works_1"'
        for select, keys in (
            ("...works(title,authors!author_id(name))", f'{row}."title", {row}."authors"::jsonb'),
            ("...works(title,...tags(label))", f'{row}."title", {row}."label"::jsonb'),
            ("...works(...authors!author_id(name))", f'{row}."name"'),
            ("works(title)", f"row_to_json({row}.*)::jsonb"),
        ):
            sql = read("works_tags", f"count(),{select}")
            self.assertIn(f" GROUP BY {keys})", sql, select)


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
        for sql in self.texts(("select", "*,age")):
            self.assertIn(f'{own}, "works"."age" AS "age" FROM', sql)
            self.assertEqual(sql.count('"api"."age"('), 1)
        self.assertIn(f"{own} FROM", self.texts(("age", "gt.1"))[0])
        for sql in self.texts(("title", "eq.x")):
            self.assertIn('(SELECT "works".* FROM', sql)


class Paths(SynchronousTestCase):
    def test_a_json_path_into_an_unknown_column_converts_it_to_json(self) -> None:
        field = Field("val", (JsonStep("r", True),))
        self.assertEqual(path_sql('"t"."val"', field, None), """to_jsonb("t"."val")->>'r'""")
        known = Column("val", "jsonb", "jsonb")
        self.assertEqual(path_sql('"t"."val"', field, known), """"t"."val"->>'r'""")
