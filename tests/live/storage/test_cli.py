"""Storage by the command line: verify, sweep and import."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve
from twisted.internet.threads import deferToThread

from project_service.cli import storage
from project_service.errors import ApiError
from project_service.settings.model import Store
from project_service.storage import buckets
from project_service.storage.errors import store_unavailable
from project_service.storage.s3.client import connect_store
from project_service.storage.s3.errors import BrokenRead, NoSuchObject
from project_service.storage.values import NO_DETAILS, Details
from tests.live.cli.command_here import beside_the_reactor, commands_of
from tests.live.services import wait
from tests.live.sql import run_sql
from tests.live.storage.cli import config_file


@beside_the_reactor
def test_links_are_listed_and_revoked(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path))
    user, other = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
    for bucket in ("a", "b"):
        assert project("bucket", "create", bucket).code == 0
    run_sql(
        database,
        "insert into storage.links (token_hash, bucket, key, expires_at, uses_left, created_by, method, by_prefix)"
        " select int4send(n), case when n < 3 then 'a' else 'b' end, 'k' || n, now() + interval '1 day', 1,"
        f" case when n > 1 then '{user}'::uuid end, case when n = 2 then 'PUT' else 'GET' end, n = 2"
        " from generate_series(1, 3) n",
    )
    run_sql(
        database,
        f"insert into storage.links (token_hash, bucket, key, expires_at, created_by)"
        f" values ('old', 'a', 'expired', now(), '{user}')",
    )

    def listed(*words: str) -> list[Any]:
        done = project("storage", "links", *words, "--json")
        assert done.code == 0, done.err
        return sorted(
            (link["bucket"], link["key"] or link["key_prefix"], link["method"]) for link in done.json
        )

    first, second, third = ("a", "k1", "GET"), ("a", "k2", "PUT"), ("b", "k3", "GET")
    assert listed() == [first, second, third]
    assert listed("a") == [first, second]
    assert listed("--created-by", user) == [second, third]
    assert listed("--created-by", other) == []
    shown = project("storage", "links", "a").out
    assert "a/k2*  1 uses left" in shown and f"by {user}" in shown and "by a service" in shown
    done = project("storage", "links", "b", "--json").json
    assert listed("a", "--id", done[0]["id"], "--revoke") == []
    assert listed("--id", done[0]["id"], "--revoke") == [third]
    assert listed("--created-by", user, "--revoke") == [second]
    assert listed() == [first]
    assert project("storage", "links", "none").code == 1
    assert project("storage", "links", "a", "--id", "x").code == 2


@beside_the_reactor
def test_a_bucket_from_its_creation_to_its_deletion(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = commands_of(monkeypatch, "--json", "--config", config_file(database, store_settings, tmp_path))

    def run(*words: str) -> tuple[int, Any, str]:
        done = project(*words)
        return done.code, done.json if done.out else None, done.err

    rules = ["--public", "--max-object-bytes", "1000", "--content-type", "text/*", "--owner-only-writes"]
    code, made, _ = run("bucket", "create", "papers", *rules)
    assert code == 0
    assert (made["visibility"], made["max_object_bytes"], made["owner_only_writes"]) == ("public", 1000, True)
    assert made["allowed_content_types"] == ["text/*"]
    code, _, stderr = run("bucket", "create", "papers")
    assert (code, "already" in stderr) == (1, True)
    assert run("bucket", "create", "No")[0] == 1
    assert run("bucket", "update", "papers", "--max-bucket-bytes", "many")[0] == 2
    changes = ["--private", "--max-object-bytes", "none", "--content-type", "any", "--shared-writes"]
    code, changed, _ = run("bucket", "update", "papers", *changes)
    assert code == 0
    assert (changed["visibility"], changed["max_object_bytes"]) == ("private", None)
    assert (changed["allowed_content_types"], changed["owner_only_writes"]) == (None, False)
    for words, shown in (
        (("create", "own", "--per-user"), [True, True, False]),
        (("update", "own", "--no-owner-only-reads"), [False, True, False]),
        (("update", "own", "--owner-only-reads", "--shared-writes", "--policies"), [True, False, True]),
        (("update", "own", "--shared-reads", "--no-policies"), [False, False, False]),
    ):
        _, own, _ = run("bucket", *words)
        assert [own[name] for name in ("owner_only_reads", "owner_only_writes", "policies")] == shown
    code, _, stderr = run("bucket", "create", "both", "--public", "--per-user")
    assert (code, "owner_only_reads" in stderr) == (1, True)
    assert run("bucket", "delete", "own")[0] == 0

    files = tmp_path / "files"
    (files / "sub").mkdir(parents=True)
    (files / "one.txt").write_text("one")
    (files / "sub" / "zwei ö.txt").write_text("zwei")
    (files / "bad\nname").write_text("bad")
    (files / os.fsdecode(b"no-text-\xff")).write_text("bad")
    (files / "no-bytes").symlink_to("/proc/self/mem")
    code, imported, _ = run("storage", "import", "papers", str(files), "--prefix", "in/")
    assert code == 1
    assert imported["imported"] == ["in/one.txt", "in/sub/zwei ö.txt"]
    assert list(imported["refused"]) == ["in/bad\nname", "in/no-bytes", "in/no-text-\\udcff"]
    assert imported["refused"]["in/no-bytes"] == "It cannot be read: Input/output error."
    for bad in ("bad\nname", "no-bytes", os.fsdecode(b"no-text-\xff")):
        (files / bad).unlink()
    code, again, _ = run("storage", "import", "papers", str(files), "--prefix", "in/")
    assert (code, again["imported"], len(again["skipped"])) == (0, [], 2)

    run("bucket", "update", "papers", "--max-object-bytes", "2")
    (files / "long").write_text("xyz")
    code, refused, _ = run("storage", "import", "papers", str(files), "--prefix", "in/")
    assert (code, list(refused["refused"])) == (1, ["in/long"])

    code, report, _ = run("storage", "verify")
    assert (code, report["sound"], report["objects"]) == (0, True, 2)
    assert run("storage", "sweep")[0] == 0
    assert [bucket["object_count"] for bucket in run("bucket", "list")[1]] == [2]
    code, _, stderr = run("bucket", "delete", "papers")
    assert (code, "--force deletes them too" in stderr) == (1, True)
    assert run("bucket", "delete", "papers", "--force")[0] == 0
    assert run("bucket", "delete", "papers", "--force")[0] == 1
    assert run("storage", "verify")[1]["orphans"] == []


@beside_the_reactor
def test_what_is_done_to_buckets_is_recorded(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path))
    for words in (("create", "papers"), ("update", "papers", "--public"), ("delete", "papers")):
        assert run("bucket", *words).code == 0
    recorded = "select actor, action, subject, result from auth.audit order by id"
    assert run_sql(database, recorded) == [
        ("operator", f"{action}_bucket", "papers", "ok") for action in ("create", "change", "delete")
    ]


@beside_the_reactor
def test_anonymous_reads_of_a_bucket(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = commands_of(monkeypatch, "--json", "--config", config_file(database, store_settings, tmp_path))
    for words, shown in (
        (("create", "pages", "--public", "--anonymous-reads"), True),
        (("update", "pages", "--no-anonymous-reads"), False),
        (("update", "pages", "--anonymous-reads"), True),
    ):
        done = run("bucket", *words)
        assert (done.code, done.json["anonymous_reads"]) == (0, shown)
    for words in (("update", "pages", "--private"), ("create", "others", "--anonymous-reads")):
        done = run("bucket", *words)
        assert (done.code, "anonymous_reads" in done.err) == (1, True)


@beside_the_reactor
def test_the_cache_control_of_a_bucket(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = commands_of(monkeypatch, "--json", "--config", config_file(database, store_settings, tmp_path))
    for command, text, shown in (
        ("create", "max-age=60, immutable", "max-age=60, immutable"),
        ("update", "no-cache", "no-cache"),
        ("update", "none", None),
    ):
        done = run("bucket", command, "aged", "--cache-control", text)
        assert (done.code, done.json["cache_control"]) == (0, shown)
    done = run("bucket", "update", "aged", "--cache-control", "max-age=never")
    assert (done.code, "cache_control" in done.err) == (1, True)


@beside_the_reactor
def test_control_characters_in_keys_are_not_printed(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path))
    assert project("bucket", "create", "papers").code == 0
    files = tmp_path / "files"
    files.mkdir()
    (files / "é \x1b[2J\n\x9b").touch()
    first, *rest = project("storage", "import", "papers", str(files)).out.splitlines()
    assert first.startswith(r"refused  é \x1b[2J\n\x9b: ")
    assert rest == ["0 imported, 0 there already, 1 refused"]


LARGE = os.urandom(2 * storage.READ_BYTES + 5)
OLDER = "older-bucket"


@pytest.fixture
def older(store_settings: Store) -> Iterator[Any]:
    """Another bucket, with objects, a folder marker, and a key that this service does not allow."""
    from twisted.internet import reactor

    store = connect_store(reactor, evolve(store_settings, bucket=OLDER))

    async def fill() -> None:
        await store.ensure_bucket()
        await store.put("photos/a b.png", b"png", "image/x-own", {})
        await store.put("photos/sub/large", LARGE, "not a type", {})
        await store.put("photos/empty/", b"", "text/plain", {})
        await store.put("photos2/other", b"x", "text/plain", {})

    wait(fill)
    yield store
    wait(store.close)


@pytest_twisted.ensureDeferred
async def test_a_folder_of_another_bucket_is_imported(
    database: str, store_settings: Store, older: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_file(database, store_settings, tmp_path)
    here = commands_of(monkeypatch, "--config", config, "--json")

    async def project(*words: str) -> tuple[int, Any, str]:
        done = await deferToThread(here, *words)
        return done.code, done.json if done.out else None, done.err

    assert (await project("bucket", "create", "new"))[0] == 0
    code, done, _ = await project("storage", "import", "new", f"s3://{OLDER}/photos", "--prefix", "in/")
    assert (code, done) == (
        0,
        {"imported": ["in/a b.png", "in/sub/large"], "skipped": [], "refused": {}},
    )
    code, again, _ = await project("storage", "import", "new", f"s3://{OLDER}/photos/", "--prefix", "in/")
    assert (code, again["imported"], len(again["skipped"])) == (0, [], 2)
    assert (await project("bucket", "list"))[1][0]["total_bytes"] == 3 + len(LARGE)
    # The source is not changed.
    assert (await older.stat("photos/sub/large")).size == len(LARGE)
    code, _, stderr = await project("storage", "import", "new", f"s3://{store_settings.bucket}")
    assert (code, "its own objects" in stderr) == (1, True)
    assert (await project("storage", "import", "new", "/no/such/directory"))[0] == 2
    _, done, _ = await project("storage", "import", "new", f"s3://{OLDER}", "--prefix", "all/")
    assert done["imported"] == ["all/photos/a b.png", "all/photos/sub/large", "all/photos2/other"]
    # An object that cannot be read is skipped; a fault that concerns all ends the import.
    gone = NoSuchObject(404, "NoSuchKey")
    for fault, message in (
        (gone, "not everything could be imported"),
        (store_unavailable(), store_unavailable().message),
        (BrokenRead(), "the store stopped in the middle of next; import again to go on"),
    ):
        monkeypatch.setattr(storage, "files_in_bucket", failing(gone=gone, next=fault))
        code, done, why = await project("storage", "import", "new", f"s3://{OLDER}")
        assert (code, why) == (1, f"project-service: {message}\n")
        if fault is gone:
            assert done["refused"] == dict.fromkeys(("gone", "next"), "It is no longer in the source.")


@pytest_twisted.ensureDeferred
async def test_no_reservation_outlives_an_import(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path), "--json")
    source = tmp_path / "source"
    source.mkdir()
    for number in range(10):
        (source / str(number)).write_bytes(b"x")
    await deferToThread(here, "bucket", "create", "b")
    done = await deferToThread(here, "storage", "import", "b", str(source))
    assert len(done.json["imported"]) == 10
    assert (
        run_sql(database, "select version from storage.uploads union all select version from storage.garbage")
        == []
    )


@pytest_twisted.ensureDeferred
async def test_a_bucket_that_is_replaced_during_an_import_gets_nothing(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new bucket of the same name may be public; nothing more is read from the source either."""
    here = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path))
    assert (await deferToThread(here, "bucket", "create", "b")).code == 0
    read = []

    async def upload(key: str, parts: Any) -> tuple[str, Details]:
        read.append(key)
        run_sql(database, "delete from storage.buckets")
        run_sql(database, "select storage.create_bucket('b', 'public', null, null, null, false, false)")
        return "text/plain", NO_DETAILS

    async def files(*source: Any) -> AsyncIterator[tuple[str, Any]]:
        for name in ("one", "two"):
            yield name, upload

    monkeypatch.setattr(storage, "files_in_directory", files)
    monkeypatch.setattr(buckets, "BUCKET_FRESH_SECONDS", 0)
    done = await deferToThread(here, "storage", "import", "b", str(tmp_path))
    assert (done.code, done.err) == (1, "project-service: There is no such bucket.\n")
    assert read == ["one"]
    assert run_sql(database, "select 1 from storage.objects") == []


def failing(**faults: Exception) -> Any:
    """A source whose objects cannot be read."""

    async def upload(fault: Exception, key: str, parts: Any) -> Any:
        raise fault

    async def files(*source: Any) -> AsyncIterator[tuple[str, Any]]:
        for name, fault in faults.items():
            yield name, partial(upload, fault)

    return files


class _Parts:
    def __init__(self) -> None:
        self.described: tuple[str, str | None] | None = None
        self.data = b""

    def describe(self, content_type: str, key: str | None) -> None:
        self.described = (content_type, key)

    async def write(self, data: bytes) -> None:
        self.data += data


@pytest_twisted.ensureDeferred
async def test_bytes_and_content_type_are_kept(older: Any) -> None:
    files = [entry async for entry in storage.files_in_bucket(older, "photos/")]
    assert [name for name, _ in files] == ["a b.png", "sub/large"]
    for (_, upload), expected in zip(
        files, [("image/x-own", b"png"), ("application/octet-stream", LARGE)], strict=True
    ):
        parts: Any = _Parts()
        content_type, details = await upload("key", parts)
        assert (content_type, parts.data) == expected
        assert details == NO_DETAILS
        assert parts.described == (content_type, "key")


@pytest_twisted.ensureDeferred
async def test_what_the_source_says_of_an_object_is_kept(
    database: str, store_settings: Store, older: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path), "--json")
    sent = {
        "cache-control": "max-age=60, immutable",
        "content-language": "de",
        "x-amz-meta-album": "trip",
        "x-amz-meta-By-Whom": "=?UTF-8?B?w4RubmU=?=",
    }
    await older.requests.send("PUT", "told/all", headers=sent)
    await older.requests.send("PUT", "told/wrong", headers={"content-language": "in no language"})
    try:
        await deferToThread(here, "bucket", "create", "b")
        done = await deferToThread(here, "storage", "import", "b", f"s3://{OLDER}/told")
    finally:
        for name in ("all", "wrong"):
            await older.delete(f"told/{name}")
    assert (done.code, done.json["imported"]) == (0, ["all", "wrong"])
    assert run_sql(
        database,
        "select key, max_age_seconds, cache_control, content_language, metadata, sha256 from storage.objects"
        " order by key",
    ) == [
        (
            "all",
            60,
            "max-age=60, immutable",
            "de",
            {"album": "trip", "by-whom": "Änne"},
            sha256().hexdigest(),
        ),
        ("wrong", None, None, None, None, sha256().hexdigest()),
    ]


@pytest_twisted.ensureDeferred
async def test_verify_reads_the_bytes_if_it_is_asked_to(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path), "--json")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b", "c"):
        (source / name).write_bytes(LARGE)
    await deferToThread(here, "bucket", "create", "b")
    await deferToThread(here, "storage", "import", "b", str(source))
    done = await deferToThread(here, "storage", "verify", "--contents", "--rate", "1GB")
    assert (done.code, done.json["damaged"], done.json["without_sha256"]) == (0, [], 0)
    assert done.err == "3 objects, up to b/c\n"
    # As if the bytes had changed in the store, behind an ETag that has not.
    run_sql(database, "update storage.objects set sha256 = repeat('0', 64) where key <> 'a'")
    run_sql(database, "update storage.objects set sha256 = null where key = 'c'")
    assert (await deferToThread(here, "storage", "verify")).json["sound"] is True
    done = await deferToThread(here, "storage", "verify", "--contents")
    assert (done.code, done.json["damaged"], done.json["without_sha256"]) == (1, ["b/b"], 1)
    done = await deferToThread(here, "storage", "verify", "--contents", "--after", "b/b")
    assert (done.code, done.json["objects"], done.json["damaged"]) == (0, 1, [])
    for words in (("--rate", "1MB"), ("--contents", "--rate", "fast"), ("--after", "b")):
        assert (await deferToThread(here, "storage", "verify", *words)).code == 2


@pytest_twisted.ensureDeferred
async def test_an_object_overwritten_while_it_is_read_is_not_imported(older: Any) -> None:
    ((_, upload),) = [entry async for entry in storage.files_in_bucket(older, "photos/sub/")]

    class Overwriting(_Parts):
        async def write(self, data: bytes) -> None:
            await older.put("photos/sub/large", LARGE[::-1], "text/plain", {})

    parts: Any = Overwriting()
    with pytest.raises(ApiError) as refused:
        await upload("key", parts)
    assert refused.value.code == "precondition_failed"


@pytest_twisted.ensureDeferred
async def test_a_compressed_object_is_not_imported(older: Any) -> None:
    """Uploads with a Content-Encoding are refused too; aws-chunked, which some stores keep, does not count."""
    for coding, refused in (("gzip", True), ("aws-chunked,gzip", True), ("aws-chunked", False)):
        await older.requests.send("PUT", "packed/page", headers={"content-encoding": coding})
        ((_, upload),) = [one async for one in storage.files_in_bucket(older, "packed/")]
        parts: Any = _Parts()
        if refused:
            with pytest.raises(storage.Unreadable, match="Content-Encoding"):
                await upload("page", parts)
        else:
            assert await upload("page", parts) == ("application/octet-stream", NO_DETAILS)
    await older.delete("packed/page")
