"""PostgreSQL is restarted, or killed and its standby promoted, under load: nothing acknowledged is missing."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from tests.chaos.standby import Pair
from tests.live.daemon import answers, eventually
from tests.live.loaded_service import gone_on, judge, load_on, make_ledger, started, warmed_up
from tests.live.mixed_load import PARTS

ALLOWED_SECONDS = 10.0


def restart(place: Path) -> None:
    """A planned restart. Raises ``AssertionError`` where it takes too long or anything acknowledged is gone."""
    servers = place / "servers"
    servers.mkdir(mode=0o700)
    pair = Pair(servers)
    try:
        pair.start_primary()
        with started(place, f'dsn = "{pair.dsn}"'):
            make_ledger(place)
            with load_on(place) as load:
                warmed_up(load)
                since = monotonic()
                pair.restart_primary()
                print(f"PostgreSQL was back after {monotonic() - since:.2f} s")
                gone_on(load)
                eventually(lambda: answers(f"{load.base_url}/ready"), "readiness")
            judge(load, "PostgreSQL restarted as planned (pg_ctl restart -m fast)", since)
            for part in PARTS:
                assert load.count(part, "broken") == 0
                assert load.tallies[part].outage(since) < ALLOWED_SECONDS
    finally:
        pair.stop()


def fail_over(place: Path) -> None:
    """Raises ``AssertionError`` where it takes longer than allowed or anything acknowledged is gone."""
    servers = place / "servers"
    servers.mkdir(mode=0o700)
    pair = Pair(servers)
    try:
        pair.start()
        with started(place, f'dsn = "{pair.dsn}"'):
            make_ledger(place)
            with load_on(place) as load:
                warmed_up(load)
                since = monotonic()
                pair.kill_primary()
                pair.promote()
                print(f"promoted after {monotonic() - since:.2f} s")
                gone_on(load)
                eventually(lambda: answers(f"{load.base_url}/ready"), "readiness")
                load.stop()
                judge(load, "the primary killed, the standby promoted", since)
                assert all(load.tallies[part].outage(since) < ALLOWED_SECONDS for part in PARTS)
    finally:
        pair.stop()
