"""Quick reads share connections to the database, in libpq's pipeline mode: none sees anything of its neighbours.

Requests go out in bursts, so that many are under way on the one shared connection, and each answer is compared with
what that caller alone would get. All of them count as quick, also those that fail, unless a test says otherwise.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from random import Random
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import define, evolve, field, frozen
from twisted.internet.threads import deferToThread

from project_service import application
from project_service.database import pipeline, quickness, sharing
from project_service.database.pipeline import Run
from project_service.database.sharing import Pipelines
from project_service.database.trust import UNKNOWN
from project_service.settings.model import Stage, StageDatabase, Store
from project_service.tables.assemble import Tables
from project_service.tables.reply import outcome
from project_service.tables.schema_cache.holder import CacheHolder
from project_service.tables.values import SchemaCache
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open, wait
from tests.live.sql import run_sql
from tests.live.waiting import until

MARK = "current_setting('request.headers')::json->>'x-mark'"
SUB = "current_setting('request.jwt.claims')::json->>'sub'"
LOCK = 4713
SCHEMA = f"""
create view seen as select current_user::text as role, {SUB} as sub, {MARK} as mark,
  nullif(current_setting('app.tenant', true), '') as tenant, current_setting('statement_timeout') as timeout,
  current_setting('search_path') as path, current_setting('request.method') as method,
  current_setting('transaction_read_only') as read_only, current_setting('TimeZone') = 'Asia/Tokyo' as far,
  current_setting('jit') as jit, current_setting('work_mem') = '77kB' as little;
create table own (id int primary key, owner text);
alter table own enable row level security;
create policy owned on own using (owner = {SUB} or current_user = 'service_role');
create table ofusers (id int primary key); insert into ofusers values (7);
create view maybe as select 1 / (case when {MARK} = 'break' then 0 else 1 end) as n;
create view slow as select 1 as n
  from (select case {MARK} when 'slowly' then pg_advisory_xact_lock_shared({LOCK}) end) s;
create function let_go() returns int language plpgsql as $$ begin execute 'deallocate all'; return 1; end $$;
create view letting_go as select let_go() as n;
create table things (id int primary key, name text);
insert into things select i, 'thing ' || i from generate_series(1, 50) i;
grant select on seen, maybe, slow, letting_go, things, own
  to anon, authenticated, service_role;
grant select on ofusers to authenticated, service_role
"""
# Views that set something, for the session or for the transaction alone. With the latter alone nothing is reset.
LEAVING = f"""
create function left_{{kind}}() returns text language plpgsql as $$ begin
  {{sets}} work_mem = '77kB'; {{sets}} timezone = 'Asia/Tokyo'; {{sets}} statement_timeout = '99s';
  perform set_config('app.tenant', coalesce({SUB}, 'nobody'), {{local}});
  return current_setting('app.tenant'); end $$;
create function role_{{kind}}() returns text language plpgsql as $$ begin
  {{sets}} role = 'service_role'; return current_user; end $$;
create view leaving as select left_{{kind}}() as tenant;
create view becoming as select role_{{kind}}() as role;
create view calling as {{calling}} as tenant;
grant select on leaving, becoming, calling to anon, authenticated, service_role
"""
FOR_SESSION = LEAVING.format(
    kind="session",
    sets="set session",
    local="false",
    calling="select set_config('app.tenant', 'a view', false)",
)
FOR_TRANSACTION = LEAVING.format(
    kind="local", sets="set local", local="true", calling="select coalesce('a view', left_local())"
)
NOTHING = """
drop view if exists leaving, becoming, calling;
drop function if exists left_local, left_session, role_local, role_session
"""
STATEMENT_SECONDS = 10.0
BASE = "/dev/db/main/rest"
ALONE = "/dev/db/alone/rest"


@define
class Watched:
    """What was submitted to pipelines, how many of those were taken, and how many were under way at once."""

    pipelines: Pipelines | None = None
    asked: int = 0
    taken: int = 0
    deepest: int = 0
    under_way: list[Run] = field(factory=list)

    @property
    def backends(self) -> list[int]:
        assert self.pipelines is not None
        return [connection.raw.get_backend_pid() for connection in self.pipelines._connections]


@frozen
class Caller:
    role: str
    key: str
    token: str | None = None
    sub: str | None = None

    def head(self, path: str, mark: str = "", base: str = BASE) -> bytes:
        token = f"Authorization: Bearer {self.token}\r\n" if self.token is not None else ""
        return (
            f"GET {base}{path} HTTP/1.1\r\nHost: t\r\nX-Service-Key: {self.key}\r\nX-Mark: {mark}\r\n{token}\r\n"
        ).encode()


@frozen
class Service:
    api: Api
    callers: tuple[Caller, ...]
    watched: Watched
    monkeypatch: pytest.MonkeyPatch

    @property
    def anon(self) -> Caller:
        return self.callers[0]

    def holder(self, database: str = "main") -> CacheHolder:
        built = self.api.application._assembled
        assert built is not None
        (tables,) = [part for part in built.mounted if isinstance(part, Tables)]
        return tables.routes.services["dev", database].holder

    def cache(self, database: str = "main") -> SchemaCache:
        return self.holder(database).current

    def leaves(self, database: str = "main") -> bool | None:
        """Whether SQL may leave something on a session; None until the newest change has been read."""
        trust = self.cache(database).trust
        return None if trust is UNKNOWN else trust.leaves

    def sql(self, text: str) -> list[Any]:
        return run_sql(self.api.dsn, text)


class Client:
    """A connection to the service. It sends at once, without a turn of the reactor, and reads in a thread."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.input = self.socket.makefile("rb")

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def close(self) -> None:
        with suppress(OSError):
            self.input.close()
            self.socket.close()

    def again(self) -> None:
        self.close()
        self.__init__(self.port)  # type: ignore[misc]  # another connection in the same variable

    def answer(self, timeout: float = 60.0) -> tuple[int, Any]:
        self.socket.settimeout(timeout)
        status = int(self.input.readline().split()[1])
        length = 0
        while line := self.input.readline().strip().lower():
            name, _, value = line.partition(b":")
            length = int(value) if name == b"content-length" else length
        body = self.input.read(length)
        return status, json.loads(body) if body else None


async def answers(clients: Sequence[Client]) -> list[tuple[int, Any]]:
    def read() -> list[tuple[int, Any]]:
        return [client.answer() for client in clients]

    return await deferToThread(read)


@pytest.fixture(scope="module")
def service(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    monkeypatch, watched = pytest.MonkeyPatch(), Watched()
    submit = Pipelines.submit

    def submitted(self: Pipelines, *steps: Any) -> Run | None:
        watched.pipelines = self
        watched.asked += 1
        run = submit(self, *steps)
        watched.taken += run is not None
        for connection in self._connections:
            if connection.pipeline is not None:
                watched.deepest = max(watched.deepest, len(connection.pipeline.waiting))
        return run

    monkeypatch.setattr(Pipelines, "submit", submitted)
    # On a machine with much else to do even the quickest read takes longer now and then.
    monkeypatch.setattr(quickness, "QUICK_SECONDS", 60.0)
    monkeypatch.setattr(pipeline, "SLOW_SECONDS", 60.0)
    monkeypatch.setattr(sharing, "MAX_AGE_SECONDS", 60.0)
    # As long as all statements may take: ``tables/test_neighbours`` is about the limit of shared connections.
    monkeypatch.setattr(sharing, "LIMIT_SECONDS", STATEMENT_SECONDS)
    # So that one shared connection gets many requests at once.
    monkeypatch.setattr(application, "EXTRA_SLOTS", 200)
    run_sql(module_database, SCHEMA)
    main = StageDatabase(pool_size=4, max_rows=0, extra_search_path=("public",))
    settings = settings_for(
        module_database,
        store_settings,
        tmp_path_factory.mktemp("pipelines"),
        # A machine with much else to do may let connections wait for long, and reads for a lock too.
        database={"statement_timeout_seconds": STATEMENT_SECONDS, "acquire_timeout_seconds": 60.0},
    )
    settings = evolve(
        settings, stages={"dev": Stage(databases={"main": main, "alone": evolve(main, pool_size=3)})}
    )
    with held_open(serving(settings)) as api:
        callers = [Caller("anon", api.anon_key), Caller("service_role", api.service_key)]
        for number in range(3):
            signed = wait(partial(api.sign_up, f"u{number}@example.test"))
            callers.append(
                Caller("authenticated", api.anon_key, str(signed["access_token"]), signed["user"]["id"])
            )
            run_sql(module_database, f"insert into own values ({number}, '{signed['user']['id']}')")
        yield Service(api, tuple(callers), watched, monkeypatch)
    monkeypatch.undo()


@pytest.fixture
def clients(service: Service) -> Iterator[list[Client]]:
    made = [Client(service.api.port) for _ in range(64)]
    yield made
    for client in made:
        client.close()


@pytest.fixture
def unchanging(service: Service) -> Iterator[None]:
    """Keep the schema cache as it is. For seconds after a test that changed the schema it is read again and again,
    and no read shares a connection before it has been quick a few times under the newest one."""
    # What the test before has changed may not have been announced here yet, and would not be any more.
    wait(service.holder().reload)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheHolder, "announce", lambda self: None)
        wait(service.holder().up_to_date)
        yield
    service.holder().announce()
    service.holder("alone").announce()


async def warm(service: Service, *paths: str, mark: str = "warm") -> None:
    """Repeat reads until they share."""
    client = Client(service.api.port)
    caller = service.callers[2]

    async def shares(path: str) -> bool:
        before = service.watched.taken
        client.send(caller.head(path, mark))
        await answers([client])
        return service.watched.taken > before

    for path in paths:
        await until(lambda path=path: shares(path))  # type: ignore[misc]
    client.close()


def expected(caller: Caller, path: str, mark: str) -> tuple[int, Any]:  # noqa: PLR0911  # one for each path
    """What the caller gets when nobody else asks."""
    if path.startswith("/seen"):
        return 200, [
            {
                "role": caller.role,
                "sub": caller.sub,
                "mark": mark,
                "tenant": None,
                "timeout": "10s",
                "path": '"public", "public"',
                "method": "GET",
                "read_only": "on",
                "far": False,
                "jit": "off",
                "little": False,
            }
        ]
    if path.startswith("/own"):
        everything = caller.role == "service_role"
        return 200, [{"id": n} for n, owner in OWNERS.items() if everything or owner == caller.sub]
    if path.startswith("/ofusers"):
        return (401, "42501") if caller.role == "anon" else (200, [{"id": 7}])
    if path.startswith("/maybe"):
        return (400, "22012") if mark == "break" else (200, [{"n": 1}])
    if path.startswith("/leaving"):
        return 200, [{"tenant": caller.sub or "nobody"}]
    if path.startswith("/becoming"):
        return 200, [{"role": "service_role"}]
    if path.startswith("/calling"):
        return 200, [{"tenant": "a view"}]
    number = int(path.rpartition(".")[2])
    return 200, [{"id": number, "name": f"thing {number}"}]


OWNERS: dict[int, str | None] = {}
PATHS = (
    "/seen",
    "/own?select=id&order=id",
    "/ofusers",
    "/maybe",
    "/leaving",
    "/becoming",
    "/calling",
)


def shown(answer: tuple[int, Any]) -> tuple[int, Any]:
    status, body = answer
    return status, body if status == 200 else body["code"]


@pytest.mark.parametrize(
    ("seed", "leaving"),
    [(0, FOR_TRANSACTION), (1, FOR_SESSION), (2, FOR_TRANSACTION), (3, FOR_SESSION)],
    ids=("local", "session", "local after session", "session again"),
)
@pytest_twisted.ensureDeferred
async def test_no_caller_sees_anything_of_another(
    service: Service, clients: list[Client], monkeypatch: pytest.MonkeyPatch, seed: int, leaving: str
) -> None:
    """Neither role nor claims nor settings, whatever the SQL before it has done, and whoever has left."""
    random = Random(seed)
    service.sql(NOTHING)
    service.sql(leaving)
    await until(lambda: service.leaves() is (leaving is FOR_SESSION))
    OWNERS.update({n: caller.sub for n, caller in enumerate(service.callers[2:])})
    monkeypatch.setattr(outcome.History, "failed", lambda self: None)
    things = [f"/things?id=eq.{number}" for number in range(1, 50)]
    if leaving is FOR_TRANSACTION:
        await warm(service, *PATHS, things[0])
    service.watched.deepest = service.watched.taken = service.watched.asked = 0
    for number in range(50):
        asked: list[tuple[Client, Caller, str, str]] = []
        for client in random.sample(clients, 60):
            caller = random.choice(service.callers)
            path = random.choice((*PATHS, "/seen", random.choice(things)))
            mark = random.choice(("break", f"m{random.randrange(10**6)}"))
            client.send(caller.head(path, mark))
            if random.random() < 0.1:
                client.again()  # hangs up without waiting for the answer
            else:
                asked.append((client, caller, path, mark))
        if number % 10 == 2:
            # Reload the schema cache while requests are under way.
            await deferToThread(service.sql, "notify pgrst, 'reload schema'")
        if number % 8 == 6:
            for pid in service.watched.backends:
                await deferToThread(service.sql, f"select pg_terminate_backend({pid})")
        for (_, caller, path, mark), found in zip(
            asked, await answers([client for client, *_ in asked]), strict=True
        ):
            assert shown(found) == expected(caller, path, mark), (number, caller.role, path, mark)
    if leaving is FOR_SESSION:
        # Where something may stay on a session, no read shares it.
        assert service.watched.taken == 0, service.watched
    else:
        assert service.watched.deepest > 30, service.watched
        assert service.watched.taken > 800, service.watched


@pytest_twisted.ensureDeferred
async def test_settings_that_sql_has_left_end_with_the_schema_that_knew_of_it(
    service: Service, clients: list[Client]
) -> None:
    """Also on connections that one request has at a time."""
    caller = service.callers[2]

    async def asked(path: str, clients: list[Client]) -> None:
        for client in clients:
            client.send(caller.head(path, base=ALONE))
        for found in await answers(clients):
            assert shown(found) == expected(caller, path, "")

    for leaves in (True, False):
        service.sql(NOTHING + (f"; {FOR_SESSION}" if leaves else ""))
        await until(lambda leaves=leaves: service.leaves("alone") is leaves)  # type: ignore[misc]
        for _ in range(2):
            # The first by itself, so that what it asks for is known to all others.
            await asked("/seen", clients[:1])
            await asked("/seen", clients)
            if leaves:
                await asked("/leaving", clients)


@pytest.mark.usefixtures("unchanging")
@pytest_twisted.ensureDeferred
async def test_reads_that_got_no_answer_are_asked_once_more(service: Service, clients: list[Client]) -> None:
    """The backend of the shared connection is ended while all of them wait for a lock."""
    await warm(service, "/things?id=eq.1")
    (backend,) = service.watched.backends
    before = service.watched.taken
    with closing(psycopg2.connect(service.api.dsn)) as locking:
        locking.cursor().execute("lock table things in access exclusive mode")
        for number, client in enumerate(clients, 1):
            client.send(service.anon.head(f"/things?id=eq.{number}"))
        await until(lambda: service.watched.taken == before + len(clients))
        await until(lambda: bool(service.sql("select 1 from pg_locks where not granted")))
        locking.cursor().execute(f"select pg_terminate_backend({backend})")
        locking.rollback()
    for number, (status, body) in enumerate(await answers(clients), 1):
        rows = [{"id": number, "name": f"thing {number}"}] if number <= 50 else []
        assert (status, body) == (200, rows)
    await warm(service, "/things?id=eq.1")
    assert service.watched.backends != [backend]


@pytest.mark.usefixtures("unchanging")
@pytest_twisted.ensureDeferred
async def test_reads_that_waited_for_a_lock_see_the_new_rows(service: Service, clients: list[Client]) -> None:
    """Bind and Execute take the snapshot after the locks."""
    await warm(service, "/things?id=eq.1")
    taken = service.watched.taken
    with closing(psycopg2.connect(service.api.dsn)) as filling:
        filling.cursor().execute(
            "truncate things; insert into things select i, 'thing ' || i from generate_series(1, 50) i"
        )
        for client in clients:
            client.send(service.anon.head("/things?id=eq.3"))
        await until(lambda: service.watched.taken >= taken + len(clients))
        await until(lambda: bool(service.sql("select 1 from pg_locks where not granted")))
        filling.commit()
    assert await answers(clients) == [(200, [{"id": 3, "name": "thing 3"}])] * len(clients)


@pytest.mark.usefixtures("unchanging")
@pytest_twisted.ensureDeferred
async def test_who_comes_after_a_slow_statement_does_not_wait_for_it(
    service: Service, clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the statement that was slow shares no more."""
    await warm(service, "/slow", "/things?id=eq.1")
    assert service.watched.pipelines is not None
    (connection,) = service.watched.pipelines._connections
    monkeypatch.setattr(sharing, "MAX_AGE_SECONDS", 0.02)
    monkeypatch.setattr(pipeline, "SLOW_SECONDS", 0.3)
    monkeypatch.setattr(sharing, "SLOW_FACTOR", 0)
    monkeypatch.setattr(pipeline, "SLOW_FACTOR", 0)
    slow, quick = clients[:2]

    def is_late() -> bool:
        since = connection.awaiting_since
        return since is not None and service.api.reactor.seconds() - since > 2 * pipeline.SLOW_SECONDS

    with closing(psycopg2.connect(service.api.dsn)) as holding:
        holding.cursor().execute(f"select pg_advisory_lock({LOCK})")
        slow.send(service.anon.head("/slow", "slowly"))
        await until(is_late)
        taken = service.watched.taken
        quick.send(service.anon.head("/things?id=eq.5"))
        assert await answers([quick]) == [(200, [{"id": 5, "name": "thing 5"}])]
        slow.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            slow.socket.recv(1)
        assert service.watched.taken == taken
    assert await answers([slow]) == [(200, [{"n": 1}])]
    asked = service.watched.asked
    slow.send(service.anon.head("/slow"))
    assert await answers([slow]) == [(200, [{"n": 1}])]
    assert service.watched.asked == asked


@pytest.mark.usefixtures("unchanging")
@pytest_twisted.ensureDeferred
async def test_statements_that_are_gone_or_do_not_fit_any_more_are_run_as_text(
    service: Service, clients: list[Client]
) -> None:
    caller = service.anon

    async def all_shared() -> bool:
        await warm(service, "/letting_go", "/things?id=eq.1", "/seen")
        # Connections that have been used are read from in one turn.
        for client in clients:
            client.send(caller.head("/things?id=eq.6"))
        await answers(clients)
        taken = service.watched.taken
        for number, client in enumerate(clients):
            # In the middle of all a function drops every prepared statement of the connection.
            client.send(caller.head("/letting_go" if number % 20 == 10 else "/things?id=eq.6"))
        for number, found in enumerate(await answers(clients)):
            rows = [{"n": 1}] if number % 20 == 10 else [{"id": 6, "name": "thing 6"}]
            assert found == (200, rows), number
        return service.watched.taken == taken + len(clients)

    # Not at once, where the machine stands still before the last of them has come: the others are answered by then.
    await until(all_shared)
    for kind in ("text", "bigint", "int"):
        # The types of parameters are fixed when a statement is prepared.
        await warm(service, "/things?id=eq.1")
        service.sql(f"alter table things alter id type {kind} using id::{kind}")
        for client in clients:
            client.send(caller.head("/things?id=eq.8&select=name"))
        assert await answers(clients) == [(200, [{"name": "thing 8"}])] * len(clients)


@pytest_twisted.ensureDeferred
async def test_many_that_hang_up_cost_their_neighbours_nothing(
    service: Service, clients: list[Client]
) -> None:
    await warm(service, "/things?id=eq.1")
    for _ in range(5):
        for client in clients:
            client.send(service.anon.head("/things?id=eq.9"))
        for client in clients[::2]:
            client.again()
        assert await answers(clients[1::2]) == [(200, [{"id": 9, "name": "thing 9"}])] * 32
