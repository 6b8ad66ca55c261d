"""LISTEN on one connection for the whole process."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg2
from attrs import frozen
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.database.connection import Connection, DatabaseGone, Params, Row
from project_service.lifecycle import Backoff, Sleep, shielded, start

_CHANNEL = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")
# How often to send a query, in order to notice a connection that is dead without having been closed.
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
    missed. ``current`` is True from then on, until the connection is known to be lost. If that fails, as on a
    standby, which does not allow LISTEN, ``query`` can use the connection until the next try. ``of`` is the
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
        self._lock = DeferredLock()
        self._loop: Deferred[None] | None = None
        self._connected: list[Deferred[None]] = []
        self._ready: list[Deferred[None]] = []
        self.current = False

    def subscribe(
        self, channel: str, on_payload: Callable[[str], None], on_gap: Callable[[], Awaitable[None]]
    ) -> None:
        """Call this before the service starts. ``channel`` is a plain lower-case identifier."""
        if not _CHANNEL.match(channel):
            raise ValueError(f"not a channel name: {channel!r}")
        self._subscriptions.append(_Subscription(channel, on_payload, on_gap))

    def ready(self) -> Deferred[None]:
        """Fires once the listener is current for the first time, or again after a gap."""
        return _when(self.current, self._ready)

    def connected(self) -> Deferred[None]:
        """Fires once there is a connection for ``query``."""
        return _when(self._connection is not None, self._connected)

    async def query(self, sql: str, params: Params = None) -> list[Row]:
        """A short query on the listening connection, so that it does not wait while the pool is busy.

        Raises what ``Connection.query`` raises, and ``DatabaseGone`` while there is no connection.
        """
        await self._lock.acquire()
        connection = self._connection
        try:
            if connection is None:
                raise DatabaseGone("not connected")
            return await connection.query(sql, params)
        except DatabaseGone:
            # A failing query reports the loss to its caller, not to ``on_lost``.
            if connection is not None:
                self._on_lost(connection)
            raise
        finally:
            self._lock.release()

    @shielded
    async def catch_up(self) -> None:
        """Returns when subscribers have had everything that was announced before: PostgreSQL signals listening
        sessions while it commits, and a session passes on what it was signalled before it ends its next statement.
        While there is no connection, there is nothing to wait for: all is read after the next connect."""
        with suppress(DatabaseGone, psycopg2.Error):
            await self.query("select 1")

    def startService(self) -> None:
        super().startService()
        self._loop = start(self._run())
        self._loop.addErrback(self._failed)

    def stopService(self) -> Deferred[None] | None:
        super().stopService()
        loop, self._loop = self._loop, None
        self._close()
        if loop is not None:
            loop.cancel()
        return loop

    def _failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self.log.failure("the listener stopped", failure)

    async def _run(self) -> None:
        backoff, logged = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), ""
        while self.running:
            try:
                await self._listen()
                backoff.succeeded()
                if logged:
                    logged = ""
                    self.log.info("listening to {of} again", of=self.of)
                await self._watch()
            except CancelledError:
                raise
            except Exception as fault:
                why = str(fault) if isinstance(fault, DatabaseGone) else type(fault).__name__
                if why != logged:  # a database may be away for hours
                    logged = why
                    self.log.warn("listening to {of} failed: {why}", of=self.of, why=why)
            finally:
                self.current = False
            await self._sleep.wait(backoff.failed())
            self._close()

    async def _listen(self) -> None:
        connection = await self._connect()
        self._connection = connection
        connection.on_lost = self._on_lost
        # A server that does not answer has to be noticed, whatever statement_timeout is.
        connection.answer_seconds = self._answer_seconds
        connection.on_notify = self._dispatch
        _fire(self._connected)
        for channel in sorted({subscription.channel for subscription in self._subscriptions}):
            await self.query(f'listen "{channel}"')
        # Only after LISTEN: later changes are announced, and earlier ones are read now.
        for subscription in self._subscriptions:
            await subscription.on_gap()
        if self._connection is None:
            raise DatabaseGone("lost at once")
        self.current = True
        _fire(self._ready)

    async def _watch(self) -> None:
        """Returns when the connection is lost. Sends a query now and then, since a dead server sends nothing."""
        while self._connection is not None:
            await self._sleep.wait(PROBE_SECONDS)
            if self._connection is not None:
                await self.query("select 1")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _on_lost(self, connection: Connection) -> None:
        connection.close()
        if connection is self._connection:
            self._connection = None
            # Otherwise the pause follows a failure, and is not cut short.
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


def _when(condition: bool, waiters: list[Deferred[None]]) -> Deferred[None]:
    """Fires at once if ``condition`` holds, otherwise with ``waiters``."""
    waiting: Deferred[None] = Deferred()
    if condition:
        waiting.callback(None)
    else:
        waiters.append(waiting)
    return waiting


def _fire(waiters: list[Deferred[None]]) -> None:
    fired = list(waiters)
    waiters.clear()
    for waiting in fired:
        waiting.callback(None)
