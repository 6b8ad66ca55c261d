"""A statement that is cancelled takes no other one with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import pytest_twisted
from attrs import define, field

from project_service.database.connection import DatabaseGone
from project_service.database.row_by_row import Column, Refused, Report, RowByRow
from tests.live.sql import connection_to


@define
class Taken:
    """A ``Receiver`` that does something at each row."""

    at_row: Callable[[], None] = lambda: None
    wants_rows: bool = True
    rows: list[list[bytes | None]] = field(factory=list)

    def begin(self, columns: tuple[Column, ...]) -> None:
        return None

    def count(self) -> None:
        return None

    def row(self, values: list[bytes | None]) -> None:
        self.rows.append(values)
        self.at_row()

    def notice(self, report: Report) -> None:
        return None


@pytest_twisted.ensureDeferred
async def test_what_is_cancelled_too_late_does_not_end_the_next_statement(empty_database: str) -> None:
    session = RowByRow(await connection_to(empty_database))
    for _ in range(20):
        # The statement is done when its row arrives.
        assert await session.run("select 1", Taken(session.cancel)) == "SELECT 1"
        assert await session.run("select pg_sleep(0.02)", Taken()) == "SELECT 1"
    session.close()


@pytest_twisted.ensureDeferred
async def test_after_a_refusal_the_connection_goes_on(empty_database: str) -> None:
    session = RowByRow(await connection_to(empty_database))
    with pytest.raises(Refused) as refused:
        await session.run("select 1/0", Taken())
    assert refused.value.report.sqlstate == "22012"
    taken = Taken()
    assert await session.run("select null, '', 'é'", taken) == "SELECT 1"
    assert taken.rows == [[None, b"", "é".encode()]]
    session.close()
    with pytest.raises(DatabaseGone):
        await session.run("select 1", Taken())
