/** Whom rows are read and changed as: with the service key, as anybody, or as a user. */

import { api } from "../../core/api.js";
import { dialog } from "../../core/dialogs.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";

/** @typedef {"service" | "anon" | { id: string, email?: string }} Identity */
/** @typedef {{ id: string, email: string | null }} User */

/** Addresses of users that were chosen here, by their ids. @type {Map<string, string>} */
const known = new Map();

/** @param {string | null} text As it is in an address. @returns {Identity} */
export const identityOf = (text) =>
  text === null ? "service" : text === "anon" ? "anon" : { id: text, email: known.get(text) };

/** @param {Identity} as */
export const nameOf = (as) =>
  as === "service" ? "service" : as === "anon" ? "anon" : (as.email ?? `user ${as.id.slice(0, 8)}`);

/** Find out the address of a user who is named by an id alone, as in a link. @param {Identity} as @param {AbortSignal} signal */
export async function learn(as, signal) {
  if (typeof as === "string" || as.email) return;
  try {
    const { data } = await api.get(`/admin/users/${encodeURIComponent(as.id)}`, { signal });
    known.set(as.id, data.user.email || as.id);
  } catch {
    // What is asked as that user says what is wrong.
  }
}

/**
 * Ask whom. Returns what goes into the address, null for the service, or undefined if nothing was chosen.
 * @param {Identity} as
 * @param {AbortSignal} signal
 */
export const chooseIdentity = (as, signal) => choose("See and change rows as", as, signal);

/** Ask for a user. Returns the id, or undefined if nobody was chosen. @param {AbortSignal} signal */
export const chooseUser = async (signal) => (await choose("Choose a user", null, signal)) ?? undefined;

/**
 * @param {string} title
 * @param {Identity | null} as Whom it is now; null where only a user may be chosen.
 * @param {AbortSignal} signal
 * @returns {Promise<string | null | undefined>}
 */
function choose(title, as, signal) {
  /** @type {User[]} */
  let users = [];
  let why = "Reading users";
  let last = 0;
  /** @param {string} text @param {() => void} update @param {AbortSignal} life */
  const search = async (text, update, life) => {
    const number = ++last;
    try {
      const found = await api.get("/admin/users", { query: { limit: 20, email: text.trim() || null }, signal: life });
      if (number === last)
        [users, why] = [found.data.users, text ? "No user has that in the address." : "There are no users yet."];
    } catch (fault) {
      if (!life.aborted) [users, why] = [[], fault instanceof Error ? fault.message : String(fault)];
    }
    if (!life.aborted) update();
  };
  let begun = false;
  return dialog({
    title,
    signal,
    content: (/** @type {import("../../core/dialogs.js").Shown<string | null>} */ shown) => {
      if (!begun) ((begun = true), void search("", shown.update, shown.signal));
      const choice = (
        /** @type {string | null} */ value,
        /** @type {string} */ name,
        /** @type {string} */ text,
      ) => html`<li><button type="button"
        aria-pressed=${String(value === (as === "service" ? null : as === "anon" ? "anon" : as?.id))} @click=${() => shown.close(value)}>
        ${icon(value === null ? "keys" : value === "anon" ? "users" : "user")}<span><bdi>${name}</bdi>${text ? html`<br><small class="quiet">${text}</small>` : nothing}</span></button></li>`;
      return html`<div class="dialog-body">
        ${
          as === null
            ? nothing
            : html`<ul class="list">
              ${choice(null, "Service", "Passes every policy.")}
              ${choice("anon", "Anon", "Somebody who is not signed in.")}
            </ul>`
        }
        <label class="field"><span>A user</span>
          <input type="search" placeholder="Part of the address" autocomplete="off" autofocus
            @input=${(/** @type {Event} */ event) => search(/** @type {HTMLInputElement} */ (event.target).value, shown.update, shown.signal)}></label>
        <ul class="list">
          ${each(
            users,
            ({ id }) => id,
            ({ id, email }) => (known.set(id, email || id), choice(id, email || id, "")),
          )}
        </ul>
        ${users.length ? nothing : html`<p class="quiet">${why}</p>`}
      </div>`;
    },
  });
}
