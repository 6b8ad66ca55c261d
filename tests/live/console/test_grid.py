"""The grid by keyboard and pointer: what is in the document, what it asks its source for, what it tells its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.live.console.alone import page_of
from tests.live.console.browsing import NARROW, Axe
from tests.live.console.grids import COLUMNS, Grid, show

MILLION, MILLIARD = 1_000_000, 1_000_000_000
WIDE_TABLE = [{"name": f"c{at}"} for at in range(400)]
# Whether all of an element is in view in the grid, below its header and beside the numbers of the rows.
IN_VIEW = """cell => {
  const [one, all] = [cell, document.querySelector('.grid-scroller')].map(each => each.getBoundingClientRect())
  const head = document.querySelector('.grid-head .grid-number').getBoundingClientRect()
  const [begin, end] = document.dir === 'rtl' ? [all.left, head.left] : [head.right, all.right]
  return one.top >= head.bottom - 1 && one.bottom <= all.bottom && one.left >= begin - 1 && one.right <= end + 1
}"""


@pytest.fixture
def page(chrome: Browser, address: str) -> Iterator[Page]:
    with page_of(chrome, address) as made:
        yield made


def is_at(grid: Grid, row: int, column: int) -> None:
    """The focus is there, in view, and nowhere else would Tab lead into the grid."""
    expect(grid.cell(row, column)).to_be_focused()
    assert grid.page.locator("ps-grid [tabindex='0']").count() == 1
    if row >= 0 and column > 0:
        assert grid.cell(row, column).evaluate(IN_VIEW)


@pytest.mark.parametrize("direction", ["ltr", "rtl"])
@pytest.mark.parametrize("count", [50, 3_000, MILLION, MILLIARD])
def test_the_keyboard_goes_everywhere(page: Page, count: int, direction: str) -> None:
    page.evaluate("to => { document.dir = to }", direction)
    grid = show(page, count, columns=WIDE_TABLE)
    # By the first rows columns get other widths.
    grid.loaded()
    onwards, back = ("ArrowRight", "ArrowLeft") if direction == "ltr" else ("ArrowLeft", "ArrowRight")
    grid.enter()
    is_at(grid, -1, 1)
    grid.press("ArrowDown", "ArrowDown", onwards)
    is_at(grid, 1, 2)
    grid.press("ArrowUp", back, back)
    is_at(grid, 0, 0)
    grid.press(back, "End")
    is_at(grid, 0, 400)
    grid.press("Control+End")
    is_at(grid, count - 1, 400)
    grid.press("ArrowDown", onwards, "Home")
    is_at(grid, count - 1, 1)
    grid.press("PageUp", "PageUp")
    at = grid.js("grid.active.row")
    assert 20 < count - at < 40
    is_at(grid, at, 1)
    for _ in range(40):
        grid.press("ArrowUp")
        at = max(0, at - 1)
        assert grid.cell(at, 1).evaluate(IN_VIEW)
    grid.press("Control+Home")
    is_at(grid, 0, 1)
    grid.press("ArrowUp")
    is_at(grid, -1, 1)


@pytest.mark.parametrize("count", [3_000, MILLION, MILLIARD])
def test_both_ends_are_where_scrolling_ends(page: Page, count: int) -> None:
    grid = show(page, count)
    grid.scroller.evaluate("it => { it.scrollTop = 1e9 }")
    last = grid.row(count - 1)
    expect(last).to_contain_text(f"title {count - 1}")
    bottoms = (
        "row => [row, document.querySelector('.grid-scroller')].map(it => it.getBoundingClientRect().bottom)"
    )
    row_end, grid_end = last.evaluate(bottoms)
    assert abs(row_end - grid_end) <= 2
    grid.scroller.evaluate("it => { it.scrollTop = 0 }")
    expect(grid.row(0)).to_contain_text("title 0")
    top = grid.row(0).evaluate("row => row.getBoundingClientRect().top")
    assert top == grid.js("document.querySelector('.grid-body').getBoundingClientRect().top")


@pytest.mark.parametrize("count", [3_000, MILLIARD])
def test_a_wheel_moves_rows_by_what_it_turns(page: Page, count: int) -> None:
    grid = show(page, count)
    top = "number => document.querySelector(`[aria-rowindex='${number}']`).getBoundingClientRect().top"
    expect(grid.row(15)).to_contain_text("title")
    before = grid.js(top, 12)
    page.mouse.move(300, 300)
    page.mouse.wheel(0, 96)
    page.wait_for_function(f"() => ({top})(12) === {before - 96}")


def test_lines_say_where_they_are(page: Page) -> None:
    grid = show(page, MILLION, columns=WIDE_TABLE)
    expect(grid.scroller).to_have_attribute("aria-rowcount", str(MILLION + 1))
    expect(grid.scroller).to_have_attribute("aria-colcount", "401")
    grid.enter()
    grid.press("Control+End")
    expect(grid.focus).to_have_attribute("aria-colindex", "401")
    order = "[...document.querySelectorAll('.grid-body .grid-row')].map(row => Number(row.ariaRowIndex))"
    shown = grid.js(order)
    assert shown == sorted(shown)
    grid.press("PageUp")
    shown = grid.js(order)
    assert shown == sorted(shown)
    grid.js("grid.source = Object.assign(sourceOf(70), { exact: false })")
    expect(grid.scroller).to_have_attribute("aria-rowcount", "-1")


def test_the_focus_waits_while_its_cell_is_out_of_view(page: Page) -> None:
    grid = show(page, 5_000)
    grid.enter()
    grid.press("ArrowDown", "ArrowDown", "ArrowRight")
    grid.scroller.evaluate("it => { it.scrollTop = 90000 }")
    expect(grid.scroller).to_be_focused()
    grid.scroller.evaluate("it => { it.scrollTop = 0 }")
    is_at(grid, 1, 2)
    grid.scroller.evaluate("it => { it.scrollTop = 90000 }")
    expect(grid.scroller).to_be_focused()
    grid.press("ArrowDown")
    is_at(grid, 2, 2)


def test_what_is_not_there_yet_is_a_placeholder(page: Page) -> None:
    grid = show(page, None, held=True)
    expect(grid.row(0)).to_have_class("grid-row loading")
    expect(grid.scroller).to_have_attribute("aria-busy", "true")
    grid.js("grid.source.count = 500, release()")
    expect(grid.row(0)).to_contain_text("title 0")
    expect(grid.row(0)).not_to_have_class("grid-row loading")
    expect(grid.scroller).to_have_attribute("aria-busy", "false")


@pytest.mark.parametrize("by", ["pointer", "keyboard"])
def test_what_failed_says_so_in_its_rows_and_is_tried_again(page: Page, by: str) -> None:
    grid = show(page, 5_000)
    grid.js("failing = 250")
    grid.scroller.evaluate("it => { it.scrollTop = 195 * 32 }")
    failed = grid.row(200)
    expect(failed).to_contain_text("The service does not answer.")
    expect(grid.row(199)).to_contain_text("title 199")
    # Where the first one is no longer in view, another says it.
    grid.scroller.evaluate("it => { it.scrollTop = 210 * 32 }")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    grid.js("failing = null")
    if by == "pointer":
        page.get_by_role("button", name="Try again").click()
    else:
        grid.js("grid.focusCell(215, 'title')")
        grid.press("Enter")
    expect(grid.row(215)).to_contain_text("title 215")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


def test_a_header_sorts(page: Page) -> None:
    grid = show(page, 100, columns=[*COLUMNS, {"name": "raw", "sortable": False}])
    header = page.get_by_role("columnheader", name="title")
    header.click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    grid.press("Enter")
    expect(header).to_have_attribute("aria-sort", "descending")
    page.get_by_role("columnheader", name="id").click(modifiers=["Shift"])
    for _ in range(4):
        header.click()
    expect(header).to_have_attribute("aria-sort", "none")
    page.get_by_role("columnheader", name="raw").click()
    title, number = ({"column": name, "descending": False} for name in ("title", "id"))
    back = {**title, "descending": True}
    orders = [told["order"] for told in grid.told("sort")]
    assert orders == [[title], [back], [back, number], [], [title], [back], []]


@pytest.mark.parametrize("direction", ["ltr", "rtl"])
def test_columns_are_made_wider_by_pointer_and_by_keyboard(page: Page, direction: str) -> None:
    page.evaluate("to => { document.dir = to }", direction)
    grid = show(page, 100)
    expect(grid.row(0)).to_contain_text("title 0")
    header = page.get_by_role("columnheader", name="title")
    wide = "it => Math.round(it.getBoundingClientRect().width)"
    before = header.evaluate(wide)
    box = header.locator(".grid-handle").bounding_box()
    assert box is not None
    sign = 1 if direction == "ltr" else -1
    page.mouse.move(box["x"] + 4, box["y"] + 4)
    page.mouse.down()
    page.mouse.move(box["x"] + 4 + sign * 60, box["y"] + 4)
    page.mouse.up()
    expect(header).to_have_js_property("offsetWidth", before + 60)
    assert not grid.told("sort")
    grid.enter()
    onwards, back = ("ArrowRight", "ArrowLeft") if direction == "ltr" else ("ArrowLeft", "ArrowRight")
    grid.press(onwards, f"Shift+{onwards}", f"Shift+{onwards}", f"Shift+{back}")
    page.wait_for_function(f"() => grid.widths.get('title') === {before + 76}")
    header.locator(".grid-handle").dblclick()
    page.wait_for_function("() => !grid.widths.has('title')")
    expect(header).to_have_js_property("offsetWidth", before)


def test_columns_are_as_wide_as_what_the_first_rows_have(page: Page) -> None:
    columns = [{"name": name} for name in ("short", "long", "longest")]
    row = {"short": "a", "long": "a sentence of some words", "longest": "word " * 1000}
    grid = show(page, 1, row, columns=columns)
    expect(grid.row(0)).to_contain_text("a sentence of some words")
    widths = [grid.cell(0, at).evaluate("it => it.offsetWidth") for at in (1, 2, 3)]
    assert widths == sorted(set(widths))
    assert grid.cell(0, 2).locator("bdi").evaluate("it => it.scrollWidth <= it.offsetWidth")
    assert widths[2] <= 360


def test_columns_are_hidden_and_put_into_another_order(page: Page) -> None:
    grid = show(page, 10, columns=[*COLUMNS, {"name": "more"}])
    grid.js("grid.shown = ['more', 'id', 'unknown']")
    expect(page.locator(".grid-head [aria-colindex='2']")).to_contain_text("more")
    assert page.get_by_role("columnheader").count() == 3
    expect(grid.cell(4, 2)).to_have_text("4")
    grid.js("grid.shown = null")
    expect(page.get_by_role("columnheader")).to_have_count(4)


def test_rows_are_selected_by_the_keyboard(page: Page) -> None:
    grid = show(page, 5_000)
    grid.loaded()
    grid.enter()
    grid.press("ArrowDown", "Space")
    expect(grid.row(0)).to_have_attribute("aria-selected", "true")
    grid.press("ArrowDown", "ArrowDown", "Shift+Space")
    # Those between are not all there: they are fetched.
    grid.js("grid.focusCell(450, 'id')")
    grid.press("Shift+Space")
    page.wait_for_function("() => grid.selection.rows.size === 451")
    assert grid.told("selected")[-1]["ids"] == list(range(451))
    grid.press("Space")
    assert grid.told("selected")[-1]["count"] == 450
    grid.press("Control+a")
    expect(grid.row(450)).to_have_attribute("aria-selected", "true")
    assert grid.told("selected")[-1] == {"all": True, "count": 5_000, "ids": []}
    grid.press("Space")
    expect(page.locator("[aria-selected='true']")).to_have_count(0)
    assert grid.told("selected")[-1] == {"all": False, "count": 0, "ids": []}


def test_rows_are_selected_by_the_pointer(page: Page) -> None:
    grid = show(page, 100)
    grid.loaded()
    grid.cell(2, 0).click()
    grid.cell(5, 0).click(modifiers=["Shift"])
    grid.cell(3, 0).click()
    assert grid.told("selected")[-1]["ids"] == [2, 4, 5]
    page.get_by_role("columnheader", name="All rows").click()
    assert grid.told("selected")[-1]["all"]
    grid.js("grid.source = sourceOf(100)")
    assert grid.told("selected")[-1] == {"all": False, "count": 0, "ids": []}


def test_cells_are_copied_for_spreadsheets(chrome: Browser, address: str) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "title": 'tab\there "so"'},
        {"id": None, "title": "two\nlines"},
        {"id": 3, "title": {"a": [1]}},
    ]
    with page_of(chrome, address, permissions=["clipboard-read", "clipboard-write"]) as page:
        grid = show(page, 900, *rows)
        grid.loaded()
        grid.enter()
        grid.press("ArrowDown", "Shift+ArrowDown", "Shift+ArrowDown", "Shift+ArrowRight", "Control+c")
        read = "navigator.clipboard.readText()"
        assert page.evaluate(read) == '1\t"tab\there ""so"""\n\t"two\nlines"\n3\t"{""a"":[1]}"'
        assert grid.told("copied") == [{"rows": 3, "columns": 2}]
        assert page.locator(".grid-body .grid-cell[aria-selected='true']").count() == 6
        grid.press("Escape", "Control+c")
        assert page.evaluate(read) == '"{""a"":[1]}"'
        grid.cell(4, 1).hover()
        page.mouse.down()
        grid.cell(6, 1).hover()
        page.mouse.up()
        grid.press("Control+c")
        assert page.evaluate(read) == "4\n5\n6"
        # Rows that were never fetched are, first.
        grid.press("Control+Shift+End", "Control+c")
        page.wait_for_function("() => told.at(-1)[1].rows === 896")
        assert page.evaluate(read).splitlines()[-1] == "899\ttitle 899"


EDITING = """() => {
  window.saved = []
  grid.addEventListener('edit', ({ detail: { index, row, value, typed, use } }) => {
    const field = document.createElement('input')
    field.ariaLabel = 'title'
    field.value = typed || value
    use(field, async () => {
      if (field.value === 'refused') return false
      if (field.value === 'wrong') throw new Error('That is wrong.')
      saved.push([index, field.value])
      grid.replace(index, { ...row, title: field.value })
    })
  })
}"""


@pytest.fixture
def editing(page: Page) -> Grid:
    grid = show(page, 5_000, columns=[*COLUMNS, {"name": "more", "editable": True}])
    grid.js(EDITING)
    expect(grid.row(1)).to_contain_text("title 1")
    grid.js("grid.focusCell(1, 'title')")
    return grid


@pytest.mark.parametrize("begin", ["Enter", "F2", "double click"])
def test_a_cell_is_edited_in_its_place(editing: Grid, begin: str) -> None:
    page = editing.page
    if begin == "double click":
        editing.cell(1, 2).dblclick()
    else:
        editing.press(begin)
    field = page.get_by_label("title", exact=True).and_(page.locator("input"))
    expect(field).to_be_focused()
    expect(field).to_have_value("title 1")
    boxes = [one.bounding_box() for one in (page.locator(".grid-editor"), editing.cell(1, 2))]
    assert boxes[0] and boxes[1]
    assert abs(boxes[0]["x"] - boxes[1]["x"]) <= 2
    assert abs(boxes[0]["y"] - boxes[1]["y"]) <= 2
    field.fill("changed")
    editing.press("Enter")
    is_at(editing, 2, 2)
    expect(editing.cell(1, 2)).to_have_text("changed")
    assert editing.js("saved") == [[1, "changed"]]


def test_typing_begins_editing(editing: Grid) -> None:
    editing.press("x")
    expect(editing.focus).to_have_value("x")
    editing.press("y", "Tab")
    is_at(editing, 1, 3)
    assert editing.js("saved") == [[1, "xy"]]


def test_escape_ends_editing_without_saving(editing: Grid) -> None:
    editing.press("F2")
    editing.page.keyboard.insert_text("unwanted")
    editing.press("Escape")
    is_at(editing, 1, 2)
    expect(editing.page.locator(".grid-editor")).to_have_count(0)
    assert editing.js("saved") == []
    expect(editing.cell(1, 2)).to_have_text("title 1")


@pytest.mark.parametrize("value", ["refused", "wrong"])
def test_an_editor_stays_until_its_value_is_saved(editing: Grid, value: str) -> None:
    editing.press("F2")
    editing.focus.fill(value)
    editing.press("Enter")
    if value == "wrong":
        expect(editing.page.get_by_role("alert")).to_have_text("That is wrong.")
    expect(editing.focus).to_have_value(value)
    editing.focus.fill("right")
    editing.press("Enter")
    is_at(editing, 2, 2)
    assert editing.js("saved") == [[1, "right"]]


def test_an_editor_saves_when_the_focus_goes_elsewhere(editing: Grid) -> None:
    editing.press("F2")
    editing.focus.fill("left")
    editing.page.get_by_role("button", name="Before").click()
    expect(editing.page.locator(".grid-editor")).to_have_count(0)
    expect(editing.page.get_by_role("button", name="Before")).to_be_focused()
    assert editing.js("saved") == [[1, "left"]]


def test_an_editor_stays_in_view_while_its_cell_does_not(editing: Grid) -> None:
    editing.press("F2")
    editing.focus.fill("kept")
    editing.scroller.evaluate("it => { it.scrollTop = 90000 }")
    expect(editing.row(2_812)).to_be_attached()
    expect(editing.focus).to_have_value("kept")
    expect(editing.focus).to_be_in_viewport(ratio=1)
    editing.press("Enter")
    is_at(editing, 2, 2)


def test_other_cells_are_opened_and_followed(page: Page) -> None:
    grid = show(page, 10, columns=COLUMNS)
    columns = "[{ name: 'id', link: value => value % 2 === 0 }, grid.source.columns[1]]"
    grid.js(f"grid.source = {{ ...grid.source, columns: {columns} }}")
    # Of the new source; the rows of the one before are shown until then.
    expect(grid.cell(4, 1).get_by_role("button")).to_be_visible()
    grid.cell(1, 1).dblclick()
    grid.cell(3, 2).click()
    grid.press("Shift+Enter")
    assert [(told["column"], told["value"]) for told in grid.told("open")] == [
        ("id", 1),
        ("title", "title 3"),
    ]
    grid.cell(4, 1).get_by_role("button").click()
    grid.press("Control+Enter", "ArrowDown", "Control+Enter")
    assert [told["value"] for told in grid.told("follow")] == [4, 4]


def test_values_are_text_and_short(page: Page) -> None:
    markup = "<img src=x onerror=window.canary=1><script>window.canary=1</script>"
    long = "x" + "\U0001f600" * 1_000_000
    columns = [{"name": name} for name in ("markup", "long", "json", "null", "word", "blank", "lines")]
    nested: Any = "deep"
    for _ in range(200):
        nested = [nested]
    row = {
        "markup": markup,
        "long": long,
        "json": {"a": nested},
        "null": None,
        "word": "null",
        "blank": "",
        "lines": "one\ntwo",
    }
    grid = show(page, 1, row, columns=columns)
    expect(grid.cell(0, 1)).to_have_text(markup)
    assert page.locator("ps-grid :is(img, script)").count() == 0
    assert grid.js("window.canary") is None
    texts = [grid.cell(0, at).evaluate("it => it.textContent") for at in range(1, 8)]
    assert texts[1] == "x" + "\U0001f600" * 149 + "…"
    assert len(texts[2]) == 301
    assert texts[2].startswith('{"a": [[[[')
    assert texts[3] == texts[4] == "null"
    assert texts[6] == "one↵two"
    # A null is not told by its colour alone: its frame, and its name.
    border = "it => getComputedStyle(it.firstChild).borderTopStyle"
    assert [grid.cell(0, at).evaluate(border) for at in (4, 5)] == ["dashed", "none"]
    expect(grid.cell(0, 4)).to_have_attribute("aria-label", "null, no value")
    # What turns the direction of text around does so for its own value only.
    bidi = "all => all.every(it => getComputedStyle(it).unicodeBidi === 'isolate')"
    assert page.locator(".grid-cell > bdi").evaluate_all(bidi)
    grid.js("grid.addEventListener('open', event => { window.whole = event.detail.value.length }, true)")
    grid.js("grid.focusCell(0, 'long')")
    grid.press("Enter")
    assert grid.js("window.whole") == 2_000_001


def test_what_is_added_at_the_end_can_be_followed(page: Page) -> None:
    grid = show(page, 30)
    expect(grid.row(0)).to_contain_text("title 0")
    grid.js("grid.follow()")
    expect(grid.row(29)).to_be_in_viewport(ratio=1)
    assert grid.js("grid.atEnd")
    grid.js("grid.source.count = 60, grid.grew(), grid.follow()")
    expect(grid.row(59)).to_contain_text("title 59")
    expect(grid.row(59)).to_be_in_viewport(ratio=1)
    # What was there stays while the page is fetched again.
    grid.js("held = true, grid.source.count = 61, grid.grew()")
    page.wait_for_function("() => waiting.length === 1")
    expect(grid.row(58)).to_contain_text("title 58")
    grid.js("release()")
    expect(grid.row(60)).to_contain_text("title 60")


def test_an_empty_source_says_what_could_be_here(page: Page) -> None:
    grid = show(page, 0)
    grid.js("grid.empty = 'No notes yet.'")
    expect(page.get_by_text("No notes yet.")).to_be_visible()
    grid.js("grid.source = sourceOf(3)")
    expect(grid.row(2)).to_be_visible()
    expect(page.get_by_text("No notes yet.")).not_to_be_visible()


# An estimate of 5,000 rows where there are 130.
ENDS_BEFORE = """() => {
  const real = sourceOf(130)
  const rows = async function (from, to, signal) {
    this.count = 130
    return real.rows(from, to, signal)
  }
  grid.source = { ...real, count: 5000, exact: false, rows }
}"""


def test_a_source_learns_where_it_ends(page: Page) -> None:
    grid = show(page, 120)
    grid.js(ENDS_BEFORE)
    expect(grid.row(0)).to_contain_text("title 0")
    expect(grid.scroller).to_have_attribute("aria-rowcount", "-1")
    grid.js("grid.follow()")
    expect(grid.row(129)).to_be_visible()
    assert page.locator(".grid-body").evaluate("it => it.offsetHeight") == 130 * 32


@pytest.mark.parametrize(
    "options",
    [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": NARROW, "has_touch": True}],
    ids=["light", "dark", "narrow"],
)
def test_the_grid_keeps_nobody_out(chrome: Browser, address: str, axe: Axe, options: dict[str, Any]) -> None:
    rows: list[dict[str, Any]] = [{"id": None, "title": ""}, {"id": 1, "title": None}]
    with page_of(chrome, address, **options) as page:
        grid = show(page, 5_000, *rows)
        expect(grid.row(1)).to_contain_text("null")
        grid.enter()
        grid.press("ArrowDown", "Space", "Shift+ArrowDown")
        axe.check_page(page)
        grid.js("failing = 250")
        row = "parseFloat(getComputedStyle(it).getPropertyValue('--grid-row'))"
        grid.scroller.evaluate(f"it => {{ it.scrollTop = 205 * {row} }}")
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
        axe.check_page(page)


@pytest.mark.parametrize("direction", ["ltr", "rtl"])
def test_it_is_seen_that_columns_follow(page: Page, direction: str) -> None:
    page.evaluate("to => { document.dir = to }", direction)
    grid = show(page, 50, columns=WIDE_TABLE)
    shown = page.locator("ps-grid.goes-on")
    expect(shown).to_have_count(1)
    grid.enter()
    grid.press("End")
    expect(shown).to_have_count(0)
    grid.press("Home")
    expect(shown).to_have_count(1)


def test_delete_clears_what_can_be_edited(page: Page) -> None:
    grid = show(page, 50)
    grid.js(
        "grid.addEventListener('clear', ({ detail: { index, column } }) => told.push(['clear', { index, column }]))"
    )
    grid.loaded()
    grid.enter()
    grid.press("ArrowDown", "Delete", "ArrowRight", "Delete")
    assert grid.told("clear") == [{"index": 0, "column": "title"}]
