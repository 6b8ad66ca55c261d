"""Fixtures that several files of live tests use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from project_service.database.connecting import connector
from project_service.database.pool import Pool
from project_service.http import health
from project_service.settings.model import Store
from project_service.storage import removal, resumables
from project_service.storage.assemble import Rows, assemble, sql_rows
from tests.contracts.storage.rows import bucket_b
from tests.live.application import serving, settings_for
from tests.live.services import held_open, pool_on, wait
from tests.live.storage.service import Running


@pytest.fixture(autouse=True)
def metrics_as_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of applications in the test's own process: tests compare numbers from before a request with those after it, and
    on a busy machine ``/metrics`` shows the same ones for seconds."""
    monkeypatch.setattr(health, "METRICS_REUSE", 0)


@pytest.fixture(autouse=True)
def bytes_that_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applications in the test's own process do not leave bytes to the sweeper because the machine stood still for as
    long as the store may take to delete them."""
    for module in (removal, resumables):
        monkeypatch.setattr(module, "REMOVAL_TIMEOUT_SECONDS", 60.0)


@pytest.fixture(scope="module")
def running(
    module_database: str,
    store_settings: Store,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    from twisted.internet import reactor

    data_dir = Path(tmp_path_factory.mktemp("storage"))
    settings = settings_for(module_database, store_settings, data_dir)
    with held_open(serving(settings)) as api:
        pool = Pool(connector(reactor, settings), 2, 5.0, reactor)
        behind = assemble(reactor, settings.storage, settings.store, pool)
        session = wait(lambda: api.sign_up("storage@example.test"))
        yield Running(api, str(session["access_token"]), behind)
        wait(behind.stop)
        wait(pool.close)


@pytest.fixture
def rows(database: str) -> Iterator[Rows]:
    """The rows of storage, with a bucket ``b``."""
    pool = pool_on(database)
    made = sql_rows(pool)
    wait(lambda: bucket_b(made))
    yield made
    wait(pool.close)
