/**
 * `<ps-editor>`: SQL, with colours, completion and the place of an error.
 *
 *     html`<ps-editor .label=${"SQL"} .value=${text} .names=${names} .error=${{ line: 2, column: 5 }}
 *       @input=${…} @run=${…}></ps-editor>`
 *
 * A textarea takes the text, so that undoing, input methods and screen readers work as everywhere. Behind it lies the
 * same text, which has the colours (CSS Custom Highlight API; without it there are none). Styles: style/sql.css.
 *
 * Properties: `value`; `label` (the accessible name); `names` (what completion knows besides keywords); `readonly`;
 * `error` (its place, in lines and characters from 1, or null); `current` (read only: what is to be run, and where it
 * begins: the selection, or the statement at the cursor).
 * Methods: `goTo(line, column)`, `select(start, end)`, `insert(text)`, `focus()`.
 * Events: `input`, `run` (Mod+Enter).
 *
 * Keys: Tab indents, unless Escape was pressed just before: so whoever has no mouse gets out. Ctrl+Space, or two
 * letters, ask for completion.
 *
 * @typedef {object} Names as `/admin/databases/{stage}/{database}/names` gives them
 * @property {{ schema: string, name: string, visible: boolean, columns: string[] }[]} relations
 * @property {{ schema: string, name: string, visible: boolean }[]} functions
 * @property {{ schema: string, name: string }[]} types
 * @property {string[]} roles
 *
 * @typedef {{ text: string, label: string, kind: string }} Candidate
 * @typedef {{ kind: string, range: StaticRange }} Marked
 * @typedef {{ text: string, node: Text, marks: string, ranges: Marked[] }} Line
 */

import { CHANGED, each, html, render } from "../core/html.js";
import { ident, keywords, qualified, statementAt, tokens } from "./sql.js";

/** @type {Names} */
export const NO_NAMES = { relations: [], functions: [], types: [], roles: [] };
/** In characters: a longer text has no colours, and a long one when typing pauses, for so many milliseconds. */
const LONGEST = 200_000;
const LONG = 20_000;
const PAUSE = 150;
const NEAR = 4000;
const MOST = 40;
const KINDS = /** @type {const} */ (["keyword", "string", "name", "number", "comment", "error"]);
const INDENT = "  ";
const HINT = "select * from …";
let number = 0;

/** The ranges of all editors by their kind, which the styles name `::highlight(sql-keyword)`. */
const highlights = new Map(
  "highlights" in CSS
    ? KINDS.map((kind) => {
        const highlight = new Highlight();
        CSS.highlights.set(`sql-${kind}`, highlight);
        return [kind, highlight];
      })
    : [],
);
const above = highlights.get("error");
if (above) above.priority = 1;

/** @param {Line} line */
function unmark(line) {
  for (const { kind, range } of line.ranges) highlights.get(/** @type {any} */ (kind))?.delete(range);
  line.ranges = [];
  line.marks = "";
}

export class Editor extends HTMLElement {
  #id = `editor-${++number}`;
  #text = document.createElement("textarea");
  #mirror = document.createElement("pre");
  #popup = document.createElement("div");
  /** The lines of the text behind. @type {Line[]} */
  #lines = [];
  /** @type {Candidate[]} */
  #candidates = [];
  #chosen = 0;
  #later = 0;
  /** Where the word begins that is being completed. */
  #from = 0;
  #leaving = false;
  /** @type {{ line: number, column: number } | null} */
  #error = null;
  /** @type {Names} */
  names = NO_NAMES;

  constructor() {
    super();
    const text = this.#text;
    Object.assign(text, { spellcheck: false, wrap: "soft", autocomplete: "off", placeholder: HINT });
    for (const [name, value] of Object.entries({
      autocapitalize: "off",
      autocorrect: "off",
      dir: "ltr",
      "aria-autocomplete": "list",
      "aria-describedby": `${this.#id}-help`,
    }))
      text.setAttribute(name, value);
    this.#mirror.setAttribute("aria-hidden", "true");
    this.#mirror.dir = "ltr";
    this.#popup.popover = "manual";
    this.#popup.className = "completion";
    this.#popup.id = `${this.#id}-list`;
    this.#popup.setAttribute("role", "listbox");
    this.#popup.setAttribute("aria-label", "Completions");
    text.addEventListener("input", () => this.#changed());
    text.addEventListener("keydown", (event) => this.#pressed(event));
    text.addEventListener("blur", () => this.#close());
    text.addEventListener("pointerdown", () => this.#close());
    this.#show();
  }

  connectedCallback() {
    if (this.#text.isConnected) return this.#colour();
    const box = document.createElement("div");
    box.className = "editor-box";
    box.append(this.#mirror, this.#text);
    const help = document.createElement("span");
    help.id = `${this.#id}-help`;
    help.hidden = true;
    help.textContent = "Tab indents. Press Escape and then Tab to leave. Ctrl and Space complete, Ctrl and Enter run.";
    this.append(box, help, this.#popup);
    this.#colour();
  }

  disconnectedCallback() {
    this.#uncolour();
  }

  get value() {
    return this.#text.value;
  }

  set value(text) {
    if (text === this.#text.value) return;
    this.#text.value = text;
    this.#error = null;
    this.#show();
  }

  get label() {
    return this.#text.getAttribute("aria-label") ?? "";
  }

  set label(text) {
    this.#text.setAttribute("aria-label", text);
  }

  get readonly() {
    return this.#text.readOnly;
  }

  set readonly(on) {
    this.#text.readOnly = on;
    this.#text.placeholder = on ? "" : HINT;
  }

  get error() {
    return this.#error;
  }

  set error(place) {
    if (place?.line === this.#error?.line && place?.column === this.#error?.column) return;
    this.#error = place;
    this.#text.toggleAttribute("aria-invalid", false);
    if (place) this.#text.setAttribute("aria-invalid", "true");
    this.#show();
  }

  get current() {
    const { selectionStart: start, selectionEnd: end, value } = this.#text;
    if (start !== end) return { text: value.slice(start, end), start };
    const span = statementAt(value, start);
    return span ? { text: value.slice(span.start, span.end), start: span.start } : { text: "", start: 0 };
  }

  focus() {
    this.#text.focus();
  }

  /** @param {number} start @param {number} end */
  select(start, end) {
    this.#text.setSelectionRange(start, end);
  }

  /** Put the cursor at a place. @param {number} line @param {number} column */
  goTo(line, column) {
    const at = offset(this.value, line, column);
    this.focus();
    this.#text.setSelectionRange(at, at);
    const box = this.#rangeAt(at).getBoundingClientRect();
    const frame = this.getBoundingClientRect();
    if (box.height && (box.top < frame.top || box.bottom > frame.bottom))
      this.scrollTop += box.top - frame.top - frame.height / 2;
  }

  /** Replace what is selected, so that it can be undone. @param {string} text */
  insert(text) {
    this.focus();
    // Nothing else leaves the browser's own history of changes as it is.
    if (!document.execCommand("insertText", false, text)) {
      this.#text.setRangeText(text, this.#text.selectionStart, this.#text.selectionEnd, "end");
      this.#text.dispatchEvent(new InputEvent("input", { bubbles: true }));
    }
  }

  [CHANGED]() {}

  #changed() {
    this.#error = null;
    this.#text.removeAttribute("aria-invalid");
    this.#show();
    const word = this.#word();
    const typed = this.#text.value[this.#text.selectionStart - 1];
    if (word.length >= 2 || typed === ".") this.#complete(false);
    else this.#close();
  }

  // Colours. The text behind has a node for each line, and only lines that have changed are touched: browsers take
  // seconds for thousands of ranges in one node.

  #show() {
    const texts = this.value.split("\n");
    const lines = this.#lines;
    let from = 0;
    while (from < lines.length && from < texts.length && lines[from].text === texts[from]) from++;
    let same = 0;
    while (
      same < lines.length - from &&
      same < texts.length - from &&
      lines.at(-1 - same)?.text === texts.at(-1 - same)
    )
      same++;
    const made = texts
      .slice(from, texts.length - same)
      .map((text) => ({ text, node: new Text(`${text}\n`), marks: "", ranges: /** @type {Marked[]} */ ([]) }));
    const gone = lines.splice(from, lines.length - same - from, ...made);
    for (const line of gone) {
      unmark(line);
      line.node.remove();
    }
    const after = lines[from + made.length]?.node ?? null;
    for (const { node } of made) this.#mirror.insertBefore(node, after);
    clearTimeout(this.#later);
    if (this.value.length > LONG) this.#later = setTimeout(() => this.#colour(), PAUSE);
    else if (this.isConnected) this.#colour();
  }

  #uncolour() {
    clearTimeout(this.#later);
    this.#lines.forEach(unmark);
  }

  #colour() {
    const text = this.value;
    if (!this.isConnected) return;
    if (!highlights.size || text.length > LONGEST) return this.#uncolour();
    /** @type {[string, number, number][][]} */
    const marks = this.#lines.map(() => []);
    let line = 0;
    let begin = 0;
    /** @param {string} kind @param {number} start @param {number} end */
    const mark = (kind, start, end) => {
      while (line < marks.length - 1 && begin + this.#lines[line].text.length < start)
        begin += this.#lines[line++].text.length + 1;
      for (let at = line, first = begin; at < marks.length && first <= end; first += this.#lines[at++].text.length + 1)
        marks[at].push([kind, Math.max(0, start - first), Math.min(this.#lines[at].text.length + 1, end - first)]);
    };
    const place = this.#error && offset(text, this.#error.line, this.#error.column);
    for (const { kind, start, end } of tokens(text)) {
      if (highlights.has(/** @type {any} */ (kind))) mark(kind, start, end);
      if (place !== null && start <= place && place < end) mark("error", place, end);
    }
    if (place === text.length) mark("error", Math.max(0, place - 1), place + 1);
    this.#lines.forEach((one, index) => {
      const wanted = marks[index].join();
      if (one.marks === wanted) return;
      unmark(one);
      one.marks = wanted;
      for (const [kind, startOffset, endOffset] of marks[index]) {
        const range = new StaticRange({ startContainer: one.node, startOffset, endContainer: one.node, endOffset });
        highlights.get(/** @type {any} */ (kind))?.add(range);
        one.ranges.push({ kind, range });
      }
    });
  }

  /** @param {number} at */
  #rangeAt(at) {
    let line = 0;
    while (line < this.#lines.length - 1 && at > this.#lines[line].text.length)
      at -= this.#lines[line++].text.length + 1;
    const range = new Range();
    range.setStart(this.#lines[line].node, at);
    return range;
  }

  // Keys

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    const { key, ctrlKey, metaKey, shiftKey, isComposing } = event;
    if (isComposing) return;
    const open = this.#candidates.length > 0;
    const leaving = this.#leaving;
    if (key !== "Shift") this.#leaving = false;
    const done = () => event.preventDefault();
    if (key === "Enter" && (ctrlKey || metaKey)) {
      done();
      this.#close();
      this.dispatchEvent(new CustomEvent("run", { bubbles: true }));
    } else if (key === " " && ctrlKey) {
      done();
      this.#complete(true);
    } else if (key === "Escape") {
      if (open) {
        done();
        event.stopPropagation();
        this.#close();
      } else this.#leaving = true;
    } else if (open && (key === "ArrowDown" || key === "ArrowUp")) {
      done();
      this.#chosen =
        (this.#chosen + (key === "ArrowDown" ? 1 : -1) + this.#candidates.length) % this.#candidates.length;
      this.#showCandidates();
    } else if (
      open &&
      ((key === "Enter" && this.#candidates[this.#chosen].text !== this.#word()) || key === "Tab") &&
      !shiftKey
    ) {
      done();
      this.#take(this.#candidates[this.#chosen]);
    } else if (key === "Tab" && !leaving && !this.readonly && !ctrlKey && !metaKey) {
      done();
      this.#indent(shiftKey);
    } else if (key === "Enter" && !this.readonly) {
      done();
      const before = this.value.slice(0, this.#text.selectionStart);
      this.insert(`\n${/[ ]*/.exec(before.slice(before.lastIndexOf("\n") + 1))?.[0] ?? ""}`);
    } else if (/^(Arrow|Home|End|Page)/.test(key)) this.#close();
  }

  /** @param {boolean} back */
  #indent(back) {
    const { selectionStart: start, selectionEnd: end, value } = this.#text;
    if (!back && start === end) return this.insert(INDENT);
    const from = value.lastIndexOf("\n", start - 1) + 1;
    const lines = value.slice(from, end).split("\n");
    const changed = lines.map((line) => (back ? line.replace(/^ {1,2}/, "") : line && INDENT + line)).join("\n");
    this.#text.setSelectionRange(from, end);
    if (changed !== value.slice(from, end)) this.insert(changed);
    this.#text.setSelectionRange(start === end ? from + changed.length : from, from + changed.length);
  }

  // Completion

  #word() {
    const cursor = this.#text.selectionStart;
    return /[\w$\u0080-\uffff]*$/.exec(this.value.slice(Math.max(0, cursor - 100), cursor))?.[0] ?? "";
  }

  /** @param {boolean} asked */
  #complete(asked) {
    const cursor = this.#text.selectionStart;
    const word = this.#word();
    this.#from = cursor - word.length;
    // Of a long text only what is near: it is asked at every letter.
    const { value } = this;
    const first = value.length > LONG ? value.indexOf("\n", Math.max(0, cursor - NEAR)) + 1 : 0;
    const near = value.length > LONG ? value.slice(Math.min(first, cursor), cursor + NEAR) : value;
    const at = value.length > LONG ? cursor - Math.min(first, cursor) : cursor;
    const inside = [...tokens(near.slice(0, at))].at(-1);
    if (this.readonly || (inside && ["comment", "string", "number"].includes(inside.kind))) return this.#close();
    const span = statementAt(near, at);
    const statement = span ? near.slice(span.start, span.end) : "";
    this.#candidates = candidates(this.names, statement, near.slice(0, at - word.length), word).slice(0, MOST);
    // What is typed already needs no help.
    if (!asked && this.#candidates.length === 1 && this.#candidates[0].text === word) this.#candidates = [];
    if (!this.#candidates.length) return this.#close();
    this.#chosen = 0;
    this.#text.setAttribute("aria-controls", this.#popup.id);
    this.#showCandidates();
    if (!this.#popup.matches(":popover-open")) this.#popup.showPopover();
    const box = this.#rangeAt(this.#from).getBoundingClientRect();
    const { offsetHeight, offsetWidth } = this.#popup;
    const below = box.bottom + 4;
    const top = below + offsetHeight > innerHeight ? Math.max(0, box.top - offsetHeight - 4) : below;
    this.#popup.style.setProperty("top", `${top}px`);
    this.#popup.style.setProperty("left", `${Math.max(4, Math.min(box.left, innerWidth - offsetWidth - 4))}px`);
  }

  #showCandidates() {
    render(
      each(
        this.#candidates,
        (one) => `${one.kind} ${one.text}`,
        (
          one,
          index,
        ) => html`<div role="option" id=${`${this.#id}-${index}`} aria-selected=${String(index === this.#chosen)}
          @pointerdown=${(/** @type {Event} */ event) => (event.preventDefault(), this.#take(one))}>
          <bdi>${one.label}</bdi><small>${one.kind}</small></div>`,
      ),
      this.#popup,
    );
    this.#text.setAttribute("aria-activedescendant", `${this.#id}-${this.#chosen}`);
    this.#popup.children[this.#chosen]?.scrollIntoView({ block: "nearest" });
  }

  /** @param {Candidate} candidate */
  #take(candidate) {
    this.#text.setSelectionRange(this.#from, this.#text.selectionStart);
    this.insert(candidate.text);
    this.#close();
  }

  #close() {
    this.#candidates = [];
    this.#text.removeAttribute("aria-activedescendant");
    this.#text.removeAttribute("aria-controls");
    if (this.#popup.matches(":popover-open")) this.#popup.hidePopover();
  }
}
if (!customElements.get("ps-editor")) customElements.define("ps-editor", Editor);

/**
 * The index of a place. PostgreSQL counts characters where JavaScript counts halves of some of them.
 * @param {string} text
 * @param {number} line
 * @param {number} column
 */
export function offset(text, line, column) {
  let start = 0;
  for (let each = 1; each < line; each++) start = text.indexOf("\n", start) + 1 || text.length;
  const end = text.indexOf("\n", start);
  const before = [...text.slice(start, end < 0 ? text.length : end)].slice(0, column - 1);
  return start + before.join("").length;
}

/**
 * What `word` may become, the likeliest first.
 * @param {Names} names
 * @param {string} statement in which it stands
 * @param {string} before what is before it
 * @param {string} word
 * @returns {Candidate[]}
 */
export function candidates(names, statement, before, word) {
  /** @type {Candidate[]} */
  const found = [];
  /** @param {string} kind @param {string} name @param {string} [label] @param {string} [text] */
  const add = (kind, name, label = name, text = ident(name)) => found.push({ kind, label, text });
  const qualifier = /(?:"((?:[^"]|"")+)"|([\w$\u0080-\uffff]+))\.$/.exec(before);
  const used = relationsIn(names, statement);
  if (qualifier) {
    const name = qualifier[1]?.replaceAll('""', '"') ?? qualifier[2].toLowerCase();
    const relation =
      used.find((one) => one.alias === name)?.relation ?? names.relations.find((one) => one.name === name);
    for (const column of relation?.columns ?? []) add("column", column);
    for (const one of names.relations) if (one.schema === name) add("table", one.name);
    for (const one of names.functions) if (one.schema === name) add("function", one.name, `${one.name}()`);
  } else {
    for (const { relation } of used) for (const column of relation.columns) add("column", column);
    for (const one of names.relations)
      add(
        "table",
        one.name,
        one.visible ? one.name : `${one.schema}.${one.name}`,
        one.visible ? undefined : qualified(one.schema, one.name),
      );
    for (const one of names.functions)
      add(
        "function",
        one.name,
        `${one.visible ? "" : `${one.schema}.`}${one.name}()`,
        one.visible ? undefined : qualified(one.schema, one.name),
      );
    for (const schema of new Set(names.relations.map((one) => one.schema))) add("schema", schema);
    for (const one of names.types) add("type", one.name, one.name, qualified(one.schema, one.name));
    for (const role of names.roles) add("role", role);
    const upper = /^[A-Z]/.test(word) && word === word.toUpperCase();
    for (const one of keywords)
      found.push({ kind: "keyword", label: upper ? one.toUpperCase() : one, text: upper ? one.toUpperCase() : one });
  }
  const wanted = word.toLowerCase();
  /** @param {Candidate} one */
  const rank = (one) => {
    const at = one.label.toLowerCase().indexOf(wanted);
    return at < 0 ? -1 : at === 0 ? 0 : wanted.length > 1 && /[._]/.test(one.label[at - 1] ?? "") ? 1 : -1;
  };
  const seen = new Set();
  return found
    .map((one) => ({ one, rank: rank(one) }))
    .filter(({ one, rank }) => rank >= 0 && !seen.has(`${one.kind} ${one.text}`) && seen.add(`${one.kind} ${one.text}`))
    .sort((one, other) => one.rank - other.rank)
    .map(({ one }) => one);
}

/**
 * The relations that a statement names, with their aliases.
 * @param {Names} names
 * @param {string} statement
 */
function relationsIn(names, statement) {
  const words = [...tokens(statement)]
    .filter(({ kind }) => kind !== "space" && kind !== "comment")
    .map(({ kind, start, end }) => {
      const text = statement.slice(start, end);
      return kind === "name"
        ? { name: text.slice(1, -1).replaceAll('""', '"'), kind }
        : { name: text.toLowerCase(), kind };
    });
  /** @type {{ alias: string, relation: Names["relations"][number] }[]} */
  const found = [];
  for (let at = 0; at < words.length; at++) {
    const schema = words[at + 1]?.name === "." ? words[at].name : null;
    if (at && words[at - 1].name === ".") continue;
    const last = schema === null ? at : at + 2;
    const relation = names.relations.find(
      (one) => one.name === words[last]?.name && (schema === null ? one.visible : one.schema === schema),
    );
    if (!relation || words[last].kind === "string") continue;
    const next = words[last + 1]?.name === "as" ? words[last + 2] : words[last + 1];
    const alias = next && (next.kind === "word" || next.kind === "name") ? next.name : relation.name;
    if (!found.some((one) => one.alias === alias && one.relation === relation)) found.push({ alias, relation });
  }
  return found;
}
