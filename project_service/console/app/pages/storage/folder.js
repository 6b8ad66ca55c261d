/** What is in a folder: a list that is fetched as far as it is looked at, and what can be done to what is in it. */

import { api } from "../../core/api.js";
import { commands } from "../../core/commands.js";
import { confirm, dialog } from "../../core/dialogs.js";
import { ago, bytes, count, counted, cut, moment } from "../../core/format.js";
import { each, html, nothing } from "../../core/html.js";
import { icon } from "../../core/icons.js";
import { complain } from "../../core/notices.js";
import { go, href } from "../../core/router.js";
import { define, Page } from "../../core/view.js";
import { showCode } from "../../ideas/code.js";
import { editRules } from "./buckets.js";
import { showFile } from "./file.js";
import { adminPath, bucketPath, lastOf, placeOf, save } from "./objects.js";
import { MOST_BYTES, named, removals } from "./removals.js";
import { transfer } from "./transfer.js";
import { filesOf, uploads } from "./uploads.js";

/** @typedef {import("./objects.js").Entry} Entry */

const FIRST_PAGE = 200;
const PAGE = 1000;
/** So many are fetched again, at most, to show what has changed. */
const REFRESHED = 5000;
/** Rows beyond the edges of what is seen. */
const MARGIN = 10;
const COLUMNS = /** @type {const} */ ([
  ["key", "Name"],
  ["size", "Size"],
  ["last_modified", "Changed"],
]);

class Folder extends Page {
  /** @type {import("./objects.js").Bucket | null} */
  about = null;
  /** @type {Entry[]} */
  entries = [];
  /** Those that are not being deleted. @type {Entry[]} */
  shown = [];
  /** @type {string | null | undefined} Of the next page; undefined before the first, null after the last. */
  token;
  /** @type {Set<string>} */
  selected = new Set();
  last = "";
  listed = "";
  dropping = 0;
  top = 0;
  rowSize = 44;
  windowSize = 1000;
  refreshing = 0;
  /** @type {{ key: string, life: AbortController } | null} */
  open = null;
  fromList = false;
  /** Sees how large the list and its rows are: asking in each rendering would lay the page out once more. */
  sizes = new ResizeObserver(() => this.measure());
  /** @type {Element | null} */
  watched = null;
  /** What is being fetched. @type {object | null} */
  asking = null;

  get place() {
    const [bucket, ...folders] = this.route.parts;
    const query = this.route.query;
    const sort = COLUMNS.find(([name]) => name === query.get("sort"))?.[0] ?? "key";
    const descending = query.get("order") === "desc";
    const find = query.get("find") ?? "";
    const contains = query.get("how") === "contains";
    const folder = folders.map((each) => `${each}/`).join("");
    return {
      bucket,
      folder,
      sort,
      descending,
      find,
      contains,
      flat: sort !== "key" || descending || (contains && find !== ""),
    };
  }

  connected() {
    const { signal } = this;
    removals.addEventListener("changed", () => this.filter(), { signal });
    removals.addEventListener("removed", (event) => this.removed(/** @type {CustomEvent} */ (event).detail), {
      signal,
    });
    uploads.addEventListener("stored", (event) => this.stored(/** @type {CustomEvent} */ (event).detail), { signal });
    commands.add({ title: "Upload files", icon: "upload", group: "Storage", run: () => this.choose() }, signal);
    commands.add(
      {
        title: "Find in this folder",
        icon: "search",
        group: "Storage",
        keys: "/",
        run: () => /** @type {HTMLElement | null} */ (this.querySelector("input[type=search]"))?.focus(),
      },
      signal,
    );
  }

  disconnected() {
    this.open?.life.abort();
    this.open = null;
    clearTimeout(this.refreshing);
    this.sizes.disconnect();
    this.watched = null;
    removals.send();
  }

  routed() {
    const { bucket, folder, sort, descending, find, contains } = this.place;
    const listed = JSON.stringify([bucket, folder, sort, descending, find, contains]);
    if (listed !== this.listed) {
      if (this.about?.name !== bucket) void this.look(bucket);
      this.listed = listed;
      this.selected.clear();
      this.entries = [];
      this.token = undefined;
      this.top = 0;
      this.filter();
      this.querySelector(".files")?.scrollTo(0, 0);
      this.more();
    }
    const file = this.route.query.get("file");
    const key = file === null ? null : folder + file;
    if (key !== (this.open?.key ?? null)) {
      this.open?.life.abort();
      this.open = null;
      if (key !== null) this.show(key);
    }
    this.update();
  }

  /** @param {string} bucket */
  async look(bucket) {
    if (this.about?.name !== bucket) this.about = null;
    try {
      const about = await api.get(adminPath(bucket), { signal: this.signal });
      if (bucket === this.place.bucket) this.about = about;
    } catch {
      // Without it there are no rules to change; what is in it says what is wrong.
    }
    this.update();
  }

  /** @param {number} size */
  query(size) {
    const { folder, sort, descending, find, contains, flat } = this.place;
    return {
      prefix: (contains ? folder : folder + find) || null,
      max_keys: size,
      ...(flat && { sort, order: descending ? "desc" : "asc" }),
      search: (contains && find) || null,
    };
  }

  /** Fetch the next page. */
  async more() {
    const token = this.token;
    if (token === null) return;
    const size = token === undefined ? FIRST_PAGE : PAGE;
    const page = await this.fetch((signal) => this.page(size, token, signal));
    if (page) this.replace(this.entries.concat(page.entries), page.next);
  }

  /** @template T @param {(signal: AbortSignal) => Promise<T>} work */
  async fetch(work) {
    const asking = (this.asking = {});
    const result = await this.run(work, "page");
    if (this.asking === asking) this.asking = null;
    return result;
  }

  /** @param {Entry[]} entries @param {string | null} token */
  replace(entries, token) {
    this.entries = entries;
    this.token = token;
    this.filter();
  }

  /** @param {number} size @param {string | undefined} token @param {AbortSignal} signal */
  async page(size, token, signal) {
    /** @type {import("./objects.js").Listing} */
    const { objects, folders, next_token } = await api.get(`${bucketPath(this.place.bucket)}/objects`, {
      query: { ...this.query(size), page_token: token },
      signal,
    });
    /** @type {Entry[]} */
    const entries = objects.map((object) => ({ name: object.key, object }));
    if (folders.length) {
      for (const name of folders) entries.push({ name, object: null });
      entries.sort((one, other) => (one.name < other.name ? -1 : 1));
    }
    return { entries, next: next_token };
  }

  /** Fetch again what was fetched, soon. */
  refresh() {
    clearTimeout(this.refreshing);
    this.refreshing = setTimeout(async () => {
      const wanted = Math.min(Math.max(this.entries.length + 1, FIRST_PAGE), REFRESHED);
      const found = await this.fetch(async (signal) => {
        /** @type {Entry[]} */
        let entries = [];
        let token;
        do {
          /** @type {Awaited<ReturnType<Folder["page"]>>} */
          const page = await this.page(Math.min(PAGE, wanted), token, signal);
          entries = entries.concat(page.entries);
          token = page.next ?? undefined;
        } while (token && entries.length < wanted);
        return { entries, token: token ?? null };
      });
      if (found) this.replace(found.entries, found.token);
    }, 200);
    this.look(this.place.bucket);
  }

  filter() {
    const { bucket } = this.place;
    this.shown = removals.hiding ? this.entries.filter(({ name }) => !removals.hides(bucket, name)) : this.entries;
    for (const name of this.selected) if (removals.hides(bucket, name)) this.selected.delete(name);
    this.update();
  }

  /** @param {import("./removals.js").Removal} removal */
  removed({ bucket, keys, folders }) {
    if (bucket !== this.place.bucket) return;
    const gone = new Set([...keys, ...folders]);
    this.entries = this.entries.filter(
      ({ name }) => !gone.has(name) && !folders.some((folder) => name.startsWith(folder)),
    );
    this.filter();
    this.look(bucket);
  }

  /** @param {import("./uploads.js").Upload} upload */
  stored({ bucket, key }) {
    if (bucket === this.place.bucket && key.startsWith(this.place.folder)) this.refresh();
  }

  /** @param {string} key */
  async show(key) {
    const open = { key, life: new AbortController() };
    this.open = open;
    const { bucket, folder } = this.place;
    await showFile({
      bucket,
      key,
      signal: open.life.signal,
      changed: () => this.refresh(),
      remove: () => this.erase([key]),
    });
    if (this.open !== open) return;
    this.open = null;
    if (this.fromList) history.back();
    else go(placeOf(bucket, folder), this.others({ file: null }), { replace: true });
    this.fromList = false;
  }

  /**
   * The query of the address with other values.
   * @param {Record<string, string | null>} values
   */
  others(values) {
    return { ...Object.fromEntries(this.route.query), file: null, ...values };
  }

  /** @param {Record<string, string | null>} values */
  turn(values, replace = false) {
    const { bucket, folder } = this.place;
    go(placeOf(bucket, folder), this.others(values), { replace });
  }

  scrolled() {
    const list = this.querySelector(".files");
    if (!list) return;
    const before = Math.floor(this.top / this.rowSize);
    this.top = list.scrollTop;
    if (before !== Math.floor(this.top / this.rowSize)) this.update();
  }

  measure() {
    const [list, row] = [".files", ".file-row"].map(
      (each) => /** @type {HTMLElement | null} */ (this.querySelector(each)),
    );
    const [window, size] = [list?.clientHeight ?? this.windowSize, row?.offsetHeight ?? this.rowSize];
    if (window === this.windowSize && size === this.rowSize) return;
    [this.windowSize, this.rowSize] = [window, size];
    this.update();
  }

  updated() {
    const list = this.querySelector(".files");
    if (!list) return;
    if (this.watched !== list) {
      this.sizes.disconnect();
      this.sizes.observe(list);
      this.watched = list;
    }
    const [from, to] = this.range;
    /** @type {HTMLElement} */ (list.querySelector(".before")).style.setProperty(
      "block-size",
      `${from * this.rowSize}px`,
    );
    /** @type {HTMLElement} */ (list.querySelector(".after")).style.setProperty(
      "block-size",
      `${(this.shown.length - to) * this.rowSize}px`,
    );
    const all = /** @type {HTMLInputElement | null} */ (this.querySelector(".all"));
    if (all) all.indeterminate = this.selected.size > 0 && this.selected.size < this.shown.length;
    if (this.token && !this.asking && !this.failure && to >= this.shown.length) this.more();
  }

  /** The rows that are in the document. */
  get range() {
    const from = Math.max(0, Math.floor(this.top / this.rowSize) - MARGIN);
    const to = Math.ceil((this.top + this.windowSize) / this.rowSize) + MARGIN;
    return [Math.min(from, this.shown.length), Math.min(to, this.shown.length)];
  }

  choose(folders = false) {
    /** @type {HTMLInputElement | null} */ (this.querySelector(folders ? ".choose-folder" : ".choose-files"))?.click();
  }

  /** @param {DataTransfer | FileList | null} given */
  async take(given) {
    if (!given) return;
    const { bucket, folder } = this.place;
    try {
      const [files] = await Promise.all([filesOf(given), this.look(bucket)]);
      const rules = this.about?.name === bucket ? this.about : null;
      uploads.add(
        bucket,
        files.map(({ key, file }) => ({ key: folder + key, file })),
        rules,
      );
    } catch (fault) {
      complain(fault);
    }
  }

  /** @param {DragEvent} event @param {number} step */
  drag(event, step) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    this.dropping = Math.max(0, this.dropping + step);
    if (step) this.update();
  }

  /** @param {DragEvent} event */
  drop(event) {
    this.drag(event, 0);
    this.dropping = 0;
    this.update();
    this.take(event.dataTransfer);
  }

  async newFolder() {
    const { bucket, folder } = this.place;
    const name = await dialog({
      title: "New folder",
      signal: this.signal,
      content: (/** @type {import("../../core/dialogs.js").Shown<string>} */ shown) => html`<form @submit=${(
        /** @type {any} */ event,
      ) => {
        event.preventDefault();
        shown.close(String(new FormData(event.target).get("name")));
      }}>
        <div class="dialog-body"><label class="field"><span>Name</span><input name="name" required autocomplete="off" spellcheck="false" autofocus>
          <small>It is there once there is a file in it.</small></label></div>
        <footer class="dialog-foot"><button type="button" @click=${() => shown.close()}>Cancel</button><button class="primary">Go there</button></footer>
      </form>`,
    });
    if (name) go(placeOf(bucket, `${folder}${name}`));
  }

  /** @param {string[]} names */
  async erase(names) {
    const { bucket } = this.place;
    const removal = {
      bucket,
      keys: names.filter((name) => !name.endsWith("/")),
      folders: names.filter((name) => name.endsWith("/")),
    };
    const large = JSON.stringify(removal).length > MOST_BYTES;
    if (removal.folders.length || large) {
      let text = large ? "That many are deleted at once, and it cannot be undone." : "";
      if (removal.folders.length) {
        const used = await this.run(
          (signal) =>
            Promise.all(
              removal.folders.map((prefix) => api.get(`${adminPath(bucket)}/usage`, { query: { prefix }, signal })),
            ),
          "usage",
        );
        if (!used) return;
        const [files, size] = [
          used.reduce((sum, each) => sum + each.object_count, 0),
          used.reduce((sum, each) => sum + each.total_bytes, 0),
        ];
        text = `In ${removal.folders.length === 1 ? "the folder" : "the folders"}: ${counted(files, "file")}, ${bytes(size)}. ${text}`;
      }
      if (
        !(await confirm({
          title: `Delete ${named(removal)}?`,
          text,
          action: `Delete ${named(removal)}`,
          danger: true,
          signal: this.signal,
        }))
      )
        return;
    }
    this.selected.clear();
    if (large) removals.now(removal);
    else removals.later(removal);
  }

  /** @param {"move" | "copy"} how @param {string[]} names */
  async transfer(how, names) {
    if (!(await transfer({ how, bucket: this.place.bucket, names }, this.signal))) return;
    this.selected.clear();
    this.refresh();
  }

  async download() {
    try {
      for (const name of this.selected) if (!name.endsWith("/")) await save(this.place.bucket, name);
    } catch (fault) {
      complain(fault);
    }
  }

  /** @param {MouseEvent} event @param {string} name */
  select(event, name) {
    const chosen = /** @type {HTMLInputElement} */ (event.target).checked;
    const names = this.shown.map((entry) => entry.name);
    const [one, other] =
      event.shiftKey && this.last ? [names.indexOf(this.last), names.indexOf(name)].sort((a, b) => a - b) : [-1, -1];
    for (const each of one < 0 ? [name] : names.slice(one, other + 1))
      chosen ? this.selected.add(each) : this.selected.delete(each);
    this.last = name;
    this.update();
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const row = /** @type {HTMLElement} */ (event.target).closest(".file-row");
    const next = row && { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    const link = next && /** @type {HTMLElement | null} */ (next.querySelector("a"));
    if (!link) return;
    event.preventDefault();
    link.focus();
  }

  template() {
    const { about, failure, shown, selected, dropping } = this;
    const { bucket, folder } = this.place;
    return html`<div class=${dropping ? "page whole storage dropping" : "page whole storage"}
        @dragenter=${(/** @type {DragEvent} */ event) => this.drag(event, 1)} @dragover=${(/** @type {DragEvent} */ event) => this.drag(event, 0)}
        @dragleave=${(/** @type {DragEvent} */ event) => this.drag(event, -1)} @drop=${(/** @type {DragEvent} */ event) => this.drop(event)}>
      <header class="head">
        ${this.crumbs()}
        <div class="tools">
          <button type="button" class="primary" @click=${() => this.choose()}>${icon("upload")}Upload</button>
          <button type="button" class="not-narrow" aria-label="Upload folder" title="Upload folder" @click=${() => this.choose(true)}>${icon("upload")}<span>Upload folder</span></button>
          <button type="button" aria-label="New folder" title="New folder" @click=${() => this.newFolder()}>${icon("folder")}<span>New folder</span></button>
          <a class="button" aria-label="Links" title="Links" href=${href(placeOf(bucket, ""), { show: "links" })}>${icon("link")}<span>Links</span></a>
          <button type="button" aria-label="Rules" title="Rules" ?disabled=${!about} @click=${async () => about && (await editRules(about, this.signal)) && this.look(bucket)}>${icon("settings")}<span>Rules</span></button>
        </div>
        <input type="file" class="choose-files" multiple hidden @change=${(/** @type {any} */ event) => (this.take(event.target.files), (event.target.value = ""))}>
        <input type="file" class="choose-folder" .webkitdirectory=${true} hidden @change=${(/** @type {any} */ event) => (this.take(event.target.files), (event.target.value = ""))}>
      </header>
      ${selected.size ? this.selection() : this.finding()}
      ${
        failure
          ? html`<p role="alert" class="note danger">${icon("alert")}<span><bdi>${failure.message}</bdi></span>
          <button type="button" @click=${() => ((this.failure = null), this.entries.length ? this.update() : this.more())}>Try again</button>
          <a href=${href(["storage"])}>All buckets</a></p>`
          : nothing
      }
      ${
        shown.length || this.token
          ? this.list()
          : this.token === undefined
            ? failure
              ? nothing
              : html`<p class="busy" role="status">Asking what is in it…</p>`
            : this.nothingHere()
      }
      <p class="drop-here" aria-hidden="true">${icon("upload")}Drop files to upload them into ${folder ? lastOf(folder) : bucket}</p>
      <ps-uploads></ps-uploads>
    </div>`;
  }

  crumbs() {
    const { bucket, folder } = this.place;
    const names = folder.split("/").filter(Boolean);
    const steps = [
      { title: "Buckets", to: ["storage"] },
      ...[bucket, ...names].map((title, index) => ({ title, to: placeOf(bucket, names.slice(0, index).join("/")) })),
    ];
    return html`<nav class="crumbs grow" aria-label="Folders"><ol>${steps.map(({ title, to }, index) =>
      index === steps.length - 1
        ? html`<li><h1 class="clip"><bdi>${title}</bdi></h1></li>`
        : html`<li><a class="clip" href=${href(to)}><bdi>${title}</bdi></a></li>`,
    )}</ol></nav>`;
  }

  finding() {
    const { find, contains, flat, folder, bucket } = this.place;
    const number = this.token ? `${count(this.shown.length)} so far` : counted(this.shown.length, "entry", "entries");
    return html`<form class="tools" role="search" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <select aria-label="How to find" @change=${(/** @type {any} */ event) => this.turn({ how: event.target.value || null }, true)}>
        <option value="" ?selected=${!contains}>Begins with</option><option value="contains" ?selected=${contains}>Contains</option></select>
      <input type="search" aria-label="Find by name" placeholder="Name" maxlength="200" .value=${find} autocomplete="off" spellcheck="false"
        @input=${(/** @type {any} */ event) => this.turn({ find: event.target.value || null }, true)}>
      <button type="button" class="icon-button" aria-label="Refresh" title="Refresh" @click=${() => this.refresh()}>${icon("refresh")}</button>
      <button type="button" class="quiet" @click=${() => showCode({ path: `${bucketPath(bucket)}/objects`, query: this.query(100) }, this.signal)}>${icon("sql")}Code</button>
      <span class="quiet" role="status"><bdi>${flat ? `All files below ${folder ? lastOf(folder) : bucket}: ` : ""}${this.token === undefined ? "…" : number}</bdi></span>
    </form>`;
  }

  selection() {
    const names = [...this.selected];
    const files = names.filter((name) => !name.endsWith("/"));
    const move = names.length === 1 ? "Rename or move" : "Move";
    return html`<div class="tools selection" role="group" aria-label="What is selected">
      <b role="status"><bdi>${count(names.length)} selected</bdi></b>
      ${files.length === names.length ? html`<button type="button" aria-label="Download" title="Download" @click=${() => this.download()}>${icon("download")}<span>Download</span></button>` : nothing}
      <button type="button" aria-label=${move} title=${move} @click=${() => this.transfer("move", names)}>${icon("edit")}<span>${move}</span></button>
      <button type="button" aria-label="Copy" title="Copy" @click=${() => this.transfer("copy", names)}>${icon("copy")}<span>Copy</span></button>
      <button type="button" class="danger" @click=${() => this.erase(names)}>${icon("remove")}Delete</button>
      <button type="button" class="quiet" @click=${() => (this.selected.clear(), this.update())}>Clear</button>
    </div>`;
  }

  nothingHere() {
    const { find } = this.place;
    return find
      ? html`<div class="empty card">${icon("search")}<h2>Nothing has this name</h2><button type="button" @click=${() => this.turn({ find: null })}>Show all</button></div>`
      : html`<div class="empty card">${icon("folder")}<h2>Nothing is in here yet</h2><p>Drop files or folders here, or choose them.</p>
          <button type="button" class="primary" @click=${() => this.choose()}>${icon("upload")}Upload</button></div>`;
  }

  list() {
    const { shown, selected } = this;
    const { sort, descending } = this.place;
    const [from, to] = this.range;
    return html`<div class="files card" role="table" aria-label="Files and folders" aria-rowcount=${this.token ? -1 : shown.length + 1}
        @scroll=${() => this.scrolled()} @keydown=${(/** @type {KeyboardEvent} */ event) => this.pressed(event)}>
      <div role="rowgroup" class="head-group"><div role="row" class="file-head" aria-rowindex="1">
        <span role="columnheader"><input type="checkbox" class="all" aria-label="Select all that are shown" .checked=${selected.size > 0 && selected.size >= shown.length}
          @click=${(/** @type {any} */ event) => ((this.selected = new Set(event.target.checked ? shown.map(({ name }) => name) : [])), this.update())}></span>
        ${COLUMNS.map(
          ([
            name,
            title,
          ]) => html`<span role="columnheader" class=${`column-${name}`} aria-sort=${sort === name ? (descending ? "descending" : "ascending") : "none"}>
          <button type="button" class="quiet" @click=${() => this.turn({ sort: name === "key" ? null : name, order: (sort === name) === descending ? null : "desc" })}>
            ${title}${sort === name ? icon(descending ? "down" : "up") : nothing}</button></span>`,
        )}
        <span role="columnheader" class="column-type">Type</span>
      </div></div>
      <div role="rowgroup">
        <div class="before"></div>
        ${each(
          shown.slice(from, to),
          ({ name }) => name,
          (entry, index) => this.row(entry, from + index),
        )}
        <div class="after"></div>
      </div>
      ${this.token ? html`<p class="busy" role="status">Asking for more…</p>` : nothing}
    </div>`;
  }

  /** @param {Entry} entry @param {number} index */
  row({ name, object }, index) {
    const { bucket, folder, flat } = this.place;
    const title = cut(flat ? name.slice(folder.length) : lastOf(name), 900);
    const file = name.slice(folder.length);
    return html`<div role="row" class="file-row" aria-rowindex=${index + 2}>
      <span role="cell"><input type="checkbox" aria-label=${`Select ${title}`} .checked=${this.selected.has(name)} @click=${(/** @type {MouseEvent} */ event) => this.select(event, name)}></span>
      <span role="cell" class="column-key">${
        object
          ? html`<a class="clip" href=${href(placeOf(bucket, folder), this.others({ file }))} @click=${(/** @type {MouseEvent} */ event) => (this.fromList = !event.ctrlKey && !event.metaKey && !event.shiftKey)}>${icon("file")}<bdi>${title}</bdi></a>`
          : html`<a class="clip" href=${href(placeOf(bucket, name))}>${icon("folder")}<bdi>${title}</bdi></a>`
      }</span>
      <span role="cell" class="column-size"><bdi>${object ? bytes(object.size) : nothing}</bdi></span>
      <span role="cell" class="column-last_modified" title=${object && moment(object.last_modified)}><bdi>${object ? ago(object.last_modified) : nothing}</bdi></span>
      <span role="cell" class="column-type clip">${object ? cut(object.content_type, 100) : "Folder"}</span>
    </div>`;
  }
}
define("ps-folder", Folder);
