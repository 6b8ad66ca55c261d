"""The memory that a service takes while many rows flow through it, measured from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import requests

from benchmarks.memory import held_during
from tests.live.daemon import Daemon
from tests.live.services import WithDatabase
from tests.live.sql import run_sql

ROWS, WIDTH = 40_000, 1000
# Python's heap grows by some megabytes however many rows there are; the rows themselves take 38 MiB.
ALLOWED = 20


@pytest.fixture(scope="module")
def data_dir(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data_dir = with_database(Path(tmp_path_factory.mktemp("memory")) / "var")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROJECT_SERVICE__STAGES__DEV__DATABASES__MAIN__MAX_ROWS", "0")
        with Daemon(data_dir) as daemon:
            daemon.wait_until_ready()
            (data_dir / "pid").write_text(str(daemon.process.pid))
            yield data_dir


def test_imports_and_exports_hold_some_rows_only(data_dir: Path) -> None:
    """Also of a CSV whose cells go on over several lines."""
    pid = int((data_dir / "pid").read_text())
    credentials = json.loads((data_dir / "credentials.json").read_text())
    url, headers = credentials["rest_url"] + "/rows", {"apikey": credentials["service_key"]}
    run_sql(credentials["dsn"], "create table rows (id int primary key, note text)")

    def written(media: str, first: int, count: int) -> Iterator[bytes]:
        if media == "text/csv":
            yield b"id,note\n"
        for number in range(first, first + count, 100):
            cells = [
                (one, "x" * (WIDTH // 2) + "\n" + "x" * (WIDTH // 2)) for one in range(number, number + 100)
            ]
            if media == "text/csv":
                yield "".join(f'{one},"{note}"\n' for one, note in cells).encode()
            else:
                yield b"".join(json.dumps({"id": one, "note": note}).encode() + b"\n" for one, note in cells)

    def send(media: str, first: int, count: int) -> None:
        sent = {**headers, "Content-Type": media}
        response = requests.post(url, headers=sent, data=written(media, first, count), timeout=300)
        assert response.status_code == 201, response.text

    def receive(media: str) -> None:
        with requests.get(url, headers={**headers, "Accept": media}, stream=True, timeout=300) as response:
            assert response.status_code == 200
            size = sum(len(piece) for piece in response.iter_content(65536))
            assert size > 2 * ROWS * WIDTH

    for media in ("text/csv", "application/x-ndjson"):
        send(media, -4000 if media == "text/csv" else -8000, 4000)
    first = 0
    for media in ("text/csv", "application/x-ndjson"):
        assert held_during(partial(send, media, first, ROWS), pid).growth < ALLOWED
        first += ROWS
    requests.get(url, params={"limit": 20_000}, headers=headers, timeout=300).raise_for_status()
    for media in ("text/csv", "application/x-ndjson", "application/json"):
        assert held_during(partial(receive, media), pid).growth < ALLOWED
    assert run_sql(credentials["dsn"], "select count(*) from rows") == [(2 * ROWS + 8000,)]
