"""docs/howto/second-factor and passkeys: the pages as they stand there, in headless Chromium, with a virtual
authenticator (WebAuthn)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live.browsing import PUPPETEER, serving_pages, visit
from tests.live.cli.command_line import cli
from tests.live.npm import install
from tests.live.service.documented import blocks, service, write_files
from tests.live.service.documented_clients import browser

SECOND_FACTOR, PASSKEYS = "howto/second-factor.rst", "howto/passkeys.rst"
# Codes by time (RFC 6238), as an application makes them.
APPLICATION = """
const { createHmac } = await import('node:crypto')
const codeOf = (secret, later = 0) => {
  const bit = letter => 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'.indexOf(letter).toString(2).padStart(5, '0')
  const bits = [...secret].map(bit).join('')
  const key = Buffer.from(bits.match(/.{8}/g).map(byte => parseInt(byte, 2)))
  const step = Buffer.alloc(8)
  step.writeBigUInt64BE(BigInt(Math.floor(Date.now() / 30000) + later))
  const digest = createHmac('sha1', key).update(step).digest()
  return String((digest.readUInt32BE(digest[19] & 15) & 0x7fffffff) % 1e6).padStart(6, '0')
}
const text = (page, selector) => page.$eval(selector, each => each.textContent)
const shown = (page, index) => until(page, index => !document.forms[index].hidden, index)
const notes = page => until(page, () => document.querySelector('li')?.textContent === 'The key is under the mat.')
const ann = { email: 'ann@example.com', password: 'correct horse battery' }
"""
WITH_CODES = (
    APPLICATION
    + """
const page = await opened(`${args[0]}/second.html`)
await shown(page, 0)
await fill(page, ann)
await button(page, 'Sign up')
await shown(page, 2)
await notes(page)
await button(page, 'New recovery codes')
await says(page, 'second factor first')
await button(page, 'Use a second factor')
await shown(page, 1)
await until(page, () => document.querySelector('img').naturalWidth > 100)
const secret = await text(page, 'code')
await fill(page, { code: '000000' === codeOf(secret) ? '000001' : '000000' })
await button(page, 'Go on')
await says(page, 'Invalid TOTP code entered')
await fill(page, { code: codeOf(secret) })
await button(page, 'Go on')
await shown(page, 2)
await notes(page)
await button(page, 'New recovery codes')
await says(page, 'Print these')
const codes = (await text(page, '[role=status]')).split(' ').slice(-10)
seen.codes = codes.length
await button(page, 'Sign out')
await shown(page, 0)
await fill(page, ann)
await button(page, 'Sign in')
await shown(page, 1)
// The password alone shows no notes.
seen.without = await page.$$eval('li', items => items.length)
await fill(page, { code: codes[0] })
await button(page, 'Go on')
await shown(page, 2)
await notes(page)
await button(page, 'Sign out')
await shown(page, 0)
await fill(page, ann)
await button(page, 'Sign in')
await shown(page, 1)
await fill(page, { code: codes[0] })
await button(page, 'Go on')
await says(page, 'Invalid TOTP code entered')
// The next step's, since clocks differ.
await fill(page, { code: codeOf(secret, 1) })
await button(page, 'Go on')
await shown(page, 2)
await notes(page)
"""
)
DEVICE = (
    APPLICATION
    + """
// One that belongs to the page: a device with a fingerprint reader.
const withDevice = async (page, transport = 'internal') => {
  const device = await page.createCDPSession()
  await device.send('WebAuthn.enable')
  const options = {
    protocol: 'ctap2', transport, hasResidentKey: true, hasUserVerification: true, isUserVerified: true,
    automaticPresenceSimulation: true,
  }
  const { authenticatorId } = await device.send('WebAuthn.addVirtualAuthenticator', { options })
  return {
    keys: async () => (await device.send('WebAuthn.getCredentials', { authenticatorId })).credentials,
    verifies: isUserVerified => device.send('WebAuthn.setUserVerified', { authenticatorId, isUserVerified }),
    add: credential => device.send('WebAuthn.addCredential', { authenticatorId, credential }),
    clear: () => device.send('WebAuthn.clearCredentials', { authenticatorId }),
  }
}
"""
)
WITH_PASSKEYS = (
    DEVICE
    + """
const page = await opened(`${args[0]}/passkey.html`)
const device = await withDevice(page)
await shown(page, 0)
await fill(page, ann)
await button(page, 'Sign up')
await shown(page, 1)
await button(page, 'Add a passkey')
await says(page, 'Remove')
const [made] = await device.keys()
seen.made = [made.isResidentCredential, made.rpId]
await button(page, 'Sign out')
await shown(page, 0)
await page.reload()
await shown(page, 0)
await button(page, 'Sign in with a passkey')
await says(page, 'Signed in as ann@example.com')
await says(page, 'Remove')
const [used] = await device.keys()
seen.counted = used.signCount > made.signCount
await button(page, 'Sign out')
await shown(page, 0)
// Somebody has copied the key, as it was before it was used.
await device.clear()
await device.add({ ...used, signCount: 0 })
await button(page, 'Sign in with a passkey')
await says(page, 'The passkey could not be verified.')
await device.clear()
await device.add({ ...used, signCount: used.signCount + 10 })
await button(page, 'Sign in with a passkey')
await says(page, 'Signed in as ann@example.com')
await button(page, 'Remove')
await says(page, 'Removed')
await button(page, 'Sign out')
await shown(page, 0)
await button(page, 'Sign in with a passkey')
await says(page, 'The passkey could not be verified.')
// On another origin the same server has nothing to sign in with.
const other = await opened(`${args[1]}/passkey.html`)
await withDevice(other)
await shown(other, 0)
await fill(other, ann)
await button(other, 'Sign in')
await shown(other, 1)
await button(other, 'Add a passkey')
await until(other, () => /could not be verified|invalid for this domain/i.test(document.body.innerText))
seen.elsewhere = await other.$$eval('li', items => items.length)
"""
)
AS_FACTORS = (
    DEVICE
    + """
const page = await opened(`${args[0]}/passkey.html`)
// What is enrolled by this method is a key that can be carried along.
const device = await withDevice(page, 'usb')
await shown(page, 0)
const done = async program => page.evaluate(program, args[2], args[3])
seen.raised = await done(async (url, key) => {
  const { auth } = window.supabase.createClient(url, key)
  await auth.signUp({ email: 'bob@example.com', password: 'correct horse battery' })
  const { error } = await auth.mfa.webauthn.register({ friendlyName: 'laptop' })
  const level = (await auth.mfa.getAuthenticatorAssuranceLevel()).data
  return [error && error.message, level.currentLevel, level.currentAuthenticationMethods.map(each => each.method)]
})
seen.again = await done(async (url, key) => {
  const { auth } = window.supabase.createClient(url, key)
  await auth.signInWithPassword({ email: 'bob@example.com', password: 'correct horse battery' })
  const before = (await auth.mfa.getAuthenticatorAssuranceLevel()).data
  const [factor] = (await auth.mfa.listFactors()).data.webauthn
  const { error } = await auth.mfa.webauthn.authenticate({ factorId: factor.id })
  const after = (await auth.mfa.getAuthenticatorAssuranceLevel()).data
  return [before.currentLevel, before.nextLevel, error && error.message, after.currentLevel]
})
seen.keys = (await device.keys()).length
"""
)


@contextmanager
def site(folder: Path, page: str) -> Iterator[tuple[str, str, str, str]]:
    """The addresses of the site and of another one, and the service's with its key."""
    browser()
    install(folder, "@supabase/supabase-js@2", PUPPETEER)
    with (
        serving_pages(folder) as here,
        serving_pages(folder) as other,
        service(folder, page, {"http://localhost:3000": here}) as daemon,
    ):
        daemon.wait_until_ready()
        credentials = json.loads((folder / "var" / "credentials.json").read_text())
        url, key = credentials["base_url"], credentials["anon_key"]
        write_files(folder, blocks(page, **{"http://127.0.0.1:8080": url, "psk_anon_…": key}))
        yield here, other, url, key


def seen(folder: Path, program: str, *args: str) -> Any:
    told = visit(folder, program, *args)
    assert told.pop("errors") == []
    return told


def test_a_second_factor_is_enrolled_asked_for_and_recovered(tmp_path: Path) -> None:
    with site(tmp_path, SECOND_FACTOR) as addresses:
        assert cli("sql", tmp_path / "notes.sql", "--data-dir", tmp_path / "var").code == 0
        assert seen(tmp_path, WITH_CODES, *addresses) == {"codes": 10, "without": 0}


def test_a_passkey_is_added_signs_in_and_is_bound_to_its_origin_and_counter(tmp_path: Path) -> None:
    with site(tmp_path, PASSKEYS) as addresses:
        assert seen(tmp_path, WITH_PASSKEYS, *addresses) == {
            "made": [True, "localhost"],
            "counted": True,
            "elsewhere": 0,
        }
        assert seen(tmp_path, AS_FACTORS, *addresses) == {
            "raised": [None, "aal2", ["webauthn", "password"]],
            "again": ["aal1", "aal2", None, "aal2"],
            "keys": 1,
        }
