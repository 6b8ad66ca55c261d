"""A backup made while clients write, and the service on what is restored from it (docs/operations.rst)."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import pytest_twisted
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
                    status = session.delete(url, timeout=30).status_code
                else:
                    status = session.put(url, data=random.randbytes(2000), timeout=30).status_code
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


def program(name: str, *arguments: str) -> None:
    done = subprocess.run(
        [postgres.program_directory() / name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def first_writes(directory: Path) -> Churn:
    """Writes what must be restored. Returns it, and the clients that go on writing."""
    known = credentials(directory)
    base, headers = known["base_url"], {"X-Service-Key": known["service_key"]}
    assert requests.put(base + OBJECT, data=LARGE, headers=headers, timeout=60).status_code == 201
    assert requests.post(f"{base}/auth/signup", json=ACCOUNT, timeout=30).status_code == 201
    return Churn(base, known["service_key"])


def serves(directory: Path, key: str) -> None:
    """Asserts that everything is there with the old key, and can be changed."""
    base, headers = credentials(directory)["base_url"], {"X-Service-Key": key}
    got = requests.get(base + OBJECT, headers=headers, timeout=60)
    assert (got.status_code, got.content == LARGE) == (200, True)
    assert requests.post(f"{base}/auth/login", json=ACCOUNT, timeout=30).status_code == 200
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
