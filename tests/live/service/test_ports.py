"""Opening and closing ports, and accepting connections on one that several processes share."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed
from twisted.internet.endpoints import _SystemdParser
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.python.systemd import ListenFDs

from project_service.certificates import Certificates
from project_service.http.health import NotReady
from project_service.network import BACKLOG, CannotListen, bind_endpoints, close, leave, take_turns
from project_service.settings.model import Store
from project_service.workers.worker import adopt
from tests.certificates import issue
from tests.live.application import serving, settings_for
from tests.live.logged import LoggedErrors

reactor: Any = installed
LOOPBACK = "tcp:0:interface=127.0.0.1"


class Counting(Factory):
    met = 0

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        self.met += 1
        return Protocol()


@pytest_twisted.ensureDeferred
async def test_one_client_is_accepted_in_each_turn_of_the_reactor() -> None:
    factory = Counting()
    port = reactor.listenTCP(0, factory, interface="127.0.0.1")
    take_turns(port)
    port.stopReading()  # the turns are taken by hand
    clients = [socket.create_connection(("127.0.0.1", port.getHost().port)) for _ in range(5)]
    for turn in range(1, 6):
        port.doRead()
        assert factory.met == turn
    for client in clients:
        client.close()
    await port.stopListening()


def _queue(port: Any) -> int:
    """The length of a listening socket's queue (``tcp_info.tcpi_sacked``)."""
    return int(
        struct.unpack_from("I", port.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)[0]
    )


def _longest_queue() -> int:
    return int(Path("/proc/sys/net/core/somaxconn").read_text())


@pytest_twisted.ensureDeferred
async def test_a_backlog_is_as_long_as_the_endpoint_says_or_else_long() -> None:
    lengths = (LOOPBACK, f"{LOOPBACK}:backlog=7")
    ports: list[Any] = await bind_endpoints(reactor, lengths)(Factory())
    assert [_queue(port) for port in ports] == [min(BACKLOG, _longest_queue()), 7]
    for port in ports:
        await close(port)


@asynccontextmanager
async def _shared(endpoint: str) -> AsyncIterator[list[Any]]:
    """A port that a parent opens, and those of two workers that adopt it. None accepts connections."""
    (port,) = await bind_endpoints(reactor, [endpoint])(Factory())
    opened: list[Any] = [port]
    for _ in range(2):
        opened += await adopt(reactor, [endpoint], os.dup(opened[0].fileno()), Certificates())(Factory())
    for port in opened:
        port.stopReading()
    yield opened
    for port in reversed(opened):
        await close(port)


@pytest_twisted.ensureDeferred
async def test_a_unix_socket_stays_while_workers_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with _shared(f"unix:{path}:mode=600") as opened:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await close(opened.pop())
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


@pytest_twisted.ensureDeferred
async def test_workers_can_accept_until_they_are_told_to_end() -> None:
    """The parent closes its ports first. A worker that was just accepting would log an error."""
    async with _shared(LOOPBACK) as opened:
        address, (accepting, _) = opened[0].getHost(), [port.socket for port in opened[1:]]
        await leave(opened.pop(0))
        with socket.create_connection((address.host, address.port), 5):
            accepting.setblocking(True)
            accepted, _ = accepting.accept()
            accepted.close()


@pytest.mark.parametrize("endpoint", ["tcp:0:interface=127.0.0.1", "unix:{directory}/s"])
@pytest_twisted.ensureDeferred
async def test_workers_accept_one_connection_at_a_time_and_leave_nothing_open(
    endpoint: str, tmp_path: Path
) -> None:
    """While they finish what is under way, nobody is to be connected and then wait for nothing."""
    before = _sockets()
    async with _shared(endpoint.format(directory=tmp_path)) as (_, *adopted):
        assert [port.numberAccepts for port in adopted] == [1, 1]
    # Those of earlier tests may be closed meanwhile.
    assert _sockets() - before == set()


def _sockets() -> set[str]:
    """The sockets of this process, by numbers that no two have."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            found.add(str(one.readlink()))
    return {name for name in found if name.startswith("socket:")}


@pytest_twisted.ensureDeferred
async def test_a_unix_socket_of_systemds_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is root's as a rule, which the service may neither open to others nor remove."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as systemds, socket.socket(socket.AF_UNIX) as client:
        systemds.bind(str(path))
        path.chmod(0o600)
        systemds.listen()
        monkeypatch.setattr(_SystemdParser, "_sddaemon", ListenFDs([os.dup(systemds.fileno())]))
        async with _shared("systemd:domain=UNIX:index=0") as opened:
            # Otherwise a process would stand still when another was faster in accepting the connection.
            assert not any(os.get_blocking(port.fileno()) for port in opened)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        # Afterwards systemd still accepts, and starts the service again.
        client.connect(str(path))


@pytest.mark.parametrize(("asked", "length"), [("", 200), (":backlog=7", 8)])
@pytest_twisted.ensureDeferred
async def test_the_backlog_of_a_unix_socket_is_as_long_with_workers(
    tmp_path: Path, asked: str, length: int
) -> None:
    path, waiting = tmp_path / "s", 0
    async with _shared(f"unix:{path}{asked}"):
        with ExitStack() as kept:
            for _ in range(200):
                client = kept.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                waiting += client.connect_ex(str(path)) == 0
    assert waiting == min(length, _longest_queue() + 1)


@pytest_twisted.ensureDeferred
async def test_all_ports_are_opened_or_none_and_the_error_shows_no_key_file(tmp_path: Path) -> None:
    first = tmp_path / "first"
    certificate, key = issue("localhost").written(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        second = f"ssl:{taken.getsockname()[1]}:interface=127.0.0.1:certKey={certificate}"
        with pytest.raises(CannotListen) as caught:
            await bind_endpoints(reactor, (f"unix:{first}", f"{second}:privateKey={key}"))(Factory())
    assert str(caught.value) == f"cannot listen on {second}: Address already in use"
    assert not first.exists()


@pytest_twisted.ensureDeferred
async def test_a_port_that_fails_to_close_does_not_stop_the_shutdown(
    database: str, store_settings: Store, tmp_path: Path, logged_errors: LoggedErrors
) -> None:
    """For instance because its socket file was deleted; what comes after it is stopped all the same."""
    path = tmp_path / "s"
    listen = ("tcp:0:interface=127.0.0.1", f"unix:{path}")
    async with serving(settings_for(database, store_settings, tmp_path, server={"listen": listen})) as api:
        assert (await api.request("GET", "/ready", key=None))[0] == 200
        path.unlink()
    assert len(logged_errors.flush("a port did not close cleanly")) == 1
    with pytest.raises(NotReady, match="database"):
        await api.application.check_ready(5.0)
