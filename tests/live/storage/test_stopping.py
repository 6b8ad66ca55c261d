"""Uploads that meet the end of a service that stops, on the real database and store: acknowledged, or absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import psycopg2
import pytest
import pytest_twisted
import requests
from twisted.internet.threads import deferToThread

from project_service.http.edge import Edge
from project_service.settings.model import Store
from tests.live.application import serving, settings_for
from tests.live.sql import run_sql
from tests.live.storage.service import MIB
from tests.live.waiting import until

OBJECTS, UPLOADS = "/storage/buckets/private/objects", "/storage/buckets/private/resumable"
AT_ONCE = {"shutdown_seconds": 0.0}


@pytest.mark.parametrize(("method", "size"), [("PUT", 1000), ("PUT", 9 * MIB), ("PATCH", 1000)])
@pytest_twisted.ensureDeferred
async def test_an_upload_that_is_being_committed_is_acknowledged(
    database: str,
    store_settings: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    size: int,
) -> None:
    """Its commit waits for somebody who holds what it needs for longer than ``shutdown_seconds``."""
    settings = settings_for(database, store_settings, tmp_path, server=AT_ONCE)
    async with serving(settings) as api:
        path, headers = f"{OBJECTS}/k", {"X-Service-Key": api.service_key}
        if method == "PATCH":
            headers["Tus-Resumable"] = "1.0.0"
            begun = await api.request(
                "POST", f"{UPLOADS}?key=k", key="service", headers={**headers, "Upload-Length": str(size)}
            )
            path = begun[1].getRawHeaders("location")[0]
            headers |= {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}

        def upload() -> int:
            sent = requests.request(
                method, api.base_url + path, headers=headers, data=b"x" * size, timeout=60
            )
            return sent.status_code

        with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
            cursor.execute("select from storage.usage for update")
            cancel_all = Edge.cancel_all

            def then_let_go(edge: Edge) -> None:
                cancel_all(edge)
                other.rollback()

            monkeypatch.setattr(Edge, "cancel_all", then_let_go)
            uploading = deferToThread(upload)
            await until(lambda: bool(run_sql(database, "select 1 from pg_locks where not granted")))
            await api.application.stop()
        assert await uploading == (201 if method == "PUT" else 204)
    assert run_sql(database, "select key, size::int from storage.objects") == [("k", size)]


@pytest.mark.parametrize("size", [1000, 9 * MIB])
@pytest_twisted.ensureDeferred
async def test_an_upload_whose_bytes_have_not_all_come_is_absent(
    database: str, store_settings: Store, tmp_path: Path, size: int
) -> None:
    settings = settings_for(database, store_settings, tmp_path, server=AT_ONCE)
    stopped = Event()
    async with serving(settings) as api:

        def body() -> Iterator[bytes]:
            yield b"x" * size
            stopped.wait(60)

        def upload() -> str:
            url, headers = f"{api.base_url}{OBJECTS}/k", {"X-Service-Key": api.service_key}
            try:
                answer = requests.put(url, headers=headers, data=body(), timeout=60).json()
            except requests.ConnectionError:
                return "cut"
            return str(answer["error"]["code"])

        uploading = deferToThread(upload)
        await until(lambda: bool(run_sql(database, "select 1 from storage.uploads")))
        await api.application.stop()
        stopped.set()
        assert await uploading in ("shutting_down", "cut")
    assert run_sql(database, "select key from storage.objects") == []
