"""Keeps work to one process at a time, among all workers of all hosts that share a database.

The numbers of all locks stand here. They are arbitrary but stay as they are, since other versions may run beside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing

from attrs import frozen

from project_service.database.session import Session

MIGRATIONS = 0x70726A73
AUTH_UPKEEP = 7_201_501_002
SWEEPER = 7_201_501_003


@frozen
class AdvisoryLock:
    """Runs work under an advisory lock.

    The lock is held on a connection of its own, so that it takes none of the pool's from the work. If the connection
    is lost while the work is under way, the lock is lost too and another process may begin, so the work must be safe
    to run twice at the same time.
    """

    connect: Callable[[], Awaitable[Session]]
    lock: int

    async def __call__(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run ``work`` and return True; or False, without calling it, where another process holds the lock."""
        with closing(await self.connect()) as session:
            rows = await session.query("select pg_try_advisory_lock(%s)", (self.lock,))
            if not rows[0][0]:
                return False
            await work()
            return True
