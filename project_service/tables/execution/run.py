"""Runs a statement: settings, pre-request function and query go in one message unless something has to be decided in
between.

Several statements in one simple-protocol message are one implicit transaction, so the settings, which are local to a
transaction, leave nothing behind on the connection (PostgreSQL's manual, "Multiple Statements in a Simple Query").
The first time a query is to be prepared on a connection, there is one more message between the settings and the
query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import psycopg2
from attrs import evolve, frozen

from project_service.database.session import DatabaseGone, Session
from project_service.database.sqlstate import words
from project_service.database.statements import Statements
from project_service.tables import errors
from project_service.tables.errors import TableError
from project_service.tables.execution.failures import from_sqlstate, has_nul
from project_service.tables.sql.fragment import NOTHING, Sql
from project_service.tables.sql.settings import FORGET_PLANS, SetConfig

_NO_RIGHT = "42501"

Row = tuple[Any, ...]
Ending = Literal["implicit", "commit", "rollback"]
T = TypeVar("T")
# The beginnings of SQLSTATEs that come from an application's own functions: those that choose the response, that of
# RAISE in PL/pgSQL, and those of functions in other languages.
_SAID_BY_SQL = ("PT", "PGRST", "P0", "38")


@frozen
class PreparedPreamble:
    """What is set for the transaction: all of it as ``text``; or in three parts, ``first``, the ``settings``, which
    can be prepared, and ``last``."""

    text: str
    first: str
    settings: SetConfig
    last: str

    def executed(self, execution: str) -> str:
        return f"{self.first}{execution}{self.settings.arguments}{self.last}"


@frozen
class Preamble:
    """What is set for the transaction: ``text`` and ``values`` for psycopg2, and ``prepared`` if it can be prepared.

    The transaction may take ``extra_seconds`` longer than the service allows otherwise; None means any time.
    Statements are prepared for its ``role`` alone. With ``plans_apart`` the plans that PostgreSQL caches for the
    queries inside functions may not be used for another role either.
    """

    text: str
    values: Sequence[str]
    extra_seconds: float | None = 0.0
    prepared: PreparedPreamble | None = None
    role: str = ""
    plans_apart: bool = False


@frozen
class Work:
    """A statement to run, with its preamble and its values.

    Where the result may turn out too large, ``probe`` rows and one more are read. With the ``ending`` implicit the
    end of the message commits. With the others there is time in between to refuse what was done. ``kept`` allows the
    statement to be prepared, for that ``version`` of the schema cache; then ``locks``, if there are any, run before
    it (see ``sql.locks``). ``authenticated`` decides the status for missing rights: 403, or 401 if not.
    """

    preamble: Preamble
    statement: Sql
    operands: Sequence[str] = ()
    body: str = ""
    raw: bytes = b""
    probe: int = 0
    ending: Ending = "implicit"
    authenticated: bool = True
    kept: bool = False
    version: int = 0
    locks: Sql = NOTHING

    @property
    def parts(self) -> tuple[Sql, ...]:
        return (self.locks, self.statement) if self.kept and self.locks else (self.statement,)

    @property
    def values(self) -> list[str | bytes | None]:
        found = self._values_of(self.statement)
        return self._values_of(self.locks) + found if self.kept and self.locks.parameters else found

    def _values_of(self, part: Sql) -> list[str | bytes | None]:
        return part.values(self.operands, self.body, self.raw, self.probe + 1)


async def run(session: Session, work: Work, read: Callable[[list[Row]], T]) -> T:
    """Run the work and return what ``read`` makes of the statement's rows.

    Raises ``TableError`` for what PostgreSQL refuses or if it is away, and what ``read`` raises. Unless the work's
    ending is implicit, nothing is committed if ``read`` raises.
    """
    session.extra_seconds = work.preamble.extra_seconds
    try:
        if work.preamble.plans_apart:
            await pass_to_role(session, work.preamble)
        try:
            return await _run(session, work, read)
        except psycopg2.Error as fault:
            # The error has undone everything, so it may be run again.
            if not work.kept or not _refused(session.statements, work, fault.pgcode):
                raise
        return await _run(session, evolve(work, kept=False), read)
    except (psycopg2.Error, DatabaseGone) as fault:
        raise failure(fault, work.authenticated) from fault
    except ValueError as fault:
        # psycopg2 refuses to send a NUL. What clients send has been checked before, so this is for all other values.
        if "NUL" not in str(fault):
            raise
        raise has_nul() from fault


async def pass_to_role(session: Session, preamble: Preamble) -> None:
    """Make sure that functions' cached plans of another role are not used, for a preamble with ``plans_apart``. Call
    it outside a transaction. Raises what ``Session.execute`` raises."""
    if session.statements.plans_of != preamble.role:
        await session.execute(FORGET_PLANS)
        session.statements.plans_of = preamble.role


def _refused(statements: Statements, work: Work, code: str | None) -> bool:
    """Whether it is worth running unprepared. All parts are told, for nothing says which of them was refused."""
    if code == _NO_RIGHT and work.locks:
        # Without the locks the response may be another: the statement itself is refused for a wrong value first.
        return True
    refused = [statements.refused(part.text, code, work.preamble.role) for part in work.parts]
    return any(refused)


async def _run(session: Session, work: Work, read: Callable[[list[Row]], T]) -> T:
    text = _prepared(session.statements, work) if work.kept else work.statement.for_driver
    if work.ending == "implicit" and text is not None:
        return read(await _send(session, "", work, text))
    try:
        if text is None:
            rows = await _prepare_and_send(session, work)
        else:
            rows = await _send(session, "BEGIN; ", work, text)
        found = read(rows)
        if work.ending == "rollback":
            # A violated deferred constraint raises its error now, as it would at a commit.
            await session.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except BaseException:
        if session.in_transaction:
            await session.execute("ROLLBACK")
        raise
    await session.execute("ROLLBACK" if work.ending == "rollback" else "COMMIT")
    return found


def _prepared(statements: Statements, work: Work) -> str | None:
    """The EXECUTE of each part; None if one of them has to be prepared first."""
    version, role = work.version, work.preamble.role
    found = statements.execution(work.statement.text, version, role)
    if found is None or not work.locks:
        return found
    locks = statements.execution(work.locks.text, version, role)
    return f"{locks}; {found}" if locks is not None else None


async def _send(session: Session, prefix: str, work: Work, text: str) -> list[Row]:
    beginning = _beginning(session.statements, work) if work.kept else work.preamble.text
    return await session.query(f"{prefix}{beginning}; {text}", [*work.preamble.values, *work.values])


def _beginning(statements: Statements, work: Work) -> str:
    prepared = work.preamble.prepared
    if prepared is None:
        return work.preamble.text
    execution = statements.execution(prepared.settings.statement.text, work.version)
    return work.preamble.text if execution is None else prepared.executed(execution)


async def _prepare_and_send(session: Session, work: Work) -> list[Row]:
    """Prepare what is not prepared yet, and run it. The preamble goes first: names are looked up by its role and its
    search path."""
    await session.query(f"BEGIN; {work.preamble.text}", work.preamble.values)
    if work.preamble.prepared is not None:
        settings = work.preamble.prepared.settings.statement
        # Prepared without psycopg2's placeholders: the values of settings are written once for many requests.
        await session.statements.prepare(session.query, settings.text, settings.for_prepare, 0, work.version)
    texts = [
        await session.statements.prepare(
            session.query,
            part.text,
            part.for_prepare,
            len(part.parameters),
            work.version,
            work.preamble.role,
        )
        for part in work.parts
    ]
    return await session.query("; ".join(texts), work.values)


def failure(fault: psycopg2.Error | DatabaseGone, authenticated: bool) -> TableError:
    """The error response for a connection that is lost, or for what PostgreSQL refuses.

    A 5xx gets a reason for the log, ``why``, unless an application's own function chose that response.
    """
    if isinstance(fault, DatabaseGone) or fault.pgcode is None:
        error = errors.database_unreachable()
        # libpq's own text contains addresses, which do not belong in the log.
        error.why = str(fault) if isinstance(fault, DatabaseGone) else type(fault).__name__
        return error
    diagnosis = fault.diag
    error = from_sqlstate(
        fault.pgcode,
        diagnosis.message_primary or "",
        diagnosis.message_detail,
        diagnosis.message_hint,
        authenticated,
    )
    if error.status >= 500 and not fault.pgcode.startswith(_SAID_BY_SQL):
        error.why = words(fault)
    return error
