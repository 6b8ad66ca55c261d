"""Positions in the write-ahead log, tokens of them, and what is remembered of samples and of writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.database.staleness import (
    MAX_TOKENS,
    NEVER,
    NOTHING_WANTED,
    PRIMARY,
    Position,
    Samples,
    Wanted,
    Writers,
    read_tokens,
)

MIB = 2**20
POSITIONS = st.builds(
    Position, st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1), st.integers(0, 2**64 - 1)
)


def at(lsn: int, timeline: int = 1, system: int = 7) -> Position:
    return Position(system, timeline, lsn)


class Positions(TestCase):
    def test_behind_a_header_is_the_start_of_the_page(self) -> None:
        """A standby that has replayed everything names the page's start, where nothing follows yet."""
        for lsn, shown in (
            (5 * 8192 + 24, 5 * 8192),
            (32 * MIB + 40, 32 * MIB),
            # Within a record that goes on from the page before.
            (5 * 8192 + 40, 5 * 8192 + 40),
            (5 * 8192 + 32, 5 * 8192 + 32),
            (17 * MIB + 40, 17 * MIB + 40),
            (5 * 8192, 5 * 8192),
        ):
            self.assertEqual(Position.of_primary(7, 1, lsn, 16 * MIB).lsn, shown, lsn)


class Tokens(TestCase):
    @given(st.lists(POSITIONS, max_size=MAX_TOKENS))
    def test_they_are_read_as_they_were_made(self, positions: list[Position]) -> None:
        self.assertEqual(read_tokens(", ".join(one.token for one in positions)), Wanted(tuple(positions)))

    @given(st.text(max_size=200) | st.text("0123456789abcdef.,", max_size=60))
    def test_what_is_not_a_token_of_ours_is_never_ignored(self, text: str) -> None:
        wanted = read_tokens(text)
        named = [part.strip() for part in text.split(",") if part.strip()]
        if not wanted.unknown:
            self.assertEqual(len(wanted.positions), len(named))
            self.assertEqual(
                [int(one.token.split(".")[2], 16) for one in wanted.positions],
                [int(one.split(".")[2], 16) for one in named],
            )

    def test_what_cannot_be_read_is_served_by_the_primary(self) -> None:
        readable = at(5).token
        for header in (PRIMARY, f"{readable}, {PRIMARY}", "0.0", "g.1.1", f"{readable};", "1" * 17 + ".1.1"):
            self.assertTrue(read_tokens(header).unknown, header)
            self.assertFalse(read_tokens(header).shown_by(at(2**40)), header)

    def test_of_too_many_the_primary_knows(self) -> None:
        self.assertTrue(read_tokens(", ".join([at(5).token] * (MAX_TOKENS + 1))).unknown)
        self.assertFalse(read_tokens(", ".join([at(5).token] * MAX_TOKENS)).unknown)

    def test_who_has_replayed_as_far_shows_the_write(self) -> None:
        for replayed, shown in ((at(4), False), (at(5), True), (at(6), True)):
            self.assertEqual(Wanted((at(5),)).shown_by(replayed), shown, replayed)

    def test_after_a_failover_positions_of_the_new_history_count(self) -> None:
        """What was written before it, and survived, is before the new timeline's first record."""
        self.assertTrue(Wanted((at(9, timeline=1),)).shown_by(at(8, timeline=2)))
        self.assertFalse(Wanted((at(7, timeline=2),)).shown_by(at(8, timeline=1)))

    def test_another_database_server_shows_nothing_of_it(self) -> None:
        self.assertFalse(Wanted((at(5, system=8),)).shown_by(at(9)))

    def test_without_tokens_nothing_is_wanted(self) -> None:
        self.assertEqual(read_tokens(" ,, "), NOTHING_WANTED)
        self.assertTrue(NOTHING_WANTED.shown_by(at(0)))


class Sampled(TestCase):
    def test_a_standby_is_fresh_as_of_the_newest_sample_that_it_has_reached(self) -> None:
        samples = Samples(10.0)
        for asked, lsn in ((1.0, 100), (2.0, 200), (3.0, 300)):
            self.assertTrue(samples.add(asked, at(lsn)))
        reached = [samples.fresh_as_of(at(lsn)) for lsn in (99, 100, 199, 200, 299, 300, 999)]
        self.assertEqual(reached, [NEVER, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0])

    def test_where_nothing_is_written_it_stays_fresh(self) -> None:
        samples = Samples(10.0)
        for asked in (1.0, 2.0, 30.0):
            samples.add(asked, at(100))
        self.assertEqual(samples.fresh_as_of(at(100)), 30.0)
        self.assertEqual(samples.fresh_as_of(at(99)), NEVER)

    def test_another_history_forgets_all(self) -> None:
        for other in (at(150, timeline=2), at(150, system=8), at(99)):
            samples = Samples(10.0)
            samples.add(1.0, at(100))
            self.assertFalse(samples.add(2.0, other))
            self.assertEqual(samples.fresh_as_of(other), 2.0)
            self.assertEqual(samples.fresh_as_of(at(98)), NEVER)

    def test_what_was_known_of_a_history_is_forgotten_for_good(self) -> None:
        samples = Samples(10.0)
        for asked, position in ((1.0, at(100)), (2.0, at(100, timeline=2)), (3.0, at(150))):
            samples.add(asked, position)
        self.assertEqual(samples.fresh_as_of(at(120)), NEVER)
        self.assertEqual(samples.fresh_as_of(at(150)), 3.0)

    def test_positions_of_another_history_are_not_compared(self) -> None:
        samples = Samples(10.0)
        samples.add(1.0, at(100, timeline=2))
        for replayed in (at(200, timeline=1), at(200, timeline=3), at(200, timeline=2, system=8)):
            self.assertEqual(samples.fresh_as_of(replayed), NEVER)
            self.assertFalse(samples.contradicts(replayed))

    def test_nobody_is_ahead_of_the_primary(self) -> None:
        samples = Samples(10.0)
        self.assertFalse(samples.contradicts(at(1)))
        samples.add(1.0, at(100))
        self.assertFalse(samples.contradicts(at(100)))
        self.assertTrue(samples.contradicts(at(101)))

    @given(st.lists(st.tuples(st.floats(0.01, 3), st.integers(0, 5)), max_size=300))
    def test_few_are_kept(self, steps: list[tuple[float, int]]) -> None:
        samples, now, lsn = Samples(5.0), 0.0, 0
        for seconds, written in steps:
            now, lsn = now + seconds, lsn + written
            samples.add(now, at(lsn))
            kept = [asked for asked, _ in samples._taken]
            self.assertEqual(kept, sorted(kept))
            self.assertTrue(all(asked >= now - 5.0 for asked in kept[1:]), kept)


class Writes(TestCase):
    @given(
        st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 2.0)), max_size=60),
        st.integers(1, 6),
    )
    def test_no_write_of_the_time_is_forgotten(self, steps: list[tuple[int, float]], limit: int) -> None:
        writers, now, wrote = Writers(5.0, limit), 0.0, dict[int, float]()
        for caller, seconds in steps:
            now += seconds
            writers.wrote(caller, now)
            wrote[caller] = now
            self.assertLessEqual(len(writers._written), limit)
            for one, then in wrote.items():
                # It may count as later, so that its caller is served by the primary for longer.
                self.assertTrue(writers.last(one) >= then or then < now - 5.0, (one, then))

    def test_who_has_not_written_is_not_held_up_by_others(self) -> None:
        writers = Writers(5.0)
        writers.wrote("a", 1.0)
        self.assertEqual((writers.last("a"), writers.last("b")), (1.0, NEVER))
