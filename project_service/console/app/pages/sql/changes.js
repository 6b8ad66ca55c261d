/** Forms that change what is there, or take it away. */

import { count, counted } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { check, defaultField, input } from "./fields.js";
import { byUse, readable } from "../tables/words.js";
import {
  alterPolicy,
  changeColumn,
  dropColumn,
  dropPolicy,
  dropTable,
  renameTable,
  revoke,
  setSecurity,
} from "./statements.js";

/** @typedef {import("./forms.js").SqlForm} SqlForm */
/** @typedef {import("../tables/query.js").Relation} Relation */
/**
 * @typedef {object} Change
 * @property {string} title
 * @property {string} action
 * @property {(found: Relation) => string} [actionFor] The same, where it depends on what is there.
 * @property {"columns" | "rights"} [tab] of the table where it is shown.
 * @property {boolean} [typed] Whether the name has to be typed first.
 * @property {boolean} [counts] Whether the number of rows matters.
 * @property {(form: SqlForm, found: Relation) => void} [begin] Fill in what is there.
 * @property {(form: SqlForm, found: Relation) => unknown} fields
 * @property {(form: SqlForm, found: Relation) => string} sql Empty while nothing is changed.
 * @property {(form: SqlForm) => string} said afterwards
 */

/** @type {Record<string, Change>} */
export const CHANGES = {
  "rename-table": {
    title: "Rename the table",
    action: "Rename it",
    begin: (form, { name }) => void (form.given.name = name),
    fields: (form) =>
      form.field("name", "New name", {
        required: true,
        help: "Clients that ask for the old name get an error from then on.",
      }),
    sql: ({ relation, given }) => (given.name && given.name !== relation.name ? renameTable(relation, given.name) : ""),
    said: ({ relation, given }) => `The table ${relation.name} is now called ${given.name}.`,
  },
  "delete-table": {
    title: "Delete the table",
    action: "Delete it",
    typed: true,
    counts: true,
    fields: (form, { referenced_by: back }) => html`
      <p>${form.rows === null ? "All its rows are deleted with it" : form.rows ? html`<b>${counted(form.rows, "row")}</b> ${form.rows === 1 ? "is" : "are"} deleted with it` : "It has no rows"}${back.length ? `, and ${counted(back.length, "foreign key refers", "foreign keys refer")} to it` : ""}. This cannot be undone.</p>
      ${cascading(form, "Also delete views, and the foreign keys of other tables, that depend on it")}
      ${typing(form, form.relation.name)}`,
    sql: ({ relation, given }) => dropTable(relation, given.cascade),
    said: ({ relation }) => `The table ${relation.name} was deleted.`,
  },
  "row-security": {
    title: "Row-level security",
    action: "Switch it on",
    actionFor: ({ row_level_security: security }) => (security === "off" ? "Switch it on" : "Switch it off"),
    tab: "rights",
    fields: (_form, { row_level_security: security, policies }) =>
      security === "off"
        ? html`<p>It is off: whoever has a grant reaches every row. Switched on, they reach only the rows that a policy allows. The table has ${policies.length ? counted(policies.length, "policy", "policies") : "no policy yet, so that is none"}.</p>`
        : html`<p>It is on. Switched off, <b>whoever has a grant reaches every row</b>, whatever ${policies.length ? `its ${counted(policies.length, "policy says", "policies say")}` : "policies say"}.</p>`,
    sql: ({ relation }, { row_level_security: security }) => setSecurity(relation, security === "off"),
    said: ({ relation, found }) =>
      `Row-level security of ${relation.name} is ${found?.row_level_security === "off" ? "on" : "off"}.`,
  },
  "change-column": {
    title: "Change the column",
    action: "Change it",
    tab: "columns",
    begin(form, found) {
      form.added = columnOf(form, found);
    },
    fields: (form, found) => html`
      <div class="form-line">
        ${input("Column: name", "Name", form.added.name, (name) => form.change(form.added, { name }))}
        ${input("Column: type", "Type", form.added.type, (type) => form.change(form.added, { type }), "sql-types")}
        ${found.columns.find((one) => one.name === form.of)?.generated ? nothing : defaultField("Column: default", form.added, false, (text) => form.change(form.added, { default: text }))}
      </div>
      ${check("Required", form.added.required, (required) => form.change(form.added, { required }))}
      <p class="quiet">Another type reads each value anew: what does not fit is refused, and nothing is changed.</p>`,
    sql: (form, found) => (form.added.name ? changeColumn(form.relation, columnOf(form, found), form.added) : ""),
    said: ({ of }) => `The column ${of} was changed.`,
  },
  "delete-column": {
    title: "Delete the column",
    action: "Delete it",
    tab: "columns",
    typed: true,
    counts: true,
    fields: (form) => html`
      <p>What it holds in ${form.rows === null ? "each row" : `${count(form.rows)} ${form.rows === 1 ? "row" : "rows"}`} is deleted. This cannot be undone.</p>
      ${cascading(form, "Also delete policies, views and foreign keys that depend on it")}
      ${typing(form, form.of)}`,
    sql: ({ relation, of, given }) => dropColumn(relation, of, given.cascade),
    said: ({ of }) => `The column ${of} was deleted.`,
  },
  "change-policy": {
    title: "Change the policy",
    action: "Change it",
    tab: "rights",
    begin(form, found) {
      const policy = policyOf(form, found);
      Object.assign(form.given, policy);
      form.roles = new Set(policy.roles);
    },
    fields: (form) => html`${form.field("name", "Name", { required: true })}
      ${form.chooseRoles()}
      ${form.conditions()}
      <p class="quiet">What a policy allows (read, add, change, delete) cannot be changed: for that, delete it and make another.</p>`,
    sql: (form, found) => alterPolicy(form.relation, policyOf(form, found), { ...form.given, roles: [...form.roles] }),
    said: ({ of }) => `The policy ${of} was changed.`,
  },
  "delete-policy": {
    title: "Delete the policy",
    action: "Delete it",
    tab: "rights",
    fields: (_form, { policies, row_level_security: security }) =>
      html`<p>Rows that only this policy allows are no longer reached by those it is for.${policies.length === 1 && security !== "off" ? " It is the last one: then nobody but the service reaches a row." : ""}</p>`,
    sql: ({ relation, of }) => dropPolicy(relation, of),
    said: ({ of }) => `The policy ${of} was deleted.`,
  },
  revoke: {
    title: "Revoke rights",
    action: "Revoke",
    tab: "rights",
    begin: (form, found) => void (form.rights = new Set(grantedTo(form, found))),
    fields: (form, found) =>
      html`<fieldset><legend>What it may no longer do</legend>${each(
        grantedTo(form, found),
        (one) => one,
        (one) =>
          check(readable(one), form.rights.has(one), (on) => {
            if (on) form.rights.add(one);
            else form.rights.delete(one);
            form.update();
          }),
      )}</fieldset>`,
    sql: ({ relation, of, rights }) => (rights.size ? revoke(relation, { roles: [of], privileges: [...rights] }) : ""),
    said: ({ of }) => `The rights of ${of} were revoked.`,
  },
};

/** @param {SqlForm} form @param {Relation} found */
const grantedTo = ({ of }, { grants }) =>
  grants
    .filter((one) => one.role === of)
    .map((one) => one.privilege.toLowerCase())
    .sort(byUse);

/** The column as it is. @param {SqlForm} form @param {Relation} found @returns {import("./statements.js").Column} */
function columnOf({ of }, { columns }) {
  const found = columns.find((one) => one.name === of);
  return {
    name: of,
    type: found?.type ?? "",
    required: !found?.nullable,
    default: found?.default ?? "",
    primary: false,
    unique: false,
    references: null,
  };
}

/** The policy as it is. @param {SqlForm} form @param {Relation} found @returns {import("./statements.js").Policy} */
function policyOf({ of }, { policies }) {
  const found = policies.find((one) => one.name === of);
  return {
    name: of,
    command: (found?.command ?? "all").toLowerCase(),
    roles: found?.roles ?? [],
    using: found?.using ?? "",
    check: found?.check ?? "",
  };
}

/** @param {SqlForm} form @param {string} label */
const cascading = (form, label) => check(label, form.given.cascade, (cascade) => form.set({ cascade }));

/** @param {SqlForm} form @param {string} word */
const typing = (form, word) => form.field("typed", html`Type <code><bdi>${word}</bdi></code> to go on`, { code: true });
