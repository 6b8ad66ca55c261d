/** Mail: what would have been sent, as it looks. */

import { api, ApiError } from "../core/api.js";
import { ago, cut, moment } from "../core/format.js";
import { each, html, nothing } from "../core/html.js";
import { icon } from "../core/icons.js";
import { complain, notify } from "../core/notices.js";
import { href } from "../core/router.js";
import { define, Page } from "../core/view.js";
import { dress, harmless, links } from "./mail/preview.js";

/** @typedef {{ id: string, to: string, subject: string, sent_at: string }} Listed */
/** @typedef {Listed & { headers: { name: string, value: string }[], text: string | null, html: string | null, cut: boolean }} Mail */

const TABS = /** @type {const} */ ({ look: "As it looks", text: "Text", headers: "Headers" });
/** More of a text is not shown. */
const MOST = 100_000;

/** A line that is nothing but a token or a code. */
const TOKEN = /^[ \t]*(?:[\w-]{20,}|\d{6,10})[ \t]*\r?$/m;

class MailPage extends Page {
  /** @type {Listed[] | null} */
  mails = null;
  /** @type {string | null} */
  next = null;
  /** @type {Mail | null} */
  mail = null;
  /** @type {keyof typeof TABS} */
  tab = "look";
  /** The e-mail as a document, its styles, and whether something from elsewhere is left out. @type {{ address: string, css: string, remote: boolean } | null} */
  look = null;

  connected() {
    const timer = setInterval(() => !document.hidden && this.mails && this.load(), 5000);
    this.signal.addEventListener("abort", () => {
      clearInterval(timer);
      this.forget();
    });
  }

  get chosen() {
    return this.route.parts[0];
  }

  async routed() {
    if (!this.mails) await this.load();
    if (this.chosen && this.mail?.id !== this.chosen) await this.open(this.chosen);
    this.update();
  }

  /** The first page again: new ones come before those that are shown. */
  async load() {
    const page = await this.run((signal) => api.get("/admin/mail", { signal }), "list");
    if (!page) return;
    const ids = new Set(page.mails.map((/** @type {Listed} */ one) => one.id));
    const older = (this.mails ?? []).filter((one) => !ids.has(one.id) && one.id < (page.mails.at(-1)?.id ?? ""));
    if (!older.length) this.next = page.next;
    this.mails = [...page.mails, ...older];
    this.update();
  }

  async more() {
    const page = await this.run((signal) => api.get("/admin/mail", { query: { before: this.next }, signal }), "more");
    if (!page) return;
    this.mails = [...(this.mails ?? []), ...page.mails];
    this.next = page.next;
    this.update();
  }

  /** @param {string} id */
  async open(id) {
    this.forget();
    this.mail = null;
    /** @type {Mail | undefined} */
    const mail = await this.run((signal) => api.get(`/admin/mail/${encodeURIComponent(id)}`, { signal }), "mail");
    if (!mail) return;
    this.mail = mail;
    if (mail.html !== null) {
      const { html: shown, css, remote } = harmless(mail.html);
      const address = URL.createObjectURL(new Blob([shown], { type: "text/html; charset=utf-8" }));
      this.look = { address, css, remote };
    }
    this.tab = mail.html === null ? "text" : "look";
  }

  forget() {
    if (this.look) URL.revokeObjectURL(this.look.address);
    this.look = null;
  }

  template() {
    const { mails, failure, mail } = this;
    if (failure instanceof ApiError && failure.code === "mails_not_kept")
      return html`<div class="empty">${icon("mail")}<h2>E-mails of this service are not kept</h2>
        <p>They are shown where they are written to a folder and not sent: with an embedded database, or where <code>smtp.mail_dir</code> is set and
        <code>smtp.host</code> is not.</p></div>`;
    return html`<div class=${this.chosen ? "panes chosen mail" : "panes mail"}>
      <div class="side">
        <div class="head"><h1 class="grow">Mail</h1>
          <button type="button" class="icon-button" aria-label="Look again" title="Look again" @click=${() => this.load()}>${icon("refresh")}</button></div>
        ${failure ? html`<p class="note danger" role="alert">${icon("alert")}<span>${failure.message}</span></p>` : nothing}
        ${mails ? this.list(mails) : failure ? nothing : html`<p class="busy" role="status">Asking…</p>`}
      </div>
      <div class="main">${
        mail && this.chosen
          ? this.whole(mail)
          : this.chosen
            ? html`<div class="page">${failure ? html`<a href=${href(["mail"])}>All e-mails</a>` : html`<p class="busy" role="status">Opening…</p>`}</div>`
            : html`<div class="empty">${icon("mail")}<p>Choose an e-mail. Nothing here was sent: it is what people would have got.</p></div>`
      }</div>
    </div>`;
  }

  /** @param {Listed[]} mails */
  list(mails) {
    if (!mails.length)
      return html`<p class="quiet">None yet. An e-mail appears here when somebody signs up, asks for a link or is invited.</p>`;
    return html`<ul class="list">${each(
      mails,
      (one) => one.id,
      (one) => html`<li>
        <a href=${href(["mail", one.id])} aria-current=${one.id === this.chosen ? "true" : null}>
          <span class="mail-line"><span class="clip"><bdi>${cut(one.subject) || "(no subject)"}</bdi></span>
            <small class="clip"><bdi>${cut(one.to) || "nobody"}</bdi></small></span>
          <time class="end" datetime=${one.sent_at} title=${moment(one.sent_at)}><bdi>${ago(one.sent_at)}</bdi></time></a></li>`,
    )}</ul>
      ${this.next ? html`<button type="button" @click=${() => this.more()}>Older ones</button>` : nothing}`;
  }

  /** @param {Mail} mail */
  whole(mail) {
    const from = mail.headers.find((one) => one.name === "From")?.value ?? "";
    const tabs = /** @type {[keyof typeof TABS, string][]} */ (Object.entries(TABS)).filter(
      ([name]) => name !== "look" || mail.html !== null,
    );
    return html`<article class="page">
      <a class="back small" href=${href(["mail"])}>${icon("back")}All e-mails</a>
      <h2 class="told"><bdi>${cut(mail.subject, 1000) || "(no subject)"}</bdi></h2>
      <dl class="pairs"><dt>To</dt><dd><bdi>${cut(mail.to, 1000)}</bdi></dd><dt>From</dt><dd><bdi>${cut(from, 1000)}</bdi></dd>
        <dt>Written</dt><dd><bdi>${moment(mail.sent_at)}</bdi></dd></dl>
      ${mail.cut ? html`<p class="note warn">${icon("alert")}<span>It is longer than 2 MiB; its end is missing here.</span></p>` : nothing}
      <div class="tabs" role="tablist" aria-label="Forms of the e-mail">${tabs.map(
        ([name, title]) => html`<button type="button" role="tab" id=${`mail-tab-${name}`}
        aria-selected=${String(name === this.tab)} aria-controls="mail-shown" @click=${() => ((this.tab = name), this.update())}>${title}</button>`,
      )}</div>
      <div id="mail-shown" role="tabpanel" aria-labelledby=${`mail-tab-${this.tab}`}>${this.content(mail)}</div>
      ${this.links(mail)}
    </article>`;
  }

  /** @param {Mail} mail */
  content(mail) {
    if (this.tab === "headers")
      return html`<dl class="pairs card">${each(
        mail.headers,
        (one) => one.name,
        (one) =>
          html`<dt><bdi>${cut(one.name, 100)}</bdi></dt><dd><bdi class="mono">${cut(one.value, 1000)}</bdi></dd>`,
      )}</dl>`;
    if (this.tab === "text" || !this.look)
      return mail.text === null
        ? html`<p class="quiet">It has no text part.</p>`
        : html`<pre class="card" dir="auto" tabindex="0" aria-label="Text of the e-mail">${cut(mail.text, MOST)}</pre>`;
    const { address, css, remote } = this.look;
    return html`${remote ? html`<p class="quiet small">Pictures from elsewhere are not loaded.</p>` : nothing}
      <iframe class="mail-frame" title="The e-mail as it looks" sandbox="allow-same-origin" referrerpolicy="no-referrer" src=${address}
        @load=${(/** @type {Event} */ event) => dress(/** @type {HTMLIFrameElement} */ (event.target), css, (to) => this.followed(to))}></iframe>`;
  }

  /** @param {string} address */
  followed(address) {
    notify(`Links are not followed from here: ${cut(address, 120)}`, { action: "Copy", run: () => copy(address) });
  }

  /** @param {Mail} mail */
  links(mail) {
    const found = links(mail.html ?? "", mail.text ?? "");
    if (!found.length)
      return TOKEN.test(mail.text ?? "")
        ? html`<p class="note">${icon("mail")}<span>It has a token and no link. Where your application has a page for it, set <code>auth.recover_url</code>
      (new passwords and invitations) or <code>auth.verify_url</code> (new addresses), and e-mails lead there. What clients of the Supabase family ask for leads to <code>auth.site_url</code>.</span></p>`
        : nothing;
    return html`<section><h3>Links</h3><p class="quiet small">Whoever opens one may be signed in by it, and it may work only once.</p>
      <ul class="mail-links">${each(
        found,
        (one) => one,
        (one) => html`<li><span class="clip mono" title=${cut(one, 1000)}><bdi>${cut(one, 400)}</bdi></span>
        <button type="button" @click=${() => copy(one)}>${icon("copy")}Copy</button>
        <a class="button" href=${one} target="_blank" rel="noreferrer noopener">Open<span class="unseen"> in a new tab</span></a></li>`,
      )}</ul></section>`;
  }
}

/** @param {string} text */
const copy = (text) => navigator.clipboard.writeText(text).then(() => notify("Copied."), complain);

define("ps-mail", MailPage);
