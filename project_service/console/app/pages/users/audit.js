/** Entries of the audit, the newest first: those of a user, of an action, or all. */

import { api } from "../../core/api.js";
import { ago, cut, moment } from "../../core/format.js";
import { CHANGED, each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { href } from "../../core/router.js";
import { define, View } from "../../core/view.js";
import { deviceOf } from "./device.js";

/** @typedef {{ id: number, at: string, actor: string, actor_id: string | null, user_id: string | null, email: string | null, subject: string, action: string, result: string, address: string, user_agent: string, request_id: string }} Entry */

/** @typedef {{ id: string, kind: string, label: string }} Key */

const LIMIT = 25;
const ACTORS = /** @type {Record<string, string>} */ ({
  anonymous: "somebody",
  user: "the user",
  service: "a service key",
  operator: "the command line",
});

/** Entries whose subject is the id of a project key. */
const OF_KEYS = new Set(["create_key", "import_key", "revoke_key"]);

/** `create_bucket` as "Create bucket". @param {string} action */
const inWords = (action) => action.replaceAll("_", " ").replace(/^./, (letter) => letter.toUpperCase());

/** A key's label, or else its kind, and the beginning of its id. @param {Key} key */
const nameOf = ({ id, kind, label }) => `${label || kind} (${id.slice(0, 4)}…)`;

class Audit extends View {
  /** Parameters of `/admin/audit`. */
  query = "";
  /** Another number: what was read may not be all any more. */
  changes = 0;
  /** Whether entries are about different users and things, so that each says about which. */
  whom = false;
  /** @type {Entry[] | null} */
  entries = null;
  /** @type {string | null} */
  next = null;
  /** By their ids; read where an entry is about one, or done with one. @type {Map<string, Key> | null} */
  keys = null;

  connected() {
    this.load();
  }

  /** @param {string} [name] */
  [CHANGED](name) {
    if (this.isConnected && name !== "whom") this.load();
  }

  async load() {
    const read = await this.run((signal) => this.page(null, signal), "load");
    if (read) [this.entries, this.next] = [read.entries, read.next_cursor];
    await this.#name();
    this.update();
  }

  async more() {
    const read = await this.run((signal) => this.page(this.next, signal), "load");
    if (read) [this.entries, this.next] = [[...(this.entries ?? []), ...read.entries], read.next_cursor];
    await this.#name();
    this.update();
  }

  async #name() {
    const unknown = (/** @type {Entry} */ { action, actor, actor_id, subject }) =>
      (this.whom && OF_KEYS.has(action) && !this.keys?.has(subject)) ||
      (actor === "service" && actor_id && !this.keys?.has(actor_id));
    if (!this.entries?.some(unknown)) return;
    const read = await this.run((signal) => api.get("/admin/keys", { signal }), "keys");
    if (read) this.keys = new Map(read.keys.map((/** @type {Key} */ key) => [key.id, key]));
  }

  /**
   * @param {string | null} cursor
   * @param {AbortSignal} signal
   * @returns {Promise<{ entries: Entry[], next_cursor: string | null }>}
   */
  async page(cursor, signal) {
    const query = { ...Object.fromEntries(new URLSearchParams(this.query)), limit: LIMIT, cursor };
    return (await api.get("/admin/audit", { query, signal })).data;
  }

  template() {
    const { entries, next, failure, busy } = this;
    if (!entries) return failure ? this.refused() : html`<p class="busy" role="status">Asking for the audit…</p>`;
    return html`
      ${failure ? this.refused() : nothing}
      ${
        entries.length
          ? html`<ol class="audit" aria-label="Audit">${each(
              entries,
              ({ id }) => id,
              (entry) => this.row(entry),
            )}</ol>`
          : html`<p class="quiet">Nothing is recorded.</p>`
      }
      ${next ? html`<button type="button" ?disabled=${busy} @click=${() => this.more()}>${busy ? "Asking…" : "Show more"}</button>` : nothing}`;
  }

  refused() {
    return html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${this.failure?.message}</bdi></span><button type="button" @click=${() => this.load()}>Try again</button></p>`;
  }

  /** @param {Entry} entry */
  row(entry) {
    const { at, actor, actor_id, user_id, email, subject, action, result, address, user_agent } = entry;
    const key = actor === "service" && actor_id ? this.keys?.get(actor_id) : undefined;
    const by = key ? html`the key <bdi>${nameOf(key)}</bdi>` : (ACTORS[actor] ?? actor);
    const about = this.keys?.get(subject);
    const name = email || (user_id ? user_id.slice(0, 8) : cut(about ? nameOf(about) : subject));
    return html`<li>
      <div><b>${inWords(action)}</b>
        ${this.whom && name ? (user_id ? html`<a href=${href(["users", user_id])}><bdi>${name}</bdi></a>` : html`<bdi class="mono" title=${cut(subject)}>${name}</bdi>`) : nothing}
        ${result === "ok" ? nothing : html`<span class="badge danger" title=${inWords(cut(result))}><bdi>${result}</bdi></span>`}<br>
        <small class="quiet">by ${by}${address ? html` from <bdi class="mono">${address}</bdi>` : nothing}${user_agent ? html` with <span title=${user_agent}><bdi>${deviceOf(user_agent)}</bdi></span>` : nothing}</small></div>
      <time class="quiet" datetime=${at} title=${moment(at)}>${ago(at)}</time>
    </li>`;
  }
}

define("ps-audit", Audit);
