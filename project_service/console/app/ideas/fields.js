/** Editors for values of PostgreSQL's types: in a cell of the grid, and as lines of a form. */

import { html, nothing, render } from "../core/html.js";
import { icon } from "../core/icons.js";
import { bytes } from "../core/format.js";

/** @typedef {import("../pages/tables/query.js").Column} Column */
/** @typedef {"boolean" | "enum" | "json" | "array" | "whole" | "number" | "moment" | "date" | "text"} Kind */

const KINDS = /** @type {Record<string, Kind>} */ ({
  boolean: "boolean",
  json: "json",
  jsonb: "json",
  smallint: "whole",
  integer: "whole",
  bigint: "whole",
  numeric: "number",
  real: "number",
  "double precision": "number",
  "timestamp with time zone": "moment",
  "timestamp without time zone": "moment",
  date: "date",
});
/** Types whose texts often have several lines. */
const LINES = /^(text|character varying|xml|citext|public\.citext)$/;
/** In characters. A longer text is not edited here: browsers take seconds for one. */
const LONGEST = 200_000;
/** Longer arrays are edited as JSON. */
const MOST_ITEMS = 100;
const HINTS = /** @type {Partial<Record<Kind, string>>} */ ({
  json: 'JSON, such as {"a": 1}',
  array: 'A JSON array, such as ["a", "b"]',
  moment: "2026-01-31 13:00:00+00",
  whole: "A whole number",
  number: "A number",
});

/** @param {Column} column @returns {Kind} */
export const kindOf = (column) =>
  column.array ? "array" : column.enum ? "enum" : (KINDS[column.base_type.replace(/\(.*\)/, "")] ?? "text");

/** A value as it is edited. @param {Kind} kind @param {unknown} value */
function asText(kind, value) {
  if (value === null || value === undefined) return "";
  if (kind === "json" || kind === "array") return JSON.stringify(value, null, kind === "json" ? 2 : undefined);
  return String(value);
}

/**
 * What somebody has typed as a value that the API takes. Raises an error that says what is wrong.
 * @param {Column} column
 * @param {string} typed
 */
export function parse(column, typed) {
  const kind = kindOf(column);
  const text = kind === "text" ? typed : typed.trim();
  if (kind === "boolean") return text === "true";
  if (kind === "whole" || kind === "number") {
    const fits = kind === "whole" ? /^[+-]?\d+$/ : /^(?:[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|NaN|[+-]?Infinity)$/i;
    if (!fits.test(text))
      throw new Error(kind === "whole" ? "This has to be a whole number." : "This has to be a number.");
    // PostgreSQL reads the digits itself where JavaScript would round them.
    return String(Number(text)) === text && Math.abs(Number(text)) <= Number.MAX_SAFE_INTEGER ? Number(text) : text;
  }
  if (kind === "json" || kind === "array") {
    let value;
    try {
      value = JSON.parse(text, /** @type {any} */ (exact));
    } catch (fault) {
      throw new Error(`This is not JSON: ${fault instanceof Error ? fault.message : fault}`);
    }
    if (kind === "array" && !Array.isArray(value)) throw new Error('This has to be an array: ["a", "b"]');
    return value;
  }
  if (text === "" && kind !== "text" && kind !== "enum") throw new Error("There is no value; choose null for none.");
  return text;
}

/** @param {string} content @param {string} name */
function download(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "text/plain" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** @param {string} _ @param {unknown} value @param {{ source?: string }} context */
function exact(_, value, context) {
  const rounded =
    typeof value === "number" &&
    context?.source &&
    String(value) !== context.source &&
    context.source.replace(/\D/g, "").length > 15;
  return rounded ? (/** @type {any} */ (JSON).rawJSON?.(context.source) ?? value) : value;
}

/**
 * `<ps-field>`: one value of `column`, with null told apart from an empty text. Set `column`, `value` and, before it
 * comes into the document, `adds`: of a row that does not exist yet, so that the column's default can be left to it.
 * `read()` gives the value, undefined for the default, and raises an error with what is wrong, which it shows too.
 * It emits `input` when its value has changed.
 */
export class Field extends HTMLElement {
  /** @type {Column} */
  column = {
    name: "",
    type: "text",
    base_type: "text",
    array: false,
    nullable: true,
    default: null,
    generated: null,
    settable: true,
    enum: null,
    comment: null,
  };
  /** @type {unknown} */
  value = null;
  adds = false;
  /** In a cell: one line where that is possible. */
  compact = false;
  /** What `read` has refused. */
  problem = "";
  /** "missing": a value is needed, and nobody has given one. @type {"value" | "null" | "default" | "missing"} */
  state = "value";
  #text = "";
  #last = "";

  connectedCallback() {
    const { column, value, adds } = this;
    const hasDefault = column.default !== null || column.generated !== null;
    this.state =
      adds && value === undefined
        ? hasDefault
          ? "default"
          : column.nullable
            ? "null"
            : "missing"
        : value === null
          ? "null"
          : "value";
    this.#text = asText(this.kind, value);
    if (this.state === "value" && this.#text === "" && this.kind === "boolean") this.#text = "false";
    if (this.state === "value" && this.#text === "" && this.kind === "enum") this.#text = column.enum?.[0] ?? "";
    this.#last = this.#text;
    this.#show();
  }

  get kind() {
    return kindOf(this.column);
  }

  get isTooLong() {
    return this.#text.length > LONGEST;
  }

  get changed() {
    return (
      this.state !== (this.value === null ? "null" : this.value === undefined ? "default" : "value") ||
      (this.state === "value" && this.#text !== this.#last)
    );
  }

  read() {
    if (this.state === "null") return null;
    if (this.state === "default") return undefined;
    if (this.isTooLong || (!this.adds && !this.changed)) return this.value;
    try {
      if (this.state === "missing") throw new Error("A value is needed here.");
      const value = parse(this.column, this.#text);
      this.complain("");
      return value;
    } catch (fault) {
      this.complain(fault instanceof Error ? fault.message : String(fault));
      throw fault;
    }
  }

  /** Show what is wrong with it. @param {string} why */
  complain(why) {
    this.problem = why;
    this.#show();
  }

  focus() {
    /** @type {HTMLElement | null} */ (this.querySelector("textarea, input:not([tabindex]), select"))?.focus();
  }

  /** Begin with this text, as somebody typed it. @param {string} text */
  type(text) {
    if (this.kind === "boolean" || this.kind === "enum") return;
    this.#set(text);
  }

  /** @param {string} text */
  #set(text) {
    this.#text = text;
    this.#become("value");
  }

  /** @param {Field["state"]} state */
  #become(state) {
    this.state = state;
    this.problem = "";
    this.#show();
    this.dispatchEvent(new Event("input", { bubbles: true }));
  }

  #show() {
    const { column, adds, state, problem } = this;
    /** @type {[Field["state"], string][]} */
    const states = [];
    if (adds && (column.default !== null || column.generated !== null)) states.push(["default", "Default"]);
    if (column.nullable) states.push(["null", "Null"]);
    render(
      html`<div class="ps-field">
        ${this.#input()}
        ${states.map(
          ([name, title]) => html`<button type="button" class="field-state" aria-pressed=${String(state === name)}
            aria-label=${`${title}: ${column.name}`} @click=${() => (this.#become(state === name ? "value" : name), this.state === "value" && this.focus())}>${title}</button>`,
        )}
      </div>
      ${problem ? html`<p class="field-problem" role="alert">${problem}</p>` : nothing}`,
      this,
    );
  }

  #input() {
    const { column, kind, compact, state } = this;
    const unset = state !== "value";
    const placeholder =
      state === "default"
        ? `${column.generated ? "generated" : column.default}`
        : state === "null"
          ? "null"
          : state === "missing"
            ? (HINTS[kind] ?? "needed")
            : (HINTS[kind] ?? "");
    const shown = unset ? "" : this.#text;
    const common = { label: column.name, invalid: this.problem ? "true" : null };
    const set = (/** @type {Event} */ event) => this.#set(/** @type {HTMLInputElement} */ (event.target).value);
    if (this.isTooLong && !unset)
      return html`<p class="quiet">${bytes(this.#text.length)}: too long to be edited here.</p>
        <button type="button" @click=${() => download(this.#text, `${column.name}.txt`)}>Download</button>`;
    if (kind === "boolean" || kind === "enum") {
      const options = kind === "boolean" ? ["true", "false"] : (column.enum ?? []);
      return html`<select aria-label=${common.label} @change=${set}>
        ${unset ? html`<option selected value="">${placeholder}</option>` : nothing}
        ${options.map((option) => html`<option value=${option} .selected=${!unset && option === this.#text}>${option}</option>`)}
      </select>`;
    }
    const items = kind === "array" && !compact ? this.#items : null;
    if (items) return this.#list(items, placeholder);
    if (
      kind === "json" ||
      kind === "array" ||
      (kind === "text" &&
        ((!compact && LINES.test(column.base_type)) || /\n/.test(this.#text) || this.#text.length > 80))
    )
      return html`<textarea aria-label=${common.label} aria-invalid=${common.invalid} rows=${kind === "json" ? 4 : 1} spellcheck=${String(kind === "text")}
        class=${kind === "text" ? "" : "mono"} dir=${kind === "text" ? "auto" : "ltr"} placeholder=${placeholder} .value=${shown} @input=${set}></textarea>`;
    const input = html`<input aria-label=${common.label} aria-invalid=${common.invalid} type=${kind === "date" && /^(\d{4}-\d\d-\d\d)?$/.test(shown) ? "date" : "text"}
      inputmode=${kind === "whole" ? "numeric" : kind === "number" ? "decimal" : null} autocomplete="off" spellcheck=${String(kind === "text")}
      placeholder=${placeholder} dir=${kind === "text" ? "auto" : "ltr"} .value=${shown} @input=${set}>`;
    return kind === "moment" ? html`${input}${this.#picker()}` : input;
  }

  /** The elements, each as a text or null; null for what is no plain list. @returns {(string | null)[] | null} */
  get #items() {
    if (this.state !== "value" || !this.#text) return [];
    try {
      const all = JSON.parse(this.#text, /** @type {any} */ (exact));
      const isPlain =
        Array.isArray(all) && all.length <= MOST_ITEMS && all.every((one) => one === null || typeof one !== "object");
      return isPlain && !/json/.test(this.column.base_type)
        ? all.map((one) => (one === null ? null : String(one)))
        : null;
    } catch {
      return null;
    }
  }

  /** @param {(string | null)[]} items @param {string} placeholder */
  #list(items, placeholder) {
    const { column } = this;
    const options = column.enum ?? (column.base_type === "boolean" ? ["true", "false"] : null);
    const change = (/** @type {number} */ at, /** @type {(string | null)[]} */ ...put) =>
      this.#set(JSON.stringify(items.toSpliced(at, 1, ...put)));
    const set = (/** @type {number} */ at) => (/** @type {Event} */ event) =>
      change(at, /** @type {HTMLInputElement} */ (event.target).value);
    const add = () => {
      change(items.length, options?.[0] ?? "");
      /** @type {HTMLElement | undefined} */ (
        [...this.querySelectorAll(".field-list input, .field-list select")].at(-1)
      )?.focus();
    };
    return html`<div class="field-list" role="group" aria-label=${column.name}>
      ${items.map((item, at) => {
        const label = `${column.name} ${at + 1}`;
        return html`<div>${
          options
            ? html`<select aria-label=${label} @change=${set(at)}>${options.map((one) => html`<option value=${one} .selected=${one === item}>${one}</option>`)}</select>`
            : html`<input aria-label=${label} dir="auto" autocomplete="off" placeholder=${item === null ? "null" : ""} .value=${item ?? ""} @input=${set(at)}>`
        }
          <button type="button" class="icon-button" aria-label=${`Remove ${label}`} title=${`Remove ${label}`} @click=${() => change(at)}>${icon("close")}</button></div>`;
      })}
      <button type="button" class="quiet" aria-label=${`Add to ${column.name}`} @click=${add}>${icon("add")} Add</button>
      ${this.state === "default" ? html`<code class="quiet">${placeholder}</code>` : nothing}
    </div>`;
  }

  /** A calendar for times, which as texts keep their microseconds and zone until another is picked. */
  #picker() {
    const zoned = this.column.base_type.startsWith("timestamp with time");
    const pick = (/** @type {Event} */ event) => {
      const picked = /** @type {HTMLInputElement} */ (event.target).value;
      if (picked) this.#set(zoned ? new Date(picked).toISOString().replace(".000Z", "+00:00") : picked);
    };
    const open = () => /** @type {HTMLInputElement} */ (this.querySelector("input[type=datetime-local]")).showPicker();
    return html`<button type="button" class="icon-button" aria-label=${`Pick a time: ${this.column.name}`} title=${`Pick a time: ${this.column.name}`} @click=${open}>${icon("down")}</button>
      <input class="field-picker" type="datetime-local" step="1" tabindex="-1" aria-hidden="true" @change=${pick}>`;
  }
}
customElements.define("ps-field", Field);
