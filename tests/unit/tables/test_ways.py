"""Several relationships between two relations: which one a name and a hint mean, and how errors tell them apart."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.plan.names import find_relationship
from project_service.tables.values import Junction, Relationship, SchemaCache

ORIGIN = ("api", "books")


def way(
    target: str, constraint: str, *pairs: tuple[str, str], schema: str = "api", **more: Any
) -> Relationship:
    return Relationship(ORIGIN, (schema, target), "m2o", constraint, pairs, **more)


def through(junction: str, schema: str = "api") -> Relationship:
    between = Junction(
        (schema, junction),
        f"{junction}_book",
        f"{junction}_person",
        (("id", "book"), ("edition", "edition")),
        (("person", "id"),),
    )
    return Relationship(ORIGIN, ("api", "people"), "m2m", junction=between)


AUTHOR = way("people", "books_author", ("author", "id"))
EDITOR = way("people", "books_editor", ("editor", "id"))
TOWN = way("places", "books_place", ("country", "country"), ("town", "name"))
WROTE, READ = through("wrote"), through("read")
SHOWN = way("shown", "books_author", ("author", "id"), target_is_view=True)
SEEN = way("people", "books_author", ("author", "id"), schema="other")


class Ways(SynchronousTestCase):
    def found(self, ways: tuple[Relationship, ...], target: str, hint: str | None = None) -> Relationship:
        return find_relationship(SchemaCache(1, relationships={ORIGIN: ways}), ORIGIN, "api", target, hint)

    def refused(self, ways: tuple[Relationship, ...], target: str, hint: str | None = None) -> TableError:
        error = self.assertRaises(TableError, self.found, ways, target, hint)
        assert isinstance(error, TableError)
        return error

    def test_a_hint_is_a_constraint_a_column_of_either_side_or_a_junction(self) -> None:
        ways = (AUTHOR, EDITOR, TOWN, WROTE, READ)
        for target, hint, expected in (
            ("people", "books_author", AUTHOR),
            ("people", "editor", EDITOR),
            ("people", "wrote", WROTE),
            ("people", "read", READ),
            ("places", "books_place", TOWN),
        ):
            self.assertIs(self.found(ways, target, hint), expected)
        self.assertIs(self.found((AUTHOR, TOWN), "people", "id"), AUTHOR)
        for target, hint in (
            # One column of several, a constraint of a junction, and a hint for a target that is itself a constraint
            # or a column.
            ("places", "town"),
            ("people", "wrote_book"),
            ("author", "id"),
            ("author", "books_author"),
            ("places", "author"),
        ):
            error = self.refused(ways, target, hint)
            self.assertEqual((error.status, error.code), (400, "PGRST200"))
            self.assertIn(f"using the hint '{hint}' in the schema 'api'", error.json_details)

    def test_a_composite_foreign_key_is_named_by_its_constraint_only(self) -> None:
        self.assertIs(self.found((TOWN,), "books_place"), TOWN)
        self.assertEqual(self.refused((TOWN,), "country").code, "PGRST200")

    def test_targets_in_other_schemas_are_not_found(self) -> None:
        self.assertIs(self.found((SEEN, AUTHOR), "people"), AUTHOR)
        self.assertEqual(self.refused((SEEN,), "people").code, "PGRST200")

    def test_computed_relationships_win_over_foreign_keys(self) -> None:
        computed = way("people", "", schema="hidden", routine=("api", "people"))
        other = way("people", "", routine=("api", "friends"))
        self.assertIs(self.found((other, AUTHOR, EDITOR, computed), "people"), computed)
        self.assertIs(self.found((AUTHOR, other), "people"), AUTHOR)
        self.assertIs(self.found((AUTHOR, other), "friends"), other)
        elsewhere = way("authors", "", schema="hidden", routine=("other", "people"))
        self.assertIs(self.found((elsewhere, computed), "people"), computed)
        self.assertIs(self.found((elsewhere, AUTHOR), "people"), elsewhere)

    def test_tables_win_over_views_of_the_same_key(self) -> None:
        self.assertIs(self.found((SHOWN, AUTHOR), "books_author"), AUTHOR)
        second = way("shown", "books_editor", ("editor", "id"), target_is_view=True)
        self.assertIs(self.found((SHOWN, second), "shown", "editor"), second)
        self.assertEqual(self.refused((SHOWN, second), "shown").code, "PGRST201")

    def test_junctions_in_the_requests_schema_win_over_those_in_others(self) -> None:
        there, others = through("wrote", "other"), through("read", "other")
        for hint in (None, "wrote"):
            self.assertIs(self.found((others, there, WROTE), "people", hint), WROTE)
        self.assertIs(self.found((WROTE, others, there), "people", "read"), others)
        self.assertIs(self.found((there,), "people"), there)
        self.assertEqual(self.refused((others, there), "people").code, "PGRST201")
        self.assertEqual(self.refused((AUTHOR, WROTE, there), "people").code, "PGRST201")

    def test_ambiguous_relationships_are_described_by_constraints_and_junctions(self) -> None:
        error = self.refused((TOWN, AUTHOR, WROTE, READ), "people")
        self.assertEqual((error.status, error.code), (300, "PGRST201"))
        self.assertEqual(
            error.json_details,
            [
                {
                    "cardinality": "many-to-one",
                    "embedding": "books with people",
                    "relationship": "books_author using books(author) and people(id)",
                },
                *(
                    {
                        "cardinality": "many-to-many",
                        "embedding": "books with people",
                        "relationship": f"{name} using {name}_book(book, edition) and {name}_person(person)",
                    }
                    for name in ("wrote", "read")
                ),
            ],
        )
        self.assertEqual(
            error.hint,
            "Try changing 'people' to one of the following: 'people!books_author', 'people!wrote', "
            "'people!read'. Find the desired relationship in the 'details' key.",
        )

    def test_another_target_is_suggested_only_if_the_target_is_unknown(self) -> None:
        suggested = "Perhaps you meant 'people' instead of 'peple'."
        for target, hint, expected in (
            ("peple", None, suggested),
            ("peple", "author", suggested),
            ("people", "peple", None),
        ):
            self.assertEqual(self.refused((AUTHOR, TOWN), target, hint).hint, expected, (target, hint))
