"""Resumable uploads in a bucket where policies in SQL decide: when an upload begins, and again when it becomes an
object. ``tests/http/storage/test_resumable_rights.py`` compares every rule with a PUT, in memory."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted
from attrs import frozen
from twisted.logger import capturedLogs, formatEvent

from project_service.settings.model import Store
from project_service.storage.s3.client import S3Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import store_client
from tests.live.sql import run_each, run_sql

PART = 5 * 1024 * 1024
UPLOADS = "/storage/buckets/judged/resumable"
TUS = {"Tus-Resumable": "1.0.0"}
SEE_OWN = "create policy see on storage.objects for select to authenticated using (owner = auth.uid())"
ADD_TO_HOME = (
    "create policy add on storage.objects for insert to authenticated"
    " with check ((storage.folder(key))[1] = auth.uid()::text and owner = auth.uid())"
)
CHANGE_OWN = (
    "create policy change on storage.objects for update to authenticated"
    " using (owner = auth.uid()) with check (owner = auth.uid() and size <= 5)"
)
REFUSED = (403, "not_allowed")
UNKNOWN = (404, "upload_not_found")


@frozen
class User:
    api: Api
    token: str
    id: UUID

    @property
    def key(self) -> str:
        """One in their own folder."""
        return f"{self.id}/a.txt"

    async def request(
        self, method: str, path: str, offset: int = 0, data: bytes = b"", by_service: bool = False
    ) -> Any:
        """``accepted``, or status and code of the refusal."""
        sent = {**TUS, "Content-Type": "application/offset+octet-stream", "Upload-Offset": str(offset)}
        caller: dict[str, Any] = {"key": "service"} if by_service else {"token": self.token}
        status, _, body = await self.api.request(method, path, headers=sent, data=data, **caller)
        if method == "HEAD":
            return status
        return "accepted" if status < 300 else (status, body["error"]["code"])

    async def try_to_begin(self, key: str, length: int | None) -> tuple[Any, str]:
        size = {"Upload-Defer-Length": "1"} if length is None else {"Upload-Length": str(length)}
        described = f"key {b64encode(key.encode()).decode()},filetype {b64encode(b'text/plain').decode()}"
        sent = {**TUS, **size, "Upload-Metadata": described}
        status, headers, body = await self.api.request("POST", UPLOADS, token=self.token, headers=sent)
        if status == 201:
            return "accepted", headers.getRawHeaders("location")[0]
        return (status, body["error"]["code"]), ""

    async def begin(self, key: str, length: int | None = 5) -> str:
        outcome, path = await self.try_to_begin(key, length)
        assert outcome == "accepted"
        return path

    async def put(self, key: str, data: bytes = b"old") -> None:
        path = f"/storage/buckets/judged/objects/{key}"
        status, _, body = await self.api.request("PUT", path, token=self.token, data=data)
        assert status == 201, body


@frozen
class Judged:
    """A service with the bucket ``judged``, and two of its users."""

    database: str
    store: S3Store
    # What tests before this one left in the store.
    held_before: set[str]
    ann: User
    bob: User

    def objects(self) -> list[tuple[str, UUID, int]]:
        rows = run_sql(self.database, "select key, owner, size from storage.objects order by key")
        return [(key, UUID(str(owner)), size) for key, owner, size in rows]

    async def nothing_left(self) -> None:
        """No upload is known but those that have become objects, and the store has their bytes and no others."""
        unfinished = "select version from storage.resumable where committed_at is null"
        assert run_sql(self.database, unfinished) == []
        assert run_sql(self.database, "select version from storage.garbage") == []
        current = run_sql(self.database, "select bucket || '/' || version from storage.objects")
        assert await held_by(self.store) - self.held_before == {path for (path,) in current}
        assert await self.store.list_multiparts() == ()


async def held_by(store: S3Store) -> set[str]:
    return {entry.key for entry in (await store.list()).objects if not entry.key.startswith(".")}


@asynccontextmanager
async def judged_by(
    database: str, store_settings: Store, tmp_path: Path, *policies: str
) -> AsyncIterator[Judged]:
    settings = settings_for(database, store_settings, tmp_path, storage={"part_bytes": PART})
    async with serving(settings) as api:
        made = {"name": "judged", "visibility": "private", "policies": True}
        assert (await api.request("POST", "/admin/buckets", key="service", json=made))[0] == 201
        run_each(database, *policies)
        users = []
        for name in ("ann", "bob"):
            session = await api.sign_up(f"{name}@example.test")
            users.append(User(api, session["access_token"], UUID(session["user"]["id"])))
        store = store_client(store_settings)
        yield Judged(database, store, await held_by(store), *users)
        await store.close()


@pytest_twisted.ensureDeferred
async def test_an_upload_begins_goes_on_and_ends_where_insert_policies_let_it(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with judged_by(database, store_settings, tmp_path, SEE_OWN, ADD_TO_HOME) as judged:
        ann, bob = judged.ann, judged.bob
        for key in (bob.key, "a.txt", f"x/{ann.id}/a.txt"):
            assert (await ann.try_to_begin(key, 5))[0] == REFUSED, key
        await judged.nothing_left()
        path = await ann.begin(ann.key)
        assert await ann.request("PATCH", path, 0, b"hel") == "accepted"
        assert judged.objects() == []
        assert await ann.request("PATCH", path, 3, b"lo") == "accepted"
        assert judged.objects() == [(ann.key, ann.id, 5)]
        # Without a policy for it nothing is replaced, nor may others see what is there.
        assert (await ann.try_to_begin(ann.key, 5))[0] == REFUSED
        shown = f"/storage/buckets/judged/objects/{ann.key}"
        assert (await ann.api.request("GET", shown, token=ann.token))[2] == b"hello"
        assert (await ann.api.request("GET", shown, token=bob.token))[0] == 404


@pytest.mark.parametrize("size", [5, PART + 5, 2 * PART])
@pytest_twisted.ensureDeferred
async def test_an_upload_ends_by_the_policies_of_then_and_leaves_nothing_behind(
    database: str, store_settings: Store, tmp_path: Path, size: int
) -> None:
    async with judged_by(database, store_settings, tmp_path, SEE_OWN, ADD_TO_HOME) as judged:
        ann = judged.ann
        path = await ann.begin(ann.key, size)
        assert await ann.request("PATCH", path, 0, b"x" * (size - 2)) == "accepted"
        run_sql(database, "alter policy add on storage.objects with check (false)")
        # Who may no longer write may still see how far it is.
        assert await ann.request("HEAD", path) == 200
        assert await ann.request("PATCH", path, size - 2, b"xx") == REFUSED
        assert await ann.request("HEAD", path) == 404
        assert judged.objects() == []
        await judged.nothing_left()


@pytest_twisted.ensureDeferred
async def test_an_overwrite_needs_an_update_policy_for_the_old_row_and_the_new(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with judged_by(database, store_settings, tmp_path, SEE_OWN, ADD_TO_HOME, CHANGE_OWN) as judged:
        ann, bob = judged.ann, judged.bob
        give = "update storage.objects set owner = %s where key = %s"
        await ann.put(ann.key)
        path = await ann.begin(ann.key)
        assert await ann.request("PATCH", path, 0, b"first") == "accepted"
        assert judged.objects() == [(ann.key, ann.id, 5)]
        # The new row is too large: known when it begins, or at the end.
        assert (await ann.try_to_begin(ann.key, 6))[0] == REFUSED
        path = await ann.begin(ann.key, None)
        assert await ann.request("PATCH", path, 0, b"six") == "accepted"
        assert await deferred_end(ann, path, 3, b"six") == REFUSED
        # The old row has become somebody else's meanwhile, and is so when the next one begins.
        path = await ann.begin(ann.key)
        assert await ann.request("PATCH", path, 0, b"seco") == "accepted"
        run_sql(database, give, str(bob.id), ann.key)
        assert await ann.request("PATCH", path, 4, b"n") == REFUSED
        assert (await ann.try_to_begin(ann.key, 5))[0] == REFUSED
        assert judged.objects() == [(ann.key, bob.id, 5)]
        run_sql(database, give, str(ann.id), ann.key)
        shown = f"/storage/buckets/judged/objects/{ann.key}"
        assert (await ann.api.request("GET", shown, token=ann.token))[2] == b"first"
        # An object that appeared meanwhile makes an overwrite of what began as an insert.
        path = await ann.begin(f"{ann.id}/new")
        await ann.put(f"{ann.id}/new")
        run_sql(database, "drop policy change on storage.objects")
        assert await ann.request("PATCH", path, 0, b"hello") == REFUSED
        assert judged.objects() == [(ann.key, ann.id, 5), (f"{ann.id}/new", ann.id, 3)]
        await judged.nothing_left()


async def deferred_end(user: User, path: str, offset: int, data: bytes) -> Any:
    """The last bytes, and how many there are in all."""
    sent = {
        **TUS,
        "Content-Type": "application/offset+octet-stream",
        "Upload-Offset": str(offset),
        "Upload-Length": str(offset + len(data)),
    }
    status, _, body = await user.api.request("PATCH", path, token=user.token, headers=sent, data=data)
    return "accepted" if status < 300 else (status, body["error"]["code"])


@pytest_twisted.ensureDeferred
async def test_to_others_an_upload_is_unknown_whatever_policies_allow(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    everything = "create policy all_of_it on storage.objects to anon, authenticated using (true)"
    async with judged_by(database, store_settings, tmp_path, everything) as judged:
        ann, bob = judged.ann, judged.bob
        path = await ann.begin(ann.key)
        assert await ann.request("PATCH", path, 0, b"he") == "accepted"
        assert await bob.request("HEAD", path) == 404
        assert await bob.request("GET", path) == UNKNOWN
        assert await bob.request("PATCH", path, 2, b"xx") == UNKNOWN
        assert await bob.request("DELETE", path) == UNKNOWN
        assert run_sql(database, "select received from storage.resumable") == [(2,)]
        # The service key may, and the object is that of its user.
        assert await bob.request("PATCH", path, 2, b"llo", by_service=True) == "accepted"
        assert judged.objects() == [(ann.key, ann.id, 5)]


@pytest_twisted.ensureDeferred
async def test_a_policy_that_fails_refuses(database: str, store_settings: Store, tmp_path: Path) -> None:
    failing = "alter policy add on storage.objects with check (1 / (length(key) - length(key)) = 1)"
    working = "alter policy add on storage.objects with check (true)"
    async with judged_by(database, store_settings, tmp_path, SEE_OWN, ADD_TO_HOME) as judged:
        ann = judged.ann
        path = await ann.begin(ann.key)
        assert await ann.request("PATCH", path, 0, b"hel") == "accepted"
        run_sql(database, failing)
        with capturedLogs() as events:
            assert (await ann.try_to_begin(ann.key, 5))[0] == REFUSED
            assert await ann.request("PATCH", path, 3, b"lo") == REFUSED
        reasons = [formatEvent(event) for event in events]
        assert reasons.count("A policy on storage.objects failed: division by zero (22012)") == 2, reasons
        assert judged.objects() == []
        await judged.nothing_left()
        run_sql(database, working)
        path = await ann.begin(ann.key)
        assert await ann.request("PATCH", path, 0, b"hello") == "accepted"
