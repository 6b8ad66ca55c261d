"""``project-service dsn``, as in ``psql "$(project-service dsn)"``."""

from __future__ import annotations

import click

from project_service.cli import shared
from project_service.cli.shared import Opened
from project_service.settings.model import Settings


@click.command()
@click.option("--stage", help="A stage's database instead of the system database; needs --database.")
@click.option("--database", help="The database's name within the stage.")
@shared.options
def command(invocation: shared.Invocation, stage: str | None, database: str | None) -> None:
    """Print a connection string, with its password.

    A database embedded in a data directory can only be used while a service runs there. If none does, the string is
    printed all the same, with a note on standard error.
    """
    if (stage is None) != (database is None):
        raise click.UsageError("--stage and --database go together")

    async def work(open_: Opened) -> None:
        found = _dsn(open_.settings, stage, database)
        invocation.show({"dsn": found}, found)
        if open_.started_here:
            click.echo("project-service: nothing runs there now; start the service to use it", err=True)

    invocation.run(work)


def _dsn(settings: Settings, stage: str | None, database: str | None) -> str:
    """The DSN of a stage's database; that of the system database if it has none of its own."""
    own = None
    if stage is not None and database is not None:
        own = shared.stage_database(settings, stage, database).dsn
    found = own or settings.database.dsn
    assert found is not None
    return found.reveal()
