/** A request as a script would make it: curl, JavaScript (supabase-js) and Python. Keys are never in it. */

import { BASE } from "../core/api.js";
import { dialog } from "../core/dialogs.js";
import { html, nothing } from "../core/html.js";
import { complain, notify } from "../core/notices.js";

/** @typedef {import("../core/api.js").Identity} Identity */
/**
 * @typedef {object} Call
 * @property {string} [method] GET if not given
 * @property {string} path Below the service's own, with a leading slash.
 * @property {import("../core/router.js").Query} [query]
 * @property {Record<string, string>} [headers] Without those that say who asks.
 * @property {unknown} [body] Sent as JSON; `file` is sent as it is.
 * @property {string} [file] The name of a file that is sent.
 * @property {Identity} [as] The service, unless it says otherwise.
 */

const FORMS = /** @type {const} */ ({ curl: "curl", javascript: "JavaScript", python: "Python" });
/** What a select shows in place of a method of supabase-js, by the operator of a filter. */
const METHODS = /** @type {Record<string, string>} */ ({
  eq: "eq",
  neq: "neq",
  gt: "gt",
  gte: "gte",
  lt: "lt",
  lte: "lte",
  like: "like",
  ilike: "ilike",
});

/** @param {string} text */
const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
/** @param {unknown} value */
const js = (value) => JSON.stringify(value);
/** As a literal of Python. @param {unknown} value @returns {string} */
function python(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, one]) => `${js(name)}: ${python(one)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}

/** @param {import("../core/router.js").Query} query @returns {[string, string][]} */
const pairs = (query) => {
  const given = query instanceof URLSearchParams || Symbol.iterator in query ? [...query] : Object.entries(query);
  return given
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => [name, String(value)]);
};

/** The variables in which a script has its keys. @param {Identity} as @returns {Record<string, string>} */
function credentials(as) {
  if (as === null) return {};
  if (as === "service") return { apikey: "SERVICE_KEY" };
  return as === "anon" ? { apikey: "ANON_KEY" } : { apikey: "ANON_KEY", Authorization: "ACCESS_TOKEN" };
}

/** @param {Call} call */
export function curl({ method = "GET", path, query = {}, headers = {}, body, file, as = "service" }) {
  // What a URL may have as it is stays readable.
  const search = pairs(query)
    .map(
      ([name, value]) =>
        `${encodeURIComponent(name)}=${encodeURIComponent(value).replace(/%(?:2C|3A|28|29|2A|22)/g, decodeURIComponent)}`,
    )
    .join("&");
  const lines = [
    `curl ${method === "GET" ? "" : method === "HEAD" ? "--head " : `-X ${method} `}${shell(url(path) + (search && `?${search}`))}`,
  ];
  for (const [name, variable] of Object.entries(credentials(as)))
    lines.push(`-H "${name}: ${name === "Authorization" ? "Bearer " : ""}$${variable}"`);
  for (const [name, value] of Object.entries(
    body === undefined ? headers : { "Content-Type": "application/json", ...headers },
  ))
    lines.push(`-H ${shell(`${name}: ${value}`)}`);
  if (body !== undefined) lines.push(`-d ${shell(JSON.stringify(body))}`);
  if (file) lines.push(`-T ${shell(file)}`);
  return lines.join(" \\\n  ");
}

/** @param {Call} call */
export function inPython({ method = "GET", path, query = {}, headers = {}, body, file, as = "service" }) {
  const sent = [
    ...Object.entries(credentials(as)).map(
      ([name, variable]) =>
        `"${name}": ${name === "Authorization" ? 'f"Bearer {' : ""}os.environ["${variable}"]${name === "Authorization" ? '}"' : ""}`,
    ),
    ...Object.entries(headers).map(([name, value]) => `${js(name)}: ${js(value)}`),
  ].map((line) => line.replace('f"Bearer {os.environ["ACCESS_TOKEN"]}"', `"Bearer " + os.environ["ACCESS_TOKEN"]`));
  const params = pairs(query);
  const inside = [
    `    ${js(method)},`,
    `    ${js(url(path))},`,
    params.length ? `    params=[${params.map(([name, value]) => `(${js(name)}, ${js(value)})`).join(", ")}],` : "",
    sent.length ? `    headers={${sent.join(", ")}},` : "",
    body === undefined ? "" : `    json=${python(body)},`,
    file ? `    data=open(${js(file)}, "rb"),` : "",
  ];
  const shown =
    method === "HEAD" ? 'print(response.headers["Content-Range"])' : method === "GET" ? "print(response.json())" : "";
  return [
    "import os",
    "",
    "import requests",
    "",
    "response = requests.request(",
    ...inside.filter(Boolean),
    ")",
    "response.raise_for_status()",
    shown,
  ]
    .join("\n")
    .trim();
}

/** By supabase-js where it has the words, else by fetch. @param {Call} call */
export function inJavaScript(call) {
  const { method = "GET", path, query = {}, headers = {}, body, as = "service" } = call;
  const table = /^\/([^/]+)\/db\/([^/]+)\/rest\/([^/]+)$/.exec(path);
  if (!table || call.file) return byFetch(call);
  const env = (/** @type {string} */ name) => `process.env.${name}`;
  const { apikey, Authorization } = credentials(as);
  const options = Authorization
    ? `, {\n  global: { headers: { Authorization: \`Bearer \${${env(Authorization)}}\` } },\n}`
    : "";
  const profile = headers["Accept-Profile"] ?? headers["Content-Profile"];
  const name = decodeURIComponent(table[3]);
  const given = pairs(query);
  const one = (/** @type {string} */ wanted) => given.find(([each]) => each === wanted)?.[1];
  const count = /count=(\w+)/.exec(headers.Prefer ?? "")?.[1];
  const counting = [count && `count: ${js(count)}`, method === "HEAD" && "head: true"].filter(Boolean).join(", ");
  const select = js(one("select") ?? "*");
  const returned = /return=representation/.test(headers.Prefer ?? "")
    ? [`.select(${one("select") ? select : ""})`]
    : [];
  const verb = {
    POST: /resolution=merge/.test(headers.Prefer ?? "") ? [`.upsert(${js(body)})`] : [`.insert(${js(body)})`],
    PATCH: [`.update(${js(body)})`],
    DELETE: [`.delete(${counting && `{ ${counting} }`})`],
  }[method];
  const lines = [
    `.from(${js(name)})`,
    ...(verb ?? [`.select(${select}${counting && `, { ${counting} }`})`]),
    ...given.flatMap(([column, value]) => filter(column, value)),
    ...(one("order") ?? "")
      .split(",")
      .filter(Boolean)
      .map((item) => {
        const descending = item.endsWith(".desc");
        return `.order(${js(item.replace(/\.(asc|desc)$/, ""))}${descending ? ", { ascending: false }" : ""})`;
      }),
    ...(one("limit")
      ? [`.range(${Number(one("offset") ?? 0)}, ${Number(one("offset") ?? 0) + Number(one("limit")) - 1})`]
      : []),
    ...(verb ? returned : []),
  ];
  return `import { createClient } from "@supabase/supabase-js";

const supabase = createClient(${js(url(`/${table[1]}/db/${table[2]}`))}, ${env(apikey)}${options});
const { data, error${count ? ", count" : ""} } = await supabase${profile ? `\n  .schema(${js(profile)})` : ""}
  ${lines.join("\n  ")};`;
}

/** @param {string} column @param {string} value */
function filter(column, value) {
  if (["select", "order", "limit", "offset", "columns"].includes(column)) return [];
  const group = /^\((.*)\)$/s.exec(value);
  if (column === "or" && group) return [`.or(${js(group[1])})`];
  const [, not, operator, rest] = /^(not\.)?([\w]+(?:\(\w+\))?)\.(.*)$/s.exec(value) ?? [];
  if (!operator) return [`.filter(${js(column)}, ${js(value)})`];
  if (not) return [`.not(${js(column)}, ${js(operator)}, ${rest === "null" ? "null" : js(rest)})`];
  if (operator === "is") return [`.is(${js(column)}, ${/^(null|true|false)$/.test(rest) ? rest : js(rest)})`];
  return [
    METHODS[operator]
      ? `.${METHODS[operator]}(${js(column)}, ${js(rest)})`
      : `.filter(${js(column)}, ${js(operator)}, ${js(rest)})`,
  ];
}

/** @param {Call} call */
function byFetch({ method = "GET", path, query = {}, headers = {}, body, file, as = "service" }) {
  const sent = [
    ...Object.entries(credentials(as)).map(
      ([name, variable]) =>
        `${name}: ${name === "Authorization" ? `\`Bearer \${process.env.${variable}}\`` : `process.env.${variable}`}`,
    ),
    ...(body === undefined ? [] : ['"Content-Type": "application/json"']),
    ...Object.entries(headers).map(([name, value]) => `${js(name)}: ${js(value)}`),
  ];
  const search = new URLSearchParams(pairs(query)).toString();
  return [
    ...(file ? ['import { openAsBlob } from "node:fs";', ""] : []),
    `const response = await fetch(${js(url(path) + (search && `?${search}`))}, {`,
    `  method: ${js(method)},`,
    ...(sent.length ? [`  headers: { ${sent.join(", ")} },`] : []),
    ...(body === undefined ? [] : [`  body: JSON.stringify(${js(body)}),`]),
    ...(file ? [`  body: await openAsBlob(${js(file)}),`] : []),
    "});",
    ...(method === "GET" ? ["const data = await response.json();"] : []),
  ].join("\n");
}

/** @param {string} path */
const url = (path) => new URL(path.replace(/^\//, ""), BASE).href;

/** Which form somebody looked at last. @type {keyof typeof FORMS} */
let form = "curl";

/**
 * Show requests in a dialog.
 * @param {Call} call
 * @param {AbortSignal} [signal]
 */
export function showCode(call, signal) {
  const made = { curl: () => curl(call), javascript: () => inJavaScript(call), python: () => inPython(call) };
  const as = call.as ?? "service";
  return dialog({
    title: "This request in a script",
    size: "wide",
    signal,
    content: (shown) => {
      const code = made[form]();
      const copy = () => navigator.clipboard.writeText(code).then(() => notify("Copied."), complain);
      const variables = Object.values(credentials(as));
      return html`<div class="dialog-body">
        <div class="tabs" role="tablist" aria-label="Language">
          ${Object.entries(FORMS).map(
            ([
              name,
              title,
            ]) => html`<button type="button" role="tab" aria-selected=${String(name === form)} aria-controls="code"
              @click=${() => ((form = /** @type {keyof typeof FORMS} */ (name)), shown.update())}>${title}</button>`,
          )}
        </div>
        <pre id="code" class="code" role="tabpanel" tabindex="0" aria-label=${FORMS[form]} dir="ltr"><code>${code}</code></pre>
        ${
          variables.length
            ? html`<p class="quiet">Keys are not shown: the script has ${variables.map((name, index) => html`${index ? " and " : ""}<code>${name}</code>`)} in its
              environment${variables.includes("SERVICE_KEY") ? ", and is not to run in a browser: the service key passes every rule" : ""}.</p>`
            : nothing
        }
      </div>
      <footer class="dialog-foot"><button type="button" class="primary" @click=${copy}>Copy</button></footer>`;
    },
  });
}
