"""Which relationship an embedding means, and the errors if there is none or there are several."""

from __future__ import annotations

import itertools
import json
import sys

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.plan.names import find_relationship
from project_service.tables.plan.read import ReadPlanner
from project_service.tables.request.query import parse_query
from project_service.tables.request.syntax import Range
from project_service.tables.schema_cache.build import base_columns, build
from project_service.tables.schema_cache.queries import QUERIES
from project_service.tables.sql.read import select_sql
from project_service.tables.values import Relation, Relationship, SchemaCache
from tests.unit.tables.planning import CONFIG
from tests.unit.tables.schema import EXTRAS

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
    }
    return build({name: json.dumps(found) for name, found in answers.items()}, ("api",), 1)


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
        found = self.found("teams", "teams", "above")
        self.assertEqual((found.cardinality, found.pairs), ("o2m", (("id", "parent"),)))

    def test_a_view_may_reference_itself_by_a_column(self) -> None:
        hidden = _without_tables(self.cache, "teams")
        found = find_relationship(hidden, ("api", "teams_shown"), "api", "parent", None)
        self.assertEqual((found.target, found.pairs), (("api", "teams_shown"), (("parent", "id"),)))
        error = self.assertRaises(
            TableError, find_relationship, hidden, ("api", "people"), "api", "team", None
        )
        assert isinstance(error, TableError)
        self.assertEqual(error.code, "PGRST200")

    def test_a_referenced_column_leads_to_the_referencing_table(self) -> None:
        alone = _without_tables(self.cache, "memberships")
        found = find_relationship(alone, ("api", "people"), "api", "id", None)
        self.assertEqual((found.cardinality, found.target), ("o2m", ("api", "teams")))
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
