"""A backup made while clients write, and the service on what is restored from it (docs/operating/restore.rst)."""

from __future__ import annotations

import json
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_twisted
import pyvips
import requests
from attrs import define, evolve, field

from project_service.embedded import postgres
from project_service.settings.model import Store
from tests.live.daemon import eventually
from tests.live.loaded_service import NOTHING_KEPT, credentials, sections, started
from tests.live.services import Services, store_client
from tests.live.storage.cli import config_file, run

BUCKET = "/storage/buckets/private/objects"
OBJECT = f"{BUCKET}/large"
ACCOUNT = {"email": "kept@example.test", "password": "a long enough one"}
KEYS = 40
KEEPING = NOTHING_KEPT + "keep_removed_seconds = 3600\npart_bytes = 5242880\n"
# More than one part, so that its ETag is not a plain MD5.
LARGE = Random(7).randbytes(6 * 1024 * 1024)
PICTURE: bytes = pyvips.Image.black(40, 30, bands=3).write_to_buffer(".png")
ALBUM = {"album": "trip"}
TUS = {"Tus-Resumable": "1.0.0"}
UPLOADS = "/storage/buckets/private/resumable"


@define
class Churn:
    """Clients that keep writing, overwriting and deleting a few keys."""

    base_url: str
    key: str
    done: int = 0
    wrong: list[str] = field(factory=list)
    _stop: threading.Event = field(factory=threading.Event)

    def run(self, seed: int) -> None:
        random = Random(seed)
        with requests.Session() as session:
            session.headers["X-Service-Key"] = self.key
            while not self._stop.is_set():
                url = f"{self.base_url}{BUCKET}/churn-{seed}-{random.randrange(KEYS)}"
                if random.random() < 0.25:
                    status = session.delete(url, timeout=60).status_code
                else:
                    status = session.put(url, data=random.randbytes(2000), timeout=60).status_code
                if status not in {200, 201, 204, 404}:
                    self.wrong.append(f"{url}: {status}")
                self.done += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self.run, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def goes_on(self) -> None:
        before = self.done
        eventually(lambda: self.done > before + 2 * KEYS, "more writes")


async def copy_store(source: Store, target: Store) -> int:
    """Copies all objects of a bucket to another, as an S3 program would, and returns their number."""
    here, there = store_client(source), store_client(target)
    copied, token = 0, None
    try:
        await there.ensure_bucket()
        while True:
            page = await here.list(token=token)
            for entry in page.objects:
                got = await here.requests.send("GET", entry.key)
                await there.put(entry.key, got.body, "application/octet-stream", {})
                copied += 1
            token = page.next_token
            if token is None:
                return copied
    finally:
        await here.close()
        await there.close()


@define
class BesideObjects:
    """What has more than an object's bytes: details, links for both methods, a rendition, an unfinished upload."""

    base_url: str
    key: str
    download: str = ""
    upload: str = ""
    unfinished: str = ""

    def request(self, method: str, path: str, **more: Any) -> requests.Response:
        headers = {"X-Service-Key": self.key, **more.pop("headers", {})}
        return requests.request(method, self.base_url + path, headers=headers, timeout=60, **more)

    def make(self) -> None:
        details = {
            "X-Metadata": b64encode(json.dumps(ALBUM).encode()).decode(),
            "Cache-Control": "max-age=60",
        }
        picture = {"Content-Type": "image/png", **details}
        assert self.request("PUT", f"{BUCKET}/picture", data=PICTURE, headers=picture).status_code == 201
        assert self.request("GET", f"{BUCKET}/picture?width=8").status_code == 200
        self.download = self._link(key="picture")
        self.upload = self._link(method="PUT", key="by-link")
        self.unfinished = self._begun()
        assert self._send(self.unfinished, LARGE[:-1]).status_code == 204

    def check(self, base_url: str) -> None:
        """Assert that all of it works at ``base_url``, and that the unfinished upload can begin again."""
        self.base_url = base_url
        shown = self.request("GET", f"{BUCKET}/picture?info=true").json()
        assert (shown["metadata"], shown["cache_control"]) == (ALBUM, "max-age=60")
        assert self.request("GET", f"{BUCKET}/picture?width=8").status_code == 200
        got = self.request("GET", self.download)
        assert (got.status_code, got.content == PICTURE) == (200, True)
        assert self.request("PUT", self.upload, data=b"by link").status_code == 201
        refused = self._send(self.unfinished, LARGE[-1:], len(LARGE) - 1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (410, "upload_expired")
        assert self.request("HEAD", self.unfinished, headers=TUS).status_code == 404
        assert self._send(self._begun(), LARGE).headers["Upload-Offset"] == str(len(LARGE))
        assert self.request("GET", f"{BUCKET}/unfinished").content == LARGE

    def _link(self, **members: str) -> str:
        made = self.request("POST", "/storage/buckets/private/presign", json=members)
        return str(made.json()["url"]).removeprefix(self.base_url)

    def _begun(self) -> str:
        sent = {**TUS, "Upload-Length": str(len(LARGE))}
        return self.request("POST", f"{UPLOADS}?key=unfinished", headers=sent).headers["Location"]

    def _send(self, path: str, body: bytes, offset: int = 0) -> requests.Response:
        sent = {"Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream"}
        return self.request("PATCH", path, data=body, headers={**TUS, **sent})


def program(name: str, *arguments: str) -> None:
    done = subprocess.run(
        [postgres.program_directory() / name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")


def first_writes(directory: Path) -> Churn:
    """Writes what must be restored. Returns it, and the clients that go on writing."""
    known = credentials(directory)
    base, headers = known["base_url"], {"X-Service-Key": known["service_key"]}
    assert requests.put(base + OBJECT, data=LARGE, headers=headers, timeout=60).status_code == 201
    assert requests.post(f"{base}/auth/signup", json=ACCOUNT, timeout=60).status_code == 201
    return Churn(base, known["service_key"])


def serves(directory: Path, key: str) -> None:
    """Asserts that everything is there with the old key, and can be changed."""
    base, headers = credentials(directory)["base_url"], {"X-Service-Key": key}
    got = requests.get(base + OBJECT, headers=headers, timeout=60)
    assert (got.status_code, got.content == LARGE) == (200, True)
    assert requests.post(f"{base}/auth/login", json=ACCOUNT, timeout=60).status_code == 200
    assert requests.put(base + OBJECT, data=b"new", headers=headers, timeout=60).status_code == 200


@pytest_twisted.ensureDeferred
async def test_a_backup_made_under_load_can_be_restored(
    services: Services, database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__SERVER__WORKERS", "1")
    dump = tmp_path / "database.dump"
    copy = evolve(store_settings, bucket=services.unique("restored"))
    with started(tmp_path, **sections(database, store_settings), storage=KEEPING):
        churn = first_writes(tmp_path)
        beside = BesideObjects(churn.base_url, churn.key)
        beside.make()
        with churn.running():
            churn.goes_on()
            program("pg_dump", "--format=custom", f"--file={dump}", f"--dbname={database}")
            churn.goes_on()
            copied = await copy_store(store_settings, copy)
        assert churn.wrong == []
    with services.database("restored") as restored:
        program("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={restored}", str(dump))
        config = config_file(restored, copy, tmp_path)
        code, report, output = run(config, "storage", "verify")
        assert (code, report["missing"], report["torn"]) == (0, [], []), output
        # It was stored in parts and copied in one piece, so its ETag proves nothing.
        assert report["unproven"] == ["private/large"]
        assert 0 < report["objects"] < copied
        assert run(config, "storage", "sweep", "--stale-after", "0")[0] == 0
        report = run(config, "storage", "verify")[1]
        assert (report["missing"], report["orphans"]) == ([], [])
        with started(tmp_path, **sections(restored, copy), storage=KEEPING):
            serves(tmp_path, churn.key)
            beside.check(credentials(tmp_path)["base_url"])
