"""``project-service sql``: runs an SQL file as the owner of the database, for hosts without psql."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import IO, Any

import click
import orjson
import psycopg2
from psycopg2 import extensions

from project_service.cli import shared
from project_service.cli.shared import Opened
from project_service.database.connection import Connection
from project_service.database.pipeline import plain_text


@click.command()
@click.argument("file", type=click.File("r", encoding="utf-8-sig"), default="-")
@shared.options
def command(invocation: shared.Invocation, file: IO[str]) -> None:
    """Run FILE (default: standard input) in one transaction and print the last statement's rows.

    All of it or nothing: the first error undoes everything. BEGIN, COMMIT, COPY with the standard streams and psql's
    backslash commands have no place in it.

    A row is a line, its values as PostgreSQL writes them with tabs between. With --json it is a list, where whole
    numbers, float8, booleans, json and null are as JSON has them.
    """
    text = _text(file)

    async def work(open_: Opened) -> None:
        async with open_.connection(unhurried=True) as connection:
            try:
                rows, types = await _rows(connection, text)
            except psycopg2.Error as fault:
                raise shared.Failed(_refusal(fault)) from None
        invocation.show(
            [[_json(value, one) for value, one in zip(row, types, strict=True)] for row in rows],
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
    said = plain_text(fault)
    if fault.pgcode is None and "COPY" in said:
        return "COPY can neither read standard input nor write to standard output here"
    return said or type(fault).__name__
