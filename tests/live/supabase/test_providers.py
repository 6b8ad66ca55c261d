"""Signing in by providers with supabase-js in Chromium: there and back, by both flows; a stolen state; adding an
account; and hooks of the database on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest_twisted
from twisted.internet.threads import deferToThread

from project_service.settings.model import Hooks, Secret, Store
from project_service.settings.model import Provider as ProviderSettings
from tests.live.application import serving
from tests.live.auth.provider import Provider, provider
from tests.live.browsing import PUPPETEER, serving_pages, visit
from tests.live.npm import install
from tests.live.sql import run_sql
from tests.live.supabase.test_kits import bundle, settings

PAGE = """
import { createClient } from '@supabase/supabase-js'

const [url, key] = window.config
const flowType = location.pathname.slice(1, -5)
const at = location.href
const client = createClient(url, key, { auth: { flowType } })
const redirectTo = location.origin + location.pathname
const add = (text, click) => document.body.append(Object.assign(document.createElement('button'), {
  innerText: text, onclick: click }))
add('Sign in', () => client.auth.signInWithOAuth({ provider: 'keycloak', options: { redirectTo } }))
add('Add', () => client.auth.linkIdentity({ provider: 'gitlab', options: { redirectTo } }))
add('Sign up', async () => {
  await client.auth.signUp({ email: 'ann@example.test', password: 'correct horse battery' })
  location.reload()
})
const { data: { session } } = await client.auth.getSession()
const wrong = new URLSearchParams(new URL(at).hash.slice(1)).get('error_code')
const claims = session && JSON.parse(atob(session.access_token.split('.')[1].replace(/-/g, '+').replace(/_/g, '/')))
const names = session && (await client.auth.getUserIdentities()).data.identities.map(one => one.provider)
document.body.append(session
  ? `${session.user.email} by ${names}, ${claims.amr[0].method}, ${claims.colour}, ${session.provider_token}.`
  : `${wrong ?? ''} nobody.`)
"""
VISIT = """
const [address] = args
const text = page => page.evaluate(() => document.body.lastChild.textContent)
for (const flow of ['implicit', 'pkce']) {
  const page = await opened(`${address}/${flow}.html`, await browser.createBrowserContext())
  await says(page, 'nobody.')
  await button(page, 'Sign in')
  await says(page, 'ada@example.test')
  seen[flow] = [await text(page), new URL(page.url()).hash, new URL(page.url()).search]
  await page.reload()
  await says(page, 'ada@example.test')
}
// Whoever begins keeps the address to which the provider sends them back, and has somebody else open it.
const page = await opened(`${address}/implicit.html`, await browser.createBrowserContext())
let stolen
await page.setRequestInterception(true)
page.on('request', request => {
  if (stolen || !request.url().includes('/auth/v1/callback')) return request.continue()
  stolen = request.url()
  request.abort()
})
await button(page, 'Sign in')
for (const end = Date.now() + 30000; !stolen && Date.now() < end;) await pause()
const other = await opened(stolen, await browser.createBrowserContext())
await says(other, 'bad_oauth_state nobody.')
seen.elsewhere = new URL(other.url()).origin
await page.goto(stolen)
await says(page, 'ada@example.test')
// Ann adds an account of hers.
const ann = await opened(`${address}/implicit.html`, await browser.createBrowserContext())
await button(ann, 'Sign up')
await says(ann, 'ann@example.test by email')
await button(ann, 'Add')
await says(ann, 'Sign in by gitlab to the account ann@example.test?')
await ann.locator('a::-p-text(Go on)').click()
await says(ann, 'ann@example.test by email,gitlab')
seen.ann = await text(ann)
"""
HOOKS = """
create function public.add_colour(event jsonb) returns jsonb language sql as
  $$ select jsonb_build_object('claims', event->'claims' || '{"colour": "green"}') $$;
create table public.asked (email text);
create function public.may_sign_up(event jsonb) returns jsonb language plpgsql as $$
begin
  insert into public.asked values (event->'user'->>'email');
  if event->'user'->>'email' like '%@evil.test' then
    return '{"error": {"http_code": 403, "message": "Not you."}}';
  end if;
  return '{}';
end $$;
"""


def of(there: Provider) -> ProviderSettings:
    return ProviderSettings(
        client_id=(there.client_id,), client_secret=Secret(there.client_secret), issuer=there.url
    )


@pytest_twisted.ensureDeferred
async def test_in_a_browser(database: str, store_settings: Store, tmp_path: Path) -> None:
    run_sql(database, HOOKS)
    hooks = Hooks(before_user_created="sql:public.may_sign_up", custom_access_token="sql:public.add_colour")
    with serving_pages(tmp_path) as address:
        async with provider() as there, provider() as other:
            # From another site, as browsers see it, by a form.
            other.url, other.posts = other.url.replace("127.0.0.1", "localhost"), True
            other.person |= {"sub": "person-2", "email": "ann@elsewhere.test"}
            auth: dict[str, Any] = {
                "site_url": f"{address}/implicit.html",
                "redirect_urls": (f"{address}/",),
                "providers": {"keycloak": of(there), "gitlab": of(other)},
                "allow_private_hosts": True,
                "manual_linking": True,
                "hooks": hooks,
            }
            async with serving(settings(database, store_settings, tmp_path, **auth)) as api:

                def session() -> Any:
                    install(tmp_path, "@supabase/supabase-js@2", "esbuild@0.28.2", PUPPETEER)
                    bundle(tmp_path, "page", PAGE, "--format=esm")
                    config = json.dumps([api.base_url, api.anon_key])
                    page = f"<!doctype html><body><script>window.config = {config}</script>"
                    for flow in ("implicit", "pkce"):
                        (tmp_path / f"{flow}.html").write_text(
                            f"{page}<script type=module src=page.js></script>"
                        )
                    return visit(tmp_path, VISIT, address)

                seen = await deferToThread(session)
                there.person |= {"sub": "person-3", "email": "eve@evil.test"}
                body = {"provider": "keycloak", "id_token": there.id_token()}
                path = "/auth/v1/token?grant_type=id_token"
                status, _, answer = await api.request("POST", path, json=body)
    ada = "ada@example.test by keycloak, oauth, green, the-access-token."
    assert seen.pop("implicit")[0] == ada
    assert seen.pop("pkce") == [ada, "", ""]
    assert seen.pop("ann").startswith("ann@example.test by email,gitlab, oauth, green")
    assert seen == {"elsewhere": address, "errors": []}
    assert (status, answer["msg"]) == (403, "Not you.")
    assert run_sql(database, "select email from public.asked order by 1") == [
        ("ada@example.test",),
        ("ann@example.test",),
        ("eve@evil.test",),
    ]
    assert run_sql(database, "select provider from auth.identities order by 1") == [
        *(("email",), ("gitlab",), ("keycloak",)),
    ]
