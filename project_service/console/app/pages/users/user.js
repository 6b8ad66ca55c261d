/** One user: the account, ways in, sessions, and what happened. */

import { api, ApiError } from "../../core/api.js";
import { confirm } from "../../core/dialogs.js";
import { ago, counted, moment } from "../../core/format.js";
import { CHANGED, each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { complain, notify } from "../../core/notices.js";
import { go, href } from "../../core/router.js";
import { define, View } from "../../core/view.js";
import "./audit.js";
import { deviceOf } from "./device.js";
import { newPassword } from "./making.js";

/** @typedef {import("../users.js").User} Account */
/** @typedef {{ user: Account, app_metadata: object, is_anonymous: boolean, has_password: boolean, updated_at: string | null, confirmed_at: string | null, invited_at: string | null, disabled_until: string | null, identities: any[], factors: any[], passkeys: any[] }} Details */
/** @typedef {{ id: string, created_at: string, refreshed_at: string, expires_at: string, user_agent: string, address: string }} Session */

const METADATA_ROWS = 12;

class UserPanel extends View {
  /** The id. */
  user = "";
  /** Where the list is. */
  back = "";
  /** @type {Details | null} */
  details = null;
  /** @type {Session[]} */
  sessions = [];
  /** The metadata as they are being edited. @type {string | null} */
  draft = null;
  wrong = "";
  /** How often something was changed here, so that the audit is read again. */
  changes = 0;

  connected() {
    this.load();
  }

  /** @param {string} [name] */
  [CHANGED](name) {
    if (name === "user" && this.isConnected) {
      [this.details, this.sessions, this.draft, this.wrong] = [null, [], null, ""];
      this.load();
    }
    this.update();
  }

  get path() {
    return `/admin/users/${encodeURIComponent(this.user)}`;
  }

  get name() {
    return this.details?.user.email || `the user ${this.user.slice(0, 8)}`;
  }

  async load() {
    const read = await this.run(
      (signal) =>
        Promise.all([api.get(`${this.path}/details`, { signal }), api.get(`${this.path}/sessions`, { signal })]),
      "load",
    );
    if (read) {
      [this.details, this.sessions] = [read[0].data, read[1].data.sessions];
      this.tell(this.details?.user ?? null);
    }
    this.update();
  }

  /** @param {Account | null} user */
  tell(user) {
    this.dispatchEvent(new CustomEvent("changed", { detail: user }));
  }

  /** Do something, say what was done, and read everything again. @param {() => Promise<unknown>} work @param {string} [done] */
  async act(work, done) {
    try {
      await work();
      if (done) notify(done);
      this.changes++;
      await this.load();
    } catch (fault) {
      complain(fault);
    }
  }

  async disable() {
    const { user } = /** @type {Details} */ (this.details);
    const disabled = !user.disabled;
    const text = "Every session ends, and nobody can sign in as this user until you enable it again.";
    if (
      disabled &&
      !(await confirm({ title: `Disable ${this.name}?`, text, action: "Disable", danger: true, signal: this.signal }))
    )
      return;
    await this.act(
      () => api.patch(this.path, { disabled }),
      disabled ? `Disabled ${this.name}.` : `${this.name} can sign in again.`,
    );
  }

  async password() {
    if (await newPassword(this.user, this.name, this.signal).catch(complain)) await this.act(async () => {});
  }

  async endAll() {
    const title = `End ${counted(this.sessions.length, "session")} of ${this.name}?`;
    if (
      !(await confirm({
        title,
        text: "The user has to sign in again on every device.",
        action: "End all sessions",
        danger: true,
        signal: this.signal,
      }))
    )
      return;
    await this.act(async () => {
      const { data } = await api.delete(`${this.path}/sessions`);
      notify(`Ended ${counted(data.ended, "session")}.`);
    });
  }

  async erase() {
    const { user } = /** @type {Details} */ (this.details);
    const text =
      "The account, its sessions and its ways in are deleted. Rows of tables that refer to the user are deleted, emptied or keep the deletion from happening, as their foreign keys say. Files stay. This cannot be undone.";
    if (
      !(await confirm({
        title: `Delete ${this.name}?`,
        text,
        action: "Delete user",
        danger: true,
        word: user.email || this.user,
        signal: this.signal,
      }))
    )
      return;
    try {
      await api.delete(this.path);
      notify(`Deleted ${this.name}.`);
      this.tell(null);
      go(this.back);
    } catch (fault) {
      complain(fault);
    }
  }

  /** @param {SubmitEvent} event */
  async save(event) {
    event.preventDefault();
    let metadata;
    try {
      metadata = JSON.parse(this.draft || "{}");
      if (typeof metadata !== "object" || Array.isArray(metadata)) throw new Error("It has to be an object: { … }");
    } catch (fault) {
      this.wrong = fault instanceof Error ? fault.message : String(fault);
      return this.update();
    }
    this.wrong = "";
    await this.act(async () => {
      await api.patch(this.path, { metadata });
      this.draft = null;
    }, `Saved the metadata of ${this.name}.`);
  }

  template() {
    const { details, failure, back } = this;
    const list = html`<a class="button back" href=${back}>${icon("back")}Users</a>`;
    if (!details && failure instanceof ApiError && failure.code === "user_not_found")
      return html`<div class="page user">${list}
        <header class="head"><h2><bdi class="mono">${this.user.slice(0, 100)}</bdi></h2></header>
        <p>This user was deleted.</p>
        <section class="card" aria-labelledby="user-audit"><h3 id="user-audit">What happened</h3><ps-audit .query=${new URLSearchParams({ user: this.user }).toString()}></ps-audit></section></div>`;
    if (!details)
      return html`<div class="page user">${list}
        ${
          failure
            ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${failure.message}</bdi></span><button type="button" @click=${() => this.load()}>Try again</button></p>`
            : html`<p class="busy" role="status">Asking for the user…</p>`
        }</div>`;
    const { user } = details;
    return html`<article class="page user">
      ${list}
      <header class="head">
        <h2><bdi>${user.email || "Without an address"}</bdi></h2>
        <p class="tools">${this.badges(details)}</p>
      </header>
      <div class="tools">
        <a class="button" href=${href(["tables"], { "@as": user.id })}>${icon("view")}See tables as this user</a>
        <button type="button" @click=${() => this.password()}>${icon("keys")}New password</button>
        <button type="button" @click=${() => this.disable()}>${icon(user.disabled ? "check" : "lock")}${user.disabled ? "Enable" : "Disable"}</button>
        <button type="button" class="erase" @click=${() => this.erase()}>${icon("remove")}Delete</button>
      </div>
      ${failure ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${failure.message}</bdi></span></p>` : nothing}
      ${this.account(details)} ${this.waysIn(details)} ${this.sessionList()} ${this.metadata(details)}
      <section class="card" aria-labelledby="user-audit"><h3 id="user-audit">What happened</h3>
        <ps-audit .query=${`user=${user.id}`} .changes=${this.changes}></ps-audit></section>
    </article>`;
  }

  /** @param {Details} details */
  badges({ user, is_anonymous, invited_at, factors, disabled_until }) {
    return html`
      ${user.disabled ? html`<span class="badge danger">${icon("lock")}Disabled${disabled_until ? ` until ${moment(disabled_until)}` : nothing}</span>` : nothing}
      ${is_anonymous ? html`<span class="badge">Anonymous</span>` : nothing}
      ${user.email ? (user.email_confirmed ? html`<span class="badge good">${icon("check")}Confirmed</span>` : html`<span class="badge warn">${icon("mail")}${invited_at ? "Invited" : "Not confirmed"}</span>`) : nothing}
      ${factors.some((one) => one.status === "verified") ? html`<span class="badge accent">${icon("lock")}Second factor</span>` : nothing}`;
  }

  /** @param {Details} details */
  account({ user, has_password, confirmed_at, invited_at, updated_at }) {
    return html`<section class="card" aria-labelledby="user-account"><h3 id="user-account">Account</h3>
      <dl class="pairs">
        <dt>Id</dt><dd class="mono">${user.id}</dd>
        <dt>Made</dt><dd>${when(user.created_at)}</dd>
        <dt>Last sign-in</dt><dd>${user.last_login_at ? when(user.last_login_at) : "never"}</dd>
        ${confirmed_at ? html`<dt>Confirmed</dt><dd>${when(confirmed_at)}</dd>` : nothing}
        ${invited_at ? html`<dt>Invited</dt><dd>${when(invited_at)}</dd>` : nothing}
        ${updated_at ? html`<dt>Changed</dt><dd>${when(updated_at)}</dd>` : nothing}
        <dt>Password</dt><dd>${has_password ? "set" : "none"}</dd>
      </dl></section>`;
  }

  /** @param {Details} details */
  waysIn({ identities, factors, passkeys }) {
    const rows = [
      ...identities.map((one) => ({
        id: one.id,
        kind: one.provider === "email" ? "E-mail" : one.provider,
        name: one.email ?? one.subject,
        made: one.created_at,
        used: one.last_sign_in_at,
      })),
      ...passkeys.map((one) => ({
        id: one.id,
        kind: "Passkey",
        name: one.friendly_name,
        made: one.created_at,
        used: one.last_used_at ?? null,
      })),
      ...factors.map((one) => ({
        id: one.id,
        kind: one.factor_type === "totp" ? "Second factor: codes" : "Second factor: passkey",
        name: `${one.friendly_name ?? ""}${one.status === "verified" ? "" : " (not finished)"}`,
        made: one.created_at,
        used: null,
      })),
    ];
    return html`<section class="card" aria-labelledby="user-ways"><h3 id="user-ways">Ways in</h3>
      ${
        rows.length
          ? html`<ul class="rows" aria-label="Ways in">${each(
              rows,
              ({ id }) => id,
              (row) => html`<li><div><b><bdi>${row.kind}</bdi></b> <bdi>${row.name}</bdi><br>
            <small class="quiet">Added ${when(row.made)}${row.used ? html`, last used ${when(row.used)}` : nothing}</small></div></li>`,
            )}</ul>`
          : html`<p class="quiet">None. Nobody can sign in as this user again.</p>`
      }</section>`;
  }

  sessionList() {
    const { sessions } = this;
    return html`<section class="card" aria-labelledby="user-sessions">
      <div class="head"><h3 id="user-sessions" class="grow">Sessions</h3>
        ${sessions.length > 1 ? html`<button type="button" @click=${() => this.endAll()}>End all sessions</button>` : nothing}</div>
      ${
        sessions.length
          ? html`<ul class="rows" aria-label="Sessions">${each(
              sessions,
              ({ id }) => id,
              (session) => html`<li>
            <div><b title=${session.user_agent}>${deviceOf(session.user_agent)}</b> <span class="quiet">from <bdi class="mono">${session.address || "unknown"}</bdi></span><br>
              <small class="quiet">Began ${when(session.created_at)}, last used ${when(session.refreshed_at)}</small></div>
            <button type="button" @click=${() => this.act(() => api.delete(`${this.path}/sessions/${session.id}`), "Ended the session.")}>End</button>
          </li>`,
            )}</ul>`
          : html`<p class="quiet">Not signed in anywhere.</p>`
      }</section>`;
  }

  /** @param {Details} details */
  metadata({ user, app_metadata }) {
    const shown = this.draft ?? JSON.stringify(user.metadata, null, 2);
    const rows = Math.min(METADATA_ROWS, shown.split("\n").length + 1);
    return html`<section class="card metadata" aria-labelledby="user-metadata"><h3 id="user-metadata">Metadata</h3>
      <form @submit=${(/** @type {SubmitEvent} */ event) => this.save(event)}>
        <label class="field"><span>The user's own</span>
          <textarea class="mono" spellcheck="false" rows=${rows} .value=${shown} aria-invalid=${this.wrong ? "true" : null}
            @input=${(/** @type {any} */ event) => ((this.draft = event.target.value), this.update())}></textarea>
          ${this.wrong ? html`<small class="wrong" role="alert"><bdi>${this.wrong}</bdi></small>` : nothing}</label>
        ${this.draft === null ? nothing : html`<div class="tools"><button class="primary">Save metadata</button><button type="button" @click=${() => ((this.draft = null), (this.wrong = ""), this.update())}>Discard</button></div>`}
      </form>
      <div class="field"><span>For the application; it is in every access token</span><pre tabindex="0" aria-label="Metadata for the application">${JSON.stringify(app_metadata, null, 2)}</pre></div>
    </section>`;
  }
}

/** @param {string} at */
const when = (at) => html`<time datetime=${at} title=${moment(at)}>${ago(at)}</time>`;

define("ps-user", UserPanel);
