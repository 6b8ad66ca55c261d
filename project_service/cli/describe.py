"""``project-service openapi`` and ``types``: what a database consists of, for its clients. No service is needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from project_service.bootstrap import shell_variables
from project_service.cli.invocation import Failed, Invocation, Project, on_project
from project_service.database.pool import Transaction, in_transaction
from project_service.network import url_configured
from project_service.settings.model import Settings, StageDatabase
from project_service.tables.description.client_types import python, typescript
from project_service.tables.description.openapi import document, public_url, rights_sql
from project_service.tables.description.openapi3 import openapi3
from project_service.tables.description.type_catalog import TYPES_SQL, TypeCatalog, catalog_of
from project_service.tables.schema_cache.build import base_columns, build
from project_service.tables.schema_cache.holder import read
from project_service.tables.values import SchemaCache

# The URL to show if nothing says where the service is reached.
_LOCAL_URL = "http://127.0.0.1:8080"


@click.command()
@click.option("--stage", default="dev", show_default=True, help="The stage of the database.")
@click.option(
    "--database", default="main", show_default=True, help="The name of the database within the stage."
)
@click.option("--schema", help="One of its exposed schemas. [default: the first]")
@click.option("--role", help="Only what this role may use. [default: everything]")
@on_project()
async def openapi(
    invocation: Invocation, project: Project, stage: str, database: str, schema: str | None, role: str | None
) -> None:
    """Print the OpenAPI description of a database's table API. It is JSON, with or without --json.

    A running service describes itself as a whole at /openapi.json.
    """
    settings = project.stage_database(stage, database)
    chosen = schema or settings.schemas[0]
    if chosen not in settings.schemas:
        raise Failed(f"the database does not expose the schema {chosen}")
    async with project.connection(project.settings.session_dsn(settings)) as connection:
        cache, usable, callable_ = await in_transaction(
            connection, lambda run: _described(run, settings, chosen, role)
        )
    url = _root_url(invocation, project.settings, settings, stage, database)
    value = document(cache, chosen, url, usable, callable_)
    invocation.show(value, orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


@click.command()
@click.argument("language", type=click.Choice(["typescript", "python", "openapi3"]))
@click.option("--stage", default="dev", show_default=True, help="The stage of the database.")
@click.option(
    "--database", default="main", show_default=True, help="The name of the database within the stage."
)
@click.option(
    "--schema", "schemas", multiple=True, help="An exposed schema. [default: all; openapi3: the first]"
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write this file instead of printing."
)
@on_project()
async def types(
    invocation: Invocation,
    project: Project,
    language: str,
    stage: str,
    database: str,
    schemas: tuple[str, ...],
    output: Path | None,
) -> None:
    """Print the types of a database's tables, views, functions and enums.

    \b
    typescript  the type Database that postgrest-js and supabase-js take: createClient<Database>(...)
    python      a module with a dataclass for the rows of each table, and what inserts and updates take
    openapi3    an OpenAPI 3.1 description of one schema, for generators of clients
    """
    settings = project.stage_database(stage, database)
    for schema in schemas:
        if schema not in settings.schemas:
            raise Failed(f"the database does not expose the schema {schema}")
    chosen = schemas or settings.schemas
    async with project.connection(project.settings.session_dsn(settings)) as connection:
        cache, catalog = await in_transaction(connection, lambda run: _catalog(run, settings, chosen))
    if language == "openapi3":
        url = _root_url(invocation, project.settings, settings, stage, database)
        description = openapi3(document(cache, chosen[0], url, None, None), catalog, chosen[0])
        text = orjson.dumps(description, option=orjson.OPT_INDENT_2).decode() + "\n"
    else:
        text = typescript(catalog) if language == "typescript" else python(catalog)
    if output is None:
        invocation.show(text, text.rstrip("\n"))
    else:
        with click.open_file(str(output), "w", "utf-8", atomic=True) as file:
            file.write(text)


async def _catalog(
    run: Transaction, database: StageDatabase, schemas: tuple[str, ...]
) -> tuple[SchemaCache, TypeCatalog]:
    answers = await _answers(run, database)
    cache = build(answers, database.schemas, 0)
    search_path = [*database.schemas, *database.extra_search_path]
    rows = await run.query(TYPES_SQL, {"schemas": list(schemas), "search_path": search_path})
    bases = base_columns({row["oid"]: row["rule"] for row in orjson.loads(answers["rules"])})
    return cache, catalog_of(rows[0][0], schemas, cache.relationships, bases)


def _root_url(
    invocation: Invocation, settings: Settings, database: StageDatabase, stage: str, name: str
) -> str:
    """The URL of the root of a database's table API, as clients reach it."""
    if database.openapi_server_proxy_uri is not None:
        return public_url(database.openapi_server_proxy_uri)
    base = settings.server.public_url or _started_url(invocation) or _configured_url(settings) or _LOCAL_URL
    return f"{base.rstrip('/')}/{stage}/db/{name}/rest"


def _started_url(invocation: Invocation) -> str | None:
    """Where the service with this data directory was started the last time, whatever its options were."""
    data_dir = invocation.source().data_dir
    try:
        return None if data_dir is None else shell_variables(data_dir)["URL"]
    except (OSError, ValueError):
        return None


def _configured_url(settings: Settings) -> str | None:
    """The first of ``server.listen`` that has a port."""
    return next((url for url in map(url_configured, settings.server.listen) if url is not None), None)


_Described = tuple[SchemaCache, frozenset[str] | None, frozenset[str] | None]


async def _described(run: Transaction, database: StageDatabase, schema: str, role: str | None) -> _Described:
    """The schema cache, and the names of the relations and functions that ``role`` may use; None for all."""
    cache = build(await _answers(run, database), database.schemas, 0)
    if role is None:
        return cache, None, None
    await run.query("select set_config('role', %s, true)", (role,))
    rights = rights_sql(schema)
    rows = await run.query(rights.for_driver, rights.values())
    usable, callable_ = (frozenset(orjson.loads(names)) for names in rows[0])
    return cache, usable, callable_


async def _answers(run: Transaction, database: StageDatabase) -> dict[str, str]:
    """What the schema cache is built from."""

    async def one(sql: str, params: Mapping[str, Any]) -> str:
        value = (await run.query(sql, params))[0][0]
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    # With this the catalogue queries return names with their schemas, as they do for the service.
    await run.query("set local search_path = ''")
    return await read(one, database.schemas, database.extra_search_path)
