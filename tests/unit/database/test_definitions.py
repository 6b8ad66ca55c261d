"""Files of definitions: which there are, which of them a database lacks, and when they are an older program's."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

from twisted.trial.unittest import SynchronousTestCase as TestCase

from project_service.database.migrate import (
    Defined,
    Definition,
    Definitions,
    MigrationRefused,
    changed,
    definitions,
    shipped,
)

# What each edition is; from 4 on the numbered files are part of it. Never change a line: a change of a definition, or
# a new numbered file, is a new edition, with a line of its own.
EDITIONS = {
    1: "a6c1f154c919f5984ab4a2b7372233aa36d588a947862b95343129cac02abfb1",
    2: "12c45185b6b25ae91eedaf203fef33b23d356b67cf241ba4f6c32f81d8c76731",
    3: "c819d2f44e1155c4578a16e0676debeee29f6be07edbc4f0d7080aeb95813396",
    4: "f40df9843d8ab074623f5240319cb724730772ac734b93b2633e2eff46a84f66",
}

A, B = Definition("s/a.sql", "a"), Definition("s/b.sql", "b")
KNOWN = Definitions(3, (A, B))


class TheFiles(TestCase):
    def test_each_file_of_the_folder_is_applied_once(self) -> None:
        folder = resources.files("project_service.database") / "sql"
        found = [one.name for one in folder.iterdir() if one.is_file()]
        for schema in folder.iterdir():
            if schema.is_dir():
                found += [f"{schema.name}/{one.name}" for one in schema.iterdir()]
        self.assertEqual(sorted(found), sorted(one.name for one in definitions().files))

    def test_a_change_is_a_new_edition(self) -> None:
        """Otherwise a program of the version before, which starts beside this one, would put its own back."""
        known = definitions()
        numbered = "".join(f"{one.name} {one.sha256}\n" for one in shipped())
        text = numbered + "".join(f"{one.name} {one.sha256}\n" for one in known.files)
        digest = hashlib.sha256(text.encode()).hexdigest()
        new = max(EDITIONS) + 1
        self.assertEqual(
            (known.edition, digest),
            (max(EDITIONS), EDITIONS[max(EDITIONS)]),
            f'the next edition: EDITION = {new} in database/migrate.py, and in EDITIONS here  {new}: "{digest}",',
        )

    def test_programs_before_the_rule_are_not_said_to_start(self) -> None:
        """Editions 1 to 3, and release 0.1.0, which has none, refuse every newer database by themselves."""
        self.assertTrue(4 <= definitions().oldest <= definitions().edition)

    def test_numbered_files_define_nothing_that_can_be_replaced(self) -> None:
        for one in shipped():
            defines = re.findall(
                r"^\s*create (?:or replace )?(?:function|procedure|view|trigger|policy)\b",
                one.sql,
                re.M | re.I,
            )
            self.assertEqual(defines, [], f"{one.name}: that belongs into database/sql")

    def test_definitions_make_no_tables(self) -> None:
        for one in definitions().files:
            # What is in the body of a function is indented.
            makes = re.findall(
                r"^(?:create (?:table|(?:unique )?index)|alter table \S+ add|insert|update|delete)\b",
                one.sql,
                re.M,
            )
            self.assertEqual(makes, [], f"{one.name}: that belongs into database/migrations")


class WhatIsApplied(TestCase):
    def test_files_that_differ_or_are_new_are_applied_in_order(self) -> None:
        self.assertEqual(changed(KNOWN, Defined(0, {})), (A, B))
        self.assertEqual(changed(KNOWN, Defined(2, {A.name: "other", B.name: B.sha256})), (A,))
        self.assertEqual(changed(KNOWN, Defined(2, {A.name: A.sha256})), (B,))
        self.assertEqual(
            changed(KNOWN, Defined(3, {A.name: A.sha256, B.name: B.sha256, "s/c.sql": "gone"})), ()
        )

    def test_a_file_that_was_changed_within_an_edition_is_applied(self) -> None:
        """As whoever works on it does."""
        self.assertEqual(changed(KNOWN, Defined(3, {A.name: A.sha256, B.name: "other"})), (B,))

    def test_a_newer_edition_is_refused_also_where_nothing_differs(self) -> None:
        for digests in ({}, {A.name: A.sha256, B.name: B.sha256}):
            with self.assertRaisesRegex(MigrationRefused, "newer than this program.*edition 4.*has 3"):
                changed(KNOWN, Defined(4, digests))

    def test_one_that_admits_older_programs_is_left_as_it_is(self) -> None:
        self.assertEqual(changed(KNOWN, Defined(5, {A.name: "newer"}, oldest=3)), ())
        self.assertEqual(changed(KNOWN, Defined(5, {A.name: "newer"}, oldest=2)), ())
        with self.assertRaisesRegex(MigrationRefused, "edition 5.*has 3"):
            changed(KNOWN, Defined(5, {A.name: "newer"}, oldest=4))
        # Its own edition is not a newer one.
        self.assertEqual(changed(KNOWN, Defined(3, {A.name: A.sha256, B.name: "other"}, oldest=2)), (B,))
