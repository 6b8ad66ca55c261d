/** Numbers, sizes and times for people, in the language and the time zone of the browser. */

const numbers = new Intl.NumberFormat();
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const moments = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
const plural = new Intl.PluralRules("en");
const UNITS = /** @type {const} */ (["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const STEPS = /** @type {[number, Intl.RelativeTimeFormatUnit][]} */ ([
  [60, "second"],
  [60, "minute"],
  [24, "hour"],
  [30, "day"],
  [12, "month"],
  [Infinity, "year"],
]);

/** @param {number} value */
export const count = (value) => numbers.format(value);

/** `about(1234567)`: "1.2M". @param {number} value */
export const about = (value) => short.format(value);

/**
 * `counted(3, "row")`: "3 rows".
 * @param {number} value
 * @param {string} one
 * @param {string} [many]
 */
export const counted = (value, one, many = `${one}s`) =>
  `${count(value)} ${plural.select(value) === "one" ? one : many}`;

/** @param {number} value */
export function bytes(value) {
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${(value < 10 && unit ? tenths : whole).format(value)} ${UNITS[unit]}`;
}

/** @param {string | number | Date} time */
export function moment(time) {
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? String(time) : moments.format(date);
}

/**
 * How long ago, or in how long.
 * @param {string | number | Date} time
 * @param {number} [now]
 */
export function ago(time, now = Date.now()) {
  let distance = (new Date(time).getTime() - now) / 1000;
  if (Number.isNaN(distance)) return String(time);
  for (const [size, unit] of STEPS) {
    if (Math.abs(distance) < size) return relative.format(Math.trunc(distance), unit);
    distance /= size;
  }
  return moment(time);
}

/** @param {number} value */
export function seconds(value) {
  if (value < 0.001) return `${numbers.format(Math.round(value * 1e6))} µs`;
  if (value < 1) return `${new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 }).format(value * 1000)} ms`;
  if (value < 120) return `${new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 }).format(value)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 120) return `${minutes} min`;
  return minutes < 2880
    ? `${Math.floor(minutes / 60)} h ${minutes % 60} min`
    : counted(Math.floor(minutes / 1440), "day");
}

/**
 * `text`, cut to what a page can show. Values of strangers may be megabytes long.
 * @param {string} text
 * @param {number} [length]
 */
export function cut(text, length = 300) {
  return text.length > length ? `${text.slice(0, length)}…` : text;
}
