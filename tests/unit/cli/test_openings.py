"""What ``openings`` judges without a database: whom policies concern, and what the SQL does that mends."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.cli.openings import PHRASE, Catalog, Opening, Policy, Relation, Role, as_text, judged

NOTES = Relation(
    "public.notes",
    "r",
    "owner",
    exposed_to=["anon"],
    grants={"anon": ["SELECT", "INSERT", "UPDATE", "DELETE"]},
    grantees=["anon"],
    secured=True,
)
VIEW = Relation(
    "public.titles",
    "v",
    "owner",
    exposed_to=["anon"],
    grants={"anon": ["SELECT"]},
    grantees=["anon", "public"],
    reads=["public.notes"],
)
OWNER = Role("owner", has=["owner"])


def found(
    *relations: Relation, version: int = 18, owner: Role = OWNER, anon: Role | None = None
) -> list[Opening]:
    roles = [owner, anon or Role("anon"), Role("reader", has=["reader"])]
    return judged(Catalog(["anon"], roles, relations, version=version))


class Views(SynchronousTestCase):
    def mends(self, *relations: Relation, version: int = 18, owner: Role = OWNER) -> list[str]:
        return [one.mend for one in found(*relations, version=version, owner=owner)]

    def test_policies_concern_all_but_the_owner_and_who_bypasses_them(self) -> None:
        invoker = ["alter view public.titles set (security_invoker = true);"]
        forced = evolve(NOTES, forced=True)
        self.assertEqual(self.mends(VIEW, NOTES), invoker)
        self.assertEqual(self.mends(VIEW, forced), [])
        self.assertEqual(self.mends(VIEW, forced, owner=evolve(OWNER, bypasses=True)), invoker)
        self.assertEqual(self.mends(evolve(VIEW, owner="reader"), NOTES), [])
        self.assertEqual(self.mends(evolve(VIEW, invoker=True), NOTES), [])
        self.assertEqual(self.mends(evolve(VIEW, grants={}), NOTES), [])
        self.assertEqual(self.mends(evolve(VIEW, exposed_to=[]), NOTES), [])

    def test_before_postgresql_15_rights_are_taken(self) -> None:
        (opening,) = found(VIEW, NOTES, version=14)
        self.assertEqual(opening.mend, "revoke all on public.titles from anon, public;")
        self.assertIn("PostgreSQL 15", opening.why)

    def test_views_that_read_each_other_end(self) -> None:
        # CREATE OR REPLACE VIEW lets that be made; only its use fails.
        one = evolve(VIEW, name="public.one", reads=["public.two", "public.notes"])
        two = evolve(VIEW, name="public.two", reads=["public.one"])
        both = ["alter view public.one set (security_invoker = true);"] * 2
        self.assertEqual(self.mends(one, two, NOTES), both)

    def test_a_view_that_is_meant_to_be_open_may_be_read_by_others(self) -> None:
        meant = evolve(VIEW, comment=f"Titles are {PHRASE}.")
        above = evolve(VIEW, name="public.above", reads=["public.titles"])
        self.assertEqual(self.mends(above, meant, NOTES), [])
        self.assertEqual(
            self.mends(evolve(above, reads=["public.titles", "public.notes"]), meant, NOTES),
            ["alter view public.above set (security_invoker = true);"],
        )

    def test_what_fills_a_materialised_view_has_the_rights_of_that(self) -> None:
        inner = evolve(VIEW, invoker=True, exposed_to=[])
        filled = Relation("private.m", "m", "owner", grants={"anon": ["SELECT"]}, reads=["public.titles"])
        above = evolve(VIEW, name="public.above", reads=["private.m"], invoker=True)
        revoked = ["revoke all on public.above from anon, public;"]
        self.assertEqual(self.mends(above, filled, inner, NOTES), revoked)
        self.assertEqual(self.mends(above, evolve(filled, owner="reader"), inner, NOTES), [])
        self.assertEqual(self.mends(above, evolve(filled, grants={}), inner, NOTES), [])
        # A view in it reads as its own owner, as anywhere.
        as_owner = evolve(inner, invoker=False)
        self.assertEqual(self.mends(above, evolve(filled, owner="reader"), as_owner, NOTES), revoked)


class Policies(SynchronousTestCase):
    def says(self, *policies: Policy) -> list[str]:
        mine = [evolve(one, callers=one.callers or ["anon"]) for one in policies]
        return [one.why for one in found(evolve(NOTES, policies=mine))]

    def test_what_is_true_for_every_row(self) -> None:
        for condition in (
            "true",
            "(true)",
            "((true))",
            "(1 = 1)",
            "('a'::text = 'a'::text)",
            "(NOT false)",
            "(id = id)",
        ):
            self.assertEqual(
                self.says(Policy("p", "d", using=condition)), ["says true where anon may delete"], condition
            )
        for condition in (
            "(id = 1)",
            "false",
            "(a = b)",
            "((true) AND (id = 1))",
            "((a = 1) OR (b = 1))",
            "is_true()",
        ):
            self.assertEqual(self.says(Policy("p", "d", using=condition)), [], condition)

    def test_which_conditions_are_those_of_a_write(self) -> None:
        for policy, may in (
            (Policy("p", "*", using="true"), "insert, update, delete"),
            (Policy("p", "*", using="(id = 1)", check="true"), "insert, update"),
            (Policy("p", "*", using="true", check="(id = 1)"), "update, delete"),
            (Policy("p", "a", check="true"), "insert"),
            (Policy("p", "w", using="true"), "update"),
            (Policy("p", "w", using="(id = 1)", check="true"), "update"),
            (Policy("p", "d", using="true"), "delete"),
        ):
            self.assertEqual(self.says(policy), [f"says true where anon may {may}"], policy)
        for policy in (
            Policy("p", "r", using="true"),
            Policy("p", "a"),
            Policy("p", "*", using="true", permissive=False),
            Policy("p", "*", using="true", callers=["reader"]),
            Policy("p", "*", using="true", comment=PHRASE),
        ):
            self.assertEqual(self.says(policy), [], policy)

    def test_a_restrictive_policy_may_say_more(self) -> None:
        wide = Policy("p", "*", using="true")
        all_of_it = "says true where anon may insert, update, delete"
        for restrictive, left in (
            (Policy("q", "*", using="(id = 1)"), None),
            (Policy("q", "a", check="(id = 1)"), "says true where anon may update, delete"),
            (Policy("q", "w", using="true", check="(id = 1)"), "says true where anon may insert, delete"),
            (Policy("q", "*", using="true"), all_of_it),
            (Policy("q", "r", using="(id = 1)"), all_of_it),
            (Policy("q", "*", using="(id = 1)", callers=["reader"]), all_of_it),
        ):
            says = self.says(wide, evolve(restrictive, permissive=False))
            self.assertEqual(says, [left] if left else [], restrictive)


class Others(SynchronousTestCase):
    def test_a_role_without_policies_is_named_and_not_all_that_it_sees(self) -> None:
        bypassing = Role("anon", bypasses=True)
        (opening,) = found(evolve(NOTES, secured=False), VIEW, anon=bypassing)
        self.assertEqual(opening.mend, "alter role anon nosuperuser nobypassrls;")
        self.assertEqual(found(NOTES, anon=evolve(bypassing, comment=PHRASE)), [])

    def test_who_has_the_rights_of_an_owner_is_held_to_policies_by_force(self) -> None:
        owning = Role("anon", has=["owner"])
        (opening,) = found(NOTES, anon=owning)
        self.assertEqual(
            opening.mend, "alter table public.notes enable row level security, force row level security;"
        )
        self.assertEqual(found(evolve(NOTES, forced=True), anon=owning), [])

    def test_the_text_has_each_with_its_sql_and_how_to_say_that_it_is_meant(self) -> None:
        text = as_text(found(evolve(NOTES, secured=False), evolve(VIEW, kind="f")))
        self.assertEqual(
            text,
            "this may be open by accident:\n"
            "  table public.notes has no row-level security: anon may select, insert, update, delete every row\n"
            "      alter table public.notes enable row level security;\n"
            "  foreign table public.titles can have no policies: anon may select every row\n"
            "      revoke all on public.titles from anon, public;\n"
            "  where that is intended, its comment has to say so: "
            "comment on table public.notes is 'open on purpose';",
        )
