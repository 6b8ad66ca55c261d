/**
 * `<ps-chart>`: lines of values over time, which may be given anew at any moment. Nothing moves by itself.
 *
 *     html`<ps-chart .label=${"Requests"} .format=${v => `${count(v)}/s`} .span=${3600000} .series=${[
 *       { name: "all", points: [{ t: Date.now(), v: 12 }], area: true },
 *       { name: "failed", points: […], tone: "danger" },
 *     ]}></ps-chart>`
 *
 * It is as wide as its place and 180 px high, unless styles say otherwise (style/chart.css). The values at a moment are
 * shown under the pointer, and by the arrow keys, Home, End, PageUp and PageDown when it has the focus; Escape goes
 * back to the last ones. Screen readers have them in a table as well.
 *
 * Properties
 * - `label` (string): what is shown; also the heading.
 * - `series` (Series[]): at most six are told apart (by dashes as well as by colour). Points are in the order of time;
 *   one whose `v` is null is a gap.
 * - `span` (ms, or null): how much time the axis has, up to the last point; null is from the first to the last.
 * - `format` ((v: number) => string): values in words; compact numbers if not given.
 * - `binary` (boolean): the axis has multiples of a power of 2, for bytes.
 * - `ceiling` (number): the axis goes at least as far up; it begins at 0.
 * - `empty` (string): what is said where there is no value yet.
 *
 * @typedef {object} Series
 * @property {string} name
 * @property {readonly { t: number, v: number | null }[]} points `t` in ms since 1970
 * @property {boolean} [area] filled below
 * @property {"accent" | "good" | "warn" | "danger" | "quiet"} [tone]
 */

const TONES = /** @type {const} */ (["accent", "good", "warn", "danger", "quiet", "text"]);
const DASHES = ["", "6 3", "2 3", "9 3 2 3", "12 4", "1 4"];
const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const STEPS = [1, 5, 10, 30]
  .map((n) => n * SECOND)
  .concat(
    [1, 5, 10, 15, 30].map((n) => n * MINUTE),
    [1, 3, 6, 12, 24, 168, 720].map((n) => n * HOUR),
  );
/** Rows of the table for screen readers. */
const TOLD = 60;
const ROOM = { above: 8, below: 22, after: 8 };
const NUMBER = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const SHORT = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

/**
 * Marks of an axis from 0 up to at least `top`: at most `most` and the 0.
 *
 * @param {number} top
 * @param {number} most
 * @param {boolean} [binary]
 */
export function marks(top, most, binary = false) {
  if (!(top > 0) || !Number.isFinite(top)) return [0, 1];
  const raw = top / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const round = ([1, 2, 5, 10].find((n) => n * power >= raw * (1 - 1e-9)) ?? 10) * power;
  const step = binary ? 2 ** Math.ceil(Math.log2(raw)) : round;
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, at) => at * step);
}

/**
 * Moments between two at which a clock shows round times: at most `most`.
 *
 * @param {number} from
 * @param {number} to
 * @param {number} most
 */
export function moments(from, to, most) {
  const step = STEPS.find((step) => (to - from) / step <= most) ?? STEPS.at(-1) ?? HOUR;
  const zone = new Date(to).getTimezoneOffset() * MINUTE;
  const first = Math.ceil((from - zone) / step) * step + zone;
  const found = [];
  for (let t = first; t <= to && found.length <= most; t += step) found.push(t);
  return { step, found };
}

export class Chart extends HTMLElement {
  /** @type {readonly Series[]} */
  #series = [];
  /** @type {number | null} */
  #span = null;
  #format = (/** @type {number} */ v) => NUMBER.format(v);
  #binary = false;
  #ceiling = 0;
  #empty = "Nothing has been measured yet.";
  /** All moments for which there is a value, and the one that is looked at. @type {number[]} */
  #times = [];
  /** @type {number | null} */
  #at = null;
  #drawing = 0;
  #width = 0;
  #height = 0;
  /** Where the first and the last moment are. */
  #left = 0;
  #right = 0;
  #from = 0;
  #to = 0;
  #title = made("h3", "chart-title");
  #time = made("time", "chart-time");
  #legend = made("ul", "chart-legend");
  #plot = made("div", "chart-plot");
  #svg = drawn("svg", { "aria-hidden": "true" });
  #table = made("table", "unseen");
  #observer = new ResizeObserver(() => this.#draw());

  constructor() {
    super();
    this.#plot.append(this.#svg);
    this.#plot.addEventListener("pointermove", (event) => this.#look(this.#nearest(event)));
    this.#plot.addEventListener("pointerdown", (event) => this.#look(this.#nearest(event)));
    this.#plot.addEventListener("pointerleave", () => this.#look(null));
    this.#plot.addEventListener("blur", () => this.#look(null));
    this.#plot.addEventListener("keydown", (event) => this.#pressed(event));
  }

  connectedCallback() {
    if (!this.#plot.isConnected) {
      const head = made("div", "chart-head");
      head.append(this.#title, this.#time, this.#legend);
      this.append(head, this.#plot, this.#table);
    }
    this.#observer.observe(this.#plot);
    this.#draw();
  }

  disconnectedCallback() {
    this.#observer.disconnect();
    cancelAnimationFrame(this.#drawing);
    this.#drawing = 0;
  }

  get label() {
    return this.#title.textContent ?? "";
  }

  set label(text) {
    this.#title.textContent = text;
    this.#draw();
  }

  get series() {
    return this.#series;
  }

  set series(series) {
    this.#series = series;
    const looked = this.#at === null ? undefined : this.#times[this.#at];
    this.#times = [...new Set(series.flatMap(({ points }) => points.map(({ t }) => t)))].sort(
      (one, other) => one - other,
    );
    // Who looks at a moment goes on to look at it while others come.
    const at = looked === undefined ? -1 : this.#times.indexOf(looked);
    this.#at = at < 0 ? null : at;
    this.#draw();
  }

  get span() {
    return this.#span;
  }

  set span(span) {
    this.#span = span;
    this.#draw();
  }

  get format() {
    return this.#format;
  }

  set format(format) {
    this.#format = format;
    this.#draw();
  }

  get binary() {
    return this.#binary;
  }

  set binary(binary) {
    this.#binary = binary;
    this.#draw();
  }

  get ceiling() {
    return this.#ceiling;
  }

  set ceiling(ceiling) {
    this.#ceiling = ceiling;
    this.#draw();
  }

  get empty() {
    return this.#empty;
  }

  set empty(text) {
    this.#empty = text;
    this.#draw();
  }

  #draw() {
    if (this.isConnected) this.#drawing ||= requestAnimationFrame(() => this.#drawNow());
  }

  #drawNow() {
    this.#drawing = 0;
    this.#width = this.#plot.clientWidth;
    this.#height = this.#plot.clientHeight;
    this.#to = this.#times.at(-1) ?? 0;
    this.#from = this.#span === null ? (this.#times[0] ?? 0) : this.#to - this.#span;
    if (this.#from === this.#to) this.#from -= SECOND;
    this.#svg.setAttribute("viewBox", `0 0 ${this.#width} ${this.#height}`);
    const shapes = this.#times.length ? this.#shapes() : [this.#nothing()];
    this.#svg.replaceChildren(...shapes);
    this.#tellAll();
    this.#tell();
  }

  #nothing() {
    return text(this.#empty, { x: this.#width / 2, y: this.#height / 2, "text-anchor": "middle" });
  }

  /** @returns {SVGElement[]} */
  #shapes() {
    const shown = this.#series.map(({ points }) => points.filter(({ t }) => t >= this.#from));
    const highest = shown.flat().reduce((most, { v }) => Math.max(most, v ?? 0), this.#ceiling);
    const { above, below, after } = ROOM;
    const scale = marks(highest, Math.max(1, Math.floor((this.#height - above - below) / 40)), this.#binary);
    const top = scale.at(-1) ?? 1;
    const labels = scale.map((v) => this.#format(v));
    this.#left = 12 + 6.6 * Math.max(...labels.map((label) => label.length));
    this.#right = this.#width - after;
    const bottom = this.#height - below;
    const y = (/** @type {number} */ v) => bottom - (Math.max(0, v) / top) * (bottom - above);
    /** @type {SVGElement[]} */
    const shapes = [];
    for (const [at, v] of scale.entries()) {
      shapes.push(drawn("line", { class: "chart-grid", x1: this.#left, x2: this.#right, y1: y(v), y2: y(v) }));
      shapes.push(text(labels[at] ?? "", { x: this.#left - 6, y: y(v) + 4, "text-anchor": "end" }));
    }
    const { step, found } = moments(this.#from, this.#to, Math.max(1, Math.floor((this.#right - this.#left) / 80)));
    const clock = step < MINUTE ? CLOCK : step < 24 * HOUR ? SHORT : DAY;
    for (const t of found) {
      const x = this.#x(t);
      const anchor = x < this.#left + 20 ? "start" : x > this.#right - 20 ? "end" : "middle";
      shapes.push(text(clock.format(t), { x, y: this.#height - 6, "text-anchor": anchor }));
    }
    for (const [at, points] of shown.entries()) {
      const runs = this.#runs(points);
      const path = (/** @type {typeof points} */ run) =>
        run.map(({ t, v }, n) => `${n ? "L" : "M"}${this.#x(t).toFixed(1)} ${y(v ?? 0).toFixed(1)}`).join("");
      const tone = this.#tone(at);
      if (this.#series[at]?.area) {
        const filled = runs.map(
          (run) =>
            `${path(run)}L${this.#x(run.at(-1)?.t ?? 0).toFixed(1)} ${bottom}L${this.#x(run[0]?.t ?? 0).toFixed(1)} ${bottom}Z`,
        );
        shapes.push(drawn("path", { class: "chart-area", "data-tone": tone, d: filled.join("") }));
      }
      // A point by itself is a line of no length, and a dot, to be seen.
      const lines = runs.map((run) => (run.length === 1 ? `${path(run)}h0` : path(run)));
      shapes.push(
        drawn("path", {
          class: "chart-line",
          "data-tone": tone,
          "stroke-dasharray": DASHES[at % 6] ?? "",
          d: lines.join(""),
        }),
      );
      for (const [only, ...others] of runs)
        if (only && !others.length)
          shapes.push(
            drawn("circle", { class: "chart-point", "data-tone": tone, cx: this.#x(only.t), cy: y(only.v ?? 0), r: 3 }),
          );
    }
    const looked = this.#at === null ? undefined : this.#times[this.#at];
    if (looked !== undefined && looked >= this.#from) {
      const x = this.#x(looked);
      shapes.push(drawn("line", { class: "chart-cross", x1: x, x2: x, y1: above, y2: bottom }));
      for (const [at, { points }] of this.#series.entries()) {
        const v = valueAt(points, looked);
        if (v !== null)
          shapes.push(drawn("circle", { class: "chart-dot", "data-tone": this.#tone(at), cx: x, cy: y(v), r: 3.5 }));
      }
    }
    return shapes;
  }

  /** Points between gaps. @param {Series["points"]} points */
  #runs(points) {
    /** @type {{ t: number, v: number | null }[][]} */
    const runs = [[]];
    for (const point of points) {
      if (point.v === null) runs.push([]);
      else runs.at(-1)?.push(point);
    }
    return runs.filter((run) => run.length);
  }

  /** @param {number} at */
  #tone(at) {
    return this.#series[at]?.tone ?? TONES[at % 6] ?? "accent";
  }

  /** @param {number} t */
  #x(t) {
    return this.#left + ((t - this.#from) / (this.#to - this.#from)) * (this.#right - this.#left);
  }

  /** The names, and the values that are looked at. */
  #tell() {
    const at = this.#at ?? this.#times.length - 1;
    const t = this.#times[at];
    this.#time.textContent = t === undefined || this.#at === null ? "" : CLOCK.format(t);
    const told = this.#series.map(({ name, points }) => ({
      name,
      value: this.#words(t === undefined ? null : valueAt(points, t)),
    }));
    while (this.#legend.children.length > told.length) this.#legend.lastChild?.remove();
    for (const [n, { name, value }] of told.entries()) {
      const item = this.#legend.children[n] ?? this.#legend.appendChild(this.#item());
      const [key, label, number] = item.children;
      const line = key?.firstElementChild;
      line?.setAttribute("data-tone", this.#tone(n));
      line?.setAttribute("stroke-dasharray", DASHES[n % 6] ?? "");
      if (label && label.textContent !== name) label.textContent = name;
      if (number && number.textContent !== value) number.textContent = value;
    }
    // Not before it has a name and a value.
    this.#plot.role = "slider";
    this.#plot.tabIndex = 0;
    this.#plot.ariaLabel = this.label;
    this.#plot.ariaValueMin = "0";
    this.#plot.ariaValueMax = `${Math.max(0, this.#times.length - 1)}`;
    this.#plot.ariaValueNow = `${Math.max(0, at)}`;
    this.#plot.ariaValueText =
      t === undefined
        ? this.#empty
        : `${CLOCK.format(t)}: ${told.map(({ name, value }) => `${name} ${value}`).join(", ")}`;
  }

  #item() {
    const item = made("li", "");
    const key = drawn("svg", { class: "chart-key", viewBox: "0 0 22 4", "aria-hidden": "true" });
    key.append(drawn("path", { class: "chart-line", d: "M1 2h20" }));
    item.append(key, made("bdi", ""), Object.assign(made("span", "chart-value"), { dir: "auto" }));
    return item;
  }

  /** The table for screen readers: the last moment of each of some equal parts. */
  #tellAll() {
    const shown = this.#times.filter((t) => t >= this.#from);
    const step = Math.max(1, Math.ceil(shown.length / TOLD));
    const told = shown.filter((_, at) => (shown.length - 1 - at) % step === 0);
    const caption = made("caption", "");
    caption.textContent = this.label;
    const head = made("thead", "");
    head.append(row("th", ["Time", ...this.#series.map(({ name }) => name)]));
    const body = made("tbody", "");
    for (const t of told)
      body.append(row("td", [CLOCK.format(t), ...this.#series.map(({ points }) => this.#words(valueAt(points, t)))]));
    this.#table.replaceChildren(caption, head, body);
  }

  /** @param {number | null} value */
  #words(value) {
    return value === null ? "–" : this.#format(value);
  }

  /** @param {number | null} at */
  #look(at) {
    if (at === this.#at) return;
    this.#at = at;
    if (!this.#drawing) {
      this.#svg.replaceChildren(...(this.#times.length ? this.#shapes() : [this.#nothing()]));
      this.#tell();
    }
  }

  /** The moment nearest to the pointer. @param {PointerEvent} event */
  #nearest(event) {
    const x = event.clientX - this.#plot.getBoundingClientRect().left;
    let nearest = null;
    for (const [at, t] of this.#times.entries()) {
      const before = nearest === null ? undefined : this.#times[nearest];
      if (t >= this.#from && (before === undefined || Math.abs(this.#x(t) - x) <= Math.abs(this.#x(before) - x)))
        nearest = at;
    }
    return nearest;
  }

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    const last = this.#times.length - 1;
    const first = Math.max(
      0,
      this.#times.findIndex((t) => t >= this.#from),
    );
    const at = this.#at ?? last;
    /** @type {Record<string, number | null>} */
    const moves = {
      ArrowLeft: at - 1,
      ArrowDown: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at + 1,
      PageDown: at - 10,
      PageUp: at + 10,
    };
    const to = { ...moves, Home: first, End: last, Escape: null }[event.key];
    if (to === undefined || last < 0) return;
    if (to === null && this.#at === null) return;
    event.preventDefault();
    event.stopPropagation();
    this.#look(to === null ? null : Math.max(first, Math.min(last, to)));
  }
}

/** @param {Series["points"]} points @param {number} t */
function valueAt(points, t) {
  let from = 0;
  let to = points.length;
  while (from < to) {
    const middle = (from + to) >> 1;
    if ((points[middle]?.t ?? 0) < t) from = middle + 1;
    else to = middle;
  }
  const found = points[from];
  return found?.t === t ? found.v : null;
}

/** @param {string} tag @param {string} name */
function made(tag, name) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  return element;
}

/** @param {"td" | "th"} tag @param {string[]} texts the first is the row's name */
function row(tag, texts) {
  const element = made("tr", "");
  for (const [at, each] of texts.entries()) {
    const cell = made(at ? tag : "th", "");
    cell.setAttribute("scope", tag === "th" ? "col" : "row");
    if (at && tag === "td") cell.removeAttribute("scope");
    cell.textContent = each;
    element.append(cell);
  }
  return element;
}

/** @param {string} tag @param {Record<string, string | number>} attributes */
function drawn(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, `${value}`);
  return element;
}

/** @param {string} content @param {Record<string, string | number>} attributes */
function text(content, attributes) {
  const element = drawn("text", { class: "chart-text", ...attributes });
  element.textContent = content;
  return element;
}

customElements.define("ps-chart", Chart);
