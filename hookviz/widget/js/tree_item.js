// @ts-check
// One row of the layer tree.
import { bytesText, h, icon, setName } from "./kit.js";
import { sum } from "./tree_state.js";

/** @typedef {import("./tree_rows.js").Row} Row */
/**
 * What is known of a layer: calls, shape and bytes per call, why it did not run,
 * whether these are of a run (else they are foreseen).
 * @typedef {{c?: number, s?: string[], b?: number[], r?: string, d?: number}} Facts
 */

/**
 * @param {string} id of the tree
 * @param {Row} row
 * @param {{state: string, call: number, fact: Facts, matches: boolean, open: boolean}} how
 *   `call` is 0 for the layer itself; `open` says whether what is below it is shown
 * @returns {HTMLElement}
 */
export function rowElement(id, row, { state, call, fact, matches, open }) {
  const calls = fact.c ?? 1;
  const opens = !call && (row.children.length > 0 || calls > 1);
  const label = call ? `call ${call} of ${calls}` : row.label;
  const shape = call ? fact.s?.[call - 1] : fact.s?.[0];
  const bytes = call ? fact.b?.[call - 1] : sum(fact.b);
  const name = row.name || "(model)";
  const short = h("span", { class: "hv-row-name hv-name" });
  setName(short, label);
  const node = h("div", {
    hv: "row", class: "hv-row", role: "treeitem", id: `${id}-${row.index}-${call}`,
    "data-name": row.name, "data-index": row.index, "data-key": call ? `${row.name}#${call}` : row.name,
    "data-call": call || null, "aria-checked": state, "aria-level": row.level + (call ? 1 : 0),
    "aria-expanded": opens ? String(open) : null,
    "aria-label": call ? `${row.name} ${label}` : `${name} ${row.type}`,
    title: fact.r ? `${name}: ${fact.r}` : `${name} ${row.type}`,
    style: `--hv-level:${row.level - 1 + (call ? 1 : 0)}`,
  },
  h("span", { hv: "twisty", class: "hv-twisty" }, opens ? icon("chevron") : null),
  h("span", { hv: "tick", class: "hv-tick" }),
  short,
  h("span", { class: "hv-row-type" }, call ? "" : row.type),
  fact.r
    ? h("span", { class: "hv-row-reason" }, fact.r)
    : h("span", { class: "hv-row-shape" }, !call && calls > 1 ? `${calls} calls` : shape ?? ""),
  h("span", { class: "hv-row-bytes" }, bytes ? bytesText(bytes) : ""));
  if (!matches) node.classList.add("hv-context");
  return node;
}
