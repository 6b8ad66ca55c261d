"""What the console may use, where that has nothing to do with time: bytes, elements, requests, memory.
How fast it is, the benchmarks tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.live.console.alone import page_of
from tests.live.console.browsing import PAGES, Running
from tests.live.console.grids import COLUMNS, show

# Compressed, with everything that is loaded until a page is shown.
LOADED_BYTES = 150 * 1024
# As ideas/grid.js has them: rows beyond those in view, on both sides.
MARGIN, ROW = 6, 32
WIDE_TABLE = [{"name": f"c{at}"} for at in range(1_600)]


@pytest.fixture
def page(chrome: Browser, address: str) -> Iterator[Page]:
    with page_of(chrome, address) as made:
        yield made


@pytest.mark.parametrize("name", [name for name, _ in PAGES])
def test_the_first_page_is_small(chrome: Browser, running: Running, name: str) -> None:
    finished: list[Request] = []

    def keep(request: Request) -> None:
        # What asks the browser waits until later: a page that is closed meanwhile would fail it.
        finished.append(request)

    context = chrome.new_context()
    first = context.new_page()
    first.on("requestfinished", keep)
    first.goto(f"{running.url}/console#/{name}")
    first.get_by_label("Service key").fill(running.service_key)
    first.get_by_role("button", name="Sign in").click()
    expect(first.get_by_role("main").locator("*").first).to_be_attached()
    expect(first.locator(f"ps-{name}")).to_be_attached()
    first.wait_for_load_state("networkidle")
    loaded: dict[str, int] = {}
    for request in finished:
        if "/console" in request.url:
            answer = request.response()
            assert answer is not None
            assert answer.headers.get("content-encoding") == "gzip", request.url
            sizes = request.sizes()
            loaded[request.url] = sizes["responseBodySize"] + sizes["responseHeadersSize"]
    context.close()
    # The page that was asked for is among them.
    assert any(f"/pages/{name}.js" in url for url in loaded), loaded
    assert sum(loaded.values()) <= LOADED_BYTES, loaded


@pytest.mark.parametrize("count", [5_000, 1_000_000, 1_000_000_000])
def test_only_what_is_in_view_is_in_the_document(page: Page, count: int) -> None:
    grid = show(page, count, columns=WIDE_TABLE)
    expect(grid.row(0)).to_be_visible()
    page.evaluate("""() => {
      window.largest = { rows: 0, cells: 0 }
      const look = () => {
        largest.rows = Math.max(largest.rows, document.querySelectorAll('.grid-body .grid-row').length)
        largest.cells = Math.max(largest.cells, document.querySelectorAll('.grid-cell').length)
      }
      new MutationObserver(look).observe(document.querySelector('.grid-body'), { childList: true, subtree: true })
      look()
    }""")
    page.mouse.move(300, 300)
    for _ in range(20):
        page.mouse.wheel(400, 700)
    for share in (0.25, 0.5, 0.75, 0.1, 1, 0):
        page.evaluate(
            "at => { const it = document.querySelector('.grid-scroller'); it.scrollTop = at * it.scrollHeight;"
            " it.scrollLeft = at * it.scrollWidth }",
            share,
        )
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(grid.row(0)).to_be_visible()
    largest = page.evaluate("largest")
    rows = 600 // ROW + 2 + 2 * MARGIN
    assert largest["rows"] <= rows
    # A column is 56 pixels wide or more, and 200 pixels beyond both sides are there.
    assert largest["cells"] <= (rows + 1) * ((1280 + 2 * 200) // 56 + 3)


def test_what_was_scrolled_past_is_not_waited_for(page: Page) -> None:
    grid = show(page, 1_000_000)
    expect(grid.row(0)).to_contain_text("title 0")
    grid.js("held = true, calls.length = 0, most = 0")
    asked: set[int] = set()
    for at in range(1, 9):
        grid.js("at => { document.querySelector('.grid-scroller').scrollTop = at * 1e6 }", at)
        page.wait_for_function("at => calls.length > at", arg=len(asked))
        asked = set(grid.js("calls"))
    page.wait_for_function("() => waiting.length - aborted.length <= 2")
    assert grid.js("most") <= 2
    first = grid.js("Number(document.querySelector('.grid-body [role=row]').ariaRowIndex)")
    # Those that are still awaited are for what is in view.
    awaited = asked - set(grid.js("aborted"))
    assert 1 <= len(awaited) <= 2
    assert all(abs(start - first) <= 200 for start in awaited)
    grid.js("held = false, release()")
    expect(grid.row(first + 5)).to_contain_text(f"title {first + 5}")


def test_a_page_is_fetched_once(page: Page) -> None:
    grid = show(page, 5_000)
    expect(grid.row(0)).to_contain_text("title 0")
    grid.enter()
    for _ in range(8):
        grid.press("PageDown")
    # What has been asked for comes, and is not asked for once more because it was left too early.
    expect(page.locator(".grid-body .loading")).to_have_count(0)
    for _ in range(8):
        grid.press("PageUp")
    expect(grid.row(0)).to_contain_text("title 0")
    calls = grid.js("calls")
    assert len(calls) == len(set(calls)) <= 3


# A thousand pages looked at one after the other, of rows with so many characters.
LOOK = """async ([each, characters]) => {
  const { Pages } = await import('/ideas/grid/pages.js')
  const rows = async from => Array.from({ length: 100 }, (_, at) => ({ id: from + at, text: 'x'.repeat(characters) }))
  let done = () => {}
  const pages = new Pages({ columns: [], count: 1e6, rows }, () => done())
  const most = { pages: 0, weight: 0, asked: 0 }
  for (let at = 0; at < each; at++) {
    await new Promise(go => { done = go; pages.want(at * 100, at * 100 + 30) })
    if (pages.row(at * 100)?.id !== at * 100) throw new Error(`page ${at} is not there`)
    for (const [name, value] of Object.entries(pages.size)) most[name] = Math.max(most[name], value)
  }
  return most
}"""


def test_memory_of_rows_is_bounded(page: Page) -> None:
    small = page.evaluate(LOOK, [1_000, 10])
    assert small["pages"] <= 61
    # Pages that are large are fewer; the one in view is there however large it is.
    large = page.evaluate(LOOK, [60, 100_000])
    assert large["pages"] <= 4
    assert large["weight"] <= 32_000_000 + 10_100_000
    huge = page.evaluate(LOOK, [4, 1_000_000])
    assert huge["pages"] == 1


# What is asked for at once, where ten pages are in view and ten others are copied.
ASK = """async () => {
  const { Pages } = await import('/ideas/grid/pages.js')
  const pages = new Pages({ columns: [], count: 1e6, rows: () => new Promise(() => {}) }, () => {})
  pages.want(0, 1000)
  pages.all(5000, 6000).catch(() => {})
  const { asked } = pages.size
  pages.end()
  return asked
}"""


def test_no_more_than_two_pages_are_asked_for_at_once(page: Page) -> None:
    assert page.evaluate(ASK) == 2


def test_a_grid_that_left_asks_for_nothing(page: Page) -> None:
    grid = show(page, 5_000, held=True)
    page.wait_for_function("() => waiting.length === 1")
    grid.js("grid.remove()")
    page.wait_for_function("() => aborted.length === 1")
    assert grid.js("calls") == [0]


def test_a_large_json_value_is_only_looked_at_in_part(page: Page) -> None:
    columns: list[dict[str, Any]] = [*COLUMNS, {"name": "extra"}]
    grid = show(page, 1, columns=columns)
    expect(grid.row(0)).to_contain_text("title 0")
    touched = grid.js("""async () => {
      const { brief } = await import('/ideas/grid/cells.js')
      let touched = 0
      const list = new Proxy(Array.from({ length: 1e6 }, (_, at) => at), {
        get(target, name) { touched++; return target[name] },
      })
      return [brief(list).length, touched]
    }""")
    assert touched[0] == 301
    assert touched[1] < 1_000
