"""Fixtures that give each contract suite the fake and the real implementation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta

import pytest

from project_service.auth.lookups import Lookups
from project_service.auth.postgres import Repository
from project_service.storage.assemble import Rows, sql_rows
from tests.contracts.storage.rows import bucket_b
from tests.fakes.auth import MemoryRepository, in_place_of_sql, lookups_of
from tests.fakes.storage import START, Tables
from tests.live.services import pool_on, wait


@pytest.fixture(params=["fake", "postgresql"])
def repository(request: pytest.FixtureRequest) -> Iterator[Repository]:
    if request.param == "fake":
        yield in_place_of_sql(MemoryRepository())
        return
    pool = pool_on(request.getfixturevalue("module_database"), 8)
    yield Repository(pool)
    wait(pool.close)


@pytest.fixture(params=["memory", "postgresql"])
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    if request.param == "memory":
        ticks = itertools.count()
        made = Tables(lambda: START + timedelta(milliseconds=next(ticks))).rows()
        wait(lambda: bucket_b(made))
        yield made
        return
    pool = pool_on(request.getfixturevalue("database"), 8)
    made = sql_rows(pool)
    wait(lambda: bucket_b(made))
    yield made
    wait(pool.close)


@pytest.fixture
def lookups(repository: Repository) -> Lookups:
    """Of the same database as ``repository``."""
    fake: object = repository
    if isinstance(fake, MemoryRepository):
        return lookups_of(fake)
    return Lookups(repository.database)
