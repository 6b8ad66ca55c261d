"""Chromium with a program for Node that does in pages what people do, by puppeteer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.live import npm
from tests.live.service.documented_clients import Pages, browser

PUPPETEER = "puppeteer-core@24"
# The program has ``browser``, the arguments, and what people do: each waits until it can be done. It fills ``seen``.
PROGRAM = """
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import puppeteer from 'puppeteer-core'

// Only a program that fails waits as long as this; a busy machine takes a minute for what else takes some seconds.
const timeout = 120000
const browser = await puppeteer.launch({
  executablePath: %r, args: ['--no-sandbox', '--disable-gpu'], defaultViewport: { width: 620, height: 400 }, timeout,
})
const args = process.argv.slice(2)
const opened = async (address, context = browser) => {
  const page = await context.newPage()
  page.setDefaultTimeout(timeout)
  page.on('pageerror', error => errors.push(error.message))
  await page.goto(address)
  return page
}
const button = (page, text) => page.locator(`button::-p-text(${text})`).click()
const fill = async (page, values) => {
  for (const [name, value] of Object.entries(values)) await page.locator(`[name=${name}]`).fill(value)
}
const pause = () => new Promise(done => setTimeout(done, 50))
const until = async (page, condition, ...values) => {
  for (const end = Date.now() + timeout; Date.now() < end; await pause())
    if (await page.evaluate(condition, ...values).catch(() => false)) return  // an error while a page is left
  throw new Error(`never: ${condition} ${values}`)
}
const says = (page, text) => until(page, text => document.body.innerText.includes(text), text)
// The first line that is wanted in an e-mail to an address, from the folder of the mails, once it is there.
const mailed = async (folder, email, isWanted) => {
  for (const end = Date.now() + timeout; Date.now() < end; await pause()) {
    const names = existsSync(folder) ? readdirSync(folder) : []  // it comes with the first e-mail
    for (const name of names.filter(name => name.endsWith('.eml'))) {
      const lines = readFileSync(`${folder}/${name}`, 'utf8').split(/\\r?\\n/)
      const found = lines.includes(`To: ${email}`) && lines.find(isWanted)
      if (found) return found
    }
  }
  throw new Error(`there is no e-mail to ${email}`)
}
const link = (folder, email, begin) => mailed(folder, email, line => line.startsWith(begin))
const code = (folder, email) => mailed(folder, email, line => /^[0-9]{6}$/.test(line))
const seen = {}, errors = []
try {
%s
} catch (error) {
  for (const page of await browser.pages()) errors.push(await page.evaluate(() => document.body.innerText))
  throw new Error(`pages say ${JSON.stringify(errors)}`, { cause: error })
} finally {
  await browser.close()
}
process.stdout.write(JSON.stringify({ ...seen, errors }))
"""


def visit(folder: Path, program: str, *args: str) -> Any:
    """What ``program`` put into ``seen``, and ``errors`` that pages did not catch. ``npm.install`` has installed
    ``PUPPETEER`` in ``folder``. Skips the test where there is no Chromium."""
    return npm.run_node(folder, PROGRAM % (browser(), program), *args)


@contextmanager
def serving_pages(folder: Path) -> Iterator[str]:
    """The address at which a server has the files of ``folder``."""
    handler = partial(Pages, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
