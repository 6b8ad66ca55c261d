/** A plan of PostgreSQL's as a tree: what takes how long, and which step is the worst. */

import { each, html, nothing } from "../../core/html.js";
import { count, counted } from "../../core/format.js";
import { icon } from "../../core/icons.js";

/** @typedef {Record<string, any>} Node of EXPLAIN (FORMAT JSON) */
/** @typedef {{ node: Node, own: number, children: Step[] }} Step `own` is what it takes itself: milliseconds, or costs. */

/** @param {Node} node @returns {Step} */
function stepOf(node) {
  const total = (/** @type {Node} */ one) =>
    "Actual Total Time" in one ? one["Actual Total Time"] * one["Actual Loops"] : one["Total Cost"];
  const children = (node.Plans ?? []).map(stepOf);
  const below = children.reduce((/** @type {number} */ sum, /** @type {Step} */ one) => sum + total(one.node), 0);
  return { node, children, own: Math.max(0, total(node) - below) };
}

/** @param {Step} step @returns {Step} */
function worstOf(step) {
  return step.children.map(worstOf).reduce((one, other) => (other.own > one.own ? other : one), step);
}

const ABOUT = [
  "Index Cond",
  "Filter",
  "Hash Cond",
  "Merge Cond",
  "Join Filter",
  "Recheck Cond",
  "Sort Key",
  "Group Key",
  "Function Name",
  "CTE Name",
];

/**
 * @param {Node} plan the first object of the JSON
 */
export function planTree(plan) {
  const root = stepOf(plan.Plan);
  const worst = worstOf(root);
  const measured = "Actual Total Time" in plan.Plan;
  const unit = (/** @type {number} */ value) =>
    measured ? `${value.toFixed(value < 10 ? 2 : 0)} ms` : `cost ${count(Math.round(value))}`;
  const whole = measured ? plan.Plan["Actual Total Time"] : plan.Plan["Total Cost"];
  /** @param {Step} step @returns {unknown} */
  const show = (step) => {
    const { node } = step;
    const target = [node["Relation Name"], node["Index Name"]].filter(Boolean).join(", ");
    const share = whole ? Math.min(1, step.own / whole) : 0;
    const removed = node["Rows Removed by Filter"];
    const far = measured && (node["Actual Rows"] + 1) / (node["Plan Rows"] + 1);
    return html`<li>
      <div class=${step === worst && share > 0 ? "plan-step worst" : "plan-step"}>
        <span class="plan-name"><b>${[node["Join Type"] && node["Node Type"] !== "Nested Loop" ? node["Join Type"] : "", node["Node Type"]].join(" ").trim()}</b>
          ${target ? html` <bdi>${target}</bdi>` : nothing}
          ${step === worst && share > 0 ? html`<span class="badge warn">${icon("alert")} ${measured ? "Takes longest" : "Costs most"}</span>` : nothing}</span>
        <span class="plan-time"><meter min="0" max="1" .value=${share} aria-label="Share of the whole"></meter> ${unit(step.own)}</span>
        <span class="quiet small">${
          measured
            ? html`${counted(node["Actual Rows"], "row")}${node["Actual Loops"] > 1 ? ` × ${count(node["Actual Loops"])}` : ""}, ${count(node["Plan Rows"])} expected`
            : `${counted(node["Plan Rows"], "row")} expected`
        }
          ${far && (far > 10 || far < 0.1) ? html`<span class="badge warn">estimate is far off: analyze the table</span>` : nothing}
          ${removed ? `, ${count(removed)} read in vain` : ""}</span>
        ${each(
          ABOUT.filter((name) => node[name]),
          (name) => name,
          (name) =>
            html`<code class="plan-detail"><span class="quiet">${name}:</span> <bdi>${[node[name]].flat().join(", ").slice(0, 2000)}</bdi></code>`,
        )}
      </div>
      ${step.children.length ? html`<ul>${step.children.map(show)}</ul>` : nothing}
    </li>`;
  };
  const times = measured
    ? `Planned in ${unit(plan["Planning Time"] ?? 0)}, run in ${unit(plan["Execution Time"] ?? 0)}. What it changed was undone.`
    : "Not run: these are estimates.";
  return html`<div class="plan" tabindex="0" role="region" aria-label="Plan"><p class="quiet">${times}</p><ul>${show(root)}</ul></div>`;
}
