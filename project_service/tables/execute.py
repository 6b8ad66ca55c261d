"""Running what was compiled, and reading its outcome."""

from __future__ import annotations

from functools import partial

import orjson
from attrs import evolve, frozen

from project_service.database.pool import Pool
from project_service.database.session import Session
from project_service.tables.compile import Compiled
from project_service.tables.config import TablesConfig
from project_service.tables.errors import TableError
from project_service.tables.leftovers import clear
from project_service.tables.parse.request import Request
from project_service.tables.plan.write import WritePlan
from project_service.tables.planner import Planned
from project_service.tables.respond.outcome import Outcome, as_bytes, outcome_of_read, outcome_of_write
from project_service.tables.respond.replies import check_outcome
from project_service.tables.run import Ending, Preamble, Row, Work, run
from project_service.tables.sql.fragment import Sql

# PostgreSQL makes no value beyond a gigabyte: a body of too many wide rows.
_TOO_LARGE = "54000"


@frozen
class Executor:
    """Runs compiled requests of one database."""

    config: TablesConfig
    pool: Pool

    async def execute(self, planned: Planned, preamble: Preamble, authenticated: bool) -> Outcome:
        """The outcome, checked; for an execution plan its text is the body. Raises ``TableError``."""
        request, compiled = planned.request, planned.compiled
        work = Work(
            preamble,
            compiled.statement.sql,
            planned.operands,
            planned.body,
            planned.raw,
            compiled.probe.rows if compiled.probe is not None else 0,
            self._ending(request, compiled),
            authenticated,
            self.config.prepare and planned.kept and compiled.rendering.explain is None,
            planned.version,
            compiled.locks,
        )

        async def used(session: Session) -> Outcome:
            try:
                outcome = await self._probed(session, work, planned)
                return await self._estimated(session, work, planned, outcome)
            finally:
                if compiled.leaves_things:
                    await clear(session)

        return await self.pool.use(used)

    async def read(
        self, preamble: Preamble, sql: Sql, authenticated: bool, leaves_things: bool = False
    ) -> list[Row]:
        """The rows of a query that only reads; what runs before it may be what ``leaves_things``."""
        work = Work(preamble, sql, authenticated=authenticated)

        async def used(session: Session) -> list[Row]:
            try:
                return await run(session, work, list)
            finally:
                if leaves_things:
                    await clear(session)

        return await self.pool.use(used)

    async def _probed(self, session: Session, work: Work, planned: Planned) -> Outcome:
        """What fits into one reply is in the outcome; of the rest as much as was read to know that it does not."""
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

    async def _estimated(self, session: Session, work: Work, planned: Planned, outcome: Outcome) -> Outcome:
        """The planner's number of rows, where that was asked for and there is nothing better."""
        count = planned.request.head.preferences.get("count")
        counting = planned.compiled.statement.count
        if counting is None or count not in ("planned", "estimated"):
            return outcome
        most, exact = self.config.max_rows, outcome.total
        if most and exact is not None and exact <= most:
            return outcome
        explain = evolve(work, statement="EXPLAIN (FORMAT JSON) " + counting, ending="implicit", kept=False)
        rows = await run(session, explain, list)
        likely = int(orjson.loads(as_bytes(rows[0][0]))[0]["Plan"]["Plan Rows"])
        return evolve(outcome, total=likely if exact is None else max(likely, exact))

    def _ending(self, request: Request, compiled: Compiled) -> Ending:
        """Explicit transaction control only where something is decided after the statement has run."""
        if compiled.read_only:
            return "implicit"
        if self.config.tx_end.startswith("rollback"):
            ending: Ending = "rollback"
        else:
            ending = "commit"
        if self.config.tx_override:
            asked = request.head.preferences.get("tx")
            ending = "rollback" if asked == "rollback" else "commit" if asked == "commit" else ending
        if ending == "rollback":
            return "rollback"
        decides = (
            compiled.rendering.singular
            or request.head.preferences.max_affected is not None
            or (isinstance(compiled.plan, WritePlan) and compiled.plan.may_be_undone)
        )
        return "commit" if decides else "implicit"


def _checked(planned: Planned, rows: list[Row]) -> Outcome:
    """Raises what must not be committed."""
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
