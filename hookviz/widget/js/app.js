// @ts-check
// The whole app: its frame, its keys, and the parts as child widgets in their places.
// Reads the traits model_info, devices, device, status, why_not, why_no_export, predictions,
// export_result, auto_run, alert, max_bytes and the parts image_input, tree, gallery.
import "./app.css";
import { columnEdge } from "./columns.js";
import { exportPanel, helpPanel, largePanel, modelPanel } from "./dialogs.js";
import { alertBox, button, cardKey, Cleanup, focused, freshId, h, icon, select, setChoices, setText } from "./kit.js";
import { formerChoices } from "./former.js";
import { watchKernel } from "./liveness.js";
import { pointing } from "./pointing.js";
import { pythonCopy } from "./python_copy.js";
import { predictionBox, runBar, statusLight } from "./status.js";
import { resultTabs } from "./tabs.js";
import { weightsText } from "./wording.js";
import { saveFile } from "./download.js";

/** @typedef {import("./kit.js").Context} Context */
/** @typedef {import("./kit.js").Model} Model */

/** The parts: the traits that name their widgets. */
const PARTS = ["image_input", "tree", "gallery"];

/** @param {Context} context */
export function renderApp({ model, el, host }) {
  const cleanup = new Cleanup();
  let currentKey = "";
  let dead = false;

  const notice = h("div", { hv: "dead", role: "alert", class: "hv-alert hv-dead-text", hidden: true });
  const send = watchKernel(model, el, cleanup, {
    gone(text) {
      dead = true;
      say(text);
      refreshStatus();
    },
    silent: (text) => !dead && say(text),
  });
  const say = (/** @type {string} */ text) => {
    setText(notice, text);
    notice.hidden = !text;
  };
  /** What the buttons of alerts and notes do: here where it is the page's, else in Python. */
  const act = (/** @type {string} */ action) => {
    if (action === "choose-file") models.open("file", model.get("alert")?.details?.model);
    else send(action === "dismiss" ? { type: "dismiss" } : { type: "action", do: action });
  };

  const models = modelPanel(model, cleanup);
  const exporting = exportPanel(model, cleanup, () => currentKey);
  const help = helpPanel(model.get("max_bytes") ?? 5e7);
  const large = largePanel(model);
  const python = pythonCopy(model, cleanup, send, (text) => bar.said(text));
  const dialogs = [help, exporting, models, large, python];
  const header = makeHeader({ send, openModels: () => models.open(), toggleHelp: () => help.toggle() });
  const light = statusLight();
  const bar = runBar({ send, openExport: () => exporting.open(), copyPython: () => python.ask() });
  const predictions = predictionBox(act);
  const alert = alertBox(act);
  header.el.insertBefore(light.el, header.help);

  const slots = Object.fromEntries(PARTS.map((name) => [name, h("div", { class: `hv-place hv-place-${name}` })]));
  const side = h("div", { class: "hv-side" }, slots.image_input, predictions.el, slots.tree);
  const results = resultTabs(model, slots.gallery, (reference, place) => showPart(host, reference, place, cleanup));
  const sideEdge = columnEdge({ name: "side", label: "Width of the layers' column", column: () => side,
    limits: (app) => [200, app.clientWidth - 320] }, () => root, cleanup);
  const besideEdge = columnEdge({ name: "beside", label: "Width of the panel beside the gallery", before: true,
    column: () => /** @type {HTMLElement | undefined} */ (results.querySelector(".hv-beside:not([hidden])") ?? undefined),
    limits: () => [200, results.clientWidth - 220] }, () => root, cleanup);
  slots.gallery.after(besideEdge);
  const columns = h("div", { class: "hv-columns" }, side, sideEdge, results);
  const root = h("section", { hv: "app", class: "hv hv-app", "aria-label": "hookviz", "data-state": "idle" },
    header.el, h("div", { class: "hv-notices" }, notice, alert.place, formerChoices(model, cleanup, send)),
    columns,
    bar.el, ...dialogs.map((dialog) => dialog.box));

  function refreshStatus() {
    const status = model.get("status") ?? {};
    // In one column the results stand below: a run that ends well brings them into view.
    const ended = root.dataset.state === "running" && status.state === "idle" && status.outcome === "ok";
    if (ended && results.offsetTop > columns.clientHeight / 2 && root.clientWidth <= 720) {
      requestAnimationFrame(() => { columns.scrollTop = results.offsetTop - columns.offsetTop; });
    }
    root.dataset.state = dead ? "dead" : status.state ?? "idle";
    root.toggleAttribute("data-alive", !dead); // the saved picture hides by it, see _still.py
    light.show(status, dead);
    bar.show(status, { why: model.get("why_not") ?? "", dead, automatic: Boolean(model.get("auto_run")) });
    exporting.show(model.get("export_result") ?? {}, model.get("why_no_export") ?? "");
  }
  cleanup.follow(model, ["model_info", "devices", "device"], () => header.show(model));
  cleanup.follow(model, ["model_info", "predictions"], () =>
    predictions.show(model.get("predictions") ?? {}, model.get("model_info") ?? {}));
  cleanup.follow(model, ["status", "why_not", "why_no_export", "export_result", "auto_run"], refreshStatus);
  cleanup.follow(model, ["alert"], () => alert.show(model.get("alert")));
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message) => {
    if (message.type === "ask-large") large.ask(message.question);
    else if (message.type === "file-ready") saveFile(model, message);
    else if (message.type === "show-tab") /** @type {HTMLElement | null} */ (root.querySelector(`[data-hv="tab-${CSS.escape(message.tab)}"]`))?.click();
  });

  root.addEventListener("hv-live", (/** @type {any} */ event) => showLive(root, event.detail));
  pointing(root, model, send, cleanup);
  listenToKeys(root, { bar, help, exporting, dialogs, isDead: () => dead });
  takeFilesAnywhere(root);
  const openers = [header.pick, bar.opener, header.help];
  for (const name of ["focusin", "mousedown"]) {
    root.addEventListener(name, (/** @type {any} */ event) => {
      currentKey = cardKey(event) || currentKey;
      if (name === "mousedown" && openers.some((opener) => opener.contains(event.target))) return;
      for (const dialog of [help, exporting, models, python]) {
        if (!dialog.box.hidden && !dialog.box.contains(event.target)) dialog.close();
      }
    });
  }

  const leave = cleanup.mount(el, root);
  for (const name of PARTS) showPart(host, model.get(name), slots[name], cleanup);
  tellOfViews(model, root, cleanup);
  return leave;
}

/** @param {{send: (message: any) => void, openModels: () => void, toggleHelp: () => void}} app */
function makeHeader({ send, openModels, toggleHelp }) {
  const name = h("span", { class: "hv-model-name" });
  const pick = button("model-button", openModels, { class: "hv-button hv-pick", "aria-label": "Choose model", "aria-haspopup": "dialog" },
    name, icon("down"));
  const weights = h("span", { hv: "weights", class: "hv-weights" });
  const untrained = h("span", { hv: "untrained", class: "hv-badge hv-bad" }, "UNTRAINED");
  const device = select("device", "Device", [], (value) => send({ type: "device", device: value }));
  const wide = button("full-window", () => {
    if (document.fullscreenElement) document.exitFullscreen();
    else el.closest(".hv-app")?.requestFullscreen();
  }, { class: "hv-quiet", label: "Full window (Escape leaves it)" }, icon("wide"));
  const help = button("help-button", toggleHelp, { class: "hv-quiet hv-help", "aria-label": "Help", title: "Help (?)" }, "?");
  const el = h("div", { class: "hv-head" }, h("span", { class: "hv-brand", "aria-hidden": "true" }, "hookviz"),
    pick, h("span", { class: "hv-about" }, weights), device, wide, help);
  /** @param {Model} model */
  function show(model) {
    const info = model.get("model_info") ?? {};
    setText(name, info.name ?? "no model");
    pick.title = info.name ?? "";
    setText(weights, weightsText(info.weights ?? ""));
    weights.title = info.documentation || weights.textContent;
    untrained.remove();
    if (info.name && !info.trained) weights.before(untrained);
    setChoices(device, (model.get("devices") ?? []).map((/** @type {string} */ d) => [d, d.toUpperCase()]));
    device.value = model.get("device") ?? "";
  }
  return { el, pick, help, show };
}

/**
 * Shows a part's own widget in its slot.
 * @param {Context["host"]} host
 * @param {string | null} reference
 * @param {HTMLElement} slot
 * @param {Cleanup} cleanup
 */
async function showPart(host, reference, slot, cleanup) {
  const view = new AbortController();
  cleanup.add(() => view.abort());
  try {
    if (!host?.getWidget) throw new Error("the front end needs anywidget 0.11 or later; update it and reload the page");
    if (!reference) throw new Error("it was closed; run the cell again");
    const widget = await host.getWidget(reference);
    if (!view.signal.aborted) await widget.render({ el: slot, signal: view.signal });
  } catch (problem) {
    if (!view.signal.aborted) {
      slot.append(h("p", { class: "hv-dim" }, `This part cannot be shown: ${/** @type {Error} */ (problem).message}.`));
    }
  }
}

/**
 * Keys that the app answers. None of them reaches the notebook.
 * @param {HTMLElement} root
 * @param {{bar: any, help: any, exporting: any, dialogs: any[], isDead: () => boolean}} app
 */
function listenToKeys(root, { bar, help, exporting, dialogs, isDead }) {
  const part = (/** @type {string} */ hv) => /** @type {HTMLElement | null} */ (root.querySelector(`[data-hv="${hv}"]`));
  function leave() {
    const open = dialogs.find((dialog) => !dialog.box.hidden);
    if (open) open.close();
    else {
      focused(root)?.blur();
      /** @type {HTMLElement | null} */ (root.closest(".jp-Notebook"))?.focus();
    }
  }
  /** @param {string} key @param {HTMLElement} target @param {boolean} typing @returns {boolean} whether it was one of ours */
  function onKey(key, target, typing) {
    if (key === "Escape") leave();
    else if (typing) return false;
    else if (key === "/") part("search")?.focus();
    else if (key === ".") bar.cancel();
    else if (key === "e") exporting.open();
    else if (key === "?") help.toggle();
    else if (key === "Enter" && !target.closest("button, summary, a, input")) bar.start();
    else if (["[", "]", "PageUp", "PageDown"].includes(key)) {
      part("gallery")?.dispatchEvent(new CustomEvent("hv-keys", { detail: key }));
    } else return false;
    return true;
  }
  root.addEventListener("keydown", (event) => {
    const command = event.ctrlKey || event.metaKey || event.altKey;
    const target = /** @type {HTMLElement} */ (event.target);
    const typing = target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select");
    if (!command && !event.defaultPrevented && onKey(event.key, target, Boolean(typing))) event.preventDefault();
    const browsers = command && !["Enter", "v", "c", "x", "V", "C", "X"].includes(event.key);
    if (!browsers || isDead()) event.stopPropagation();
  });
  root.addEventListener("keyup", (event) => event.stopPropagation());
}

/** Opens "Live" with what Image was given: a camera, a video's file or an animation. @param {HTMLElement} root @param {any} detail */
function showLive(root, detail) {
  const start = () => root.querySelector('[data-hv="live"]')?.dispatchEvent(new CustomEvent("hv-live-start", { detail }));
  const there = root.querySelector('[data-hv="live"]');
  if (!there) root.addEventListener("hv-live-ready", start, { once: true });
  /** @type {HTMLElement | null} */ (root.querySelector('[data-hv="tab-live"]'))?.click();
  if (there) start();
}

/** A photo may be dropped or pasted anywhere on the app. @param {HTMLElement} root */
function takeFilesAnywhere(root) {
  for (const name of ["dragover", "drop", "paste"]) {
    root.addEventListener(name, (/** @type {any} */ event) => {
      const transfer = event.dataTransfer ?? event.clipboardData;
      const files = name !== "dragover" && transfer?.files.length;
      if (files) root.querySelector('[data-hv="image"]')?.dispatchEvent(new CustomEvent("hv-transfer", { detail: transfer }));
      if (files || name === "dragover") event.preventDefault();
      event.stopPropagation();
    });
  }
}

/**
 * Tells Python whether anybody looks: an output that was cleared closes its app; a page that is
 * reloaded or a notebook whose tab was closed does not, nor does a host that builds its page anew
 * as it likes (marimo, which ends a cell's widgets by itself).
 * @param {Model} model
 * @param {HTMLElement} root
 * @param {Cleanup} cleanup
 */
function tellOfViews(model, root, cleanup) {
  const view = freshId("view");
  const notebook = () => root.closest(".jp-NotebookPanel, .jp-Notebook");
  /** @type {Element | null} */
  let home = null;
  setTimeout(() => { home = notebook(); }, 0);
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message) => {
    if (message.type === "roll-call") model.send({ type: "view-here", view });
  });
  model.send({ type: "view-open", view });
  cleanup.add(() => {
    if (root.getRootNode() instanceof ShadowRoot) return;
    home = notebook() ?? home;
    setTimeout(() => {
      if (home && !home.isConnected) return;
      try {
        model.send({ type: "view-closed", view });
      } catch {
        // The kernel is gone: there is nobody to tell.
      }
    }, 300);
  });
}

export default { render: renderApp };
