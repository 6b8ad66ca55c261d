"""The form of the database, brought about by one process at a time (``migrate``).

Numbered files (``migrations``) hold tables, columns, indexes and what becomes of rows; each is applied once, in
order. What can be replaced as a whole is in files of definitions (``sql``), one for each idea, as it is now:
functions, views, triggers, policies and grants. Those that differ from what the database has are applied after the
numbered files, all in one transaction.

Both together are an edition. A database knows its edition, and the oldest one whose programs may still start on it:
so a release that was replaced can come back, and leaves the newer form as it is.

What exposed schemas need besides depends on the settings: rights and triggers (``expose``). SQL functions
(``sql/_project_service``) make those; they change nothing that is right already, so they may run at every start.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib import resources

from attrs import Factory, field, frozen
from psycopg2 import errors as pg

from project_service.database.connection import Connection
from project_service.database.locks import MIGRATIONS, limit_silence
from project_service.database.pool import Transaction, in_transaction

# How long a migration waits for a lock on a table, and how long it then pauses. While it waits, everybody else who
# needs the table queues behind it, and a dump or a forgotten transaction may hold the table for hours. It is shorter
# than PostgreSQL's deadlock_timeout, a second: where a migration and a request wait for each other, the migration
# gives way.
LOCK_SECONDS = 0.4
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
);
create table if not exists _project_service.definitions (
  name        text primary key,
  sha256      text not null,
  edition     int not null,
  applied_at  timestamptz not null default now()
);
alter table _project_service.definitions add column if not exists oldest int
"""

# The files of definitions without their ".sql", each after those whose functions it needs when it is read. A function
# in PL/pgSQL needs others only when it is called.
_FILES = (
    "auth/caller",
    "auth/project_keys",
    "auth/sessions",
    "auth/attempts",
    "auth/accounts",
    "auth/identities",
    "auth/factors",
    "storage/buckets",
    "storage/policies",
    "storage/judgement",
    "storage/objects",
    "storage/deletion",
    "storage/uploads",
    "storage/links",
    "storage/renditions",
    "compatibility",
    "_project_service/exposure",
    "_project_service/announcements",
)

# Add one whenever a definition changes or there is a new numbered file (a test knows the digest of each edition). So
# an older program that starts beside a newer one does not put its own definitions back.
EDITION = 4

# The oldest edition whose programs may start on a database of this one. Those before 4, release 0.1.0 among them,
# start on none that is newer. Leave it as it is where a change only adds: tables, functions, indexes, columns with a
# default. Set it to EDITION where a program of the edition before could fail, or leave out what the change is for.
OLDEST = 4

# The SHA-256 of the numbered files as they were while they held functions too. Databases that were migrated by then
# have recorded these; the tables are the same.
_WITH_FUNCTIONS = {
    1: "2462d9d20358637f415e6ec3541823f4b319949dd15503b6fc59e655c7143739",
    2: "82ddac70475357bd0fb23af1206551ed788f7acdb0a3867a36a8064155387c6b",
    3: "85f983da6e38972760daf5204cda3d9846629d07c87bce34bb4c918e9178cfa8",
    4: "c6a005fbee83005959c35e7894ee395b797de377e011a9c4e8689c5977d9a2cf",
    5: "11b6562b5fbf803527917d3d8553ec9c738142bebd8519cd1825acf3aa3d5311",
    6: "63a476f3dab262c8370ecfb2720eaa88ee1197405db37797e046aedb99af9617",
    7: "eeefee1bcb4180dd800ecc18bbedb75e9da0977dccb1f44056b90ced5da5b885",
    8: "991e67f6d2a8e32917f3a245d89db0ffc11ff51f4626e615847c7af197e55593",
    9: "296de725795c30b7f2706dc537cbf0c69248301a6a5fa7a37b95c73a4fd9d9a4",
    10: "90ad625cca8b695f854fbd6574b30e6b60af2bdeeb59c3eab1223fa852fde112",
    11: "edb86dba2a531d0c42fd589b68b958b19db8eef5fcbe2738d9a34352d5f5caa5",
    12: "529d3f12953f4d13e9b998d83de8ed705ce1c2e92231ee3f1965b626e14dca90",
    13: "a2c98e0951b0aa2f1cce421e6aa75d9d659ca7c389c09a874ccf12a5bfebd927",
    14: "d3c96d203b9da4859d42c414159540d8dd9b9341f1e6397c0b76a177d705e717",
    15: "44d49fd4a767bfd882dfec77a2572eaaf4b352b70fb32bfca08290afc9a33c2c",
    16: "e59dfdffc3968210aaa7a055a73d80bde2e5803cf2e7f49f1d62942c44a8de51",
    17: "e2cac65905336db156e5f7d01b01e6d8c3985708a022003b9c04dd9d7aef96d3",
    18: "f87765d0f5891a53c809fbe3e0f0196ec1e0b5896de1bdb2dae8fa85d02bc7c1",
    19: "b3548e45268e6c1b1510b3bba4d42529de2caea6dd66064151f693b5761ea6c9",
    20: "0affe72489f2b237758ee48b378d8030319ba6f81a157a9da207168e815b67c7",
    21: "592a1102376f3e4d9face41be8a6889fc63508bc76923e6ed7c76ff48990505f",
    22: "3a0e4db7dba8c21ca5f7ae7eef3a9eb95c5022e1424a73ebc2a69f15522093a2",
    23: "ff0b4919785ba0d4c0dc84114d604764df0905bbde207c50a2a7409605ae4c58",
    24: "bc1fe0f4715b18095f49d361ae1da883c10bc167179612e6b5c1ae10ef8013f2",
    25: "a9f9c4e163bcfd6e2869daeaef44a616993fa8f8704deb95e6508274c75ae3c8",
    26: "e73cbd17b3866a2c2f41cdb4998106ac7204fa1268bf221a6d51356cb4761cd2",
    27: "46f686c5ca03717f1c82e3cd5081565cc592f553b0421089d5c07f366f92b90f",
    28: "93cdc0217aaf8a816388424aaecff233abc125fd51ad1cbc52ddf06782b81357",
    29: "ef5e74cb8785dd1f070be3a2723d2a16881a5b91ad728b65c711307b2622cf42",
    30: "56245651361bccbd957c07e6f6c172cb972c6456401ef9f74e1a8206ca43e0d8",
    31: "31cc9ef87cc7ebf21864153fbcb52aa6c822de3cb70d1d9a0b78586d35cd5bae",
}


# The bodies of our SQL functions are read when a function is made, which is new in this version.
OLDEST_POSTGRESQL = 14


class MigrationRefused(Exception):
    """The database does not fit this program; the message says why. Trying again does not help."""


@frozen
class Migration:
    """A numbered file."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return _sha256(self.sql)


@frozen
class Definition:
    """A file of definitions; it may be applied to any form of them that the database has."""

    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return _sha256(self.sql)


@frozen
class Definitions:
    """All of them, in the order in which they are applied. Programs of the edition ``oldest`` and later may start on
    a database that has them.
    """

    edition: int
    files: tuple[Definition, ...]
    oldest: int = field(default=Factory(lambda self: self.edition, takes_self=True))


@frozen
class Defined:
    """The definitions that a database has: the greatest edition that was applied (0: none), SHA-256 by name, and the
    oldest edition whose programs may start on it.
    """

    edition: int
    sha256: Mapping[str, str]
    oldest: int = field(default=Factory(lambda self: self.edition, takes_self=True))

    def admits(self, edition: int) -> bool:
        """Whether it is newer than a program of ``edition``, which may start on it all the same."""
        return self.oldest <= edition < self.edition


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def shipped() -> tuple[Migration, ...]:
    """The migrations in the package, in order."""
    migrations = []
    for entry in (resources.files("project_service.database") / "migrations").iterdir():
        match = _NAME.match(entry.name)
        if match is not None:
            migrations.append(Migration(int(match[1]), entry.name, entry.read_text("utf-8")))
    return tuple(sorted(migrations, key=lambda one: one.number))


def definitions() -> Definitions:
    """The definitions in the package."""
    folder = resources.files("project_service.database") / "sql"
    names = [f"{file}.sql" for file in _FILES]
    return Definitions(
        EDITION, tuple(Definition(name, folder.joinpath(name).read_text("utf-8")) for name in names), OLDEST
    )


def pending(
    known: Sequence[Migration], applied: Sequence[tuple[int, str, str]], admitted: bool = False
) -> tuple[Migration, ...]:
    """The migrations of ``known`` that are still to be applied. ``applied`` are number, name and SHA-256 as recorded.

    Raises ``MigrationRefused`` for a database with newer migrations, unless this program is ``admitted`` to it, or
    with one in another form than ours.
    """
    by_number = {one.number: one for one in known}
    newest = max(by_number, default=0)
    for number, name, sha256 in applied:
        if number > newest:
            if admitted:
                continue
            raise MigrationRefused(
                f"the database is newer than this program: it has migration {name}, "
                f"this program ends at {newest:04d}; install the newer program"
            )
        forms = (by_number[number].sha256, _WITH_FUNCTIONS.get(number)) if number in by_number else ()
        if sha256 not in forms:
            raise MigrationRefused(
                f"migration {name} was applied in another form than this program ships; "
                "the database belongs to a different build"
            )
    done = {number for number, _, _ in applied}
    return tuple(one for one in known if one.number not in done)


def changed(known: Definitions, defined: Defined) -> tuple[Definition, ...]:
    """The definitions of ``known`` that are still to be applied.

    Raises ``MigrationRefused`` for a database with a newer edition that does not admit programs of this one; where it
    does, there is nothing to apply.
    """
    if defined.admits(known.edition):
        return ()
    if defined.edition > known.edition:
        raise MigrationRefused(
            f"the database is newer than this program: it has edition {defined.edition} of the SQL functions, "
            f"this program has {known.edition}; install the newer program"
        )
    return tuple(one for one in known.files if defined.sha256.get(one.name) != one.sha256)


async def outstanding(connection: Connection) -> tuple[Migration | Definition, ...]:
    """What this program would apply now, without waiting for one that is doing so. Needs no right to change anything.

    Raises ``MigrationRefused``.
    """
    _check_version(connection)
    ours, defined = definitions(), await defined_in(connection)
    return (
        *pending(shipped(), await state(connection), defined.admits(ours.edition)),
        *changed(ours, defined),
    )


def _check_version(connection: Connection) -> None:
    major = connection.raw.server_version // 10000
    if major < OLDEST_POSTGRESQL:
        raise MigrationRefused(
            f"PostgreSQL {major} is too old for the system database: it has to be {OLDEST_POSTGRESQL} or newer"
        )


async def state(connection: Connection) -> list[tuple[int, str, str]]:
    """What has been applied: number, name, SHA-256. Needs no right to change anything."""
    exists = await connection.query("select to_regclass('_project_service.migrations') is not null")
    if not exists[0][0]:
        return []
    rows = await connection.query(
        "select number, name, sha256 from _project_service.migrations order by number"
    )
    return [(int(number), str(name), str(sha256)) for number, name, sha256 in rows]


async def defined_in(connection: Connection) -> Defined:
    """The definitions that have been applied. Needs no right to change anything."""
    exists = await connection.query("select to_regclass('_project_service.definitions') is not null")
    if not exists[0][0]:
        return Defined(0, {})
    # As JSON, since there was no column before edition 4.
    rows = await connection.query(
        "select name, sha256, edition, coalesce((to_jsonb(d) ->> 'oldest')::int, edition)"
        " from _project_service.definitions d"
    )
    edition, oldest = (max((row[column] for row in rows), default=0) for column in (2, 3))
    return Defined(edition, {row[0]: row[1] for row in rows}, oldest)


async def migrate(
    connection: Connection,
    known: Sequence[Migration],
    say: Callable[[str], None] = lambda _: None,
    afterwards: Callable[[Connection], Awaitable[object]] | None = None,
    defining: Definitions | None = None,
) -> tuple[Migration | Definition, ...]:
    """Apply what is pending of ``known`` and then of ``defining`` (the package's, if None), run ``afterwards`` under
    the same lock, and return what was applied.

    Several processes may do so at once: one does the work, the others wait. ``connection`` should have no statement
    timeout; PostgreSQL ends it if this process hangs (``locks``). ``say`` is called with each line of progress. Where
    other transactions hold the tables that a migration needs, it tries again until they are free, and makes others
    wait for no longer than ``LOCK_SECONDS`` at a time.

    Raises ``MigrationRefused``, before anything is changed, or ``psycopg2.Error`` from a migration, which is then
    rolled back whole, as are all definitions if there is an error in one.
    """
    defining = definitions() if defining is None else defining
    _check_version(connection)
    await limit_silence(connection)
    if not (await connection.query("select pg_try_advisory_lock(%s)", (MIGRATIONS,)))[0][0]:
        say("Another process migrates the database; waiting until it has ended")
        await connection.query("select pg_advisory_lock(%s)", (MIGRATIONS,))
    try:
        defined = await defined_in(connection)
        admitted = defined.admits(defining.edition)
        if admitted:
            say(f"The database is newer than this program (edition {defined.edition}) and lets it start")
        todo = pending(known, await state(connection), admitted)
        define = changed(defining, defined)
        redefines = bool(define) or defined.edition < defining.edition
        if todo or redefines:
            await connection.query(_TABLE)
        for migration in todo:
            say(f"Applying migration {migration.name}")
            applying = partial(_migrated, migration, defining.oldest)
            await _apply(connection, f"Migration {migration.name}", applying, say)
        if redefines:
            for file in define:
                say(f"Applying definitions {file.name}")
            what = f"Edition {defining.edition} of the SQL functions"
            await _apply(connection, what, partial(_defined, defining, define), say)
        if afterwards is not None:
            await afterwards(connection)
        return (*todo, *define)
    finally:
        if connection.usable:
            await connection.query("select pg_advisory_unlock(%s)", (MIGRATIONS,))


async def _migrated(migration: Migration, oldest: int, transaction: Transaction) -> None:
    # None, so that psycopg2 leaves percent signs in the text alone.
    await transaction.query(migration.sql, None)
    await transaction.query(
        "insert into _project_service.migrations (number, name, sha256) values (%s, %s, %s)",
        (migration.number, migration.name, migration.sha256),
    )
    # Already now, as this process may die before the definitions say so.
    await transaction.query(
        "update _project_service.definitions set oldest = greatest(oldest, %s)", (oldest,)
    )


async def _defined(all_: Definitions, some: Iterable[Definition], transaction: Transaction) -> None:
    """Apply ``some``, and record that the database has this edition of ``all_``, and no other file."""
    for file in some:
        await transaction.query(file.sql, None)
    names, digests = [one.name for one in all_.files], [one.sha256 for one in all_.files]
    await transaction.query("delete from _project_service.definitions where name <> all(%s)", (names,))
    await transaction.query(
        "insert into _project_service.definitions as d (name, sha256, edition, oldest)"
        " select name, sha256, %s, %s from unnest(%s, %s) as file (name, sha256) on conflict (name) do update"
        " set sha256 = excluded.sha256, edition = excluded.edition, oldest = excluded.oldest,"
        " applied_at = case when d.sha256 = excluded.sha256 then d.applied_at else excluded.applied_at end",
        (all_.edition, all_.oldest, names, digests),
    )


async def _apply(
    connection: Connection,
    what: str,
    apply: Callable[[Transaction], Awaitable[None]],
    say: Callable[[str], None],
) -> None:
    """Run ``apply`` in a transaction, again and again until no other one holds a lock that it needs."""

    async def limited(transaction: Transaction) -> None:
        await transaction.query(
            "select set_config('lock_timeout', %s, true)", (f"{LOCK_SECONDS * 1000:.0f}ms",)
        )
        await apply(transaction)

    waits = False
    while True:
        try:
            await in_transaction(connection, limited)
        except (pg.LockNotAvailable, pg.DeadlockDetected):
            if not waits:
                say(f"{what} waits for other transactions on the tables that it changes")
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
