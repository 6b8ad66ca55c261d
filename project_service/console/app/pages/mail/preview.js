/**
 * An e-mail as it looks, without what it could do. It is in a frame without scripts, forms, windows and anything from
 * elsewhere. The policy of the console allows no styles inside a document either, so those of the e-mail are put on its
 * elements from outside, and its links are shown instead of followed.
 */

/** What loads or runs something; such names are hidden from the parser, which would only complain. */
const DEEDS =
  /([\s"'/])(style|on\w+|srcset|src(?!\s*=\s*["']?data:image\/)|background|poster|action|formaction|data|srcdoc|ping)(\s*=)/gi;
const TAG = /<[a-z](?:"[^"]*"|'[^']*'|[^'">])*>/gi;
const ELEMENTS =
  /<(\/?)(script|link|meta|base|iframe|frame|frameset|object|embed|applet|portal|svg|math|video|audio|noscript|template)\b/gi;
const STYLES = /<style\b[^>]*>([\s\S]*?)(?:<\/style\s*>|$)/gi;
const SCRIPTS = /<script\b[\s\S]*?(?:<\/script\s*>|$)/gi;
/** The policy of the console lets pictures come from the service itself, to which e-mails have nothing to say. */
const POLICY = `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:">`;
const REMOTE = /\bdata-ps-(?:src|srcset|background|poster)\s*=\s*["']?\s*(?:https?:)?\/\//i;

/**
 * @param {string} text The HTML of an e-mail.
 * @returns {{ html: string, css: string, remote: boolean }} What a frame can show, the styles for it, and whether something from elsewhere is left out.
 */
export function harmless(text) {
  const css = [...text.matchAll(STYLES)].map((one) => one[1]).join("\n");
  const html = text
    .replace(STYLES, "")
    .replace(SCRIPTS, "")
    .replace(TAG, (tag) => tag.replace(DEEDS, "$1data-ps-$2$3"))
    .replace(ELEMENTS, "<$1x-$2")
    .replace(/^\s*(?:<!doctype[^>]*>)?/i, (begin) => begin + POLICY);
  return { html, css: local(css), remote: REMOTE.test(html) || /url\(/i.test(css) };
}

/** @param {string} css */
const local = (css) => css.replace(/url\([^)]*\)?/gi, "none").replace(/@import[^;]*;?/gi, "");

/**
 * Give the e-mail in a frame its styles, its height, and have its links told to `followed`.
 * @param {HTMLIFrameElement} frame
 * @param {string} css
 * @param {(address: string) => void} followed
 */
export function dress(frame, css, followed) {
  const shown = frame.contentDocument;
  const view = /** @type {(Window & typeof globalThis) | null} */ (frame.contentWindow);
  if (!shown?.body || !view) return;
  const sheet = new view.CSSStyleSheet();
  sheet.replaceSync(`body { overflow-wrap: anywhere } ${css}`);
  shown.adoptedStyleSheets = [sheet];
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (shown.querySelectorAll("[data-ps-style]")))
    element.style.cssText = local(element.dataset.psStyle ?? "");
  const stop = (/** @type {Event} */ event) => {
    event.preventDefault();
    const link = /** @type {Element} */ (event.target).closest?.("a[href], area[href]");
    if (link) followed(/** @type {HTMLAnchorElement} */ (link).getAttribute("href") ?? "");
  };
  for (const name of ["click", "auxclick", "submit", "dragstart"]) shown.addEventListener(name, stop, true);
  frame.style.setProperty("block-size", `${Math.min(Math.max(shown.documentElement.scrollHeight, 120), 4000)}px`);
}

/** The addresses that links of an e-mail lead to, each once. @param {string} html @param {string} text */
export function links(html, text) {
  const found = [...html.matchAll(/<a\b[^>]*?\shref\s*=\s*(?:"([^"]*)"|'([^']*)')/gi)].map((one) =>
    unescaped(one[1] ?? one[2]),
  );
  const plain = text.match(/https?:\/\/[^\s<>"]+/g) ?? [];
  return [...new Set([...found, ...plain])].filter((one) => /^https?:\/\//i.test(one)).slice(0, 50);
}

/** @param {string} text */
const unescaped = (text) =>
  text
    .replace(
      /&(amp|quot|lt|gt|#39|#x27);/g,
      (_, name) => ({ amp: "&", quot: '"', lt: "<", gt: ">" })[/** @type {"amp"} */ (name)] ?? "'",
    )
    .trim();
