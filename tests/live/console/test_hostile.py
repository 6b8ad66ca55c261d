"""Nothing that a stranger wrote runs in the console, turns around what is beside it, or pushes controls away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.live.console import hostile
from tests.live.console.browsing import NARROW, PAGES, WIDE, Running, Tab, opened, running_service
from tests.live.services import WithDatabase

# Frames for what strangers wrote have no scripts, and say so.
REFUSED_IN_FRAME = r"Blocked script execution in '(blob:|about:)|blob:.*Content Security Policy"
WATCH = """() => {
  window.violations = []
  addEventListener('securitypolicyviolation', event => {
    violations.push(`${event.violatedDirective} ${event.blockedURI}`)
  })
}"""
# What is wrong in the document, in words.
FAULTS = r"""() => {
  const faults = []
  if (window.canary !== undefined) faults.push('a script has run')
  faults.push(...violations)
  const root = document.documentElement
  if (root.scrollWidth > root.clientWidth) faults.push('the page is wider than its window')
  if (document.querySelector('[onerror], [onload], [onfocus], [href^="javascript:" i], [src^="javascript:" i]'))
    faults.push('an attribute could run')
  const told = element => `${element.localName}.${element.className} ${element.textContent.trim().slice(0, 40)}`
  // Text that turns around is by itself, or in an element that keeps it there.
  const turning = /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let text; (text = texts.nextNode()); ) {
    const isLong = text.data.length > 12_000 && !text.parentElement.closest('ps-editor')
    if (isLong) faults.push(`${told(text.parentElement)} has ${text.data.length} characters`)
    if (!turning.test(text.data) || text.parentElement.localName === 'option') continue
    let holder = text.parentElement, isolated = false
    for (;; holder = holder.parentElement) {
      const { display, unicodeBidi } = getComputedStyle(holder)
      isolated ||= /isolate|plaintext/.test(unicodeBidi)
      if (!display.startsWith('inline') && display !== 'contents') break
    }
    if (!isolated && holder.textContent.trim() !== text.data.trim()) faults.push(`${told(holder)} is turned around`)
  }
  // What one writes at length takes its place from nothing else; only grids, tables and code are scrolled sideways.
  const main = document.querySelector('main')
  for (const element of main.querySelectorAll('*')) {
    if (!element.checkVisibility()) continue
    const { overflowX } = getComputedStyle(element)
    const sideways = element.scrollWidth > element.clientWidth + 1 && /auto|scroll/.test(overflowX)
    if (sideways && !element.matches('.grid-scroller, .table-wrap, .tabs, pre, .code, textarea, input'))
      faults.push(`${told(element)} is scrolled sideways`)
    const own = [...element.childNodes].some(node => node instanceof Text && node.data.length > 300)
    if (!own || element.closest('pre, .code, textarea, dialog')) continue
    let block = element
    while (getComputedStyle(block).display.startsWith('inline')) block = block.parentElement
    const box = block.getBoundingClientRect()
    if (box.height > innerHeight / 2) faults.push(`${told(element)} is ${Math.round(box.height)} px high`)
  }
  // Controls are in view, or where one can scroll to them.
  const controls = 'button, a[href], input, select, textarea, summary, [tabindex="0"]'
  for (const control of document.querySelectorAll(controls)) {
    if (!control.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue
    let box = control.getBoundingClientRect()
    if (box.width < 2 || box.height < 2) continue
    const clips = getComputedStyle(control).position === 'fixed' ? [] : [document.documentElement]
    for (let around = control.parentElement; around; around = around.parentElement) {
      const { overflowX, position } = getComputedStyle(around)
      if (overflowX === 'auto' || overflowX === 'scroll') { clips.length = 0; break }
      if (overflowX !== 'visible') clips.push(around)
      if (position === 'fixed') break
    }
    for (const clip of clips) {
      const all = clip.getBoundingClientRect()
      const hidden = Math.max(0, all.left - box.left) + Math.max(0, box.right - all.right)
      if (hidden <= Math.max(2, box.width - 24)) continue
      faults.push(`${told(control)} is out of view by ${Math.round(hidden)} px`)
      break
    }
  }
  return faults
}"""


@pytest.fixture(scope="module")
def running(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_service(with_database(tmp_path_factory.mktemp("hostile"))) as made:
        yield made


@pytest.fixture(scope="module")
def ids(running: Running) -> dict[str, str]:
    return hostile.fill(running)


def places(ids: dict[str, str]) -> dict[str, list[str]]:
    """Addresses by the page that they are of."""
    relation = f"tables/dev/main/public/{quote(hostile.TABLE, safe='')}"
    return {
        "tables": [
            "tables/dev/main",
            relation,
            f"{relation}?{quote(hostile.COLUMNS[0], safe='')}=eq.{quote(hostile.TAG, safe='')}",
            f"{relation}?@tab=columns",
            f"{relation}?@tab=rights",
            *(f"tables/dev/main/public/{quote(name, safe='')}" for name in (hostile.BIDI, hostile.EVENT)),
            f"tables/dev/main/public/{quote(hostile.TEMPLATE[:60], safe='')}",
            # An address that somebody was sent.
            f"tables/{quote(hostile.IMAGE, safe='')}/{quote(hostile.BIDI, safe='')}/{hostile.LONG}",
        ],
        "storage": [
            "storage",
            f"storage/{hostile.BUCKET}",
            f"storage/{hostile.BUCKET}/names",
            f"storage/{quote(hostile.IMAGE, safe='')}/{quote(hostile.BIDI, safe='')}",
        ],
        "sql": [
            "sql",
            *(
                f"sql/new-{form}?database=dev/main&schema=public&relation={quote(hostile.TABLE, safe='')}"
                for form in ("table", "column", "policy", "grant")
            ),
        ],
        "keys": [
            "keys",
            "keys/signing",
            "keys/settings",
            "keys/audit",
            f"keys/{quote(hostile.IMAGE, safe='')}",
        ],
        "api": [
            "api",
            "api/dev%2Fmain",
            f"api/{quote(hostile.IMAGE, safe='')}/{quote(hostile.BIDI, safe='')}",
        ],
        "mail": ["mail", f"mail/{quote(hostile.IMAGE, safe='')}"],
        "users": [
            "users",
            *(f"users/{one}" for one in ids.values()),
            f"users/{quote(hostile.IMAGE, safe='')}",
        ],
    }


def settled(page: Page) -> None:
    """Returns when nothing is busy any more."""
    expect(page.locator("main#content > *").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    expect(page.locator(".busy, [aria-busy=true]")).to_have_count(0)


def is_unharmed(tab: Tab) -> None:
    """At both widths, and both ways of writing at the narrow one."""
    for size, direction in ((WIDE, "ltr"), (NARROW, "ltr"), (NARROW, "rtl")):
        tab.page.set_viewport_size(size)
        tab.page.evaluate("to => { document.documentElement.dir = to }", direction)
        tab.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found = tab.page.evaluate(FAULTS)
        assert not found, (tab.page.url[:200], size, direction, found[:8])
    tab.page.set_viewport_size(WIDE)
    tab.page.evaluate("document.documentElement.dir = 'ltr'")
    for frame in tab.page.frames[1:]:
        assert frame.evaluate("window.canary") is None


@pytest.mark.parametrize(("name", "title"), PAGES)
def test_a_page_is_unharmed(
    chrome: Browser, running: Running, ids: dict[str, str], name: str, title: str
) -> None:
    with opened(chrome, running) as tab:
        tab.expected.append(REFUSED_IN_FRAME)
        tab.page.add_init_script(f"({WATCH})()")
        tab.page.reload()
        expect(tab.page.locator("#navigation")).to_be_attached()
        for address in places(ids).get(name, [name]):
            tab.go(address)
            expect(tab.page).to_have_title(re.compile(title))
            settled(tab.page)
            is_unharmed(tab)


@pytest.fixture
def watched(chrome: Browser, running: Running, ids: dict[str, str]) -> Iterator[Tab]:
    with opened(chrome, running) as tab:
        tab.expected.append(REFUSED_IN_FRAME)
        tab.page.add_init_script(f"({WATCH})()")
        tab.page.reload()
        expect(tab.page.locator("#navigation")).to_be_attached()
        yield tab


RELATION = f"tables/dev/main/public/{quote(hostile.TABLE, safe='')}"


@pytest.mark.parametrize("number", [0, 3, 5, 9, 10])
def test_a_row_of_a_table_is_unharmed(watched: Tab, number: int) -> None:
    """The last two have cells of 10,000 characters and of 10 MiB."""
    watched.go(f"{RELATION}?order=id.asc")
    settled(watched.page)
    watched.page.locator(f'.grid-body [aria-rowindex="{number + 2}"] [aria-colindex="2"]').click()
    watched.page.keyboard.press("Shift+Enter")
    expect(watched.page.get_by_role("dialog")).to_be_visible()
    is_unharmed(watched)


@pytest.mark.parametrize("name", [name for name, _, _ in hostile.FILES])
def test_a_file_is_unharmed(watched: Tab, name: str) -> None:
    watched.go(f"storage/{hostile.BUCKET}")
    settled(watched.page)
    watched.page.get_by_text(name, exact=True).click()
    expect(watched.page.get_by_role("dialog")).to_be_visible()
    # A viewer of PDF may go on reading what is none.
    expect(watched.page.locator(".busy, [aria-busy=true]")).to_have_count(0)
    is_unharmed(watched)


def test_an_email_is_unharmed(watched: Tab) -> None:
    watched.go("mail")
    settled(watched.page)
    mails = watched.page.locator(".side li a").all()[:3]
    assert len(mails) == 3
    for each in mails:
        each.click()
        expect(each).to_have_attribute("aria-current", "true")
        settled(watched.page)
        expect(watched.page.locator("article")).to_be_visible()
        is_unharmed(watched)


def test_a_result_of_sql_is_unharmed(watched: Tab) -> None:
    watched.go("sql")
    settled(watched.page)
    editor = watched.page.get_by_role("textbox").first
    editor.fill("select * from " + '"' + hostile.TABLE.replace('"', '""') + '" order by id limit 9')
    watched.page.keyboard.press("Control+Enter")
    expect(watched.page.locator(".grid-body .grid-row").nth(8)).to_be_visible()
    settled(watched.page)
    is_unharmed(watched)


def test_what_an_error_says_is_unharmed(watched: Tab) -> None:
    told = f"{hostile.TAG}{hostile.BIDI}{hostile.LONG}".replace("'", "''")
    more = f"detail = '{told}', hint = '{told}'"
    watched.go("sql")
    settled(watched.page)
    watched.page.get_by_role("textbox").first.fill(
        f"do $$ begin raise exception '{told}' using {more}; end $$"
    )
    watched.page.keyboard.press("Control+Enter")
    expect(watched.page.get_by_role("alert").first).to_be_visible()
    is_unharmed(watched)


def test_whom_one_may_be_is_unharmed(watched: Tab) -> None:
    watched.go(RELATION)
    settled(watched.page)
    watched.page.get_by_role("button", name="as service").click()
    expect(watched.page.get_by_role("dialog")).to_be_visible()
    settled(watched.page)
    is_unharmed(watched)
    watched.page.get_by_role("dialog").get_by_role("button", name="canary").first.click()
    expect(watched.page.locator(".tables-whom")).to_be_visible()
    settled(watched.page)
    is_unharmed(watched)


def test_what_is_asked_before_a_file_is_deleted_is_unharmed(watched: Tab) -> None:
    watched.go(f"storage/{hostile.BUCKET}/names")
    settled(watched.page)
    for name in (hostile.IMAGE, hostile.EVENT):
        watched.page.get_by_role("checkbox", name=f"Select {name}").first.check()
    is_unharmed(watched)
    watched.page.get_by_role("button", name="Delete", exact=True).click()
    expect(watched.page.get_by_text("Deleting 2 files")).to_be_visible()
    is_unharmed(watched)


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
def test_the_description_of_a_table_is_unharmed(watched: Tab, method: str) -> None:
    watched.go("api/dev%2Fmain")
    settled(watched.page)
    watched.page.get_by_label("Find an endpoint").fill("onerror")
    watched.page.locator(".side li a", has_text=method).first.click()
    expect(watched.page.locator("article")).to_be_visible()
    is_unharmed(watched)


def test_a_line_of_the_log_is_unharmed(watched: Tab) -> None:
    watched.go("log")
    # Until it is filtered, the lines that are shown give way to others.
    with watched.page.expect_response(re.compile("/admin/log.*text=canary")):
        watched.page.get_by_label("Lines with this text").fill("canary")
    settled(watched.page)
    line = watched.page.locator(".grid-body .grid-row", has_text="canary").first
    line.locator("[aria-colindex='4']").dblclick()
    expect(watched.page.get_by_role("dialog")).to_be_visible()
    is_unharmed(watched)
