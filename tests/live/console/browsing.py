"""A service with its console in Chromium, and what tests of its pages ask of them.

The fixture ``running`` is a service for a module, ``tab`` a tab of it, signed in; ``opened`` opens others. At its end
a tab must have been without errors: exceptions, refusals by the Content-Security-Policy, and whatever else it
writes to its console as an error, but for the statuses of requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import requests
from attrs import field, frozen
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize, expect, sync_playwright

from project_service.console.serving import APP
from tests.live.daemon import Daemon
from tests.live.npm import install
from tests.live.programs import program
from tests.live.services import WithDatabase

# Only a test that fails waits as long.
TIMEOUT_MILLISECONDS = 60_000
expect.set_options(timeout=TIMEOUT_MILLISECONDS)
WIDE: ViewportSize = {"width": 1280, "height": 800}
NARROW: ViewportSize = {"width": 360, "height": 740}
LARGE: ViewportSize = {"width": 3840, "height": 2160}
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"
IPHONE = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
    "Version/17.5 Mobile/15E148 Safari/604.1"
)
# The name and the title of each page.
PAGES = re.findall(r'name: "(\w+)",\s+title: "([^"]+)"', (APP / "pages.js").read_text("utf-8"))
# The frame gives a page its address some turns after the address has changed. Until then what is shown, and told what
# to do, is the page as it was before. So what that was told last is marked, and another is waited for.
_GO = """to => {
  const [page, before] = [document.querySelector('#content > *'), location.href]
  location.hash = to
  if (location.href !== before && page?.route) page.route.isLeft = true
}"""
_ARRIVED = """name => {
  const page = document.querySelector('#content > *')
  return page?.localName === name && !page.route.isLeft
}"""
# A notice that has only to be read goes after 6 seconds, and a busy machine may stand still for as long.
_NOTICES_STAY = """() => {
  const { setTimeout } = window
  window.setTimeout = (run, time, ...more) => setTimeout(run, time === 6_000 ? 30_000 : time, ...more)
}"""
# A request that is refused is no fault of a page.
_STATUS = re.compile(r"Failed to load resource: the server responded with a status of")


@frozen
class Running:
    """A service. ``call`` makes a request with its service key."""

    url: str
    service_key: str = field(repr=False)
    anon_key: str
    dsn: str = field(repr=False)
    data_dir: Path

    def call(self, method: str, path: str, **more: Any) -> requests.Response:
        headers = {"X-Service-Key": self.service_key, **more.pop("headers", {})}
        return requests.request(method, self.url + path, headers=headers, timeout=60, **more)

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Run SQL in the database dev/main as its owner; returns the rows of the last statement."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(text, values or None)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def running_service(data_dir: Path, *options: str) -> Iterator[Running]:
    with Daemon(data_dir, *options) as daemon:
        url = daemon.wait_until_ready().rstrip("/")
        keys = json.loads((data_dir / "credentials.json").read_text())
        yield Running(url, keys["service_key"], keys["anon_key"], keys["dsn"], data_dir)


@frozen(eq=False)
class Tab:
    """A tab with the console. ``faults`` are what the browser complained about, but for what has a pattern of
    ``expected`` in it, which a test puts there before it makes that happen."""

    page: Page
    running: Running
    faults: list[str] = field(factory=list)
    expected: list[str] = field(factory=list)

    def go(self, address: str) -> None:
        """Go to an address of the console, such as ``tables/dev/main``. Its page is there when this returns, though
        perhaps not what it asks the service for."""
        self.page.evaluate(_GO, f"#/{address}")
        self.page.wait_for_function(_ARRIVED, arg=f"ps-{re.split('[/?]', address)[0]}")

    def has_no_sideways_scrolling(self) -> None:
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not self.page.evaluate(wide), "the page is wider than its window"


def _watch(tab: Tab) -> None:
    def said(message: ConsoleMessage) -> None:
        known = _STATUS.match(message.text) or any(re.search(each, message.text) for each in tab.expected)
        if message.type == "error" and not known:
            tab.faults.append(message.text)

    tab.page.on("console", said)
    tab.page.on("pageerror", lambda fault: tab.faults.append(str(fault)))


@contextmanager
def chromium() -> Iterator[Browser]:
    # The one that never has a window takes half of the CPU time.
    found = program("chromium-headless-shell", "chromium", "chromium-browser")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


@contextmanager
def opened(browser: Browser, running: Running, signed_in: bool = True, **options: Any) -> Iterator[Tab]:
    """A tab in a browser of its own; ``options`` are those of a context of Playwright, as ``viewport``."""
    context = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", "timezone_id": "UTC", **options})
    context.set_default_timeout(TIMEOUT_MILLISECONDS)
    tab = Tab(context.new_page(), running)
    _watch(tab)
    tab.page.goto(f"{running.url}/console")
    tab.page.evaluate(_NOTICES_STAY)
    if signed_in:
        sign_in(tab)
    yield tab
    # A request that is being answered by a test's own function would fail that, and by it the next test.
    tab.page.unroute_all(behavior="ignoreErrors")
    context.close()
    assert not tab.faults, tab.faults


def sign_in(tab: Tab) -> None:
    tab.page.get_by_label("Service key").fill(tab.running.service_key)
    tab.page.get_by_role("button", name="Sign in").click()
    # Where there is little room it is hidden.
    expect(tab.page.locator("#navigation")).to_be_attached()


@frozen
class Axe:
    """Looks for what keeps people out, by the rules of WCAG 2.2 A and AA."""

    script: str = field(repr=False)

    def check(self, tab: Tab) -> None:
        """Fails with the rules that the page breaks, and where."""
        self.check_page(tab.page)

    def check_page(self, page: Page) -> None:
        # The page's own policy lets no script in; one of the browser's tools is not the page's.
        page.context.new_cdp_session(page).send(
            "Runtime.evaluate", {"expression": self.script, "allowUnsafeEvalBlockedByCSP": True}
        )
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
        found = page.evaluate("tags => axe.run(document, { runOnly: { type: 'tag', values: tags } })", tags)[
            "violations"
        ]
        told = [
            f"{one['id']}: {one['help']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
            for one in found
            for node in one["nodes"]
        ]
        assert not told, "\n".join(told)


def load_axe(folder: Path) -> Axe:
    install(folder, "axe-core@4")
    return Axe((folder / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8"))


# Fixtures, which the modules of tests get from ``conftest``.


@pytest.fixture(scope="module")
def running(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_service(with_database(tmp_path_factory.mktemp("console"))) as made:
        yield made


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def tab(chrome: Browser, running: Running) -> Iterator[Tab]:
    """A tab, signed in, 1280 pixels wide."""
    with opened(chrome, running) as made:
        yield made


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> Axe:
    return load_axe(tmp_path_factory.mktemp("axe"))
