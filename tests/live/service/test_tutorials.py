"""docs/tutorials: the files and commands of each page, as they stand there; the notes apps in headless Chromium."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.certificates import issue
from tests.live.browsing import PUPPETEER, serving_pages, visit
from tests.live.daemon import ROOT, Daemon, answers, eventually
from tests.live.npm import install
from tests.live.programs import program
from tests.live.service.documented import blocks, run, service, write_files
from tests.live.service.documented_clients import browser
from tests.live.services import WithDatabase
from tests.pictures import png
from tests.temporary import free_port

# The picture in the page. With SCREENSHOTS in the environment the test makes it anew.
SHOWN = ROOT / "docs" / "tutorials" / "notes-app.png"
# Somebody signs up, is not let in before they have confirmed by the link in the e-mail, and then has two tabs open;
# later another signs up. Nobody gets the other's picture.
TABS = """
const [page, mails, picture, url, key, shown] = args
const ann = { email: 'ann@example.com', password: 'correct horse battery' }
const ben = { ...ann, email: 'ben@example.com' }
const signUp = async (tab, person) => {
  await fill(tab, person)
  await button(tab, 'Sign up')
  await says(tab, 'Open the link in the e-mail that we sent.')
  await fill(tab, person)
  await button(tab, 'Sign in')
  await says(tab, 'Email not confirmed')
  await tab.goto(await link(mails, person.email, `${url}/auth/v1/verify`))
  await tab.locator('button').click()
  await tab.locator('[name=text]').wait()
}
const notes = tab => tab.$$eval('li', items => items.map(item => item.textContent))
const loaded = tab => until(tab, () => document.querySelector('img[src]')?.naturalWidth)

const first = await opened(page)
await fill(first, ann)
await button(first, 'Sign in')
await says(first, 'Invalid login credentials')
await signUp(first, ann)
await fill(first, { text: 'Call Ben' })
await button(first, 'Add')
await says(first, 'Call Ben')
await (await first.$('[name=file]')).uploadFile(picture)
await fill(first, { text: 'Buy milk' })
await button(first, 'Add')
await loaded(first)
await first.bringToFront()
if (shown) await first.screenshot({ path: shown })
await fill(first, { text: '<b>bold</b>' })
await button(first, 'Add')
await says(first, '<b>bold</b>')

const second = await opened(page)
await loaded(second)
seen.ann = await notes(second)
const address = await second.$eval('img[src]', image => image.src)
await button(second, 'Sign out')
await says(second, 'Sign in')
await says(first, 'Sign in')
seen.left = [await notes(first), await notes(second)]

await signUp(second, ben)
await first.locator('[name=text]').wait()
seen.ben = [await notes(first), await notes(second)]
// As Ben, whose session the browser has.
seen.stolen = await second.evaluate(async (address, url, key) => {
  const path = new URL(address).pathname.split('/pictures/')[1]
  const { data, error } = await supabase.createClient(url, key).storage.from('pictures').createSignedUrl(path, 60)
  return [data, error?.message]
}, address, url, key)
"""
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
await enter('ann@example.com', 'correct horse battery', 'signup')
for (const text of ['Buy <b>milk</b>', 'a mistake', 'Call Ben']) await add(text)
find('li:nth-child(2) button').click()
await settled(() => find('ul').children.length === 2)
seen.ann = find('ul').textContent
find('#leave').click()
await settled(() => find('main').hidden)
await enter('ann@example.com', 'a wrong password', 'login')
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


def visited(folder: Path) -> str:
    """What Chromium has of the page once the visit is over. Its clock stands still while a request is under way."""
    page = folder / "visited.html"
    page.write_text((folder / "notes.html").read_text("utf-8") + VISIT, "utf-8")
    with tempfile.TemporaryDirectory() as own:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={own}"]
        flags += ["--virtual-time-budget=2000000", "--dump-dom", page.as_uri()]
        return subprocess.run(
            [browser(), *flags], capture_output=True, text=True, timeout=600, check=True
        ).stdout


def test_a_notes_app(with_database: WithDatabase, tmp_path: Path) -> None:
    page = "tutorials/notes-app.rst"
    install(tmp_path, "@supabase/supabase-js@2", PUPPETEER)
    file = tmp_path / "picture.png"
    file.write_bytes(png(200, 80, 40, 60))
    with serving_pages(tmp_path) as address:
        here = {"http://localhost:3000": address}
        with service(with_database(tmp_path / "var").parent, page, here) as daemon:
            daemon.wait_until_ready()
            here.update(values(tmp_path))
            run(tmp_path, page, here, before="")
            args = [
                f"{address}/notes.html",
                str(tmp_path / "var" / "mail"),
                str(file),
                *values(tmp_path).values(),
            ]
            seen = visit(tmp_path, TABS, *args, *([str(SHOWN)] if "SCREENSHOTS" in os.environ else []))
    assert seen == {
        "ann": ["Call Ben", "Buy milk", "<b>bold</b>"],
        "left": [[], []],
        "ben": [[], []],
        "stolen": [None, "Object not found"],
        "errors": [],
    }


def test_the_notes_app_has_as_many_lines_as_its_page_says() -> None:
    text = (ROOT / "docs" / "tutorials" / "notes-app.rst").read_text("utf-8")
    (app,) = (block.text for block in blocks("tutorials/notes-app.rst") if block.file == "notes.html")
    lines = len([line for line in app.splitlines() if line.strip()])
    assert f"one HTML file of {lines} lines" in text
    assert lines <= 60


def test_a_notes_app_without_a_library(project: Path) -> None:
    run(project, "tutorials/notes-app-plain.rst", values(project), before="")
    seen = re.search(r'<pre id="seen">(.*?)</pre>', visited(project))
    assert seen is not None
    assert json.loads(seen[1].replace("&lt;", "<").replace("&gt;", ">")) == {
        "ann": "Buy <b>milk</b> ✕Call Ben ✕",
        "problem": "The e-mail address or the password is wrong.",
        "ben": "",
    }


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
    write_files(folder, blocks("tutorials/notes-app-plain.rst"))
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
