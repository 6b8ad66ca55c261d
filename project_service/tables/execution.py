"""Runs compiled statements: one round trip to PostgreSQL for each request, or two where the outcome decides whether
it is committed.

A statement goes to PostgreSQL in one of three ways:

* Quick reads share connections (``database.pipeline``): settings and statement are bound to what is prepared there,
  as a transaction of their own between those of others.
* What has been asked before is prepared on a connection of its own, and is bound and executed likewise.
* Everything else is sent as text, settings first. Several statements in one message are one implicit transaction
  (PostgreSQL's manual, "Multiple Statements in a Simple Query"), so the settings end with it too.

PostgreSQL checks some rights, and computes what is declared immutable, when it makes a plan. Used for another caller,
the plan would skip the check, or contain what was the first caller's. So a statement is prepared for one role and one
version of the schema cache (``database.pipeline``); plans of the queries inside functions are discarded when a
connection passes to another role, if a function calls one that not every role may call (``pass_to_role``); and all
plans are discarded in each request where that is not enough (``settings``, ``forgets_plans``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Literal

import orjson
import psycopg2
from attrs import evolve, frozen

from project_service.database.connection import Connection, DatabaseGone
from project_service.database.pipeline import Run, Step, as_text, may_be_stale
from project_service.database.pool import Pool
from project_service.http.admission import Slot
from project_service.tables import errors
from project_service.tables.errors import TableError, from_postgres
from project_service.tables.outcome import SMALL_BYTES, Outcome, as_bytes, outcome_of_read, outcome_of_write
from project_service.tables.plan.write import WritePlan
from project_service.tables.planner import Compiled, Planned
from project_service.tables.request.body import DEEP
from project_service.tables.request.request import Request
from project_service.tables.response import check_outcome
from project_service.tables.sql.fragment import Sql
from project_service.tables.transaction_settings import FORGET_PLANS, Preamble
from project_service.tables.values import TablesConfig

# Clears what SQL may leave behind on a connection besides settings (which RESET ALL takes away).


async def clear(connection: Connection) -> None:
    """Release locks, temporary tables, cursors and channels that a request may have left behind.

    A connection on which that fails is never used again. Settings are reset first: with another search path, a
    function of the application might be called in place of PostgreSQL's own.
    """
    if not connection.usable:
        return
    try:
        await connection.execute(
            "RESET ALL; SELECT pg_catalog.pg_advisory_unlock_all(); UNLISTEN *; CLOSE ALL; DISCARD TEMP"
        )
    except (psycopg2.Error, DatabaseGone):
        connection.discard()


Row = tuple[Any, ...]
Ending = Literal["implicit", "commit", "rollback"]

# program_limit_exceeded: PostgreSQL cannot make a value of more than a gigabyte, such as a body of many wide rows.
_TOO_LARGE = "54000"
# And admin_shutdown and crash_shutdown: the connection is about to be lost.
_OTHERWISE = (_TOO_LARGE, "57P01", "57P02")
# statement_too_complex: a stack is used up.
_TOO_COMPLEX = "54001"


@frozen
class Executor:
    """Runs compiled requests of one database."""

    config: TablesConfig
    pool: Pool

    def execute(self, planned: Planned, preamble: Preamble, path: str, slot: Slot) -> Awaitable[Outcome]:
        """The outcome, which has passed ``check_outcome``; ``path`` is the resource's, as SQL may read it. On a
        shared connection the request needs no ``slot``.

        Its body is complete (``whole``) if the result fits into one reply. For an execution plan, the plan's text is
        the body. Raises ``TableError``.
        """
        compiled = planned.compiled
        if compiled.shares and compiled.history.is_quick and not preamble.alone:
            probe = compiled.probe.rows if compiled.probe is not None else 0
            steps = [*preamble.steps(path, shared=True), _step(planned, preamble, probe)]
            run = self.pool.pipelines.submit(planned.version, steps)
            if run is not None:
                slot.release()
                return self._shared(run, planned, preamble, path, probe, slot)
        return self._alone(planned, preamble, path)

    def _alone(self, planned: Planned, preamble: Preamble, path: str) -> Awaitable[Outcome]:
        """The outcome by a connection that nobody else uses meanwhile."""
        prepares, ending = self._prepares(planned, preamble), self._ending(planned)
        return self.pool.use(_Once(self.config, planned, preamble, path, prepares, ending))

    async def read(self, preamble: Preamble, path: str, sql: Sql, leaves_things: bool) -> list[Row]:
        """The rows of a query that only reads. ``leaves_things`` says that the pre-request function may leave
        something behind on the connection."""

        async def used(connection: Connection) -> list[Row]:
            connection.extra_seconds = preamble.extra_seconds
            try:
                if preamble.plans_apart:
                    await pass_to_role(connection, preamble)
                return await connection.query(f"{preamble.text}; {sql.for_driver}", [path, *sql.values()])
            except (psycopg2.Error, DatabaseGone) as fault:
                raise from_postgres(fault, preamble.authenticated) from fault
            finally:
                if leaves_things:
                    await clear(connection)

        return await self.pool.use(used)

    async def _shared(
        self, run: Run, planned: Planned, preamble: Preamble, path: str, probe: int, slot: Slot
    ) -> Outcome:
        """The outcome by a connection that reads share. A read may be asked once more: where that connection was
        lost, or the statement has to be run in another way."""
        compiled = planned.compiled
        try:
            outcome = outcome_of_read((await run.done)[0])
            if run.slow or len(outcome.body) > SMALL_BYTES:
                compiled.history.failed()
            if compiled.probe is None or compiled.probe.fits(outcome, probe):
                if compiled.rendering.form == "object":
                    check_outcome(planned.request, compiled, outcome)
                return outcome
        except DatabaseGone:
            pass
        except psycopg2.Error as fault:
            compiled.history.failed()
            if not (fault.pgcode is None or may_be_stale(fault.pgcode) or fault.pgcode in _OTHERWISE):
                raise from_postgres(fault, preamble.authenticated) from fault
        slot.retake()
        return await self._alone(planned, preamble, path)

    def _prepares(self, planned: Planned, preamble: Preamble) -> bool:
        return (
            self.config.prepare
            and planned.cached
            and planned.compiled.rendering.explain is None
            and not preamble.sets_isolation
        )

    def _ending(self, planned: Planned) -> Ending:
        """How the transaction ends. BEGIN and COMMIT of our own are used only where the outcome decides whether to
        commit, since they cost round trips."""
        request, compiled = planned.request, planned.compiled
        if compiled.read_only:
            return "implicit"
        # The planner has left out a ``tx`` that is not allowed.
        if (request.head.preferences.get("tx") or self.config.tx_end).startswith("rollback"):
            return "rollback"
        return "commit" if _may_be_refused(request, compiled) else "implicit"


@frozen
class _Once:
    """One request on a connection of its own; called with the connection."""

    config: TablesConfig
    planned: Planned
    preamble: Preamble
    path: str
    prepares: bool
    ending: Ending

    async def __call__(self, connection: Connection) -> Outcome:
        compiled = self.planned.compiled
        connection.extra_seconds = self.preamble.extra_seconds
        try:
            if self.preamble.plans_apart:
                await pass_to_role(connection, self.preamble)
            outcome = await self._probed(connection)
            if compiled.statement.count is not None:
                outcome = await self._estimated(connection, compiled.statement.count, outcome)
            return outcome
        except (psycopg2.Error, DatabaseGone) as fault:
            raise self._failure(fault) from fault
        finally:
            if compiled.leaves_things:
                await clear(connection)

    def _failure(self, fault: psycopg2.Error | DatabaseGone) -> TableError:
        payload = self.planned.request.payload
        if getattr(fault, "pgcode", None) == _TOO_COMPLEX and payload is not None and payload.depth > DEEP:
            # Most likely the body has used up PostgreSQL's stack. Its hint would be to raise a limit of the server.
            return errors.body_too_deep(payload.depth)
        return from_postgres(fault, self.preamble.authenticated)

    async def _probed(self, connection: Connection) -> Outcome:
        """The outcome. Where the probe allowed too few rows, the statement is run again with more."""
        probe = self.planned.compiled.probe
        if probe is None:
            return await self._run(connection, 0)
        rows = probe.rows
        while True:
            try:
                outcome = await self._run(connection, rows)
            except psycopg2.Error as fault:
                if fault.pgcode != _TOO_LARGE or rows == 1:
                    raise
                probe.rows = 1
                return evolve(outcome := await self._run(connection, 1), whole=probe.fits(outcome, 1))
            if probe.fits(outcome, rows):
                return outcome
            if not probe.again(outcome, rows):
                return evolve(outcome, whole=False)
            rows = probe.rows

    async def _run(self, connection: Connection, probe: int) -> Outcome:
        """Run the statement as its transaction. Unless the ending is implicit, nothing is committed if the outcome is
        refused."""
        # The first of a new version of the schema cache goes as text, which resets what SQL has left on the
        # connection: the new version may not know any more that there was such SQL.
        statements, version = connection.statements, self.planned.version
        if statements.version != version:
            statements.use_version(version)
        elif self.prepares:
            try:
                return await self._prepared(connection, probe)
            except psycopg2.Error as fault:
                # The error has undone everything, so it may be run again, as the text it is.
                if not may_be_stale(fault.pgcode):
                    raise
        return await self._as_text(connection, probe)

    async def _prepared(self, connection: Connection, probe: int) -> Outcome:
        steps = [*self.preamble.steps(self.path), _step(self.planned, self.preamble, probe)]
        begins, shares = self.ending != "implicit", self.planned.compiled.shares
        try:
            outcome = self._checked(
                await connection.run([_BEGIN, *steps] if begins else steps, self.planned.version, shares)
            )
        except BaseException:
            if begins and connection.in_transaction:
                await connection.execute("ROLLBACK")
            raise
        if begins:
            await self._end(connection)
        if shares:
            self.planned.compiled.history.ran(connection.took, len(outcome.body))
        return outcome

    async def _as_text(self, connection: Connection, probe: int) -> Outcome:
        sql = self.planned.compiled.statement.sql
        values = sql.values(self.planned.operands, self.planned.body, self.planned.raw, probe + 1)
        begins = self.ending != "implicit"
        text = f"{'BEGIN; ' if begins else ''}{self.preamble.text}; {sql.for_driver}"
        try:
            outcome = self._checked(await connection.query(text, [self.path, *values]))
        except BaseException:
            if begins and connection.in_transaction:
                await connection.execute("ROLLBACK")
            raise
        if begins:
            await self._end(connection)
        return outcome

    async def _end(self, connection: Connection) -> None:
        if self.ending == "commit":
            await connection.execute("COMMIT")
            return
        try:
            # A violated deferred constraint raises its error now, as it would at a commit.
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        finally:
            if connection.in_transaction:
                await connection.execute("ROLLBACK")

    def _checked(self, rows: Sequence[Any]) -> Outcome:
        """The outcome; raises where it must not be committed."""
        compiled = self.planned.compiled
        if compiled.rendering.explain is not None:
            outcome = Outcome(body=b"\n".join(as_bytes(row[0]) for row in rows))
        elif isinstance(compiled.plan, WritePlan):
            outcome = outcome_of_write(rows[0])
        else:
            outcome = outcome_of_read(rows[0])
        check_outcome(self.planned.request, compiled, outcome)
        return outcome

    async def _estimated(self, connection: Connection, counting: Sql, outcome: Outcome) -> Outcome:
        """``outcome`` with the planner's estimate of the rows of ``counting`` as its total, where no exact number is
        known."""
        most, exact = self.config.max_rows, outcome.total
        if most and exact is not None and exact <= most:
            return outcome
        planned = self.planned
        values = counting.values(planned.operands, planned.body, planned.raw)
        text = f"{self.preamble.text}; EXPLAIN (FORMAT JSON) {counting.for_driver}"
        rows = await connection.query(text, [self.path, *values])
        likely = int(orjson.loads(as_bytes(rows[0][0]))[0]["Plan"]["Plan Rows"])
        return evolve(outcome, total=likely if exact is None else max(likely, exact))


_BEGIN = Step("BEGIN", once=True)


def _step(planned: Planned, preamble: Preamble, probe: int) -> Step:
    """The request's statement with its values."""
    sql, payload = planned.compiled.statement.sql, planned.request.payload
    body, raw = ("", b"") if payload is None else (payload.text, payload.raw)
    values = sql.values(planned.operands, body, raw, probe + 1)
    return Step(
        sql.for_prepare,
        [value.encode() if isinstance(value, str) else as_text(value) for value in values],
        preamble.role,
    )


async def pass_to_role(connection: Connection, preamble: Preamble) -> None:
    """Make sure that functions' cached plans of another role are not used, for a preamble with ``plans_apart``. Call
    it outside a transaction. Raises what ``Connection.execute`` raises."""
    if connection.plans_of != preamble.role:
        await connection.execute(FORGET_PLANS)
        connection.plans_of = preamble.role


def _may_be_refused(request: Request, compiled: Compiled) -> bool:
    """Whether ``check_outcome`` refuses some outcomes, so that it has to be asked before the commit."""
    preferences = request.head.preferences
    return bool(
        compiled.rendering.singular
        or preferences.max_affected is not None
        # A range of a function's rows that begins after the last of them is refused.
        or (compiled.routine is not None and request.range.offset > 0 and preferences.get("count"))
        or (isinstance(compiled.plan, WritePlan) and compiled.plan.may_be_undone)
    )
