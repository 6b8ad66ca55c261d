"""The store client against a server that misbehaves on purpose: retries, timeouts, TLS, what must not pass."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from hashlib import md5
from ipaddress import IPv4Address
from typing import Any, cast

import pytest
import pytest_twisted
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from twisted.internet import ssl
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from project_service.settings import Secret, Store
from project_service.storage.errors import translate
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.connect import connect
from project_service.storage.s3.errors import (
    BrokenRead,
    CorruptTransfer,
    NoSuchObject,
    ReaderLeft,
    StoreError,
    StoreUnreachable,
)
from tests.contracts.test_store_bytes import Collected

Answer = Callable[["Scripted", str, dict[str, str], bytes], None]


class Scripted(Protocol):
    """An HTTP server that answers each request with the next entry of its factory's script."""

    factory: Script

    def connectionMade(self) -> None:
        self.buffer = b""
        self.factory.connections += 1
        self.factory.open.append(self)

    def connectionLost(self, reason: Any = None) -> None:
        self.factory.open.remove(self)

    def dataReceived(self, data: bytes) -> None:
        self.buffer += data
        head, blank, rest = self.buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        self.factory.requests.append((first, headers, rest[:length]))
        self.factory.script.pop(0)(self, first, headers, rest[:length])

    def answer(self, status: str, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.write("\r\n".join([*lines, "", ""]).encode() + body)

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def close(self) -> None:
        assert self.transport is not None
        self.transport.loseConnection()


class Script(Factory):
    protocol = Scripted  # type: ignore[assignment]  # Factory's own type knows no factory attribute

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.open: list[Scripted] = []


def fine(status: str = "200 OK", body: bytes = b"", **headers: str) -> Answer:
    return lambda server, first, sent, payload: server.answer(status, body, **headers)


def stored(server: Scripted, first: str, sent: dict[str, str], payload: bytes) -> None:
    server.answer("200 OK", ETag=f'"{md5(payload).hexdigest()}"')


def hang_up(server: Scripted, first: str, sent: dict[str, str], payload: bytes) -> None:
    server.close()


def silence(server: Scripted, first: str, sent: dict[str, str], payload: bytes) -> None:
    """Nothing."""


async def until(condition: Callable[[], bool]) -> None:
    """Returns once ``condition`` holds; fails if that takes longer than any machine needs."""
    from twisted.internet import reactor

    deadline = reactor.seconds() + 20
    while not condition():
        assert reactor.seconds() < deadline, "it never came to that"
        await deferLater(reactor, 0.01, lambda: None)


async def against(
    script: Script,
    work: Callable[[S3Store], Awaitable[None]],
    context: Any = None,
    ca_pem: bytes | None = None,
) -> None:
    """``work`` with a client of the scripted server."""
    from twisted.internet import reactor

    listen: Any
    if context is None:
        listen = reactor.listenTCP(0, script, interface="127.0.0.1")  # type: ignore[arg-type]
    else:
        listen = cast(Any, reactor).listenSSL(0, script, context, interface="127.0.0.1")
    scheme = "http" if context is None else "https"
    settings = Store(
        endpoint_url=f"{scheme}://127.0.0.1:{listen.getHost().port}",
        bucket="bucket",
        access_key_id="AKIDVISIBLE",
        secret_access_key=Secret("very-secret"),
        idle_timeout_seconds=0.3,
        connect_timeout_seconds=2.0,
    )
    store = connect(reactor, settings, now=lambda: datetime.now(UTC), in_thread=deferToThread, ca_pem=ca_pem)
    try:
        await work(store)
    finally:
        await store.close()
        stopping = listen.stopListening()
        if stopping is not None:
            await stopping
        for server in list(script.open):
            server.close()
        await until(lambda: not script.open)


@pytest_twisted.ensureDeferred
async def test_what_is_busy_or_breaks_is_tried_again_with_the_same_bytes() -> None:
    payload = b"x" * 600_000
    script = Script(fine("503 Slow Down", b"<Error><Code>SlowDown</Code></Error>"), hang_up, stored)

    async def work(store: S3Store) -> None:
        assert await store.put("k", payload, "a/b", {}) == md5(payload).hexdigest()

    await against(script, work)
    assert [body for _, _, body in script.requests] == [payload] * 3


@pytest_twisted.ensureDeferred
async def test_a_put_on_a_connection_that_went_stale_goes_out_again() -> None:
    """The store closes an idle connection at the moment we reuse it."""
    script = Script(stored, hang_up, stored)

    async def work(store: S3Store) -> None:
        await store.put("a", b"1", "a/b", {})
        await store.put("b", b"2", "a/b", {})

    await against(script, work)
    assert script.connections == 2
    assert [body for _, _, body in script.requests] == [b"1", b"2", b"2"]


@pytest_twisted.ensureDeferred
async def test_it_gives_up_and_shows_neither_address_nor_credential() -> None:
    body = b"<Error><Code>InternalError</Code><Message>10.1.2.3 very-secret</Message></Error>"
    script = Script(*[fine("500 Oops", body)] * 10)

    async def work(store: S3Store) -> None:
        with pytest.raises(StoreUnreachable) as caught:
            await store.stat("k")
        shown = translate(caught.value)
        assert shown is not None
        for text in (str(caught.value), shown.body().decode(), repr(store)):
            assert not any(word in text for word in ("10.1.2.3", "very-secret", "AKIDVISIBLE"))

    await against(script, work)
    assert 2 <= len(script.requests) <= 4


@pytest_twisted.ensureDeferred
async def test_a_refusal_is_not_tried_again() -> None:
    script = Script(fine("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>"), fine("404 Not Found"))

    async def work(store: S3Store) -> None:
        with pytest.raises(StoreError) as caught:
            await store.start_multipart("k", "a/b", {})
        assert caught.value.code == "AccessDenied"
        with pytest.raises(NoSuchObject):
            await store.stat("k")

    await against(script, work)
    assert len(script.requests) == 2


@pytest_twisted.ensureDeferred
async def test_silence_ends_at_the_idle_timeout() -> None:
    async def work(store: S3Store) -> None:
        for call in (store.stat("k"), store.put("k", b"x", "a/b", {}), store.open("k", 0, 1, 1)):
            with pytest.raises(StoreUnreachable):
                await call

    script = Script(silence, silence, silence)
    await against(script, work)
    assert len(script.requests) == 3


@pytest_twisted.ensureDeferred
async def test_a_body_that_stops_is_never_whole() -> None:
    def half_then(then: Callable[[Scripted], None]) -> Answer:
        def answer(server: Scripted, *_: Any) -> None:
            server.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            then(server)

        return answer

    async def work(store: S3Store) -> None:
        for _ in range(2):
            opened = await store.open("k", 0, 10, 10)
            sink = Collected()
            with pytest.raises(BrokenRead):
                await opened.pour(sink)
            assert sink.data == b"half"
        for _ in range(2):
            with pytest.raises(BrokenRead):
                await store.open("k", 0, 10, 10)

    script = Script(
        half_then(lambda server: None),
        half_then(lambda server: server.close()),
        # Another length than the object has, a range that is ignored.
        *[fine(body=b"elevenbytes")] * 8,
    )
    await against(script, work)


@pytest_twisted.ensureDeferred
async def test_a_reader_that_pauses_stops_the_store_and_one_that_leaves_closes_it() -> None:
    from twisted.internet import reactor

    total = 50_000_000
    sent: list[int] = []

    def pour(server: Scripted, *_: Any) -> None:
        server.write(f"HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n".encode())
        assert server.transport is not None
        endless = Endless(server, sent)
        cast(Any, server.transport).registerProducer(endless, True)
        endless.resumeProducing()

    async def work(store: S3Store) -> None:
        opened = await store.open("k", 0, total, total)
        sink = Pausing()
        pouring = Deferred.fromCoroutine(opened.pour(sink))
        await until(lambda: sink.size > 0)
        # Longer than the idle timeout: it is the reader who is slow, so the store is not to blame.
        before = -1
        while before != len(sent):
            before = len(sent)
            await deferLater(reactor, 0.5, lambda: None)
        assert sum(sent) < total / 2
        taken = sink.size
        sink.producer.resumeProducing()
        await until(lambda: sink.size > taken)
        sink.producer.stopProducing()
        with pytest.raises(ReaderLeft):
            await pouring
        await until(lambda: not script.open)

    script = Script(pour)
    await against(script, work)


class Endless:
    """Writes for as long as it is allowed to."""

    def __init__(self, server: Scripted, sent: list[int]) -> None:
        self._server, self._sent = server, sent
        self._paused = False

    def resumeProducing(self) -> None:
        self._paused = False
        for _ in range(5):
            if not self._paused and sum(self._sent) < 49_000_000:
                self._sent.append(100_000)
                self._server.write(b"x" * 100_000)

    def pauseProducing(self) -> None:
        self._paused = True

    def stopProducing(self) -> None:
        self._paused = True


class Pausing:
    """Pauses at the first bytes."""

    producer: Any

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> None:
        if not self.size:
            self.producer.pauseProducing()
        self.size += len(data)

    def register_producer(self, producer: Any) -> None:
        self.producer = producer

    def unregister_producer(self) -> None:
        """Nothing to forget."""


@pytest_twisted.ensureDeferred
async def test_bytes_pass_undecoded_and_nothing_is_asked_to_be_encoded() -> None:
    packed = gzip.compress(b"hello")
    headers = {"Content-Encoding": "gzip", "Set-Cookie": "a=b"}
    script = Script(fine("200 OK", packed, **headers), fine("302 Found", Location="http://127.0.0.1:1/"))

    async def work(store: S3Store) -> None:
        sink = Collected()
        await (await store.open("k", 0, len(packed), len(packed))).pour(sink)
        assert sink.data == packed
        with pytest.raises(StoreError):
            await store.stat("k")

    await against(script, work)
    for _, sent, _ in script.requests:
        assert "accept-encoding" not in sent
        assert "cookie" not in sent
        assert sent["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDVISIBLE/")


@pytest_twisted.ensureDeferred
async def test_an_etag_that_is_not_our_checksum_is_a_corrupt_transfer() -> None:
    wrong = f'"{"0" * 32}"'
    script = Script(fine(ETag=wrong), fine(ETag=wrong, x_amz_server_side_encryption="aws:kms"))

    async def work(store: S3Store) -> None:
        with pytest.raises(CorruptTransfer):
            await store.put("k", b"x", "a/b", {})
        # With a key of its own the store's ETag is no MD5; its check of Content-MD5 has to do.
        assert await store.put("k", b"x", "a/b", {}) == "0" * 32

    await against(script, work)
    assert script.requests[0][1]["content-md5"] == base64.b64encode(md5(b"x").digest()).decode()


@pytest_twisted.ensureDeferred
async def test_an_error_inside_a_200_is_an_error() -> None:
    error = b"<Error><Code>InvalidPart</Code></Error>"
    script = Script(fine(body=error), fine(body=error))

    async def work(store: S3Store) -> None:
        for call in (store.complete_multipart("k", "u", ["e"]), store.copy("a", "b", 1, "a/b")):
            with pytest.raises(StoreError) as caught:
                await call
            assert caught.value.code == "InvalidPart"

    await against(script, work)


@pytest_twisted.ensureDeferred
async def test_nobody_listens() -> None:
    script = Script()
    dead: list[S3Store] = []

    async def keep(store: S3Store) -> None:
        dead.append(store)

    await against(script, keep)
    with pytest.raises(StoreUnreachable):
        await dead[0].stat("k")


def authority() -> tuple[bytes, Any]:
    """A certificate authority as PEM, and the TLS context of a server at 127.0.0.1 that it vouches for."""
    now = datetime.now(UTC)

    def certificate(name: str, issuer: str, key: Any, signer: Any, is_ca: bool) -> x509.Certificate:
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
        )
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(is_ca, None), critical=True)
            .add_extension(names, critical=False)
            .sign(signer, hashes.SHA256())
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = certificate("a test authority", "a test authority", ca_key, ca_key, True)
    mine = certificate("localhost", "a test authority", key, ca_key, False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    both = ssl.PrivateCertificate.loadPEM(private + mine.public_bytes(pem))
    return ca.public_bytes(pem), both.options()


@pytest_twisted.ensureDeferred
async def test_https_with_a_custom_authority() -> None:
    ca_pem, context = authority()
    other_pem, _ = authority()

    async def works(store: S3Store) -> None:
        assert await store.put("k", b"x" * 300_000, "a/b", {}) == md5(b"x" * 300_000).hexdigest()

    async def refuses(store: S3Store) -> None:
        with pytest.raises(StoreUnreachable):
            await store.put("k", b"x", "a/b", {})

    await against(Script(stored), works, context, ca_pem)
    for untrusted in (other_pem, None):
        script = Script(*[stored] * 4)
        await against(script, refuses, context, untrusted)
        assert script.requests == []


@pytest_twisted.ensureDeferred
async def test_https_refuses_another_name() -> None:
    """127.0.0.2 reaches the same server on Linux, but its certificate is not for it."""
    from twisted.internet import reactor

    ca_pem, context = authority()
    script = Script(*[stored] * 4)
    listen = cast(Any, reactor).listenSSL(0, script, context, interface="127.0.0.2")
    settings = Store(
        endpoint_url=f"https://127.0.0.2:{listen.getHost().port}",
        access_key_id="a",
        secret_access_key=Secret("b"),
        connect_timeout_seconds=1.0,
    )
    store = connect(reactor, settings, now=lambda: datetime.now(UTC), in_thread=deferToThread, ca_pem=ca_pem)
    with pytest.raises(StoreUnreachable):
        await store.stat("k")
    assert script.requests == []
    await store.close()
    await listen.stopListening()
