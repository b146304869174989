// @ts-check
// Whether the kernel behind the app is still the one that made it, and answers.
// Jupyter tells of a restart; other hosts do not, so that an answer is also waited for.

/** @typedef {import("./kit.js").Model} Model */
/** @typedef {import("./kit.js").Cleanup} Cleanup */

const ASK_AFTER = 3000;
const GIVE_UP_AFTER = 7000;
const RESTARTED = "The kernel was restarted: run the cell again.";
const SILENT = "The kernel has not answered for 10 seconds: it is busy, or it was restarted. " +
  "If it was, run the cell again.";

/**
 * @param {Model} model
 * @param {HTMLElement} el
 * @param {Cleanup} cleanup
 * @param {{gone: (text: string) => void, silent: (text: string) => void}} tell `silent` gets ""
 *   once there is an answer again
 */
export function watchKernel(model, el, cleanup, { gone, silent }) {
  /** @type {any} */
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = undefined;
    silent("");
  };
  for (const sign of ["msg:custom", "change:status", "change:alert", "change:model_info"]) cleanup.listen(model, sign, heard);
  cleanup.add(() => clearTimeout(timer));

  const disconnected = () => setTimeout(() => {
    if (el.isConnected && el.classList.contains("jupyter-widgets-disconnected")) gone(RESTARTED);
  }, 0);
  cleanup.listen(model, "comm_live_update", disconnected);
  disconnected();

  const signal = model.widget_manager?.kernel?.statusChanged;
  const slot = (/** @type {any} */ _kernel, /** @type {string} */ status) => {
    if (["restarting", "autorestarting", "dead", "terminating"].includes(status)) gone(RESTARTED);
  };
  signal?.connect?.(slot);
  cleanup.add(() => signal?.disconnect?.(slot));

  /** Sends a message, and says so where no answer comes to it. @param {any} message */
  return (message) => {
    model.send(message);
    // What changes nothing is not answered by itself: a ping is.
    timer ??= setTimeout(() => {
      model.send({ type: "ping" });
      timer = setTimeout(() => silent(SILENT), GIVE_UP_AFTER);
    }, ASK_AFTER);
  };
}
