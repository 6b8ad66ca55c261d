"""Policies in SQL: any of them beside a model, many callers at once, and what must not get past them."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any
from uuid import UUID, uuid4

import psycopg2
import pytest
import pytest_twisted
from attrs import evolve, frozen
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from project_service.database.acting import Actor
from project_service.database.connecting import Connector
from project_service.database.migrate import migrate, shipped
from project_service.database.pool import CONNECTIONS_PER_PIPELINE, Pool
from project_service.database.trust import Trust
from project_service.dsn import read_dsn
from project_service.errors import ApiError
from project_service.lifecycle import start
from project_service.storage.assemble import Rows, sql_rows
from project_service.storage.rows import listing
from project_service.storage.rows import objects as postgres
from project_service.storage.values import (
    ANON_ROLE,
    NO_DETAILS,
    USER_ROLE,
    BucketRules,
    Identity,
    NewObject,
    ObjectRow,
    Viewer,
    Writer,
)
from tests.contracts.storage.rows import ETAG, SERVICE, refused
from tests.fakes.storage import Tables
from tests.live.database.landed import migrated_then
from tests.live.database.test_pgbouncer import pgbouncer
from tests.live.services import Services, pool_on, wait
from tests.live.sql import connection_to, connector, run_each, run_sql
from tests.live.storage.service import Running, call, raw, request_head
from tests.live.waiting import until

OWN = """
    create policy own on storage.objects to authenticated
        using (owner = auth.uid()) with check (owner = auth.uid())
"""


def user(number: int) -> Writer:
    claims = {"sub": str(UUID(int=number)), "role": USER_ROLE}
    return Writer(UUID(int=number), identity=Identity(USER_ROLE, json.dumps(claims)))


def viewer(writer: Writer) -> Viewer:
    return Viewer(None, writer.identity)


ANON = Writer(None, identity=Identity(ANON_ROLE, json.dumps({"role": ANON_ROLE})))
USERS = [user(number) for number in (1, 2, 3)]
# Users and the folders that a table gives them.
MEMBERS = {(1, "f"), (2, "f"), (2, "g")}


@pytest.fixture
def judged(database: str) -> Iterator[Rows]:
    """A bucket ``b`` with policies, of which there are none yet."""
    pool = pool_on(database, 4)
    # Policies are trusted here: what is not does not share connections (live/database/test_trust.py).
    made = sql_rows(pool, Actor(pool, Trust))
    wait(lambda: made.buckets.create("b", BucketRules("public", policies=True)))
    yield made
    wait(pool.close)


async def put(
    rows: Rows, key: str, writer: Writer, size: int = 1, content_type: str = "text/plain"
) -> ObjectRow:
    version = uuid4()
    await rows.objects.reserve_uploads([version], "b")
    return (await rows.objects.put(NewObject("b", key, version, size, content_type, ETAG), writer)).row


async def outcome(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except ApiError as refusal:
        return refusal.code


@pytest_twisted.ensureDeferred
async def test_a_policy_that_waits_where_reads_share_is_asked_again_and_holds_up_nobody(
    database: str, judged: Rows
) -> None:
    """And it is not taken for one that failed."""
    await put(judged, "f/x", SERVICE)
    run_sql(
        database, "create table public.members (id uuid); grant select on public.members to authenticated"
    )
    run_sql(database, f"insert into public.members values ('{USERS[0].user_id}')")
    run_sql(
        database,
        "create policy theirs on storage.objects for select to authenticated"
        " using (exists (select from public.members where id = auth.uid()))",
    )
    objects = judged.objects
    assert isinstance(objects, postgres.ObjectRows)
    objects._quickness.quick_runs = postgres._QUICK_RUNS
    # The first opens the shared connection.
    await until(lambda: objects.database.pipelines._connections != [] or found(judged))
    with closing(psycopg2.connect(database)) as locking:
        locking.cursor().execute("lock table public.members in access exclusive mode")
        objects._quickness.quick_runs = postgres._QUICK_RUNS
        waiting = start(judged.objects.find("b", "f/x", viewer(USERS[0])))
        await until(lambda: objects._quickness.quick_runs < 0)
        assert await judged.objects.find("b", "f/x") is not None
        assert not waiting.called
        locking.rollback()
    row = await waiting
    assert row is not None
    assert row.key == "f/x"


async def found(rows: Rows) -> bool:
    await rows.objects.find("b", "f/x", viewer(USERS[0]))
    return False


# Any policies, users and operations, beside the fake as the model.

Condition = Callable[[ObjectRow, int | None], bool]


@frozen
class Policy:
    """``sql`` and ``holds`` are the same condition."""

    command: str
    permissive: bool
    roles: tuple[str, ...]
    sql: str
    holds: Condition

    def create(self, number: int) -> str:
        kind = "permissive" if self.permissive else "restrictive"
        using = f"using ({self.sql})" if self.command != "insert" else ""
        check = f"with check ({self.sql})" if self.command in ("insert", "all") else ""
        return (
            f"create policy p{number} on storage.objects as {kind} for {self.command} to {', '.join(self.roles)}"
            f" {using} {check}"
        )


def folder_of(row: ObjectRow) -> str | None:
    return row.key.partition("/")[0] if "/" in row.key else None


ATOMS: Sequence[tuple[str, Condition]] = (
    ("owner = auth.uid()", lambda row, who: who is not None and row.owner == UUID(int=who)),
    ("(storage.folder(key))[1] = 'f'", lambda row, who: folder_of(row) == "f"),
    ("storage.folder(key) = '{}'", lambda row, who: "/" not in row.key),
    ("storage.filename(key) = 'a'", lambda row, who: row.key.rpartition("/")[2] == "a"),
    ("storage.extension(key) = 'txt'", lambda row, who: row.key.endswith(".txt")),
    ("size < 3", lambda row, who: row.size < 3),
    ("content_type like 'text/%'", lambda row, who: row.content_type.startswith("text/")),
    (f"auth.uid() = '{UUID(int=2)}'", lambda row, who: who == 2),
    (
        "exists (select from public.members m where m.member = auth.uid() and m.folder = (storage.folder(key))[1])",
        lambda row, who: (who, folder_of(row)) in MEMBERS,
    ),
    ("true", lambda row, who: True),
)


def any_condition(chance: random.Random) -> tuple[str, Condition]:
    (one, holds_one), (two, holds_two) = chance.choices(ATOMS, k=2)
    kind = chance.randrange(4)
    if kind == 0:
        return (
            f"(coalesce({one}, false) and coalesce({two}, false))",
            lambda r, w: holds_one(r, w) and holds_two(r, w),
        )
    if kind == 1:
        return (
            f"(coalesce({one}, false) or coalesce({two}, false))",
            lambda r, w: holds_one(r, w) or holds_two(r, w),
        )
    if kind == 2:
        return f"not coalesce({one}, false)", lambda row, who: not holds_one(row, who)
    return one, holds_one


def any_policy(chance: random.Random) -> Policy:
    roles = chance.choice([(ANON_ROLE,), (USER_ROLE,), (USER_ROLE,), (ANON_ROLE, USER_ROLE)])
    command = chance.choice(["select", "select", "insert", "update", "delete", "all"])
    return Policy(command, chance.random() < 0.85, roles, *any_condition(chance))


def model_of(policies: Sequence[Policy]) -> Callable[[str, ObjectRow, Identity], bool]:
    """As PostgreSQL's manual has it: a permissive policy has to allow it, and so have all restrictive ones."""

    def allows(command: str, row: ObjectRow, identity: Identity) -> bool:
        sub = json.loads(identity.claims).get("sub")
        who = None if sub is None else UUID(sub).int
        named = "update" if command == "check" else command
        fitting = [one for one in policies if identity.role in one.roles and one.command in (named, "all")]
        allowed = any(one.holds(row, who) for one in fitting if one.permissive)
        return allowed and all(one.holds(row, who) for one in fitting if not one.permissive)

    return allows


def listed(page: Any) -> Any:
    if isinstance(page, str):
        return page
    return [one["key"] for one in json.loads(page.objects)], json.loads(page.folders), page.last


async def operation(rows: Rows, seed: int) -> Any:
    """One operation, the same for the same seed."""
    chance = random.Random(seed)
    keys = ["a", "b.txt", "f/a", "f/b.txt", "g/a", "g/c", "f/d/a", "h/e.txt"]
    key, other = chance.sample(keys, 2)
    writer, size = chance.choice(USERS), chance.randrange(1, 5)
    reader = viewer(chance.choice([*USERS, ANON]))
    content_type = chance.choice(["text/plain", "image/png"])
    kind = chance.randrange(8)
    if kind == 0:
        row = await outcome(put(rows, key, SERVICE, size, content_type))
    elif kind < 3:
        early = await outcome(rows.objects.check_policies("b", key, size, content_type, NO_DETAILS, writer))
        row = await outcome(put(rows, key, writer, size, content_type))
        assert early == (row if isinstance(row, str) else None)
    elif kind == 3:
        gone = await outcome(rows.objects.delete("b", chance.sample(keys, chance.randrange(1, 4)), writer))
        return gone if isinstance(gone, str) else sorted(gone)
    elif kind == 4:
        moved = await outcome(rows.objects.move("b", key, other, writer))
        row = moved if isinstance(moved, str) else moved.row
    elif kind == 5:
        row = await rows.objects.find("b", key, reader)
    else:
        prefix, limit, recursive = (
            chance.choice(["", "f/", "g"]),
            chance.randrange(1, 5),
            chance.random() < 0.5,
        )
        after = chance.choice([None, None, "f/", "b.txt"]) if prefix == "" else None
        return listed(await outcome(rows.objects.page("b", prefix, after, limit, recursive, reader)))
    return row if isinstance(row, str | None) else (row.key, row.owner, row.size, row.content_type)


@pytest.mark.parametrize("seed", range(10))
@pytest_twisted.ensureDeferred
async def test_any_policies_decide_as_the_manual_says(database: str, judged: Rows, seed: int) -> None:
    chance = random.Random(seed)
    run_sql(database, "create table public.members (member uuid, folder text)")
    run_sql(database, "grant select on public.members to authenticated, anon")
    for member, folder in MEMBERS:
        run_sql(database, "insert into public.members values (%s, %s)", str(UUID(int=member)), folder)
    policies = [any_policy(chance) for _ in range(chance.randrange(4, 10))]
    for number, policy in enumerate(policies):
        run_sql(database, policy.create(number).replace("%", "%%"), *())
    tables = Tables(policies=model_of(policies))
    model = tables.rows()
    await model.buckets.create("b", BucketRules("public", policies=True))
    for key, owner in (("a", 1), ("f/a", 2), ("g/a", 3), ("f/d/a", 1), ("h/e.txt", 2)):
        for rows in (model, judged):
            await put(rows, key, Writer(UUID(int=owner), is_service=True), 2)
    outcomes = set()
    for number in range(120):
        expected, given = [await operation(rows, 1000 * seed + number) for rows in (model, judged)]
        assert given == expected, (seed, number, [policy.create(0) for policy in policies])
        outcomes.add(str(given))
    assert len(outcomes) > 5
    counts = [await rows.buckets.find("b") for rows in (model, judged)]
    assert counts[0] is not None and counts[1] is not None
    assert (counts[0].object_count, counts[0].total_bytes) == (counts[1].object_count, counts[1].total_bytes)
    assert run_sql(database, "select count(*) from storage.objects")[0][0] == counts[1].object_count


# Roles and claims.


_STATE = (
    "select session_user = current_user, coalesce(current_setting('request.jwt.claims', true), ''),"
    " coalesce(current_setting('storage.judging', true), '')"
)


async def left_in(pool: Pool) -> list[tuple[Any, ...]]:
    """The role and the settings in which each connection of a pool is left, that which reads share included."""
    shared = await pool.read(_STATE, ())
    taken = [await pool.acquire() for _ in range(pool.size - pool.size // CONNECTIONS_PER_PIPELINE)]
    rows = [await one.query(_STATE) for one in taken]
    for one in taken:
        pool.release(one)
    return [row[0] for row in (shared, *rows)]


def cancellable(work: Any) -> Deferred[Any]:
    made: Deferred[Any] = start(work)
    return made


@pytest_twisted.ensureDeferred
async def test_three_hundred_callers_at_once_see_their_own(database: str) -> None:
    """Of whom some leave, and some get an error of a policy."""
    run_sql(database, OWN)
    run_sql(
        database,
        "create policy broken on storage.objects as restrictive to authenticated"
        " using (1 / (case when key like '%%error' and owner = auth.uid() then 0 else 1 end) = 1)".replace(
            "%%", "%"
        ),
    )
    from twisted.internet import reactor

    # They wait for four connections, for as long as a busy machine takes.
    pool = Pool(connector(database), 4, 300.0, reactor)
    rows = sql_rows(pool)
    await rows.buckets.create("b", BucketRules(policies=True))
    for number in range(5):
        await put(rows, f"{number}/error", Writer(UUID(int=number), is_service=True))

    async def caller(number: int) -> None:
        mine, neighbour = user(number), user((number + 1) % 300)
        await put(rows, f"{number}/a", mine)
        row = await rows.objects.find("b", f"{number}/a", viewer(mine))
        assert row is not None and row.owner == mine.user_id
        assert await rows.objects.find("b", f"{number}/a", viewer(neighbour)) is None
        assert await rows.objects.find("b", f"{number}/a", viewer(ANON)) is None
        page = await outcome(rows.objects.page("b", "", None, 10, True, viewer(mine)))
        assert listed(page) == ("not_allowed" if number < 5 else ([f"{number}/a"], [], None))
        assert await refused(put(rows, f"{number}/a", neighbour)) == "not_allowed"
        assert await rows.objects.delete("b", [f"{number}/a"], neighbour) == {}

    async def leaves(number: int) -> None:
        looking = cancellable(rows.objects.page("b", "", None, 10, True, viewer(user(number))))
        await until(lambda: chance.random() < 0.3)
        looking.cancel()
        with suppress(CancelledError, ApiError):
            await looking

    chance = random.Random(300)
    await gatherResults(
        [start(leaves(number) if number % 6 == 5 else caller(number)) for number in range(300)]
    )
    assert await left_in(pool) == [(True, "", "")] * 4
    bucket = await rows.buckets.find("b")
    assert bucket is not None and bucket.object_count == 255
    assert len(json.loads((await rows.objects.page("b", "", None, 1000, True)).objects)) == 255
    await pool.close()


@pytest_twisted.ensureDeferred
async def test_a_policy_that_takes_too_long_refuses(database: str) -> None:
    from twisted.internet import reactor

    pool = Pool(Connector(reactor, read_dsn(database), 2.0), 2, 60.0, reactor)
    rows = sql_rows(pool)
    await rows.buckets.create("b", BucketRules(policies=True))
    await put(rows, "a", SERVICE)
    run_sql(
        database,
        "create policy slow on storage.objects to authenticated using ((select pg_sleep(30)) is not null)",
    )
    with capturedLogs() as logs:
        assert await rows.objects.find("b", "a", viewer(user(1))) is None
        assert await refused(rows.objects.page("b", "", None, 10, True, viewer(user(1)))) == "not_allowed"
        assert await refused(put(rows, "b", user(1))) == "not_allowed"
        assert await rows.objects.delete("b", ["a"], user(1)) == {}
    told = [text for text in map(formatEvent, logs) if text and "A policy on storage.objects failed" in text]
    assert len(told) == 4 and all("(57014)" in text for text in told)
    assert await left_in(pool) == [(True, "", "")] * 3
    assert await rows.objects.find("b", "a") is not None
    await pool.close()


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("1 / (length(key) - length(key)) = 1", "(22012)"),
        ("key in (select name from public.secret)", "permission denied"),
        ("public.complains(key)", "no no (P0001)"),
        ("(storage.folder(key))[1]::uuid = auth.uid()", "(22P02)"),
        ("public.gone(key)", "(42P01)"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_policy_that_fails_says_why_in_the_log_alone(
    database: str, judged: Rows, condition: str, reason: str
) -> None:
    run_sql(
        database,
        "create table public.secret (name text); create table public.lost ();"
        " create function public.complains(text) returns boolean language plpgsql as"
        " $$ begin raise exception 'no no'; end $$;"
        " create function public.gone(text) returns boolean language plpgsql as"
        " $$ begin return exists (select from public.lost); end $$",
    )
    await put(judged, "f/a", SERVICE)
    run_sql(database, f"create policy p on storage.objects to authenticated using ({condition})")
    run_sql(database, "grant select on public.lost to authenticated")
    if reason == "(42P01)":
        run_sql(database, "drop table public.lost")
    with capturedLogs() as logs:
        assert await judged.objects.find("b", "f/a", viewer(user(1))) is None
        assert await refused(judged.objects.page("b", "", None, 10, False, viewer(user(1)))) == "not_allowed"
        assert await refused(put(judged, "f/b", user(1))) == "not_allowed"
        assert await refused(judged.objects.move("b", "f/a", "c", user(1))) == "object_not_found"
    told = [text for text in map(formatEvent, logs) if text and "A policy on storage.objects failed" in text]
    assert len(told) == 4 and all(reason in text for text in told), told


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    "body",
    (
        # As PostgreSQL says that a new row of storage.objects lacks its version, but of another table.
        "insert into app.objects (id) values (1); return false;",
        "raise sqlstate 'SPASS';",
        # A status of the project's own would tell that there is an object.
        "raise sqlstate 'PT402';",
    ),
)
async def test_no_error_of_a_policy_for_reading_lets_a_change_pass(
    database: str, judged: Rows, body: str
) -> None:
    run_sql(
        database,
        "create schema app; create table app.objects (id int, version int not null);"
        " create function app.asked() returns boolean language plpgsql security definer as"
        f" $$ begin {body} end $$; grant usage on schema app to authenticated;"
        " create policy p on storage.objects for select to authenticated using (app.asked())",
    )
    await put(judged, "a", SERVICE)
    assert await outcome(judged.objects.delete("b", ["a"], user(1))) == {}
    assert await outcome(judged.objects.move("b", "a", "c", user(1))) == "object_not_found"
    assert await outcome(put(judged, "a", user(1))) == "not_allowed"
    assert await judged.objects.find("b", "a") is not None


@pytest_twisted.ensureDeferred
async def test_a_fault_of_the_database_is_no_refusal(database: str, judged: Rows) -> None:
    run_sql(
        database,
        "create function public.full() returns boolean language plpgsql as"
        " $$ begin raise exception 'the disk is full' using errcode = '53100'; end $$;"
        " create policy p on storage.objects to authenticated using (public.full())",
    )
    await put(judged, "a", SERVICE)
    for change in (
        put(judged, "b", user(1)),
        judged.objects.delete("b", ["a"], user(1)),
        judged.objects.move("b", "a", "c", user(1)),
    ):
        with pytest.raises(psycopg2.errors.DiskFull):
            await change


@pytest_twisted.ensureDeferred
async def test_objects_that_only_the_rule_on_owners_hides_are_not_there_to_delete(
    database: str, judged: Rows
) -> None:
    run_sql(
        database,
        "create policy see on storage.objects for select to authenticated using (true);"
        " create policy gone on storage.objects for delete to authenticated using (owner = auth.uid())",
    )
    await judged.buckets.create("mixed", BucketRules("private", owner_only_reads=True, policies=True))
    version = uuid4()
    await judged.objects.reserve_uploads([version], "mixed")
    await judged.objects.put(NewObject("mixed", "hers", version, 1, "a/b", ETAG), SERVICE)
    for key in ("hers", "nothing"):
        assert await outcome(judged.objects.delete("mixed", [key], user(1))) == {}, key


@pytest_twisted.ensureDeferred
async def test_a_refusal_by_a_policy_is_not_logged(database: str, judged: Rows) -> None:
    run_sql(database, OWN)
    await put(judged, "a", user(1))
    with capturedLogs() as logs:
        assert await refused(put(judged, "a", user(2))) == "not_allowed"
        assert (
            await refused(
                judged.objects.check_policies(
                    "b", "c", 1, "a/b", NO_DETAILS, Writer(UUID(int=1), identity=USERS[1].identity)
                )
            )
            == "not_allowed"
        )
        assert await judged.objects.find("b", "a", viewer(user(2))) is None
    assert not [event for event in logs if "policy" in (formatEvent(event) or "")]


@pytest_twisted.ensureDeferred
async def test_users_reach_the_table_through_the_service_alone(database: str, judged: Rows) -> None:
    """Also where an operator exposes the schema ``storage`` to the table API, which acts in these roles."""
    for table in ("objects", "buckets"):
        run_sql(database, f"create policy everything on storage.{table} using (true) with check (true)")
    await put(judged, "a", user(1))
    assert await judged.objects.find("b", "a", viewer(user(1))) is not None
    assert await judged.buckets.is_seen(user(1), "b")
    claims = f"""set request.jwt.claims = '{user(1).identity.claims}'"""  # type: ignore[union-attr]
    for role in (ANON_ROLE, USER_ROLE):
        inside = ("set role " + role, claims)
        assert run_each(database, *inside, "select count(*) from storage.objects") == [(0,)]
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            run_each(
                database,
                *inside,
                "insert into storage.objects (bucket, key, version, size, content_type, etag)"
                " values ('b', 'x', gen_random_uuid(), 1, 'a/b', 'e')",
            )
        assert run_each(database, *inside, "select count(*) from storage.buckets") == [(0,)]
        for form in ("(name) values ('x')", "(id, name, public) values ('x', 'x', true)"):
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                run_each(database, *inside, f"insert into storage.buckets {form}")
        for change in (
            "update storage.objects set owner = null",
            "delete from storage.objects",
            "update storage.buckets set public = true",
            "delete from storage.buckets",
        ):
            assert run_each(
                database, *inside, f"with gone as ({change} returning 1) select count(*) from gone"
            ) == [(0,)]
        for table in ("links", "uploads", "garbage", "usage"):
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                run_each(database, *inside, f"select from storage.{table}")
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            run_each(database, *inside, "select storage.judge('insert', null, null, 'anon', '{}')")
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            run_each(database, *inside, "truncate storage.objects")
    assert await judged.objects.find("b", "a") is not None


@pytest_twisted.ensureDeferred
async def test_triggers_of_the_project(database: str, judged: Rows) -> None:
    """Those AFTER a change run once, with the service's rights. Those BEFORE one say what the row is that is judged,
    and may choose the status of a refusal."""
    run_sql(database, OWN)
    run_sql(
        database,
        """
        create table public.seen (what text, caller text);
        create function public.note() returns trigger language plpgsql as $$
        begin insert into public.seen values (tg_op, current_user); return null; end $$;
        create trigger note after insert or update or delete on storage.objects
            for each row execute function public.note();
        create function public.owned() returns trigger language plpgsql as $$
        begin
            if new.key like 'nobody/%' then new.owner := null; end if;
            if new.key = 'full' then raise sqlstate 'PT409' using message = 'The shelf is full.'; end if;
            return new;
        end $$;
        create trigger owned before insert or update on storage.objects
            for each row execute function public.owned();
        """,
    )
    await judged.objects.check_policies("b", "a", 1, "a/b", NO_DETAILS, user(1))
    await put(judged, "a", user(1))
    await judged.objects.move("b", "a", "c", user(1))
    await judged.objects.delete("b", ["c"], user(1))
    assert run_sql(database, "select what from public.seen") == [("INSERT",), ("UPDATE",), ("DELETE",)]
    assert run_sql(database, "select bool_and(caller = session_user) from public.seen") == [(True,)]
    assert await refused(put(judged, "nobody/a", user(1))) == "not_allowed"
    with pytest.raises(psycopg2.Error, match="The shelf is full") as refusal:
        await put(judged, "full", user(1))
    assert refusal.value.pgcode == "PT409"


@pytest_twisted.ensureDeferred
async def test_roles_that_had_rights_on_the_table_keep_them(services: Services, empty_database: str) -> None:
    session = await connection_to(empty_database, 0)
    migrated_then(empty_database, 19)  # before there were policies
    role = services.unique("reports").replace("-", "_")
    services.admin(f"create role {role}; grant {role} to current_user")
    admin = services.admin_dsn(empty_database)
    run_sql(admin, f"grant usage on schema storage to {role}; grant select on storage.objects to {role}")
    run_sql(
        empty_database,
        "select storage.create_bucket('b', 'private', null, null, null, false, false);"
        " insert into storage.objects (bucket, key, version, size, content_type, etag)"
        " values ('b', 'x', gen_random_uuid(), 1, 'a/b', 'e')",
    )
    await migrate(session, shipped())
    session.close()
    assert run_each(admin, f"set role {role}", "select key from storage.objects") == [("x",)]
    run_sql(admin, f"drop owned by {role}; drop role {role}")


@pytest_twisted.ensureDeferred
async def test_policies_behind_pgbouncer(database: str) -> None:
    """Which passes the server's connections on without resetting anything."""
    from twisted.internet import reactor

    run_sql(database, OWN)
    with pgbouncer(database, "session", 4) as dsn:
        pool = Pool(connector(dsn), 4, 60.0, reactor)
        rows = sql_rows(pool)
        await rows.buckets.create("b", BucketRules(policies=True))

        async def caller(number: int) -> None:
            await put(rows, str(number), user(number))
            row = await rows.objects.find("b", str(number), viewer(user(number)))
            assert row is not None
            assert await rows.objects.find("b", str(number), viewer(user(number + 1))) is None
            assert await rows.objects.find("b", str(number)) == row

        await gatherResults([start(caller(number)) for number in range(40)], consumeErrors=True)
        assert await left_in(pool) == [(True, "", "")] * 4
        await pool.close()


@pytest_twisted.ensureDeferred
async def test_policies_behind_a_pooler_of_transactions(database: str) -> None:
    """Nobody sees what another may see, though eight connections share two sessions."""
    from twisted.internet import reactor

    run_sql(database, OWN)
    with pgbouncer(database, "transaction", 2) as dsn:
        connect = evolve(connector(dsn), pooled=True, prepares=False)
        pool = Pool(connect, 8, 60.0, reactor, pooled=True)
        rows = sql_rows(pool)
        await rows.buckets.create("b", BucketRules(policies=True))

        async def caller(number: int) -> None:
            await put(rows, str(number), user(number))
            row = await rows.objects.find("b", str(number), viewer(user(number)))
            assert row is not None
            assert await rows.objects.find("b", str(number), viewer(user(number + 1))) is None
            assert await rows.objects.find("b", str(number)) == row

        await gatherResults([start(caller(number)) for number in range(40)], consumeErrors=True)
        # What a transaction has set has ended with it.
        left = run_sql(dsn, "select current_user, current_setting('request.jwt.claims', true)")
        assert left[0][1] in (None, "")
        assert left[0][0] not in ("authenticated", "anon")
        await pool.close()


# By the whole service.


@pytest_twisted.ensureDeferred
async def test_clients_that_leave_pass_their_role_to_nobody(running: Running) -> None:
    dsn = running.api.dsn
    run_sql(
        dsn,
        "create policy slow on storage.objects for select to authenticated using (pg_sleep(0.02) is not null)",
    )
    run_sql(
        dsn, "create policy add on storage.objects for insert to authenticated with check (bucket = 'judged')"
    )

    def session() -> None:
        running.admin("POST", "", json={"name": "judged", "policies": True}).raise_for_status()
        url = running.url("k", "judged")
        assert call("PUT", url, data=b"x", headers=running.headers()).status_code == 201
        for _ in range(30):
            client = raw(running)
            client.sendall(request_head(running, "GET", running.url("", "judged")))
            client.close()
            anonymous = call("GET", running.url("", "judged"), headers=running.headers(signed_in=False))
            assert anonymous.status_code == 401
            assert (
                call("GET", running.url("", "public"), headers=running.headers(signed_in=False)).status_code
                == 200
            )
            assert running.admin("GET", "/judged").json()["object_count"] == 1
        assert call("GET", url, headers=running.headers()).content == b"x"

    await deferToThread(session)
    run_sql(dsn, "drop policy slow on storage.objects; drop policy add on storage.objects")


def test_the_pieces_of_a_key(database: str) -> None:
    for key, folder, filename, extension in (
        ("a/b/photo.tar.gz", ["a", "b"], "photo.tar.gz", "gz"),
        ("photo.PNG", [], "photo.PNG", "PNG"),
        ("a/photo", ["a"], "photo", ""),
        (".profile", [], ".profile", ""),
        ("a/.profile.txt", ["a"], ".profile.txt", "txt"),
        ("photo.", [], "photo.", ""),
        ("ö.d/ü", ["ö.d"], "ü", ""),
    ):
        given = run_sql(
            database, "select storage.folder(%s), storage.filename(%s), storage.extension(%s)", key, key, key
        )
        assert given == [(folder, filename, extension)], key


def test_a_listing_under_a_policy_uses_the_indexes(database: str) -> None:
    """A page within a folder reads what it shows. So that those of others cost nothing in the outermost one, there is
    the index that docs/storage.rst names."""
    owner = UUID(int=1)
    run_sql(database, "select storage.create_bucket('b', 'private', null, null, null, false, false)")
    run_sql(
        database,
        "insert into storage.objects (bucket, key, version, size, content_type, etag)"
        " select 'b', case when n %% 100 = 0 then %s else md5((n / 50)::text) end || '/' || n, gen_random_uuid(), 1,"
        " 'a/b', 'e' from generate_series(1, 20000) n",
        str(owner),
    )
    run_sql(
        database,
        "create policy own on storage.objects to authenticated"
        " using ((storage.folder(key))[1] = (select auth.uid())::text)",
    )
    run_sql(database, "analyze storage.objects")
    sql, params = listing.page_query("b", f"{owner}/", None, 20, False)
    assert 0 < looked_at(explained(database, sql, params, user(1))) <= 21
    run_sql(database, "create index on storage.objects (bucket, ((storage.folder(key))[1]), key)")
    run_sql(database, "analyze storage.objects")
    sql, params = listing.page_query("b", "", None, 20, False)
    # There are 200 in this user's folder.
    assert 0 < looked_at(explained(database, sql, params, user(1))) <= 402


def explained(database: str, sql: str, params: Sequence[str], writer: Writer) -> dict[str, Any]:
    assert writer.identity is not None
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(postgres.acting_as(writer.identity, Trust()).text())
        cursor.execute("explain (analyze, timing off, costs off, format json) " + sql, params)
        found = cursor.fetchone()
    connection.close()
    assert found is not None
    plan: dict[str, Any] = found[0][0]["Plan"]
    return plan


def looked_at(plan: dict[str, Any]) -> int:
    read = sum(looked_at(below) for below in plan.get("Plans", ()))
    if plan.get("Relation Name") == "objects":
        read += plan["Actual Loops"] * (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0))
    return int(read)
