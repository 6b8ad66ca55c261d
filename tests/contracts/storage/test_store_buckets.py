"""The contract of buckets for callers, whom policies on ``storage.buckets`` let do something: the fake asks a
function, PostgreSQL its row-level security. Both have the same rules, ``RULES`` and ``allows``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted

from project_service.audit import Event
from project_service.storage.assemble import Rows, sql_rows
from project_service.storage.values import (
    ANON_ROLE,
    USER_ROLE,
    Bucket,
    BucketRules,
    Identity,
    Writer,
)
from tests.contracts.storage.rows import SERVICE, put, refused
from tests.fakes.storage import FakeBuckets, Tables
from tests.live.services import pool_on, wait
from tests.live.sql import run_sql


def user(number: int) -> Writer:
    identity = Identity(USER_ROLE, json.dumps({"sub": str(UUID(int=number)), "role": USER_ROLE}))
    return Writer(UUID(int=number), identity=identity)


ANN, BEN = user(1), user(2)
ANON = Writer(None, identity=Identity(ANON_ROLE, json.dumps({"role": ANON_ROLE})))

# Everybody sees what is public; users have their own, change their limit to at most 9, and delete what is not "kept".
RULES = """
    create policy a on storage.buckets for select to anon, authenticated using (public);
    create policy b on storage.buckets for select to authenticated
        using (owner = (select auth.uid()) and 1 / (case when id = 'broken' then 0 else 1 end) = 1);
    create policy c on storage.buckets for insert to authenticated
        with check (owner_id = (select auth.uid())::text and name <> 'no' and not public
            and 1 / (case when id = 'raises' then 0 else 1 end) = 1);
    create policy d on storage.buckets for update to authenticated
        using (owner = auth.uid() and id <> 'fixed') with check (file_size_limit < 10 and not public);
    create policy e on storage.buckets for delete to authenticated using (owner = auth.uid() and id <> 'kept');
"""


def allows(command: str, bucket: Bucket, identity: Identity) -> bool:
    own = bucket.owner is not None and str(bucket.owner) == json.loads(identity.claims).get("sub")
    if (command == "select" and own and bucket.name == "broken") or (
        command == "insert" and bucket.name == "raises"
    ):
        raise ZeroDivisionError
    return {
        "select": bucket.open or own,
        "insert": own and bucket.name != "no" and not bucket.open,
        "update": own and bucket.name != "fixed",
        "check": bucket.rules.max_object_bytes is not None
        and bucket.rules.max_object_bytes < 10
        and not bucket.open,
        "delete": own and bucket.name != "kept",
    }[command] and (identity.role == USER_ROLE or command == "select")


@pytest.fixture(params=["fake", "sql"])
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    if request.param == "fake":
        yield Tables(bucket_policies=allows).rows()
        return
    dsn = request.getfixturevalue("database")
    run_sql(dsn, RULES)
    pool = pool_on(dsn)
    yield sql_rows(pool)
    wait(pool.close)


POLICED = BucketRules(policies=True)


async def make(rows: Rows, *names: str, writer: Writer = ANN) -> None:
    for name in names:
        made = await rows.buckets.create(name, POLICED, False, writer)
        assert (made.name, made.owner, made.rules) == (name, writer.user_id, POLICED)


@pytest_twisted.ensureDeferred
async def test_who_makes_one(rows: Rows) -> None:
    await make(rows, "a")
    create = rows.buckets.create
    for name, is_open, writer, code in (
        ("a", False, ANN, "bucket_exists"),
        ("a", False, ANON, "not_allowed"),  # and does not learn that it is there
        ("no", False, ANN, "not_allowed"),
        ("open", True, ANN, "not_allowed"),
        ("b", False, ANON, "not_allowed"),
        ("raises", False, ANN, "not_allowed"),
        ("b", False, Writer(ANN.user_id), "not_allowed"),  # without an identity
    ):
        assert await refused(create(name, POLICED, is_open, writer)) == code, name
    assert [one.name for one in await rows.buckets.all()] == ["a"]


@pytest_twisted.ensureDeferred
async def test_who_sees_which(rows: Rows) -> None:
    await make(rows, "a", "b")
    await make(rows, "c", writer=BEN)
    await rows.buckets.create("open", BucketRules("public", anonymous_reads=True, policies=True), True)
    await rows.buckets.create("ours", BucketRules())

    async def seen(writer: Writer) -> list[str]:
        return [one.name for one in await rows.buckets.seen(writer)]

    assert [await seen(one) for one in (ANN, BEN, ANON)] == [["a", "b", "open"], ["c", "open"], ["open"]]
    for writer, names in ((ANN, "ab"), (BEN, "c"), (ANON, "")):
        found = [name for name in ("a", "b", "c", "none") if await rows.buckets.is_seen(writer, name)]
        assert found == [*names]
    await make(rows, "broken")
    assert await refused(rows.buckets.seen(ANN)) == "not_allowed"
    assert not await rows.buckets.is_seen(ANN, "broken")
    assert await seen(BEN) == ["c", "open"]


@pytest_twisted.ensureDeferred
async def test_who_changes_one(rows: Rows) -> None:
    await make(rows, "a", "fixed")
    change = rows.buckets.change
    changed = await change("a", {"max_object_bytes": 9}, None, ANN)
    assert changed.rules.max_object_bytes == 9
    opening = {"visibility": "public", "anonymous_reads": True}
    for name, changes, is_open, writer, code in (
        ("a", {"max_object_bytes": 10}, None, ANN, "not_allowed"),
        ("a", opening, True, ANN, "not_allowed"),
        ("fixed", {"max_object_bytes": 5}, None, ANN, "not_allowed"),
        ("a", {"max_object_bytes": 5}, None, BEN, "bucket_not_found"),
        ("a", {}, None, BEN, "bucket_not_found"),
        ("a", {"max_object_bytes": 5}, None, ANON, "bucket_not_found"),
        ("none", {"max_object_bytes": 5}, None, ANN, "bucket_not_found"),
    ):
        assert await refused(change(name, changes, is_open, writer)) == code, (name, changes)
    assert (await change("a", {}, None, ANN)).rules.max_object_bytes == 9
    assert (await change("a", opening, True, SERVICE)).open
    assert await refused(change("a", {"max_object_bytes": 5}, None, BEN)) == "not_allowed"
    await rows.buckets.create("blank", POLICED)
    assert await refused(change("none", {"max_object_bytes": 5}, None, SERVICE)) == "bucket_not_found"


@pytest_twisted.ensureDeferred
async def test_who_deletes_one(rows: Rows) -> None:
    await make(rows, "a", "kept")
    delete = rows.buckets.delete
    await put(rows, "k", writer=SERVICE, bucket="a")
    assert await refused(delete("a", BEN)) == "bucket_not_found"
    assert await refused(delete("a", ANON)) == "bucket_not_found"
    assert await refused(delete("a", ANN)) == "bucket_not_empty"
    await rows.objects.delete("a", ["k"], SERVICE)
    await delete("a", ANN)
    assert await refused(delete("kept", ANN)) == "not_allowed"
    assert await refused(delete("a", ANN)) == "bucket_not_found"
    await delete("kept", SERVICE)
    assert await rows.buckets.all() == []


def by(action: str, subject: str) -> Event:
    return Event(datetime(2026, 11, 28, tzinfo=UTC), action, actor="operator", subject=subject)


async def recorded(rows: Rows) -> list[tuple[str, str, str, str]]:
    """The audit: who did what to which bucket, and with what result."""
    buckets: Any = rows.buckets
    if isinstance(buckets, FakeBuckets):
        events = buckets.tables.events
        return [(event.actor, event.action, event.subject, event.result) for event in events]
    query = "select actor, action, subject, result from auth.audit order by id"
    found: list[tuple[str, str, str, str]] = await buckets.database.query(query)
    return found


@pytest_twisted.ensureDeferred
async def test_what_the_service_does_to_buckets_is_recorded_with_it(rows: Rows) -> None:
    before = len(await recorded(rows))
    buckets = rows.buckets
    await buckets.create("r", BucketRules(), by=by)
    await buckets.change("r", {"max_object_bytes": 5}, by=by)
    await put(rows, "a", bucket="r")
    # Neither what changes nothing nor what is refused.
    await buckets.change("r", {}, by=by)
    assert await refused(buckets.create("r", BucketRules(), by=by)) == "bucket_exists"
    assert await refused(buckets.change("no", {"max_object_bytes": 5}, by=by)) == "bucket_not_found"
    assert await refused(buckets.change("r", {"anonymous_reads": True}, by=by)) == "validation_failed"
    assert await refused(buckets.delete("r", by=by)) == "bucket_not_empty"
    await rows.objects.delete("r", ["a"], SERVICE)
    await buckets.delete("r", by=by)
    await buckets.record(by("delete_objects", "r/a"))
    # Nor what a user does.
    await buckets.create("s", BucketRules(), False, ANN, by)
    assert (await recorded(rows))[before:] == [
        ("operator", action, subject, "ok")
        for action, subject in (
            ("create_bucket", "r"),
            ("change_bucket", "r"),
            ("delete_bucket", "r"),
            ("delete_objects", "r/a"),
        )
    ]
