"""``project-service openapi``: prints the description that a database's table API has at its root; no service is
needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import orjson

from project_service.cli import shared
from project_service.cli.shared import Opened
from project_service.database.pool import Transaction, in_transaction
from project_service.settings.model import StageDatabase
from project_service.tables.openapi import document, public_url, rights_sql
from project_service.tables.schema_cache.build import build
from project_service.tables.schema_cache.holder import read
from project_service.tables.values import SchemaCache

# The URL to show if server.public_url is not set.
LOCAL_URL = "http://127.0.0.1:8080"


@click.command()
@click.option("--stage", default="dev", show_default=True, help="The stage of the database.")
@click.option("--database", default="main", show_default=True, help="The database's name within the stage.")
@click.option("--schema", help="One of its exposed schemas; the first without this.")
@click.option("--role", help="Only what this role may use; everything without this.")
@shared.options
def command(
    invocation: shared.Invocation, stage: str, database: str, schema: str | None, role: str | None
) -> None:
    """Print the OpenAPI description of a database's table API. It is JSON, with or without --json.

    That of the whole service is at /openapi.json of the running service.
    """

    async def work(open_: Opened) -> None:
        found = shared.stage_database(open_.settings, stage, database)
        chosen = schema or found.schemas[0]
        if chosen not in found.schemas:
            raise shared.Failed(f"the database does not expose the schema {chosen}")
        async with open_.connection(found.dsn) as connection:
            cache, usable, callable_ = await in_transaction(
                connection, lambda run: _described(run, found, chosen, role)
            )
        url = f"{open_.settings.server.public_url or LOCAL_URL}/{stage}/db/{database}/rest"
        if found.openapi_server_proxy_uri is not None:
            url = public_url(found.openapi_server_proxy_uri)
        value = document(cache, chosen, url, usable, callable_)
        invocation.show(value, orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

    invocation.run(work)


_Catalogue = tuple[SchemaCache, frozenset[str] | None, frozenset[str] | None]


async def _described(run: Transaction, database: StageDatabase, schema: str, role: str | None) -> _Catalogue:
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
    asked = rights_sql(schema)
    rows = await run.query(asked.for_driver, asked.values())
    usable, callable_ = (frozenset(orjson.loads(names)) for names in rows[0])
    return cache, usable, callable_
