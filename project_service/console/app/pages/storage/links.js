/** Links: addresses that need no key, for a download or an upload. */

import { api } from "../../core/api.js";
import { confirm, dialog } from "../../core/dialogs.js";
import { ago, bytes, count, cut, moment } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { complain, notify } from "../../core/notices.js";
import { href } from "../../core/router.js";
import { define, Page } from "../../core/view.js";
import { showCode } from "../../ideas/code.js";
import { bucketPath, placeOf } from "./objects.js";

/**
 * @typedef {{ id: string, method: "GET" | "PUT", key: string | null, key_prefix: string | null, created_at: string, created_by: string | null,
 *   expires_at: string, uses_left: number | null, max_bytes: number | null }} Listed
 */

const TIMES = /** @type {const} */ ([
  [300, "5 minutes"],
  [3600, "1 hour"],
  [86400, "1 day"],
  [604800, "7 days"],
]);
const USUAL = 3600;

class Links extends Page {
  /** @type {Listed[]} */
  links = [];
  /** @type {string | null | undefined} */
  token;
  bucket = "";

  routed() {
    if (this.bucket === this.route.parts[0]) return;
    this.bucket = this.route.parts[0];
    this.reload();
  }

  reload() {
    this.links = [];
    this.token = undefined;
    this.more();
  }

  async more() {
    const query = { limit: 100, page_token: this.token };
    const answer = await this.run((signal) => api.get(`${bucketPath(this.bucket)}/links`, { query, signal }));
    if (!answer) return;
    this.links = this.links.concat(answer.links);
    this.token = answer.next_token;
    this.update();
  }

  /** @param {Listed} link */
  async revoke(link) {
    const sure = await confirm({
      title: "Revoke this link?",
      text: "Whoever has it can use it no more. That cannot be undone.",
      action: "Revoke",
      danger: true,
      signal: this.signal,
    });
    if (!sure) return;
    try {
      await api.delete(`${bucketPath(this.bucket)}/links/${link.id}`);
      this.links = this.links.filter((each) => each !== link);
      notify("Revoked the link.");
      this.update();
    } catch (fault) {
      complain(fault);
    }
  }

  template() {
    const { bucket, links, token, failure, busy } = this;
    return html`<div class="page storage">
      <header class="head">
        <nav class="crumbs grow" aria-label="Folders"><ol>
          <li><a href=${href(["storage"])}>Buckets</a></li><li><a class="clip" href=${href(placeOf(bucket, ""))}><bdi>${bucket}</bdi></a></li><li><h1>Links</h1></li></ol></nav>
        <button type="button" class="quiet" @click=${() => showCode({ path: `${bucketPath(bucket)}/links` }, this.signal)}>${icon("sql")}Code</button>
        <button type="button" class="primary" @click=${async () => (await makeLink(bucket, null, this.signal)) && this.reload()}>${icon("add")}Link for uploads</button>
      </header>
      ${failure ? html`<p role="alert" class="note danger">${icon("alert")}<span>${failure.message}</span><button type="button" @click=${() => this.more()}>Try again</button></p>` : nothing}
      ${
        token === undefined
          ? failure
            ? nothing
            : html`<p class="busy" role="status">Asking for the links…</p>`
          : !links.length
            ? html`<div class="empty card">${icon("link")}<h2>No links</h2><p>A link downloads a file, or takes an upload, without a key, until it expires. Open a file to make one for it.</p></div>`
            : html`<div class="table-wrap"><table class="table links">
              <thead><tr><th scope="col">For</th><th scope="col">File</th><th scope="col">Made</th><th scope="col">Expires</th><th scope="col">Uses left</th><th scope="col"><span class="quiet">Revoke</span></th></tr></thead>
              <tbody>${each(
                links,
                ({ id }) => id,
                (link) => this.row(link),
              )}</tbody></table></div>`
      }
      ${token ? html`<button type="button" ?disabled=${busy} @click=${() => this.more()}>More</button>` : nothing}
      <ps-uploads></ps-uploads>
    </div>`;
  }

  /** @param {Listed} link */
  row(link) {
    const { method, key, key_prefix, created_at, created_by, expires_at, uses_left, max_bytes } = link;
    return html`<tr>
      <td><span class=${method === "GET" ? "badge" : "badge accent"}>${icon(method === "GET" ? "download" : "upload")}${method === "GET" ? "Download" : "Upload"}</span></td>
      <td><bdi>${cut(key ?? (key_prefix ? `${key_prefix}…` : "Any name"), 200)}</bdi>${max_bytes === null ? nothing : html` <small class="quiet">up to ${bytes(max_bytes)}</small>`}</td>
      <td title=${moment(created_at)}><bdi>${ago(created_at)}</bdi><br><small class="quiet">by ${created_by ? html`<a href=${href(["users", created_by])}>a user</a>` : "the service"}</small></td>
      <td title=${moment(expires_at)}>${ago(expires_at)}</td>
      <td class="number">${uses_left === null ? "Any" : count(uses_left)}</td>
      <td class="actions"><button type="button" @click=${() => this.revoke(link)}>Revoke</button></td>
    </tr>`;
  }
}
define("ps-links", Links);

/**
 * Make a link: for the download of an object, or without a key for an upload. Whether one was made.
 * @param {string} bucket
 * @param {string | null} key
 * @param {AbortSignal} signal
 */
export async function makeLink(bucket, key, signal) {
  /** @type {import("./objects.js").Link | null} */
  let made = null;
  let terms = "";
  let problem = "";
  let busy = false;
  /** @param {HTMLFormElement | null} element */
  const call = (element) => {
    const form = new FormData(element ?? undefined);
    const expires = { expires_in_seconds: Number(form.get("expires")) };
    const body =
      key === null
        ? { method: "PUT", key_prefix: String(form.get("prefix")), ...expires }
        : { key, uses: Number(form.get("uses")), ...expires };
    return { method: "POST", path: `${bucketPath(bucket)}/presign`, body };
  };
  await dialog({
    title: key === null ? "Link for an upload" : "Link for a download",
    signal,
    content: (/** @type {import("../../core/dialogs.js").Shown<void>} */ shown) => {
      /** @param {SubmitEvent} event */
      const submit = async (event) => {
        event.preventDefault();
        const { path, body } = call(/** @type {HTMLFormElement} */ (event.target));
        busy = true;
        problem = "";
        shown.update();
        try {
          const answer = await api.post(path, body, { signal: shown.signal });
          const time = TIMES.find(([seconds]) => seconds === body.expires_in_seconds)?.[1];
          terms = `${time}, ${"uses" in body && body.uses === 0 ? "any number of times" : "once"}`;
          made = answer;
        } catch (fault) {
          problem = fault instanceof Error ? fault.message : String(fault);
        }
        busy = false;
        if (!shown.signal.aborted) shown.update();
      };
      if (made) {
        const { url, expires_at } = made;
        return html`<div class="dialog-body">
            <label class="field"><span>The link</span><input class="mono" readonly .value=${url} @focus=${(/** @type {any} */ event) => event.target.select()}>
              <small>It works for ${terms}, until ${moment(expires_at)}. It is shown this once.</small></label>
          </div>
          <footer class="dialog-foot"><button type="button" @click=${() => shown.close()}>Close</button>
            <button type="button" class="primary" @click=${() => navigator.clipboard.writeText(url).then(() => notify("Copied the link."), complain)}>${icon("copy")}Copy link</button></footer>`;
      }
      return html`<form @submit=${submit}>
        <div class="dialog-body">
          <p class="quiet">${key === null ? "Whoever has the link can upload one file, without a key." : "Whoever has the link can download the file, without a key."}</p>
          ${
            key === null
              ? html`<label class="field"><span>The file's name begins with</span><input name="prefix" placeholder="inbox/" autocomplete="off" spellcheck="false"><small>For a folder, with its slash. Whoever uploads chooses the rest.</small></label>`
              : nothing
          }
          <label class="field"><span>Works for</span><select name="expires">${TIMES.map(([seconds, title]) => html`<option value=${seconds} ?selected=${seconds === USUAL}>${title}</option>`)}</select></label>
          ${
            key === null
              ? nothing
              : html`<fieldset><legend>How often</legend>
            <label class="check"><input type="radio" name="uses" value="0" checked><span>Any number of times</span></label>
            <label class="check"><input type="radio" name="uses" value="1"><span>Once</span></label></fieldset>`
          }
          ${problem ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${problem}</bdi></span></p>` : nothing}
        </div>
        <footer class="dialog-foot">
          <button type="button" class="quiet" @click=${() => showCode(call(shown.element.querySelector("form")), shown.signal)}>${icon("sql")}Code</button><span class="grow"></span>
          <button type="button" @click=${() => shown.close()}>Cancel</button><button class="primary" ?disabled=${busy}>Make link</button></footer>
      </form>`;
    },
  });
  return made !== null;
}
