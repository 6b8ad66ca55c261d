"""A primary and a synchronous standby, made with the programs of the embedded wheel."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import psycopg2

from project_service.embedded import postgres
from project_service.embedded.postgres import USER
from project_service.embedded.supervised import Account
from tests.live.daemon import eventually
from tests.temporary import free_port


class Pair:
    """``start`` makes both; ``kill_primary`` and ``promote`` do what a failover consists of.

    ``start_primary`` makes the primary alone, for ``restart_primary``.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bin = postgres.program_directory()
        self._password = token_urlsafe(16)
        self._ports = {"primary": free_port(), "standby": free_port()}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        # A restarted server is no child of this process.
        self._restarted = False
        # PostgreSQL does not run as root.
        entry = pwd.getpwnam(USER) if os.geteuid() == 0 else None
        self._as: dict[str, Any] = {}
        if entry is not None:
            self._as = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            os.chown(directory, entry.pw_uid, entry.pw_gid)
            for closed in (directory, self._bin):
                postgres.let_pass(closed, Account(entry.pw_name, entry.pw_uid, entry.pw_gid))

    @property
    def dsn(self) -> str:
        """The service's, naming both servers."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        account = f"{postgres.OWNER}:{self._password}"
        return f"postgresql://{account}@{hosts}/{postgres.DATABASE}?target_session_attrs=read-write"

    @property
    def admin_dsn(self) -> str:
        """The superuser's, of the primary."""
        return self._dsn("primary")

    def start(self) -> None:
        self.start_primary()
        self._add_standby()

    def start_primary(self) -> None:
        self._initialise()
        self._serve("primary")
        self._primary(
            f"create role {postgres.OWNER} login createrole createdb bypassrls password '{self._password}'"
        )
        self._primary(f"create database {postgres.DATABASE} owner {postgres.OWNER}")

    def _add_standby(self) -> None:
        self._copy("standby")
        self._primary("alter system set synchronous_standby_names = 'standby'")
        self._primary("select pg_reload_conf()")
        in_step = "select count(*) from pg_stat_replication where sync_state = 'sync' and state = 'streaming'"
        eventually(lambda: self._primary(in_step) == [(1,)], "a synchronous standby")

    def _copy(self, name: str) -> None:
        """Start a standby that is made of the primary as it is now."""
        source = f"{self._dsn('primary')} application_name={name}"
        self._run("pg_basebackup", "-D", self._data(name), "-d", source, "-R", "-X", "stream", "-c", "fast")
        self._serve(name)

    def restart_primary(self) -> None:
        """As for a change of its configuration: clients are cut off, and it comes back as another process."""
        self._run("pg_ctl", "restart", "-m", "fast", "-w", "-D", self._data("primary"), "-l", "/dev/null")
        self._servers.pop("primary").wait()
        self._restarted = True

    def kill_primary(self) -> None:
        server = self._servers.pop("primary")
        server.kill()
        server.wait()

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "-w", "-D", self._data("standby"))

    def stop(self) -> None:
        if self._restarted:
            self._run("pg_ctl", "stop", "-m", "fast", "-w", "-D", self._data("primary"))
        for server in self._servers.values():
            # A fast shutdown: a smart one, by SIGTERM, waits for clients that a slow machine still has.
            server.send_signal(signal.SIGINT)
        for server in self._servers.values():
            server.wait(120)

    def _initialise(self) -> None:
        password_file = self._directory / "password"
        password_file.write_text(self._password)
        if self._as:
            os.chown(password_file, self._as["user"], self._as["group"])
        arguments = postgres.initdb_arguments(Path("initdb"), Path(self._data("primary")), password_file)
        self._run(*arguments)

    def _serve(self, name: str) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._ports[name]),
            "unix_socket_directories": "",
            "max_connections": "60",
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with (self._directory / f"{name}.log").open("wb") as log:
            self._servers[name] = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data(name), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                **self._as,
            )
        eventually(lambda: self._answers(name), f"the {name}")

    def _answers(self, name: str) -> bool:
        assert self._servers[name].poll() is None, (self._directory / f"{name}.log").read_text()
        try:
            psycopg2.connect(self._dsn(name)).close()
        except psycopg2.OperationalError:
            return False
        return True

    def _primary(self, sql: str) -> list[Any]:
        with closing(psycopg2.connect(self._dsn("primary"))) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def _dsn(self, name: str) -> str:
        return (
            f"host=127.0.0.1 port={self._ports[name]} user={postgres.SUPERUSER} password={self._password}"
            f" dbname={postgres.SUPERUSER}"
        )

    def _data(self, name: str) -> str:
        return str(self._directory / name)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **self._as,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
