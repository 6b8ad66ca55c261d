"""Which SQLSTATEs mean that the database is away or overloaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import psycopg2
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.connection import DatabaseGone
from project_service.database.errors import describe, translate


def refused(code: str | None) -> psycopg2.Error:
    fault = psycopg2.Error("the server's message")
    fault.__setstate__({"pgcode": code})
    return fault


class NotNow(SynchronousTestCase):
    def test_sqlstates_and_classes_that_mean_503(self) -> None:
        for codes, expected in {
            "57014 57P01 57P02 57P03 57P05 25006 25P03 25P04": "database_unavailable",
            "08006 53300 58030 XX000": "database_unavailable",
            "55P03 40001 40P01": "overloaded",
        }.items():
            for code in codes.split():
                error = translate(refused(code))
                assert error is not None
                self.assertEqual((error.status, error.code), (503, expected), code)
                self.assertIn("Retry-After", dict(error.headers))
                self.assertEqual(error.why, f"no reason given ({code})")

    def test_a_lost_connection_is_database_unavailable(self) -> None:
        error = translate(DatabaseGone("timed out"))
        self.assertEqual((error and error.code, error and error.why), ("database_unavailable", "timed out"))

    def test_long_error_messages_are_shortened_for_the_log(self) -> None:
        fault = SimpleNamespace(diag=SimpleNamespace(message_primary="x" * 1_000_000), pgcode="XX000")
        self.assertEqual(describe(cast(psycopg2.Error, fault)), "x" * 1000 + " (XX000)")

    def test_a_trigger_may_choose_any_status_of_a_refusal(self) -> None:
        for status, header in ((400, None), (401, "WWW-Authenticate"), (429, "Retry-After"), (499, None)):
            error = translate(refused(f"PT{status}"))
            assert error is not None
            self.assertEqual((error.status, error.code), (status, "refused_by_project"))
            self.assertEqual([name for name, _ in error.headers], [header] if header else [])
        for code in ("PT200", "PT304", "PT500", "PT503", "PT4", "PT40x"):
            self.assertIsNone(translate(refused(code)), code)

    def test_any_other_failure_is_not_an_outage(self) -> None:
        for fault in (refused("23505"), refused("57000"), refused("42601"), refused(None), KeyError("57014")):
            self.assertIsNone(translate(fault), fault)
