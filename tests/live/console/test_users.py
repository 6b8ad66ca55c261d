"""The page of users, as a person uses it: finding somebody, what they may still do, and what they did."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import uuid4

import pytest
import requests
from playwright.sync_api import Browser, Locator, Page, expect

from tests.live.console.browsing import FIREFOX, IPHONE, NARROW, Axe, Running, Tab, opened
from tests.live.daemon import eventually

PASSWORD = "a long enough password"


def make(running: Running, name: str = "", **more: Any) -> dict[str, Any]:
    """A user with an address of the test's own."""
    email = f"{name or 'somebody'}.{uuid4().hex[:8]}@example.test"
    answer = running.call("POST", "/admin/users", json={"email": email, "password": PASSWORD, **more})
    assert answer.status_code == 201, answer.text
    user: dict[str, Any] = answer.json()["data"]["user"]
    return user


def log_in(running: Running, user: dict[str, Any], agent: str, password: str = PASSWORD) -> requests.Response:
    body = {"email": user["email"], "password": password}
    return requests.post(f"{running.url}/auth/login", json=body, headers={"User-Agent": agent}, timeout=60)


def search(tab: Tab, text: str) -> None:
    tab.page.get_by_label("Part of the address, or an id").fill(text)


def found(tab: Tab) -> Locator:
    return tab.page.get_by_role("list", name="Found users").get_by_role("link")


def panel(page: Page) -> Locator:
    return page.locator("ps-user")


def show(tab: Tab, user: dict[str, Any]) -> Locator:
    """The panel of a user."""
    tab.go(f"users/{user['id']}")
    expect(panel(tab.page).get_by_role("heading", name=user["email"])).to_be_visible()
    return panel(tab.page)


def sure(tab: Tab, action: str, word: str | None = None) -> None:
    dialog = tab.page.get_by_role("dialog")
    if word is not None:
        dialog.get_by_role("textbox").fill(word)
    dialog.get_by_role("button", name=action).click()
    expect(dialog).to_have_count(0)


def test_somebody_is_found_by_a_part_of_the_address(tab: Tab) -> None:
    ann, bob = make(tab.running, "Ann"), make(tab.running, "Bob")
    tab.go("users")
    search(tab, ann["email"][2:-5].upper())
    expect(found(tab)).to_have_count(1)
    found(tab).click()
    expect(panel(tab.page).get_by_role("heading", name=ann["email"])).to_be_visible()
    expect(found(tab)).to_have_attribute("aria-current", "true")
    search(tab, bob["id"])
    expect(found(tab)).to_have_text(re.compile(re.escape(bob["email"])))
    search(tab, "nobody has this")
    expect(tab.page.get_by_text("Nobody is found.")).to_be_visible()


def test_those_who_are_few_are_found(tab: Tab) -> None:
    name = f"n{uuid4().hex[:8]}"
    disabled, waits, plain = (make(tab.running, name, email_confirmed=n != 1) for n in range(3))
    tab.running.call("PATCH", f"/admin/users/{disabled['id']}", json={"disabled": True})
    tab.go("users")
    search(tab, name)
    # Before, there may be as many.
    expect(tab.page).to_have_url(re.compile(f"email={name}"))
    expect(found(tab)).to_have_count(3)
    which = tab.page.get_by_label("Which users")
    which.select_option("Disabled")
    expect(found(tab)).to_have_count(1)
    expect(found(tab)).to_have_text(re.compile(re.escape(disabled["email"])))
    which.select_option("Address not confirmed")
    expect(found(tab).filter(has_text=disabled["email"])).to_have_count(0)
    expect(found(tab)).to_have_count(1)
    expect(found(tab)).to_have_text(re.compile(re.escape(waits["email"])))
    which.select_option("Everybody")
    expect(found(tab).filter(has_text=plain["email"])).to_be_visible()


def test_what_is_chosen_and_typed_at_once_holds_together(tab: Tab) -> None:
    tab.go("users")
    tab.page.evaluate("""() => {
      const page = document.querySelector('ps-users')
      page.look({ show: 'disabled' })
      page.look({ email: 'nobody' })
    }""")
    expect(tab.page).to_have_url(re.compile("email=nobody&show=disabled$"))


def test_a_long_list_is_shown_in_parts(tab: Tab) -> None:
    name = f"n{uuid4().hex[:8]}"
    for _ in range(51):
        body = {"email": f"{name}.{uuid4().hex}@example.test"}
        assert tab.running.call("POST", "/admin/users", json=body).status_code == 201
    tab.go("users")
    # Without it there are as many.
    with tab.page.expect_response(re.compile(f"/admin/users.*email={name}")):
        search(tab, name)
    expect(found(tab)).to_have_count(50)
    tab.page.get_by_role("button", name="Show more").click()
    expect(found(tab)).to_have_count(51)
    expect(tab.page.get_by_role("button", name="Show more")).to_have_count(0)


def test_sessions_show_their_device_and_end(tab: Tab) -> None:
    user = make(tab.running)
    kept, ended = (log_in(tab.running, user, agent).json()["data"] for agent in (FIREFOX, IPHONE))
    sessions = show(tab, user).get_by_role("list", name="Sessions").get_by_role("listitem")
    expect(sessions).to_have_count(2)
    expect(sessions.filter(has_text="Firefox on Linux")).to_contain_text("127.0.0.1")
    sessions.filter(has_text="Safari on iPhone").get_by_role("button", name="End").click()
    expect(sessions).to_have_count(1)

    def status(session: dict[str, Any]) -> int:
        headers = {"Authorization": f"Bearer {session['access_token']}"}
        return requests.get(f"{tab.running.url}/auth/user", headers=headers, timeout=60).status_code

    assert (status(kept), status(ended)) == (200, 401)
    entry = panel(tab.page).get_by_role("list", name="Audit").get_by_role("listitem").first
    expect(entry).to_contain_text("End session")
    expect(entry).to_contain_text("by the key credentials.json (")


def test_a_disabled_user_is_kept_out_until_enabled(tab: Tab) -> None:
    user = make(tab.running)
    shown = show(tab, user)
    shown.get_by_role("button", name="Disable").click()
    sure(tab, "Disable")
    expect(shown.get_by_text("Disabled", exact=True)).to_be_visible()
    assert log_in(tab.running, user, FIREFOX).json()["error"]["code"] == "user_disabled"
    shown.get_by_role("button", name="Enable").click()
    expect(shown.get_by_role("button", name="Disable")).to_be_visible()
    assert log_in(tab.running, user, FIREFOX).status_code == 200


def test_a_user_gets_another_password(tab: Tab) -> None:
    user = make(tab.running)
    show(tab, user).get_by_role("button", name="New password").click()
    field = tab.page.get_by_role("textbox", name="New password")
    expect(tab.page.get_by_role("dialog")).to_contain_text("At least 8 characters.")
    field.fill("short")
    expect(field).to_have_attribute("type", "password")
    tab.page.get_by_label("Show the password").check()
    expect(field).to_have_attribute("type", "text")
    tab.page.get_by_role("button", name="Set password").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("Must have at least 8")
    field.fill("another good one")
    tab.page.get_by_role("button", name="Set password").click()
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    assert log_in(tab.running, user, FIREFOX).status_code == 401
    assert log_in(tab.running, user, FIREFOX, "another good one").status_code == 200


def test_metadata_are_edited_as_json(tab: Tab) -> None:
    user = make(tab.running, metadata={"name": "Ann"})
    shown = show(tab, user)
    editor = shown.get_by_label("The user's own")
    expect(editor).to_have_value('{\n  "name": "Ann"\n}')
    editor.fill('{"name": "Anna", "list": [1]')
    shown.get_by_role("button", name="Save metadata").click()
    expect(shown.get_by_role("alert")).to_be_visible()
    editor.fill('{"name": "Anna", "list": [1]}')
    shown.get_by_role("button", name="Save metadata").click()
    expect(shown.get_by_role("button", name="Save metadata")).to_have_count(0)
    path = f"/admin/users/{user['id']}"
    assert tab.running.call("GET", path).json()["data"]["user"]["metadata"] == {"name": "Anna", "list": [1]}


def test_a_user_is_made_and_deleted(tab: Tab) -> None:
    email = f"new.{uuid4().hex[:8]}@example.test"
    tab.go("users")
    tab.page.get_by_role("button", name="New user").click()
    tab.page.get_by_label("E-mail address").fill("no address")
    tab.page.get_by_role("button", name="Make user").click()
    expect(tab.page.get_by_text("is not an e-mail address")).to_be_visible()
    tab.page.get_by_label("E-mail address").fill(email)
    tab.page.locator("input[name=password]").fill(PASSWORD)
    tab.page.get_by_role("button", name="Make user").click()
    expect(panel(tab.page).get_by_role("heading", name=email)).to_be_visible()
    assert log_in(tab.running, {"email": email}, FIREFOX).status_code == 200
    address = tab.page.evaluate("location.hash").removeprefix("#/")
    panel(tab.page).get_by_role("button", name="Delete").click()
    expect(tab.page.get_by_role("dialog")).to_contain_text("as their foreign keys say")
    sure(tab, "Delete user", email)
    expect(panel(tab.page)).to_have_count(0)
    expect(found(tab).filter(has_text=email)).to_have_count(0)
    assert tab.running.call("GET", f"/admin/users/{email}").status_code == 404
    # What happened to the user is still told.
    tab.go(address)
    expect(panel(tab.page)).to_contain_text("This user was deleted.")
    expect(panel(tab.page).get_by_role("list", name="Audit")).to_contain_text("Delete user")
    expect(tab.page.get_by_role("button", name="Try again")).to_have_count(0)


def test_somebody_is_invited_by_mail(tab: Tab) -> None:
    email = f"invited.{uuid4().hex[:8]}@example.test"
    tab.go("users")
    tab.page.get_by_role("button", name="Invite").click()
    tab.page.get_by_label("E-mail address").fill(email)
    tab.page.get_by_role("button", name="Send invitation").click()
    expect(panel(tab.page).get_by_text("Invited", exact=True).first).to_be_visible()

    def mailed() -> bool:
        return email in {one["to"] for one in tab.running.call("GET", "/admin/mail").json()["mails"]}

    eventually(mailed, "the invitation")


def test_who_did_it_is_found(tab: Tab) -> None:
    """From the entry of the audit to the user, and to everything else that happened."""
    thief = make(tab.running, "thief")
    log_in(tab.running, thief, FIREFOX, "a guess")
    log_in(tab.running, thief, FIREFOX)
    tab.go("keys/audit")
    tab.page.get_by_label("Action").fill("login")
    tab.page.get_by_label("User", exact=True).fill(thief["email"])
    tab.page.get_by_role("button", name="Find").click()
    entries = tab.page.get_by_role("list", name="Audit").get_by_role("listitem")
    expect(entries).to_have_count(2)
    expect(entries.nth(1).get_by_title("Invalid credentials")).to_have_text("invalid_credentials")
    entries.first.get_by_role("link", name=thief["email"]).click()
    expect(panel(tab.page).get_by_role("heading", name=thief["email"])).to_be_visible()
    expect(panel(tab.page).get_by_role("list", name="Audit").get_by_text("Create user")).to_be_visible()


def test_tables_are_shown_as_the_user_sees_them(tab: Tab) -> None:
    name = f"seen_{uuid4().hex[:8]}"
    ann, bob = make(tab.running, "ann"), make(tab.running, "bob")
    tab.running.sql(f"""create table {name} (owner uuid, words text);
        alter table {name} enable row level security;
        create policy own on {name} to authenticated using (owner = auth.uid());
        grant select on {name} to authenticated;
        insert into {name} values ('{ann["id"]}', 'said by ann'), ('{bob["id"]}', 'said by bob')""")
    show(tab, ann).get_by_role("link", name="See tables as this user").click()
    tab.page.get_by_role("main").get_by_role("link", name=re.compile(name)).last.click()
    expect(tab.page.get_by_role("button", name=f"as {ann['email']}")).to_be_visible()
    expect(tab.page.get_by_text("said by ann")).to_be_visible()
    expect(tab.page.get_by_text("said by bob")).to_have_count(0)


HOSTILE = "<img src=x onerror=alert(1)>\u202eevil"


def test_what_strangers_say_is_text(tab: Tab) -> None:
    user = make(tab.running, metadata={"name": HOSTILE})
    log_in(tab.running, user, "<b>agent</b>/1\u00ad")
    shown = show(tab, user)
    said = json.dumps({"name": HOSTILE}, indent=2, ensure_ascii=False)
    expect(shown.get_by_label("The user's own")).to_have_value(said)
    expect(shown.get_by_role("list", name="Sessions").locator("b")).to_have_text("<b>agent<")
    tab.has_no_sideways_scrolling()


@pytest.mark.parametrize("direction", ["ltr", "rtl"])
def test_one_user_fits_into_a_telephone(chrome: Browser, running: Running, axe: Axe, direction: str) -> None:
    user = make(running, "somebody.with.a.really.rather.long.address.which.goes.on")
    log_in(running, user, IPHONE)
    with opened(chrome, running, viewport=NARROW) as tab:
        tab.page.evaluate("to => { document.documentElement.dir = to }", direction)
        shown = show(tab, user)
        expect(shown.get_by_role("list", name="Audit")).to_be_visible()
        tab.has_no_sideways_scrolling()
        axe.check(tab)
        shown.get_by_role("link", name="Users").click()
        expect(found(tab).first).to_be_visible()
        expect(panel(tab.page)).to_have_count(0)


def test_one_user_keeps_nobody_out(tab: Tab, axe: Axe) -> None:
    user = make(tab.running)
    log_in(tab.running, user, FIREFOX)
    expect(show(tab, user).get_by_role("list", name="Audit")).to_be_visible()
    axe.check(tab)
    tab.has_no_sideways_scrolling()
