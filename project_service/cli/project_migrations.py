"""Numbered SQL files of the project, each applied once, in the order of their numbers.

``0001_notes.sql`` and ``20260801120000_tags.sql`` are numbered files; the number is everything before the first
underscore. A file is applied in one transaction together with the record of it, in
``_project_service.project_migrations``. Files that were applied are history: they stay as they are, and new ones get
greater numbers, so that every database comes to be in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import psycopg2
from attrs import frozen

from project_service.cli.invocation import Failed, Invocation, Project
from project_service.database.connection import Connection
from project_service.database.listener import PROJECT_MIGRATIONS
from project_service.database.migrate import Migration
from project_service.database.pool import Transaction, in_transaction
from project_service.lifecycle import timestamp

_NAME = re.compile(r"([0-9]{1,18})_.+\.sql", re.ASCII)
# Of a file whose statement cannot run inside a transaction, such as CREATE INDEX CONCURRENTLY: its first line.
NO_TRANSACTION = "-- no transaction"
_HISTORY = """
create schema if not exists _project_service;
create table if not exists _project_service.project_migrations (
  number      bigint primary key,
  name        text not null,
  sha256      text not null,
  applied_at  timestamptz not null default now()
)
"""
_RECORD = "insert into _project_service.project_migrations (number, name, sha256) values (%s, %s, %s)"


class FolderRefused(Exception):
    """The folder and the history of the database do not fit together; the message has a line for each fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        super().__init__("\n  ".join(("the folder cannot be applied:", *faults)))


class FileFailed(Exception):
    """A file was not applied; the message says why. Those before it have been."""


def _in_transaction(one: Migration) -> bool:
    return not one.sql.lower().startswith(NO_TRANSACTION)


@frozen
class Applied:
    """A record of the history."""

    number: int
    name: str
    sha256: str
    at: datetime


def read_folder(folder: Path) -> list[Migration]:
    """The numbered files of ``folder``, in order. Raises ``FolderRefused`` for SQL files without a number, two of the
    same number, and what is not UTF-8. Other files are not looked at."""
    files: dict[int, Migration] = {}
    faults = []
    for path in sorted(folder.glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            faults.append(f"{path.name} has no number: rename it to something like 0001_{path.name}")
            continue
        number = int(match[1])
        if number in files:
            faults.append(f"{path.name} has the same number as {files[number].name}")
            continue
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            faults.append(f"{path.name} is not UTF-8")
            continue
        if "\0" in text:
            # libpq would end the message there and silently leave out the rest.
            faults.append(f"{path.name} has a NUL character in it")
        files[number] = Migration(number, path.name, text)
    if faults:
        raise FolderRefused(faults)
    return [files[number] for number in sorted(files)]


def pending(files: Sequence[Migration], history: Mapping[int, Applied]) -> list[Migration]:
    """The files that are still to be applied. Raises ``FolderRefused`` where one that was applied has changed or is
    gone, and where one that was not would have come before one that was."""
    by_number = {one.number: one for one in files}
    faults = []
    for applied in history.values():
        there = by_number.get(applied.number)
        if there is None:
            faults.append(f"{applied.name} was applied and is not in the folder: put it back")
        elif there.sha256 != applied.sha256:
            faults.append(f"{there.name} has changed since it was applied: undo that, and make a new file")
    last = max(history.values(), key=lambda one: one.number, default=None)
    todo = [one for one in files if one.number not in history]
    if last is not None:
        faults += [
            f"{one.name} would have come before {last.name}, which was applied: give it a greater number"
            for one in todo
            if one.number < last.number
        ]
    if faults:
        raise FolderRefused(faults)
    return todo


async def history(connection: Connection) -> dict[int, Applied]:
    """What has been applied, by number. Changes nothing."""
    if not (await connection.query("select to_regclass('_project_service.project_migrations') is not null"))[
        0
    ][0]:
        return {}
    rows = await connection.query(
        "select number, name, sha256, applied_at from _project_service.project_migrations order by number"
    )
    return {number: Applied(number, name, sha256, at) for number, name, sha256, at in rows}


async def apply(connection: Connection, files: Sequence[Migration]) -> list[Migration]:
    """Apply what is pending, and return it. Several may call this at once: they take turns.

    ``connection`` has no statement timeout. Raises ``FolderRefused`` before anything is applied, and ``FileFailed``
    for the first file that fails; those before it stay applied.
    """
    await connection.query("select pg_advisory_lock(%s)", (PROJECT_MIGRATIONS,))
    try:
        todo = pending(files, await history(connection))
        if todo:
            await connection.execute(_HISTORY)
        for one in todo:
            if _in_transaction(one):
                await in_transaction(connection, partial(_apply, one))
            else:
                await _run(one, connection)
                await connection.query("reset role")
                await connection.query(_RECORD, (one.number, one.name, one.sha256))
        return todo
    finally:
        if connection.usable:
            await connection.query("select pg_advisory_unlock(%s)", (PROJECT_MIGRATIONS,))


async def try_out(connection: Connection, files: Sequence[Migration]) -> list[Migration]:
    """Run what is pending in one transaction that is undone, and return it. Of files without a transaction, and those
    after one, nothing is run. Raises as ``apply``."""
    todo = pending(files, await history(connection))

    async def tried(transaction: Transaction) -> None:
        for one in todo:
            if not _in_transaction(one):
                break
            await _run_inside(one, transaction)
        raise _Undo

    with suppress(_Undo):
        await in_transaction(connection, tried)
    return todo


class _Undo(Exception):
    """Rolls a transaction back."""


async def _apply(one: Migration, transaction: Transaction) -> None:
    await _run_inside(one, transaction)
    # The file may have taken another role.
    await transaction.query("reset role")
    await transaction.query(_RECORD, (one.number, one.name, one.sha256))


async def _run_inside(one: Migration, transaction: Transaction) -> None:
    before = await transaction.query("select pg_current_xact_id()::text")
    await _run(one, transaction)
    if await transaction.query("select pg_current_xact_id()::text") != before:
        raise FileFailed(f"{one.name} has COMMIT or ROLLBACK in it; a file is one transaction by itself")


async def _run(one: Migration, runs: Transaction | Connection) -> None:
    try:
        # As psql would begin, whatever the file before has set.
        await runs.query("reset role; reset search_path")
        # None, so that psycopg2 leaves percent signs in the text alone.
        await runs.query(one.sql, None)
    except psycopg2.Error as fault:
        line = _line_of(fault, one.sql)
        raise FileFailed(f"{one.name}{line}: {fault.diag.message_primary or str(fault).strip()}") from fault


def _line_of(fault: psycopg2.Error, text: str) -> str:
    """Where in the file the statement has the fault, if PostgreSQL says so."""
    position = fault.diag.statement_position
    return f", line {text.count(chr(10), 0, int(position) - 1) + 1}" if position else ""


# The command's part: ``project-service sql --dir``.


async def run_folder(
    invocation: Invocation, project: Project, folder: Path, status: bool, dry_run: bool
) -> None:
    """Apply the files of ``folder``, or only try or list them, and print what was done. Raises ``Failed``."""
    try:
        files = read_folder(folder)
        async with project.connection(unhurried=True) as connection:
            if status:
                _show_status(invocation, await history(connection), files)
                return
            done = await (try_out if dry_run else apply)(connection, files)
    except (FolderRefused, FileFailed) as fault:
        raise Failed(str(fault)) from None
    verb = "would apply" if dry_run else "applied"
    lines = [f"{verb} {one.name}" for one in done] or ["nothing to apply"]
    invocation.show([one.name for one in done], *lines)


def _show_status(invocation: Invocation, applied: Mapping[int, Applied], files: Sequence[Migration]) -> None:
    shown = [(one.name, timestamp(one.at)) for one in applied.values()]
    waiting = [(one.name, "pending") for one in pending(files, applied)]
    invocation.show(
        [{"name": name, "applied_at": at} for name, at in shown]
        + [{"name": name, "applied_at": None} for name, _ in waiting],
        *(f"{at:<24}  {name}" for name, at in (*shown, *waiting)),
    )
