/**
 * Addresses within the console: `#/tables/dev/main/notes?id=eq.1`. They are in the history, so nothing secret may be in
 * them.
 */

/** @typedef {{ parts: string[], query: URLSearchParams }} Route */
/** @typedef {Record<string, string | number | boolean | null | undefined> | URLSearchParams | Iterable<[string, string]>} Query */

/** @returns {Route} */
export function route(address = location.hash) {
  const [path, query = ""] = split(address.replace(/^#?\/?/, ""), "?");
  return { parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

/**
 * The address of `parts`, which are escaped, with `query`; values that are null or undefined are left out.
 * @param {readonly (string | number)[]} parts
 * @param {Query} [query]
 */
export function href(parts, query = {}) {
  const path = parts.map((part) => encodeURIComponent(part)).join("/");
  const search = search_of(query).toString();
  return `#/${path}${search && `?${search}`}`;
}

/**
 * Go to an address. With `replace` the present one is not kept in the history.
 * @param {string | readonly (string | number)[]} to
 * @param {Query} [query]
 * @param {{ replace?: boolean }} [options]
 */
export function go(to, query = {}, { replace = false } = {}) {
  const address = typeof to === "string" ? to : href(to, query);
  if (address === location.hash) return;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  dispatchEvent(new Event("routed"));
}

/**
 * Call `routed` at once, and whenever the address has changed.
 * @param {(route: Route) => void} routed
 */
export function follow(routed) {
  const call = () => routed(route());
  addEventListener("routed", call);
  addEventListener("hashchange", call);
  call();
}

/** @param {Query} query */
export function search_of(query) {
  if (query instanceof URLSearchParams) return query;
  const pairs = Symbol.iterator in query ? [...query] : Object.entries(query);
  return new URLSearchParams(
    pairs.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => [name, String(value)]),
  );
}

/**
 * @param {string} text
 * @param {string} separator
 */
function split(text, separator) {
  const at = text.indexOf(separator);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
