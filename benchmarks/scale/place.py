"""A proxy, hosts, PostgreSQL with a standby, and a store, each in a network namespace of its own on one bridge, and
what each of them uses: CPU of all its processes, and the bytes of its network card."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import psycopg2
import requests
from attrs import define, field

from benchmarks.running import ROOT
from benchmarks.scale.machines import Cost
from project_service.embedded import postgres, seaweed
from project_service.embedded.data_directory import Secrets, load_or_make_secrets
from project_service.embedded.supervised import Account

BRIDGE = "ps-scale"
PORT, STATS_PORT = 8000, 8001
MOST_HOSTS = 100
# (198.18.0.0/15 is for benchmarks: RFC 2544.)
_NETWORK = "198.18.0"
_NUMBERS = {"proxy": 2, "postgresql": 3, "standby": 4, "store": 5}
_FIRST_HOST = 10
_STARTING_SECONDS = 120.0
# All requests come from one address, so nothing is limited by address; objects come from the store, not from memory.
_CONFIG = """
[server]
workers = {workers}
[database]
dsn = "{dsn}"
[store]
endpoint_url = "http://{store}:8333"
bucket = "scale"
access_key_id = "{key}"
secret_access_key = "{secret}"
[auth]
signups_max_per_address = 0
login_failures_max_per_address = 0
[storage]
cache_bytes = 0
[stages.dev.databases.main]
"""
_PROXY = """
global
    maxconn 4000
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 60s
    option redispatch
frontend clients
    bind {address}:{port}
    default_backend hosts
frontend stats
    bind {address}:{stats_port}
    stats enable
    stats uri /
backend hosts
    balance roundrobin
    option httpchk GET /ready
    default-server check inter 2s rise 1 fall 1
{servers}
"""


@define
class Place:
    """What runs. ``hosts`` are the names of the hosts that the proxy knows."""

    directory: Path
    secrets: Secrets
    hosts: list[str] = field(factory=list)
    _processes: dict[str, subprocess.Popen[bytes]] = field(factory=dict)
    _password: str = field(factory=lambda: token_urlsafe(16))

    @property
    def url(self) -> str:
        return f"http://{_address('proxy')}:{PORT}"

    @property
    def dsn(self) -> str:
        account = f"{postgres.OWNER}:{self._password}"
        return f"postgresql://{account}@{_address('postgresql')}/{postgres.DATABASE}"

    @property
    def credentials(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.directory / self.hosts[0] / "credentials.json").read_text())
        return found

    def used(self) -> Cost:
        """All of it until now; the difference of two is what was used between."""
        sent = {name: _bytes_of(name) for name in (*_NUMBERS, *self.hosts)}
        database, store = sent["postgresql"] - sent["standby"], sent["store"]
        return Cost(
            proxy=self._cpu_seconds("proxy"),
            service=sum(map(self._cpu_seconds, self.hosts)),
            postgresql=self._cpu_seconds("postgresql"),
            replay=self._cpu_seconds("standby"),
            store=self._cpu_seconds("store"),
            client_bytes=sum(sent[host] for host in self.hosts) - database - store,
            postgresql_bytes=database,
            replay_bytes=sent["standby"],
            store_bytes=store,
        )

    def connections(self) -> int:
        """How many clients PostgreSQL has, but for who asks."""
        asked = (
            "select count(*) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        return int(self.sql(asked)[0][0])

    def sql(self, text: str) -> list[Any]:
        """Each statement of ``text`` by itself, as the owner; the rows of the last one."""
        rows: list[Any] = []
        with closing(psycopg2.connect(self.dsn)) as connection:
            connection.autocommit = True
            for statement in filter(str.strip, text.split(";")):
                cursor = connection.cursor()
                cursor.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows

    # What is started.

    def start_servers(self) -> None:
        self._start_postgresql()
        data = self.directory / "store"
        data.mkdir()
        identities = data / "identities.json"
        identities.write_text(json.dumps(seaweed.identity_file(self.secrets)))
        ports = {name: 9000 + number for number, name in enumerate(seaweed.PORT_NAMES)} | {"s3": 8333}
        arguments = seaweed.arguments(seaweed.program_file(), identities, ports)
        address = _address("store")
        command = [argument.replace("127.0.0.1", address) for argument in arguments]
        self._serve("store", command, cwd=data, env=seaweed.environment(data, self.secrets))

    def start_hosts(self, count: int, workers: int = 1) -> None:
        """Start hosts until there are as many, all of them ready and known to the proxy."""
        for number in range(len(self.hosts), count):
            name = f"host{number}"
            self._start_host(name, number, workers)
            self.hosts.append(name)
        if "proxy" not in self._processes:
            self._start_proxy()
        self._wait("proxy", lambda: self._hosts_up() == len(self.hosts))

    def _start_proxy(self) -> None:
        names = [f"host{number}" for number in range(MOST_HOSTS)]
        servers = "\n".join(f"    server {name} {_address(name)}:{PORT}" for name in names)
        config = self.directory / "haproxy.cfg"
        ports = {"port": PORT, "stats_port": STATS_PORT}
        config.write_text(_PROXY.format(address=_address("proxy"), servers=servers, **ports))
        self._serve("proxy", ["haproxy", "-db", "-f", str(config)])

    def _hosts_up(self) -> int:
        try:
            listed = requests.get(f"http://{_address('proxy')}:{STATS_PORT}/;csv", timeout=2).text
        except requests.RequestException:
            return -1
        return sum(line.startswith("hosts,host") and ",UP," in line for line in listed.splitlines())

    def _start_host(self, name: str, number: int, workers: int) -> None:
        data = self.directory / name
        data.mkdir(mode=0o700)
        if number:
            for shared in ("jwt-keys.json", "credentials.json"):
                shutil.copy(self.directory / self.hosts[0] / shared, data)
        config = self.directory / f"{name}.toml"
        config.write_text(
            _CONFIG.format(
                workers=workers,
                dsn=self.dsn,
                store=_address("store"),
                key=self.secrets.access_key_id,
                secret=self.secrets.secret_access_key,
            )
        )
        _namespace(name)
        listen = f"tcp:{PORT}:interface={_address(name)}"
        command = [sys.executable, "-c", "from twisted.scripts.twistd import run; run()", "--nodaemon"]
        command += ["--pidfile=", "project-service", "--data-dir", str(data), "--config", str(config)]
        self._serve(name, [*command, "--listen", listen], env={**os.environ, "PYTHONPATH": str(ROOT)})
        self._wait(name, lambda: _answers(f"http://{_address(name)}:{PORT}/ready"))

    def _start_postgresql(self) -> None:
        """The primary and an asynchronous standby."""
        folder = self.directory / "postgresql"
        folder.mkdir()
        password_file = folder / "password"
        password_file.write_text(self._password)
        entry = pwd.getpwnam(postgres.USER)
        for path in (folder, password_file):
            os.chown(path, entry.pw_uid, entry.pw_gid)
        programs = postgres.program_directory()
        for closed in (folder, programs):
            postgres.let_pass(closed, Account(entry.pw_name, entry.pw_uid, entry.pw_gid))
        account = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
        primary, standby = folder / "primary", folder / "standby"
        _run([*account, *postgres.initdb_arguments(programs / "initdb", primary, password_file)])
        with (primary / "pg_hba.conf").open("a") as file:
            for database in ("all", "replication"):
                file.write(f"host {database} all {_NETWORK}.0/24 scram-sha-256\n")
        server = [*account, str(programs / "postgres")]
        settings = {**postgres.SETTINGS, "unix_socket_directories": "", "max_connections": "1000"}
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]

        def serve(name: str, data: Path) -> None:
            self._serve(
                name, [*server, "-D", str(data), *options, "-c", f"listen_addresses={_address(name)}"]
            )
            self._wait(name, lambda: self._accepts(name))

        serve("postgresql", primary)
        with closing(psycopg2.connect(self._superuser("postgresql"))) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            options_of_owner = f"login createrole createdb bypassrls password '{self._password}'"
            cursor.execute(f"create role {postgres.OWNER} {options_of_owner}")
            cursor.execute(f"create database {postgres.DATABASE} owner {postgres.OWNER}")
        copy = [str(programs / "pg_basebackup"), "-D", str(standby), "-d", self._superuser("postgresql")]
        _run([*account, *copy, "-R", "-X", "stream", "-c", "fast"])
        serve("standby", standby)

    def _superuser(self, name: str) -> str:
        where = f"host={_address(name)} port={postgres.PORT} dbname={postgres.SUPERUSER}"
        return f"{where} user={postgres.SUPERUSER} password={self._password}"

    def _accepts(self, name: str) -> bool:
        try:
            psycopg2.connect(self._superuser(name)).close()
        except psycopg2.OperationalError:
            return False
        return True

    def _serve(self, name: str, command: list[str], cwd: Path | None = None, env: Any = None) -> None:
        with (self.directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                ["ip", "netns", "exec", _space(name), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=cwd or self.directory,
                env=env,
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + _STARTING_SECONDS
        while not ready():
            if self._processes[name].poll() is not None or time.monotonic() > until:
                raise SystemExit(
                    f"{name} did not start:\n" + (self.directory / f"{name}.log").read_text()[-3000:]
                )
            time.sleep(0.1)

    def _cpu_seconds(self, name: str) -> float:
        return _cpu_seconds_below(self._processes[name].pid)

    def stop(self) -> None:
        # The hosts first: what they use is still there then.
        for name in ("proxy", *self.hosts, "store", "standby", "postgresql"):
            if process := self._processes.pop(name, None):
                # PostgreSQL waits for its clients if it is asked in the usual way.
                _end(process, signal.SIGINT if name in {"standby", "postgresql"} else signal.SIGTERM)


@contextmanager
def place() -> Iterator[Place]:
    """The servers, until the block ends, without any host yet."""
    for program in ("ip", "haproxy", "setpriv"):
        if shutil.which(program) is None:
            raise SystemExit(f"this needs the program {program}")
    if os.geteuid() != 0:
        raise SystemExit("this needs root, for network namespaces")
    with ExitStack() as undone:
        directory = Path(undone.enter_context(tempfile.TemporaryDirectory(prefix="project-service-scale-")))
        directory.chmod(0o755)
        # It fails beside another run, whose network must stay.
        _run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        undone.callback(_without_network)
        _run(["ip", "address", "add", f"{_NETWORK}.1/24", "dev", BRIDGE])
        _run(["ip", "link", "set", BRIDGE, "up"])
        for name in _NUMBERS:
            _namespace(name)
        secrets = directory / "secrets"
        secrets.mkdir(mode=0o700)
        made = Place(directory, load_or_make_secrets(secrets))
        undone.callback(made.stop)
        made.start_servers()
        yield made


def _space(name: str) -> str:
    return f"ps-{name}"


def _address(name: str) -> str:
    number = _NUMBERS.get(name) or _FIRST_HOST + int(name.removeprefix("host"))
    return f"{_NETWORK}.{number}"


def _namespace(name: str) -> None:
    """With a network card whose other end is on the bridge."""
    space = _space(name)
    _run(["ip", "netns", "add", space])
    _run(["ip", "link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space])
    _run(["ip", "link", "set", space, "master", BRIDGE, "up"])
    inside = ["ip", "-n", space]
    _run([*inside, "address", "add", f"{_address(name)}/24", "dev", "eth0"])
    for device in ("eth0", "lo"):
        _run([*inside, "link", "set", device, "up"])


def _without_network() -> None:
    names = [*_NUMBERS, *(f"host{number}" for number in range(MOST_HOSTS))]
    for space in map(_space, names):
        if Path(f"/run/netns/{space}").exists():
            # The system deletes the cards of a namespace some time later, and another run may begin at once.
            subprocess.run(["ip", "link", "delete", space], check=False)
            subprocess.run(["ip", "netns", "delete", space], check=False)
    subprocess.run(["ip", "link", "delete", BRIDGE], check=False)


def _bytes_of(name: str) -> int:
    counters = Path(f"/sys/class/net/{_space(name)}/statistics")
    return sum(int((counters / f"{way}_bytes").read_text()) for way in ("rx", "tx"))


def _cpu_seconds_below(pid: int) -> float:
    """User and system time of a process and all below it, those that have ended included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except FileNotFoundError:
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(_cpu_seconds_below, children))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def _end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    process.send_signal(how)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).status_code == 200
    except requests.RequestException:
        return False
