"""Storage by the whole service, also with credentials of the store that change."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
import requests
from attrs import evolve
from twisted.internet.threads import deferToThread

from project_service.settings.model import Secret, Store
from project_service.splicing import Splicing
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import StoreError
from tests.live.daemon import Daemon, answers, eventually
from tests.live.programs import program
from tests.live.storage.scripted_store import Script, against, fine, stored
from tests.live.storage.service import MIB, Running, call, nothing_left
from tests.live.waiting import until


@pytest_twisted.ensureDeferred
async def test_a_large_file_is_uploaded_and_downloaded(running: Running, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("allowed", [True, False])
@pytest_twisted.ensureDeferred
async def test_large_objects_pass_through_the_kernel_where_that_is_allowed(
    running: Running, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """To several clients at once, of which some read slowly and one leaves: each gets its object and nothing else."""
    moved: list[int] = []
    move = Splicing.move

    def counted(splicing: Splicing, *given: Any) -> int:
        moved.append(move(splicing, *given))
        return moved[-1]

    payloads = [os.urandom(12 * MIB + number) for number in range(4)]

    def upload(number: int) -> None:
        sent = call("PUT", running.url(f"moved/{number}"), headers=running.headers(), data=payloads[number])
        assert sent.status_code == 201, sent.text

    def download(number: int) -> bytes:
        url, received = running.url(f"moved/{number % 4}"), b""
        with requests.get(url, headers=running.headers(), stream=True, timeout=30) as got:
            for piece in got.iter_content(256 * 1024):
                received += piece
                if number == 8:
                    break
                if number % 2:
                    time.sleep(0.005)
        return received

    def session() -> None:
        with ThreadPoolExecutor(9) as threads:
            list(threads.map(upload, range(4)))
            received = list(threads.map(download, range(9)))
        assert all(received[number] == payloads[number % 4] for number in range(8))

    monkeypatch.setattr(Splicing, "move", counted)
    if not allowed:
        monkeypatch.setattr("project_service.splicing._splice", lambda *_: 0)
    await deferToThread(session)
    assert sum(moved) > 8 * 8 * MIB if allowed else not any(moved)
    monkeypatch.undo()
    for number in range(4):
        await deferToThread(call, "DELETE", running.url(f"moved/{number}"), headers=running.headers())
    assert await nothing_left(running)


@pytest_twisted.ensureDeferred
async def test_uploads_and_a_signed_link_with_curl(running: Running, tmp_path: Path) -> None:
    """As in the README: -F, -T from a pipe (chunked), and a signed link without any header."""
    program("curl")
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
async def test_of_fifty_simultaneous_uses_of_a_single_use_link_one_succeeds(running: Running) -> None:
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
async def test_a_quota_holds_with_simultaneous_uploads(running: Running) -> None:
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


@pytest_twisted.ensureDeferred
async def test_a_read_during_overwrites_is_one_whole_version(running: Running) -> None:
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
async def test_changed_limits_apply_without_a_restart(running: Running) -> None:
    api = running.api

    async def asked(method: str, payload: bytes = b"") -> int:
        path = "/storage/buckets/private/objects/limited"
        return (await api.request(method, path, token=running.token, data=payload))[0]

    assert await asked("PUT", b"four") == 201
    api.application.reload(evolve(api.settings, storage=evolve(api.settings.storage, max_object_bytes=3)))
    try:
        assert await asked("PUT", b"four") == 413
    finally:
        api.application.reload(api.settings)
    assert [await asked("PUT", b"four"), await asked("DELETE")] == [200, 204]


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired: hidden</Message></Error>"


@pytest_twisted.ensureDeferred
async def test_each_request_has_the_current_token() -> None:
    script = Script(stored, fine("400 Bad Request", EXPIRED), stored)
    pair = Store(access_key_id="AKIDNEW", secret_access_key=Secret("more-secret"))

    async def work(store: S3Store) -> None:
        await store.put("a", b"1", "text/plain", {})
        store.sign_as(evolve(pair, session_token=Secret("hidden-1")))
        with pytest.raises(StoreError, match=r"ExpiredToken \(HTTP 400\)"):
            await store.put("a", b"2", "text/plain", {})
        store.sign_as(evolve(pair, session_token=Secret("hidden-2")))
        await store.put("a", b"3", "text/plain", {})

    await against(script, work)
    sent = [headers for _, headers, _ in script.requests]
    assert [one.get("x-amz-security-token") for one in sent] == [None, "hidden-1", "hidden-2"]
    assert ["AKIDNEW" in one["authorization"] for one in sent] == [False, True, True]
    assert [";x-amz-security-token," in one["authorization"] for one in sent] == [False, True, True]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_every_process_uses_a_new_key_pair_from_the_file(
    workers: str, store_settings: Store, tmp_path: Path
) -> None:
    config, file = tmp_path / "c.toml", tmp_path / "credentials"
    config.write_text(
        f"[store]\nendpoint_url = '{store_settings.endpoint_url}'\nbucket = '{store_settings.bucket}'\n"
        f"credentials_file = '{file}'\n"
    )
    assert store_settings.access_key_id is not None and store_settings.secret_access_key is not None
    right = store_settings.secret_access_key.reveal()

    def write(secret: str) -> None:
        file.write_text(
            f"[default]\naws_access_key_id = {store_settings.access_key_id}\n"
            f"aws_secret_access_key = {secret}\n"
        )

    write("not-that-one")
    with Daemon(tmp_path / "var", "--config", str(config), "--workers", workers) as daemon:
        url = daemon.wait_until_ready()

        assert "store" in requests.get(f"{url}/ready", timeout=10).json()["error"]["details"]
        write(right)
        daemon.reload("the configuration was reloaded")
        # Of every process: each asks the store by itself, and answers some of so many requests.
        eventually(lambda: all(answers(f"{url}/ready") for _ in range(12)), "a store that lets us in")
        # If the file becomes unusable, all processes keep the pair that they have.
        file.write_text("[default]\n")
        daemon.reload("the configuration was not reloaded")
        assert answers(f"{url}/ready")
        assert daemon.stop() == 0
        assert "refuses: SignatureDoesNotMatch (HTTP 403)" in daemon.text
        assert re.search(r"serving on http://\S+, not ready: store", daemon.text)
        assert "not-that-one" not in daemon.text
        assert right not in daemon.text
