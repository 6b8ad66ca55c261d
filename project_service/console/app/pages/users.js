/** Users: finding them, and all about one of them. */

import { api } from "../core/api.js";
import { commands } from "../core/commands.js";
import { ago, moment } from "../core/format.js";
import { each, html, nothing } from "../core/html.js";
import { icon } from "../core/icons.js";
import { complain } from "../core/notices.js";
import { go, href } from "../core/router.js";
import { define, Page } from "../core/view.js";
import { invite, newUser } from "./users/making.js";
import "./users/user.js";

/** @typedef {{ id: string, email: string, created_at: string, metadata: object, disabled: boolean, email_confirmed: boolean, last_login_at: string | null }} User */

const LIMIT = 50;
/** After so many milliseconds without a letter more it is looked for. */
const PAUSE = 150;
const FILTERS = /** @type {const} */ ([
  ["", "Everybody", {}],
  ["disabled", "Disabled", { disabled: true }],
  ["unconfirmed", "Address not confirmed", { email_confirmed: false }],
  ["anonymous", "Anonymous", { anonymous: true }],
]);
const ID = /^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$/i;

/** Where the page of a user is. @param {string} id @param {URLSearchParams} [query] */
export const placeOf = (id, query) => href(["users", id], query ?? {});

/** How a user is called who may have no address. @param {{ id: string, email: string | null }} user */
export const nameOf = (user) => user.email || `without an address, ${user.id.slice(0, 8)}`;

class UsersPage extends Page {
  /** @type {User[]} */
  users = [];
  /** @type {string | null} */
  next = null;
  /** What `users` are: the query, as text. @type {string | null} */
  read = null;
  known = false;
  /** What is typed, which is looked for after a moment. */
  typed = "";
  #timer = 0;

  connected() {
    commands.add({ title: "Invite somebody", icon: "mail", group: "Users", run: () => this.make(invite) }, this.signal);
    commands.add(
      {
        title: "Find a user",
        icon: "search",
        group: "Users",
        keys: "/",
        run: () => this.querySelector("input")?.focus(),
      },
      this.signal,
    );
  }

  get text() {
    return this.route.query.get("email") ?? "";
  }

  get filter() {
    return FILTERS.find(([name]) => name === this.route.query.get("show")) ?? FILTERS[0];
  }

  disconnected() {
    clearTimeout(this.#timer);
  }

  routed() {
    // "#/users?new" asks for a new user.
    if (this.route.query.has("new")) {
      go(["users"], {}, { replace: true });
      void this.make(newUser);
      return;
    }
    if (!this.#timer) this.typed = this.text;
    this.update();
    if (this.route.query.toString() !== this.read) this.load();
  }

  async load() {
    this.read = this.route.query.toString();
    this.known = false;
    const found = await this.run((signal) => this.page(null, signal), "load");
    if (found) [this.users, this.next, this.known] = [found.users, found.next_cursor, true];
    this.update();
  }

  async more() {
    const found = await this.run((signal) => this.page(this.next, signal), "load");
    if (found) [this.users, this.next] = [[...this.users, ...found.users], found.next_cursor];
    this.update();
  }

  /**
   * @param {string | null} cursor
   * @param {AbortSignal} signal
   * @returns {Promise<{ users: User[], next_cursor: string | null }>}
   */
  async page(cursor, signal) {
    const email = this.text.trim();
    if (ID.test(email)) {
      const one = await api
        .get(`/admin/users/${email}`, { signal })
        .catch((fault) => (fault.status === 404 ? null : Promise.reject(fault)));
      return { users: one ? [one.data.user] : [], next_cursor: null };
    }
    const query = { ...this.filter[2], limit: LIMIT, cursor, ...(email ? { email } : { order: "newest" }) };
    return (await api.get("/admin/users", { query, signal })).data;
  }

  /** @param {Record<string, string | null>} changed */
  look(changed) {
    const query = { email: this.text || null, show: this.filter[0] || null, ...changed };
    go(["users", ...this.route.parts], query, { replace: true });
  }

  /** @param {string} typed */
  type(typed) {
    this.typed = typed;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.look({ email: typed || null });
    }, PAUSE);
  }

  /** Make a user by a dialog, and go there. @param {(signal: AbortSignal) => Promise<string | undefined>} dialog */
  async make(dialog) {
    const id = await dialog(this.signal).catch(complain);
    if (!id) return;
    await this.load();
    go(["users", id], this.route.query);
  }

  /** A user was changed or deleted. @param {User | null} user @param {string} id */
  changed(user, id) {
    this.users = user
      ? this.users.map((one) => (one.id === id ? user : one))
      : this.users.filter((one) => one.id !== id);
    this.update();
  }

  template() {
    const { users, next, known, failure, busy, filter } = this;
    const [id] = this.route.parts;
    return html`<div class=${id ? "panes users chosen" : "panes users"}>
      <section class="side" aria-label="Users">
        <header class="head">
          <h1>Users</h1>
          <button type="button" @click=${() => this.make(invite)}>${icon("mail")}Invite</button>
          <button type="button" class="primary" @click=${() => this.make(newUser)}>${icon("add")}New user</button>
        </header>
        <div class="tools">
          <input type="search" aria-label="Part of the address, or an id" placeholder="Address or id" autocomplete="off" spellcheck="false" .value=${this.typed}
            @input=${(/** @type {any} */ event) => this.type(event.target.value)}>
          <select aria-label="Which users" @change=${(/** @type {any} */ event) => this.look({ show: event.target.value || null })}>
            ${each(
              FILTERS,
              ([name]) => name,
              ([name, title]) => html`<option value=${name} ?selected=${name === filter[0]}>${title}</option>`,
            )}
          </select>
        </div>
        ${failure ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${failure.message}</bdi></span><button type="button" @click=${() => this.load()}>Try again</button></p>` : nothing}
        <ul class="list" aria-label="Found users" aria-busy=${String(busy)}>${each(
          users,
          (user) => user.id,
          (user) => this.row(user, user.id === id),
        )}</ul>
        ${known && !users.length ? this.nobody() : nothing}
        ${busy ? html`<p class="busy" role="status">Asking for users…</p>` : next ? html`<button type="button" class="wide" @click=${() => this.more()}>Show more</button>` : nothing}
      </section>
      <section class="main" aria-label="User">
        ${
          id
            ? html`<ps-user .user=${id} .back=${href(["users"], this.route.query)} @changed=${(/** @type {any} */ event) => this.changed(event.detail, id)}></ps-user>`
            : html`<div class="empty">${icon("user")}<p>Choose a user to see sessions, ways in and what happened.</p></div>`
        }
      </section>
    </div>`;
  }

  nobody() {
    if (this.text || this.filter[0]) return html`<p class="quiet">Nobody is found.</p>`;
    return html`<div class="empty">${icon("users")}<h2>No users yet</h2>
      <p>Whoever signs up in your application appears here. You can also make a user, or invite somebody by e-mail.</p></div>`;
  }

  /** @param {User} user @param {boolean} chosen */
  row(user, chosen) {
    return html`<li><a href=${placeOf(user.id, this.route.query)} aria-current=${chosen ? "true" : null}>
      <span class="clip" dir="auto">${user.email || html`<span class="quiet">Without an address</span>`}</span>
      <span class="below">${user.disabled ? html`<span class="badge danger">Disabled</span>` : user.email && !user.email_confirmed ? html`<span class="badge warn">Not confirmed</span>` : nothing}
        <small title=${moment(user.created_at)}>Made ${ago(user.created_at)}</small></span>
    </a></li>`;
  }
}

define("ps-users", UsersPage);
