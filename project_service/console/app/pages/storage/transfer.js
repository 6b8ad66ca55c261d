/** Renaming, moving and copying of files and folders, one by one, with progress. */

import { api } from "../../core/api.js";
import { dialog } from "../../core/dialogs.js";
import { count } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { notify } from "../../core/notices.js";
import { ADMIN, bucketPath, folderOf, keysBelow, lastOf } from "./objects.js";

const AT_ONCE = 4;

/** @typedef {{ how: "move" | "copy", bucket: string, names: string[] }} About `names` are keys, and folders with their slashes. */

/**
 * Ask where to, and do it. Whether anything was done.
 * @param {About} about
 * @param {AbortSignal} signal
 */
export async function transfer({ how, bucket, names }, signal) {
  const verb = how === "move" ? "Move" : "Copy";
  const alone = names.length === 1;
  const what = alone ? lastOf(names[0]) : `${count(names.length)} of them`;
  /** @type {string[]} */
  let buckets = [bucket];
  /** @type {{ done: number, all: number, refused: string[] } | null} */
  let state = null;
  let problem = "";
  let changed = 0;

  await dialog({
    title: alone && how === "move" ? `Rename or move ${what}` : `${verb} ${what}`,
    signal,
    content: (/** @type {import("../../core/dialogs.js").Shown<void>} */ shown) => {
      if (buckets.length === 1 && !state) {
        api.get(ADMIN, { signal: shown.signal }).then(
          (answer) => {
            buckets = answer.buckets.map((/** @type {{ name: string }} */ { name }) => name);
            if (buckets.length > 1 && !state) shown.update();
          },
          () => {}, // then it stays within this bucket
        );
      }
      /** @param {SubmitEvent} event */
      const submit = async (event) => {
        event.preventDefault();
        const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
        const [to, place, replace] = [
          String(form.get("bucket") ?? bucket),
          String(form.get("place")).replace(/^\/+/, ""),
          form.has("replace"),
        ];
        state = { done: 0, all: names.length, refused: [] };
        shown.update();
        try {
          const pairs = await pairsOf(
            bucket,
            names,
            alone ? place : place && place.replace(/\/*$/, "/"),
            alone,
            shown.signal,
          );
          state.all = pairs.length;
          /** @param {[string, string]} pair */
          const one = async ([from, target]) => {
            const running = /** @type {NonNullable<typeof state>} */ (state);
            try {
              const headers = replace ? undefined : { "If-None-Match": "*" };
              await api.post(
                `${bucketPath(bucket)}/${how}`,
                { from, to: target, ...(to !== bucket && { to_bucket: to }) },
                { headers, signal: shown.signal },
              );
              changed++;
            } catch (fault) {
              shown.signal.throwIfAborted();
              running.refused.push(`${from}: ${fault instanceof Error ? fault.message : fault}`);
            }
            running.done++;
            shown.update();
          };
          await inTurn(pairs, one);
          if (state.refused.length) return shown.update();
          shown.close();
          notify(`${how === "move" ? "Moved" : "Copied"} ${alone ? what : `${count(changed)} files`}.`);
        } catch (fault) {
          if (shown.signal.aborted) return;
          problem = fault instanceof Error ? fault.message : String(fault);
          state = null;
          shown.update();
        }
      };
      if (state) {
        const { done, all, refused } = state;
        const over = done === all && refused.length > 0;
        return html`<div class="dialog-body">
            <p role="status">${over ? `${count(all - refused.length)} of ${count(all)} done.` : `${count(done)} of ${count(all)}…`}</p>
            <progress max=${Math.max(all, 1)} value=${done} aria-label="Progress"></progress>
            ${refused.length ? html`<ul class="refused">${refused.slice(0, 20).map((text) => html`<li class="wrong"><bdi>${text}</bdi></li>`)}</ul>` : nothing}
            ${refused.length > 20 ? html`<p class="quiet">And ${count(refused.length - 20)} more.</p>` : nothing}
          </div>
          <footer class="dialog-foot"><button type="button" @click=${() => shown.close()}>${over ? "Close" : "Stop"}</button></footer>`;
      }
      return html`<form @submit=${submit}>
        <div class="dialog-body">
          ${
            buckets.length > 1
              ? html`<label class="field"><span>Bucket</span><select name="bucket">${each(
                  buckets,
                  (name) => name,
                  (name) => html`<option value=${name} ?selected=${name === bucket}>${name}</option>`,
                )}</select></label>`
              : nothing
          }
          <label class="field"><span>${alone ? "New name, with its folders" : "Into the folder"}</span>
            <input name="place" value=${alone ? names[0].replace(/\/$/, "") : folderOf(names[0])} ?required=${alone} autocomplete="off" spellcheck="false" autofocus>
            <small>${alone ? "Folders are what stands before the slashes." : "Empty: the outermost one."}</small></label>
          <label class="check"><input type="checkbox" name="replace"><span>Replace what has that name</span></label>
          ${problem ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${problem}</bdi></span></p>` : nothing}
        </div>
        <footer class="dialog-foot"><button type="button" @click=${() => shown.close()}>Cancel</button><button class="primary">${verb}</button></footer>
      </form>`;
    },
  });
  return changed > 0;
}

/**
 * What goes where: the keys, those in folders included. Of one alone `place` is the new name, else their folder.
 * @param {string} bucket
 * @param {string[]} names
 * @param {string} place
 * @param {boolean} alone
 * @param {AbortSignal} signal
 * @returns {Promise<[string, string][]>}
 */
async function pairsOf(bucket, names, place, alone, signal) {
  /** @type {[string, string][]} */
  const pairs = [];
  for (const name of names) {
    const target = alone ? place : place + name.slice(folderOf(name).length);
    if (!name.endsWith("/")) pairs.push([name, target]);
    else
      for (const key of await keysBelow(bucket, name, signal))
        pairs.push([key, target.replace(/\/*$/, "/") + key.slice(name.length)]);
  }
  return pairs;
}

/** @template T @param {T[]} items @param {(item: T) => Promise<void>} one */
async function inTurn(items, one) {
  const left = items.values();
  await Promise.all(
    Array.from({ length: AT_ONCE }, async () => {
      for (const item of left) await one(item);
    }),
  );
}
