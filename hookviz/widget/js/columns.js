// @ts-check
// The edge between two columns: dragged, or moved by the arrow keys, and remembered by the browser.
import { h } from "./kit.js";

const STEP = 16;

/**
 * How wide a column becomes.
 * @param {number} wanted pixels
 * @param {[number, number]} limits
 */
export function within(wanted, [least, most]) {
  return Math.round(Math.max(least, Math.min(Math.max(least, most), wanted)));
}

/**
 * The edge beside a column, whose width is the custom property `--hv-NAME-width` of `root`; where
 * that is not set the style sheet decides. Home and End make it as narrow and as wide as it goes,
 * Enter or a double click as it was at first.
 * @param {{name: string, label: string, column: () => HTMLElement | undefined, limits: (root: HTMLElement) => [number, number],
 *   before?: boolean}} what `before`: the edge stands before its column, not behind it
 * @param {() => HTMLElement} root the app's element
 * @param {import("./kit.js").Cleanup} cleanup
 * @returns {HTMLElement}
 */
export function columnEdge({ name, label, column, limits, before = false }, root, cleanup) {
  const key = `hookviz:${name}-width`;
  const edge = h("div", { hv: `edge-${name}`, class: "hv-edge", role: "separator", tabindex: "0", "aria-orientation": "vertical",
    "aria-label": label, title: `${label}: drag, or press ← and →` });
  const width = () => Math.round(column()?.getBoundingClientRect().width ?? 0);
  /** @param {number | null} wanted pixels; null for what the style sheet says @param {boolean} [keep] */
  function set(wanted, keep = true) {
    if (wanted === null) root().style.removeProperty(`--hv-${name}-width`);
    else root().style.setProperty(`--hv-${name}-width`, `${wanted}px`);
    tell();
    try {
      if (keep && wanted === null) localStorage.removeItem(key);
      else if (keep) localStorage.setItem(key, String(wanted));
    } catch {
      // The browser keeps nothing for this page: the width lasts as long as the page.
    }
  }
  function tell() {
    const [least, most] = limits(root());
    edge.setAttribute("aria-valuemin", String(Math.round(least)));
    edge.setAttribute("aria-valuemax", String(Math.round(Math.max(least, most))));
    edge.setAttribute("aria-valuenow", String(within(width(), [least, most])));
  }
  const move = (/** @type {number} */ by) => set(within(width() + (before ? -by : by), limits(root())));

  edge.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = STEP * (event.shiftKey ? 4 : 1);
    const [least, most] = limits(root());
    if (event.key === "ArrowLeft") move(-step);
    else if (event.key === "ArrowRight") move(step);
    else if (event.key === "Home") set(within(least, [least, most]));
    else if (event.key === "End") set(within(most, [least, most]));
    else if (event.key === "Enter") set(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  edge.addEventListener("dblclick", () => set(null));
  /** Where a drag began: the pointer, and how wide the column was. @type {[number, number] | null} */
  let from = null;
  edge.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0) return;
    from = [event.clientX, width()];
    edge.setPointerCapture?.(event.pointerId);
    event.preventDefault();
    edge.focus();
  });
  edge.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (from) set(within(from[1] + (event.clientX - from[0]) * (before ? -1 : 1), limits(root())), false);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    edge.addEventListener(end, (/** @type {PointerEvent} */ event) => {
      if (from && event.clientX !== from[0]) set(width());
      from = null;
    });
  }
  /** What was remembered, once the app is in the page. */
  function begin() {
    let kept = 0;
    try {
      kept = Number(localStorage.getItem(key));
    } catch {
      // As above.
    }
    if (kept > 0 && kept < 1e5) set(kept, false);
    else tell();
  }
  const sizes = new ResizeObserver(tell);
  setTimeout(() => {
    sizes.observe(root());
    begin();
  }, 0);
  edge.addEventListener("focus", tell);
  cleanup.add(() => sizes.disconnect());
  return edge;
}
