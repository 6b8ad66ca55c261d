"""Clients that leave or stall, and a store that is away: nothing accumulates or is left behind."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from datetime import timedelta
from typing import Any, cast

import pytest_twisted
from attrs import evolve
from twisted.internet.threads import deferToThread

from tests.live.application import serving
from tests.live.storage.service import MIB, Running, call, no_upload, nothing_left, raw, request_head
from tests.live.waiting import until
from tests.temporary import free_port


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
async def test_reads_of_the_store_end_when_a_client_leaves_or_stalls(running: Running) -> None:
    """One client hangs up in the middle, one reads nothing for the idle timeout. That is the one of another service:
    where the machine stands still for as long, uploads stall too."""
    payload = os.urandom(64 * MIB)
    put = await deferToThread(call, "PUT", running.url("large"), headers=running.headers(), data=payload)
    assert put.status_code == 201
    server = evolve(running.api.settings.server, idle_timeout_seconds=2.0)
    async with serving(evolve(running.api.settings, server=server)) as api:
        await leave_and_stall(Running(api, running.token, running.behind), len(payload))
    whole = await deferToThread(call, "GET", running.url("large"), headers=running.headers())
    assert hashlib.sha256(whole.content).digest() == hashlib.sha256(payload).digest()
    running_delete = await deferToThread(call, "DELETE", running.url("large"), headers=running.headers())
    assert running_delete.status_code == 204


async def leave_and_stall(running: Running, size: int) -> None:
    """Of an object of so many bytes."""

    def leave() -> None:
        with raw(running) as client:
            client.sendall(request_head(running, "GET", running.url("large")))
            assert len(client.recv(65536)) > 0

    def stall() -> int:
        """A client that reads nothing until the service has closed the connection. What it then gets is
        incomplete."""
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
    await until(lambda: not edge.requests)
    stalled = deferToThread(stall)
    await until(lambda: bool(edge.requests))
    await until(lambda: not edge.requests)
    gone.set()
    assert await stalled < size


@pytest_twisted.ensureDeferred
async def test_a_store_that_is_away_is_503_and_works_again_later(running: Running) -> None:
    """Both while no process listens on its port and while one listens but does not answer."""
    from twisted.internet import reactor
    from twisted.protocols.portforward import ProxyFactory

    store = running.api.settings.store
    assert store.endpoint_url is not None
    host, port = store.endpoint_url.removeprefix("http://").split(":")
    free = free_port()
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
            return await tries() == [200, 200, 200]

        await until(back)
        await proxy.stopListening()
    await until(lambda: _swept(running))


async def _swept(running: Running) -> bool:
    """Runs the sweeper, which removes what could not be deleted before. Returns whether nothing is left."""
    await running.behind.sweeper.sweep(timedelta(0))
    return await nothing_left(running)
