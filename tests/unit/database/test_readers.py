"""Which reads go to standbys: a model of servers that replicate, fall behind, part and are promoted; each rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import psycopg2
from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import TestCase

from project_service.database.connection import DatabaseGone, DatabaseSilent
from project_service.database.readers import (
    ANSWER_SECONDS,
    TOKEN_SECONDS,
    Ask,
    NotAReader,
    Reader,
    Readers,
    directly,
    measured,
    readers_of,
)
from project_service.database.staleness import PRIMARY, Samples, read_tokens
from project_service.errors import ApiError, database_unavailable
from project_service.lifecycle import start
from project_service.settings.model import Secret

MAX = 5.0
SEGMENT = 16 * 2**20
SYSTEM = 7


@define(eq=False)
class Server:
    """One PostgreSQL server. Its ``log`` has the commits, each of 100 bytes. ``run`` differs after each restart."""

    name: str
    log: list[int] = field(factory=list)
    timeline: int = 1
    # How long the log was when the timeline began.
    fork: int = 0
    standby: bool = True
    run: int = 0
    system: int = SYSTEM
    fault: Exception | None = None

    @property
    def lsn(self) -> int:
        return 1000 + 100 * len(self.log)

    @property
    def started(self) -> str:
        return f"{self.name} {self.run}"

    def where(self) -> tuple[Any, ...]:
        """The answer to what a standby is asked."""
        return (self.standby, self.timeline, self.lsn, self.system, self.started, self.name, None)

    def position(self) -> tuple[Any, ...]:
        """The answer to what the primary is asked."""
        return (self.system, self.started, self.timeline, None if self.standby else self.lsn, SEGMENT)

    def follow(self, primary: Server, commits: int) -> None:
        """Replay up to so many commits of ``primary``, if this server's log is a part of its log."""
        if not self.standby or primary.log[: len(self.log)] != self.log:
            return
        if len(self.log) >= primary.fork:
            self.timeline, self.fork = primary.timeline, primary.fork
        for commit in primary.log[len(self.log) :][:commits]:
            self.log.append(commit)
            if len(self.log) > primary.fork:
                self.timeline, self.fork = primary.timeline, primary.fork


@define(eq=False)
class FakeProbe:
    server: Server

    async def query(self, sql: str) -> list[Any]:
        if self.server.fault is not None:
            raise self.server.fault
        return [self.server.where()]

    def startService(self) -> None:
        pass

    def stopService(self) -> None:
        pass


@define(eq=False)
class FakePool:
    """``access`` of a reader: the server whose connections it has, and whether they were closed."""

    server: Server
    run: int
    pauses: bool = False
    closed: bool = False

    async def close(self, grace_seconds: float | None = None) -> None:
        self.closed = True


class Cluster:
    """A primary and two standbys with their ``Readers``."""

    def __init__(self) -> None:
        self.now = 100.0
        self.clock = Clock()
        self.primary = Server("a", standby=False)
        self.servers = [self.primary, Server("b"), Server("c")]
        self.fault: Exception | None = None
        samples = Samples(MAX)
        readers = [self.reader(server, samples) for server in self.servers[1:]]
        self.readers: Readers[Any] = Readers(
            "main", "primary", self.asked, readers, samples, MAX, self.clock, lambda: self.now
        )

    def reader(self, server: Server, samples: Samples) -> Reader[Any]:
        def make(connect: object) -> tuple[FakePool, Sequence[Any]]:
            pool = FakePool(server, server.run)
            return pool, (pool,)

        async def connect() -> Any:
            raise AssertionError("nobody connects here")

        return Reader(server.name, connect, FakeProbe(server), samples, make, lambda: self.now)

    async def asked(self, sql: str) -> list[Any]:
        if self.fault is not None:
            raise self.fault
        return [self.primary.position()]

    def sample(self) -> None:
        done = start(self.readers._look())
        assert done.called

    def look(self, which: int) -> None:
        done = start(self.readers.readers[which].look())
        assert done.called

    def look_at_all(self) -> None:
        self.sample()
        for which in range(len(self.readers.readers)):
            self.look(which)

    def pool(self, which: int) -> FakePool:
        access = self.readers.readers[which].access
        assert isinstance(access, FakePool)
        return access

    def commit(self, caller: object = None) -> int:
        number = sum(len(server.log) for server in self.servers) * 1000 + len(self.primary.log)
        self.primary.log.append(number)
        self.readers.wrote(caller)
        return number

    def follow(self) -> None:
        for server in self.servers[1:]:
            server.follow(self.primary, 1000)

    def serves(self, ask: Ask | None = None) -> str:
        """The name of the server that serves ``ask``."""
        access = self.readers.choose(Ask("somebody") if ask is None else ask)
        return "primary" if access is None else access.server.name


class Model(RuleBasedStateMachine):
    """No read is served by what lacks a commit of the promise; and where nothing stands against it, readers serve."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        # When each commit was acknowledged, and to whom. What was lost with a primary may come back when a server is
        # promoted that had it: then, and to nobody in particular, for whoever wrote it has been told otherwise.
        self.acknowledged: dict[int, tuple[float, int | None]] = {}
        self.lost: set[int] = set()
        self.tokens: list[tuple[str, set[int]]] = []
        self.numbers = 0

    @initialize()
    def begin(self) -> None:
        # The schema cache is read.
        self.cluster.readers.choose(Ask("nobody"))

    @rule(seconds=st.floats(0.01, 4.0))
    def time_passes(self, seconds: float) -> None:
        self.cluster.now += seconds

    @rule(caller=st.integers(0, 3), with_token=st.booleans())
    def somebody_writes(self, caller: int, with_token: bool) -> None:
        cluster, self.numbers = self.cluster, self.numbers + 1
        cluster.primary.log.append(self.numbers)
        cluster.now += 0.001
        cluster.readers.wrote(caller)
        self.acknowledged[self.numbers] = (cluster.now, caller)
        if with_token:
            token: list[str] = []
            start(cluster.readers.token()).addCallback(token.append)
            self.tokens.append((token[0], {self.numbers}))
        cluster.now += 0.001

    @rule(which=st.integers(1, 2), commits=st.integers(0, 5))
    def a_standby_replays(self, which: int, commits: int) -> None:
        self.cluster.servers[which].follow(self.cluster.primary, commits)

    @rule()
    def the_primary_is_sampled(self) -> None:
        self.cluster.sample()

    @rule(which=st.integers(0, 1))
    def a_standby_is_looked_at(self, which: int) -> None:
        self.cluster.look(which)

    @rule(away=st.booleans())
    def the_primary_is_away_or_back(self, away: bool) -> None:
        self.cluster.fault = DatabaseGone("away") if away else None

    @rule(which=st.integers(1, 2))
    def a_standby_is_promoted(self, which: int) -> None:
        """The primary is gone for good, and what only it had is lost."""
        cluster = self.cluster
        server = cluster.servers[which]
        if server.standby:
            cluster.primary.standby = True
            server.standby = False
            server.timeline, server.fork = max(one.timeline for one in cluster.servers) + 1, len(server.log)
            cluster.primary = server
            self.acknowledged |= dict.fromkeys(self.lost.intersection(server.log), (cluster.now, None))
            self.lost = {*self.acknowledged}.difference(server.log)
            for _, numbers in self.tokens:
                numbers.difference_update(self.lost)

    @rule(which=st.integers(1, 2), written=st.integers(1, 3))
    def a_failover_loses_what_the_other_standby_has(self, which: int, written: int) -> None:
        if all(server.standby for server in self.cluster.servers[1:]):
            self.somebody_writes(0, False)
            self.cluster.servers[3 - which].follow(self.cluster.primary, 1000)
            self.a_standby_is_promoted(which)
            for _ in range(written):
                self.somebody_writes(0, True)

    @rule(which=st.integers(1, 2))
    def a_standby_is_made_anew(self, which: int) -> None:
        cluster = self.cluster
        server = cluster.servers[which]
        if server.standby:
            server.log = list(cluster.primary.log)
            server.timeline, server.fork = cluster.primary.timeline, cluster.primary.fork
            server.run += 1

    @rule(which=st.integers(1, 2))
    def a_standby_restarts(self, which: int) -> None:
        self.cluster.servers[which].run += 1

    @rule()
    def all_are_asked(self) -> None:
        self.cluster.look_at_all()

    @rule(caller=st.integers(0, 3))
    def somebody_reads(self, caller: int) -> None:
        cluster = self.cluster
        access = cluster.readers.choose(Ask(caller))
        if access is None:
            return
        shown = set(self.shown(access))
        due = [n for n, (when, _) in self.acknowledged.items() if when < cluster.now - MAX]
        own = [n for n, (_, writer) in self.acknowledged.items() if writer == caller]
        missing = [n for n in (*due, *own) if n not in self.lost and n not in shown]
        assert not missing, f"{access.server.name} lacks {missing}"

    @rule(data=st.data())
    def somebody_reads_with_a_token(self, data: st.DataObject) -> None:
        if not self.tokens:
            return
        token, numbers = data.draw(st.sampled_from(self.tokens))
        access = self.cluster.readers.choose(Ask("another process", read_tokens(token)))
        if access is not None:
            lacks = numbers.difference(self.shown(access))
            assert not lacks, f"{access.server.name} lacks {lacks}"

    def shown(self, access: FakePool) -> list[int]:
        """What a connection shows: it is one to the run of the server that it was made for."""
        # A connection to a run that has ended fails, and then the primary serves.
        server = access.server
        return server.log if access.run == server.run else self.cluster.primary.log

    def teardown(self) -> None:
        """Once all are in step, all standbys serve: the rules are not kept by never reading from them."""
        cluster = self.cluster
        cluster.fault = None
        for server in cluster.servers[1:]:
            if server.standby:
                server.log = list(cluster.primary.log)
                server.timeline, server.fork = cluster.primary.timeline, cluster.primary.fork
                server.run += 1
        cluster.now += 0.1
        cluster.look_at_all()
        standbys = {server.name for server in cluster.servers[1:] if server.standby}
        served = {cluster.serves(Ask(caller)) for caller in range(8)}
        assert served == (standbys or {"primary"}), (served, standbys)


Model.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


class TheModel(Model.TestCase):  # type: ignore[misc,valid-type]  # made by Hypothesis
    pass


class Choosing(TestCase):
    def setUp(self) -> None:
        self.cluster = Cluster()
        self.cluster.serves()
        self.cluster.now += 0.1
        self.cluster.look_at_all()

    def test_readers_take_turns(self) -> None:
        self.assertEqual([self.cluster.serves() for _ in range(4)], ["c", "b", "c", "b"])

    def test_a_standby_that_falls_behind_is_left_out_after_the_time(self) -> None:
        cluster = self.cluster
        cluster.commit("a writer")
        cluster.servers[1].follow(cluster.primary, 1)
        began = cluster.now
        while cluster.now < began + MAX - 0.1:
            cluster.now += 0.5
            cluster.look_at_all()
        self.assertEqual({cluster.serves() for _ in range(4)}, {"b", "c"})
        cluster.now += 0.6
        cluster.look_at_all()
        self.assertEqual({cluster.serves() for _ in range(4)}, {"b"})

    def test_while_the_primary_is_away_standbys_serve_for_as_long(self) -> None:
        cluster = self.cluster
        cluster.fault = DatabaseGone("away")
        cluster.now += MAX - 0.01
        cluster.look_at_all()
        self.assertIn(cluster.serves(), "bc")
        cluster.now += 0.02
        cluster.look_at_all()
        self.assertEqual(cluster.serves(), "primary")

    def test_who_has_written_reads_from_the_primary_until_a_standby_has_it(self) -> None:
        cluster = self.cluster
        cluster.commit("me")
        self.assertEqual(cluster.serves(Ask("me")), "primary")
        self.assertIn(cluster.serves(Ask("somebody else")), "bc")
        cluster.servers[1].follow(cluster.primary, 1)
        # Asked for before the write was over, a position says nothing of it.
        cluster.look(0)
        self.assertEqual(cluster.serves(Ask("me")), "primary")
        cluster.now += 0.1
        cluster.look_at_all()
        self.assertEqual({cluster.serves(Ask("me")) for _ in range(4)}, {"b"})

    def test_a_token_is_served_by_who_has_replayed_it(self) -> None:
        cluster = self.cluster
        cluster.commit("me")
        wanted = read_tokens(self.token())
        self.assertEqual(cluster.serves(Ask("other process", wanted)), "primary")
        cluster.servers[2].follow(cluster.primary, 1)
        cluster.look_at_all()
        self.assertEqual({cluster.serves(Ask("other process", wanted)) for _ in range(4)}, {"c"})

    def token(self) -> str:
        done = start(self.cluster.readers.token())
        return str(self.successResultOf(done))

    def test_a_write_whose_position_is_not_known_is_read_from_the_primary(self) -> None:
        self.cluster.fault = DatabaseGone("away")
        token = self.token()
        self.assertEqual(token, PRIMARY)
        self.assertEqual(self.cluster.serves(Ask("me", read_tokens(token))), "primary")

    def test_a_write_does_not_wait_long_for_its_token(self) -> None:
        waiting: Deferred[list[Any]] = Deferred()

        async def silent(sql: str) -> list[Any]:
            return await waiting

        self.cluster.readers.query = silent
        done = start(self.cluster.readers.token())
        self.assertNoResult(done)
        self.cluster.clock.advance(TOKEN_SECONDS)
        self.assertEqual(self.successResultOf(done), PRIMARY)
        waiting.callback([self.cluster.primary.position()])

    def test_strong_is_the_primary(self) -> None:
        self.assertEqual(self.cluster.serves(Ask("me", strong=True)), "primary")

    def test_after_a_change_of_the_schema_standbys_have_to_know_it(self) -> None:
        cluster = self.cluster
        self.assertEqual(cluster.serves(Ask("me", basis=2)), "primary")
        cluster.now += 0.1
        cluster.look_at_all()
        self.assertIn(cluster.serves(Ask("me", basis=2)), "bc")

    def test_what_is_known_anew_for_a_read_standbys_have_to_know_too(self) -> None:
        cluster = self.cluster
        ask = Ask("me", since=cluster.now)
        self.assertEqual(cluster.serves(ask), "primary")
        cluster.now += 0.1
        cluster.look_at_all()
        self.assertIn(cluster.serves(ask), "bc")

    def test_a_promoted_standby_is_no_reader(self) -> None:
        cluster = self.cluster
        with capturedLogs() as events:
            cluster.servers[1].standby = False
            cluster.look(0)
        self.assertEqual({cluster.serves() for _ in range(4)}, {"c"})
        self.assertEqual(cluster.readers.staleness["b"], float("inf"))
        self.assertEqual([one["why"] for one in events], ["it is no standby any more"])

    def test_the_primary_may_be_named_as_a_reader(self) -> None:
        """As where servers swap roles: it is no fault, and it is a reader again once it is a standby again."""
        cluster = self.cluster
        old, new = cluster.primary, cluster.servers[1]
        new.standby, new.timeline, new.fork = False, 2, len(new.log)
        cluster.primary = new
        cluster.servers[2].follow(new, 1)
        cluster.now += 0.1
        cluster.look_at_all()
        self.assertEqual({cluster.serves() for _ in range(4)}, {"c"})
        self.assertEqual(cluster.readers.staleness, {"b": 0.0, "c": 0.0})
        cluster.now += 1.0
        self.assertEqual(cluster.readers.staleness, {"b": 0.0, "c": 1.0})

        new.fault = DatabaseGone("away")
        cluster.look(0)
        self.assertEqual(cluster.readers.staleness["b"], float("inf"))

        new.fault, new.standby, new.run = None, True, 1
        old.standby, old.timeline, old.fork = False, 3, len(old.log)
        cluster.primary = old
        new.follow(old, 1)
        cluster.look_at_all()
        self.assertEqual({cluster.serves() for _ in range(4)}, {"b"})

    def test_a_start_with_the_primary_named_as_a_reader_warns_of_nothing(self) -> None:
        cluster = Cluster()
        cluster.primary = cluster.servers[1]
        cluster.primary.standby = False
        with capturedLogs() as events:
            cluster.look(0)  # before it is known which server is the primary
            cluster.look_at_all()
        self.assertEqual(
            [(one["log_level"], one["log_format"]) for one in events],
            [(LogLevel.info, "the reader {name} is the primary now")],
        )

    def test_after_a_failover_a_standby_of_the_old_history_is_no_reader(self) -> None:
        cluster = self.cluster
        cluster.commit()
        cluster.servers[2].follow(cluster.primary, 1)  # c has what b lacks
        new = cluster.servers[1]
        new.standby, new.timeline, new.fork = False, 2, len(new.log)
        cluster.primary = new
        cluster.now += 0.1
        cluster.look_at_all()
        self.assertEqual(cluster.serves(), "primary")
        cluster.servers[2].log.clear()
        cluster.servers[2].follow(new, 1)
        cluster.now += 0.1
        cluster.look_at_all()
        self.assertEqual(cluster.serves(), "c")

    def test_a_standby_that_is_ahead_of_the_primary_has_parted_from_it(self) -> None:
        """The primary was set back to an earlier state: positions do not tell what is the same any more."""
        cluster = self.cluster
        for _ in range(3):
            cluster.commit()
        cluster.follow()
        cluster.look_at_all()
        cluster.primary.log = []
        for _ in range(9):
            cluster.now += 0.1
            cluster.look_at_all()
            self.assertEqual(cluster.serves(), "primary")
            cluster.primary.log.append(len(cluster.primary.log) + 70)

    def test_a_standby_of_another_cluster_is_no_reader(self) -> None:
        cluster = self.cluster
        cluster.servers[1].system = 8
        cluster.look(0)
        self.assertEqual({cluster.serves() for _ in range(4)}, {"c"})

    def test_another_run_of_the_server_gets_connections_of_its_own(self) -> None:
        cluster = self.cluster
        before = cluster.pool(0)
        cluster.look(0)
        self.assertIs(cluster.pool(0), before)
        cluster.servers[1].run += 1
        cluster.look(0)
        self.assertIsNot(cluster.pool(0), before)
        self.assertTrue(before.closed)

    def test_a_standby_that_hangs_gives_up_its_connections(self) -> None:
        """Those who wait for it are served by the primary then."""
        cluster = self.cluster
        before = cluster.pool(0)
        cluster.servers[1].fault = DatabaseSilent("no answer")
        cluster.look(0)
        self.assertTrue(before.closed)
        self.assertEqual({cluster.serves() for _ in range(4)}, {"c"})

    def test_a_standby_that_cannot_be_asked_keeps_them_for_a_moment(self) -> None:
        """Only the connection that asks may be lost, and replies may be under way on others."""
        cluster = self.cluster
        before = cluster.pool(0)
        cluster.servers[1].fault = DatabaseGone("connection lost")
        cluster.look(0)
        self.assertFalse(before.closed)
        self.assertEqual({cluster.serves() for _ in range(4)}, {"c"})
        cluster.now += ANSWER_SECONDS + 0.1
        cluster.look(0)
        self.assertTrue(before.closed)

    def test_where_no_connection_can_be_made_others_serve(self) -> None:
        self.cluster.pool(0).pauses = True
        self.assertEqual({self.cluster.serves() for _ in range(4)}, {"c"})

    def test_what_is_shown_is_as_old_as_it_says(self) -> None:
        self.cluster.servers[1].fault = DatabaseGone("away")
        self.cluster.now += 2.0
        self.cluster.look_at_all()
        self.cluster.now += 1.0
        self.assertEqual(self.cluster.readers.staleness, {"b": float("inf"), "c": 1.0})


class FallingBack(TestCase):
    def setUp(self) -> None:
        self.cluster = Cluster()
        self.cluster.serves()
        self.cluster.now += 0.1
        self.cluster.look_at_all()

    def read(self, fault: Callable[[], BaseException]) -> Deferred[str]:
        async def function(access: object) -> str:
            if access != "primary":
                raise fault()
            return "by the primary"

        return start(self.cluster.readers.read(Ask("me"), function))

    def test_what_a_reader_answers_is_the_answer(self) -> None:
        async def function(access: object) -> object:
            return access

        access = self.successResultOf(start(self.cluster.readers.read(Ask("me"), function)))
        self.assertIsInstance(access, FakePool)
        self.assertEqual(self.cluster.readers.served, {("primary", "stale"): 1, ("reader", ""): 1})

    def test_a_reader_that_fails_is_replaced_by_the_primary(self) -> None:
        for fault in (
            lambda: DatabaseGone("lost"),
            database_unavailable,
            lambda: ApiError(500, "40001", "canceling statement due to conflict with recovery"),
            lambda: ApiError(400, "42703", "the column is not there yet"),
            lambda: psycopg2.OperationalError("lost"),
        ):
            self.assertEqual(self.successResultOf(self.read(fault)), "by the primary")
        self.assertEqual(self.cluster.readers.served["primary", "failed"], 5)

    def test_what_another_server_would_answer_too_is_the_answer(self) -> None:
        """A statement that took too long is not run twice."""
        for code in ("57014", "22P02", "P0001", "PT402", "PGRST116", "23505"):
            self.failureResultOf(self.read(lambda code=code: ApiError(400, code, "no")), ApiError)  # type: ignore[misc]
        for code in ("PGRST003", "PGRST000", "25006", "0A000", "57P01", "22023"):
            self.assertTrue(self.cluster.readers.repeats(ApiError(500, code, "no")), code)

    def test_who_leaves_is_not_served_again(self) -> None:
        self.failureResultOf(self.read(CancelledError), CancelledError)

    def test_a_fault_of_the_service_is_not_hidden(self) -> None:
        self.failureResultOf(self.read(lambda: AttributeError("a mistake")), AttributeError)


@define(eq=False)
class FakeConnection:
    """Leads to ``server``."""

    server: Server
    fault: Exception | None = None
    closed: bool = False

    # The process that answers, and the one that whoever stands between names.
    process: int = 12
    named: int = 12

    async def query(self, sql: str) -> list[Any]:
        if self.fault is not None:
            raise self.fault
        return [(self.process,)] if "pg_backend_pid" in sql else [self.server.where()[3:]]

    @property
    def raw(self) -> Any:
        return SimpleNamespace(get_backend_pid=lambda: self.named)

    def close(self) -> None:
        self.closed = True


class Connecting(TestCase):
    """The connections of a pool lead to the server that was asked where it is."""

    def connected(self, connection: FakeConnection) -> Deferred[Any]:
        made: list[Any] = []

        def make(connect: Any) -> tuple[FakePool, Sequence[Any]]:
            made.append(connect)
            pool = FakePool(server, 0)
            return pool, (pool,)

        async def connect() -> Any:
            return connection

        server = Server("b")
        reader = Reader("b", connect, FakeProbe(server), Samples(MAX), make, lambda: 1.0)
        self.successResultOf(start(reader.look()))
        return start(made[0]())

    def test_one_to_it_is_used(self) -> None:
        connection = FakeConnection(Server("b"))
        self.assertIs(self.successResultOf(self.connected(connection)), connection)
        self.assertFalse(connection.closed)

    def test_one_to_another_server_or_run_is_refused(self) -> None:
        """As when a name leads to several servers, or to another one after a failover."""
        for server in (Server("c"), Server("b", run=1), Server("b", system=8)):
            connection = FakeConnection(server)
            self.failureResultOf(self.connected(connection), DatabaseGone)
            self.assertTrue(connection.closed)

    def test_one_that_fails_is_closed(self) -> None:
        for fault in (psycopg2.OperationalError("no"), DatabaseGone("no")):
            connection = FakeConnection(Server("b"), fault)
            self.failureResultOf(self.connected(connection), DatabaseGone)
            self.assertTrue(connection.closed)


@define(eq=False)
class Asked(FakeConnection):
    """A connection to ``server`` that is asked where it is."""

    async def query(self, sql: str) -> list[Any]:
        if "pg_current_wal_insert_lsn" in sql:
            return [self.server.position()]
        if "pg_last_wal_replay_lsn" in sql:
            return [self.server.where()]
        return [(True,)] if "'usage'" in sql else await super().query(sql)


class Checked(TestCase):
    """What ``project-service check`` says of one reader."""

    def check(self, server: Server) -> Deferred[str]:
        async def pause() -> None:
            raise AssertionError("nothing to wait for")

        primary: Any = Asked(Server("a", standby=False))
        standby: Any = Asked(server)
        return start(measured(primary, standby, 5.0, pause))

    def test_a_standby_is_so_far_behind(self) -> None:
        self.assertRegex(self.successResultOf(self.check(Server("b"))), r"at most [0-9.]+ s behind\Z")

    def test_the_primary_itself_is_no_fault(self) -> None:
        found = self.successResultOf(self.check(Server("a", standby=False)))
        self.assertEqual(found, "is the primary now")

    def test_another_server_that_takes_writes_is(self) -> None:
        for other in (Server("b", standby=False), Server("a", standby=False, system=8)):
            fault = self.failureResultOf(self.check(other), NotAReader)
            self.assertIn("no standby", str(fault.value))


class Directly(TestCase):
    """A pooler may give each transaction another session, where others' SQL has left something."""

    def connected(self, connection: FakeConnection) -> Deferred[Any]:
        async def connect() -> Any:
            return connection

        return start(directly(connect))

    def test_a_connection_to_the_server_is_used(self) -> None:
        connection = FakeConnection(Server("b"))
        self.assertIs(self.successResultOf(self.connected(connection)), connection)
        self.assertFalse(connection.closed)

    def test_a_pooler_is_refused(self) -> None:
        connection = FakeConnection(Server("b"), named=34)
        refused = self.failureResultOf(self.connected(connection), DatabaseGone)
        self.assertIn("pooler", str(refused.value))
        self.assertTrue(connection.closed)

    def test_one_that_fails_is_closed(self) -> None:
        for fault in (psycopg2.OperationalError("no"), DatabaseGone("no")):
            connection = FakeConnection(Server("b"), fault)
            self.failureResultOf(self.connected(connection), DatabaseGone)
            self.assertTrue(connection.closed)


class Made(TestCase):
    def make(self, *dsns: str) -> Readers[Any] | None:
        async def query(sql: str) -> list[Any]:
            raise AssertionError

        def make(connect: object) -> Any:
            raise AssertionError

        return readers_of(Clock(), "main", [Secret(dsn) for dsn in dsns], 5.0, 30.0, None, query, make)

    def test_each_host_is_a_reader(self) -> None:
        readers = self.make(
            "postgresql://u:secret@one,two:5433/d", "host=three user=u", "postgresql://u@one/d"
        )
        assert readers is not None
        self.assertEqual([one.name for one in readers.readers], ["one:5432", "two:5433", "three:5432"])

    def test_without_any_there_are_none(self) -> None:
        self.assertIsNone(self.make())
