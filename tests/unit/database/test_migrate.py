"""Which numbered files a database still needs, and which databases are refused."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from project_service.database.migrate import Migration, MigrationRefused, pending, shipped


class Migrations(TestCase):
    known = (Migration(1, "0001_a.sql", "a"), Migration(2, "0002_b.sql", "b"))

    def applied(self, *migrations: Migration) -> list[tuple[int, str, str]]:
        return [(one.number, one.name, one.sha256) for one in migrations]

    def test_migrations_not_yet_applied_are_pending_in_order(self) -> None:
        self.assertEqual(pending(self.known, []), self.known)
        self.assertEqual(pending(self.known, self.applied(self.known[0])), self.known[1:])
        self.assertEqual(pending(self.known, self.applied(*self.known)), ())

    def test_a_database_with_newer_migrations_is_refused(self) -> None:
        newer = self.applied(*self.known, Migration(3, "0003_c.sql", "c"))
        with self.assertRaisesRegex(MigrationRefused, "newer than this program.*0003_c.sql"):
            pending(self.known, newer)

    def test_a_database_that_admits_this_program_may_have_newer_ones_but_no_others(self) -> None:
        newer = self.applied(*self.known, Migration(3, "0003_c.sql", "c"))
        self.assertEqual(pending(self.known, newer, admitted=True), ())
        with self.assertRaisesRegex(MigrationRefused, "another form"):
            pending(self.known, [(1, "0001_a.sql", "other")], admitted=True)

    def test_a_changed_migration_is_refused(self) -> None:
        with self.assertRaisesRegex(MigrationRefused, "another form"):
            pending(self.known, [(1, "0001_a.sql", "other")])
        with self.assertRaisesRegex(MigrationRefused, "0001_a.sql was applied in another form"):
            pending(self.known[1:], self.applied(*self.known))

    def test_shipped_migrations_are_numbered_without_gaps(self) -> None:
        self.assertEqual([one.number for one in shipped()], list(range(1, len(shipped()) + 1)))
