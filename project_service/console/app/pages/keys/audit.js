/** The audit of everything: what was done to whom and to what. */

import { html } from "../../core/html.js";
import { define, View } from "../../core/view.js";
import "../users/audit.js";

class AuditOfAll extends View {
  action = "";
  subject = "";
  user = "";

  /** @param {SubmitEvent} event */
  look(event) {
    event.preventDefault();
    const given = new FormData(/** @type {HTMLFormElement} */ (event.target));
    for (const name of /** @type {const} */ (["action", "subject", "user"]))
      this[name] = String(given.get(name) ?? "").trim();
    this.update();
  }

  template() {
    const { action, subject, user } = this;
    const query = new URLSearchParams(
      Object.entries({ action, subject, user }).filter(([, value]) => value),
    ).toString();
    return html`<section class="page-part" aria-label="Audit">
      <form class="tools" @submit=${(/** @type {SubmitEvent} */ event) => this.look(event)}>
        <input type="search" name="user" aria-label="User" placeholder="Address or id of a user" autocomplete="off" spellcheck="false">
        <input type="search" name="action" aria-label="Action" placeholder="Action, such as key.revoke" autocomplete="off" spellcheck="false">
        <input type="search" name="subject" aria-label="Subject" placeholder="Bucket, key or database" autocomplete="off" spellcheck="false">
        <button>Find</button>
      </form>
      <div class="card"><ps-audit .whom=${true} .query=${query}></ps-audit></div>
    </section>`;
  }
}

define("ps-audit-of-all", AuditOfAll);
