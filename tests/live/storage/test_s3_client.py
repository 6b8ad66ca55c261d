"""The store's client over real sockets: damaged and slow responses, back-pressure, TLS, and digests that the store
checks."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from hashlib import md5
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_twisted
from twisted.internet import ssl
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from project_service.settings.model import Secret, Store
from project_service.storage.errors import STORE_FAILURES
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import (
    UNTRUSTED,
    BrokenRead,
    CorruptTransfer,
    NoSuchBucket,
    NoSuchObject,
    ReaderLeft,
    StoreError,
    StoreUnreachable,
)
from project_service.storage.s3.signing import Digests
from tests.certificates import issue
from tests.fakes.store import Collected
from tests.live.services import store_client
from tests.live.storage.scripted_store import (
    Answer,
    Script,
    Scripted,
    against,
    fine,
    hang_up,
    silence,
    stored,
)
from tests.live.waiting import until


@pytest_twisted.ensureDeferred
async def test_busy_and_broken_responses_are_retried_with_the_same_bytes() -> None:
    payload = b"x" * 600_000
    script = Script(fine("503 Slow Down", b"<Error><Code>SlowDown</Code></Error>"), hang_up, stored)

    async def work(store: S3Store) -> None:
        assert await store.put("k", payload, "a/b", {}) == md5(payload).hexdigest()

    await against(script, work)
    assert [body for _, _, body in script.requests] == [payload] * 3


@pytest_twisted.ensureDeferred
async def test_a_put_on_a_stale_connection_is_sent_again() -> None:
    """The store closes an idle connection at the moment it is reused."""
    script = Script(stored, hang_up, stored)

    async def work(store: S3Store) -> None:
        await store.put("a", b"1", "a/b", {})
        await store.put("b", b"2", "a/b", {})

    await against(script, work)
    assert script.connections == 2
    assert [body for _, _, body in script.requests] == [b"1", b"2", b"2"]


@pytest_twisted.ensureDeferred
async def test_the_final_error_shows_neither_address_nor_credential() -> None:
    body = b"<Error><Code>InternalError</Code><Message>10.1.2.3 very-secret</Message></Error>"
    script = Script(*[fine("500 Oops", body)] * 10)

    async def work(store: S3Store) -> None:
        with pytest.raises(StoreUnreachable) as caught:
            await store.stat("k")
        for text in (str(caught.value), repr(store)):
            assert not any(word in text for word in ("10.1.2.3", "very-secret", "AKIDVISIBLE"))

    await against(script, work)
    assert 2 <= len(script.requests) <= 4


@pytest_twisted.ensureDeferred
async def test_a_refusal_is_not_retried() -> None:
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
    await against(script, work, idle_seconds=2.0)
    assert len(script.requests) == 3


@pytest_twisted.ensureDeferred
async def test_an_etag_other_than_the_checksum_is_a_corrupt_transfer() -> None:
    wrong = f'"{"0" * 32}"'
    script = Script(fine(ETag=wrong), fine(ETag=wrong, x_amz_server_side_encryption="aws:kms"))

    async def work(store: S3Store) -> None:
        with pytest.raises(CorruptTransfer):
            await store.put("k", b"x", "a/b", {})
        # If the store encrypts with a key of its own, its ETag is no MD5; its check of Content-MD5 has to suffice.
        assert await store.put("k", b"x", "a/b", {}) == "0" * 32

    await against(script, work)
    assert script.requests[0][1]["content-md5"] == base64.b64encode(md5(b"x").digest()).decode()


@pytest_twisted.ensureDeferred
async def test_an_html_page_of_a_proxy_is_no_response_of_the_store() -> None:
    async def work(store: S3Store) -> None:
        for call in (
            store.start_multipart("k", "a/b", {}),
            store.complete_multipart("k", "u", ["e"]),
            store.copy("a", "b"),
            store.list(),
            store.list_multiparts(),
        ):
            with pytest.raises(StoreUnreachable):
                await call

    await against(Script(*[fine(body=b"<html><br>Please wait</html>")] * 5), work)


@pytest_twisted.ensureDeferred
async def test_an_error_inside_a_200_is_an_error() -> None:
    error = b"<Error><Code>InvalidPart</Code></Error>"
    script = Script(fine(body=error), fine(body=error))

    async def work(store: S3Store) -> None:
        for call in (store.complete_multipart("k", "u", ["e"]), store.copy("a", "b")):
            with pytest.raises(StoreError) as caught:
                await call
            assert caught.value.code == "InvalidPart"

    await against(script, work)


@pytest_twisted.ensureDeferred
async def test_a_transient_error_inside_a_200_is_retried() -> None:
    busy = fine(body=b" \n <Error><Code>InternalError</Code></Error>")
    done = fine(body=b"  <CompleteMultipartUploadResult><ETag>e-2</ETag></CompleteMultipartUploadResult>")
    copied = fine(body=b"<CopyObjectResult><ETag>e</ETag></CopyObjectResult>")
    script = Script(busy, busy, done, busy, copied)

    async def work(store: S3Store) -> None:
        assert await store.complete_multipart("k", "u", ["e", "e"]) == "e-2"
        assert await store.copy("a", "b") == "e"

    await against(script, work)
    assert script.script == []


@pytest_twisted.ensureDeferred
async def test_without_the_bucket_nothing_is_concluded_about_its_objects() -> None:
    """What is to be deleted stays noted, and objects that are read are not given up."""
    script = Script(*[fine("404 Not Found", b"<Error><Code>NoSuchBucket</Code></Error>")] * 4)

    async def work(store: S3Store) -> None:
        for call in (
            store.delete("k"),
            store.abort_multipart("k", "u"),
            store.open("k", 0, 1, 1),
            store.complete_multipart("k", "u", ["e"]),
        ):
            with pytest.raises(NoSuchBucket) as caught:
                await call
            assert isinstance(caught.value, STORE_FAILURES)

    await against(script, work)


@pytest_twisted.ensureDeferred
async def test_connection_refused_is_reported() -> None:
    script = Script()
    dead: list[S3Store] = []

    async def keep(store: S3Store) -> None:
        dead.append(store)

    await against(script, keep)
    with pytest.raises(StoreUnreachable):
        await dead[0].stat("k")


@pytest_twisted.ensureDeferred
async def test_a_body_that_stops_early_is_an_error() -> None:
    def half_then(then: Callable[[Scripted], None]) -> Answer:
        def answer(server: Scripted, *_: Any) -> None:
            server.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            then(server)

        return answer

    async def work(store: S3Store) -> None:
        stream = await store.open("k", 0, 10, 10)
        sink = Collected()
        with pytest.raises(BrokenRead):
            await stream.pipe_to(sink)
        assert sink.data == b"half"

    async def refuses(store: S3Store) -> None:
        for _ in range(2):
            with pytest.raises(BrokenRead):
                await store.open("k", 0, 10, 10)

    await against(Script(half_then(lambda server: None)), work, idle_seconds=2.0)
    await against(Script(half_then(lambda server: server.close())), work)
    # A length other than the object's, and a range that is ignored.
    await against(Script(*[fine(body=b"elevenbytes")] * 8), refuses)


@pytest_twisted.ensureDeferred
async def test_a_paused_reader_pauses_the_store_and_a_leaving_one_closes_the_connection() -> None:
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
        stream = await store.open("k", 0, total, total)
        sink = Pausing()
        pouring = Deferred.fromCoroutine(stream.pipe_to(sink))
        await until(lambda: sink.size > 0)
        # Longer than the idle timeout, which does not count while the reader is the slow one.
        before = -1
        while before != len(sent):
            before = len(sent)
            await deferLater(reactor, 2.5, lambda: None)
        assert sum(sent) < total / 2
        taken = sink.size
        sink.producer.resumeProducing()
        await until(lambda: sink.size > taken)
        sink.producer.stopProducing()
        with pytest.raises(ReaderLeft):
            await pouring
        await until(lambda: not script.open)

    script = Script(pour)
    await against(script, work, idle_seconds=2.0)


class Endless:
    """A producer that writes for as long as it may."""

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
    """A sink that pauses at the first bytes."""

    producer: Any

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> None:
        if not self.size:
            self.producer.pauseProducing()
        self.size += len(data)

    def take(self, source: int, limit: int) -> int:
        return 0

    def register_producer(self, producer: Any) -> None:
        self.producer = producer

    def unregister_producer(self) -> None:
        """Nothing to forget."""


@pytest_twisted.ensureDeferred
async def test_bytes_are_not_decoded_and_no_encoding_is_asked_for() -> None:
    packed = gzip.compress(b"hello")
    headers = {"Content-Encoding": "gzip", "Set-Cookie": "a=b"}
    script = Script(fine("200 OK", packed, **headers), fine("302 Found", Location="http://127.0.0.1:1/"))

    async def work(store: S3Store) -> None:
        sink = Collected()
        await (await store.open("k", 0, len(packed), len(packed))).pipe_to(sink)
        assert sink.data == packed
        with pytest.raises(StoreError):
            await store.stat("k")

    await against(script, work)
    for _, sent, _ in script.requests:
        assert "accept-encoding" not in sent
        assert "cookie" not in sent
        assert sent["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDVISIBLE/")


def authority(file: Path) -> tuple[str, Any]:
    """The ``file`` of a certificate authority, and a TLS context with its certificate for 127.0.0.1."""
    root = issue("a test authority")
    mine = issue("localhost", root, authority=False)
    file.write_bytes(root.pem)
    return str(file), ssl.PrivateCertificate.loadPEM(mine.key_pem + mine.pem).options()


@pytest_twisted.ensureDeferred
async def test_https_with_a_custom_certificate_authority(tmp_path: Path) -> None:
    ca_file, context = authority(tmp_path / "ca.pem")
    other_file, _ = authority(tmp_path / "other.pem")

    async def works(store: S3Store) -> None:
        assert await store.put("k", b"x" * 300_000, "a/b", {}) == md5(b"x" * 300_000).hexdigest()

    async def refuses(store: S3Store) -> None:
        with pytest.raises(StoreUnreachable, match=UNTRUSTED):
            await store.put("k", b"x", "a/b", {})

    await against(Script(stored), works, context, ca_file)
    for untrusted in (other_file, None):
        script = Script(*[stored] * 4)
        await against(script, refuses, context, untrusted)
        assert script.requests == []


@pytest_twisted.ensureDeferred
async def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    """127.0.0.2 reaches the same server on Linux, but its certificate is not for it."""
    from twisted.internet import reactor

    ca_file, context = authority(tmp_path / "ca.pem")
    script = Script(*[stored] * 4)
    listen = cast(Any, reactor).listenSSL(0, script, context, interface="127.0.0.2")
    settings = Store(
        endpoint_url=f"https://127.0.0.2:{listen.getHost().port}",
        access_key_id="a",
        secret_access_key=Secret("b"),
        ca_file=ca_file,
        connect_timeout_seconds=10.0,
    )
    store = store_client(settings)
    with pytest.raises(StoreUnreachable, match="the certificate is for another name"):
        await store.stat("k")
    assert script.requests == []
    await store.close()
    await listen.stopListening()


@pytest_twisted.ensureDeferred
async def test_corrupted_bytes_are_refused_by_the_store(store_settings: Store) -> None:
    store = store_client(store_settings)
    await store.ensure_bucket()
    meant = Digests.of(b"what was meant")
    arrived = Digests.of(b"what arrived  ")
    with pytest.raises(StoreUnreachable) as caught:
        await store.requests.send(
            "PUT",
            "c/corrupt",
            headers={"content-md5": meant.content_md5},
            body=b"what arrived  ",
            digest=arrived.sha256,
        )
    assert str(caught.value) == "BadDigest"
    with pytest.raises(NoSuchObject):
        await store.stat("c/corrupt")
    await store.close()
