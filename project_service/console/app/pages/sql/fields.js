/** Fields of the forms that write SQL. */

import { each, html, nothing } from "../../core/html.js";
import { EXAMPLES } from "./statements.js";

/** @param {Event} event */
export const value = (event) => /** @type {HTMLInputElement | HTMLSelectElement} */ (event.target).value;

/** @param {string} label @param {import("./statements.js").Column} one @param {boolean} numbered @param {(value: string) => void} set */
export const defaultField = (label, { type, default: chosen }, numbered, set) =>
  /^bool(ean)?$/.test(type.trim()) && ["", "true", "false"].includes(chosen)
    ? html`<label class="field"><span>Default</span>${picker(label, { "": "none", true: "true", false: "false" }, chosen, set)}</label>`
    : input(
        label,
        "Default (SQL)",
        chosen,
        set,
        null,
        numbered
          ? "generated"
          : `for example ${EXAMPLES[/** @type {keyof typeof EXAMPLES} */ (type.trim())] ?? "'text'"}`,
      );

/** @param {unknown} label @param {boolean} on @param {(on: boolean) => void} set */
export const check = (label, on, set) =>
  html`<label class="check"><input type="checkbox" .checked=${on} @change=${(/** @type {Event} */ event) => set(/** @type {HTMLInputElement} */ (event.target).checked)}><span>${label}</span></label>`;

/** @param {string} label @param {Record<string, string>} all @param {string} chosen @param {(value: string) => void} set */
export const picker = (
  label,
  all,
  chosen,
  set,
) => html`<select aria-label=${label} @change=${(/** @type {Event} */ event) => set(value(event))}>
  ${each(
    Object.entries(all),
    ([each]) => each,
    ([each, title]) => html`<option value=${each} ?selected=${each === chosen}>${title}</option>`,
  )}</select>`;

/** @param {string} label @param {Record<string, string>} all @param {string} chosen @param {(value: string) => void} set @param {string} [help] */
export const options = (label, all, chosen, set, help) =>
  html`<label class="field"><span>${label}</span>${picker(label, all, chosen, set)}${help ? html`<small>${help}</small>` : nothing}</label>`;

/** @param {string} label @param {string} title @param {string} text @param {(value: string) => void} set @param {string | null} [list] @param {string | null} [placeholder] */
export const input = (
  label,
  title,
  text,
  set,
  list = null,
  placeholder = null,
) => html`<label class="field"><span>${title}</span>
  <input aria-label=${label} dir="ltr" autocomplete="off" spellcheck="false" list=${list} placeholder=${placeholder} .value=${text} @input=${(/** @type {Event} */ event) => set(value(event))}></label>`;
