"""PostgreSQL is restarted, or killed and its standby promoted, under load: nothing acknowledged is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from tests.chaos.standby import Pair
from tests.live.daemon import answers, eventually
from tests.live.loaded_service import gone_on, judge, load_on, make_ledger, started, warmed_up
from tests.live.mixed_load import PARTS, Load

ALLOWED_SECONDS = 10.0


def restart(directory: Path) -> None:
    """A planned restart. Raises ``AssertionError`` where it takes too long or anything acknowledged is gone."""
    with under_load(directory, Pair.start_primary) as (pair, load):
        since = monotonic()
        pair.restart_primary()
        print(f"PostgreSQL was back after {monotonic() - since:.2f} s")
        recovered(load, "PostgreSQL restarted as planned (pg_ctl restart -m fast)", since)
        for part in PARTS:
            assert load.count(part, "broken") == 0


def fail_over(directory: Path) -> None:
    """Raises ``AssertionError`` where it takes longer than allowed or anything acknowledged is gone."""
    with under_load(directory, Pair.start) as (pair, load):
        since = monotonic()
        pair.kill_primary()
        pair.promote()
        print(f"promoted after {monotonic() - since:.2f} s")
        recovered(load, "the primary killed, the standby promoted", since)


@contextmanager
def under_load(directory: Path, start: Callable[[Pair], None]) -> Iterator[tuple[Pair, Load]]:
    """The service on servers that ``start`` starts, and what keeps it busy."""
    servers = directory / "servers"
    servers.mkdir(mode=0o700)
    pair = Pair(servers)
    try:
        start(pair)
        with started(directory, f'dsn = "{pair.dsn}"'):
            make_ledger(directory)
            with load_on(directory) as load:
                warmed_up(load)
                yield pair, load
    finally:
        pair.stop()


def recovered(load: Load, fault: str, since: float) -> None:
    """Ends the load when all goes on, and judges it."""
    gone_on(load)
    eventually(lambda: answers(f"{load.base_url}/ready"), "readiness")
    load.stop()
    judge(load, fault, since)
    assert all(load.tallies[part].outage(since) < ALLOWED_SECONDS for part in PARTS)
