/** CSV (RFC 4180) as it is read, and its rows as NDJSON. Nothing here touches a document. */

import { kindOf } from "../../ideas/fields.js";

/** @typedef {import("./query.js").Column} Column */
/** @typedef {{ line: number, cells: (string | null)[] }} Record `line` is where it begins, counted from 1. */

/** In characters; of one record. The API takes less. */
const LONGEST = 2_000_000;
const CELL = /(?:"([^"]*(?:""[^"]*)*)"|([^",\r\n][^,\r\n]*)?)(,|\r?\n|$)/y;

/** Reads CSV piece by piece. An empty cell and NULL are null, unless they are in quotes. Raises an error for what is no CSV. */
export class Records {
  #rest = "";
  #line = 1;

  /**
   * The records that are complete with this piece, without empty lines.
   * @param {string} piece
   * @param {boolean} last Whether it is the last one.
   * @returns {Generator<Record>}
   */
  *read(piece, last) {
    const text = this.#rest + piece;
    let at = 0;
    for (let found = recordAt(text, at, last); found; found = recordAt(text, at, last)) {
      const line = this.#line;
      this.#line += text.slice(at, found.end).split("\n").length - 1;
      const isEmpty = /^\r?\n$/.test(text.slice(at, found.end));
      at = found.end;
      if (!isEmpty) yield { line, cells: found.cells };
    }
    this.#rest = text.slice(at);
    if (this.#rest.length > LONGEST || (last && this.#rest))
      throw new Error(`Line ${this.#line} is no CSV: a quote is not closed, or text follows it.`);
  }
}

/**
 * The record that begins there and where it ends; null if it is not complete.
 * @param {string} text
 * @param {number} from
 * @param {boolean} last
 */
function recordAt(text, from, last) {
  if (from === text.length) return null;
  /** @type {(string | null)[]} */
  const cells = [];
  CELL.lastIndex = from;
  for (;;) {
    const found = CELL.exec(text);
    if (!found || (!found[3] && !last)) return null;
    const [, inQuotes, plain, end] = found;
    cells.push(
      inQuotes !== undefined ? inQuotes.replaceAll('""', '"') : plain === undefined || plain === "NULL" ? null : plain,
    );
    if (end !== ",") return { cells, end: CELL.lastIndex };
  }
}

/**
 * Makes NDJSON of CSV, each row on the line that it has in the CSV. So nulls, empty texts and JSON are told apart, as
 * in the API's own CSV they are not.
 * @param {readonly (Column | null)[]} columns Of the cells; null for those that are left out.
 * @returns {TransformStream<string, string>}
 */
export function asNdjson(columns) {
  const records = new Records();
  let isNamed = false;
  let at = 1;
  const convert = (/** @type {string} */ piece, /** @type {boolean} */ last) => {
    let lines = "";
    for (const { line, cells } of records.read(piece, last)) {
      if (isNamed) {
        lines += "\n".repeat(line - at) + objectOf(columns, cells, line);
        at = line;
      }
      isNamed = true;
    }
    return lines;
  };
  return new TransformStream({
    transform: (piece, out) => out.enqueue(convert(piece, false)),
    flush: (out) => out.enqueue(convert("", true)),
  });
}

/**
 * @param {readonly (Column | null)[]} columns
 * @param {readonly (string | null)[]} cells
 * @param {number} line
 */
function objectOf(columns, cells, line) {
  if (cells.length !== columns.length)
    throw new Error(`Line ${line} has ${cells.length} cells, the first one ${columns.length}.`);
  const members = columns.flatMap((column, index) =>
    column ? `${JSON.stringify(column.name)}:${valueOf(column, cells[index], line)}` : [],
  );
  return `{${members.join(",")}}`;
}

/** @param {Column} column @param {string | null} cell @param {number} line */
function valueOf(column, cell, line) {
  // PostgreSQL reads numbers, times and arrays from texts as well.
  if (cell === null || kindOf(column) !== "json") return JSON.stringify(cell);
  try {
    JSON.parse(cell);
  } catch {
    throw new Error(`Line ${line}: ${column.name} is not JSON.`);
  }
  // As it is, so that no number is rounded. Within its texts there are no line breaks.
  return cell.replace(/[\r\n]+/g, " ");
}
