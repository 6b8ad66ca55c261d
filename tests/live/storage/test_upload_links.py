"""Uploads by links on the whole service: by curl, by a real HTML form and a page of another origin in headless
Chromium, and many at once."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_twisted
from attrs import frozen
from twisted.internet.defer import maybeDeferred
from twisted.internet.threads import deferToThread
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from project_service.database.connecting import connector
from project_service.database.pool import Pool
from project_service.settings.model import Store
from project_service.storage.assemble import Storage, assemble
from tests.live.application import Api, serving, settings_for
from tests.live.programs import program
from tests.live.service import documented_clients
from tests.live.services import held_open, wait

# A file cannot be chosen without a person, but a script can put one into the field.
FORM = """<!doctype html><meta charset=utf-8>
<form action="%(link)s" method="post" enctype="multipart/form-data">
<input type="hidden" name="redirect" value="%(redirect)s"><input type="file" name="file"></form><script>
const transfer = new DataTransfer()
transfer.items.add(new File(['%(text)s'], 'grüße "1".txt', { type: 'text/plain' }))
document.querySelector('[type=file]').files = transfer.files
document.forms[0].submit()
</script>"""
FETCH = """<!doctype html><p id=seen>...</p><script type=module>
const saw = []
for (const text of ['too large', 'fits', 'fits']) {
  const answer = await fetch('%(link)s', { method: 'PUT', body: new Blob([text], { type: 'text/plain' }) })
  const body = await answer.json()
  saw.push(answer.status, body.error?.code ?? body.key)
}
document.getElementById('seen').textContent = JSON.stringify(saw)
</script>"""


class Pages(Resource):
    """Pages of another origin; a page that a form leads to shows its own address."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[bytes, str] = {}

    def render_GET(self, request: Request) -> bytes:
        request.setHeader("Content-Type", "text/html; charset=utf-8")
        led_to = "<!doctype html><p id=led></p><script>led.textContent = location.search</script>"
        return self.pages.get(request.path, led_to).encode()


@frozen
class World:
    api: Api
    pages: Pages
    origin: str
    user: str
    behind: Storage

    async def link(self, **given: Any) -> str:
        status, _, made = await self.api.request(
            "POST",
            "/storage/buckets/private/presign",
            token=self.user,
            json={"method": "PUT", **given},
        )
        assert status == 200, made
        return str(made["url"])

    async def object(self, key: str) -> bytes | None:
        path = f"/storage/buckets/private/objects/{key}"
        status, _, body = await self.api.request("GET", path, token=self.user)
        return body if status == 200 else None


@pytest.fixture(scope="module")
def world(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    from twisted.internet import reactor

    pages, here = Pages(), cast(Any, reactor)
    port = here.listenTCP(0, Site(pages), interface="127.0.0.1")
    origin = f"http://127.0.0.1:{port.getHost().port}"
    folder = Path(tmp_path_factory.mktemp("links"))
    storage = {"redirect_urls": (f"{origin}/done/",)}
    with held_open(serving(settings_for(module_database, store_settings, folder, storage=storage))) as api:
        pool = Pool(connector(reactor, api.settings), 2, 5.0, reactor)
        behind = assemble(reactor, api.settings.storage, api.settings.store, pool)
        session = wait(lambda: api.sign_up("ann@example.com"))
        yield World(api, pages, origin, session["access_token"], behind)
        wait(behind.stop)
        wait(pool.close)
    wait(lambda: maybeDeferred(port.stopListening))


def shown(url: str, profile: Path) -> str:
    """The document of a page in Chromium, after its scripts and what it leads to."""
    command = [documented_clients.browser(), "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={profile}", "--virtual-time-budget=4000", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, timeout=180, check=True).stdout.decode()


def curl(*arguments: str) -> tuple[int, str]:
    """The status and the body."""
    command = [program("curl"), "-s", "-w", "\n%{http_code} %{redirect_url}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    body, _, end = done.stdout.rpartition("\n")
    status, _, led = end.partition(" ")
    return int(status), led or body


@pytest_twisted.ensureDeferred
async def test_curl_uploads_by_a_link_without_any_key(world: World, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 65536  # of two parts
    (tmp_path / "large.bin").write_bytes(payload)
    link = await world.link(key="by curl.bin", max_bytes=len(payload))
    status, body = await deferToThread(curl, "-T", str(tmp_path / "large.bin"), link)
    assert (status, json.loads(body)["size"]) == (201, len(payload))
    assert await world.object("by%20curl.bin") == payload
    status, body = await deferToThread(curl, "-T", str(tmp_path / "large.bin"), link)
    assert (status, json.loads(body)["error"]["code"]) == (410, "token_used")
    # As many bytes without saying so before.
    link = await world.link(key="chunked.bin", max_bytes=len(payload) - 1)
    chunked = ("-H", "Transfer-Encoding: chunked", "-T", str(tmp_path / "large.bin"), link)
    status, body = await deferToThread(curl, *chunked)
    assert (status, json.loads(body)["error"]["code"]) == (413, "payload_too_large")
    assert await world.object("chunked.bin") is None


@pytest_twisted.ensureDeferred
async def test_curl_sends_a_form(world: World, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from curl")
    link = await world.link(key_prefix="forms/")
    form = ("-F", f"file=@{tmp_path / 'a.txt'}", "-F", "key=b/c.txt")
    status, body = await deferToThread(curl, *form, "-F", "redirect=https://evil.example/", link)
    assert (status, json.loads(body)["error"]["details"].keys()) == (422, {"redirect"})
    status, led = await deferToThread(curl, *form, "-F", f"redirect={world.origin}/done/x?y=z", link)
    assert status == 303
    assert led.startswith(f"{world.origin}/done/x?y=z&bucket=private&key=forms%2Fb%2Fc.txt&etag=")
    assert await world.object("forms/b/c.txt") == b"from curl"


@pytest_twisted.ensureDeferred
async def test_a_form_in_a_browser_uploads_and_leads_on(world: World, tmp_path: Path) -> None:
    link = await world.link(key_prefix="in/", max_bytes=20, content_types=["text/*"])
    form = {"link": link, "redirect": f"{world.origin}/done/"}
    world.pages.pages[b"/large"] = FORM % {**form, "text": "x" * 21}
    document = await deferToThread(shown, f"{world.origin}/large", tmp_path / "a")
    assert "<h1>The file was not uploaded</h1>" in document, document
    world.pages.pages[b"/form"] = FORM % {**form, "text": "from a form"}
    document = await deferToThread(shown, f"{world.origin}/form", tmp_path / "b")
    search = document.partition('<p id="led">')[2].partition("</p>")[0].replace("&amp;", "&")
    told = parse_qs(urlsplit(search).query)
    assert (told["bucket"], told["key"]) == (["private"], ['in/grüße "1".txt']), document
    assert await world.object("in/gr%C3%BC%C3%9Fe%20%221%22.txt") == b"from a form"
    document = await deferToThread(shown, f"{world.origin}/form", tmp_path / "c")
    assert "This link has been used." in document, document


@pytest_twisted.ensureDeferred
async def test_a_page_of_another_origin_uploads_by_fetch(world: World, tmp_path: Path) -> None:
    link = await world.link(key="fetched.txt", max_bytes=5)
    world.pages.pages[b"/fetch"] = FETCH % {"link": link}
    document = await deferToThread(shown, f"{world.origin}/fetch", tmp_path / "d")
    expected = '[413,"payload_too_large",201,"fetched.txt",410,"token_used"]'
    assert f">{expected}<" in document, document
    assert await world.object("fetched.txt") == b"fits"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest_twisted.ensureDeferred
async def test_of_many_uploads_at_once_by_a_link_one_makes_an_object(world: World, overwrite: bool) -> None:
    key = f"race {overwrite}"
    link = await world.link(key=key, overwrite=overwrite)
    path, size = link.removeprefix(world.api.base_url), 300_000

    def all_but_the_end(number: int) -> socket.socket:
        sent = socket.create_connection(("127.0.0.1", world.api.port))
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
        sent.sendall(head.encode() + b"%d" % number * (size - 1))
        return sent

    def end(number: int, sent: socket.socket) -> bytes:
        with sent:
            sent.sendall(b"%d" % number)
            answer = b""
            while data := sent.recv(65536):
                answer += data
        return answer

    def race() -> list[bytes]:
        with ThreadPoolExecutor(8) as threads:
            begun = list(threads.map(all_but_the_end, range(8)))
            return list(threads.map(end, range(8), begun))

    answers = await deferToThread(race)
    statuses = [answer[9:12] for answer in answers]
    assert sorted(statuses) == [b"201", *[b"410"] * 7], answers
    assert all(b'"token_used"' in answer for answer in answers if answer[9:12] == b"410")
    winner = statuses.index(b"201")
    assert await world.object(key.replace(" ", "%20")) == b"%d" % winner * size
    report = await world.behind.sweeper.verify()
    assert report.sound and report.orphans == []


@pytest_twisted.ensureDeferred
async def test_a_thousand_links_are_made_listed_and_each_works(world: World) -> None:
    wanted = [f"many/{number}" for number in range(1000)]
    presign = "/storage/buckets/private/presign"
    status, _, made = await world.api.request(
        "POST", presign, token=world.user, json={"method": "PUT", "keys": wanted, "expires_in_seconds": 600}
    )
    assert status == 200 and [link["key"] for link in made["links"]] == wanted
    assert len({link["url"] for link in made["links"]}) == 1000
    links = "/storage/buckets/private/links"
    listed: set[str] = set()
    query = "?limit=400"
    while True:
        status, _, page = await world.api.request("GET", links + query, token=world.user)
        assert status == 200, page
        listed |= {link["id"] for link in page["links"]}
        if page["next_token"] is None:
            break
        query = f"?limit=400&page_token={page['next_token']}"
    assert {link["id"] for link in made["links"]} <= listed
    last = made["links"][-1]
    path = last["url"].removeprefix(world.api.base_url)
    assert (await world.api.request("PUT", path, key=None, data=b"x"))[0] == 201
    first = made["links"][0]
    assert (await world.api.request("DELETE", f"{links}/{first['id']}", token=world.user))[0] == 204
    path = first["url"].removeprefix(world.api.base_url)
    status, _, body = await world.api.request("PUT", path, key=None, data=b"x")
    assert (status, body["error"]["code"]) == (404, "token_not_found")
