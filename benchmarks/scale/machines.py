"""How many machines a rate of requests takes, from what each kind of request costs. Pure.

The rules:

* A part gets as many cores as it uses at the rate, divided by the share of them that may be busy; as many machines as
  that is, or as its network takes; and those that may be lost.
* Writes go to a primary, and so do the reads that its standbys do not answer. What one primary cannot do is divided
  among several databases, each with standbys of its own.
* Every standby replays all that its primary writes, and answers reads with what is left of it.
* A copy of an object costs the store what the first one does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve, fields, frozen


@frozen
class Cost:
    """Of one request: seconds of CPU by part, and bytes on the network by the part that is at the other end, both
    directions together."""

    proxy: float = 0.0
    service: float = 0.0
    postgresql: float = 0.0
    # What each standby takes to replay it, and is sent for that.
    replay: float = 0.0
    store: float = 0.0
    client_bytes: float = 0.0
    postgresql_bytes: float = 0.0
    replay_bytes: float = 0.0
    store_bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in NAMES))

    def __sub__(self, other: Cost) -> Cost:
        """Never less than nothing: what a machine does when idle differs from one second to the next."""
        return Cost(*(max(0.0, getattr(self, name) - getattr(other, name)) for name in NAMES))

    def __mul__(self, times: float) -> Cost:
        return Cost(*(getattr(self, name) * times for name in NAMES))


NAMES = tuple(one.name for one in fields(Cost))


@frozen
class Kind:
    """A kind of request: which ``share`` of the mix it is, whether a standby may answer it, and whether it writes to
    the store."""

    name: str
    share: float
    readable: bool = False
    stores: bool = False


@frozen
class Assumptions:
    """What is not measured. ``core`` is what a core of the bought machines does beside one of the measured machine;
    ``busy`` the share of a machine's cores, or of its network, that is used at the rate."""

    core: float = 1.0
    busy: float = 0.5
    proxy_cores: int = 8
    host_cores: int = 8
    postgresql_cores: int = 32
    store_cores: int = 8
    network_bits: float = 10e9
    # Of the reads that standbys may answer. The others are of callers who have just written.
    on_standbys: float = 0.9
    copies: int = 2
    # How many machines of each part may be lost.
    spare: int = 1


@frozen
class Machines:
    """For one rate. Each of ``primaries`` has ``standbys``."""

    proxies: int
    hosts: int
    primaries: int
    standbys: int
    stores: int

    @property
    def total(self) -> int:
        return self.proxies + self.hosts + self.primaries * (1 + self.standbys) + self.stores


# A store that keeps two copies of everything has room for a new second one when one of its servers is lost.
LEAST_STORES = 3


def mixed(kinds: Sequence[Kind], costs: Mapping[str, Cost]) -> Cost:
    """What a request of the mix costs, on average. Raises ``ValueError`` if the shares do not add up to 1."""
    if not math.isclose(sum(kind.share for kind in kinds), 1.0, abs_tol=1e-9):
        raise ValueError("the shares of the mix do not add up to 1")
    return _sum(costs[kind.name] * kind.share for kind in kinds)


def as_mixed(kinds: Sequence[Kind], costs: Mapping[str, Cost], found: Cost) -> dict[str, Cost]:
    """``costs`` with each part multiplied alike, so that the mix costs what was ``found`` when it was sent: a kind
    costs more among others than by itself, when every cache has what it needs."""
    alone = mixed(kinds, costs)
    times = {name: _ratio(getattr(found, name), getattr(alone, name)) for name in NAMES}
    return {
        kind: Cost(**{name: getattr(cost, name) * times[name] for name in NAMES})
        for kind, cost in costs.items()
    }


def _ratio(found: float, alone: float) -> float:
    return found / alone if alone else 1.0


def machines(rate: float, kinds: Sequence[Kind], costs: Mapping[str, Cost], assumed: Assumptions) -> Machines:
    """For ``rate`` requests a second. Raises ``ValueError`` as ``mixed``."""
    copied = {
        kind.name: _copied(costs[kind.name], assumed.copies) if kind.stores else costs[kind.name]
        for kind in kinds
    }
    second = mixed(kinds, copied) * rate
    reads = _sum(copied[kind.name] * kind.share for kind in kinds if kind.readable) * (
        rate * assumed.on_standbys
    )
    through_hosts = second.client_bytes + second.postgresql_bytes + second.store_bytes

    def needed(cpu_seconds: float, cores: int, bytes_: float) -> int:
        return _needed(cpu_seconds, cores, bytes_, assumed)

    primaries, standbys = _databases(second, reads, assumed)
    return Machines(
        proxies=needed(second.proxy, assumed.proxy_cores, 2 * second.client_bytes) + assumed.spare,
        hosts=needed(second.service, assumed.host_cores, through_hosts) + assumed.spare,
        primaries=primaries,
        standbys=standbys,
        stores=max(
            LEAST_STORES, needed(second.store, assumed.store_cores, second.store_bytes) + assumed.spare
        ),
    )


def _databases(second: Cost, reads: Cost, assumed: Assumptions) -> tuple[int, int]:
    """Primaries, and standbys of each. While one primary can do everything, standbys only stand by."""

    def needed(cost: Cost) -> int:
        return _needed(cost.postgresql, assumed.postgresql_cores, cost.postgresql_bytes, assumed)

    if needed(second) <= 1:
        return 1, assumed.spare
    primaries = needed(second - reads)
    # A standby has the cores that its primary has, and spends some of them on replaying.
    replaying = second.replay / primaries
    left = assumed.postgresql_cores * assumed.busy * assumed.core - replaying
    if left <= 0:
        raise ValueError("a standby that replays this much has nothing left for reads")
    of_cores = math.ceil(reads.postgresql / primaries / left)
    return primaries, max(of_cores, needed(reads * (1 / primaries))) + assumed.spare


def _copied(cost: Cost, copies: int) -> Cost:
    return evolve(cost, store=cost.store * copies, store_bytes=cost.store_bytes * copies)


def _needed(cpu_seconds: float, cores: int, bytes_: float, assumed: Assumptions) -> int:
    """How many machines do what takes so much of a second."""
    of_cores = cpu_seconds / (cores * assumed.busy * assumed.core)
    # A network card sends and receives at the same time; the larger half may be nearly all.
    of_network = bytes_ * 8 / (assumed.network_bits * assumed.busy)
    return max(1, math.ceil(max(of_cores, of_network)))


def _sum(costs: Iterable[Cost]) -> Cost:
    total = Cost()
    for cost in costs:
        total += cost
    return total
