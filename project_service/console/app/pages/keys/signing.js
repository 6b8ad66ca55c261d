/** The keys that sign access tokens: how old they are, and another one that signs. */

import { api } from "../../core/api.js";
import { confirm } from "../../core/dialogs.js";
import { ago, moment } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { complain, notify } from "../../core/notices.js";
import { define, View } from "../../core/view.js";

/** @typedef {{ kid: string, algorithm: string, state: "signs" | "verifies", created_at: string | null }} Key */

class SigningKeys extends View {
  /** @type {Key[] | null} */
  keys = null;

  connected() {
    this.load();
  }

  async load() {
    const read = await this.run((signal) => api.get("/admin/keys/signing", { signal }), "load");
    if (read) this.keys = read.keys;
    this.update();
  }

  /** @param {object} body @param {{ title: string, text: string, action: string, done: string }} about */
  async rotate(body, { title, text, action, done }) {
    if (!(await confirm({ title, text, action, signal: this.signal }))) return;
    try {
      this.keys = (await api.post("/admin/keys/signing/rotate", body)).keys;
      notify(done);
    } catch (fault) {
      complain(fault);
    }
    this.update();
  }

  fresh() {
    this.rotate(
      {},
      {
        title: "Let a new key sign?",
        text: "Access tokens that were signed before stay valid until they expire. With several hosts announce the key first, or the others refuse what it signs.",
        action: "Sign with a new key",
        done: "A new key signs.",
      },
    );
  }

  announce() {
    this.rotate(
      { announce: true },
      {
        title: "Announce a new key?",
        text: "It only verifies for now. Copy the key file to every other host and reload them, wait five minutes, and then let it sign.",
        action: "Announce",
        done: "A new key is announced.",
      },
    );
  }

  /** @param {string} kid */
  promote(kid) {
    this.rotate(
      { kid },
      {
        title: "Let this key sign?",
        text: "Every host has to know it already.",
        action: "Let it sign",
        done: "Another key signs.",
      },
    );
  }

  template() {
    const { keys, failure } = this;
    return html`<section class="page-part" aria-label="Signing keys">
      <header class="head"><p class="grow quiet">The first one signs access tokens, all of them verify. They are in a file of this host (<code>auth.jwt_keys_file</code>).</p>
        <button type="button" @click=${() => this.announce()}>Announce a key</button>
        <button type="button" class="primary" @click=${() => this.fresh()}>${icon("refresh")}New signing key</button></header>
      ${failure ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${failure.message}</bdi></span><button type="button" @click=${() => this.load()}>Try again</button></p>` : nothing}
      ${
        keys
          ? html`<div class="table-wrap" tabindex="0" role="region" aria-label="Keys"><table class="table stacks">
            <thead><tr><th>kid</th><th>Algorithm</th><th>Made</th><th>State</th><th class="actions">Actions</th></tr></thead>
            <tbody>${each(
              keys,
              ({ kid }) => kid,
              ({ kid, algorithm, state, created_at }) => html`<tr>
              <td class="mono"><bdi>${kid}</bdi></td><td>${algorithm}</td>
              <td data-name="made">${created_at ? html`<time datetime=${created_at} title=${moment(created_at)}>${ago(created_at)}</time>` : html`<span class="quiet">not noted</span>`}</td>
              <td><span class=${state === "signs" ? "badge good" : "badge"}>${state === "signs" ? "Signs" : "Verifies"}</span></td>
              <td class="actions">${state === "signs" ? nothing : html`<button type="button" @click=${() => this.promote(kid)}>Let it sign</button>`}</td></tr>`,
            )}</tbody></table></div>`
          : failure
            ? nothing
            : html`<p class="busy" role="status">Asking for the keys…</p>`
      }
    </section>`;
  }
}

define("ps-signing-keys", SigningKeys);
