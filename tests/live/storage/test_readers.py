"""Reads of storage on real standbys that lag: what they show, and what is asked of the primary all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve, frozen
from prometheus_client.parser import text_string_to_metric_families

from project_service.database import readers
from project_service.settings.model import Secret, Store
from project_service.storage import reading
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open, migrated, wait
from tests.live.standbys import READERS, Standbys
from tests.live.waiting import until

# So long that standbys which are paused count as fresh until a test has ended, and that none is taken for hanging
# because the machine stood still.
STALENESS = 600.0
PATIENCE = 60.0
OBJECTS = "/storage/buckets/public/objects"
STRONG = {"Prefer": "consistency=strong"}


@frozen
class Service:
    api: Api
    servers: Standbys
    # Of who writes. Who reads has the anon key alone, and so is another caller.
    token: str

    async def write(self, method: str, path: str, data: bytes | None = None) -> str:
        """The token of a write, which has to succeed."""
        status, headers, body = await self.api.request(method, path, token=self.token, data=data)
        assert status in (200, 201, 204), body
        token: str = headers.getRawHeaders("Consistency-Token")[0]
        return token

    async def read(self, path: str, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        status, _, body = await self.api.request("GET", path, headers=named)
        return status, body

    async def keys(self, **headers: str) -> list[str]:
        status, body = await self.read(f"{OBJECTS}?prefix=k", **headers)
        assert status == 200
        return [one["key"] for one in body["objects"]]

    async def served(self) -> Counter[tuple[str, str]]:
        """How many reads each server has answered, and why the primary."""
        _, _, text = await self.api.request("GET", "/metrics", key=None)
        return Counter(
            {
                (sample.labels["server"], sample.labels["reason"]): int(sample.value)
                for family in text_string_to_metric_families(text.decode())
                for sample in family.samples
                if sample.name == "project_service_reads_total"
            }
        )

    async def until_served(self, before: Counter[tuple[str, str]], **more: int) -> None:
        """Wait until so many reads more are counted as answered, by a ``reader`` or by the primary for a reason."""
        expected = {("reader", "") if name == "reader" else ("primary", name): n for name, n in more.items()}

        async def counted() -> bool:
            return await self.served() - before == expected

        await until(counted)

    async def by_readers(self) -> int:
        return (await self.served())["reader", ""]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing more is shown by the standbys."""
        for name in READERS:
            self.servers.pause(name)
        try:
            yield
        finally:
            for name in READERS:
                self.servers.go_on(name)


@pytest.fixture(scope="module")
def service(store_settings: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = Path(tmp_path_factory.mktemp("standbys"))
    directory.chmod(0o700)
    servers = Standbys(directory)
    patch = pytest.MonkeyPatch()
    patch.setattr(readers, "ANSWER_SECONDS", PATIENCE)
    patch.setattr(reading, "ACQUIRE_SECONDS", PATIENCE)
    try:
        servers.start()
        wait(lambda: migrated(servers.dsn))
        data = Path(tmp_path_factory.mktemp("data"))
        settings = settings_for(servers.dsn, store_settings, data, storage={"cache_bytes": 0})
        database = evolve(
            settings.database, read_dsn=(Secret(servers.read_dsn),), max_staleness_seconds=STALENESS
        )
        with held_open(serving(evolve(settings, database=database, stages={}))) as api:
            session = wait(lambda: api.sign_up("writer@example.test"))
            yield Service(api, servers, str(session["access_token"]))
    finally:
        servers.stop()
        patch.undo()


@pytest.fixture(autouse=True)
def in_step(service: Service) -> None:
    async def served() -> bool:
        before = await service.by_readers()
        await service.keys()
        return await service.by_readers() > before

    wait(lambda: service.write("PUT", f"{OBJECTS}/k", b"old"))
    service.servers.in_step()
    wait(lambda: until(served))


@pytest_twisted.ensureDeferred
async def test_downloads_and_listings_are_answered_by_standbys(service: Service) -> None:
    before = await service.served()
    assert await service.read(f"{OBJECTS}/k") == (200, b"old")
    assert await service.keys() == ["k"]
    assert (await service.api.request("HEAD", f"{OBJECTS}/k"))[0] == 200
    await service.until_served(before, reader=3)
    assert await service.read(f"{OBJECTS}/k", **STRONG) == (200, b"old")
    await service.until_served(before, reader=3, strong=1)


@pytest_twisted.ensureDeferred
async def test_a_read_that_asked_for_the_primary_says_so(service: Service) -> None:
    for path in (f"{OBJECTS}/k", f"{OBJECTS}?prefix=k"):
        for asked, applied in ((STRONG, ["consistency=strong"]), ({}, None)):
            _, headers, _ = await service.api.request("GET", path, headers=asked)
            assert headers.getRawHeaders("Preference-Applied") == applied, path


@pytest_twisted.ensureDeferred
async def test_an_object_that_was_replaced_is_shown_as_it_is_now(service: Service) -> None:
    """Its old bytes are gone, which the standbys do not know."""
    with service.paused():
        await service.write("PUT", f"{OBJECTS}/k", b"new")
        assert await service.read(f"{OBJECTS}/k") == (200, b"new")


@pytest_twisted.ensureDeferred
async def test_an_object_that_was_deleted_is_not_there(service: Service) -> None:
    with service.paused():
        await service.write("DELETE", f"{OBJECTS}/k")
        status, body = await service.read(f"{OBJECTS}/k")
        assert (status, body["error"]["code"]) == (404, "object_not_found")


@pytest_twisted.ensureDeferred
async def test_an_object_that_no_standby_knows_yet_is_there(service: Service) -> None:
    with service.paused():
        await service.write("PUT", f"{OBJECTS}/k-later", b"later")
        assert await service.read(f"{OBJECTS}/k-later") == (200, b"later")
        await service.write("DELETE", f"{OBJECTS}/k-later")


@pytest_twisted.ensureDeferred
async def test_a_key_that_is_nowhere_is_no_failure_of_a_standby(service: Service) -> None:
    """The primary was asked, but what is counted as failed is what an operator has to look after."""
    before = await service.served()
    status, body = await service.read(f"{OBJECTS}/nowhere")
    assert (status, body["error"]["code"]) == (404, "object_not_found")
    await service.until_served(before, reader=1)


@pytest_twisted.ensureDeferred
async def test_listings_are_as_old_as_promised_but_for_who_has_written(service: Service) -> None:
    with service.paused():
        written = await service.write("PUT", f"{OBJECTS}/k-listed", b"")
        assert await service.keys() == ["k"]
        both = ["k", "k-listed"]
        assert await service.keys(Consistency_Token=written) == both
        assert await service.keys(**STRONG) == both
        path = f"{OBJECTS}?prefix=k"
        _, _, own = await service.api.request("GET", path, token=service.token)
        assert [one["key"] for one in own["objects"]] == both
        await service.write("DELETE", f"{OBJECTS}/k-listed")


@pytest_twisted.ensureDeferred
async def test_what_was_deleted_before_a_bucket_was_opened_is_not_shown(service: Service) -> None:
    """The standbys still have it, but never when anybody might see it."""
    api, objects, rules = service.api, "/storage/buckets/private/objects", "/admin/buckets/private"
    await service.write("PUT", f"{objects}/secret", b"secret")
    service.servers.in_step()

    async def by_a_standby() -> bool:
        before = await service.by_readers()
        assert (await api.request("GET", objects, key="service"))[0] == 200
        return await service.by_readers() > before

    await until(by_a_standby)
    with service.paused():
        await service.write("DELETE", f"{objects}/secret")
        assert (await api.request("PATCH", rules, key="service", json={"visibility": "public"}))[0] == 200
        try:

            async def opened() -> bool:
                return (await service.read(objects))[0] == 200

            await until(opened)
            _, body = await service.read(objects)
            assert body["objects"] == []
            assert (await service.read(f"{objects}/secret"))[0] == 404
        finally:
            await api.request("PATCH", rules, key="service", json={"visibility": "private"})


@pytest_twisted.ensureDeferred
async def test_a_token_counts_on_whichever_line_it_is(service: Service) -> None:
    with service.paused():
        written = await service.write("PUT", f"{OBJECTS}/k-lines", b"")
        before = await service.served()
        for name, lines in (("Consistency-Token", ["", written]), ("Prefer", ["wait=1", STRONG["Prefer"]])):
            named: Any = {name: lines}
            status, _, body = await service.api.request("GET", f"{OBJECTS}?prefix=k", headers=named)
            assert (status, [one["key"] for one in body["objects"]]) == (200, ["k", "k-lines"]), name
        await service.until_served(before, token=1, strong=1)
        await service.write("DELETE", f"{OBJECTS}/k-lines")


@pytest_twisted.ensureDeferred
async def test_who_may_read_is_decided_by_the_primary(service: Service) -> None:
    """By the rules of the bucket, and by the owner of the object, whatever the standbys still show."""
    api, personal = service.api, "/storage/buckets/personal/objects/mine"
    await service.write("PUT", personal, b"mine")
    service.servers.in_step()
    other = str((await api.sign_up("other@example.test"))["access_token"])
    with service.paused():
        before = await service.served()
        assert (await api.request("GET", personal, token=other))[0] == 404
        assert (await api.request("GET", "/storage/buckets/personal/objects", token=other))[0] == 200
        # Only this one is asked of a standby, and counted.
        assert await service.keys() == ["k"]
        await service.until_served(before, reader=1)
        path = "/admin/buckets/public"
        assert (await api.request("PATCH", path, key="service", json={"visibility": "private"}))[0] == 200
        try:

            async def refused() -> bool:
                return (await service.read(f"{OBJECTS}/k"))[0] == 401

            await until(refused)
            assert (await service.read(OBJECTS))[0] == 401
        finally:
            await api.request("PATCH", path, key="service", json={"visibility": "public"})
