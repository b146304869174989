// @ts-check
// The view controls: how the grids are drawn. They never run the model.
import { h, select, setChoices } from "./kit.js";

/**
 * @param {(changes: Record<string, any>) => void} change
 * @param {{cmaps: string[], scales: [string, string][], orders: [string, string][]}} choices
 */
export function viewBar(change, choices) {
  const box = (/** @type {string} */ name) => (/** @type {string} */ value) => change({ [name]: value });
  const cmap = select("view-cmap", "Colours", choices.cmaps.map((c) => [c, c]), box("cmap"));
  const scale = select("view-scale", "Scale", choices.scales, box("scale"));
  const order = select("view-order", "Order", choices.orders, box("order"));
  const tiles = select("view-tiles", "Maps per page", [
    ["16", "16"], ["64", "64"], ["144", "144"], ["256", "256"],
  ], (value) => change({ per_page: Number(value) }));
  const summary = select("view-summary", "Summary tile",
    [["none", "none"], ["mean", "mean"], ["max", "max"], ["pca", "PCA"]], box("summary"));
  const text = (/** @type {string} */ hv, /** @type {string} */ label, /** @type {string} */ name,
    /** @type {string} */ hint, /** @type {string} */ extra) => {
    const input = h("input", { hv, class: `hv-input ${extra}`, type: "text", "aria-label": label,
      placeholder: hint, spellcheck: "false", autocomplete: "off",
      onchange: () => change({ [name]: input.value }) });
    input.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter") return;
      event.stopPropagation();
      change({ [name]: input.value });
    });
    return input;
  };
  const channels = text("view-channels", "Channels", "channels", "e.g. 0-15,42", "hv-medium");
  const vmin = text("view-vmin", "Lowest value", "vmin", "min", "hv-short");
  const vmax = text("view-vmax", "Highest value", "vmax", "max", "hv-short");
  const range = h("span", { class: "hv-range", hidden: true }, vmin, "…", vmax);
  const tick = (/** @type {string} */ hv, /** @type {string} */ label, /** @type {string} */ shown,
    /** @type {string} */ name) => {
    const input = h("input", { hv, type: "checkbox", "aria-label": label,
      onchange: () => change({ [name]: input.checked }) });
    return { input, line: h("label", { class: "hv-check", title: label }, input, shown) };
  };
  const dead = tick("view-dead", "Hide dead channels", "Hide dead", "hide_dead");
  const overlay = tick("view-overlay", "Overlay on the image", "Overlay", "overlay");
  const field = (/** @type {string} */ name, /** @type {Node[]} */ ...inside) =>
    h("span", { class: "hv-field hv-inline" }, h("span", { "aria-hidden": "true" }, name), ...inside);
  const el = h("div", { hv: "view", class: "hv-view", role: "group", "aria-label": "View" },
    field("Colours", cmap), field("Scale", scale, range), field("Order", order), field("Per page", tiles),
    field("Channels", channels), field("Summary", summary),
    h("span", { class: "hv-field hv-inline" }, dead.line, overlay.line));
  return {
    el,
    /** @param {Record<string, any>} view */
    show(view) {
      if (view.cmap && ![...cmap.options].some((o) => o.value === view.cmap)) {
        setChoices(cmap, [...choices.cmaps, view.cmap].map((c) => [c, c]));
      }
      if (view.order && ![...order.options].some((o) => o.value === view.order)) {
        setChoices(order, [...choices.orders, [view.order, view.order]]);
      }
      if (view.scale && ![...scale.options].some((o) => o.value === view.scale)) {
        setChoices(scale, [...choices.scales, [view.scale, view.scale]]);
      }
      cmap.value = view.cmap ?? "auto";
      scale.value = view.scale ?? "auto";
      order.value = view.order ?? "index";
      const page = String(view.per_page ?? 64);
      if (![...tiles.options].some((o) => o.value === page)) {
        tiles.append(h("option", { value: page }, page));
      }
      tiles.value = page;
      summary.value = view.summary ?? "none";
      range.hidden = view.scale !== "fixed";
      for (const [input, value] of [[channels, view.channels], [vmin, view.vmin], [vmax, view.vmax]]) {
        if (document.activeElement !== input) input.value = value ?? "";
      }
      dead.input.checked = Boolean(view.hide_dead);
      overlay.input.checked = Boolean(view.overlay);
    },
  };
}
