"""The columns of results: their names, their data representations, and what rows can be ordered and grouped by."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.model import Relation, Representation
from tests.unit.tables.planning import CACHE, planned, text

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
        found = read("works_tags", "tag_id,...works(title,authors!author_id(name),tags())")
        columns = found.partition("SELECT ")[2].partition(" FROM ")[0].split(", ")
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
        # A real column of that name can be selected, and "count" always could.
        works = CACHE.relations["api", "works"]
        named = evolve(works, columns={**works.columns, "json_agg": works.columns["title"]})
        known = evolve(CACHE, relations={**CACHE.relations, named.key: named})
        for select in ("json_agg", "count"):
            found = text(planned("GET", "works", ("select", select), cache=known))
            self.assertIn(f'"works"."{select}"', found)


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
            found = read("works_tags", f"tag_id,{select}", ("order", f"works({column})"))
            self.assertIn(f'ORDER BY "works_tags_works_1"."{column}"', found, select)

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
            found = read("works_tags", f"tag_id,{select}", order, formatted=formatted)
            self.assertIn(f'ORDER BY (SELECT "works_1"."{column}" FROM', found, select)


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
            found = read("works_tags", f"count(),{select}")
            self.assertIn(f" GROUP BY {keys})", found, select)
