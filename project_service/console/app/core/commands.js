/** Commands: what can be done from the keyboard, by keys of their own or from the palette (Ctrl-K). */

import { dialog } from "./dialogs.js";
import { each, html, nothing } from "./html.js";
import { icon } from "./icons.js";

/** @typedef {{ title: string, icon?: string, group?: string, keys?: string, hidden?: boolean, run: () => void }} Command `keys`: "Mod+K" or "/", for example. One that is `hidden` is not in the palette. */

/**
 * Commands that have to be asked for, as those of tables. With `typed` they are asked for by what is typed, from so many
 * letters on; else once, when the palette opens. What it raises is taken as nothing found.
 * @typedef {{ typed?: number, find: (text: string, signal: AbortSignal) => Promise<Command[]> }} Source
 */

/** @type {Set<Command>} */
const known = new Set();
/** @type {Set<Source>} */
const sources = new Set();
/** As many are shown; more letters find the others. */
const MOST = 100;
/** After so many milliseconds without a letter more it is asked for. */
const PAUSE = 150;
const MAC = navigator.platform.startsWith("Mac");

/**
 * @param {Command} command
 * @param {AbortSignal} [signal] When it is aborted, the command is gone.
 */
function add(command, signal) {
  known.add(command);
  signal?.addEventListener("abort", () => known.delete(command));
}

/** @param {Source} source @param {AbortSignal} [signal] When it is aborted, the source is gone. */
function addSource(source, signal) {
  sources.add(source);
  signal?.addEventListener("abort", () => sources.delete(source));
}

/**
 * Those that fit: every word of `text` is in the title, in any order; better ones first.
 * @param {string} text
 * @param {Command[]} [more] What was asked for.
 */
function found(text, more = []) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return [...known, ...more]
    .filter((command) => !command.hidden)
    .map((command) => {
      const title = `${command.title} ${command.group ?? ""}`.toLowerCase();
      const places = words.map((word) => title.indexOf(word));
      return { command, place: places.includes(-1) ? Infinity : places.reduce((sum, place) => sum + place, 0) };
    })
    .filter(({ place }) => place < Infinity)
    .sort((one, other) => one.place - other.place)
    .map(({ command }) => command)
    .slice(0, MOST);
}

/**
 * Ask the sources; `changed` is called whenever one has answered. Returns what they have found, and what asks again for
 * what is typed.
 * @param {AbortSignal} signal
 * @param {() => void} changed
 */
function asking(signal, changed) {
  /** @type {Map<Source, Command[]>} */
  const answers = new Map();
  let own = new AbortController();
  let timer = 0;
  /** @param {Source} source @param {string} text @param {AbortSignal} until */
  const ask = async (source, text, until) => {
    const answer = await source.find(text, until).catch(() => []);
    if (until.aborted) return;
    answers.set(source, answer);
    changed();
  };
  signal.addEventListener("abort", () => (clearTimeout(timer), own.abort()));
  for (const source of sources) if (!source.typed) void ask(source, "", signal);
  return {
    get commands() {
      return [...answers.values()].flat();
    },
    /** @param {string} text */
    type(text) {
      own.abort();
      own = new AbortController();
      clearTimeout(timer);
      timer = setTimeout(() => {
        for (const source of sources)
          if (source.typed && text.trim().length >= source.typed) void ask(source, text.trim(), own.signal);
      }, PAUSE);
    },
  };
}

let open = false;

async function palette() {
  if (open) return;
  open = true;
  let text = "";
  let chosen = 0;
  /** @type {ReturnType<typeof asking> | undefined} */
  let asked;
  const command = await dialog({
    title: "Go to or do",
    content: (/** @type {import("./dialogs.js").Shown<Command>} */ shown) => {
      asked ??= asking(shown.signal, () => shown.update());
      const list = found(text, asked.commands);
      chosen = Math.max(0, Math.min(chosen, list.length - 1));
      /** @param {KeyboardEvent} event */
      const pressed = (event) => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (step) {
          event.preventDefault();
          chosen = (chosen + step + list.length) % Math.max(list.length, 1);
          shown.update();
          shown.element.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
        } else if (event.key === "Escape") {
          // Else it would only empty the field.
          event.preventDefault();
          shown.close();
        } else if (event.key === "Enter" && list[chosen]) {
          event.preventDefault();
          shown.close(list[chosen]);
        }
      };
      return html`<div class="dialog-body palette">
        <input type="search" role="combobox" aria-label="Command" aria-expanded="true" aria-controls="commands" aria-autocomplete="list"
          aria-activedescendant=${list.length ? `command-${chosen}` : null} placeholder="Type a few letters"
          autocomplete="off" spellcheck="false" autofocus @keydown=${pressed}
          @input=${(/** @type {Event} */ event) => {
            text = /** @type {HTMLInputElement} */ (event.target).value;
            chosen = 0;
            asked?.type(text);
            shown.update();
          }}>
        <div id="commands" role="listbox" aria-label="Commands">
          ${each(
            list,
            (one) => one,
            (
              one,
              index,
            ) => html`<div role="option" id=${`command-${index}`} aria-selected=${String(index === chosen)} @click=${() => shown.close(one)}>
              ${one.icon ? icon(one.icon) : nothing}<span><bdi>${one.title}</bdi></span>
              ${one.group ? html`<small><bdi>${one.group}</bdi></small>` : nothing}
              ${one.keys ? html`<kbd>${label(one.keys)}</kbd>` : nothing}
            </div>`,
          )}
        </div>
        ${list.length ? nothing : html`<p class="quiet">Nothing fits.</p>`}
      </div>`;
    },
  });
  open = false;
  command?.run();
}

/** @param {string} keys */
function label(keys) {
  return keys.replace("Mod", MAC ? "⌘" : "Ctrl").replaceAll("+", MAC ? "" : "+");
}

/**
 * @param {string} keys
 * @param {KeyboardEvent} event
 */
function fits(keys, event) {
  const wanted = keys.toLowerCase().split("+");
  const key = wanted.pop();
  return (
    event.key.toLowerCase() === key &&
    wanted.includes("mod") === (MAC ? event.metaKey : event.ctrlKey) &&
    wanted.includes("alt") === event.altKey &&
    (wanted.includes("shift") === event.shiftKey || !/^[a-z]$/.test(key ?? ""))
  );
}

/** @param {EventTarget | null} target */
export function takesText(target) {
  if (target instanceof HTMLInputElement) return !/^(checkbox|radio|button|submit|file)$/.test(target.type);
  return target instanceof HTMLElement && (target.isContentEditable || /^(TEXTAREA|SELECT)$/.test(target.tagName));
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing) return;
  const command = [...known].reverse().find((each) => each.keys && fits(each.keys, event));
  // A letter alone is text where text is taken, and dialogs have their own keys.
  if (
    !command ||
    (!command.keys?.includes("Mod") && (takesText(event.target) || document.querySelector("dialog[open]")))
  )
    return;
  event.preventDefault();
  command.run();
});

export const commands = { add, addSource, found, palette, label, fits };
