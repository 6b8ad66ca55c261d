"""Numbered SQL files of the project, each applied once, in the order of their numbers.

``0001_notes.sql`` and ``20260801120000_tags.sql`` are numbered files; the number is everything before the first
underscore. A file is applied in one transaction together with the record of it, in
``_project_service.project_migrations``, and on a connection of its own, so that no setting, role or temporary table
of one reaches the next. Files that were applied are history: they stay as they are, and new ones get greater numbers,
so that every database comes to be in the same way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import click
import psycopg2
from attrs import frozen
from twisted.internet.task import deferLater

from project_service.cli.catalog import look, on_system_database
from project_service.cli.invocation import Failed, Invocation, Project, explained
from project_service.cli.openings import as_text
from project_service.cli.sql_files import naming, run_file, run_statements
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.locks import PROJECT_MIGRATIONS, limit_silence, while_held
from project_service.database.numbered_files import HISTORY, RECORD, Numbered, read_folder
from project_service.database.pool import Transaction, in_transaction
from project_service.database.sql_scripts import SqlFile
from project_service.files import printable
from project_service.lifecycle import timestamp

# How long to wait before asking again whether another host has applied its files.
_TURN_SECONDS = 0.2
# What the next file would find on a connection of its own after COMMIT. RESET SESSION AUTHORIZATION resets the role
# too, and the last two lines are as for our connections.
_AS_AFTER_COMMIT = """
set constraints all immediate;
set constraints all deferred;
close all;
deallocate all;
discard temp;
discard sequences;
reset session authorization;
reset all;
set statement_timeout = 0;
set timezone = 'UTC'
"""


class FolderRefused(Failed):
    """The folder and the history of the database do not fit together; the message has a line for each fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        super().__init__("\n  ".join(("the folder cannot be applied:", *faults)))


@frozen
class Applied:
    """A record of the history."""

    number: int
    name: str
    sha256: str
    at: datetime


@frozen
class Pending:
    """A file that is still to be applied."""

    number: int
    sha256: str
    file: SqlFile


def compared(files: Sequence[Numbered], history: Mapping[int, Applied]) -> tuple[list[Pending], list[str]]:
    """The files that are still to be applied, and the faults: files that were applied and have changed or are gone,
    and those that were not and would have come before one that was, or must not be run at all."""
    by_number = {one.number: one for one in files}
    faults = []
    for applied in history.values():
        there = by_number.get(applied.number)
        if there is None:
            faults.append(f"{applied.name} was applied and is not in the folder: put it back")
        elif not there.is_recorded_as(applied.sha256):
            faults.append(f"{there.name} has changed since it was applied: undo that, and make a new file")
    last = max(history.values(), key=lambda one: one.number, default=None)
    todo = [
        Pending(one.number, one.sha256, SqlFile.of(one.name, one.unified))
        for one in files
        if one.number not in history
    ]
    for pending in todo:
        if last is not None and pending.number < last.number:
            faults.append(
                f"{pending.file.name} would have come before {last.name}, which was applied: give it a greater number"
            )
        faults += pending.file.faults()
    return todo, faults


def to_apply(folder: Path, history: Mapping[int, Applied]) -> list[Pending]:
    """The files of ``folder`` that are still to be applied. Raises ``FolderRefused`` for all faults."""
    files, faults = read_folder(folder)
    todo, more = compared(files, history)
    if faults or more:
        raise FolderRefused((*faults, *more))
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


# Opens a connection that has no statement timeout.
Connect = Callable[[], AbstractAsyncContextManager[Connection]]


async def apply(connect: Connect, folder: Path, say: Callable[[str], None]) -> list[str]:
    """Apply what is pending, and return its names. Several may call this at once: they take turns. ``say`` is called
    with a line if this one has to wait.

    Raises ``FolderRefused`` before anything is applied, and ``FileFailed`` for the first file that fails; those
    before it stay applied.
    """
    async with connect() as turn:  # which lasts until this connection is closed
        await _take_turn(turn, say)
        todo = to_apply(folder, await history(turn))
        if todo:
            await turn.execute(HISTORY)
        for one in todo:
            async with connect() as connection:
                await _apply(one, connection, turn)
        return [one.file.name for one in todo]


async def _take_turn(connection: Connection, say: Callable[[str], None]) -> None:
    """Lock. A connection that waits for a lock has a snapshot all the while, for whose end CREATE INDEX CONCURRENTLY
    waits in turn. One that asks for the lock again and again has none in between."""
    await limit_silence(connection)
    waits = False
    while not (await connection.query("select pg_try_advisory_lock(%s)", (PROJECT_MIGRATIONS,)))[0][0]:
        if not waits:
            say("another host applies files to the database; waiting until it has ended")
        waits = True
        await deferLater(connection.reactor, _TURN_SECONDS)


async def _apply(one: Pending, connection: Connection, turn: Connection) -> None:
    """``turn`` is the connection that holds the turn, on which the file has set nothing."""

    async def record(runs: Transaction | Connection) -> None:
        with naming(f"{one.file.name} cannot be recorded as applied"):
            await runs.query(RECORD, (one.number, one.file.name, one.sha256))

    if one.file.in_transaction:
        # The record comes first, before the file can have taken another role, or other settings.
        # The next one waits for the row of the record, should this process hang, lose its turn and go on.
        await while_held(turn, partial(run_file, one.file, connection, first=record))
    else:
        # What is committed and not recorded would be done again by the next one, so the turn is kept, come what may.
        await limit_silence(turn, 0)
        await run_file(one.file, connection)
        await record(turn)
        await limit_silence(turn)


async def try_out(
    connect: Connect, folder: Path, look: Callable[[Connection], Awaitable[object]]
) -> tuple[list[str], list[str]]:
    """Run what is pending, and then ``look``, in one transaction that is undone. Returns the names of the files that
    were run, and of those that were not: the first one without a transaction, and all after it. Raises as
    ``apply``."""
    async with connect() as connection:
        todo = to_apply(folder, await history(connection))
        tried = []

        async def run(transaction: Transaction) -> None:
            for one in todo:
                if not one.file.in_transaction:
                    break
                await run_statements(one.file, connection)
                with naming(f"{one.file.name}, at its end (COMMIT)"):
                    await transaction.query(_AS_AFTER_COMMIT)
                tried.append(one.file.name)
            await look(connection)
            raise _Undo

        with suppress(_Undo):
            await in_transaction(connection, run)
    return tried, [one.file.name for one in todo[len(tried) :]]


class _Undo(Exception):
    """Rolls a transaction back."""


# The command's part: ``project-service sql --dir``.


async def run_folder(
    invocation: Invocation, project: Project, folder: Path, status: bool, dry_run: bool
) -> None:
    """Apply the files of ``folder``, or only try or list them, and print what was done, and what is then open by
    accident. Raises ``Failed``."""
    connect = partial(project.connection, unhurried=True)
    remarks: list[str] = []

    async def look_around(opening: AbstractAsyncContextManager[Connection]) -> None:
        # What was to be done is done, so nothing here is a failure.
        try:
            async with opening as connection:
                found = await look(connection, on_system_database(project.settings))
        except (psycopg2.Error, DatabaseGone) as fault:
            remarks.append(f"whether anything is open by accident is not known: {explained(fault)}")
        else:
            remarks.extend([as_text(found)] if found else [])

    if status:
        async with connect() as connection:
            _show_status(invocation, await history(connection), folder)
        return
    if dry_run:
        done, untried = await try_out(
            connect, folder, lambda connection: look_around(nullcontext(connection))
        )
        lines = [f"would apply {name}" for name in done]
        lines += [
            f"would apply {name}; not tried, because a file without a transaction cannot be undone"
            for name in untried[:1]
        ]
        lines += [
            f"would apply {name}; not tried, because it comes after {untried[0]}" for name in untried[1:]
        ]
        done += untried
    else:
        done = await apply(connect, folder, lambda line: click.echo(f"project-service: {line}", err=True))
        lines = [f"applied {name}" for name in done]
        await look_around(project.connection())
    invocation.show(done, *(lines or ["nothing to apply"]))
    for remark in remarks:
        click.echo(printable(f"project-service: warning: {remark}"), err=True)


def _show_status(invocation: Invocation, applied: Mapping[int, Applied], folder: Path) -> None:
    """Print the list, also if there are faults, and then raise ``FolderRefused`` for these."""
    files, faults = read_folder(folder)
    todo, more = compared(files, applied)
    shown = [(one.name, timestamp(one.at)) for one in applied.values()]
    waiting = [(one.file.name, "pending") for one in todo]
    invocation.show(
        [{"name": name, "applied_at": at} for name, at in shown]
        + [{"name": name, "applied_at": None} for name, _ in waiting],
        *(f"{at:<24}  {name}" for name, at in (*shown, *waiting)),
    )
    if faults or more:
        raise FolderRefused((*faults, *more))
