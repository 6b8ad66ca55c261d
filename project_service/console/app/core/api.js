/** The one client of the service's API. */

import { end, key, session } from "./session.js";
import { search_of } from "./router.js";

/** @typedef {"service" | "anon" | { id: string, email?: string } | null} Identity Whom a request is made as; null: without credentials. */
/**
 * @typedef {object} Options
 * @property {string} [method]
 * @property {import("./router.js").Query} [query]
 * @property {Record<string, string>} [headers]
 * @property {BodyInit} [body]
 * @property {unknown} [json] A body that is sent as JSON.
 * @property {AbortSignal} [signal]
 * @property {Identity} [as] The service, unless it says otherwise.
 * @property {boolean} [keepalive] Whether it goes on when the page is left.
 */

/** Where the service is: the folder of the page's address. */
export const BASE = new URL(".", document.baseURI);

/** An answer that refuses, or the network. `status` is 0 where there was no answer. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} code
   * @param {string} message
   * @param {Record<string, unknown> | string | null} [details]
   * @param {string | null} [requestId]
   */
  constructor(status, code, message, details = null, requestId = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.details = details;
    this.requestId = requestId;
  }
}

/**
 * The answer to a request. Raises `ApiError` for one of 400 and above, and `AbortError` when `signal` is aborted.
 * @param {string} path Below the service's own, with a leading slash.
 * @param {Options} [options]
 */
export async function request(
  path,
  { method = "GET", query = {}, headers = {}, body, json, signal, as = "service", keepalive = false } = {},
) {
  const sent = new Headers(headers);
  for (const [name, value] of Object.entries(await credentials(as, signal))) sent.set(name, value);
  if (json !== undefined) {
    sent.set("Content-Type", "application/json");
    body = JSON.stringify(json);
  }
  let answer;
  try {
    const options = /** @type {const} */ ({
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
      referrerPolicy: "no-referrer",
    });
    answer = await fetch(address(path, query), { method, headers: sent, body, signal, keepalive, ...options });
  } catch (fault) {
    if (signal?.aborted) throw fault;
    throw new ApiError(
      0,
      "unreachable",
      "The service does not answer. It may be starting again, or the network is away.",
    );
  }
  if (answer.status >= 400) throw await refusal(answer);
  return answer;
}

/**
 * @param {string} path
 * @param {import("./router.js").Query} [query]
 */
export function address(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), BASE);
  // A name of dots, as in an address that somebody was sent, would lead to another endpoint.
  const climbs = /(^|[/\\])(\.|%2e){1,2}([/\\]|$)/i.test(path.split(/[?#]/, 1)[0]);
  if (climbs || url.origin !== BASE.origin || !url.pathname.startsWith(BASE.pathname))
    throw new TypeError(`not an address of the service: ${path}`);
  const search = search_of(query).toString();
  if (search) url.search = url.search ? `${url.search}&${search}` : search;
  return url;
}

/** @param {Response} answer */
async function refusal(answer) {
  const text = await answer.text().catch(() => "");
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = {};
  }
  // Of authentication and storage, of the table API, of the endpoints for clients.
  const error = body?.error?.code ? body.error : (body ?? {});
  const code = String(error.code ?? error.error_code ?? answer.status);
  const message =
    String(error.message ?? error.msg ?? error.error_description ?? answer.statusText) ||
    `Answered with ${answer.status}.`;
  const details = error.details ?? null;
  if (answer.status === 401 && code === "project_key_invalid" && key() !== null)
    end("The service key is not valid any more.");
  return new ApiError(
    answer.status,
    code,
    error.hint ? `${message.replace(/[^.!?]$/, "$&.")} ${error.hint}` : message,
    details,
    answer.headers.get("X-Request-Id"),
  );
}

/** @type {Map<string, { token: string, until: number }>} */
const tokens = new Map();
// Whoever signs in next has to be allowed them too.
session.addEventListener("ended", () => tokens.clear());

/** What ids of the console's requests begin with: so the log tells them from others. */
export const OWN = "console-";
const requestId = () =>
  OWN + Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/**
 * The headers that say whom a request is made as, with an id that says that the console made it.
 * @param {Identity} as
 * @param {AbortSignal} [signal]
 * @returns {Promise<Record<string, string>>}
 */
export async function credentials(as, signal) {
  const own = { "X-Request-Id": requestId() };
  if (as === null) return own;
  const given = key();
  if (given === null) throw new ApiError(401, "signed_out", "Sign in with the service key.");
  if (as === "service") return { ...own, "X-Service-Key": given };
  const name = as === "anon" ? "" : as.id;
  let known = tokens.get(name);
  if (!known || known.until < Date.now()) {
    const whom = { user: as === "anon" ? null : as.id };
    const made = await (await request("/admin/tokens", { method: "POST", json: whom, signal })).json();
    const { access_token: token, expires_at: end } = made.data;
    known = { token, until: (end - 30) * 1000 };
    tokens.set(name, known);
  }
  return { ...own, Authorization: `Bearer ${known.token}` };
}

/**
 * @param {string} method
 * @returns {(path: string, options?: Options) => Promise<any>}
 */
function reading(method) {
  return async (path, options = {}) => {
    const answer = await request(path, { ...options, method });
    const text = await answer.text();
    return text ? JSON.parse(text) : null;
  };
}

/**
 * @param {string} method
 * @returns {(path: string, json?: unknown, options?: Options) => Promise<any>}
 */
function writing(method) {
  const read = reading(method);
  return (path, json, options = {}) => read(path, { json, ...options });
}

/** JSON in and out. */
export const api = {
  request,
  get: reading("GET"),
  delete: reading("DELETE"),
  post: writing("POST"),
  put: writing("PUT"),
  patch: writing("PATCH"),
};
