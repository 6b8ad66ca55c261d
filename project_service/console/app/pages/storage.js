/** Storage: the buckets, and what is in one of them. */

import { html } from "../core/html.js";
import { go } from "../core/router.js";
import { define, Page } from "../core/view.js";
import { Buckets } from "./storage/buckets.js";
import "./storage/folder.js";
import "./storage/links.js";
import "./storage/uploading.js";

class StoragePage extends Page {
  updated() {
    const part = this.firstElementChild;
    if (part instanceof Page) part.routed();
    // "#/storage?new" asks for a new bucket.
    if (part instanceof Buckets && this.route.query.has("new")) {
      go(["storage"], {}, { replace: true });
      part.edit();
    }
  }

  template() {
    if (!this.route.parts.length) return html`<ps-buckets></ps-buckets>`;
    if (this.route.query.get("show") === "links") return html`<ps-links .route=${this.route}></ps-links>`;
    return html`<ps-folder .route=${this.route}></ps-folder>`;
  }
}
define("ps-storage", StoragePage);
