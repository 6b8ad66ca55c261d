"""What pages may do with objects, shown in headless Chromium: a stored page that is opened inline cannot act as the
site; pages of other origins see what they need for ranges, and may show objects even if they are isolated."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from project_service.settings.model import Store
from tests.live.application import Api, serving, settings_for
from tests.live.service import documented_clients
from tests.live.services import held_open
from tests.live.storage.webm import film

PAGES = {
    "page.html": (
        "text/html",
        b"<!doctype html><body><p id=seen>here</p><script>document.getElementById('seen').textContent='ran'</script>"
        b"<img src=x onerror=\"document.getElementById('seen').textContent='ran'\"></body>",
    ),
    "image.svg": (
        "image/svg+xml",
        b"<svg xmlns='http://www.w3.org/2000/svg'><text id='seen'>here</text>"
        b"<script>document.getElementById('seen').textContent='ran'</script></svg>",
    ),
}


@pytest.fixture(scope="module")
def browser() -> str:
    return documented_clients.browser()


@pytest.fixture(scope="module")
def api(
    browser: str, module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    data_dir = Path(tmp_path_factory.mktemp("browser"))
    context = serving(settings_for(module_database, store_settings, data_dir))
    with held_open(context) as running:
        yield running


def shown(browser: str, url: str, profile: Path) -> str:
    """The page's document after its scripts could have run."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=2000",
    ]
    done = subprocess.run([browser, *flags, "--dump-dom", url], capture_output=True, timeout=180, check=True)
    return done.stdout.decode()


@pytest.mark.parametrize("name", PAGES)
@pytest_twisted.ensureDeferred
async def test_no_script_of_a_stored_page_runs(api: Api, browser: str, tmp_path: Path, name: str) -> None:
    content_type, page = PAGES[name]
    (tmp_path / name).write_bytes(page)
    # The same page from a file does run its script, so the test is able to fail.
    assert ">ran<" in await deferToThread(
        shown, browser, f"file://{quote(str(tmp_path / name))}", tmp_path / "a"
    )
    path = f"/storage/buckets/private/objects/{name}"
    put = await api.request("PUT", path, key="service", data=page, headers={"Content-Type": content_type})
    assert put[0] == 201
    made = await api.request(
        "POST", "/storage/buckets/private/presign", key="service", json={"key": name, "uses": 0}
    )
    dom = await deferToThread(shown, browser, f"{made[2]['url']}&inline=true", tmp_path / "b")
    assert ">here<" in dom
    assert ">ran<" not in dom


PIXEL = b"<svg xmlns='http://www.w3.org/2000/svg' width='7' height='7'><rect width='7' height='7' fill='red'/></svg>"
STYLE = b"#seen { width: 123px }"
# A page of another origin that has isolated itself. It writes what it saw into its document.
ISOLATED = """<!doctype html><link rel=stylesheet href="%(style)s"><p id=seen>...</p>
<img src="%(image)s&inline=true"><script type=module>
const saw = [self.crossOriginIsolated]
const image = document.images[0]
await image.decode().catch(() => {})
saw.push(image.naturalWidth, getComputedStyle(document.getElementById('seen')).width)
for (const [url, headers] of [["%(image)s", {}], ["%(object)s", { 'X-Service-Key': "%(key)s" }]]) {
  const answer = await fetch(url, { headers: { ...headers, Range: 'bytes=1-3' } })
  saw.push(answer.status, answer.headers.get('Accept-Ranges'), answer.headers.get('Content-Range'))
  saw.push(answer.headers.get('Last-Modified') !== null, await answer.text())
}
document.getElementById('seen').textContent = JSON.stringify(saw)
</script>"""


class IsolatedPage(Resource):
    isLeaf = True

    def __init__(self, page: str) -> None:
        super().__init__()
        self._page = page.encode()

    def render_GET(self, request: Request) -> bytes:
        request.setHeader("Content-Type", "text/html; charset=utf-8")
        request.setHeader("Cross-Origin-Embedder-Policy", "require-corp")
        request.setHeader("Cross-Origin-Opener-Policy", "same-origin")
        return self._page


@pytest_twisted.ensureDeferred
async def test_an_isolated_page_of_another_origin_shows_objects_and_sees_that_ranges_are_possible(
    api: Api, browser: str, tmp_path: Path
) -> None:
    links: dict[str, Any] = {}
    objects = "/storage/buckets/public/objects"
    for name, content_type, payload in (("image", "image/svg+xml", PIXEL), ("style", "text/css", STYLE)):
        path = f"{objects}/{name}"
        await api.request("PUT", path, key="service", data=payload, headers={"Content-Type": content_type})
        made = await api.request(
            "POST", "/storage/buckets/public/presign", key="service", json={"key": name, "uses": 0}
        )
        links[name] = made[2]["url"]
    page = ISOLATED % {**links, "object": f"{api.base_url}{objects}/image", "key": api.anon_key}
    port = api.reactor.listenTCP(0, Site(IsolatedPage(page)), interface="127.0.0.1")
    try:
        url = f"http://127.0.0.1:{port.getHost().port}/"
        dom = await deferToThread(shown, browser, url, tmp_path / "c")
    finally:
        await port.stopListening()
    ranged = '206,"bytes","bytes 1-3/99",true,"svg"'.replace("99", str(len(PIXEL)))
    assert f'>[true,7,"123px",{ranged},{ranged}]<' in dom, dom


# A page of another origin that sends nothing but what its elements send.
PUBLIC = """<!doctype html><style>#seen { background: url("%(at)s/dot.svg?inline=true") }</style>
<p id=seen>...</p><img src="%(at)s/dot.svg">
<video muted preload=metadata src="%(at)s/film.webm"></video><script type=module>
const image = document.images[0], video = document.querySelector('video')
const event = name => new Promise((done, failed) => {
  video.addEventListener(name, done); video.addEventListener('error', () => failed(video.error.message))
})
const saw = []
try {
  if (video.readyState < 1) await event('loadedmetadata')
  saw.push(video.duration, video.seekable.end(0), video.videoWidth)
  const sought = event('seeked')
  video.currentTime = 25
  await sought
  saw.push(video.currentTime)
} catch (error) { saw.push(String(error)) }
await image.decode().catch(() => {})
saw.push(image.naturalWidth)
saw.push(performance.getEntriesByType('resource').filter(one => one.initiatorType === 'css').length)
document.getElementById('seen').textContent = JSON.stringify(saw)
</script>"""


@pytest_twisted.ensureDeferred
async def test_a_page_of_another_origin_shows_public_pictures_and_seeks_in_a_video(
    api: Api, browser: str, tmp_path: Path
) -> None:
    rules = {"name": "pages", "visibility": "public", "anonymous_reads": True}
    assert (await api.request("POST", "/admin/buckets", key="service", json=rules))[0] == 201
    for name, content_type, payload in (
        ("dot.svg", "image/svg+xml", PIXEL),
        ("film.webm", "video/webm", film(30, 1024 * 1024)),
        ("page.html", *PAGES["page.html"]),
    ):
        path = f"/storage/buckets/pages/objects/{name}"
        headers = {"Content-Type": content_type}
        put = await api.request("PUT", path, key="service", data=payload, headers=headers)
        assert put[0] == 201
    page = PUBLIC % {"at": f"{api.base_url}/storage/public/pages"}
    port = api.reactor.listenTCP(0, Site(IsolatedPage(page)), interface="127.0.0.1")
    try:
        url = f"http://127.0.0.1:{port.getHost().port}/"
        dom = await deferToThread(shown, browser, url, tmp_path / "e")
    finally:
        await port.stopListening()
    assert ">[30,30,1,25,7,1]<" in dom, dom
    metrics = (await api.request("GET", "/metrics", key=None))[2]
    ranged = 'route="/storage/public/<bucket>/<path:key>",status="206"'
    assert ranged in (metrics if isinstance(metrics, str) else metrics.decode())
    # A stored page that is shown runs no script here either.
    url = f"{api.base_url}/storage/public/pages/page.html?inline=true"
    dom = await deferToThread(shown, browser, url, tmp_path / "f")
    assert ">here<" in dom and ">ran<" not in dom


# What one page sees of objects that it, or anybody else, changes in between.
CHANGING = """<!doctype html><p id=seen>...</p><script type=module>
const headers = { 'X-Service-Key': '%(key)s' }
const at = '%(bucket)s'
const upload = (key, text) => {
  const body = new FormData()
  body.append('file', new Blob([text]), key)
  return fetch(`${at}/objects`, { method: 'POST', headers, body })
}
const call = (name, value) => {
  const json = { ...headers, 'Content-Type': 'application/json' }
  return fetch(`${at}/${name}`, { method: 'POST', headers: json, body: JSON.stringify(value) })
}
const saw = []
const look = async () => {
  const answer = await fetch(`${at}/objects/page`, { headers })
  saw.push(answer.ok ? await answer.text() : answer.status)
}
await upload('page', 'one'); await look(); await look()
await upload('page', 'two'); await look()
await upload('other', 'moved'); await call('move', { from: 'other', to: 'page' }); await look()
await call('delete', { keys: ['page'] }); await look()
await upload('page', 'new'); await look()
document.getElementById('seen').textContent = JSON.stringify(saw)
</script>"""


@pytest_twisted.ensureDeferred
async def test_a_page_never_sees_an_object_that_was_replaced_moved_over_or_deleted(
    api: Api, browser: str, tmp_path: Path
) -> None:
    page = CHANGING % {"key": api.service_key, "bucket": f"{api.base_url}/storage/buckets/public"}
    port = api.reactor.listenTCP(0, Site(IsolatedPage(page)), interface="127.0.0.1")
    try:
        dom = await deferToThread(shown, browser, f"http://127.0.0.1:{port.getHost().port}/", tmp_path / "d")
    finally:
        await port.stopListening()
    assert '>["one","one","two","moved",404,"new"]<' in dom, dom
