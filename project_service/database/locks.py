"""Work that one process at a time does, among all that share a database: advisory locks that a process loses when it
hangs.

A lock belongs to a session. PostgreSQL ends the session of a holder that it has not heard of for ``SILENCE_SECONDS``,
and the next process gets the lock; so a holder whose session has nothing to do speaks now and then (``while_held``).
One that is stopped, hangs or is cut off loses its locks within that time. When it goes on it finds its session ended,
and its work is cancelled. By then another process may have begun, and what it had sent already may still arrive, so
whatever is done under a lock must be safe to be done twice at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TypeVar

import psycopg2
from attrs import frozen
from twisted.internet.defer import CancelledError

from project_service.database.connection import Connection, DatabaseGone
from project_service.lifecycle import Sleep, start

T = TypeVar("T")

# The numbers of all advisory locks. They are arbitrary but never change, since other versions may run beside.
MIGRATIONS = 0x70726A73
PROJECT_MIGRATIONS = 0x70726A6D
AUTH_UPKEEP = 7_201_501_002
SWEEPER = 7_201_501_003
DIGESTS = 7_201_501_004

# How long PostgreSQL waits for a word of a holder: as long as for one that is in a transaction (``connecting``).
SILENCE_SECONDS = 60.0
# How often a holder speaks in that time.
WORDS = 4


@frozen
class AdvisoryLock:
    """Calls a function under an advisory lock: in one process at a time, among all workers of all hosts that share a
    database.

    The lock is held on a connection of its own, so that it takes none from the pool.
    """

    connect: Callable[[], Awaitable[Connection]]
    lock: int
    silence_seconds: float = SILENCE_SECONDS

    async def __call__(self, function: Callable[[], Awaitable[None]]) -> bool:
        """Call ``function`` and return True; or False, without calling it, if another process holds the lock.

        Raises ``DatabaseGone`` if the lock is lost; ``function`` is cancelled then.
        """
        with closing(await self.connect()) as connection:
            await limit_silence(connection, self.silence_seconds)
            rows = await connection.query("select pg_try_advisory_lock(%s)", (self.lock,))
            if not rows[0][0]:
                return False
            await while_held(connection, function, self.silence_seconds)
            return True


async def limit_silence(connection: Connection, seconds: float = SILENCE_SECONDS) -> None:
    """Have PostgreSQL end the session, which loses its locks, once it has had nothing to do for so long; 0: never."""
    await connection.query(
        "select set_config('idle_session_timeout', %s, false)", (f"{seconds * 1000:.0f}ms",)
    )


async def while_held(
    connection: Connection, function: Callable[[], Awaitable[T]], silence_seconds: float = SILENCE_SECONDS
) -> T:
    """What ``function`` returns, which does not use ``connection``: that only speaks so often that its session lives.

    If the session is lost, ``function`` is cancelled, and ``DatabaseGone`` is raised.
    """
    lost, over = False, False
    sleep = Sleep(connection.reactor)

    async def work() -> T:
        return await function()

    async def speak() -> None:
        while not over:
            await sleep.wait(silence_seconds / WORDS)
            if over or lost:
                return
            try:
                await connection.query("select")
            except (DatabaseGone, psycopg2.Error):
                stop(connection)

    def stop(_: Connection) -> None:
        nonlocal lost
        lost = True
        working.cancel()

    await connection.query("select")  # it may be lost already
    connection.on_lost = stop
    working = start(work())
    speaking = start(speak())
    try:
        return await working
    except CancelledError:
        if lost:
            raise DatabaseGone("the lock was lost, and another process may have it by now") from None
        raise
    finally:
        over = True
        connection.on_lost = None
        sleep.wake()
        await speaking
