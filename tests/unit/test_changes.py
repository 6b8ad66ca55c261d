"""Counters in shared memory by which workers tell each other that something, such as a user, has changed."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.workers.changes import PLACES, Changes, laid_out, place_of, settled, size


class Counted(TestCase):
    def setUp(self) -> None:
        self.file = laid_out(3)
        self.addCleanup(self.file.close)
        self.one, self.other, self.third = (Changes.shared(self.file.fileno(), 3, own) for own in range(3))

    def test_at_first_nothing_has_changed(self) -> None:
        before = self.one.stamp(7)
        assert self.other.stamp(7) == before
        assert settled(before)

    def test_a_change_is_seen_by_all_workers_while_under_way_and_afterwards(self) -> None:
        before = self.other.stamp(7)
        with self.one.under_way(7):
            during = self.other.stamp(7)
            assert during != before
            assert not settled(during)
        after = self.other.stamp(7)
        assert len({before, during, after}) == 3
        assert settled(after)

    def test_a_failed_change_ends_too(self) -> None:
        before = self.one.stamp(7)
        change = self.one.under_way(7)
        change.__enter__()
        assert not change.__exit__(ValueError, ValueError(), None)
        assert settled(self.one.stamp(7))
        assert self.one.stamp(7) != before

    def test_two_changes_at_once_are_under_way_until_both_end(self) -> None:
        first, second = self.one.under_way(7), self.one.under_way(7)
        seen = [self.other.stamp(7)]
        for step in (first.__enter__, second.__enter__):
            step()
            seen.append(self.other.stamp(7))
        for one in (first, second):
            one.__exit__(None, None, None)
            seen.append(self.other.stamp(7))
        assert [settled(stamp) for stamp in seen] == [True, False, False, False, True]
        assert len(set(seen)) == len(seen)

    def test_changes_of_two_workers_do_not_cancel_each_other(self) -> None:
        with self.one.under_way(7):
            with self.third.under_way(7):
                pass
            assert not settled(self.other.stamp(7))
        assert settled(self.other.stamp(7))

    def test_a_change_that_already_happened_is_seen(self) -> None:
        before = self.other.stamp(7)
        self.one.happened(7)
        assert self.other.stamp(7) != before
        assert settled(self.other.stamp(7))

    def test_other_counters_are_not_touched(self) -> None:
        for changes in (self.one, self.other, self.third):
            changes.happened(7)
        untouched = bytes(3 * 8)
        assert [place for place in range(PLACES) if self.one.stamp(place) != untouched] == [7]

    def test_the_successor_of_a_killed_worker_settles_its_changes(self) -> None:
        self.one.happened(7)
        before = self.other.stamp(7)
        broken_off = self.one.under_way(7), self.third.under_way(8)
        for one in broken_off:
            one.__enter__()
        Changes.shared(self.file.fileno(), 3, 0)
        assert settled(self.other.stamp(7))
        assert self.other.stamp(7) != before
        # It does not settle those of other workers.
        assert not settled(self.other.stamp(8))

    def test_a_file_for_fewer_workers_is_refused(self) -> None:
        with self.assertRaises(ValueError):
            Changes.shared(self.file.fileno(), 4, 0)
        assert os.fstat(self.file.fileno()).st_size == size(3)

    def test_a_single_process_needs_no_file(self) -> None:
        alone = Changes.alone()
        before = alone.stamp(PLACES - 1)
        with alone.under_way(PLACES - 1):
            assert not settled(alone.stamp(PLACES - 1))
        assert alone.stamp(PLACES - 1) != before


class Places(TestCase):
    @given(st.text())
    def test_any_name_has_a_counter_that_depends_on_its_end_alone(self, name: str) -> None:
        assert 0 <= place_of(name) < PLACES
        assert place_of(name) == place_of(name[-3:])

    def test_user_ids_are_spread_over_the_counters(self) -> None:
        assert len({place_of(f"{number:03x}") for number in range(4096)}) > 2000
