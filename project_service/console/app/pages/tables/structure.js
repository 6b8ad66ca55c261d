/** Columns, keys and rights of a relation, as they are. */

import { cut } from "../../core/format.js";
import { html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { href } from "../../core/router.js";
import { byUse, readable, titled, without } from "./words.js";

/** @typedef {import("./query.js").Relation} Relation */
/** @typedef {import("./query.js").ForeignKey} ForeignKey */

/**
 * @param {string} title
 * @param {readonly string[]} heads
 * @param {unknown[]} rows
 * @param {unknown} [action] Shown even where there are no rows.
 */
const table = (title, heads, rows, action) =>
  rows.length || action
    ? html`<section><header class="head"><h2>${title}</h2>${action}</header>${rows.length ? nothing : html`<p class="quiet">None.</p>`}<div ?hidden=${!rows.length} class="table-wrap" tabindex="0" role="region" aria-label=${title}><table class="table">
        <thead><tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead><tbody>${rows}</tbody></table></div></section>`
    : nothing;
/** @typedef {(name: string, of?: string) => string} Address of a form, about what within the relation */
/** @param {string} to @param {string} title */
const form = (to, title) => html`<a class="button" href=${to}>${icon("add")} ${title}</a>`;
/** @param {string | null} text */
const code = (text) =>
  text === null ? html`<span class="quiet">–</span>` : html`<code><bdi>${cut(text, 5000)}</bdi></code>`;

/** @param {string} to @param {string} title @param {Parameters<typeof icon>[0]} name */
const act = (to, title, name) =>
  html`<a class="button icon-button" href=${to} aria-label=${title} title=${title}>${icon(name)}</a>`;
const isTable = (/** @type {Relation} */ { kind }) => kind === "table" || kind === "partitioned table";

/**
 * What can be done with the table as a whole.
 * @param {Relation} relation
 * @param {Address} form
 */
export function tableMenu(relation, form) {
  if (!isTable(relation)) return nothing;
  return html`<button type="button" class="icon-button" popovertarget="table-more" aria-label="More for this table" title="More for this table">${icon("more")}</button>
    <div id="table-more" popover class="menu"><div class="list">
      <a href=${form("rename-table")}>${icon("edit")} Rename the table</a>
      <a href=${form("row-security")}>${icon("lock")} Switch row-level security ${relation.row_level_security === "off" ? "on" : "off"}</a>
      <a href=${form("delete-table")}>${icon("remove")} Delete the table</a>
    </div></div>`;
}

/**
 * @param {Relation} relation
 * @param {readonly string[]} place Stage and database first.
 * @param {readonly string[]} exposed
 * @param {import("../../core/router.js").Query} kept What goes along to other tables.
 * @param {Address} address
 */
export function structure(relation, place, exposed, kept, address) {
  const { columns, primary_key: key, references, referenced_by: back, indexes, checks, triggers } = relation;
  /** @param {ForeignKey} one */
  const to = (one) => {
    const name = one.schema === relation.schema ? one.relation : `${one.schema}.${one.relation}`;
    return exposed.includes(one.schema)
      ? html`<a href=${href(["tables", place[0], place[1], one.schema, one.relation], kept)}><bdi>${name}</bdi></a>`
      : html`<bdi>${name}</bdi>`;
  };
  const foreign = (/** @type {ForeignKey} */ one, /** @type {boolean} */ outgoing) => html`<tr>
    <td>${code((outgoing ? one.columns : one.referenced).join(", "))}</td><td>${to(one)}</td><td>${code((outgoing ? one.referenced : one.columns).join(", "))}</td><td>${one.on_delete}</td></tr>`;
  const defined = (/** @type {{ name: string, definition: string }} */ one, /** @type {unknown} */ more) => html`<tr>
    <td><bdi>${one.name}</bdi> ${more}</td><td>${code(one.definition)}</td></tr>`;
  return html`<div class="tables-told">
    ${table(
      "Columns",
      ["Name", "Type", "Null", "Default", "Comment", ...(isTable(relation) ? [""] : [])],
      columns.map(
        (one) => html`<tr>
          <td><bdi>${one.name}</bdi> ${key.includes(one.name) ? html`<span class="badge accent">primary key</span>` : nothing}</td>
          <td>${code(one.type)}${one.enum ? html`<br><small class="quiet"><bdi class="told">${cut(one.enum.join(", "), 1000)}</bdi></small>` : nothing}</td>
          <td>${one.nullable ? "may be null" : html`<span class="quiet">never</span>`}</td>
          <td>${one.generated ? html`<small>generated ${code(one.generated)}</small>` : code(one.default)}</td>
          <td><bdi class="told">${cut(one.comment ?? "", 1000)}</bdi></td>
          ${
            isTable(relation)
              ? html`<td class="actions">${act(address("change-column", one.name), `Change column ${cut(one.name, 100)}`, "edit")}${act(address("delete-column", one.name), `Delete column ${cut(one.name, 100)}`, "remove")}</td>`
              : nothing
          }</tr>`,
      ),
      relation.kind.includes("table") ? form(address("new-column"), "New column") : nothing,
    )}
    ${table(
      "References",
      ["Columns", "Table", "Its columns", "On delete"],
      references.map((one) => foreign(one, true)),
    )}
    ${table(
      "Referenced by",
      ["Columns", "Table", "Its columns", "On delete"],
      back.map((one) => foreign(one, false)),
    )}
    ${table(
      "Indexes",
      ["Name", "Definition"],
      indexes.map((one) =>
        defined(one, [
          one.unique && !one.primary ? html`<span class="badge">unique</span>` : nothing,
          one.valid ? nothing : html`<span class="badge danger">invalid</span>`,
        ]),
      ),
    )}
    ${table(
      "Checks",
      ["Name", "Definition"],
      checks.map((one) => defined(one, nothing)),
    )}
    ${table(
      "Triggers",
      ["Name", "Definition"],
      triggers.map((one) => defined(one, one.enabled ? nothing : html`<span class="badge warn">off</span>`)),
    )}
    ${relation.definition ? html`<section><h2>Query</h2><pre class="code" tabindex="0" dir="ltr">${cut(relation.definition, 100_000)}</pre></section>` : nothing}
  </div>`;
}

/**
 * @param {Relation} relation
 * @param {Address} address
 * @param {import("./query.js").Database["roles"]} named The roles that requests take.
 */
export function rights(relation, address, named) {
  const { rights, policies, grants, row_level_security: security } = relation;
  const roles = [...new Set(grants.map(({ role }) => role))];
  return html`<div class="tables-told">
    <section><h2>In plain words</h2>
      <p>${rights.summary} ${security && isTable(relation) ? html`<a class="button" href=${address("row-security")}>${icon("lock")} Switch it ${security === "off" ? "on" : "off"}</a>` : nothing}</p>
      <ul class="card tables-rights">${rights.roles.map(({ role, sentences }) =>
        sentences.map((one) => html`<li><bdi><b>${titled(role, named)}</b>${one.slice(role.length)}</bdi></li>`),
      )}</ul>
    </section>
    ${policies.flatMap((policy) =>
      without(policy, grants).map(
        ({
          role,
          privileges,
        }) => html`<div class="note warn">${icon("alert")}<p>The policy “<bdi>${cut(policy.name, 100)}</bdi>” has no effect until <bdi>${role}</bdi> has a grant.</p>
        <a class="button" href=${`${address("new-grant", role)}&for=${privileges.join(",")}`} aria-label=${`Grant ${role} what the policy ${cut(policy.name, 100)} needs`}>Grant</a></div>`,
      ),
    )}
    ${table(
      "Policies",
      ["Name", "For", "Roles", "Existing rows (using)", "Written rows (check)", ""],
      policies.map(
        (
          one,
        ) => html`<tr><td><bdi>${one.name}</bdi> ${one.permissive ? nothing : html`<span class="badge warn">restrictive</span>`}${one.comment ? html`<br><small class="quiet told"><bdi>${cut(one.comment, 1000)}</bdi></small>` : nothing}</td>
          <td>${one.command === "ALL" ? "everything" : readable(one.command)}</td><td><bdi>${one.roles.map((role) => titled(role, named)).join(", ")}</bdi></td><td>${code(one.using)}</td><td>${code(one.check)}</td>
          <td class="actions">${act(address("change-policy", one.name), `Change policy ${cut(one.name, 100)}`, "edit")}${act(address("delete-policy", one.name), `Delete policy ${cut(one.name, 100)}`, "remove")}</td></tr>`,
      ),
      security === null ? nothing : form(address("new-policy"), "New policy"),
    )}
    ${table(
      "Grants",
      ["Role", "May", ""],
      roles.map((role) => {
        const of = grants
          .filter((one) => one.role === role)
          .sort((one, other) => byUse(one.privilege, other.privilege));
        return html`<tr><td><bdi>${titled(role, named)}</bdi></td><td><bdi>${of.map(({ privilege, columns }) => (columns ? `${readable(privilege)} (${columns.join(", ")})` : readable(privilege))).join(", ")}</bdi></td>
          <td class="actions"><a class="button" href=${address("revoke", role)} aria-label=${`Revoke rights of ${role}`}>Revoke</a></td></tr>`;
      }),
      form(address("new-grant"), "Grant rights"),
    )}
  </div>`;
}
