"""The faults that take too long for every test run: ``make chaos``, or ``python -m tests.chaos [fault…]``.

Each prints what was sent, acknowledged, refused and lost, and for how long a part acknowledged nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random, SystemRandom
from tempfile import TemporaryDirectory

from tests.chaos.apart import callers_apart
from tests.chaos.challenges import kill_during_challenges
from tests.chaos.failover import fail_over, restart
from tests.chaos.kills import Rounds
from tests.chaos.overload import overload
from tests.chaos.readers import readers
from tests.chaos.store_cluster import lose_a_volume_server
from tests.chaos.three_hosts import walk
from tests.chaos.uploads import kill_during_uploads
from tests.live.loaded_service import make_ledger, started
from tests.live.workers.shared_state import UNLIMITED_LOGINS, SharedState


def asked_for(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    # Not by `choices`: without arguments, argparse would take the list that is the default for one choice.
    parser.add_argument(
        "faults", nargs="*", type=_fault, default=list(FAULTS), metavar=f"{{{','.join(FAULTS)}}}"
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3000, help="of what both workers share")
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6))
    return parser.parse_args(arguments)


def _fault(name: str) -> str:
    if name not in FAULTS:
        raise argparse.ArgumentTypeError(f"there is no {name}")
    return name


def whichever_worker(data_dir: Path, random: Random, steps: int) -> None:
    """Runs without any fault: what one worker acknowledged, the other knows."""
    os.environ.update([UNLIMITED_LOGINS])
    with started(data_dir, storage="") as daemon:
        make_ledger(data_dir)
        SharedState(daemon, data_dir, random).go(steps)
    print(f"  {steps} steps, and every worker answered the same")


Fault = Callable[[Path, argparse.Namespace], None]
BY_NAME: Mapping[str, Fault] = {
    "restart": lambda data_dir, asked: restart(data_dir),
    "failover": lambda data_dir, asked: fail_over(data_dir),
    "cluster": lambda data_dir, asked: lose_a_volume_server(data_dir),
    "overload": lambda data_dir, asked: overload(data_dir, asked.seconds),
    "shared": lambda data_dir, asked: whichever_worker(data_dir, Random(asked.seed), asked.steps),
    "apart": lambda data_dir, asked: callers_apart(data_dir, Random(asked.seed), asked.rounds),
    "kills": lambda data_dir, asked: Rounds(data_dir, Random(asked.seed)).run(asked.rounds),
    "uploads": lambda data_dir, asked: kill_during_uploads(data_dir, Random(asked.seed), asked.rounds),
    "challenges": lambda data_dir, asked: kill_during_challenges(
        data_dir, Random(asked.seed), max(1, asked.rounds // 2)
    ),
    "readers": lambda data_dir, asked: readers(data_dir, Random(asked.seed), max(1, asked.rounds // 5)),
    "hosts": lambda data_dir, asked: walk(data_dir),
}
FAULTS = tuple(BY_NAME)


def main() -> int:
    asked = asked_for(sys.argv[1:])
    failed = False
    for fault in asked.faults:
        print(f"==> {fault} (seed {asked.seed})", flush=True)
        with TemporaryDirectory(prefix="project-service-chaos-") as data_dir:
            try:
                BY_NAME[fault](Path(data_dir), asked)
            except AssertionError as wrong:
                failed = True
                print(f"FAILED: {wrong}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
