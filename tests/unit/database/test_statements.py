"""Which statements are kept prepared on a connection, and which PostgreSQL is told to drop."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from project_service.database.pipeline import Statements, may_be_stale


class Preparing(SynchronousTestCase):
    def setUp(self) -> None:
        self.statements = Statements(3)

    def prepared(self, text: str, role: str = "anon") -> str:
        """The name under which ``text`` is prepared, now or before."""
        known = self.statements.known.get((role, text)) or self.statements.add(role, text)
        return known.name.decode()

    def test_a_statement_is_prepared_once_for_each_role(self) -> None:
        """Where PostgreSQL inlines a function, it checks rights when it plans."""
        names = [self.prepared(text, role) for text, role in (("a", "x"), ("a", "y"), ("b", "x"), ("a", "x"))]
        self.assertEqual(names, ["service_1", "service_2", "service_3", "service_1"])
        self.assertEqual(self.statements.unwanted, [])

    def test_a_new_schema_cache_version_drops_all_statements(self) -> None:
        self.prepared("a")
        self.prepared("b")
        self.statements.use_version(2)
        self.assertEqual((self.statements.known, self.statements.version), ({}, 2))
        self.assertEqual(self.statements.take_unwanted(), [b"service_1", b"service_2"])
        self.assertEqual(self.statements.take_unwanted(), [], "each is dropped once")
        self.assertEqual(self.prepared("a"), "service_3", "a name is never used again")

    def test_the_oldest_statement_makes_room(self) -> None:
        for text in "abcd":
            self.prepared(text)
        self.assertEqual([text for _, text in self.statements.known], ["b", "c", "d"])
        self.assertEqual(self.statements.take_unwanted(), [b"service_1"])

    def test_a_forgotten_statement_is_dropped_once_and_prepared_anew(self) -> None:
        self.prepared("a")
        stale = self.statements.known["anon", "a"]
        for _ in range(2):
            self.statements.forget(stale)
        self.assertEqual(self.prepared("a"), "service_2")
        self.assertEqual(self.statements.take_unwanted(), [b"service_1"])

    def test_which_errors_may_be_due_to_preparing(self) -> None:
        for code, stale in (
            ("26000", True),
            ("0A000", True),
            ("42883", True),
            ("XX000", True),
            ("23505", False),
            ("42501", False),
            ("57014", False),
            (None, False),
        ):
            self.assertIs(may_be_stale(code), stale, code)
