"""The pages of docs/howto on ways to sign in: the modules as they stand there, in Chromium, with the e-mails of a
running service."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.live.browsing import PUPPETEER, serving_pages, visit
from tests.live.npm import install
from tests.live.service.documented import blocks, run, service, write_files
from tests.live.services import WithDatabase

# A page of an application that has a module of the documentation, as a bundler would give it to the browser.
APP = """<!doctype html><title>App</title>
<script src="node_modules/@supabase/supabase-js/dist/umd/supabase.js"></script>
<script type="importmap">{"imports": {"@supabase/supabase-js": "./supabase-js.js"}}</script>
<script type="module">globalThis.app = await import('./%s')</script>
"""
START = """
const [site, url, mails, service] = args
const enters = async (address, context) => {
  const page = await opened(address.startsWith('http') ? address : `${site}/${address}`, context)
  await until(page, () => Boolean(globalThis.app))
  return page
}
const alone = () => browser.createBrowserContext()
const pressed = async (page, address) => {
  await page.goto(address)
  await page.locator('button').click()
  await until(page, () => Boolean(globalThis.app))
}
const begin = `${url}/auth/v1/verify?`
const called = async (page, name, ...values) => outcome(
  await page.evaluate((name, values) => app[name](...values), name, values))
const outcome = ({ data, error }) => error?.code ?? data
const user = page => page.evaluate(async () => (await app.client.auth.getUser()).data.user)
const claims = page => page.evaluate(async () => (await app.client.auth.getClaims()).data.claims)
"""
Flow = Callable[..., Any]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("packages"))
    install(folder, "@supabase/supabase-js@2", "ws", PUPPETEER)
    return folder / "node_modules"


@pytest.fixture
def flow(packages: Path, with_database: WithDatabase, tmp_path: Path) -> Flow:
    """What is seen of a flow in Chromium, with the files of a page and the service that it starts. With ``commands``
    those of the page are run before."""
    (tmp_path / "node_modules").symlink_to(packages)
    (tmp_path / "supabase-js.js").write_text("export const { createClient } = globalThis.supabase")
    with_database(tmp_path / "var")
    return partial(_seen, tmp_path)


def _seen(folder: Path, page: str, program: str, *, commands: bool = False) -> Any:
    with serving_pages(folder) as site:
        here = {"http://localhost:3000": site, "$PWD": str(folder)}
        with service(folder, page, here) as daemon:
            daemon.wait_until_ready()
            known = json.loads((folder / "var" / "credentials.json").read_text())
            here |= {
                "http://127.0.0.1:8080": known["base_url"],
                "psk_anon_…": known["anon_key"],
                "psk_service_…": known["service_key"],
            }
            found = blocks(page, **here)
            write_files(folder, found)
            for module in [block.file for block in found if block.file.endswith(".js")]:
                (folder / module).with_suffix(".html").write_text(APP % module)
            if commands:
                run(folder, page, here, before="")
            mails = str(folder / "var" / "mail")
            seen = visit(folder, START + program, site, known["base_url"], mails, known["service_key"])
    assert seen.pop("errors") == []
    return seen


def test_by_code_or_link(flow: Flow) -> None:
    seen = flow(
        "howto/sign-in-code.rst",
        """
const mail = (page, expected) => until(page, expected => document.body.dataset.email === expected, expected)

const ann = await enters('enter.html', await alone())
seen.sent = await called(ann, 'send', 'ann@example.com')
const right = await code(mails, 'ann@example.com')
seen.wrong = await called(ann, 'enter', 'ann@example.com', right === '000000' ? '000001' : '000000')
seen.entered = (await called(ann, 'enter', 'ann@example.com', right)).user.email
await mail(ann, 'ann@example.com')
seen.twice = await called(ann, 'enter', 'ann@example.com', right)
await ann.goto(await link(mails, 'ann@example.com', begin))
await until(ann, () => Boolean(globalThis.app))
seen.used = [ann.url().split('#')[0] === `${site}/enter.html`, await ann.evaluate(() => app.problem)]

const ben = await enters('enter.html', await alone())
await called(ben, 'send', 'ben@example.com')
await pressed(ben, await link(mails, 'ben@example.com', begin))
await mail(ben, 'ben@example.com')
seen.link = [ben.url(), (await claims(ben)).amr[0].method]

// With PKCE the link works in the browser in which it was asked for, and the code anywhere.
const cat = await enters('enter-pkce.html', await alone())
await called(cat, 'send', 'cat@example.com')
await pressed(cat, await link(mails, 'cat@example.com', begin))
seen.pkce = [(await user(cat)).email, new URL(cat.url()).search]
const dan = await enters('enter-pkce.html', await alone()), elsewhere = await enters('enter-pkce.html', await alone())
await called(dan, 'send', 'dan@example.com')
await pressed(elsewhere, await link(mails, 'dan@example.com', begin))
seen.elsewhere = await user(elsewhere)
const eve = await enters('enter-pkce.html', await alone()), other = await enters('enter-pkce.html', await alone())
await called(eve, 'send', 'eve@example.com')
seen.code = (await called(other, 'enter', 'eve@example.com', await code(mails, 'eve@example.com'))).user.email

// A link to a page of the application's own, opened in another browser than it was asked for.
const german = { email: 'fay@example.com', options: { data: { locale: 'de' } } }
await eve.evaluate(who => app.client.auth.signInWithOtp(who), german)
const fay = await enters(await link(mails, 'fay@example.com', `${site}/link.html?token_hash=`), await alone())
seen.own = (await called(fay, 'follow')).user.email

// A password that began a session stays good.
const gus = await enters('enter.html', await alone())
const who = { email: 'gus@example.com', password: 'correct horse battery' }
seen.before = await gus.evaluate(async who => (await app.client.auth.signUp(who)).data.session !== null, who)
await called(gus, 'send', 'gus@example.com')
await called(gus, 'enter', 'gus@example.com', await code(mails, 'gus@example.com'))
seen.after = await gus.evaluate(async who => (await app.client.auth.signInWithPassword(who)).data.user?.email, who)
""",
    )
    assert seen == {
        "sent": {"user": None, "session": None},
        "wrong": "otp_expired",
        "entered": "ann@example.com",
        "twice": "otp_expired",
        "used": [True, "Email link is invalid or has expired"],
        "link": [seen["link"][0], "magiclink"],
        "pkce": ["cat@example.com", ""],
        "elsewhere": None,
        "code": "eve@example.com",
        "own": "fay@example.com",
        "before": True,
        "after": "gus@example.com",
    }
    assert seen["link"][0].removesuffix("#").endswith("/enter.html")


def test_guests(flow: Flow) -> None:
    seen = flow(
        "howto/guests.rst",
        """
const ann = await enters('guest.html', await alone())
const begun = await ann.evaluate(async () => [(await app.begin()).user.id, (await app.begin()).user.id])
const guest = await user(ann)
seen.guest = [begun[0] === begun[1], guest.is_anonymous, (await claims(ann)).is_anonymous]
seen.drawn = await called(ann, 'draw', 'A house')
seen.published = await called(ann, 'publish', 'A house')
const asked = (await called(ann, 'become', 'ann@example.com', 'correct horse battery')).user
seen.asked = [asked.new_email, asked.email, asked.is_anonymous]
await pressed(ann, await link(mails, 'ann@example.com', begin))
const become = await user(ann)
seen.become = [become.id === guest.id, become.email, become.is_anonymous, (await claims(ann)).is_anonymous]
seen.now = await called(ann, 'publish', 'A house')
seen.rows = await ann.evaluate(async () => (await app.client.from('drawings').select('title, public')).data)
const later = await enters('guest.html', await alone())
seen.again = await later.evaluate(async who => (await app.client.auth.signInWithPassword(who)).data.user?.id,
  { email: 'ann@example.com', password: 'correct horse battery' }) === guest.id

const ben = await enters('guest.html', await alone())
await ben.evaluate(() => app.begin())
seen.taken = await called(ben, 'become', 'ann@example.com', 'correct horse battery')
""",
        commands=True,
    )
    assert seen == {
        "guest": [True, True, True],
        "drawn": None,
        "published": "42501",
        "asked": ["ann@example.com", "", True],
        "become": [True, "ann@example.com", False, False],
        "now": None,
        "rows": [{"title": "A house", "public": True}],
        "again": True,
        "taken": "email_exists",
    }


def test_invitations(flow: Flow) -> None:
    seen = flow(
        "howto/invites.rst",
        """
globalThis.WebSocket ??= (await import('ws')).default  // Node has one since version 22
const { invite, linkFor } = await import('./invite.mjs')
const invited = outcome(await invite('ann@example.com', { name: 'Ann' })).user
seen.invited = [Boolean(invited.invited_at), invited.email_confirmed_at ?? null, invited.user_metadata]
const ann = await enters('welcome.html', await alone())
seen.before = await ann.evaluate(() => app.isInvited)
await pressed(ann, await link(mails, 'ann@example.com', begin))
seen.accepted = [await ann.evaluate(() => app.isInvited), (await user(ann)).email, (await claims(ann)).amr[0].method]
seen.chosen = (await called(ann, 'choose', 'correct horse battery')).user.email
const later = await enters('welcome.html', await alone())
seen.later = await later.evaluate(async who => (await app.client.auth.signInWithPassword(who)).data.user?.email,
  { email: 'ann@example.com', password: 'correct horse battery' })
seen.taken = outcome(await invite('ann@example.com'))

outcome(await invite('ben@example.com'))
const ben = await enters('welcome.html', await alone())
seen.code = (await called(ben, 'accept', 'ben@example.com', await code(mails, 'ben@example.com'))).user.email
const cat = await enters('welcome.html', await alone())
await pressed(cat, await linkFor('cat@example.com'))
seen.own = (await user(cat)).email

const stranger = await enters('welcome.html', await alone())
seen.stranger = await stranger.evaluate(async () => (await app.client.auth.signUp(
  { email: 'dan@example.com', password: 'correct horse battery' })).error.code)
""",
    )
    assert seen == {
        "invited": [True, None, {"name": "Ann"}],
        "before": False,
        "accepted": [True, "ann@example.com", "invite"],
        "chosen": "ann@example.com",
        "later": "ann@example.com",
        "taken": "email_exists",
        "code": "ben@example.com",
        "own": "cat@example.com",
        "stranger": "signup_disabled",
    }


def test_a_forgotten_password(flow: Flow) -> None:
    seen = flow(
        "howto/forgotten-password.rst",
        """
const old = 'correct horse battery', fresh = 'staple battery horse'
const signIn = (page, email, password) => page.evaluate(
  async who => { const { error } = await app.client.auth.signInWithPassword(who); return error?.code ?? 'in' },
  { email, password })
for (const email of ['ann@example.com', 'ben@example.com']) await fetch(`${url}/auth/v1/admin/users`, {
  method: 'POST', headers: { Authorization: `Bearer ${service}`, 'Content-Type': 'application/json' },
  body: JSON.stringify({ email, password: old, email_confirm: true }),
})
const elsewhere = await enters('password.html', await alone())
await signIn(elsewhere, 'ben@example.com', old)

const ann = await enters('password.html', await alone())
seen.asked = [await called(ann, 'forgot', 'nobody@example.com'), await called(ann, 'forgot', 'ann@example.com')]
const mailedLink = await link(mails, 'ann@example.com', begin)
await pressed(ann, mailedLink)
await until(ann, () => document.body.dataset.asks === 'password')
seen.problems = [await called(ann, 'choose', 'short'), await called(ann, 'choose', old)]
seen.chosen = (await called(ann, 'choose', fresh)).user.email
seen.signIns = [await signIn(ann, 'ann@example.com', old), await signIn(ann, 'ann@example.com', fresh)]
const late = await enters('password.html', await alone())
await late.goto(mailedLink)
await until(late, () => Boolean(globalThis.app))
seen.used = await late.evaluate(() => app.problem)

const ben = await enters('password.html', await alone())
await called(ben, 'forgot', 'ben@example.com')
seen.code = (await called(ben, 'enter', 'ben@example.com', await code(mails, 'ben@example.com'))).user.email
seen.stays = (await user(elsewhere)).email
await called(ben, 'choose', fresh)
seen.ended = await user(elsewhere)
""",
    )
    assert seen == {
        "asked": [{}, {}],
        "problems": ["weak_password", "same_password"],
        "chosen": "ann@example.com",
        "signIns": ["invalid_credentials", "in"],
        "used": "otp_expired",
        "code": "ben@example.com",
        "stays": "ben@example.com",
        "ended": None,
    }


def test_a_new_address(flow: Flow) -> None:
    seen = flow(
        "howto/change-email.rst",
        """
// Signed in by a code, they have confirmed their addresses.
const signedIn = async email => {
  const page = await enters('address.html', await alone())
  await page.evaluate(email => app.client.auth.signInWithOtp({ email }), email)
  const token = await code(mails, email)
  await page.evaluate(who => app.client.auth.verifyOtp(who), { email, token, type: 'email' })
  return page
}
const changes = line => line.startsWith(begin) && line.includes('type=email_change')
const ann = await signedIn('ann@example.com')
const asked = (await called(ann, 'change', 'new@example.com')).user
seen.asked = [asked.email, asked.new_email]
await pressed(ann, await mailed(mails, 'ann@example.com', changes))
seen.half = [(await user(ann)).email, await ann.evaluate(() => app.message)]
await pressed(ann, await mailed(mails, 'new@example.com', changes))
seen.changed = [(await user(ann)).email, await ann.evaluate(() => app.message)]
const ben = await signedIn('ben@example.com')
seen.taken = await called(ben, 'change', 'new@example.com')
// By the code to the new address, and the link to the old one.
await called(ben, 'change', 'other@example.com')
seen.first = (await called(ben, 'confirm', 'other@example.com', await code(mails, 'other@example.com'))).user
await pressed(ben, await mailed(mails, 'ben@example.com', changes))
seen.second = (await user(ben)).email
""",
    )
    half = "Confirmation link accepted. Please proceed to confirm link sent to the other email"
    assert seen == {
        "asked": ["ann@example.com", "new@example.com"],
        "half": ["ann@example.com", half],
        "changed": ["new@example.com", None],
        "taken": "email_exists",
        "first": None,
        "second": "other@example.com",
    }
