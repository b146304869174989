// @ts-check
// The view controls: how the grids are drawn. They never run the model.
import { button, checkbox, debounce, h, icon, middle, select, setChoices, textField } from "./kit.js";

/**
 * One line of controls; what is rarely used is on a second one, a press away.
 * @param {(changes: Record<string, any>) => void} change
 * @param {(size: number) => void} resize
 * @param {(channels: string) => void} changeOwn the channels of the card in use alone
 * @param {(on: boolean) => void} lighten pictures of fewer bytes, for a slow link
 * @param {{cmaps: string[], scales: [string, string][], orders: string[]}} choices
 */
export function viewBar(change, resize, changeOwn, lighten, choices) {
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
    (value) => (name === "channels" && of.value === "one" ? changeOwn(value) : change({ [name]: value })));
  const of = select("view-channels-of", "Channels of", [["all", "all layers"], ["one", "this layer"]], () => refresh());
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
  const small = checkbox("view-small",
    "Small pictures, for a slow link: 256 colours, fewer bytes; values and files stay as they are", { shown: "Small pictures",
    onchange: () => lighten(small.input.checked) });
  const field = (/** @type {string} */ name, /** @type {Node[]} */ ...inside) =>
    h("span", { class: "hv-field hv-inline" }, h("span", { "aria-hidden": "true" }, name), ...inside);
  const resizeSoon = debounce(80, () => resize(Number(size.value)));
  const size = h("input", { hv: "view-tile", class: "hv-slider", type: "range", min: "24", max: "224", step: "4",
    "aria-label": "Size of a map on the page", title: "Size of a map", oninput: resizeSoon });
  const rare = h("div", { hv: "view-rare", class: "hv-view", role: "group", "aria-label": "More of the view", hidden: true },
    field("Per page", tiles), field("Channels", channels.input, of), field("Summary", summary),
    h("span", { class: "hv-field hv-inline" }, dead.line, overlay.line, small.line), channels.problem);
  const unfold = (/** @type {boolean} */ open) => {
    rare.hidden = !open;
    more.setAttribute("aria-expanded", String(open));
  };
  const more = button("view-more", () => unfold(rare.hidden), { class: "hv-quiet", label: "More of the view" }, icon("sliders"));
  const el = h("div", { hv: "view", class: "hv-views", role: "group", "aria-label": "View" },
    h("div", { class: "hv-view" }, field("Colours", cmap), field("Scale", scale, range), field("Order", order), h("span", { class: "hv-sizes" }, size, more),
      vmin.problem, vmax.problem),
    rare);
  unfold(false);
  /** What is shown: the view, and the card in use. @type {{view: Record<string, any>, card: {layer: string, channels: string} | null}} */
  let shown = { view: {}, card: null };
  function refresh() {
    const { view, card } = shown;
    setChoices(of, [["all", "all layers"], ["one", card ? middle(card.layer || "(model)", 20) : "this layer"]]);
    if (!card) of.value = "all";
    channels.show((of.value === "one" ? card?.channels : view.channels) ?? "");
  }
  const offer = (/** @type {HTMLSelectElement} */ box, /** @type {string[][]} */ known, /** @type {any} */ value) => {
    const there = known.some(([v]) => v === value);
    setChoices(box, /** @type {any} */ (there ? known : [...known, [value, value]]));
    box.value = value;
  };
  return {
    el, fields,
    /** @param {Record<string, any>} view @param {number} tile @param {any} card the card in use
     * @param {boolean} light */
    show(view, tile, card, light) {
      if (document.activeElement !== size) size.value = String(tile);
      // What is not as it is by default must be in sight.
      if (view.channels || view.hide_dead || view.overlay || light || (view.summary ?? "none") !== "none") unfold(true);
      offer(cmap, cmaps, view.cmap ?? "auto");
      offer(scale, choices.scales, view.scale ?? "auto");
      offer(order, orders, view.order ?? "index");
      offer(tiles, counts, String(view.per_page ?? 64));
      summary.value = view.summary ?? "none";
      range.hidden = view.scale !== "fixed";
      for (const field of ["vmin", "vmax"]) fields[/** @type {"vmin"} */ (field)].show(view[field] ?? "");
      shown = { view, card };
      refresh();
      dead.input.checked = Boolean(view.hide_dead);
      small.input.checked = light;
      overlay.input.checked = Boolean(view.overlay);
    },
  };
}
