"""``/admin/databases/…/migrations``: SQL saved as the next numbered file of the project's folder, which the command
``sql --dir`` applies wherever it has not been applied yet."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import psycopg2
from attrs import frozen

from project_service.database.connection import Connection
from project_service.database.numbered_files import HISTORY, RECORD, Numbered, next_number
from project_service.database.sql_scripts import SqlFile
from project_service.errors import validation_failed
from project_service.http.describe import COUNT, JSON, STRING, Answer, Operation, exactly, in_path
from project_service.http.json_body import FLAG, TEXT, body_of, member, text
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.operators import errors
from project_service.operators.sql import TAG, Audited, Connectors, find

_NAME = r"^[a-z0-9][a-z0-9_-]{0,79}$"
_APPLIED = "select coalesce(max(number), 0) from _project_service.project_migrations"
_HAS_HISTORY = "select to_regclass('_project_service.project_migrations') is not null"


@frozen
class NewMigration:
    """The body that saves a migration."""

    name: str = member(
        text({"type": "string", "pattern": _NAME}), schema={"description": "What follows the number."}
    )
    sql: str = member(TEXT)
    applied: bool = member(
        FLAG,
        default=False,
        schema={
            "description": "It has been run on this database already, so it is only recorded as applied there."
        },
    )


_IN_DATABASE = (in_path("stage", "The stage, as in the settings."), in_path("database", "Its name there."))
_MIGRATIONS = "/admin/databases/<stage>/<database>/migrations"


@frozen(eq=False)
class MigrationRoutes:
    """``folder`` returns ``server.migrations_dir``."""

    connectors: Connectors
    folder: Callable[[], str | None]
    audited: Audited

    @endpoint(
        "GET",
        _MIGRATIONS,
        Operation(
            "showNextMigration",
            TAG,
            "Where the next migration is saved",
            (
                Answer(
                    200,
                    "The folder, null if none is named; and what the name of the next file begins with",
                    {JSON: exactly(folder={"type": ["string", "null"]}, next=STRING)},
                ),
            ),
            _IN_DATABASE,
            errors=(errors.database_not_found(), errors.migration_not_saved()),
        ),
    )
    async def next(self, request: Request) -> Reply:
        connect = find(self.connectors, request.path_args["stage"], request.path_args["database"])
        named = self.folder()
        with _naming_faults():
            names = [] if named is None else _names_in(Path(named))
            connection = await connect()
            try:
                applied = await _last_applied(connection)
            finally:
                connection.close()
        body = {"folder": named, "next": next_number(names, applied, self.audited.moment)}
        return json_reply(body, headers=(NO_STORE,))

    @endpoint(
        "POST",
        _MIGRATIONS,
        Operation(
            "saveMigration",
            TAG,
            "Save SQL as the next migration",
            (
                Answer(
                    201,
                    "The new file",
                    {JSON: exactly(file=STRING, folder=STRING, number=COUNT, applied={"type": "boolean"})},
                ),
            ),
            _IN_DATABASE,
            body_of(NewMigration),
            (
                errors.migrations_dir_not_set(),
                errors.database_not_found(),
                errors.migration_not_saved(),
            ),
            details="Only where `server.migrations_dir` names a folder. The number is the next one after those of "
            "the folder and those that were applied to the database, in the form that the folder has: "
            "`0007_tags.sql`. Nothing is run. As for `project-service sql`, the text is one transaction, which it "
            "cannot begin or end by itself.",
        ),
    )
    async def save(self, request: Request) -> Reply:
        named = self.folder()
        if named is None:
            raise errors.migrations_dir_not_set()
        stage, database = request.path_args["stage"], request.path_args["database"]
        connect = find(self.connectors, stage, database)
        new = await request.read_json(NewMigration)
        _check(new)
        with _naming_faults():
            connection = await connect()
            try:
                saved = await _save(connection, Path(named), new, self.audited.moment)
            finally:
                connection.close()
        await self.audited.record(request, f"{stage}/{database}/{saved.name}", action="save_migration")
        body = {"file": saved.name, "folder": named, "number": saved.number, "applied": new.applied}
        return json_reply(body, 201, (NO_STORE,))


async def _save(connection: Connection, folder: Path, new: NewMigration, now: datetime) -> Numbered:
    """Raises ``OSError``, and ``psycopg2.Error`` if it cannot be recorded; then there is no file either."""
    applied = await _last_applied(connection)
    content = new.sql.replace("\r\n", "\n").rstrip() + "\n"
    saved = _written(folder, new.name, content, applied, now)
    if new.applied:
        try:
            await connection.query(HISTORY)
            await connection.query(RECORD, (saved.number, saved.name, saved.sha256))
        except BaseException:
            (folder / saved.name).unlink(missing_ok=True)
            raise
    return saved


async def _last_applied(connection: Connection) -> int:
    """The number of the last file that was applied to the database, 0 if there is none."""
    if not (await connection.query(_HAS_HISTORY))[0][0]:
        return 0
    number: int = (await connection.query(_APPLIED))[0][0]
    return number


@contextmanager
def _naming_faults() -> Iterator[None]:
    """What folder and database refuse becomes an error that says so."""
    try:
        yield
    except psycopg2.Error as fault:
        raise errors.migration_not_saved(f"{fault.diag.message_primary or type(fault).__name__}.") from None
    except OSError as fault:
        raise errors.migration_not_saved(f"{fault.strerror or type(fault).__name__}.") from None


def _check(new: NewMigration) -> None:
    faults = {}
    if re.fullmatch(_NAME, new.name, re.ASCII) is None:
        faults["name"] = "must be at most 80 of a-z, 0-9, _ and -, and begin with a letter or a digit"
    file = SqlFile.of("the text", new.sql)
    if "\0" in new.sql:
        faults["sql"] = "has a NUL character in it"
    elif not file.script.statements:
        faults["sql"] = "has no statement"
    elif reasons := file.faults():
        faults["sql"] = "; ".join(reasons)
    if faults:
        raise validation_failed(faults)


def _written(folder: Path, name: str, content: str, applied: int, now: datetime) -> Numbered:
    with _alone_in(folder):
        digits = next_number(_names_in(folder), applied, now)
        saved = Numbered(int(digits), f"{digits}_{name}.sql", content)
        path = folder / saved.name
        with path.open("x", encoding="utf-8", newline="") as file:
            try:
                file.write(content)
                file.flush()
            except BaseException:
                path.unlink()  # half of it would be applied elsewhere
                raise
    return saved


def _names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """For one process of the service at a time, so that no number is given twice. Whoever may read the folder can
    hold its lock, so nobody waits for that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise errors.migration_not_saved("Somebody else saves one just now; try again.") from None
        yield
    finally:
        os.close(descriptor)
