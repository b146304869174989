// @ts-check
// Whether the kernel behind the app is still the one that made it.

/** @typedef {import("./kit.js").Model} Model */
/** @typedef {import("./kit.js").Cleanup} Cleanup */

/**
 * Hears of a kernel that restarts or dies, where the widget manager tells of its kernel at all.
 * @param {Model} model
 * @param {Cleanup} cleanup
 * @param {() => void} onGone
 */
export function watchKernel(model, cleanup, onGone) {
  const signal = model.widget_manager?.kernel?.statusChanged;
  if (!signal?.connect) return;
  const slot = (/** @type {any} */ _kernel, /** @type {string} */ status) => {
    if (["restarting", "autorestarting", "dead", "terminating"].includes(status)) onGone();
  };
  signal.connect(slot);
  cleanup.add(() => signal.disconnect(slot));
}
