"""Entries of the audit that are not about users."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import pytest_twisted
from attrs import evolve

from project_service import audit, keys
from project_service.audit import Actor, Event, Origin
from project_service.database.pool import Pool
from project_service.http.caller import digest
from tests.live.services import pool_on, wait
from tests.live.sql import run_sql

NOW = datetime(2026, 11, 21, 3, 4, 5, 678000, tzinfo=UTC)
ENTRIES = """select at, actor, user_id, email, subject, action, result, address, user_agent, request_id
    from auth.audit order by id"""
HERE = Origin("192.0.2.1", "a browser", "request-1")


@pytest.fixture
def pool(database: str) -> Iterator[Pool]:
    pool = pool_on(database)
    yield pool
    wait(pool.close)


def event(result: str = "ok") -> Event:
    return Event(NOW, "bucket.delete", result, "service", origin=HERE, subject="papers")


def entry(result: str = "ok") -> tuple[object, ...]:
    about = (None, None, "papers", "bucket.delete", result)
    return (NOW, "service", *about, "192.0.2.1", "a browser", "request-1")


@pytest_twisted.ensureDeferred
async def test_an_entry_says_what_it_is_about(database: str, pool: Pool) -> None:
    await audit.record(pool, event("bucket_not_empty"))
    assert run_sql(database, ENTRIES) == [entry("bucket_not_empty")]


@pytest_twisted.ensureDeferred
async def test_an_entry_says_which_service_key_it_was(database: str, pool: Pool) -> None:
    """Only of what is done with the key: one that comes with a request of a user says nothing about who did it."""
    made = [await keys.store(pool, "service", key) for key in ("psk_service_one", "psk_service_two")]
    done: list[tuple[Actor, str]] = [
        ("service", "psk_service_two"),
        ("service", "psk_service_gone"),
        ("user", "psk_service_one"),
        ("service", "psk_service_one"),
    ]
    for actor, key in done:
        origin = evolve(HERE, service_key=digest(key))
        await audit.record(pool, evolve(event(), actor=actor, origin=origin))
    one, two = [record.id for record in made]
    assert run_sql(database, "select actor_id::text from auth.audit order by id") == [
        (two,),
        (None,),
        (None,),
        (one,),
    ]


@pytest_twisted.ensureDeferred
async def test_an_entry_is_written_if_what_it_is_about_was_changed(database: str, pool: Pool) -> None:
    delete = f"""with b as (delete from storage.buckets where name = %(name)s returning name),
        a as ({audit.RECORD} from b) select name from b"""
    run_sql(database, "insert into storage.buckets (name) values ('papers')")
    params = {"name": "papers", **audit.params(event())}
    assert await pool.query(delete, params) == [("papers",)]
    assert await pool.query(delete, params) == []
    assert run_sql(database, ENTRIES) == [entry()]
