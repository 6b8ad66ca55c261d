"""Commands that are interrupted: they say so, also by the exit code, and leave nothing running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from tests.live.cli.command_line import beginning
from tests.live.daemon import TIMEOUT_SECONDS, eventually

RUNNING = (
    "select count(*) from pg_stat_activity where query like '%pg_sleep(33)%' and pid <> pg_backend_pid()"
)


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """Restores SIGINT: if a shell runs the tests in the background, it is ignored, which commands would inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ended_by(number: signal.Signals, command: subprocess.Popen[str]) -> tuple[int, str, str]:
    # A terminal sends signals to the whole process group.
    os.killpg(command.pid, number)
    out, err = command.communicate(timeout=TIMEOUT_SECONDS)
    return command.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_statement_is_cancelled_on_the_server(
    number: signal.Signals, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__DATABASE__DSN", database)
    with closing(psycopg2.connect(database)) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute("create table kept (n int)")

        def rows(sql: str) -> int:
            cursor.execute(sql)
            return int(cursor.fetchall()[0][0])

        script = tmp_path / "slow.sql"
        script.write_text("insert into kept values (1); select pg_sleep(33)")
        with beginning("sql", script, "--data-dir", tmp_path) as one:
            eventually(lambda: rows(RUNNING) == 1, "the statement being under way")
            assert ended_by(number, one) == (1, "", "project-service: interrupted\n")
        eventually(lambda: rows(RUNNING) == 0, "the server giving up the statement")
        assert rows("select count(*) from kept") == 0


def test_an_interrupted_check_ends_at_once(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        silent.settimeout(TIMEOUT_SECONDS)
        config = tmp_path / "silent.toml"
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config.write_text(
            f'[database]\ndsn = "postgresql://u:p@{address}/x"\n'
            f'[store]\nendpoint_url = "http://{address}"\naccess_key_id = "a"\nsecret_access_key = "s"\n'
            f'[auth]\njwt_keys_file = "{tmp_path}/none.json"\n'
        )
        with beginning("check", "--config", config) as one:
            silent.accept()[0].close()
            with closing(silent.accept()[0]):
                assert ended_by(signal.SIGINT, one) == (1, "", "project-service: interrupted\n")
