"""A file of SQL: what is refused before anything runs, how it is run, and what is said of its errors.

A file is one transaction, so that all of it holds or nothing. It is sent a statement at a time, so every error has a
line, and every statement its result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2

from project_service.cli.invocation import Failed, explained
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pipeline import plain_text
from project_service.database.pool import Transaction, in_transaction
from project_service.database.sql_scripts import SqlFile, unsuited


class FileFailed(Failed):
    """A file was not run to its end; the message says why, and where."""


Take = Callable[[Any], None]


async def run_file(
    file: SqlFile,
    connection: Connection,
    take: Take = lambda cursor: None,
    first: Callable[[Transaction], Awaitable[object]] | None = None,
) -> None:
    """Run it on ``connection``, which is new and has no statement timeout. ``take`` is called with the cursor of each
    statement's result. ``first`` is run before it in the same transaction, so the file must be ``in_transaction``.

    Raises ``FileFailed``; then nothing has been done, unless the file is without a transaction.
    """

    async def whole(transaction: Transaction) -> None:
        if first is not None:
            await first(transaction)
        await run_statements(file, connection, take)

    if file.in_transaction:
        with naming(f"{file.name}, at its end (COMMIT)"):
            await in_transaction(connection, whole)
        return
    assert first is None
    await run_statements(file, connection, take)
    if connection.in_transaction:
        raise FileFailed(
            f"{file.name} begins a transaction and does not end it, so that was undone: add COMMIT"
        )


async def run_statements(file: SqlFile, connection: Connection, take: Take = lambda cursor: None) -> None:
    """Run its statements in the transaction that ``connection`` is in, or each by itself. Raises ``FileFailed``."""
    # Our connections have an empty search path. This is the one that psql would have.
    await connection.query("reset search_path")
    for statement in file.script.statements:
        line = f"{file.name}, line {statement.line}"
        changed = unsuited(statement, connection.raw.get_parameter_status)
        if changed is not None:
            raise FileFailed(f"{line}: the file {changed}")
        try:
            # Without parameters psycopg2 leaves percent signs in the text alone.
            take(await connection.execute(statement.text))
        except psycopg2.Error as fault:
            position = fault.diag.statement_position
            if position:
                line = f"{file.name}, line {statement.line_at(int(position))}"
            raise FileFailed(refusal(line, fault, file.hint(statement, fault.pgcode))) from fault
        except DatabaseGone as gone:
            raise FileFailed(_gone(line, gone)) from gone


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Errors of the database become ``FileFailed`` with the place where they happened."""
    try:
        yield
    except psycopg2.Error as fault:
        raise FileFailed(refusal(where, fault)) from fault
    except DatabaseGone as gone:
        raise FileFailed(_gone(where, gone)) from gone


def refusal(where: str, fault: psycopg2.Error, hint: str | None = None) -> str:
    """An error with everything that PostgreSQL says about it."""
    diag = fault.diag
    message = diag.message_primary or plain_text(fault) or type(fault).__name__
    if fault.pgcode is None and "COPY" in message:
        message = "COPY can neither read standard input nor write to standard output here"
    more = (
        ("DETAIL", diag.message_detail),
        ("HINT", diag.message_hint),
        ("HINT", hint),
        ("CONTEXT", diag.context),
    )
    lines = [f"{where}: {message}", *(f"{label}: {text}" for label, text in more if text)]
    return "\n  ".join("\n".join(lines).splitlines())


def _gone(where: str, gone: DatabaseGone) -> str:
    why = gone.reason.diag.message_primary if gone.reason is not None else None
    return f"{where}: {explained(gone)}{f' ({why})' if why else ''}"
