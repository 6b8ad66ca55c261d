"""Extensions of the embedded PostgreSQL. Its superuser creates them, because the owner of the database may create
only those that PostgreSQL trusts."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

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
_OF_ITS_OWN = (
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
# Only who may use a foreign data wrapper can make servers of it.
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


async def available(connection: Connection) -> list[Extension]:
    return [Extension(*row) for row in await connection.query(_AVAILABLE)]


async def create(
    connection: Connection, name: str, schema: str | None = None, version: str | None = None
) -> None:
    """Create the extension, and those that it needs, in ``schema``; by default in one of their own, which the search
    path of the database then includes.

    ``connection`` is the superuser's, on the database. Raises ``ValueError`` for what is not available.
    """
    if not any(one.name == name for one in await available(connection)):
        raise ValueError(
            f"there is no extension {name}; `project-service extension list` shows those there are"
        )
    if schema is None and not await connection.query(_OF_ITS_OWN, (name,)):
        schema = EXTENSIONS_SCHEMA
        await connection.query(_SCHEMA)
        await connection.query("reset search_path")
        await _run(connection, _SEARCH_PATH, {"schema": schema})
        await connection.query("set search_path = ''")
    await _run(connection, _CREATE, {"name": name, "schema": schema, "version": version})
    await _run(connection, _GRANTS)


async def drop(connection: Connection, name: str, cascade: bool = False) -> None:
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
