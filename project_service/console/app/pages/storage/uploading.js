/** The uploads of this tab with their progress. */

import { bytes, count, counted } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { define, View } from "../../core/view.js";
import { uploads } from "./uploads.js";

/** @typedef {import("./uploads.js").Upload} Upload */

const MOST = 50;
const ORDER = ["taken", "failed", "refused", "sending", "away", "cancelling", "paused", "waiting", "done"];

const WRONG = new Set(["taken", "failed", "refused"]);

class Uploading extends View {
  connected() {
    uploads.addEventListener("changed", () => this.update(), { signal: this.signal });
  }

  template() {
    const { all } = uploads;
    if (!all.length) return nothing;
    const shown = all.toSorted((one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state)).slice(0, MOST);
    const taking = all.filter(({ state }) => state !== "failed" && state !== "refused");
    const [sent, size] = [
      taking.reduce((sum, each) => sum + each.sent, 0),
      taking.reduce((sum, each) => sum + each.file.size, 0),
    ];
    const left = taking.filter(({ state }) => state !== "done").length;
    const refused = all.length - taking.length;
    const over = refused
      ? `${count(refused)} of ${counted(all.length, "file")} ${refused === 1 ? "was" : "were"} refused`
      : `${counted(all.length, "file")} uploaded`;
    const taken = all.filter((each) => each.state === "taken");
    return html`<section class="card uploads" aria-label="Uploads">
      <header class="head">
        <h2 role="status"><bdi>${left ? `${counted(left, "upload")} left` : over}</bdi></h2>
        ${left ? html`<span class="quiet"><bdi>${bytes(sent)} of ${bytes(size)}</bdi></span>` : nothing}
        ${taken.length > 1 ? html`<button type="button" @click=${() => taken.forEach((each) => uploads.resume(each, true))}>Replace ${count(taken.length)}</button>` : nothing}
        <button type="button" class="icon-button" aria-label="Take what is over off the list" title="Clear" @click=${() => uploads.clear()}>${icon("close")}</button>
      </header>
      <ul>${each(
        shown,
        ({ id }) => id,
        (upload) => this.row(upload),
      )}</ul>
      ${all.length > MOST ? html`<p class="quiet">And ${count(all.length - MOST)} more.</p>` : nothing}
    </section>`;
  }

  /** @param {Upload} upload */
  row(upload) {
    const { state, key, file, sent, finishing } = upload;
    const name = key.slice(0, 900);
    return html`<li class=${`upload ${state}`}>
      <span class="clip" title=${`${upload.bucket}/${name}`}><bdi>${name}</bdi></span>
      <small class=${WRONG.has(state) ? "wrong" : "quiet"}><bdi>${inWords(upload)}</bdi></small>
      ${state === "done" ? icon("check") : WRONG.has(state) ? nothing : html`<progress max=${Math.max(file.size, 1)} value=${sent} aria-label=${`Progress of ${name}`}></progress>`}
      <span class="upload-actions">
        ${state === "taken" ? html`<button type="button" @click=${() => uploads.resume(upload, true)}>Replace</button>` : nothing}
        ${(state === "sending" && !finishing) || state === "away" || state === "waiting" ? button("Pause", "pause", name, () => uploads.pause(upload)) : nothing}
        ${state === "paused" || state === "failed" ? button("Go on with", "play", name, () => uploads.resume(upload)) : nothing}
        ${state === "done" || state === "cancelling" || finishing ? nothing : button(state === "refused" ? "Dismiss" : "Cancel", "close", name, () => uploads.cancel(upload))}
      </span>
    </li>`;
  }
}
define("ps-uploads", Uploading);

/** @param {string} verb @param {string} sign @param {string} name @param {() => void} run */
function button(verb, sign, name, run) {
  return html`<button type="button" class="icon-button" aria-label=${`${verb} ${name}`} title=${verb} @click=${run}>${icon(sign)}</button>`;
}

/** @param {Upload} upload */
function inWords({ state, sent, file, message, finishing }) {
  const far = `${bytes(sent)} of ${bytes(file.size)}`;
  switch (state) {
    case "waiting":
      return `Waits, ${bytes(file.size)}`;
    case "sending":
      return finishing ? "Being stored…" : far;
    case "away":
      return `${far}. ${message} It is tried again.`;
    case "paused":
      return `Paused at ${far}`;
    case "cancelling":
      return "Cancelling…";
    case "taken":
      return "There is a file of this name already.";
    case "failed":
    case "refused":
      return message;
    case "done":
      return bytes(file.size);
  }
}
