"""Prepared queries, and what may make them invalid."""

from __future__ import annotations

import pytest
import pytest_twisted
from twisted.internet import reactor

from project_service.database.pool import Pool
from tests.live.sql import connector

ASKED = "select note, 'a%%' from public.notes where id = %s"


@pytest_twisted.ensureDeferred
async def test_a_query_is_prepared_once_and_replaced_when_it_no_longer_fits(database: str) -> None:
    pool = Pool(connector(database), 1, 5.0, reactor)
    await pool.query("create table public.notes (id int primary key, note text)")
    await pool.query("insert into public.notes values (1, 'one'), (2, null)")

    async def statements() -> list[str]:
        return [row[0] for row in await pool.query("select statement from pg_prepared_statements")]

    assert await pool.prepared(ASKED, (1,)) == [("one", "a%")]
    assert await pool.prepared(ASKED, (2,)) == [(None, "a%")]
    assert await statements() == ["select note, 'a%' from public.notes where id = $1"]
    # A result column gets another type, so the plan no longer fits.
    await pool.query("alter table public.notes alter note type int using 5")
    assert await pool.prepared(ASKED, (1,)) == [(5, "a%")]
    assert await pool.prepared(ASKED, (2,)) == [(5, "a%")]
    # A parameter's column gets another type, which was fixed when the query was prepared.
    await pool.query("alter table public.notes alter id type text")
    assert await pool.prepared(ASKED, ("1",)) == [(5, "a%")]
    assert await pool.prepared(ASKED, ("1",)) == [(5, "a%")]
    assert len(await statements()) == 1
    await pool.query("deallocate all")
    assert await pool.prepared(ASKED, ("1",)) == [(5, "a%")]
    assert await pool.prepared(ASKED, ("1",)) == [(5, "a%")]
    assert len(await statements()) == 1
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_type_replaced_by_another_of_its_name_is_no_failure(database: str) -> None:
    pool = Pool(connector(database), 1, 5.0, reactor)
    await pool.query(
        "create type public.mood as enum ('sad'); create table public.moods (id int, mood public.mood)"
    )
    asked = "select id from public.moods where mood = %s"
    assert await pool.prepared(asked, ("sad",)) == []
    await pool.query("alter table public.moods alter mood type text; drop type public.mood")
    await pool.query(
        "create type public.mood as enum ('sad', 'glad');"
        "alter table public.moods alter mood type public.mood using 'glad'"
    )
    await pool.query("insert into public.moods values (1, 'glad')")
    for _ in range(3):
        assert await pool.prepared(asked, ("glad",)) == [(1,)]
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_dropped_column_in_the_rows_of_a_function_is_no_failure(database: str) -> None:
    pool = Pool(connector(database), 1, 5.0, reactor)
    await pool.query(
        "create table public.kept (id int, dropped int, note text); insert into public.kept values (1, 2, 'a');"
        " create function public.all_kept() returns setof public.kept language plpgsql as"
        " $$ begin return query select * from public.kept; end $$"
    )
    asked = "select found.* from public.all_kept() as found where found.id = %s"
    assert await pool.prepared(asked, (1,)) == [(1, 2, "a")]
    await pool.query("alter table public.kept drop column dropped")
    for _ in range(3):
        assert await pool.prepared(asked, (1,)) == [(1, "a")]
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_errors_of_the_query_itself_are_raised(database: str) -> None:
    pool = Pool(connector(database), 1, 5.0, reactor)
    with pytest.raises(Exception, match="nowhere"):
        await pool.prepared("select 1 from nowhere where id = %s", (1,))
    with pytest.raises(Exception, match="invalid input syntax"):
        await pool.prepared("select %s::int", ("x",))
    assert await pool.prepared("select %s::int", ("7",)) == [(7,)]
    await pool.close()
