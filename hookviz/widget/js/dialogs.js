// @ts-check
// Panels over the app: choosing a model, exporting, help, the question before a large run.
import { button, bytesText, checkbox, Cleanup, copyText, debounce, focused, freshId, h, icon, isOff, labelled, select, setChoices, setOff, setText, textInput } from "./kit.js";

/** @typedef {import("./kit.js").Model} Model */

/**
 * A panel that opens over the app, takes the focus and gives it back.
 * @param {{hv: string, label: string, role?: string, closeLabel: string, class?: string}} what
 * @param {...Node} inside
 */
export function panel(what, ...inside) {
  /** @type {HTMLElement | null} */
  let back = null;
  const box = h("div", { hv: what.hv, role: what.role ?? "dialog", "aria-label": what.label, hidden: true, tabindex: "-1",
    class: `hv-panel ${what.class ?? ""}` },
  h("div", { class: "hv-panel-head" }, h("h3", {}, what.label),
    button("close", () => close(), { class: "hv-quiet", label: what.closeLabel }, icon("close"))), ...inside);
  /** @param {HTMLElement | null} [first] */
  function open(first) {
    back = focused(box);
    box.hidden = false;
    (first ?? box).focus();
  }
  function close() {
    if (box.hidden) return;
    const inside = box.contains(focused(box));
    box.hidden = true;
    if (inside) back?.focus();
  }
  box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      close();
    } else if (event.key === "Tab") {
      const stops = [...box.querySelectorAll("button, input, select, textarea, summary, [tabindex='0']")].filter((stop) => !stop.closest("[hidden]"));
      if (event.shiftKey) stops.reverse();
      if (focused(box) === stops.at(-1) || focused(box) === box) {
        event.preventDefault();
        /** @type {HTMLElement} */ (stops[0])?.focus();
      }
    }
  });
  return { box, open, close, toggle: () => (box.hidden ? open() : close()) };
}

/** @param {Model} model @param {Cleanup} cleanup */
export function modelPanel(model, cleanup) {
  let chosen = "";
  let wanted = "auto";
  const id = freshId("model");
  const search = textInput("model-search", "Search models", { type: "search", placeholder: "Search, timm:NAME or a checkpoint's path" });
  const list = h("div", { hv: "model-list", role: "listbox", "aria-label": "Models", tabindex: "0", class: "hv-list" });
  const weights = select("model-weights", "Weights", [["auto", "automatic"]], refreshNote);
  const file = textInput("model-file", "Checkpoint file", { placeholder: "path of a .pth or .safetensors file" });
  const fileLine = labelled("File", file);
  const note = h("p", { class: "hv-dim hv-note", hv: "weights-note" });
  const load = button("model-load", go, { class: "hv-button hv-main" }, "Load model");
  /** @type {Record<string, string>} */
  let notes = {};
  const view = panel({ hv: "model-dialog", label: "Choose a model", closeLabel: "Close", class: "hv-model-panel" },
    search, list, labelled("Weights", weights), fileLine, note, h("div", { class: "hv-panel-foot" }, load));
  refreshNote();

  function refreshNote() {
    fileLine.hidden = weights.value !== "file";
    setText(note, notes[weights.value] ?? "");
  }
  function go() {
    if (isOff(load)) return;
    model.send({ type: "load", model: chosen, weights: weights.value, file: file.value });
    view.close();
  }
  /** @param {string} name */
  function choose(name) {
    chosen = name;
    for (const option of list.children) {
      const on = /** @type {HTMLElement} */ (option).dataset.name === name;
      option.setAttribute("aria-selected", String(on));
      if (on) {
        list.setAttribute("aria-activedescendant", option.id);
        option.scrollIntoView?.({ block: "nearest" });
      }
    }
    setOff(load, !name);
    if (name) model.send({ type: "weights", model: name });
  }
  const ask = () => model.send({ type: "models", search: search.value.trim() });
  /** @param {[string, boolean][]} found names, and whether their weights are on this machine */
  function show(found) {
    list.replaceChildren(...found.map(([name, here], i) => h("div", {
      hv: "model-option", role: "option", "data-name": name, id: `${id}-${i}`, class: "hv-option",
      "aria-selected": "false", onclick: () => choose(name), ondblclick: go,
    }, h("span", { class: "hv-option-name" }, name), here ? h("span", { class: "hv-dim" }, "on this machine") : null)));
    if (!found.length) list.append(h("div", { class: "hv-none" }, "No matching model."));
    const names = found.map(([name]) => name);
    choose([chosen, search.value.trim()].find((name) => names.includes(name)) ?? names[0] ?? "");
  }
  /** @param {number} step */
  function move(step) {
    const options = /** @type {HTMLElement[]} */ ([...list.querySelectorAll("[data-name]")]);
    const at = options.findIndex((option) => option.dataset.name === chosen);
    const next = options[Math.max(0, Math.min(options.length - 1, at + step))];
    if (next) choose(next.dataset.name ?? "");
  }
  for (const box of [search, list]) {
    box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "ArrowDown") move(1);
      else if (event.key === "ArrowUp") move(-1);
      else if (event.key === "Enter") go();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }
  search.addEventListener("input", debounce(100, ask));
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message) => {
    if (message.type === "models" && message.search === search.value.trim()) {
      chosen ||= message.current;
      show(message.names);
    } else if (message.type === "weights" && message.model === chosen) {
      notes = Object.fromEntries(message.choices.map((/** @type {string[]} */ [value, , about]) => [value, about]));
      setChoices(weights, message.choices.map((/** @type {string[]} */ [value, text]) => [value, text]));
      if (wanted !== "auto" && wanted in notes) weights.value = wanted;
      refreshNote();
      if (wanted === "file") file.focus();
      wanted = "auto";
    }
  });
  return {
    ...view,
    /** @param {string} [choice] the weights to begin with @param {string} [name] the model */
    open(choice = "auto", name = "") {
      chosen = name;
      wanted = choice;
      weights.value = "auto";
      search.value = name;
      ask();
      view.open(search);
    },
  };
}

/** @param {Model} model @param {Cleanup} cleanup @param {() => string} current key of the current card */
export function exportPanel(model, cleanup, current) {
  const group = freshId("scope");
  const scopes = [["grid", "This grid"], ["ticked", "Ticked layers"], ["channels", "Chosen channels"], ["all", "Everything"]];
  const radios = scopes.map(([value, text], i) => checkbox("export-scope", text, { type: "radio", name: group, value, checked: i === 1,
    onchange: refresh }));
  const scope = () => radios.find(({ input }) => input.checked)?.input.value ?? "ticked";
  const channels = textInput("export-channels", "Channels to export", { placeholder: "for example 0-15,42" });
  const channelLine = labelled("Channels", channels, { class: "hv-field", hidden: true });
  const grids = checkbox("export-grids", "Grids", { checked: true });
  const svg = checkbox("export-svg", "Grids as SVG");
  const pdf = checkbox("export-pdf", "Grids as PDF");
  const single = checkbox("export-channels-png", "Channels as PNG");
  const values = checkbox("export-values", "Values");
  const html = checkbox("export-page", "One page (HTML)");
  const format = select("export-format", "Format of values", [["npz", "npz"], ["safetensors", "safetensors"]], () => {});
  const folder = textInput("export-folder", "Folder", { value: "hookviz_exports" });
  const path = h("code", { hv: "export-path", class: "hv-path", tabindex: "0" });
  const files = h("span", { class: "hv-dim", hv: "export-files" });
  const copy = button("copy-path", () => copyText(path.textContent ?? "").then(() => setText(files, "Copied."),
    () => getSelection()?.selectAllChildren(path)), { class: "hv-quiet", label: "Copy path" }, icon("copy"));
  const result = h("div", { hv: "export-result", class: "hv-result", hidden: true, role: "status" }, path, copy, files);
  const order = () => ({
    scope: scope(), key: current(), channels: channels.value, folder: folder.value,
    what: Object.entries({ grids, svg, pdf, channels: single, values, page: html }).filter(([, { input }]) => input.checked).map(([name]) => name),
    values: format.value,
  });
  const start = button("export-start", () => isOff(start) || model.send({ type: "export", ...order() }), { class: "hv-button hv-main" }, "Export now");
  const zip = button("zip", () => isOff(zip) || model.send({ type: "zip", ...order() }), {}, "Download zip");
  const share = button("share", () => isOff(share) || model.send({ type: "zip", ...order(), what: ["page"] }), {}, "Download page");
  const about = h("p", { hv: "page-about", class: "hv-dim hv-note" });
  const view = panel({ hv: "export-dialog", label: "Export", closeLabel: "Close export", class: "hv-export-panel" },
    h("fieldset", {}, h("legend", {}, "What"), ...radios.map(({ line }) => line)), channelLine,
    h("fieldset", {}, h("legend", {}, "As"), grids.line, single.line, svg.line, pdf.line, html.line, values.line, format),
    labelled("Folder", folder), about, h("div", { class: "hv-panel-foot" }, share, zip, start), result);
  let cannot = "";

  function refresh() {
    const chosen = scope() === "channels";
    channelLine.hidden = !chosen;
    if (chosen) single.input.checked = true;
    askSize();
  }
  function askSize() {
    tellSize(0);
    if (!cannot && !view.box.hidden) model.send({ type: "page-size", scope: scope(), key: current() });
  }
  /** @param {number} size bytes of the page at most; 0 where that is not known, or there is none */
  function tellSize(size) {
    const whole = scope() !== "channels";
    setOff(share, Boolean(cannot) || !whole);
    share.title = cannot || (whole ? "" : "A page shows whole layers.");
    setText(about, whole ? `The page is one file with maps and values that opens in any browser${size ? `: at most ${bytesText(size)}` : ""}.`
      : "Single channels are files of their own; the page shows whole layers.");
  }
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message) => {
    if (message.type === "page-size" && message.scope === scope() && message.key === current()) tellSize(message.size);
  });
  return {
    ...view,
    open() {
      view.open(start);
      askSize();
    },
    /** @param {Record<string, any>} done @param {string} why why nothing can be exported, or "" */
    show(done, why) {
      if (cannot !== why) {
        cannot = why;
        askSize();
      }
      setOff(start, Boolean(why));
      setOff(zip, Boolean(why));
      start.title = zip.title = why;
      result.hidden = !done.path;
      setText(path, done.path ?? "");
      setText(files, done.files ? `${done.files} files` : "");
    },
  };
}
const KEYS = [
  ["/", "search the layers"], ["↑  ↓  ←  →", "move in the tree, open and close groups"], ["Space", "tick the layer"],
  ["Enter", "run"], [".", "cancel"], ["[  ]", "previous or next result"], ["Page Up  Page Down", "turn its pages"],
  ["↑  ↓  ←  →", "on a map: one place on; on the photo: a step"], ["Shift  ↑  ↓  ←  →", "on a map: the next map; on the photo: mark a region"],
  ["Enter", "on a map: pin the place"], ["c", "on a map: its channel, large"], ["+  −  0", "there: larger, smaller, whole"], ["p", "on a map: keep its channel first"], ["←  →", "on the edge of a column: its width"], ["e", "export"], ["?", "this help"], ["Esc", "unpin, close, clear, then leave the app"],
];

const STEPS = [
  "Drop, paste or browse for a photo, or take a sample.",
  "Tick layers. The box of a group ticks all that is shown below it.",
  "Press Run. Each layer's feature maps appear in order of execution.",
  "Change colours, scale, order or page as you like: the model does not run again.",
];

/** @param {number} limit bytes */
export function helpPanel(limit) {
  return panel({ hv: "help-dialog", label: "Help", closeLabel: "Close help", class: "hv-help-panel" },
    h("div", { class: "hv-help-columns" },
      h("div", {}, h("h4", {}, "Steps"), h("ol", { class: "hv-steps" }, ...STEPS.map((text) => h("li", {}, text)))),
      h("div", {}, h("h4", {}, "Keys"), h("ul", { class: "hv-keys" }, ...KEYS.map(([keys, text]) => h("li", {},
        h("span", {}, ...keys.split("  ").map((key) => h("kbd", {}, key))), h("span", {}, text)))))),
    h("p", { class: "hv-dim" }, `Images: PNG, JPEG, WebP, GIF, BMP, TIFF, up to ${Math.round(limit / 1e6)} MB. ` +
      "Numbers on tiles are channel numbers. Search takes words or /regular expressions/."));
}

/** @param {Model} model */
export function largePanel(model) {
  const text = h("p", { hv: "large-text" });
  const anyway = button("anyway", () => {
    view.close();
    model.send({ type: "run", anyway: true });
  }, { class: "hv-button hv-main" }, "Run anyway");
  const back = button("back", () => view.close(), {}, "Back");
  const view = panel({ hv: "large-dialog", label: "Large run", role: "alertdialog", closeLabel: "Close", class: "hv-large-panel" },
    text, h("div", { class: "hv-panel-foot" }, back, anyway));
  const ask = (/** @type {string} */ question) => {
    setText(text, question);
    view.open(back);
  };
  return { ...view, ask };
}
