"""The store client against a server that misbehaves on purpose: retries, timeouts, and responses that must not be
accepted."""

from __future__ import annotations

import base64
from hashlib import md5

import pytest
import pytest_twisted

from project_service.storage.errors import STORE_FAILURES
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import (
    CorruptTransfer,
    NoSuchBucket,
    NoSuchObject,
    StoreError,
    StoreUnreachable,
)
from tests.live.storage.scripted_store import Script, against, fine, hang_up, silence, stored


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
    await against(script, work, idle_seconds=0.3)
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
