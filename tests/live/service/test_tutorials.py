"""docs/tutorials: the files and commands of each page, as they stand there; the notes app in headless Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.certificates import issue
from tests.live.daemon import ROOT, Daemon, answers, eventually
from tests.live.programs import program
from tests.live.service.documented import blocks, run, write_files
from tests.live.service.documented_clients import browser
from tests.live.services import WithDatabase
from tests.temporary import free_port

# The picture in the page. With SCREENSHOTS in the environment the test makes it anew.
SHOWN = ROOT / "docs" / "tutorials" / "notes-app.png"
# Somebody signs up, writes three notes, removes one, signs out and mistypes the password; then another signs up.
VISIT = """<script type="module">
const settled = async condition => { while (!condition()) await new Promise(done => setTimeout(done, 20)) }
const find = name => document.querySelector(name)
const fill = (name, value) => { find(`[name=${name}]`).value = value }
const add = async text => {
  const before = find('ul').children.length
  fill('text', text)
  find('#writer button').click()
  await settled(() => find('ul').children.length > before)
}
const enter = async (email, password, way) => {
  fill('email', email)
  fill('password', password)
  find(`[value=${way}]`).click()
  await settled(() => !find('main').hidden || find('#problem').textContent)
}
const seen = {}
await enter('%(person)s@example.com', 'correct horse battery', 'signup')
for (const text of [%(first)s, 'a mistake', 'Call Ben']) await add(text)
find('li:nth-child(2) button').click()
await settled(() => find('ul').children.length === 2)
seen.ann = find('ul').textContent
if (%(stays)s) await new Promise(() => {})
find('#leave').click()
await settled(() => find('main').hidden)
await enter('%(person)s@example.com', 'a wrong password', 'login')
seen.problem = find('#problem').textContent
await enter('ben@example.com', 'correct horse battery', 'signup')
seen.ben = find('ul').textContent
document.body.append(Object.assign(document.createElement('pre'), { id: 'seen', textContent: JSON.stringify(seen) }))
</script>"""


@pytest.fixture
def project(with_database: WithDatabase, tmp_path: Path) -> Iterator[Path]:
    with Daemon(with_database(tmp_path / "var")) as daemon:
        daemon.wait_until_ready()
        yield tmp_path


def values(folder: Path) -> dict[str, str]:
    credentials = json.loads((folder / "var" / "credentials.json").read_text())
    return {"http://127.0.0.1:8080": credentials["base_url"], "psk_anon_…": credentials["anon_key"]}


def visited(folder: Path, option: str, person: str, stays: bool = False) -> str:
    """What Chromium prints of the page once the visit is over, or once the notes are there if it ``stays``. Its clock
    stands still while a request is under way."""
    page = folder / "visited.html"
    first = json.dumps("Buy milk" if stays else "Buy <b>milk</b>")
    visit = VISIT % {"stays": str(stays).lower(), "person": person, "first": first}
    page.write_text((folder / "notes.html").read_text("utf-8") + visit, "utf-8")
    with tempfile.TemporaryDirectory() as own:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=620,400"]
        flags += [f"--user-data-dir={own}", "--virtual-time-budget=20000", option, page.as_uri()]
        return subprocess.run(
            [browser(), *flags], capture_output=True, text=True, timeout=120, check=True
        ).stdout


def test_a_notes_app(project: Path) -> None:
    run(project, "tutorials/notes-app.rst", values(project), before="")
    seen = re.search(r'<pre id="seen">(.*?)</pre>', visited(project, "--dump-dom", "ann"))
    assert seen is not None
    assert json.loads(seen[1].replace("&lt;", "<").replace("&gt;", ">")) == {
        "ann": "Buy <b>milk</b> ✕Call Ben ✕",
        "problem": "The e-mail address or the password is wrong.",
        "ben": "",
    }
    picture = project / "notes-app.png"
    visited(project, f"--screenshot={picture}", "clara", stays=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
    if "SCREENSHOTS" in os.environ:
        shutil.copy(picture, SHOWN)


def test_from_zero_to_deployed(
    with_database: WithDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the machine, but for its paths, its name and its ports, and without systemd and certbot."""
    nginx = program("nginx")
    page, port = "tutorials/deployed.rst", free_port()
    folder = tmp_path / "notes"
    folder.mkdir()
    certificate, key = issue("localhost").written(tmp_path)
    monkeypatch.setenv("CURL_CA_BUNDLE", str(certificate))
    here = {
        "/etc/letsencrypt/live/notes.example.com/fullchain.pem": str(certificate),
        "/etc/letsencrypt/live/notes.example.com/privkey.pem": str(key),
        "server_name notes.example.com": "server_name localhost",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "https://notes.example.com": f"https://localhost:{port}",
        "/srv/notes": str(folder),
    }
    (folder / "venv").symlink_to(sys.prefix)
    write_files(folder, blocks("tutorials/notes-app.rst"))
    write_files(folder, blocks(page, **here))

    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # configparser's documented way
    unit.read(folder / "project-service.service")
    start = unit["Service"]["ExecStart"].split()
    options = ["--config", f"{folder}/project-service.toml", "--data-dir", f"{folder}/var"]
    assert start == [f"{folder}/venv/bin/twistd", "--nodaemon", "--pidfile=", "project-service", *options]
    behind = free_port()
    here["http://127.0.0.1:8080"] = f"http://127.0.0.1:{behind}"
    listen = ("--listen", f"tcp:{behind}:interface=127.0.0.1")
    with Daemon(with_database(folder / "var"), *options[:2], *listen):
        eventually(lambda: answers(f"http://127.0.0.1:{behind}/ready"), "the service")
        write_files(folder, blocks(page, **here))
        (tmp_path / "nginx.conf").write_text(
            # nginx's own processes may not enter the folders of tests otherwise.
            f"user root; events {{}} pid {tmp_path}/nginx.pid; error_log {tmp_path}/nginx.log;"
            f"http {{ access_log off; include {folder}/nginx-site.conf; }}"
        )
        command = [nginx, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-g", "daemon off;"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as proxy:
            try:
                eventually(
                    lambda: answers(f"https://localhost:{port}/ready", verify=str(certificate)), "nginx"
                )
                run(folder, page, here, before="")
            finally:
                proxy.terminate()


def test_the_page_has_the_screenshot() -> None:
    assert SHOWN.read_bytes().startswith(b"\x89PNG")


def test_a_python_back_end(project: Path) -> None:
    run(project, "tutorials/python-backend.rst", {"8090": str(free_port())}, before="")
