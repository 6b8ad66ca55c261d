/** Views of a table as queries of the table API (PostgREST's conventions), and back. Nothing here touches a document. */

/**
 * @typedef {object} Column As `GET /admin/databases/…` has it.
 * @property {string} name
 * @property {string} type
 * @property {string} base_type
 * @property {boolean} array
 * @property {boolean} nullable
 * @property {string | null} default
 * @property {string | null} generated
 * @property {boolean} settable
 * @property {string[] | null} enum
 * @property {string | null} comment
 *
 * @typedef {{ name: string, schema: string, relation: string, columns: string[], referenced: string[], on_delete: string }} ForeignKey
 *
 * @typedef {object} Relation
 * @property {string} schema
 * @property {string} name
 * @property {string} kind
 * @property {string} owner
 * @property {string | null} comment
 * @property {"off" | "on" | "forced" | null} row_level_security
 * @property {string | null} definition
 * @property {("insert" | "update" | "delete")[]} changes
 * @property {Column[]} columns
 * @property {string[]} primary_key
 * @property {ForeignKey[]} references
 * @property {ForeignKey[]} referenced_by
 * @property {{ name: string, unique: boolean, primary: boolean, valid: boolean, definition: string }[]} indexes
 * @property {{ name: string, definition: string }[]} checks
 * @property {{ role: string, privilege: string, columns: string[] | null }[]} grants
 * @property {{ name: string, permissive: boolean, command: string, roles: string[], using: string | null, check: string | null, comment: string | null }[]} policies
 * @property {{ name: string, enabled: boolean, definition: string }[]} triggers
 * @property {{ summary: string, roles: { role: string, sentences: string[] }[] }} rights
 *
 * @typedef {{ stage: string, name: string, path: string, schemas: string[], roles: { anon: string, authenticated: string, service: string }, max_rows: number, max_import_bytes: number }} Database
 * @typedef {Record<string, any>} Row
 * @typedef {{ column: string, descending: boolean }} Order
 * @typedef {[name: string, value: string]} Filter As in a query: `["id", "gt.5"]`.
 */

/** The operators that are offered, by what they are in a query. */
export const OPERATORS = /** @type {const} */ ({
  eq: "is",
  neq: "is not",
  gt: "greater than",
  gte: "at least",
  lt: "less than",
  lte: "at most",
  ilike: "contains",
  in: "is one of",
  "is.null": "is null",
  "not.is.null": "is not null",
  cs: "has all of",
});
/** Parameters of the address that are the console's own begin with this; no other goes to the API by mistake. */
export const OWN = "@";
const RESERVED = new Set(["select", "order", "limit", "offset", "columns", "on_conflict"]);
const PLAIN = /^(?!(?:not|and|or)$)[\p{L}_][\p{L}\p{N}_$]*$/u;

/** A column's name as queries have it: one that means something else there is in quotes. @param {string} name */
export const quoted = (name) => (PLAIN.test(name) && !RESERVED.has(name) ? name : quotedValue(name));

/** @param {unknown} value */
const quotedValue = (value) => `"${String(value).replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;

/** The filters of a query. @param {URLSearchParams} query @returns {Filter[]} */
export const filtersOf = (query) => [...query].filter(([name]) => !name.startsWith(OWN) && !RESERVED.has(name));

/** @param {string} name */
export const unquoted = (name) => readName(name)[0];

/** @param {URLSearchParams} query @returns {Order[]} */
export function orderOf(query) {
  return split(query.get("order") ?? "").map((item) => {
    const [name, rest] = readName(item);
    return { column: name, descending: /\.desc\b/.test(rest) };
  });
}

/** @param {readonly Order[]} order */
export const orderText = (order) =>
  order.map(({ column, descending }) => `${quoted(column)}.${descending ? "desc" : "asc"}`).join(",");

/** The columns of a select, or null for all. @param {URLSearchParams} query @returns {string[] | null} */
export function shownOf(query) {
  const select = query.get("select");
  return select ? split(select).map((item) => readName(item)[0]) : null;
}

/** @param {string} text Items with commas between them, some in quotes. */
function split(text) {
  return text.match(/(?:"(?:[^"\\]|\\.)*"|[^,"])+/g) ?? [];
}

/** @param {string} item @returns {[name: string, rest: string]} */
function readName(item) {
  const found = /^"((?:[^"\\]|\\.)*)"(.*)$/s.exec(item);
  if (found) return [found[1].replace(/\\(.)/g, "$1"), found[2]];
  const at = item.indexOf(".");
  return at < 0 ? [item, ""] : [item.slice(0, at), item.slice(at)];
}

/**
 * A filter in words: operator and value as the form has them; null if the form cannot say it.
 * @param {Filter} filter
 * @returns {{ column: string, operator: keyof typeof OPERATORS, value: string } | null}
 */
export function readFilter([column, text]) {
  if (text === "is.null" || text === "not.is.null") return { column, operator: text, value: "" };
  const [, operator, value] = /^(\w+)\.(.*)$/s.exec(text) ?? [];
  if (!Object.hasOwn(OPERATORS, operator) || column === "or" || column === "and" || column.startsWith("not."))
    return null;
  if (operator === "in") {
    const items = split(value.slice(1, -1)).map((item) => (item.startsWith('"') ? readName(item)[0] : item));
    return items.some((item) => item.includes(",")) ? null : { column, operator, value: items.join(", ") };
  }
  if (operator === "ilike") return /^\*.*\*$/s.test(value) ? { column, operator, value: value.slice(1, -1) } : null;
  return { column, operator: /** @type {keyof typeof OPERATORS} */ (operator), value };
}

/**
 * @param {string} column
 * @param {keyof typeof OPERATORS} operator
 * @param {string} value
 * @returns {Filter}
 */
export function makeFilter(column, operator, value) {
  const name = quoted(column);
  if (operator === "is.null" || operator === "not.is.null") return [name, operator];
  if (operator === "in")
    return [
      name,
      `in.(${value
        .split(",")
        .map((item) => quotedValue(item.trim()))
        .join(",")})`,
    ];
  if (operator === "ilike") return [name, `ilike.*${value}*`];
  if (operator === "cs" && !/^[{["]/.test(value.trim())) return [name, `cs.{${value}}`];
  return [name, `${operator}.${value}`];
}

/**
 * What names one row: each column of the key is equal.
 * @param {readonly string[]} key
 * @param {Row} row
 * @returns {Filter[]}
 */
export const oneRow = (key, row) => key.map((name) => [quoted(name), `eq.${text(row[name])}`]);

/**
 * What names these rows, of which there is at least one.
 * @param {readonly string[]} key
 * @param {readonly Row[]} rows
 * @returns {Filter[]}
 */
export function theseRows(key, rows) {
  if (rows.length === 1) return oneRow(key, rows[0]);
  if (key.length === 1)
    return [[quoted(key[0]), `in.(${rows.map((row) => quotedValue(text(row[key[0]]))).join(",")})`]];
  const each = rows.map(
    (row) => `and(${key.map((name) => `${quoted(name)}.eq.${quotedValue(text(row[name]))}`).join(",")})`,
  );
  return [["or", `(${each.join(",")})`]];
}

/** A value as a filter or a CSV has it. @param {unknown} value */
export const text = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));

/**
 * Rows of an answer. Numbers that JavaScript would round stay as they were written: as texts, and within JSON as raw
 * numbers where the browser has those.
 * @param {string} body
 * @returns {any}
 */
export function parseRows(body) {
  const json = /** @type {any} */ (JSON);
  /** @type {(this: unknown, name: string, value: any, context?: { source?: string }) => any} */
  const exact = (_, value, context) => {
    if (typeof value !== "number" || !context?.source || String(value) === context.source) return value;
    // 1.50 and 1e3 are only written in another way.
    return context.source.replace(/\D/g, "").length > 15 ? (json.rawJSON?.(context.source) ?? context.source) : value;
  };
  const rows = JSON.parse(body, exact);
  for (const row of Array.isArray(rows) ? rows : [rows])
    for (const name in row) if (json.isRawJSON?.(row[name])) row[name] = row[name].rawJSON;
  return rows;
}
