"""The console in Chromium: how soon it can be used, and how smooth it is beside 1,000,000 rows and 1,500 tables.

    python -m benchmarks.console [--rounds 3]

Left out where there is no Chromium. A frame is the time between two of the browser's, 16.7 ms where nothing is late;
the longest of each round counts. Beside it is the CPU time of the longest task of the page's thread, which tells how
much of that is the console's own, and how much what else the machine did.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.report import HEADING, Row, show
from benchmarks.running import Running, service

ROWS, TABLES = 1_000_000, 1_500
_FRAMES = 180
SCHEMA = (
    """create table readings (id bigint generated always as identity primary key, sensor int not null,
    at timestamptz not null, value double precision, state text, note text, extra jsonb)""",
    f"""insert into readings (sensor, at, value, state, note, extra) select i % 100,
    '2026-01-01'::timestamptz + i * interval '1 second', sin(i), (array['good', 'bad', null])[1 + i % 3],
    'Reading number ' || i, jsonb_build_object('battery', i % 101) from generate_series(1, {ROWS}) i""",
    f"""do $$ begin for i in 1..{TABLES - 1} loop
    execute format('create table other_%s (id int primary key, note text)', lpad(i::text, 4, '0'));
    end loop; end $$""",
    "vacuum analyze readings",
    "notify pgrst",
)
# The moment at which something is in the document, in ms after the page was asked for.
_APPEARS = """selector => {
  const look = () => {
    if (!document.querySelector(selector)) return false
    window.appeared ??= performance.now()
    return true
  }
  new MutationObserver(look).observe(document, { childList: true, subtree: true, attributes: true })
}"""
# Scrolls an element by what `move` gives for each frame, and gives the longest time between two.
_SCROLL = """([selector, kind, frames]) => new Promise(done => {
  const box = document.querySelector(selector)
  const moves = {
    slowly: at => box.scrollTop + 24,
    quickly: at => box.scrollTop + 1200,
    anywhere: at => (at % 5 ? box.scrollTop + 300 : (at * 7919 % 1000) / 1000 * box.scrollHeight),
  }
  let before = null, longest = 0, at = 0
  box.scrollTop = 0
  const frame = now => {
    if (before !== null) longest = Math.max(longest, now - before)
    before = now
    if (at++ >= frames) return done(longest)
    box.scrollTop = moves[kind](at)
    requestAnimationFrame(frame)
  }
  setTimeout(() => requestAnimationFrame(frame), 300)
})"""
# Types into a field, and gives the longest time until the frame after a letter.
_TYPE = """([selector, text]) => new Promise(async done => {
  const field = document.querySelector(selector)
  let longest = 0
  for (let to = 1; to <= text.length; to++) {
    await new Promise(go => requestAnimationFrame(go))
    const begin = performance.now()
    field.value = text.slice(0, to)
    field.dispatchEvent(new InputEvent('input', { bubbles: true }))
    await new Promise(go => requestAnimationFrame(() => setTimeout(go)))
    longest = Math.max(longest, performance.now() - begin)
  }
  done(longest)
})"""
_GRID, _LIST, _ROW = "ps-grid .grid-scroller", "nav.side", "ps-grid .grid-body .grid-row:not(.loading)"


def measured(rounds: int) -> list[Row]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        print("there is no Chromium: the console is not measured")
        return []
    with service(2) as running, sync_playwright() as playwright:
        with closing(psycopg2.connect(running.dsn)) as connection:
            connection.autocommit = True
            for statement in SCHEMA:
                connection.cursor().execute(statement)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        rows = show(_measure(running, browser, rounds))
        browser.close()
    return rows


def _measure(running: Running, browser: Browser, rounds: int) -> Iterator[Row]:
    address = "tables/dev/main"
    first = [_appears(running, browser, address, "nav.side li") for _ in range(rounds)]
    yield _row(f"console: the list of {TABLES:,} tables", first, 1000)
    rows = [_appears(running, browser, f"{address}/public/readings", _ROW) for _ in range(rounds)]
    yield _row(f"console: a table of {ROWS:,} rows", rows, 1000)
    with _opened(running, browser, f"{address}/public/readings") as page:
        page.wait_for_selector(_ROW)
        for kind, how in (("slowly", "row by row"), ("quickly", "by screens"), ("anywhere", "by the bar")):
            yield _scrolled(page, f"frame, {ROWS:,} rows, {how}", _GRID, kind, rounds)
            page.wait_for_selector(_ROW)
    with _opened(running, browser, address) as page:
        page.wait_for_selector(f"{_LIST} li")
        yield _scrolled(page, f"frame, list of {TABLES:,} tables", _LIST, "slowly", rounds)
        letters = [page.evaluate(_TYPE, [f"{_LIST} input", "other_0012"]) for _ in range(rounds)]
        yield _row(f"a letter to find one of {TABLES:,} tables", letters, 100)


def _scrolled(page: Page, work: str, selector: str, kind: str, rounds: int) -> Row:
    browser = page.context.browser
    assert browser is not None
    frames, tasks = [], []
    for _ in range(rounds):
        browser.start_tracing(page=page, categories=["toplevel"])
        frames.append(page.evaluate(_SCROLL, [selector, kind, _FRAMES]))
        tasks.append(_longest_task(json.loads(browser.stop_tracing())["traceEvents"]))
    longest, task = statistics.median(frames), statistics.median(tasks)
    return Row(work, f"{longest:.0f} ms", f"its longest work: {task:.0f} ms of CPU", longest, 50, "at most")


def _longest_task(events: list[dict[str, Any]]) -> float:
    """CPU time, in ms, of the longest task of pages' threads."""
    threads = {
        (each["pid"], each["tid"]) for each in events if each.get("args") == {"name": "CrRendererMain"}
    }
    found = (
        float(each["tdur"]) / 1000
        for each in events
        if (each["pid"], each["tid"]) in threads and each["name"].endswith("RunTask") and "tdur" in each
    )
    return max(found)


def _row(work: str, milliseconds: list[float], goal: float) -> Row:
    found = statistics.median(milliseconds)
    return Row(work, f"{found:.0f} ms", f"best {min(milliseconds):.0f} ms", found, goal, "at most")


def _appears(running: Running, browser: Browser, address: str, selector: str) -> float:
    """How long it takes, in a browser that has nothing of it yet, until that is on the page."""
    with _opened(running, browser, address, f"({_APPEARS})({selector!r})") as page:
        page.wait_for_selector(selector, state="attached")
        return float(page.evaluate("window.appeared"))


@contextmanager
def _opened(running: Running, browser: Browser, address: str, script: str = "") -> Iterator[Page]:
    """A page for which somebody has signed in before, with ``script`` run at its begin."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(f"sessionStorage.setItem('project-service.key', {running.service_key!r})")
    if script:
        context.add_init_script(script)
    page = context.new_page()
    page.goto(f"{running.url.rstrip('/')}/console#/{address}")
    yield page
    context.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    print(HEADING)
    measured(given.rounds)


if __name__ == "__main__":
    main()
