/** Overview: how the service is, what is wrong first, and how the last hour was. */

import { api, ApiError } from "../core/api.js";
import { ago, bytes, count, counted, cut, seconds } from "../core/format.js";
import { each, html, nothing } from "../core/html.js";
import { icon } from "../core/icons.js";
import { href } from "../core/router.js";
import { define, Page } from "../core/view.js";
import "../ideas/chart.js";

/** @typedef {{ requests: number, refused: number, failed: number, p50: number | null, p99: number | null }} Figures */
/** @typedef {Figures & { time: string, clients: number, busy: number, waiting: number, memory_bytes: number }} Sample */
/** @typedef {{ name: string, max: number, open: number, busy: number, waiting: number }} Pool */
/** @typedef {{ pid: number, started_at: string, memory_bytes: number, clients: number, requests: number }} Process */
/** @typedef {{ measured_at: string, databases: { name: string, bytes: number }[], buckets: { name: string, object_count: number, total_bytes: number }[], bucket_count: number, object_count: number, total_bytes: number }} Sizes */
/**
 * @typedef {{ version: string, time: string, parts: { name: string, works: boolean }[], processes: Process[], clients: { open: number, max: number },
 *   pools: Pool[], interval_seconds: number, samples: Sample[], last_hour: Figures & { codes: { status: number, code: string, count: number }[] }, sizes: Sizes | null }} Overview
 */

const HOUR = 3600_000;
/** The charts have at least so much time. */
const QUARTER = 900_000;
/** What the parts are, for people. */
const PARTS = /** @type {Record<string, string>} */ ({
  database: "System database",
  notifications: "Notifications of changes",
  store: "Object store",
  tables: "Schema caches of the table API",
  workers: "All workers",
});

/** What pools and databases are for; those of the table API have the names of their addresses. */
const POOLS = /** @type {Record<string, string>} */ ({
  system: "System (users, files)",
  policies: "Policies of files",
});

class OverviewPage extends Page {
  /** @type {Overview | null} */
  shown = null;
  /** @type {Sample[]} */
  samples = [];
  /** Parts that are away, where the service could not say more. @type {string[]} */
  away = [];

  connected() {
    this.load();
    const timer = setInterval(() => !document.hidden && this.load(), 10_000);
    this.signal.addEventListener("abort", () => clearInterval(timer));
    document.addEventListener("visibilitychange", () => !document.hidden && this.load(), { signal: this.signal });
  }

  async load() {
    await this.run(async (signal) => {
      const last = this.samples.at(-1);
      const query = { after: last ? Date.parse(last.time) / 1000 : null };
      try {
        /** @type {Overview} */
        const shown = await api.get("/admin/overview", { query, signal });
        this.samples = [...this.samples, ...shown.samples].filter(
          (one) => Date.parse(one.time) > Date.parse(shown.time) - HOUR,
        );
        [this.shown, this.away] = [shown, []];
      } catch (fault) {
        // Without its database the service knows no key; anybody may ask what is away.
        if (fault instanceof ApiError && fault.status === 503) this.away = await away(signal);
        throw fault;
      }
    });
  }

  /** What is wrong, the worst first. */
  get troubles() {
    const { shown, samples } = this;
    const parts = this.failure ? this.away : (shown?.parts.filter((one) => !one.works).map((one) => one.name) ?? []);
    /** @type {[tone: string, text: unknown][]} */
    const found = parts.map((name) => ["danger", html`<b>${PARTS[name] ?? name}</b> does not answer as it should.`]);
    if (!shown || this.failure) return found;
    const { last_hour: hour } = shown;
    // That a part was away, told to whoever asked for it, is over or stands above.
    const told = hour.codes.find((one) => one.code === "not_ready")?.count ?? 0;
    if (hour.failed > told) {
      const codes = hour.codes
        .filter((one) => one.status >= 500 && one.code !== "not_ready")
        .slice(0, 3)
        .map((one) => one.code)
        .join(", ");
      found.push([
        "danger",
        html`${counted(hour.failed - told, "answer")} of the last hour failed${codes ? `: ${cut(codes)}` : ""}. <a href=${href(["log"], { level: "warn" })}>See the log</a>`,
      ]);
    }
    for (const pool of shown.pools.filter((one) => one.waiting))
      found.push([
        "warn",
        html`${counted(pool.waiting, "statement waits", "statements wait")} for one of the ${count(pool.max)} connections of <b>${POOLS[pool.name] ?? pool.name}</b>.`,
      ]);
    const waiting = samples.at(-1)?.waiting ?? 0;
    if (waiting)
      found.push([
        "warn",
        html`${counted(waiting, "request waits", "requests wait")} for a turn: there is more to do than is served at once.`,
      ]);
    if (shown.clients.open > 0.8 * shown.clients.max)
      found.push([
        "warn",
        html`${count(shown.clients.open)} of ${count(shown.clients.max)} connections of clients are open (<code>server.max_connections</code>).`,
      ]);
    return found;
  }

  template() {
    const { shown, failure, troubles } = this;
    const worst = troubles[0]?.[0];
    return html`<div class="page overview">
      <div class="head">
        <h1 class=${failure || worst === "danger" ? "danger" : worst === "warn" ? "warn" : shown ? "good" : null}>
          ${shown || failure ? icon(troubles.length || failure ? "alert" : "check") : nothing}
          ${failure ? "Does not answer" : troubles.length ? "Needs a look" : shown ? "Everything works" : "Overview"}</h1>
        <span class="quiet">${shown ? html`Version ${shown.version}, ${counted(shown.processes.length, "process", "processes")}` : nothing}</span>
      </div>
      ${
        failure
          ? html`<p class="note danger" role="alert">${icon("alert")}<span>${failure.message}${shown ? " What follows is older." : ""}</span></p>`
          : nothing
      }
      ${
        troubles.length
          ? html`<ul class="troubles" aria-label="What is wrong">${each(
              troubles,
              (one) => one,
              ([tone, text]) => html`<li class=${`note ${tone}`}>${icon("alert")}<bdi>${text}</bdi></li>`,
            )}</ul>`
          : nothing
      }
      ${
        shown
          ? html`${this.figures(shown)}${this.charts(shown)}<div class="columns">${parts(shown)}${codes(shown)}${pools(shown)}${processes(shown)}${databases(shown)}${buckets(shown)}</div>`
          : failure
            ? nothing
            : html`<p class="busy" role="status">Asking…</p>`
      }
    </div>`;
  }

  /** @param {Overview} shown */
  figures(shown) {
    const last = this.samples.at(-1);
    const { last_hour: hour, interval_seconds: interval } = shown;
    const share = hour.requests ? (hour.refused + hour.failed) / hour.requests : 0;
    const percent = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });
    return html`<div class="cards figures">
      ${figure("Requests a second", last ? rate(last.requests / interval) : "–", html`${counted(hour.requests, "request")} in the last hour`)}
      ${figure("Half were answered within", time(last?.p50 ?? hour.p50), html`in the last hour ${time(hour.p50)}`)}
      ${figure("99 of 100 within", time(last?.p99 ?? hour.p99), html`in the last hour ${time(hour.p99)}`)}
      ${figure("Errors in the last hour", percent.format(share), html`${count(hour.refused)} refused, ${count(hour.failed)} failed`)}
    </div>`;
  }

  /** @param {Overview} shown */
  charts({ interval_seconds: interval }) {
    const { samples } = this;
    /** @param {(one: Sample) => number | null} value */
    const points = (value) => samples.map((one) => ({ t: Date.parse(one.time), v: value(one) }));
    const since = samples.length ? Date.parse(samples[samples.length - 1].time) - Date.parse(samples[0].time) : 0;
    const span = since > QUARTER ? HOUR : QUARTER;
    const empty = "The first values come within ten seconds.";
    return html`<div class="charts">
      <ps-chart class="card" .label=${"Requests a second"} .span=${span} .empty=${empty} .format=${rate} .series=${[
        { name: "all", points: points((one) => one.requests / interval), area: true },
        { name: "refused (4xx)", points: points((one) => one.refused / interval), tone: "warn" },
        { name: "failed (5xx)", points: points((one) => one.failed / interval), tone: "danger" },
      ]}></ps-chart>
      <ps-chart class="card" .label=${"Time to answer"} .span=${span} .empty=${empty} .format=${(/** @type {number} */ value) => (value ? seconds(value) : "0")} .series=${[
        { name: "half within", points: points((one) => one.p50) },
        { name: "99 of 100 within", points: points((one) => one.p99), tone: "warn" },
      ]}></ps-chart>
      <ps-chart class="card" .label=${"Connections"} .span=${span} .empty=${empty} .format=${count} .ceiling=${4} .series=${[
        { name: "clients", points: points((one) => one.clients), area: true },
        { name: "databases, in use", points: points((one) => one.busy), tone: "good" },
        { name: "requests waiting", points: points((one) => one.waiting), tone: "danger" },
      ]}></ps-chart>
      <ps-chart class="card" .label=${"Memory of all processes"} .span=${span} .empty=${empty} .format=${bytes} .binary=${true} .series=${[
        { name: "in use", points: points((one) => one.memory_bytes), area: true },
      ]}></ps-chart>
    </div>`;
  }
}

/** @param {AbortSignal} signal @returns {Promise<string[]>} */
async function away(signal) {
  try {
    await api.request("/ready", { as: null, signal });
    return [];
  } catch (fault) {
    return fault instanceof ApiError && fault.details && typeof fault.details === "object"
      ? Object.keys(fault.details)
      : [];
  }
}

/** @param {number} value */
const rate = (value) => new Intl.NumberFormat(undefined, { maximumFractionDigits: value < 10 ? 1 : 0 }).format(value);
/** @param {number | null} value */
const time = (value) => (value === null ? "–" : seconds(value));

/** @param {string} name @param {string} value @param {unknown} below */
const figure = (name, value, below) =>
  html`<div class="card figure"><span>${name}</span><b><bdi>${value}</bdi></b><span class="small"><bdi>${below}</bdi></span></div>`;

/** @param {string} title @param {unknown} content @param {unknown} [end] */
const section = (title, content, end = nothing) =>
  html`<section class="card"><div class="head"><h2 class="grow">${title}</h2>${end}</div>${content}</section>`;

/** @param {Overview} shown */
const parts = (shown) =>
  section(
    "Parts",
    html`<ul class="rows">${each(
      shown.parts,
      (one) => one.name,
      (one) => html`<li>
  <span class="grow">${PARTS[one.name] ?? one.name}</span>
  ${one.works ? html`<span class="badge good">${icon("check")}works</span>` : html`<span class="badge danger">${icon("alert")}away</span>`}</li>`,
    )}</ul>`,
  );

/** @param {Overview} shown */
const codes = ({ last_hour: { codes } }) =>
  section(
    "Errors by code, last hour",
    codes.length
      ? html`<ul class="rows">${each(
          codes.slice(0, 12),
          (one) => `${one.status} ${one.code}`,
          (one) => html`<li><span class=${one.status >= 500 ? "badge danger" : "badge"}>${one.status}</span>
      <a class="grow clip" href=${href(["log"], { text: one.code })}><code>${one.code}</code></a><span class="number"><bdi>${count(one.count)}</bdi></span></li>`,
        )}</ul>`
      : html`<p class="quiet">None.</p>`,
  );

/** @param {Overview} shown */
const pools = (shown) =>
  section(
    "Connections to databases",
    table(
      ["Pool", "In use", "Open", "At most"],
      each(
        shown.pools,
        (one) => one.name,
        (one) => html`<tr>
  <th scope="row"><bdi>${POOLS[one.name] ?? one.name}</bdi></th><td class="number"><bdi>${count(one.busy)}</bdi></td><td class="number"><bdi>${count(one.open)}</bdi></td><td class="number"><bdi>${count(one.max)}</bdi></td></tr>`,
      ),
    ),
  );

/** @param {Overview} shown */
const processes = (shown) =>
  section(
    "Processes",
    table(
      ["Process", "Running", "Memory", "Clients"],
      each(
        shown.processes,
        (one) => one.pid,
        (one) => html`<tr>
  <th scope="row"><span class="mono">${one.pid}</span></th><td class="number"><bdi>${seconds(Math.max(0, (Date.parse(shown.time) - Date.parse(one.started_at)) / 1000))}</bdi></td>
  <td class="number"><bdi>${bytes(one.memory_bytes)}</bdi></td><td class="number"><bdi>${count(one.clients)}</bdi></td></tr>`,
      ),
    ),
  );

/** @param {Overview} shown */
function databases({ sizes, pools }) {
  // Databases of the table API that are not measured by themselves are the system database.
  const within = pools
    .filter((pool) => pool.name.includes("/") && !sizes?.databases.some((one) => one.name === pool.name))
    .map((pool) => pool.name);
  const system = `System (${["users", "files", ...within].join(", ")})`;
  return section(
    "Databases",
    sizes
      ? html`<ul class="rows">${each(
          sizes.databases,
          (one) => one.name,
          (one) =>
            html`<li><span class="grow"><bdi>${one.name === "system" ? system : one.name}</bdi></span><span class="number"><bdi>${bytes(one.bytes)}</bdi></span></li>`,
        )}</ul>`
      : html`<p class="quiet">The database has not answered yet.</p>`,
    sizes ? html`<span class="quiet small">${ago(sizes.measured_at)}</span>` : nothing,
  );
}

/** @param {Overview} shown */
const buckets = ({ sizes }) =>
  section(
    "Buckets",
    sizes
      ? html`<ul class="rows">${each(
          sizes.buckets.slice(0, 8),
          (one) => one.name,
          (one) => html`<li><a class="grow clip" href=${href(["storage", one.name])}><bdi>${one.name}</bdi></a>
      <span class="quiet"><bdi>${counted(one.object_count, "object")}</bdi></span><span class="number"><bdi>${bytes(one.total_bytes)}</bdi></span></li>`,
        )}</ul>
      ${sizes.bucket_count > 8 ? html`<p class="quiet small">${counted(sizes.bucket_count - 8, "smaller bucket")} more.</p>` : nothing}`
      : html`<p class="quiet">The database has not answered yet.</p>`,
    sizes
      ? html`<span class="quiet small"><bdi>${counted(sizes.object_count, "object")}, ${bytes(sizes.total_bytes)}</bdi></span>`
      : nothing,
  );

/** @param {string[]} heads @param {unknown} rows */
const table = (heads, rows) =>
  html`<table class="table plain"><thead><tr>${heads.map((head, index) => html`<th scope="col" class=${index ? "number" : null}>${head}</th>`)}</tr></thead><tbody>${rows}</tbody></table>`;

define("ps-overview", OverviewPage);
