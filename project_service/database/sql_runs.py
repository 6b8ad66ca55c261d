"""A text of SQL, run for somebody who wants to see all of what comes of it: rows, notices, and the first error with
its place.

It has a connection of its own, made for it and closed after it, so that nothing of it (settings, roles, temporary
tables, locks) reaches anybody else. It is one transaction, as a file of the command ``sql`` is; if it begins or ends
transactions by itself, if its first comment is "-- no transaction", or if it is a single statement, each statement is
run as ``psql -f`` would, by itself.

What is kept of the results is bounded, and a statement whose rows are not kept is run to its end all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from attrs import define, evolve, field, frozen

from project_service.database.connecting import Connector
from project_service.database.connection import DatabaseGone
from project_service.database.quoting import literal
from project_service.database.row_by_row import Column, Refused, Report, RowByRow, Unsuited
from project_service.database.sql_scripts import SqlFile, unsuited
from project_service.database.sql_statements import Statement

# What all results of one text may take in memory, about: values, notices, and what Python adds to each.
MAX_BYTES = 16 * 1024**2
_PER_VALUE = 64
_PER_NOTICE = 1024
MAX_STATEMENTS = 5000
# Of all results together.
MAX_COLUMNS = 20_000
MAX_NOTICES = 100
# Of each text of an error or a notice.
MAX_CHARACTERS = 4000

# PostgreSQL 14 and newer can look whether the client is still there while it works: this process may die.
_SETUP = """
select pg_catalog.set_config('application_name', 'project-service sql', false),
       pg_catalog.set_config('default_transaction_read_only', {read_only}, false);
select pg_catalog.set_config(name, '2s', false) from pg_catalog.pg_settings
where name = 'client_connection_check_interval';
reset search_path
"""
_TYPES = "select pg_catalog.format_type(t, m) from unnest({oids}::oid[], {modifiers}::int4[]) as of(t, m)"
# Without the last name, types that the text has made for the session would come first.
_SECURE = "set session authorization default; set search_path = pg_catalog, pg_temp"
_EXPLAIN = {"plan": "explain (format json) ", "analyze": "explain (analyze, buffers, format json) "}

Explain = Literal["no", "plan", "analyze"]


@frozen
class Limits:
    """``rows`` of each result are kept at most. Each statement may take ``seconds``."""

    rows: int
    seconds: float


@define
class Result:
    """What a statement has returned. ``columns`` are None for one that returns no rows, and ``types`` the names of
    their types. The values of ``rows`` are PostgreSQL's text of them, None for null. ``row_count`` is how many rows
    there were, None if the statement was ended early because its rows were not wanted."""

    line: int
    columns: tuple[Column, ...] | None = None
    types: list[str] = field(factory=list)
    rows: list[list[str | None]] = field(factory=list)
    row_count: int | None = 0
    notices: list[Report] = field(factory=list)
    # How many notices there were beyond those.
    more_notices: int = 0
    command: str = ""
    seconds: float = 0.0

    @property
    def truncated(self) -> bool:
        return self.row_count is None or self.row_count > len(self.rows)


@frozen
class Fault:
    """The error that ended the run. ``line`` and ``column``, in characters and counted from 1, are where it is in the
    text; ``statement`` is the line in which the statement begins, None for an error at the end (COMMIT).
    ``hints`` are PostgreSQL's, and ours."""

    report: Report
    statement: int | None
    line: int | None = None
    column: int | None = None
    hints: tuple[str, ...] = ()


@frozen
class Outcome:
    """``one_transaction``: whether the text was one transaction, of which nothing holds after a ``fault``.
    ``undone``: whether a transaction was rolled back at the end."""

    results: list[Result]
    fault: Fault | None
    one_transaction: bool
    undone: bool


@frozen
class Script:
    """A text that can be run. ``of`` raises ``ValueError`` with the reason for one that cannot."""

    text: str = field(repr=False)
    file: SqlFile
    explain: Explain

    @classmethod
    def of(cls, text: str, explain: Explain = "no") -> Script:
        if "\0" in text:
            # libpq would end the message there and silently leave out the rest.
            raise ValueError("has a NUL character in it")
        file = SqlFile.of("the text", text)
        statements = file.script.statements
        if len(statements) > MAX_STATEMENTS:
            raise ValueError(
                f"has more than {MAX_STATEMENTS} statements; `project-service sql` has no such limit"
            )
        if explain != "no" and len(statements) != 1:
            raise ValueError("must be one statement to be explained")
        if explain != "no" and statements[0].words[0] == "explain":
            raise ValueError("begins with EXPLAIN already: leave that out, or run it as it is")
        return cls(text, file, explain)

    @property
    def statements(self) -> tuple[Statement, ...]:
        return self.file.script.statements

    @property
    def one_transaction(self) -> bool:
        return self.explain == "analyze" or (
            len(self.statements) > 1 and self.file.in_transaction and not self.file.ends_transactions
        )

    def place(self, statement: Statement, position: int | None) -> tuple[int | None, int | None]:
        """The line and the column of the character at ``position`` of what was sent for ``statement``."""
        if position is None:
            return None, None
        index = statement.start + max(0, position - 1 - len(self.prefix))
        return self.text.count("\n", 0, index) + 1, index - self.text.rfind("\n", 0, index)

    @property
    def prefix(self) -> str:
        return _EXPLAIN.get(self.explain, "")


class _Taker:
    """Keeps what a statement returns, as far as there is room for it. A ``Receiver``."""

    def __init__(
        self, result: Result, room: list[int], max_rows: int, enough: Callable[[], None] | None
    ) -> None:
        self._result = result
        self._room = room
        self._max_rows = max_rows
        # Called once rows come that are not kept.
        self._enough = enough
        self._full = False

    @property
    def wants_rows(self) -> bool:
        return not self._full

    def begin(self, columns: tuple[Column, ...]) -> None:
        self._result.columns = columns

    def count(self) -> None:
        result = self._result
        if result.row_count is not None:
            result.row_count += 1
        if len(result.rows) >= self._max_rows:
            self._no_more()

    def row(self, values: list[bytes | None]) -> None:
        if self._spend(sum([_PER_VALUE + len(value or b"") for value in values])):
            self._result.rows.append(
                [None if value is None else value.decode("utf-8", "replace") for value in values]
            )
        else:
            self._no_more()

    def notice(self, report: Report) -> None:
        report = _cut(report)
        size = sum(len(text or "") for text in (report.message, report.detail, report.hint))
        if len(self._result.notices) < MAX_NOTICES and self._spend(_PER_NOTICE + size):
            self._result.notices.append(report)
        else:
            self._result.more_notices += 1

    def _spend(self, size: int) -> bool:
        if size > self._room[0]:
            return False
        self._room[0] -= size
        return True

    def _no_more(self) -> None:
        self._full = True
        if self._enough is not None:
            enough, self._enough = self._enough, None
            self._result.row_count = None
            enough()


class _Failed(Exception):
    """Ends a run."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


@define
class _Run:
    """``read_only``: the only statement is ended once nobody wants more of its rows."""

    script: Script
    limits: Limits
    read_only: bool
    session: RowByRow
    clock: Callable[[], float]
    results: list[Result] = field(factory=list)
    room: list[int] = field(factory=lambda: [MAX_BYTES])

    async def whole(self) -> Outcome:
        script, fault, undone = self.script, None, False
        try:
            if script.one_transaction:
                await self._silently("begin")
            for statement in script.statements:
                await self._one(statement)
            if script.one_transaction and script.explain == "no":
                await self._silently("commit")
        except _Failed as failed:
            fault = failed.fault
        if self.session.in_transaction:
            undone = True
            with suppress(_Failed):
                await self._silently("rollback")
        elif fault is not None and script.one_transaction:
            undone = True
        if self.session.usable:
            await self._name_types()
        return Outcome(self.results, fault, script.one_transaction, undone)

    async def _one(self, statement: Statement) -> None:
        why = unsuited(statement, self.session.setting)
        if why is not None:
            raise _Failed(Fault(Report("ERROR", "", f"The text {why}."), statement.line))
        result = Result(statement.line)
        self.results.append(result)
        alone = self.read_only and len(self.script.statements) == 1
        taker = _Taker(result, self.room, self.limits.rows, self.session.cancel if alone else None)
        began = self.clock()
        try:
            result.command = await self.session.run(self.script.prefix + statement.text, taker)
        except Refused as refused:
            # What was ended because nobody wanted more has not failed.
            if result.row_count is not None or refused.report.sqlstate != "57014":
                self._drop_if_empty(result)
                raise self._failed(refused.report, statement) from None
        except (Unsuited, DatabaseGone) as fault:
            self._drop_if_empty(result)
            raise self._failed(_report_of(fault), statement) from None
        finally:
            result.seconds = self.clock() - began
        if sum(len(one.columns or ()) for one in self.results) > MAX_COLUMNS:
            report = Report(
                "ERROR", "", f"The results have more than {MAX_COLUMNS} columns together: run less at once."
            )
            raise _Failed(Fault(report, statement.line))

    def _drop_if_empty(self, result: Result) -> None:
        """Of a statement that fails, the rows and notices that came before are shown."""
        if not result.rows and not result.notices:
            self.results.remove(result)

    def _failed(self, report: Report, statement: Statement) -> _Failed:
        report = _cut(report)
        line, column = self.script.place(statement, report.position)
        ours = self.script.file.hint(statement, report.sqlstate) if self.script.one_transaction else None
        if statement.text.startswith("\\"):
            ours = "commands with a backslash are psql's own, not SQL"
        hints = tuple(hint for hint in (report.hint, ours) if hint)
        return _Failed(Fault(report, statement.line, line, column, hints))

    async def _silently(self, statement: str) -> None:
        """Run a statement of ours."""
        notes = Result(0)
        try:
            tag = await self.session.run(statement, _Taker(notes, self.room, 0, None))
        except Refused as refused:
            raise _Failed(Fault(_cut(refused.report), None)) from None
        except DatabaseGone as gone:
            raise _Failed(Fault(_report_of(gone), None)) from None
        if statement == "commit" and tag != "COMMIT":
            report = Report(
                "ERROR", "25P02", "The transaction was rolled back, because something in it had failed."
            )
            raise _Failed(Fault(report, None))
        if self.results:
            # What is checked at the end, or runs then, may say something.
            self.results[-1].notices.extend(notes.notices)

    async def _name_types(self) -> None:
        columns = [column for result in self.results for column in result.columns or ()]
        if not columns:
            return
        wanted = list(dict.fromkeys((column.type, column.modifier) for column in columns))
        oids, modifiers = zip(*wanted, strict=True)
        named = Result(0)
        query = _TYPES.format(oids=_array(oids), modifiers=_array(modifiers))
        try:
            await self._silently(_SECURE)
            await self.session.run(query, _Taker(named, [MAX_BYTES], len(wanted), None))
        except (Refused, DatabaseGone, _Failed):
            return  # they are only for the eye
        names = {key: row[0] or "" for key, row in zip(wanted, named.rows, strict=False)}
        for result in self.results:
            result.types = [names.get((one.type, one.modifier), "") for one in result.columns or ()]


def _cut(report: Report) -> Report:
    texts = (report.message, report.detail, report.hint, report.context)
    message, detail, hint, context = (text and text[:MAX_CHARACTERS] for text in texts)
    return evolve(report, message=message or "", detail=detail, hint=hint, context=context)


def _report_of(fault: Exception) -> Report:
    if isinstance(fault, DatabaseGone):
        # connection_failure
        return Report(
            "FATAL",
            "08006",
            "The connection to the database was lost; what was under way may have been done.",
        )
    return Report("ERROR", "", str(fault))


def _array(numbers: tuple[int, ...]) -> str:
    return literal("{" + ",".join(map(str, numbers)) + "}")


async def run_script(
    connect: Connector,
    script: Script,
    limits: Limits,
    read_only: bool,
    clock: Callable[[], float],
) -> Outcome:
    """Run ``script`` on a new connection. If this is cancelled, so is the statement that is under way, and what was
    not committed is undone.

    ``read_only`` makes transactions read-only unless they say otherwise, and ends a text of one statement early.

    Raises ``DatabaseGone``; then some of it may have been done.
    """
    connection = await evolve(connect, statement_timeout_seconds=limits.seconds)()
    try:
        await connection.query(_SETUP.format(read_only=literal("on" if read_only else "off")))
        session = RowByRow(connection)
    except BaseException:
        connection.close()
        raise
    try:
        return await _Run(script, limits, read_only, session, clock).whole()
    finally:
        session.close()
