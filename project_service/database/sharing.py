"""Connections that quick reads share, so that many go out in one message (``Pipelines``).

Purpose: a read of one row costs much less than on a connection of its own. But whoever shares a connection waits for
all that are before him there, and nobody knows beforehand that a read will be quick: it may have to wait for a lock,
or its operand may find a million rows.

Plan: nobody waits long for a slow neighbour.

* A read may share if those of its kind were quick several times in a row (``Quickness``).
* PostgreSQL itself ends what takes longer than ``LIMIT_SECONDS`` on a shared connection: ``statement_timeout`` counts
  waiting for locks, and not waiting behind others, and is for one statement of a transaction. What was ended is run
  again on a connection of its own with its usual limits, and its kind shares no more for a while.
* Several such reads may wait one behind the other. Once a read has waited for longer than the first of them may take,
  and the next does not answer either, all others are moved to connections of their own, as far as some are free.
  Those whose kind has been quick most often go first.
* Where none is free, because such reads have them all by now, the shared connection is closed, unless what it is at
  work on is not known to be slow: what waited there is run on the connection that takes its place. Reads whose kind
  had to be ended do not take that one when they are run again (``Pool.use_again``).
* No more is submitted to a connection on which a run has not been answered for ``MAX_AGE_SECONDS``, unless all others
  of the pool are in use as well.
* Nobody waits for a connection for long while several are only shared: when the first in the queue has waited for
  ``LIMIT_SECONDS + SLOW_SECONDS``, all but one of them are given back. And while none is free, a kind that was quick
  until a neighbour, or the process itself, may have held it up goes on to share.

So a read is asked twice at most. A server that is slow as a whole is asked for next to nothing twice: all answers
take longer than usual then, which is no reason to move anything. While nothing at all is heard of it, a single read
is moved to find out whether it answers elsewhere.

Cost: SQL that runs on a shared connection finds this ``statement_timeout``, and not its own.

``Pipelines.submit`` says whether a read can share, and ``answered`` whether it has to be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Protocol

import psycopg2
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from project_service.database.connection import Connection, DatabaseGone, DatabaseSilent
from project_service.database.pipeline import (
    CANCELED,
    SLOW_FACTOR,
    SLOW_SECONDS,
    Pipeline,
    Run,
    Step,
    may_be_stale,
)
from project_service.database.quickness import Quickness
from project_service.errors import ApiError, Away
from project_service.lifecycle import background, cancel

# What PostgreSQL allows a statement on a shared connection. Much longer than any that is quick, also on a busy
# machine, and not so long that anybody would notice.
LIMIT_SECONDS = 0.05
# How many runs may be unanswered on a shared connection, and how old the oldest may be. Further reads go elsewhere.
MAX_WAITING = 200
MAX_AGE_SECONDS = 0.02
# A shared connection that has been idle for so long is given back.
IDLE_SECONDS = 30.0
CHECK_SECONDS = 1.0


def limit() -> str:
    """``LIMIT_SECONDS`` as PostgreSQL's ``statement_timeout``."""
    return f"{ceil(LIMIT_SECONDS * 1000)}ms"


def _setting_of_limit() -> Step:
    """Limits the session's statements, unless the limit that they have already is lower."""
    lower = f"least({ceil(LIMIT_SECONDS * 1000)}, nullif(setting::int, 0))::text"
    of_session = "from pg_settings where name = 'statement_timeout'"
    return Step(f"select set_config(name, {lower}, false) {of_session}", once=True)


class _Moved(Exception):
    """The answer of the shared connection is not waited for any more."""


async def answered(run: Run, quickness: Quickness) -> bool:
    """Whether the shared connection has answered ``run``, a read of the kind of ``quickness``. If not, run it on a
    connection of your own (``Pool.use_again``).

    Raises ``psycopg2.Error`` for what the server refuses, and ``DatabaseSilent`` if it does not answer: on another
    connection it would most likely take as long again.
    """
    try:
        await run.done
    except DatabaseSilent:
        raise
    except (_Moved, DatabaseGone):
        return False
    except psycopg2.Error as fault:
        if fault.pgcode == CANCELED:
            quickness.exceeded()
            return False
        quickness.failed()
        if fault.pgcode is None or may_be_stale(fault.pgcode):
            return False
        raise
    if run.slow:
        quickness.doubt()
        run.connection.report_slow(run)
    else:
        quickness.quick_runs += 1
    return True


class Lender(Protocol):
    """Lends connections to one caller at a time (``pool.Pool``): those that reads share, and others."""

    @property
    def free(self) -> int:
        """How many more callers would get a connection without waiting for another caller."""

    @property
    def longest_wait(self) -> float:
        """For how many seconds the caller that came first has been waiting."""

    async def acquire(self) -> Connection:
        """A usable connection, which has to be passed to ``release``."""

    def release(self, connection: Connection) -> None: ...


class Pipelines:
    """Up to ``size`` connections of ``pool`` that quick reads share.

    The first that is run on each is the limit, and ``setup``. It is closed when it is not needed any more, so that no
    other caller finds these settings.

    A connection is for one version of the schema cache. For another version it may not be known any more that SQL has
    left settings there, or taken away those of ``setup``.
    """

    def __init__(self, pool: Lender, size: int, clock: IReactorTime, setup: Sequence[Step] = ()) -> None:
        self._pool = pool
        self._size = size
        self._clock = clock
        self._setup = setup
        self._connections: list[Connection] = []
        # Those to which nothing more is submitted, until all on them is done.
        self._leaving: list[Connection] = []
        self._connecting = False
        self._closed = False
        self._used = 0.0
        self._check_call: IDelayedCall | None = None
        self._look_call: IDelayedCall | None = None
        self._spare_call: IDelayedCall | None = None
        # Whether reads are late that could not be moved yet; when a connection of the pool was free the last time
        # while that was so; and when a read was moved from a connection of which it is not known whether it answers.
        self._stuck = False
        self._freed = self._tried = float("-inf")

    def submit(self, version: int, steps: Sequence[Step], quickness: Quickness | None = None) -> Run | None:
        """As ``Pipeline.submit``, for a read of the kind of ``quickness``; await ``answered``. None if no connection
        accepts more now; then use one of your own. Without ``quickness`` it is never moved."""
        now = self._clock.seconds()
        for connection in self._connections:
            pipeline, known = connection.pipeline, connection.statements.version
            if pipeline is None:
                continue  # it is lost
            if known not in (version, 0):
                if known < version:
                    self._retire(connection)
                    break
                continue
            if not pipeline.waiting or self._accepts(pipeline, now):
                self._used = now
                run = pipeline.submit(version, steps)
                run.quickness = quickness
                pipeline.flush_soon()
                if self._look_call is None:
                    self._look_in(LIMIT_SECONDS + SLOW_SECONDS)
                return run
        # While callers wait for connections, one is shared at most.
        allowed = self._size if self._pool.free > 0 else min(self._size, 1)
        if len(self._connections) < allowed and not self._connecting and not self._closed:
            self._connecting = True
            background(self._connect(), "opening a pipeline")
        return None

    def _accepts(self, pipeline: Pipeline, now: float) -> bool:
        """Whether one on which runs wait takes another."""
        waiting = pipeline.waiting
        if len(waiting) >= MAX_WAITING:
            return False
        if now - waiting[0].sent < MAX_AGE_SECONDS + SLOW_FACTOR * pipeline.typical:
            return True
        # Elsewhere it would wait behind those who use the pool's other connections, and that may be long. Here it
        # waits for one slow read after the other to be ended, as long as they are.
        return self._pool.free < 1 and pipeline.waited(now) < LIMIT_SECONDS + SLOW_SECONDS

    def freed(self) -> None:
        """A connection of the pool is free, and nobody else waits for it."""
        if self._stuck:
            self._freed = self._clock.seconds()
            self._move_late()

    def wanted(self) -> None:
        """A caller waits for a connection."""
        if len(self._connections) > 1 and self._spare_call is None:
            self._spare_call = self._clock.callLater(LIMIT_SECONDS + SLOW_SECONDS, self._spare)

    def _spare(self) -> None:
        """Give back all connections but one, if somebody has been waiting for one since ``wanted`` was called."""
        self._spare_call = None
        if self._pool.longest_wait >= LIMIT_SECONDS + SLOW_SECONDS:
            for connection in self._connections[1:]:
                self._retire(connection)
        elif self._pool.free < 0:
            self.wanted()

    def close(self) -> None:
        """Give all connections back, each when its runs are done."""
        self._closed = True
        for call in (self._check_call, self._look_call, self._spare_call):
            cancel(call)
        self._check_call = self._look_call = self._spare_call = None
        for connection in list(self._connections):
            self._retire(connection)

    # Opening and giving back

    async def _connect(self) -> None:
        try:
            connection = await self._pool.acquire()
        except (ApiError, Away):
            return  # the database is away or busy, which callers learn from the pool
        finally:
            self._connecting = False
        connection.on_lost = self._lost
        try:
            pipeline = connection.enter_pipeline()
        except DatabaseGone:
            self._release(connection)
            return
        self._used = self._clock.seconds()
        self._connections.append(connection)
        run = pipeline.submit(0, [_setting_of_limit(), *self._setup])
        pipeline.flush_soon()
        try:
            await run.done
        except (psycopg2.Error, Away):
            self._retire(connection)
            return
        if self._closed:
            self._retire(connection)
        elif self._check_call is None:
            self._check_call = self._clock.callLater(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Close connections whose server does not answer, and give back those that have expired or are idle."""
        self._check_call = None
        now = self._clock.seconds()
        idle = now - self._used > IDLE_SECONDS
        for connection in [*self._connections, *self._leaving]:
            since = connection.awaiting_since
            if (
                since is not None
                and connection.answer_seconds is not None
                and now - since > connection.answer_seconds
            ):
                connection.timed_out()
            elif connection.expired or idle:
                self._retire(connection)
        if (self._connections or self._leaving) and not self._closed:
            self._check_call = self._clock.callLater(CHECK_SECONDS, self._check)

    def _retire(self, connection: Connection) -> None:
        """Submit nothing more to it, and give it back when all its runs are done."""
        pipeline = connection.pipeline
        if connection not in self._connections or pipeline is None:
            return
        self._connections.remove(connection)
        self._leaving.append(connection)
        last = pipeline.submit(connection.statements.version, ())
        pipeline.flush_soon()
        last.done.addBoth(lambda _: self._release(connection))

    def _lost(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._release(connection)

    def _release(self, connection: Connection) -> None:
        if connection in self._leaving:
            self._leaving.remove(connection)
        connection.on_lost = None
        connection.discard()
        self._pool.release(connection)

    # Moving what is late

    def _look_in(self, seconds: float) -> None:
        """Look for what is late, one turn after the call: the process may be late itself, and reads what has arrived
        in the meantime first."""

        def look() -> None:
            self._look_call = self._clock.callLater(0, moved)

        def moved() -> None:
            self._look_call = None
            self._move_late()

        self._look_call = self._clock.callLater(seconds, look)

    def _move_late(self) -> None:
        """Move what is late, and look again when the next may be."""
        self._stuck = False
        now, stuck, again = self._clock.seconds(), False, list[float]()
        for connection in [*self._connections, *self._leaving]:
            pipeline = connection.pipeline
            if pipeline is None or not pipeline.waiting:
                continue
            oldest = pipeline.waiting[0].sent + LIMIT_SECONDS + SLOW_SECONDS - now
            left = max(oldest, pipeline.usual - pipeline.waited(now))
            if left <= 0:
                if self._moves(pipeline, now):
                    if self._answers(pipeline) and _is_slow(pipeline.waiting[0]):
                        connection.abandon()
                        continue
                    stuck = True
                left = pipeline.usual
            again.append(left)
        self._stuck = stuck
        if again and self._look_call is None and not self._closed:
            # What rounding has left may be less than clocks tell apart.
            self._look_in(max(min(again), 0.001))

    def _moves(self, pipeline: Pipeline, now: float) -> bool:
        """Move runs to connections of their own, as long as one is free. Returns whether some were left."""
        late = [run for run in pipeline.waiting if run.quickness and not run.done.called]
        late.sort(key=lambda run: -run.quickness.quick_runs if run.quickness else 0)
        answers = self._answers(pipeline)
        if not answers and self._tried >= pipeline.waiting[0].sent:
            return bool(late)
        for number, run in enumerate(late, 1):
            if self._pool.free < 1:
                return True
            _move(run)
            if not answers:
                self._tried = now
                return number < len(late)
        return False

    def _answers(self, pipeline: Pipeline) -> bool:
        """Whether it is known that the server answers, here or on another connection. If not, a single read is to
        find that out: a server that is silent as a whole is not asked for everything twice."""
        return max(pipeline.since, self._freed) > pipeline.waiting[0].sent


def _is_slow(run: Run) -> bool:
    """Whether its kind had to be ended, or it was moved itself."""
    return run.quickness is None or run.quickness.is_slow


def _move(run: Run) -> None:
    """Have the caller run it elsewhere. What the shared connection answers is only learned from."""
    moved, run.done = run.done, Deferred()
    quickness, run.quickness = run.quickness, None

    def ended(failure: Failure) -> None:
        if quickness is not None and getattr(failure.value, "pgcode", None) == CANCELED:
            quickness.exceeded()

    run.done.addErrback(ended)
    moved.errback(_Moved())
