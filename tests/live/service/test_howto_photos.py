"""docs/howto/photo-app: its rules, its client and its page as they stand there, in Chromium."""

from __future__ import annotations

import json
from pathlib import Path

from tests.live.browsing import PUPPETEER, serving_pages, visit
from tests.live.daemon import ROOT, Daemon
from tests.live.npm import install
from tests.live.service.documented import blocks, run
from tests.live.services import WithDatabase
from tests.pictures import png

PAGE = "howto/photo-app.rst"
# Ann makes an album and uploads a photograph, whose connection breaks once; Bob sees nothing of it until it is shared
# with him, and comments on it; a stranger sees nothing until it is public.
VISIT = """
const [site, picture] = args
const [ann, bob, stranger] = await Promise.all(['ann', 'bob', ''].map(async name => {
  const page = await opened(`${site}/app.html`, await browser.createBrowserContext())
  await page.evaluate(async (name, source) => {
    globalThis.photos = await import(source)
    const who = { email: `${name}@example.com`, password: 'correct horse battery' }
    if (name) await photos.client.auth.signInWithPassword(who)
  }, name, `${site}/built/photos.js`)
  return page
}))
const titles = page => page.evaluate(async () => (await photos.albums()).map(({ title }) => title))
const refused = (page, work, ...values) =>
  page.evaluate(`(${work})(...${JSON.stringify(values)}).then(() => null, error => error.message)`)
const album = await ann.evaluate(async () => (await photos.addAlbum('Holidays')).id)
await ann.evaluate(() => { document.body.innerHTML = '<input type=file>' })
await (await ann.$('input')).uploadFile(picture)
seen.uploaded = await ann.evaluate(async (album, send = XMLHttpRequest.prototype.send) => {
  const [file] = document.querySelector('input').files, progress = []
  // The first request with bytes gets no further than half of them.
  XMLHttpRequest.prototype.send = function (body) {
    if (!body) return send.call(this, body)
    XMLHttpRequest.prototype.send = send
    send.call(this, body)
    this.abort()
    this.onerror(new ProgressEvent('error'))
  }
  await photos.upload(album, file, (sent, all) => progress.push([sent, all]))
  return progress.at(-1)[0] === file.size
}, album)
const upload = async album => photos.upload(album, new File(['<svg/>'], 'b.svg', { type: 'image/svg+xml' }))

seen.unshared = await titles(bob)
await ann.evaluate(album => photos.share(album, 'bob@example.com'), album)
seen.shared = await titles(bob)
seen.notHis = [
  /not_allowed|row-level security/.test(await refused(bob, upload, album)),
  await refused(bob, album => photos.share(album, 'eve@example.com'), album),
  await bob.evaluate(async album => [await photos.publish(album), (await photos.albums())[0].public], album),
]
await bob.evaluate(album => photos.comment(album, 'p.png', 'Well done'), album)

seen.stranger = [
  await titles(stranger), await stranger.evaluate(album => photos.thumbnails(album, 200), album),
  await refused(stranger, album => photos.comment(album, 'p.png', 'Hello'), album),
]
await ann.evaluate(album => photos.publish(album), album)
const page = await opened(`${site}/album.html#${album}`, await browser.createBrowserContext())
await says(page, 'p.png, bob@example.com: Well done')
await until(page, () => document.querySelector('img')?.naturalWidth === 200)
await ann.evaluate(album => photos.comment(album, 'p.png', 'Thank you'), album)
await says(page, 'p.png, ann@example.com: Thank you')
seen.comments = await page.$$eval('li', items => items.length)
"""


def test_albums_are_shared_and_published(with_database: WithDatabase, tmp_path: Path) -> None:
    install(tmp_path, "@supabase/supabase-js@2", "tus-js-client@4", "esbuild", PUPPETEER)
    file = tmp_path / "p.png"
    file.write_bytes(png(1, 2, 3, 300))
    (tmp_path / "app.html").write_text("<!doctype html><title>App</title>")
    with serving_pages(tmp_path) as address, Daemon(with_database(tmp_path / "var")) as daemon:
        daemon.wait_until_ready()
        credentials = json.loads((tmp_path / "var" / "credentials.json").read_text())
        here = {
            "http://127.0.0.1:8080": credentials["base_url"],
            "psk_anon_…": credentials["anon_key"],
        }
        run(tmp_path, PAGE, here)
        seen = visit(tmp_path, VISIT, address, str(file))
    denied = 'new row violates row-level security policy for table "{}"'
    assert seen == {
        "uploaded": True,
        "unshared": [],
        "shared": ["Holidays"],
        "notHis": [True, denied.format("shares"), [None, False]],
        "stranger": [[], [], "permission denied for table comments"],
        "comments": 2,
        "errors": [],
    }


def test_the_client_has_as_many_lines_as_its_page_says() -> None:
    (client,) = (block.text for block in blocks(PAGE) if block.file == "photos.js")
    lines = [line for line in client.splitlines() if line.strip() and not line.startswith("//")]
    text = (ROOT / "docs" / PAGE).read_text("utf-8")
    assert f"has\n{len(lines)} lines" in text
