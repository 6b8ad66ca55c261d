/** Custom elements that show a template of their state. */

import { CHANGED, html, render } from "./html.js";

/**
 * An element whose content is `template()`. It has no shadow tree: the styles of the page are its own.
 *
 * Fields are its state; whoever changes one calls `update()`, and the element is shown anew before the next frame.
 * Properties that templates set update it by themselves.
 */
export class View extends HTMLElement {
  #pending = false;
  #present = new AbortController();

  /** Aborted when the element leaves the document. */
  get signal() {
    return this.#present.signal;
  }

  connectedCallback() {
    if (this.#present.signal.aborted) this.#present = new AbortController();
    this.connected();
    this.update();
  }

  disconnectedCallback() {
    this.#present.abort();
    this.disconnected();
  }

  /** Called when the element comes into the document. */
  connected() {}

  /** Called when it has left. */
  disconnected() {}

  /** Called after each rendering. */
  updated() {}

  /** @returns {unknown} */
  template() {
    return html``;
  }

  update() {
    if (this.#pending) return;
    this.#pending = true;
    queueMicrotask(() => {
      this.#pending = false;
      if (!this.isConnected) return;
      render(this.template(), this);
      this.updated();
    });
  }

  /**
   * The result of `work`, which is given a signal of the element's life. While it runs and after it failed the element
   * knows: `busy` and `failure` are set and the element is updated. Of an earlier run of the same `name` the result is
   * dropped and the signal aborted. Returns undefined if it failed, or was overtaken.
   * @template T
   * @param {(signal: AbortSignal) => Promise<T>} work
   * @param {string} [name]
   * @returns {Promise<T | undefined>}
   */
  async run(work, name = "") {
    const own = new AbortController();
    this.#runs.get(name)?.abort();
    this.#runs.set(name, own);
    this.busy = true;
    this.update();
    try {
      const result = await work(AbortSignal.any([own.signal, this.signal]));
      if (own.signal.aborted || this.signal.aborted) return undefined;
      this.failure = null;
      return result;
    } catch (fault) {
      if (!own.signal.aborted && !this.signal.aborted)
        this.failure = fault instanceof Error ? fault : new Error(String(fault));
      return undefined;
    } finally {
      if (this.#runs.get(name) === own) this.#runs.delete(name);
      this.busy = this.#runs.size > 0;
      this.update();
    }
  }

  /** @type {Map<string, AbortController>} */
  #runs = new Map();
  /** Whether something runs. */
  busy = false;
  /** @type {Error | null} What the last run failed with. */
  failure = null;

  [CHANGED]() {
    this.update();
  }
}

/** A page. `route` is the rest of its address; `routed` is called when the page is shown, and when that has changed. */
export class Page extends View {
  /** @type {import("./router.js").Route} */
  route = { parts: [], query: new URLSearchParams() };

  connectedCallback() {
    super.connectedCallback();
    this.routed();
  }

  routed() {
    this.update();
  }
}

/**
 * @param {string} name
 * @param {CustomElementConstructor} element
 */
export function define(name, element) {
  if (!customElements.get(name)) customElements.define(name, element);
}
