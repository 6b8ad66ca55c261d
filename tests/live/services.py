"""One real PostgreSQL and one real SeaweedFS for the whole pytest run, and fresh databases and buckets on them.

Fixtures (``tests/conftest.py`` offers them to every test):

``database``         DSN of a fresh, migrated database, one per test
``module_database``  the same, one per module
``empty_database``   DSN of a fresh, empty database, one per test
``store_settings``   ``settings.Store`` with a bucket of its own, one per module
``services``         what runs: ``.running``, ``.embedded``, ``.database(template)``
``with_database``    makes a data directory that has its database already, for servers that a test starts itself

``pool_on`` and ``store_client`` are for tests of parts that work on them without a service.

A fixture that is a plain ``def`` can wait for the reactor by ``wait``, and enter an asynchronous context by
``held_open``; tests and async fixtures just await.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import secrets
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

import psycopg2
import pytest
import pytest_twisted
from attrs import asdict, evolve, field, frozen
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet.defer import Deferred

from project_service import files
from project_service.database.connecting import Connector
from project_service.database.migrate import migrate, shipped
from project_service.database.pool import Pool
from project_service.dsn import read_dsn
from project_service.embedded import postgres
from project_service.embedded.assemble import Embedded
from project_service.embedded.data_directory import SECRETS_FILE, Running, load_or_make_secrets
from project_service.settings.model import Store
from project_service.storage.s3.client import S3Store, connect_store
from tests.live.sql import connection_to, run_each, run_sql

T = TypeVar("T")


def wait(work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work`` on the reactor from a fixture that is no coroutine; pytest-twisted has no coroutine fixtures per
    session."""
    from twisted.internet import reactor

    async def working() -> T:
        return await work()

    done: Deferred[T] = Deferred()
    reactor.callLater(0, lambda: Deferred.fromCoroutine(working()).chainDeferred(done))
    result: T = pytest_twisted.blockon(done)
    return result


def pool_on(dsn: str, connections: int = 2) -> Pool:
    from twisted.internet import reactor

    return Pool(Connector(reactor, read_dsn(dsn), 10.0, timezone="UTC"), connections, 10.0, reactor)


def store_client(settings: Store) -> S3Store:
    from twisted.internet import reactor

    return connect_store(reactor, settings)


@contextmanager
def held_open(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """``context`` in a fixture that is a plain ``def``: entered on the reactor, and left at the end."""
    value = wait(context.__aenter__)
    try:
        yield value
    finally:
        wait(lambda: context.__aexit__(None, None, None))


@frozen
class Services:
    """The two servers. ``database`` creates a database that is dropped at the end of the context."""

    embedded: Embedded
    running: Running
    _numbers: Iterator[int] = field(factory=itertools.count)

    def unique(self, name: str) -> str:
        """A name that no other test uses."""
        cleaned = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:30]
        return f"{cleaned}-{next(self._numbers)}"

    def dsn(self, name: str) -> str:
        """The DSN of the owner for the database of this name."""
        assert self.running.dsn is not None
        return str(make_dsn(self.running.dsn, dbname=name))

    @contextmanager
    def database(self, name: str, template: str = "template1") -> Iterator[str]:
        unique = self.unique(name)
        self.admin(f'create database "{unique}" template "{template}" owner {postgres.OWNER}')
        try:
            yield self.dsn(unique)
        finally:
            self.admin(f'drop database if exists "{unique}" with (force)')

    def admin_dsn(self, database: str) -> str:
        """The superuser's DSN for the database of the DSN ``database``."""
        assert self.running.admin_dsn is not None
        return str(make_dsn(self.running.admin_dsn, dbname=parse_dsn(database)["dbname"]))

    def admin(self, sql: str) -> None:
        """Executes SQL as the superuser, in no database of a test."""
        assert self.running.admin_dsn is not None
        run_sql(self.running.admin_dsn, sql)


# Processes are killed, but no machine loses its power: what was written is with the kernel.
WITHOUT_DISK = ("alter system set fsync = off", "alter system set full_page_writes = off")

# Puts a database into a data directory, which it makes if there is none, and returns the directory.
WithDatabase = Callable[[Path], Path]


@pytest.fixture(scope="session")
def with_database(tmp_path_factory: pytest.TempPathFactory) -> WithDatabase:
    """Copies of a PostgreSQL that embedded mode has made once, for all processes of the run: ``initdb`` takes more
    than a second of CPU, and dozens of tests start servers of their own.

    What is tested about a very first start begins with an empty directory instead.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    original = folder / "with-database"
    with (folder / "with-database.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not original.exists():
            _make_database(folder / "with-database.new").rename(original)

    def copied(data_dir: Path) -> Path:
        data_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        # Not as hard links, since PostgreSQL writes its files in place.
        command = ["cp", "-a", "--reflink=auto", str(original / "postgres"), str(data_dir)]
        subprocess.run(command, check=True)
        # Stores of their own, each of which refuses the clients of another.
        names = ("access_key_id", "secret_access_key", "store_signing_key")
        known = load_or_make_secrets(original)
        own = evolve(known, **{name: secrets.token_urlsafe(24) for name in names})
        files.write_json(data_dir / SECRETS_FILE, asdict(own))
        return data_dir

    return copied


def _make_database(data_dir: Path) -> Path:
    from twisted.internet import reactor

    embedded = Embedded(reactor, data_dir, store=False)
    running = wait(embedded.start)
    assert running.admin_dsn is not None
    run_each(running.admin_dsn, *WITHOUT_DISK)
    wait(embedded.stop)
    return data_dir


@pytest.fixture(scope="session")
def services(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    from twisted.internet import reactor

    embedded = Embedded(reactor, with_database(Path(tmp_path_factory.mktemp("embedded"))))
    made = Services(embedded, wait(embedded.start))
    yield made
    wait(embedded.stop)


async def migrated(dsn: str) -> None:
    """Bring an empty database to the form that the service needs."""

    session = await connection_to(dsn, 0)
    try:
        await migrate(session, shipped())
    finally:
        session.close()


@pytest.fixture(scope="session")
def template(services: Services) -> Iterator[str]:
    """The name of a migrated database to copy, which takes a tenth of the time of migrating. Nobody connects to
    it."""
    with services.database("template") as dsn:
        wait(lambda: migrated(dsn))
        yield str(psycopg2.extensions.parse_dsn(dsn)["dbname"])


@pytest.fixture
def database(services: Services, template: str, request: pytest.FixtureRequest) -> Iterator[str]:
    with services.database(request.node.name, template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_database(services: Services, template: str, request: pytest.FixtureRequest) -> Iterator[str]:
    with services.database(Path(request.node.name).stem, template) as dsn:
        yield dsn


@pytest.fixture
def empty_database(services: Services, request: pytest.FixtureRequest) -> Iterator[str]:
    with services.database(request.node.name) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def store_settings(services: Services, request: pytest.FixtureRequest) -> Store:
    assert services.running.store is not None
    settings = evolve(services.running.store, bucket=services.unique(Path(request.node.name).stem))

    async def made() -> None:
        store = store_client(settings)
        await store.ensure_bucket()
        await store.close()

    wait(made)
    return settings
