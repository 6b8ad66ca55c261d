"""Functions, triggers, policies and grants are in every database as they are in the files now."""

from __future__ import annotations

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve

from project_service.database import migrate as migrating
from project_service.database.migrate import (
    Definition,
    Definitions,
    Migration,
    MigrationRefused,
    defined_in,
    definitions,
    migrate,
    outstanding,
    shipped,
)
from project_service.lifecycle import start
from tests.live.database.catalog import catalog
from tests.live.database.landed import migrated_then, with_functions
from tests.live.services import Services
from tests.live.sql import connection_to, run_sql
from tests.live.waiting import until

F = "create or replace function public.f() returns text language sql as $$ select '{}' $$;"
NAMES = "select public.f()"


def edition(number: int, text: str) -> Definitions:
    """An edition in which the last file makes ``public.f`` return ``text``."""
    return Definitions(number, (*definitions().files, Definition("public/f.sql", F.format(text))))


async def upgraded(dsn: str, *, defining: Definitions | None = None) -> list[str]:
    """The names of what a migration of the database has applied."""
    connection = await connection_to(dsn, 0)
    try:
        return [one.name for one in await migrate(connection, shipped(), defining=defining)]
    finally:
        connection.close()


@pytest.fixture(scope="module")
def new(module_database: str) -> set[str]:
    """What a new database has."""
    return catalog(module_database)


@pytest.mark.parametrize("number", range(1, len(with_functions()) + 1))
@pytest_twisted.ensureDeferred
async def test_a_database_of_any_landed_version_becomes_as_a_new_one(
    new: set[str], empty_database: str, number: int
) -> None:
    migrated_then(empty_database, number)
    applied = await upgraded(empty_database)
    assert applied == [
        *(one.name for one in shipped()[number:]),
        *(one.name for one in definitions().files),
    ]
    assert catalog(empty_database) == new
    assert await upgraded(empty_database) == []


@pytest.mark.parametrize("number", [3, 13, 30])
@pytest_twisted.ensureDeferred
async def test_the_same_with_event_triggers_which_only_a_superuser_makes(
    empty_database: str, services: Services, number: int
) -> None:
    admin = services.admin_dsn(empty_database)
    migrated_then(admin, number)
    await upgraded(admin)
    with services.database("new") as fresh:
        await upgraded(services.admin_dsn(fresh))
        assert catalog(admin) == catalog(services.admin_dsn(fresh))
    assert {row[0] for row in run_sql(admin, "select evtname from pg_event_trigger")} == {
        "project_service_ddl",
        "project_service_drop",
    }


def test_what_everybody_may_call(database: str) -> None:
    """A function that is new is everybody's, unless its file says otherwise."""
    asked = (
        "select distinct concat(n.nspname, '.', p.proname) from pg_proc p join pg_namespace n"
        " on n.oid = p.pronamespace where n.nspname in ('auth', 'storage')"
        " and has_function_privilege('public', p.oid, 'execute')"
    )
    assert {name for (name,) in run_sql(database, asked)} == {
        "auth.announce_project_keys",  # a trigger's
        "auth.email",
        "auth.jwt",
        "auth.role",
        "auth.uid",
    }


@pytest_twisted.ensureDeferred
async def test_applying_all_of_them_again_changes_nothing(database: str) -> None:
    before = catalog(database)
    run_sql(database, "update _project_service.definitions set sha256 = ''")
    assert await upgraded(database) == [one.name for one in definitions().files]
    assert catalog(database) == before


@pytest_twisted.ensureDeferred
async def test_only_a_file_that_differs_is_applied(database: str) -> None:
    at = "select name, applied_at from _project_service.definitions"
    before = dict(run_sql(database, at))
    assert await upgraded(database, defining=edition(100, "a")) == ["public/f.sql"]
    assert await upgraded(database, defining=edition(100, "b")) == ["public/f.sql"]
    assert run_sql(database, NAMES) == [("b",)]
    after = dict(run_sql(database, at))
    assert {name: after[name] for name in before} == before
    # A file that is gone is forgotten, not what it made.
    assert await upgraded(database, defining=evolve(definitions(), edition=101)) == []
    assert dict(run_sql(database, at)) == before
    assert run_sql(database, NAMES) == [("b",)]


@pytest_twisted.ensureDeferred
async def test_a_program_of_an_older_edition_puts_nothing_back(database: str) -> None:
    await upgraded(database, defining=edition(100, "old"))
    await upgraded(database, defining=edition(101, "new"))
    with pytest.raises(MigrationRefused, match="newer than this program: it has edition 101"):
        await upgraded(database, defining=edition(100, "old"))
    connection = await connection_to(database)
    with pytest.raises(MigrationRefused):
        await outstanding(connection)
    connection.close()
    assert run_sql(database, NAMES) == [("new",)]
    # Also where the newer one has changed nothing, or has gone back to what there was before.
    await upgraded(database, defining=edition(102, "new"))
    with pytest.raises(MigrationRefused, match="edition 102"):
        await upgraded(database, defining=edition(101, "new"))


@pytest_twisted.ensureDeferred
async def test_a_program_that_a_newer_database_admits_starts_and_changes_nothing(database: str) -> None:
    number = definitions().edition
    newer = evolve(edition(number + 2, "new"), oldest=number)
    files = (*shipped(), Migration(len(shipped()) + 1, "9999_newer.sql", "create table public.newer ()"))
    connection = await connection_to(database, 0)
    await migrate(connection, files, defining=newer)
    before = catalog(database)
    said: list[str] = []
    assert await migrate(connection, shipped(), said.append) == ()
    assert said == [f"The database is newer than this program (edition {number + 2}) and lets it start"]
    assert await outstanding(connection) == ()
    assert (catalog(database), run_sql(database, NAMES)) == (before, [("new",)])
    # One that was in between and knows more has nothing to do either, and takes nothing back.
    assert await migrate(connection, files[:-1], defining=edition(number + 1, "between")) == ()
    # The next one ends it, already with its first file: its program may die before the definitions are applied.
    ends = (*files, Migration(len(files) + 1, "9999_ends.sql", "drop table public.newer"))
    breaks = evolve(edition(number + 3, "select 1/0"), oldest=number + 2)
    broken = evolve(breaks, files=(*breaks.files, Definition("public/g.sql", "select 1/0")))
    with pytest.raises(psycopg2.errors.DivisionByZero):
        await migrate(connection, ends, defining=broken)
    with pytest.raises(MigrationRefused, match="newer than this program"):
        await migrate(connection, shipped())
    connection.close()


@pytest_twisted.ensureDeferred
async def test_an_error_in_one_leaves_all_as_they_were(database: str) -> None:
    await upgraded(database, defining=edition(100, "old"))
    new = edition(101, "new")
    broken = evolve(new, files=(*new.files, Definition("public/g.sql", "select 1/0")))
    with pytest.raises(psycopg2.errors.DivisionByZero):
        await upgraded(database, defining=broken)
    assert run_sql(database, NAMES) == [("old",)]
    connection = await connection_to(database)
    defined = await defined_in(connection)
    connection.close()
    assert (defined.edition, defined.sha256["public/f.sql"]) == (100, edition(100, "old").files[-1].sha256)


@pytest_twisted.ensureDeferred
async def test_definitions_wait_for_a_table_and_others_do_not_wait_for_them(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(migrating, "PAUSE_SECONDS", 0.2)
    run_sql(database, "update _project_service.definitions set sha256 = '' where name like '%/policies.sql'")
    connection = await connection_to(database, 0)
    messages: list[str] = []
    with psycopg2.connect(database) as dump:
        dump.cursor().execute("lock table storage.objects in access share mode")
        done = start(migrate(connection, shipped(), messages.append))

        async def waits() -> bool:
            return any("waits for other transactions" in one for one in messages)

        await until(waits)
        run_sql(database, "set lock_timeout = '10s'; update storage.objects set etag = etag")
        assert not done.called
    dump.close()
    assert [one.name for one in await done] == ["storage/policies.sql"]
    number = definitions().edition
    assert messages == [
        "Applying definitions storage/policies.sql",
        f"Edition {number} of the SQL functions waits for other transactions on the tables that it changes",
    ]
    connection.close()
