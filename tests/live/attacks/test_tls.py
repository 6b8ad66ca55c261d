"""The TLS listener with a real chain: root, intermediate, server. Clients know the root and nothing else."""

from __future__ import annotations

import socket
import ssl
import warnings
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from project_service.settings.model import Store
from tests.certificates import issue
from tests.live.application import serving, settings_for

WEAK_CIPHERS = (
    "aNULL",
    "eNULL",
    "EXPORT",
    "RC4",
    "3DES",
    "MD5",
    "PSK",
    "CAMELLIA",
    "AES128-SHA",
    "AES256-SHA256",
)


def trusting(root: Path | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(root) if root else None)


def asked(port: int, context: ssl.SSLContext, name: str = "localhost") -> tuple[str, bytes]:
    """Returns the protocol that was negotiated and the beginning of the response."""
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain, server_hostname=name) as client,
    ):
        client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b""
        while piece := client.recv(4096):
            answer += piece
        return client.version() or "", answer


def weakened(root: Path, **changes: object) -> ssl.SSLContext:
    """A TLS context that accepts insecure protocols, so that it is the server that has to refuse them."""
    context = trusting(root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.set_ciphers("ALL:@SECLEVEL=0")
        for name, value in changes.items():
            setattr(context, name, value)
    return context


def try_everything(port: int, root: Path) -> None:
    good = trusting(root)
    assert asked(port, good)[0] == "TLSv1.3"
    assert asked(port, good)[1].startswith(b"HTTP/1.1 200 OK\r\n")
    good.maximum_version = ssl.TLSVersion.TLSv1_2
    assert asked(port, good)[0] == "TLSv1.2"

    for offered in (["h2", "http/1.1"], ["http/1.1", "http/1.0"], ["http/1.0"]):
        choosing = trusting(root)
        choosing.set_alpn_protocols(offered)
        assert asked(port, choosing)[1].startswith(b"HTTP/1.1 200 OK\r\n"), offered

    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        asked(port, trusting(root), "other.test")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get|self-signed"):
        asked(port, trusting(None))

    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            asked(port, weakened(root, minimum_version=version, maximum_version=version))
    tried = 0
    for ciphers in ("ECDHE-ECDSA-AES128-GCM-SHA256", *WEAK_CIPHERS):
        weak = weakened(root, maximum_version=ssl.TLSVersion.TLSv1_2)
        try:
            weak.set_ciphers(f"{ciphers}:@SECLEVEL=0")
        except ssl.SSLError:
            continue  # this OpenSSL has forgotten them itself
        if ciphers not in WEAK_CIPHERS:
            assert asked(port, weak)[0] == "TLSv1.2"
            continue
        tried += 1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            asked(port, weak)
    assert tried > 3

    # A stalled handshake is given up.
    with ExitStack() as held:
        stalled = []
        for begun in (b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 32):
            stalled.append(held.enter_context(socket.create_connection(("127.0.0.1", port), 60)))
            stalled[-1].sendall(begun)
        for plain in stalled:
            with suppress(ConnectionError):
                assert plain.recv(4096) == b""

    # A client that speaks HTTP without TLS gets no HTTP response.
    with socket.create_connection(("127.0.0.1", port), 60) as plain:
        plain.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1" not in plain.recv(4096)


@pytest.mark.parametrize("files", ["two", "one"])
@pytest_twisted.ensureDeferred
async def test_the_whole_chain_is_sent_and_weak_protocols_are_refused(
    files: str, database: str, store_settings: Store, tmp_path: Path
) -> None:
    """The chain is in a file of its own, as Twisted wants it, or behind the certificate, as authorities hand it
    out."""
    root = issue("Root")
    intermediate = issue("Intermediate", root)
    server = issue("localhost", intermediate, authority=False)
    paths = {name: tmp_path / f"{name}.pem" for name in ("root", "chain", "server", "key")}
    paths["root"].write_bytes(root.pem)
    paths["chain"].write_bytes(intermediate.pem)
    paths["server"].write_bytes(server.pem + (intermediate.pem if files == "one" else b""))
    paths["key"].touch(0o600)
    paths["key"].write_bytes(server.key_pem)
    endpoint = f"ssl:0:interface=127.0.0.1:privateKey={paths['key']}:certKey={paths['server']}"
    if files == "two":
        endpoint += f":extraCertChain={paths['chain']}"
    # Longer than a busy machine stands still in the middle of a handshake that is none of the stalled ones.
    on_server = {"listen": (endpoint,), "idle_timeout_seconds": 5.0}
    settings = settings_for(database, store_settings, tmp_path, server=on_server)
    async with serving(settings) as api:
        await deferToThread(try_everything, api.port, paths["root"])
