/** Rows of a source by pages: those in view are asked for, a bounded number is kept. Nothing here touches a document. */

import { weight } from "./cells.js";

/** @import { Row, Source } from "../grid.js" */

export const PAGE = 100;
const AT_ONCE = 2;
/** Of pages that are not in view. */
const KEPT = 60;
const KEPT_WEIGHT = 32_000_000;

/** @typedef {{ rows?: readonly Row[], error?: unknown, weight: number, stale: boolean }} Page */

export class Pages {
  /** @type {Map<number, Page>} those used last are last */
  #pages = new Map();
  /** @type {Map<number, AbortController>} */
  #asked = new Map();
  /** @type {number[]} the nearest first */
  #inView = [];
  /** @type {Map<number, { promise: Promise<void>, resolve: () => void }>} */
  #awaited = new Map();
  /** Those asked for before the source grew. @type {Set<number>} */
  #outdated = new Set();
  #weight = 0;
  #ended = false;

  /**
   * @param {Source} source
   * @param {() => void} changed called after each answer
   */
  constructor(source, changed) {
    this.source = source;
    this.changed = changed;
  }

  get busy() {
    return this.#asked.size > 0;
  }

  /** For tests: how much is kept and asked for. */
  get size() {
    return { pages: this.#pages.size, weight: this.#weight, asked: this.#asked.size };
  }

  /**
   * The row, `undefined` while it is not there yet, or null where its page turned out to end before.
   *
   * @param {number} index
   */
  row(index) {
    const rows = this.#pages.get(Math.floor(index / PAGE))?.rows;
    return rows && (rows[index % PAGE] ?? null);
  }

  /** Why the row could not be read, or undefined. @param {number} index */
  error(index) {
    return this.#pages.get(Math.floor(index / PAGE))?.error;
  }

  /**
   * Says what is in view: `from` up to before `to`. Those requests that are for something else are aborted.
   *
   * @param {number} from
   * @param {number} to
   */
  want(from, to) {
    const middle = (from + to - PAGE) / 2 / PAGE;
    this.#inView = [];
    for (let page = Math.floor(from / PAGE); page * PAGE < to; page++) this.#inView.push(page);
    this.#inView.sort((one, other) => Math.abs(one - middle) - Math.abs(other - middle));
    for (const number of this.#inView) {
      const page = this.#pages.get(number);
      if (page) (this.#pages.delete(number), this.#pages.set(number, page));
    }
    for (const [number, request] of this.#asked) if (!this.#isWanted(number)) this.#forget(number, request);
    this.#ask();
  }

  /**
   * Rows in view or not, a page after the other.
   *
   * @param {number} from
   * @param {number} to
   */
  async all(from, to) {
    /** @type {Row[]} */
    const found = [];
    for (let page = Math.floor(from / PAGE); page * PAGE < to; page++) {
      if (!this.#isFresh(page)) {
        let awaited = this.#awaited.get(page);
        if (!awaited) this.#awaited.set(page, (awaited = Promise.withResolvers()));
        this.#ask();
        await awaited.promise;
      }
      const { rows, error } = this.#pages.get(page) ?? {};
      if (!rows) throw error ?? new DOMException("The rows are no longer wanted.", "AbortError");
      found.push(...rows.slice(Math.max(0, from - page * PAGE), to - page * PAGE));
    }
    return found;
  }

  /** Whether all rows are there. @param {number} from @param {number} to */
  has(from, to) {
    for (let page = Math.floor(from / PAGE); page * PAGE < to; page++) if (!this.#pages.get(page)?.rows) return false;
    return true;
  }

  /** @param {number} index @param {Row} row */
  replace(index, row) {
    const page = this.#pages.get(Math.floor(index / PAGE));
    if (page?.rows) page.rows = page.rows.with(index % PAGE, row);
  }

  /** Asks again for the page of a row that could not be read. @param {number} index */
  again(index) {
    this.#drop(Math.floor(index / PAGE));
    this.#ask();
  }

  /** Everything is fetched again; what is in view is shown meanwhile. */
  reload() {
    for (const [number, request] of this.#asked) this.#forget(number, request);
    for (const [number, page] of this.#pages) {
      if (this.#inView.includes(number)) page.stale = true;
      else this.#drop(number);
    }
    this.#ask();
  }

  /** There are more rows than there were: pages that were not full are fetched again. */
  grew() {
    for (const number of this.#asked.keys()) this.#outdated.add(number);
    for (const page of this.#pages.values()) if (page.rows && page.rows.length < PAGE) page.stale = true;
    this.#ask();
  }

  /** Nothing is fetched any more. */
  end() {
    this.#ended = true;
    for (const [number, request] of this.#asked) this.#forget(number, request);
    for (const { resolve } of this.#awaited.values()) resolve();
    this.#awaited.clear();
  }

  #ask() {
    for (const number of [...this.#inView, ...this.#awaited.keys()]) {
      if (this.#ended || this.#asked.size >= AT_ONCE) return;
      if (!this.#isFresh(number) && !this.#asked.has(number)) void this.#fetch(number);
    }
  }

  /** @param {number} number */
  async #fetch(number) {
    const request = new AbortController();
    this.#asked.set(number, request);
    const from = number * PAGE;
    /** @type {Page} */
    let page;
    try {
      const rows = await this.source.rows(from, from + PAGE, request.signal);
      page = { rows, weight: weight(rows), stale: this.#outdated.has(number) && rows.length < PAGE };
    } catch (error) {
      page = { error, weight: 0, stale: false };
    }
    if (request.signal.aborted) return;
    this.#asked.delete(number);
    this.#outdated.delete(number);
    this.#drop(number);
    this.#pages.set(number, page);
    this.#weight += page.weight;
    this.#awaited.get(number)?.resolve();
    this.#awaited.delete(number);
    this.#shrink(number);
    this.#ask();
    this.changed();
  }

  /** Drops those that were not in view for the longest time. @param {number} last has just come */
  #shrink(last) {
    for (const number of this.#pages.keys()) {
      if (this.#pages.size <= KEPT && this.#weight <= KEPT_WEIGHT) return;
      if (number !== last && !this.#inView.includes(number)) this.#drop(number);
    }
  }

  /** @param {number} number */
  #drop(number) {
    this.#weight -= this.#pages.get(number)?.weight ?? 0;
    this.#pages.delete(number);
  }

  /** @param {number} number @param {AbortController} request */
  #forget(number, request) {
    request.abort();
    this.#asked.delete(number);
    this.#outdated.delete(number);
  }

  /** @param {number} number */
  #isFresh(number) {
    return this.#pages.get(number)?.stale === false;
  }

  /** @param {number} number */
  #isWanted(number) {
    return this.#inView.includes(number) || this.#awaited.has(number);
  }
}
