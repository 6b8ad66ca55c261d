"""Reads of the table API on two real standbys: where they go, what they show, and what if a standby fails."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve, frozen
from prometheus_client.parser import text_string_to_metric_families
from twisted.internet.task import deferLater

from project_service.database import readers
from project_service.database.readers import BECOMING_READER_OF_STATS, NotAReader, measured
from project_service.lifecycle import start
from project_service.settings.model import Secret, Settings, Stage, StageDatabase, Store
from project_service.tables import assemble
from project_service.tables.schema_cache import holder
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open, wait
from tests.live.sql import connector
from tests.live.standbys import READERS, Standbys
from tests.live.waiting import until

BASE = "/dev/db/main/rest"
# Long enough for a busy machine, where the service may be late to ask the standbys.
STALENESS = 3.0
SCHEMA = """
create role anon; create role authenticated; create role service_role;
grant anon, authenticated, service_role to project_service;
create table public.notes (id int primary key, words text);
create view public.here as select inet_server_port() as port, pg_is_in_recovery() as standby;
create function public.where_stable() returns int stable language sql as 'select inet_server_port()';
create function public.where_volatile() returns int volatile language sql as 'select inet_server_port()';
create function public.where_slowly() returns int stable language sql as
  'select inet_server_port() from pg_sleep(case when pg_is_in_recovery() then 30 else 0 end)
   cross join (select count(*) from public.notes) as counted';
create function public.where_leaving() returns int stable language sql as
  $$ select inet_server_port() from set_config('app.left', 'x', false) $$;
insert into public.notes select i, 'note ' || i from generate_series(1, 1000) i;
grant select on all tables in schema public to anon; grant insert, update on public.notes to anon;
"""


# The service's role does not inherit, as the documentation has it made.
RECEIVED = "select (select received_tli from pg_stat_wal_receiver), current_user::text"
GRANT = "alter role project_service noinherit; grant pg_read_all_stats to project_service"
REVOKE = "alter role project_service inherit; revoke pg_read_all_stats from project_service"


@frozen
class Service:
    """The service, and the servers of its database."""

    api: Api
    servers: Standbys

    async def get(self, path: str, **headers: str) -> tuple[int, Any, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.api.request("GET", BASE + path, headers=named)

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.api.request("POST", BASE + path, headers=named, json=body or {})

    async def port(self, **headers: str) -> int:
        """Of the server that answers a read."""
        status, _, body = await self.get("/here", **headers)
        assert status == 200, body
        return int(body[0]["port"])

    async def until_readers_serve(self) -> None:
        """Wait until both standbys answer."""
        expected = {self.servers.port(name) for name in READERS}

        async def both() -> bool:
            return {await self.port() for _ in range(4)} == expected

        await until(both)

    async def staleness(self) -> dict[str, float]:
        """As the metrics have it, by the name of the reader."""
        _, _, text = await self.api.request("GET", "/metrics", key=None)
        return {
            sample.labels["reader"]: sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
            if sample.name == "project_service_reader_staleness_seconds"
        }

    async def served(self) -> dict[tuple[str, str], int]:
        """How many reads each server has got, and why the primary."""
        _, _, text = await self.api.request("GET", "/metrics", key=None)
        return {
            (sample.labels["server"], sample.labels["reason"]): int(sample.value)
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
            if sample.name == "project_service_reads_total"
        }


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standbys]:
    directory = Path(tmp_path_factory.mktemp("standbys"))
    directory.chmod(0o700)
    standbys = Standbys(directory)
    try:
        standbys.start()
        standbys.sql("primary", SCHEMA)
        standbys.in_step()
        yield standbys
    finally:
        standbys.stop()


@pytest.fixture(scope="module")
def service(
    servers: Standbys,
    module_database: str,
    store_settings: Store,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Service]:
    settings = settings_for(module_database, store_settings, Path(tmp_path_factory.mktemp("readers")))
    main = StageDatabase(
        dsn=Secret(servers.dsn),
        read_dsn=(Secret(servers.read_dsn),),
        max_staleness_seconds=STALENESS,
        pool_size=4,
        stream_threshold_bytes=4096,
    )
    settings = evolve(settings, stages={"dev": Stage(databases={"main": main})})
    with held_open(serving(settings)) as api:
        yield Service(api, servers)


@pytest.fixture(autouse=True)
def in_step(service: Service) -> None:
    service.servers.in_step()
    wait(service.until_readers_serve)


@pytest_twisted.ensureDeferred
async def test_reads_go_to_both_standbys(service: Service) -> None:
    async def in_turns() -> bool:
        ports = [await service.port() for _ in range(4)]
        return ports[:2] == ports[2:] and len(set(ports)) == 2

    # Not at once, where the machine has stood still for longer than the promise.
    await until(in_turns)


@pytest_twisted.ensureDeferred
async def test_what_may_write_or_lock_goes_to_the_primary(service: Service) -> None:
    async def by_standbys(path: str) -> tuple[bool, bool, bool]:
        """Whether one answers a GET, and a POST, and whether that has a token as writes have."""
        primary = service.servers.port("primary")
        _, _, by_get = await service.get(path)
        status, headers, by_post = await service.post(path)
        assert status == 200
        return by_get != primary, by_post != primary, headers.hasHeader("Consistency-Token")

    async def only_reads() -> bool:
        return await by_standbys("/rpc/where_stable") == (True, True, False)

    await until(only_reads)
    assert await by_standbys("/rpc/where_volatile") == (False, False, True)


@pytest_twisted.ensureDeferred
async def test_strong_consistency_is_the_primary(service: Service) -> None:
    status, headers, body = await service.get("/here", Prefer="consistency=strong")
    assert (status, body[0]["port"]) == (200, service.servers.port("primary"))
    assert headers.getRawHeaders("Preference-Applied") == ["consistency=strong"]


@asynccontextmanager
async def patient(service: Service, database: str, store: Store, directory: Path) -> AsyncIterator[Service]:
    """Another process, which reads from standbys however far they are behind, and takes none for hanging because the
    machine stood still. Both are paused as long as the block lasts."""
    settings = settings_for(database, store, directory)
    main = evolve(service.api.settings.stages["dev"].databases["main"], max_staleness_seconds=600.0)
    settings = evolve(settings, stages={"dev": Stage(databases={"main": main})})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "ANSWER_SECONDS", 60.0)
        patch.setattr(assemble, "ACQUIRE_SECONDS", 60.0)
        # The first round through the catalog ends with another reading of it, after which standbys that are paused
        # are not read from: they might not know what is new.
        patch.setattr(holder, "ROUND_SECONDS", 3600.0)
        async with paused(service, settings) as other:
            yield other


@asynccontextmanager
async def paused(service: Service, settings: Settings) -> AsyncIterator[Service]:
    async with serving(settings) as api:
        other = Service(api, service.servers)
        await other.until_readers_serve()
        for name in READERS:
            service.servers.pause(name)
        try:
            yield other
        finally:
            for name in READERS:
                service.servers.go_on(name)


@pytest_twisted.ensureDeferred
async def test_a_caller_reads_what_it_wrote(
    service: Service, module_database: str, store_settings: Store, tmp_path: Path
) -> None:
    """Also while no standby has it. (``tests/unit/database/test_readers.py``: others are not held up.)"""
    async with patient(service, module_database, store_settings, tmp_path) as other:
        status, headers, _ = await other.post("/notes", {"id": 2000, "words": "new"})
        assert status == 201
        (token,) = headers.getRawHeaders("Consistency-Token")
        _, _, mine = await other.get("/notes?id=eq.2000")
        assert mine == [{"id": 2000, "words": "new"}]
        assert (await other.served())["primary", "written"] == 1
    service.servers.in_step()
    await service.until_readers_serve()
    _, _, mine = await service.get("/notes?id=eq.2000", Consistency_Token=token)
    assert mine == [{"id": 2000, "words": "new"}]


@pytest_twisted.ensureDeferred
async def test_a_caller_whose_import_failed_reads_from_the_primary(
    service: Service, module_database: str, store_settings: Store, tmp_path: Path
) -> None:
    """As after any write that failed: where the connection is lost, nobody knows whether it was committed."""
    async with patient(service, module_database, store_settings, tmp_path) as other:
        ids = [*range(10_000, 11_200), 1]
        rows = "id,words\n" + "".join([f"{number},{'x' * 1000}\n" for number in ids])
        status, _, _ = await other.api.request(
            "POST", f"{BASE}/notes", headers={"Content-Type": "text/csv"}, data=rows.encode()
        )
        assert status == 409
        assert await other.port() == service.servers.port("primary")
        assert (await other.served())["primary", "written"] == 1


@pytest_twisted.ensureDeferred
async def test_another_process_shows_it_to_who_brings_the_token(
    service: Service, module_database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with patient(service, module_database, store_settings, tmp_path) as other:
        _, headers, _ = await service.post("/notes", {"id": 3000, "words": "new"})
        (token,) = headers.getRawHeaders("Consistency-Token")
        _, _, stale = await other.get("/notes?id=eq.3000")
        _, _, shown = await other.get("/notes?id=eq.3000", Consistency_Token=token)
        _, _, unknown = await other.get("/notes?id=eq.3000", Consistency_Token="of another version")
        assert (stale, shown, unknown) == ([], *[[{"id": 3000, "words": "new"}]] * 2)


@pytest_twisted.ensureDeferred
async def test_a_standby_that_lags_is_left_out_when_the_promise_ends(service: Service) -> None:
    two = service.servers.port("two")
    service.servers.pause("one")
    try:
        service.servers.sql("primary", "update notes set words = 'changed' where id = 1")

        async def only_two() -> bool:
            return {await service.port() for _ in range(4)} == {two}

        await until(only_two)
        service.servers.in_step(standbys=["two"])
        _, _, body = await service.get("/notes?id=eq.1")
        assert body[0]["words"] == "changed"
    finally:
        service.servers.go_on("one")
    await service.until_readers_serve()


@pytest_twisted.ensureDeferred
async def test_a_conflict_with_recovery_is_not_seen(service: Service) -> None:
    """The primary locks the table that the standby is reading."""
    servers = service.servers
    for name in READERS:
        servers.sql(name, "alter system set max_standby_streaming_delay = 0")
        servers.sql(name, "select pg_reload_conf()")
    delay = "show max_standby_streaming_delay"
    await until(lambda: all(servers.sql(name, delay) == [("0",)] for name in READERS))
    asleep = "select count(*) > 0 from pg_stat_activity where wait_event = 'PgSleep'"

    async def repeated() -> bool:
        before = (await service.served()).get(("primary", "failed"), 0)
        waiting = start(service.get("/rpc/where_slowly"))
        # The primary, which does not sleep, answers at once where the standbys are not known to be fresh.
        await until(lambda: waiting.called or any(servers.sql(name, asleep) == [(True,)] for name in READERS))
        servers.sql("primary", "begin; lock table notes in access exclusive mode; commit")
        status, _, port = await waiting
        assert (status, port) == (200, servers.port("primary"))
        return (await service.served()).get(("primary", "failed"), 0) == before + 1

    await until(repeated)
    for name in READERS:
        servers.sql(name, "alter system reset max_standby_streaming_delay")
        servers.sql(name, "select pg_reload_conf()")


@pytest_twisted.ensureDeferred
async def test_a_migration_that_no_standby_has_yet_is_no_error(service: Service) -> None:
    servers = service.servers
    for name in READERS:
        servers.pause(name)
    try:
        servers.sql("primary", "alter table notes add column if not exists later int default 7")
        servers.sql("primary", "notify pgrst, 'reload schema'")

        async def known() -> bool:
            status, _, body = await service.get("/notes?select=later&id=eq.1")
            return bool(status == 200 and body == [{"later": 7}])

        await until(known)
    finally:
        for name in READERS:
            servers.go_on(name)


@pytest_twisted.ensureDeferred
async def test_what_a_function_leaves_is_cleared_away_on_standbys_too(service: Service) -> None:
    async def by_a_standby() -> bool:
        status, _, port = await service.get("/rpc/where_leaving")
        assert status == 200
        return bool(port != service.servers.port("primary"))

    await until(by_a_standby)
    await service.until_readers_serve()


@pytest_twisted.ensureDeferred
async def test_large_replies_are_streamed_by_standbys(service: Service) -> None:
    async def streamed() -> bool:
        before = await service.served()
        status, _, body = await service.get("/notes?order=id&limit=400")
        assert status == 200 and len(body) == 400
        return (await service.served())["reader", ""] == before["reader", ""] + 1

    # Not at once, where the schema cache has just been read again.
    for _ in range(3):
        await until(streamed)


@pytest_twisted.ensureDeferred
async def test_quick_reads_share_connections_of_standbys(service: Service) -> None:
    """As on the primary: what they have in common is set for the session."""
    shared = "select count(*) from pg_stat_activity where query like '%set_config%' and state = 'idle'"

    async def are_shared() -> bool:
        for _ in range(10):
            await service.get("/notes?id=eq.7")
        return any(service.servers.sql(name, shared)[0][0] for name in READERS)

    # Where the machine is busy, few reads are as quick as those that share have to be.
    await until(are_shared)
    answers = [await service.get(f"/notes?id=eq.{n}") for n in range(1, 20)]
    assert [body[0]["id"] for _, _, body in answers] == list(range(1, 20))


@pytest_twisted.ensureDeferred
async def test_a_check_says_how_far_a_standby_is_behind(service: Service) -> None:
    servers = service.servers

    async def pause() -> None:
        await deferLater(service.api.reactor, 0.01)

    async def checked(standby: str, seconds: float = 30.0) -> str:
        primary, other = [await connector(servers.dsn_of(name))() for name in ("primary", standby)]
        with closing(primary), closing(other):
            return await measured(primary, other, seconds, pause)

    assert re.fullmatch(
        r"at most [0-9.]+ s behind; without the role pg_read_all_stats .*", await checked("one")
    )
    assert await checked("primary") == "is the primary now"
    servers.sql("primary", GRANT)
    servers.in_step()
    assert re.fullmatch(r"at most [0-9.]+ s behind", await checked("one"))
    servers.sql("primary", REVOKE)
    servers.pause("one")
    try:
        servers.sql("primary", "update notes set words = words where id < 100")
        with pytest.raises(NotAReader, match=r"more than 0.2 s \([0-9]+ bytes\) behind"):
            await checked("one", 0.2)
    finally:
        servers.go_on("one")


@pytest_twisted.ensureDeferred
async def test_a_role_that_does_not_inherit_sees_the_timeline_that_is_received(service: Service) -> None:
    """While it asks for it, and no longer."""
    servers = service.servers
    with closing(await connector(servers.dsn_of("one"))()) as probe:
        hides = [(None, "project_service")]
        assert await probe.query(f"{BECOMING_READER_OF_STATS}; {RECEIVED}") == hides
        servers.sql("primary", GRANT)
        servers.in_step()
        assert await probe.query(f"{BECOMING_READER_OF_STATS}; {RECEIVED}") == [(1, "pg_read_all_stats")]
        assert await probe.query(RECEIVED) == hides
    servers.sql("primary", REVOKE)


@pytest_twisted.ensureDeferred
async def test_a_standby_that_hangs_holds_nobody_up(service: Service) -> None:
    with service.servers.hanging("one"):
        began = service.api.reactor.seconds()
        for _ in range(20):
            status, _, _ = await service.get("/notes?id=eq.7")
            assert status == 200
        # Those that had been sent to it wait until it is taken for hanging.
        assert service.api.reactor.seconds() - began < 15

        async def the_other_serves() -> bool:
            return await service.port() == service.servers.port("two")

        # Not at once, where the machine is so busy that the other one's position is not known in time.
        await until(the_other_serves)
    await service.until_readers_serve()


@pytest_twisted.ensureDeferred
async def test_a_standby_that_dies_is_not_missed(service: Service) -> None:
    service.servers.kill("one")
    for _ in range(20):
        assert await service.port() in (service.servers.port("two"), service.servers.port("primary"))
    status, _, _ = await service.api.request("GET", "/ready", key=None)
    assert status == 200
    service.servers.serve("one")
    await service.until_readers_serve()


@pytest_twisted.ensureDeferred
async def test_a_promoted_standby_is_no_reader_and_the_other_is_once_it_follows(service: Service) -> None:
    """The last, because the servers are others afterwards."""
    servers = service.servers
    servers.in_step()
    servers.kill("primary")
    servers.promote_to_primary("one")
    servers.follow("two", "one")
    one, two = servers.port("one"), servers.port("two")

    async def written(number: int) -> bool:
        status, _, _ = await service.post("/notes", {"id": number, "words": "after"})
        return status == 201

    await until(partial(written, 5000))
    _, _, mine = await service.get("/notes?id=eq.5000&select=words")
    assert mine == [{"words": "after"}]
    assert await service.port(Prefer="consistency=strong") == one

    async def known_as_primary() -> bool:
        return (await service.staleness())[f"127.0.0.1:{one}"] == 0

    await until(known_as_primary)

    async def follows() -> bool:
        return await service.port() == two

    # The service's role may not see which timeline a standby receives, so that it learns it from the control file. A
    # standby writes that at a checkpoint of the primary's which it has replayed.
    servers.sql("one", "checkpoint")
    servers.in_step("one", ("two",))
    servers.sql("two", "checkpoint")
    await until(follows)
    _, _, shown = await service.get("/notes?id=eq.5000&select=words")
    assert shown == [{"words": "after"}]

    # Once more. With the grant it does not have to wait for the control file.
    servers.sql("one", GRANT)
    servers.make_anew("primary", "one")
    # A standby that has more than the one that is promoted can never follow it.
    servers.in_step("one", ("primary", "two"))
    servers.kill("one")
    servers.promote_to_primary("primary")
    servers.follow("two", "primary")
    await until(partial(written, 6000))
    await until(follows)
    ((in_control_file,),) = servers.sql("two", "select timeline_id from pg_control_checkpoint()")
    assert in_control_file == 2
