/** Short notices of what happened, at the end of the window, with a way to undo it. */

import { commands, takesText } from "./commands.js";
import { each, html, nothing, render } from "./html.js";
import { icon } from "./icons.js";

/**
 * @typedef {{ kind?: "done" | "error", action?: string, run?: () => void, undo?: () => void, over?: () => unknown, seconds?: number }} About
 * `over` is called when the notice goes and it was not undone.
 */
/** @typedef {{ id: number, text: string, about: About, timer: number }} Notice */

const SECONDS = 6;
/** To read what was done, think again, and come to the button. */
const UNDO_SECONDS = 20;
const MOST = 5;

/** @type {Notice[]} */
let notices = [];
let last = 0;
/** @type {HTMLElement | undefined} */
let place;

/** What has only to be read. @param {About} about */
const isPlain = ({ kind = "done", undo, run, seconds }) => kind === "done" && !undo && !run && seconds === undefined;

/**
 * Say that something happened. Errors stay until they are closed; the rest goes by itself after some seconds, but not
 * while the pointer or the focus is on it. `undo` is offered as a button and by Ctrl-Z, and so is `run` by the name
 * `action`. What was said before goes, if there was nothing to do about it. Returns a function that takes the notice away.
 * @param {string} text
 * @param {About} [about]
 */
export function notify(text, about = {}) {
  const notice = { id: ++last, text, about, timer: 0 };
  if (isPlain(about)) for (const old of notices.filter((one) => isPlain(one.about))) leave(old);
  notices = [...notices, notice];
  start(notice);
  for (const old of notices.slice(0, -MOST)) leave(old);
  show();
  return () => leave(notice);
}

/**
 * Say why something failed; nothing of what was cancelled.
 * @param {unknown} fault
 */
export function complain(fault) {
  if (fault instanceof Error && fault.name === "AbortError") return;
  notify(fault instanceof Error ? fault.message : String(fault), { kind: "error" });
}

/** @param {Notice} notice */
function start(notice) {
  const { kind, undo, seconds = kind === "error" ? 0 : undo ? UNDO_SECONDS : SECONDS } = notice.about;
  clearTimeout(notice.timer);
  if (seconds && notices.includes(notice)) notice.timer = setTimeout(() => leave(notice), seconds * 1000);
}

/** @param {Notice} notice @param {() => void} [instead] What is done instead of what comes when it is over. */
function leave(notice, instead = notice.about.over) {
  if (!notices.includes(notice)) return;
  clearTimeout(notice.timer);
  notices = notices.filter((one) => one !== notice);
  show();
  instead?.();
}

addEventListener("keydown", (event) => {
  const notice = notices.findLast(({ about }) => about.undo);
  if (!notice || event.defaultPrevented || !commands.fits("Mod+Z", event) || takesText(event.target)) return;
  event.preventDefault();
  leave(notice, notice.about.undo);
});

function show() {
  if (!place) {
    place = document.createElement("section");
    place.className = "notices";
    place.setAttribute("aria-label", "Notices");
    // Above dialogs.
    place.popover = "manual";
    document.body.append(place);
  }
  render(
    each(
      notices,
      (notice) => notice.id,
      (notice) => {
        const { text, about } = notice;
        const run = about.undo ?? about.run;
        const stop = () => clearTimeout(notice.timer);
        /** @param {Event} event */
        const goOn = ({ currentTarget, type }) =>
          /** @type {Element} */ (currentTarget).matches(type === "focusout" ? ":hover" : ":focus-within") ||
          start(notice);
        return html`<div class=${`notice ${about.kind ?? "done"}`} role=${about.kind === "error" ? "alert" : "status"}
            @pointerenter=${stop} @focusin=${stop} @pointerleave=${goOn} @focusout=${goOn}>
          ${icon(about.kind === "error" ? "alert" : about.over ? "remove" : "check")}
          <p><bdi>${text}</bdi></p>
          ${
            run
              ? html`<button type="button" class="quiet" title=${about.undo ? commands.label("Mod+Z") : null} @click=${() => leave(notice, run)}>${about.undo ? "Undo" : about.action}</button>`
              : nothing
          }
          <button type="button" class="icon-button" aria-label="Close" title="Close" @click=${() => leave(notice)}>${icon("close")}</button>
        </div>`;
      },
    ),
    place,
  );
  // Again on top, if a dialog was opened since; but the focus would be lost by that.
  const open = place.matches(":popover-open");
  if (open && notices.length && place.contains(document.activeElement)) return;
  if (open) place.hidePopover();
  if (notices.length) place.showPopover();
}
