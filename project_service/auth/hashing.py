"""bcrypt in threads of its own, one for each CPU, with a bounded queue. The reactor's threads are left to others,
such as the resolver of names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from twisted.application.service import Service
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from project_service import errors
from project_service.auth.passwords import Bcrypt, Candidates
from project_service.deferreds import shield

T = TypeVar("T")

# At cost 12 a core makes about four hashes a second, so the last one waits for eight seconds. Beyond that it is 503.
QUEUE_PER_THREAD = 32
# Hashing uses all the CPU time that it gets, so the reactor and the database go first.
NICENESS = 10


class Hashes(Protocol):
    """Hashes and checks passwords. The asynchronous methods raise ``overloaded`` if too many hashes are waiting."""

    async def hash(self, password: bytes) -> bytes: ...

    async def matches(self, passwords: Candidates, stored: bytes | None) -> bool: ...

    def outdated(self, stored: bytes) -> bool: ...


class Hashing(Service):
    """Implements ``Hashes``. Its threads exist from ``startService`` to ``stopService``."""

    def __init__(
        self, reactor: Any, bcrypt: Bcrypt, threads: int, queue_per_thread: int = QUEUE_PER_THREAD
    ) -> None:
        self.setName("bcrypt")
        self._reactor = reactor
        self._bcrypt = bcrypt
        self._most = threads * (1 + queue_per_thread)
        self._under_way = 0
        self._pool = ThreadPool(minthreads=0, maxthreads=threads, name="bcrypt")
        self._polite = threading.local()

    def startService(self) -> None:
        super().startService()
        self._pool.start()

    def stopService(self) -> None:
        super().stopService()
        self._pool.stop()

    @property
    def under_way(self) -> int:
        """How many hashes are being made or are waiting."""
        return self._under_way

    async def hash(self, password: bytes) -> bytes:
        return await self._run(self._bcrypt.hash, password)

    async def matches(self, passwords: Candidates, stored: bytes | None) -> bool:
        return await self._run(self._bcrypt.matches, passwords, stored)

    def outdated(self, stored: bytes) -> bool:
        return self._bcrypt.outdated(stored)

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        if self._under_way >= self._most:
            raise errors.overloaded()
        # Shielded, so that it is counted until the thread is done with it and not only until the caller gives up.
        return await shield(self._in_turn(work, *args))

    async def _in_turn(self, work: Callable[..., T], *args: object) -> T:
        self._under_way += 1
        try:
            return await deferToThreadPool(self._reactor, self._pool, self._politely, work, *args)
        finally:
            self._under_way -= 1

    def _politely(self, work: Callable[..., T], *args: object) -> T:
        if not getattr(self._polite, "done", False):
            self._polite.done = True
            # On Linux each thread has a niceness of its own.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        return work(*args)
