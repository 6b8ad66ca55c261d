/**
 * Rows of a table for the grid, by the table API: after the last row of the page before where the table has a primary
 * key and that page was seen, else by their number. Nothing here touches a document.
 *
 *     grid.source = new TableRows({ columns, key: ["id"], order: grid.order, fetchPage })
 *
 * `fetchPage` makes the request. It adds `order` (unless empty), `limit`, `offset` (unless 0), the parameter `and`
 * with the value `after` (unless null), and `Prefer: count=…` (unless null); `total` is what `Content-Range` then says.
 * A status of 416 may be thrown as an error with that `status`.
 *
 * @typedef {object} Asked
 * @property {string} order
 * @property {string | null} after
 * @property {number} offset
 * @property {number} limit
 * @property {"estimated" | "exact" | null} count
 * @property {AbortSignal} signal
 *
 * @typedef {{ rows: readonly Row[], total: number | null }} Page
 */

/** @import { Column, Order, Row } from "./grid.js" */

/** A longer value is not put into an address. */
const LONGEST = 200;

/** A source of the grid. */
export class TableRows {
  /** @type {number | null} */
  count = null;
  exact = false;
  /** @type {Map<number, string>} the filters after which rows begin, by their numbers */
  #after = new Map();

  /**
   * @param {object} about
   * @param {readonly Column[]} about.columns
   * @param {readonly string[]} about.key the columns of the primary key, in their order; none where there is none
   * @param {readonly Order[]} about.order
   * @param {(asked: Asked) => Promise<Page>} about.fetchPage
   */
  constructor({ columns, key, order, fetchPage }) {
    this.columns = columns;
    this.key = key;
    this.order = whole(order, key);
    this.fetchPage = fetchPage;
  }

  /**
   * @param {number} from
   * @param {number} to
   * @param {AbortSignal} signal
   */
  async rows(from, to, signal) {
    const limit = to - from;
    const after = this.#after.get(from) ?? null;
    const count = this.count === null ? "estimated" : null;
    const { rows, total } = await this.#page({ after, offset: after === null ? from : 0, limit, count, signal });
    const end = from + rows.length;
    if (!rows.length && from > 0) await this.#count(signal);
    else if (rows.length < limit) [this.count, this.exact] = [end, true];
    else if (!this.exact) this.count = Math.max(this.count ?? 0, total ?? 0, end + 1);
    const last = rows.at(-1);
    const next = this.key.length && rows.length === limit && last ? afterRow(this.order, this.key, last) : null;
    if (next === null) this.#after.delete(to);
    else this.#after.set(to, next);
    return rows;
  }

  /** An estimate was too high: finds how many rows there are. @param {AbortSignal} signal */
  async #count(signal) {
    const { rows, total } = await this.#page({ after: null, offset: 0, limit: 1, count: "exact", signal });
    this.count = total ?? rows.length;
    this.exact = total !== null;
  }

  /** @param {Omit<Asked, "order">} asked @returns {Promise<Page>} */
  async #page(asked) {
    try {
      return await this.fetchPage({ ...asked, order: orderText(this.order) });
    } catch (error) {
      if (/** @type {{ status?: number }} */ (error)?.status !== 416) throw error;
      return { rows: [], total: null };
    }
  }
}

/** An order in which no two rows are at the same place: the key decides last. @param {readonly Order[]} order @param {readonly string[]} key */
export function whole(order, key) {
  const rest = key.filter((name) => !order.some(({ column }) => column === name));
  return [...order, ...rest.map((column) => ({ column, descending: false }))];
}

/** The parameter `order`. @param {readonly Order[]} order */
export function orderText(order) {
  return order.map(({ column, descending }) => `${quoted(column)}.${descending ? "desc" : "asc"}`).join(",");
}

/**
 * The parameter `and` for the rows that follow `row`, where nulls are the largest values, as PostgreSQL has them; or
 * null if one of the values cannot be written exactly in an address.
 *
 * @param {readonly Order[]} order ends with the key
 * @param {readonly string[]} key
 * @param {Row} row
 */
export function afterRow(order, key, row) {
  /** @type {string[]} */
  const same = [];
  const choices = [];
  for (const { column, descending } of order) {
    const value = /** @type {Record<string, unknown>} */ (row)[column];
    if (!isExact(value)) return null;
    const name = quoted(column);
    const further =
      value === null
        ? descending
          ? [`${name}.not.is.null`]
          : []
        : [`${name}.${descending ? "lt" : "gt"}.${quoted(`${value}`)}`];
    if (value !== null && !descending && !key.includes(column)) further.push(`${name}.is.null`);
    for (const each of further) choices.push(same.length ? `and(${[...same, each].join(",")})` : each);
    same.push(value === null ? `${name}.is.null` : `${name}.eq.${quoted(`${value}`)}`);
  }
  if (choices.length === 1) return `(${choices[0]})`;
  // An index does not serve alternatives; it serves a bound that holds for all of them.
  const [first] = order;
  const value =
    first && key.includes(first.column)
      ? quoted(String(/** @type {Record<string, unknown>} */ (row)[first.column]))
      : null;
  const bound = first && value ? `${quoted(first.column)}.${first.descending ? "lte" : "gte"}.${value},` : "";
  return `(${bound}or(${choices.join(",")}))`;
}

/** Whether the text of a value is the value: JSON's numbers lose digits. @param {unknown} value */
function isExact(value) {
  if (typeof value === "string") return value.length <= LONGEST;
  if (typeof value === "number") return Number.isSafeInteger(value) || String(value).length <= 15;
  return value === null || typeof value === "boolean";
}

/** @param {string} text */
function quoted(text) {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}
