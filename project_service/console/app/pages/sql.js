/** SQL: an editor, what comes of it, and forms that write it. */

import { api, ApiError } from "../core/api.js";
import { commands } from "../core/commands.js";
import { dialog } from "../core/dialogs.js";
import { ago, count, counted, cut, seconds } from "../core/format.js";
import { each, html, nothing } from "../core/html.js";
import { icon } from "../core/icons.js";
import { go, href } from "../core/router.js";
import { define, Page } from "../core/view.js";
import { NO_NAMES } from "../ideas/editor.js";
import { statements, tokens } from "../ideas/sql.js";
import "../ideas/grid.js";
import { FORMS, NEW } from "./sql/forms.js";
import { planTree } from "./sql/plan.js";
import { save } from "./sql/saving.js";

/** @typedef {import("../ideas/editor.js").Editor} Editor */
/** @typedef {{ stage: string, name: string, schemas: string[], roles: { anon: string, authenticated: string, service: string } }} Database */
/** @typedef {{ severity: string, message: string, detail: string | null, hint: string | null }} Notice */
/** @typedef {{ line: number, command: string, columns: { name: string, type: string }[] | null, rows: (string | null)[][], row_count: number | null, truncated: boolean, notices: Notice[], more_notices: number, milliseconds: number }} Result */
/** @typedef {{ message: string, sqlstate: string, detail: string | null, hint: string | null, context: string | null, statement_line: number | null, line: number | null, column: number | null }} Fault */
/** @typedef {{ results: Result[], error: Fault | null, one_transaction: boolean, undone: boolean }} Outcome */
/** @typedef {{ sql: string, at: number, failed: boolean }} Past */

const DRAFT = "project-service.sql";
const HISTORY = "project-service.sql-history";
const MOST_PAST = 50;
const LONGEST_PAST = 20_000;
const LIMITS = { 100: "100 rows", 1000: "1,000 rows", 10000: "10,000 rows" };
const TIMES = { 10: "10 s", 30: "30 s", 120: "2 min", 600: "10 min" };
const NUMERIC = /^(smallint|integer|bigint|numeric|real|double precision|money|oid)\b(?!.*\[\])/;
const SNIPPETS = /** @type {const} */ ({
  "The largest tables": `select n.nspname as schema, c.relname as table, c.reltuples::bigint as rows,
  pg_size_pretty(pg_total_relation_size(c.oid)) as size
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname !~ '^(pg_|information_schema)'
order by pg_total_relation_size(c.oid) desc limit 30;`,
  "Who may do what with which table": `select table_schema, table_name, grantee, string_agg(privilege_type, ', ' order by privilege_type) as privileges
from information_schema.role_table_grants
where grantee in ('anon', 'authenticated', 'service_role') and table_schema !~ '^(pg_|information_schema)'
group by 1, 2, 3 order by 1, 2, 3;`,
  Policies: `select schemaname, tablename, policyname, cmd, roles, qual, with_check
from pg_policies order by 1, 2, 3;`,
  "What runs now": `select pid, usename, application_name, state, now() - query_start as for, left(query, 200) as query
from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
order by query_start;`,
  "Who waits for whom": `select pid, pg_blocking_pids(pid) as waits_for, now() - query_start as for, left(query, 200) as query
from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0;`,
  "Indexes that nothing uses": `select schemaname, relname as table, indexrelname as index, pg_size_pretty(pg_relation_size(indexrelid)) as size
from pg_stat_user_indexes join pg_index using (indexrelid)
where idx_scan = 0 and not indisunique order by pg_relation_size(indexrelid) desc;`,
  "Foreign keys without an index": `select conrelid::regclass as table, conname as foreign_key
from pg_constraint k
where contype = 'f' and not exists (
  select from pg_index i where i.indrelid = k.conrelid
    and (i.indkey::int2[])[0:cardinality(k.conkey) - 1] operator(pg_catalog.@>) k.conkey);`,
});

/** The form that an address names. @param {import("../core/router.js").Route} route */
const formOf = ({ parts: [name] }) => (Object.hasOwn(FORMS, name) ? FORMS[name] : undefined);

class SqlPage extends Page {
  /** @type {Database[] | null} */
  databases = null;
  /** @type {Database | null} */
  database = null;
  names = NO_NAMES;
  text = stored(DRAFT, "");
  /** @type {Past[]} */
  past = stored(HISTORY, []);
  /** What runs, and since when. @type {{ since: number, stop: AbortController, limit: number } | null} */
  running = null;
  /** @type {{ outcome: Outcome, explain: boolean, took: number } | null} */
  answer = null;
  /** @type {{ line: number, column: number } | null} */
  place = null;
  chosen = 0;
  limit = 1000;
  timeout = 30;
  /** Why nothing can be run at all. */
  off = "";
  #timer = 0;
  #keeping = 0;
  /** @type {WeakMap<Result, import("../ideas/grid.js").Source>} */
  #sources = new WeakMap();

  connected() {
    const { signal } = this;
    commands.add({ title: "Run the SQL", icon: "play", group: "SQL", run: () => this.execute() }, signal);
    // The palette has the form of a table from everywhere.
    for (const [name, form] of Object.entries(NEW))
      if (name !== "new-table")
        commands.add({ title: form.title, icon: "add", group: "SQL", run: () => go(["sql", name]) }, signal);
    this.load();
  }

  disconnected() {
    clearInterval(this.#timer);
    clearTimeout(this.#keeping);
    if (sessionStorage.length) store(DRAFT, this.text); // not if the session has ended
    this.running?.stop.abort();
  }

  async load() {
    const databases = /** @type {Database[] | undefined} */ (
      await this.run(async (signal) => (await api.get("/admin/databases", { signal })).databases)
    );
    if (!databases) return;
    this.databases = databases;
    this.routed();
  }

  routed() {
    super.routed();
    if (!this.databases) return;
    const [first, second] = formOf(this.route) ? (this.route.query.get("database") ?? "").split("/") : this.route.parts;
    const found =
      this.databases.find((one) => one.stage === first && one.name === second) ?? this.database ?? this.databases[0];
    if (found && found !== this.database) {
      this.database = found;
      this.learn();
    }
  }

  /** Ask what is in the database, and whether SQL may be run there. */
  async learn() {
    const { database } = this;
    if (!database) return;
    await this.run(async (signal) => {
      const { stage, name } = database;
      this.names = await api.get(`/admin/databases/${encodeURIComponent(stage)}/${encodeURIComponent(name)}/names`, {
        signal,
      });
      try {
        await api.post("/admin/sql", { stage, database: name, sql: "" }, { signal });
        this.off = "";
      } catch (fault) {
        if (!(fault instanceof ApiError) || fault.code !== "console_sql_off") throw fault;
        this.off = fault.message;
      }
    }, "names");
  }

  /** @returns {Editor | null} */
  get editor() {
    return this.querySelector("ps-editor");
  }

  /** Run what is selected, or the statement at the cursor; all of it with `all`. @param {{ all?: boolean, explain?: boolean | "analyze" }} [how] */
  async execute({ all = false, explain = false } = {}) {
    const { editor, database } = this;
    if (!editor || !database || this.running || this.off) return;
    const { text, start } = all ? { text: editor.value, start: 0 } : editor.current;
    if (!text.trim()) return;
    const stop = new AbortController();
    this.running = { since: performance.now(), stop, limit: this.timeout };
    this.#timer = setInterval(() => this.update(), 100);
    this.place = null;
    this.failure = null;
    this.update();
    const body = {
      stage: database.stage,
      database: database.name,
      sql: text,
      limit: this.limit,
      timeout_seconds: this.timeout,
      explain,
    };
    let failed = true;
    try {
      const signal = AbortSignal.any([stop.signal, this.signal]);
      // What only reads ends as soon as there are enough rows. If it did write, it was refused before it did anything.
      let outcome = /** @type {Outcome} */ (
        await api.post("/admin/sql", { ...body, read_only: !explain && reads(text) }, { signal })
      );
      if (!explain && reads(text) && outcome.error?.sqlstate === "25006")
        outcome = await api.post("/admin/sql", body, { signal });
      failed = outcome.error !== null;
      this.answer = { outcome, explain: explain !== false, took: performance.now() - this.running.since };
      this.chosen = Math.max(
        0,
        outcome.error ? outcome.results.length : outcome.results.findLastIndex((one) => one.columns),
      );
      this.place = placeIn(editor.value, start, outcome.error);
      if (outcome.results.some((one) => /^(CREATE|ALTER|DROP|COMMENT)/.test(one.command))) this.learn();
    } catch (fault) {
      this.answer = null;
      this.failure = stop.signal.aborted ? null : /** @type {Error} */ (fault);
      if (stop.signal.aborted) this.stopped = true;
    } finally {
      clearInterval(this.#timer);
      this.running = null;
      this.remember(text, failed);
      this.update();
    }
  }

  /** Whether the last run was stopped. */
  stopped = false;

  /** @param {string} sql @param {boolean} failed */
  remember(sql, failed) {
    if (sql.length > LONGEST_PAST) return;
    this.past = [{ sql, at: Date.now(), failed }, ...this.past.filter((one) => one.sql !== sql)].slice(0, MOST_PAST);
    store(HISTORY, this.past);
  }

  /** @param {string} text */
  use(text) {
    const { editor } = this;
    if (!editor) return;
    const end = editor.value.length;
    editor.select(end, end);
    editor.insert(`${editor.value.trim() ? "\n\n" : ""}${text}`);
  }

  async showPast() {
    const { past } = this;
    const taken = await dialog({
      title: "History of this tab",
      size: "side",
      signal: this.signal,
      content: (/** @type {import("../core/dialogs.js").Shown<string>} */ shown) => html`<div class="dialog-body">
        ${
          past.length
            ? html`<div class="list">${each(
                past,
                (one) => one,
                (one) => html`<button type="button" @click=${() => shown.close(one.sql)}>
                <span class="past"><code><bdi>${one.sql.slice(0, 300)}</bdi></code><small class="quiet">${ago(one.at)}${one.failed ? ", failed" : ""}</small></span></button>`,
              )}</div>`
            : html`<p class="quiet">What is run in this tab is listed here until the tab is closed.</p>`
        }
      </div>`,
    });
    if (taken) this.use(taken);
  }

  async showSnippets() {
    const taken = await dialog({
      title: "Snippets",
      signal: this.signal,
      content: (
        /** @type {import("../core/dialogs.js").Shown<string>} */ shown,
      ) => html`<div class="dialog-body"><div class="list">
        ${each(
          Object.entries(SNIPPETS),
          ([title]) => title,
          ([title, sql]) => html`<button type="button" @click=${() => shown.close(sql)}>${title}</button>`,
        )}
      </div></div>`,
    });
    if (taken) this.use(taken);
  }

  template() {
    const { databases, database, route } = this;
    if (!databases)
      return html`<div class="page">${this.failure ? this.complaint() : html`<p class="busy">Looking for databases…</p>`}</div>`;
    if (!database)
      return html`<div class="empty">${icon("sql")}<h2>No database</h2><p>The settings name no database of the table API.</p></div>`;
    if (formOf(route))
      // Another form begins anew.
      return each(
        [location.hash],
        (one) => one,
        () => html`<ps-sql-form .kind=${route.parts[0]} .database=${database} .names=${this.names} .query=${route.query} .off=${this.off}
        @changed=${() => this.learn()} @edit=${(/** @type {CustomEvent<string>} */ event) => this.edit(event.detail)}></ps-sql-form>`,
      );
    return this.workbench(databases, database);
  }

  /** Go on in the editor. @param {string} sql */
  edit(sql) {
    const { database } = this;
    this.text = sql;
    store(DRAFT, sql);
    go(["sql", database?.stage ?? "", database?.name ?? ""]);
  }

  complaint() {
    return html`<p role="alert" class="note danger">${icon("alert")}<span>${this.failure?.message}</span></p>
      <button type="button" @click=${() => this.load()}>Try again</button>`;
  }

  /** @param {Database[]} databases @param {Database} database */
  workbench(databases, database) {
    const { running, off } = this;
    const stopped = !running && this.stopped && !this.answer && !this.failure;
    return html`<div class="page whole sql">
      <h1 class="unseen">SQL</h1>
      <div class="tools">
        ${
          running
            ? html`<button type="button" class="danger" @click=${() => ((this.stopped = true), running.stop.abort())}>${icon("stop")} Stop</button>`
            : html`<button type="button" class="primary" ?disabled=${Boolean(off)} @click=${() => ((this.stopped = false), this.execute())}>${icon("play")} Run</button>`
        }
        <button type="button" ?disabled=${Boolean(running || off)} @click=${() => ((this.stopped = false), this.execute({ all: true }))}>Run all</button>
        <button type="button" ?disabled=${Boolean(running || off)} @click=${() => this.execute({ explain: true })}>Explain</button>
        <button type="button" ?disabled=${Boolean(running || off)} title="Runs the statement, measures each step, and rolls back what it changed" @click=${() => this.execute({ explain: "analyze" })}>Measure</button>
        <span class="spacer"></span>
        ${
          databases.length > 1
            ? html`<select aria-label="Database" @change=${(/** @type {Event} */ event) => go(["sql", ...picked(event).split("/")])}>
              ${each(
                databases,
                (one) => `${one.stage}/${one.name}`,
                (one) => html`<option ?selected=${one === database}>${`${one.stage}/${one.name}`}</option>`,
              )}</select>`
            : nothing
        }
        ${choice("Time limit of a statement", TIMES, this.timeout, (value) => (this.timeout = value))}
        ${choice("Rows at most", LIMITS, this.limit, (value) => (this.limit = value))}
        <button type="button" class="quiet" @click=${() => this.showPast()}>History</button>
        <button type="button" class="quiet" popovertarget="sql-more">More ${icon("down")}</button>
        <div id="sql-more" popover class="menu"><div class="list" @click=${(/** @type {Event} */ event) => /** @type {HTMLElement} */ (/** @type {Element} */ (event.target).closest("[popover]")).hidePopover()}>
          ${each(
            Object.entries(NEW),
            ([name]) => name,
            ([name, form]) =>
              html`<a href=${href(["sql", name], { database: `${database.stage}/${database.name}` })}>${icon("add")} ${form.title}</a>`,
          )}
          <button type="button" @click=${() => this.showSnippets()}>${icon("copy")} Snippets</button>
          <button type="button" @click=${() => save({ database, sql: this.editor?.value ?? "", applied: false, signal: this.signal })}>${icon("download")} Save as migration</button>
        </div></div>
      </div>
      <div class="sql-panes">
        <ps-editor .label=${"SQL"} .value=${this.text} .names=${this.names} .error=${this.place} @run=${() => ((this.stopped = false), this.execute())}
          @input=${(/** @type {Event} */ event) => {
            this.text = /** @type {Editor} */ (event.currentTarget).value;
            this.place = null;
            clearTimeout(this.#keeping);
            this.#keeping = setTimeout(() => store(DRAFT, this.text), 300);
          }}></ps-editor>
        <div class="sql-results" aria-busy=${String(Boolean(running))}>
          ${off ? html`<p role="status" class="note warn">${icon("lock")}<span>${off}</span></p>` : nothing}
          ${
            running
              ? html`<p class="busy" role="status">Running for <span class="elapsed">${Math.floor((performance.now() - running.since) / 1000)}</span> s of ${TIMES[/** @type {keyof typeof TIMES} */ (running.limit)]} for each statement</p>`
              : this.failure
                ? html`<p role="alert" class="note danger">${icon("alert")}<span>${this.failure.message}</span></p>`
                : stopped
                  ? html`<p role="status" class="note warn">${icon("stop")}<span>Stopped. The statement was cancelled, and what was not committed is undone.</span></p>`
                  : this.answer
                    ? this.results(this.answer)
                    : html`<div class="empty">${icon("sql")}<p>${commands.label("Mod+Enter")} runs what is selected, or the statement at the cursor. Each run has a connection of its own: no
                      transaction, setting or temporary table goes on in the next.</p>
                      <div class="tools"><a class="button" href=${href(["sql", "new-table"], { database: `${database.stage}/${database.name}` })}>${icon("add")} New table</a>
                        <button type="button" @click=${() => this.showSnippets()}>Take a snippet</button></div></div>`
          }
        </div>
      </div>
    </div>`;
  }

  /** @param {{ outcome: Outcome, explain: boolean, took: number }} answer */
  results({ outcome, explain, took }) {
    const { results, error } = outcome;
    const shown = results[this.chosen];
    const tabs = results.length + (error ? 1 : 0);
    /** @param {number} index @param {unknown} title */
    const tab = (
      index,
      title,
    ) => html`<button type="button" role="tab" aria-selected=${String(index === this.chosen)} aria-controls="sql-result"
      tabindex=${index === this.chosen ? "0" : "-1"} @click=${() => ((this.chosen = index), this.update())} @keydown=${(/** @type {KeyboardEvent} */ event) => this.step(event, tabs)}>${title}</button>`;
    return html`
      ${
        tabs > 1
          ? html`<div class="tabs" role="tablist" aria-label="Results">
            ${each(
              results.map((result, index) => ({ result, index })),
              ({ index }) => index,
              ({ result, index }) => tab(index, `${index + 1} ${result.command || "notices"}`),
            )}
            ${error ? tab(results.length, html`${icon("alert")} Error`) : nothing}</div>`
          : nothing
      }
      <div id="sql-result" class="sql-result" role=${tabs > 1 ? "tabpanel" : null} aria-label=${tabs > 1 ? "Result" : null}>
        ${error && (!shown || tabs === 1) ? this.fault(error, outcome) : nothing}
        ${shown ? this.result(shown, explain) : nothing}
        ${!tabs ? html`<p class="quiet">There was no statement.</p>` : nothing}
      </div>
      <p class=${tabs > 1 || outcome.undone ? "quiet small" : "unseen"} role="status">${error ? "Failed" : "Done"} in ${seconds(took / 1000)}${outcome.undone && !explain && !error ? ". What it did was undone" : ""}${
        outcome.one_transaction && !error && results.length > 1 ? ", in one transaction" : ""
      }.</p>`;
  }

  /** @param {KeyboardEvent} event @param {number} tabs */
  step(event, tabs) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const turned = getComputedStyle(this).direction === "rtl" ? -step : step;
    this.chosen = (this.chosen + turned + tabs) % tabs;
    this.update();
    queueMicrotask(() =>
      /** @type {HTMLElement | null} */ (this.querySelector("[role=tab][aria-selected=true]"))?.focus(),
    );
  }

  /** @param {Fault} error @param {Outcome} outcome */
  fault(error, outcome) {
    const { place } = this;
    return html`<div role="alert" class="note danger sql-fault">${icon("alert")}<div>
      <p class="told more"><b><bdi>${cut(error.message, 2000)}</bdi></b></p>
      ${error.detail ? html`<p class="told more"><bdi>${cut(error.detail, 2000)}</bdi></p>` : nothing}
      ${error.hint ? html`<p class="told more">Hint: <bdi>${cut(error.hint, 2000)}</bdi></p>` : nothing}
      ${error.context ? html`<p class="small"><bdi>${error.context.slice(0, 2000)}</bdi></p>` : nothing}
      <p class="small">${error.sqlstate ? html`<code>${error.sqlstate}</code> ` : nothing}${place ? html`Line ${place.line}, column ${place.column}. ` : nothing}${
        outcome.undone && outcome.one_transaction
          ? "Nothing of it was done."
          : outcome.results.length
            ? "What was before it has been done."
            : ""
      }</p>
      ${place ? html`<button type="button" @click=${() => this.editor?.goTo(place.line, place.column)}>Show the place</button>` : nothing}
    </div></div>`;
  }

  /** @param {Result} result @param {boolean} explain */
  result(result, explain) {
    const { columns, rows } = result;
    const found = columns
      ? result.row_count === null
        ? `The first ${counted(rows.length, "row")}`
        : result.truncated
          ? `${count(rows.length)} of ${counted(result.row_count, "row")}`
          : counted(rows.length, "row")
      : result.command;
    return html`
      ${each(
        result.notices,
        (one) => one,
        (one) =>
          html`<p class="note sql-notice">${icon("alert")}<span class="told more"><b>${one.severity.toLowerCase()}:</b> <bdi>${cut(one.message, 2000)}</bdi> ${one.detail ? html`<bdi>${cut(one.detail, 2000)}</bdi>` : nothing} ${one.hint ? html`<bdi>${cut(one.hint, 2000)}</bdi>` : nothing}</span></p>`,
      )}
      ${result.more_notices ? html`<p class="quiet">and ${counted(result.more_notices, "notice")} more</p>` : nothing}
      ${
        explain && rows[0]?.[0]
          ? planTree(JSON.parse(rows[0][0])[0])
          : columns?.length
            ? html`<ps-grid .label=${"Rows of the result"} .source=${this.source(result)} .empty=${"No rows."} @open=${whole}></ps-grid>`
            : nothing
      }
      <p class="sql-count"><bdi>${explain ? "" : `${found} in ${seconds(result.milliseconds / 1000)}`}</bdi>
        ${columns?.length && !explain && rows.length ? html`<button type="button" class="quiet" @click=${() => downloadCsv(result)}>${icon("download")} CSV</button>` : nothing}</p>`;
  }

  /** @param {Result} result @returns {import("../ideas/grid.js").Source} */
  source(result) {
    let source = this.#sources.get(result);
    if (!source) {
      const columns = (result.columns ?? []).map(({ name, type }, index) => ({
        name: String(index),
        title: name,
        type,
        numeric: NUMERIC.test(type),
        sortable: false,
      }));
      source = { columns, count: result.rows.length, rows: async (from, to) => result.rows.slice(from, to) };
      this.#sources.set(result, source);
    }
    return source;
  }
}
define("ps-sql", SqlPage);

/** Show all of a value. @param {CustomEvent<{ value: string | null }>} event */
function whole({ detail: { value } }) {
  dialog({
    title: "Value",
    size: "wide",
    content: () =>
      html`<div class="dialog-body"><pre class="mono" dir="auto">${value === null ? "null" : pretty(value).slice(0, 200_000)}</pre></div>`,
  });
}

/** @param {string} value */
function pretty(value) {
  if (!/^\s*[[{]/.test(value) || value.length > 1_000_000) return value;
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}

/** @param {Result} result */
function downloadCsv({ columns, rows }) {
  const cell = (/** @type {string | null} */ value) =>
    value === null ? "" : /[",\r\n]|^$/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  const text = [(columns ?? []).map((one) => one.name), ...rows].map((row) => row.map(cell).join(",")).join("\r\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text, "\r\n"], { type: "text/csv" }));
  link.download = "result.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Whether a text is one statement that by its first word only reads. @param {string} text */
export function reads(text) {
  const found = statements(text);
  if (found.length !== 1) return false;
  const first = [...tokens(text.slice(found[0].start, found[0].end))].find(
    ({ kind }) => kind !== "space" && kind !== "comment",
  );
  return (
    first !== undefined &&
    /^(select|table|values|with|show|explain)$/i.test(
      text.slice(found[0].start + first.start, found[0].start + first.end),
    )
  );
}

/**
 * Where in `text` an error is, of which the part from `start` was run.
 * @param {string} text
 * @param {number} start
 * @param {Fault | null} error
 */
export function placeIn(text, start, error) {
  if (!error) return null;
  const line = error.line ?? error.statement_line;
  if (line === null) return null;
  const before = text.slice(0, start).split("\n");
  const column = error.column ?? 1;
  return {
    line: before.length + line - 1,
    column: line === 1 ? [...before[before.length - 1]].length + column : column,
  };
}

/** @param {Event} event */
const picked = (event) => /** @type {HTMLSelectElement} */ (event.target).value;

/** @param {string} label @param {Record<number, string>} options @param {number} value @param {(value: number) => void} set */
const choice = (
  label,
  options,
  value,
  set,
) => html`<select aria-label=${label} title=${label} @change=${(/** @type {Event} */ event) => set(Number(picked(event)))}>
  ${each(
    Object.entries(options),
    ([each]) => each,
    ([each, title]) => html`<option value=${each} dir="auto" ?selected=${Number(each) === value}>${title}</option>`,
  )}</select>`;

/** @template T @param {string} name @param {T} otherwise @returns {T} */
function stored(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(name) ?? "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** @param {string} name @param {unknown} value */
function store(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    // There is no room: it lasts as long as the page.
  }
}
