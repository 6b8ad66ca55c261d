/** Pictograms on a grid of 20 units, as lines in the colour of the text. They are decoration: names stand beside them. */

import { html, nothing } from "./html.js";

const LINES = {
  add: "M10 4v12M4 10h12",
  alert: "M10 3 2.5 16.5h15zM10 8.5v4M10 14.6v.1",
  api: "M7 4C5 4 5.5 6 5.5 7.500 5.500 9 5 10 3.500 10 5 10 5.500 11 5.500 12.500 5.500 14 5 16 7 16M13 4c2 0 1.500 2 1.500 3.500 0 1.500.500 2.500 2 2.500-1.500 0-2 1-2 2.500 0 1.500.500 3.500-1.500 3.500",
  back: "M12 4 6 10l6 6",
  check: "M4 10.500 8 15l8-10",
  close: "M5 5l10 10M15 5 5 15",
  copy: "M7 7h9v9H7zM13 4H4v9",
  dark: "M16 11.500A6.500 6.500 0 0 1 8.500 4a6.500 6.500 0 1 0 7.500 7.500z",
  door: "M12 3.500H4.500v13H12M8.500 10H17M13.500 6.500 17 10l-3.500 3.500",
  down: "M5 7.500 10 13l5-5.500",
  download: "M10 3v9M6 8.500l4 4 4-4M3.500 16.500h13",
  edit: "M4 16l.8-3.200L13.500 4 16 6.500l-8.800 8.700z",
  file: "M5 2.500h6.500L15 6v11.500H5zM11.500 2.500V6H15",
  filter: "M3 5h14M6 10h8M8.500 15h3",
  folder: "M2.500 5h5l1.500 2h8.500v9h-15z",
  forward: "M8 4l6 6-6 6",
  keys: "M12.500 7.500a4 4 0 1 0-2.600 3.700L12 13h2v2h3v-3l-4.600-3.500a4 4 0 0 0 .1-1zM7.500 6.500v.1",
  link: "M8.500 11.500 11.500 8.500M9 6l2-2a3.500 3.500 0 0 1 5 5l-2 2M11 14l-2 2a3.500 3.500 0 0 1-5-5l2-2",
  lock: "M5 9h10v8H5zM7 9V6.500a3 3 0 0 1 6 0V9",
  log: "M4 4.500h12M4 8.200h8M4 11.800h12M4 15.500h6",
  mail: "M3 5h14v10.500H3zM3 5.500l7 5.500 7-5.500",
  menu: "M3 5.500h14M3 10h14M3 14.500h14",
  more: "M5 10v.1M10 10v.1M15 10v.1",
  out: "M11 3.500h5.500V9M16.500 3.500 9 11M8 4.500H4v11.500h11.500v-4",
  overview: "M3 16.500h14M5 13V9M10 13V4M15 13V7",
  pause: "M7 4.500v11M13 4.500v11",
  play: "M6 4l10 6-10 6z",
  refresh: "M16 6.500A7 7 0 1 0 17 10M16.500 3v4h-4",
  remove: "M4 5.500h12M8 5.500V3.500h4v2M5.500 5.500l.8 11h7.400l.8-11M8.500 8.500v5M11.500 8.500v5",
  search: "M13 13l4 4M14.500 8.800a5.800 5.800 0 1 1-11.500 0 5.800 5.800 0 0 1 11.500 0z",
  settings: "M3 6h8M15 6h2M3 14h2M9 14h8M13 4v4M7 12v4",
  sql: "M3 4h14v12H3zM6 8l2.500 2L6 12M10 12.500h4",
  stop: "M5 5h10v10H5z",
  storage:
    "M3.500 5.500c0-3.300 13-3.300 13 0s-13 3.300-13 0v9c0 3.300 13 3.300 13 0v-9M3.500 10c0 3.300 13 3.300 13 0",
  tables: "M3 4h14v12H3zM3 8h14M8 8v8",
  up: "M5 12.500 10 7l5 5.500",
  upload: "M10 13V4M6 7.500l4-4 4 4M3.500 16.500h13",
  user: "M10 9.500a3.200 3.200 0 1 0 0-6.400 3.200 3.200 0 0 0 0 6.400zM3.500 17c.5-6.500 12.500-6.500 13 0",
  users:
    "M7.500 9.500a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM2 16.500c.4-6 10.600-6 11 0M13 4a3 3 0 0 1 0 5.500M15.500 11.800c1.600.7 2.400 2.200 2.500 4.700",
  view: "M2 10c4-7.500 12-7.500 16 0-4 7.500-12 7.500-16 0zM10 12.500a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5z",
};

/** @typedef {keyof typeof LINES} Icon */

/** @param {Icon | string} name */
export function icon(name) {
  const lines = LINES[/** @type {Icon} */ (name)];
  return lines
    ? html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false"><path d=${lines}></path></svg>`
    : nothing;
}
