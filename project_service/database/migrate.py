"""The form of the database: numbered SQL files, applied once each, in order, by one process at a time (``migrate``).

What exposed schemas need besides depends on the settings: rights and triggers (``expose``). SQL functions of
migration 0004 make those; they change nothing that is right already, so they may run at every start.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from importlib import resources

from attrs import frozen
from psycopg2 import errors as pg

from project_service.database.connection import Connection
from project_service.database.listener import MIGRATIONS
from project_service.database.pool import Transaction, in_transaction

# How long a migration waits for a lock on a table, and how long it then pauses. While it waits, everybody else who
# needs the table queues behind it, and a dump or a forgotten transaction may hold the table for hours.
LOCK_SECONDS = 2
PAUSE_SECONDS = 5

_NAME = re.compile(r"([0-9]{4})_[a-z0-9_]+\.sql\Z")

# The schema is not named like the role that owns it: "$user" comes first in the default search path, so that role's
# tables would end up here.
_TABLE = """
create schema if not exists _project_service;
create table if not exists _project_service.migrations (
  number      int primary key,
  name        text not null,
  sha256      text not null,
  applied_at  timestamptz not null default now()
)
"""


class MigrationRefused(Exception):
    """The database does not fit this program; the message says why. Trying again does not help."""


@frozen
class Migration:
    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def shipped() -> tuple[Migration, ...]:
    """The migrations in the package, in order."""
    migrations = []
    for entry in (resources.files("project_service.database") / "migrations").iterdir():
        match = _NAME.match(entry.name)
        if match is not None:
            migrations.append(Migration(int(match[1]), entry.name, entry.read_text("utf-8")))
    return tuple(sorted(migrations, key=lambda one: one.number))


def pending(known: Sequence[Migration], applied: Sequence[tuple[int, str, str]]) -> tuple[Migration, ...]:
    """The migrations of ``known`` that are still to be applied. ``applied`` are number, name and SHA-256 as recorded.

    Raises ``MigrationRefused`` for a database with newer migrations, or with one in another form than ours.
    """
    by_number = {one.number: one for one in known}
    newest = max(by_number, default=0)
    for number, name, sha256 in applied:
        if number > newest:
            raise MigrationRefused(
                f"the database is newer than this program: it has migration {name}, "
                f"this program ends at {newest:04d}; install the newer program"
            )
        if number not in by_number or by_number[number].sha256 != sha256:
            raise MigrationRefused(
                f"migration {name} was applied in another form than this program ships; "
                "the database belongs to a different build"
            )
    done = {number for number, _, _ in applied}
    return tuple(one for one in known if one.number not in done)


async def state(connection: Connection) -> list[tuple[int, str, str]]:
    """What has been applied: number, name, SHA-256. Needs no right to change anything."""
    exists = await connection.query("select to_regclass('_project_service.migrations') is not null")
    if not exists[0][0]:
        return []
    rows = await connection.query(
        "select number, name, sha256 from _project_service.migrations order by number"
    )
    return [(int(number), str(name), str(sha256)) for number, name, sha256 in rows]


async def migrate(
    connection: Connection,
    known: Sequence[Migration],
    say: Callable[[str], None] = lambda _: None,
    afterwards: Callable[[Connection], Awaitable[object]] | None = None,
) -> tuple[Migration, ...]:
    """Apply what is pending, run ``afterwards`` under the same lock, and return what was applied.

    Several processes may do so at once: one does the work, the others wait. ``connection`` should have no statement
    timeout. ``say`` is called with each line of progress. Where other transactions hold the tables that a migration
    needs, it tries again until they are free, and makes others wait for no longer than ``LOCK_SECONDS`` at a time.

    Raises ``MigrationRefused``, or ``psycopg2.Error`` from a migration, which is then rolled back whole.
    """
    if not (await connection.query("select pg_try_advisory_lock(%s)", (MIGRATIONS,)))[0][0]:
        say("Another process migrates the database; waiting until it has ended")
        await connection.query("select pg_advisory_lock(%s)", (MIGRATIONS,))
    try:
        todo = pending(known, await state(connection))
        if todo:
            await connection.query(_TABLE)
        for migration in todo:
            say(f"Applying migration {migration.name}")
            await _apply(connection, migration, say)
        if afterwards is not None:
            await afterwards(connection)
        return todo
    finally:
        if connection.usable:
            await connection.query("select pg_advisory_unlock(%s)", (MIGRATIONS,))


async def _apply(connection: Connection, migration: Migration, say: Callable[[str], None]) -> None:
    """Apply one migration in a transaction, again and again until no other one holds a lock that it needs."""

    async def apply(transaction: Transaction) -> None:
        await transaction.query(
            "select set_config('lock_timeout', %s, true)", (f"{LOCK_SECONDS * 1000:.0f}ms",)
        )
        # None, so that psycopg2 leaves percent signs in the text alone.
        await transaction.query(migration.sql, None)
        await transaction.query(
            "insert into _project_service.migrations (number, name, sha256) values (%s, %s, %s)",
            (migration.number, migration.name, migration.sha256),
        )

    waits = False
    while True:
        try:
            await in_transaction(connection, apply)
        except (pg.LockNotAvailable, pg.DeadlockDetected):
            if not waits:
                say(f"Migration {migration.name} waits for other transactions on the tables that it changes")
            waits = True
            await connection.query("select pg_sleep(%s)", (PAUSE_SECONDS,))
        else:
            return


# What exposed schemas need

# Skips schemas where nothing is missing: service_role may use the schema, and the default privileges of this role
# give it rights in tables to come.
_EXPOSE = """
select _project_service.expose_schema(n.nspname) from pg_namespace n
where n.nspname = any(%s)
  and not (has_schema_privilege('service_role', n.oid, 'usage') and exists (
    select from pg_default_acl d
    where d.defaclnamespace = n.oid and d.defaclrole = current_user::regrole and d.defaclobjtype = 'r'
      and d.defaclacl::text like '%%service_role=%%'))
"""

_SCHEMAS = """
select quote_literal(n.nspname), has_schema_privilege('service_role', n.oid, 'usage'), (
  select min(format('%%I.%%I', n.nspname, c.relname)) from pg_class c
  where c.relnamespace = n.oid and c.relkind in ('r', 'p', 'v', 'm', 'f')
    and not has_table_privilege('service_role', c.oid, 'select')
    and not exists (
      select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'))
from pg_namespace n where n.nspname = any(%s) order by 1
"""


async def expose(connection: Connection, schemas: Iterable[str]) -> bool:
    """Grant the rights and install the trigger. Call it under the lock of the migrations.

    Returns False if only a superuser could do the latter (see ``watch_ddl``).
    """
    await grant_service_role(connection, schemas)
    return await watch_ddl(connection)


async def grant_service_role(connection: Connection, schemas: Iterable[str]) -> None:
    """Give ``service_role`` every right in ``schemas``, also in tables to come, and the other roles only USAGE.

    A schema that does not exist yet is skipped.
    """
    await connection.query(_EXPOSE, (list(schemas),))


async def watch_ddl(connection: Connection) -> bool:
    """Install the event trigger that announces changes of the schema on the channel ``pgrst``; False if it may not.

    PostgreSQL lets only superusers make event triggers. Without it, changes have to be announced by
    ``notify pgrst, 'reload schema'``.
    """
    try:
        rows = await connection.query("select _project_service.watch_ddl()")
    except pg.InsufficientPrivilege:
        return False
    return bool(rows[0][0])


async def lacking(connection: Connection, schemas: Collection[str]) -> list[str]:
    """What ``service_role`` lacks in ``schemas`` after ``expose``, as sentences that say how it is granted.

    Objects that belong to an extension are left out.
    """
    if not schemas:
        return []
    sentences = []
    if await connection.query("select from pg_roles where rolname = 'service_role' and not rolbypassrls"):
        sentences.append(
            "service_role does not bypass row-level security: let a superuser run alter role service_role bypassrls"
        )
    for schema, usable, unreadable in await connection.query(_SCHEMAS, (list(schemas),)):
        if not usable or unreadable is not None:
            what = f"read {unreadable}" if usable else f"use the schema {schema}"
            sentences.append(
                f"service_role may not {what}: let a superuser, or who owns all of the schema, run "
                f"select _project_service.expose_schema({schema})"
            )
    return sentences
