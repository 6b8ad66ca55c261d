/** Every setting in force, with where it comes from. */

import { api } from "../../core/api.js";
import { counted } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { define, View } from "../../core/view.js";

/** @typedef {{ name: string, value: unknown, source: string, reloads: boolean, secret: boolean, set: boolean }} Setting */

class Settings extends View {
  /** @type {Setting[] | null} */
  settings = null;
  /** @type {string | null} */
  file = null;
  text = "";
  changed = false;

  connected() {
    this.load();
  }

  async load() {
    const read = await this.run((signal) => api.get("/admin/settings", { signal }), "load");
    if (read) [this.settings, this.file] = [read.settings, read.file];
    this.update();
  }

  get found() {
    const words = this.text.toLowerCase().split(/\s+/).filter(Boolean);
    return (this.settings ?? []).filter(({ name, value, source, secret }) => {
      if (this.changed && source === "default") return false;
      const whole = `${name} ${secret ? "" : valueOf(value)} ${source}`.toLowerCase();
      return words.every((word) => whole.includes(word));
    });
  }

  template() {
    const { settings, failure, file } = this;
    const found = this.found;
    return html`<section class="page-part" aria-label="Settings">
      <div class="tools">
        <input type="search" aria-label="Find a setting" placeholder="Find a setting" autocomplete="off" spellcheck="false" .value=${this.text}
          @input=${(/** @type {any} */ event) => ((this.text = event.target.value), this.update())}>
        <label class="check"><input type="checkbox" .checked=${this.changed} @change=${(/** @type {any} */ event) => ((this.changed = event.target.checked), this.update())}><span>Only what is not a default</span></label>
        <span class="spacer"></span>
        ${settings ? html`<span class="quiet" role="status">${counted(found.length, "setting")}</span>` : nothing}
      </div>
      <p class="quiet">They are changed in the configuration${file ? html`: <bdi class="mono">${file}</bdi>` : nothing}, the environment or the command line. Those with ${icon("refresh")} need no restart.</p>
      ${failure ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${failure.message}</bdi></span><button type="button" @click=${() => this.load()}>Try again</button></p>` : nothing}
      ${
        settings
          ? html`<div class="table-wrap" tabindex="0" role="region" aria-label="Settings in force"><table class="table stacks settings">
            <thead><tr><th>Setting</th><th>Value</th><th>Source</th></tr></thead>
            <tbody>${each(
              found,
              ({ name }) => name,
              (setting) => row(setting),
            )}</tbody></table></div>
            ${found.length ? nothing : html`<p class="quiet">No setting has that.</p>`}`
          : failure
            ? nothing
            : html`<p class="busy" role="status">Asking for the settings…</p>`
      }
    </section>`;
  }
}

/** @param {Setting} setting */
function row({ name, value, source, reloads, secret, set }) {
  return html`<tr>
    <td><bdi>${name}</bdi> ${reloads ? html`<span title="A SIGHUP applies it, without a restart">${icon("refresh")}</span>` : nothing}</td>
    <td class="value">${secret ? (set ? html`<span role="img" aria-label="A secret">••••••••</span>` : html`<span class="quiet">not set</span>`) : valueOf(value) === "" ? html`<span class="quiet">none</span>` : html`<bdi>${valueOf(value)}</bdi>`}</td>
    <td><span class=${source === "default" ? "badge" : "badge accent"}>${source}</span></td>
  </tr>`;
}

/** @param {unknown} value */
function valueOf(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.join(", ");
  return typeof value === "object" ? (Object.keys(value).length ? JSON.stringify(value) : "") : String(value);
}

define("ps-settings", Settings);
