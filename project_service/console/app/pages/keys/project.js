/** The project keys that clients send: making one, which is shown this once, and revoking one. */

import { api } from "../../core/api.js";
import { confirm, dialog } from "../../core/dialogs.js";
import { ago, moment } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { complain, notify } from "../../core/notices.js";
import { end } from "../../core/session.js";
import { define, View } from "../../core/view.js";
import { form, whyNot } from "../users/making.js";

/** @typedef {{ id: string, kind: "anon" | "service", label: string, created_at: string, revoked_at: string | null, used_at: string | null, current: boolean }} Key */

/** So long after a key was used, in milliseconds, that is known. */
const NOTED = 60_000;

export class ProjectKeys extends View {
  /** @type {Key[] | null} */
  keys = null;

  connected() {
    this.load();
  }

  async load() {
    const read = await this.run((signal) => api.get("/admin/keys", { signal }), "load");
    if (read) this.keys = read.keys;
    this.update();
  }

  async make() {
    const made = await form({
      title: "New project key",
      action: "Make key",
      signal: this.signal,
      fields: (wrong) => html`<fieldset><legend>What it may do</legend>
          <label class="check"><input type="radio" name="kind" value="anon" checked><span>Anon <small class="quiet">– goes with an application, where everybody can read it</small></span></label>
          <label class="check"><input type="radio" name="kind" value="service"><span>Service <small class="quiet">– passes every rule, so it has to stay secret</small></span></label></fieldset>
        <label class="field"><span>Label</span><input name="label" maxlength="100" autocomplete="off" placeholder="What it is for" aria-invalid=${wrong.label ? "true" : null}>${whyNot(wrong, "label")}</label>`,
      send: ({ kind, label }, signal) => api.post("/admin/keys", { kind, label }, { signal }),
    });
    if (!made) return;
    this.load();
    await this.show(made.key, made.kind);
  }

  /** @param {string} key @param {string} kind */
  async show(key, kind) {
    let copied = false;
    /** @param {{ update(): void }} shown */
    const copy = (shown) =>
      navigator.clipboard.writeText(key).then(() => {
        copied = true;
        notify("Copied the key.");
        shown.update();
      }, complain);
    await dialog({
      holds: () => !copied,
      title: "The new key",
      signal: this.signal,
      content: (shown) => html`<div class="dialog-body">
          <p>It is shown this once: the service keeps only its digest. ${kind === "service" ? "Whoever has it may do everything." : nothing}</p>
          <div class="new-key"><code>${key}</code></div>
        </div>
        <footer class="dialog-foot">
          <button type="button" class=${copied ? "primary" : null} @click=${() => shown.close()}>${copied ? "Close" : "Close without copying"}</button>
          <button type="button" class=${copied ? null : "primary"} autofocus @click=${() => copy(shown)}>${icon("copy")}Copy the key</button></footer>`,
    });
  }

  /** @param {Key} key */
  async revoke(key) {
    const name = key.label || `${key.kind} key`;
    const text = key.current
      ? "This tab came with it, so you are signed out at once. Have another service key ready, or make one at the command line."
      : "Whoever comes with it is refused within a second. That cannot be undone.";
    if (
      !(await confirm({
        title: `Revoke ${name}?`,
        text,
        action: "Revoke key",
        danger: true,
        word: key.current ? "revoke" : undefined,
        signal: this.signal,
      }))
    )
      return;
    try {
      await api.delete(`/admin/keys/${key.id}`, { query: { force: key.current || null } });
    } catch (fault) {
      return complain(fault);
    }
    if (key.current) return end("This tab's key was revoked.");
    notify(`Revoked ${name}.`);
    this.load();
  }

  template() {
    const { keys, failure } = this;
    return html`<section class="page-part" aria-label="Project keys">
      <header class="head"><p class="grow quiet">Clients send one as <code>apikey</code>. Keys themselves are not stored and cannot be shown again.</p>
        <button type="button" class="primary" @click=${() => this.make()}>${icon("add")}New key</button></header>
      ${failure ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${failure.message}</bdi></span><button type="button" @click=${() => this.load()}>Try again</button></p>` : nothing}
      ${
        keys
          ? html`<div class="table-wrap" tabindex="0" role="region" aria-label="Keys"><table class="table stacks">
            <thead><tr><th>Label</th><th>Kind</th><th>Made</th><th>Last used</th><th>State</th><th class="actions">Actions</th></tr></thead>
            <tbody>${each(
              [...keys].reverse(),
              ({ id }) => id,
              (key) => this.row(key),
            )}</tbody></table></div>`
          : failure
            ? nothing
            : html`<p class="busy" role="status">Asking for the keys…</p>`
      }
    </section>`;
  }

  /** @param {Key} key */
  row(key) {
    const { kind, label, created_at, used_at, revoked_at, current } = key;
    return html`<tr>
      <td>${label ? html`<bdi>${label}</bdi>` : html`<span class="quiet">none</span>`} ${current ? html`<span class="badge accent">This tab</span>` : nothing}</td>
      <td><span class=${kind === "service" ? "badge warn" : "badge"}>${icon(kind === "service" ? "lock" : "view")}${kind}</span></td>
      <td data-name="made"><time datetime=${created_at} title=${moment(created_at)}>${ago(created_at)}</time></td>
      <td data-name="used">${used_at ? html`<time datetime=${used_at} title=${moment(used_at)}>${ago(used_at)}</time>` : html`<span class="quiet">${current || Date.now() - Date.parse(created_at) < NOTED ? "not yet known" : "not yet"}</span>`}</td>
      <td>${revoked_at ? html`<span class="badge danger" title=${moment(revoked_at)}>Revoked</span>` : html`<span class="badge good">Active</span>`}</td>
      <td class="actions">${revoked_at ? nothing : html`<button type="button" aria-label=${`Revoke ${label || kind}`} @click=${() => this.revoke(key)}>Revoke</button>`}</td>
    </tr>`;
  }
}

define("ps-project-keys", ProjectKeys);
