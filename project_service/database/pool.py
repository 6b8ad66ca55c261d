"""The connection pool, which lends connections to one caller at a time. (``sharing``: those that reads share.)

A caller may be cancelled while it waits for a connection, but not while it uses one: ``use`` is shielded. A
connection that comes back inside a transaction, in use, or with changed settings is closed. Otherwise the next caller
would work in the last one's transaction, under the last one's role. (txpostgres' own pool never reconnects, hands out
dead connections, and can deadlock.)
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from project_service import errors
from project_service.database.connection import Connection, DatabaseGone, Params, Row
from project_service.database.pipeline import Step
from project_service.database.quickness import Quickness
from project_service.database.sharing import Pipelines, answered
from project_service.database.slow import NOT_WATCHED
from project_service.lifecycle import Backoff, background, cancel, shield, start_apart
from project_service.wait_queue import WaitQueue

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
# Of so many connections one may be shared by quick reads.
CONNECTIONS_PER_PIPELINE = 4


class Transaction:
    """Queries inside one BEGIN … COMMIT (see ``in_transaction``)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def query(self, sql: str | bytes, params: Params = None) -> list[Row]:
        return await self._connection.query(sql, params)


class Recycles(Protocol):
    """Makes a connection as new before it goes to the next caller (``acting.Recycler``)."""

    def made(self, connection: Connection) -> None:
        """``connection`` is new."""

    def due(self, connection: Connection) -> bool:
        """Whether ``connection``, which a caller has used, must not go to the next one as it is."""

    def outdated(self, connection: Connection) -> bool:
        """Whether the same is true of one that nobody has used since ``due`` was asked or it was made as new."""

    async def recycle(self, connection: Connection) -> None:
        """Make ``connection`` as new, or discard it. Must not raise."""


class Pool:
    """Up to ``size`` connections, made by ``connect`` when they are needed.

    Callers are served in the order in which they came. One that has waited for ``acquire_timeout_seconds`` gets the
    failure ``late()``; or ``away()`` if nobody is using a connection, which means that none can be made. Their number
    is not limited here, but by the admission of requests. Some of the connections are shared by quick reads
    (``pipelines``); each of those begins with the steps ``setup``. ``recycler``, if it is
    set, clears away what a caller may have left on a connection. Statements that take long are reported to ``slow``,
    which is to be set before the first connection is made. ``pooled`` says that the connections are those of a pooler
    that gives each transaction another session: nothing is shared then, and nothing cleared away.
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
        setup: Sequence[Step] = (),
        pooled: bool = False,
    ) -> None:
        self._connect = connect
        self.recycler: Recycles | None = None
        self.slow = NOT_WATCHED
        self.size = size
        self._clock = clock
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._connecting: set[Deferred[None]] = set()
        # How many connections are being made as new, and are usable again in a moment.
        self._recycling = 0
        self._waiting: WaitQueue[Connection] = WaitQueue(
            clock, acquire_timeout_seconds, lambda: late() if self._busy else away()
        )
        self._offered: deque[Connection] = deque()
        self._offering = False
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._retry: IDelayedCall | None = None
        self._closed = False
        # Why no connection could be made the last time, as it was logged; "" if one was made.
        self._why_not = ""
        self.pooled = pooled
        # Reads that share a connection rely on its session.
        shared = 0 if pooled else size // CONNECTIONS_PER_PIPELINE
        self.pipelines = Pipelines(self, shared, clock, setup)
        # How many more slow reads may be run again, and those that wait for that. They leave those that are shared.
        self._room_for_slow = size - shared
        self._waiting_slow: WaitQueue[None] = WaitQueue(clock, acquire_timeout_seconds, late)
        # Called with each wait for a connection.
        self.on_wait: Callable[[Deferred[Connection]], None] | None = None
        # Of the queries of ``read``, which are few.
        self._quickness: defaultdict[str, Quickness] = defaultdict(Quickness.known)
        self._empty: Deferred[None] | None = None

    def query(self, sql: str | bytes, params: Params = None) -> Coroutine[Any, Any, list[Row]]:
        """One message in its own implicit transaction; the rows of its last statement.

        Raises ``late()`` or ``away()`` when no connection is free in time, ``DatabaseGone`` when it is lost,
        ``psycopg2.Error`` for what the server refuses.
        """
        return self.use(lambda connection: connection.query(sql, params))

    def prepared(self, sql: str, params: Sequence[Any]) -> Coroutine[Any, Any, list[Row]]:
        """As ``query``, for one statement that is run often (see ``Connection.query_prepared``)."""
        return self.use(lambda connection: connection.query_prepared(sql, params))

    async def read(self, sql: str, params: Sequence[Any]) -> list[Row]:
        """As ``prepared``, for a query that only reads and is usually quick: it may share its connection."""
        quickness = self._quickness[sql]
        run = None
        if self.may_share(quickness):
            run = self.pipelines.submit(0, [Step.of(sql, params)], quickness)
        if run is None:
            return await self.use(lambda connection: connection.query_prepared(sql, params, quickness))
        if await answered(run, quickness):
            return run.typed()
        return await self.use_again(
            lambda connection: connection.query_prepared(sql, params, quickness), quickness
        )

    def transaction(self, function: Callable[[Transaction], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        """As ``in_transaction``. Runs to its end even if the caller is cancelled."""
        return self.use(lambda connection: in_transaction(connection, function))

    async def use(self, function: Callable[[Connection], Awaitable[T]]) -> T:
        """Call ``function`` with a connection and return its result. It is shielded from cancellation."""
        connection = await self.acquire()
        return await shield(self._used(connection, function))

    async def use_again(self, function: Callable[[Connection], Awaitable[T]], quickness: Quickness) -> T:
        """As ``use``, for a read of the kind of ``quickness`` that a shared connection has not answered.

        Those whose kind is slow by now never use all connections: reads that have only waited behind them find one of
        those that are shared.
        """
        if not quickness.is_slow:
            return await self.use(function)
        if self._room_for_slow > 0:
            self._room_for_slow -= 1
        elif self._closed:
            raise errors.shutting_down()
        else:
            await self._waiting_slow.join()
        try:
            connection = await self.acquire()
        except BaseException:
            self._slow_has_ended()
            raise
        return await shield(self._used_by_slow(connection, function))

    async def _used_by_slow(
        self, connection: Connection, function: Callable[[Connection], Awaitable[T]]
    ) -> T:
        try:
            return await self._used(connection, function)
        finally:
            self._slow_has_ended()

    def _slow_has_ended(self) -> None:
        if self._waiting_slow:
            self._waiting_slow.serve(None)
        else:
            self._room_for_slow += 1

    async def _used(self, connection: Connection, function: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await function(connection)
        finally:
            self.release(connection)

    async def acquire(self) -> Connection:
        """A usable connection, which the caller must pass to ``release``. May be cancelled while it waits.

        For replies that are streamed; everything else should call ``use``.
        """
        if self._closed:
            raise errors.shutting_down()
        while self._idle:
            connection = self._idle.pop()
            if not connection.usable:
                connection.close()
            elif self.recycler is not None and self.recycler.outdated(connection):
                self._recycle(connection, self.recycler)
            else:
                self._lend(connection)
                return connection
        waiting = self._waiting.join()
        if self.on_wait is not None:
            self.on_wait(waiting)
        self._grow()
        self.pipelines.wanted()
        return await waiting

    def release(self, connection: Connection) -> None:
        """Give back what ``acquire`` returned. It goes to the next caller, or is closed if it is not ``usable``."""
        if self.recycler is not None and self.recycler.due(connection) and connection.usable:
            self._recycle(connection, self.recycler)
        else:
            self._returned(connection)

    def _recycle(self, connection: Connection, recycler: Recycles) -> None:
        """Have ``connection`` made as new, in the background: only callers to whom it would be lent next wait for
        that."""

        async def recycle() -> None:
            try:
                await recycler.recycle(connection)
            finally:
                self._recycling -= 1
                self._returned(connection)

        self._lend(connection)
        self._recycling += 1
        background(recycle(), "making a connection as new")

    def _returned(self, connection: Connection) -> None:
        """``connection`` is not in use any more, and as good as new or not ``usable``."""
        self._busy.discard(connection)
        if connection.usable and not connection.altered and not self._closed:
            self._offer(connection)
        else:
            connection.close()
            self._grow()
        if self._empty is not None and not self._busy:
            empty, self._empty = self._empty, None
            empty.callback(None)

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._busy) + len(self._idle) + len(self._offered)

    @property
    def busy(self) -> int:
        """How many of them are in use."""
        return len(self._busy)

    @property
    def waiting(self) -> int:
        """How many callers wait for one."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """How many more callers would get a connection without waiting for another caller; less than 1 for none."""
        if self._backoff.pause:  # none can be made
            return len(self._idle)
        return self.size - len(self._busy) - len(self._waiting)

    @property
    def pauses(self) -> bool:
        """Whether no connection could be made the last time, and the next is not tried yet."""
        return self._retry is not None and self._retry.active()

    @property
    def longest_wait(self) -> float:
        """For how many seconds the caller that came first has been waiting; 0 if nobody waits."""
        return self._waiting.longest

    def may_share(self, quickness: Quickness) -> bool:
        """Whether a read of the kind of ``quickness`` may be submitted to ``pipelines``."""
        return quickness.is_quick or (quickness.doubted and self.free < 1)

    async def close(self, grace_seconds: float | None = None) -> None:
        """Refuse new callers, wait until the connections in use have come back, and close everything.

        After ``grace_seconds`` (None: never) connections still in use are closed, and their callers get
        ``DatabaseGone``.
        """
        self._closed = True
        self.pipelines.close()
        cancel(self._retry)
        self._waiting.close(errors.shutting_down)
        self._waiting_slow.close(errors.shutting_down)
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
        connection.extra_seconds, connection.role = 0.0, ""
        self._busy.add(connection)

    def _offer(self, connection: Connection) -> None:
        """Give ``connection``, which is usable, to the caller that has waited longest, or put it among the idle ones.

        A loop, because a caller may release its connection from within the very call that served it: recursion along
        a long queue would overflow the stack.
        """
        self._offered.append(connection)
        if self._offering:
            return
        self._offering = True
        try:
            while self._offered:
                offered = self._offered.popleft()
                if self._closed:
                    offered.close()
                    self._grow()
                elif self._waiting.waiters:
                    self._lend(offered)
                    self._waiting.serve(offered)
                else:
                    offered.on_lost = self._lost
                    self._idle.append(offered)
                    self.pipelines.freed()
        finally:
            self._offering = False

    def _lost(self, connection: Connection) -> None:
        self._idle.remove(connection)
        connection.close()

    def _grow(self) -> None:
        """Start as many connections as are needed and allowed; after a failure only one, and after a pause."""
        # Not while closing: a caller that fails then may release a connection while others still wait.
        if self._closed or (self._retry is not None and self._retry.active()):
            return
        wanted = len(self._waiting) - len(self._connecting) - self._recycling
        if self._backoff.pause:
            # The last one failed, so a single connection finds out whether the database is back.
            wanted = min(wanted, 1 - len(self._connecting))
        room = self.size - len(self._busy) - len(self._idle) - len(self._offered) - len(self._connecting)
        for _ in range(min(wanted, room)):
            # Not in the trace of the request that needed it: others use it too, and it may have ended by then.
            connecting = start_apart(self._add())
            self._connecting.add(connecting)
            connecting.addBoth(self._added, connecting)

    async def _add(self) -> None:
        try:
            connection = await self._connect()
        except CancelledError:
            raise
        except Exception as fault:
            why = str(fault) if isinstance(fault, DatabaseGone) else type(fault).__name__
            if why != self._why_not:  # a database may be away for hours
                self._why_not = why
                self.log.warn("cannot connect to the database: {why}", why=why)
            # Several that were being made at the same time count as one failure.
            if not self._closed and (self._retry is None or not self._retry.active()):
                self._retry = self._clock.callLater(self._backoff.failed(), self._grow)
            return
        self._backoff.succeeded()
        if self._why_not:
            self._why_not = ""
            self.log.info("connected to the database again")
        connection.slow = self.slow
        if self.recycler is not None:
            self.recycler.made(connection)
        self._offer(connection)

    def _added(self, result: Any, connecting: Deferred[None]) -> None:
        self._connecting.discard(connecting)
        if result is not None and not result.check(CancelledError):
            self.log.failure("connecting failed", result)
        self._grow()


async def in_transaction(connection: Connection, function: Callable[[Transaction], Awaitable[T]]) -> T:
    """BEGIN, ``function``, COMMIT; ROLLBACK if ``function`` raises. Raises ``DatabaseGone`` if COMMIT rolled back."""
    await connection.query("begin")
    try:
        result = await function(Transaction(connection))
    except BaseException:
        if connection.in_transaction:
            await connection.query("rollback")
        raise
    ended = await connection.execute("commit")
    # COMMIT silently rolls back a transaction in which a statement has failed.
    if ended.statusmessage != "COMMIT":
        raise DatabaseGone("the transaction was rolled back")
    return result
