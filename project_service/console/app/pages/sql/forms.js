/**
 * Forms for a table, a column, a policy and a grant: each shows the SQL that it makes before that is run.
 *
 * Addresses: `#/sql/new-table?database=dev/main&schema=public`, and `new-column`, `new-policy` and `new-grant` with
 * `relation=notes` besides. Those that change what is there (changes.js) have its name as `of`.
 */

import { commands } from "../../core/commands.js";
import { cut } from "../../core/format.js";
import { api } from "../../core/api.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { href } from "../../core/router.js";
import { define, View } from "../../core/view.js";
import { NO_NAMES } from "../../ideas/editor.js";
import { qualified } from "../../ideas/sql.js";
import { ACCESS, addColumn, createPolicy, createTable, grant, isIdentity, TYPES } from "./statements.js";
import { CHANGES } from "./changes.js";
import { check, defaultField, input, options, picker, value } from "./fields.js";
import { save } from "./saving.js";

/** @typedef {import("./statements.js").Column} Column */
/** @typedef {import("../sql.js").Database} Database */

/**
 * What each form makes, what it says afterwards, and where that is shown.
 * @type {Record<string, { title: string, action: string, tab?: "columns" | "rights", said: (form: SqlForm) => string }>}
 */
export const NEW = {
  "new-table": {
    title: "New table",
    action: "Make the table",
    said: ({ given }) => `The table ${given.name} was made.`,
  },
  "new-column": {
    title: "New column",
    action: "Add the column",
    tab: "columns",
    said: ({ added }) => `The column ${added.name} was added.`,
  },
  "new-policy": {
    title: "New policy",
    action: "Make the policy",
    tab: "rights",
    said: ({ given }) => `The policy ${given.name} was made.`,
  },
  "new-grant": {
    title: "Grant rights",
    action: "Grant",
    tab: "rights",
    said: ({ given }) => `The rights on ${given.relation} were granted.`,
  },
};
/** With those that change what is there. */
export const FORMS = { ...NEW, ...CHANGES };
const SHOW = /** @type {const} */ ({ columns: "Show its columns", rights: "Show its rights", rows: "Show the table" });
const COMMANDS = /** @type {const} */ ({
  all: "everything",
  select: "reading",
  insert: "adding",
  update: "changing",
  delete: "deleting",
});
const RIGHTS = /** @type {const} */ ({ select: "Read", insert: "Add", update: "Change", delete: "Delete" });
const DELETED = /** @type {const} */ ({
  "": "refuse that",
  cascade: "delete this row too",
  "set null": "set this to null",
});
const ADVICE = /** @type {const} */ ({
  custom: { title: "Empty", policy: null },
  own: {
    title: "Signed-in users: only their own rows",
    policy: {
      name: "Own rows",
      command: "all",
      roles: ["authenticated"],
      using: "owner = auth.uid()",
      check: "owner = auth.uid()",
    },
  },
  read: {
    title: "Anyone, even not signed in: read",
    policy: {
      name: "Everybody may read",
      command: "select",
      roles: ["anon", "authenticated"],
      using: "true",
      check: "",
    },
  },
  signed: {
    title: "Signed-in users: read",
    policy: { name: "Signed-in users may read", command: "select", roles: ["authenticated"], using: "true", check: "" },
  },
  add: {
    title: "Signed-in users: add rows of their own",
    policy: {
      name: "Signed-in users may add",
      command: "insert",
      roles: ["authenticated"],
      using: "",
      check: "owner = auth.uid()",
    },
  },
});

/** @param {Partial<Column>} [given] @returns {Column} */
const column = (given = {}) => ({
  name: "",
  type: "text",
  required: false,
  default: "",
  primary: false,
  unique: false,
  references: null,
  ...given,
});

export class SqlForm extends View {
  kind = "new-table";
  /** @type {Database} */
  database = {
    stage: "",
    name: "",
    schemas: ["public"],
    roles: { anon: "anon", authenticated: "authenticated", service: "service_role" },
  };
  names = NO_NAMES;
  query = new URLSearchParams();
  off = "";
  /** What the fields say, beyond a table's columns. */
  given = {
    schema: "public",
    relation: "",
    name: "",
    comment: "",
    access: "own",
    security: true,
    command: "all",
    using: "",
    check: "",
    advice: "custom",
    typed: "",
    cascade: false,
    grants: true,
  };
  columns = [
    column({ name: "id", type: "bigint", primary: true }),
    column({ name: "title", required: true }),
    column({
      name: "owner",
      type: "uuid",
      required: true,
      default: "auth.uid()",
      references: { schema: "auth", name: "users", column: "id", onDelete: "cascade" },
    }),
    column({ name: "created_at", type: "timestamptz", required: true, default: "now()" }),
  ];
  added = column();
  /** @type {Set<string>} */
  roles = new Set(["authenticated"]);
  /** @type {Set<string>} */
  rights = new Set(["select"]);
  /** @type {{ message: string, detail: string | null, hint: string | null, line: number | null } | null} */
  fault = null;
  /** The column that it is about. @type {Column | null} */
  faulty = null;
  running = false;
  /** The SQL that has been run. */
  done = "";
  /** The relation as it is, for the forms that change it. @type {import("../tables/query.js").Relation | null} */
  found = null;
  /** How many rows it has, where that matters. @type {number | null} */
  rows = null;
  /** What gets the focus once it is shown. */
  #focus = ".form-fields input:not([type=checkbox])";

  updated() {
    if (!this.#focus || (this.changing && !this.found)) return;
    /** @type {HTMLElement | null} */ (this.querySelector(this.#focus))?.focus();
    this.#focus = "";
  }

  connected() {
    this.given.schema = this.query.get("schema") ?? this.database.schemas[0] ?? "public";
    this.given.relation = this.query.get("relation") ?? "";
    if (this.changing) this.find(this.changing);
    if (this.kind !== "new-grant" || !this.of) return;
    this.roles = new Set([this.of]);
    this.rights = new Set(this.query.get("for")?.split(","));
  }

  get changing() {
    return Object.hasOwn(CHANGES, this.kind) ? CHANGES[this.kind] : null;
  }

  /** What it is about within the relation: a column, a policy, a role. */
  get of() {
    return this.query.get("of") ?? "";
  }

  /** Ask for what is to be changed. @param {import("./changes.js").Change} change */
  async find(change) {
    const { stage, name } = this.database;
    const { schema, relation } = this.given;
    await this.run(async (signal) => {
      const found = await api.get(
        `/admin/databases/${[stage, name, "relations", schema, relation].map(encodeURIComponent).join("/")}`,
        { signal },
      );
      change.begin?.(this, found);
      this.found = found;
      if (!change.counts || this.off) return;
      const counting = `select count(*) from ${qualified(schema, relation)}`;
      const { results } = await api.post(
        "/admin/sql",
        { stage, database: name, sql: counting, read_only: true, timeout_seconds: 10 },
        { signal },
      );
      this.rows = results[0] ? Number(results[0].rows[0][0]) : null;
    }, "found");
  }

  get relation() {
    const { schema, relation, name } = this.given;
    return { schema, name: this.kind === "new-table" ? name : relation };
  }

  /** Which relations the forms offer. */
  get relations() {
    return this.names.relations.filter(
      (one) => this.database.schemas.includes(one.schema) || one.schema === this.given.schema,
    );
  }

  sql() {
    const { given, relation, columns, added, roles, rights, kind, changing } = this;
    if (changing) return this.found ? changing.sql(this, this.found) : "";
    if (!relation.name) return "";
    if (kind === "new-table") {
      const access = ACCESS.find((one) => one.id === given.access) ?? null;
      const owner = columns.find((one) => one.name === "owner")?.name ?? "owner";
      return createTable({
        relation,
        columns: columns.filter((one) => one.name),
        security: given.security,
        comment: given.comment,
        access,
        owner,
      });
    }
    if (kind === "new-column") return added.name ? addColumn(relation, added, given.comment) : "";
    if (kind === "new-policy" && given.name) {
      const privileges = given.command === "all" ? Object.keys(RIGHTS) : [given.command];
      const granted = given.grants && roles.size > 0 && grant(relation, { roles: [...roles], privileges });
      return [createPolicy(relation, { ...given, roles: [...roles] }), granted].filter(Boolean).join("\n");
    }
    if (kind === "new-policy") return "";
    return roles.size && rights.size ? grant(relation, { roles: [...roles], privileges: [...rights] }) : "";
  }

  /** Why the form cannot be run yet. */
  missing() {
    const { given, kind, relation, columns, added, changing } = this;
    if (changing) {
      if (changing.typed && given.typed !== (this.of || relation.name)) return "Type the name to go on.";
      return this.found && !changing.sql(this, this.found) ? "Nothing is changed yet." : "";
    }
    if (!relation.name) return kind === "new-table" ? "Give the table a name." : "Choose a table.";
    if (kind === "new-table" && !columns.some((one) => one.name)) return "Give it a column.";
    if (
      kind === "new-table" &&
      ACCESS.find((one) => one.id === given.access)?.owner &&
      !columns.some((one) => one.name === "owner")
    )
      return "Rows have an owner only with a column owner: add one, or choose another rule.";
    if (kind === "new-column" && !added.name) return "Give the column a name.";
    if (kind === "new-policy" && !given.name) return "Give the policy a name.";
    if (kind === "new-policy" && given.command !== "insert" && !given.using.trim()) return "Say which rows.";
    if (kind === "new-policy" && given.command === "insert" && !given.check.trim())
      return "Say which rows may be written.";
    return "";
  }

  /** @param {string} sql */
  async execute(sql) {
    const { stage, name } = this.database;
    this.fault = this.faulty = null;
    this.running = true;
    await this.run(async (signal) => {
      const { error } = await api.post("/admin/sql", { stage, database: name, sql }, { signal });
      this.fault = error;
      if (error) {
        const named = this.columns.filter((one) => one.name);
        // Each column has a line of its own, from the second on; without a place, the message may name it.
        this.faulty =
          this.kind === "new-table"
            ? (named[(error.line ?? 0) - 2] ?? named.find((one) => error.message.includes(`"${one.name}"`)) ?? null)
            : null;
        return;
      }
      this.done = sql;
      this.dispatchEvent(new CustomEvent("changed"));
    }, "run");
    this.running = false;
    this.update();
  }

  template() {
    const { kind, database, off, done, given } = this;
    let sql = "";
    let why = this.missing();
    try {
      sql = this.sql();
    } catch (fault) {
      why = fault instanceof Error ? fault.message : String(fault);
    }
    const { title, action } = FORMS[kind];
    const { schema } = given;
    const place = ["tables", database.stage, database.name];
    // Where it was opened from: tables say of which schema and relation.
    const from = this.query.get("relation");
    const danger = Boolean(this.changing?.typed);
    return html`<div class="page sql-form">
      <header class="head"><h1>${title}${this.changing ? html` <bdi>${cut(this.of || given.relation, 100)}</bdi>` : nothing}</h1>
        ${
          from && !(done && this.kind === "delete-table")
            ? html`<a class="button quiet" href=${href([...place, schema, done && this.kind === "rename-table" ? given.name : from], { "@tab": FORMS[kind].tab })}>${icon("back")} <bdi>Back to ${cut(done && this.kind === "rename-table" ? given.name : from, 60)}</bdi></a>`
            : this.query.has("schema")
              ? html`<a class="button quiet" href=${href(place)}>${icon("back")} Back to the tables</a>`
              : nothing
        }
        <a class="button quiet" href=${href(["sql", database.stage, database.name])}>To the editor</a></header>
      ${off ? html`<p role="status" class="note warn">${icon("lock")}<span>${off} The SQL can be taken from here.</span></p>` : nothing}
      <form class="form-panes" @keydown=${byKeyboard} @submit=${(/** @type {SubmitEvent} */ event) => (event.preventDefault(), why || this.execute(sql))}>
        <div class="card form-fields">${this.changing ? (this.found ? this.changing.fields(this, this.found) : this.failure ? nothing : html`<p class="busy">Reading the table</p>`) : kind === "new-table" ? this.table() : kind === "new-column" ? this.column() : kind === "new-policy" ? this.policy() : this.grant()}</div>
        <section class="form-sql" aria-label="The SQL">
          <ps-editor .label=${"SQL of the form"} .readonly=${true} .value=${sql}></ps-editor>
          ${why && !done ? html`<p class="quiet">${why}</p>` : nothing}
          ${this.failure ? html`<p role="alert" class="note danger">${icon("alert")}<span>${this.failure.message}</span></p>` : nothing}
          ${
            this.fault
              ? html`<div role="alert" class="note danger">${icon("alert")}<div><p class="told more"><b><bdi>${cut(this.fault.message, 2000)}</bdi></b></p>
                ${this.fault.detail ? html`<p class="told more"><bdi>${cut(this.fault.detail, 2000)}</bdi></p>` : nothing}${this.fault.hint ? html`<p class="told more"><bdi>${cut(this.fault.hint, 2000)}</bdi></p>` : nothing}<p>Nothing of it was done.</p></div></div>`
              : nothing
          }
          ${
            done && done === sql
              ? html`<div role="status" class="note good">${icon("check")}<bdi class="told">${cut(FORMS[kind].said(this), 1000)}</bdi></div>
              <div class="tools">
                ${this.next(place)}
                <button type="button" @click=${() => this.save(sql, true)}>Save as migration</button>
              </div>`
              : html`<div class="tools">
                <button class=${danger ? "danger" : "primary"} ?disabled=${Boolean(why || off || this.busy)}>${this.running ? "Running…" : html`${(this.found && this.changing?.actionFor?.(this.found)) ?? action} <kbd aria-hidden="true">${commands.label("Mod+Enter")}</kbd>`}</button>
                <button type="button" ?disabled=${Boolean(why)} @click=${() => this.dispatchEvent(new CustomEvent("edit", { detail: sql }))}>Open in the editor</button>
                <button type="button" ?disabled=${Boolean(why)} @click=${() => this.save(sql, false)}>Save as migration</button>
              </div>`
          }
        </section>
      </form>
      <datalist id="sql-types">${each(
        [
          ...Object.entries(TYPES),
          ...this.names.types.map(
            (one) => /** @type {[string, string]} */ ([qualified(one.schema, one.name), "a type of the project"]),
          ),
        ],
        ([type]) => type,
        ([type, about]) => html`<option value=${type}>${about}</option>`,
      )}</datalist>
    </div>`;
  }

  /** What comes next. @param {string[]} place of the database's tables */
  next(place) {
    const { kind, given } = this;
    const { tab } = FORMS[kind];
    if (kind === "delete-table") return html`<a class="button primary" href=${href(place)}>Show the tables</a>`;
    const name = kind === "rename-table" ? given.name : this.relation.name;
    const table = [...place, given.schema, name];
    return html`<a class="button primary" href=${href(table, { "@tab": tab })}>${SHOW[tab ?? "rows"]}</a>
      ${
        kind === "new-table"
          ? html`<a class="button" href=${href(["sql", "new-policy"], { database: place.slice(1).join("/"), schema: given.schema, relation: name })}>Add a policy</a>
          <a class="button" href=${href(table, { "@new": "1" })}>New row</a>`
          : nothing
      }`;
  }

  /** @param {string} sql @param {boolean} applied */
  save(sql, applied) {
    const name = [
      this.kind.replace("new-", ""),
      this.relation.name,
      this.kind === "new-table" ? "" : this.of || this.added.name || this.given.name,
    ]
      .join("_")
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "_")
      .replace(/^_|_$/g, "")
      .slice(0, 80);
    save({ database: this.database, sql, applied, name, signal: this.signal });
  }

  /**
   * A field of `given`.
   * @param {Exclude<keyof SqlForm["given"], "security" | "cascade" | "grants">} name
   * @param {unknown} label
   * @param {{ help?: string, required?: boolean, code?: boolean, placeholder?: string }} [about]
   */
  field(name, label, { help = "", required = false, code = false, placeholder } = {}) {
    return html`<label class="field"><span>${label}</span>
      <input class=${code ? "mono" : null} dir=${code ? "ltr" : null} autocomplete="off" spellcheck="false" ?required=${required} placeholder=${placeholder} .value=${this.given[name]}
        @input=${(/** @type {Event} */ event) => this.set({ [name]: value(event) })}>
      ${help ? html`<small>${help}</small>` : nothing}</label>`;
  }

  /** @param {Partial<SqlForm["given"]>} changed */
  set(changed) {
    Object.assign(this.given, changed);
    this.update();
  }

  schema() {
    const schemas = [...new Set([...this.database.schemas, this.given.schema])];
    return schemas.length > 1
      ? options("Schema", Object.fromEntries(schemas.map((one) => [one, one])), this.given.schema, (schema) =>
          this.set({ schema }),
        )
      : nothing;
  }

  chooseRelation() {
    const { given } = this;
    const here = this.relations.filter((one) => one.schema === given.schema).map((one) => [one.name, one.name]);
    return html`${this.schema()}${options("Table", Object.fromEntries([["", "Choose…"], ...here, ...(given.relation ? [[given.relation, given.relation]] : [])]), given.relation, (relation) => this.set({ relation }))}`;
  }

  /** Which roles. */
  chooseRoles() {
    const { anon, authenticated, service } = this.database.roles;
    const others =
      this.found?.policies.find((one) => one.name === this.of)?.roles ??
      (this.kind === "new-grant" && this.of ? [this.of] : []);
    const all = {
      ...Object.fromEntries(others.map((one) => [one, one === "PUBLIC" ? "Everybody" : "The role"])),
      ...{ [anon]: "Not signed in", [authenticated]: "Signed in", [service]: "Service key" },
    };
    return html`<fieldset><legend>For whom</legend>${each(
      Object.entries(all),
      ([role]) => role,
      ([role, title]) =>
        check(html`${title} <code>${role}</code>`, this.roles.has(role), (on) => {
          if (on) this.roles.add(role);
          else this.roles.delete(role);
          this.update();
        }),
    )}</fieldset>`;
  }

  table() {
    const { given, columns } = this;
    const access = ACCESS.find((one) => one.id === given.access);
    return html`${this.schema()}
      ${this.field("name", "Name", { required: true, placeholder: "for example notes" })}
      ${this.field("comment", "What it holds", { help: "A comment for those who come after, shown in the description of the API." })}
      <fieldset><legend>Columns</legend>
        <ol class="form-columns">${each(
          columns,
          (one) => one,
          (one, index) => html`<li class="form-column">
          ${one === this.faulty ? html`<p class="note danger">${icon("alert")}<bdi class="told">${cut(this.fault?.message ?? "", 1000)}</bdi></p>` : nothing}
          ${this.columnFields(
            one,
            `Column ${index + 1}`,
            check("Primary key", one.primary, (primary) => this.change(one, { primary })),
            html`<span class="form-column-tools">
              <button type="button" class="icon-button" aria-label=${`Move column ${one.name || index + 1} up`} title=${`Move column ${one.name || index + 1} up`} ?disabled=${!index} @click=${() => this.move(one, index - 1)}>${icon("up")}</button>
              <button type="button" class="icon-button" aria-label=${`Move column ${one.name || index + 1} down`} title=${`Move column ${one.name || index + 1} down`} ?disabled=${index === columns.length - 1} @click=${() => this.move(one, index + 1)}>${icon("down")}</button>
              <button type="button" class="icon-button" aria-label=${`Remove column ${one.name || index + 1}`} title=${`Remove column ${one.name || index + 1}`} @click=${() => ((this.columns = columns.filter((other) => other !== one)), this.update())}>${icon("remove")}</button>
            </span>`,
          )}
        </li>`,
        )}</ol>
        <button type="button" @click=${() => ((this.columns = [...columns, column()]), (this.#focus = ".form-column:last-child input"), this.update())}>${icon("add")} Add a column</button>
      </fieldset>
      ${options("Who may use it", Object.fromEntries(ACCESS.map((one) => [one.id, one.title])), given.access, (access) => this.set({ access }), access?.about)}
      ${check(html`Row-level security <small class="quiet">Without it, whoever has a grant sees all rows.</small>`, given.security, (security) => this.set({ security }))}`;
  }

  /** @param {Column} one @param {Partial<Column>} changed */
  change(one, changed) {
    Object.assign(one, changed);
    this.update();
  }

  /** @param {Column} one @param {number} to */
  move(one, to) {
    this.columns = this.columns.filter((other) => other !== one).toSpliced(to, 0, one);
    this.update();
  }

  /** @param {Column} one @param {string} label @param {unknown} [key] what makes it the primary key @param {unknown} [tools] */
  columnFields(one, label, key = nothing, tools = nothing) {
    const { references } = one;
    const targets = [{ schema: "auth", name: "users", columns: ["id"] }, ...this.relations];
    const id = (/** @type {{ schema: string, name: string }} */ target) => JSON.stringify([target.schema, target.name]);
    return html`<div class="form-line">
        ${input(`${label}: name`, "Name", one.name, (name) => this.change(one, { name }))}
        ${input(`${label}: type`, "Type", one.type, (type) => this.change(one, { type }), "sql-types")}
        ${defaultField(`${label}: default`, one, generated(one, this.columns), (text) => this.change(one, { default: text }))}
        ${tools}
      </div>
      <div class="form-line">
        ${key}
        ${check("Required", one.required || one.primary, (required) => this.change(one, { required }))}
        ${check("Unique", one.unique, (unique) => this.change(one, { unique }))}
        <label class="check"><span>Refers to</span><select aria-label=${`${label}: refers to`} @change=${(
          /** @type {Event} */ event,
        ) => {
          const chosen = targets.find((target) => id(target) === value(event));
          this.change(one, {
            references: chosen
              ? {
                  schema: chosen.schema,
                  name: chosen.name,
                  column: chosen.columns.includes("id") ? "id" : "",
                  onDelete: "",
                }
              : null,
          });
        }}>
          <option value="" ?selected=${!references}>nothing</option>
          ${each(targets, id, (target) => html`<option value=${id(target)} ?selected=${references !== null && id(references) === id(target)}>${`${target.schema}.${target.name}`}</option>`)}
        </select></label>
        ${references ? html`<label class="check"><span>When ${references.schema === "auth" && references.name === "users" ? "the user" : "that row"} is deleted</span>${picker(`${label}: when that is deleted`, DELETED, references.onDelete, (onDelete) => this.change(one, { references: { ...references, onDelete } }))}</label>` : nothing}
      </div>`;
  }

  column() {
    return html`${this.chooseRelation()}${this.columnFields(this.added, "Column")}${this.field("comment", "What it holds")}
      <p class="quiet">A column that is required needs a default where the table has rows already.</p>`;
  }

  /** Of a policy. */
  conditions() {
    const { given } = this;
    const reads = given.command !== "insert";
    const writes = !["select", "delete"].includes(given.command);
    return html`${reads ? this.field("using", "Which rows", { code: true, placeholder: "for example owner = auth.uid()", help: "A condition on the row as it is. true is every row." }) : nothing}
      ${writes ? this.field("check", "Which rows may be written", { code: true, placeholder: "for example owner = auth.uid()", help: given.command === "insert" ? "A condition on the new row." : "A condition on the row as it becomes; if empty, the one above." }) : nothing}`;
  }

  policy() {
    const { given } = this;
    return html`${this.chooseRelation()}
      ${options(
        "Begin with",
        Object.fromEntries(Object.entries(ADVICE).map(([id, one]) => [id, one.title])),
        given.advice,
        (advice) => {
          const { policy } = ADVICE[/** @type {keyof typeof ADVICE} */ (advice)];
          if (policy) this.roles = new Set(policy.roles);
          this.set({ advice, ...policy });
        },
      )}
      ${this.field("name", "Name", { required: true, help: "In plain words, such as: Own rows." })}
      ${options("It allows", COMMANDS, given.command, (command) => this.set({ command }))}
      ${this.chooseRoles()}
      ${this.conditions()}
      ${check("And grant what it needs: without a grant a policy has no effect", given.grants, (grants) => this.set({ grants }))}
      <p class="quiet">A policy holds where row-level security is on.</p>`;
  }

  grant() {
    return html`${this.chooseRelation()}${this.chooseRoles()}
      <fieldset><legend>What they may do</legend>${each(
        Object.entries(RIGHTS),
        ([right]) => right,
        ([right, title]) =>
          check(title, this.rights.has(right), (on) => {
            if (on) this.rights.add(right);
            else this.rights.delete(right);
            this.update();
          }),
      )}</fieldset>
      <p class="quiet">With row-level security on, policies say with which rows.</p>`;
  }
}
define("ps-sql-form", SqlForm);

/** Enter in a field is no order to run it: that are the button, and Enter with Ctrl. @param {KeyboardEvent} event */
function byKeyboard(event) {
  if (event.key !== "Enter" || event.isComposing) return;
  const all = event.ctrlKey || event.metaKey;
  if (all || event.target instanceof HTMLInputElement) event.preventDefault();
  if (all && !event.repeat) /** @type {HTMLFormElement} */ (event.currentTarget).requestSubmit();
}

/** Whether PostgreSQL numbers it. @param {Column} one @param {Column[]} columns */
const generated = (one, columns) =>
  columns.includes(one) && isIdentity(one, columns.filter((other) => other.primary).length === 1);
