"""``project-service migrate``."""

from __future__ import annotations

from typing import Any

import click

from project_service.cli import shared
from project_service.cli.shared import Opened
from project_service.database.migrate import expose, lacking, migrate, shipped


@click.command()
@shared.options
def command(invocation: shared.Invocation) -> None:
    """Bring the database to the form this program needs.

    The service does the same at its start; on its own this is for databases whose schema is changed by another role
    or at another time. Two at once are safe.
    """

    async def work(open_: Opened) -> None:
        exposed = open_.settings.exposed_schemas()
        async with open_.connection(unhurried=True) as connection:
            done = await migrate(
                connection, shipped(), _progress(invocation), lambda locked: expose(locked, exposed)
            )
            for shortcoming in await lacking(connection, open_.settings.schemas_of_service_role()):
                click.echo(f"project-service: {shortcoming}", err=True)
        applied = [one.name for one in done]
        line = f"applied {len(applied)}" if applied else "nothing to do"
        invocation.show({"applied": applied}, line)

    invocation.run(work)


def _progress(invocation: shared.Invocation) -> Any:
    return (lambda _: None) if invocation.json else click.echo
