/**
 * Templates: state to DOM, and only the difference.
 *
 *     render(html`<p title=${title}>${count} rows</p>`, element)
 *
 * A hole stands for the whole value of an attribute or for content:
 *
 * - `name=${value}`: an attribute; null, undefined and false remove it.
 * - `?name=${value}`: an attribute that is there or not.
 * - `.name=${value}`: a property of the element.
 * - `@name=${function}`: a listener.
 * - `${value}` as content: text (never markup), a template, a node, an array of those, or nothing (null, undefined, false).
 *
 * Only the literal parts of templates are ever parsed as HTML; a policy of Trusted Types sees to it that nothing else
 * in the console is.
 */

/** @typedef {{ strings: TemplateStringsArray, values: readonly unknown[], svg: boolean }} Template */
/** @typedef {{ items: readonly any[], key: (item: any) => unknown, template: (item: any, index: number) => unknown }} Each */
/** @typedef {{ kind: "content" | "attribute" | "boolean" | "property" | "listener", name: string, node: number }} Hole */

/** What is there in place of nothing. */
export const nothing = null;
/** A method of elements that is called after a property of theirs was set by a template. */
export const CHANGED = Symbol("changed");

const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("console", {
  createHTML: (/** @type {string} */ text) => text,
});
const TEMPLATE = Symbol("template");
const EACH = Symbol("each");

/**
 * @param {TemplateStringsArray} strings
 * @param {unknown[]} values
 * @returns {Template}
 */
export function html(strings, ...values) {
  return /** @type {any} */ ({ [TEMPLATE]: true, strings, values, svg: false });
}

/**
 * As `html`, for what is inside an `<svg>`.
 * @param {TemplateStringsArray} strings
 * @param {unknown[]} values
 * @returns {Template}
 */
export function svg(strings, ...values) {
  return /** @type {any} */ ({ [TEMPLATE]: true, strings, values, svg: true });
}

/**
 * A template for each item. Elements stay those of their item while `key(item)`, unique in the list, is the same.
 * @template T
 * @param {readonly T[]} items
 * @param {(item: T) => unknown} key
 * @param {(item: T, index: number) => unknown} template
 * @returns {Each}
 */
export function each(items, key, template) {
  return /** @type {any} */ ({ [EACH]: true, items, key, template });
}

/** @template T @param {T} item */
const same = (item) => item;

/** @type {WeakMap<TemplateStringsArray, Compiled>} */
const compiled = new WeakMap();
/** @type {WeakMap<Node, Content>} */
const roots = new WeakMap();

/**
 * Make `container` hold what `value` says: the first time in place of what it held, then by the difference.
 * @param {unknown} value
 * @param {Element | DocumentFragment} container
 */
export function render(value, container) {
  let content = roots.get(container);
  if (!content) {
    container.replaceChildren();
    content = new Content(container);
    roots.set(container, content);
  }
  content.set(value);
}

/** A template as DOM, with the places of its holes. */
class Compiled {
  /** @param {Template} template */
  constructor({ strings, svg }) {
    if (!Array.isArray(strings.raw) || !Object.isFrozen(strings)) throw new TypeError("not a template");
    /** @type {Hole[]} */
    this.holes = [];
    let text = "";
    strings.forEach((part, index) => {
      text += part;
      if (index === strings.length - 1) return;
      if (text.lastIndexOf("<") > text.lastIndexOf(">")) {
        const attribute = /\s([.?@]?)([\w-]+)=$/.exec(text);
        if (!attribute || /^(on|srcdoc$|style$)/.test(attribute[2]))
          throw new SyntaxError(`no hole after ${part.slice(-40)}`);
        const kinds = /** @type {const} */ ({ "": "attribute", ".": "property", "?": "boolean", "@": "listener" });
        const kind = kinds[/** @type {keyof typeof kinds} */ (attribute[1])];
        this.holes.push({ kind, name: attribute[2], node: -1 });
        text = `${text.slice(0, attribute.index)} hole-${index}=""`;
      } else {
        this.holes.push({ kind: "content", name: "", node: -1 });
        text += `<!--hole-${index}-->`;
      }
    });
    const element = document.createElement("template");
    const whole = svg ? `<svg>${text}</svg>` : text;
    element.innerHTML = policy ? policy.createHTML(whole) : whole;
    if (svg) {
      const outer = /** @type {Element} */ (element.content.firstChild);
      outer.replaceWith(...outer.childNodes);
    }
    this.content = element.content;
    let number = 0;
    for (const node of nodes(this.content)) {
      if (node instanceof Element) {
        for (const name of node.getAttributeNames().filter((each) => each.startsWith("hole-"))) {
          this.holes[Number(name.slice(5))].node = number;
          node.removeAttribute(name);
        }
      } else if (/^hole-\d+$/.test(node.nodeValue ?? "")) {
        this.holes[Number(node.nodeValue?.slice(5))].node = number;
        node.nodeValue = "";
      }
      number++;
    }
    const lost = this.holes.findIndex((hole) => hole.node < 0);
    if (lost >= 0) throw new SyntaxError(`hole ${lost} cannot be where it is: ${strings[lost].slice(-60)}`);
  }

  /** @param {Template} template */
  static of(template) {
    let made = compiled.get(template.strings);
    if (!made) compiled.set(template.strings, (made = new Compiled(template)));
    return made;
  }
}

/** @param {Node} root */
function* nodes(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_COMMENT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) yield node;
}

/** A template in the document. */
class Instance {
  /** @param {Compiled} template */
  constructor(template) {
    this.template = template;
    this.fragment = document.importNode(template.content, true);
    const found = [...nodes(this.fragment)];
    this.parts = template.holes.map((hole) => {
      const node = found[hole.node];
      if (hole.kind === "content") return Content.at(/** @type {Comment} */ (node));
      return new Attribute(/** @type {Element} */ (node), hole);
    });
  }

  /** @param {readonly unknown[]} values */
  update(values) {
    this.parts.forEach((part, index) => part.set(values[index]));
  }
}

class Attribute {
  /** @type {unknown} */
  value = undefined;

  /**
   * @param {Element} element
   * @param {Hole} hole
   */
  constructor(element, { kind, name }) {
    this.element = element;
    this.kind = kind;
    this.name = name;
    if (kind === "listener") element.addEventListener(name, this);
  }

  /** @param {Event} event */
  handleEvent(event) {
    if (typeof this.value === "function") this.value.call(this.element, event);
  }

  /** @param {unknown} value */
  set(value) {
    const { element, kind, name } = this;
    const same = value === this.value;
    this.value = value;
    if (kind === "property") {
      const target = /** @type {any} */ (element);
      // What people type changes these without a template.
      if (name === "value" || name === "checked" ? target[name] !== value : !same) {
        target[name] = value;
        target[CHANGED]?.(name);
      }
    } else if (kind === "boolean") {
      element.toggleAttribute(name, Boolean(value));
    } else if (kind === "attribute" && !same) {
      if (value === null || value === undefined || value === false) element.removeAttribute(name);
      else element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/** Content between two comments, or of a whole container. */
class Content {
  /** @type {Instance | Map<unknown, Content> | Node | null} */
  shown = null;

  /**
   * @param {Node} parent
   * @param {Comment | null} [start]
   * @param {Comment | null} [end]
   */
  constructor(parent, start = null, end = null) {
    this.container = start ? null : parent;
    this.start = start;
    this.end = end;
  }

  /** @param {Comment} start */
  static at(start) {
    const end = document.createComment("");
    start.after(end);
    return new Content(start, start, end);
  }

  get parent() {
    return /** @type {Node} */ (this.container ?? this.end?.parentNode);
  }

  get first() {
    return this.start ? this.start.nextSibling : this.parent.firstChild;
  }

  /** @param {unknown} value */
  set(value) {
    if (Array.isArray(value)) return this.#each({ items: value, key: same, template: same, byIndex: true });
    const given = /** @type {any} */ (value);
    if (value === null || value === undefined || value === false || value === true) this.clear();
    else if (given[TEMPLATE]) this.#template(given);
    else if (given[EACH]) this.#each(given);
    else if (value instanceof Node) this.#node(value);
    else this.#text(String(value));
  }

  clear() {
    for (let node = this.first; node && node !== this.end;) {
      const next = node.nextSibling;
      node.remove();
      node = /** @type {ChildNode | null} */ (next);
    }
    this.shown = null;
  }

  /** @param {Node} node */
  insert(node) {
    this.parent.insertBefore(node, this.end);
  }

  /** @param {Template} template */
  #template(template) {
    const compiled = Compiled.of(template);
    if (this.shown instanceof Instance && this.shown.template === compiled) return this.shown.update(template.values);
    this.clear();
    const instance = new Instance(compiled);
    instance.update(template.values);
    this.insert(instance.fragment);
    this.shown = instance;
  }

  /** @param {Node} node */
  #node(node) {
    if (this.shown === node && node.parentNode === this.parent) return;
    this.clear();
    this.insert(node);
    this.shown = node;
  }

  /** @param {string} text */
  #text(text) {
    if (this.shown instanceof Text && this.shown.parentNode) {
      if (this.shown.data !== text) this.shown.data = text;
      return;
    }
    this.clear();
    this.insert((this.shown = document.createTextNode(text)));
  }

  /** @param {Each & { byIndex?: boolean }} list */
  #each({ items, key, template, byIndex }) {
    if (!(this.shown instanceof Map)) {
      this.clear();
      this.shown = new Map();
    }
    const before = this.shown;
    const keys = items.map((item, index) => (byIndex ? index : key(item)));
    const kept = new Set(keys);
    if (kept.size < keys.length) throw new Error("two items of a list have the same key");
    for (const [each, content] of before) {
      if (kept.has(each)) continue;
      content.clear();
      content.start?.remove();
      content.end?.remove();
      before.delete(each);
    }
    /** @type {Map<unknown, Content>} */
    const after = new Map();
    let next = this.first;
    items.forEach((item, index) => {
      let content = before.get(keys[index]);
      if (!content) {
        const start = document.createComment("");
        this.parent.insertBefore(start, next);
        content = Content.at(start);
      } else if (content.start !== next) {
        for (let node = /** @type {ChildNode | null} */ (content.start); node;) {
          const following = node === content.end ? null : node.nextSibling;
          this.parent.insertBefore(node, next);
          node = following;
        }
      }
      content.set(template(item, index));
      next = /** @type {Comment} */ (content.end).nextSibling;
      after.set(keys[index], content);
    });
    this.shown = after;
  }
}
