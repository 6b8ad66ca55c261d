/** Values of cells as text. Nothing here touches a document. */

/** At most so many characters of a value are shown. */
export const LIMIT = 300;

/**
 * The value in one line, at most `limit` characters and "…" where it goes on; objects and arrays as JSON. Of a large
 * value only its beginning is looked at.
 *
 * @param {unknown} value
 * @param {number} [limit]
 */
export function brief(value, limit = LIMIT) {
  let text = "";
  for (const piece of typeof value === "string" ? [value] : json(value, limit)) {
    text += piece;
    if (text.length > limit) break;
  }
  const cut = text.length > limit;
  text = text.slice(0, limit);
  if (cut && isHighSurrogate(text.charCodeAt(limit - 1))) text = text.slice(0, -1);
  return text.replace(/\r\n|[\r\n\u2028\u2029]/g, "↵").replaceAll("\t", " ") + (cut ? "…" : "");
}

/**
 * The whole value: a string as it is, objects and arrays as JSON, null as nothing.
 *
 * @param {unknown} value
 */
export function whole(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/**
 * Tab-separated values, as spreadsheets take them from the clipboard.
 *
 * @param {readonly (readonly unknown[])[]} rows
 */
export function tsv(rows) {
  const quoted = (/** @type {string} */ text) => (/[\t\r\n"]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return rows.map((values) => values.map((value) => quoted(whole(value))).join("\t")).join("\n");
}

/**
 * About how many characters rows take in memory.
 *
 * @param {unknown} value
 * @returns {number}
 */
export function weight(value) {
  if (typeof value === "string") return value.length;
  if (value === null || typeof value !== "object") return 8;
  let total = 16;
  const waiting = [value];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    for (const each of Object.values(next)) {
      total += typeof each === "string" ? each.length + 8 : 8;
      if (each !== null && typeof each === "object") waiting.push(each);
    }
  }
  return total;
}

/** @param {unknown} value @param {number} limit @returns {Generator<string>} */
function* json(value, limit) {
  if (typeof value === "string") yield JSON.stringify(value.slice(0, limit + 1));
  else if (value === null || typeof value !== "object") yield String(value);
  else if (Array.isArray(value)) {
    yield "[";
    for (let at = 0; at < value.length; at++) {
      if (at) yield ", ";
      yield* json(value[at], limit);
    }
    yield "]";
  } else {
    let begin = "{";
    for (const name in value) {
      yield `${begin}${JSON.stringify(name.slice(0, limit + 1))}: `;
      yield* json(/** @type {Record<string, unknown>} */ (value)[name], limit);
      begin = ", ";
    }
    yield begin === "{" ? "{}" : "}";
  }
}

/** @param {number} code */
function isHighSurrogate(code) {
  return code >= 0xd800 && code < 0xdc00;
}
