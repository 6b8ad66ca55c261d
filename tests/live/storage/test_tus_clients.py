"""Real clients of tus, whose connection breaks in the middle of a file: tuspy, and tus-js-client and Uppy in
Chromium."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest
import pytest_twisted
from tusclient.client import TusClient
from twisted.internet.threads import deferToThread

from project_service.settings.model import Store
from tests.live import npm
from tests.live.application import Api, serving, settings_for
from tests.live.proxy import Manners, RudeProxy, rude_proxy
from tests.live.service import documented_clients
from tests.live.service.documented import blocks
from tests.live.services import held_open
from tests.live.waiting import until

MIB = 1024 * 1024
SIZE = 20 * MIB + 7
# The client sends more than one part before the cut, and less than the whole.
CUT = Manners(reset_up_after=13 * MIB, times=1)
PACKAGES = ("tus-js-client@4.3.1", "@uppy/core@4.5.3", "@uppy/tus@4.3.2", "esbuild@0.28.2")

BYTES = f"""
// The same bytes as in the test.
const bytes = new Uint8Array({SIZE})
for (let i = 0; i < bytes.length; i++) bytes[i] = (i * 31 + (i >> 8) * 17 + (i >> 16)) & 255
"""
PLAIN = """
import * as tus from 'tus-js-client'

const endpoint = '%(url)s/storage/buckets/private/resumable'
const headers = {apikey: '%(key)s', Authorization: 'Bearer %(token)s'}
const retryDelays = [0, 200, 500, 1000, 2000]
const file = new Blob([bytes], {type: 'application/x-test'})
new tus.Upload(file, {endpoint, headers, retryDelays, metadata: {filename: 'tus', filetype: file.type}}).start()
"""
# Beside the code for Uppy of docs/howto/resumable-uploads: what somebody does who is signed in and chooses a file.
CHOICE = """
localStorage.setItem('token', '%(token)s')
const chosen = new DataTransfer(), input = document.querySelector('input')
chosen.items.add(new File([bytes], 'uppy', {type: 'application/x-test'}))
input.files = chosen.files
input.dispatchEvent(new Event('change'))
"""


# The page of docs/howto/large-files: a session that has to be refreshed first, the same file for two keys, and for a
# third that is not allowed. What it saw is the metadata of its user.
GUIDE = """
import { uploadLarge } from './large.js'
import { current, url } from './project.js'

localStorage.setItem('session', JSON.stringify(%(session)s))
const bytes = new Uint8Array(%(size)d)
for (let i = 0; i < bytes.length; i++) bytes[i] = (i * 31 + (i >> 8) * 17 + (i >> 16)) & 255
const file = new File([bytes], 'video.bin', { type: 'application/x-test', lastModified: 1 })
const seen = []
for (const key of ['guide/one', 'guide/two', 'guide/../three']) {
  try {
    await uploadLarge('private', key, file, (sent, all) => { seen[0] = all })
    seen.push(key)
  } catch (error) {
    seen.push([error.code, error.message])
  }
}
const { access_token } = await current()
await fetch(`${url}/auth/user`, {
  method: 'PATCH', body: JSON.stringify({ metadata: { seen } }),
  headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${access_token}` },
})
"""


@cache
def page_bytes() -> bytes:
    """What the pages upload, made of rows of 256 bytes: one by one it takes seconds."""
    rows = [bytes((i * 31 + first) & 255 for i in range(256)) for first in range(256)]
    whole = b"".join(rows[(row * 17 + (row >> 8)) & 255] for row in range(SIZE // 256 + 1))
    return whole[:SIZE]


@pytest.fixture(scope="module")
def api(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    data_dir = Path(tmp_path_factory.mktemp("tus"))
    with held_open(serving(settings_for(module_database, store_settings, data_dir))) as running:
        yield running


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    npm.install(folder, *PACKAGES)
    return folder


def bundle(modules: Path, entry: Path, file: Path) -> None:
    # As a module, in which ``await`` may stand anywhere.
    command = [modules / "node_modules/.bin/esbuild", entry, "--bundle", "--format=esm", f"--outfile={file}"]
    subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=300)


@contextmanager
def serving_files(folder: Path) -> Iterator[str]:
    """The address of a server of the files in ``folder``: browsers load modules from servers only."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def cut_once(proxy: RudeProxy) -> bool:
    return proxy.done == 1


@pytest_twisted.ensureDeferred
async def test_tuspy_goes_on_after_its_connection_broke(api: Api) -> None:
    payload = Random(1).randbytes(SIZE)
    token = (await api.sign_up("tuspy@example.test"))["access_token"]
    headers = {"apikey": api.anon_key, "Authorization": f"Bearer {token}"}

    def upload(port: int) -> None:
        client = TusClient(f"http://127.0.0.1:{port}/storage/buckets/private/resumable?key=tuspy", headers)
        # Without metadata it sends an empty Upload-Metadata.
        uploader = client.uploader(
            file_stream=io.BytesIO(payload),
            chunk_size=15 * MIB,
            # Until the service has noticed that the connection broke.
            retries=100,
            retry_delay=0.2,
            upload_checksum=True,
        )
        uploader.upload()

    async with rude_proxy(f"tcp:127.0.0.1:{api.port}") as (proxy, port):
        proxy.manners = CUT
        await deferToThread(upload, port)
        assert cut_once(proxy)
    status, _, body = await api.request("GET", "/storage/buckets/private/objects/tuspy", token=token)
    assert (status, body == payload) == (200, True)


@pytest.mark.parametrize("client", ["tus", "uppy"])
@pytest_twisted.ensureDeferred
async def test_a_page_goes_on_after_its_connection_broke(
    api: Api, modules: Path, tmp_path: Path, client: str
) -> None:
    browser = documented_clients.browser()
    token = (await api.sign_up(f"{client}@example.test"))["access_token"]
    path = f"/storage/buckets/private/objects/{client}"

    async def arrived() -> bool:
        return (await api.request("HEAD", path, token=token))[0] == 200

    async with rude_proxy(f"tcp:127.0.0.1:{api.port}") as (proxy, port):
        url = f"http://127.0.0.1:{port}"
        entry, page = modules / f"{client}.js", tmp_path / "page.html"
        if client == "tus":
            code = PLAIN % {"url": url, "key": api.anon_key, "token": token}
        else:
            here = {documented_clients.ADDRESS: url, documented_clients.KEY: api.anon_key}
            shown = [one for one in blocks("howto/resumable-uploads.rst", **here) if one.file == "uppy.js"]
            code = shown[0].text + CHOICE % {"token": token}
        entry.write_text(BYTES + code)
        await deferToThread(bundle, modules, entry, tmp_path / "bundle.js")
        page.write_text("<!doctype html><input type=file><script src=bundle.js></script>")
        proxy.manners = CUT
        with documented_clients.opened(browser, page.as_uri()):
            await until(arrived)
        assert cut_once(proxy)
    status, headers, body = await api.request("GET", path, token=token)
    assert (status, body == page_bytes()) == (200, True)
    assert headers.getRawHeaders("content-type") == ["application/x-test"]


@pytest_twisted.ensureDeferred
async def test_the_page_of_the_guide_goes_on_too(api: Api, modules: Path, tmp_path: Path) -> None:
    browser = documented_clients.browser()
    session = {**await api.sign_up("guide@example.test"), "expires_at": 0}

    async def seen() -> Any:
        _, _, body = await api.request("GET", "/auth/user", token=session["access_token"])
        return body["data"]["user"]["metadata"].get("seen")

    async with rude_proxy(f"tcp:127.0.0.1:{api.port}") as (proxy, port):
        functions = documented_clients.examples("js", "project", "session", "send")
        exports, guide, _ = blocks("howto/large-files.rst")
        filled = documented_clients.filled_in(functions, f"http://127.0.0.1:{port}", api.anon_key)
        (modules / "project.js").write_text(filled + exports.text, "utf-8")
        (modules / guide.file).write_text(guide.text, "utf-8")
        entry = modules / "guide.js"
        entry.write_text(GUIDE % {"session": json.dumps(session), "size": SIZE})
        await deferToThread(bundle, modules, entry, tmp_path / "bundle.js")
        (tmp_path / "page.html").write_text("<!doctype html><script type=module src=bundle.js></script>")
        proxy.manners = CUT
        with serving_files(tmp_path) as address, documented_clients.opened(browser, f"{address}/page.html"):
            await until(seen)
        assert cut_once(proxy)
    size, one, two, (code, message) = await seen()
    assert (size, one, two, code) == (SIZE, "guide/one", "guide/two", "invalid_key")
    assert message.startswith("The object key is not allowed: ")
    for key in (one, two):
        status, _, body = await api.request(
            "GET", f"/storage/buckets/private/objects/{key}", token=session["access_token"]
        )
        assert (status, body == page_bytes()) == (200, True)
