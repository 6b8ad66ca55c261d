"""Runs compiled requests and reads their outcomes."""

from __future__ import annotations

from functools import partial

import orjson
from attrs import evolve, frozen

from project_service.database.pool import Pool
from project_service.database.session import Session
from project_service.tables import errors
from project_service.tables.config import TablesConfig
from project_service.tables.errors import TableError
from project_service.tables.execution.cleanup import clear
from project_service.tables.execution.preamble import Preamble
from project_service.tables.execution.run import run
from project_service.tables.execution.work import Ending, Row, Work
from project_service.tables.parse.payload import DEEP
from project_service.tables.parse.request import Request
from project_service.tables.plan.write import WritePlan
from project_service.tables.planning.compile import Compiled
from project_service.tables.planning.planner import Planned
from project_service.tables.respond.outcome import Outcome, as_bytes, outcome_of_read, outcome_of_write
from project_service.tables.respond.replies import check_outcome
from project_service.tables.sql.fragment import Sql

# program_limit_exceeded: PostgreSQL cannot make a value of more than a gigabyte, such as a body of many wide rows.
_TOO_LARGE = "54000"
# statement_too_complex: a stack is used up.
_TOO_COMPLEX = "54001"


@frozen
class Executor:
    """Runs compiled requests of one database."""

    config: TablesConfig
    pool: Pool

    async def execute(self, planned: Planned, preamble: Preamble) -> Outcome:
        """The outcome, which has passed ``check_outcome``. For an execution plan, the plan's text is the body.

        Raises ``TableError``.
        """
        request, compiled = planned.request, planned.compiled
        work = Work(
            preamble,
            compiled.statement.sql,
            planned.operands,
            planned.body,
            planned.raw,
            compiled.probe.rows if compiled.probe is not None else 0,
            self._ending(request, compiled),
            self.config.prepare and planned.kept and compiled.rendering.explain is None,
            planned.version,
            compiled.locks,
        )

        async def used(session: Session) -> Outcome:
            try:
                outcome = await self._probed(session, work, planned)
                if compiled.statement.count is not None:
                    outcome = await self._estimated(session, work, compiled.statement.count, outcome)
                return outcome
            finally:
                if compiled.leaves_things:
                    await clear(session)

        try:
            return await self.pool.use(used)
        except TableError as fault:
            payload = request.payload
            if fault.code != _TOO_COMPLEX or payload is None or payload.depth <= DEEP:
                raise
            # Most likely the body has used up PostgreSQL's stack. Its hint would be to raise a limit of the server.
            raise errors.body_too_deep(payload.depth) from fault

    async def read(self, preamble: Preamble, sql: Sql, leaves_things: bool) -> list[Row]:
        """The rows of a query that only reads. ``leaves_things`` says that the pre-request function may leave
        something behind on the connection."""
        work = Work(preamble, sql)

        async def used(session: Session) -> list[Row]:
            try:
                return await run(session, work, list)
            finally:
                if leaves_things:
                    await clear(session)

        return await self.pool.use(used)

    async def _probed(self, session: Session, work: Work, planned: Planned) -> Outcome:
        """The outcome; its body is complete (``whole``) if the result fits into one reply.

        Where the probe allowed too few rows, the statement is run again with more.
        """
        probe, read = planned.compiled.probe, partial(_checked, planned)
        if probe is None:
            return await run(session, work, read)
        while True:
            try:
                outcome = await run(session, work, read)
            except TableError as fault:
                if fault.code != _TOO_LARGE or work.probe == 1:
                    raise
                probe.rows = 1
                outcome = await run(session, evolve(work, probe=1), read)
                return evolve(outcome, whole=probe.fits(outcome, 1))
            if probe.fits(outcome, work.probe):
                return outcome
            if not probe.again(outcome, work.probe):
                return evolve(outcome, whole=False)
            work = evolve(work, probe=probe.rows)

    async def _estimated(self, session: Session, work: Work, counting: Sql, outcome: Outcome) -> Outcome:
        """``outcome`` with the planner's estimate of the rows of ``counting`` as its total, where no exact number is
        known."""
        most, exact = self.config.max_rows, outcome.total
        if most and exact is not None and exact <= most:
            return outcome
        explain = evolve(work, statement="EXPLAIN (FORMAT JSON) " + counting, ending="implicit", kept=False)
        rows = await run(session, explain, list)
        likely = int(orjson.loads(as_bytes(rows[0][0]))[0]["Plan"]["Plan Rows"])
        return evolve(outcome, total=likely if exact is None else max(likely, exact))

    def _ending(self, request: Request, compiled: Compiled) -> Ending:
        """How the transaction ends. BEGIN and COMMIT of our own are used only where the outcome decides whether to
        commit, since they cost round trips."""
        if compiled.read_only:
            return "implicit"
        # The planner has left out a ``tx`` that is not allowed.
        if (request.head.preferences.get("tx") or self.config.tx_end).startswith("rollback"):
            return "rollback"
        return "commit" if _may_be_refused(request, compiled) else "implicit"


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


def _checked(planned: Planned, rows: list[Row]) -> Outcome:
    """The outcome; raises where it must not be committed."""
    compiled = planned.compiled
    outcome = _read(compiled, rows)
    check_outcome(planned.request, compiled.plan, compiled.rendering, outcome)
    return outcome


def _read(compiled: Compiled, rows: list[Row]) -> Outcome:
    if compiled.rendering.explain is not None:
        return Outcome(body=b"\n".join(as_bytes(row[0]) for row in rows))
    if isinstance(compiled.plan, WritePlan):
        return outcome_of_write(rows[0])
    return outcome_of_read(rows[0])
