/** The rows of a relation: filters, order, columns, the grid, and what is done with rows. */

import { CHANGED, html, nothing, render } from "../../core/html.js";
import { ApiError } from "../../core/api.js";
import { commands } from "../../core/commands.js";
import { confirm, dialog } from "../../core/dialogs.js";
import { about, count, counted, cut } from "../../core/format.js";
import { icon } from "../../core/icons.js";
import { complain, notify } from "../../core/notices.js";
import { go, href } from "../../core/router.js";
import { define, View } from "../../core/view.js";
import { showCode } from "../../ideas/code.js";
import { kindOf } from "../../ideas/fields.js";
import "../../ideas/grid.js";
import { TableRows } from "../../ideas/rows.js";
import { Calls } from "./calls.js";
import { exportCsv, importCsv } from "./csv.js";
import { nameOf } from "./identity.js";
import { makeFilter, OPERATORS, orderText, OWN, quoted, readFilter, text, unquoted } from "./query.js";
import { related, showRow } from "./row.js";

/** @typedef {import("./query.js").Row} Row */
/** @typedef {import("./query.js").Filter} Filter */
/** @typedef {import("../../ideas/grid.js").Grid} Grid */

/** Types without an order. */
const UNORDERED = new Set(["json", "xml", "point", "box", "polygon", "circle"]);

/** Where PostgreSQL expects fewer rows, they are counted. */
const COUNTED = 200_000;

/** Rows of a table; `told` is called when it is known better how many there are. */
class Source extends TableRows {
  told = () => {};

  /** @param {number} from @param {number} to @param {AbortSignal} signal */
  async rows(from, to, signal) {
    const rows = await super.rows(from, to, signal);
    this.told();
    return rows;
  }
}

/** A time as cells have it. @param {unknown} moment */
const toTheSecond = (moment) =>
  moment === null
    ? null
    : String(moment)
        .replace("T", " ")
        .replace(/\.\d+/, "")
        .replace(/([+-]\d\d):00$/, "$1");

class RowsView extends View {
  /** @type {import("./query.js").Database} */
  database = /** @type {any} */ (null);
  /** @type {import("./query.js").Relation} */
  relation = /** @type {any} */ (null);
  route = { parts: /** @type {string[]} */ ([]), query: new URLSearchParams() };
  /** @type {import("./identity.js").Identity} */
  as = "service";
  /** @type {Calls} */
  calls = /** @type {any} */ (null);
  /** @type {Source} */
  source = /** @type {any} */ (null);
  selected = { all: false, count: 0, rows: /** @type {Row[]} */ ([]) };
  /** Why no row could be read. @type {Error | null} */
  refusal = null;
  /** Said in the place of rows, where there are none. */
  #none = document.createElement("span");
  #hasActive = false;
  #state = "";

  connected() {
    const { signal } = this;
    commands.add({ title: "New row", icon: "add", group: "Table", keys: "n", run: () => this.insert() }, signal);
    commands.add(
      { title: "Filter rows", icon: "filter", group: "Table", keys: "f", run: () => this.filter(null) },
      signal,
    );
    commands.add({ title: "Show the request as code", icon: "sql", group: "Table", run: () => this.code() }, signal);
    commands.add(
      { title: "Export CSV", icon: "download", group: "Table", run: () => exportCsv(this.calls, signal) },
      signal,
    );
    commands.add({ title: "Import CSV", icon: "upload", group: "Table", run: () => this.import() }, signal);
    const query = new URLSearchParams(this.route.query);
    if (!query.has(`${OWN}new`)) return;
    // Once: whoever comes back has not asked for another.
    query.delete(`${OWN}new`);
    go(["tables", ...this.route.parts], query, { replace: true });
    this.insert();
  }

  [CHANGED]() {
    if (!this.database || !this.relation) return;
    const own = new URLSearchParams([...this.route.query].filter(([name]) => !name.startsWith(OWN)));
    const as = typeof this.as === "string" ? this.as : this.as.id;
    const state = JSON.stringify([this.database.path, this.relation.schema, this.relation.name, as, own.toString()]);
    if (state !== this.#state) {
      this.#state = state;
      this.begin();
    }
    this.update();
  }

  /** Read from the first row on, in the view that the address has. */
  begin() {
    const { relation } = this;
    const calls = (this.calls = new Calls(this.database, relation, this.route.query, this.as));
    const edits = calls.key.length > 0 && relation.changes.includes("update");
    const source = (this.source = new Source({
      key: calls.key,
      order: calls.order,
      fetchPage: async (asked) => {
        try {
          return await calls.fetchPage(asked);
        } catch (fault) {
          // Of nothing at all: the reason takes the place of the grid.
          if (source === this.source && source.count === null && !asked.signal.aborted) {
            this.refusal = fault instanceof Error ? fault : new Error(String(fault));
            this.update();
          }
          throw fault;
        }
      },
      columns: relation.columns
        .filter(({ name }) => !calls.shown || calls.shown.includes(name))
        .map((one) => {
          const kind = kindOf(one);
          const key = relation.references.find(({ columns }) => columns[0] === one.name);
          return {
            name: one.name,
            type: one.type,
            characters: one.base_type === "uuid" ? 9 : undefined,
            text: kind === "moment" ? toTheSecond : undefined,
            numeric: kind === "whole" || kind === "number",
            sortable: !one.array && !UNORDERED.has(one.base_type),
            editable: edits && one.settable,
            link: key && ((/** @type {unknown} */ _, /** @type {any} */ row) => related(calls, key, row) !== null),
          };
        }),
    }));
    let counting = false;
    source.told = async () => {
      if (source !== this.source) return;
      this.update();
      if (counting || source.exact || (source.count ?? COUNTED) >= COUNTED) return;
      counting = true;
      try {
        const total = await calls.count(calls.filters, this.signal);
        if (source !== this.source || source.exact) return;
        [source.count, source.exact] = [total, true];
        this.grid.grew();
        this.update();
      } catch {
        // It stays an estimate.
      }
    };
    this.selected = { all: false, count: 0, rows: [] };
    this.refusal = null;
  }

  get grid() {
    return /** @type {Grid} */ (this.querySelector("ps-grid"));
  }

  /** Go to the view with other parameters of its query. @param {Filter[]} filters @param {Record<string, string | null>} [changed] */
  show(filters, changed = {}) {
    const { query } = this.route;
    const kept = [...query].filter(
      ([name]) => (name.startsWith(OWN) || name === "order" || name === "select") && !(name in changed),
    );
    const more = Object.entries(changed).filter(([, value]) => value);
    go(href(["tables", ...this.route.parts], /** @type {[string, string][]} */ ([...filters, ...kept, ...more])));
  }

  reload() {
    this.begin();
    this.update();
  }

  async insert() {
    if (await showRow(this.calls, null, { signal: this.signal })) this.reload();
  }

  async import() {
    if (await importCsv(this.calls, this.signal)) this.reload();
  }

  code() {
    void showCode(this.calls.page({ after: null, offset: 0, limit: 100, count: null }), this.signal);
  }

  /** @param {Row} row @param {number} index @param {string} [column] */
  async open(row, index, column) {
    try {
      if (!(await showRow(this.calls, row, { signal: this.signal, column }))) return;
      if (this.calls.key.length) this.reload();
      this.grid.focusCell(index, column ?? this.source.columns[0].name);
    } catch (fault) {
      complain(fault);
    }
  }

  /** @param {CustomEvent} event */
  edit({ detail: { index, row, column: name, value, typed, use } }) {
    const column = this.relation.columns.find((one) => one.name === name);
    if (!column) return;
    const field = /** @type {import("../../ideas/fields.js").Field} */ (document.createElement("ps-field"));
    Object.assign(field, { column, value, compact: true });
    use(field, async () => {
      const changed = field.read();
      if (field.changed && changed !== undefined) await this.change(index, row, name, changed);
      return true;
    });
    if (typed) field.type(typed);
  }

  /** Change one value, with a way back. @param {number} index @param {Row} row @param {string} name @param {unknown} value */
  async change(index, row, name, value) {
    const { calls } = this;
    const now = await calls.change(row, { [name]: value });
    this.grid.replace(index, now);
    const undo = async () => {
      try {
        await calls.change(now, { [name]: row[name] });
        this.grid.reload();
      } catch (fault) {
        complain(fault);
      }
    };
    notify(`Changed ${name}.`, { undo });
  }

  /** @param {CustomEvent} event */
  async clear({ detail: { index, row, column: name, value } }) {
    if (value === null) return;
    if (!this.relation.columns.find((one) => one.name === name)?.nullable)
      return notify(`${name} cannot be null.`, { kind: "error" });
    try {
      await this.change(index, row, name, null);
    } catch (fault) {
      complain(fault);
    }
  }

  /** Delete what is selected. (Elements have a method `remove` of their own.) */
  async deleteRows() {
    const { all, rows } = this.selected;
    const { calls, signal } = this;
    const parts = calls.named(all ? null : rows);
    let total = 0;
    try {
      for (const part of parts) total += await calls.count(part, signal);
      if (!total) return notify(`There is no such row that ${calls.role} may see.`, { kind: "error" });
      const rowsOf = counted(total, "row");
      const { name, referenced_by: back } = this.relation;
      const others = [...new Set(back.map(({ relation }) => relation))].join(", ");
      const which = all ? (calls.filters.length ? ", all that fit the filters" : ", all that there are") : "";
      const text = `From ${name}${which}. ${others && `Rows of ${others} that refer to them may go with them, or keep them. `}This cannot be undone.`;
      if (
        !(await confirm({
          title: `Delete ${rowsOf}?`,
          text,
          action: `Delete ${rowsOf}`,
          danger: true,
          word: total > 1000 ? name : undefined,
          signal,
        }))
      )
        return;
      let gone = 0;
      for (const part of parts) {
        const answer = await calls.send(calls.deleting(part), signal);
        gone += Number(answer.headers.get("Content-Range")?.split("/")[1] ?? 0) || 0;
      }
      notify(
        gone < total
          ? `Deleted ${counted(gone, "row")} of ${count(total)}: policies keep ${calls.role} from deleting the others.`
          : `Deleted ${rowsOf}.`,
      );
    } catch (fault) {
      complain(fault);
    }
    this.reload();
  }

  /** Ask for a filter. @param {Filter | null} before The one that it takes the place of. */
  async filter(before) {
    const { relation, calls } = this;
    const active = this.grid?.active;
    const value = active?.column && /** @type {Row | undefined} */ (this.grid.rowAt(active.row))?.[active.column];
    const read = before && readFilter([unquoted(before[0]), before[1]]);
    const state = read ?? {
      column: active?.column ?? relation.columns[0].name,
      operator: /** @type {keyof typeof OPERATORS} */ ("eq"),
      value: value === null || value === undefined ? "" : cut(text(value), 200),
    };
    const made = await dialog({
      title: before ? "Change the filter" : "Filter rows",
      signal: this.signal,
      content: (/** @type {import("../../core/dialogs.js").Shown<Filter>} */ shown) => {
        const column = relation.columns.find((one) => one.name === state.column);
        const options = column?.enum ?? (column && kindOf(column) === "boolean" ? ["true", "false"] : null);
        const set = (/** @type {"column" | "operator" | "value"} */ name) => (/** @type {Event} */ event) => {
          state[name] = /** @type {any} */ (event.target).value;
          shown.update();
        };
        if (options && state.operator === "eq" && !options.includes(state.value)) state.value = options[0];
        const needsValue = !state.operator.includes("null");
        return html`<form @submit=${(/** @type {Event} */ event) => (event.preventDefault(), shown.close(makeFilter(state.column, state.operator, state.value)))}>
          <div class="dialog-body">
            <label class="field"><span>Column</span><select @change=${set("column")}>
              ${relation.columns.map(({ name }) => html`<option value=${name} .selected=${name === state.column}>${name}</option>`)}</select></label>
            <label class="field"><span>Condition</span><select @change=${set("operator")}>
              ${Object.entries(OPERATORS).map(([name, title]) => html`<option value=${name} .selected=${name === state.operator}>${title}</option>`)}</select></label>
            ${
              !needsValue
                ? nothing
                : options && state.operator === "eq"
                  ? html`<label class="field"><span>Value</span><select @change=${set("value")}>${options.map((one) => html`<option value=${one} .selected=${one === state.value}>${one}</option>`)}</select></label>`
                  : html`<label class="field"><span>Value</span><input .value=${state.value} @input=${set("value")} autocomplete="off" spellcheck="false" autofocus>
                    ${state.operator === "in" || state.operator === "cs" ? html`<small>With commas between them.</small>` : nothing}</label>`
            }
          </div>
          <footer class="dialog-foot"><button type="button" @click=${() => shown.close()}>Cancel</button><button class="primary">Show</button></footer></form>`;
      },
    });
    if (!made) return;
    const filters = calls.filters.filter((one) => one !== before);
    this.show([...filters, made]);
  }

  /** Choose columns and their order. */
  async columns() {
    const { relation, calls } = this;
    const shownNames = calls.shown ?? relation.columns.map(({ name }) => name);
    let list = [
      ...shownNames,
      ...relation.columns.map(({ name }) => name).filter((name) => !shownNames.includes(name)),
    ];
    const chosen = new Set(shownNames);
    const done = await dialog({
      title: "Columns",
      signal: this.signal,
      content: (/** @type {import("../../core/dialogs.js").Shown<boolean>} */ shown) => {
        const move = (/** @type {string} */ name, /** @type {number} */ by) => {
          const at = list.indexOf(name);
          list = list.filter((one) => one !== name);
          list.splice(at + by, 0, name);
          shown.update();
        };
        return html`<form @submit=${(/** @type {Event} */ event) => (event.preventDefault(), shown.close(true))}>
          <ul class="dialog-body tables-columns">
            ${list.map(
              (
                name,
                index,
              ) => html`<li><label class="check"><input type="checkbox" .checked=${chosen.has(name)} @change=${() => (chosen.delete(name) || chosen.add(name), shown.update())}><bdi>${name}</bdi></label>
                <button type="button" class="icon-button" aria-label=${`Move ${name} up`} title=${`Move ${name} up`} ?disabled=${!index} @click=${() => move(name, -1)}>${icon("up")}</button>
                <button type="button" class="icon-button" aria-label=${`Move ${name} down`} title=${`Move ${name} down`} ?disabled=${index === list.length - 1} @click=${() => move(name, 1)}>${icon("down")}</button></li>`,
            )}
          </ul>
          <footer class="dialog-foot"><button type="button" @click=${() => shown.close()}>Cancel</button><button class="primary" ?disabled=${!chosen.size}>Show</button></footer></form>`;
      },
    });
    if (!done) return;
    const names = list.filter((name) => chosen.has(name));
    const isUsual =
      names.length === relation.columns.length && names.every((name, index) => name === relation.columns[index].name);
    this.show(calls.filters, { select: isUsual ? null : names.map(quoted).join(",") });
  }

  /** Who looks, by the address or the name of the role. */
  get who() {
    return typeof this.as === "string" ? this.calls.role : nameOf(this.as);
  }

  get #rights() {
    const query = new URLSearchParams(this.route.query);
    query.set(`${OWN}tab`, "rights");
    return html`<a href=${href(["tables", ...this.route.parts], query)}>Rights</a>`;
  }

  /** @param {Error} why */
  #refused(why) {
    const { as, relation } = this;
    const isDenied = as !== "service" && why instanceof ApiError && why.code === "42501";
    const who = as === "anon" ? "Nobody who is not signed in" : this.who;
    return html`<div class="card empty" role="alert">${icon("lock")}<h2>${as === "service" ? "The rows could not be read" : `Not for ${this.who}`}</h2>
      ${isDenied ? html`<p><bdi>${who}</bdi> may ${as === "anon" ? "" : "not "}read <bdi>${relation.name}</bdi>. ${this.#rights} say why.</p>` : nothing}
      <p class=${isDenied ? "quiet small" : ""}><bdi>${why.message}</bdi></p>
      ${isDenied ? nothing : html`<button type="button" @click=${() => this.reload()}>Try again</button>`}</div>`;
  }

  template() {
    const { relation, calls, source, selected } = this;
    if (!source) return nothing;
    const none = html`<bdi>${this.who}</bdi> sees no rows here. ${this.#rights} say why.`;
    render(
      calls.filters.length ? html`No row fits the filters.` : calls.as === "service" ? html`No rows yet.` : none,
      this.#none,
    );
    const { changes } = relation;
    const grid = () => this.grid;
    const active = () => {
      const { row, column } = grid().active;
      const found = selected.rows[0] ?? grid().rowAt(row);
      if (found) void this.open(/** @type {Row} */ (found), Math.max(row, 0), column ?? undefined);
    };
    const activated = () => {
      const before = this.#hasActive;
      this.#hasActive = grid().active.row >= 0;
      if (this.#hasActive !== before) this.update();
    };
    const tool = (
      /** @type {string} */ name,
      /** @type {string} */ title,
      /** @type {() => unknown} */ run,
      look = "quiet",
      disabled = false,
    ) =>
      html`<button type="button" class=${look} title=${title} ?disabled=${disabled} @click=${run}>${icon(name)} <span>${title}</span></button>`;
    return html`<div class="tools" role="toolbar" aria-label="Rows">
        ${tool("filter", "Filter", () => this.filter(null))}
        ${tool("menu", "Columns", () => this.columns())}
        <span class="spacer"></span>
        ${tool("file", "Open row", active, "quiet", !this.#hasActive && !selected.rows.length)}
        ${tool("sql", "Code", () => this.code())}
        ${tool("download", "Export", () => exportCsv(calls, this.signal))}
        ${
          changes.includes("insert")
            ? [tool("upload", "Import", () => this.import()), tool("add", "New row", () => this.insert(), "primary")]
            : nothing
        }
      </div>
      ${calls.filters.length ? html`<div class="tools">${calls.filters.map((one) => this.#chip(one))}</div>` : nothing}
      ${
        this.refusal
          ? this.#refused(this.refusal)
          : html`<ps-grid .source=${source} .label=${`Rows of ${relation.name}`} .order=${calls.order} .shown=${calls.shown} .selectable=${true}
        .empty=${this.#none} @focusin=${activated}
        @sort=${(/** @type {CustomEvent} */ event) => this.show(calls.filters, { order: orderText(event.detail.order) })}
        @selected=${(/** @type {CustomEvent} */ { detail }) => ((this.selected = detail), this.update())}
        @edit=${(/** @type {CustomEvent} */ event) => this.edit(event)}
        @clear=${(/** @type {CustomEvent} */ event) => this.clear(event)}
        @open=${(/** @type {CustomEvent} */ { detail }) => this.open(detail.row, detail.index, detail.column)}
        @follow=${(/** @type {CustomEvent} */ { detail }) => this.follow(detail)}
        @copied=${(/** @type {CustomEvent} */ { detail }) => notify(`Copied ${counted(detail.rows, "row")}.`)}></ps-grid>`
      }
      <footer class="tables-status quiet">
        <bdi role="status">${this.refusal ? "" : source.count === null ? "Reading" : source.exact ? counted(source.count, "row") : `about ${about(source.count)} rows`}</bdi>
        ${
          selected.count
            ? html`<button type="button" class="quiet" @click=${() => grid().clearSelection()}>Clear selection</button>
              ${
                changes.includes("delete") && (calls.key.length || selected.all)
                  ? html`<button type="button" class="danger" @click=${() => this.deleteRows()}>${icon("remove")} Delete ${selected.all ? "all" : counted(selected.count, "row")}</button>`
                  : nothing
              }`
            : nothing
        }
        ${calls.as === "service" ? nothing : html`<bdi>as ${this.who}</bdi>`}
        ${relation.changes.length && !calls.key.length ? html`<span>No primary key: rows cannot be changed one by one.</span>` : nothing}
        <button type="button" class="quiet end" @click=${() => this.reload()}>${icon("refresh")} Read again</button>
      </footer>`;
  }

  /** @param {Filter} filter */
  #chip(filter) {
    const name = unquoted(filter[0]);
    const read = readFilter([name, filter[1]]);
    const said = read
      ? `${name} ${OPERATORS[read.operator]} ${cut(read.value, 40)}`
      : cut(`${filter[0]}=${filter[1]}`, 60);
    const without = this.calls.filters.filter((one) => one !== filter);
    return html`<span class="tables-chip">
      <button type="button" class="quiet" ?disabled=${!read} @click=${() => this.filter(filter)}><bdi>${said}</bdi></button>
      <button type="button" class="icon-button" aria-label=${`Without ${said}`} title=${`Without ${said}`} @click=${() => this.show(without)}>${icon("close")}</button></span>`;
  }

  /** @param {{ row: Row, column: string }} about */
  follow({ row, column }) {
    const key = this.relation.references.find(({ columns }) => columns[0] === column);
    const to = key && related(this.calls, key, row);
    if (to) go(to);
  }
}
define("ps-table-rows", RowsView);
