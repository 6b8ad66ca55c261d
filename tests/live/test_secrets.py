"""Nothing secret is in the log, in metrics, in error bodies or in the process list, whatever is sent."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import orjson
import requests

from project_service.embedded.identity import PROC
from tests.live.daemon import Daemon, children_on
from tests.live.test_endpoints import certificate

PASSWORD = "open sesame 4711"


def exercise(url: str, anon: str, service: str) -> tuple[list[str], str]:
    """Use everything that holds a secret, well and badly; the secrets, and all that was answered to bad requests."""
    account = {"email": "eve@example.test", "password": PASSWORD}
    session = requests.post(f"{url}/auth/signup", json=account, timeout=10).json()["data"]
    headers = {"X-Service-Key": anon, "Authorization": f"Bearer {session['access_token']}"}
    objects = f"{url}/storage/buckets/private/objects"
    assert requests.put(f"{objects}/a", data=b"x", headers=headers, timeout=10).status_code == 201
    asked = {"key": "a"}
    link = requests.post(
        f"{url}/storage/buckets/private/presign", json=asked, headers=headers, timeout=10
    ).json()["url"]
    token = link.rpartition("=")[2]
    assert requests.get(link, timeout=10).status_code == 200
    bad = [
        requests.get(link, timeout=10),
        requests.get(f"{url}/storage/download?token={token}x", timeout=10),
        requests.get(
            f"{url}/auth/user?password={PASSWORD}", headers={"Authorization": "Bearer x.y.z"}, timeout=10
        ),
        requests.get(f"{url}/{anon}", timeout=10),
        requests.get(f"{url}/dev/db/main/rest/t?apikey={service}", timeout=10),
        requests.get(f"{url}/dev/db/main/rest/t", headers={"apikey": service[:-1]}, timeout=10),
        requests.post(f"{url}/auth/login", json={**account, "password": PASSWORD + "!"}, timeout=10),
        requests.post(f"{url}/auth/login", data=json.dumps(account)[:-1], timeout=10),
        requests.post(
            f"{url}/auth/refresh", json={"refresh_token": session["refresh_token"] + "x"}, timeout=10
        ),
    ]
    assert all(answer.status_code >= 400 for answer in bad)
    secrets = [PASSWORD, session["access_token"], session["refresh_token"], token, anon, service]
    return secrets, "".join(answer.text for answer in bad)


def test_nothing_secret_is_shown(tmp_path: Path) -> None:
    data_dir = tmp_path / "var"
    config = tmp_path / "c.toml"
    config.write_text('[server]\nlog_level = "debug"\nlog_format = "json"\n')
    cert, key = certificate(tmp_path)
    listen = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={cert}"
    with Daemon(data_dir, "--config", str(config), "--listen", listen) as daemon:
        url = daemon.wait_until_ready()
        credentials = json.loads((data_dir / "credentials.json").read_text())
        anon, service = credentials["anon_key"], credentials["service_key"]
        secrets, refused = exercise(url, anon, service)
        secrets.append(credentials["dsn"].rpartition("@")[0].rpartition(":")[2])
        made = orjson.loads((data_dir / "embedded.json").read_bytes())
        secrets += [value for name, value in made.items() if name != "access_key_id"]
        metrics = requests.get(f"{url}/metrics", timeout=10).text
        processes = "".join(
            (PROC / str(pid) / "cmdline").read_text(errors="replace")
            for pid in [daemon.process.pid, *children_on(data_dir)]
        )
        assert daemon.stop() == 0
    log = [line for line in daemon.output if line.startswith("{")]
    assert any(orjson.loads(line).get("path") == "/storage/download" for line in log)
    shown = {"log": daemon.text, "metrics": metrics, "processes": processes}
    for secret in secrets:
        assert len(secret) > 10
        for where, text in shown.items():
            assert secret not in text, f"a secret is in the {where}"
    # A caller may be shown what he sent in a path, but no error tells more.
    for secret in secrets[:4]:
        assert secret not in refused


def test_files_with_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    data_dir = tmp_path / "var"
    with Daemon(data_dir) as daemon:
        daemon.wait_until_ready()
        assert daemon.stop() == 0
    for name in ("credentials.json", "embedded.json", "jwt-keys.json", "store/identities.json"):
        assert stat.S_IMODE((data_dir / name).stat().st_mode) == 0o600, name
    for name in ("store", "postgres"):
        assert stat.S_IMODE((data_dir / name).stat().st_mode) == 0o700, name
