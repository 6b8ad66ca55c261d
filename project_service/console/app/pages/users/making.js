/** Dialogs that make users, or give one another password. */

import { api, ApiError } from "../../core/api.js";
import { dialog } from "../../core/dialogs.js";
import { count } from "../../core/format.js";
import { html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { notify } from "../../core/notices.js";

/**
 * A dialog with a form. `send` gets the fields by name; what it returns is the result, and what it raises is shown.
 * @template T
 * @param {{ title: string, action: string, fields: (wrong: Record<string, string>) => unknown, send: (fields: Record<string, string>, signal: AbortSignal) => Promise<T>, signal: AbortSignal }} about
 * @returns {Promise<T | undefined>}
 */
export function form({ title, action, fields, send, signal }) {
  let [busy, problem] = [false, ""];
  /** @type {Record<string, string>} */
  let wrong = {};
  return dialog({
    title,
    signal,
    content: (/** @type {import("../../core/dialogs.js").Shown<T>} */ shown) => {
      /** @param {SubmitEvent} event */
      const submit = async (event) => {
        event.preventDefault();
        const given = Object.fromEntries(
          [...new FormData(/** @type {HTMLFormElement} */ (event.target))].map(([name, value]) => [
            name,
            String(value),
          ]),
        );
        [busy, problem, wrong] = [true, "", {}];
        shown.update();
        try {
          shown.close(await send(given, shown.signal));
        } catch (fault) {
          if (shown.signal.aborted) return;
          const details = fault instanceof ApiError && typeof fault.details === "object" ? fault.details : null;
          wrong = /** @type {any} */ (details ?? {});
          // Else it stands beside the fields.
          [busy, problem] = [false, details ? "" : fault instanceof Error ? fault.message : String(fault)];
          shown.update();
        }
      };
      return html`<form @submit=${submit}>
        <div class="dialog-body">
          ${fields(wrong)}
          ${problem ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${problem}</bdi></span></p>` : nothing}
        </div>
        <footer class="dialog-foot">
          <button type="button" @click=${() => shown.close()}>Cancel</button>
          <button class="primary" ?disabled=${busy}>${busy ? "Wait…" : action}</button>
        </footer>
      </form>`;
    },
  });
}

/** What is wrong with a field. @param {Record<string, string>} wrong @param {string} name */
export const whyNot = (wrong, name) =>
  wrong[name]
    ? html`<small class="wrong" role="alert"><bdi>${wrong[name].replace(/^./, (letter) => letter.toUpperCase())}</bdi></small>`
    : nothing;

/** @param {Record<string, string>} wrong */
const address = (wrong) => html`<label class="field"><span>E-mail address</span>
  <input name="email" type="text" inputmode="email" required autocomplete="off" spellcheck="false" autofocus aria-invalid=${wrong.email ? "true" : null}>${whyNot(wrong, "email")}</label>`;

/** @param {AbortSignal} signal @returns {Promise<(name: string) => any>} */
async function settingsInForce(signal) {
  const { settings } = await api.get("/admin/settings", { signal });
  return (name) => settings.find((/** @type {any} */ one) => one.name === name)?.value;
}

/**
 * A field for a new password, which can be shown.
 * @param {string} title @param {number} least @param {Record<string, string>} wrong @param {{ required?: boolean, more?: string }} [about]
 */
const password = (
  title,
  least,
  wrong,
  { required = false, more = "" } = {},
) => html`<label class="field"><span>${title}</span>
    <input name="password" type="password" ?required=${required} ?autofocus=${required} autocomplete="new-password" aria-invalid=${wrong.password ? "true" : null}>
    <small>At least ${count(least)} characters.${more}</small>${whyNot(wrong, "password")}</label>
  <label class="check"><input type="checkbox" @change=${(/** @type {any} */ { target }) => (target.form.elements.password.type = target.checked ? "text" : "password")}><span>Show the password</span></label>`;

/** Make a user; the id. @param {AbortSignal} signal */
export const newUser = async (signal) => {
  const least = (await settingsInForce(signal))("auth.password_min_bytes");
  return form({
    title: "New user",
    action: "Make user",
    signal,
    fields: (wrong) => html`${address(wrong)}
      ${password("Password", least, wrong, { more: " Empty: the user sets one by “forgotten password”." })}
      <label class="check"><input type="checkbox" name="confirmed" checked><span>The address is confirmed<br>
        <small class="quiet">Otherwise the user confirms it by an e-mail, where the project asks for that.</small></span></label>`,
    send: async ({ email, password, confirmed }, life) => {
      const body = { email: email.trim(), ...(password && { password }), email_confirmed: confirmed !== undefined };
      const { data } = await api.post("/admin/users", body, { signal: life });
      notify(`Made the user ${data.user.email}.`);
      return /** @type {string} */ (data.user.id);
    },
  });
};

/**
 * Invite somebody by e-mail; the id. Where the project's application is a client of the Supabase family the e-mail leads
 * there, else to the page where passwords are set.
 * @param {AbortSignal} signal
 */
export const invite = (signal) =>
  form({
    title: "Invite somebody",
    action: "Send invitation",
    signal,
    fields: (wrong) => html`${address(wrong)}
      <p class="quiet">Somebody with this address gets an e-mail, by which they accept and choose a password.</p>`,
    send: async ({ email }, life) => {
      const value = await settingsInForce(life);
      const ofClients = value("server.client_paths") && !value("auth.recover_url");
      const answer = await api.post(
        ofClients ? "/auth/v1/invite" : "/admin/invitations",
        { email: email.trim() },
        { signal: life },
      );
      notify(`Invited ${email.trim()}.`);
      return /** @type {string} */ (ofClients ? answer.id : answer.data.user.id);
    },
  });

/**
 * Give a user another password. Whether that was done.
 * @param {string} id
 * @param {string} name
 * @param {AbortSignal} signal
 */
export const newPassword = async (id, name, signal) => {
  const least = (await settingsInForce(signal))("auth.password_min_bytes");
  return form({
    title: "New password",
    action: "Set password",
    signal,
    fields: (
      wrong,
    ) => html`<p>For <b><bdi>${name}</bdi></b>. Every session ends, so that the user has to sign in with it.</p>
      ${password("New password", least, wrong, { required: true })}`,
    send: async ({ password }, life) => {
      await api.patch(`/admin/users/${id}`, { password }, { signal: life });
      notify(`${name} has a new password.`);
      return true;
    },
  });
};
