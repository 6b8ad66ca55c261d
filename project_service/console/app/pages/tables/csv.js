/** CSV in and out, with progress. */

import { address, ApiError, credentials } from "../../core/api.js";
import { dialog } from "../../core/dialogs.js";
import { bytes, counted, cut } from "../../core/format.js";
import { html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { complain, notify } from "../../core/notices.js";
import { showCode } from "../../ideas/code.js";
import { asNdjson, Records } from "./records.js";

/** @typedef {import("./calls.js").Calls} Calls */
/** @typedef {import("./query.js").Column} Column */

/** How much of a file is looked at, in bytes, and how many of its rows are shown, before it is sent. */
const BEGINNING = 64 * 1024;
const SHOWN = 5;

/** @typedef {{ names: string[], rows: (string | null)[][], columns: (Column | null)[], left: string[] }} Found What a file begins with, and which columns are written or `left` out. */

/**
 * What a file begins with. Raises an error that says why it cannot be written.
 * @param {import("./query.js").Relation} relation
 * @param {File} file
 * @returns {Promise<Found>}
 */
async function look(relation, file) {
  const isWhole = file.size <= BEGINNING;
  const beginning = await file.slice(0, BEGINNING).text();
  /** @type {(string | null)[][]} */
  const records = [];
  for (const { cells } of new Records().read(beginning, isWhole)) if (records.push(cells) > SHOWN) break;
  const [first, ...rows] = records;
  if (!first) throw new Error("The file has no line with the names of columns.");
  const names = first.map((name) => name ?? "");
  const all = names.map((name) => relation.columns.find((one) => one.name === name) ?? null);
  const unknown = names.filter((_, index) => !all[index]);
  if (unknown.length) throw new Error(`${relation.name} has no column ${unknown.join(", ")}. Names are exact.`);
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice !== undefined) throw new Error(`The column ${twice} is there twice.`);
  const columns = all.map((one) => (one?.settable ? one : null));
  const left = names.filter((_, index) => !columns[index]);
  if (left.length === names.length) throw new Error("Each of these columns is made by the database.");
  return { names, rows, columns, left };
}

/**
 * Choose a file and write its rows. Either all are written or none.
 * @param {Calls} calls
 * @param {AbortSignal} signal
 * @returns {Promise<boolean | undefined>} Whether rows were written.
 */
export function importCsv(calls, signal) {
  /** @type {File | null} */
  let file = null;
  /** @type {Found | null} */
  let found = null;
  let merges = false;
  let problem = "";
  /** @type {number | null} Bytes that were sent, while they are. */
  let sent = null;
  let size = 0;
  const { relation, database } = calls;
  const canMerge = () =>
    calls.key.length > 0 &&
    calls.key.every((name) =>
      (found ? found.columns : relation.columns).some((one) => one?.name === name && one.settable),
    );
  const prefer = () => `return=minimal,count=exact${merges && canMerge() ? ",resolution=merge-duplicates" : ""}`;
  const call = () =>
    calls.call("POST", [], {
      headers: { "Content-Type": "application/x-ndjson", Prefer: prefer() },
      file: `${(file?.name ?? "rows").replace(/\.csv$/i, "")}.ndjson`,
    });
  return dialog({
    title: `Import CSV into ${relation.name}`,
    size: "wide",
    signal,
    content: (/** @type {import("../../core/dialogs.js").Shown<boolean>} */ shown) => {
      const choose = async (/** @type {Event} */ event) => {
        const chosen = (file = /** @type {HTMLInputElement} */ (event.target).files?.[0] ?? null);
        [found, problem] = [null, ""];
        try {
          const seen = chosen && (await look(relation, chosen));
          if (file === chosen) found = seen;
        } catch (fault) {
          if (file === chosen) problem = fault instanceof Error ? fault.message : String(fault);
        }
        shown.update();
      };
      const submit = async (/** @type {Event} */ event) => {
        event.preventDefault();
        if (!file || !found || sent !== null) return;
        [sent, size, problem] = [0, 0, ""];
        shown.update();
        try {
          const lines = await rowsOf(file, found.columns, shown.signal);
          size = lines.size;
          const rows = await upload(call(), lines, shown.signal, (done) => ((sent = done), shown.update()));
          notify(
            `${rows === null ? "The rows were" : `${counted(rows, "row")} ${rows === 1 ? "was" : "were"}`} written.`,
          );
          shown.close(true);
        } catch (fault) {
          problem = fault instanceof Error ? fault.message : String(fault);
        }
        sent = null;
        if (shown.element.open) shown.update();
      };
      return html`<form @submit=${submit}>
        <div class="dialog-body">
          <label class="field"><span>File</span><input type="file" accept=".csv,text/csv" required ?disabled=${sent !== null} @change=${choose}>
            <small>The first line names the columns; those left out get their default. An empty cell is null, "" an empty text; NULL without quotes is null too. At most ${bytes(database.max_import_bytes)}.</small></label>
          ${found ? beginningOf(found) : nothing}
          ${
            canMerge()
              ? html`<label class="check"><input type="checkbox" .checked=${merges} @change=${() => ((merges = !merges), shown.update())}><span>Change rows that are there already, by their key</span></label>`
              : nothing
          }
          ${
            sent !== null
              ? html`<label class="field"><span>${!size ? "Reading the file" : sent < size ? `${bytes(sent)} of ${bytes(size)} sent` : "Writing"}</span><progress .max=${size || 1} .value=${sent}></progress></label>`
              : nothing
          }
          ${problem ? html`<p class="note danger" role="alert">${icon("alert")}<bdi>${problem}</bdi></p>` : nothing}
        </div>
        <footer class="dialog-foot">
          <button type="button" class="quiet" @click=${() => showCode(call(), shown.signal)}>${icon("sql")} Code</button>
          <button type="button" @click=${() => shown.close(false)}>Cancel</button>
          <button class="primary" ?disabled=${!found || sent !== null}>Import</button>
        </footer></form>`;
    },
  });
}

/** @param {Found} found */
function beginningOf({ names, rows, left }) {
  const cell = (/** @type {string | null} */ value) =>
    value ? html`<bdi>${cut(value, 60)}</bdi>` : html`<i class="quiet">${value === null ? "null" : '""'}</i>`;
  return html`${left.length ? html`<p class="note">${icon("alert")}<span><bdi>${left.join(", ")}</bdi> ${left.length > 1 ? "are" : "is"} made by the database and left out.</span></p>` : nothing}
    <div class="table-wrap" tabindex="0" role="region" aria-label="First rows"><table class="table">
      <thead><tr>${names.map((name) => html`<th scope="col"><bdi>${name}</bdi></th>`)}</tr></thead>
      <tbody>${rows.map((cells) => html`<tr>${cells.map((value) => html`<td>${cell(value)}</td>`)}</tr>`)}</tbody></table></div>`;
}

/**
 * The rows of a CSV as they are sent.
 * @param {File} file
 * @param {(Column | null)[]} columns
 * @param {AbortSignal} signal
 */
async function rowsOf(file, columns, signal) {
  const text = file
    .stream()
    .pipeThrough(/** @type {any} */ (new TextDecoderStream("utf-8", { fatal: true })), { signal });
  try {
    return await new Response(text.pipeThrough(asNdjson(columns)).pipeThrough(new TextEncoderStream())).blob();
  } catch (fault) {
    throw fault instanceof TypeError ? new Error("The file could not be read; its text has to be UTF-8.") : fault;
  }
}

/**
 * Send rows; fetch does not tell how far it is. Returns how many rows were written, if that was said.
 * @param {import("./calls.js").Call} call
 * @param {Blob} rows
 * @param {AbortSignal} signal
 * @param {(sent: number) => void} progress
 * @returns {Promise<number | null>}
 */
async function upload({ method, path, query, headers, as }, rows, signal, progress) {
  const given = await credentials(as, signal);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, address(path, query));
    for (const [name, value] of Object.entries({ ...headers, ...given })) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded }) => progress(loaded));
    request.addEventListener("load", () => {
      if (request.status < 400) {
        const total = request.getResponseHeader("Content-Range")?.split("/")[1];
        return resolve(total && total !== "*" ? Number(total) : null);
      }
      let error = { message: request.statusText, details: null, code: "" };
      try {
        const body = JSON.parse(request.responseText);
        error = body.error ?? body;
      } catch {
        // A proxy's own answer.
      }
      reject(
        new ApiError(
          request.status,
          error.code,
          [error.message, typeof error.details === "string" ? error.details : ""].filter(Boolean).join(" "),
        ),
      );
    });
    request.addEventListener("error", () =>
      reject(new ApiError(0, "unreachable", "The connection was lost; no row was written.")),
    );
    request.addEventListener("abort", () => reject(new DOMException("", "AbortError")));
    signal.addEventListener("abort", () => request.abort());
    request.send(rows);
  });
}

/**
 * Download everything that the view shows.
 * @param {Calls} calls
 * @param {AbortSignal} signal
 */
export async function exportCsv(calls, signal) {
  const call = calls.exported;
  let size = 0;
  const result = await dialog({
    title: `Export ${calls.relation.name} as CSV`,
    signal,
    content: (/** @type {import("../../core/dialogs.js").Shown<{ content: Blob, rows: number }>} */ shown) => {
      if (!size) {
        size = 1;
        void read(calls, call, shown.signal, (read) => ((size = read), shown.update())).then(
          shown.close,
          (fault) => (complain(fault), shown.close()),
        );
      }
      return html`<div class="dialog-body"><p class="busy" role="status">${size > 1 ? `${bytes(size)} read` : "Reading"}</p></div>
        <footer class="dialog-foot"><button type="button" class="quiet" @click=${() => showCode(call, shown.signal)}>${icon("sql")} Code</button>
          <button type="button" @click=${() => shown.close()}>Cancel</button></footer>`;
    },
  });
  if (!result) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(result.content);
  link.download = `${calls.relation.name}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  notify(`${counted(result.rows, "row")} ${result.rows === 1 ? "was" : "were"} exported to ${link.download}.`);
}

/**
 * The CSV that a call gives, and how many rows it has.
 * @param {Calls} calls
 * @param {import("./calls.js").Call} call
 * @param {AbortSignal} signal
 * @param {(size: number) => void} progress
 */
async function read(calls, call, signal, progress) {
  const answer = await calls.send(call, signal);
  // The browser keeps the pieces outside of the page's memory.
  const parts = [];
  let size = 0;
  let told = 0;
  // Line feeds between rows: those in quotes are in cells, and none is at the end.
  let rows = 0;
  let inQuotes = false;
  const reader = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (answer.body).getReader();
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    parts.push(new Blob([piece.value]));
    size += piece.value.length;
    for (const byte of piece.value)
      if (byte === 34) inQuotes = !inQuotes;
      else if (byte === 10 && !inQuotes) rows++;
    if (performance.now() - told > 200) {
      told = performance.now();
      progress(size);
    }
  }
  return { content: new Blob(parts, { type: "text/csv" }), rows };
}
