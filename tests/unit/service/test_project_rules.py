"""Which SQLSTATEs mean that a rule of the project refuses a request to authentication or storage."""

from __future__ import annotations

import psycopg2
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.pipeline import Diagnosis, _refused
from project_service.project_rules import translate


def refused(
    code: str, message: str | None = "It is refused.", constraint: str | None = None
) -> psycopg2.Error:
    return _refused(code)(Diagnosis(message, "Key (id)=(5) exists.", None, constraint))


class Rules(SynchronousTestCase):
    def test_constraints_values_and_raised_errors(self) -> None:
        for codes, status in (
            ("23505 23P01 23503 23001 23000", 409),
            ("23514 23502 22P02 22003 22007 22001", 422),
            ("P0001", 400),
        ):
            for code in codes.split():
                error = translate(refused(code))
                assert error is not None, code
                self.assertEqual((error.status, error.code), (status, "refused_by_project"), code)
                self.assertEqual((error.message, error.why), ("It is refused.", f"It is refused. ({code})"))

    def test_the_message_names_the_constraint_once(self) -> None:
        for message, expected in (
            ('violates check constraint "adult"', 'violates check constraint "adult"'),
            ("Too young.", "Too young. (adult)"),
            (None, "A rule of the project refuses this change. (adult)"),
        ):
            error = translate(refused("23514", message, "adult"))
            self.assertEqual(error and error.message, expected)

    def test_a_long_message_is_shortened(self) -> None:
        error = translate(refused("P0001", "x" * 100_000))
        self.assertEqual(error and len(error.message), 1000)

    def test_what_the_database_errors_mean_stays(self) -> None:
        for code, expected in (("57014", "database_unavailable"), ("40P01", "overloaded")):
            error = translate(refused(code))
            self.assertEqual(error and (error.status, error.code), (503, expected), code)
        error = translate(refused("PT418"))
        self.assertEqual(error and (error.status, error.why), (418, None))
        for other in (refused("42601"), refused("P0002"), KeyError("23505"), psycopg2.OperationalError()):
            self.assertIsNone(translate(other), other)
