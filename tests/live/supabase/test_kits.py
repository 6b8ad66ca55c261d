"""What stands on supabase-js, unconfigured, in Chromium: the form of auth-ui, and ``@supabase/ssr`` with a server
whose pages are for whoever its cookies sign in."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest_twisted
from attrs import evolve
from twisted.internet.threads import deferToThread

from project_service.settings.model import Settings, Stage, StageDatabase, Store
from tests.live.application import NOTES, serving, settings_for
from tests.live.browsing import PUPPETEER, serving_pages, visit
from tests.live.daemon import eventually
from tests.live.npm import install
from tests.live.programs import program
from tests.live.sql import run_sql

FORM = """
import { Auth } from '@supabase/auth-ui-react'
import { ThemeSupa } from '@supabase/auth-ui-shared'
import { createClient } from '@supabase/supabase-js'
import { createElement, useEffect, useState } from 'react'
import { createRoot } from 'react-dom/client'

const [url, key] = JSON.parse(decodeURIComponent(location.search.slice(1)))
const client = createClient(url, key)
function App() {
  const [session, setSession] = useState(null)
  useEffect(() => client.auth.onAuthStateChange((_, now) => setSession(now)).data.subscription.unsubscribe, [])
  return session
    ? createElement('button', { onClick: () => client.auth.signOut() }, `Leave, ${session.user.email}`)
    : createElement(Auth, { supabaseClient: client, appearance: { theme: ThemeSupa }, providers: [] })
}
createRoot(document.querySelector('main')).render(createElement(App))
"""
# Somebody is told what is wrong with a password, signs up, leaves, mistypes, signs in and asks for a new password.
FORM_VISIT = """
const page = await opened(args[0])
const ann = { email: 'ann@example.test', password: 'correct horse battery' }
const said = async (text, values) => {
  await fill(page, values)
  await page.locator('button[type=submit]').click()
  await says(page, text)
}
const follow = text => page.locator(`a::-p-text(${text})`).click()
await follow('have an account? Sign up')
await page.locator('button::-p-text(Sign up)').wait()
await said('at least 8 characters', { ...ann, password: 'short' })
await said('Leave, ann@example.test', ann)
await page.reload()
await says(page, 'Leave, ann@example.test')
await button(page, 'Leave')
await page.locator('button::-p-text(Sign in)').wait()
await said('Invalid login credentials', { ...ann, password: 'wrong horse battery' })
await said('Leave, ann@example.test', ann)
await button(page, 'Leave')
await follow('Forgot your password?')
await page.locator('button::-p-text(Send reset password instructions)').wait()
await said('Check your email for the password reset link', { email: ann.email })
"""
# The browser's own client, which finds the session in the same cookies.
CLIENT = """
import { createBrowserClient } from '@supabase/ssr'

globalThis.client = (url, key) => createBrowserClient(url, key)
"""
SERVER = """
import { createServerClient, parseCookieHeader, serializeCookieHeader } from '@supabase/ssr'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import ws from 'ws'

globalThis.WebSocket ??= ws  // Node has one since version 22
const [url, key] = process.argv.slice(2)
const page = body => `<!doctype html><meta charset="utf-8"><script src="/client.js"></script><main>${body}</main>`
const server = createServer(async (request, response) => {
  if (request.url === '/favicon.ico') return response.writeHead(404).end()
  if (request.url === '/client.js') return response.end(readFileSync('client.js'))
  const client = createServerClient(url, key, {
    cookies: {
      getAll: () => parseCookieHeader(request.headers.cookie ?? ''),
      setAll: (cookies, headers) => {
        for (const [name, value] of Object.entries(headers ?? {})) response.setHeader(name, value)
        for (const { name, value, options } of cookies)
          response.appendHeader('Set-Cookie', serializeCookieHeader(name, value, options))
      },
    },
  })
  let text = ''
  for await (const chunk of request) text += chunk
  const { email, password, note } = Object.fromEntries(new URLSearchParams(text))
  const { data: { user } } = await client.auth.getUser()
  if (request.method === 'POST') {
    const { error } = request.url === '/in' ? await client.auth.signInWithPassword({ email, password })
      : request.url === '/out' ? await client.auth.signOut()
      : await client.from('notes').insert({ words: note })
    return response.writeHead(303, { Location: `/?${new URLSearchParams({ said: error?.message ?? '' })}` }).end()
  }
  const { data: { claims } = {} } = user ? (await client.auth.getClaims()) : {}
  const { data: notes } = await client.from('notes').select('words').order('id')
  const said = new URL(request.url, 'http://x').searchParams.get('said') ?? ''
  response.setHeader('Content-Type', 'text/html')
  response.end(page(user
    ? `${claims.email}: ${notes.map(({ words }) => words)}<form method="post" action="/note"><input name="note">
       <button>Note</button></form><form method="post" action="/out"><button>Leave</button></form>`
    : `${said} nobody<form method="post" action="/in"><input name="email">
       <input name="password"><button>Enter</button></form>`))
}).listen(0, '127.0.0.1', () => console.log(server.address().port))
"""
# Somebody signs in to the server's page, and the browser's own client has the session too. Tokens are so short-lived
# that the server renews the session for each page. Then the browser's client ends it, for the server as well.
SERVER_VISIT = """
const [address, url, key] = args
const page = await opened(address)
const ann = { email: 'ann@example.test', password: 'correct horse battery' }
const cookie = async () => (await browser.cookies()).map(({ value }) => value).join()
await says(page, 'nobody')
await fill(page, { ...ann, password: 'a wrong password' })
await button(page, 'Enter')
await says(page, 'Invalid login credentials nobody')
await fill(page, ann)
await button(page, 'Enter')
await says(page, 'ann@example.test:')
const before = await cookie()
await fill(page, { note: 'from the server' })
await button(page, 'Note')
await says(page, 'ann@example.test: from the server')
seen.renewed = before !== await cookie()
seen.browser = await page.evaluate(async (url, key) => {
  const here = client(url, key)
  await here.from('notes').insert({ words: 'from the page' })
  return (await here.auth.getUser()).data.user.email
}, url, key)
await page.reload()
await says(page, 'ann@example.test: from the server,from the page')
await page.evaluate(async (url, key) => client(url, key).auth.signOut(), url, key)
await page.reload()
await says(page, 'nobody')
await fill(page, ann)
await button(page, 'Enter')
await says(page, 'ann@example.test:')
await button(page, 'Leave')
await says(page, 'nobody')
seen.cookies = (await browser.cookies()).length
"""


def bundle(folder: Path, name: str, text: str, *options: str) -> None:
    (folder / f"{name}.source.js").write_text(text, "utf-8")
    command = ["node_modules/.bin/esbuild", f"{name}.source.js", "--bundle", f"--outfile={name}.js", *options]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)


@contextmanager
def rendering(folder: Path, *args: str) -> Iterator[str]:
    """The address of the server ``SERVER``."""
    (folder / "server.mjs").write_text(SERVER, "utf-8")
    command = [program("node"), "server.mjs", *args]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://localhost:{int(process.stdout.readline())}/"
        finally:
            process.kill()


def settings(database: str, store: Store, folder: Path, **auth: Any) -> Settings:
    made = settings_for(database, store, folder, auth=auth, smtp={"mail_dir": str(folder / "mails")})
    return evolve(made, stages={"dev": Stage(databases={"main": StageDatabase()})})


@pytest_twisted.ensureDeferred
async def test_the_form_of_auth_ui(database: str, store_settings: Store, tmp_path: Path) -> None:
    async with serving(settings(database, store_settings, tmp_path)) as api:

        def session() -> Any:
            kit = ("@supabase/auth-ui-react@0.4", "@supabase/auth-ui-shared@0.1", "react@18", "react-dom@18")
            install(tmp_path, "@supabase/supabase-js@2", *kit, "esbuild@0.28.2", PUPPETEER)
            bundle(tmp_path, "form", FORM)
            (tmp_path / "form.html").write_text("<!doctype html><main></main><script src=form.js></script>")
            with serving_pages(tmp_path) as address:
                values = quote(json.dumps([api.base_url, api.anon_key]))
                seen = visit(tmp_path, FORM_VISIT, f"{address}/form.html?{values}")
            eventually(lambda: any((tmp_path / "mails").glob("*.eml")), "the e-mail for a new password")
            return seen

        assert await deferToThread(session) == {"errors": []}


@pytest_twisted.ensureDeferred
async def test_a_server_that_renders_pages(database: str, store_settings: Store, tmp_path: Path) -> None:
    run_sql(database, NOTES)
    async with serving(settings(database, store_settings, tmp_path, access_token_seconds=60)) as api:
        ann = {"email": "ann@example.test", "password": "correct horse battery"}
        await api.sign_up(**ann)

        def session() -> Any:
            install(
                tmp_path, "@supabase/ssr@0", "@supabase/supabase-js@2", "ws@8", "esbuild@0.28.2", PUPPETEER
            )
            bundle(tmp_path, "client", CLIENT)
            with rendering(tmp_path, api.base_url, api.anon_key) as address:
                return visit(tmp_path, SERVER_VISIT, address, api.base_url, api.anon_key)

        seen = await deferToThread(session)
    assert seen == {"renewed": True, "browser": "ann@example.test", "cookies": 0, "errors": []}
