/** Dialogs: what has to be answered before anything else. */

import { html, nothing, render } from "./html.js";
import { icon } from "./icons.js";

/**
 * @template T
 * @typedef {object} Dialog
 * @property {string} title
 * @property {(dialog: Shown<T>) => unknown} content The template; it is given the dialog, to close and to update it.
 * @property {"small" | "wide" | "side"} [size] "side" is a panel at the end of the window.
 * @property {AbortSignal} [signal] Closes it, with undefined.
 * @property {() => boolean} [holds] While it returns true, neither Escape nor a click beside it closes it.
 */
/**
 * @template T
 * @typedef {{ close(value?: T): void, update(): void, element: HTMLDialogElement, signal: AbortSignal }} Shown
 */

let number = 0;

/**
 * Show a dialog. Returns what it was closed with; undefined if it was left by Escape or by its button.
 * @template T
 * @param {Dialog<T>} about
 * @returns {Promise<T | undefined>}
 */
export function dialog({ title, content, size = "small", signal, holds = () => false }) {
  const element = document.createElement("dialog");
  element.className = `dialog ${size}`;
  const heading = `dialog-${++number}`;
  element.setAttribute("aria-labelledby", heading);
  const life = new AbortController();
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  return new Promise((resolve) => {
    /** @type {T | undefined} */
    let result;
    const shown = {
      element,
      signal: life.signal,
      /** @param {T} [value] */
      close(value) {
        result = value;
        element.close();
      },
      update() {
        render(
          html`<header class="dialog-head">
              <h2 id=${heading}><bdi>${title}</bdi></h2>
              <button type="button" class="icon-button" aria-label="Close" title="Close" @click=${() => shown.close()}>${icon("close")}</button>
            </header>
            ${content(shown)}`,
          element,
        );
      },
    };
    element.addEventListener("close", () => {
      life.abort();
      element.remove();
      if (before?.isConnected) before.focus();
      resolve(result);
    });
    signal?.addEventListener("abort", () => element.close());
    for (const name of ["keydown", "cancel"])
      element.addEventListener(name, (event) => {
        if (event instanceof KeyboardEvent ? event.key === "Escape" : event.target === element)
          holds() && event.preventDefault();
      });
    // A click beside it, which began there as well: whoever selects text may end outside.
    let began = false;
    element.addEventListener("pointerdown", (event) => (began = event.target === element && outside(element, event)));
    element.addEventListener(
      "click",
      (event) => began && event.target === element && outside(element, event) && !holds() && element.close(),
    );
    document.body.append(element);
    shown.update();
    element.showModal();
    /** @type {HTMLElement | null} */ (
      element.querySelector("[autofocus], .dialog-body input, .dialog-body select, .dialog-body textarea")
    )?.focus();
  });
}

/**
 * @param {HTMLElement} element
 * @param {MouseEvent} event
 */
function outside(element, event) {
  const box = element.getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom;
}

/**
 * Ask before something is done. `action` names it: "Delete 3 rows". With `word` that has to be typed first.
 * @param {{ title: string, text?: unknown, action: string, danger?: boolean, word?: string, signal?: AbortSignal }} about
 * @returns {Promise<boolean>}
 */
export async function confirm({ title, text, action, danger = false, word, signal }) {
  const done = await dialog({
    title,
    signal,
    content: (/** @type {Shown<boolean>} */ shown) => html`<form method="dialog" @submit=${(
      /** @type {Event} */ event,
    ) => {
      event.preventDefault();
      shown.close(true);
    }}>
      <div class="dialog-body">
        ${text ? html`<p>${text}</p>` : nothing}
        ${
          word
            ? html`<label class="field"><span>Type <code>${word}</code> to go on</span>
              <input name="word" autocomplete="off" spellcheck="false" required .pattern=${word.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")}></label>`
            : nothing
        }
      </div>
      <footer class="dialog-foot">
        <button type="button" @click=${() => shown.close(false)}>Cancel</button>
        <button class=${danger ? "danger" : "primary"} ?autofocus=${!word}>${action}</button>
      </footer>
    </form>`,
  });
  return done === true;
}
