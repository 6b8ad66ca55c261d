"""What each request of a mix costs by part, what hosts cost by being there, and the machines for some rates:
``python -m benchmarks.scale``, with ``--help`` for more.

As root, on Linux with ``ip`` and ``haproxy``. Seconds of CPU, not of a clock: all parts share this machine, so that
what it answers in a second says nothing of several.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import bcrypt
from attrs import asdict

from benchmarks.scale import traffic
from benchmarks.scale.machines import Assumptions, Cost, as_mixed, machines, mixed
from benchmarks.scale.mix import ALL, MIX, RATES, load
from benchmarks.scale.place import place
from benchmarks.scale.traffic import CLIENTS, Traffic


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    options.add_argument("--mixed", type=int, default=5000, help="requests of the mix itself")
    options.add_argument("--hosts", type=int, default=3, help="how many there are at the end")
    options.add_argument("--idle", type=float, default=10.0, help="seconds without a request")
    options.add_argument("--core", type=float, default=1.0, help="a bought core beside one of this machine")
    options.add_argument("--save", type=Path, help="where to keep the costs")
    options.add_argument("--saved", type=Path, help="the costs of an earlier run: nothing is measured")
    given = options.parse_args()
    known = load(given.saved) if given.saved else _measured(given)
    if given.save:
        given.save.write_text(
            json.dumps({name: asdict(cost) for name, cost in known.items()}, indent=2) + "\n"
        )
    costs = {kind.name: known[kind.name] for kind in MIX}
    _show_machines(as_mixed(MIX, costs, known[ALL]), Assumptions(core=given.core))


def _measured(given: argparse.Namespace) -> dict[str, Cost]:
    """The cost of each kind by itself, and of the mix."""
    costs: dict[str, Cost] = {}
    with place() as made:
        made.start_hosts(1)
        clients = Traffic.prepared(made)
        works = [clients.works(number, Random(number)) for number in range(CLIENTS)]
        idle = traffic.idle(made, given.idle)
        print(f"{CLIENTS} clients, hosts of one worker, {_machine()}\n\n{_HEADING}")
        for kind in MIX:
            sent = [traffic.repeated(work[kind.name], given.seconds) for work in works]
            found = traffic.measured(made, sent, idle)
            costs[kind.name] = found.cost
            print(_line(f"{kind.name} ({kind.share:.1%})", found.cost, f"{found.requests}"), flush=True)
        print(_line("the mix, as the sum of these", mixed(MIX, costs)))

        def mix(requests: int) -> list[Iterator[traffic.Work]]:
            deck = traffic.deck(requests)
            return [traffic.dealt(work, deck) for work in works]

        for count in dict.fromkeys((1, given.hosts)):
            made.start_hosts(count)
            idle = traffic.idle(made, given.idle)
            # A process that has just started knows no request yet, and PostgreSQL plans each statement anew at first.
            traffic.send(mix(count * _WARM))
            found = traffic.measured(made, mix(given.mixed), idle)
            costs.setdefault(ALL, found.cost)
            print(_line(f"the mix itself, hosts: {count}", found.cost, f"{found.requests}"))
            print(_line(f"a second without requests, hosts: {count}", idle, f"{given.idle:g} s"))
            print(f"connections to PostgreSQL: {made.connections()}", flush=True)
        print(_machine())
    return costs


def _machine() -> str:
    """What another machine can be compared with."""
    began = time.process_time()
    bcrypt.hashpw(b"a long enough one", bcrypt.gensalt(12))
    took = time.process_time() - began
    return f"load average {os.getloadavg()[0]:.1f}, a bcrypt of cost 12 takes {took:.3f} s of CPU"


# Requests to a host that do not count.
_WARM = 300
_PARTS = ("proxy", "service", "postgresql", "replay", "store")
_BYTES = ("client", "postgresql", "replay", "store")
_HEADING = (
    f"{'microseconds of CPU, bytes':<42} {'requests':>9}"
    + "".join(f"{part:>11}" for part in _PARTS)
    + "".join(f"{'B ' + part:>14}" for part in _BYTES)
)


def _line(name: str, cost: Cost, count: str = "") -> str:
    seconds = "".join(f"{getattr(cost, part) * 1e6:11.0f}" for part in _PARTS)
    return f"{name:<42} {count:>9}{seconds}" + "".join(
        f"{getattr(cost, f'{part}_bytes'):14.0f}" for part in _BYTES
    )


def _show_machines(costs: dict[str, Cost], assumed: Assumptions) -> None:
    print("\nAssumed: " + ", ".join(f"{name} {value:g}" for name, value in asdict(assumed).items()))
    names = ("requests a second", "proxies", "hosts", "primaries", "standbys each", "stores", "all")
    print("".join(f"{name:>19}" for name in names))
    for rate in RATES:
        found = machines(rate, MIX, costs, assumed)
        numbers = (found.proxies, found.hosts, found.primaries, found.standbys, found.stores, found.total)
        print(f"{rate:19,}" + "".join(f"{number:19}" for number in numbers))


if __name__ == "__main__":
    main()
