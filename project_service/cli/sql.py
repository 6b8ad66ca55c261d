"""``project-service sql``: an SQL file as the owner of the database, where no client of PostgreSQL's is."""

from __future__ import annotations

from typing import Any

import click
import psycopg2

from project_service.cli import frame
from project_service.cli.opened import Opened


@click.command()
@click.argument("file", type=click.File("r", encoding="utf-8"), default="-")
@frame.options
def command(invocation: frame.Invocation, file: Any) -> None:
    """Run FILE (default: standard input) in one transaction and print the last statement's rows.

    All of it or nothing: the first error undoes everything. BEGIN, COMMIT and psql's backslash commands have no place
    in it.
    """
    text = file.read()

    async def work(open_: Opened) -> None:
        async with open_.session(unhurried=True) as session:
            try:
                # Several statements in one message are one transaction.
                rows = await session.query(text, None)
            except psycopg2.Error as fault:
                raise frame.Failed(str(fault).strip() or type(fault).__name__) from None
        invocation.show(
            [[_plain(value) for value in row] for row in rows],
            *("\t".join("" if value is None else str(value) for value in row) for row in rows),
        )

    invocation.run(work)


def _plain(value: Any) -> Any:
    """What JSON can say as it is; the rest as text."""
    return value if isinstance(value, str | int | float | bool | dict | list | None) else str(value)
