"""The image that the ``Containerfile`` makes: built from Debian's packages, started, asked, stopped, replaced; and
started by ``etc/compose.yaml`` with a database and a store. All in one module, which builds it once."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from attrs import evolve, frozen

from project_service.settings.model import Store
from tests.chaos.standby import Pair
from tests.live.containers.engine import COMMAND_SECONDS, IMAGE, Engine, build, build_base, engine
from tests.live.containers.stand_ins import POSTGRES, SEAWEEDFS, build_stand_ins
from tests.live.daemon import ROOT, answers, eventually
from tests.live.service.documented import blocks
from tests.live.service.real_proxies import haproxy_before, replaced, told
from tests.temporary import free_port

USER = "10001"
DATA = "/var/lib/project-service"
ONE_MIB = 1024 * 1024
STOP_SECONDS = 60
PAGE = blocks("howto/containers.rst")


def console(command: str) -> str:
    """The one command of the page that says so."""
    commands = [block.text.removeprefix("$ ") for block in PAGE if block.language == "console"]
    (found,) = [one.strip() for one in commands if command in one]
    return found


@pytest.fixture(scope="module")
def machine() -> Iterator[Engine]:
    with engine() as made:
        build_base(made, "localhost/base")
        build(made, "localhost/base", "embedded,images")
        yield made


@frozen
class Container:
    """A service that is running in one, on two ports of this machine's loopback."""

    machine: Engine
    name: str
    port: int
    admin_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def up(self) -> Container:
        def ready() -> bool:
            assert self.state("Running") == "true", self.log()
            return answers(f"{self.admin}/ready")

        eventually(ready, f"{self.name} to be ready")
        return self

    def state(self, name: str) -> str:
        return self.machine.run("podman", "inspect", f"--format={{{{.State.{name}}}}}", self.name)

    def is_healthy(self) -> bool:
        check = 'podman healthcheck run "$1" && echo well'
        return self.machine.run("sh", "-c", check, "sh", self.name, check=False) == "well"

    def log(self) -> str:
        return self.machine.run("sh", "-c", 'exec podman logs "$1" 2>&1', "sh", self.name)

    def execute(self, *argv: str) -> str:
        return self.machine.run("podman", "exec", self.name, *argv)

    def stop(self) -> int:
        """Its exit code after a SIGTERM. An exit code of 137 is that of a container that had to be killed."""
        self.machine.run("podman", "stop", f"--time={STOP_SECONDS}", self.name)
        return int(self.state("ExitCode"))


@contextmanager
def container(
    machine: Engine,
    name: str,
    *options: str,
    image: str = IMAGE,
    command: Sequence[str] = (),
    **settings: str,
) -> Iterator[Container]:
    """Started with nothing to write to but a volume and a ``/tmp`` in memory, with no rights. ``command`` is run in
    place of the service."""
    made = Container(machine, name, free_port(), free_port())
    environ = {
        "PROJECT_SERVICE__SERVER__LISTEN": json.dumps([f"tcp:{made.port}:interface=127.0.0.1"]),
        "PROJECT_SERVICE__SERVER__ADMIN_LISTEN": f"tcp:{made.admin_port}:interface=127.0.0.1",
        "PROJECT_SERVICE__AUTH__BCRYPT_COST": "4",
        **settings,
    }
    closed = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--network=host"]
    environment = [f"--env={key}={value}" for key, value in environ.items()]
    run = ["podman", "run", "--detach", f"--name={name}", *closed, *environment, *options, image, *command]
    machine.run(*run)
    try:
        yield made
    except BaseException:
        print(made.log())  # noqa: T201  # pytest shows it with the failure
        raise
    finally:
        machine.run("podman", "rm", "--force", "--time=0", name, check=False)


def embedded(machine: Engine, name: str) -> Any:
    return container(machine, name, f"--volume=data:{DATA}", PROJECT_SERVICE_DATA_DIR=DATA)


def test_only_what_the_package_is_made_from_gets_into_a_build(machine: Engine, tmp_path: Path) -> None:
    everything = tmp_path / "Containerfile"
    everything.write_text("FROM scratch\nCOPY . /\n")
    machine.run("buildah", "build", "--quiet", f"--file={everything}", "--tag=localhost/context", str(ROOT))
    made = machine.run("buildah", "from", "localhost/context")
    root = machine.path(machine.run("buildah", "mount", made))
    found = [one.name for one in root.iterdir()]
    sources = {"LICENSE", "MANIFEST.in", "README.rst", "etc", "project_service", "pyproject.toml", "setup.py"}
    assert set(found) == {*sources, "twisted"}
    machine.run("buildah", "rm", made)


def test_the_image_has_no_tools_to_build_with_and_belongs_to_root(machine: Engine) -> None:
    config = json.loads(machine.run("podman", "inspect", IMAGE))[0]["Config"]
    assert config["User"] == f"{USER}:{USER}"
    assert config["Volumes"] == {DATA: {}}
    assert set(config["ExposedPorts"]) == {"8080/tcp", "9090/tcp"}
    assert config["StopSignal"] == "SIGTERM"
    look = f"""
    ls /opt/project-service/bin | grep -E '^pip'; command -v gcc make git; ls -d /src /root/.cache
    find / -xdev -user {USER} -not -path '{DATA}*' -not -path '/proc/*'
    find / -xdev -perm -o+w -not -perm -1000 -not -type l -not -path '/proc/*' -not -path '/dev/*'
    python -m pip --version
    """
    found = machine.run(
        "podman",
        "run",
        "--rm",
        "--network=none",
        "--entrypoint=sh",
        IMAGE,
        "-c",
        f"{{ {look} }} 2>/dev/null; true",
    )
    assert found == ""


def test_one_container_alone_keeps_everything_in_its_volume(machine: Engine) -> None:
    person = {"email": "ann@example.com", "password": "correct horse battery"}
    with embedded(machine, "alone") as first:
        first.up()
        eventually(first.is_healthy, "a good check")
        keys = json.loads(first.execute("cat", f"{DATA}/credentials.json"))
        assert requests.post(f"{first.url}/auth/signup", json=person, timeout=60).status_code == 201
        assert requests.get(f"{first.url}/metrics", timeout=60).status_code == 404
        headers = {"apikey": keys["service_key"]}
        wide = f"{first.url}/storage/buckets/private/objects/wide"
        sent = requests.put(wide, data=bytes(64 * ONE_MIB), headers=headers, timeout=60)
        assert sent.status_code in {200, 201}
        # More than all buffers on the way, so it is under way until this client reads on.
        with requests.get(wide, headers=headers, stream=True, timeout=60) as slow:
            received = len(slow.raw.read(ONE_MIB))
            stopping = machine.starts("podman", "stop", f"--time={STOP_SECONDS}", "alone")
            eventually(lambda: " stopping" in first.log(), "the stop")
            while piece := slow.raw.read(ONE_MIB):
                received += len(piece)
        assert received == 64 * ONE_MIB
        assert stopping.wait(COMMAND_SECONDS) == 0
        assert first.state("ExitCode") == "0"
    with embedded(machine, "again") as second:
        second.up()
        assert requests.post(f"{second.url}/auth/login", json=person, timeout=60).status_code == 200
        assert second.stop() == 0


def test_the_first_process_passes_signals_on_at_once_and_buries_what_others_leave_behind(
    machine: Engine,
) -> None:
    """The first process of a container does not end by a signal that it does not handle, as twistd soon after its
    start; and others' children become its own."""
    # In the place of one that has just been started, which a slow machine would give the time to handle the signal.
    with container(machine, "early", command=("sleep", "600")) as early:
        assert early.stop() == 128 + signal.SIGTERM
        assert "SIGKILL" not in early.log()
    with embedded(machine, "parents") as parents:
        parents.up()
        parents.execute("sh", "-c", "sh -c 'exit' & exec sleep 0")
        states = "grep -h ^State /proc/[0-9]*/status"
        eventually(lambda: "Z" not in parents.execute("sh", "-c", states), "the end of the dead")


@frozen
class Elsewhere:
    """Settings for a database and a store outside of the container, and the folder with the signing keys."""

    settings: Mapping[str, str]
    options: Sequence[str]

    def command(self, machine: Engine, *argv: str) -> str:
        """What a command of the service's says in a container of its own."""
        environment = [f"--env={key}={value}" for key, value in self.settings.items()]
        run = ["podman", "run", "--rm", "--no-healthcheck", "--network=host"]
        return machine.run(*run, *environment, *self.options, IMAGE, *argv)


@pytest.fixture
def database_on_tcp(tmp_path: Path) -> Iterator[str]:
    """Those of other tests are at sockets, which containers do not see."""
    folder = tmp_path / "postgres"
    folder.mkdir()
    server = Pair(folder)
    server.start_primary()
    yield server.dsn
    server.stop()


@pytest.fixture
def elsewhere(machine: Engine, database_on_tcp: str, store_settings: Store, tmp_path: Path) -> Elsewhere:
    assert store_settings.secret_access_key is not None
    # As the page makes them. Whoever makes a Secret of the file need not be the container's user.
    machine.run("sh", "-ec", f"cd {tmp_path}\n{console('jwt-keys create')}", apart=True)
    made, keys = tmp_path / "jwt-keys.json", "/etc/project-service/keys/jwt-keys.json"
    settings = {
        "DATABASE__DSN": database_on_tcp,
        # Nothing is refused while another version takes over, however slow the machine is.
        "DATABASE__ACQUIRE_TIMEOUT_SECONDS": "30",
        "STORE__ENDPOINT_URL": str(store_settings.endpoint_url),
        "STORE__BUCKET": store_settings.bucket,
        "STORE__ACCESS_KEY_ID": str(store_settings.access_key_id),
        "STORE__SECRET_ACCESS_KEY": store_settings.secret_access_key.reveal(),
        "AUTH__JWT_KEYS_FILE": keys,
        "SERVER__TRUSTED_PROXIES": '["127.0.0.1"]',
    }
    environ = {f"PROJECT_SERVICE__{name}": value for name, value in settings.items()}
    return Elsewhere(environ, [f"--volume={made}:{keys}:ro"])


def upgraded(machine: Engine, version: str) -> str:
    """An image with another version."""
    made = machine.run("buildah", "from", IMAGE)
    root = machine.path(machine.run("buildah", "mount", made))
    (module,) = root.glob("opt/project-service/lib/*/site-packages/project_service/__init__.py")
    module.write_text(re.sub('__version__ = ".+"', f'__version__ = "{version}"', module.read_text()))
    machine.run("buildah", "umount", made)
    machine.run("buildah", "commit", "--quiet", "--format=docker", "--rm", made, f"{IMAGE}:{version}")
    return f"{IMAGE}:{version}"


def answered(statuses: Counter[int], clients: Sequence[Future[None]]) -> None:
    """Waits until twenty more requests have been answered, while no client has failed."""
    before = statuses.total()

    def more() -> bool:
        assert not any(one.done() for one in clients), [one.exception() for one in clients if one.done()]
        return statuses.total() > before + 20

    eventually(more, "requests")


def test_another_version_takes_over_while_clients_run(
    machine: Engine, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    newer = upgraded(machine, "9.9.9")
    elsewhere.command(machine, "project-service", "migrate")
    elsewhere.command(machine, "project-service", "bucket", "create", "photos")
    said = elsewhere.command(machine, "project-service", "keys", "create", "service")
    found = re.search(r"psk_service_\S+", said)
    assert found is not None
    ended, statuses = threading.Event(), Counter[int]()
    old = container(machine, "old", *elsewhere.options, **elsewhere.settings)
    new = container(machine, "new", *elsewhere.options, image=newer, **elsewhere.settings)
    with old as a:
        a.up()
        with new as b:
            hosts = {
                name: (f"127.0.0.1:{one.port}", str(one.admin_port)) for name, one in (("a", a), ("b", b))
            }
            with haproxy_before(tmp_path, hosts) as front:

                def client(number: int) -> None:
                    with requests.Session() as session:
                        session.trust_env, session.verify = False, front.verify
                        session.headers["apikey"] = found[0]
                        where = f"{front.url}/storage/buckets/photos/objects/{number}"
                        while not ended.is_set():
                            sent = session.put(where, data=bytes(ONE_MIB), timeout=60)
                            got = session.get(where, timeout=60)
                            assert len(got.content) == ONE_MIB, got.text
                            statuses.update((sent.status_code, got.status_code))

                with ThreadPoolExecutor() as threads:
                    clients = [threads.submit(client, number) for number in range(3)]
                    try:
                        b.up()
                        eventually(
                            lambda: told(tmp_path, "show stat").count(",UP,") >= 3, "both hosts to be seen"
                        )
                        answered(statuses, clients)
                        told(tmp_path, "set server hosts/a state drain")
                        assert a.stop() == 0
                        answered(statuses, clients)
                    finally:
                        ended.set()
                    for one in clients:
                        one.result()
            assert "project-service 9.9.9 starts" in b.log()
            assert b.stop() == 0
    assert set(statuses) == {200, 201}


def with_secrets(command: str, env_file: Path) -> str:
    """A command of the page, with its file of secrets elsewhere."""
    return replaced(console(command), {"--env-file compose.env": f"--env-file {env_file}"})


def test_after_up_the_session_of_the_readme_works(machine: Engine, tmp_path: Path) -> None:
    build_stand_ins(machine, tmp_path)
    secrets, env_file = next(block.text for block in PAGE if block.language == "sh"), tmp_path / "compose.env"
    machine.run("sh", "-ec", f"cd {tmp_path}\n{secrets}")
    images = {"PROJECT_SERVICE_IMAGE": IMAGE, "POSTGRES_IMAGE": POSTGRES, "SEAWEEDFS_IMAGE": SEAWEEDFS}
    composed = evolve(machine, environ={**machine.environ, **images})

    def run(script: str, check: bool = True) -> str:
        return composed.run("bash", "-euo", "pipefail", "-c", script, apart=True, check=check)

    up = with_secrets("up --detach", env_file)
    down = replaced(up, {"up --detach": "down --volumes"})
    try:
        run(up)
        ready = '{"status":"ready"}'
        eventually(
            lambda: run("curl -s 127.0.0.1:9090/ready", check=False) == ready, "the service to be ready"
        )
        for name in ("service", "postgres", "store"):
            check = f"podman healthcheck run etc_{name}_1 && echo well"
            eventually(lambda: run(check, check=False) == "well", f"a good check of {name}")  # noqa: B023  # called at once
        sql = with_secrets("project-service sql <", env_file).partition(" < ")[0]
        session = [block.text for block in blocks("../README.rst") if block.language == "sh"]
        changes = {
            'eval "$(.venv/bin/project-service env)"': with_secrets(
                "exec -T service project-service env", env_file
            ),
            ".venv/bin/project-service sql": sql,
        }
        said = run(replaced("\n".join(session), changes))
        assert '"email":"ann@example.com"' in said
        assert "identical" in said
        assert '[{"id":2,"text":"second"}]' in said
        # Nobody else can be reached, and what operators need only at the port of their own.
        assert re.findall(r"127\.0\.0\.1:\d+|0\.0\.0\.0:\d+", run("podman ps --format '{{.Ports}}'")) == [
            "127.0.0.1:8080",
            "127.0.0.1:9090",
        ]
        asks = "curl -s -o /dev/null -w '%{http_code}' 127.0.0.1"
        statuses = [run(f"{asks}:{path}") for path in ("8080/metrics", "9090/metrics", "9090/console")]
        assert statuses == ["404", "200", "200"]
    except BaseException:
        print(run("for one in $(podman ps -aq); do podman logs $one 2>&1 | tail -20; done", check=False))  # noqa: T201
        raise
    finally:
        run(down, check=False)
