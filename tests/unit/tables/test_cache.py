"""The bounded cache of what was made for earlier requests: it keeps recently used entries and stays within its
bounds."""

from __future__ import annotations

from weakref import WeakSet

from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.bounded_cache import MOST, BoundedCache


class Keeping(SynchronousTestCase):
    def setUp(self) -> None:
        self.made: list[int] = []

    def ask(self, recent: BoundedCache[str], key: int) -> str:
        def make() -> str:
            self.made.append(key)
            return f"of {key}"

        return recent.made(key, make)

    def test_a_frequently_used_entry_is_never_evicted(self) -> None:
        recent = BoundedCache[str](10)
        for key in range(1, 1000):
            self.assertEqual(self.ask(recent, key), f"of {key}")
            self.assertEqual(self.ask(recent, 0), "of 0")
        self.assertEqual(self.made.count(0), 1)

    def test_the_number_of_entries_is_bounded(self) -> None:
        class Made:
            pass

        recent, alive = BoundedCache[Made](10), WeakSet[Made]()
        for key in range(100):
            alive.add(recent.made(key, Made))
            self.assertLessEqual(len(alive), 10)
        self.assertGreaterEqual(len(alive), 5)

    def test_values_and_keys_above_the_size_limit_are_not_kept(self) -> None:
        for recent, key in (
            (BoundedCache[str](10, lambda value: MOST + 1), "key"),
            (BoundedCache[str](10), "x" * MOST),
        ):
            for _ in range(2):
                self.assertEqual(recent.made(key, lambda: "made"), "made")
                self.assertIsNone(recent.get(key))
