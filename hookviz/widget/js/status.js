// @ts-check
// What is going on, and what there is to do about it: the light, the run bar, the predictions.
import { actionButtons, button, bytesText, checkbox, h, icon, isOff, setAttribute, setHidden, setOff, setText } from "./kit.js";
import { modelWords } from "./wording.js";

/** @typedef {{state?: string, text?: string, done?: number, total?: number, unit?: string, outcome?: string}} Status */

/**
 * The app's one place for its status: a sign that differs in shape and color, and a sentence.
 */
export function statusLight() {
  const sign = h("span", { class: "hv-sign" });
  const text = h("span", { hv: "state", class: "hv-state-text", role: "status", "aria-live": "polite" });
  const el = h("span", { class: "hv-state" }, sign, text);
  let shown = "";
  /** @param {Status} status @param {boolean} dead */
  function show(status, dead) {
    const busy = status.state !== undefined && status.state !== "idle";
    const outcome = dead ? "failed" : busy ? "busy" : status.outcome || "ok";
    if (outcome !== shown) {
      shown = outcome;
      sign.replaceChildren(icon(outcome));
      el.dataset.outcome = outcome;
    }
    setText(text, dead ? "No kernel." : status.text ?? "");
    el.title = text.textContent;
  }
  return { el, show };
}

/**
 * How far something has come, with what is counted.
 * @param {Status} status
 */
function countText({ done = 0, total = 0, unit = "" }) {
  if (!total) return "";
  if (unit === "bytes") return `${bytesText(done)} of ${bytesText(total)}`;
  return `${done} of ${total} ${unit}`.trim();
}

/**
 * Run, Cancel, progress, Copy as Python and Export.
 * @param {{send: (message: any) => void, openExport: () => void, copyPython: () => void}} app
 */
export function runBar({ send, openExport, copyPython }) {
  const run = button("run", start, { class: "hv-button hv-main hv-run" }, icon("play"), "Run");
  const cancel = button("cancel", () => isOff(cancel) || send({ type: "cancel" }), {}, "Cancel");
  const fill = h("span", { class: "hv-bar-fill" });
  const bar = h("div", { hv: "progress", class: "hv-bar", role: "progressbar", "aria-label": "Progress",
    "aria-valuemin": "0", "aria-valuemax": "1", "aria-valuenow": "0" }, fill);
  const count = h("span", { hv: "progress-text", class: "hv-count" });
  const reason = h("span", { hv: "run-reason", class: "hv-reason" });
  const auto = checkbox("auto-run", "Run automatically", { onchange: () => send({ type: "auto", on: auto.input.checked }) });
  auto.line.title = "Run after every change of layers or image";
  auto.line.classList.add("hv-auto");
  auto.line.lastChild?.replaceWith(h("span", { class: "hv-long" }, "Run automatically"), h("span", { class: "hv-short-text" }, "Auto"));
  const opener = button("export-button", openExport, { "aria-haspopup": "dialog", "aria-label": "Export", title: "Export (e)" }, icon("export"), h("span", { class: "hv-long" }, "Export"));
  const python = button("python", () => {
    setText(copied, "");
    if (!isOff(python)) copyPython();
  }, { "aria-label": "Copy as Python" }, icon("copy"), h("span", { class: "hv-long" }, "Copy as Python"));
  const copied = h("span", { hv: "copied", class: "hv-copied", role: "status" });
  const el = h("div", { hv: "runbar", class: "hv-runbar", role: "group", "aria-label": "Run bar" },
    run, cancel, bar, count, reason, auto.line, copied, python, opener);

  function start() {
    if (!isOff(run)) send({ type: "run" });
    else {
      reason.classList.remove("hv-shake");
      void reason.offsetWidth;
      reason.classList.add("hv-shake");
    }
  }
  /**
   * @param {Status} status
   * @param {{why: string, dead: boolean, automatic: boolean}} more `why`: why there can be no run, or ""
   */
  function show(status, { why, dead, automatic }) {
    const busy = status.state !== "idle";
    auto.input.checked = automatic;
    const total = Math.max(1, status.total ?? 1);
    const text = busy ? countText(status) : "";
    bar.setAttribute("aria-valuemax", String(total));
    bar.setAttribute("aria-valuenow", String(status.done ?? 0));
    setAttribute(bar, "aria-valuetext", text || null);
    bar.classList.toggle("hv-endless", busy && !status.total);
    bar.classList.toggle("hv-rest", !busy || dead);
    fill.style.width = `${Math.min(1, (status.done ?? 0) / total) * 100}%`;
    setText(count, text);
    setOff(run, busy || Boolean(why) || dead);
    setOff(cancel, !busy || status.state === "cancelling" || dead);
    setOff(python, Boolean(why) || dead);
    python.title = why || "The view as one cell that gives the same figures";
    setText(copied, "");
    setText(reason, busy ? "" : why);
    el.classList.toggle("hv-why", Boolean(why) && !busy);
    run.title = why || "Run (Enter)";
  }
  const said = (/** @type {string} */ text) => setText(copied, text);
  return { el, show, start, opener, said, cancel: () => cancel.click() };
}

/**
 * The model's predictions and what is to be known of its weights.
 * @param {(action: string) => void} onAction
 */
export function predictionBox(onAction) {
  const list = h("ol", { class: "hv-predictions", "aria-label": "Predictions" });
  const reason = h("p", { hv: "predictions-reason", class: "hv-dim hv-note" });
  const note = h("p", { hv: "note", class: "hv-dim hv-note" });
  const actions = h("div", { class: "hv-actions" });
  // The likeliest one is in sight, the others behind it.
  const first = h("summary", { class: "hv-predictions" });
  const fold = h("details", { hv: "predictions" }, first, list);
  const el = h("section", { class: "hv-part hv-prediction-box", "aria-label": "Predictions of the model" },
    fold, reason, note, actions);
  /** Changed where they are: frames come many times a second. @param {Element} place @param {[string, number]} [item] */
  function fill(place, item) {
    if (!item) return place.replaceChildren();
    if (!place.childElementCount) {
      place.append(h("span", { class: "hv-prediction-name" }), h("span", { class: "hv-prediction-bar" }, h("span")), h("span", { class: "hv-prediction-share" }));
    }
    const [name, bar, share] = place.children;
    const percent = (item[1] * 100).toFixed(1);
    setText(name, item[0]);
    setAttribute(name, "title", item[0]);
    setAttribute(/** @type {Element} */ (bar.firstElementChild), "style", `width:${percent}%`);
    setText(share, `${percent} %`);
  }
  /** @type {Record<string, any>} */
  let about = {};
  /** @param {Record<string, any>} found @param {Record<string, any>} info */
  function show(found, info) {
    const items = found.items ?? [];
    fill(first, items[0]);
    if (list.childElementCount !== items.length) list.replaceChildren(...items.map(() => h("li", { hv: "prediction" })));
    items.forEach((/** @type {any} */ item, /** @type {number} */ n) => fill(list.children[n], item));
    const words = modelWords(info);
    setText(reason, found.reason ?? "");
    setAttribute(reason, "title", reason.textContent);
    setText(note, words.message);
    setAttribute(note, "title", words.message);
    if (info !== about) actions.replaceChildren(...actionButtons(words.actions, onAction));
    about = info;
    setHidden(fold, !items.length);
    setHidden(reason, !found.reason || found.reason === info.note);
    setHidden(note, !words.message);
    setHidden(el, !items.length && !found.reason && !words.message);
  }
  return { el, show };
}
