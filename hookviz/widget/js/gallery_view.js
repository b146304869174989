// @ts-check
// The view controls: how the grids are drawn. They never run the model.
import { checkbox, h, select, setChoices, textField } from "./kit.js";

/**
 * @param {(changes: Record<string, any>) => void} change
 * @param {{cmaps: string[], scales: [string, string][], orders: string[]}} choices
 */
export function viewBar(change, choices) {
  const box = (/** @type {string} */ name) => (/** @type {string} */ value) => change({ [name]: value });
  const same = (/** @type {string[]} */ names) => /** @type {[string, string][]} */ (names.map((name) => [name, name]));
  const [cmaps, orders, counts] = [choices.cmaps, choices.orders, ["16", "64", "144", "256"]].map(same);
  const cmap = select("view-cmap", "Colours", cmaps, box("cmap"));
  const scale = select("view-scale", "Scale", choices.scales, box("scale"));
  const order = select("view-order", "Order", orders, box("order"));
  const tiles = select("view-tiles", "Maps per page", counts, (value) => change({ per_page: Number(value) }));
  const summary = select("view-summary", "Summary tile",
    [["none", "none"], ["mean", "mean"], ["max", "max"], ["pca", "PCA"]], box("summary"));
  const text = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ placeholder,
    /** @type {string} */ width) => textField(`view-${name}`, label, { placeholder, class: `hv-input ${width}` },
    (value) => change({ [name]: value }));
  const fields = {
    channels: text("channels", "Channels", "e.g. 0-15,42", "hv-medium"),
    vmin: text("vmin", "Lowest value", "min", "hv-short"),
    vmax: text("vmax", "Highest value", "max", "hv-short"),
  };
  const { channels, vmin, vmax } = fields;
  const range = h("span", { class: "hv-range", hidden: true }, vmin.input, "…", vmax.input);
  const dead = checkbox("view-dead", "Hide dead channels", { shown: "Hide dead",
    onchange: () => change({ hide_dead: dead.input.checked }) });
  const overlay = checkbox("view-overlay", "Overlay on the image", { shown: "Overlay",
    onchange: () => change({ overlay: overlay.input.checked }) });
  const field = (/** @type {string} */ name, /** @type {Node[]} */ ...inside) =>
    h("span", { class: "hv-field hv-inline" }, h("span", { "aria-hidden": "true" }, name), ...inside);
  const el = h("div", { hv: "view", class: "hv-view", role: "group", "aria-label": "View" },
    field("Colours", cmap), field("Scale", scale, range), field("Order", order), field("Per page", tiles),
    field("Channels", channels.input), field("Summary", summary),
    h("span", { class: "hv-field hv-inline" }, dead.line, overlay.line),
    channels.problem, vmin.problem, vmax.problem);
  const offer = (/** @type {HTMLSelectElement} */ box, /** @type {string[][]} */ known, /** @type {any} */ value) => {
    const there = known.some(([v]) => v === value);
    setChoices(box, /** @type {any} */ (there ? known : [...known, [value, value]]));
    box.value = value;
  };
  return {
    el, fields,
    /** @param {Record<string, any>} view */
    show(view) {
      offer(cmap, cmaps, view.cmap ?? "auto");
      offer(scale, choices.scales, view.scale ?? "auto");
      offer(order, orders, view.order ?? "index");
      offer(tiles, counts, String(view.per_page ?? 64));
      summary.value = view.summary ?? "none";
      range.hidden = view.scale !== "fixed";
      for (const [name, field] of Object.entries(fields)) field.show(view[name] ?? "");
      dead.input.checked = Boolean(view.hide_dead);
      overlay.input.checked = Boolean(view.overlay);
    },
  };
}
