/** Keys and settings: project keys, the keys of access tokens, every setting in force, and the audit of all. */

import { each, html } from "../core/html.js";
import { go, href } from "../core/router.js";
import { define, Page } from "../core/view.js";
import "./keys/audit.js";
import { ProjectKeys } from "./keys/project.js";
import "./keys/settings.js";
import "./keys/signing.js";

const TABS = /** @type {const} */ ([
  ["project", "Project keys", () => html`<ps-project-keys></ps-project-keys>`],
  ["signing", "Signing keys", () => html`<ps-signing-keys></ps-signing-keys>`],
  ["settings", "Settings", () => html`<ps-settings></ps-settings>`],
  ["audit", "Audit", () => html`<ps-audit-of-all></ps-audit-of-all>`],
]);

class KeysPage extends Page {
  updated() {
    // "#/keys?new" asks for a new key.
    const list = this.querySelector("ps-project-keys");
    if (!this.route.query.has("new") || !(list instanceof ProjectKeys)) return;
    go(["keys", "project"], {}, { replace: true });
    void list.make();
  }

  template() {
    const [current, , content] = TABS.find(([name]) => name === this.route.parts[0]) ?? TABS[0];
    return html`<div class="page keys">
      <header class="head"><h1>Keys and settings</h1></header>
      <nav class="tabs" aria-label="Keys and settings">${each(
        TABS,
        ([name]) => name,
        ([name, title]) =>
          html`<a href=${href(["keys", name])} aria-current=${name === current ? "page" : null}>${title}</a>`,
      )}</nav>
      ${content()}
    </div>`;
  }
}

define("ps-keys", KeysPage);
