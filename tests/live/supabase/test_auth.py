"""``createClient(url, key).auth`` of supabase-js, unconfigured: sessions, users, operators, and tables with row-level
security read as the user who signed in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest_twisted
from attrs import evolve
from twisted.internet.threads import deferToThread

from project_service.settings.model import Stage, StageDatabase, Store
from tests.live.application import NOTES, serving, settings_for
from tests.live.npm import install, run_node
from tests.live.sql import run_sql

AUTH = {
    "redirect_urls": ["http://localhost:3000/welcome/"],
    "email_seconds": 0,
    "anonymous_users": True,
}
# As Supabase's guides write it: a profile for each user, made by a trigger.
PROFILES = """
create table profiles (id uuid primary key references auth.users on delete cascade, name text, email text);
alter table profiles enable row level security;
create policy own on profiles for select to authenticated using ((select auth.uid()) = id);
grant select on profiles to authenticated;
create function handle_new_user() returns trigger language plpgsql security definer set search_path = '' as $$
begin
  insert into public.profiles (id, name, email) values (new.id, new.raw_user_meta_data ->> 'name', new.email);
  return new;
end $$;
create trigger on_auth_user_created after insert on auth.users for each row execute function handle_new_user();
create table staff (id int primary key);
insert into staff values (1);
alter table staff enable row level security;
create policy staff on staff for select to authenticated
  using ((auth.jwt() -> 'app_metadata' ->> 'role') = 'admin');
grant select on staff to authenticated;
"""
START = """
import { createClient } from '@supabase/supabase-js'
import ws from 'ws'

globalThis.WebSocket ??= ws  // Node has one since version 22
const [url, key, service] = process.argv.slice(2)
const out = {}
const client = (of = key) => createClient(url, of, { auth: { persistSession: false, autoRefreshToken: false } })
const told = ({ error }) => error && [error.status, error.code, error.name]
const ada = { email: 'ada@example.test', password: 'correct horse battery' }
const finish = () => process.stdout.write(JSON.stringify(out))
"""
USERS = (
    START
    + """
const one = client()
const events = []
one.auth.onAuthStateChange(event => { events.push(event) })
const made = await one.auth.signUp({ ...ada, options: { data: { name: 'Ada', n: 1 } } })
out.made = [made.error, made.data.session.token_type, made.data.user.identities.length]
out.taken = told(await client().auth.signUp(ada))
out.weak = (await client().auth.signUp({ email: 'b@example.test', password: 'short' })).error.reasons
out.wrong = told(await client().auth.signInWithPassword({ ...ada, password: 'x' }))
out.me = (await one.auth.getUser()).data.user.user_metadata
out.same = (await one.auth.getSession()).data.session.user.id === made.data.user.id
const claims = (await one.auth.getClaims()).data.claims
out.claims = [claims.role, claims.aal, claims.amr[0].method, claims.session_id === claims.sid]
out.profile = (await one.from('profiles').select('name, email')).data
const note = await one.from('notes').insert({ words: 'mine' }).select('owner').single()
out.note = note.data.owner === made.data.user.id
const two = client()
await two.auth.signInWithPassword(ada)
out.read = (await two.from('notes').select('words')).data
out.nobody = (await client().from('notes').select('words')).data
const before = (await two.auth.getSession()).data.session
const refreshed = (await two.auth.refreshSession()).data.session
out.refreshed = [before.refresh_token !== refreshed.refresh_token, refreshed.user.id === before.user.id]
const three = client()
out.set = (await three.auth.setSession(refreshed)).data.user.email
out.merged = (await one.auth.updateUser({ data: { n: null, colour: 'blue' } })).data.user.user_metadata
out.password = told(await one.auth.updateUser({ password: 'another battery horse' }))
out.again = told(await one.auth.updateUser({ password: 'another battery horse' }))
out.ended = told(await two.auth.getUser())
ada.password = 'another battery horse'
out.identities = (await one.auth.getUserIdentities()).data.identities.map(each => each.provider)
out.level = (await one.auth.mfa.getAuthenticatorAssuranceLevel()).data.currentLevel
out.factors = (await one.auth.mfa.listFactors()).data.all
out.enroll = told(await one.auth.mfa.enroll({ factorType: 'totp' }))
out.address = (await one.auth.updateUser({ email: 'new@example.test' })).data.user.new_email
out.recover = []
for (const email of [ada.email, 'no@example.test']) out.recover.push(await one.auth.resetPasswordForEmail(email))
out.resend = (await one.auth.resend({ type: 'signup', email: ada.email })).error
out.otp = told(await client().auth.signInWithOtp({ phone: '123' }))
out.verify = told(await client().auth.verifyOtp({ email: ada.email, token: '123456', type: 'email' }))
out.sso = told(await client().auth.signInWithSSO({ domain: 'example.test' }))
out.code = told(await client().auth.signInWithIdToken({ provider: 'google', token: 'x' }))
for (const scope of ['others', 'local', 'global', undefined]) {
  const here = client(), there = client()
  for (const each of [here, there]) await each.auth.signInWithPassword(ada)
  const token = (await here.auth.getSession()).data.session.access_token
  const left = await here.auth.signOut(scope && { scope })
  out[`out ${scope}`] = [told(left), told(await client().auth.getUser(token)), told(await there.auth.getUser())]
}
out.events = events
finish()
"""
)
# What the client makes of 403 session_not_found.
MISSING = [400, None, "AuthSessionMissingError"]
SEEN: dict[str, Any] = {
    "made": [None, "bearer", 1],
    "taken": [422, "user_already_exists", "AuthApiError"],
    "weak": ["length"],
    "wrong": [400, "invalid_credentials", "AuthApiError"],
    "me": {"name": "Ada", "n": 1},
    "same": True,
    "claims": ["authenticated", "aal1", "password", True],
    "profile": [{"name": "Ada", "email": "ada@example.test"}],
    "note": True,
    "read": [{"words": "mine"}],
    "nobody": [],
    "refreshed": [True, True],
    "set": "ada@example.test",
    "merged": {"name": "Ada", "colour": "blue"},
    "password": None,
    "again": [422, "same_password", "AuthApiError"],
    "identities": ["email"],
    "level": "aal1",
    "factors": [],
    "enroll": None,
    "address": "new@example.test",
    "recover": [{"data": {}, "error": None}] * 2,
    "resend": None,
    "otp": [400, "phone_provider_disabled", "AuthApiError"],
    "verify": [403, "otp_expired", "AuthApiError"],
    "sso": [404, "saml_provider_disabled", "AuthApiError"],
    "code": [400, "provider_disabled", "AuthApiError"],
}
OPERATORS = (
    START
    + """
const admin = client(service).auth.admin
const metadata = { user_metadata: { a: 1 }, app_metadata: { role: 'admin' } }
const made = await admin.createUser({ ...ada, email_confirm: true, ...metadata })
const { id } = made.data.user
out.made = [made.error, made.data.user.app_metadata.role, Boolean(made.data.user.email_confirmed_at)]
out.taken = told(await admin.createUser(ada))
for (const n of [1, 2, 3]) await admin.createUser({ email: `user${n}@example.test` })
const page = (await admin.listUsers({ page: 1, perPage: 2 })).data
out.page = [page.users.map(each => each.email), page.total, page.nextPage, page.lastPage]
out.all = (await admin.listUsers()).data.users.length
out.read = (await admin.getUserById(id)).data.user.email
out.unknown = told(await admin.getUserById('00000000-0000-4000-8000-00000000ffff'))
const user = client()
const session = (await user.auth.signInWithPassword(ada)).data.session
out.staff = (await user.from('staff').select()).data
const changed = (await admin.updateUserById(id, { app_metadata: { role: null }, user_metadata: { b: 2 } })).data.user
out.changed = [changed.app_metadata, changed.user_metadata]
await user.auth.refreshSession()
out.former = (await user.from('staff').select()).data
out.password = told(await admin.updateUserById(id, { password: 'another battery horse' }))
out.ended = told(await user.auth.getUser())
out.banned = told(await admin.updateUserById(id, { ban_duration: '876000h' }))
out.kept = told(await client().auth.signInWithPassword({ ...ada, password: 'another battery horse' }))
out.unbanned = told(await admin.updateUserById(id, { ban_duration: 'none' }))
const back = (await client().auth.signInWithPassword({ ...ada, password: 'another battery horse' })).data.session
out.signOut = [(await admin.signOut(back.access_token)).error, told(await client().auth.getUser(back.access_token))]
out.factors = (await admin.mfa.listFactors({ userId: id })).data.factors
const link = (await admin.generateLink({ type: 'magiclink', email: ada.email })).data
out.link = [link.user.id === id, link.properties.verification_type, link.properties.action_link.startsWith(url)]
const { hashed_token: token_hash, email_otp: token } = link.properties
out.linked = (await client().auth.verifyOtp({ type: 'magiclink', token_hash })).data.user.id === id
out.used = told(await client().auth.verifyOtp({ type: 'magiclink', email: ada.email, token }))
out.invite = Boolean((await admin.inviteUserByEmail('new@example.test')).data.user.invited_at)
out.moved = (await admin.updateUserById(id, { email: 'ada@new.example.test' })).data.user.email
out.soft = told(await admin.deleteUser(id, true))
out.deleted = (await admin.deleteUser(id)).error
out.gone = told(await admin.getUserById(id))
out.profiles = (await client(service).from('profiles').select('email')).data.length
out.anybody = told(await client().auth.admin.listUsers())
finish()
"""
)
OPERATED = {
    "made": [None, "admin", True],
    "taken": [422, "email_exists", "AuthApiError"],
    "page": [["user3@example.test", "user2@example.test"], 4, 2, 2],
    "all": 4,
    "read": "ada@example.test",
    "unknown": [404, "user_not_found", "AuthApiError"],
    "staff": [{"id": 1}],
    "changed": [{"provider": "email", "providers": ["email"]}, {"a": 1, "b": 2}],
    "former": [],
    "password": None,
    "ended": MISSING,
    "banned": None,
    "kept": [400, "user_banned", "AuthApiError"],
    "unbanned": None,
    "signOut": [None, MISSING],
    "factors": [],
    "link": [True, "magiclink", True],
    "linked": True,
    "used": [403, "otp_expired", "AuthApiError"],
    "invite": True,
    "moved": "ada@new.example.test",
    "soft": [422, "feature_disabled", "AuthApiError"],
    "deleted": None,
    "gone": [404, "user_not_found", "AuthApiError"],
    "profiles": 4,
    "anybody": [403, "not_admin", "AuthApiError"],
}

CODES = (
    START
    + """
import { readdirSync, readFileSync } from 'node:fs'

const folder = process.argv[5]
const sleep = () => new Promise(done => setTimeout(done, 50))
const seen = new Set()
const mail = async () => {  // one that has not been read; a later one may be there earlier
  for (;;) {
    let names = []
    try { names = readdirSync(folder).filter(name => name.endsWith('.eml')).sort() } catch { /* not there yet */ }
    const next = names.find(name => !seen.has(name))
    if (next) {
      seen.add(next)
      const text = readFileSync(`${folder}/${next}`, 'utf8')
      return { to: /^To: (.*)$/m.exec(text)[1].trim(), code: /^[0-9]{6}$/m.exec(text)?.[0],
               link: /^http:.*$/m.exec(text)?.[0].trim() }
    }
    await sleep()
  }
}
// As a browser that opens the link and presses the button.
const follow = async link => {
  const page = await (await fetch(link)).text()
  const body = new URLSearchParams([...page.matchAll(/name="([^"]*)" value="([^"]*)"/g)].map(([, ...pair]) => pair))
  return (await fetch(link, { method: 'POST', body, redirect: 'manual' })).headers.get('location')
}
const one = client()
out.asked = await one.auth.signInWithOtp({ email: ada.email, options: { data: { name: 'Ada' } } })
const verified = await one.auth.verifyOtp({ email: ada.email, token: (await mail()).code, type: 'email' })
out.session = verified.data.user.user_metadata
out.profile = (await one.from('profiles').select('name')).data
out.password = told(await one.auth.updateUser({ password: ada.password }))
const redirectTo = 'http://localhost:3000/welcome/'
await client().auth.resetPasswordForEmail(ada.email, { redirectTo })
const landed = new URL(await follow((await mail()).link))
const fragment = new URLSearchParams(landed.hash.slice(1))
out.landed = [landed.origin + landed.pathname, fragment.get('type')]
const [access_token, refresh_token] = ['access_token', 'refresh_token'].map(name => fragment.get(name))
out.recovered = (await client().auth.setSession({ access_token, refresh_token })).data.user.email
const store = new Map()
const storage = { getItem: name => store.get(name) ?? null, setItem: (name, value) => store.set(name, value),
                  removeItem: name => store.delete(name) }
const pkce = createClient(url, key, { auth: { flowType: 'pkce', storage, autoRefreshToken: false } })
await pkce.auth.signInWithOtp({ email: ada.email, options: { emailRedirectTo: redirectTo } })
const code = new URL(await follow((await mail()).link)).searchParams.get('code')
out.stolen = told(await client().auth.exchangeCodeForSession(code))
out.exchanged = (await pkce.auth.exchangeCodeForSession(code)).data.user.email
out.reauthenticated = (await one.auth.reauthenticate()).error
const nonce = (await mail()).code
out.nonce = told(await one.auth.updateUser({ password: 'another battery horse', nonce }))
out.change = (await one.auth.updateUser({ email: 'ada@new.example.test' })).data.user.new_email
const both = [await mail(), await mail()]
both.sort((a, b) => a.to.localeCompare(b.to))  // they may come in either order
for (const { to, code: token } of both) {
  const changed = await client().auth.verifyOtp({ email: to, token, type: 'email_change' })
  out[to] = changed.data.user?.email ?? null
}
const guest = client()
out.guest = (await guest.auth.signInAnonymously()).data.user.is_anonymous
const user = (await guest.auth.updateUser({ email: 'guest@example.test', password: ada.password })).data.user
out.kept = [user.is_anonymous, user.email]
finish()
"""
)
ANSWERED: dict[str, Any] = {
    "asked": {"data": {"user": None, "session": None}, "error": None},
    "session": {"name": "Ada"},
    "profile": [{"name": "Ada"}],
    "password": None,
    "landed": ["http://localhost:3000/welcome/", "recovery"],
    "recovered": "ada@example.test",
    "exchanged": "ada@example.test",
    "reauthenticated": None,
    "nonce": None,
    "change": "ada@new.example.test",
    "ada@example.test": None,
    "ada@new.example.test": "ada@new.example.test",
    "guest": True,
    "kept": [False, "guest@example.test"],
}


async def ran(database: str, store: Store, folder: Path, program: str) -> Any:
    """What the program says that it saw, at the root of a service with one database."""
    for text in (NOTES, PROFILES):
        run_sql(database, text)
    mails = folder / "mails"
    settings = settings_for(database, store, folder, smtp={"mail_dir": str(mails)}, auth=AUTH)
    settings = evolve(settings, stages={"dev": Stage(databases={"main": StageDatabase()})})
    async with serving(settings) as api:

        def run() -> Any:
            install(folder, "@supabase/supabase-js@2", "ws@8")
            return run_node(folder, program, api.base_url, api.anon_key, api.service_key, str(mails))

        return await deferToThread(run)


@pytest_twisted.ensureDeferred
async def test_supabase_js_signs_users_up_in_and_out(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    seen = await ran(database, store_settings, tmp_path, USERS)
    assert seen.pop("events")[:2] == ["INITIAL_SESSION", "SIGNED_IN"]
    assert seen.pop("ended") == MISSING
    for scope, own, other in (
        ("others", None, MISSING),
        ("local", MISSING, None),
        ("global", MISSING, MISSING),
        ("undefined", MISSING, MISSING),
    ):
        assert seen.pop(f"out {scope}") == [None, own, other]
    assert seen == SEEN


@pytest_twisted.ensureDeferred
async def test_supabase_js_operates(database: str, store_settings: Store, tmp_path: Path) -> None:
    assert await ran(database, store_settings, tmp_path, OPERATORS) == OPERATED


@pytest_twisted.ensureDeferred
async def test_supabase_js_answers_what_is_mailed(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    seen = await ran(database, store_settings, tmp_path, CODES)
    assert seen.pop("stolen") == [400, "bad_code_verifier", "AuthApiError"]
    assert seen == ANSWERED
