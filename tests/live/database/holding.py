"""A process that holds a lock and does not let go of it, for ``test_locks`` to stop.

``python -m tests.live.database.holding KIND DSN [FOLDER]`` prints ``holds`` when it has the lock, and then what
became of it. PostgreSQL waits for a word of it for ``SILENCE_SECONDS`` only.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import react

from project_service.cli import project_migrations
from project_service.cli.sql_files import FileFailed
from project_service.database import connecting, locks, migrate
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.locks import SWEEPER, AdvisoryLock, limit_silence, while_held
from tests.live.sql import connection_to

# Long enough for a machine that stands still for some seconds.
SILENCE_SECONDS = 8.0


def in_a_hurry() -> None:
    """Have what is tested wait for ``SILENCE_SECONDS`` instead of a minute."""

    async def limited(connection: Connection, seconds: float = SILENCE_SECONDS) -> None:
        await limit_silence(connection, seconds)

    async def held(connection: Connection, function: Any) -> Any:
        return await while_held(connection, function, SILENCE_SECONDS)

    connecting._SETTINGS["idle_in_transaction_session_timeout"] = f"{SILENCE_SECONDS}s"
    migrate.limit_silence = project_migrations.limit_silence = limited  # type: ignore[attr-defined]
    project_migrations.while_held = held  # type: ignore[assignment, attr-defined]


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def never_ends(connection: object = None) -> None:
    tell("holds")
    try:
        await Deferred[None]()
    except CancelledError:
        tell("cancelled")
        raise


async def work(kind: str, dsn: str, folder: str) -> None:
    if kind == "lock":
        await AdvisoryLock(lambda: connection_to(dsn), SWEEPER, SILENCE_SECONDS)(never_ends)
    elif kind == "migrations":
        with closing(await connection_to(dsn, 0)) as connection:
            lost: Deferred[None] = Deferred()
            connection.on_lost = lambda _: lost.errback(DatabaseGone("lost"))

            async def afterwards(_: Connection) -> None:
                tell("holds")
                await lost

            await migrate.migrate(connection, migrate.shipped(), afterwards=afterwards)
    else:

        @asynccontextmanager
        async def connect() -> AsyncIterator[Connection]:
            with closing(await connection_to(dsn, 0)) as connection:
                yield connection

        tell("holds")
        applied = await project_migrations.apply(connect, Path(folder), tell)
        tell(f"applied {applied[0]}")


async def main(reactor: object, kind: str, dsn: str, folder: str = "") -> None:
    in_a_hurry()
    try:
        await work(kind, dsn, folder)
    except DatabaseGone:
        tell("lost")
    except FileFailed as fault:
        tell(f"failed: {fault}")


if __name__ == "__main__":
    assert locks.SILENCE_SECONDS > SILENCE_SECONDS
    react(lambda reactor, *argv: Deferred.fromCoroutine(main(reactor, *argv)), sys.argv[1:])
