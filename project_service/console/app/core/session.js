/**
 * The service key of this tab. It is in the tab's session storage, which ends with the tab, and nowhere else: not in
 * an address, a cookie, the document or the storage that tabs share.
 */

const NAME = "project-service.key";
/** Told when the key was given or forgotten. */
export const session = new EventTarget();

export const key = () => sessionStorage.getItem(NAME);

/** @param {string} given */
export function begin(given) {
  sessionStorage.setItem(NAME, given);
  session.dispatchEvent(new Event("begun"));
}

/** @param {string} [why] What to tell whoever has to sign in again. */
export function end(why = "") {
  sessionStorage.clear();
  session.dispatchEvent(new CustomEvent("ended", { detail: why }));
}
