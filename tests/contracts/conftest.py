"""The fake and the real thing, for one suite each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta

import pytest

from project_service.auth.assemble import sql_stores
from project_service.auth.ports import Stores
from project_service.database import dsn as dsns
from project_service.database.connect import Connector
from project_service.database.pool import Pool
from project_service.storage.assemble import Rows, sql_rows
from tests.auth_fakes import MemoryStore
from tests.contracts.rows import bucket_b
from tests.live.services import wait
from tests.storage_fakes import START, Tables


@pytest.fixture(params=["fake", "postgresql"])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    if request.param == "fake":
        yield MemoryStore().stores()
        return
    from twisted.internet import reactor

    dsn = request.getfixturevalue("module_database")
    pool = Pool(Connector(reactor, dsns.parse(dsn), 10.0, timezone="UTC"), 8, 5.0, reactor)
    yield sql_stores(pool)
    wait(pool.close)


@pytest.fixture(params=["memory", "postgresql"])
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    if request.param == "memory":
        ticks = itertools.count()
        made = Tables(lambda: START + timedelta(milliseconds=next(ticks))).rows()
        wait(lambda: bucket_b(made))
        yield made
        return
    from twisted.internet import reactor

    connector = Connector(reactor, dsns.parse(request.getfixturevalue("database")), 30, timezone="UTC")
    pool = Pool(connector, 8, 10.0, reactor)
    made = sql_rows(pool)
    wait(lambda: bucket_b(made))
    yield made
    wait(pool.close)
