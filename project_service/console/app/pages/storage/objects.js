/** Buckets and objects by the API, and the names of their keys. */

import { address, api } from "../../core/api.js";

/**
 * @typedef {object} Bucket
 * @property {string} name
 * @property {"public" | "private"} visibility
 * @property {number | null} max_object_bytes
 * @property {number | null} max_bucket_bytes
 * @property {string[] | null} allowed_content_types
 * @property {boolean} owner_only_writes
 * @property {boolean} owner_only_reads
 * @property {boolean} anonymous_reads
 * @property {boolean} policies
 * @property {string | null} cache_control
 * @property {number} object_count
 * @property {number} total_bytes
 * @property {string} created_at
 */
/** @typedef {{ key: string, size: number, content_type: string, last_modified: string, etag: string }} Stored */
/**
 * @typedef {Stored & { owner: string | null, max_age_seconds: number | null, cache_control: string | null,
 *   content_language: string | null, metadata: unknown, sha256: string | null }} Details
 */
/** @typedef {{ name: string, object: Stored | null }} Entry An object by its key, or a folder, whose name ends with a slash. */
/** @typedef {{ objects: Stored[], folders: string[], next_token: string | null }} Listing */
/** @typedef {{ id: string, url: string, expires_at: string }} Link */

export const ADMIN = "/admin/buckets";

/** @param {string} bucket */
export const adminPath = (bucket) => `${ADMIN}/${encodeURIComponent(bucket)}`;

/** @param {string} bucket */
export const bucketPath = (bucket) => `/storage/buckets/${encodeURIComponent(bucket)}`;

/** @param {string} bucket @param {string} key */
export const objectPath = (bucket, key) =>
  `${bucketPath(bucket)}/objects/${key.split("/").map(encodeURIComponent).join("/")}`;

/** The last segment of a key, or of a folder, without its slash. @param {string} name */
export const lastOf = (name) => name.slice(folderOf(name).length).replace(/\/$/, "");

/** The folder that a key or a folder is in; empty for the outermost. @param {string} name */
export const folderOf = (name) => name.slice(0, name.replace(/\/$/, "").lastIndexOf("/") + 1);

/** The parts of the address of what is in a bucket. @param {string} bucket @param {string} folder */
export const placeOf = (bucket, folder) => ["storage", bucket, ...folder.split("/").filter(Boolean)];

/**
 * Every key in a folder.
 * @param {string} bucket
 * @param {string} prefix
 * @param {AbortSignal} signal
 */
export async function keysBelow(bucket, prefix, signal) {
  const keys = [];
  for (let token = null; ;) {
    /** @type {Listing} */
    const page = await api.get(`${bucketPath(bucket)}/objects`, {
      query: { prefix, recursive: true, max_keys: 1000, page_token: token },
      signal,
    });
    for (const { key } of page.objects) keys.push(key);
    if (!(token = page.next_token)) return keys;
  }
}

/**
 * A link that downloads an object. For this page it is at its own origin, whatever the public address is.
 * @param {string} bucket
 * @param {string} key
 * @param {{ uses?: number, expires_in_seconds: number }} terms
 * @param {AbortSignal} [signal]
 * @returns {Promise<Link & { here: URL }>}
 */
export async function linkTo(bucket, key, terms, signal) {
  /** @type {Link} */
  const link = await api.post(`${bucketPath(bucket)}/presign`, { key, ...terms }, { signal });
  return { ...link, here: address(`/storage/download${new URL(link.url).search}`) };
}

/**
 * Let the browser save an object, as it saves everything: by a link that is good for this once.
 * @param {string} bucket
 * @param {string} key
 */
export async function save(bucket, key) {
  const link = await linkTo(bucket, key, { uses: 1, expires_in_seconds: 60 });
  const anchor = document.createElement("a");
  anchor.href = link.here.href;
  anchor.download = lastOf(key);
  anchor.click();
}
