"""The page of keys and settings, as a person uses it: keys made, used and revoked; signing keys; settings."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import requests
from playwright.sync_api import Browser, Locator, expect

from tests.live.console.browsing import NARROW, Axe, Running, Tab, opened
from tests.live.daemon import eventually


def status(running: Running, key: str) -> int:
    headers = {"apikey": key}
    return requests.get(
        f"{running.url}/admin/users", params={"limit": 1}, headers=headers, timeout=60
    ).status_code


def make_key(running: Running, **more: Any) -> dict[str, Any]:
    body = {"kind": "service", "label": f"key {uuid4().hex[:8]}", **more}
    made: dict[str, Any] = running.call("POST", "/admin/keys", json=body).json()
    eventually(lambda: status(running, made["key"]) == 200, "the new key")
    return made


def row(tab: Tab, label: str) -> Locator:
    return tab.page.get_by_role("row").filter(has_text=label)


def test_a_key_is_shown_once_used_and_revoked(tab: Tab) -> None:
    label = f"the shop {uuid4().hex[:8]}"
    tab.go("keys")
    tab.page.get_by_role("button", name="New key").click()
    tab.page.get_by_label("Service").check()
    tab.page.get_by_label("Label").fill(label)
    tab.page.get_by_role("button", name="Make key").click()
    shown = tab.page.locator(".new-key code")
    expect(shown).to_have_text(tab_key := shown.inner_text())
    assert tab_key.startswith("psk_service_")
    # It cannot be shown again, so it does not go by accident.
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for _ in range(2):
        tab.page.keyboard.press("Escape")
        tab.page.mouse.click(5, 5)
    expect(shown).to_be_visible()
    tab.page.get_by_role("button", name="Copy the key").click()
    expect(tab.page.get_by_text("Copied the key.")).to_be_visible()
    assert tab.page.evaluate("navigator.clipboard.readText()") == tab_key
    tab.page.keyboard.press("Escape")
    expect(shown).to_have_count(0)
    expect(row(tab, label)).to_contain_text("not yet known")
    expect(row(tab, label)).to_contain_text("Active")
    assert tab_key not in tab.page.content()
    eventually(lambda: status(tab.running, tab_key) == 200, "the new key")

    row(tab, label).get_by_role("button", name="Revoke").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Revoke key").click()
    expect(row(tab, label)).to_contain_text("Revoked")
    eventually(lambda: status(tab.running, tab_key) == 401, "the refusal of the key")
    tab.go("keys/audit")
    entries = tab.page.get_by_role("list", name="Audit").get_by_role("listitem")
    expect(entries.first).to_contain_text(f"Revoke key {label} (")
    expect(entries.first).to_contain_text("with Chrome on Linux")
    expect(entries.nth(1)).to_contain_text(f"Create key {label} (")


def test_a_new_key_can_be_left_without_copying_it(tab: Tab) -> None:
    tab.go("keys")
    tab.page.get_by_role("button", name="New key").click()
    tab.page.get_by_role("button", name="Make key").click()
    expect(tab.page.get_by_role("button", name="Copy the key")).to_be_focused()
    tab.page.get_by_role("button", name="Close without copying").click()
    expect(tab.page.get_by_role("dialog")).to_have_count(0)


def test_the_key_of_the_tab_is_revoked_after_a_word_and_the_tab_is_signed_out(
    chrome: Browser, running: Running
) -> None:
    made = make_key(running)
    with opened(chrome, running, signed_in=False) as tab:
        tab.page.get_by_label("Service key").fill(made["key"])
        tab.page.get_by_role("button", name="Sign in").click()
        expect(tab.page.locator("#navigation")).to_be_attached()
        tab.go("keys")
        own = row(tab, made["label"])
        expect(own).to_contain_text("This tab")
        own.get_by_role("button", name="Revoke").click()
        dialog = tab.page.get_by_role("dialog")
        dialog.get_by_role("textbox").fill("revoke")
        dialog.get_by_role("button", name="Revoke key").click()
        expect(tab.page.get_by_label("Service key")).to_be_visible()
        expect(tab.page.get_by_text("This tab's key was revoked.")).to_be_visible()
    eventually(lambda: status(running, made["key"]) == 401, "the refusal of the key")


def test_another_key_signs(tab: Tab) -> None:
    tab.go("keys/signing")
    rows = tab.page.locator("tbody tr")
    expect(rows.first).to_contain_text("Signs")
    before = rows.first.locator("td").first.inner_text()
    count = rows.count()
    tab.page.get_by_role("button", name="New signing key").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Sign with a new key").click()
    expect(rows).to_have_count(count + 1)
    expect(rows.first.locator("td").first).not_to_have_text(before)
    expect(rows.filter(has_text=before)).to_contain_text("Verifies")

    def published() -> bool:
        keys = requests.get(f"{tab.running.url}/.well-known/jwks.json", timeout=60).json()["keys"]
        return bool(keys[0]["kid"] != before)

    eventually(published, "the new key in the published set")
    rows.filter(has_text=before).get_by_role("button", name="Let it sign").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Let it sign").click()
    expect(rows.first.locator("td").first).to_have_text(before)


def test_settings_are_found_with_their_source_and_without_secrets(tab: Tab) -> None:
    tab.go("keys/settings")
    rows = tab.page.locator("tbody tr")
    find = tab.page.get_by_label("Find a setting")
    find.fill("database.dsn embedded")
    expect(rows).to_have_count(1)
    expect(rows.get_by_label("A secret")).to_be_visible()
    find.fill("server.listen")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("command line")
    find.fill("")
    tab.page.get_by_label("Only what is not a default").check()
    expect(rows.filter(has_text="auth.audit_days")).to_have_count(0)
    expect(rows.filter(has_text="auth.jwt_keys_file")).to_be_visible()
    find.fill("nothing like this")
    expect(tab.page.get_by_text("No setting has that.")).to_be_visible()
    content = tab.page.content()
    assert tab.running.service_key not in content
    assert "password=" not in content


PARTS = ["project", "signing", "settings", "audit"]


@pytest.mark.parametrize("part", PARTS)
def test_each_part_keeps_nobody_out_and_fits_into_a_telephone(
    chrome: Browser, running: Running, axe: Axe, part: str
) -> None:
    with opened(chrome, running, viewport=NARROW, color_scheme="dark") as tab:
        for direction in ("ltr", "rtl"):
            tab.page.evaluate("to => { document.documentElement.dir = to }", direction)
            tab.go(f"keys/{part}")
            expect(tab.page.locator(".page-part")).to_be_visible()
            expect(tab.page.locator(".busy")).to_have_count(0)
            tab.has_no_sideways_scrolling()
            axe.check(tab)
