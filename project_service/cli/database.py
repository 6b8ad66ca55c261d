"""``project-service dsn``, ``migrate``, ``sql`` and ``openapi``: commands about a database as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import IO, Any

import click
import orjson
import psycopg2
from psycopg2 import extensions

from project_service.cli.invocation import Failed, Invocation, Project, common_options
from project_service.database.connection import Connection
from project_service.database.migrate import expose, lacking, shipped
from project_service.database.migrate import migrate as apply_migrations
from project_service.database.pipeline import plain_text
from project_service.database.pool import Transaction, in_transaction
from project_service.settings.model import StageDatabase
from project_service.tables.openapi import document, public_url, rights_sql
from project_service.tables.schema_cache.build import build
from project_service.tables.schema_cache.holder import read
from project_service.tables.values import SchemaCache


@click.command()
@click.option("--stage", help="The database of a stage instead of the system database; needs --database.")
@click.option("--database", help="The name of the database within the stage.")
@common_options
def dsn(invocation: Invocation, stage: str | None, database: str | None) -> None:
    """Print a connection string, with its password, as for psql "$(project-service dsn)".

    An embedded database can be used only while a service runs on the data directory. If none does, the string is
    printed all the same, with a note on standard error.
    """
    if (stage is None) != (database is None):
        raise click.UsageError("--stage and --database go together")

    async def work(project: Project) -> None:
        own = None
        if stage is not None and database is not None:
            own = project.stage_database(stage, database).dsn
        dsn = own or project.settings.database.dsn
        assert dsn is not None
        invocation.show({"dsn": dsn.reveal()}, dsn.reveal())
        if project.started_here:
            click.echo("project-service: nothing runs there now; start the service to use it", err=True)

    invocation.run(work)


@click.command()
@common_options
def migrate(invocation: Invocation) -> None:
    """Bring the database to the form that this version needs.

    The service does the same when it starts. Use the command if another role changes the schema, or at another time.
    Two at once are safe.
    """

    async def work(project: Project) -> None:
        exposed = project.settings.exposed_schemas()
        progress = (lambda line: None) if invocation.json else click.echo
        async with project.connection(unhurried=True) as connection:
            done = await apply_migrations(
                connection, shipped(), progress, lambda locked: expose(locked, exposed)
            )
            for shortcoming in await lacking(connection, project.settings.schemas_of_service_role()):
                click.echo(f"project-service: {shortcoming}", err=True)
        applied = [one.name for one in done]
        invocation.show({"applied": applied}, f"applied {len(applied)}" if applied else "nothing to do")

    invocation.run(work)


@click.command()
@click.argument("file", type=click.File("r", encoding="utf-8-sig"), default="-")
@common_options
def sql(invocation: Invocation, file: IO[str]) -> None:
    """Run FILE (default: standard input) in one transaction and print the last statement's rows.

    The first error undoes everything. BEGIN, COMMIT, COPY from or to the standard streams, and psql's backslash
    commands cannot be used.

    Each row is a line of values as PostgreSQL writes them, separated by tabs. With --json it is a list, in which
    whole numbers, float8, booleans, json and null are JSON's.
    """
    text = _text(file)

    async def work(project: Project) -> None:
        async with project.connection(unhurried=True) as connection:
            try:
                rows, types = await _rows(connection, text)
            except psycopg2.Error as fault:
                raise Failed(_refusal(fault)) from None
        invocation.show(
            [[_json(value, type_) for value, type_ in zip(row, types, strict=True)] for row in rows],
            *("\t".join("" if value is None else value for value in row) for row in rows),
        )

    invocation.run(work)


def _text(file: IO[str]) -> str:
    try:
        text = file.read()
    except UnicodeDecodeError as fault:
        raise click.BadParameter(f"is not UTF-8 ({fault.reason})", param_hint="FILE") from None
    if "\0" in text:
        # libpq would end the message there and silently leave out the rest.
        raise click.BadParameter("has a NUL character in it", param_hint="FILE")
    return text


# Replaces psycopg2's conversion to Python values, which cannot represent everything, for all types that have one.
_AS_WRITTEN: Any = extensions.new_type(
    tuple(extensions.string_types), "AS_WRITTEN", lambda value, cursor: value
)


async def _rows(connection: Connection, text: str) -> tuple[list[Sequence[str | None]], list[int]]:
    """The rows of the last statement, and the types (``pg_type.oid``) of their columns."""
    extensions.register_type(_AS_WRITTEN, (await connection.execute("select")).connection)
    # Our connections have an empty search path. This is the one that psql would have.
    await connection.execute("reset search_path")
    # Several statements in one message are one transaction.
    cursor = await connection.execute(text)
    if cursor.description is None:
        return [], []
    return cursor.fetchall(), [column.type_code for column in cursor.description]


def _float(text: str) -> float | str:
    value = float(text)
    return value if isfinite(value) else text


# By pg_type.oid: bool, int8, int2, int4, oid, json, float4, float8, jsonb.
_AS_JSON: dict[int, Callable[[str], Any]] = {
    16: lambda text: text == "t",
    **dict.fromkeys((20, 21, 23, 26), int),
    **dict.fromkeys((114, 3802), orjson.Fragment),
    **dict.fromkeys((700, 701), _float),
}


def _json(value: str | None, type_: int) -> Any:
    """The value as JSON if its type has an equivalent there, otherwise as text."""
    return _AS_JSON.get(type_, str)(value) if value is not None else None


def _refusal(fault: psycopg2.Error) -> str:
    message = plain_text(fault)
    if fault.pgcode is None and "COPY" in message:
        return "COPY can neither read standard input nor write to standard output here"
    return message or type(fault).__name__


# The URL to show if server.public_url is not set.
_LOCAL_URL = "http://127.0.0.1:8080"


@click.command()
@click.option("--stage", default="dev", show_default=True, help="The stage of the database.")
@click.option(
    "--database", default="main", show_default=True, help="The name of the database within the stage."
)
@click.option("--schema", help="One of its exposed schemas. [default: the first]")
@click.option("--role", help="Only what this role may use. [default: everything]")
@common_options
def openapi(invocation: Invocation, stage: str, database: str, schema: str | None, role: str | None) -> None:
    """Print the OpenAPI description of a database's table API. It is JSON, with or without --json.

    A running service describes itself as a whole at /openapi.json.
    """

    async def work(project: Project) -> None:
        settings = project.stage_database(stage, database)
        chosen = schema or settings.schemas[0]
        if chosen not in settings.schemas:
            raise Failed(f"the database does not expose the schema {chosen}")
        async with project.connection(settings.dsn) as connection:
            cache, usable, callable_ = await in_transaction(
                connection, lambda run: _described(run, settings, chosen, role)
            )
        url = f"{project.settings.server.public_url or _LOCAL_URL}/{stage}/db/{database}/rest"
        if settings.openapi_server_proxy_uri is not None:
            url = public_url(settings.openapi_server_proxy_uri)
        value = document(cache, chosen, url, usable, callable_)
        invocation.show(value, orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

    invocation.run(work)


_Described = tuple[SchemaCache, frozenset[str] | None, frozenset[str] | None]


async def _described(run: Transaction, database: StageDatabase, schema: str, role: str | None) -> _Described:
    """The schema cache, and the names of the relations and functions that ``role`` may use; None for all."""

    async def one(sql: str, params: Mapping[str, Any]) -> str:
        value = (await run.query(sql, params))[0][0]
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    # With this the catalogue queries return names with their schemas, as they do for the service.
    await run.query("set local search_path = ''")
    answers = await read(one, database.schemas, database.extra_search_path)
    cache = build(answers, database.schemas, 0)
    if role is None:
        return cache, None, None
    await run.query("select set_config('role', %s, true)", (role,))
    rights = rights_sql(schema)
    rows = await run.query(rights.for_driver, rights.values())
    usable, callable_ = (frozenset(orjson.loads(names)) for names in rows[0])
    return cache, usable, callable_
