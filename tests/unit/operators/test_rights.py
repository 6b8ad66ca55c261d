"""Rights in plain words: what grants, row-level security and policies amount to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.operators.rights import Policy, Relation, Role, sentences, summary

MINE = "(owner = auth.uid())"
READ_ALL = {"SELECT": None}
EVERYTHING: dict[str, None] = dict.fromkeys(("SELECT", "INSERT", "UPDATE", "DELETE"))


def said(privileges: Any, *policies: Policy, secured: bool = True, **more: Any) -> list[str]:
    role = Role("someone", privileges, policies=[policy.name for policy in policies], **more)
    return sentences(Relation("public", 5, secured, policies), role)


class Sentences(SynchronousTestCase):
    def test_without_a_grant_nothing_may_be_done_whatever_policies_say(self) -> None:
        self.assertEqual(said({}, Policy("p", "ALL")), ["someone may do nothing: it has no grant."])
        self.assertEqual(
            said(READ_ALL, secured=False, uses_schema=False),
            ["someone may do nothing: it may not use the schema public."],
        )

    def test_without_row_level_security_grants_alone_count(self) -> None:
        self.assertEqual(
            said(EVERYTHING, secured=False), ["someone may read, add, change and delete all rows."]
        )
        self.assertEqual(said({"INSERT": None}, secured=False), ["someone may add rows."])
        self.assertEqual(
            said({"SELECT": ["id", "title", "body"], "DELETE": None}, secured=False),
            [
                "someone may read 3 of 5 columns (id, title, body) of all rows.",
                "someone may delete all rows.",
            ],
        )

    def test_who_is_exempt_from_policies_reaches_every_row(self) -> None:
        self.assertEqual(
            said(EVERYTHING, exempt=True), ["someone may read, add, change and delete all rows."]
        )

    def test_a_grant_without_a_policy_is_of_no_use_and_said_to_be(self) -> None:
        self.assertEqual(
            said(EVERYTHING, Policy("r", "SELECT", using="true")),
            [
                "someone may read all rows.",
                "someone may not add, change or delete a row: it has the grant, but no policy allows it.",
            ],
        )

    def test_privileges_on_the_same_rows_are_in_one_sentence(self) -> None:
        self.assertEqual(
            said({"SELECT": None, "UPDATE": None}, Policy("own", "ALL", using=MINE)),
            ["someone may read and change rows where owner = auth.uid()."],
        )

    def test_an_update_may_lead_to_other_rows_than_it_begins_with(self) -> None:
        policy = Policy("p", "UPDATE", using=MINE, check="(size < 10)")
        self.assertEqual(
            said({"UPDATE": None}, policy),
            ["someone may change rows where owner = auth.uid(), if size < 10 afterwards."],
        )

    def test_any_permissive_policy_and_all_restrictive_ones_have_to_be_met(self) -> None:
        policies = (
            Policy("a", "SELECT", using=MINE),
            Policy("b", "SELECT", using="(is_public AND (NOT hidden))"),
            Policy("c", "SELECT", permissive=False, using="(size < 10)"),
        )
        self.assertEqual(
            said(READ_ALL, *policies),
            [
                "someone may read rows where (owner = auth.uid() or (is_public AND (NOT hidden))) and size < 10."
            ],
        )
        self.assertEqual(said(READ_ALL, policies[2])[0].partition(":")[0], "someone may not read a row")
        all_of_them = Policy("d", "SELECT", using="true")
        self.assertEqual(
            said(READ_ALL, all_of_them, policies[0], policies[2]), ["someone may read rows where size < 10."]
        )

    def test_a_view_that_reads_with_the_rights_of_whoever_asks_gives_no_rows_by_itself(self) -> None:
        view, role = Relation("public", 5, False, is_view=True), Role("someone", READ_ALL)
        self.assertEqual(
            sentences(view, role),
            ["someone may read the rows that its rights to what is below the view allow."],
        )

    def test_a_policy_for_others_is_none(self) -> None:
        relation = Relation("public", 5, True, [Policy("own", "ALL", using=MINE)])
        self.assertIn("no policy allows it", sentences(relation, Role("someone", READ_ALL))[0])

    def test_conditions_are_said_without_what_is_there_for_speed_or_by_habit(self) -> None:
        for printed, plain in (
            ("((owner = ( SELECT auth.uid() AS uid)))", "owner = auth.uid()"),
            ("(a) = (b)", "(a) = (b)"),
            ("(note = ')('::text)", "note = ')('::text"),
        ):
            self.assertEqual(
                said(READ_ALL, Policy("p", "ALL", using=printed)), [f"someone may read rows where {plain}."]
            )

    @given(
        st.dictionaries(
            st.sampled_from(sorted(EVERYTHING)), st.none() | st.lists(st.text(min_size=1), min_size=1)
        ),
        st.lists(
            st.builds(
                Policy,
                st.text(),
                st.sampled_from(["ALL", *EVERYTHING]),
                st.booleans(),
                st.none() | st.text(),
                st.none() | st.text(),
            )
        ),
        st.booleans(),
        st.booleans(),
    )
    def test_something_is_said_of_every_grant(
        self, privileges: Any, policies: list[Policy], secured: bool, exempt: bool
    ) -> None:
        answers = said(privileges, *policies, secured=secured, exempt=exempt)
        self.assertTrue(all(one.startswith("someone may ") and one.endswith(".") for one in answers))
        if not privileges:
            self.assertEqual(len(answers), 1)


class Summary(SynchronousTestCase):
    def test_says_what_concerns_everybody(self) -> None:
        service, other = Role("service_role", {}, exempt=True), Role("anon", {})
        for relation, expected in (
            (Relation("s", 1, False), "Row-level security is off"),
            (Relation("s", 1, True), "No policy: nobody but service_role reaches a row."),
            (Relation("s", 1, True, [Policy("p", "ALL")]), "Row-level security is on"),
            (Relation("s", 1, False, is_view=True), "with the rights of whoever asks"),
            (Relation("s", 1, False, is_view=True, reads_as="owner"), "with the rights of owner"),
        ):
            self.assertIn(expected, summary(relation, [service, other]))
