"""Nothing secret is in the log, metrics, errors, process list, printed settings or commands, whatever is sent."""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe

import orjson
import requests

from project_service.embedded.leftovers import PROC
from project_service.settings.reading import Source
from tests.certificates import issue
from tests.live.cli.command_line import cli
from tests.live.daemon import Daemon, children_on
from tests.live.services import WithDatabase

PASSWORD = "open sesame 4711"


def exercise(url: str, anon: str, service: str) -> tuple[list[str], str]:
    """Uses everything that has to do with secrets, rightly and wrongly. Returns the secrets and the responses to bad
    requests."""
    account = {"email": "eve@example.test", "password": PASSWORD}
    session = requests.post(f"{url}/auth/signup", json=account, timeout=60).json()["data"]
    headers = {"X-Service-Key": anon, "Authorization": f"Bearer {session['access_token']}"}
    objects = f"{url}/storage/buckets/private/objects"
    assert requests.put(f"{objects}/a", data=b"x", headers=headers, timeout=60).status_code == 201
    asked = {"key": "a"}
    link = requests.post(
        f"{url}/storage/buckets/private/presign", json=asked, headers=headers, timeout=60
    ).json()["url"]
    token = link.rpartition("=")[2]
    asked = {"method": "PUT", "key": "by link"}
    upload = requests.post(
        f"{url}/storage/buckets/private/presign", json=asked, headers=headers, timeout=60
    ).json()["url"]
    assert requests.put(upload, data=b"x", timeout=60).status_code == 201
    letter = requests.post(f"{url}/auth/recover", json={"email": account["email"]}, timeout=60)
    assert letter.status_code == 200
    assert requests.get(link, timeout=60).status_code == 200
    bad = [
        requests.get(link, timeout=60),
        requests.put(upload, data=b"x", timeout=60),
        requests.post(upload, files={"file": b"x"}, timeout=60),
        requests.get(f"{url}/storage/download?token={token}x", timeout=60),
        requests.get(
            f"{url}/auth/user?password={PASSWORD}", headers={"Authorization": "Bearer x.y.z"}, timeout=60
        ),
        requests.get(f"{url}/{anon}", timeout=60),
        requests.get(f"{url}/dev/db/main/rest/t?apikey={service}", timeout=60),
        requests.get(f"{url}/dev/db/main/rest/t", headers={"apikey": service[:-1]}, timeout=60),
        requests.post(f"{url}/auth/login", json={**account, "password": PASSWORD + "!"}, timeout=60),
        requests.post(f"{url}/auth/login", data=json.dumps(account)[:-1], timeout=60),
        # No stage can be reached with such a token.
        requests.get(
            f"{url}/away/db/main/rest/t", headers={**headers, "Authorization": "Bearer x"}, timeout=60
        ),
        requests.post(
            f"{url}/auth/refresh", json={"refresh_token": session["refresh_token"] + "x"}, timeout=60
        ),
    ]
    assert all(answer.status_code >= 400 for answer in bad)
    secrets = [
        upload.rpartition("=")[2],
        PASSWORD,
        session["access_token"],
        session["refresh_token"],
        token,
        anon,
        service,
    ]
    return secrets, "".join(answer.text for answer in bad)


CONFIG = """
[server]
log_level = "debug"
log_format = "json"
[smtp]
host = "127.0.0.1"
port = 1
username = "postmaster"
password = "{smtp}"
sender = "service@example.test"
tls = "none"
[stages.dev.databases.main]
app_settings = {{ pass = "{app}" }}
[stages.away.databases.main]
dsn = "postgresql://nobody:{dsn}@127.0.0.1:1/nothing"
jwt_secret = "{jwt}"
"""
# 256 random bits as base64url, as every token of the service is, or the beginning of a JWT.
TOKEN = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])|eyJ[A-Za-z0-9_-]{10}")


def said_by_commands(options: list[str]) -> str:
    """All that the commands except ``dsn`` print about a configuration and a running service."""
    commands = (("check",), ("keys", "list", "--json"), ("user", "list", "--json"), ("openapi",))
    ended = [cli(*command, *options) for command in commands]
    return "".join(one.out + one.err for one in ended)


def shown_settings(config: Path, data_dir: Path) -> str:
    """The settings as Python prints them, and the faults that are reported for a bad configuration."""
    settings = Source(config, data_dir=Path("/data")).read({})
    bad = config.with_name("bad.toml")
    bad.write_text(config.read_text().replace("port = 1", "port = 0").replace("postgresql://", "://"))
    refused = cli("check", "--config", bad, "--data-dir", data_dir)
    assert refused.code == 1
    return f"{settings} {settings!r} {settings.smtp.password} {refused.out} {refused.err}"


def test_nothing_secret_is_shown_or_readable(with_database: WithDatabase, tmp_path: Path) -> None:
    data_dir = with_database(tmp_path / "var")
    config = tmp_path / "c.toml"
    configured = {name: f"{name}-{token_urlsafe(24)}" for name in ("smtp", "app", "dsn", "jwt")}
    config.write_text(CONFIG.format(**configured))
    cert, key = issue("127.0.0.1").written(tmp_path)
    listen = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={cert}"
    with Daemon(data_dir, "--config", str(config), "--listen", listen) as daemon:
        url = daemon.wait_until_ready()
        credentials = json.loads((data_dir / "credentials.json").read_text())
        anon, service = credentials["anon_key"], credentials["service_key"]
        secrets, refused = exercise(url, anon, service)
        secrets += [credentials["dsn"].rpartition("@")[0].rpartition(":")[2], *configured.values()]
        made = orjson.loads((data_dir / "embedded.json").read_bytes())
        secrets += [value for name, value in made.items() if name != "access_key_id"]
        secrets += [one["d"] for one in orjson.loads((data_dir / "jwt-keys.json").read_bytes())["keys"]]
        outputs = {
            path: requests.get(f"{url}{path}", timeout=60).text
            for path in (
                "/metrics",
                "/ready",
                "/openapi.json",
                "/.well-known/jwks.json",
                "/away/db/main/rest/t",
            )
        }
        processes = "".join(map(command_line, [daemon.process.pid, *children_on(data_dir)]))
        commands = said_by_commands(["--config", str(config), "--data-dir", str(data_dir)])
        readable = open_files_with(secrets, data_dir)
        assert daemon.stop() == 0
    log = [line for line in daemon.output if line.startswith("{")]
    assert any(orjson.loads(line).get("path") == "/storage/download" for line in log)
    assert "an e-mail was not accepted" in daemon.text, "the mail that could not be sent is in no log"
    shown = {**outputs, "log": daemon.text, "process list": processes, "command line": commands}
    shown["settings"] = shown_settings(config, data_dir)
    for secret in secrets:
        assert len(secret) > 10
        for where, text in shown.items():
            assert secret not in text, f"a secret is in: {where}"
    # Nor any other token, such as that in the mail that could not be sent.
    for where in ("log", "/metrics", "/ready", "process list", "command line"):
        assert not TOKEN.search(shown[where]), where
    # An error may repeat what the caller sent in the path, but nothing more.
    for secret in secrets[:4]:
        assert secret not in refused
    assert readable == []
    for name in ("credentials.json", "embedded.json", "jwt-keys.json", "store/identities.json"):
        assert stat.S_IMODE((data_dir / name).stat().st_mode) == 0o600, name
    for name in ("store", "postgres"):
        assert stat.S_IMODE((data_dir / name).stat().st_mode) == 0o700, name


def command_line(pid: int) -> str:
    # A process of PostgreSQL may have ended with its connection.
    with suppress(FileNotFoundError, ProcessLookupError):
        return (PROC / str(pid) / "cmdline").read_text(errors="replace")
    return ""


def open_files_with(secrets: list[str], data_dir: Path) -> list[Path]:
    """The files that contain a secret and can be read by others than their owner."""
    found: list[Path] = []
    for folder, folders, names in os.walk(data_dir):
        # Directories that other users cannot enter need no look at their contents.
        folders[:] = [name for name in folders if (Path(folder) / name).stat().st_mode & 0o011]
        for path in (Path(folder) / name for name in names):
            with suppress(FileNotFoundError):  # removed by the service that runs there
                mode = path.lstat().st_mode
                if stat.S_ISREG(mode) and mode & 0o044:
                    content = path.read_bytes()
                    found += [path for secret in secrets if secret.encode() in content]
    return found
