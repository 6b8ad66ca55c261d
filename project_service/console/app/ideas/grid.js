/**
 * `<ps-grid>`: rows of a source of any length, of which only those in view are in the document.
 *
 *     const grid = /** @type {Grid} *\/ (document.createElement("ps-grid"))
 *     grid.label = "Rows of notes"
 *     grid.source = { columns: [{ name: "id", numeric: true }, { name: "title", editable: true }], count: 1000000,
 *                     rows: async (from, to, signal) => … }
 *     grid.addEventListener("sort", event => …)
 *
 * It has the size that styles give it (a flex item that grows, or a `block-size`), and scrolls inside. In `html`
 * templates properties are set by `.source=${…}` and events caught by `@sort=${…}`. Styles: style/grid.css.
 *
 * Properties
 * - `source` (Source): a new one begins at the first row, with nothing selected and nothing edited; column widths
 *   that somebody chose are kept by name.
 * - `label` (string): the accessible name.
 * - `order` (Order[]): what the headers show. A click (or Enter, Space) on a header changes it: ascending,
 *   descending, none; with Shift it is added to what there is.
 * - `shown` (string[] | null): names of the columns that are shown, in their order; null is all.
 * - `widths` (Map of name to px): those that somebody chose; may be set.
 * - `selectable` (boolean): rows can be selected, by their number at the start, by Space, or all by the corner.
 * - `empty` (string | Node): what is shown where the source has no rows.
 * - `selection` ({ all: boolean, rows: Map<number, Row> }): read only; `all` is every row of the source, also those
 *   that were never fetched, and `rows` is empty then.
 * - `active` ({ row, column }): read only; the row's number from 0 (-1 is the header) and the column's name, or null
 *   for the row's number.
 *
 * Methods
 * - `reload()`: fetches again what is in view, at the same place; what is selected is forgotten.
 * - `grew()`: `source.count` has changed, for example by new lines of a log; what is fetched is kept, but the last
 *   page if it was not full. `follow()` scrolls to the last row, and `atEnd` is whether it is in view.
 * - `replace(index, row)`: another value of a row that was fetched (after editing); `rowAt(index)` is that or undefined.
 * - `clearSelection()`, `focusCell(index, name)` (scrolls to it), `edit()` (begins editing the active cell).
 *
 * Events (CustomEvents that bubble, details below)
 * - `sort` { order }: the page gives a source in that order.
 * - `selected` { all, count, rows }: what is selected has changed.
 * - `edit` { index, row, column, value, typed, use }: Enter, F2, a double click or a character typed (`typed`) on a
 *   cell of an `editable` column. The page calls `use(editor, save)` at once or later; the grid puts `editor` over the
 *   cell and focuses it. `save()` is called on Enter (in a textarea Ctrl-Enter), Tab, or when the focus goes
 *   elsewhere; the editor stays if it gives (a promise of) false, and what it throws is shown as its message. Escape
 *   ends without `save`.
 * - `open` { index, row, column, value }: the whole value is asked for: Enter or a double click on other cells,
 *   Shift-Enter on any. The grid shows at most the first 300 characters.
 * - `clear` { index, row, column, value }: Delete on a cell of an `editable` column.
 * - `follow` { index, row, column, value }: the arrow in a cell of a column with `link`, or Ctrl-Enter.
 * - `copied` { rows, columns }: so many are on the clipboard as TSV (Ctrl-C: the cells chosen by Shift and arrows or
 *   by dragging; in the column of row numbers: the selected rows).
 *
 * @typedef {Record<string, unknown> | unknown[]} Row a value is `row[column.name]`, so rows may be arrays with the
 *   names "0", "1", …
 *
 * @typedef {object} Column
 * @property {string} name differs from those of the others
 * @property {string} [title] what the header says, if not the name
 * @property {string} [type] what the header says beside it, quietly
 * @property {boolean} [numeric] aligned at the end
 * @property {boolean} [sortable] true if not given
 * @property {boolean} [editable]
 * @property {(value: any, row: Row) => boolean} [link] whether the value leads somewhere
 * @property {(value: any, row: Row) => string | null | undefined} [text] the value in words; null is shown as a null
 * @property {(value: any, row: Row) => string | null | undefined} [tone] `data-tone` of the cell, for styles: "danger",
 *   "warning", "quiet", "good"
 * @property {number} [characters] of a value that a column is made wide enough for by itself, if fewer than 80
 * @property {number} [width] px; from the content of the first rows if not given
 *
 * @typedef {object} Source
 * @property {readonly Column[]} columns
 * @property {number | null} count of rows, or an estimate, or null: not yet known. Read again after each answer, so a
 *   source that learns where it ends changes it.
 * @property {boolean} [exact] whether `count` is no estimate; true if not given
 * @property {(from: number, to: number, signal: AbortSignal) => Promise<readonly Row[]>} rows those from `from` up to
 *   before `to`: one page, whose rows are fewer only where the source ends. At most 2 are awaited at once; those for
 *   what has been scrolled past are aborted.
 *
 * @typedef {{ column: string, descending: boolean }} Order
 */

import { brief, tsv } from "./grid/cells.js";
import { Pages } from "./grid/pages.js";

/** Browsers do not make elements that are much higher; where rows need more, scrolling is scaled. */
const HIGHEST = 15_000_000;
/** Rows beyond those in view that are in the document, and that are asked for. */
const MARGIN = 6;
const AHEAD = 30;
/** px beyond the columns in view. */
const SIDE = 200;
/** While somebody scrolls: ms between requests. */
const PAUSE = 60;
/** What a null is called beside its look; a text may say "null" as well. */
const NO_VALUE = "null, no value";
const NARROWEST = 56;
const WIDEST = 360;
/** At most so many rows are copied, or selected one by one. */
const MOST = 10_000;
const NUMBER = new Intl.NumberFormat();

/** A row of the document, which shows one row of the source after the other. */
class Line {
  index = -1;
  version = -1;
  /** @type {HTMLElement[]} */
  cells = [];
  /** Says what has failed. @type {HTMLElement | null} */
  note = null;

  constructor() {
    this.element = made("div", "grid-row", { role: "row" });
    this.header = made("div", "grid-cell grid-number", { role: "rowheader", "aria-colindex": "1" });
    this.element.append(this.header);
  }
}

export class Grid extends HTMLElement {
  /** @type {Source} */
  #source = { columns: [], count: 0, rows: async () => [] };
  #pages = new Pages(this.#source, () => {});
  /** @type {Order[]} */
  #order = [];
  /** @type {string[] | null} */
  #shown = null;
  /** @type {readonly Column[]} those that are shown */
  #columns = [];
  /** @type {Map<string, number>} chosen by somebody */
  #chosen = new Map();
  /** @type {Map<string, number>} measured */
  #fitting = new Map();
  /** @type {number[]} where columns begin, and at the end where the last one ends */
  #offsets = [0];
  #selectable = false;
  /** @type {{ all: boolean, rows: Map<number, Row> }} */
  #selection = { all: false, rows: new Map() };
  /** The row that was selected last, from which Shift selects. */
  #pivot = 0;
  /** The active cell: the row from 0 or -1 for the header, and the column from 0 for numbers of rows. */
  #row = -1;
  #column = 1;
  /** The other corner of the cells that are chosen for copying. @type {{ row: number, column: number } | null} */
  #corner = null;
  /** @type {{ holder: HTMLElement, row: number, column: number, save: () => unknown, saving: boolean } | null} */
  #editing = null;

  /** Lines in the document by the rows that they show, and those that show none. @type {Map<number, Line>} */
  #lines = new Map();
  /** @type {Line[]} */
  #spare = [];
  /** Changes when all lines have to be filled anew. */
  #version = 0;
  #drawing = 0;
  /** What is at the top, and what scrollTop was set to for it, where scrolling is scaled. */
  #top = 0;
  #set = 0;
  #height = 0;
  #width = 0;
  #rowHeight = 32;
  #numbers = 48;
  /** Columns in the document: from, up to before. */
  #from = 0;
  #to = 0;
  #askedAt = -Infinity;
  #asking = 0;
  #head = new Line();
  #scroller = made("div", "grid-scroller", { role: "grid", tabindex: "0" });
  #body = made("div", "grid-body", { role: "rowgroup" });
  #nothing = made("div", "grid-empty", {});
  #status = made("div", "unseen", { role: "status" });
  #observer = new ResizeObserver(() => this.#resized());

  constructor() {
    super();
    const top = made("div", "grid-head", { role: "rowgroup" });
    top.append(this.#head.element);
    this.#head.element.ariaRowIndex = "1";
    this.#head.header.role = "columnheader";
    this.#scroller.append(top, this.#body);
    this.#scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#scroller.addEventListener("keydown", (event) => this.#pressed(event));
    this.#scroller.addEventListener("pointerdown", (event) => this.#pointed(event));
    this.#scroller.addEventListener("click", (event) => this.#clicked(event));
    this.#scroller.addEventListener("dblclick", (event) => this.#doubleClicked(event));
    this.#scroller.addEventListener("copy", (event) => this.#copied(event));
    this.#scroller.addEventListener("focus", () => this.#draw());
    this.#scroller.addEventListener("wheel", (event) => this.#wheeled(event), { passive: false });
  }

  connectedCallback() {
    if (!this.#scroller.isConnected) this.append(this.#scroller, this.#nothing, this.#status);
    this.#observer.observe(this.#scroller);
    this.#resized();
    this.#began(this.#source);
  }

  disconnectedCallback() {
    this.#observer.disconnect();
    this.#pages.end();
    this.#close();
    cancelAnimationFrame(this.#drawing);
    clearTimeout(this.#asking);
    this.#drawing = this.#asking = 0;
  }

  // Properties

  get source() {
    return this.#source;
  }

  set source(source) {
    this.#began(source);
    this.#top = this.#set = this.#scroller.scrollTop = 0;
    this.#row = Math.min(this.#row, 0);
  }

  get label() {
    return this.#scroller.ariaLabel ?? "";
  }

  set label(text) {
    this.#scroller.ariaLabel = text;
  }

  get order() {
    return this.#order;
  }

  set order(order) {
    this.#order = order;
    this.#changed();
  }

  get shown() {
    return this.#shown;
  }

  set shown(names) {
    this.#shown = names;
    this.#arrange();
  }

  get widths() {
    return this.#chosen;
  }

  set widths(widths) {
    this.#chosen = new Map(widths);
    this.#arrange();
  }

  get selectable() {
    return this.#selectable;
  }

  set selectable(selectable) {
    this.#selectable = selectable;
    this.classList.toggle("selectable", selectable);
    this.#changed();
  }

  /** @returns {string | Node} */
  get empty() {
    return this.#nothing.textContent ?? "";
  }

  set empty(content) {
    this.#nothing.replaceChildren(content);
  }

  /** @returns {{ all: boolean, rows: ReadonlyMap<number, Row> }} */
  get selection() {
    return this.#selection;
  }

  get active() {
    return { row: this.#row, column: this.#columns[this.#column - 1]?.name ?? null };
  }

  get atEnd() {
    return this.#top >= this.#farthest - 2;
  }

  // Methods

  reload() {
    this.clearSelection();
    this.#pages.reload();
    this.#changed();
  }

  grew() {
    this.#pages.grew();
    this.#changed();
  }

  follow() {
    this.#measure();
    this.#scrollTo(Infinity);
  }

  /** @param {number} index @param {Row} row */
  replace(index, row) {
    this.#pages.replace(index, row);
    if (this.#selection.rows.has(index)) this.#selection.rows.set(index, row);
    this.#changed();
  }

  /** @param {number} index */
  rowAt(index) {
    return this.#pages.row(index) ?? undefined;
  }

  clearSelection() {
    if (this.#selection.all || this.#selection.rows.size) this.#selected(false, new Map());
  }

  /** @param {number} index @param {string | null} name */
  focusCell(index, name) {
    this.#go(index, this.#columns.findIndex((column) => column.name === name) + 1);
  }

  edit(typed = "") {
    const about = this.#about();
    if (!about?.column?.editable) return;
    this.#close();
    const { row, index } = about;
    const at = this.#column;
    /** @param {HTMLElement} editor @param {() => unknown} save */
    const use = (editor, save) => {
      if (this.#source.columns.includes(/** @type {Column} */ (about.column)) && this.#pages.row(index) === row)
        this.#hold(editor, save, index, at);
    };
    this.#emit("edit", { ...about, column: about.column.name, typed, use });
  }

  // What is shown

  /** @param {Source} source */
  #began(source) {
    this.#close();
    this.#pages.end();
    this.#source = source;
    const pages = new Pages(source, () => {
      if (!this.#fitting.size) this.#fit();
      this.#changed();
    });
    this.#pages = pages;
    this.#fitting.clear();
    this.#corner = null;
    this.clearSelection();
    this.#askedAt = -Infinity;
    // Until it is drawn, which asks for what is in view.
    this.#scroller.ariaBusy = "true";
    this.#arrange();
  }

  /** Finds which columns are shown and where. */
  #arrange() {
    const { columns } = this.#source;
    const byName = new Map(columns.map((column) => [column.name, column]));
    this.#columns = (this.#shown ?? [...byName.keys()]).flatMap((name) => byName.get(name) ?? []);
    this.#offsets = [0];
    for (const { name, width } of this.#columns) {
      const px = this.#chosen.get(name) ?? width ?? this.#fitting.get(name) ?? 140;
      this.#offsets.push((this.#offsets.at(-1) ?? 0) + px);
    }
    this.#column = Math.min(this.#column, this.#columns.length);
    this.#changed();
  }

  /** Makes columns as wide as their names and the values of the first rows. */
  #fit() {
    const rows = Array.from({ length: 50 }, (_, index) => this.#pages.row(index)).filter((row) => row);
    const context = document.createElement("canvas").getContext("2d");
    if (!rows.length || !context) return;
    const { fontSize, fontFamily } = getComputedStyle(this.#scroller);
    context.font = `${fontSize} ${fontFamily}`;
    const most = Math.max(NARROWEST, Math.min(WIDEST, 0.6 * this.#width));
    for (const column of this.#columns) {
      const texts = rows.map((row) => (row ? shownText(column, row) : null)?.slice(0, column.characters ?? 80) ?? "");
      const longest = texts.reduce((one, other) => (other.length > one.length ? other : one), "");
      const title = `${brief(column.title ?? column.name, 60)} ${column.type?.slice(0, 12) ?? ""}`;
      const px = Math.max(
        context.measureText(longest).width + (column.link ? 28 : 0),
        context.measureText(title).width + 16,
      );
      this.#fitting.set(column.name, Math.round(Math.max(NARROWEST, Math.min(most, px + 26))));
    }
    this.#arrange();
  }

  #changed() {
    this.#version++;
    this.#draw();
  }

  #draw() {
    if (this.isConnected) this.#drawing ||= requestAnimationFrame(() => this.#drawNow());
  }

  get #count() {
    return this.#source.count ?? Math.ceil(this.#height / this.#rowHeight);
  }

  get #farthest() {
    return Math.max(0, this.#count * this.#rowHeight - this.#height);
  }

  get #isScaled() {
    return this.#count * this.#rowHeight > HIGHEST;
  }

  #drawNow() {
    this.#drawing = 0;
    this.#measure();
    const { count, exact = true } = this.#source;
    this.#scroller.ariaRowCount = count === null || !exact ? "-1" : `${count + 1}`;
    this.#scroller.ariaColCount = `${this.#columns.length + 1}`;
    this.#scroller.ariaMultiSelectable = "true";
    this.#scroller.ariaBusy = `${this.#pages.busy}`;
    this.#nothing.hidden = count !== 0;
    this.#row = Math.min(this.#row, this.#count - 1);
    const hadFocus = this.#scroller.contains(document.activeElement);
    this.#drawColumns();
    if (this.#head.version !== this.#version) this.#fillHead();
    const begin = Math.floor(this.#top / this.#rowHeight);
    const end = begin + Math.ceil(this.#height / this.#rowHeight) + 1;
    this.#drawRows(begin, Math.max(0, begin - MARGIN), Math.min(this.#count, end + MARGIN));
    this.#want(Math.max(0, begin - AHEAD), Math.min(this.#count, end + AHEAD));
    this.#keepFocus(hadFocus);
    this.#place();
  }

  #resized() {
    const height = parseFloat(getComputedStyle(this).getPropertyValue("--grid-row")) || 32;
    if (height === this.#rowHeight) return this.#draw();
    const first = this.#top / this.#rowHeight;
    this.#rowHeight = height;
    this.#measure();
    this.#scrollTo(first * height);
  }

  #measure() {
    this.#numbers = 22 + 7 * NUMBER.format(this.#count).length + (this.#selectable ? 24 : 0);
    this.#height = Math.max(0, this.#scroller.clientHeight - this.#rowHeight);
    this.#width = this.#scroller.clientWidth;
    const height = `${Math.min(HIGHEST, this.#count * this.#rowHeight)}px`;
    if (this.#body.style.blockSize !== height) this.#body.style.blockSize = height;
    if (this.#isScaled) this.#top = Math.min(this.#top, this.#farthest);
    else this.#top = this.#scroller.scrollTop;
  }

  /** Which columns are in the document. */
  #drawColumns() {
    const left = Math.abs(this.#scroller.scrollLeft);
    const last = this.#columns.length;
    let from = 0;
    while (from < last - 1 && (this.#offsets[from + 1] ?? 0) < left - SIDE) from++;
    let to = from;
    while (to < last && (this.#offsets[to] ?? 0) < left + this.#width + SIDE) to++;
    if (from !== this.#from || to !== this.#to) this.#version++;
    this.#from = from;
    this.#to = to;
    const widths = this.#columns.slice(from, to).map((_, at) => `${this.#widthOf(from + at)}px`);
    const tracks = [`${this.#numbers}px`, `${this.#offsets[from]}px`, ...widths].join(" ");
    setProperty(this.#scroller, "--grid-tracks", tracks);
    setProperty(this.#scroller, "--grid-numbers", `${this.#numbers}px`);
    const width = this.#numbers + (this.#offsets.at(-1) ?? 0);
    setProperty(this.#scroller, "--grid-width", `${width}px`);
    this.classList.toggle("goes-on", left + this.#width < width - 1);
    setProperty(this, "--grid-bar", `${this.#scroller.offsetWidth - this.#width}px`);
  }

  /** @param {number} at */
  #widthOf(at) {
    return (this.#offsets[at + 1] ?? 0) - (this.#offsets[at] ?? 0);
  }

  #fillHead() {
    const head = this.#head;
    head.version = this.#version;
    this.#mark(head.header, -1, 0);
    head.header.ariaLabel = this.#selectable ? "All rows" : "Row";
    setSelected(head.header, this.#selectable ? this.#selection.all : null);
    this.#cells(head, () => {
      const cell = made("div", "grid-cell", { role: "columnheader" });
      const order = made("span", "grid-order", { "aria-hidden": "true" });
      const handle = made("span", "grid-handle", { "aria-hidden": "true" });
      cell.append(document.createElement("bdi"), made("bdi", "grid-type", {}), order, handle);
      return cell;
    });
    for (const [at, cell] of head.cells.entries()) {
      const column = this.#columns[this.#from + at];
      const [title, type, mark] = cell.children;
      if (!column || !title || !type || !mark) continue;
      setText(title, brief(column.title ?? column.name, 200));
      setText(type, brief(column.type ?? "", 60));
      const place = this.#order.findIndex((order) => order.column === column.name);
      const descending = this.#order[place]?.descending;
      cell.ariaSort = place < 0 ? (column.sortable === false ? null : "none") : descending ? "descending" : "ascending";
      setText(mark, place < 0 ? "" : (descending ? "▼" : "▲") + (this.#order.length > 1 ? place + 1 : ""));
      cell.classList.toggle("numeric", !!column.numeric);
      this.#mark(cell, -1, this.#from + at + 1);
    }
  }

  /** @param {number} begin the first row in view @param {number} from @param {number} to */
  #drawRows(begin, from, to) {
    for (const [index, line] of this.#lines) {
      if (index >= from && index < to) continue;
      this.#lines.delete(index);
      this.#spare.push(line);
    }
    // In the order of the document, so that those that are all filled anew need not be moved.
    this.#spare.sort((one, other) => one.index - other.index);
    const shift = this.#isScaled ? this.#scroller.scrollTop - this.#top : 0;
    /** @type {Element | null} */
    let before = null;
    for (let index = from; index < to; index++) {
      let line = this.#lines.get(index);
      if (!line) {
        line = this.#spare.shift() ?? new Line();
        line.version = -1;
        this.#lines.set(index, line);
        /** @type {Element | null} */
        const next = before ? before.nextElementSibling : this.#body.firstElementChild;
        if (next !== line.element) this.#body.insertBefore(line.element, next);
      }
      before = line.element;
      const failed = this.#pages.error(index);
      if (line.version !== this.#version || failed !== undefined) {
        line.index = index;
        this.#fill(line, failed, index === begin || (index > begin && failed !== this.#pages.error(index - 1)));
        line.version = this.#version;
      }
      const place = `translateY(${Math.round(index * this.#rowHeight + shift)}px)`;
      if (line.element.style.transform !== place) line.element.style.transform = place;
    }
    for (const line of this.#spare) line.element.remove();
    this.#spare.length = Math.min(this.#spare.length, 2 * MARGIN);
  }

  /** @param {Line} line @param {unknown} failed @param {boolean} isFirst of those that failed */
  #fill(line, failed, isFirst) {
    const { element, header, index } = line;
    const row = this.#pages.row(index);
    element.ariaRowIndex = `${index + 2}`;
    element.classList.toggle("loading", row === undefined && failed === undefined);
    setText(header, NUMBER.format(index + 1));
    const selected = this.#selection.all || this.#selection.rows.has(index);
    setSelected(element, this.#selectable ? selected : null);
    this.#mark(header, index, 0);
    if (failed !== undefined) return this.#fillFailed(line, failed, isFirst);
    line.note?.remove();
    line.note = null;
    this.#cells(line, () => {
      const cell = made("div", "grid-cell", { role: "gridcell" });
      cell.append(document.createElement("bdi"));
      return cell;
    });
    for (const [at, cell] of line.cells.entries()) {
      const column = this.#columns[this.#from + at];
      if (column) fillCell(cell, column, row);
      this.#mark(cell, index, this.#from + at + 1);
    }
  }

  /** @param {Line} line @param {unknown} failed @param {boolean} isFirst */
  #fillFailed(line, failed, isFirst) {
    for (const cell of line.cells.splice(0)) cell.remove();
    if (!line.note) {
      line.note = made("div", "grid-note", {
        role: "gridcell",
        "aria-colindex": "2",
        "aria-colspan": `${this.#columns.length}`,
      });
      line.element.append(line.note);
    }
    this.#mark(line.note, line.index, this.#row === line.index ? Math.max(1, this.#column) : 1);
    const text = document.createElement("bdi");
    text.textContent = isFirst ? brief(failed instanceof Error ? failed.message : failed) : "Not read";
    line.note.replaceChildren(text);
    line.note.classList.toggle("first", isFirst);
    if (!isFirst) return;
    const button = made("button", "grid-again", { type: "button", tabindex: "-1" });
    button.textContent = "Try again";
    line.note.append(button);
  }

  /** Gives a line as many cells as there are columns in the document. @param {Line} line @param {() => HTMLElement} make */
  #cells(line, make) {
    const { cells, element } = line;
    while (cells.length > this.#to - this.#from) cells.pop()?.remove();
    while (cells.length < this.#to - this.#from) {
      const cell = make();
      cells.push(cell);
      element.append(cell);
    }
  }

  /** What a cell is: where, whether the active one, whether chosen. @param {HTMLElement} cell @param {number} row @param {number} column */
  #mark(cell, row, column) {
    const isActive = row === this.#row && column === this.#column;
    const index = `${column + 1}`;
    if (cell.ariaColIndex !== index) cell.ariaColIndex = index;
    if (cell.tabIndex !== (isActive ? 0 : -1) || !cell.hasAttribute("tabindex")) cell.tabIndex = isActive ? 0 : -1;
    cell.classList.toggle("active", isActive);
    if (row >= 0 && column > 0) setSelected(cell, this.#isChosen(row, column) || null);
  }

  /** @param {number} row @param {number} column */
  #isChosen(row, column) {
    if (!this.#corner) return false;
    const { row: otherRow, column: otherColumn } = this.#corner;
    return isBetween(row, this.#row, otherRow) && isBetween(column, this.#column, otherColumn);
  }

  /** @param {number} from @param {number} to */
  #want(from, to) {
    clearTimeout(this.#asking);
    const wait = this.#askedAt + PAUSE - performance.now();
    if (wait > 0) {
      this.#asking = setTimeout(() => this.#want(from, to), wait);
      return;
    }
    this.#asking = 0;
    this.#askedAt = performance.now();
    const wasBusy = this.#pages.busy;
    this.#pages.want(from, Math.max(from + 1, to));
    if (wasBusy !== this.#pages.busy) this.#scroller.ariaBusy = `${this.#pages.busy}`;
  }

  // Scrolling

  #scrolled() {
    const { scrollTop } = this.#scroller;
    if (!this.#isScaled) this.#top = scrollTop;
    else if (Math.abs(scrollTop - this.#set) >= 1) {
      const farthest = HIGHEST - this.#height;
      this.#set = scrollTop;
      this.#top = scrollTop >= farthest - 1 ? this.#farthest : (scrollTop / farthest) * this.#farthest;
    }
    this.#draw();
  }

  /** Where scrolling is scaled, wheels move by as much as elsewhere. @param {WheelEvent} event */
  #wheeled(event) {
    if (!this.#isScaled || event.ctrlKey || event.shiftKey || !event.deltaY) return;
    const by = event.deltaY * (event.deltaMode === 1 ? this.#rowHeight : event.deltaMode === 2 ? this.#height : 1);
    const before = this.#top;
    this.#scrollTo(before + by);
    if (this.#top !== before) event.preventDefault();
  }

  /** @param {number} top */
  #scrollTo(top) {
    this.#top = Math.max(0, Math.min(this.#farthest, top));
    const scaled = (this.#top / (this.#farthest || 1)) * (HIGHEST - this.#height);
    this.#scroller.scrollTop = this.#isScaled ? Math.round(scaled) : this.#top;
    this.#set = this.#scroller.scrollTop;
    this.#draw();
  }

  /** Makes a cell the active one and scrolls to it. @param {number} row @param {number} column @param {boolean} [chooses] */
  #go(row, column, chooses = false) {
    this.#measure();
    const corner = this.#corner ?? { row: Math.max(0, this.#row), column: this.#column };
    this.#row = Math.max(-1, Math.min(this.#count - 1, row));
    this.#column = Math.max(0, Math.min(this.#columns.length, column));
    this.#corner = chooses && this.#row >= 0 ? corner : null;
    const top = this.#row * this.#rowHeight;
    if (this.#row >= 0 && top < this.#top) this.#scrollTo(top);
    else if (top + this.#rowHeight > this.#top + this.#height) this.#scrollTo(top + this.#rowHeight - this.#height);
    if (this.#column > 0) {
      const begin = this.#offsets[this.#column - 1] ?? 0;
      const end = this.#offsets[this.#column] ?? 0;
      const left = Math.abs(this.#scroller.scrollLeft);
      const room = this.#width - this.#numbers;
      const sign = this.#isRightToLeft ? -1 : 1;
      if (begin < left || end - begin > room) this.#scroller.scrollLeft = sign * begin;
      else if (end > left + room) this.#scroller.scrollLeft = sign * (end - room);
    }
    this.#version++;
    cancelAnimationFrame(this.#drawing);
    this.#scroller.focus({ preventScroll: true });
    this.#drawNow();
  }

  get #isRightToLeft() {
    return this.matches(":dir(rtl)");
  }

  /** The focus is on the active cell, or on the grid while that cell is not in the document. @param {boolean} hadFocus */
  #keepFocus(hadFocus) {
    const cell = this.#activeCell();
    this.#scroller.tabIndex = cell ? -1 : 0;
    if (!hadFocus) return;
    const target = cell ?? this.#scroller;
    if (target !== document.activeElement) target.focus({ preventScroll: true });
  }

  /** @returns {HTMLElement | undefined} */
  #activeCell() {
    const line = this.#row < 0 ? this.#head : this.#lines.get(this.#row);
    if (!line) return undefined;
    return this.#column === 0 ? line.header : (line.note ?? line.cells[this.#column - 1 - this.#from]);
  }

  // Keyboard and pointer

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    if (event.defaultPrevented || event.altKey) return;
    const control = event.ctrlKey || event.metaKey;
    const shift = event.shiftKey;
    const page = Math.max(1, Math.floor(this.#height / this.#rowHeight) - 1);
    const onwards = this.#isRightToLeft ? "ArrowLeft" : "ArrowRight";
    const back = this.#isRightToLeft ? "ArrowRight" : "ArrowLeft";
    if (this.#row < 0 && shift && (event.key === onwards || event.key === back)) {
      this.#resize(this.#column, this.#widthOf(this.#column - 1) + (event.key === onwards ? 16 : -16));
    } else if (event.key === onwards) this.#go(this.#row, this.#column + 1, shift);
    else if (event.key === back) this.#go(this.#row, this.#column - 1, shift);
    else if (event.key === "ArrowDown") this.#go(this.#row + 1, this.#column, shift);
    else if (event.key === "ArrowUp") this.#go(shift ? Math.max(0, this.#row - 1) : this.#row - 1, this.#column, shift);
    else if (event.key === "PageDown") this.#go(this.#row + page, this.#column, shift);
    else if (event.key === "PageUp") this.#go(Math.max(0, this.#row - page), this.#column, shift);
    else if (event.key === "Home") this.#go(control ? 0 : this.#row, this.#columns.length ? 1 : 0, shift);
    else if (event.key === "End") this.#go(control ? this.#count - 1 : this.#row, this.#columns.length, shift);
    else if (event.key === "Enter" || event.key === "F2") this.#entered(event.key === "F2", control, shift);
    else if (event.key === " ") this.#spaced(shift);
    else if (event.key === "Delete" && this.#about()?.column?.editable) this.#tell("clear");
    else if (event.key === "a" && control && this.#selectable) this.#selected(true, new Map());
    else if (event.key === "Escape" && this.#corner) this.#go(this.#row, this.#column);
    else if (event.key.length === 1 && !control && this.#about()?.column?.editable) this.edit(event.key);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {boolean} edits @param {boolean} control @param {boolean} shift */
  #entered(edits, control, shift) {
    if (this.#row < 0) return this.#column ? this.#sort(this.#column, shift) : this.#toggleAll();
    if (this.#pages.error(this.#row) !== undefined) return this.#again(this.#row);
    const about = this.#about();
    if (!about) return;
    if (this.#column === 0) this.#toggle(this.#row, shift);
    else if (control) this.#tell("follow");
    else if (about.column?.editable && (edits || !shift)) this.edit();
    else this.#tell("open");
  }

  /** @param {boolean} shift */
  #spaced(shift) {
    if (this.#row >= 0) this.#toggle(this.#row, shift);
    else if (this.#column) this.#sort(this.#column, shift);
    else this.#toggleAll();
  }

  /** Which cell an event is about. @param {Event} event */
  #at(event) {
    const target = /** @type {Element} */ (event.target);
    const cell = target.closest?.(".grid-cell, .grid-note");
    const row = Number(cell?.closest(".grid-row")?.ariaRowIndex) - 2;
    return cell ? { target, row, column: Number(cell.ariaColIndex) - 1 } : null;
  }

  /** @param {PointerEvent} event */
  #pointed(event) {
    const at = this.#at(event);
    if (!at || event.button !== 0 || at.target.closest("button")) return;
    if (at.target.classList.contains("grid-handle")) return this.#dragHandle(event, at.column);
    const touches = event.pointerType === "touch";
    if (at.row < 0 || at.column === 0 || touches) {
      // The click decides; scrolling by a finger begins like this as well.
      if (!touches) event.preventDefault();
      return;
    }
    event.preventDefault();
    this.#go(at.row, at.column, event.shiftKey);
    const drag = new AbortController();
    const { signal } = drag;
    window.addEventListener("pointerup", () => drag.abort(), { signal });
    window.addEventListener("pointercancel", () => drag.abort(), { signal });
    window.addEventListener(
      "pointermove",
      (moved) => {
        const over = this.contains(/** @type {Node} */ (moved.target)) ? this.#at(moved) : null;
        if (!over || over.row < 0 || over.column < 1) return;
        if (over.row !== this.#row || over.column !== this.#column) this.#go(over.row, over.column, true);
      },
      { signal },
    );
  }

  /** @param {MouseEvent} event */
  #clicked(event) {
    const at = this.#at(event);
    if (!at || at.target.classList.contains("grid-handle")) return;
    const { row, column, target } = at;
    if (target.closest(".grid-again")) return this.#again(row);
    if (row < 0 || column === 0 || target.closest("button") || !this.#isChosen(row, column)) {
      const isHere = row === this.#row && column === this.#column;
      if (!isHere) this.#go(row, column);
    }
    if (target.closest(".grid-follow")) this.#tell("follow");
    else if (row < 0 && column > 0) this.#sort(column, event.shiftKey);
    else if (row < 0) this.#toggleAll();
    else if (column === 0) this.#toggle(row, event.shiftKey);
  }

  /** @param {MouseEvent} event */
  #doubleClicked(event) {
    const at = this.#at(event);
    if (!at || at.target.closest("button")) return;
    if (at.target.classList.contains("grid-handle")) this.#resize(at.column, null);
    else if (at.row >= 0 && at.column > 0) this.#entered(false, false, false);
  }

  /** @param {PointerEvent} event @param {number} column */
  #dragHandle(event, column) {
    event.preventDefault();
    const handle = /** @type {HTMLElement} */ (event.target);
    const begin = event.clientX;
    const width = this.#widthOf(column - 1);
    const drag = new AbortController();
    handle.setPointerCapture(event.pointerId);
    const sign = this.#isRightToLeft ? -1 : 1;
    /** @param {PointerEvent} moved */
    const resize = (moved) => this.#resize(column, width + sign * (moved.clientX - begin));
    handle.addEventListener("pointermove", resize, { signal: drag.signal });
    handle.addEventListener("lostpointercapture", () => drag.abort(), { signal: drag.signal });
  }

  /** @param {number} column @param {number | null} width null: as its content needs */
  #resize(column, width) {
    const name = this.#columns[column - 1]?.name;
    if (name === undefined) return;
    if (width === null) {
      this.#chosen.delete(name);
      this.#fit();
    } else this.#chosen.set(name, Math.round(Math.max(NARROWEST, Math.min(2000, width))));
    this.#arrange();
    this.#say(`${this.#widthOf(column - 1)} pixels wide`);
  }

  /** @param {number} at @param {boolean} adds */
  #sort(at, adds) {
    const column = this.#columns[at - 1];
    if (!column || column.sortable === false) return;
    const { name } = column;
    const before = this.#order.find((order) => order.column === name);
    const after = before?.descending ? [] : [{ column: name, descending: before !== undefined }];
    const others = adds ? this.#order.filter((order) => order !== before) : [];
    this.order = [...others, ...after];
    this.#say(after[0] ? (after[0].descending ? "Sorted descending" : "Sorted ascending") : "Not sorted");
    this.#emit("sort", { order: this.#order });
  }

  #toggleAll() {
    if (this.#selectable) this.#selected(!this.#selection.all, new Map());
  }

  /** @param {number} index @param {boolean} extends_ also those between it and the one before */
  #toggle(index, extends_) {
    if (!this.#selectable) return;
    const { all, rows: before } = this.#selection;
    const rows = new Map(before);
    const selects = extends_ || !before.has(index);
    const pivot = extends_ ? Math.min(this.#pivot, this.#count - 1) : index;
    this.#pivot = index;
    const from = Math.min(pivot, index);
    const to = Math.min(Math.max(pivot, index) + 1, from + MOST);
    if (all) return this.#selected(false, new Map());
    if (!selects) {
      rows.delete(index);
      return this.#selected(false, rows);
    }
    if (this.#pages.has(from, to)) {
      for (let at = from; at < to; at++) rows.set(at, /** @type {Row} */ (this.#pages.row(at)));
      return this.#selected(false, rows);
    }
    void this.#rows(from, to, (found) => {
      for (const [at, row] of found.entries()) rows.set(from + at, row);
      this.#selected(false, rows);
    });
  }

  /** @param {boolean} all @param {Map<number, Row>} rows */
  #selected(all, rows) {
    for (const [index, row] of rows) if (!row) rows.delete(index);
    this.#selection = { all, rows };
    this.#changed();
    const count = all ? this.#source.count : rows.size;
    this.#say(all ? "All rows selected" : `${NUMBER.format(rows.size)} selected`);
    this.#emit("selected", { all, count, rows: [...rows.values()] });
  }

  /** Rows that may have to be fetched first. @param {number} from @param {number} to @param {(rows: Row[]) => void} use */
  async #rows(from, to, use) {
    const pages = this.#pages;
    this.#say("Reading rows…");
    try {
      const rows = await pages.all(from, to);
      if (pages === this.#pages) use(rows);
    } catch (error) {
      if (pages === this.#pages)
        this.#say(`The rows could not be read: ${brief(error instanceof Error ? error.message : error)}`);
    }
  }

  /** @param {ClipboardEvent} event */
  #copied(event) {
    if (this.#row < 0) return;
    event.preventDefault();
    const corner = this.#corner ?? { row: this.#row, column: this.#column };
    const columns =
      this.#column === 0
        ? this.#columns
        : this.#columns.slice(Math.min(this.#column, corner.column || 1) - 1, Math.max(this.#column, corner.column));
    const text = (/** @type {Iterable<Row>} */ rows) =>
      tsv(Array.from(rows, (row) => columns.map((column) => valueOf(row, column))));
    const said = (/** @type {number} */ rows) => {
      this.#say(`${NUMBER.format(rows)} rows copied`);
      this.#emit("copied", { rows, columns: columns.length });
    };
    const { rows } = this.#selection;
    if (this.#column === 0 && rows.size) {
      const sorted = [...rows].sort(([one], [other]) => one - other).map(([, row]) => row);
      event.clipboardData?.setData("text/plain", text(sorted));
      return said(sorted.length);
    }
    const from = Math.min(this.#row, corner.row);
    const to = Math.min(Math.max(this.#row, corner.row) + 1, from + MOST);
    if (this.#pages.has(from, to)) {
      const found = Array.from({ length: to - from }, (_, at) => this.#pages.row(from + at) ?? []);
      event.clipboardData?.setData("text/plain", text(found));
      return said(to - from);
    }
    void this.#rows(from, to, async (found) => {
      try {
        await navigator.clipboard.writeText(text(found));
        said(found.length);
      } catch {
        this.#say("The browser did not allow copying. Copy again: the rows are here now.");
      }
    });
  }

  /** @param {number} index */
  #again(index) {
    this.#pages.again(index);
    this.#changed();
  }

  #about() {
    const row = this.#pages.row(this.#row);
    const column = this.#columns[this.#column - 1];
    return row && this.#row >= 0 ? { index: this.#row, row, column, value: column && valueOf(row, column) } : null;
  }

  /** @param {"open" | "follow" | "clear"} name */
  #tell(name) {
    const about = this.#about();
    if (!about?.column || (name === "follow" && !about.column.link?.(about.value, about.row))) return;
    this.#emit(name, { ...about, column: about.column.name });
  }

  // Editing

  /** @param {HTMLElement} editor @param {() => unknown} save @param {number} row @param {number} column */
  #hold(editor, save, row, column) {
    this.#close();
    const holder = made("div", "grid-editor", {});
    holder.append(editor);
    this.#editing = { holder, row, column, save, saving: false };
    holder.addEventListener("keydown", (event) => {
      if (event.defaultPrevented || event.isComposing) return;
      const writes = event.target instanceof HTMLTextAreaElement && !event.ctrlKey && !event.metaKey;
      if (event.key === "Escape") (this.#close(), this.#go(row, column));
      else if (event.key === "Enter" && !writes) void this.#save([1, 0]);
      else if (event.key === "Tab") void this.#save([0, event.shiftKey ? -1 : 1]);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    holder.addEventListener("focusout", (event) => {
      const isInside = event.relatedTarget instanceof Node && holder.contains(event.relatedTarget);
      if (!isInside && document.hasFocus() && this.#editing?.holder === holder) void this.#save(null);
    });
    this.append(holder);
    this.#place();
    this.#focusEditor();
  }

  #focusEditor() {
    const holder = this.#editing?.holder;
    const field = /** @type {HTMLElement | null} */ (
      holder?.querySelector("input, select, textarea, button, [tabindex]")
    );
    field?.focus({ preventScroll: true });
  }

  /** The editor is over its cell, or at the edge behind which that is. */
  #place() {
    if (!this.#editing) return;
    const { holder, row, column } = this.#editing;
    const width = this.#widthOf(column - 1);
    const left = this.#numbers + (this.#offsets[column - 1] ?? 0) - Math.abs(this.#scroller.scrollLeft);
    const top = row * this.#rowHeight - this.#top;
    const room = Math.max(0, this.#width - Math.min(this.#width, Math.max(width, 200)));
    const inline = Math.max(Math.min(this.#numbers, room), Math.min(room, left));
    setProperty(holder, "inset-inline-start", `${inline}px`);
    setProperty(
      holder,
      "inset-block-start",
      `${this.#rowHeight + Math.max(0, Math.min(this.#height - this.#rowHeight, top))}px`,
    );
    setProperty(holder, "min-inline-size", `${Math.min(width, this.#width)}px`);
    setProperty(holder, "max-inline-size", `${this.#width - inline}px`);
  }

  /** @param {[number, number] | null} move rows and columns to go on by; null leaves the focus where it has gone */
  async #save(move) {
    const editing = this.#editing;
    if (!editing || editing.saving) return;
    editing.saving = true;
    editing.holder.ariaBusy = "true";
    let problem = null;
    let isSaved = false;
    try {
      isSaved = (await editing.save()) !== false;
    } catch (error) {
      problem = made("p", "grid-problem", { role: "alert" });
      problem.textContent = brief(error instanceof Error ? error.message : error);
    }
    if (editing !== this.#editing) return;
    editing.saving = false;
    editing.holder.ariaBusy = null;
    editing.holder.querySelector(".grid-problem")?.remove();
    if (problem) editing.holder.append(problem);
    if (!isSaved) return move && this.#focusEditor();
    this.#close();
    if (move) this.#go(editing.row + move[0], editing.column + move[1]);
  }

  #close() {
    const editing = this.#editing;
    this.#editing = null;
    editing?.holder.remove();
  }

  /** @param {string} text */
  #say(text) {
    setText(this.#status, text);
  }

  /** @param {string} name @param {object} detail */
  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));
  }
}

/** @param {Row} row @param {Column} column */
function valueOf(row, column) {
  return /** @type {Record<string, unknown>} */ (row)[column.name];
}

/** What is shown of a value; null for a null. @param {Column} column @param {Row} row */
function shownText(column, row) {
  const value = valueOf(row, column);
  const text = column.text ? column.text(value, row) : value;
  return text === null || text === undefined ? null : brief(text);
}

/** @param {HTMLElement} cell @param {Column} column @param {Row | null | undefined} row undefined while it is not there */
function fillCell(cell, column, row) {
  const text = row ? shownText(column, row) : "";
  const [content, arrow] = cell.children;
  if (content) setText(content, text ?? "null");
  cell.classList.toggle("null", text === null);
  cell.classList.toggle("blank", !!row && text === "");
  if (cell.ariaLabel !== (text === null ? NO_VALUE : null)) cell.ariaLabel = text === null ? NO_VALUE : null;
  cell.classList.toggle("numeric", !!column.numeric);
  // Where less is shown than there is by intent.
  setAttribute(cell, "title", row && (column.text || column.characters) ? brief(valueOf(row, column) ?? "") : null);
  setAttribute(cell, "data-tone", row ? (column.tone?.(valueOf(row, column), row) ?? null) : null);
  const leads = !!row && !!column.link?.(valueOf(row, column), row);
  if (!leads) arrow?.remove();
  else if (!arrow) {
    const button = made("button", "grid-follow", { type: "button", tabindex: "-1", "aria-label": "Related row" });
    button.textContent = "→";
    cell.append(button);
  }
}

/** @param {number} value @param {number} one @param {number} other */
function isBetween(value, one, other) {
  return value >= Math.min(one, other) && value <= Math.max(one, other);
}

/** @param {HTMLElement} element @param {boolean | null} selected null: it cannot be */
function setSelected(element, selected) {
  setAttribute(element, "aria-selected", selected === null ? null : `${selected}`);
}

/** @param {Element} element @param {string} name @param {string | null} value */
function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** @param {HTMLElement} element @param {string} name @param {string} value */
function setProperty(element, name, value) {
  if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
}

/** @param {Element} element @param {string} text */
function setText(element, text) {
  const { firstChild } = element;
  if (!(firstChild instanceof Text)) element.textContent = text;
  else if (firstChild.data !== text) firstChild.data = text;
}

/** @param {string} tag @param {string} name @param {Record<string, string>} attributes */
function made(tag, name, attributes) {
  const element = document.createElement(tag);
  element.className = name;
  for (const [each, value] of Object.entries(attributes)) element.setAttribute(each, value);
  return element;
}

customElements.define("ps-grid", Grid);
