"""The connection pool. (txpostgres' own never reconnects, hands out dead connections, and can deadlock.)

A caller may be cancelled while it waits for a connection, but not while it uses one: ``use`` is shielded. A
connection that comes back inside a transaction, in use, or with changed settings is thrown away. Otherwise the next
caller would work in the last one's transaction, under the last one's role.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import psycopg2
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from project_service import errors
from project_service.database.connection import Connection, DatabaseGone, Params, Row, numbered, run_prepared
from project_service.database.pipeline import Pipelines, Step, as_texts, may_be_stale
from project_service.lifecycle import Backoff, cancel, shield, start
from project_service.wait_queue import WaitQueue

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
# Of so many connections one may be shared by quick reads.
CONNECTIONS_PER_PIPELINE = 4


class Transaction:
    """What ``Pool.transaction`` hands to its work: queries inside one BEGIN … COMMIT."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def query(self, sql: str | bytes, params: Params = None) -> list[Row]:
        return await self._connection.query(sql, params)


class Pool:
    """Up to ``size`` connections, made by ``connect`` when they are needed.

    Callers are served in the order in which they came. One that has waited for ``acquire_timeout_seconds`` gets the
    failure ``late()``; or ``away()`` where nobody is using a connection, which means that none can be made. Their
    number is not limited here: a request has a place in its lane before it comes. Some of the connections are shared
    by quick reads (``pipelines``), each of which begins with the steps ``opening``.
    """

    log = Logger()

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        size: int,
        acquire_timeout_seconds: float,
        clock: IReactorTime,
        late: Callable[[], Exception] = errors.database_unavailable,
        away: Callable[[], Exception] = errors.database_unavailable,
        opening: Sequence[Step] = (),
    ) -> None:
        self._connect = connect
        self._size = size
        self._clock = clock
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._connecting: set[Deferred[None]] = set()
        self._waiting: WaitQueue[Connection] = WaitQueue(
            clock, acquire_timeout_seconds, lambda: late() if self._busy else away()
        )
        self._offered: deque[Connection] = deque()
        self._offering = False
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._retry: IDelayedCall | None = None
        self._closed = False
        self.pipelines = Pipelines(self, size // CONNECTIONS_PER_PIPELINE, clock, opening)
        self._empty: Deferred[None] | None = None

    @property
    def size(self) -> int:
        return self._size

    @property
    def in_use(self) -> int:
        return len(self._busy)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def query(self, sql: str | bytes, params: Params = None) -> list[Row]:
        """One message in its own implicit transaction; the rows of its last statement.

        Raises ``late()`` or ``away()`` when no connection is free in time, ``DatabaseGone`` when it is lost,
        ``psycopg2.Error`` for what the server refuses.
        """
        return await self.use(lambda connection: connection.query(sql, params))

    async def prepared(self, sql: str, params: Sequence[Any]) -> list[Row]:
        """As ``query``, for one statement that is asked often: see ``prepared.run_prepared``."""
        connection = await self.acquire()
        return await shield(self._prepared(connection, sql, params))

    async def _prepared(self, connection: Connection, sql: str, params: Sequence[Any]) -> list[Row]:
        try:
            return await run_prepared(connection, sql, params)
        finally:
            self.release(connection)

    async def read(self, sql: str, params: Sequence[Any]) -> list[Row]:
        """As ``prepared``, for a query that only reads and is always quick: it may share its connection."""
        step = Step(numbered(sql), as_texts(params))
        run = self.pipelines.submit(0, [step])
        if run is not None:
            try:
                return run.typed(await run.done)
            except DatabaseGone:
                pass  # asked once more, on another connection
            except psycopg2.Error as fault:
                if not may_be_stale(fault.pgcode):
                    raise
        return await self.prepared(sql, params)

    async def transaction(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """As ``in_transaction``. Runs to its end even if the caller is cancelled."""
        return await self.use(lambda connection: in_transaction(connection, work))

    async def use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """The result of ``work`` on a connection of its own. ``work`` is shielded from cancellation."""
        connection = await self.acquire()

        async def used() -> T:
            try:
                return await work(connection)
            finally:
                self.release(connection)

        return await shield(used())

    async def acquire(self) -> Connection:
        """A usable connection, which the caller must pass to ``release``. May be cancelled while it waits.

        Meant for replies that are streamed; everything else should call ``use``.
        """
        if self._closed:
            raise errors.shutting_down()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                self._lend(connection)
                return connection
            connection.close()
        waiting = self._waiting.join()
        self._grow()
        return await waiting

    def release(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if connection.usable and not connection.altered and not self._closed:
            self._offer(connection)
        else:
            connection.close()
            self._grow()
        self._check_empty()

    async def close(self, grace_seconds: float | None = None) -> None:
        """Refuse new callers, wait until the connections in use have come back, and close everything.

        After ``grace_seconds`` (None: never) connections still in use are closed, and their callers get
        ``DatabaseGone``.
        """
        self._closed = True
        self.pipelines.close()
        cancel(self._retry)
        self._waiting.close(errors.shutting_down)
        for connecting in list(self._connecting):
            connecting.cancel()
        while self._idle:
            self._idle.pop().close()
        if not self._busy:
            return
        empty: Deferred[None] = Deferred()
        self._empty = empty
        if grace_seconds is None:
            await empty
            return
        cut = self._clock.callLater(grace_seconds, self._cut_off)
        await empty
        cancel(cut)

    def _cut_off(self) -> None:
        for connection in list(self._busy):
            connection.close()

    def _lend(self, connection: Connection) -> None:
        connection.on_lost = None
        connection.extra_seconds = 0.0
        self._busy.add(connection)

    def _offer(self, connection: Connection) -> None:
        """Give ``connection`` to the caller that has waited longest, or put it among the idle ones.

        A loop, because a caller may release its connection from within the very call that served it: recursion along
        a long queue would overflow the stack.
        """
        self._offered.append(connection)
        if self._offering:
            return
        self._offering = True
        try:
            while self._offered:
                self._place(self._offered.popleft())
        finally:
            self._offering = False

    def _place(self, connection: Connection) -> None:
        if self._closed or not connection.usable:
            connection.close()
            self._grow()
        elif self._waiting:
            self._lend(connection)
            self._waiting.serve(connection)
        else:
            connection.on_lost = self._lost
            self._idle.append(connection)

    def _lost(self, connection: Connection) -> None:
        self._idle.remove(connection)
        connection.close()

    def _grow(self) -> None:
        """Start as many connections as are needed and allowed. After a failure, start one, and after a pause only."""
        # Nothing while closing: a caller that is failed then may give a connection back while others still wait.
        if self._closed or (self._retry is not None and self._retry.active()):
            return
        wanted = len(self._waiting) - len(self._connecting)
        if self._backoff.pause:
            # The last attempt failed, so a single connection finds out whether the database is back.
            wanted = min(wanted, 1 - len(self._connecting))
        room = self._size - len(self._busy) - len(self._idle) - len(self._offered) - len(self._connecting)
        for _ in range(min(wanted, room)):
            connecting = start(self._add())
            self._connecting.add(connecting)
            connecting.addBoth(self._added, connecting)

    async def _add(self) -> None:
        try:
            connection = await self._connect()
        except CancelledError:
            raise
        except Exception as fault:
            why = str(fault) if isinstance(fault, DatabaseGone) else type(fault).__name__
            self.log.warn("cannot connect to the database: {why}", why=why)
            # Several that were being made at the same time count as one failure.
            if not self._closed and (self._retry is None or not self._retry.active()):
                self._retry = self._clock.callLater(self._backoff.failed(), self._grow_again)
            return
        self._backoff.succeeded()
        self._offer(connection)

    def _grow_again(self) -> None:
        self._retry = None
        self._grow()

    def _added(self, result: Any, connecting: Deferred[None]) -> None:
        self._connecting.discard(connecting)
        if result is not None and not result.check(CancelledError):
            self.log.failure("connecting failed", result)
        self._grow()

    def _check_empty(self) -> None:
        if self._empty is not None and not self._busy:
            empty, self._empty = self._empty, None
            empty.callback(None)


async def in_transaction(connection: Connection, work: Callable[[Transaction], Awaitable[T]]) -> T:
    """BEGIN, ``work``, COMMIT; ROLLBACK when ``work`` raises. Raises ``DatabaseGone`` where COMMIT rolled back."""
    await connection.query("begin")
    try:
        result = await work(Transaction(connection))
    except BaseException:
        if connection.in_transaction:
            await connection.query("rollback")
        raise
    ended = await connection.execute("commit")
    # COMMIT silently rolls back a transaction in which a statement has failed.
    if ended.statusmessage != "COMMIT":
        raise DatabaseGone("the transaction was rolled back")
    return result
