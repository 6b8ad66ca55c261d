"""What holds for every page: it keeps nobody out, fits into any window, in both directions and colours, and says when
the service is away. The documentation's pictures are made by the way, into the folder ``CONSOLE_PICTURES``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.live.console.browsing import LARGE, NARROW, PAGES, WIDE, Axe, Running, Tab, opened, running_service
from tests.live.console.sample import fill, use
from tests.live.services import WithDatabase

# Where each page shows most; the page itself if it is not here.
BUSY = {
    "tables": "tables/dev/main/public/sightings",
    "storage": "storage/pictures/2026/spring",
}
STATEMENT = """-- Where most birds were seen
select place, count(*) as sightings, sum(count) as birds, max(seen_at) as latest
from sightings
group by place
order by birds desc;"""
PICTURES = os.environ.get("CONSOLE_PICTURES")


@pytest.fixture(scope="module")
def running(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_service(with_database(tmp_path_factory.mktemp("pages"))) as made:
        fill(made)
        if PICTURES:
            use(made)
        yield made


def settled(page: Page) -> None:
    """Returns when nothing is busy any more."""
    expect(page.locator("main#content > *").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    expect(page.locator(".busy, [aria-busy=true]")).to_have_count(0)


def show(tab: Tab, name: str, title: str) -> None:
    """Go to a page, and wait for what it asks for."""
    tab.go(BUSY.get(name, name))
    expect(tab.page).to_have_title(re.compile(title))
    settled(tab.page)


def open_most(tab: Tab, name: str) -> None:
    """Open what the page that is shown has, and wait for it: a click alone has not changed anything yet."""
    page = tab.page
    if name == "storage":
        page.get_by_role("link", name="hill-1.png").click()
        expect(page.get_by_role("dialog").get_by_role("img")).to_be_visible()
    elif name == "users":
        page.get_by_role("link", name=re.compile("ann@example.com")).click()
        expect(page.locator("ps-user").get_by_role("heading", name="ann@example.com")).to_be_visible()
    elif name == "mail":
        page.get_by_role("link", name=re.compile("Set a new password")).click()
        expect(page.locator("article")).to_be_visible()
    elif name == "api":
        page.get_by_role("link", name="/auth/signup").click()
        expect(page.locator("article")).to_be_visible()
    elif name == "log":
        with page.expect_response(re.compile("/admin/log.*part=")):
            page.get_by_label("Part").fill("project_service.http")
        expect(page.get_by_text(re.compile("^(GET|POST|PUT) /")).first).to_be_visible()
    elif name == "sql":
        editor = page.get_by_role("textbox", name="SQL")
        editor.fill(STATEMENT)
        editor.press("Control+Enter")
        expect(page.get_by_text("Mill pond")).to_be_visible()
    elif name == "overview" and PICTURES:
        expect(page.get_by_text("The first values come within")).to_have_count(0)
    settled(page)


@pytest.mark.parametrize(("name", "title"), PAGES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_keeps_nobody_out(
    chrome: Browser, running: Running, axe: Axe, name: str, title: str, theme: str
) -> None:
    with opened(chrome, running, color_scheme=theme) as tab:
        show(tab, name, title)
        axe.check(tab)
        open_most(tab, name)
        axe.check(tab)
        tab.has_no_sideways_scrolling()
        if PICTURES and theme == "light":
            tab.page.screenshot(path=Path(PICTURES) / f"console-{name}.png")


@pytest.mark.parametrize(("name", "title"), PAGES)
def test_it_fits_into_a_telephone_in_both_directions(
    chrome: Browser, running: Running, axe: Axe, name: str, title: str
) -> None:
    with opened(chrome, running, viewport=NARROW) as tab:
        for direction in ("ltr", "rtl"):
            tab.page.evaluate("to => { document.documentElement.dir = to }", direction)
            show(tab, name, title)
            tab.has_no_sideways_scrolling()
            axe.check(tab)


@pytest.mark.parametrize(("name", "title"), PAGES)
def test_it_is_whole_from_right_to_left_and_on_a_large_screen(
    chrome: Browser, running: Running, name: str, title: str
) -> None:
    with opened(chrome, running) as tab:
        for size, direction in ((WIDE, "rtl"), (LARGE, "ltr")):
            tab.page.set_viewport_size(size)
            tab.page.evaluate("to => { document.documentElement.dir = to }", direction)
            show(tab, name, title)
            tab.has_no_sideways_scrolling()


@pytest.mark.parametrize(("name", "title"), PAGES)
def test_where_the_service_is_away_it_says_so(
    chrome: Browser, running: Running, name: str, title: str
) -> None:
    with opened(chrome, running) as tab:
        tab.expected.append("net::ERR_FAILED")
        tab.page.route(
            "**/*", lambda route: route.abort() if "/console" not in route.request.url else route.continue_()
        )
        tab.go(BUSY.get(name, name))
        expect(tab.page.locator(f"ps-{name}").get_by_role("alert").first).to_be_visible()
