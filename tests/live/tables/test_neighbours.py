"""Quick reads share connections, and none of them waits long for a slow neighbour: for one that waits for a lock, or
that takes long for another reason that nobody could know.

The rule is 100 ms. Each test leaves far more than that to a busy machine, and far less than the slow ones take.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from attrs import define, evolve
from psycopg2.extensions import parse_dsn
from twisted.internet.threads import deferToThread

from project_service import application
from project_service.database import quickness, sharing
from project_service.database.pipeline import Pipeline, Run
from project_service.database.sharing import Pipelines
from project_service.settings.model import Stage, StageDatabase, Store
from project_service.tables.schema_cache import holder
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open
from tests.live.sql import run_sql
from tests.live.standstill import TICK_SECONDS, Standstill
from tests.live.waiting import until

STATEMENT_SECONDS = 3.0
# How long others may wait: all of them, and most of them.
LONGEST_SECONDS, USUAL_SECONDS = 1.0, 0.3
SCHEMA = """
create table locked (id int primary key, name text);
create table other (id int primary key, name text);
insert into locked select i, 'name ' || i from generate_series(1, 100) i;
insert into other table locked;
create table numbers as select i as id from generate_series(1, 20000) i;
create index on numbers (id);
create view costly as select id, (select sum(s + id) from generate_series(1, 20000) s) as n,
  repeat('x', 1000) || id as words from numbers;
create view sleeping as select id, pg_sleep(id) is null as slept from (values (0), (1), (2)) v (id);
create view limited as select current_setting('statement_timeout') as own;
analyze;
grant select on locked, other, costly, sleeping, limited to anon
"""
# The first round through the catalog ends with another reading of it, until which nothing shares a connection.
UNWATCHED = 3600.0
RELOAD = "notify pgrst, 'reload config'"
OTHER = "/other?id=eq.7"
LOCKED = "/locked?id=eq.7"


@define
class Answer:
    """``held_up`` are the ``seconds`` that it took but for those in which the machine stood still."""

    status: int
    body: object
    seconds: float
    held_up: float


class Asking:
    """Requests of the anon key, each on a connection of its own, all sent at the same instant; a thread takes the
    time of the answers."""

    def __init__(self, api: Api, *paths: str) -> None:
        self._api, self._paths = api, paths
        self._answers: dict[int, Answer] = {}
        self._answering = deferToThread(self._run)

    async def answers(self) -> list[Answer]:
        await self._answering
        return [self._answers[number] for number in range(len(self._paths))]

    def answered(self, path: str) -> bool:
        """Whether all who ask for ``path`` have their answer."""
        return all(number in self._answers for number, one in enumerate(self._paths) if one == path)

    def _run(self) -> None:
        clients = [socket.create_connection(("127.0.0.1", self._api.port)) for _ in self._paths]
        # The service has accepted all connections before the first request comes.
        self._send(clients, [OTHER] * len(clients))
        self._receive(clients, {})
        self._send(clients, self._paths)
        self._receive(clients, self._answers)
        for client in clients:
            client.close()

    def _send(self, clients: Sequence[socket.socket], paths: Sequence[str]) -> None:
        for client, path in zip(clients, paths, strict=True):
            key = f"X-Service-Key: {self._api.anon_key}"
            client.sendall(f"GET /dev/db/main/rest{path} HTTP/1.1\r\nHost: t\r\n{key}\r\n\r\n".encode())

    def _receive(self, clients: Sequence[socket.socket], answers: dict[int, Answer]) -> None:
        began, received, still = time.monotonic(), [b""] * len(clients), Standstill()
        turned = began
        with selectors.DefaultSelector() as waiting:
            for number, client in enumerate(clients):
                waiting.register(client, selectors.EVENT_READ, number)
            while len(answers) < len(clients):
                arrived = waiting.select(TICK_SECONDS)
                before, turned = turned, time.monotonic()
                still.turned(before, turned)
                for key, _ in arrived:
                    number = key.data
                    received[number] += clients[number].recv(65536)
                    head, end, body = received[number].partition(b"\r\n\r\n")
                    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                    if end and len(body) == int(length):
                        status, took = int(head.split()[1]), time.monotonic() - began
                        answers[number] = Answer(status, json.loads(body), took, took - still.seconds)


async def asked(api: Api, *paths: str) -> list[Answer]:
    return await Asking(api, *paths).answers()


@pytest.fixture(scope="module")
def api(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    with pytest.MonkeyPatch.context() as patch:
        # On a machine with much else to do even the quickest read takes longer now and then.
        patch.setattr(quickness, "QUICK_SECONDS", 0.02)
        # So that all of them are on the shared connection at once, and not kept waiting before.
        patch.setattr(application, "EXTRA_SLOTS", 100)
        patch.setattr(sharing, "MAX_AGE_SECONDS", 0.05)
        patch.setattr(holder, "ROUND_SECONDS", UNWATCHED)
        run_sql(module_database, SCHEMA)
        settings = settings_for(
            module_database,
            store_settings,
            tmp_path_factory.mktemp("neighbours"),
            database={"statement_timeout_seconds": STATEMENT_SECONDS, "acquire_timeout_seconds": 60.0},
        )
        stages = {"dev": Stage(databases={"main": StageDatabase(pool_size=16)})}
        with held_open(serving(evolve(settings, stages=stages))) as running:
            yield running


@pytest.fixture(autouse=True)
def forgiving() -> Iterator[None]:
    """What a test has made slow may share again in the next after a few quick runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickness, "RUNS_AFTER_LIMIT", 3)
        yield


async def warm(api: Api, *paths: str) -> None:
    """Reads of these kinds share a connection from now on."""
    with pytest.MonkeyPatch.context() as patch:
        submitted = submissions(patch)

        async def shares(path: str) -> bool:
            submitted.clear()
            (answer,) = await asked(api, path)
            assert answer.status == 200
            # One of OTHER comes before each.
            return sum(run is not None for _, run in submitted) == 2

        for path in (OTHER, *paths):
            await until(partial(shares, path))


def submissions(patch: pytest.MonkeyPatch) -> list[tuple[Pipelines, Run | None]]:
    """What reads are submitted to from now on, and their runs; None for one that was not taken."""
    found, submit = list[tuple[Pipelines, Run | None]](), Pipelines.submit

    def submitted(self: Pipelines, *args: Any) -> Run | None:
        run = submit(self, *args)
        found.append((self, run))
        return run

    patch.setattr(Pipelines, "submit", submitted)
    return found


@contextmanager
def lock(api: Api) -> Iterator[None]:
    with closing(psycopg2.connect(api.dsn)) as locking:
        locking.cursor().execute("lock table locked in access exclusive mode")
        yield
        locking.rollback()


def assert_not_held_up(others: Sequence[Answer]) -> None:
    seconds = sorted(one.held_up for one in others)
    assert {one.status for one in others} == {200}
    assert median(seconds) < USUAL_SECONDS, seconds
    assert seconds[-1] < LONGEST_SECONDS, seconds


def assert_timed_out_together(slow: Sequence[Answer], limit: float = STATEMENT_SECONDS) -> None:
    """By their own limit, and not one after the other."""
    assert [(one.status, one.body["code"]) for one in slow] == [(500, "57014")] * len(slow)  # type: ignore[index]
    assert min(one.seconds for one in slow) > limit - 0.5
    seconds = sorted(one.held_up for one in slow)
    assert seconds[-1] < limit + LONGEST_SECONDS, seconds


@pytest_twisted.ensureDeferred
async def test_those_who_read_a_locked_table_wait_all_at_the_same_time(api: Api) -> None:
    await warm(api, LOCKED)
    with lock(api):
        slow = await asked(api, *[LOCKED] * 8)
    assert_timed_out_together(slow)


@pytest_twisted.ensureDeferred
async def test_many_who_read_a_locked_table_hold_up_nobody_behind_them(api: Api) -> None:
    """Also where some ask in another form, and more of them than there are connections."""
    forms = [f"{LOCKED}&select={names}" for names in ("id", "name", "id,name", "name,id", "a:id", "b:id")]
    await warm(api, LOCKED, *forms)
    slow = [*forms, *[LOCKED] * 30]
    with lock(api):
        asking = Asking(api, *slow, *[OTHER] * 20)
        # None of them waits for the lock.
        await until(lambda: asking.answered(OTHER))
    assert_not_held_up((await asking.answers())[len(slow) :])


@pytest.mark.parametrize(
    ("quick", "slow"),
    [
        ("/costly?select=n.sum()&id=lt.0", "/costly?select=n.sum()&id=lt.30000"),
        ("/costly?select=n.sum()&id=lt.0&words=match.y", "/costly?select=n.sum()&id=lt.30000&words=match.x"),
        ("/sleeping?id=eq.0", "/sleeping?id=eq.2"),
    ],
    ids=("an operand", "a pattern", "a view that sleeps"),
)
@pytest_twisted.ensureDeferred
async def test_a_read_that_was_quick_twelve_times_and_then_is_not_holds_up_nobody(
    api: Api, quick: str, slow: str
) -> None:
    await warm(api)
    for _ in range(12):
        # Not all of them ever share.
        (answer,) = await asked(api, quick)
        assert answer.status == 200
    unlucky, *others = await asked(api, slow, *[OTHER] * 12)
    assert_not_held_up(others)
    assert unlucky.seconds > 1.5
    # Nor does it when it is asked for again.
    unlucky, *others = await asked(api, slow, *[OTHER] * 12)
    assert_not_held_up(others)


@pytest_twisted.ensureDeferred
async def test_of_thirty_clients_only_the_slow_ones_wait(api: Api) -> None:
    await warm(api, LOCKED, "/sleeping?id=eq.0", "/costly?select=n.sum()&id=lt.0")
    slow = [LOCKED, "/sleeping?id=eq.2", LOCKED, "/costly?select=n.sum()&id=lt.30000", LOCKED]
    for _ in range(3):
        with lock(api):
            found = await asked(api, *[path for one in slow for path in (one, *[OTHER] * 5)])
        assert_not_held_up([one for number, one in enumerate(found) if number % 6])
        assert all(one.seconds > 1.5 for one in found[::6])


@asynccontextmanager
async def patient(database: str, store: Store, folder: Path) -> AsyncIterator[Api]:
    """A service in which reads may wait for a lock for as long as a test takes, also where the machine stands still
    meanwhile."""
    run_sql(database, SCHEMA)
    limits = {"statement_timeout_seconds": 60.0, "acquire_timeout_seconds": 60.0}
    settings = settings_for(database, store, folder, database=limits)
    ten = Stage(databases={"main": StageDatabase(pool_size=10)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, "ROUND_SECONDS", UNWATCHED)
        async with serving(evolve(settings, stages={"dev": ten})) as api:
            yield api


@pytest_twisted.ensureDeferred
async def test_more_slow_reads_than_connections_keep_nobody_out(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the connections that they are run again on nor by their slots."""
    monkeypatch.setattr(quickness, "QUICK_SECONDS", 0.02)
    monkeypatch.setattr(application, "EXTRA_SLOTS", 2)
    async with patient(database, store_settings, tmp_path) as api:
        await warm(api, LOCKED)
        with lock(api):
            asking = Asking(api, *[LOCKED] * 20)
            await until(lambda: waiting_for_locks(api) >= 6)
            assert_not_held_up(await asked(api, *[OTHER] * 20))
            assert not asking.answered(LOCKED)
        await asking.answers()


@pytest.mark.parametrize("shared", [False, True], ids=("alone", "shared"))
@pytest_twisted.ensureDeferred
async def test_slow_requests_on_connections_of_their_own_keep_out_nobody_for_whom_one_is_left(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Neither reads of a kind that shares, and has just been held up, nor those that need a connection."""
    monkeypatch.setattr(quickness, "QUICK_SECONDS", 0.02)
    async with patient(database, store_settings, tmp_path) as api:
        await warm(api)
        # Until as many connections are shared as may be.
        with monkeypatch.context() as patch:
            patch.setattr(sharing, "MAX_WAITING", 1)
            submitted = submissions(patch)

            async def both_are_shared() -> bool:
                await asked(api, *[OTHER] * 20)
                return any(len(pipelines._connections) == 2 for pipelines, _ in submitted)

            await until(both_are_shared)
        other = OTHER if shared else "/other?select=name,id&id=eq.7"
        with lock(api):
            asking = Asking(api, *[LOCKED] * 8)
            await until(lambda: waiting_for_locks(api) == 8)
            # As if the process were always late: what shares counts as slow.
            monkeypatch.setattr(Pipeline, "_held_up", lambda self, waited, run: True)
            for _ in range(10):
                assert_not_held_up(await asked(api, *[other] * 3))
            assert not asking.answered(LOCKED)
        await asking.answers()


def waiting_for_locks(api: Api) -> int:
    with closing(psycopg2.connect(api.dsn)) as looking, looking.cursor() as cursor:
        cursor.execute("select count(*) from pg_locks where not granted and relation = 'locked'::regclass")
        return int(cursor.fetchall()[0][0])


@pytest_twisted.ensureDeferred
async def test_a_read_that_shares_no_more_is_answered_as_before(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within its own limit, which is longer than that of a shared connection."""
    monkeypatch.setattr(quickness, "QUICK_SECONDS", 0.02)
    async with patient(database, store_settings, tmp_path) as api:
        await warm(api, LOCKED)
        with lock(api):
            asking = Asking(api, *[LOCKED] * 3)
            await until(lambda: waiting_for_locks(api) == 3)
        for answer in await asking.answers():
            assert (answer.status, answer.body) == (200, [{"id": 7, "name": "name 7"}])


@pytest_twisted.ensureDeferred
async def test_a_role_s_own_limit_is_that_of_the_second_run(api: Api) -> None:
    database = parse_dsn(api.dsn)["dbname"]

    async def have(limit: str) -> None:
        async def has() -> bool:
            (answer,) = await asked(api, "/limited")
            return answer.body == [{"own": limit}]

        await until(has)

    run_sql(api.dsn, f"""alter role anon in database "{database}" set statement_timeout = '1s'; {RELOAD}""")
    try:
        await have("1s")
        await warm(api, LOCKED)
        with lock(api):
            slow = await asked(api, *[LOCKED] * 3)
        assert_timed_out_together(slow, 1.0)
    finally:
        run_sql(api.dsn, f"""alter role anon in database "{database}" reset statement_timeout; {RELOAD}""")
        await have(f"{STATEMENT_SECONDS:.0f}s")
