/** One row in a panel: all of its columns, what it refers to and what refers to it; or a new one. */

import { ApiError } from "../../core/api.js";
import { dialog } from "../../core/dialogs.js";
import { cut } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { notify } from "../../core/notices.js";
import { href } from "../../core/router.js";
import { showCode } from "../../ideas/code.js";
import "../../ideas/fields.js";
import { chooseUser } from "./identity.js";
import { quoted, text } from "./query.js";

/** @typedef {import("./calls.js").Calls} Calls */
/** @typedef {import("./query.js").Row} Row */
/** @typedef {import("./query.js").Filter} Filter */

/**
 * The row that a foreign key leads to, or those that lead here, as an address; null if part of the key is null.
 * @param {Calls} calls
 * @param {import("./query.js").ForeignKey} key
 * @param {Row} row
 * @param {boolean} back
 */
export function related({ database, as }, key, row, back = false) {
  const [here, there] = back ? [key.referenced, key.columns] : [key.columns, key.referenced];
  if (!database.schemas.includes(key.schema) || here.some((name) => row[name] === null || row[name] === undefined))
    return null;
  const filters = there.map((name, index) => /** @type {Filter} */ ([quoted(name), `eq.${text(row[here[index]])}`]));
  const own = as === "service" ? [] : [/** @type {Filter} */ (["@as", as === "anon" ? "anon" : as.id])];
  return href(["tables", database.stage, database.name, key.schema, key.relation], [...filters, ...own]);
}

/**
 * @param {Calls} calls
 * @param {Row | null} row Null for a new one.
 * @param {{ signal: AbortSignal, column?: string }} about `column` is the one to begin with.
 * @returns {Promise<boolean | undefined>} Whether something was written.
 */
export async function showRow(calls, row, { signal, column }) {
  const { relation } = calls;
  const adds = row === null;
  // Without what objects have by themselves: a column may be called constructor.
  const present = adds ? Object.create(null) : await calls.fresh(row, signal);
  const writes = adds
    ? relation.changes.includes("insert")
    : relation.changes.includes("update") && calls.key.length > 0;
  let problem = "";
  let busy = false;
  /** How many rows were added before this one, with "Add another". */
  let added = 0;
  // The service is nobody.
  const needsUser = (/** @type {import("./query.js").Column} */ one) =>
    adds && calls.as === "service" && /\bauth\.uid\(\)/.test(one.default ?? "");
  const isUser = (/** @type {import("./query.js").Column} */ one) =>
    (one.base_type === "uuid" && needsUser(one)) ||
    relation.references.some(
      ({ schema, relation: to, columns }) => schema === "auth" && to === "users" && columns.join() === one.name,
    );
  const title = adds
    ? `New row of ${relation.name}`
    : calls.key.length
      ? `${relation.name}: ${calls.key.map((name) => `${name} ${cut(text(present[name]), 60)}`).join(", ")}`
      : `Row of ${relation.name}`;
  const written = await dialog({
    title,
    size: "side",
    signal,
    content: (/** @type {import("../../core/dialogs.js").Shown<boolean>} */ shown) => {
      const fields = () =>
        /** @type {import("../../ideas/fields.js").Field[]} */ ([...shown.element.querySelectorAll("ps-field")]);
      const read = () => {
        /** @type {Row} */
        const changes = Object.create(null);
        let first = null;
        for (const field of fields()) {
          try {
            if (field.state === "default" && needsUser(field.column) && !field.column.nullable) {
              field.complain("As the service auth.uid() is empty: choose a user.");
              first ??= field;
              continue;
            }
            const value = field.read();
            if (value !== undefined && (adds || field.changed)) changes[field.column.name] = value;
          } catch {
            first ??= field;
          }
        }
        first?.focus();
        return first ? null : changes;
      };
      const save = async (another = false) => {
        const changes = read();
        if (!changes || busy) return;
        if (!adds && !Object.keys(changes).length) return shown.close(false);
        [busy, problem] = [true, ""];
        shown.update();
        try {
          await (adds ? calls.add(changes) : calls.change(present, changes));
          notify(adds ? "The row was added." : "The row was changed.");
          if (!another) return shown.close(true);
          added++;
          shown.update();
          fields()[0]?.focus();
        } catch (fault) {
          const details = fault instanceof ApiError && typeof fault.details === "string" ? ` ${fault.details}` : "";
          problem = `${fault instanceof Error ? fault.message : fault}${details}`;
          const named = /column "([^"]+)"|\(([^()]+)\)=/.exec(problem);
          const field = fields().find((one) => one.column.name === (named?.[1] ?? named?.[2]));
          if (field) {
            field.complain(problem);
            field.focus();
            problem = "";
          }
        }
        busy = false;
        if (shown.element.open) shown.update();
      };
      const code = () => {
        const changes = read();
        if (changes) void showCode(adds ? calls.adding(changes) : calls.changing(present, changes), shown.signal);
      };
      const choose = async (/** @type {string} */ name) => {
        const user = await chooseUser(shown.signal);
        if (user)
          fields()
            .find(({ column: { name: other } }) => other === name)
            ?.type(user);
      };
      const back = adds
        ? []
        : relation.referenced_by.map((key) => ({ key, to: related(calls, key, present, true) })).filter(({ to }) => to);
      return html`<form novalidate @submit=${(/** @type {Event} */ event) => (event.preventDefault(), save())}>
        <div class="dialog-body tables-row">
          ${each(
            relation.columns,
            ({ name }) => `${added} ${name}`,
            (one) => {
              const key = relation.references.find(({ columns }) => columns[0] === one.name);
              const to = !adds && key ? related(calls, key, present) : null;
              return html`<div class="field">
              <span><bdi>${one.name}</bdi> <small class="quiet"><bdi>${one.type}</bdi></small>
                ${to ? html`<a class="tables-follow" href=${to} @click=${() => shown.close(false)}>${icon("forward")}<bdi>${key?.relation}</bdi></a>` : nothing}</span>
              ${
                writes && one.settable
                  ? html`<ps-field .column=${one} .adds=${adds} .value=${present[one.name]} ?autofocus=${one.name === column}></ps-field>`
                  : html`<pre class="tables-value"><bdi>${adds ? "generated" : present[one.name] === null ? "null" : cut(text(present[one.name]), 20_000)}</bdi></pre>`
              }
              ${
                writes && one.settable && isUser(one)
                  ? html`<div class="tables-user">${needsUser(one) ? html`<small>As the service auth.uid() is empty: choose a user.</small>` : nothing}
                    <button type="button" aria-label=${`Choose a user: ${one.name}`} @click=${() => choose(one.name)}>${icon("user")} Choose a user</button></div>`
                  : nothing
              }
              ${one.comment ? html`<small class="told"><bdi>${cut(one.comment, 1000)}</bdi></small>` : nothing}
            </div>`;
            },
          )}
          ${
            back.length
              ? html`<section><h3>Rows that refer to it</h3><ul class="list">${back.map(
                  ({ key, to }) =>
                    html`<li><a href=${to} @click=${() => shown.close(false)}>${icon("forward")}<bdi>${key.relation}</bdi> <small class="quiet"><bdi>${key.columns.join(", ")}</bdi></small></a></li>`,
                )}</ul></section>`
              : nothing
          }
        </div>
        ${problem ? html`<p class="note danger tables-problem" role="alert">${icon("alert")}<bdi>${problem}</bdi></p>` : nothing}
        ${
          writes
            ? html`<footer class="dialog-foot">
              <button type="button" class="quiet" @click=${code}>${icon("sql")} Code</button>
              <button type="button" @click=${() => shown.close(false)}>Cancel</button>
              ${adds ? html`<button type="button" ?disabled=${busy} @click=${() => save(true)}>Add another</button>` : nothing}
              <button class="primary" ?disabled=${busy}>${busy ? "Saving…" : adds ? "Add row" : "Save"}</button></footer>`
            : nothing
        }
      </form>`;
    },
  });
  return written || added > 0;
}
