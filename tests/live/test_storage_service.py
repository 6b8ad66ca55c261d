"""Storage as its users have it: real sockets, PostgreSQL and SeaweedFS, real clients."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_twisted
import requests
from attrs import evolve, frozen
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from project_service.database.pool import Pool
from project_service.parts import connector
from project_service.settings import Store
from project_service.storage.assemble import Storage, assemble
from tests.live.application import Api, serving, settings_for
from tests.live.services import wait

MIB = 1024 * 1024


def call(method: str, url: str, **more: Any) -> requests.Response:
    """A request that does not wait for ever."""
    return requests.request(method, url, timeout=30, **more)


@frozen
class Running:
    """The service, a signed-in user, and its storage seen from behind."""

    api: Api
    token: str
    behind: Storage

    def headers(self, signed_in: bool = True) -> dict[str, str]:
        sent = {"X-Service-Key": self.api.anon_key}
        return {**sent, "Authorization": f"Bearer {self.token}"} if signed_in else sent

    def url(self, key: str = "", bucket: str = "private") -> str:
        base = f"{self.api.base_url}/storage/buckets/{bucket}/objects"
        return f"{base}/{key}" if key else base

    def admin(self, method: str, path: str, **more: Any) -> requests.Response:
        headers = {"X-Service-Key": self.api.service_key}
        return requests.request(
            method, timeout=60, url=f"{self.api.base_url}/admin/buckets{path}", headers=headers, **more
        )


@pytest.fixture(scope="module")
def running(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    from twisted.internet import reactor

    data_dir = Path(tmp_path_factory.mktemp("storage"))
    short = {"idle_timeout_seconds": 2.0}
    settings = settings_for(module_database, store_settings, data_dir, server=short)
    context = serving(settings)
    api = wait(context.__aenter__)
    pool = Pool(connector(reactor, settings), 2, 5.0, reactor)
    behind = assemble(reactor, settings.storage, settings.store, pool)

    async def signed_up() -> str:
        return str((await api.sign_up("storage@example.test"))["access_token"])

    yield Running(api, wait(signed_up), behind)
    wait(behind.stop)
    wait(pool.close)
    wait(lambda: context.__aexit__(None, None, None))


async def until(condition: Callable[[], Any]) -> None:
    """Returns once ``condition`` (awaited where it has to be) holds."""
    from twisted.internet import reactor

    deadline = reactor.seconds() + 30
    while not await condition():
        assert reactor.seconds() < deadline, "it never came to that"
        await deferLater(reactor, 0.05, lambda: None)


async def nothing_left(running: Running) -> bool:
    """The store holds exactly what rows point at, and no upload is open."""
    report = await running.behind.sweeper.verify()
    assert report.sound
    store, rows = running.behind.objects.store, running.behind.objects.garbage
    known = {row.path for row in await rows.objects_from(None, 1000)}
    held = {entry.key for entry in (await store.list()).objects if not entry.key.startswith(".")}
    return known == held and await store.list_multiparts() == () and await rows.garbage(10) == []


async def no_upload(running: Running) -> bool:
    return await running.behind.objects.garbage.stale_uploads(timedelta(0), 10) == []


@pytest_twisted.ensureDeferred
async def test_a_large_file_there_and_back(running: Running, tmp_path: Path) -> None:
    payload = os.urandom(20 * MIB + 12345)
    (tmp_path / "großes bild.png").write_bytes(payload)

    def session() -> None:
        with (tmp_path / "großes bild.png").open("rb") as file:
            sent = call(
                "POST",
                running.url(),
                headers=running.headers(),
                files={"file": file},
                data={"key": "b/großes bild.png"},
            )
        assert sent.status_code == 201, sent.text
        assert sent.json()["size"] == len(payload)
        assert sent.json()["content_type"] == "image/png"
        got = call("GET", running.url("b/großes bild.png"), headers=running.headers())
        assert got.content == payload
        assert got.headers["ETag"] == f'"{sent.json()["etag"]}"'
        part = call(
            "GET",
            running.url("b/großes bild.png"),
            headers={**running.headers(), "Range": "bytes=8388600-8388620"},
        )
        assert (part.status_code, part.content) == (206, payload[8388600:8388621])
        listed = call("GET", running.url(), headers=running.headers(), params={"prefix": "b/"}).json()
        assert [entry["key"] for entry in listed["objects"]] == ["b/großes bild.png"]
        gone = call("DELETE", running.url("b/großes bild.png"), headers=running.headers())
        assert (gone.status_code, gone.content) == (204, b"")

    await deferToThread(session)
    assert await nothing_left(running)


@pytest_twisted.ensureDeferred
async def test_curl(running: Running, tmp_path: Path) -> None:
    """As in the README: -F, -T from a pipe (chunked), and a signed link without any header."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    payload = os.urandom(9 * MIB)
    (tmp_path / "picture.jpg").write_bytes(payload)
    headers = [word for name, value in running.headers().items() for word in ("-H", f"{name}: {value}")]

    def curl(*words: str, **more: Any) -> bytes:
        done = subprocess.run(["curl", "-sSf", *words], capture_output=True, check=True, timeout=60, **more)
        return bytes(done.stdout)

    def session() -> None:
        curl(*headers, "-F", f"file=@{tmp_path}/picture.jpg", "-H", "Expect: 100-continue", running.url())
        curl(*headers, "-T", "-", running.url("piped"), input=payload)
        assert curl(*headers, running.url("picture.jpg")) == payload
        assert curl(*headers, running.url("piped")) == payload
        presign = f"{running.api.base_url}/storage/buckets/private/presign"
        link = call("POST", presign, headers=running.headers(), json={"key": "picture.jpg"}).json()["url"]
        assert curl(link) == payload

    await deferToThread(session)


@pytest_twisted.ensureDeferred
async def test_fifty_at_once_on_one_link(running: Running) -> None:
    def session() -> list[tuple[int, bytes]]:
        put = call("PUT", running.url("once"), headers=running.headers(), data=b"x" * 100_000)
        assert put.status_code in (200, 201)
        presign = f"{running.api.base_url}/storage/buckets/private/presign"
        link = call("POST", presign, headers=running.headers(), json={"key": "once"}).json()["url"]
        gate = threading.Barrier(50)

        def one(_: int) -> tuple[int, bytes]:
            gate.wait()
            response = call("GET", link)
            return response.status_code, response.content

        with ThreadPoolExecutor(50) as threads:
            return list(threads.map(one, range(50)))

    answers = await deferToThread(session)
    assert sorted(status for status, _ in answers) == [200] + [410] * 49
    assert [len(body) for status, body in answers if status == 200] == [100_000]


@pytest_twisted.ensureDeferred
async def test_a_quota_holds_when_many_write_at_once(running: Running) -> None:
    def session() -> list[int]:
        made = running.admin("POST", "", json={"name": "quota", "max_bucket_bytes": 1_000_000})
        assert made.status_code == 201

        def one(number: int) -> int:
            url = running.url(f"k{number}", "quota")
            return call("PUT", url, headers=running.headers(), data=b"x" * 300_000).status_code

        with ThreadPoolExecutor(12) as threads:
            return list(threads.map(one, range(12)))

    statuses = await deferToThread(session)
    assert sorted(statuses) == [201] * 3 + [413] * 9
    bucket = await running.behind.buckets.fresh("quota")
    assert (bucket.object_count, bucket.total_bytes) == (3, 900_000)
    assert await nothing_left(running)
    assert (await deferToThread(running.admin, "DELETE", "/quota?force=true")).status_code == 204


def raw(running: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.api.port))


def request_head(running: Running, method: str, url: str, *lines: str) -> bytes:
    path = url.removeprefix(running.api.base_url)
    sent = [f"{name}: {value}" for name, value in running.headers().items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *sent, *lines, "", ""]).encode()


@pytest_twisted.ensureDeferred
async def test_an_upload_that_breaks_off_leaves_nothing(running: Running) -> None:
    def session() -> None:
        for size in (1000, 9 * MIB, 18 * MIB):
            with raw(running) as client:
                client.sendall(
                    request_head(running, "PUT", running.url("broken"), "Content-Length: 99999999")
                )
                client.sendall(b"x" * size)

    await deferToThread(session)
    await until(lambda: no_upload(running))
    await until(lambda: nothing_left(running))
    missing = await deferToThread(call, "GET", running.url("broken"), headers=running.headers())
    assert missing.status_code == 404


@pytest_twisted.ensureDeferred
async def test_a_refused_upload_is_answered_before_its_body(running: Running) -> None:
    def session() -> bytes:
        with raw(running) as client:
            head = request_head(running, "PUT", running.url("k", "none"), "Content-Length: 99999999")
            client.sendall(head.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
            return client.recv(65536)

    answer = await deferToThread(session)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"100 Continue" not in answer


@pytest_twisted.ensureDeferred
async def test_a_reader_that_leaves_or_stalls(running: Running) -> None:
    """One hangs up in the middle, one reads nothing for the idle timeout: both reads of the store end."""
    payload = os.urandom(64 * MIB)
    put = await deferToThread(call, "PUT", running.url("large"), headers=running.headers(), data=payload)
    assert put.status_code == 201

    def leave() -> None:
        with raw(running) as client:
            client.sendall(request_head(running, "GET", running.url("large")))
            assert len(client.recv(65536)) > 0

    def stall() -> int:
        """Reads nothing until the service has closed the connection; what comes then is short."""
        with raw(running) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(request_head(running, "GET", running.url("large")))
            gone.wait(30)
            received = 0
            try:
                while data := client.recv(MIB):
                    received += len(data)
            except ConnectionResetError:
                pass
            return received

    gone = threading.Event()
    (edge,) = running.api.application._edges
    await deferToThread(leave)
    await until(lambda: _true(not edge._running))
    stalled = deferToThread(stall)
    await until(lambda: _true(bool(edge._running)))
    await until(lambda: _true(not edge._running))
    gone.set()
    assert await stalled < len(payload)
    whole = await deferToThread(call, "GET", running.url("large"), headers=running.headers())
    assert hashlib.sha256(whole.content).digest() == hashlib.sha256(payload).digest()
    running_delete = await deferToThread(call, "DELETE", running.url("large"), headers=running.headers())
    assert running_delete.status_code == 204


async def _true(value: bool) -> bool:
    return value


@pytest_twisted.ensureDeferred
async def test_overwriting_while_others_read(running: Running) -> None:
    """Every answer is one version, whole, whatever is written meanwhile."""
    bodies = {bytes([letter]) * 200_000 for letter in b"abcdefgh"}

    def session() -> None:
        def write(body: bytes) -> int:
            return call("PUT", running.url("busy"), headers=running.headers(), data=body).status_code

        def read(_: int) -> bytes:
            response = call("GET", running.url("busy"), headers=running.headers())
            assert response.status_code == 200, response.text
            return response.content

        write(next(iter(bodies)))
        with ThreadPoolExecutor(8) as threads:
            reads = threads.map(read, range(60))
            writes = threads.map(write, [*bodies, *bodies])
            assert set(reads) <= bodies
            assert set(writes) == {200}

    await deferToThread(session)
    await until(lambda: nothing_left(running))


@pytest_twisted.ensureDeferred
async def test_a_store_that_is_away_and_comes_back(running: Running) -> None:
    """503 in time while nobody answers, and while somebody listens but says nothing; then it works again."""
    from twisted.internet import reactor
    from twisted.protocols.portforward import ProxyFactory

    store = running.api.settings.store
    assert store.endpoint_url is not None
    host, port = store.endpoint_url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    away = evolve(
        store, endpoint_url=f"http://127.0.0.1:{free}", connect_timeout_seconds=1.0, idle_timeout_seconds=1.0
    )
    settings = evolve(running.api.settings, store=away)
    body = b"some bytes"
    kept = await deferToThread(call, "PUT", running.url("kept"), headers=running.headers(), data=body)
    assert kept.status_code == 201
    async with serving(settings) as api:

        async def tries() -> list[int]:
            put = await api.request("PUT", "/storage/buckets/public/objects/k", key="service", data=body)
            got = await api.request("GET", "/storage/buckets/private/objects/kept", key="service")
            ready = await api.request("GET", "/ready", key=None)
            for status, headers, answer in (put, got):
                if status == 503:
                    assert answer["error"]["code"] == "store_unavailable"
                    assert headers.hasHeader("retry-after")
            return [put[0], got[0], ready[0]]

        assert await tries() == [503, 503, 503]
        silent = socket.create_server(("127.0.0.1", free))
        assert await tries() == [503, 503, 503]
        silent.close()
        proxy = cast(Any, reactor).listenTCP(free, ProxyFactory(host, int(port)), interface="127.0.0.1")

        async def back() -> bool:
            return (await tries())[1:] == [200, 200]

        await until(back)
        assert await tries() == [200, 200, 200]
        await proxy.stopListening()
    await until(lambda: _swept(running))


async def _swept(running: Running) -> bool:
    """What the store could not be told is the sweeper's."""
    await running.behind.sweeper.sweep(timedelta(0))
    return await nothing_left(running)
