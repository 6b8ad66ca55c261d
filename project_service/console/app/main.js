/** The frame: who signs in, where one can go, and the page that is shown. */

import { commands } from "./core/commands.js";
import { api, ApiError } from "./core/api.js";
import { each, html, nothing } from "./core/html.js";
import { icon } from "./core/icons.js";
import { follow, go, href, route } from "./core/router.js";
import { begin, end, key, session } from "./core/session.js";
import { define, View } from "./core/view.js";
import { pages } from "./pages.js";

const PREFERENCES = "project-service.preferences";
const THEMES = /** @type {const} */ ({ system: "Colours of the system", light: "Light colours", dark: "Dark colours" });

/** What somebody likes to see; nothing about the project. @type {{ theme: keyof typeof THEMES, rtl: boolean }} */
const preferences = { theme: "system", rtl: false, ...stored() };

function stored() {
  try {
    return JSON.parse(localStorage.getItem(PREFERENCES) ?? "{}");
  } catch {
    return {};
  }
}

/** @param {Partial<typeof preferences>} changed */
function prefer(changed) {
  Object.assign(preferences, changed);
  try {
    localStorage.setItem(PREFERENCES, JSON.stringify(preferences));
  } catch {
    // Storage is full or forbidden: it holds for this visit.
  }
  applyPreferences();
}

function applyPreferences() {
  const root = document.documentElement;
  root.dir = preferences.rtl ? "rtl" : "ltr";
  if (preferences.theme === "system") delete root.dataset.theme;
  else root.dataset.theme = preferences.theme;
}

/** Asks for the service key. */
class SignIn extends View {
  /** Why the last session ended. */
  why = "";

  /** @param {SubmitEvent} event */
  async submit(event) {
    event.preventDefault();
    const given = String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("key")).trim();
    // Kept once it has been accepted; a header holds nothing else.
    if (!/^[!-~]+$/.test(given)) return this.refuse("A key has no blanks and no other signs than ASCII's.");
    await this.run(async (signal) => {
      await api.get("/admin/users", { query: { limit: 1 }, headers: { "X-Service-Key": given }, as: null, signal });
      begin(given);
    });
    if (this.failure instanceof ApiError && this.failure.code === "service_key_required")
      this.refuse("That is the anon key. The console needs the service key.");
  }

  /** @param {string} why */
  refuse(why) {
    this.failure = new Error(why);
    this.update();
  }

  updated() {
    if (this.failure) this.querySelector("input")?.focus();
  }

  template() {
    const { failure, why } = this;
    return html`<main class="sign-in">
      <form class="card" @submit=${(/** @type {SubmitEvent} */ event) => this.submit(event)}>
        <h1>${icon("lock")} Console</h1>
        <p class="quiet">${location.host}</p>
        ${why && !failure ? html`<p role="status" class="note warn">${icon("alert")}<span>${why}</span></p>` : nothing}
        <label class="field"><span>Service key</span>
          <input name="key" type="password" autocomplete="off" spellcheck="false" required autofocus aria-describedby="key-help"
            aria-invalid=${failure ? "true" : null}></label>
        ${failure ? html`<p role="alert" class="note danger">${icon("alert")}<span>${failure.message}</span></p>` : nothing}
        <p id="key-help" class="quiet">This key may do everything. It is forgotten when the tab is closed. <code>project-service env</code> prints it
          with embedded servers; otherwise <code>project-service keys create service</code> makes one.</p>
        <button class="primary wide" ?disabled=${this.busy}>${this.busy ? "Asking…" : "Sign in"}</button>
      </form>
    </main>`;
  }
}
define("ps-sign-in", SignIn);

/** What the palette leads to from everywhere, besides the pages. */
const SHORTCUTS = {
  "New table": "#/sql/new-table",
  "New user": "#/users?new",
  "New bucket": "#/storage?new",
  "New key": "#/keys?new",
  "Project keys": "#/keys/project",
  Settings: "#/keys/settings",
  Audit: "#/keys/audit",
};

/** The palette's commands for each table and view. @param {string} _text @param {AbortSignal} signal */
async function tables(_text, signal) {
  /** @type {{ stage: string, name: string }[]} */
  const databases = (await api.get("/admin/databases", { signal })).databases;
  const listed = databases.map(async ({ stage, name }) => {
    const { relations } = await api
      .get(`/admin/databases/${encodeURIComponent(stage)}/${encodeURIComponent(name)}`, { signal })
      .catch(() => ({ relations: [] }));
    return relations.map((/** @type {{ schema: string, name: string }} */ relation) => ({
      title: relation.schema === "public" ? relation.name : `${relation.schema}.${relation.name}`,
      icon: "tables",
      group: databases.length > 1 ? `Table of ${stage}/${name}` : "Table",
      run: () => go(["tables", stage, name, relation.schema, relation.name]),
    }));
  });
  return (await Promise.all(listed)).flat();
}

/** @param {string} _text @param {AbortSignal} signal */
async function buckets(_text, signal) {
  const answer = await api.get("/admin/buckets", { signal });
  return answer.buckets.map((/** @type {{ name: string }} */ { name }) => ({
    title: name,
    icon: "storage",
    group: "Bucket",
    run: () => go(["storage", name]),
  }));
}

/** @param {string} email A part of the address. @param {AbortSignal} signal */
async function users(email, signal) {
  const answer = await api.get("/admin/users", { query: { email, limit: 10 }, signal });
  return answer.data.users.map((/** @type {{ id: string, email: string }} */ { id, email }) => ({
    title: email,
    icon: "user",
    group: "User",
    run: () => go(["users", id]),
  }));
}

class Frame extends View {
  route = route();
  /** @type {string} Why the last session ended. */
  why = "";
  /** @type {HTMLElement | null} */
  page = null;
  menu = false;

  connected() {
    session.addEventListener("begun", () => this.follow(), { signal: this.signal });
    session.addEventListener(
      "ended",
      (event) => {
        this.why = /** @type {CustomEvent<string>} */ (event).detail;
        this.page = null;
        this.update();
      },
      { signal: this.signal },
    );
    commands.add({ title: "Commands", keys: "Mod+K", hidden: true, run: commands.palette });
    for (const page of pages)
      commands.add({ title: page.title, icon: page.icon, group: "Pages", run: () => go([page.name]) });
    for (const [theme, title] of Object.entries(THEMES))
      commands.add({
        title,
        icon: "dark",
        group: "Appearance",
        run: () => prefer({ theme: /** @type {any} */ (theme) }),
      });
    commands.add({
      title: "Right to left, or back",
      icon: "back",
      group: "Appearance",
      run: () => prefer({ rtl: !preferences.rtl }),
    });
    for (const [title, to] of Object.entries(SHORTCUTS))
      commands.add({ title, icon: title.startsWith("New") ? "add" : "settings", run: () => go(to) });
    commands.add({ title: "Sign out", icon: "door", run: () => end() });
    commands.addSource({ find: tables });
    commands.addSource({ find: buckets });
    commands.addSource({ typed: 2, find: users });
    follow((to) => {
      this.route = to;
      this.follow();
    });
  }

  get listed() {
    return pages.find((each) => each.name === this.route.parts[0]);
  }

  /** Show the page of the address. */
  async follow() {
    this.menu = false;
    this.update();
    if (key() === null || !pages.length) return;
    const listed = this.listed;
    if (!listed) return go([pages[0].name], {}, { replace: true });
    document.title = `${listed.title} – project-service`;
    // One that is shown is told at once: what somebody does next there is to begin from the new address.
    if (this.page?.localName !== listed.tag || this.busy || this.failure) await this.run(() => listed.load(), "page");
    if (this.listed !== listed || this.failure) return;
    const before = this.page;
    const page = /** @type {import("./core/view.js").Page} */ (
      before?.localName === listed.tag ? before : document.createElement(listed.tag)
    );
    page.route = { parts: this.route.parts.slice(1), query: this.route.query };
    if (page === before) return page.routed();
    this.page = page;
    this.update();
    if (before) /** @type {HTMLElement | null} */ (this.querySelector("#content"))?.focus();
  }

  template() {
    if (key() === null) return html`<ps-sign-in .why=${this.why}></ps-sign-in>`;
    const { listed, menu } = this;
    return html`<a class="skip" href="#content" @click=${(/** @type {Event} */ event) => {
      event.preventDefault();
      /** @type {HTMLElement} */ (this.querySelector("#content")).focus();
    }}>To the content</a>
      <div class="frame">
        <header class="bar">
          <button type="button" class="icon-button menu-button" aria-label="Menu" title="Menu" aria-expanded=${String(menu)} aria-controls="navigation"
            @click=${() => ((this.menu = !menu), this.update())}>${icon(menu ? "close" : "menu")}</button>
          <strong class="brand">project-service</strong>
          <span class="bar-title">${listed?.title}</span>
          <button type="button" class="palette-button" title="Go to or do" @click=${() => commands.palette()}>
            ${icon("search")}<span>Go to or do</span><kbd>${commands.label("Mod+K")}</kbd></button>
        </header>
        ${menu ? html`<div class="veil" @click=${() => ((this.menu = false), this.update())}></div>` : nothing}
        <nav id="navigation" class=${menu ? "navigation open" : "navigation"} aria-label="Pages">
          <ul>${each(
            pages,
            (page) => page.name,
            (page) =>
              html`<li><a href=${href([page.name])} aria-current=${page === listed ? "page" : null}>${icon(page.icon)}<span>${page.title}</span></a></li>`,
          )}</ul>
          <button type="button" class="quiet" @click=${() => end()}>${icon("door")}<span>Sign out</span></button>
        </nav>
        <main id="content" class="content" tabindex="-1">
          ${
            this.failure
              ? html`<div class="empty"><p role="alert">The page could not be loaded. The service may have been replaced by another version.</p>
                <button type="button" class="primary" @click=${() => location.reload()}>Reload</button></div>`
              : this.page
          }
        </main>
      </div>`;
  }
}
define("ps-frame", Frame);

applyPreferences();
document.body.replaceChildren(document.createElement("ps-frame"));
