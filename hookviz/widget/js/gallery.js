// @ts-check
// The gallery: one card per captured layer and call, in order of execution.
// Reads the traits cards, view, choices, empty, alert; pictures arrive by message.
import "./gallery.css";
import { Card } from "./gallery_card.js";
import { viewBar } from "./gallery_view.js";
import { alertBox, Cleanup, debounce, h, icon, setText } from "./kit.js";

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
  const tabs = h("div", { role: "tablist", class: "hv-tabs", "aria-label": "Results" },
    h("button", { role: "tab", type: "button", class: "hv-tab", hv: "tab-gallery", "aria-selected": "true" }, "Gallery"));
  const root = h("section", { hv: "gallery", class: "hv hv-part hv-gallery", "aria-label": "Results" },
    h("div", { class: "hv-gallery-head" },
      h("h3", { class: "hv-title" }, h("span", { class: "hv-step" }, "3"), "Results"), tabs),
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
    style: document.body.dataset.jpThemeLight === "false" ? "dark" : "light",
  });
  let told = "";
  function tellLook() {
    if (!list.clientWidth) return;
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
    theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    cleanup.add(() => theme.disconnect());
  }

  root.addEventListener("focusin", (/** @type {any} */ event) => {
    const key = event.target.closest?.('[data-hv="card"]')?.dataset.key;
    if (key) setCurrent(key);
  });
  list.addEventListener("mousedown", (/** @type {any} */ event) => {
    const key = event.target.closest?.('[data-hv="card"]')?.dataset.key;
    if (key) setCurrent(key);
  });
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
  cleanup.listen(model, "change:alert", () => alert.show(model.get("alert")));
  view.show(model.get("view") ?? {});
  alert.show(model.get("alert"));
  refresh();
  el.classList.add("hv-host");
  el.append(root);
  tellLook();
  return () => {
    cleanup.run();
    for (const card of cards.values()) card.remove();
  };
}

/** Stands in where a browser (or a test) has no observers. */
class NoObserver {
  observe() {}
  unobserve() {}
  disconnect() {}
}

export default { render: renderGallery };
