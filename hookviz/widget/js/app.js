// @ts-check
// The whole app: its frame, its keys, and the parts as child widgets in their places.
// A little over 300 lines: header, run bar, keys and parts share one state of the screen.
// Reads the traits model_info, devices, device, status, why_not, predictions, export_result,
// auto_run, alert, tree, image_input, gallery; sends messages.
import "./app.css";
import { exportPanel, helpPanel, largePanel, modelPanel } from "./dialogs.js";
import { alertBox, Cleanup, h, icon, isOff, select, setChoices, setOff, setText } from "./kit.js";
import { watchKernel } from "./kernel.js";
import { saveZip } from "./zip.js";

/** @typedef {import("./kit.js").Model} Model */

/** @param {{model: Model, el: HTMLElement}} context */
export function renderApp({ model, el }) {
  const cleanup = new Cleanup();
  const viewId = Math.random().toString(36).slice(2);
  const send = (/** @type {any} */ message) => {
    model.send(message);
    expectAnswer();
  };
  let currentKey = "";

  // ── header
  const modelName = h("span", { class: "hv-model-name" });
  const modelButton = h("button", { hv: "model-button", type: "button", class: "hv-button hv-pick",
    "aria-label": "Choose model", "aria-haspopup": "dialog", onclick: () => models.open() },
  modelName, icon("down"));
  const weights = h("span", { hv: "weights", class: "hv-weights" });
  const untrained = h("span", { hv: "untrained", class: "hv-badge hv-bad" }, "UNTRAINED");
  const device = select("device", "Device", [], (value) => send({ type: "device", device: value }));
  const dot = h("span", { class: "hv-dot", "aria-hidden": "true" });
  const state = h("span", { hv: "state", class: "hv-state-text", role: "status", "aria-live": "polite" });
  const helpButton = h("button", { hv: "help-button", type: "button", class: "hv-quiet hv-help", "aria-label": "Help",
    title: "Help (?)", onclick: () => help.toggle() }, "?");
  const note = h("p", { hv: "note", class: "hv-dim hv-note", hidden: true });
  const alert = alertBox((action) => send(action === "dismiss" ? { type: "dismiss" } : { type: "action", do: action }));
  const dead = h("div", { hv: "dead", role: "alert", class: "hv-alert hv-dead-text", hidden: true });

  // ── places of the parts
  const place = (/** @type {string} */ name) => h("div", { class: `hv-place hv-place-${name}` });
  const places = { image: place("image"), tree: place("tree"), gallery: place("gallery") };
  const predictions = h("ol", { hv: "predictions", class: "hv-predictions", "aria-label": "Predictions" });
  const predictionsReason = h("p", { hv: "predictions-reason", class: "hv-dim hv-note", hidden: true });
  const predictionBox = h("section", { class: "hv-part hv-prediction-box", "aria-label": "Predictions of the model", hidden: true },
    predictions, predictionsReason, note);

  // ── run bar
  const run = h("button", { hv: "run", type: "button", class: "hv-button hv-main hv-run",
    onclick: startRun }, icon("play"), "Run");
  const cancel = h("button", { hv: "cancel", type: "button", class: "hv-button",
    onclick: () => !isOff(cancel) && send({ type: "cancel" }) }, "Cancel");
  const fill = h("span", { class: "hv-bar-fill" });
  const bar = h("div", { hv: "progress", class: "hv-bar", role: "progressbar", "aria-label": "Progress",
    "aria-valuemin": "0", "aria-valuemax": "1", "aria-valuenow": "0" }, fill);
  const count = h("span", { hv: "progress-text", class: "hv-count" });
  const reason = h("span", { hv: "run-reason", class: "hv-reason" });
  const auto = h("input", { hv: "auto-run", type: "checkbox", "aria-label": "Run automatically",
    onchange: () => send({ type: "auto", on: auto.checked }) });
  const exportButton = h("button", { hv: "export-button", type: "button", class: "hv-button",
    "aria-haspopup": "dialog", onclick: () => exporting.open() }, icon("export"), "Export");
  const runBar = h("div", { hv: "runbar", class: "hv-runbar", role: "group", "aria-label": "Run bar" },
    run, cancel, bar, count, reason,
    h("label", { class: "hv-check hv-auto", title: "Run after every change of layers or image" }, auto, "Run automatically"),
    exportButton);

  const models = modelPanel(model, cleanup);
  const exporting = exportPanel(model, () => currentKey);
  const help = helpPanel(model.get("max_bytes") ?? 5e7);
  const large = largePanel(model);
  const root = h("section", { hv: "app", class: "hv hv-app", "aria-label": "hookviz", "data-state": "idle" },
    h("div", { class: "hv-head" }, h("span", { class: "hv-brand", "aria-hidden": "true" }, "hookviz"), modelButton,
      h("span", { class: "hv-about" }, untrained, weights), h("span", { class: "hv-space" }), device,
      h("span", { class: "hv-state" }, dot, state), helpButton),
    h("div", { class: "hv-notices" }, dead, alert.place),
    h("div", { class: "hv-columns" },
      h("div", { class: "hv-side" }, places.image, predictionBox, places.tree), places.gallery),
    runBar, models.box, exporting.box, help.box, large.box);

  function startRun() {
    if (isOff(run)) {
      reason.classList.remove("hv-shake");
      void reason.offsetWidth;
      reason.classList.add("hv-shake");
    } else send({ type: "run" });
  }

  // ── the model's state on screen
  function refreshModel() {
    const info = model.get("model_info") ?? {};
    setText(modelName, info.name ?? "no model");
    setText(weights, info.weights ?? "");
    weights.title = info.documentation ?? info.weights ?? "";
    untrained.remove();
    if (info.name && !info.trained) weights.before(untrained);
    setText(note, info.note ?? "");
    note.hidden = !info.note;
    refreshPredictions();
    const devices = model.get("devices") ?? [];
    setChoices(device, devices.map((/** @type {string} */ d) => [d, d.toUpperCase()]));
    device.value = model.get("device") ?? "";
  }
  function refreshStatus() {
    const status = model.get("status") ?? {};
    if (root.dataset.state === "dead") return;
    const busy = status.state !== "idle";
    const why = model.get("why_not") ?? "";
    root.dataset.state = status.state ?? "idle";
    setText(state, status.text ?? "");
    const total = Math.max(1, status.total ?? 1);
    const part = Math.min(1, (status.done ?? 0) / total);
    bar.setAttribute("aria-valuemax", String(total));
    bar.setAttribute("aria-valuenow", String(status.done ?? 0));
    bar.classList.toggle("hv-endless", busy && !status.total);
    fill.style.width = `${part * 100}%`;
    bar.classList.toggle("hv-rest", !busy);
    setText(count, busy && status.total ? `${status.done ?? 0} / ${status.total}` : "");
    setOff(run, busy || Boolean(why));
    setOff(cancel, !busy || status.state === "cancelling");
    setText(reason, why && !busy ? why : status.text === "Ready." ? "" : status.text ?? "");
    run.title = why || "Run (Enter)";
    exporting.show(model.get("export_result") ?? {}, model.get("why_no_export") ?? "");
    auto.checked = Boolean(model.get("auto_run"));
  }
  function refreshPredictions() {
    const found = model.get("predictions") ?? {};
    const items = found.items ?? [];
    predictions.replaceChildren(...items.map((/** @type {[string, number]} */ [name, share]) => h("li", { hv: "prediction" },
      h("span", { class: "hv-prediction-name", title: name }, name),
      h("span", { class: "hv-prediction-bar" }, h("span", { style: `width:${(share * 100).toFixed(1)}%` })),
      h("span", { class: "hv-prediction-share" }, `${(share * 100).toFixed(1)} %`))));
    predictions.hidden = !items.length;
    const noted = (model.get("model_info") ?? {}).note ?? "";
    setText(predictionsReason, found.reason ?? "");
    predictionsReason.hidden = !found.reason || found.reason === noted;
    predictionBox.hidden = !items.length && !found.reason && !noted;
  }

  // ── a kernel that is gone, or does not answer
  function setDead(/** @type {string} */ text) {
    root.dataset.state = "dead";
    setText(dead, text);
    dead.hidden = false;
    setText(reason, text);
    for (const control of [run, cancel]) setOff(control, true);
  }
  function checkLive() {
    if (el.isConnected && el.classList.contains("jupyter-widgets-disconnected")) {
      setDead("The kernel was restarted: run the cell again.");
    }
  }
  /** @type {any} */
  let answer;
  function expectAnswer() {
    clearTimeout(answer);
    answer = setTimeout(() => {
      if (root.dataset.state !== "dead") {
        setText(dead, "The kernel has not answered for 10 seconds: it is busy, or it was restarted. " +
          "If it was, run the cell again.");
        dead.hidden = false;
      }
    }, 10000);
  }
  function answered() {
    clearTimeout(answer);
    if (root.dataset.state !== "dead") dead.hidden = true;
  }

  // ── keys: none of them reaches JupyterLab
  root.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const command = event.ctrlKey || event.metaKey || event.altKey;
    const target = /** @type {HTMLElement} */ (event.target);
    const typing = target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select");
    if (!command && !event.defaultPrevented && onKey(event.key, target, Boolean(typing))) event.preventDefault();
    const browsers = command && !["Enter", "v", "c", "x", "V", "C", "X"].includes(event.key);
    if (!browsers || root.dataset.state === "dead") event.stopPropagation();
  });
  /** @param {string} key @param {HTMLElement} target @param {boolean} typing @returns {boolean} */
  function onKey(key, target, typing) {
    if (key === "Escape") {
      leave();
      return true;
    }
    if (typing) return false;
    const part = (/** @type {string} */ selector) => /** @type {HTMLElement | null} */ (root.querySelector(selector));
    if (key === "/") part('[data-hv="search"]')?.focus();
    else if (key === ".") cancel.click();
    else if (key === "e") exporting.open();
    else if (key === "?") help.toggle();
    else if (key === "Enter" && !target.closest("button, summary, a, input")) startRun();
    else if (["[", "]", "PageUp", "PageDown"].includes(key)) {
      part('[data-hv="gallery"]')?.dispatchEvent(new CustomEvent("hv-keys", { detail: key }));
    } else return false;
    return true;
  }
  function leave() {
    for (const view of [help, exporting, models, large]) {
      if (!view.box.hidden) {
        view.close();
        return;
      }
    }
    const outside = /** @type {HTMLElement | null} */ (root.closest(".jp-Notebook"));
    /** @type {HTMLElement | null} */ (document.activeElement)?.blur();
    outside?.focus();
  }
  root.addEventListener("keyup", (/** @type {Event} */ event) => event.stopPropagation());
  root.addEventListener("focusin", (/** @type {any} */ event) => {
    const key = event.target.closest?.('[data-hv="card"]')?.dataset.key;
    if (key) currentKey = key;
    for (const view of [exporting, models, help]) {
      if (!view.box.hidden && !view.box.contains(event.target)) view.close();
    }
  });
  root.addEventListener("mousedown", (/** @type {any} */ event) => {
    const key = event.target.closest?.('[data-hv="card"]')?.dataset.key;
    if (key) currentKey = key;
    const openers = [modelButton, exportButton, helpButton];
    if (openers.some((opener) => opener.contains(event.target))) return;
    for (const view of [exporting, models, help]) {
      if (!view.box.hidden && !view.box.contains(event.target)) view.close();
    }
  });

  // A photo may be dropped or pasted anywhere on the app.
  const hand = (/** @type {DataTransfer | null} */ transfer) => {
    if (!transfer?.files.length) return false;
    root.querySelector('[data-hv="image"]')?.dispatchEvent(new CustomEvent("hv-transfer", { detail: transfer }));
    return true;
  };
  for (const name of ["dragover", "drop", "paste"]) {
    root.addEventListener(name, (/** @type {any} */ event) => {
      const transfer = event.dataTransfer ?? event.clipboardData;
      if (name === "dragover" || hand(transfer)) event.preventDefault();
      event.stopPropagation();
    });
  }

  cleanup.listen(model, "msg:custom", (/** @type {any} */ message) => {
    answered();
    if (message.type === "roll-call") model.send({ type: "view-here", view: viewId });
    else if (message.type === "ask-large") large.ask(message.question);
    else if (message.type === "zip-ready") saveZip(model, message);
    else if (message.type === "current" && !currentKey) currentKey = message.key;
  });
  cleanup.listen(model, "comm_live_update", () => setTimeout(checkLive, 0));
  watchKernel(model, cleanup, () => setDead("The kernel was restarted: run the cell again."));
  for (const name of ["model_info", "devices", "device"]) cleanup.listen(model, `change:${name}`, refreshModel);
  for (const name of ["status", "why_not", "why_no_export", "export_result", "auto_run"]) {
    cleanup.listen(model, `change:${name}`, () => {
      answered();
      refreshStatus();
    });
  }
  cleanup.listen(model, "change:predictions", refreshPredictions);
  cleanup.listen(model, "change:alert", () => {
    answered();
    alert.show(model.get("alert"));
  });
  refreshModel();
  refreshStatus();
  refreshPredictions();
  alert.show(model.get("alert"));
  el.classList.add("hv-host");
  el.append(root);
  setTimeout(checkLive, 0);

  // ── the parts
  /** @type {any[]} */
  const children = [];
  let gone = false;
  for (const [name, where] of Object.entries({ image_input: places.image, tree: places.tree, gallery: places.gallery })) {
    const manager = model.widget_manager;
    const reference = String(model.get(name) ?? "").replace("IPY_MODEL_", "");
    if (!manager || !reference) continue;
    manager.get_model(reference)
      .then((/** @type {any} */ child) => manager.create_view(child))
      .then((/** @type {any} */ view) => {
        if (gone) view.remove();
        else {
          children.push(view);
          where.append(view.el);
        }
      })
      .catch((/** @type {any} */ problem) => {
        where.append(h("p", { class: "hv-dim" }, `This part cannot be shown: ${problem}`));
      });
  }

  // ── telling Python whether anybody looks: an output that was cleared closes its app, a page
  // that is reloaded or a notebook whose tab was closed does not.
  const notebook = () => root.closest(".jp-NotebookPanel, .jp-Notebook");
  /** @type {Element | null} */
  let home = null;
  setTimeout(() => { home = notebook(); }, 0);
  model.send({ type: "view-open", view: viewId });
  return () => {
    gone = true;
    home = notebook() ?? home;
    cleanup.run();
    clearTimeout(answer);
    for (const view of children) view.remove();
    const stays = home;
    setTimeout(() => {
      if (stays && !stays.isConnected) return;
      try {
        model.send({ type: "view-closed", view: viewId });
      } catch {
        // The kernel is gone: there is nobody to tell.
      }
    }, 300);
  };
}

export default { render: renderApp };
