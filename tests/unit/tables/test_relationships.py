"""Which relationship an embedding means, the errors if there is none or there are several, and the names that they
suggest."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.plan import names
from project_service.tables.plan.names import find_relationship, nearest
from project_service.tables.plan.read import ReadPlanner
from project_service.tables.request.query import parse_query
from project_service.tables.request.syntax import Range
from project_service.tables.schema_cache.build import base_columns, build
from project_service.tables.schema_cache.queries import QUERIES
from project_service.tables.sql.read import select_sql
from project_service.tables.values import Junction, Relation, Relationship, SchemaCache
from tests.unit.tables.planning import CONFIG
from tests.unit.tables.schema import EXTRAS, TRUST, cache

NAMES = ("teams", "people", "teams_shown", "memberships", "rooms", "secrets")
TEAMS, PEOPLE, SHOWN, MEMBERSHIPS, ROOMS, SECRETS = range(1, 7)
# The secret junction stands in a schema that is not exposed.
COLUMNS = {
    TEAMS: ["id", "lead", "parent"],
    PEOPLE: ["id", "team"],
    SHOWN: ["id", "lead", "parent"],
    MEMBERSHIPS: ["friend", "person"],
    ROOMS: ["id"],
    SECRETS: ["room", "person"],
}
KEYS = {TEAMS: [1], PEOPLE: [1], MEMBERSHIPS: [1, 2], ROOMS: [1], SECRETS: [1, 2]}
_RULE = (
    "({QUERY :targetList ("
    + " ".join(
        f"{{TARGETENTRY :resno {number} :resname x :resorigtbl 1 :resorigcol {number} :resjunk false}}"
        for number in (1, 2, 3)
    )
    + ") :override 0})"
)


def _foreign_key(name: str, origin: int, column: int, target: int) -> dict[str, object]:
    keys = {"origin_key": [column], "target_key": [1], "is_unique": False}
    return {"name": name, "origin": origin, "target": target, **keys}


def _cache() -> SchemaCache:
    answers: dict[str, object] = {
        **{name: [] for name in QUERIES if name not in ("keys", "foreign_keys", "rules", "extras")},
        "roles": [],
        "keys": [
            {
                "oid": oid,
                "schema": "hidden" if oid == SECRETS else "api",
                "name": NAMES[oid - 1],
                "is_view": oid == SHOWN,
                "columns": list(enumerate(COLUMNS[oid], 1)),
                "key": KEYS.get(oid),
            }
            for oid in COLUMNS
        ],
        # Not sorted, since PostgreSQL promises no order.
        "foreign_keys": [
            _foreign_key("the_team", PEOPLE, 2, TEAMS),
            _foreign_key("the_lead", TEAMS, 2, PEOPLE),
            _foreign_key("above", TEAMS, 3, TEAMS),
            _foreign_key("of_person", MEMBERSHIPS, 2, PEOPLE),
            _foreign_key("of_friend", MEMBERSHIPS, 1, PEOPLE),
            _foreign_key("secret_room", SECRETS, 1, ROOMS),
            _foreign_key("secret_person", SECRETS, 2, PEOPLE),
            # To a table of a system schema, which is not in the schema cache.
            _foreign_key("of_system", ROOMS, 1, 99),
        ],
        "rules": [{"oid": SHOWN, "rule": _RULE}],
        "extras": EXTRAS,
        "trust": TRUST,
    }
    return build({name: json.dumps(relationship) for name, relationship in answers.items()}, ("api",), 1)


class Relationships(SynchronousTestCase):
    cache = _cache()

    def found(self, origin: str, target: str, hint: str | None = None) -> Relationship:
        return find_relationship(self.cache, ("api", origin), "api", target, hint)

    def refused(self, origin: str, target: str, hint: str | None = None) -> TableError:
        error = self.assertRaises(TableError, self.found, origin, target, hint)
        assert isinstance(error, TableError)
        return error

    def test_ambiguous_relationships_are_listed_by_cardinality_and_name(self) -> None:
        error = self.refused("people", "teams")
        kinds = [choice["cardinality"] for choice in error.json_details]
        self.assertEqual(kinds, ["one-to-many", "many-to-one"])
        error = self.refused("people", "memberships")
        names = [choice["relationship"].partition(" ")[0] for choice in error.json_details]
        self.assertEqual(names, ["of_friend", "of_person"])

    def test_a_column_or_constraint_name_leads_to_tables_but_not_to_views(self) -> None:
        for name in ("team", "the_team"):
            self.assertEqual(self.found("people", name).target, ("api", "teams"))
        for name in ("parent", "above"):
            self.assertEqual(self.found("teams", name).pairs, (("parent", "id"),))
        # What the view refers to is found as well, and so is the view by its name.
        self.assertEqual(self.found("teams_shown", "lead").target, ("api", "people"))
        self.assertEqual(self.found("people", "teams_shown", "team").target, ("api", "teams_shown"))

    def test_a_reference_to_itself_named_by_its_constraint_leads_to_the_children(self) -> None:
        relationship = self.found("teams", "teams", "above")
        self.assertEqual((relationship.cardinality, relationship.pairs), ("o2m", (("id", "parent"),)))

    def test_a_view_may_reference_itself_by_a_column(self) -> None:
        hidden = _without_tables(self.cache, "teams")
        relationship = find_relationship(hidden, ("api", "teams_shown"), "api", "parent", None)
        self.assertEqual(
            (relationship.target, relationship.pairs), (("api", "teams_shown"), (("parent", "id"),))
        )
        error = self.assertRaises(
            TableError, find_relationship, hidden, ("api", "people"), "api", "team", None
        )
        assert isinstance(error, TableError)
        self.assertEqual(error.code, "PGRST200")

    def test_a_referenced_column_leads_to_the_referencing_table(self) -> None:
        alone = _without_tables(self.cache, "memberships")
        relationship = find_relationship(alone, ("api", "people"), "api", "id", None)
        self.assertEqual((relationship.cardinality, relationship.target), ("o2m", ("api", "teams")))
        self.assertEqual(self.refused("people", "id").code, "PGRST201")

    def test_foreign_keys_to_tables_outside_the_cache_are_ignored(self) -> None:
        self.assertEqual(self.cache.relationships["api", "rooms"], ())

    def test_views_that_select_from_each_other_have_no_base_columns(self) -> None:
        """PostgreSQL allows creating such views, and refuses to read them."""
        rules = {view: _RULE.replace(":resorigtbl 1", f":resorigtbl {view ^ 1}") for view in (10, 11)}
        self.assertEqual(base_columns(rules), {10: {}, 11: {}})

    def test_there_is_no_many_to_many_relationship_of_a_table_with_itself(self) -> None:
        self.assertEqual(self.refused("people", "people").code, "PGRST200")

    def test_the_hint_suggests_a_similar_origin_if_it_is_unknown(self) -> None:
        self.assertEqual(
            self.refused("teems", "people").hint, "Perhaps you meant 'teams' instead of 'teems'."
        )
        self.assertIsNone(self.refused("secret", "people").hint)
        # These are related, though only through a junction that is not exposed.
        self.assertIsNone(self.refused("rooms", "people").hint)


class Effort(SynchronousTestCase):
    """How much work a client can cause with a few kilobytes, counted in function calls."""

    def steps(self, *pairs: tuple[str, str]) -> int:
        columns = ("lead", "zzz", *(f"c{number}" for number in range(400)))
        cache = evolve(_cache(), row_columns={("api", "teams"): columns})
        teams = Relation("api", "teams", {})
        plan = ReadPlanner(cache, "api", CONFIG).plan(teams, parse_query(pairs), Range())
        counted = itertools.count()
        sys.setprofile(lambda *_: next(counted))
        try:
            select_sql(plan)
        finally:
            sys.setprofile(None)
        return next(counted)

    def spread(self, names: int) -> str:
        return "...parent(" * 10 + ",".join(f"c{number}" for number in range(names)) + ")" * 10

    def test_work_grows_linearly_with_the_names_in_nested_spreads(self) -> None:
        few, many = (self.steps(("select", f"count(),{self.spread(names)}")) for names in (50, 200))
        self.assertLess(many, few * 5)

    def test_work_grows_linearly_with_empty_embeddings(self) -> None:
        few, many = (self.steps(("select", ",".join(["parent()"] * number))) for number in (25, 100))
        self.assertLess(many, few * 5)

    def test_each_order_term_costs_the_same_whatever_is_selected_and_filtered(self) -> None:
        def extra(*pairs: tuple[str, str]) -> int:
            one, many = (
                self.steps(*pairs, ("order", ",".join(["parent(zzz)"] * terms))) for terms in (1, 50)
            )
            return many - one

        little = extra(("select", f"parent({self.spread(10)})"))
        self.assertLess(extra(("select", f"parent({self.spread(400)})")), little * 2)
        filtered = [("parent.lead", "is.null")] * 100
        self.assertLess(extra(("select", f"parent({self.spread(10)})"), *filtered), little * 2)


def _without_tables(cache: SchemaCache, name: str) -> SchemaCache:
    kept = {
        key: tuple(way for way in ways if way.target != ("api", name))
        for key, ways in cache.relationships.items()
    }
    return SchemaCache(1, relationships=kept)


ORIGIN = ("api", "books")


def related(
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


AUTHOR = related("people", "books_author", ("author", "id"))
EDITOR = related("people", "books_editor", ("editor", "id"))
TOWN = related("places", "books_place", ("country", "country"), ("town", "name"))
WROTE, READ = through("wrote"), through("read")
VIEW = related("shown", "books_author", ("author", "id"), target_is_view=True)
SEEN = related("people", "books_author", ("author", "id"), schema="other")


class NamesAndHints(SynchronousTestCase):
    def meant(
        self, relationships: tuple[Relationship, ...], target: str, hint: str | None = None
    ) -> Relationship:
        return find_relationship(
            SchemaCache(1, relationships={ORIGIN: relationships}), ORIGIN, "api", target, hint
        )

    def rejected(
        self, relationships: tuple[Relationship, ...], target: str, hint: str | None = None
    ) -> TableError:
        error = self.assertRaises(TableError, self.meant, relationships, target, hint)
        assert isinstance(error, TableError)
        return error

    def test_a_hint_is_a_constraint_a_column_of_either_side_or_a_junction(self) -> None:
        relationships = (AUTHOR, EDITOR, TOWN, WROTE, READ)
        for target, hint, expected in (
            ("people", "books_author", AUTHOR),
            ("people", "editor", EDITOR),
            ("people", "wrote", WROTE),
            ("people", "read", READ),
            ("places", "books_place", TOWN),
        ):
            self.assertIs(self.meant(relationships, target, hint), expected)
        self.assertIs(self.meant((AUTHOR, TOWN), "people", "id"), AUTHOR)
        for target, hint in (
            # One column of several, a constraint of a junction, and a hint for a target that is itself a constraint
            # or a column.
            ("places", "town"),
            ("people", "wrote_book"),
            ("author", "id"),
            ("author", "books_author"),
            ("places", "author"),
        ):
            error = self.rejected(relationships, target, hint)
            self.assertEqual((error.status, error.code), (400, "PGRST200"))
            self.assertIn(f"using the hint '{hint}' in the schema 'api'", error.json_details)

    def test_a_composite_foreign_key_is_named_by_its_constraint_only(self) -> None:
        self.assertIs(self.meant((TOWN,), "books_place"), TOWN)
        self.assertEqual(self.rejected((TOWN,), "country").code, "PGRST200")

    def test_targets_in_other_schemas_are_not_found(self) -> None:
        self.assertIs(self.meant((SEEN, AUTHOR), "people"), AUTHOR)
        self.assertEqual(self.rejected((SEEN,), "people").code, "PGRST200")

    def test_computed_relationships_win_over_foreign_keys(self) -> None:
        computed = related("people", "", schema="hidden", routine=("api", "people"))
        other = related("people", "", routine=("api", "friends"))
        self.assertIs(self.meant((other, AUTHOR, EDITOR, computed), "people"), computed)
        self.assertIs(self.meant((AUTHOR, other), "people"), AUTHOR)
        self.assertIs(self.meant((AUTHOR, other), "friends"), other)
        elsewhere = related("authors", "", schema="hidden", routine=("other", "people"))
        self.assertIs(self.meant((elsewhere, computed), "people"), computed)
        self.assertIs(self.meant((elsewhere, AUTHOR), "people"), elsewhere)

    def test_tables_win_over_views_of_the_same_key(self) -> None:
        self.assertIs(self.meant((VIEW, AUTHOR), "books_author"), AUTHOR)
        second = related("shown", "books_editor", ("editor", "id"), target_is_view=True)
        self.assertIs(self.meant((VIEW, second), "shown", "editor"), second)
        self.assertEqual(self.rejected((VIEW, second), "shown").code, "PGRST201")

    def test_junctions_in_the_requests_schema_win_over_those_in_others(self) -> None:
        there, others = through("wrote", "other"), through("read", "other")
        for hint in (None, "wrote"):
            self.assertIs(self.meant((others, there, WROTE), "people", hint), WROTE)
        self.assertIs(self.meant((WROTE, others, there), "people", "read"), others)
        self.assertIs(self.meant((there,), "people"), there)
        self.assertEqual(self.rejected((others, there), "people").code, "PGRST201")
        self.assertEqual(self.rejected((AUTHOR, WROTE, there), "people").code, "PGRST201")

    def test_ambiguous_relationships_are_described_by_constraints_and_junctions(self) -> None:
        error = self.rejected((TOWN, AUTHOR, WROTE, READ), "people")
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
            self.assertEqual(self.rejected((AUTHOR, TOWN), target, hint).hint, expected, (target, hint))


class KeysOfViews(SynchronousTestCase):
    def related_to(self, *targets: str) -> SchemaCache:
        origin = ("api", "seen")
        relationships = tuple(
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
        return evolve(cache(), relationships={origin: relationships})

    def reached(self, *targets: str) -> str:
        return find_relationship(self.related_to(*targets), ("api", "seen"), "api", "parent", None).target[1]

    def test_a_column_leads_to_the_referenced_table_or_else_to_the_view_itself(self) -> None:
        self.assertEqual(self.reached("other", "seen", "nodes"), "nodes")
        self.assertEqual(self.reached("other", "seen"), "seen")
        self.assertRaises(TableError, self.reached, "other")


class SimilarNames(SynchronousTestCase):
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
