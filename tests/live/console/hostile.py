"""A project whose users try to be somebody else in the operator's browser: markup, scripts, addresses that run, signs
that turn text around or are not seen, and what is far too long; wherever a user or a developer may write anything."""

from __future__ import annotations

import json
from email.message import EmailMessage
from email.policy import SMTPUTF8
from urllib.parse import quote

from tests.live.console.browsing import Running
from tests.live.daemon import eventually
from tests.pictures import encoded

SCRIPT = "window.canary=1"
IMAGE = f"<img src=x onerror={SCRIPT}>"
TAG = f'"><script>{SCRIPT}</script>'
EVENT = f"' autofocus onfocus={SCRIPT} x='"
LINK = f"javascript:{SCRIPT}"
TEMPLATE = f"${{{SCRIPT}}}{{{{constructor.constructor('{SCRIPT}')()}}}}`"
# Right-to-left override and an isolate that nobody closes.
BIDI = "\u202e\u2067drow\u202dxyz"
INVISIBLE = "\u200b\u200d\ufeff\u2060in\u200bvisible"
STACKED = "a" + "\u0301\u0316" * 60
WIDE = "\ufdfd" * 20
EACH = (IMAGE, TAG, EVENT, LINK, TEMPLATE, BIDI, INVISIBLE, STACKED, WIDE)
LONG = "W" * 10_000
HUGE_BYTES = 10 * 2**20
PASSWORD = "a long enough password"
BUCKET = "hostile"
# Names of PostgreSQL have 63 bytes.
TABLE = IMAGE
COLUMNS = tuple(name.encode()[:60].decode("utf-8", "ignore") for name in EACH)
DOCUMENT = f"<!doctype html><body onload={SCRIPT}>{IMAGE}<script>parent.{SCRIPT};top.{SCRIPT}</script>"
DRAWING = (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20" onload="{SCRIPT}"><script>{SCRIPT}</script>'
    f'<foreignObject><body xmlns="http://www.w3.org/1999/xhtml">{IMAGE}</body></foreignObject></svg>'
)
FILES = (
    ("page.html", "text/html", DOCUMENT),
    ("drawing.svg", "image/svg+xml", DRAWING),
    ("text.txt", "text/plain", "\n".join(EACH) + LONG),
    ("data.json", "application/json", json.dumps({each: each for each in EACH})),
    ("paper.pdf", "application/pdf", "%PDF-1.4 " + DOCUMENT),
    ("script.js", "text/javascript", SCRIPT),
    ("feed.xml", "application/xml", DRAWING),
)


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def fill(running: Running) -> dict[str, str]:
    """Make it all. Returns the ids of a user of each kind, by what makes them hostile."""
    _tables(running)
    ids = _users(running)
    _objects(running)
    _mails(running)
    for each in (*EACH, LONG):
        made = running.call("POST", "/admin/keys", json={"kind": "anon", "label": each})
        assert made.status_code in (201, 422), made.text
    # Addresses that this service would refuse, but perhaps not the one that they were brought from.
    for each, one in ids.items():
        address = f"{each}@example.test".lower()[:254]
        running.sql("update auth.users set email = %s, email_key = %s where id = %s", address, address, one)
    described = "/dev/db/main/rest/"
    eventually(
        lambda: f"/{TABLE}" in running.call("GET", described).json()["paths"], "the table is described"
    )
    for each in EACH:
        running.call(
            "GET", "/dev/db/main/rest/" + each.replace("/", "%2F"), headers={"User-Agent": "curl " + IMAGE}
        )
    return ids


def _tables(running: Running) -> None:
    kinds = ", ".join(_text(name) for name in COLUMNS)
    columns = ", ".join(f"{_name(name)} text" for name in COLUMNS)
    table = _name(TABLE)
    statements = [
        f"create type {_name(TAG[:60])} as enum ({kinds})",
        f"create table {table} (id int primary key, kind {_name(TAG[:60])}, {columns}, extra jsonb, list text[])",
        f"comment on table {table} is {_text(IMAGE + LONG)}",
        f"create policy {_name(EVENT)} on {table} using ({_text(IMAGE)} <> {_text(TAG)})",
        f"alter table {table} enable row level security",
        f"grant select on {table} to anon",
        f"create view {_name(BIDI)} as select * from {table}",
        f"create view {_name(EVENT)} as select * from {table}",
        f"create table {_name(TEMPLATE[:60])} (id int primary key, owner int references {table})",
        f"insert into {_name(TEMPLATE[:60])} select i, i from generate_series(0, 8) i",
    ]
    statements[-1:-1] = [
        f"insert into {table} select {number}, {_text(COLUMNS[number])},"
        f" {', '.join(_text(each) for _ in COLUMNS)}, {_text(json.dumps({each: [each]}))}, array[{_text(each)}]"
        for number, each in enumerate(EACH)
    ]
    first = _name(COLUMNS[0])
    statements += [
        f"comment on column {table}.{name} is {_text(TAG + LONG)}" for name in (first, _name(COLUMNS[3]))
    ]
    statements += [
        f"insert into {table} (id, {first}) values (20, {_text(LONG)}), (21, repeat({_text(IMAGE)}, 400000))",
        f"grant all on {table}, {_name(BIDI)}, {_name(EVENT)}, {_name(TEMPLATE[:60])} to service_role",
        "notify pgrst",
    ]
    running.sql(";\n".join(statements))


def _users(running: Running) -> dict[str, str]:
    ids = {}
    for number, each in enumerate(EACH):
        body = {
            "email": f"hostile-{number}@example.test",
            "password": PASSWORD,
            "metadata": {"name": each, each: {"long": LONG, "link": LINK, "html": DOCUMENT}},
        }
        made = running.call("POST", "/admin/users", json=body)
        assert made.status_code == 201, made.text
        ids[each] = made.json()["data"]["user"]["id"]
        login = {"email": body["email"], "password": PASSWORD}
        running.call(
            "POST", "/auth/login", json=login, headers={"User-Agent": f"Mozilla {IMAGE} {'W' * 2000}"}
        )
        running.call("POST", "/auth/recover", json={"email": body["email"]})
    return ids


def _objects(running: Running) -> None:
    body = {"name": BUCKET, "visibility": "public"}
    made = running.call("POST", "/admin/buckets", json=body)
    assert made.status_code == 201, made.text
    for name, kind, text in FILES:
        _put(running, name, kind, text.encode())
    for number, each in enumerate(EACH):
        key = each.replace("/", "|").replace("\\", "")
        _put(running, f"names/{key}.txt", "text/plain", b"a file")
        _put(running, f"names/{number}-{key}/inside.png", "image/png", encoded(8, [b"\0\0\0" * 8] * 8))
    _put(running, "names/" + "W" * 900, "text/plain", b"a file with a long name")


def _mails(running: Running) -> None:
    """As a template of the project's own might make them."""
    for number, each in enumerate(EACH):
        mail = EmailMessage(policy=SMTPUTF8)
        mail["Subject"] = f"{each} {LONG[:500]}".replace("\u2067", "")
        mail["To"] = f"{number}@example.test"
        mail["From"] = "nobody@example.test"
        mail["Date"] = "Sat, 28 Nov 2026 12:00:00 +0000"
        mail.set_content(each + LONG)
        mail.add_alternative(f'{DOCUMENT}<a href="{LINK}">{LONG}</a>{each}<form action="/">', subtype="html")
        name = f"20990101T12000{number}.000000Z-{number:08x}.eml"
        (running.data_dir / "mail" / name).write_bytes(mail.as_bytes())


def _put(running: Running, key: str, kind: str, data: bytes) -> None:
    path = f"/storage/buckets/{BUCKET}/objects/{quote(key)}"
    # Not every name is allowed; one that is refused is not there to be shown.
    made = running.call("PUT", path, data=data, headers={"Content-Type": kind})
    assert made.status_code in (200, 201, 400, 422), made.text
