/** API: what the service and each database offer, searchable, and a form that tries it. */

import { api, request } from "../core/api.js";
import { commands } from "../core/commands.js";
import { count, cut } from "../core/format.js";
import { each, html, nothing } from "../core/html.js";
import { icon } from "../core/icons.js";
import { go, href } from "../core/router.js";
import { define, Page } from "../core/view.js";
import { Description } from "./api/description.js";
import "./api/trying.js";

/** @typedef {import("./api/description.js").Operation} Operation */

const SERVICE = "service";
const TONES = /** @type {Record<string, string>} */ ({
  GET: "good",
  HEAD: "good",
  POST: "accent",
  PUT: "accent",
  PATCH: "warn",
  DELETE: "danger",
});

class ApiPage extends Page {
  /** The names of databases, as "dev/main". @type {string[]} */
  databases = [];
  /** @type {Map<string, Description>} */
  known = new Map();
  search = "";

  connected() {
    commands.add(
      {
        title: "Find an endpoint",
        keys: "/",
        run: () => /** @type {HTMLElement | null} */ (this.querySelector(".side input"))?.focus(),
      },
      this.signal,
    );
    this.run(async (signal) => {
      const { databases } = await api.get("/admin/databases", { signal });
      this.databases = databases.map((/** @type {any} */ one) => `${one.stage}/${one.name}`);
    }, "databases");
  }

  /** What is described: the service, or a database by its name. */
  get source() {
    return this.route.parts[0] ?? SERVICE;
  }

  get description() {
    return this.known.get(this.source);
  }

  get operation() {
    return this.description?.operations.find((one) => one.id === this.route.parts[1]);
  }

  async routed() {
    this.update();
    const { source } = this;
    if (this.known.has(source)) return;
    await this.run(async (signal) => {
      if (source === SERVICE)
        return void this.known.set(source, new Description(await api.get("/openapi.json", { as: null, signal })));
      const [stage, name] = source.split("/");
      const base = `/${encodeURIComponent(stage)}/db/${encodeURIComponent(name ?? "")}/rest`;
      const answer = await request(`${base}/`, { headers: { Accept: "application/openapi+json" }, signal });
      this.known.set(source, new Description(await answer.json(), base));
    }, "description");
  }

  template() {
    const { description, operation, failure } = this;
    const chosen = this.route.parts[1];
    return html`<div class=${chosen ? "panes chosen api" : "panes api"}>
      <div class="side">
        <div class="head"><h1 class="grow">API</h1><a class="small" href="openapi.json" target="_blank" rel="noopener">openapi.json</a></div>
        <select aria-label="Description of" @change=${(/** @type {Event} */ event) => go(["api", /** @type {HTMLSelectElement} */ (event.target).value])}>
          ${[SERVICE, ...this.databases].map((name) => html`<option value=${name} ?selected=${name === this.source}>${name === SERVICE ? "The whole service" : `Database ${name}`}</option>`)}</select>
        <input type="search" aria-label="Find an endpoint" placeholder="Find: bucket delete" autocomplete="off" .value=${this.search}
          @input=${(/** @type {Event} */ event) => ((this.search = /** @type {HTMLInputElement} */ (event.target).value), this.update())}>
        ${failure ? html`<p class="note danger" role="alert">${icon("alert")}<span>${failure.message}</span></p>` : nothing}
        ${description ? this.list(description) : failure ? nothing : html`<p class="busy" role="status">Reading the description…</p>`}
      </div>
      <div class="main">${
        operation && description
          ? whole(description, operation)
          : chosen && description
            ? html`<div class="empty"><p>There is no such endpoint.</p><a href=${href(["api", this.source])}>All endpoints</a></div>`
            : html`<div class="empty">${icon("api")}<p>Choose an endpoint, to see what it takes and answers, and to try it. Whatever the console does, a script can do by these.</p></div>`
      }</div>
    </div>`;
  }

  /** @param {Description} description */
  list({ operations }) {
    const words = this.search.toLowerCase().split(/\s+/).filter(Boolean);
    const found = operations.filter((one) => words.every((word) => one.found.includes(word)));
    if (!found.length) return html`<p class="quiet">Nothing fits.</p>`;
    const tags = [...new Set(found.map((one) => one.tag))].sort();
    return html`<p class="quiet small" role="status">${count(found.length)} of ${count(operations.length)}</p>
      ${each(
        tags,
        (tag) => tag,
        (tag) => html`<section><h2 class=${this.source === SERVICE ? "tag words" : "tag"}>${tag || "Others"}</h2>
        <ul class="list">${each(
          found.filter((one) => one.tag === tag),
          (one) => one.id,
          (one) => html`<li>
          <a href=${href(["api", this.source, one.id])} aria-current=${one.id === this.route.parts[1] ? "true" : null} title=${cut(one.summary, 300)}>
            ${method(one)}<span class="clip"><bdi>${one.path.replace(/^\/\w+\/db\/\w+\/rest(?=.)/, "")}</bdi></span></a></li>`,
        )}</ul></section>`,
      )}`;
  }
}

/** @param {Operation} one */
const method = (one) => html`<span class=${`badge method ${TONES[one.method] ?? ""}`}>${one.method}</span>`;

/** Text with `names` in backticks. @param {string} text */
const prose = (text) =>
  cut(text, 4000)
    .split("`")
    .map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));

/** Lines of which some are items of a list. @param {string} text */
const lines = (text) => html`${text.split("\n").map((line) => html`<p>${prose(line.replace(/^- /, ""))}</p>`)}`;

/** @param {Description} description @param {Operation} operation */
function whole(description, operation) {
  const { parameters, body, answers } = operation;
  const draft =
    body?.schema && /json/.test(body.types[0]) ? JSON.stringify(description.example(body.schema), null, 2) : "";
  return html`<article class="page">
    <a class="back small" href=${href(["api"])}>${icon("back")}All endpoints</a>
    <div class="head"><h2 class="grow told"><bdi>${cut(operation.summary || operation.path, 500)}</bdi></h2></div>
    <p class="path">${method(operation)}<code dir="ltr">${operation.path}</code></p>
    ${operation.text ? html`<div class="prose">${lines(operation.text)}</div>` : nothing}
    <p class="quiet">${operation.who}.</p>
    ${each(
      [operation],
      (one) => one,
      (one) => html`<ps-trying .operation=${one} .draft=${draft}></ps-trying>`,
    )}
    ${
      parameters.length
        ? html`<section><h3>Parameters</h3><div class="table-wrap"><table class="table"><thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">Meaning</th></tr></thead><tbody>
          ${each(
            parameters,
            (one) => `${one.in} ${one.name}`,
            (
              one,
            ) => html`<tr><th scope="row"><code>${one.name}</code><br><small class="quiet">${one.in}${one.required ? ", required" : ""}</small></th>
            <td><code>${cut(description.written(one.schema), 400)}</code></td><td>${prose(one.text)}</td></tr>`,
          )}</tbody></table></div></section>`
        : nothing
    }
    ${
      body
        ? html`<section><h3>Body</h3>${body.text ? html`<p>${prose(body.text)}</p>` : nothing}<p class="quiet small">${body.types.join(", ")}</p>
      ${body.schema ? html`<pre class="code" dir="ltr" tabindex="0" aria-label="Schema of the body">${description.written(body.schema)}</pre>` : nothing}</section>`
        : nothing
    }
    <section><h3>Answers</h3>${each(
      answers,
      (one) => one.status,
      (one) => html`<details .open=${/^2/.test(one.status)}>
      <summary><span class=${Number(one.status) < 400 ? "badge good" : "badge"}>${one.status}</span> <span class="clip">${prose(cut(one.text.split("\n")[0].replace(/^- /, ""), 160))}</span></summary>
      ${one.text.includes("\n") ? html`<div class="prose">${lines(one.text)}</div>` : nothing}
      ${one.schema && Number(one.status) < 400 ? html`<pre class="code" dir="ltr" tabindex="0" aria-label=${`Schema of ${one.status}`}>${description.written(one.schema)}</pre>` : nothing}
    </details>`,
    )}</section>
  </article>`;
}

define("ps-api", ApiPage);
