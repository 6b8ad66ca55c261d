/** Tables: what the databases hold, who may do what with it, and the rows. */

import { api } from "../core/api.js";
import { commands } from "../core/commands.js";
import { about, bytes, counted, cut } from "../core/format.js";
import { each, html, nothing } from "../core/html.js";
import { icon } from "../core/icons.js";
import { go, href } from "../core/router.js";
import { define, Page } from "../core/view.js";
import { showCode } from "../ideas/code.js";
import "./tables/rows.js";
import { rights, structure, tableMenu } from "./tables/structure.js";
import { chooseIdentity, identityOf, learn, nameOf } from "./tables/identity.js";
import { OWN } from "./tables/query.js";

/** @typedef {import("./tables/query.js").Database} Database */
/** @typedef {import("./tables/query.js").Relation} Relation */
/** @typedef {{ schema: string, name: string, kind: string, rows: number | null, bytes: number | null, comment: string | null, row_level_security: Relation["row_level_security"], has_primary_key: boolean }} Listed */

const TABS = /** @type {const} */ ({ rows: "Rows", columns: "Columns and keys", rights: "Rights" });
/** As many are shown at once: with more, people type a part of the name. */
const MOST = 200;

class TablesPage extends Page {
  /** @type {Database[] | null} */
  databases = null;
  /** @type {Listed[] | null} */
  relations = null;
  /** @type {Relation | null} */
  relation = null;
  search = "";
  /** What `relations` and `relation` are of. */
  #of = "";
  #at = "";

  connected() {
    commands.add(
      {
        title: "Find a table",
        keys: "/",
        run: () => /** @type {HTMLElement | null} */ (this.querySelector(".side input"))?.focus(),
      },
      this.signal,
    );
  }

  async routed() {
    this.databases ??=
      (await this.run((signal) => api.get("/admin/databases", { signal }), "databases"))?.databases ?? null;
    if (!this.databases?.length) return this.update();
    void learn(identityOf(this.route.query.get(`${OWN}as`)), this.signal).then(() => this.update());
    const [stage, name, schema, relation] = this.parts;
    if (!this.database) return this.update();
    const of = `${stage}/${name}`;
    if (this.#of !== of) {
      [this.#of, this.relations] = [of, null];
      await this.reload();
    }
    const at = JSON.stringify([of, schema, relation]);
    if (!relation && this.relations) this.failure = null;
    if (relation && this.#at !== at) {
      [this.#at, this.relation] = [at, null];
      await this.reloadRelation();
    }
    this.update();
  }

  /** Stage, database, schema and relation; without any, those of the first database. */
  get parts() {
    const [first] = this.databases ?? [];
    return this.route.parts.length || !first ? this.route.parts : [first.stage, first.name];
  }

  get database() {
    const [stage, name] = this.parts;
    return this.databases?.find((one) => one.stage === stage && one.name === name);
  }

  get path() {
    return `/admin/databases/${this.parts.slice(0, 2).map(encodeURIComponent).join("/")}`;
  }

  async reload() {
    const found = await this.run((signal) => api.get(this.path, { signal }), "relations");
    if (found) this.relations = found.relations;
  }

  async readAgain() {
    await this.reload();
    if (this.parts.length > 3) await this.reloadRelation();
  }

  get relationPath() {
    return `${this.path}/relations/${this.parts.slice(2, 4).map(encodeURIComponent).join("/")}`;
  }

  async reloadRelation() {
    const found = await this.run((signal) => api.get(this.relationPath, { signal }), "relation");
    if (found) this.relation = found;
  }

  /** Whom rows are shown as. */
  get as() {
    return identityOf(this.route.query.get(`${OWN}as`));
  }

  async chooseWhom() {
    const chosen = await chooseIdentity(this.as, this.signal);
    if (chosen !== undefined) go(this.address({ [`${OWN}as`]: chosen }));
  }

  #whom() {
    const { as } = this;
    return html`<button type="button" class="tables-as" aria-pressed=${String(as !== "service")} @click=${() => this.chooseWhom()}>${icon("view")}<bdi>as <bdi>${nameOf(as)}</bdi></bdi></button>`;
  }

  /** What goes along from table to table: whom they are shown as. */
  get kept() {
    return { [`${OWN}as`]: this.route.query.get(`${OWN}as`) };
  }

  /** The present address with other parameters. @param {Record<string, string | null>} changed */
  address(changed) {
    const query = new URLSearchParams(this.route.query);
    for (const [name, value] of Object.entries(changed)) {
      if (value === null) query.delete(name);
      else query.set(name, value);
    }
    return href(["tables", ...this.parts], query);
  }

  /** The address of a form that makes something, shows its SQL first, and knows what is looked at here. @param {string} name @param {string} [of] */
  form(name, of) {
    const [stage, database, schema, relation] = this.parts;
    return href(["sql", name], {
      database: `${stage}/${database}`,
      schema: schema ?? this.database?.schemas[0],
      relation,
      of,
    });
  }

  template() {
    const chosen = this.parts.length > 3;
    return html`<div class=${chosen ? "panes chosen" : "panes"}>
      <nav class="side" aria-label="Tables and views">${this.#side()}</nav>
      <div class="main">${this.#main(chosen)}</div>
    </div>`;
  }

  /** The relations with what is searched for in their names. */
  get found() {
    const words = this.search.toLowerCase().split(/\s+/).filter(Boolean);
    return (this.relations ?? []).filter(({ schema, name }) =>
      words.every((word) => `${schema}.${name}`.toLowerCase().includes(word)),
    );
  }

  #side() {
    const { databases, database, relations } = this;
    if (!databases) return this.failure ? nothing : html`<p class="busy">Reading the databases</p>`;
    const { found, as } = this;
    const shown = found.slice(0, MOST);
    const schemas = (database?.schemas ?? []).filter((name) => shown.some(({ schema }) => schema === name));
    return html`
      ${
        databases.length > 1
          ? html`<label class="field"><span>Database</span><select @change=${(/** @type {Event} */ event) => go(/** @type {HTMLSelectElement} */ (event.target).value)}>
            ${databases.map((one) => html`<option value=${href(["tables", one.stage, one.name], this.kept)} .selected=${one === database}>${one.stage}/${one.name}</option>`)}
          </select></label>`
          : nothing
      }
      ${
        as === "service"
          ? nothing
          : html`<div class="note warn tables-whom">${icon("view")}<span>You look as <bdi>${nameOf(as)}</bdi>.</span>
            <button type="button" @click=${() => this.chooseWhom()}>Change</button></div>`
      }
      <div class="tables-find">
        <input type="search" aria-label="Find a table" placeholder="Find a table" .value=${this.search}
          @input=${(/** @type {Event} */ event) => ((this.search = /** @type {HTMLInputElement} */ (event.target).value), this.update())}>
        ${
          database
            ? html`<a class="button icon-button" href=${this.form("new-table")} aria-label="New table" title="New table">${icon("add")}</a>
              <button type="button" class="icon-button" aria-label="Read the tables again" title="Read the tables again" @click=${() => this.readAgain()}>${icon("refresh")}</button>`
            : nothing
        }
      </div>
      ${schemas.map(
        (schema) => html`<section class="tables-schema">
          ${schemas.length > 1 || (database?.schemas.length ?? 0) > 1 ? html`<h3 class="quiet"><bdi>${schema}</bdi></h3>` : nothing}
          <ul class="list">${each(
            shown.filter((one) => one.schema === schema),
            ({ name }) => name,
            (one) => this.#listed(one),
          )}</ul>
        </section>`,
      )}
      ${found.length > MOST ? html`<p class="quiet">${counted(found.length - MOST, "more table", "more")}: type a part of the name.</p>` : nothing}
      ${relations && !found.length && this.search ? html`<p class="quiet">No table has that in its name.</p>` : nothing}
      ${database && !relations && !this.failure ? html`<p class="busy">Reading the tables</p>` : nothing}`;
  }

  /** @param {Listed} one */
  #listed({ schema, name, kind, rows, bytes: size, row_level_security: security }) {
    const [stage, database, ...here] = this.parts;
    const current = here[0] === schema && here[1] === name;
    const title = [kind, rows !== null && `about ${counted(rows, "row")}`, size !== null && bytes(size)]
      .filter(Boolean)
      .join(", ");
    return html`<li><a href=${href(["tables", stage, database, schema, name], this.kept)} aria-current=${current ? "page" : null} title=${title}>
      ${icon(kind.includes("view") ? "view" : "tables")}<span class="clip">${name}</span>
      ${security === "off" ? html`<span class="badge warn" title="Row-level security is off: grants alone count">no RLS</span>` : nothing}
      <span class="end">${rows === null ? "" : about(rows)}</span></a></li>`;
  }

  /** @param {boolean} chosen */
  #main(chosen) {
    const { databases, database, relations, relation, failure } = this;
    if (failure && !(chosen && relation))
      return html`<div class="empty" role="alert"><p>${failure.message}</p>
        <button type="button" @click=${() => ((this.#of = this.#at = ""), this.routed())}>Try again</button></div>`;
    if (databases && !databases.length)
      return html`<div class="empty">${icon("tables")}<h2>No database</h2><p>The settings name none for the table API: add <code>[stages.dev.databases.main]</code>.</p></div>`;
    if (databases && !database)
      return html`<div class="empty"><h2>No such database</h2><p>The settings name no database <bdi>${this.parts.slice(0, 2).join("/")}</bdi>.</p></div>`;
    if (relations && !relations.length)
      return html`<div class="empty">${icon("tables")}<h2>No tables yet</h2><p>Tables and views of the schema <bdi>${database?.schemas.join(", ")}</bdi> are shown here.</p>
        <a class="button primary" href=${this.form("new-table")}>${icon("add")} New table</a></div>`;
    if (!chosen) return relations ? this.#all() : html`<p class="busy page">Reading the tables</p>`;
    return relation && database ? this.#relation(database, relation) : html`<p class="busy page">Reading the table</p>`;
  }

  /** What the database holds, at a glance. */
  #all() {
    const [stage, database] = this.parts;
    const several = (this.database?.schemas.length ?? 0) > 1;
    return html`<div class="page">
      <header class="head"><h1>Tables of <bdi>${stage}/${database}</bdi></h1><a class="button primary" href=${this.form("new-table")}>${icon("add")} New table</a>${this.#whom()}</header>
      <div class="table-wrap" tabindex="0" role="region" aria-label="All tables and views"><table class="table">
        <thead><tr><th scope="col">Name</th><th scope="col" class="number">Rows, about</th><th scope="col" class="number">Size</th>
          <th scope="col">Row-level security</th><th scope="col">Comment</th></tr></thead>
        <tbody>${each(
          this.found.slice(0, MOST),
          ({ schema, name }) => `${schema}.${name}`,
          (
            one,
          ) => html`<tr><td><a href=${href(["tables", stage, database, one.schema, one.name], this.kept)}><bdi>${several ? `${one.schema}.${one.name}` : one.name}</bdi></a>
              ${one.kind === "table" ? nothing : html`<span class="badge">${one.kind}</span>`} ${one.has_primary_key || one.kind.includes("view") ? nothing : html`<span class="badge warn">no primary key</span>`}</td>
            <td class="number">${one.rows === null ? "" : about(one.rows)}</td><td class="number">${one.bytes === null ? "" : bytes(one.bytes)}</td>
            <td>${one.row_level_security === null ? "" : html`<span class=${one.row_level_security === "off" ? "badge warn" : "badge good"}>${one.row_level_security}</span>`}</td>
            <td class="tables-comment"><bdi>${cut(one.comment ?? "", 200)}</bdi></td></tr>`,
        )}</tbody></table></div>
    </div>`;
  }

  /**
   * @param {Database} database
   * @param {Relation} relation
   */
  #relation(database, relation) {
    const tab = this.route.query.get(`${OWN}tab`) ?? "rows";
    const { as } = this;
    const security = relation.row_level_security;
    const listed = this.relations?.find(({ schema, name }) => schema === relation.schema && name === relation.name);
    return html`<div class="tables-relation">
      <header class="head">
        <a class="icon-button button tables-back" href=${href(["tables", ...this.parts.slice(0, 2)], this.kept)} aria-label="All tables" title="All tables">${icon("back")}</a>
        <h1 class="clip">${relation.name}</h1>
        ${relation.kind === "table" ? nothing : html`<span class="badge">${relation.kind}</span>`}
        ${
          security === null
            ? nothing
            : html`<span class=${security === "off" ? "badge warn" : "badge good"}>${security === "off" ? "RLS off" : security === "on" ? "RLS on" : "RLS forced"}</span>`
        }
        ${listed && listed.bytes !== null ? html`<span class="quiet small">${bytes(listed.bytes)}</span>` : nothing}
        ${
          tab === "rows"
            ? nothing
            : html`<button type="button" class="quiet tables-code" @click=${() => showCode({ path: this.relationPath }, this.signal)}>${icon("sql")} Code</button>`
        }
        ${this.#whom()}
        ${tableMenu(relation, (name, of) => this.form(name, of))}
      </header>
      ${relation.comment ? html`<p class="quiet told"><bdi>${cut(relation.comment, 1000)}</bdi></p>` : nothing}
      <nav class="tabs" aria-label="Of this table">
        ${Object.entries(TABS).map(([name, title]) => html`<a href=${this.address({ [`${OWN}tab`]: name === "rows" ? null : name })} aria-current=${name === tab ? "page" : null}>${title}</a>`)}
      </nav>
      ${
        tab === "columns"
          ? structure(relation, this.parts, database.schemas, this.kept, (name, of) => this.form(name, of))
          : tab === "rights"
            ? rights(relation, (name, of) => this.form(name, of), database.roles)
            : html`<ps-table-rows .database=${database} .relation=${relation} .route=${this.route} .as=${as}></ps-table-rows>`
      }
    </div>`;
  }
}
define("ps-tables", TablesPage);
