"""LISTEN on one connection for the whole process, and catching up on what was missed while that was away."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import closing

from attrs import frozen
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.database.connection import Connection, DatabaseGone, Params, Row
from project_service.lifecycle import Backoff, Sleep, start

# Keeps work to one process at a time, among all workers of all hosts that share a database.
#
# The numbers of all locks stand here. They are arbitrary but stay as they are, since other versions may run beside.


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

    connect: Callable[[], Awaitable[Connection]]
    lock: int

    async def __call__(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run ``work`` and return True; or False, without calling it, where another process holds the lock."""
        with closing(await self.connect()) as connection:
            rows = await connection.query("select pg_try_advisory_lock(%s)", (self.lock,))
            if not rows[0][0]:
                return False
            await work()
            return True


_CHANNEL = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")
# How often to send a query to find out about a connection that has died silently.
PROBE_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0


@frozen
class _Subscription:
    channel: str
    on_payload: Callable[[str], None]
    on_gap: Callable[[], Awaitable[None]]


class Listener(Service):
    """Passes the payloads of notifications to subscribers, and reconnects when the connection is lost.

    After each connect the ``on_gap`` of every subscription is awaited, which has to read whatever may have been
    missed. ``current`` is True from then on, until the connection is known to be lost. A connection on which that
    fails, such as one to a standby, which lets nobody listen, can be asked until the next attempt. ``of`` is the
    database's name in the log; a server that does not answer within ``answer_seconds`` counts as lost.
    """

    log = Logger()

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        clock: IReactorTime,
        of: str = "the system database",
        answer_seconds: float = PROBE_SECONDS,
    ) -> None:
        self.of = of
        self._answer_seconds = answer_seconds
        self._connect = connect
        self._sleep = Sleep(clock)
        self._subscriptions: list[_Subscription] = []
        self._connection: Connection | None = None
        self._asking = DeferredLock()
        self._loop: Deferred[None] | None = None
        self._connected: list[Deferred[None]] = []
        self._ready: list[Deferred[None]] = []
        self.current = False

    def subscribe(
        self, channel: str, on_payload: Callable[[str], None], on_gap: Callable[[], Awaitable[None]]
    ) -> None:
        """To be called before the service starts. ``channel`` is a plain lower-case identifier."""
        if not _CHANNEL.match(channel):
            raise ValueError(f"not a channel name: {channel!r}")
        self._subscriptions.append(_Subscription(channel, on_payload, on_gap))

    def ready(self) -> Deferred[None]:
        """Fires once the listener is current for the first time, or again after a gap."""
        return _unless(self.current, self._ready)

    def connected(self) -> Deferred[None]:
        """Fires once there is a connection for ``query``."""
        return _unless(self._connection is not None, self._connected)

    async def query(self, sql: str, params: Params = None) -> list[Row]:
        """A short query on the listening connection, so that it does not wait while the pool is busy.

        Raises what ``Connection.query`` raises, and ``DatabaseGone`` while there is no connection.
        """
        await self._asking.acquire()
        connection = self._connection
        try:
            if connection is None:
                raise DatabaseGone("not connected")
            return await connection.query(sql, params)
        except DatabaseGone:
            # A failing query reports the loss to its caller, not to ``on_lost``.
            if connection is not None:
                self._gone(connection)
            raise
        finally:
            self._asking.release()

    def startService(self) -> None:
        super().startService()
        self._loop = start(self._run())
        self._loop.addErrback(self._ended)

    def stopService(self) -> Deferred[None] | None:
        super().stopService()
        loop, self._loop = self._loop, None
        self._close()
        if loop is not None:
            loop.cancel()
        return loop

    def _ended(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self.log.failure("the listener stopped", failure)

    async def _run(self) -> None:
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while self.running:
            try:
                await self._listen()
                backoff.succeeded()
                await self._watch()
            except CancelledError:
                raise
            except Exception as fault:
                why = str(fault) if isinstance(fault, DatabaseGone) else type(fault).__name__
                self.log.warn("listening to {of} failed: {why}", of=self.of, why=why)
            finally:
                self.current = False
            await self._sleep.wait(backoff.failed())
            self._close()

    async def _listen(self) -> None:
        connection = await self._connect()
        self._connection = connection
        connection.on_lost = self._gone
        # Whatever statement_timeout is, a server that does not answer has to be noticed.
        connection.answer_seconds = self._answer_seconds
        connection.on_notify = self._dispatch
        _fire(self._connected)
        for channel in sorted({subscription.channel for subscription in self._subscriptions}):
            await self.query(f'listen "{channel}"')
        # Only after LISTEN: changes from here on are heard, and those before are read now.
        for subscription in self._subscriptions:
            await subscription.on_gap()
        if self._connection is None:
            raise DatabaseGone("lost at once")
        self.current = True
        _fire(self._ready)

    async def _watch(self) -> None:
        """Returns when the connection is lost. Sends a query now and then, since a dead server says nothing."""
        while self._connection is not None:
            await self._sleep.wait(PROBE_SECONDS)
            if self._connection is not None:
                await self.query("select 1")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _gone(self, connection: Connection) -> None:
        connection.close()
        if connection is self._connection:
            self._connection = None
            # Otherwise it is a pause after a failure, which is as long as any.
            if self.current:
                self.current = False
                self._sleep.wake()

    def _dispatch(self, channel: str, payload: str) -> None:
        for subscription in self._subscriptions:
            if subscription.channel == channel:
                try:
                    subscription.on_payload(payload)
                except Exception:
                    self.log.failure("a subscriber of {channel} failed", channel=channel)


def _unless(true: bool, waiters: list[Deferred[None]]) -> Deferred[None]:
    """Fires at once if ``true``, otherwise with ``waiters``."""
    waiting: Deferred[None] = Deferred()
    if true:
        waiting.callback(None)
    else:
        waiters.append(waiting)
    return waiting


def _fire(waiters: list[Deferred[None]]) -> None:
    fired = list(waiters)
    waiters.clear()
    for waiting in fired:
        waiting.callback(None)
