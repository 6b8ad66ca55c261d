"""What operators look up is read from indexes, whatever there is besides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg2
import pytest

from project_service.auth.lookups import EntryFilter, Lookups, UserFilter
from tests.live.sql import run_sql

# Of each kind some among many, and long ago.
FILL = """
alter table auth.users disable trigger user;
insert into auth.users
    (id, email, email_key, password_hash, metadata, created_at, confirmed_at, disabled_at, last_login_at,
    is_anonymous)
select gen_random_uuid(), e, e, '$2b$12$' || repeat('a', 53), jsonb_build_object('name', repeat('b', 100)),
    timestamptz '2020-01-01' + i * interval '1 minute', case when i <> 7 then now() end,
    case when i = 8 then now() end, now(), i = 9
from generate_series(1, 30000) i, lateral (select md5(i::text) || '@example.test' e) x;
insert into auth.audit (at, actor, action, result, user_id, subject)
select timestamptz '2020-01-01' + i * interval '1 minute', 'anonymous',
    case when i = 3 then 'bucket.create' else 'login' end, 'ok',
    case when i <> 3 then gen_random_uuid() end, case when i = 3 then 'papers' else '' end
from generate_series(1, 30000) i;
"""


class Explaining:
    """A pool that says by which indexes a query would read."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.indexes: list[str] = []

    async def query(self, sql: str, params: Any) -> list[Any]:
        with closing(psycopg2.connect(self.dsn)) as connection:
            cursor = connection.cursor()
            cursor.execute(f"explain (costs off) {sql}", params)
            plan = "\n".join(row[0] for row in cursor.fetchall())
        assert "Seq Scan" not in plan, plan
        words = plan.replace(" Backward", "").split()
        self.indexes = [words[place + 1] for place, word in enumerate(words) if word == "using"]
        return []


@pytest.fixture(scope="module")
def filled(module_database: str) -> Iterator[str]:
    run_sql(module_database, FILL)
    with closing(psycopg2.connect(module_database)) as connection:
        connection.autocommit = True
        connection.cursor().execute("vacuum analyze auth.users, auth.audit")
    yield module_database


def test_searches_read_indexes(filled: str) -> None:
    explaining = Explaining(filled)
    lookups = Lookups(explaining)  # type: ignore[arg-type]
    nobody = "00000000-0000-4000-8000-000000000000"
    for work, indexes in (
        (lookups.users(UserFilter(), None, 51), ["users_by_creation"]),
        (lookups.users(UserFilter(), None, 51, newest_first=True), ["users_by_creation"]),
        (lookups.users(UserFilter(disabled=True), None, 51), ["users_disabled"]),
        (lookups.users(UserFilter(email_confirmed=False), None, 51), ["users_unconfirmed"]),
        (lookups.users(UserFilter(anonymous=True), None, 51), ["users_anonymous"]),
        (lookups.users_by_address(UserFilter("nobody"), "", 51), ["users_email_key_key"] * 2),
        (lookups.entries(EntryFilter(), None, 51), ["audit_by_time"]),
        (lookups.entries(EntryFilter(user_id=nobody), None, 51), ["audit_by_user"]),
        (lookups.entries(EntryFilter(action="bucket.create"), None, 51), ["audit_by_action"]),
        (lookups.entries(EntryFilter(subject="papers"), None, 51), ["audit_by_subject"]),
    ):
        with suppress(StopIteration):
            work.send(None)
        assert explaining.indexes == indexes
