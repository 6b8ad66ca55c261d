"""A running service, for tests of storage."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import requests
from attrs import frozen

from project_service.storage.assemble import Storage
from tests.live.application import Api

MIB = 1024 * 1024


def call(method: str, url: str, **more: Any) -> requests.Response:
    """Send a request, with a time limit."""
    return requests.request(method, url, timeout=120, **more)


@frozen
class Running:
    """The service, a signed-in user, and access to the rows and the store behind the API."""

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


async def nothing_left(running: Running) -> bool:
    """Whether the store has exactly the versions that rows refer to, and no upload is open."""
    report = await running.behind.sweeper.verify()
    assert report.sound
    store, rows = running.behind.objects.uploads.store, running.behind.sweeper.rows
    known = {row.path for row in await rows.objects_from(None, 1000)}
    held = {entry.key for entry in (await store.list()).objects if not entry.key.startswith(".")}
    return known == held and await store.list_multiparts() == () and await rows.garbage(10) == []


async def no_upload(running: Running) -> bool:
    return await running.behind.sweeper.rows.stale_uploads(timedelta(0), 10) == []


def raw(running: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.api.port))


def request_head(running: Running, method: str, url: str, *lines: str) -> bytes:
    path = url.removeprefix(running.api.base_url)
    sent = [f"{name}: {value}" for name, value in running.headers().items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *sent, *lines, "", ""]).encode()
