"""A service as a process of its own, with everything embedded, short timeouts, and a table for the mixed load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from project_service.settings.model import Store
from tests.live.daemon import ROOT, Daemon, eventually
from tests.live.mixed_load import LEDGER, PACE_SECONDS, ROWS, VERIFYING_SECONDS, Client, Keys, Load
from tests.live.sql import run_sql

# Short, so that an outage of a second shows as 503 and not as a slow response.
HURRIED_SECONDS = 0.5
# Where nothing is to be refused: a busy machine stands still for seconds, and a migration changes a table that
# requests wait for.
PATIENT_SECONDS = 10.0
CONFIG = """
[server]
workers = 2
shutdown_seconds = 5
[database]
acquire_timeout_seconds = {acquire_seconds}
{database}
[auth]
bcrypt_cost = 4
signups_max_per_address = 0
login_failures_max_per_address = 0
[storage]
{storage}
"""
# So that a check reads from the store what it has acknowledged, and not from the service's cache.
NOTHING_KEPT = "cache_bytes = 0\n"
# What one request may take with these settings: the acquire timeout, or the store client's attempts and pauses, and
# a machine that is busy with the recovery.
LONGEST_SECONDS = 12.0


@contextmanager
def started(
    directory: Path,
    database: str = "",
    more: str = "",
    pythonpath: str = str(ROOT),
    storage: str = NOTHING_KEPT,
    options: Sequence[str] = (),
    acquire_seconds: float = HURRIED_SECONDS,
) -> Iterator[Daemon]:
    """The service on ``directory / "var"``. ``database`` and ``storage`` are for the sections of these names,
    ``more`` for others, ``options`` for the command line.
    """
    config = directory / "faults.toml"
    text = CONFIG.format(database=database, storage=storage, acquire_seconds=acquire_seconds)
    config.write_text(text + more)
    with Daemon(directory / "var", "--config", str(config), *options, pythonpath=pythonpath) as daemon:
        daemon.wait_until_ready()
        yield daemon


def sections(dsn: str, store: Store) -> dict[str, Any]:
    """What ``started`` is given for a database and a store that are there already, and stay."""
    assert store.secret_access_key is not None
    named = {"endpoint_url": store.endpoint_url, "bucket": store.bucket, "access_key_id": store.access_key_id}
    named["secret_access_key"] = store.secret_access_key.reveal()
    lines = "\n".join(f'{name} = "{value}"' for name, value in named.items())
    return {
        # Up to three services at once, on a server that others use too.
        "database": f'dsn = "{dsn}"\npool_size = 4',
        "more": f"[store]\n{lines}\n[stages.dev.databases.main]\npool_size = 4\n",
        "acquire_seconds": PATIENT_SECONDS,
    }


def make_ledger(directory: Path) -> None:
    """Create the load's table, and wait until every worker knows it."""
    run_sql(credentials(directory)["dsn"], LEDGER + "; notify pgrst, 'reload schema'")
    wait_for_ledger(directory)


def wait_for_ledger(directory: Path) -> None:
    """Wait until another service than the one that made the table knows it."""
    known = credentials(directory)
    eventually(lambda: _knows_the_ledger(known), "the schema cache's reload in every worker")


def credentials(directory: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / "var" / "credentials.json").read_text())
    return found


def _knows_the_ledger(known: dict[str, str]) -> bool:
    # A new connection each time, so that both workers are asked.
    asked = [
        requests.get(
            known["base_url"] + ROWS,
            headers={"X-Service-Key": known["service_key"], "Connection": "close"},
            timeout=VERIFYING_SECONDS,
        )
        for _ in range(20)
    ]
    return all(one.status_code == 200 for one in asked)


def load_on(
    directory: Path,
    clients: int = 2,
    pace: float = PACE_SECONDS,
    more: Mapping[str, type[Client]] | None = None,
) -> Load:
    known = credentials(directory)
    return Load(known["base_url"], Keys(known["anon_key"], known["service_key"]), clients, pace, more)


def warmed_up(load: Load) -> None:
    eventually(
        lambda: load.has_gone_on(dict.fromkeys(load.tallies, 0), 10), "a first acknowledgement of each kind"
    )


def gone_on(load: Load) -> None:
    before = load.acknowledged()
    eventually(lambda: load.has_gone_on(before), "acknowledgements of all parts")


def judge(load: Load, fault: str, since: float) -> None:
    """Print what happened. Call it when the load has ended."""
    lost = load.lost()
    print("\n" + load.report(fault, since, lost))  # noqa: T201  # pytest shows it with -s or -rP
    assert lost == []
    assert load.wrong() == []
    assert all(tally.longest < LONGEST_SECONDS for tally in load.tallies.values())
