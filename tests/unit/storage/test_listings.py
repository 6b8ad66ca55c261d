"""What stands in several places of a listing is the same in all: its members, and what it is sorted by."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from twisted.trial.unittest import TestCase

from project_service.storage.routes.descriptions import METADATA_MEMBERS
from project_service.storage.rows.listing import SORTED_BY
from project_service.storage.values import SORTS, ObjectRow

ROW = ObjectRow("b", "k", UUID(int=1), 5, "text/plain", "tag", None, datetime(2026, 11, 28, tzinfo=UTC))


class Listings(TestCase):
    def test_an_object_has_the_members_that_are_described(self) -> None:
        self.assertEqual(ROW.as_json().keys(), METADATA_MEMBERS.keys())

    def test_the_database_knows_every_order(self) -> None:
        self.assertEqual(SORTED_BY.keys(), SORTS.keys())

    def test_a_value_of_a_page_token_is_one_that_the_database_can_compare(self) -> None:
        for by, text, read in (
            ("key", "anything", ""),
            ("size", "12", "12"),
            ("last_modified", "2026-11-28T01:00:00+01:00", "2026-11-28T00:00:00+00:00"),
        ):
            self.assertEqual(SORTS[by](text), read)
        for by, text in (
            ("size", "-1"),
            ("size", str(2**63)),
            ("size", "1.5"),
            ("last_modified", "2026-11-28"),
            ("last_modified", "now"),
        ):
            self.assertRaises(ValueError, SORTS[by], text)
