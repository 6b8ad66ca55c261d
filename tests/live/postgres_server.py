"""A PostgreSQL in a folder, for what is done to a server as a whole: restored, recovered, archived."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define, field
from psycopg2.extensions import make_dsn

from project_service.embedded import postgres
from project_service.embedded.postgres import SUPERUSER, USER
from project_service.embedded.supervised import Account
from tests.temporary import free_port

PASSWORD = "of a superuser"


@define
class Server:
    """Made with the programs of the embedded wheel, as a user who may run them; ``start`` makes it and starts it."""

    folder: Path
    port: int = field(factory=free_port)
    _programs: Path = field(factory=postgres.program_directory)
    _account: dict[str, Any] = field(factory=dict)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(self, **settings: str) -> None:
        self._become_unprivileged()
        password_file = self.folder / "password"
        password_file.write_text(PASSWORD)
        self._own(password_file)
        self._run(*postgres.initdb_arguments(Path("initdb"), self.data, password_file))
        given = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            # Processes are killed, but no machine loses its power.
            "fsync": "off",
            **settings,
        }
        with (self.data / "postgresql.conf").open("a") as config:
            config.writelines(f"{name} = '{value}'\n" for name, value in given.items())
        self.shell('pg_ctl --wait --log="$PGDATA/log" start')

    def stop(self) -> None:
        self.shell("! pg_ctl status > /dev/null || pg_ctl --wait --mode=immediate stop")

    def dsn(self, database: str, user: str = SUPERUSER, password: str = PASSWORD) -> str:
        return str(make_dsn(host="127.0.0.1", port=self.port, user=user, password=password, dbname=database))

    def shell(self, script: str, **more: str) -> str:
        """What a script prints that an administrator runs there, as the user of the server."""
        environ = {
            "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            "PGDATA": str(self.data),
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": SUPERUSER,
            "PGPASSWORD": PASSWORD,
            **more,
        }
        return self._run("bash", "-euo", "pipefail", "-c", script, environ=environ)

    def _run(self, program: str, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
        path = program if environ is not None else str(self._programs / program)
        # To a file: what the server keeps open would else be waited for.
        output = self.folder / "output"
        with output.open("wb") as written:
            self._own(output)
            done = subprocess.run(
                [path, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                env=environ,
                check=False,
                timeout=120,
                **self._account,
            )
        assert done.returncode == 0, f"{shlex.join(arguments)}: {output.read_text()}"
        return output.read_text()

    def _become_unprivileged(self) -> None:
        """PostgreSQL does not run as root."""
        if os.geteuid() != 0:
            return
        entry = pwd.getpwnam(USER)
        self._account = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        self._own(self.folder)
        for closed in (self.folder, self._programs):
            postgres.let_pass(closed, Account(entry.pw_name, entry.pw_uid, entry.pw_gid))

    def _own(self, path: Path) -> None:
        if self._account:
            os.chown(path, self._account["user"], self._account["group"])
