// @ts-check
// The gallery: one card per captured layer and call, in order of execution.
// Reads the traits cards, view, tile, choices, empty, alert; pictures arrive by message.
import "./gallery.css";
import { Card } from "./gallery_card.js";
import { viewBar } from "./gallery_view.js";
import { cardKey, Cleanup, debounce, h, icon, partAlert, setText } from "./kit.js";
import { pixelRatio, watchLook } from "./look.js";

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
  const view = viewBar((changes) => send({ type: "view", changes }), (size) => send({ type: "tile", size }),
    (channels) => send({ type: "channels", key: current, channels }), (on) => send({ type: "small", on }), model.get("choices"));
  const showView = () => view.show(model.get("view") ?? {}, model.get("tile") ?? 64, cards.get(current)?.state ?? null,
    Boolean(model.get("small")));
  const empty = h("p");
  const emptyBox = h("div", { hv: "empty", class: "hv-empty" }, icon("layers"), empty);
  const list = h("div", { hv: "cards", class: "hv-cards" });
  const root = h("section", { hv: "gallery", class: "hv hv-part hv-gallery", "aria-label": "Results" },
    h("h3", { class: "hv-title" }, h("span", { class: "hv-step" }, "3"), "Results"),
    view.el, partAlert(model, cleanup, view.fields), emptyBox, list);
  const near = watchNear(cleanup, (keys) => send({ type: "near", keys }));
  /** @type {Map<string, Card>} */
  const cards = new Map();
  let current = "";

  function refresh() {
    const states = model.get("cards") ?? [];
    const wanted = new Set(states.map((/** @type {any} */ s) => s.key));
    for (const [key, card] of cards) {
      if (wanted.has(key)) continue;
      near.unobserve(card.el);
      card.remove();
      cards.delete(key);
    }
    let place = list.firstChild;
    for (const state of states) {
      const card = cards.get(state.key) ?? new Card(state.key, send);
      if (!cards.has(state.key)) near.observe(card.el);
      cards.set(state.key, card);
      card.show(state);
      // Moved only where the order differs: moving an element takes the focus out of it.
      if (card.el !== place) list.insertBefore(card.el, place);
      place = card.el.nextSibling;
    }
    emptyBox.hidden = states.length > 0;
    setText(empty, model.get("empty") ?? "");
    if (!cards.has(current)) setCurrent(states[0]?.key ?? "", false);
    showView();
  }
  /** @param {string} key @param {boolean} [tell] */
  function setCurrent(key, tell = true) {
    if (key === current) return;
    cards.get(current)?.el.classList.remove("hv-current");
    current = key;
    cards.get(key)?.el.classList.add("hv-current");
    if (tell) send({ type: "current", key });
    showView();
  }
  /** @param {number} step */
  function move(step) {
    const keys = (model.get("cards") ?? []).map((/** @type {any} */ s) => s.key);
    const card = cards.get(keys[Math.max(0, Math.min(keys.length - 1, keys.indexOf(current) + step))]);
    if (!card) return;
    setCurrent(card.key);
    card.el.focus({ preventScroll: true });
    card.el.scrollIntoView({ block: "nearest" });
  }
  /** @param {string} key @returns {boolean} whether it was one of ours */
  function onKey(key) {
    const acts = /** @type {Record<string, () => void>} */ ({
      "[": () => move(-1), "]": () => move(1),
      PageUp: () => cards.get(current)?.turn(-1), PageDown: () => cards.get(current)?.turn(1),
    });
    acts[key]?.();
    return key in acts;
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
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type === "pixels") cards.get(message.key)?.paint(message, buffers[0], pixelRatio());
  });
  cleanup.follow(model, ["cards", "empty"], refresh);
  cleanup.follow(model, ["view", "tile", "small"], showView);
  cleanup.add(() => cards.forEach((card) => card.remove()));
  const leave = cleanup.mount(el, root);
  watchLook(root, list, cleanup, (look) => send({ type: "look", ...look }));
  return leave;
}

/**
 * Tells which cards are near the screen: their pictures are drawn first.
 * @param {Cleanup} cleanup
 * @param {(keys: string[]) => void} tell
 */
function watchNear(cleanup, tell) {
  /** @type {Set<string>} */
  const near = new Set();
  const tellSoon = debounce(60, () => tell([...near]));
  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      const key = /** @type {HTMLElement} */ (target).dataset.key ?? "";
      if (isIntersecting) near.add(key);
      else near.delete(key);
    }
    tellSoon();
  }, { rootMargin: "400px" });
  cleanup.add(() => watch.disconnect());
  return watch;
}

export default { render: renderGallery };
