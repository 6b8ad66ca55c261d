"""A misbehaving store: with refusals, resets, silence and very slow data no request hangs or returns half an
object."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve, frozen
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.web.client import ResponseFailed

from project_service.lifecycle import start
from project_service.settings.model import Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.logged import warnings_logged
from tests.live.proxy import BUSY, Manners, RudeProxy, rude_proxy
from tests.live.services import held_open
from tests.live.sql import run_sql
from tests.live.waiting import until, within

# The store client's time limits in this module; no request may take much longer than their sum.
IDLE_SECONDS = 4.0
CONNECT_SECONDS = 1.0
BOUND_SECONDS = 4 * (IDLE_SECONDS + CONNECT_SECONDS) + 2.0
PAYLOAD = os.urandom(400_000)
PART = 5 * 1024 * 1024


@frozen
class Rude:
    """A service whose store is behind the proxy."""

    api: Api
    proxy: RudeProxy

    async def put(self, key: str, payload: bytes = PAYLOAD) -> tuple[int, Any]:
        status, headers, _ = await self.api.request("PUT", path_of(key), key="service", data=payload)
        return status, headers

    async def get(self, key: str) -> tuple[int, Any, Any]:
        return await self.api.request("GET", path_of(key), key="service")

    async def rows(self) -> int:
        status, _, body = await self.api.request("GET", "/dev/db/main/rest/others", key="service")
        return len(body) if status == 200 else -status


def path_of(key: str) -> str:
    return f"/storage/buckets/private/objects/{key}"


@pytest.fixture(scope="module")
def rude(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rude]:
    run_sql(module_database, "create table public.others as select 1 as n")
    assert store_settings.endpoint_url is not None
    host, _, port = store_settings.endpoint_url.rpartition("/")[2].partition(":")
    directory = Path(tmp_path_factory.mktemp("rude"))
    stages = {"dev": Stage(databases={"main": StageDatabase(pool_size=2)})}
    with held_open(rude_proxy(f"tcp:{host}:{port}")) as (proxy, listens):
        store = evolve(
            store_settings,
            endpoint_url=f"http://127.0.0.1:{listens}",
            idle_timeout_seconds=IDLE_SECONDS,
            connect_timeout_seconds=CONNECT_SECONDS,
        )
        # A slow machine's statements are not to be among the warnings.
        slow = {"slow_query_seconds": 60.0}
        settings = settings_for(
            module_database, store, directory, storage={"part_bytes": PART}, database=slow
        )
        with held_open(serving(evolve(settings, stages=stages))) as api:
            yield Rude(api, proxy)
            proxy.manners = Manners()


@pytest.fixture(autouse=True)
def polite_again(rude: Rude) -> Iterator[None]:
    yield
    rude.proxy.manners = Manners()


async def bounded(waiting: Deferred[Any]) -> Any:
    """Fails if ``waiting`` takes longer than the configured timeouts allow."""
    return await within(BOUND_SECONDS, waiting)


def refused(status: int, headers: Any) -> bool:
    return status == 503 and bool(headers.hasHeader("Retry-After"))


async def holds(rude: Rude, key: str, payload: bytes = PAYLOAD) -> bool:
    status, _, body = await rude.get(key)
    return status == 200 and body == payload


@pytest_twisted.ensureDeferred
async def test_a_short_burst_of_503_is_hidden_by_retries(rude: Rude) -> None:
    rude.proxy.manners = Manners(answer=BUSY, times=2)
    assert (await rude.put("burst"))[0] == 201
    rude.proxy.manners = Manners(answer=BUSY, times=2)
    assert await holds(rude, "burst")
    assert rude.proxy.done == 2


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    "manners",
    [Manners(answer=BUSY), Manners(refuse=True), Manners(silent=True), Manners(dribble_down_after=0)],
    ids=["5xx", "refused", "silent", "a-byte-a-second"],
)
async def test_a_store_that_does_not_work_is_503_in_time(
    rude: Rude, manners: Manners, request: pytest.FixtureRequest
) -> None:
    """The other parts go on meanwhile, and afterwards storage works again by itself."""
    kept, new = (f"{name}-{request.node.callspec.id}" for name in ("kept", "new"))
    assert (await rude.put(kept))[0] == 201
    rude.proxy.manners = manners
    # Both requests are pending while the table API is asked.
    writing, reading = start(rude.put(new)), start(rude.get(kept))
    assert await rude.rows() == 1
    status, headers = await bounded(writing)
    assert refused(status, headers)
    status, headers, body = await bounded(reading)
    assert refused(status, headers)
    assert body["error"]["code"] == "store_unavailable"

    async def only_the_store_is_away() -> bool:
        ready, _, body = await bounded(start(rude.api.request("GET", "/ready", key=None)))
        assert ready == 503
        return list(body["error"]["details"]) == ["store"]

    # What else it asks may take longer than it waits on a busy machine.
    await until(only_the_store_is_away)
    rude.proxy.manners = Manners()
    assert await holds(rude, kept)
    assert (await rude.get(new))[0] == 404
    assert (await rude.put(new))[0] == 201
    assert await holds(rude, new)


@pytest_twisted.ensureDeferred
async def test_an_upload_that_is_reset_once_is_sent_again(rude: Rude) -> None:
    rude.proxy.manners = Manners(reset_up_after=200_000, times=1)
    assert (await rude.put("reset-once"))[0] == 201
    assert rude.proxy.done == 1
    assert await holds(rude, "reset-once")


@pytest_twisted.ensureDeferred
async def test_an_upload_in_parts_that_is_reset_goes_on(rude: Rude) -> None:
    payload = os.urandom(2 * PART + 1024)
    rude.proxy.manners = Manners(reset_up_after=3_000_000, times=2)
    assert (await rude.put("parts", payload))[0] == 201
    assert rude.proxy.done == 2
    assert await holds(rude, "parts", payload)


@pytest_twisted.ensureDeferred
async def test_an_upload_that_is_always_reset_leaves_the_old_object(rude: Rude) -> None:
    assert (await rude.put("old", b"old"))[0] == 201
    rude.proxy.manners = Manners(reset_up_after=200_000)
    status, headers = await bounded(start(rude.put("old")))
    assert refused(status, headers)
    rude.proxy.manners = Manners()
    assert await holds(rude, "old", b"old")


@pytest_twisted.ensureDeferred
async def test_a_download_reset_in_its_body_never_looks_complete(rude: Rude) -> None:
    assert (await rude.put("down"))[0] == 201
    rude.proxy.manners = Manners(reset_down_after=200_000, times=1)
    with pytest.raises(ResponseFailed), warnings_logged() as warned:
        await bounded(start(rude.get("down")))
    # One line without a traceback, since the fault is not the service's.
    assert [
        text for text in warned if text.startswith("streaming broke off: store_unavailable id=")
    ] == warned
    assert len(warned) == 1
    assert await holds(rude, "down")


class Reader(Protocol):
    """A client that reads a response as it arrives."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.read = b""

    def connectionMade(self) -> None:
        self._transport.write(self.request)

    def dataReceived(self, data: bytes) -> None:
        self.read += data

    def leave(self) -> None:
        self._transport.abortConnection()

    @property
    def _transport(self) -> Any:
        assert self.transport is not None
        return self.transport


@pytest_twisted.ensureDeferred
async def test_a_body_that_dribbles_delays_nobody_and_ends_with_its_reader(rude: Rude) -> None:
    from twisted.internet import reactor

    assert (await rude.put("slow"))[0] == 201
    rude.proxy.manners = Manners(dribble_down_after=200_000)
    lines = [f"GET {path_of('slow')} HTTP/1.1", "Host: h", f"X-Service-Key: {rude.api.service_key}", "", ""]
    reader: Any = await connectProtocol(
        TCP4ClientEndpoint(reactor, "127.0.0.1", rude.api.port), Reader("\r\n".join(lines).encode())
    )

    def dribbling() -> list[Any]:
        return [one for one in rude.proxy.open if one.dribbling is not None]

    await until(lambda: len(reader.read) > 150_000 and len(dribbling()) == 1)
    assert reader.read.startswith(b"HTTP/1.1 200 ")
    assert await rude.rows() == 1
    reader.leave()
    await until(lambda: not dribbling())
    rude.proxy.manners = Manners()
    assert await holds(rude, "slow")
