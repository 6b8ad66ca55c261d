"""What faults leave behind: nothing in the store that no row knows of, and no row without its bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import requests
from botocore.session import Session

from project_service.embedded.data_directory import running_beside
from project_service.settings.model import Store
from tests.live.daemon import TIMEOUT_SECONDS, eventually
from tests.live.loaded_service import credentials
from tests.live.sql import run_sql


def embedded(data_dir: Path) -> tuple[str, Store]:
    """The database and the store of a service that has them embedded."""
    running = running_beside(data_dir)
    assert running is not None
    assert running.dsn is not None
    assert running.store is not None
    return running.dsn, running.store


def judge_leftovers(directory: Path, dsn: str, store: Store) -> None:
    """Let everything expire, as if days had passed, and sweep."""
    run_sql(
        dsn,
        "update storage.resumable set expires_at = expires_at - interval '3 days', held_until = null;"
        "update storage.uploads set seen_at = seen_at - interval '3 days'",
    )
    _storage(directory, "sweep")
    verified = _storage(directory, "verify")
    assert verified["missing"] == verified["torn"] == verified["orphans"] == [], verified
    rows = "select count(*) from (select version from storage.{} union all select version from storage.garbage) r"
    assert run_sql(dsn, rows.format("resumable")) == [(0,)]
    # The running service releases within seconds what it has reserved in advance.
    eventually(lambda: run_sql(dsn, rows.format("uploads")) == [(0,)], "the end of all reservations")
    assert _s3(store).list_multipart_uploads(Bucket=store.bucket).get("Uploads", []) == []


def judge_emptiness(directory: Path) -> None:
    """As ``judge_leftovers``, and then delete everything: nothing may be left, not even renditions."""
    dsn, store = embedded(directory / "var")
    judge_leftovers(directory, dsn, store)
    known = credentials(directory)
    headers = {"X-Service-Key": known["service_key"]}
    buckets = f"{known['base_url']}/admin/buckets"
    for bucket in requests.get(buckets, headers=headers, timeout=TIMEOUT_SECONDS).json()["buckets"]:
        url = f"{buckets}/{bucket['name']}?force=true"
        deleted = requests.delete(url, headers=headers, timeout=TIMEOUT_SECONDS)
        assert deleted.status_code == 204, deleted.text
    judge_leftovers(directory, dsn, store)
    assert run_sql(dsn, "select count(*) from storage.renditions") == [(0,)]
    left = [one["Key"] for one in _s3(store).list_objects_v2(Bucket=store.bucket).get("Contents", [])]
    # What begins with a dot is the service's own.
    assert [key for key in left if not key.startswith(".")] == []


def _s3(store: Store) -> Any:
    assert store.secret_access_key is not None
    return Session().create_client(
        "s3",
        region_name=store.region,
        endpoint_url=store.endpoint_url,
        aws_access_key_id=store.access_key_id,
        aws_secret_access_key=store.secret_access_key.reveal(),
    )


def _storage(directory: Path, command: str) -> Any:
    program = str(Path(sys.executable).with_name("project-service"))
    done = subprocess.run(
        [program, "storage", command, "--config", "faults.toml", "--data-dir", "var", "--json"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
    return json.loads(done.stdout)
