"""Work that one process does at a time, among all workers of all hosts on one database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from attrs import frozen

from project_service.database.session import Session


@frozen
class Alone:
    """Holds an advisory lock on a connection of its own, so that work which needs the pool cannot starve itself.

    ``lock`` is any number that no other advisory lock of the service has. The lock goes with the connection: when
    that is lost while the work is under way, another process may begin, so the work must be safe beside itself.
    """

    connect: Callable[[], Awaitable[Session]]
    lock: int

    async def __call__(self, work: Callable[[], Awaitable[None]]) -> bool:
        """False where another process is at it; then ``work`` has not been called."""
        session = await self.connect()
        try:
            rows = await session.query("select pg_try_advisory_lock(%s)", (self.lock,))
            if not rows[0][0]:
                return False
            await work()
            return True
        finally:
            session.close()
