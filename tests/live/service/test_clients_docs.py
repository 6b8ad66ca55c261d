"""The examples of docs/clients.rst as they stand there: a page in headless Chromium, a Python program, SQL."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg2
import pytest
import requests

from tests.live.cli.command_line import cli
from tests.live.daemon import ROOT, Daemon, eventually
from tests.live.npm import run_node
from tests.live.service.documented_clients import browser, examples, filled_in, opened
from tests.live.services import WithDatabase
from tests.live.tables.postgrest_js import ran_by_node

EXPORT = ROOT / "docs" / "howto" / "import-export.rst"
NAMED = re.compile(r"\.\. code-block:: js\n   :name: (\S+)\n\n((?:   .*\n|\n)+)")
ANN = {"email": "ann@example.com", "password": "correct horse battery"}
# Whom the page signs up in her place, for other tests need her as well.
ANNA = {**ANN, "email": "anna@example.com"}
TELLER = {"email": "teller@example.com", "password": "correct horse battery"}
# What the examples print, and what happens at their end, is reported as the metadata of another user.
PAGE = """<!doctype html><script type=module>
const told = [], shown = (image, src) => new Promise(done => {
  image.onload = () => done('shown'), image.onerror = () => done('not shown'), image.src = src
})
console.log = (...values) => told.push(values)
try {
%(examples)s
  told.push(await shown(new Image(), image.src), await shown(new Image(), image.src))
  const refused = await send(`${rest}/nothing`).then(read).catch(error => error)
  told.push([refused.status, refused.code])
  // Two whose token is refused before its time; then one whose session has ended.
  const spoil = async () => keep({ ...await current(), access_token: 'x' + (await current()).access_token.slice(1) })
  await spoil()
  told.push((await send('/auth/user')).status)
  await spoil()
  told.push((await upload('private', 'again.txt', new File(['again'], 'again.txt'), () => {})).size)
  await logOut()
  told.push(await current(), (await send('/auth/user')).status)
  acceptDrops(image, file => told.push(file.name))
  const dataTransfer = new DataTransfer(), event = { dataTransfer, cancelable: true }
  dataTransfer.items.add(new File(['a'], 'dropped.txt'))
  told.push(image.dispatchEvent(new DragEvent('dragover', event)), image.dispatchEvent(new DragEvent('drop', event)))
} catch (error) { told.push(String(error)) }
await fetch('%(url)s/auth/user', {
  method: 'PATCH', body: JSON.stringify({ metadata: { told } }),
  headers: { 'Content-Type': 'application/json', Authorization: 'Bearer %(teller)s' },
})
</script>"""

PLAIN_HTTP = """<!doctype html><meta charset=utf-8><script type=module>
const told = [isSecureContext, typeof navigator.locks]
try {
%(functions)s
  told.push((await signIn('/auth/signup', 'eve@example.com', 'correct horse battery')).email)
  keep({ ...await current(), expires_at: 0 })
  const user = async () => (await send('/auth/user')).status
  told.push(await Promise.all([user(), user(), user()]))
  told.push(performance.getEntriesByType('resource').filter(one => one.name.endsWith('/auth/refresh')).length)
  told.push(await alone(() => Promise.reject('broken')).catch(String), await user())
} catch (error) { told.push(String(error)) }
await fetch('%(url)s/auth/user', {
  method: 'PATCH', body: JSON.stringify({ metadata: { told } }),
  headers: { 'Content-Type': 'application/json', Authorization: 'Bearer %(teller)s' },
})
</script>"""
# What a browser has and Node lacks, and the functions of the page.
IN_NODE = """
const store = {}, locks = { request: (name, work) => work() }
globalThis.localStorage = {
  getItem: key => store[key] ?? null,
  setItem: (key, value) => { store[key] = value },
  removeItem: key => delete store[key],
}
Object.defineProperty(globalThis, 'navigator', { value: { locks } })
%(functions)s
"""
# Somebody signs up whose address has to be confirmed first. The access token of the session has to be refreshed.
NODE = (
    IN_NODE
    + """
const service = fetch
globalThis.fetch = async () => Response.json({ data: { user: { email: 'unconfirmed' }, session: null }, error: null })
const unconfirmed = [(await signIn('/auth/signup')).email, await current().catch(String)]
globalThis.fetch = service
keep(%(session)s)
await read(await send(`${rest}/notes`, json('POST', { text: 'for the library' })))
keep({ ...await current(), expires_at: 0 })
%(documented)s
const texts = notes.map(note => note.text)
console.log(JSON.stringify([unconfirmed, error, texts.filter(text => text.endsWith('library'))]))
"""
)
# Saves what a user may read of two tables, and reads what was saved.
SAVING = (
    IN_NODE
    + """
%(documented)s
globalThis.document = { createElement: () => ({ click() { saved.push(this) } }) }
const saved = []
keep(%(session)s)
for (const [table, columns] of [['entries', ['text', 'at']], ['none', ['text']]])
  save(await allAsCsv(table, columns, 'id'), `${table}.csv`)
const refused = await allAsCsv('entries', ['nothing'], 'id').catch(error => [error.status, error.code])
const bytes = async ({ href }) => [...new Uint8Array(await (await fetch(href)).arrayBuffer())]
const texts = await Promise.all(saved.map(bytes))
console.log(JSON.stringify([saved.map(link => link.download), texts, refused]))
"""
)
ENTRIES = """
create table entries (
  id bigint generated by default as identity primary key, owner uuid not null, text text, at timestamptz);
create table none (id uuid primary key, text text);
alter table entries enable row level security;
create policy own on entries for select to authenticated using (owner = auth.uid());
grant select on entries, none to authenticated;
insert into entries (owner, text, at)
  select case when n % 5 = 0 then gen_random_uuid() else ann.id end,
    (array['plain', 'a,"b"', E'two\\nlines,', '', null, 'Grüße'])[1 + n % 6],
    timestamptz '2026-01-01' + n * interval '1 day'
  from generate_series(1, 3500) n, (select id from auth.users where email = 'ann@example.com') ann;
"""


@pytest.fixture(scope="module")
def project(
    with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The credentials of a fresh service that has the examples' table."""
    folder = Path(tmp_path_factory.mktemp("clients"))
    with Daemon(with_database(folder / "var")) as daemon:
        daemon.wait_until_ready()
        (folder / "notes.sql").write_text(examples("sql", "notes"))
        done = cli("sql", folder / "notes.sql", "--data-dir", folder / "var")
        assert (done.code, done.err) == (0, ""), done
        yield {"folder": str(folder), **json.loads((folder / "var" / "credentials.json").read_text())}


def session(project: dict[str, str], user: dict[str, str]) -> dict[str, Any]:
    """Signs a user up and returns the session."""
    for path in ("signup", "login"):
        answer = requests.post(f"{project['base_url']}/auth/{path}", json=user, timeout=30)
        if answer.ok:
            return dict(answer.json()["data"])
    raise AssertionError(answer.text)


def profile(project: dict[str, str], token: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    answer = requests.get(f"{project['base_url']}/auth/user", headers=headers, timeout=30)
    return dict(answer.json()["data"]["user"])


def test_a_web_page(project: dict[str, str], tmp_path: Path) -> None:
    program, teller = browser(), session(project, TELLER)["access_token"]
    documented = filled_in(examples("js"), project["base_url"], project["anon_key"])
    written = documented.replace(ANN["email"], ANNA["email"])
    page = tmp_path / "page.html"
    page.write_text(PAGE % {"examples": written, "teller": teller, "url": project["base_url"]}, "utf-8")
    with opened(program, page.as_uri()):
        eventually(lambda: bool(profile(project, teller)["metadata"]), "the page to tell what it saw")
    told = profile(project, teller)["metadata"]["told"]
    # Dropping a file is prevented from opening it, after the file has been taken.
    assert told[-3:] == ["dropped.txt", False, False]
    refused, renewed, resent, ended, after = told[-8:-3]
    email, inserted, *progress, stored, there, listed, one, again = told[:-8]
    assert email == [ANNA["email"]]
    assert inserted == [2, profile(project, session(project, ANNA)["access_token"])["id"]]
    assert progress
    assert progress[-1][0] == progress[-1][1] == stored[1]
    assert stored == ["pictures/my logo.svg", 41, "image/svg+xml"]
    assert there == [True]
    assert listed == [["pictures/my logo.svg"], None]
    assert (one, again) == ("shown", "shown")
    assert refused == [404, "PGRST205"]
    assert (renewed, resent, ended, after) == (200, 5, None, 401)


def test_a_web_page_on_plain_http_in_a_local_network(project: dict[str, str], tmp_path: Path) -> None:
    program, teller = browser(), session(project, {**TELLER, "email": "lan@example.com"})["access_token"]
    # To Chromium a host of another name than localhost, so the page is in no secure context.
    address = project["base_url"].replace("127.0.0.1", "lan.test")
    functions = filled_in(examples("js", "project", "session", "send"), address, project["anon_key"])
    written = PLAIN_HTTP % {"functions": functions, "teller": teller, "url": address}
    (tmp_path / "page.html").write_text(written, "utf-8")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = f"http://lan.test:{server.server_port}/page.html"
        with opened(program, page, "--host-resolver-rules=MAP lan.test 127.0.0.1"):
            eventually(lambda: bool(profile(project, teller)["metadata"]), "the page to tell what it saw")
        server.shutdown()
    # Of three requests at the same time the first refreshes; a failure does not block those that come later.
    told = profile(project, teller)["metadata"]["told"]
    assert told == [False, "undefined", "eve@example.com", [200, 200, 200], 1, "broken", 200]


def test_the_javascript_client_library(project: dict[str, str], tmp_path: Path) -> None:
    expired = {**session(project, ANN), "expires_at": 0}
    functions = examples("js", "project", "session", "send")
    script = NODE % {
        "functions": filled_in(functions, project["base_url"], project["anon_key"]),
        "session": json.dumps(expired),
        "documented": examples("javascript"),
    }
    assert ran_by_node(tmp_path, script) == [["unconfirmed", None], None, ["for the library"]]


def test_all_rows_that_a_user_sees_as_csv(project: dict[str, str], tmp_path: Path) -> None:
    signed_in = session(project, ANN)
    with closing(psycopg2.connect(project["dsn"])) as connection, connection, connection.cursor() as cursor:
        cursor.execute(ENTRIES)
        cursor.execute(
            "select text, at::text, id::text from entries where owner = %s order by entries.id",
            [signed_in["user"]["id"]],
        )
        there = [[text or "", at, key] for text, at, key in cursor.fetchall()]
    (documented,) = (
        textwrap.dedent(text)
        for name, text in NAMED.findall(EXPORT.read_text("utf-8"))
        if name == "all-as-csv"
    )
    functions = filled_in(
        examples("js", "project", "session", "send"), project["base_url"], project["anon_key"]
    )
    program = SAVING % {"functions": functions, "documented": documented, "session": json.dumps(signed_in)}
    names, files, refused = run_node(tmp_path, program)
    assert (names, refused) == (["entries.csv", "none.csv"], [400, "42703"])
    entries, none = (bytes(file).decode("utf-8-sig") for file in files)
    assert len(there) == 2800
    assert list(csv.reader(StringIO(entries, newline=""))) == [["text", "at", "id"], *there]
    assert none == "text,id"


def test_a_python_program(project: dict[str, str], tmp_path: Path) -> None:
    session(project, ANN)
    program = filled_in(examples("python"), project["base_url"], project["anon_key"])
    (tmp_path / "notes.sql").write_text(examples("sql", "notes"))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "'text': 'from Python'" in done.stdout
    assert "'content_type': 'application/sql'" in done.stdout
    assert (tmp_path / "copy.sql").read_bytes() == (tmp_path / "notes.sql").read_bytes()


def test_rows_as_a_user_sees_them(project: dict[str, str]) -> None:
    rows = f"{project['base_url']}/dev/db/main/rest/notes"
    for user, text in ((ANN, "hers"), (TELLER, "another's")):
        token = session(project, user)["access_token"]
        headers = {"X-Service-Key": project["anon_key"], "Authorization": f"Bearer {token}"}
        assert requests.post(rows, json={"text": text}, headers=headers, timeout=30).status_code == 201
    with closing(psycopg2.connect(project["dsn"])) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        asked, _ = examples("sql", "as-a-user").split("rollback;")
        cursor.execute(asked)
        seen = {text for _, text in cursor.fetchall()}
        cursor.execute("rollback")
        cursor.execute("select text, owner::text from notes")
        written = cursor.fetchall()
    ann = profile(project, session(project, ANN)["access_token"])["id"]
    assert "hers" in seen
    assert seen == {text for text, owner in written if owner == ann}
    assert "another's" in {text for text, owner in written if owner != ann}
