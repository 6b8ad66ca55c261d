"""Runs compiled requests: one round trip to PostgreSQL for each, or two where the outcome decides whether it is
committed.

A statement goes to PostgreSQL in one of three forms:

* Quick reads share connections (``database.pipeline``): settings and statement are bound to what is prepared there,
  as a transaction of their own between those of others.
* What has been asked before is prepared on a connection of its own, and is bound and executed likewise.
* Everything else is sent as text, settings first. Several statements in one message are one implicit transaction
  (PostgreSQL's manual, "Multiple Statements in a Simple Query"), so the settings end with it too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import orjson
import psycopg2
from attrs import evolve, frozen

from project_service.database.acting import Actor, Preamble, Session
from project_service.database.connection import DatabaseGone
from project_service.database.pipeline import Run, Step, as_texts, may_be_stale
from project_service.database.quickness import SMALL_BYTES
from project_service.database.sharing import answered
from project_service.frozen import quick
from project_service.http.admission import Slot
from project_service.tables import errors
from project_service.tables.errors import from_postgres
from project_service.tables.plan.write import WritePlan
from project_service.tables.planner import Planned
from project_service.tables.reply.outcome import Outcome, Probe, as_bytes, outcome_of_read, outcome_of_write
from project_service.tables.reply.response import check_outcome
from project_service.tables.request.body import DEEP
from project_service.tables.sql.fragment import Sql
from project_service.tables.values import TablesConfig

Row = tuple[Any, ...]

# program_limit_exceeded: PostgreSQL cannot make a value of more than a gigabyte, such as a body of many wide rows.
_TOO_LARGE = "54000"
# And admin_shutdown and crash_shutdown: the connection is about to be lost.
_RUN_ELSEWHERE = (_TOO_LARGE, "57P01", "57P02")
# statement_too_complex: a stack is used up.
_TOO_COMPLEX = "54001"


@frozen
class Executor:
    """Runs compiled requests of one database."""

    config: TablesConfig
    actor: Actor

    def execute(self, planned: Planned, preamble: Preamble, path: str, slot: Slot) -> Awaitable[Outcome]:
        """The outcome, which has passed ``check_outcome``; ``path`` is the resource's, as SQL may read it. On a
        shared connection the request needs no ``slot``.

        Its body is complete (``whole``) if the result fits into one reply. For an execution plan, the plan's text is
        the body. Raises ``TableError``.
        """
        compiled = planned.compiled
        if compiled.shares:
            probe = compiled.probe.rows if compiled.probe is not None else 0
            run = self.actor.share(
                preamble, path, _step(planned, preamble, probe), planned.version, compiled.history
            )
            if run is not None:
                slot.release()
                return self._shared(run, planned, preamble, path, probe, slot)
        return self.actor.use(preamble, path, _Alone(self.config, planned))

    async def _shared(
        self, run: Run, planned: Planned, preamble: Preamble, path: str, probe: int, slot: Slot
    ) -> Outcome:
        """The outcome by a connection that reads share. A read may be run once more, on one of its own: where the
        shared one does not answer it, or the statement has to be run in another form."""
        compiled = planned.compiled
        try:
            if await answered(run, compiled.history):
                outcome = outcome_of_read(run.rows[0])
                if len(outcome.body) > SMALL_BYTES:
                    compiled.history.failed()
                if compiled.probe is None or compiled.probe.fits(outcome, probe):
                    if compiled.may_be_rejected:
                        check_outcome(planned.request, compiled, outcome)
                    return outcome
        except (psycopg2.Error, DatabaseGone) as error:
            if getattr(error, "pgcode", None) not in _RUN_ELSEWHERE:
                raise from_postgres(error, preamble.authenticated) from error

        async def alone(session: Session) -> Outcome:
            # Not before: waiting for the connection it would keep others out, who share one and wait for none.
            slot.retake()
            return await _Alone(self.config, planned)(session)

        return await self.actor.use_again(preamble, path, alone, compiled.history)

    async def read(self, preamble: Preamble, path: str, sql: Sql) -> list[Row]:
        """The rows of a query that only reads."""

        async def run(session: Session) -> list[Row]:
            try:
                return await session.text(sql.for_driver, sql.values())
            except (psycopg2.Error, DatabaseGone) as error:
                raise from_postgres(error, preamble.authenticated) from error

        return await self.actor.use(preamble, path, run)


@quick
class _Alone:
    """Runs one request in a session of its own, with which it is called."""

    config: TablesConfig
    planned: Planned

    async def __call__(self, session: Session) -> Outcome:
        compiled = self.planned.compiled
        counting, probe = compiled.statement.count, compiled.probe
        try:
            outcome = await (self._run(session, 0) if probe is None else self._probed(session, probe))
            return outcome if counting is None else await self._estimated(session, counting, outcome)
        except (psycopg2.Error, DatabaseGone) as error:
            payload = self.planned.request.payload
            if getattr(error, "pgcode", None) == _TOO_COMPLEX and payload is not None:
                depth = payload.depth
                if depth > DEEP:
                    # Most likely the body has used up PostgreSQL's stack; its hint would be to raise a server limit.
                    raise errors.body_too_deep(depth) from error
            raise from_postgres(error, session.preamble.authenticated) from error

    async def _probed(self, session: Session, probe: Probe) -> Outcome:
        """The outcome. Where the probe allowed too few rows, the statement is run again with more."""
        rows = probe.rows
        while True:
            try:
                outcome = await self._run(session, rows)
            except psycopg2.Error as error:
                if error.pgcode != _TOO_LARGE or rows == 1:
                    raise
                probe.rows = 1
                return evolve(outcome := await self._run(session, 1), whole=probe.fits(outcome, 1))
            if probe.fits(outcome, rows):
                return outcome
            if not probe.again(outcome, rows):
                return evolve(outcome, whole=False)
            rows = probe.rows

    async def _run(self, session: Session, probe: int) -> Outcome:
        """Run the statement as its transaction. Unless the ending is implicit, nothing is committed if the outcome is
        rejected."""
        planned, compiled = self.planned, self.planned.compiled
        begins = compiled.ending != "implicit"
        prepared = session.is_prepared_for(planned.version) and self._is_prepared(session)
        while True:
            rows: Sequence[Any]
            try:
                if prepared:
                    step = _step(planned, session.preamble, probe)
                    run = await session.run(step, planned.version, begins, timed=compiled.shares)
                    rows = run.with_bytes()
                else:
                    sql = compiled.statement.sql
                    values = sql.values(planned.operands, planned.body, planned.raw, probe + 1)
                    rows = await session.text(sql.for_driver, values, "BEGIN" if begins else "")
                outcome = self._checked(rows)
                if begins:
                    await session.end(self.planned.compiled.ending == "commit")
            except BaseException as error:
                if begins:
                    await session.rollback()
                # It has undone everything, so the statement may be run again, as the text it is.
                if not (prepared and isinstance(error, psycopg2.Error) and may_be_stale(error.pgcode)):
                    raise
                prepared = False
                continue
            if prepared and compiled.shares:
                compiled.history.ran(run.took, len(outcome.body))
            return outcome

    def _is_prepared(self, session: Session) -> bool:
        return (
            self.config.prepare
            and session.prepares
            and self.planned.cached
            and self.planned.compiled.rendering.explain is None
            and not session.preamble.sets_isolation
        )

    def _checked(self, rows: Sequence[Any]) -> Outcome:
        """The outcome; raises where it must not be committed."""
        compiled = self.planned.compiled
        if compiled.rendering.explain is not None:
            outcome = Outcome(body=b"\n".join(as_bytes(row[0]) for row in rows))
        elif isinstance(compiled.plan, WritePlan):
            outcome = outcome_of_write(rows[0])
        else:
            outcome = outcome_of_read(rows[0])
        if compiled.may_be_rejected:
            check_outcome(self.planned.request, compiled, outcome)
        return outcome

    async def _estimated(self, session: Session, counting: Sql, outcome: Outcome) -> Outcome:
        """``outcome`` with the planner's estimate of the rows of ``counting`` as its total, where no exact number is
        known."""
        limit, exact = self.planned.compiled.max_rows, outcome.total
        if limit and exact is not None and exact <= limit:
            return outcome
        planned = self.planned
        values = counting.values(planned.operands, planned.body, planned.raw)
        rows = await session.text(f"EXPLAIN (FORMAT JSON) {counting.for_driver}", values)
        likely = int(orjson.loads(as_bytes(rows[0][0]))[0]["Plan"]["Plan Rows"])
        return evolve(outcome, total=likely if exact is None else max(likely, exact))


def _step(planned: Planned, preamble: Preamble, probe: int) -> Step:
    """The request's statement with its values."""
    sql, payload = planned.compiled.statement.sql, planned.request.payload
    body, raw = ("", b"") if payload is None else (payload.text, payload.raw)
    values = sql.values(planned.operands, body, raw, probe + 1)
    return Step(sql.for_prepare, as_texts(values), preamble.role)
