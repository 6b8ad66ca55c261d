/** Requests to the table API for one relation, as somebody. What is shown as code is what is sent. */

import { api, ApiError } from "../../core/api.js";
import { whole } from "../../ideas/rows.js";
import { filtersOf, oneRow, orderOf, orderText, parseRows, quoted, shownOf, theseRows } from "./query.js";

/** @typedef {import("./query.js").Database} Database */
/** @typedef {import("./query.js").Filter} Filter */
/** @typedef {import("./query.js").Relation} Relation */
/** @typedef {import("./query.js").Row} Row */
/** @typedef {import("./identity.js").Identity} Identity */
/** @typedef {import("../../ideas/code.js").Call & { as: Identity, query: Filter[], headers: Record<string, string>, method: string }} Call */

/** So many rows are named in one address. */
const NAMED = 100;
const RETURNED = { Prefer: "return=representation" };

export class Calls {
  /**
   * @param {Database} database
   * @param {Relation} relation
   * @param {URLSearchParams} query The view: filters, order, columns.
   * @param {Identity} as
   */
  constructor(database, relation, query, as) {
    this.database = database;
    this.relation = relation;
    this.as = as;
    this.filters = filtersOf(query);
    this.order = orderOf(query);
    this.shown =
      shownOf(query)?.filter((name) => relation.columns.some((one) => one.name === name)) ?? this.#readable();
  }

  /** The columns that the role was granted, where they are not all: then asking for all is refused. */
  #readable() {
    if (this.as === "service") return null;
    const grants = this.relation.grants.filter(
      ({ role, privilege }) => privilege === "SELECT" && (role === this.role || role === "PUBLIC"),
    );
    if (!grants.length || grants.some(({ columns }) => columns === null)) return null;
    const names = new Set(grants.flatMap(({ columns }) => columns ?? []));
    return this.relation.columns.map(({ name }) => name).filter((name) => names.has(name));
  }

  /** The key, by which rows are changed one by one; none if the role may not read it. */
  get key() {
    const key = this.relation.primary_key;
    const readable = this.#readable();
    return readable && key.some((name) => !readable.includes(name)) ? [] : key;
  }

  /** What is read of each row: the key is needed to change it. @returns {Filter[]} */
  get select() {
    return this.shown ? [["select", [...new Set([...this.shown, ...this.key])].map(quoted).join(",")]] : [];
  }

  /**
   * @param {string} method
   * @param {Filter[]} [query]
   * @param {Partial<Call>} [more]
   * @returns {Call}
   */
  call(method, query = [], { headers = {}, ...more } = {}) {
    const { database, relation, as } = this;
    const profile = method === "GET" || method === "HEAD" ? "Accept-Profile" : "Content-Profile";
    const named = relation.schema === database.schemas[0] ? {} : { [profile]: relation.schema };
    return {
      method,
      path: database.path + encodeURIComponent(relation.name),
      query,
      headers: { ...named, ...headers },
      as,
      ...more,
    };
  }

  /** @param {Call} call @param {AbortSignal} [signal] */
  send({ path, method, query, headers, body, as }, signal) {
    return api.request(path, { method, query, headers, json: body, as, signal });
  }

  /** The rows of a call. @param {Call} call @param {AbortSignal} [signal] @returns {Promise<Row[]>} */
  async rows(call, signal) {
    return parseRows(await (await this.send(call, signal)).text());
  }

  /** The call for a page. @param {Omit<import("../../ideas/rows.js").Asked, "order" | "signal">} asked */
  page({ after, offset, limit, count }) {
    /** @type {[string, string | null][]} */
    const query = [
      ...this.select,
      ...this.filters,
      ["order", orderText(whole(this.order, this.key)) || null],
      ["and", after],
      ["limit", String(limit)],
      ["offset", offset ? String(offset) : null],
    ];
    return this.call("GET", /** @type {Filter[]} */ (query.filter(([, value]) => value !== null)), {
      headers: count ? { Prefer: `count=${count}` } : {},
    });
  }

  /** @param {import("../../ideas/rows.js").Asked} asked */
  async fetchPage(asked) {
    const answer = await this.send(this.page(asked), asked.signal);
    return { rows: parseRows(await answer.text()), total: totalOf(answer) };
  }

  /** How many rows there are that these filters name. @param {Filter[]} filters @param {AbortSignal} [signal] */
  async count(filters, signal) {
    return totalOf(await this.send(this.call("HEAD", filters, { headers: { Prefer: "count=exact" } }), signal)) ?? 0;
  }

  /** The whole row, as it is now. @param {Row} row @param {AbortSignal} [signal] */
  async fresh(row, signal) {
    if (!this.key.length) return row;
    const [found] = await this.rows(this.call("GET", oneRow(this.key, row)), signal);
    if (!found) throw new Error("The row is not there any more.");
    return found;
  }

  /** @param {Row} row @param {Row} changes */
  changing(row, changes) {
    return this.call("PATCH", [...oneRow(this.key, row), ...this.select], { headers: RETURNED, body: changes });
  }

  /** Change a row; returns it as it is then. @param {Row} row @param {Row} changes */
  async change(row, changes) {
    const [changed] = await this.rows(this.changing(row, changes));
    if (!changed)
      throw new ApiError(
        0,
        "unchanged",
        `Nothing was changed: the row is gone, or policies keep ${this.role} from changing it.`,
      );
    return changed;
  }

  /** @param {Row} row */
  adding(row) {
    return this.call("POST", [], { headers: RETURNED, body: row });
  }

  /** @param {Row} row */
  add(row) {
    return this.rows(this.adding(row));
  }

  /**
   * Filters that together name these rows, each short enough for an address; of all rows of the view if null.
   * @param {Row[] | null} rows
   * @returns {Filter[][]}
   */
  named(rows) {
    if (rows === null) {
      if (this.filters.length) return [this.filters];
      // A change of everything has to say that it means everything.
      const any = quoted(this.key[0] ?? this.relation.columns[0].name);
      return [[["or", `(${any}.is.null,${any}.not.is.null)`]]];
    }
    const parts = [];
    for (let at = 0; at < rows.length; at += NAMED) parts.push(theseRows(this.key, rows.slice(at, at + NAMED)));
    return parts;
  }

  /** @param {Filter[]} filters */
  deleting(filters) {
    return this.call("DELETE", filters, { headers: { Prefer: "count=exact" } });
  }

  /** The name of the role that asks. */
  get role() {
    const { anon, authenticated, service } = this.database.roles;
    return this.as === "service" ? service : this.as === "anon" ? anon : authenticated;
  }

  /** The call for everything that the view shows, as CSV. */
  get exported() {
    const query = [
      ...(this.shown ? /** @type {Filter[]} */ ([["select", this.shown.map(quoted).join(",")]]) : []),
      ...this.filters,
    ];
    const order = orderText(whole(this.order, this.key));
    return this.call("GET", order ? [...query, ["order", order]] : query, { headers: { Accept: "text/csv" } });
  }
}

/** What `Content-Range` says of all rows. @param {Response} answer */
export function totalOf(answer) {
  const total = answer.headers.get("Content-Range")?.split("/")[1];
  return total && total !== "*" ? Number(total) : null;
}
