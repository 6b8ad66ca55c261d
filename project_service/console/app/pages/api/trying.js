/** `<ps-trying>`: a form for one operation, and what is answered. */

import { address, ApiError, credentials } from "../../core/api.js";
import { bytes, cut, seconds } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { complain, notify } from "../../core/notices.js";
import { define, View } from "../../core/view.js";
import { showCode } from "../../ideas/code.js";
import { chooseIdentity, identityOf, nameOf } from "../tables/identity.js";

/** @typedef {import("./description.js").Operation} Operation */
/** @typedef {import("./description.js").Parameter} Parameter */
/** @typedef {{ status: number, text: string, took: number, size: number, headers: [string, string][], body: string | null }} Outcome */

/** More of an answer is not shown. */
const MOST = 100_000;
const JSON_TYPE = /^application\/([\w.+-]+\+)?json\b/;
const TEXTUAL = /^(text\/|application\/([\w.+-]+\+)?(json|xml|x-ndjson|javascript|yaml))/;
/** What stands for a caller, which a page does not show. */
const SECRETS = [
  [/\bpsk_(anon|service)_[\w-]{8,}/g, "psk_$1_…"],
  [/\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*/g, "eyJ…"],
  [/("(?:[a-z_]*token|secret|otp|hashed_token|action_link)"\s*:\s*")[^"]{8,}(")/g, "$1…$2"],
  [/([?&]token=)[^&\s"']+/g, "$1…"],
];

/** Whom requests are made as, on this page. @type {string | null} */
let whom = null;

class Trying extends View {
  /** @type {Operation | null} */
  operation = null;
  /** What the body is at first. */
  draft = "";
  /** What it is by now. @type {string | null} */
  typed = null;
  /** @type {Outcome | null} */
  outcome = null;
  /** What was answered and has been scrolled to. @type {Outcome | Error | null} */
  #seen = null;

  updated() {
    const answer = this.failure ?? this.outcome;
    if (this.busy || answer === this.#seen) return;
    this.#seen = answer;
    this.querySelector(".outcome")?.scrollIntoView({ block: "nearest" });
  }

  /** What was typed, as a request. */
  get call() {
    const operation = /** @type {Operation} */ (this.operation);
    const form = new FormData(/** @type {HTMLFormElement} */ (this.querySelector("form")));
    /** @param {Parameter["in"]} place @returns {[string, string][]} */
    const given = (place) =>
      operation.parameters
        .filter((one) => one.in === place)
        .map((one) => /** @type {[string, string]} */ ([one.name, String(form.get(`${place}-${one.name}`) ?? "")]))
        .filter(([, value]) => value !== "");
    const values = Object.fromEntries(given("path"));
    const slashes = (/** @type {string} */ name) => /key|path|prefix/.test(name);
    const path = operation.path.replace(/\{(\w+)\}/g, (_, name) =>
      slashes(name)
        ? (values[name] ?? "").split("/").map(encodeURIComponent).join("/")
        : encodeURIComponent(values[name] ?? ""),
    );
    const type = String(form.get("type") ?? "");
    const file = /** @type {File | null} */ (form.get("file"));
    return {
      method: operation.method,
      path,
      query: given("query"),
      headers: Object.fromEntries(given("header")),
      type,
      text: String(form.get("body") ?? ""),
      file: file?.size ? file : null,
      as: identityOf(whom),
    };
  }

  /** @param {SubmitEvent} event */
  async submit(event) {
    event.preventDefault();
    const { method, path, query, headers, type, text, file, as } = this.call;
    /** @type {BodyInit | undefined} */
    let body = file ?? (text.trim() ? text : undefined);
    if (type === "multipart/form-data" && file) {
      body = new FormData();
      body.append("file", file);
    } else if (body !== undefined && type)
      headers["Content-Type"] = type === "*/*" ? (file?.type ?? "") || "application/octet-stream" : type;
    await this.run(async (signal) => {
      const began = performance.now();
      const sent = { ...(await credentials(as, signal)), ...headers };
      /** @type {Response} */
      let answer;
      try {
        answer = await fetch(address(path, query), {
          method,
          headers: sent,
          body,
          signal,
          credentials: "omit",
          cache: "no-store",
          redirect: "manual",
          referrerPolicy: "no-referrer",
        });
      } catch (fault) {
        if (signal.aborted) throw fault;
        throw new ApiError(
          0,
          "unreachable",
          "There was no answer: the service is away, or the browser does not send such a request.",
        );
      }
      const content = await answer.arrayBuffer();
      const kind = answer.headers.get("Content-Type") ?? "";
      this.outcome = {
        status: answer.status,
        text:
          answer.type === "opaqueredirect" ? "It leads elsewhere; the browser does not say where." : answer.statusText,
        took: (performance.now() - began) / 1000,
        size: content.byteLength,
        headers: [...answer.headers].sort(([one], [other]) => one.localeCompare(other)),
        body: !content.byteLength || !TEXTUAL.test(kind) ? null : pretty(new TextDecoder().decode(content), kind),
      };
    }, "send");
  }

  code() {
    const { method, path, query, headers, text, file, as, type } = this.call;
    let body;
    try {
      body = JSON_TYPE.test(type) && text.trim() ? JSON.parse(text) : undefined;
    } catch {
      return notify("The body is no JSON yet.", { kind: "error" });
    }
    void showCode(
      {
        method,
        path,
        query,
        headers: type && body === undefined ? { ...headers, "Content-Type": type } : headers,
        body,
        file: file?.name,
        as,
      },
      this.signal,
    );
  }

  async choose() {
    const chosen = await chooseIdentity(identityOf(whom), this.signal);
    if (chosen !== undefined) whom = chosen;
    this.update();
  }

  template() {
    const { operation, busy, failure, outcome } = this;
    if (!operation) return nothing;
    const { parameters, body, method } = operation;
    const as = identityOf(whom);
    const required = parameters.filter((one) => one.required);
    const others = parameters.filter((one) => !one.required);
    return html`<form class="card trying" @submit=${(/** @type {SubmitEvent} */ event) => this.submit(event)}>
        <div class="head"><h3 class="grow">Try it</h3>
          <button type="button" class="quiet" @click=${() => this.choose()}>${icon(as === "service" ? "keys" : "user")}<span>as <bdi>${nameOf(as)}</bdi></span></button></div>
        ${required.length ? html`<div class="fields">${each(required, key, input)}</div>` : nothing}
        ${others.length ? html`<details .open=${others.length < 4}><summary>Optional parameters (${others.length})</summary><div class="fields">${each(others, key, input)}</div></details>` : nothing}
        ${body ? this.body(body) : nothing}
        <div class="tools">
          <button class=${method === "DELETE" ? "danger" : "primary"} ?disabled=${busy}>${busy ? "Sending…" : `Send ${method}`}</button>
          ${busy ? html`<button type="button" @click=${() => this.run(async () => undefined, "send")}>${icon("stop")}Stop</button>` : nothing}
          <button type="button" class="quiet" @click=${() => this.code()}>${icon("api")}As code</button>
        </div>
      </form>
      <div class="outcome" aria-live="polite">
      ${failure ? html`<p class="note danger" role="alert">${icon("alert")}<span>${failure.message}</span></p>` : nothing}
      ${outcome && !failure ? this.answered(outcome) : nothing}</div>`;
  }

  /** @param {import("./description.js").Body} body */
  body({ types, required }) {
    const [first] = types;
    const textual = TEXTUAL.test(first) || first === "application/x-www-form-urlencoded";
    return html`<label class="field"><span>Content type</span>
        <select name="type">${types.map((type) => html`<option value=${type}>${type === "*/*" ? "that of the file" : type}</option>`)}</select></label>
      ${types.some((type) => !JSON_TYPE.test(type)) ? html`<label class="field"><span>File</span><input type="file" name="file"></label>` : nothing}
      ${
        textual || types.some((type) => TEXTUAL.test(type))
          ? html`<label class="field"><span>Body${required ? "" : " (optional)"}</span>
            <textarea name="body" class="mono" dir="ltr" spellcheck="false" rows=${Math.min(14, this.draft.split("\n").length + 1)} .value=${this.typed ?? this.draft}
              @input=${(/** @type {Event} */ event) => (this.typed = /** @type {HTMLTextAreaElement} */ (event.target).value)}></textarea></label>`
          : nothing
      }`;
  }

  /** @param {Outcome} outcome */
  answered({ status, text, took, size, headers, body }) {
    const shown = body === null ? null : hide(cut(body, MOST));
    return html`<section class="card answered" aria-label="The answer">
      <div class="head"><h3><span class=${status >= 400 || !status ? "badge danger" : "badge good"}>${status || "–"} ${text}</span></h3>
        <span class="quiet small grow"><bdi>${seconds(took)}, ${bytes(size)}</bdi></span>
        ${body === null ? nothing : html`<button type="button" class="quiet" @click=${() => navigator.clipboard.writeText(body).then(() => notify("Copied."), complain)}>${icon("copy")}Copy</button>`}</div>
      <details><summary>Headers (${headers.length})</summary>
        <dl class="pairs small">${each(
          headers,
          ([name]) => name,
          ([name, value]) =>
            html`<dt class="mono">${name}</dt><dd class="mono"><bdi>${hide(cut(value, 1000))}</bdi></dd>`,
        )}</dl></details>
      ${
        shown === null
          ? html`<p class="quiet">${size ? "It is not text." : "It has no body."}</p>`
          : html`<pre class="code" dir="ltr" tabindex="0" aria-label="Body of the answer">${shown}</pre>${shown.includes("…") && shown !== body ? html`<p class="quiet small">Keys and tokens are hidden, and what is long is cut; Copy has all of it.</p>` : nothing}`
      }
    </section>`;
  }
}

/** @param {Parameter} one */
const key = (one) => `${one.in} ${one.name}`;

/** @param {Parameter} one */
function input({ name, in: place, required, schema, text, filter }) {
  const id = `${place}-${name}`;
  const choices = schema.enum ?? (schema.type === "boolean" ? [true, false] : null);
  const hint = [
    schema.type === "array" ? "several, with commas" : [schema.type].flat().filter(Boolean).join(" or "),
    schema.format,
  ]
    .filter(Boolean)
    .join(", ");
  return html`<label class="field"><span><bdi class="mono">${name}</bdi>${required ? html` <span class="quiet">required</span>` : nothing} ${place === "header" ? html`<span class="quiet">header</span>` : nothing}</span>
    ${
      choices
        ? html`<select name=${id} ?required=${required}><option value="">–</option>${choices.map((/** @type {unknown} */ one) => html`<option value=${String(one)}>${String(one)}</option>`)}</select>`
        : html`<input name=${id} ?required=${required} placeholder=${filter ?? (hint || null)} autocomplete="off" spellcheck="false">`
    }
    ${text ? html`<small><bdi>${cut(text, 240)}</bdi></small>` : nothing}
    ${filter ? html`<small>operator.value: <span class="mono">eq. gt. lt. like. in.(a,b) is.null</span></small>` : nothing}</label>`;
}

/** @param {string} text @param {string} kind */
function pretty(text, kind) {
  if (!JSON_TYPE.test(kind) || text.length > 2 * MOST) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {string} text */
const hide = (text) =>
  SECRETS.reduce((shown, [pattern, instead]) => shown.replace(pattern, /** @type {string} */ (instead)), text);

define("ps-trying", Trying);
