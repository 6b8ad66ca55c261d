/** Log: the last lines of all processes, filtered, and new ones as they come. */

import { api, ApiError, OWN } from "../core/api.js";
import { commands } from "../core/commands.js";
import { count, cut, moment } from "../core/format.js";
import { dialog } from "../core/dialogs.js";
import { html, nothing } from "../core/html.js";
import { icon } from "../core/icons.js";
import { complain, notify } from "../core/notices.js";
import { go } from "../core/router.js";
import { define, Page } from "../core/view.js";
import "../ideas/grid.js";

/** @typedef {{ number: number, time: string | null, level: string, part: string, text: string, request_id: string | null }} Line */
/** @typedef {{ lines: Line[], newest: string, oldest: string | null, complete: boolean }} Answer */
/** @typedef {import("../ideas/grid.js").Grid} Grid */

const LEVELS = /** @type {const} */ ({
  debug: "All levels",
  info: "Info and worse",
  warn: "Warnings and worse",
  error: "Errors and worse",
});
const FILTERS = /** @type {const} */ (["level", "part", "request_id", "text", "admin"]);
const TONES = /** @type {Record<string, string>} */ ({
  debug: "quiet",
  info: "quiet",
  warn: "warning",
  error: "danger",
  critical: "danger",
});
const OURS = "project_service.";
/** What lines about requests of the console have, and those about its files. */
const CONSOLE = ` id=${OWN}| /console`;
/** So long after the last key what was typed is asked for. */
const SETTLED = 300;
const EVERY = 1500;
const PAGE = 1000;
/** So many are kept here; the service keeps 10,000. */
const MOST = 12_000;
const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
  hourCycle: "h23",
});
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

class LogPage extends Page {
  /** @type {Line[] | null} */
  lines = null;
  newest = "";
  /** @type {string | null} */
  oldest = null;
  following = true;
  /** @type {Set<string>} */
  parts = new Set();
  /** @type {import("../ideas/grid.js").Source} */
  source = { columns: [], count: 0, rows: async () => [] };
  /** What is in the fields and may not be in the address yet. @type {Partial<Record<"text" | "part", string>>} */
  typed = {};
  #asked = "";
  #settling = 0;

  disconnected() {
    clearTimeout(this.#settling);
  }

  connected() {
    const timer = setInterval(() => !document.hidden && this.following && this.lines && this.news(), EVERY);
    this.signal.addEventListener("abort", () => clearInterval(timer));
    commands.add(
      { title: "Follow the log, or pause", icon: "play", group: "Log", run: () => this.follow(!this.following) },
      this.signal,
    );
    commands.add(
      {
        title: "Find in the log",
        keys: "/",
        run: () => /** @type {HTMLElement | null} */ (this.querySelector("input[type=search]"))?.focus(),
      },
      this.signal,
    );
  }

  /** @param {string} name */
  filter(name) {
    return this.route.query.get(name) ?? "";
  }

  get filtered() {
    return FILTERS.some((name) => name !== "admin" && this.filter(name));
  }

  /** What the service is asked, but for the cursor. */
  get query() {
    const given = Object.fromEntries(
      ["part", "request_id", "text"].map((name) => [name, this.filter(name).slice(0, 200) || null]),
    );
    const level = this.filter("level");
    return {
      ...given,
      level: level in LEVELS ? level : null,
      without: this.filter("admin") || this.filter("request_id") ? null : CONSOLE,
    };
  }

  async routed() {
    // Whoever goes to another address means what that one has.
    for (const name of /** @type {const} */ (["text", "part"]))
      if (this.typed[name]?.trim() !== this.filter(name)) delete this.typed[name];
    const asked = JSON.stringify(this.query);
    if (asked === this.#asked) return this.update();
    this.#asked = asked;
    await this.reload();
  }

  /** @param {"text" | "part"} name @param {Event} event */
  type(name, event) {
    this.typed[name] = /** @type {HTMLInputElement} */ (event.target).value;
    clearTimeout(this.#settling);
    this.#settling = setTimeout(() => this.narrow({}), SETTLED);
  }

  /** @param {"text" | "part"} name */
  field(name) {
    return this.typed[name] ?? this.filter(name);
  }

  /** @param {Partial<Record<typeof FILTERS[number], string>>} changed */
  narrow(changed) {
    clearTimeout(this.#settling);
    const typed = Object.fromEntries(Object.entries(this.typed).map(([name, text]) => [name, text.trim()]));
    changed = { ...typed, ...changed };
    const query = Object.fromEntries(FILTERS.map((name) => [name, (changed[name] ?? this.filter(name)) || null]));
    go(["log"], query, { replace: true });
  }

  async reload() {
    this.lines = null;
    /** @type {Answer | undefined} */
    const answer = await this.run(
      (signal) => api.get("/admin/log", { query: { ...this.query, limit: PAGE }, signal }),
      "log",
    );
    if (answer) this.begin(answer.lines, answer);
  }

  async news() {
    const { newest } = this;
    /** @type {Answer | undefined} */
    const answer = await this.run(
      (signal) => api.get("/admin/log", { query: { ...this.query, limit: PAGE, after: newest }, signal }),
      "log",
    );
    // What was asked for before the log was paused is asked for again when it goes on.
    if (!answer || !this.lines || !this.following) return;
    // More has come than is answered at once, or the service has been started again.
    if (!answer.complete || this.lines.length > MOST)
      return this.begin(answer.complete ? [...this.lines.slice(-MOST / 2), ...answer.lines] : answer.lines, answer);
    this.newest = answer.newest;
    if (!answer.lines.length) return;
    const grid = this.grid;
    const stays = grid?.atEnd;
    this.note(answer.lines);
    this.lines.push(...answer.lines);
    this.source.count = this.lines.length;
    grid?.grew();
    if (stays) grid?.follow();
  }

  async older() {
    const { oldest } = this;
    /** @type {Line[]} */
    const found = [];
    let cursor = oldest;
    const complete = await this.run(async (signal) => {
      while (cursor) {
        /** @type {Answer} */
        const answer = await api.get("/admin/log", { query: { ...this.query, limit: PAGE, before: cursor }, signal });
        found.unshift(...answer.lines);
        cursor = answer.oldest;
      }
      return true;
    }, "older");
    if (!complete || !this.lines) return;
    this.show([...found, ...this.lines], null);
    this.shown(() => this.grid?.focusCell(Math.max(0, found.length - 1), "text"));
  }

  /** @param {Line[]} lines @param {Answer} answer */
  begin(lines, answer) {
    this.newest = answer.newest;
    this.show(lines, answer.oldest);
    this.shown(() => this.grid?.follow());
  }

  /** @param {Line[]} lines @param {string | null} oldest */
  show(lines, oldest) {
    this.note(lines);
    [this.lines, this.oldest] = [lines, oldest];
    const room = this.clientWidth - 602;
    /** @type {import("../ideas/grid.js").Column[]} */
    const columns = [
      { name: "time", title: "Time", width: 118, text: clock },
      { name: "level", title: "Level", width: 84, tone: (_, line) => tone(line) },
      {
        name: "text",
        title: "Line",
        width: Math.max(440, room),
        text: (_, line) => brief(line),
        tone: (_, line) => (tone(line) === "quiet" ? null : tone(line)),
      },
      { name: "part", title: "Part", width: 176, text: (part) => end(part.replace(OURS, ""), 16), link: () => true },
      {
        name: "request_id",
        title: "Request",
        width: 156,
        text: (id) => (id === null ? "–" : end(id, 12)),
        tone: (id) => (id === null ? "quiet" : null),
        link: (id) => id !== null,
      },
    ];
    this.source = {
      columns: columns.map((one) => ({ ...one, sortable: false })),
      count: lines.length,
      rows: async (from, to) => /** @type {any} */ (lines.slice(from, to)),
    };
    this.update();
  }

  /** @param {Line[]} lines */
  note(lines) {
    for (const line of lines) if (this.parts.size < 200) this.parts.add(line.part);
  }

  get grid() {
    return /** @type {Grid | null} */ (this.querySelector("ps-grid"));
  }

  /** Call `then` when what has changed is in the document. @param {() => void} then */
  shown(then) {
    requestAnimationFrame(() => requestAnimationFrame(then));
  }

  /** @param {boolean} following */
  follow(following) {
    this.following = following;
    this.update();
    if (following && this.lines) this.news().then(() => this.grid?.follow());
  }

  template() {
    const { failure, lines, following } = this;
    if (failure instanceof ApiError && failure.code === "log_not_shown")
      return html`<div class="empty">${icon("lock")}<h2>The log is not shown here</h2>
        <p>Set <code>server.console_log = true</code> in the configuration and start the service again. It has no secrets, but addresses and paths of your users.</p></div>`;
    return html`<div class="page whole log">
      <div class="head">
        <h1>Log</h1>
        <div class="tools grow">
          <input type="search" aria-label="Lines with this text" placeholder="Text" maxlength="200" .value=${this.field("text")}
            @input=${(/** @type {Event} */ event) => this.type("text", event)} @change=${() => this.narrow({})}>
          <select aria-label="Level" @change=${(/** @type {Event} */ event) => this.narrow({ level: value(event) })}>
            ${Object.entries(LEVELS).map(([level, title]) => html`<option value=${level === "debug" ? "" : level} ?selected=${level === (this.filter("level") || "debug")}>${title}</option>`)}</select>
          <input class="part" aria-label="Part" placeholder="Part" list="log-parts" maxlength="200" .value=${this.field("part")}
            @input=${(/** @type {Event} */ event) => this.type("part", event)} @change=${() => this.narrow({})}>
          <datalist id="log-parts">${[...this.parts].sort().map((part) => html`<option value=${part}></option>`)}</datalist>
          ${
            this.filter("request_id")
              ? html`<button type="button" title="All requests again" @click=${() => this.narrow({ request_id: "" })}><span class="clip request">Request <bdi class="mono">${end(this.filter("request_id"), 20)}</bdi></span>${icon("close")}</button>`
              : html`<label class="check"><input type="checkbox" .checked=${!this.filter("admin")}
                @change=${(/** @type {Event} */ event) => this.narrow({ admin: /** @type {HTMLInputElement} */ (event.target).checked ? "" : "1" })}>Hide requests of the console</label>`
          }
        </div>
        <button type="button" class="following" aria-pressed=${String(following)} @click=${() => this.follow(!following)}>${icon(following ? "pause" : "play")}${following ? "Pause" : "Follow"}</button>
      </div>
      <div class="log-lines">
        ${failure ? html`<p class="note danger" role="alert">${icon("alert")}<span>${failure.message}</span></p>` : nothing}
        ${
          lines
            ? html`${
                this.oldest
                  ? html`<p class="small"><button type="button" class="quiet" @click=${() => this.older()}>${icon("up")}Older lines</button>
              <span class="quiet">The last ${count(lines.length)} are shown.</span></p>`
                  : nothing
              }
            <ps-grid .label=${"Lines of the log"} .source=${this.source} .empty=${this.filtered ? "No line fits." : "Nothing yet."}
              @open=${(/** @type {CustomEvent} */ event) => this.whole(event.detail.row)}
              @follow=${(/** @type {CustomEvent} */ event) => this.narrow({ [event.detail.column]: event.detail.value })}></ps-grid>`
            : failure
              ? nothing
              : html`<p class="busy" role="status">Reading the log…</p>`
        }
      </div>
    </div>`;
  }

  /** @param {Line} line */
  async whole(line) {
    const text = cut(line.text, 20_000);
    await dialog({
      title: line.time ? moment(line.time) : "A line",
      size: "wide",
      signal: this.signal,
      content: (/** @type {import("../core/dialogs.js").Shown<void>} */ shown) => html`<div class="dialog-body">
          <dl class="pairs"><dt>Level</dt><dd>${line.level}</dd><dt>Part</dt><dd class="mono"><bdi>${line.part}</bdi></dd>
            ${line.request_id ? html`<dt>Request</dt><dd class="mono"><bdi>${line.request_id}</bdi></dd>` : nothing}</dl>
          <pre class="log-text" dir="auto" tabindex="0" aria-label="The whole line">${text}</pre>
        </div>
        <footer class="dialog-foot">
          ${line.request_id ? html`<button type="button" @click=${() => (shown.close(), this.narrow({ request_id: line.request_id ?? "" }))}>${icon("filter")}Only this request</button>` : nothing}
          <button type="button" class="primary" @click=${() => navigator.clipboard.writeText(line.text).then(() => notify("Copied."), complain)}>${icon("copy")}Copy</button>
        </footer>`,
    });
  }
}

/** @param {Event} event */
const value = (event) => /** @type {HTMLInputElement} */ (event.target).value.trim();

/** The end of a name, by which it differs from others. @param {string} text @param {number} length */
const end = (text, length) => (text.length > length ? `…${text.slice(1 - length)}` : text);

/** The first line of a line, without the request's id, which has a column of its own. @param {any} line */
function brief({ text, request_id: id }) {
  const [first] = text.split("\n", 1);
  return id && first.endsWith(` id=${id}`) ? first.slice(0, -id.length - 4) : first;
}

/** By its level, or by the status of an answer. @param {any} line */
function tone({ text, level }) {
  const [, status] = /^[A-Z]+ \S+ ([45])\d\d /.exec(text) ?? [];
  return status === "5" ? "danger" : status === "4" ? "warning" : (TONES[level] ?? "danger");
}

/** The time of a line; with the date if it is not today's. @param {string | null} time */
function clock(time) {
  if (!time) return "";
  const date = new Date(time);
  const shown = CLOCK.format(date);
  return date.toDateString() === new Date().toDateString() ? shown : `${DAY.format(date)} ${shown}`;
}

define("ps-log", LogPage);
