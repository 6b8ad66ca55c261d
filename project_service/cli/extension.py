"""``project-service extension``: list, create, drop."""

from __future__ import annotations

import click
from attrs import asdict
from psycopg2 import errors as pg

from project_service.cli import shared
from project_service.cli.shared import Opened
from project_service.embedded import extensions
from project_service.embedded.extensions import Extension
from project_service.settings.reading import EXTENSIONS_SCHEMA


@click.group()
def command() -> None:
    """Extensions of the embedded PostgreSQL, such as vector, pg_trgm and postgres_fdw."""


def _line(one: Extension) -> str:
    return f"{one.name:<20} {one.version or '-':<8} {one.default_version:<8} {one.comment or ''}".rstrip()


@command.command("list")
@shared.options
def list_(invocation: shared.Invocation) -> None:
    """All extensions there are: name, version in the database (- if not created), version available."""

    async def work(open_: Opened) -> None:
        async with open_.connection() as connection:
            every = await extensions.available(connection)
        invocation.show([asdict(one) for one in every], *map(_line, every))

    invocation.run(work)


@command.command()
@click.argument("name")
@click.option(
    "--schema", help=f"Where to put it instead of the schema {EXTENSIONS_SCHEMA}, which it creates."
)
@click.option("--version", help="Another version than the default.")
@shared.options
def create(invocation: shared.Invocation, name: str, schema: str | None, version: str | None) -> None:
    """Create an extension, and those that it needs.

    Everybody may execute the functions of most extensions. In the schema `extensions` that is harmless, since the
    table API does not expose it; in an exposed schema they can be called by whoever has the anon key.
    """

    async def work(open_: Opened) -> None:
        async with open_.connection(open_.admin_dsn, unhurried=True) as connection:
            await extensions.create(connection, name, schema, version)
            (made,) = [one for one in await extensions.available(connection) if one.name == name]
        invocation.show(asdict(made), f"created {name} {made.version} in the schema {made.schema}")

    invocation.run(work)


@command.command()
@click.argument("name")
@click.option("--cascade", is_flag=True, help="Drop what depends on it too: columns, indexes, functions.")
@shared.options
def drop(invocation: shared.Invocation, name: str, cascade: bool) -> None:
    """Drop an extension; one that is used only with --cascade."""

    async def work(open_: Opened) -> None:
        async with open_.connection(open_.admin_dsn, unhurried=True) as connection:
            try:
                await extensions.drop(connection, name, cascade)
            except pg.DependentObjectsStillExist as refusal:
                used = refusal.diag.message_detail
                raise shared.Failed(f"{name} is used; --cascade drops this too:\n{used}") from None
        invocation.show({"name": name, "dropped": True}, f"dropped {name}")

    invocation.run(work)
