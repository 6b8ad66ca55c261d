"""bcrypt in threads of its own (the reactor's resolve names too): one for each CPU, a bounded queue in front."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from twisted.application.service import Service
from twisted.python.threadpool import ThreadPool

from project_service import errors
from project_service.auth.passwords import Bcrypt
from project_service.deferreds import in_thread, shield

T = TypeVar("T")

# At cost 12 a core does some four hashes a second: these are eight seconds of waiting, and then 503.
QUEUE_PER_THREAD = 32
# Hashing takes every cycle it gets; the reactor and the database go first.
NICENESS = 10


class Hashes(Protocol):
    """Raises ``overloaded`` where the queue is full."""

    async def hash(self, password: bytes) -> bytes: ...

    async def matches(self, password: bytes | None, stored: bytes | None) -> bool: ...

    def outdated(self, stored: bytes) -> bool: ...


class Hashing(Service):
    """Implements ``Hashes``. Its threads live from ``startService`` to ``stopService``."""

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
        """How many hashes are being made or wait to be."""
        return self._under_way

    async def hash(self, password: bytes) -> bytes:
        return await self._run(self._bcrypt.hash, password)

    async def matches(self, password: bytes | None, stored: bytes | None) -> bool:
        return await self._run(self._bcrypt.matches, password, stored)

    def outdated(self, stored: bytes) -> bool:
        return self._bcrypt.outdated(stored)

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        if self._under_way >= self._most:
            raise errors.overloaded()
        # Counted until the thread is done with it, not until somebody stops waiting.
        return await shield(self._in_turn(work, *args))

    async def _in_turn(self, work: Callable[..., T], *args: object) -> T:
        self._under_way += 1
        try:
            return await in_thread(self._reactor, self._pool, self._politely, work, *args)
        finally:
            self._under_way -= 1

    def _politely(self, work: Callable[..., T], *args: object) -> T:
        if not getattr(self._polite, "done", False):
            self._polite.done = True
            # On Linux a niceness is a thread's own.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        return work(*args)
