"""The frame of the console: signing in, the key of the tab, navigation, palette, appearance."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.live.console.browsing import NARROW, Axe, Running, Tab, opened, sign_in

KEY_IS_NOWHERE = """key => {
  const places = [location.href, document.cookie, document.documentElement.outerHTML, JSON.stringify(history.state),
    JSON.stringify(localStorage)]
  return !places.some(place => place.includes(key))
}"""


def test_the_service_key_lets_in_and_stays_in_the_tab(chrome: Browser, running: Running) -> None:
    with opened(chrome, running) as tab:
        assert tab.page.evaluate(KEY_IS_NOWHERE, running.service_key)
        tab.page.reload()
        expect(tab.page.get_by_role("navigation", name="Pages")).to_be_visible()
        assert tab.page.evaluate(KEY_IS_NOWHERE, running.service_key)
        other = tab.page.context.new_page()
        other.goto(f"{running.url}/console")
        expect(other.get_by_label("Service key")).to_be_visible()


def test_signing_out_forgets_the_key(tab: Tab) -> None:
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.get_by_label("Service key")).to_be_visible()
    assert tab.page.evaluate("sessionStorage.length") == 0
    tab.page.reload()
    expect(tab.page.get_by_label("Service key")).to_be_visible()


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("psk_service_wrong", "The project key is mistyped"),
        ("two words", "A key has no blanks"),
        ("anon", "That is the anon key"),
    ],
)
def test_what_is_no_service_key_is_refused_in_words(
    chrome: Browser, running: Running, key: str, why: str
) -> None:
    with opened(chrome, running, signed_in=False) as tab:
        tab.page.get_by_label("Service key").fill(running.anon_key if key == "anon" else key)
        tab.page.get_by_role("button", name="Sign in").click()
        expect(tab.page.get_by_role("alert")).to_contain_text(why)
        expect(tab.page.get_by_label("Service key")).to_be_focused()
        assert tab.page.evaluate("sessionStorage.length") == 0


def test_a_page_says_its_title_once_where_there_is_room(tab: Tab) -> None:
    bar = tab.page.locator(".bar-title")
    tab.go("users")
    expect(tab.page.get_by_role("heading", name="Users", level=1)).to_be_visible()
    expect(bar).to_be_hidden()
    # The editor of SQL leaves that to the bar; whoever does not see it hears a heading.
    tab.go("sql")
    expect(tab.page.get_by_role("heading", name="SQL", level=1)).to_be_attached()
    expect(bar).to_have_text("SQL")
    expect(bar).to_be_visible()
    tab.go("users")
    tab.page.set_viewport_size(NARROW)
    expect(bar).to_be_visible()


def test_the_menu_of_a_narrow_window_dims_the_page_and_leaves_by_a_click_beside_it(
    chrome: Browser, running: Running
) -> None:
    with opened(chrome, running, viewport=NARROW) as tab:
        page = tab.page
        expect(page.get_by_role("button", name="Go to or do")).to_have_attribute("title", "Go to or do")
        menu = page.get_by_role("button", name="Menu")
        expect(menu).to_have_attribute("title", "Menu")
        menu.click()
        expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
        page.mouse.click(NARROW["width"] - 10, NARROW["height"] - 10)
        expect(page.get_by_role("navigation", name="Pages")).to_be_hidden()
        expect(menu).to_have_attribute("aria-expanded", "false")


def test_buttons_without_words_have_titles(chrome: Browser, running: Running) -> None:
    running.sql("create table public.titled (id int primary key, tags text[], at timestamptz)")
    running.sql("insert into public.titled values (1, '{a}', now())")
    with opened(chrome, running, viewport=NARROW) as tab:
        for address, ready in (
            ("tables/dev/main/public/titled", "New row"),
            ("sql/new-table", "Make the table"),
            ("storage", "New bucket"),
            ("users", "New user"),
            ("mail", "Look again"),
        ):
            tab.go(address)
            expect(tab.page.get_by_role("button", name=ready)).to_be_visible()
            expect(tab.page.locator(".icon-button:not([title])")).to_have_count(0)


def test_the_palette_finds_pages_and_commands_by_a_few_letters(tab: Tab) -> None:
    tab.page.keyboard.press("Control+k")
    search = tab.page.get_by_role("combobox", name="Command")
    expect(search).to_be_focused()
    search.fill("dark")
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize(
    ("action", "title"),
    [
        ("New user", "New user"),
        ("New bucket", "New bucket"),
        ("New key", "New project key"),
    ],
)
def test_the_palette_makes_things_from_everywhere(tab: Tab, action: str, title: str) -> None:
    choose(tab, action)
    expect(tab.page.get_by_role("dialog", name=title)).to_be_visible()
    # Once: going back or loading the page anew does not ask again.
    expect(tab.page).not_to_have_url(re.compile(r"\?new"))


@pytest.mark.parametrize(
    ("action", "address"),
    [("New table", "#/sql/new-table"), ("Settings", "#/keys/settings"), ("Audit", "#/keys/audit")],
)
def test_the_palette_leads_to_forms_and_lists(tab: Tab, action: str, address: str) -> None:
    choose(tab, action)
    expect(tab.page).to_have_url(re.compile(re.escape(address)))


def choose(tab: Tab, text: str) -> None:
    tab.page.keyboard.press("Control+k")
    tab.page.get_by_role("combobox", name="Command").fill(text)
    tab.page.get_by_role("option", name=text, exact=True).first.click()


def test_the_palette_finds_tables_buckets_and_users(tab: Tab) -> None:
    running = tab.running
    running.sql("create table public.palette_birds (id int primary key)")
    assert running.call("POST", "/admin/buckets", json={"name": "palette-pictures"}).status_code == 201
    made = running.call("POST", "/admin/users", json={"email": "palette@example.com"})
    for text, address in (
        ("palette_bi", "#/tables/dev/main/public/palette_birds"),
        ("palette-pi", "#/storage/palette-pictures"),
        ("LETTE@ex", f"#/users/{made.json()['data']['user']['id']}"),
    ):
        tab.page.keyboard.press("Control+k")
        tab.page.get_by_role("combobox", name="Command").fill(text)
        found = tab.page.get_by_role("listbox", name="Commands").get_by_role("option")
        expect(found).to_have_count(1)
        tab.page.keyboard.press("Enter")
        expect(tab.page).to_have_url(re.compile(re.escape(address)))


def test_the_palette_stays_in_its_place_and_escape_closes_it(tab: Tab) -> None:
    tab.page.keyboard.press("Control+k")
    palette = tab.page.get_by_role("dialog", name="Go to or do")
    expect(palette).to_be_visible()
    before = palette.bounding_box()
    tab.page.get_by_role("combobox", name="Command").fill("no such thing")
    expect(palette.get_by_text("Nothing fits.")).to_be_visible()
    after = palette.bounding_box()
    assert before is not None
    assert after is not None
    assert before["y"] == after["y"]
    assert before["height"] > after["height"]
    tab.page.keyboard.press("Escape")
    expect(palette).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_signing_in_keeps_nobody_out(chrome: Browser, running: Running, axe: Axe, theme: str) -> None:
    with opened(chrome, running, signed_in=False, color_scheme=theme) as tab:
        expect(tab.page.get_by_label("Service key")).to_be_visible()
        axe.check(tab)
        sign_in(tab)
        expect(tab.page.get_by_role("heading", name="Parts")).to_be_visible()
        axe.check(tab)
        tab.page.keyboard.press("Control+k")
        expect(tab.page.get_by_role("dialog").get_by_text("private")).to_be_visible()
        axe.check(tab)
