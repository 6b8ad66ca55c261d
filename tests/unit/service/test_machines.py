"""From the cost of a request to machines: by hand for small numbers, and by properties for all."""

from __future__ import annotations

import re
from pathlib import Path

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from benchmarks.scale.machines import (
    NAMES,
    Assumptions,
    Cost,
    Kind,
    Machines,
    as_mixed,
    machines,
    mixed,
)
from benchmarks.scale.mix import ALL, MEASURED, RATES, load
from benchmarks.scale.mix import MIX as SHIPPED

ROOT = Path(__file__).parents[3]

READ, WRITE, UPLOAD = Kind("read", 0.7, readable=True), Kind("write", 0.2), Kind("upload", 0.1, stores=True)
MIX = (READ, WRITE, UPLOAD)
COSTS = {
    "read": Cost(proxy=0.0001, service=0.001, postgresql=0.0002, client_bytes=1000),
    "write": Cost(proxy=0.0001, service=0.001, postgresql=0.0004, replay=0.0001, client_bytes=1000),
    "upload": Cost(proxy=0.0001, service=0.002, postgresql=0.0004, store=0.002, store_bytes=50_000),
}
# Round numbers: a machine of any part has ten cores, of which it may use five.
ASSUMED = Assumptions(
    busy=0.5, proxy_cores=10, host_cores=10, postgresql_cores=10, store_cores=10, on_standbys=1.0
)
seconds = st.floats(0, 0.01)
costs = st.builds(Cost, **dict.fromkeys(NAMES[:5], seconds), **dict.fromkeys(NAMES[5:], st.floats(0, 1e5)))


class Mixing(SynchronousTestCase):
    def test_the_average_is_weighted_by_the_shares(self) -> None:
        found = mixed(MIX, COSTS)
        self.assertAlmostEqual(found.service, 0.7 * 0.001 + 0.2 * 0.001 + 0.1 * 0.002)
        self.assertAlmostEqual(found.store, 0.1 * 0.002)
        self.assertAlmostEqual(found.store_bytes, 5000)

    def test_shares_that_are_not_all_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "add up to 1"):
            mixed(MIX[:2], COSTS)
        with self.assertRaisesRegex(ValueError, "add up to 1"):
            machines(1, MIX[:2], COSTS, ASSUMED)

    def test_what_is_left_is_never_less_than_nothing(self) -> None:
        self.assertEqual(Cost(service=1, store=5) - Cost(service=3, store=2), Cost(service=0, store=3))

    def test_kinds_are_raised_to_what_the_mix_costs(self) -> None:
        found = evolve(mixed(MIX, COSTS) * 1.5, replay=0.0)
        raised = as_mixed(MIX, COSTS, found)
        self.assertAlmostEqual(mixed(MIX, raised).service, found.service)
        self.assertAlmostEqual(raised["read"].service, 0.0015)
        self.assertEqual(raised["write"].replay, 0.0)
        # A part that no kind used has nothing that could be raised.
        self.assertEqual(mixed(MIX, as_mixed(MIX, COSTS, evolve(found, replay_bytes=9.0))).replay_bytes, 0.0)


class Derivation(SynchronousTestCase):
    def test_a_small_rate_needs_the_least_and_what_may_be_lost(self) -> None:
        found = machines(1, MIX, COSTS, ASSUMED)
        self.assertEqual(found, Machines(proxies=2, hosts=2, primaries=1, standbys=1, stores=3))
        self.assertEqual(found.total, 9)

    def test_hosts_follow_from_their_cores(self) -> None:
        # 1.1 ms a request: 10,000 a second use 11 cores, 5 of each machine.
        self.assertEqual(machines(10_000, MIX, COSTS, ASSUMED).hosts, 3 + 1)
        self.assertEqual(machines(10_000, MIX, COSTS, evolve(ASSUMED, core=2.0)).hosts, 2 + 1)
        self.assertEqual(machines(10_000, MIX, COSTS, evolve(ASSUMED, spare=3)).hosts, 3 + 3)

    def test_one_primary_does_it_all_while_it_can(self) -> None:
        # 0.26 ms a request: 5 cores are 19,230 requests a second.
        found = machines(19_000, MIX, COSTS, ASSUMED)
        self.assertEqual((found.primaries, found.standbys), (1, 1))

    def test_beyond_that_standbys_read(self) -> None:
        # 20,000 a second: writes use 2.4 cores, and reads 2.8, of a standby's 5 less 0.4 for replaying.
        found = machines(20_000, MIX, COSTS, ASSUMED)
        self.assertEqual((found.primaries, found.standbys), (1, 1 + 1))
        # With half of the reads on the primary it is full again.
        found = machines(40_000, MIX, COSTS, evolve(ASSUMED, on_standbys=0.5))
        self.assertEqual((found.primaries, found.standbys), (2, 1 + 1))

    def test_what_a_primary_cannot_write_is_divided(self) -> None:
        # 100,000 a second: writes use 12 cores, 5 of each primary; reads 14, and each standby replays 2/3 of a core.
        found = machines(100_000, MIX, COSTS, ASSUMED)
        self.assertEqual((found.primaries, found.standbys), (3, 2 + 1))

    def test_a_standby_that_only_replays_cannot_read(self) -> None:
        slow = {**COSTS, "write": evolve(COSTS["write"], replay=0.002)}
        with self.assertRaisesRegex(ValueError, "nothing left for reads"):
            machines(20_000, MIX, slow, ASSUMED)

    def test_each_copy_of_an_object_costs_the_store(self) -> None:
        # 0.2 ms a request and copy.
        self.assertEqual(
            machines(100_000, MIX, COSTS, evolve(ASSUMED, copies=1, network_bits=1e12)).stores, 5
        )
        self.assertEqual(
            machines(100_000, MIX, COSTS, evolve(ASSUMED, copies=2, network_bits=1e12)).stores, 9
        )

    def test_a_network_can_be_what_is_full(self) -> None:
        # 5 kB a request and copy: 100,000 a second are 8 Gbit/s, and a machine may use half of one.
        found = machines(100_000, MIX, COSTS, evolve(ASSUMED, network_bits=1e9))
        self.assertEqual(found.stores, 16 + 1)

    @given(st.floats(1, 1e5), st.tuples(costs, costs, costs))
    def test_more_requests_need_no_fewer_machines(self, rate: float, three: tuple[Cost, Cost, Cost]) -> None:
        found = dict(zip(("read", "write", "upload"), three, strict=True))
        try:
            few, many = (machines(times * rate, MIX, found, ASSUMED) for times in (1, 2))
        except ValueError:
            return
        for part in ("proxies", "hosts", "primaries", "stores"):
            self.assertGreaterEqual(getattr(many, part), getattr(few, part))
        self.assertGreaterEqual(many.total, few.total)

    @given(st.floats(1, 1e5), st.tuples(costs, costs, costs))
    def test_no_part_is_busier_than_it_may_be(self, rate: float, three: tuple[Cost, Cost, Cost]) -> None:
        found = dict(zip(("read", "write", "upload"), three, strict=True))
        try:
            made = machines(rate, MIX, found, ASSUMED)
        except ValueError:
            return
        second = mixed(MIX, found) * rate
        self.assertLessEqual(second.service, (made.hosts - 1) * 5.0001)
        self.assertLessEqual(second.proxy, (made.proxies - 1) * 5.0001)
        servers = made.primaries * (made.standbys if made.standbys > 1 else 1)
        self.assertLessEqual(second.postgresql, (servers + made.primaries) * 5.0001)


class Page(SynchronousTestCase):
    """docs/operating/scaling.rst has what was measured, and what follows from it."""

    text = (ROOT / "docs" / "operating" / "scaling.rst").read_text("utf-8")
    measured = load(MEASURED)

    def rows(self, name: str, figures: int) -> list[list[str]]:
        """The figures of the rows of a table whose first cell is ``name``."""
        row = rf"^{re.escape(name)}" + r" +([\d,.]+)" * figures + "$"
        return [list(found) for found in re.findall(row, self.text, re.MULTILINE)]

    def test_what_was_measured(self) -> None:
        for name in (*(kind.name for kind in SHIPPED), ALL):
            cost = self.measured[name]
            parts = (cost.proxy, cost.service, cost.postgresql, cost.replay, cost.store)
            share = 100 * sum(kind.share for kind in SHIPPED if name in {kind.name, ALL})
            shown = [f"{share:.4g}", *(f"{seconds * 1e6:,.0f}" for seconds in parts)]
            self.assertEqual(self.rows(name, 6), [shown])

    def test_the_machines(self) -> None:
        raised = as_mixed(SHIPPED, self.measured, self.measured[ALL])
        for rate in RATES:
            made = machines(rate, SHIPPED, raised, Assumptions())
            found = (made.proxies, made.hosts, made.primaries, made.standbys, made.stores, made.total)
            self.assertEqual(self.rows(f"{rate:,}", 6), [[str(number) for number in found]])

    def test_the_assumptions(self) -> None:
        assumed = Assumptions()
        for words in (
            f"{assumed.busy:.0%}",
            f"{assumed.host_cores} cores",
            f"{assumed.postgresql_cores} cores",
            f"{assumed.network_bits / 1e9:.0f} Gbit/s",
            f"{assumed.on_standbys:.0%}",
        ):
            self.assertIn(words, self.text)
