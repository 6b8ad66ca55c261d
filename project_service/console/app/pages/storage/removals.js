/** Deletions that can be undone for some seconds: they are sent only then, or when the page is left. */

import { request } from "../../core/api.js";
import { counted } from "../../core/format.js";
import { notify } from "../../core/notices.js";
import { adminPath, bucketPath } from "./objects.js";

/** What browsers send when a page is left, for all requests together, less what JSON and headers take. */
export const MOST_BYTES = 48 * 1024;

/** @typedef {{ bucket: string, keys: string[], folders: string[] }} Removal */

/** Dispatches `changed` when something is to be hidden, or shown again, and `removed` with what is gone. */
class Removals extends EventTarget {
  /** With what takes their notices away. @type {Map<Removal, () => void>} */
  #pending = new Map();
  /** With their keys; those that are being sent are hidden too. @type {Map<Removal, Set<string>>} */
  #hidden = new Map();

  constructor() {
    super();
    addEventListener("pagehide", () => this.send(true));
  }

  get hiding() {
    return this.#hidden.size > 0;
  }

  /** @param {string} bucket @param {string} name A key, or a folder with its slash. */
  hides(bucket, name) {
    for (const [removal, keys] of this.#hidden) {
      if (removal.bucket === bucket && (keys.has(name) || removal.folders.some((folder) => name.startsWith(folder))))
        return true;
    }
    return false;
  }

  /** @param {Removal} removal */
  later(removal) {
    this.#hidden.set(removal, new Set(removal.keys));
    const leave = notify(`Deleting ${named(removal)} …`, {
      undo: () => this.#undo(removal),
      over: () => this.#pending.has(removal) && this.now(removal),
    });
    this.#pending.set(removal, leave);
    this.#changed();
  }

  /**
   * Send all at once.
   * @param {boolean} [leaving] Whether the page is left.
   */
  send(leaving = false) {
    for (const removal of [...this.#pending.keys()]) this.now(removal, leaving);
  }

  /** @param {Removal} removal */
  #undo(removal) {
    this.#pending.delete(removal);
    this.#hidden.delete(removal);
    this.#changed();
  }

  /** @param {Removal} removal @param {boolean} [keepalive] */
  async now(removal, keepalive = false) {
    const leave = this.#pending.get(removal);
    this.#pending.delete(removal);
    leave?.();
    this.#hidden.set(removal, new Set(removal.keys));
    this.#changed();
    try {
      await remove(removal, keepalive);
      notify(`Deleted ${named(removal)}.`);
      this.dispatchEvent(new CustomEvent("removed", { detail: removal }));
    } catch (fault) {
      notify(`Not deleted: ${fault instanceof Error ? fault.message : fault}`, { kind: "error" });
    }
    this.#hidden.delete(removal);
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("changed"));
  }
}

export const removals = new Removals();

/** "3 files and 1 folder". @param {Pick<Removal, "keys" | "folders">} removal */
export function named({ keys, folders }) {
  return [keys.length && counted(keys.length, "file"), folders.length && counted(folders.length, "folder")]
    .filter(Boolean)
    .join(" and ");
}

/** @param {Removal} removal @param {boolean} [keepalive] */
async function remove({ bucket, keys, folders }, keepalive = false) {
  const requests = [];
  for (let from = 0; from < keys.length; from += 1000) {
    const json = { keys: keys.slice(from, from + 1000) };
    requests.push(() => request(`${bucketPath(bucket)}/delete`, { method: "POST", json, keepalive }));
  }
  for (const prefix of folders)
    requests.push(() => request(`${adminPath(bucket)}/objects`, { method: "DELETE", query: { prefix }, keepalive }));
  // A page that is left has no time to wait for one after the other.
  if (keepalive) await Promise.all(requests.map((send) => send()));
  else for (const send of requests) await send();
}
