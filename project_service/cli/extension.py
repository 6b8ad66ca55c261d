"""``project-service extension``: list, create, drop extensions of the embedded PostgreSQL.

Its superuser creates them, because the owner of the database may create only those that PostgreSQL trusts.
"""

from __future__ import annotations

from collections.abc import Mapping

import click
from attrs import asdict, frozen
from psycopg2 import errors as pg

from project_service.cli import project_options
from project_service.cli.invocation import Failed, Invocation, Project, on_project
from project_service.database.connection import Connection
from project_service.settings.reading import EXTENSIONS_SCHEMA

# The functions of the service's own schemas are written in it.
_NEEDED = "plpgsql"

_AVAILABLE = """
select a.name::text, a.default_version, e.extversion, n.nspname::text, a.comment
from pg_available_extensions a
left join pg_extension e on e.extname = a.name
left join pg_namespace n on n.oid = e.extnamespace
order by a.name
"""
_HAS_OWN_SCHEMA = (
    "select schema::text from pg_available_extension_versions where name = %s and schema is not null"
)
# Everybody may use what is there: the roles of requests need the operators. The table API does not expose it.
_SCHEMA = (
    f"create schema if not exists {EXTENSIONS_SCHEMA}; grant usage on schema {EXTENSIONS_SCHEMA} to public"
)
# For the database's other clients; the table API has a search path of its own.
_SEARCH_PATH = """
select format('alter database %%I set search_path = %%s, %%I', current_database(), current_setting('search_path'),
              %(schema)s::text)
where %(schema)s <> all (string_to_array(replace(current_setting('search_path'), ' ', ''), ','))
"""
_CREATE = """
select format('create extension %%I', %(name)s::text)
  || case when %(schema)s is not null then format(' schema %%I', %(schema)s::text) else '' end
  || case when %(version)s is not null then format(' version %%L', %(version)s::text) else '' end || ' cascade'
"""
_DROP = "select format('drop extension %%I', %s::text)"
# Only roles that may use a foreign data wrapper can make servers of it.
_GRANTS = """
select format('grant usage on foreign data wrapper %I to %I', w.fdwname, pg_get_userbyid(b.datdba))
from pg_foreign_data_wrapper w
join pg_depend d on d.classid = 'pg_foreign_data_wrapper'::regclass and d.objid = w.oid and d.deptype = 'e'
join pg_database b on b.datname = current_database()
"""


@frozen
class Extension:
    """``version`` and ``schema`` are those of the database; None if the extension is not there."""

    name: str
    default_version: str
    version: str | None
    schema: str | None
    comment: str | None


@click.group()
@project_options
def extension() -> None:
    """Extensions of the embedded PostgreSQL, such as vector, pg_trgm and postgres_fdw."""


@extension.command("list")
@on_project()
async def list_(invocation: Invocation, project: Project) -> None:
    """All available extensions: name, version in the database (- if not created), default version."""
    async with project.connection() as connection:
        every = await available(connection)
    lines = (
        f"{one.name:<20} {one.version or '-':<8} {one.default_version:<8} {one.comment or ''}".rstrip()
        for one in every
    )
    invocation.show([asdict(one) for one in every], *lines)


@extension.command()
@click.argument("name")
@click.option("--schema", help=f"The schema to put it in. [default: {EXTENSIONS_SCHEMA}, which is created]")
@click.option("--version", help="Another version than the default.")
@on_project()
async def create(
    invocation: Invocation, project: Project, name: str, schema: str | None, version: str | None
) -> None:
    """Create an extension, and those that it needs.

    Everybody may execute the functions of most extensions. In the schema `extensions` that is harmless, since the
    table API does not expose it; in an exposed schema anyone with the anon key can call them.
    """
    async with project.connection(project.admin_dsn, unhurried=True) as connection:
        await create_extension(connection, name, schema, version)
        (created,) = [one for one in await available(connection) if one.name == name]
    invocation.show(asdict(created), f"created {name} {created.version} in the schema {created.schema}")


@extension.command()
@click.argument("name")
@click.option("--cascade", is_flag=True, help="Drop what depends on it too: columns, indexes, functions.")
@on_project()
async def drop(invocation: Invocation, project: Project, name: str, cascade: bool) -> None:
    """Drop an extension. One that is in use is dropped only with --cascade."""
    async with project.connection(project.admin_dsn, unhurried=True) as connection:
        try:
            await drop_extension(connection, name, cascade)
        except pg.DependentObjectsStillExist as refusal:
            used = refusal.diag.message_detail
            raise Failed(f"{name} is used; --cascade drops this too:\n{used}") from None
    invocation.show({"name": name, "dropped": True}, f"dropped {name}")


async def available(connection: Connection) -> list[Extension]:
    return [Extension(*row) for row in await connection.query(_AVAILABLE)]


async def create_extension(
    connection: Connection, name: str, schema: str | None = None, version: str | None = None
) -> None:
    """Create the extension, and those that it needs, in ``schema``; by default in one of their own, which the search
    path of the database then includes.

    ``connection`` is the superuser's, to the database. Raises ``ValueError`` for what is not available.
    """
    if not any(one.name == name for one in await available(connection)):
        raise ValueError(
            f"there is no extension {name}; `project-service extension list` shows those there are"
        )
    if schema is None and not await connection.query(_HAS_OWN_SCHEMA, (name,)):
        schema = EXTENSIONS_SCHEMA
        await connection.query(_SCHEMA)
        await connection.query("reset search_path")
        await _run(connection, _SEARCH_PATH, {"schema": schema})
        await connection.query("set search_path = ''")
    await _run(connection, _CREATE, {"name": name, "schema": schema, "version": version})
    await _run(connection, _GRANTS)


async def drop_extension(connection: Connection, name: str, cascade: bool = False) -> None:
    """Drop the extension, with ``cascade`` also what depends on it.

    Raises ``ValueError`` for the one that the service itself needs.
    """
    if name == _NEEDED:
        raise ValueError(f"the service itself needs {name}")
    ((statement,),) = await connection.query(_DROP, (name,))
    await connection.query(statement + (" cascade" if cascade else ""))


async def _run(connection: Connection, query: str, values: Mapping[str, str | None] | None = None) -> None:
    """Run the statements that ``query`` returns: PostgreSQL quotes the names in them."""
    for (statement,) in await connection.query(query, values):
        await connection.query(statement)
