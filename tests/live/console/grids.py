"""A grid (``ideas/grid.js``) by itself, with a source of as many rows as a test wants."""

from __future__ import annotations

import json
import re
from typing import Any

from attrs import frozen
from playwright.sync_api import Locator, Page, expect

# ``grid``, and what it has asked for and told. A source waits with its answers where ``held``, until ``release``.
_MAKE = """async ({ count, columns, rows, held, size }) => {
  const made = JSON.parse(rows)
  await import('/ideas/grid.js')
  Object.assign(window, { calls: [], aborted: [], told: [], most: 0, failing: null, held, waiting: [] })
  let now = 0
  window.release = () => { for (const go of waiting.splice(0)) go() }
  window.sourceOf = count => ({
    columns, count,
    async rows(from, to, signal) {
      calls.push(from)
      most = Math.max(most, ++now)
      let over = () => { now--; over = () => {} }
      try {
        await new Promise((done, fail) => {
          signal.addEventListener('abort', () => { over(); aborted.push(from); fail(signal.reason) })
          if (window.held) waiting.push(done)
          else setTimeout(done)
        })
        if (failing !== null && from <= failing && failing < to) throw new Error('The service does not answer.')
        const numbers = Array.from({ length: Math.max(0, Math.min(to, this.count) - from) }, (_, at) => from + at)
        return numbers.map(id => made[id] ?? { id, title: `title ${id}` })
      } finally { over() }
    },
  })
  window.grid = document.createElement('ps-grid')
  grid.label = 'Rows'
  grid.selectable = true
  for (const name of ['sort', 'selected', 'edit', 'open', 'follow', 'copied'])
    grid.addEventListener(name, event => {
      const { row, use, rows, ...detail } = event.detail
      told.push([name, Array.isArray(rows) ? { ...detail, ids: rows.map(row => row.id) } : { ...detail, rows }])
    })
  grid.source = sourceOf(count)
  grid.style.setProperty('block-size', `${size}px`)
  const before = document.createElement('button')
  before.textContent = 'Before'
  document.body.append(before, grid)
}"""
COLUMNS = [{"name": "id", "numeric": True, "type": "int8"}, {"name": "title", "editable": True}]


@frozen
class Grid:
    page: Page
    scroller: Locator

    def js(self, expression: str, value: Any = None) -> Any:
        return self.page.evaluate(expression, value)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def enter(self) -> None:
        """The focus is on the first header."""
        self.page.get_by_role("button", name="Before").focus()
        self.press("Tab")

    @property
    def focus(self) -> Locator:
        return self.page.locator(":focus")

    def row(self, number: int) -> Locator:
        """The row from 0."""
        return self.page.locator(f'.grid-body [aria-rowindex="{number + 2}"]')

    def cell(self, row: int, column: int) -> Locator:
        """By the row from 0 and the column from 1; row -1 is the header, column 0 the rows' numbers."""
        return self.page.locator(f'ps-grid [aria-rowindex="{row + 2}"] > [aria-colindex="{column + 1}"]')

    def loaded(self) -> None:
        """Returns when the first row is there: what is done with cells before is done with nothing."""
        expect(self.row(0)).to_have_class("grid-row")

    def told(self, name: str) -> list[Any]:
        return [detail for event, detail in self.js("told") if event == name]


def show(page: Page, count: int | None, *rows: dict[str, Any], **options: Any) -> Grid:
    """A grid of ``count`` rows, the first of which are ``rows``; ``columns``, ``held`` and ``size`` (px) may be
    given. It has been drawn, without which there is nothing to scroll; its rows may not be there yet (``loaded``)."""
    made = {
        "count": count,
        "rows": json.dumps(rows, ensure_ascii=False),
        "columns": COLUMNS,
        "held": False,
        "size": 600,
        **options,
    }
    page.evaluate(_MAKE, made)
    grid = Grid(page, page.locator(".grid-scroller"))
    expect(grid.scroller).to_have_attribute("aria-rowcount", re.compile("."))
    return grid
