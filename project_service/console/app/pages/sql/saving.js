/** SQL saved as the next migration: in the folder of the service, or as a download. */

import { api, ApiError } from "../../core/api.js";
import { dialog } from "../../core/dialogs.js";
import { html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { complain, notify } from "../../core/notices.js";

/**
 * Ask for the name. `applied`: the SQL has been run on the database.
 * @param {{ database: { stage: string, name: string }, sql: string, applied: boolean, name?: string, signal: AbortSignal }} about
 */
export async function save({ database, sql, applied, name = "", signal }) {
  if (!sql.trim()) return complain(new Error("There is no SQL to save."));
  const path = `/admin/databases/${encodeURIComponent(database.stage)}/${encodeURIComponent(database.name)}/migrations`;
  /** @type {{ folder: string | null, next: string }} */
  let place;
  try {
    place = await api.get(path, { signal });
  } catch (fault) {
    return complain(fault);
  }
  let failure = "";
  await dialog({
    title: "Save as migration",
    signal,
    content: (/** @type {import("../../core/dialogs.js").Shown<void>} */ shown) => {
      /** @param {SubmitEvent} event */
      const submitted = async (event) => {
        event.preventDefault();
        const given = new FormData(/** @type {HTMLFormElement} */ (event.target));
        if (!place.folder) return take(String(given.get("name")));
        const body = { name: given.get("name"), sql, applied: given.get("applied") !== null };
        try {
          const { file } = await api.post(path, body, { signal });
          shown.close();
          notify(`Saved as ${file}.`);
        } catch (fault) {
          failure = fault instanceof ApiError ? fault.message : String(fault);
          shown.update();
        }
      };
      /** @param {string} chosen */
      const take = (chosen) => {
        download(`${place.next}_${chosen}.sql`, sql);
        shown.close();
      };
      return html`<form @submit=${submitted}>
        <div class="dialog-body">
          <label class="field"><span>Name</span>
            <span class="migration-name"><code>${place.next}_</code><input name="name" required pattern="[a-z0-9][a-z0-9_\\-]*" maxlength="80" autocomplete="off" spellcheck="false" value=${name}><code>.sql</code></span>
            <small>Small letters, digits, _ and -.</small></label>
          ${
            place.folder
              ? html`<label class="check"><input type="checkbox" name="applied" ?checked=${applied}><span>It has been run on this database, so record it as applied here</span></label>
                <p class="quiet">In <code><bdi>${place.folder}</bdi></code> on the service's machine; <code>project-service sql --dir</code> applies it elsewhere.</p>`
              : html`<p class="quiet">The setting <code>server.migrations_dir</code> names no folder, so it is downloaded.</p>`
          }
          ${failure ? html`<p role="alert" class="note danger">${icon("alert")}<span>${failure}</span></p>` : nothing}
        </div>
        <footer class="dialog-foot">
          ${
            place.folder
              ? html`<button type="button" @click=${(/** @type {Event} */ event) => {
                  const { form } = /** @type {HTMLButtonElement} */ (event.currentTarget);
                  if (form?.reportValidity()) take(String(new FormData(form).get("name")));
                }}>${icon("download")} Download</button>
                <button class="primary">Save</button>`
              : html`<button class="primary">${icon("download")} Download</button>`
          }
        </footer>
      </form>`;
    },
  });
}

/** @param {string} name @param {string} content */
function download(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content.trimEnd(), "\n"], { type: "application/sql" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
