"""Runs compiled requests: one round trip to PostgreSQL for each, or two where the outcome decides whether it is
committed.

A statement goes to PostgreSQL in one of three forms:

* Quick reads share connections (``database.pipeline``): settings and statement are bound to what is prepared there,
  as a transaction of their own between those of others.
* What has been asked before is prepared on a connection of its own, and is bound and executed likewise.
* Everything else is sent as text, settings first. Several statements in one message are one implicit transaction
  (PostgreSQL's manual, "Multiple Statements in a Simple Query"), so the settings end with it too.

PostgreSQL checks some rights, and computes what is declared immutable, when it makes a plan. Used for another caller,
the plan would skip the check, or contain what was the first caller's. So a statement is prepared for one role and one
version of the schema cache (``database.pipeline``); plans of the queries inside functions are discarded when a
connection passes to another role, if a function calls one that not every role may call (``pass_to_role``); and all
plans are discarded in each request where that is not enough (``transaction_settings``, ``forgets_plans``).
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
from project_service.tables.errors import from_postgres
from project_service.tables.outcome import SMALL_BYTES, Outcome, as_bytes, outcome_of_read, outcome_of_write
from project_service.tables.plan.write import WritePlan
from project_service.tables.planner import Compiled, Planned
from project_service.tables.request.body import DEEP
from project_service.tables.request.request import Request
from project_service.tables.response import check_outcome
from project_service.tables.sql.fragment import Sql
from project_service.tables.transaction_settings import FORGET_PLANS, Preamble
from project_service.tables.values import TablesConfig

Row = tuple[Any, ...]
Ending = Literal["implicit", "commit", "rollback"]

# program_limit_exceeded: PostgreSQL cannot make a value of more than a gigabyte, such as a body of many wide rows.
_TOO_LARGE = "54000"
# And admin_shutdown and crash_shutdown: the connection is about to be lost.
_RUN_ELSEWHERE = (_TOO_LARGE, "57P01", "57P02")
# statement_too_complex: a stack is used up.
_TOO_COMPLEX = "54001"
_BEGIN = Step("BEGIN", once=True)


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
        return self.pool.use(_OwnConnection(self.config, planned, preamble, path))

    async def _shared(
        self, run: Run, planned: Planned, preamble: Preamble, path: str, probe: int, slot: Slot
    ) -> Outcome:
        """The outcome by a connection that reads share. A read may be run once more, on one of its own: where the
        shared connection was lost, or the statement has to be run in another form."""
        compiled = planned.compiled
        try:
            await run.done
            outcome = outcome_of_read(run.rows[0])
            if run.slow or len(outcome.body) > SMALL_BYTES:
                compiled.history.failed()
            if compiled.probe is None or compiled.probe.fits(outcome, probe):
                if compiled.rendering.form == "object":
                    check_outcome(planned.request, compiled, outcome)
                return outcome
        except DatabaseGone:
            pass
        except psycopg2.Error as error:
            compiled.history.failed()
            if not (error.pgcode is None or may_be_stale(error.pgcode) or error.pgcode in _RUN_ELSEWHERE):
                raise from_postgres(error, preamble.authenticated) from error
        slot.retake()
        return await self.pool.use(_OwnConnection(self.config, planned, preamble, path))

    async def read(self, preamble: Preamble, path: str, sql: Sql, leaves_state: bool) -> list[Row]:
        """The rows of a query that only reads. ``leaves_state`` says that the pre-request function may leave
        something behind on the connection."""

        async def run(connection: Connection) -> list[Row]:
            connection.extra_seconds = preamble.extra_seconds
            try:
                if preamble.plans_apart:
                    await pass_to_role(connection, preamble)
                return await connection.query(f"{preamble.text}; {sql.for_driver}", [path, *sql.values()])
            except (psycopg2.Error, DatabaseGone) as error:
                raise from_postgres(error, preamble.authenticated) from error
            finally:
                if leaves_state:
                    await clear(connection)

        return await self.pool.use(run)


@frozen
class _OwnConnection:
    """Runs one request on a connection that nobody else uses in the meantime, with which it is called."""

    config: TablesConfig
    planned: Planned
    preamble: Preamble
    path: str

    async def __call__(self, connection: Connection) -> Outcome:
        compiled, preamble = self.planned.compiled, self.preamble
        connection.extra_seconds = preamble.extra_seconds
        try:
            if preamble.plans_apart:
                await pass_to_role(connection, preamble)
            outcome = await self._probed(connection)
            if compiled.statement.count is not None:
                outcome = await self._estimated(connection, compiled.statement.count, outcome)
            return outcome
        except (psycopg2.Error, DatabaseGone) as error:
            payload = self.planned.request.payload
            if (
                getattr(error, "pgcode", None) == _TOO_COMPLEX
                and payload is not None
                and payload.depth > DEEP
            ):
                # Most likely the body has used up PostgreSQL's stack; its hint would be to raise a server limit.
                raise errors.body_too_deep(payload.depth) from error
            raise from_postgres(error, preamble.authenticated) from error
        finally:
            if compiled.leaves_state:
                await clear(connection)

    async def _probed(self, connection: Connection) -> Outcome:
        """The outcome. Where the probe allowed too few rows, the statement is run again with more."""
        probe = self.planned.compiled.probe
        if probe is None:
            return await self._run(connection, 0)
        rows = probe.rows
        while True:
            try:
                outcome = await self._run(connection, rows)
            except psycopg2.Error as error:
                if error.pgcode != _TOO_LARGE or rows == 1:
                    raise
                probe.rows = 1
                return evolve(outcome := await self._run(connection, 1), whole=probe.fits(outcome, 1))
            if probe.fits(outcome, rows):
                return outcome
            if not probe.again(outcome, rows):
                return evolve(outcome, whole=False)
            rows = probe.rows

    async def _run(self, connection: Connection, probe: int) -> Outcome:
        # The first of a new version of the schema cache goes as text, which resets what SQL has left on the
        # connection: the new version may not know any more that there was such SQL.
        statements, version = connection.statements, self.planned.version
        if statements.version != version:
            statements.use_version(version)
        elif self._is_prepared:
            try:
                return await self._transaction(connection, probe, prepared=True)
            except psycopg2.Error as error:
                # The error has undone everything, so it may be run again, as the text it is.
                if not may_be_stale(error.pgcode):
                    raise
        return await self._transaction(connection, probe, prepared=False)

    async def _transaction(self, connection: Connection, probe: int, prepared: bool) -> Outcome:
        """Run the statement as its transaction. Unless the ending is implicit, nothing is committed if the outcome is
        rejected."""
        planned, preamble, compiled = self.planned, self.preamble, self.planned.compiled
        ending = self._ending
        begins = ending != "implicit"
        run: Run | None = None
        try:
            rows: Sequence[Any]
            if prepared:
                steps = [*preamble.steps(self.path), _step(planned, preamble, probe)]
                if begins:
                    steps.insert(0, _BEGIN)
                run = await connection.run(steps, planned.version, timed=compiled.shares)
                rows = run.with_bytes()
            else:
                sql = compiled.statement.sql
                values = sql.values(planned.operands, planned.body, planned.raw, probe + 1)
                text = f"{'BEGIN; ' if begins else ''}{preamble.text}; {sql.for_driver}"
                rows = await connection.query(text, [self.path, *values])
            outcome = self._checked(rows)
        except BaseException:
            if begins and connection.in_transaction:
                await connection.execute("ROLLBACK")
            raise
        if ending == "commit":
            await connection.execute("COMMIT")
        elif ending == "rollback":
            try:
                # A violated deferred constraint raises its error now, as it would at a commit.
                await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            finally:
                if connection.in_transaction:
                    await connection.execute("ROLLBACK")
        if run is not None and compiled.shares:
            compiled.history.ran(run.took, len(outcome.body))
        return outcome

    @property
    def _is_prepared(self) -> bool:
        return (
            self.config.prepare
            and self.planned.cached
            and self.planned.compiled.rendering.explain is None
            and not self.preamble.sets_isolation
        )

    @property
    def _ending(self) -> Ending:
        """How the transaction ends. BEGIN and COMMIT of our own are used only where the outcome decides whether to
        commit, since they cost round trips."""
        request, compiled = self.planned.request, self.planned.compiled
        if compiled.read_only:
            return "implicit"
        if rolls_back(self.config, request):
            return "rollback"
        return "commit" if _may_be_rejected(request, compiled) else "implicit"

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
        limit, exact = self.planned.compiled.max_rows, outcome.total
        if limit and exact is not None and exact <= limit:
            return outcome
        planned = self.planned
        values = counting.values(planned.operands, planned.body, planned.raw)
        text = f"{self.preamble.text}; EXPLAIN (FORMAT JSON) {counting.for_driver}"
        rows = await connection.query(text, [self.path, *values])
        likely = int(orjson.loads(as_bytes(rows[0][0]))[0]["Plan"]["Plan Rows"])
        return evolve(outcome, total=likely if exact is None else max(likely, exact))


def rolls_back(config: TablesConfig, request: Request) -> bool:
    """Whether a write is undone at its end, because the request or the database wants a trial only."""
    # The planner has left out a ``tx`` that is not allowed.
    return (request.head.preferences.get("tx") or config.tx_end).startswith("rollback")


def _may_be_rejected(request: Request, compiled: Compiled) -> bool:
    """Whether ``check_outcome`` rejects some outcomes, so that it has to be asked before the commit."""
    preferences = request.head.preferences
    return bool(
        compiled.rendering.singular
        or preferences.max_affected is not None
        # A range of a function's rows that begins after the last of them is rejected.
        or (compiled.routine is not None and request.range.offset > 0 and preferences.get("count"))
        or (isinstance(compiled.plan, WritePlan) and compiled.plan.may_be_undone)
    )


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
