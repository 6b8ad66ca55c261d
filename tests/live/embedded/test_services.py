"""The embedded servers: what they listen on, which logins they refuse, and that a second service is refused."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import psycopg2
import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn
from twisted.internet.defer import Deferred, fail

from project_service.embedded.assemble import Embedded
from project_service.embedded.data_directory import InUse
from project_service.settings.model import Store
from tests.live.logged import LoggedErrors
from tests.live.services import Services
from tests.live.sql import run_sql


def test_the_owner_of_the_database_is_no_superuser(services: Services, database: str) -> None:
    assert run_sql(database, "select current_user")[0][0] == "project_service"
    assert run_sql(database, "select current_setting('is_superuser')")[0][0] == "off"
    assert run_sql(database, "select rolcreaterole from pg_roles where rolname = current_user")[0][0] is True
    assert run_sql(database, "select to_regclass('auth.project_keys') is not null")[0][0] is True


def test_a_statement_that_wants_too_much_memory_is_refused(database: str) -> None:
    """Otherwise the kernel would end the whole server. A statement with less goes on."""
    made = "select length(json_agg(repeat('x', 1000))::text) from generate_series(1, %s000)"
    with pytest.raises(psycopg2.errors.OutOfMemory):
        run_sql(database, made % 900)
    assert run_sql(database, made % 9)[0][0] == 9000 * 1004


def test_an_empty_database_has_no_schema_of_the_service(empty_database: str) -> None:
    connection = psycopg2.connect(empty_database)
    cursor = connection.cursor()
    cursor.execute("select to_regnamespace('auth')")
    assert cursor.fetchone() == (None,)
    connection.close()


def test_a_wrong_password_is_refused_on_the_socket(services: Services) -> None:
    assert services.running.dsn is not None
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(make_dsn(services.running.dsn, password="wrong"))


def test_each_test_module_has_a_bucket_of_its_own(store_settings: Store) -> None:
    assert store_settings.bucket.startswith("test-services")


def test_everything_listens_on_loopback_only(services: Services) -> None:
    """This is read from the kernel's tables, for the servers and all processes they started."""
    ports = _listening({child.pid for child in services.embedded.children.values()})
    assert len(ports) >= 8
    assert {address for address, _ in ports} == {"0100007F"}, ports


def _listening(pids: set[int | None]) -> set[tuple[str, str]]:
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(str(descriptor.readlink()))
            except OSError:
                continue
    listening = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                listening.add((address, port))
    return listening


@pytest_twisted.ensureDeferred
async def test_a_second_service_on_the_directory_is_refused(services: Services) -> None:
    from twisted.internet import reactor

    rival = Embedded(reactor, services.embedded.data_dir)
    with pytest.raises(InUse, match=rf"pid {os.getpid()}\).*--data-dir"):
        await rival.start()
    # The refused start has not touched the running servers.
    assert services.running.dsn is not None
    assert run_sql(services.running.dsn, "select 1")[0][0] == 1


def test_an_unhandled_failure_of_a_deferred_is_logged(logged_errors: LoggedErrors) -> None:
    """This is the fixture that guards all live tests: without the flush this test would fail."""
    dropped: Deferred[None] = fail(ValueError("dropped"))
    del dropped
    gc.collect()
    assert len(logged_errors.flush(ValueError)) == 1
    assert len(logged_errors.flush("Unhandled error in Deferred")) == 1
