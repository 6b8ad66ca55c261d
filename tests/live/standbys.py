"""A primary and two standbys that follow it, as readers of a database: they can lag, hang, die and be promoted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from project_service.embedded import postgres
from tests.chaos.standby import Pair
from tests.live.daemon import eventually
from tests.temporary import free_port

READERS = ("one", "two")


class Standbys(Pair):
    """``start`` makes all three. Servers are called "primary", "one" and "two"."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._ports = {name: free_port() for name in ("primary", *READERS)}

    def start(self) -> None:
        self.start_primary()
        for name in READERS:
            self._copy(name)

    def dsn_of(self, name: str) -> str:
        """The service's own, of one server."""
        return f"postgresql://{postgres.OWNER}:{self._password}@127.0.0.1:{self._ports[name]}/{postgres.DATABASE}"

    def port(self, name: str) -> int:
        return self._ports[name]

    @property
    def read_dsn(self) -> str:
        hosts = ",".join(f"127.0.0.1:{self._ports[name]}" for name in READERS)
        return f"postgresql://{postgres.OWNER}:{self._password}@{hosts}/{postgres.DATABASE}"

    def sql(self, name: str, text: str) -> list[Any]:
        """Run SQL as the superuser, in the service's database."""
        with closing(psycopg2.connect(f"{self._dsn(name)} dbname={postgres.DATABASE}")) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(text)
            return cursor.fetchall() if cursor.description else []

    def pause(self, name: str) -> None:
        """The standby replays nothing more."""
        self.sql(name, "select pg_wal_replay_pause()")
        state = "select pg_get_wal_replay_pause_state()"
        eventually(lambda: self.sql(name, state) == [("paused",)], f"a pause of {name}")

    def go_on(self, name: str) -> None:
        self.sql(name, "select pg_wal_replay_resume()")

    def in_step(self, primary: str = "primary", standbys: Sequence[str] = READERS) -> None:
        """Wait until all ``standbys`` have replayed what has been written until now."""
        ((at,),) = self.sql(primary, "select pg_current_wal_flush_lsn()")
        reached = f"select pg_last_wal_replay_lsn() >= '{at}'"
        eventually(lambda: all(self.sql(name, reached) == [(True,)] for name in standbys), "all in step")

    @contextmanager
    def hanging(self, name: str) -> Iterator[None]:
        """None of the server's processes runs, but its connections stay open."""
        pids = self._pids(name)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _pids(self, name: str) -> list[int]:
        """The server's processes, its own first, so that it makes no others."""
        parent = self._servers[name].pid
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(parent)], check=False, capture_output=True, text=True
        )
        return [parent, *map(int, listed.stdout.split())]

    def kill(self, name: str) -> None:
        server = self._servers.pop(name)
        server.kill()
        server.wait()

    def serve(self, name: str) -> None:
        """Start a server that was killed."""
        self._serve(name)

    def promote_to_primary(self, name: str) -> None:
        self._run("pg_ctl", "promote", "-w", "-D", self._data(name))

    def follow(self, name: str, source: str) -> None:
        """Have ``name`` follow another server from now on."""
        where = f"{self._dsn(source)} application_name={name}".replace("'", "")
        self.sql(name, f"alter system set primary_conninfo = '{where}'")
        self.sql(name, "select pg_reload_conf()")

    def make_anew(self, name: str, source: str) -> None:
        """Make ``name``, which does not run, a copy of ``source``, which it follows."""
        shutil.rmtree(self._data(name))
        conninfo = f"{self._dsn(source)} application_name={name}"
        self._run("pg_basebackup", "-D", self._data(name), "-d", conninfo, "-R", "-X", "stream", "-c", "fast")
        self._serve(name)
