/** One object: what it looks like, what is known of it, and its links. */

import { api, request } from "../../core/api.js";
import { dialog } from "../../core/dialogs.js";
import { bytes, counted, cut, moment } from "../../core/format.js";
import { html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { complain, notify } from "../../core/notices.js";
import { href } from "../../core/router.js";
import { define, View } from "../../core/view.js";
import { showCode } from "../../ideas/code.js";
import { makeLink } from "./links.js";
import { adminPath, bucketPath, lastOf, linkTo, objectPath, save } from "./objects.js";
import { transfer } from "./transfer.js";

/** @typedef {import("./objects.js").Details} Details */
/**
 * @typedef {object} About
 * @property {string} bucket
 * @property {string} key
 * @property {AbortSignal} signal
 * @property {() => void} changed
 * @property {() => void} remove
 */

const TEXT_BYTES = 256 * 1024;
const WHOLE_BYTES = 32 * 2 ** 20;
/**
 * What is shown, and as what: a file never says itself what the browser takes it for. Everything else is text or not shown.
 * @type {Record<string, string>}
 */
const TYPES = {
  "image/png": "image",
  "image/jpeg": "image",
  "image/gif": "image",
  "image/webp": "image",
  "image/avif": "image",
  "image/bmp": "image",
  "image/svg+xml": "image",
  "image/x-icon": "image",
  "application/pdf": "pdf",
  "audio/mpeg": "audio",
  "audio/mp4": "audio",
  "audio/aac": "audio",
  "audio/ogg": "audio",
  "audio/wav": "audio",
  "audio/x-wav": "audio",
  "audio/webm": "audio",
  "audio/flac": "audio",
  "video/mp4": "video",
  "video/webm": "video",
  "video/ogg": "video",
  "video/quicktime": "video",
};
const TEXTS =
  /^(text\/|application\/(json|ld\+json|xml|javascript|x-javascript|ecmascript|yaml|x-yaml|toml|sql|x-sh|csv|x-ndjson|graphql)$|.*\+(json|xml)$)/;

/**
 * Show an object until the dialog is closed.
 * @param {About} about
 */
export function showFile(about) {
  return dialog({
    title: cut(lastOf(about.key), 900),
    size: "wide",
    signal: about.signal,
    content: (/** @type {import("../../core/dialogs.js").Shown<void>} */ shown) =>
      html`<ps-file .about=${about} .close=${shown.close}></ps-file>`,
  });
}

class FileView extends View {
  /** @type {About} */
  about = /** @type {any} */ (null);
  close = () => {};
  /** @type {Details | null} */
  details = null;
  /** Whether it has an address for everybody. */
  isOpen = false;

  connected() {
    this.load();
  }

  async load() {
    const { bucket, key } = this.about;
    const found = await this.run((signal) =>
      Promise.all([
        api.get(objectPath(bucket, key), { query: { info: true }, signal }),
        api.get(adminPath(bucket), { signal }),
      ]),
    );
    if (found) [this.details, { anonymous_reads: this.isOpen }] = found;
    this.update();
  }

  /** @param {SubmitEvent} event */
  async save(event) {
    event.preventDefault();
    const { bucket, key, changed } = this.about;
    const old = /** @type {Details} */ (this.details);
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    /** @type {Record<string, unknown>} */
    const given = {};
    for (const name of /** @type {const} */ (["cache_control", "content_language", "owner"])) {
      const text = String(form.get(name)).trim() || null;
      if (text !== old[name]) given[name] = text;
    }
    const text = String(form.get("metadata")).trim();
    if (text !== shownMetadata(old)) {
      try {
        given.metadata = text ? JSON.parse(text) : null;
      } catch (fault) {
        return complain(new Error(`The metadata is not JSON: ${/** @type {Error} */ (fault).message}`));
      }
    }
    if (!Object.keys(given).length) return notify("Nothing was changed.");
    try {
      this.details = await api.patch(objectPath(bucket, key), given, {
        headers: { "If-Match": `"${old.etag}"` },
        signal: this.signal,
      });
      notify("Saved.");
      this.update();
      changed();
    } catch (fault) {
      complain(fault);
    }
  }

  /** @param {"move" | "copy"} how */
  async transfer(how) {
    const { bucket, key, changed, signal } = this.about;
    if (!(await transfer({ how, bucket, names: [key] }, signal))) return;
    changed();
    if (how === "move") this.close();
  }

  template() {
    const { about, details, failure, isOpen } = this;
    const { bucket, key } = about;
    if (!details)
      return html`<div class="dialog-body">${failure ? html`<p role="alert" class="note danger">${icon("alert")}<span>${failure.message}</span></p>` : html`<p class="busy" role="status">Asking about it…</p>`}</div>`;
    const { size, content_type, last_modified, owner, etag, sha256 } = details;
    return html`<div class="dialog-body">
        <ps-preview .about=${{ bucket, details }}></ps-preview>
        <dl class="pairs">
          <dt>Key</dt><dd><bdi>${key}</bdi></dd>
          <dt>Type</dt><dd><bdi>${cut(content_type)}</bdi></dd>
          <dt>Size</dt><dd><bdi>${bytes(size)} <span class="quiet">(${counted(size, "byte")})</span></bdi></dd>
          <dt>Changed</dt><dd><bdi>${moment(last_modified)}</bdi></dd>
          <dt>Owner</dt><dd>${owner ? html`<a href=${href(["users", owner])} class="mono">${owner}</a>` : html`<span class="quiet">Nobody</span>`}</dd>
          <dt>ETag</dt><dd class="mono"><bdi>${etag}</bdi></dd>
          <dt>SHA-256</dt><dd class="mono">${sha256 ?? html`<span class="quiet">Not known yet</span>`}</dd>
        </dl>
        <details>
          <summary>Edit its details</summary>
          <form class="details-form" @submit=${(/** @type {SubmitEvent} */ event) => this.save(event)}>
            <label class="field"><span>Cache-Control</span><input name="cache_control" placeholder="max-age=3600" autocomplete="off" spellcheck="false" value=${details.cache_control ?? ""}></label>
            <label class="field"><span>Content-Language</span><input name="content_language" placeholder="en" autocomplete="off" spellcheck="false" value=${details.content_language ?? ""}></label>
            <label class="field"><span>Owner</span><input name="owner" placeholder="The id of a user" autocomplete="off" spellcheck="false" value=${owner ?? ""}></label>
            <label class="field"><span>Metadata</span><textarea name="metadata" class="mono" rows="5" spellcheck="false" placeholder=${'{"album": "trip"}'} .value=${shownMetadata(details)}></textarea>
              <small>A JSON object of the application's own. Whoever may read the file may read it.</small></label>
            <div class="tools"><button class="primary">Save</button></div>
          </form>
        </details>
      </div>
      <footer class="dialog-foot">
        <button type="button" class="danger" @click=${() => (this.close(), about.remove())}>${icon("remove")}Delete</button><span class="grow"></span>
        <button type="button" class="quiet" @click=${() => showCode({ path: objectPath(bucket, key), query: { info: true } }, this.signal)}>${icon("sql")}Code</button>
        ${isOpen ? html`<button type="button" @click=${() => copyPublic(bucket, key).catch(complain)}>${icon("copy")}Public address</button>` : nothing}
        <button type="button" @click=${() => makeLink(bucket, key, about.signal)}>${icon("link")}Link</button>
        <button type="button" @click=${() => this.transfer("move")}>${icon("edit")}Rename or move</button>
        <button type="button" @click=${() => this.transfer("copy")}>${icon("copy")}Copy</button>
        <button type="button" class="primary" @click=${() => save(bucket, key).catch(complain)}>${icon("download")}Download</button>
      </footer>`;
  }
}
define("ps-file", FileView);

/** @param {Details} details */
const shownMetadata = ({ metadata }) => (metadata === null ? "" : JSON.stringify(metadata, null, 2));

/** @param {string} bucket @param {string} key */
async function copyPublic(bucket, key) {
  // A link says where the service is for others; the console may be at an address of its own.
  const { url } = await linkTo(bucket, key, { expires_in_seconds: 1 });
  const path = [bucket, ...key.split("/")].map(encodeURIComponent).join("/");
  await navigator.clipboard.writeText(url.replace(/\/storage\/download\?.*/, `/storage/public/${path}`));
  notify("Copied the address.");
}

/** Shows the bytes, as what `TYPES` says and nothing else. */
class Preview extends View {
  /** @type {{ bucket: string, details: Details }} */
  about = /** @type {any} */ (null);
  /** @type {{ kind: string, address?: string, text?: string } | null} */
  shown = null;
  etag = "";
  /** @type {(() => void)[]} */
  leaving = [];

  connected() {
    this.load();
  }

  disconnected() {
    for (const leave of this.leaving.splice(0)) leave();
  }

  async load() {
    const { bucket, details } = this.about;
    const { key, size } = details;
    const type = details.content_type.split(";")[0].trim().toLowerCase();
    const kind = TYPES[type] ?? (TEXTS.test(type) ? "text" : size <= TEXT_BYTES ? "perhaps" : "none");
    const path = objectPath(bucket, key);
    const shown = await this.run(async (signal) => {
      if (kind === "none" || size === 0) return { kind: size ? "none" : "empty" };
      if (kind === "text" || kind === "perhaps") {
        const headers = size > TEXT_BYTES ? { Range: `bytes=0-${TEXT_BYTES - 1}` } : undefined;
        const read = new Uint8Array(await (await request(path, { headers, signal })).arrayBuffer());
        if (kind === "perhaps" && read.includes(0)) return { kind: "none" };
        return { kind: "text", text: new TextDecoder().decode(read, { stream: size > TEXT_BYTES }) };
      }
      if (size <= WHOLE_BYTES) {
        const blob = new Blob([await (await request(path, { signal })).arrayBuffer()], { type });
        const address = URL.createObjectURL(blob);
        this.leaving.push(() => URL.revokeObjectURL(address));
        return { kind, address };
      }
      if (kind !== "audio" && kind !== "video") return { kind: "large" };
      // What is played is fetched by ranges, which only an address can be. It ends with the view.
      const link = await linkTo(bucket, key, { uses: 0, expires_in_seconds: 3600 }, signal);
      this.leaving.push(() =>
        api.delete(`${bucketPath(bucket)}/links/${link.id}`, { keepalive: true }).catch(() => {}),
      );
      link.here.searchParams.set("inline", "true");
      return { kind, address: link.here.href };
    });
    if (shown) this.shown = shown;
    else if (!this.isConnected) this.disconnected();
    this.update();
  }

  failed() {
    this.disconnected();
    this.shown = { kind: "broken" };
    this.update();
  }

  template() {
    const { shown, failure } = this;
    if (failure)
      return html`<p class="note warn">${icon("alert")}<span>There is no preview: ${failure.message}</span></p>`;
    if (!shown) return html`<p class="busy" role="status">Fetching it…</p>`;
    const { kind, address, text } = shown;
    const name = cut(lastOf(this.about.details.key), 200);
    const failed = () => this.failed();
    switch (kind) {
      case "text":
        return html`<pre class="preview-text" dir="auto" tabindex="0" aria-label="Preview">${text}</pre>
          ${this.about.details.size > TEXT_BYTES ? html`<p class="quiet">These are the first ${bytes(TEXT_BYTES)}.</p>` : nothing}`;
      case "image":
        return html`<div class="preview"><img alt=${name} src=${address} @error=${failed}></div>`;
      case "pdf":
        return html`<iframe class="preview-pdf" title=${name} src=${address}></iframe>`;
      case "audio":
        return html`<audio controls aria-label=${name} src=${address} @error=${failed}></audio>`;
      case "video":
        return html`<div class="preview"><video controls playsinline aria-label=${name} src=${address} @error=${failed}></video></div>`;
      case "broken":
        return html`<p class="note warn">${icon("alert")}<span>The browser cannot show this: it is damaged, or in a format that it does not know.</span></p>`;
      case "empty":
        return html`<p class="quiet">The file is empty.</p>`;
      case "large":
        return html`<p class="quiet">It is too large for a preview.</p>`;
      default:
        return html`<p class="quiet">There is no preview of this type.</p>`;
    }
  }
}
define("ps-preview", Preview);
