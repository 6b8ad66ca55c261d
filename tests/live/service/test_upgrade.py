"""Two hosts on one database and one store that are restarted one after the other under load: no client notices."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from project_service.settings.model import Store
from tests.live.daemon import answers, eventually
from tests.live.loaded_service import (
    credentials,
    gone_on,
    judge,
    load_on,
    make_ledger,
    sections,
    started,
    wait_for_ledger,
    warmed_up,
)
from tests.live.mixed_load import PARTS, Load
from tests.live.services import Services


def use(load: Load, directory: Path) -> None:
    """Sends requests to this host from now on, as a proxy that is reconfigured does."""
    url = credentials(directory)["base_url"]
    eventually(lambda: answers(f"{url}/ready"), "readiness")
    load.base_url = url


def test_hosts_are_upgraded_one_after_the_other_without_errors(
    services: Services, database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__SERVER__WORKERS", "1")
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        directory.mkdir()
    with started(one, **sections(database, store_settings)) as first:
        (two / "var").mkdir(mode=0o700)
        for name in ("jwt-keys.json", "credentials.json"):
            (two / "var" / name).write_bytes((one / "var" / name).read_bytes())
        with started(two, **sections(database, store_settings)) as second:
            make_ledger(one)
            wait_for_ledger(two)
            with load_on(one) as load:
                warmed_up(load)
                since = monotonic()
                use(load, two)
                gone_on(load)
                assert first.stop() == 0, first.text
                with started(one, **sections(database, store_settings)):
                    use(load, one)
                    gone_on(load)
                    assert second.stop() == 0, second.text
                    gone_on(load)
                    load.stop()
                    judge(load, "two hosts restarted one after the other", since)
    for part in PARTS:
        assert (load.count(part, "refused"), load.count(part, "broken")) == (0, 0)
