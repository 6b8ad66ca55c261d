"""The contract of the store, for the fake, for SeaweedFS, and for moto's server with path-style and virtual-hosted
addresses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.threads import deferToThread

from project_service.settings.model import Secret
from project_service.settings.model import Store as StoreSettings
from project_service.storage.s3.client import S3Store, connect_store
from project_service.storage.s3.connection import ConnectionPool
from project_service.storage.s3.errors import NoSuchObject, StoreUnreachable
from project_service.storage.s3.requests import RetryingClient, Sender
from project_service.storage.s3.signing import Address, Signer
from tests.fakes.store import Collected, MemoryStore
from tests.live.services import wait

PART = 5 * 1024 * 1024


def utc_now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def moto() -> Iterator[tuple[str, int]]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield server.get_host_and_port()
    server.stop()


def virtual_store(reactor: Any, host: str, port: int) -> S3Store:
    """Connects to this server whatever host the address names, as DNS would do for virtual hosts."""
    address = Address(f"http://s3.amazonaws.com:{port}", "virtual-one", "virtual")
    pool = ConnectionPool(reactor, TCP4ClientEndpoint(reactor, host, port), 5)
    sender = Sender(pool, reactor, address, Signer("test", "test"), utc_now)
    return S3Store(RetryingClient(sender, reactor, 30, 5), deferToThread)


@pytest.fixture(params=["memory", "seaweedfs", "moto", "moto-virtual"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    from twisted.internet import reactor

    if request.param == "memory":
        yield MemoryStore()
        return
    made: S3Store
    if request.param == "seaweedfs":
        made = connect_store(reactor, request.getfixturevalue("store_settings"))
    else:
        host, port = request.getfixturevalue("moto")
        settings = StoreSettings(
            endpoint_url=f"http://{host}:{port}",
            bucket="path-one",
            access_key_id="test",
            secret_access_key=Secret("test"),
        )
        made = connect_store(reactor, settings)
        if request.param == "moto-virtual":
            made = virtual_store(reactor, host, port)
    wait(made.ensure_bucket)
    yield made

    async def emptied() -> None:
        while entries := (await made.list()).objects:
            await made.delete_many([entry.key for entry in entries])
        for one in await made.list_multiparts():
            await made.abort_multipart(one.key, one.upload_id)
        await made.close()

    wait(emptied)


async def read(store: Any, key: str, first: int, length: int, whole: int) -> bytes:
    sink = Collected()
    await (await store.open(key, first, length, whole)).pipe_to(sink)
    return bytes(sink.data)


@pytest_twisted.ensureDeferred
async def test_put_stat_open_and_delete(store: Any) -> None:
    etag = await store.put("b/one", b"hello", "text/x-odd", {"key": "a%20b"})
    assert etag == "5d41402abc4b2a76b9719d911017c592"
    stat = await store.stat("b/one")
    assert (stat.size, stat.etag, stat.content_type) == (5, etag, "text/x-odd")
    assert await read(store, "b/one", 0, 5, 5) == b"hello"
    assert await read(store, "b/one", 1, 3, 5) == b"ell"
    assert await read(store, "b/one", 4, 1, 5) == b"o"
    stream = await store.open("b/one", 1, 3, 5)
    assert stream.buffered() in (None, b"ell")
    stream.close()
    await store.put("b/one", b"", "text/plain", {})
    assert (await store.stat("b/one")).size == 0
    assert await read(store, "b/one", 0, 0, 0) == b""
    await store.delete("b/one")
    await store.delete("b/one")
    for work in (store.stat("b/one"), store.open("b/one", 0, 5, 5)):
        with pytest.raises(NoSuchObject):
            await work


@pytest_twisted.ensureDeferred
async def test_a_multipart_upload(store: Any) -> None:
    parts: list[bytes | bytearray] = [os.urandom(PART), bytearray(os.urandom(PART)), b"end"]
    upload_id = await store.start_multipart("b/big", "image/png", {})
    assert [(one.key, one.upload_id) for one in await store.list_multiparts()] == [("b/big", upload_id)]
    with pytest.raises(NoSuchObject):
        await store.stat("b/big")
    etags = [await store.put_part("b/big", upload_id, number, part) for number, part in enumerate(parts, 1)]
    etag = await store.complete_multipart("b/big", upload_id, etags)
    assert etag.endswith("-3")
    stat = await store.stat("b/big")
    assert (stat.size, stat.etag, stat.content_type) == (2 * PART + 3, etag, "image/png")
    assert await read(store, "b/big", 0, stat.size, stat.size) == b"".join(parts)
    assert await read(store, "b/big", PART - 1, 2, stat.size) == bytes([parts[0][-1], parts[1][0]])
    assert await store.list_multiparts() == ()
    # If the response to the first try was lost, the second finds the upload complete.
    assert await store.complete_multipart("b/big", upload_id, etags) == etag


@pytest_twisted.ensureDeferred
async def test_an_aborted_multipart_upload_leaves_nothing(store: Any) -> None:
    upload_id = await store.start_multipart("b/gone", "a/b", {})
    await store.put_part("b/gone", upload_id, 1, b"x")
    await store.abort_multipart("b/gone", upload_id)
    await store.abort_multipart("b/gone", upload_id)
    assert await store.list_multiparts() == ()
    # moto responds with 500 here, which is retried and then given up.
    with pytest.raises((NoSuchObject, StoreUnreachable)):
        await store.complete_multipart("b/gone", upload_id, ["x"])


@pytest_twisted.ensureDeferred
async def test_a_copy(store: Any) -> None:
    await store.put("b/from", b"hello", "text/plain", {})
    etag = await store.copy("b/from", "c/to")
    stat = await store.stat("c/to")
    assert (stat.size, stat.etag) == (5, etag)
    assert await read(store, "c/to", 0, 5, 5) == b"hello"
    with pytest.raises(NoSuchObject):
        await store.copy("b/none", "c/none")


@pytest_twisted.ensureDeferred
async def test_a_copy_in_parts(store: Any) -> None:
    payload = os.urandom(PART) + b"end"
    await store.put("b/from", payload, "image/png", {})
    upload_id = await store.start_multipart("c/to", "image/png", {})
    etags = [
        await store.copy_part("b/from", "c/to", upload_id, 1, 0, PART - 1),
        await store.copy_part("b/from", "c/to", upload_id, 2, PART, PART + 2),
    ]
    etag = await store.complete_multipart("c/to", upload_id, etags)
    stat = await store.stat("c/to")
    assert (stat.size, stat.etag, stat.content_type) == (len(payload), etag, "image/png")
    assert await read(store, "c/to", 0, len(payload), len(payload)) == payload
    assert await store.list_multiparts() == ()


@pytest_twisted.ensureDeferred
async def test_list_and_delete_many(store: Any) -> None:
    names = [f"l/{number:02}" for number in range(7)]
    await gatherResults([Deferred.fromCoroutine(store.put(name, b"x", "a/b", {})) for name in names])
    await store.put("m/other", b"xx", "a/b", {})
    entries, token, pages = [], None, 0
    while True:
        page = await store.list("l/", token, 3)
        assert len(page.objects) <= 3
        entries += [(entry.key, entry.size) for entry in page.objects]
        token, pages = page.next_token, pages + 1
        if token is None:
            break
    assert entries == [(name, 1) for name in names]
    assert pages >= 3
    assert await store.delete_many([*names, "l/none"]) == ()
    assert [entry.key for entry in (await store.list()).objects] == ["m/other"]


@pytest_twisted.ensureDeferred
async def test_many_objects_at_once(store: Any) -> None:
    """There are more requests than the pool keeps connections; each gets its own bytes."""

    async def there_and_back(number: int) -> None:
        payload = f"object {number}".encode() * 1000
        await store.put(f"n/{number}", payload, "a/b", {})
        assert await read(store, f"n/{number}", 0, len(payload), len(payload)) == payload

    await gatherResults([Deferred.fromCoroutine(there_and_back(number)) for number in range(80)])


@pytest_twisted.ensureDeferred
async def test_keys_with_special_characters_are_signed_as_sent(store: Any) -> None:
    key = "we ird/ä~'()*!$&+,;=:@%2F?#[]\u202e😀"
    await store.put(key, b"x", "a/b", {})
    assert (await store.stat(key)).size == 1
    assert [entry.key for entry in (await store.list("we ird/")).objects] == [key]
    await store.delete(key)


@pytest_twisted.ensureDeferred
async def test_keys_that_xml_cannot_hold_are_listed(store: Any) -> None:
    """Such keys can be in a bucket that is imported."""
    keys = ["odd/a +%2B", "odd/\x01\x1f", "odd/b\x7f"]
    for key in keys:
        await store.put(key, b"x", "a/b", {})
    entries = [entry.key for entry in (await store.list("odd/")).objects]
    assert entries == sorted(keys)
    for key in keys:
        await store.delete(key)


@pytest_twisted.ensureDeferred
async def test_the_bucket_is_created_in_the_configured_region(moto: tuple[str, int]) -> None:
    """Like AWS, moto wants to be told the region everywhere but in us-east-1, and there it must not be told."""
    from twisted.internet import reactor

    for region in ("us-east-1", "eu-west-1"):
        settings = StoreSettings(
            endpoint_url="http://{}:{}".format(*moto),
            region=region,
            bucket=f"made-in-{region}",
            access_key_id="test",
            secret_access_key=Secret("test"),
        )
        made = connect_store(reactor, settings)
        await made.ensure_bucket()
        await made.ensure_bucket()
        await made.put("k", b"x", "a/b", {})
        await made.delete("k")
        await made.close()
