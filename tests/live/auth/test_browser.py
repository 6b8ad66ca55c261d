"""How a web page keeps its session according to docs/clients.rst, in headless Chromium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest_twisted

from project_service.settings.model import Store
from tests.live.auth.service import api_on
from tests.live.service.documented_clients import browser, examples, filled_in, opened
from tests.live.sql import run_sql
from tests.live.waiting import until

# The page reports what it saw as the metadata of another user.
PAGE = """<!doctype html><script type=module>
const reported = []
%(documented)s
keep(%(session)s)
const send = (method, path, token, body) => {
  const headers = { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' }
  return fetch(url + path, { method, headers, body: JSON.stringify(body) })
}
try {
  for (let round = 0; round < 2; round++) {
    const all = await Promise.all([1, 2, 3, 4, 5].map(current))
    reported.push(new Set(all.map(one => one.access_token)).size, all[0].refresh_token)
  }
  const session = JSON.parse(localStorage.getItem('session'))
  await send('POST', '/auth/logout', session.access_token)
  localStorage.setItem('session', JSON.stringify({ ...session, expires_at: 0 }))
  reported.push(await current(), localStorage.getItem('session'))
} catch (error) { reported.push(String(error)) }
await send('PATCH', '/auth/user', %(reporter)s, { metadata: { reported } })
</script>"""


@pytest_twisted.ensureDeferred
async def test_a_page_keeps_its_session_as_documented(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    program = browser()
    async with api_on(database, store_settings, tmp_path) as api:
        session = {**await api.sign_up("ada@example.test"), "expires_at": 0}
        reporter = await api.sign_up("reporter@example.test")
        values = {"session": session, "reporter": reporter["access_token"]}
        page = tmp_path / "page.html"
        written = {name: json.dumps(value) for name, value in values.items()}
        code = filled_in(examples("js", "project", "session"), api.base_url, api.anon_key)
        page.write_text(PAGE % {**written, "documented": code}, "utf-8")

        async def reported() -> Any:
            return [row for (row,) in run_sql(database, "select metadata->'reported' from auth.users") if row]

        with opened(program, page.as_uri()):
            await until(reported)
    ((one, first, again, second, ended, kept),) = await reported()
    # The first call refreshes once; the others, and the next round, find the new session.
    assert (one, again, first) == (1, 1, second)
    assert first != session["refresh_token"]
    assert run_sql(database, "select count(*) from auth.refresh_tokens group by session_id order by 1") == [
        (1,),
        (2,),
    ]
    # The page forgets a session that has ended.
    assert (ended, kept) == (None, None)
