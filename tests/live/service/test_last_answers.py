"""Clients that are refused read the reason although they are still sending, and all connections are closed in the
end."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest_twisted
from twisted.internet.threads import deferToThread

from project_service.settings.model import Store
from tests.certificates import issue
from tests.live.application import Api, serving, settings_for

MOST_CONNECTIONS = 2
TIMEOUT_SECONDS = 30


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)


def begin_upload(client: socket.socket, api: Api) -> None:
    head = (
        "PUT /storage/buckets/public/objects/a HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n"
        f"Expect: 100-continue\r\nX-Service-Key: {api.service_key}\r\n\r\n"
    )
    client.sendall(head.encode())
    assert client.recv(4096).startswith(b"HTTP/1.1 100 ")


def send_a_head_without_end(port: int) -> None:
    with connected(port) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost: a\r\nX: ")
        for _ in range(150):
            client.sendall(b"x" * 20_000)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 431 "), answer


def come_when_there_is_no_room(api: Api, secure_port: int) -> None:
    with ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS):
            begin_upload(stack.enter_context(connected(api.port)), api)
        refused = stack.enter_context(connected(api.port))
        assert refused.recv(4096).startswith(b"HTTP/1.1 503 ")
        silent = stack.enter_context(connected(secure_port))
        with suppress(ConnectionResetError):  # as good an end as any
            assert silent.recv(4096) == b""


@pytest_twisted.ensureDeferred
async def test_refusals_reach_clients_that_still_send_and_connections_are_closed(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    cert, key = issue("localhost").written(tmp_path)
    plain = "tcp:0:interface=127.0.0.1"
    secure = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={cert}"
    server = {"listen": (plain, secure), "max_connections": MOST_CONNECTIONS}
    async with serving(settings_for(database, store_settings, tmp_path, server=server)) as api:
        await deferToThread(send_a_head_without_end, api.port)
        await deferToThread(come_when_there_is_no_room, api, api.application.addresses[1].port)
