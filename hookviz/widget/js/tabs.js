// @ts-check
// The tabs over the results. A panel of the app is a Python class, listed in PANELS of
// _explorer.py, and a module panel_NAME.js that renders it: here it needs no line of its own.
import { button, h } from "./kit.js";

/**
 * The results: the gallery, and a tab for each panel that Python lists in the trait panels.
 * @param {import("./kit.js").Model} model
 * @param {HTMLElement} gallery
 * @param {(reference: string, place: HTMLElement) => void} show
 */
export function resultTabs(model, gallery, show) {
  const panels = /** @type {[string, string, boolean][]} */ (model.get("panels") ?? []);
  const places = [gallery, ...panels.map(([title, , beside]) =>
    h("div", { class: beside ? "hv-place hv-place-panel hv-beside" : "hv-place hv-place-panel", role: "tabpanel", "aria-label": title, hidden: true }))];
  const tabs = ["Gallery", ...panels.map(([title]) => title)].map((title, index) =>
    button(`tab-${title.toLowerCase()}`, () => open(index), { role: "tab", class: "hv-tab" }, title));
  const box = h("div", { class: "hv-panels" }, ...places);
  const shown = new Set([0]);
  let now = 0;
  /** @param {number} index */
  function open(index) {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
      places[i].hidden = i !== index;
    });
    const two = index > 0 && panels[index - 1][2];
    places[0].hidden = index > 0 && !two;
    box.classList.toggle("hv-two", two);
    now = index;
    if (!shown.has(index)) show(panels[index - 1][1], places[index]);
    shown.add(index);
  }
  open(0);
  const list = h("div", { role: "tablist", class: "hv-tabs", "aria-label": "Results", onkeydown: (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = (now + step + tabs.length) % tabs.length;
    open(next);
    tabs[next].focus();
  } }, ...tabs);
  const title = h("h3", { class: "hv-title" }, h("span", { class: "hv-step" }, "3"), "Results");
  return h("div", { class: "hv-results" }, h("div", { class: "hv-results-head" }, title, list), box);
}
