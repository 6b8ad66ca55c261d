/** The buckets with their rules, and how full they are. */

import { api, ApiError } from "../../core/api.js";
import { confirm, dialog } from "../../core/dialogs.js";
import { ago, bytes, counted, moment } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { complain, notify } from "../../core/notices.js";
import { go, href } from "../../core/router.js";
import { define, View } from "../../core/view.js";
import { showCode } from "../../ideas/code.js";
import { ADMIN, adminPath, placeOf } from "./objects.js";

/** @typedef {import("./objects.js").Bucket} Bucket */

const UNITS = /** @type {const} */ ([
  ["MiB", 2 ** 20],
  ["GiB", 2 ** 30],
  ["TiB", 2 ** 40],
  ["KiB", 2 ** 10],
  ["B", 1],
]);
const CHECKS = /** @type {const} */ ([
  ["owner_only_writes", "Only owners change", "Nobody overwrites, moves or deletes what another user uploaded."],
  ["owner_only_reads", "Only owners see", "In a private bucket, nobody knows of what another user uploaded."],
  [
    "anonymous_reads",
    "Open to everybody",
    "Objects of a public bucket have addresses that need no key, for pages and e-mails.",
  ],
  [
    "policies",
    "Policies decide",
    "Row-level security on storage.objects; until there is a policy, only the service may do anything.",
  ],
]);

/** What the service says of a field, as it is said to somebody who typed it. @type {Record<string, string>} */
const WORDS = {
  name: "Write 1 to 63 small letters of a to z, digits, and . _ - between them.",
  max_object_bytes: "Write a size of 1 byte or more, or nothing.",
  max_bucket_bytes: "Write a size of 1 byte or more, or nothing.",
  allowed_content_types: "Write types such as image/*, with commas between them.",
};
const TITLES = /** @type {Record<string, string>} */ ({
  name: "Name",
  max_object_bytes: "Largest file",
  max_bucket_bytes: "Quota of the bucket",
  allowed_content_types: "Content types",
  cache_control: "Cache-Control",
  ...Object.fromEntries(CHECKS.map(([name, title]) => [name, title])),
});
const COMMON_TYPES = /** @type {const} */ ([
  ["Pictures", "image/*"],
  ["PDF", "application/pdf"],
  ["Video", "video/*"],
]);

export class Buckets extends View {
  /** @type {Bucket[] | null} */
  buckets = null;
  wanted = "";

  connected() {
    this.load();
  }

  async load() {
    const answer = await this.run((signal) => api.get(ADMIN, { signal }), "load");
    if (answer) this.buckets = answer.buckets;
    this.update();
  }

  /** @param {Bucket} [bucket] */
  async edit(bucket) {
    const name = await editRules(bucket, this.signal);
    if (name === undefined) return;
    if (bucket) this.load();
    else go(placeOf(name, ""));
  }

  /** @param {Bucket} bucket */
  async erase(bucket) {
    const { name, object_count, total_bytes } = bucket;
    const text = object_count
      ? `Everything in it goes as well: ${counted(object_count, "file")}, ${bytes(total_bytes)}. That cannot be undone.`
      : "It is empty.";
    const sure = await confirm({
      title: `Delete the bucket ${name}?`,
      text,
      action: "Delete bucket",
      danger: true,
      word: object_count ? name : undefined,
      signal: this.signal,
    });
    if (!sure) return;
    try {
      await api.delete(adminPath(name), { query: { force: object_count > 0 || null } });
      notify(`Deleted the bucket ${name}.`);
    } catch (fault) {
      complain(fault);
    }
    this.load();
  }

  template() {
    const { buckets, failure, wanted } = this;
    const shown = buckets?.filter(({ name }) => name.includes(wanted)) ?? [];
    return html`<div class="page">
      <header class="head">
        <h1>Buckets</h1>
        ${
          buckets && buckets.length > 8
            ? html`<input type="search" class="short" aria-label="Find a bucket" placeholder="Find a bucket"
              @input=${(/** @type {any} */ event) => ((this.wanted = event.target.value.toLowerCase()), this.update())}>`
            : nothing
        }
        <button type="button" class="quiet" @click=${() => showCode({ path: ADMIN }, this.signal)}>${icon("sql")}Code</button>
        <button type="button" class="primary" @click=${() => this.edit()}>${icon("add")}New bucket</button>
      </header>
      ${failure ? html`<p role="alert" class="note danger">${icon("alert")}<span>${failure.message}</span><button type="button" @click=${() => this.load()}>Try again</button></p>` : nothing}
      ${
        !buckets
          ? failure
            ? nothing
            : html`<p class="busy" role="status">Asking for the buckets…</p>`
          : !buckets.length
            ? html`<div class="empty card">${icon("storage")}<h2>No buckets yet</h2>
              <p>A bucket holds files, and says who may read and change them.</p>
              <button type="button" class="primary" @click=${() => this.edit()}>${icon("add")}New bucket</button></div>`
            : html`<ul class="buckets" aria-label="Buckets">${each(
                shown,
                ({ name }) => name,
                (bucket) => this.card(bucket),
              )}</ul>`
      }
      ${buckets?.length && !shown.length ? html`<p class="quiet">No bucket has this in its name.</p>` : nothing}
      <ps-uploads></ps-uploads>
    </div>`;
  }

  /** @param {Bucket} bucket */
  card(bucket) {
    const { name, visibility, object_count, total_bytes, max_bucket_bytes, created_at } = bucket;
    return html`<li class="card bucket">
      <div class="head">
        <h2 class="clip"><a href=${href(placeOf(name, ""))}><bdi>${name}</bdi></a></h2>
        <span class=${visibility === "public" ? "badge warn" : "badge good"}>${icon(visibility === "public" ? "view" : "lock")}${visibility === "public" ? "Public" : "Private"}</span>
      </div>
      <p class="quiet">${inWords(bucket)}</p>
      <div class="usage">
        <p><bdi><b>${bytes(total_bytes)}</b>${max_bucket_bytes === null ? nothing : ` of ${bytes(max_bucket_bytes)}`} <span class="quiet">in ${counted(object_count, "file")}</span></bdi></p>
        ${
          max_bucket_bytes === null
            ? nothing
            : html`<meter min="0" max=${Math.max(max_bucket_bytes, 1)} high=${max_bucket_bytes * 0.9} optimum="0" .value=${total_bytes} aria-label=${`Quota of ${name}`}></meter>`
        }
      </div>
      <div class="tools">
        <small class="quiet" title=${moment(created_at)}>Made ${ago(created_at)}</small><span class="spacer"></span>
        <a class="icon-button button" href=${href(placeOf(name, ""), { show: "links" })} aria-label=${`Links of ${name}`} title="Links">${icon("link")}</a>
        <button type="button" class="icon-button" aria-label=${`Rules of ${name}`} title="Rules" @click=${() => this.edit(bucket)}>${icon("settings")}</button>
        <button type="button" class="icon-button" aria-label=${`Delete ${name}`} title="Delete" @click=${() => this.erase(bucket)}>${icon("remove")}</button>
      </div>
    </li>`;
  }
}
define("ps-buckets", Buckets);

/** Who may do what in a bucket, as one says it. @param {Bucket} bucket */
export function inWords(bucket) {
  const open = bucket.visibility === "public";
  const readers = bucket.anonymous_reads
    ? "Everybody reads, without a key"
    : open
      ? "Whoever has a project key reads"
      : bucket.owner_only_reads
        ? "Users read their own"
        : "Signed-in users read";
  const writers =
    bucket.owner_only_writes || bucket.owner_only_reads
      ? "users change their own"
      : "signed-in users change everything";
  const said = [bucket.policies ? `${readers} and ${writers}, as far as policies allow` : `${readers}, ${writers}`];
  if (bucket.allowed_content_types) said.push(`Takes ${bucket.allowed_content_types.join(", ") || "nothing"}`);
  if (bucket.max_object_bytes !== null) said.push(`Up to ${bytes(bucket.max_object_bytes)} a file`);
  return said.map((each) => `${each}.`).join(" ");
}

/**
 * Make a bucket, or change the rules of one. Returns its name if that was done.
 * @param {Bucket | undefined} bucket
 * @param {AbortSignal} signal
 */
export async function editRules(bucket, signal) {
  /** @type {Record<string, string>} */
  let wrong = {};
  let problem = "";
  let busy = false;
  /** @param {HTMLFormElement | null} form */
  const call = (form) => {
    const rules = read(new FormData(form ?? undefined));
    return bucket
      ? { method: "PATCH", path: adminPath(bucket.name), body: changed(rules, old) }
      : { method: "POST", path: ADMIN, body: rules };
  };
  /** @type {Record<string, unknown>} */
  const old = /** @type {any} */ (bucket ?? { visibility: "private" });
  return dialog({
    title: bucket ? `Rules of ${bucket.name}` : "New bucket",
    signal,
    content: (/** @type {import("../../core/dialogs.js").Shown<string>} */ shown) => {
      /** @param {SubmitEvent} event */
      const submit = async (event) => {
        event.preventDefault();
        const { method, path, body } = call(/** @type {HTMLFormElement} */ (event.target));
        busy = true;
        shown.update();
        try {
          await api.request(path, { method, json: body, signal: shown.signal });
          shown.close(bucket?.name ?? String(body.name));
          notify(bucket ? `Changed the rules of ${bucket.name}.` : `Made the bucket ${body.name}.`);
        } catch (fault) {
          const details = fault instanceof ApiError && fault.code === "validation_failed" ? fault.details : null;
          wrong =
            details && typeof details === "object"
              ? Object.fromEntries(Object.entries(details).map(([name, why]) => [name, WORDS[name] ?? String(why)]))
              : {};
          problem =
            Object.entries(wrong)
              .map(([name, why]) => `${TITLES[name] ?? name}: ${why}`)
              .join(" ") || (fault instanceof Error ? fault.message : String(fault));
          busy = false;
          if (shown.signal.aborted) return;
          shown.update();
          // The footer says it too, since the field may be far from it.
          const first = /** @type {HTMLElement | null} */ (shown.element.querySelector("[aria-invalid=true]"));
          first?.focus({ preventScroll: true });
          first?.scrollIntoView({ block: "center" });
        }
      };
      return html`<form @submit=${submit}>
        <div class="dialog-body">
          ${bucket ? nothing : field("name", "Name", html`<input name="name" required maxlength="63" autocomplete="off" spellcheck="false" autofocus aria-invalid=${wrong.name ? "true" : null}>`, wrong, "Small letters of a to z, digits, and . _ - between them.")}
          <fieldset><legend>Who may read</legend>
            ${each(
              /** @type {const} */ ([
                ["private", "Private", "signed-in users"],
                ["public", "Public", "whoever has a project key"],
              ]),
              ([value]) => value,
              ([value, title, help]) => html`<label class="check">
              <input type="radio" name="visibility" value=${value} ?checked=${old.visibility === value}><span>${title} <small class="quiet">– ${help}</small></span></label>`,
            )}
          </fieldset>
          ${sized("max_object_bytes", "Largest file", old, wrong, "Empty: as large as the service allows.")}
          <div class="field"><span id="content-types">Content types</span>
            <input name="allowed_content_types" placeholder="image/*, application/pdf" autocomplete="off" spellcheck="false" aria-labelledby="content-types" aria-describedby="content-types-help"
              aria-invalid=${wrong.allowed_content_types ? "true" : null} value=${/** @type {string[] | null} */ (old.allowed_content_types ?? null)?.join(", ") ?? ""}>
            <div class="tools" role="group" aria-label="Usual types">${COMMON_TYPES.map(([title, type]) => html`<button type="button" @click=${() => fill(shown.element, type)}>${title}</button>`)}</div>
            <small id="content-types-help">With commas between them. Empty: every type.</small>${wrong.allowed_content_types ? html`<small class="wrong">${wrong.allowed_content_types}</small>` : nothing}</div>
          <fieldset><legend>Further rules</legend>
            ${each(
              CHECKS,
              ([name]) => name,
              ([name, title, help]) => html`<label class="check">
              <input type="checkbox" name=${name} ?checked=${old[name]} aria-invalid=${wrong[name] ? "true" : null}>
              <span>${title}<br><small class="quiet">${help}</small>${wrong[name] ? html`<br><small class="wrong">${wrong[name]}</small>` : nothing}</span></label>`,
            )}
          </fieldset>
          ${sized("max_bucket_bytes", "Quota of the bucket", old, wrong, "Empty: no limit.")}
          ${field("cache_control", "Cache-Control", html`<input name="cache_control" placeholder="max-age=3600" autocomplete="off" spellcheck="false" aria-invalid=${wrong.cache_control ? "true" : null} value=${old.cache_control ?? ""}>`, wrong, "How long browsers keep what does not say it itself.")}
        </div>
        <footer class="dialog-foot">
            ${problem ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${problem}</bdi></span></p>` : nothing}
          <button type="button" class="quiet" @click=${() => showCode(call(shown.element.querySelector("form")), shown.signal)}>${icon("sql")}Code</button><span class="grow"></span>
          <button type="button" @click=${() => shown.close()}>Cancel</button>
          <button class="primary" ?disabled=${busy}>${busy ? "Saving…" : bucket ? "Save rules" : "Make bucket"}</button>
        </footer>
      </form>`;
    },
  });
}

/** @param {string} name @param {string} title @param {unknown} input @param {Record<string, string>} wrong @param {string} help */
function field(name, title, input, wrong, help) {
  return html`<label class="field"><span>${title}</span>${input}<small>${help}</small>${wrong[name] ? html`<small class="wrong">${wrong[name]}</small>` : nothing}</label>`;
}

/**
 * A size, as a number and its unit.
 * @param {string} name
 * @param {string} title
 * @param {Record<string, unknown>} old
 * @param {Record<string, string>} wrong
 * @param {string} help
 */
function sized(name, title, old, wrong, help) {
  const value = /** @type {number | null} */ (old[name] ?? null);
  const [unit, size] =
    [...UNITS].sort((one, other) => other[1] - one[1]).find(([, size]) => value && value % size === 0) ?? UNITS[0];
  return html`<div class="field"><span id=${`size-of-${name}`}>${title}</span>
    <div class="sized"><input type="number" name=${name} min="0" step="any" aria-labelledby=${`size-of-${name}`} value=${value === null ? "" : value / size} aria-invalid=${wrong[name] ? "true" : null}>
      <select name=${`${name}.unit`} aria-label=${`Unit of ${title.toLowerCase()}`}>${each(
        UNITS,
        ([each]) => each,
        ([each, size]) => html`<option value=${size} ?selected=${each === unit}>${each}</option>`,
      )}</select></div>
    <small>${help}</small>${wrong[name] ? html`<small class="wrong">${wrong[name]}</small>` : nothing}</div>`;
}

/** @param {string} text */
const typesIn = (text) => text.split(/[\s,]+/).filter(Boolean);

/** Add a type to those that are typed. @param {Element} form @param {string} type */
function fill(form, type) {
  const input = /** @type {HTMLInputElement} */ (form.querySelector("[name=allowed_content_types]"));
  input.value = [...new Set([...typesIn(input.value), type])].join(", ");
}

/** @param {FormData} form */
function read(form) {
  /** @param {string} name */
  const text = (name) => String(form.get(name) ?? "").trim();
  /** @param {string} name */
  const size = (name) => (text(name) === "" ? null : Math.round(Number(text(name)) * Number(text(`${name}.unit`))));
  const types = typesIn(text("allowed_content_types"));
  /** @type {Record<string, unknown>} */
  const rules = {
    visibility: text("visibility"),
    max_object_bytes: size("max_object_bytes"),
    max_bucket_bytes: size("max_bucket_bytes"),
    allowed_content_types: types.length ? types : null,
    cache_control: text("cache_control") || null,
  };
  for (const [name] of CHECKS) rules[name] = form.has(name);
  if (form.has("name")) rules.name = text("name");
  return rules;
}

/** @param {Record<string, unknown>} rules @param {Record<string, unknown>} old */
function changed(rules, old) {
  return Object.fromEntries(
    Object.entries(rules).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(old[name] ?? null)),
  );
}
