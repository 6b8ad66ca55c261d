/**
 * Uploads of this tab: some at a time, each with its progress. They go on while other pages are shown. Large ones are
 * resumable (tus): after a pause, a broken connection or a reload they go on where they were.
 */

import { address, ApiError, credentials, request } from "../../core/api.js";
import { bytes } from "../../core/format.js";
import { notify } from "../../core/notices.js";
import { go } from "../../core/router.js";
import { session } from "../../core/session.js";
import { bucketPath, objectPath } from "./objects.js";

/** @typedef {{ key: string, file: File }} Chosen A file, and the key that its object gets. */
/**
 * @typedef {"waiting" | "sending" | "away" | "paused" | "taken" | "failed" | "refused" | "cancelling" | "done"} State
 * `away`: the service does not answer, and is tried again. `taken`: there is another object of that key. `refused`: it
 * would be again.
 */

/** Files larger than this are resumable: smaller ones are sent again as a whole. */
const LARGE = 8 * 2 ** 20;
const AT_ONCE = 3;
const LONGEST_PAUSE = 30_000;
const TUS = { "Tus-Resumable": "1.0.0" };
/** In the storage of the tab: the paths of uploads that have begun, by what they are of. */
const BEGUN = "uploads";

/** @typedef {Pick<import("./objects.js").Bucket, "max_object_bytes" | "allowed_content_types">} Rules */

/**
 * Why a file is not let into a bucket; empty if it may be. Types have many names, which the service alone knows; so one
 * is refused here only if what the bucket takes is something else by any name.
 * @param {File} file
 * @param {Rules} rules
 */
function whyNot(file, { max_object_bytes: most, allowed_content_types: types }) {
  if (most !== null && file.size > most)
    return `${file.name} has ${bytes(file.size)}; this bucket takes up to ${bytes(most)}.`;
  const own = familiesOf(file.type);
  if (
    !own ||
    !types ||
    types.some(
      (type) =>
        (type.endsWith("/*") ? [type.slice(0, -2).toLowerCase()] : familiesOf(type))?.some(
          (family) => family === "*" || own.includes(family),
        ) ?? true,
    )
  )
    return "";
  return otherType(file, types);
}

/** What may be the family of a type by its other names; undefined if any may be. @param {string} type */
function familiesOf(type) {
  const family = type.split("/", 1)[0].toLowerCase();
  return family === "application" || !family ? undefined : family === "text" ? ["text", "application"] : [family];
}

/** @param {File} file @param {string[]} types */
const otherType = ({ name, type }, types) =>
  `${name} is ${type || "of no known type"}; this bucket takes ${types.join(", ") || "nothing"}.`;

export class Upload {
  /** @type {State} */
  state = "waiting";
  sent = 0;
  message = "";
  replace = false;
  /** @type {Rules | null} The bucket's, if they are known. */
  rules = null;
  /** @type {string | null} Where a resumable upload goes on. */
  path = null;
  controller = new AbortController();
  /** @type {Promise<void> | null} */
  running = null;

  /** @param {string} bucket @param {Chosen} chosen */
  constructor(bucket, { key, file }) {
    this.id = crypto.getRandomValues(new Uint32Array(2)).join("-");
    this.bucket = bucket;
    this.key = key;
    this.file = file;
    this.path = begun()[this.fingerprint] ?? null;
  }

  get fingerprint() {
    return JSON.stringify([this.bucket, this.key, this.file.size, this.file.lastModified]);
  }

  get active() {
    return ["waiting", "sending", "away", "cancelling"].includes(this.state);
  }

  /** Whether all is on its way, so that it cannot be called back any more. */
  get finishing() {
    return this.state === "sending" && this.sent >= this.file.size;
  }

  /** @param {string | null} path */
  remember(path) {
    this.path = path;
    const all = begun();
    if (path) all[this.fingerprint] = path;
    else delete all[this.fingerprint];
    sessionStorage.setItem(BEGUN, JSON.stringify(all));
  }
}

/** Dispatches `changed` whenever something is to be shown, and `stored` with an upload that has become an object. */
class Uploads extends EventTarget {
  /** @type {Upload[]} */
  all = [];
  #busy = false;

  constructor() {
    super();
    addEventListener("beforeunload", (event) => {
      if (this.all.some((each) => each.active)) event.preventDefault();
    });
    session.addEventListener("ended", () => this.all.filter((each) => each.active).forEach((each) => this.pause(each)));
  }

  /**
   * Upload files; those that the bucket's rules do not let in are not sent.
   * @param {string} bucket
   * @param {Chosen[]} chosen
   * @param {Rules | null} [rules] Without them, the service decides alone.
   */
  add(bucket, chosen, rules = null) {
    const busy = new Set(
      this.all
        .filter((each) => each.active || each.state === "paused")
        .map((each) => JSON.stringify([each.bucket, each.key])),
    );
    const added = chosen
      .filter(({ key }) => !busy.has(JSON.stringify([bucket, key])))
      .map((each) => new Upload(bucket, each));
    for (const upload of rules ? added : []) {
      upload.rules = /** @type {Rules} */ (rules);
      upload.message = whyNot(upload.file, upload.rules);
      if (upload.message) upload.state = "refused";
    }
    this.all = [
      ...added,
      ...this.all.filter((old) => !added.some((each) => each.bucket === old.bucket && each.key === old.key)),
    ];
    this.#next();
  }

  /** @param {Upload} upload */
  pause(upload) {
    upload.state = "paused";
    upload.controller.abort();
    this.#changed();
  }

  /** @param {Upload} upload @param {boolean} [replace] Whether it may replace an object. */
  async resume(upload, replace = upload.replace) {
    await upload.running;
    if (upload.active) return;
    if (replace !== upload.replace) upload.remember(null); // the condition was said at its beginning
    upload.replace = replace;
    upload.controller = new AbortController();
    upload.state = "waiting";
    this.#next();
  }

  /**
   * Give it up: nothing of it stays.
   * @param {Upload} upload
   */
  async cancel(upload) {
    upload.state = "cancelling";
    upload.controller.abort();
    this.#changed();
    await upload.running;
    for (let failures = 0; upload.path && failures < 5; failures++) {
      try {
        await request(upload.path, { method: "DELETE", headers: TUS });
        upload.remember(null);
      } catch (fault) {
        if (!isTemporary(fault)) upload.remember(null);
        else await pause(failures, new AbortController().signal);
      }
    }
    this.all = this.all.filter((each) => each !== upload);
    this.#next();
  }

  /** Take those that are over off the list. */
  clear() {
    this.all = this.all.filter((each) => !["done", "failed", "refused", "taken"].includes(each.state));
    this.#changed();
  }

  #next() {
    const free = AT_ONCE - this.all.filter((each) => each.state === "sending" || each.state === "away").length;
    const waiting = this.all.filter((each) => each.state === "waiting");
    for (const upload of waiting.slice(0, Math.max(0, free))) {
      upload.running = this.#run(upload).then(() => this.#next());
    }
    const active = this.all.some((each) => each.active);
    if (this.#busy && !active && !document.querySelector("ps-uploads"))
      notify("The uploads are over.", { action: "Show", run: () => go(["storage"]) });
    this.#busy = active;
    this.#changed();
  }

  /** @param {Upload} upload */
  async #run(upload) {
    const { signal } = upload.controller;
    upload.state = "sending";
    try {
      for (let failures = 0, before = upload.sent; ; failures++) {
        try {
          await (upload.file.size > LARGE
            ? this.#resumable(upload, signal)
            : this.#whole(upload, signal, failures > 0));
          break;
        } catch (fault) {
          if (signal.aborted || !isTemporary(fault)) throw fault;
          if (upload.sent > before) failures = 0;
          before = upload.sent;
          upload.state = "away";
          upload.message = fault.message;
          this.#changed();
          await pause(failures, signal);
          upload.state = "sending";
        }
      }
      upload.state = "done";
      upload.sent = upload.file.size;
      upload.remember(null);
      this.dispatchEvent(new CustomEvent("stored", { detail: upload }));
    } catch (fault) {
      if (signal.aborted) return;
      const { code, details } = fault instanceof ApiError ? fault : { code: "", details: null };
      // There may be room in the bucket's quota later.
      const refused =
        code === "unsupported_media_type" || code === "validation_failed" || (code === "payload_too_large" && !details);
      const types = code === "unsupported_media_type" && upload.rules?.allowed_content_types;
      upload.state = code === "object_exists" ? "taken" : refused ? "refused" : "failed";
      upload.message = types ? otherType(upload.file, types) : fault instanceof Error ? fault.message : String(fault);
    }
  }

  /** @param {Upload} upload @param {AbortSignal} signal @param {boolean} again Whether an earlier request may have arrived, and only its answer was lost. */
  async #whole(upload, signal, again) {
    const path = objectPath(upload.bucket, upload.key);
    const type = upload.file.type;
    try {
      await send(
        "PUT",
        path,
        { ...condition(upload), ...(type && { "Content-Type": type }) },
        upload.file,
        (sent) => this.#progress(upload, sent),
        signal,
      );
    } catch (fault) {
      if (
        !signal.aborted &&
        again &&
        fault instanceof ApiError &&
        fault.code === "object_exists" &&
        (await isThere(upload, signal))
      )
        return;
      upload.sent = 0;
      throw fault;
    }
  }

  /** @param {Upload} upload @param {AbortSignal} signal */
  async #resumable(upload, signal) {
    // Not ended by the signal, so that the path is known of whatever has begun.
    const offset = upload.path ? await received(upload, signal) : null;
    if (offset === null) await begin(upload);
    this.#progress(upload, offset ?? 0);
    signal.throwIfAborted();
    const from = upload.sent;
    if (from === upload.file.size && from > 0) return;
    const headers = { ...TUS, "Upload-Offset": String(from), "Content-Type": "application/offset+octet-stream" };
    await send(
      "PATCH",
      /** @type {string} */ (upload.path),
      headers,
      upload.file.slice(from),
      (sent) => this.#progress(upload, from + sent),
      signal,
    );
  }

  /** @param {Upload} upload @param {number} sent */
  #progress(upload, sent) {
    upload.sent = sent;
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("changed"));
  }
}

export const uploads = new Uploads();

/**
 * The files that were chosen or dropped, with their paths in the folders that were. Throws if one cannot be read.
 * @param {DataTransfer | FileList} given
 * @returns {Promise<Chosen[]>}
 */
export async function filesOf(given) {
  if (given instanceof FileList) return [...given].map((file) => ({ key: file.webkitRelativePath || file.name, file }));
  // All have to be asked for before anything is waited for.
  const items = [...given.items]
    .filter(({ kind }) => kind === "file")
    .map((item) => item.webkitGetAsEntry() ?? item.getAsFile());
  const found = items.map((item) =>
    item instanceof File ? [{ key: item.name, file: item }] : item ? below(item, "") : [],
  );
  return (await Promise.all(found)).flat();
}

/** @param {FileSystemEntry} entry @param {string} folder @returns {Promise<Chosen[]>} */
async function below(entry, folder) {
  const path = folder + entry.name;
  if (!entry.isDirectory) {
    const file = await new Promise((resolve, reject) =>
      /** @type {FileSystemFileEntry} */ (entry).file(resolve, reject),
    );
    return [{ key: path, file }];
  }
  const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader();
  const found = [];
  for (;;) {
    /** @type {FileSystemEntry[]} */
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return found;
    for (const each of some) found.push(...(await below(each, `${path}/`)));
  }
}

/** @returns {Record<string, string>} */
function begun() {
  return JSON.parse(sessionStorage.getItem(BEGUN) ?? "{}");
}

/** @param {Upload} upload @returns {Record<string, string>} */
const condition = (upload) => (upload.replace ? {} : { "If-None-Match": "*" });

/** @param {Upload} upload */
async function begin(upload) {
  const { bucket, key, file } = upload;
  const said = Object.entries({ key, ...(file.type && { filetype: file.type }) }).map(
    ([name, value]) => `${name} ${base64(value)}`,
  );
  const headers = {
    ...TUS,
    ...condition(upload),
    "Upload-Length": String(file.size),
    "Upload-Metadata": said.join(","),
  };
  const answer = await request(`${bucketPath(bucket)}/resumable`, { method: "POST", headers });
  const location = new URL(answer.headers.get("Location") ?? "", answer.url);
  upload.remember(location.pathname.slice(address("/").pathname.length - 1));
}

/**
 * How much the service has; null if the upload has to begin anew.
 * @param {Upload} upload
 * @param {AbortSignal} signal
 */
async function received(upload, signal) {
  try {
    const answer = await request(/** @type {string} */ (upload.path), { method: "HEAD", headers: TUS, signal });
    return Number(answer.headers.get("Upload-Offset"));
  } catch (fault) {
    if (!(fault instanceof ApiError) || (fault.status !== 404 && fault.status !== 410)) throw fault;
    upload.remember(null);
    return null;
  }
}

/**
 * Whether the object is the file, as far as the browser can tell.
 * @param {Upload} upload
 * @param {AbortSignal} signal
 */
async function isThere({ bucket, key, file }, signal) {
  if (!globalThis.crypto.subtle) return false;
  const answer = await request(objectPath(bucket, key), { query: { info: true }, signal });
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  return (await answer.json()).sha256 === [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {string} text */
function base64(text) {
  return btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""));
}

/** @param {unknown} fault @returns {fault is ApiError} */
function isTemporary(fault) {
  return (
    fault instanceof ApiError &&
    (fault.status === 0 || [408, 409, 423, 429].includes(fault.status) || (fault.status >= 500 && fault.status !== 501))
  );
}

/**
 * Waits, the longer the more has failed, or until the network is back.
 * @param {number} failures
 * @param {AbortSignal} signal
 */
function pause(failures, signal) {
  return /** @type {Promise<void>} */ (
    new Promise((resolve, reject) => {
      const done = new AbortController();
      const end = () => {
        clearTimeout(timer);
        done.abort();
        if (signal.aborted) reject(signal.reason);
        else resolve();
      };
      const timer = setTimeout(end, Math.min(500 * 2 ** failures, LONGEST_PAUSE));
      addEventListener("online", end, { signal: done.signal });
      signal.addEventListener("abort", end, { signal: done.signal });
    })
  );
}

/**
 * A request whose body is watched on its way, which `fetch` cannot do.
 * @param {string} method
 * @param {string} path
 * @param {Record<string, string>} headers
 * @param {Blob} body
 * @param {(sent: number) => void} progress
 * @param {AbortSignal} signal
 */
async function send(method, path, headers, body, progress, signal) {
  const known = await credentials("service", signal);
  signal.throwIfAborted();
  return /** @type {Promise<void>} */ (
    new Promise((resolve, reject) => {
      const sending = new XMLHttpRequest();
      sending.open(method, address(path));
      for (const [name, value] of Object.entries({ ...headers, ...known })) sending.setRequestHeader(name, value);
      sending.upload.onprogress = (event) => progress(event.loaded);
      sending.onabort = () => reject(signal.reason);
      sending.onerror = () => reject(new ApiError(0, "unreachable", "The service does not answer."));
      sending.onload = () => {
        if (sending.status < 400) return resolve();
        reject(refusal(sending));
      };
      signal.addEventListener("abort", () => sending.abort());
      sending.send(body);
    })
  );
}

/** @param {XMLHttpRequest} answered */
function refusal({ status, statusText, responseText }) {
  try {
    const { code, message, details } = JSON.parse(responseText).error;
    return new ApiError(status, code, message, details);
  } catch {
    return new ApiError(status, String(status), statusText || `Answered with ${status}.`);
  }
}
