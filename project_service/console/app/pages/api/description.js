/** Descriptions of the API, of the service (OpenAPI 3.1) and of a database (OpenAPI 2, as PostgREST's), as one kind of operations. */

/** @typedef {Record<string, any>} Schema */
/** @typedef {{ name: string, in: "path" | "query" | "header", required: boolean, schema: Schema, text: string, filter: string | null }} Parameter `filter`: of a column of a table, such as "eq.1". */
/** @typedef {{ status: string, text: string, schema: Schema | null, types: string[] }} Answer */
/** @typedef {{ types: string[], schema: Schema | null, required: boolean, text: string }} Body */
/**
 * @typedef {object} Operation
 * @property {string} id what an address has
 * @property {string} method
 * @property {string} path below the service's own, with its parameters in braces
 * @property {string} tag
 * @property {string} summary
 * @property {string} text
 * @property {Parameter[]} parameters
 * @property {Body | null} body
 * @property {Answer[]} answers
 * @property {string} who
 * @property {string} found by what it is found, in small letters
 */

const METHODS = /** @type {const} */ (["get", "head", "post", "put", "patch", "delete"]);
/** How deep schemas are written out. */
const DEPTH = 4;
/** What is sent by the form itself. */
const OWN_HEADERS = /^(apikey|x-service-key|authorization|content-type|content-length|host)$/i;

/** Follows references within a document. */
export class Description {
  /** @param {any} document @param {string} [base] What the paths of a database are below. */
  constructor(document, base = "") {
    this.document = document;
    /** @type {Operation[]} */
    this.operations = Object.entries(document.paths ?? {}).flatMap(([path, item]) =>
      METHODS.filter((method) => item[method] && !(method === "head" && item.get)).map((method) =>
        this.#operation(
          method,
          base + path,
          item[method],
          base ? `${method} ${path}` : (item[method].operationId ?? `${method} ${path}`),
          item.parameters,
          base,
        ),
      ),
    );
  }

  /** What a reference stands for. @param {any} value @returns {any} */
  at(value) {
    let found = value;
    for (let n = 0; found?.$ref && n < 8; n++) {
      const path = String(found.$ref).replace(/^#\//, "").split("/");
      found = path.reduce(
        (/** @type {any} */ at, part) => at?.[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")],
        this.document,
      );
    }
    return found ?? {};
  }

  /** @param {string} method @param {string} path @param {any} given @param {string} id @param {any[]} [shared] @param {string} [base] @returns {Operation} */
  #operation(method, path, given, id, shared = [], base = "") {
    const all = [...shared, ...(given.parameters ?? [])].map((one) => ({
      ...this.at(one),
      filters: one.$ref?.startsWith("#/parameters/rowFilter."),
    }));
    const columns = this.document.definitions?.[path.slice(base.length + 1)]?.properties;
    const sent = all.find((one) => one.in === "body");
    const parameters = all
      .filter(
        (one) => ["path", "query", "header"].includes(one.in) && !(one.in === "header" && OWN_HEADERS.test(one.name)),
      )
      .map((one) => ({
        name: one.name,
        in: one.in,
        required: Boolean(one.required),
        schema: this.at(one.schema ?? one),
        text: more(one.description, one.name),
        filter: one.filters ? filterOf(columns?.[one.name] ?? {}) : null,
      }))
      // Some are there twice, as they can be combined.
      .filter(
        (one, index, list) => list.findIndex((other) => other.name === one.name && other.in === one.in) === index,
      );
    const tag = given.tags?.[0] ?? "";
    return {
      id,
      method: method.toUpperCase(),
      path,
      tag,
      summary: given.summary ?? "",
      text: given.description ?? "",
      parameters,
      body: sent
        ? {
            types: ["application/json"],
            schema: sent.schema ?? null,
            required: Boolean(sent.required),
            text: more(sent.description, sent.name),
          }
        : this.#body(given.requestBody),
      answers: Object.entries(given.responses ?? {}).map(([status, one]) => this.#answer(status, this.at(one))),
      who: base ? "What is answered and allowed depends on the rights of whoever asks" : who(given.security),
      found: [method, path, tag, given.summary, id, ...parameters.map((one) => one.name)].join(" ").toLowerCase(),
    };
  }

  /** @param {any} given @returns {Body | null} */
  #body(given) {
    const body = given && this.at(given);
    if (!body?.content) return null;
    const types = Object.keys(body.content);
    const first =
      types.includes("application/json") && types[0] !== "multipart/form-data" ? "application/json" : types[0];
    return {
      types: [first, ...types.filter((one) => one !== first)],
      schema: body.content[first].schema ?? null,
      required: Boolean(body.required),
      text: body.description ?? "",
    };
  }

  /** @param {string} status @param {any} one @returns {Answer} */
  #answer(status, one) {
    const types = Object.keys(one.content ?? {});
    return {
      status,
      text: one.description ?? "",
      schema: one.content?.[types[0]]?.schema ?? one.schema ?? null,
      types,
    };
  }

  /** Schemas that are being followed: one may contain itself, in whatever way. @type {Set<Schema>} */
  #within = new Set();

  /**
   * What `follow` makes of what `given` stands for; `again` where that is within itself.
   * @template T
   * @param {any} given @param {T} again @param {(schema: any) => T} follow @returns {T}
   */
  #once(given, again, follow) {
    const schema = this.at(given);
    if (this.#within.has(schema)) return again;
    this.#within.add(schema);
    try {
      return follow(schema);
    } finally {
      this.#within.delete(schema);
    }
  }

  /**
   * A schema in a few lines, as types are written.
   * @param {any} given @param {number} [depth] @param {string} [indent] @returns {string}
   */
  written(given, depth = DEPTH, indent = "") {
    const name = given?.$ref?.split("/").at(-1);
    return this.#once(given, name ?? "…", (schema) => this.#written(schema, name, depth, indent));
  }

  /** @param {any} schema @param {string | undefined} name @param {number} depth @param {string} indent @returns {string} */
  #written(schema, name, depth, indent) {
    if (schema.enum) return schema.enum.map((/** @type {unknown} */ one) => JSON.stringify(one)).join(" | ");
    if ("const" in schema) return JSON.stringify(schema.const);
    const several = schema.oneOf ?? schema.anyOf;
    if (several) return several.map((/** @type {any} */ one) => this.written(one, depth, indent)).join(" | ");
    if (schema.allOf) return schema.allOf.map((/** @type {any} */ one) => this.written(one, depth, indent)).join(" & ");
    const types = [schema.type ?? (schema.properties ? "object" : schema.items ? "array" : "any")].flat();
    return types
      .map((type) => {
        if (type === "array") return `${this.written(schema.items ?? {}, depth, indent)}[]`;
        if (type !== "object") return schema.format ? `${type} (${schema.format})` : type;
        const members = Object.entries(schema.properties ?? {});
        if (!members.length)
          return schema.additionalProperties?.type
            ? `{ [name]: ${this.written(schema.additionalProperties, depth - 1, indent)} }`
            : (name ?? "object");
        if (depth <= 0) return name ?? "{ … }";
        const lines = members.map(
          ([member, one]) =>
            `${indent}  ${member}${schema.required?.includes(member) ? "" : "?"}: ${this.written(one, depth - 1, `${indent}  `)}`,
        );
        return `{\n${lines.join("\n")}\n${indent}}`;
      })
      .join(" | ");
  }

  /** A value that a schema may mean: what is required, and what has examples. @param {any} given @param {number} [depth] @returns {any} */
  example(given, depth = DEPTH) {
    return this.#once(given, null, (schema) => this.#example(schema, depth));
  }

  /** @param {any} schema @param {number} depth @returns {any} */
  #example(schema, depth) {
    if (schema.examples?.length) return schema.examples[0];
    if ("example" in schema) return schema.example;
    if ("default" in schema) return schema.default;
    if ("const" in schema) return schema.const;
    if (schema.enum) return schema.enum[0];
    const several = schema.oneOf ?? schema.anyOf;
    if (several) return this.example(several[0], depth);
    if (schema.allOf)
      return Object.assign({}, ...schema.allOf.map((/** @type {any} */ one) => this.example(one, depth)));
    const type = [schema.type ?? (schema.properties ? "object" : "string")].flat()[0];
    if (type === "object") {
      const members = Object.entries(schema.properties ?? {}).filter(
        ([name]) => depth > 0 && (!schema.required || schema.required.includes(name)),
      );
      return Object.fromEntries(members.map(([name, one]) => [name, this.example(one, depth - 1)]));
    }
    if (type === "array") return depth > 0 && schema.minItems ? [this.example(schema.items, depth - 1)] : [];
    return (
      { integer: schema.minimum ?? 0, number: schema.minimum ?? 0, boolean: false, null: null }[
        /** @type {"integer"} */ (type)
      ] ?? (type === "string" ? "" : null)
    );
  }
}

/** @param {Record<string, unknown>[] | undefined} security */
function who(security) {
  if (!security?.length || security.some((one) => !Object.keys(one).length)) return "Anybody";
  const names = {
    serviceKey: "the service key",
    projectKey: "a project key",
    apikey: "a project key",
    userToken: "a user's token",
    accessToken: "a user's token",
  };
  const ways = security.map((one) =>
    Object.keys(one)
      .map((name) => names[/** @type {"apikey"} */ (name)] ?? name)
      .join(" and "),
  );
  return `With ${[...new Set(ways)].join(", or with ")}`;
}

/** A description, if it says more than the name does: "Ordering" of `order` does not. @param {string | undefined} text @param {string} name */
function more(text = "", name) {
  const words = (/** @type {string} */ one) =>
    one
      .toLowerCase()
      .replace(/^(the|an?) /, "")
      .replace(/[^\p{L}\p{N}]/gu, "");
  return words(text) === words(name) || (/^\w+$/.test(text) && words(text).startsWith(words(name))) ? "" : text;
}

/** How rows may be chosen by a column. @param {Schema} column */
function filterOf({ type, format = "" }) {
  if (type === "integer" || type === "number") return "eq.1";
  if (type === "boolean") return "is.true";
  if (/^(date|timestamp)/.test(format)) return "gte.2026-01-31";
  return format === "uuid" || type !== "string" ? "not.is.null" : "eq.Buy milk";
}
