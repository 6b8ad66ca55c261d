"""Charts: what they show at which moment, by pointer, keyboard and screen reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.live.console.alone import page_of
from tests.live.console.browsing import NARROW, Axe

# One value a second from 12:00:00 on; every hundredth of the first series is missing.
MAKE = """async count => {
  await import('/ideas/chart.js')
  const begin = Date.UTC(2026, 0, 5, 12)
  window.pointsTo = (count, of) => Array.from({ length: count }, (_, at) => ({ t: begin + at * 1000, v: of(at) }))
  window.give = count => {
    chart.series = [
      { name: 'all', area: true, points: pointsTo(count, at => (at % 100 === 50 ? null : at)) },
      { name: '<b>failed', tone: 'danger', points: pointsTo(count, at => at % 3) },
    ]
  }
  window.chart = document.createElement('ps-chart')
  chart.label = 'Requests'
  chart.format = value => `${value}/s`
  document.body.append(chart)
  if (count) give(count)
}"""


@pytest.fixture
def page(chrome: Browser, address: str) -> Iterator[Page]:
    with page_of(chrome, address, timezone_id="UTC") as made:
        made.evaluate(MAKE, 600)
        yield made


def test_the_keyboard_reads_moment_after_moment(page: Page) -> None:
    plot = page.get_by_role("slider", name="Requests")
    plot.focus()
    expect(plot).to_have_attribute("aria-valuetext", "12:09:59: all 599/s, <b>failed 2/s")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("PageDown")
    expect(plot).to_have_attribute("aria-valuetext", "12:09:48: all 588/s, <b>failed 0/s")
    expect(page.locator("time")).to_have_text("12:09:48")
    page.keyboard.press("Home")
    expect(plot).to_have_attribute("aria-valuenow", "0")
    expect(page.locator(".chart-value").first).to_have_text("0/s")
    page.keyboard.press("Escape")
    expect(plot).to_have_attribute("aria-valuenow", "599")
    expect(page.locator("time")).to_have_text("")


def test_a_chart_is_no_slider_before_it_has_a_name_and_a_value(page: Page) -> None:
    js = """() => {
      const made = document.createElement('ps-chart')
      made.label = 'Requests'
      document.body.append(made)
      return made.querySelector('[role=slider]') === null
    }"""
    assert page.evaluate(js)
    expect(page.get_by_role("slider", name="Requests")).to_have_count(2)


def test_the_pointer_reads_the_moment_below_it(page: Page) -> None:
    plot = page.get_by_role("slider", name="Requests")
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 9, box["y"] + 30)
    expect(page.locator("time")).to_have_text("12:09:59")
    expect(page.locator(".chart-dot")).to_have_count(2)
    page.mouse.move(5, 5)
    expect(page.locator(".chart-dot")).to_have_count(0)


def test_who_looks_at_a_moment_stays_there_while_others_come(page: Page) -> None:
    plot = page.get_by_role("slider", name="Requests")
    plot.focus()
    page.keyboard.press("ArrowLeft")
    page.evaluate("give(700)")
    expect(plot).to_have_attribute("aria-valuemax", "699")
    expect(plot).to_have_attribute("aria-valuetext", "12:09:58: all 598/s, <b>failed 1/s")


def test_screen_readers_have_a_table(page: Page) -> None:
    table = page.get_by_role("table", name="Requests")
    expect(table.get_by_role("columnheader")).to_have_text(["Time", "all", "<b>failed"])
    rows = table.get_by_role("row")
    expect(rows).to_have_count(61)
    expect(rows.last.locator("th, td")).to_have_text(["12:09:59", "599/s", "2/s"])


def test_a_missing_value_is_a_gap(page: Page) -> None:
    line = page.locator(".chart-plot .chart-line").first
    assert (line.get_attribute("d") or "").count("M") == 7
    page.evaluate("chart.series = [{ name: 'one', points: [{ t: 0, v: 1 }] }]")
    expect(page.locator(".chart-plot .chart-line")).to_have_count(1)
    assert (line.get_attribute("d") or "").endswith("h0")
    # A value between gaps is seen as well.
    point = page.locator(".chart-plot .chart-point")
    expect(point).to_have_count(1)
    assert float(point.get_attribute("r") or 0) >= 2
    page.evaluate("give(600)")
    expect(point).to_have_count(0)


def test_axes_have_round_marks(page: Page) -> None:
    js = "async args => { const { marks } = await import('/ideas/chart.js'); return marks(...args) }"
    cases: list[tuple[list[Any], list[float]]] = [
        ([97, 4], [0, 50, 100]),
        ([100, 4], [0, 50, 100]),
        ([1_000_000_000, 5], [0, 2e8, 4e8, 6e8, 8e8, 1e9]),
        ([3 * 1024**2, 4, True], [0, 1024**2, 2 * 1024**2, 3 * 1024**2]),
        ([700, 4, True], [0, 256, 512, 768]),
        ([0, 4], [0, 1]),
    ]
    assert [page.evaluate(js, given) for given, _ in cases] == [found for _, found in cases]
    assert page.evaluate(js, [0.035, 4]) == pytest.approx([0, 0.01, 0.02, 0.03, 0.04])


@pytest.mark.parametrize(
    "options",
    [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": NARROW}],
    ids=["light", "dark", "narrow"],
)
def test_a_chart_keeps_nobody_out(chrome: Browser, address: str, axe: Axe, options: dict[str, Any]) -> None:
    with page_of(chrome, address, **options) as page:
        page.evaluate(MAKE, 0)
        expect(page.get_by_text("Nothing has been measured yet.")).to_be_visible()
        axe.check_page(page)
        page.evaluate("give(600)")
        page.get_by_role("slider").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".chart-dot")).to_have_count(2)
        axe.check_page(page)
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(wide)
