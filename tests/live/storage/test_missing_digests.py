"""The SHA-256 of objects that no single process has received whole, on the real database and store."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import pytest_twisted

from project_service.settings.model import Store
from project_service.storage.assemble import Storage
from project_service.storage.sha256 import MissingDigests, Reader
from tests.live.application import Api, serving, settings_for
from tests.live.services import wait
from tests.live.sql import run_each, run_sql
from tests.live.storage.test_crash import put as put_bytes
from tests.live.storage.test_crash import storage_on, two_buckets
from tests.live.waiting import until

PART = 5 * 1024 * 1024
PAYLOAD = Random(36).randbytes(3 * PART + 1000)
DIGEST = sha256(PAYLOAD).hexdigest()
TUS = {"Tus-Resumable": "1.0.0"}
# What a project may do whenever an object has new bytes.
TRIGGER = """
create table public.changes (key text);
create function public.changed() returns trigger language plpgsql security definer as $$
begin
    insert into public.changes values (new.key);
    return null;
end $$;
create trigger changed after insert or update of version on storage.objects
    for each row execute function public.changed();
"""


def named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def field_of(payload: bytes) -> str:
    return f"sha-256=:{b64encode(sha256(payload).digest()).decode()}:"


class Uploading:
    """A resumable upload of ``PAYLOAD`` by a user, whose requests any of several services may serve."""

    def __init__(self, token: str) -> None:
        self.token, self.path = token, ""

    async def begin(self, api: Api, key: str, **more: str) -> None:
        described = f"key {b64encode(key.encode()).decode()}"
        sent = {**TUS, "Upload-Length": str(len(PAYLOAD)), "Upload-Metadata": described, **named(more)}
        bucket = "/storage/buckets/personal/resumable"
        status, headers, _ = await api.request("POST", bucket, token=self.token, headers=sent)
        assert status == 201
        self.path = headers.getRawHeaders("location")[0]

    async def send(self, api: Api, first: int, last: int) -> None:
        assert await self.try_to_send(api, first, last) == (204, b"")

    async def try_to_send(self, api: Api, first: int, last: int, **more: str) -> tuple[int, Any]:
        """Status and, of a refusal, the code."""
        bytes_of = {"Content-Type": "application/offset+octet-stream", "Upload-Offset": str(first)}
        status, _, body = await api.request(
            "PATCH",
            self.path,
            token=self.token,
            headers={**TUS, **bytes_of, **named(more)},
            data=PAYLOAD[first:last],
        )
        return status, body if status < 300 else body["error"]["code"]

    async def info(self, api: Api, key: str) -> dict[str, Any]:
        path = f"/storage/buckets/personal/objects/{key}?info=true"
        status, _, body = await api.request("GET", path, token=self.token)
        assert status == 200
        shown: dict[str, Any] = body
        return shown


@pytest_twisted.ensureDeferred
async def test_an_upload_by_two_workers_gets_its_digest_soon(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    quick = {"sweep_seconds": 0.05, "part_bytes": PART, "digest_bytes_per_second": 0}
    settings = settings_for(database, store_settings, tmp_path, storage=quick)
    async with serving(settings) as one, serving(settings) as two:
        # Policies hide no object from the service.
        run_each(
            database,
            TRIGGER,
            "update storage.buckets set policies = true where name = 'personal'",
            "create policy own on storage.objects to authenticated using (owner = auth.uid())",
        )
        upload = Uploading((await one.sign_up("two@example.test"))["access_token"])
        for key, cuts in (("same", (one, one)), ("other", (one, two))):
            await upload.begin(one, key)
            await upload.send(cuts[0], 0, PART + 7)
            await upload.send(cuts[1], PART + 7, len(PAYLOAD))
        await upload.begin(two, "whole")
        await upload.send(two, 0, len(PAYLOAD))
        before = {key: await upload.info(one, key) for key in ("same", "other", "whole")}
        assert [before[key]["sha256"] for key in before] == [DIGEST, None, DIGEST]
        counted = run_sql(database, "select * from storage.usage order by 1, 2")
        changed = run_sql(database, "select key from public.changes")
        assert sorted(key for (key,) in changed) == ["other", "same", "whole"]
    quick["digest_bytes_per_second"] = 10**9
    faster = settings_for(database, store_settings, tmp_path, storage=quick)
    async with serving(faster) as one, serving(faster) as two:

        async def computed() -> bool:
            return (await upload.info(two, "other"))["sha256"] is not None

        await until(computed)
        assert await upload.info(one, "other") == {**before["other"], "sha256": DIGEST}
        want = {"Want-Repr-Digest": "sha-256=1"}
        path = "/storage/buckets/personal/objects/other"
        _, headers, body = await one.request("GET", path, token=upload.token, headers=want)
        assert (headers.getRawHeaders("repr-digest"), body) == ([field_of(PAYLOAD)], PAYLOAD)
        # Neither did anything else change, nor did the project's trigger fire.
        assert run_sql(database, "select * from storage.usage order by 1, 2") == counted
        assert run_sql(database, "select key from public.changes") == changed


@pytest_twisted.ensureDeferred
async def test_what_a_client_says_of_the_whole_is_compared_whichever_workers_receive_it(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    off = {"part_bytes": PART, "digest_bytes_per_second": 0}
    settings = settings_for(database, store_settings, tmp_path, storage=off)
    async with serving(settings) as one, serving(settings) as two:
        upload = Uploading((await one.sign_up("whole@example.test"))["access_token"])
        cut, end, wrong = PART + 7, len(PAYLOAD), {"Repr_Digest": field_of(b"other")}
        for last in (one, two):
            await upload.begin(one, "k", Repr_Digest=field_of(PAYLOAD))
            await upload.send(one, 0, cut)
            assert await upload.try_to_send(last, cut, end, **wrong) == (400, "bad_digest")
            await upload.send(last, cut, end)
            assert (await upload.info(two, "k"))["sha256"] == DIGEST
            run_sql(database, "update storage.objects set sha256 = null")
        for last in (one, two):
            await upload.begin(two, "k")
            await upload.send(one, 0, cut)
            broken = {"Content_Digest": field_of(b"other")}
            assert await upload.try_to_send(last, cut, cut + 9, **broken) == (400, "bad_digest")
            assert await upload.try_to_send(last, cut, end, **wrong) == (400, "bad_digest")
            # Of it nothing is left, and the object that was there stays.
            assert await upload.try_to_send(last, cut, end) == (404, "upload_not_found")
        unfinished = "select version from storage.resumable where committed_at is null"
        assert (run_sql(database, unfinished), run_sql(database, "select version from storage.garbage")) == (
            [],
            [],
        )
        assert run_sql(database, "select size, sha256 from storage.objects") == [(end, None)]


@pytest.fixture
def storage(database: str, store_settings: Store) -> Iterator[Storage]:
    with storage_on(database, store_settings) as made:
        wait(lambda: two_buckets(made))
        yield made


def missing_digests(storage: Storage) -> MissingDigests:
    from twisted.internet import reactor

    uploads = storage.objects.uploads
    return MissingDigests(uploads.garbage, Reader(uploads.store, reactor), storage.live)


@pytest_twisted.ensureDeferred
async def test_an_overwrite_while_the_bytes_are_read_keeps_its_own_digest(
    storage: Storage, database: str
) -> None:
    await put_bytes(storage, "k", b"old")
    missing = missing_digests(storage)
    run_sql(database, "update storage.objects set sha256 = null")
    recorded = type(missing.rows).set_sha256

    async def late(rows: Any, *what: Any) -> bool:
        await put_bytes(storage, "k", b"new")
        run_sql(database, "update storage.objects set sha256 = null")
        return await recorded(rows, *what)

    with patch.object(type(missing.rows), "set_sha256", late):
        assert await missing.compute() == 0
    assert run_sql(database, "select sha256 from storage.objects") == [(None,)]
    assert await missing.compute() == 1
    assert run_sql(database, "select sha256 from storage.objects") == [(sha256(b"new").hexdigest(),)]


@pytest_twisted.ensureDeferred
async def test_a_trigger_that_refuses_keeps_no_other_object_from_its_digest(
    storage: Storage, database: str
) -> None:
    for key in "ab":
        await put_bytes(storage, key, key.encode())
    run_each(
        database,
        "update storage.objects set sha256 = null",
        "create function public.refuse() returns trigger language plpgsql as"
        " $$ begin raise sqlstate 'PT409' using message = 'No.'; end $$",
        "create trigger refuse before update on storage.objects for each row when (new.key = 'a')"
        " execute function public.refuse()",
    )
    assert await missing_digests(storage).compute() == 1
    known = run_sql(database, "select key, sha256 from storage.objects order by key")
    assert known == [("a", None), ("b", sha256(b"b").hexdigest())]


@pytest_twisted.ensureDeferred
async def test_to_find_that_nothing_is_missing_no_object_is_looked_at(
    storage: Storage, database: str
) -> None:
    run_each(
        database,
        "insert into storage.objects (bucket, key, version, size, content_type, etag, sha256)"
        " select 'b', n::text, gen_random_uuid(), 1, 'a/b', 'e', repeat('ab', 32) from generate_series(1, 5000) n",
        "analyze storage.objects",
    )
    plan = run_sql(
        database,
        "explain (format text) select key from storage.objects where sha256 is null and (bucket, key) > ('', '')"
        " order by bucket, key limit 100",
    )
    assert "objects_without_sha256" in str(plan), plan
    assert await missing_digests(storage).compute() == 0
