"""The contract of the rows of storage in a bucket with policies: the fake asks a function, PostgreSQL its row-level
security. Both have the same rules, ``RULES`` and ``allows``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
import pytest_twisted

from project_service.storage.assemble import Rows, sql_rows
from project_service.storage.values import (
    ANON_ROLE,
    NO_DETAILS,
    USER_ROLE,
    BucketRules,
    Conditions,
    Details,
    Identity,
    NewObject,
    ObjectRow,
    Viewer,
    Writer,
)
from tests.contracts.storage.rows import ETAG, SERVICE, put, refused
from tests.fakes.storage import START, Tables
from tests.live.services import pool_on, wait
from tests.live.sql import run_sql


def user(number: int) -> Writer:
    identity = Identity(USER_ROLE, json.dumps({"sub": str(UUID(int=number)), "role": USER_ROLE}))
    return Writer(UUID(int=number), identity=identity)


ANN, BEN, EVE = user(1), user(2), user(3)
ANON = Viewer(None, Identity(ANON_ROLE, json.dumps({"role": ANON_ROLE})))
UNCONDITIONAL = Conditions()

# Everybody sees what is open. Users see, and change, their own; they may put into the folder "open" what is
# theirs, and may not make it anybody else's; but what is named "final" stays as it is. In "broken" policies fail.
RULES = """
    create policy a on storage.objects for select to anon, authenticated
        using (bucket = 'b' and storage.folder(key) = '{open}');
    create policy b on storage.objects for select to authenticated
        using (owner = auth.uid() and 1 / (case when key like 'broken/unseen%' then 0 else 1 end) = 1);
    create policy c on storage.objects for insert to authenticated with check (
        bucket = 'b' and owner = auth.uid() and storage.folder(key) <> '{}' and content_type = 'text/plain'
        and 1 / (case when key like 'broken/%' then 0 else 1 end) = 1);
    create policy d on storage.objects for update to authenticated
        using (owner = auth.uid() and storage.filename(key) <> 'final') with check (
        owner = auth.uid() and size < 9 and content_language is distinct from 'xx');
    create policy e on storage.objects for delete to authenticated
        using (owner = auth.uid() and storage.extension(key) <> 'kept'
            and 1 / (case when key like 'broken/%' then 0 else 1 end) = 1);
"""


def allows(command: str, row: ObjectRow, identity: Identity) -> bool:
    claims = json.loads(identity.claims)
    own = row.owner is not None and str(row.owner) == claims.get("sub")
    *folder, name = row.key.split("/")
    if command == "select":
        if identity.role == USER_ROLE and own and row.key.startswith("broken/unseen"):
            raise ZeroDivisionError
        return folder == ["open"] or (identity.role == USER_ROLE and own)
    if identity.role == ANON_ROLE or not own:
        return False
    if command in ("insert", "delete") and folder[:1] == ["broken"]:
        raise ZeroDivisionError
    return {
        "insert": bool(folder) and row.content_type == "text/plain",
        "update": name != "final",
        "check": row.size < 9 and row.content_language != "xx",
        "delete": not name.endswith(".kept"),
    }[command]


@pytest.fixture(params=["memory", "postgresql"])
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    """The public bucket ``b`` has policies, and those of ``RULES`` are there."""
    close: Callable[[], object] = lambda: None  # noqa: E731  # mypy takes a function for another type
    if request.param == "memory":
        ticks = itertools.count()
        made = Tables(lambda: START + timedelta(milliseconds=next(ticks)), policies=allows).rows()
    else:
        database = request.getfixturevalue("database")
        run_sql(database, RULES)
        pool = pool_on(database, 2)
        made, close = sql_rows(pool), lambda: wait(pool.close)
    wait(lambda: made.buckets.create("b", BucketRules("public", policies=True)))
    yield made
    close()


def seen_by(writer: Writer) -> Viewer:
    return Viewer(None, writer.identity)


async def listed(rows: Rows, viewer: Viewer | None, prefix: str = "", recursive: bool = False) -> list[str]:
    """All entries, by pages of every size."""
    outcomes = []
    for limit in (1, 2, 100):
        names: list[str] = []
        after: str | None = None
        while True:
            page = await rows.objects.page("b", prefix, after, limit, recursive, viewer)
            objects, folders = json.loads(page.objects), json.loads(page.folders)
            names += sorted([one["key"] for one in objects] + folders)
            after = page.last
            if after is None:
                break
        outcomes.append(names)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    return outcomes[0]


async def check(rows: Rows, key: str, writer: Writer, size: int = 1, content_type: str = "text/plain") -> str:
    """What is decided before the bytes come, and the same by the commit where it is a refusal."""
    try:
        await rows.objects.check_policies("b", key, size, content_type, NO_DETAILS, writer)
    except Exception as refusal:
        version = uuid4()
        await rows.objects.reserve_uploads([version], "b")
        new = NewObject("b", key, version, size, content_type, ETAG)
        assert await refused(rows.objects.put(new, writer)) == refusal.code  # type: ignore[attr-defined]
        return str(refusal.code)  # type: ignore[attr-defined]
    return "fine"


@pytest_twisted.ensureDeferred
async def test_select_decides_what_is_seen(rows: Rows) -> None:
    for key, writer in (("open/a", ANN), ("open/d/b", BEN), ("ann/c", ANN), ("ben/d", BEN), ("ben/e", BEN)):
        await put(rows, key, writer=writer)
    await put(rows, "nobody", writer=SERVICE)
    every = ["ann/c", "ben/d", "ben/e", "nobody", "open/a", "open/d/b"]
    for viewer, keys in (
        (None, every),
        (ANON, ["open/a"]),
        (seen_by(ANN), ["ann/c", "open/a"]),
        (seen_by(BEN), ["ben/d", "ben/e", "open/a", "open/d/b"]),
        (Viewer(BEN.user_id, BEN.identity), ["ben/d", "ben/e", "open/d/b"]),
        (Viewer(ANN.user_id, BEN.identity), ["open/a"]),
    ):
        for key in every:
            row = await rows.objects.find("b", key, viewer)
            assert (row is not None) == (key in keys), (key, viewer)
        assert await listed(rows, viewer, recursive=True) == keys
        folders = [key if "/" not in key else key[: key.index("/") + 1] for key in keys]
        assert await listed(rows, viewer) == list(dict.fromkeys(folders))
    assert await listed(rows, seen_by(BEN), "open/") == ["open/a", "open/d/"]
    assert await listed(rows, seen_by(ANN), "ben/") == []


@pytest_twisted.ensureDeferred
async def test_insert_and_update_decide_what_is_put(rows: Rows) -> None:
    assert await check(rows, "ann/a", ANN) == "fine"
    assert await check(rows, "top", ANN) == "not_allowed"
    assert await check(rows, "ann/a", ANN, content_type="text/html") == "not_allowed"
    assert await check(rows, "ann/a", Writer(ANN.user_id)) == "not_allowed"
    # Claims that are another's do not make the object theirs.
    assert await check(rows, "ann/a", Writer(ANN.user_id, identity=BEN.identity)) == "not_allowed"
    for key in ("ann/a", "ann/final", "open/a"):
        await put(rows, key, writer=ANN)
    assert await check(rows, "ann/a", ANN, 8) == "fine"
    # The old row, the new row, a row that is not seen, a row that is seen.
    assert await check(rows, "ann/final", ANN) == "not_allowed"
    assert await check(rows, "ann/a", ANN, 9) == "not_allowed"
    for key in ("ann/a", "open/a"):
        assert await check(rows, key, BEN) == "not_allowed"
        for conditions in (Conditions(if_none_match=("*",)), Conditions(if_match=("x",))):
            assert await refused(put(rows, key, writer=BEN, conditions=conditions)) == "not_allowed"
    unmet = Conditions(if_match=("x",))
    assert await refused(put(rows, "ann/a", writer=ANN, conditions=unmet)) == "precondition_failed"
    assert (await put(rows, "ann/a", 3, ANN)).replaced is not None
    assert (await put(rows, "ann/final", 20, SERVICE)).row.owner == ANN.user_id
    bucket = await rows.buckets.find("b")
    assert bucket is not None and (bucket.object_count, bucket.total_bytes) == (3, 24)


@pytest_twisted.ensureDeferred
async def test_update_decides_what_is_said_of_an_object(rows: Rows) -> None:
    for key in ("open/a", "ann/a", "ann/final"):
        await put(rows, key, writer=ANN)
    for key, language, writer, expected in (
        ("ann/a", "xx", ANN, "not_allowed"),
        ("ann/final", "de", ANN, "not_allowed"),
        ("open/a", "de", BEN, "not_allowed"),
        ("ann/a", "de", BEN, "object_not_found"),
    ):
        change = {"content_language": language}
        assert await refused(rows.objects.change("b", key, change, writer)) == expected, (key, language)
    foreign = Details(content_language="xx")
    assert await refused(put(rows, "ann/a", writer=ANN, details=foreign)) == "not_allowed"
    assert await refused(rows.objects.check_policies("b", "ann/a", 1, "a/b", foreign, ANN)) == "not_allowed"
    for writer in (ANN, SERVICE):
        change = {"content_language": "de", "metadata": '{"a":1}'}
        row = await rows.objects.change("b", "ann/a", change, writer)
        assert (row.content_language, json.loads(row.metadata or "")) == ("de", {"a": 1})


@pytest_twisted.ensureDeferred
async def test_a_move_into_another_bucket_is_a_deletion_and_an_upload(rows: Rows) -> None:
    await rows.buckets.create("c", BucketRules())

    async def moved(key: str, writer: Writer, to: str = "c", target: str = "k") -> str:
        source = "b" if to == "c" else "c"
        row = await rows.objects.find(source, key)
        assert row is not None
        version = uuid4()
        await rows.objects.reserve_uploads([version], to)
        new = NewObject(to, target, version, row.size, row.content_type, ETAG)
        try:
            await rows.objects.move_to_bucket(row, new, writer)
        except Exception as refusal:
            return str(refusal.code)  # type: ignore[attr-defined]
        return "moved"

    for key in ("ann/a", "ann/b.kept", "open/a"):
        await put(rows, key, writer=ANN)
    assert await moved("ann/a", BEN) == "object_not_found"
    assert await moved("open/a", BEN) == "not_allowed"
    assert await moved("ann/b.kept", ANN) == "not_allowed"
    assert await moved("ann/a", ANN) == "moved"
    assert await moved("k", ANN, "b", "top") == "not_allowed"
    assert await moved("k", ANN, "b", "ann/final") == "moved"
    await put(rows, "k", writer=ANN, bucket="c")
    assert await moved("k", ANN, "b", "ann/final") == "not_allowed"
    assert await moved("k", SERVICE, "b", "ann/final") == "moved"


@pytest_twisted.ensureDeferred
async def test_delete_decides_what_goes(rows: Rows) -> None:
    for key in ("open/a", "ann/a", "ann/b.kept", "ann/c"):
        await put(rows, key, writer=ANN)
    assert await rows.objects.delete("b", ["ann/a", "none"], BEN) == {}
    there = Conditions(if_match=("*",))
    for key in ("ann/a", "none"):
        assert await refused(rows.objects.delete("b", [key], BEN, there)) == "precondition_failed"
    # What is seen and may not be deleted refuses all.
    assert await refused(rows.objects.delete("b", ["ann/a", "open/a"], BEN)) == "not_allowed"
    assert await refused(rows.objects.delete("b", ["ann/a", "ann/b.kept"], ANN)) == "not_allowed"
    assert (
        await refused(rows.objects.delete("b", ["ann/a"], ANN, Conditions(("x",)))) == "precondition_failed"
    )
    assert (await rows.objects.delete("b", ["ann/a", "none", "ann/c"], ANN)).keys() == {"ann/a", "ann/c"}
    assert await listed(rows, None, recursive=True) == ["ann/b.kept", "open/a"]
    assert (await rows.objects.delete("b", ["ann/b.kept", "open/a"], SERVICE)).keys() == {
        "ann/b.kept",
        "open/a",
    }


@pytest_twisted.ensureDeferred
async def test_a_move_is_an_update_and_deletes_what_it_replaces(rows: Rows) -> None:
    for key, writer in (
        ("ann/a", ANN),
        ("ann/final", ANN),
        ("ann/b.kept", ANN),
        ("ann/c", ANN),
        ("open/a", ANN),
        ("ben/a", BEN),
    ):
        await put(rows, key, writer=writer)
    for source, target, writer, code in (
        ("ann/a", "ben/b", BEN, "object_not_found"),
        ("none", "ben/b", BEN, "object_not_found"),
        ("open/a", "ben/b", BEN, "not_allowed"),
        ("ann/final", "ann/b", ANN, "not_allowed"),
        ("ann/a", "ann/b.kept", ANN, "not_allowed"),
        ("ann/a", "ben/a", ANN, "not_allowed"),
    ):
        assert await refused(rows.objects.move("b", source, target, writer)) == code, (source, target)
    assert (await rows.objects.move("b", "ann/a", "ann/c", ANN)).replaced is not None
    moved = await rows.objects.move("b", "ann/c", "ann/n", ANN)
    assert moved.row == await rows.objects.find("b", "ann/n", seen_by(ANN))
    assert (
        await refused(rows.objects.move("b", "ann/n", "ann/o", ANN, Conditions(("x",))))
        == "precondition_failed"
    )
    assert (await rows.objects.move("b", "ann/final", "ben/a", SERVICE)).row.owner == ANN.user_id


@pytest_twisted.ensureDeferred
async def test_a_policy_that_fails_allows_nothing(rows: Rows) -> None:
    assert await check(rows, "broken/a", ANN) == "not_allowed"
    await put(rows, "broken/a", writer=Writer(ANN.user_id, is_service=True))
    assert await check(rows, "broken/a", ANN) == "fine"
    assert await refused(rows.objects.delete("b", ["broken/a"], ANN)) == "not_allowed"
    await put(rows, "broken/unseen", writer=Writer(ANN.user_id, is_service=True))
    assert await rows.objects.find("b", "broken/unseen", seen_by(ANN)) is None
    assert await refused(rows.objects.page("b", "", None, 9, True, seen_by(ANN))) == "not_allowed"
    assert await listed(rows, seen_by(ANN), "broken/a") == ["broken/a"]
    assert await check(rows, "broken/unseen", ANN) == "not_allowed"
    assert await rows.objects.delete("b", ["broken/unseen"], ANN) == {}
    assert await refused(rows.objects.move("b", "broken/unseen", "ann/n", ANN)) == "object_not_found"
    # Those of other callers do not fail.
    assert await listed(rows, seen_by(BEN)) == []
    assert await listed(rows, None, recursive=True) == ["broken/a", "broken/unseen"]


@pytest_twisted.ensureDeferred
async def test_policies_count_where_the_rule_is_set(rows: Rows) -> None:
    """They are for all buckets at once; and both kinds of rules have to be met where both are set."""
    await rows.buckets.create("free", BucketRules())
    await put(rows, "top", writer=BEN, bucket="free")
    await rows.objects.delete("free", ["top"], ANN)
    await put(rows, "ann/a", writer=ANN)
    await rows.buckets.change("b", {"policies": False})
    assert (await put(rows, "ann/a", writer=BEN)).row.owner == BEN.user_id
    changed = await rows.buckets.change("b", {"policies": True, "owner_only_writes": True})
    assert changed.rules == BucketRules("public", owner_only_writes=True, policies=True)
    assert await refused(put(rows, "ann/a", writer=ANN)) == "not_allowed"
    assert (await put(rows, "ann/a", writer=BEN)).row.owner == BEN.user_id
