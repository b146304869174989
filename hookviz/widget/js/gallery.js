// @ts-check
// The gallery: one card per captured layer and call, in order of execution.
// Reads the traits cards, view, choices, empty, alert; pictures arrive by message.
import "./gallery.css";
import { Card } from "./gallery_card.js";
import { viewBar } from "./gallery_view.js";
import { alertBox, cardKey, Cleanup, debounce, h, icon, setText } from "./kit.js";

/** @typedef {import("./kit.js").Model} Model */

/** @param {{model: Model, el: HTMLElement}} context */
export function renderGallery({ model, el }) {
  const cleanup = new Cleanup();
  const send = (/** @type {any} */ message) => {
    try {
      model.send(message);
    } catch {
      // The kernel is gone (sizes and scrolling are told late): the app says so elsewhere.
    }
  };
  /** @type {Map<string, Card>} */
  const cards = new Map();
  let current = "";
  let greeted = false;
  const ratio = () => Math.max(1, Math.min(3, globalThis.devicePixelRatio || 1));

  const view = viewBar((changes) => send({ type: "view", changes }), model.get("choices"));
  const alert = alertBox(() => send({ type: "dismiss" }));
  const empty = h("div", { hv: "empty", class: "hv-empty" }, icon("layers"), h("p"));
  const list = h("div", { hv: "cards", class: "hv-cards" });
  const root = h("section", { hv: "gallery", class: "hv hv-part hv-gallery", "aria-label": "Results" },
    h("h3", { class: "hv-title" }, h("span", { class: "hv-step" }, "3"), "Results"),
    view.el, alert.place, empty, list);

  function refresh() {
    const states = model.get("cards") ?? [];
    const wanted = new Set(states.map((/** @type {any} */ s) => s.key));
    for (const [key, card] of cards) {
      if (!wanted.has(key)) {
        watch.unobserve(card.el);
        card.remove();
        cards.delete(key);
      }
    }
    let before = null;
    for (const state of states) {
      let card = cards.get(state.key);
      if (!card) {
        card = new Card(state.key, send);
        cards.set(state.key, card);
        watch.observe(card.el);
      }
      card.show(state);
      // Moved only where the order differs: moving an element takes the focus out of it.
      const place = before ? before.nextSibling : list.firstChild;
      if (card.el !== place) list.insertBefore(card.el, place);
      before = card.el;
    }
    empty.hidden = states.length > 0;
    setText(/** @type {Element} */ (empty.querySelector("p")), model.get("empty") ?? "");
    if (!cards.has(current)) setCurrent(states[0]?.key ?? "", false);
  }
  /** @param {string} key @param {boolean} [tell] */
  function setCurrent(key, tell = true) {
    if (key === current) return;
    cards.get(current)?.el.classList.remove("hv-current");
    current = key;
    cards.get(key)?.el.classList.add("hv-current");
    if (tell) send({ type: "current", key });
  }
  /** @param {number} step */
  function move(step) {
    const keys = (model.get("cards") ?? []).map((/** @type {any} */ s) => s.key);
    const at = Math.max(0, Math.min(keys.length - 1, keys.indexOf(current) + step));
    const card = cards.get(keys[at]);
    if (!card) return;
    setCurrent(keys[at]);
    card.el.focus({ preventScroll: true });
    card.el.scrollIntoView({ block: "nearest" });
  }

  // Pictures near the screen are drawn first.
  const near = new Set();
  const tellNear = debounce(60, () => send({ type: "near", keys: [...near] }));
  const watch = new (globalThis.IntersectionObserver ?? NoObserver)((/** @type {any[]} */ entries) => {
    for (const entry of entries) {
      const key = entry.target.dataset.key;
      if (entry.isIntersecting) near.add(key);
      else near.delete(key);
    }
    if (greeted) tellNear();
  }, { rootMargin: "400px" });
  cleanup.add(() => watch.disconnect());

  const look = () => ({
    // Grids are drawn for the width that they have on screen, so that no pixel is resampled.
    width: Math.round(Math.max(320, list.clientWidth - 26) * ratio()),
    ratio: ratio(),
    style: isDark(root) ? "dark" : "light",
  });
  let told = "";
  function tellLook() {
    if (!list.clientWidth) return;
    root.dataset.style = look().style;
    const now = JSON.stringify(look());
    if (now === told) return;
    told = now;
    send({ type: greeted ? "look" : "hello", ...look() });
    greeted = true;
  }
  const tellLookSoon = debounce(200, tellLook);
  const size = new (globalThis.ResizeObserver ?? NoObserver)(() => (greeted ? tellLookSoon() : tellLook()));
  size.observe(list);
  cleanup.add(() => size.disconnect());
  if (globalThis.MutationObserver) {
    const theme = new MutationObserver(tellLookSoon);
    // JupyterLab names its theme on the body, marimo on body and root by class or attribute.
    for (const node of [document.documentElement, document.body]) {
      theme.observe(node, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-theme", "class"] });
    }
    cleanup.add(() => theme.disconnect());
  }

  for (const name of ["focusin", "mousedown"]) {
    list.addEventListener(name, (/** @type {any} */ event) => setCurrent(cardKey(event) || current));
  }
  root.addEventListener("hv-keys", (/** @type {any} */ event) => onKey(event.detail));
  root.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const typing = /** @type {HTMLElement} */ (event.target).closest?.("input, select, textarea");
    if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey && onKey(event.key)) {
      event.preventDefault();
      event.stopPropagation();
    }
  });
  /** @param {string} key @returns {boolean} */
  function onKey(key) {
    const card = cards.get(current);
    if (key === "[") move(-1);
    else if (key === "]") move(1);
    else if (key === "PageUp") card?.turn(-1);
    else if (key === "PageDown") card?.turn(1);
    else return false;
    return true;
  }

  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type === "pixels") cards.get(message.key)?.paint(message, buffers[0], ratio());
  });
  cleanup.listen(model, "change:cards", refresh);
  cleanup.listen(model, "change:empty", refresh);
  cleanup.listen(model, "change:view", () => view.show(model.get("view") ?? {}));
  const refreshAlert = () => {
    const now = model.get("alert") ?? {};
    alert.show(view.refuse(now) ? {} : now);
  };
  cleanup.listen(model, "change:alert", refreshAlert);
  view.show(model.get("view") ?? {});
  refreshAlert();
  refresh();
  el.classList.add("hv-host");
  el.append(root);
  tellLook();
  return () => {
    cleanup.run();
    for (const card of cards.values()) card.remove();
  };
}

/** Whether the host's page is dark here: by what is painted, as hosts name their themes in many ways. @param {Element} element */
function isDark(element) {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  if (!paint) return false;
  paint.fillStyle = getComputedStyle(element).backgroundColor;
  paint.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = paint.getImageData(0, 0, 1, 1).data;
  return alpha > 0 && 0.2126 * red + 0.7152 * green + 0.0722 * blue < 110;
}

/** Stands in where a browser (or a test) has no observers. */
class NoObserver {
  observe() {}
  unobserve() {}
  disconnect() {}
}

export default { render: renderGallery };
