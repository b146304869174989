// @ts-check
// "Copy as Python": the app's state as one cell, in the clipboard; where the page may not write
// there, in a box to copy from.
import { panel } from "./dialogs.js";
import { button, copyText, h, setText } from "./kit.js";

/** @typedef {import("./kit.js").Model} Model */

/**
 * @param {Model} model
 * @param {import("./kit.js").Cleanup} cleanup
 * @param {(message: any) => void} send
 * @param {(text: string) => void} say says what came of it
 */
export function pythonCopy(model, cleanup, send, say) {
  const text = h("textarea", { hv: "python-text", class: "hv-code", "aria-label": "Python", readonly: true, rows: "14", spellcheck: "false" });
  const hint = h("p", { hv: "python-hint", class: "hv-dim hv-note", role: "status" });
  const again = button("python-again", () => copyText(text.value).then(
    () => setText(hint, "Copied: paste it into a cell."),
    () => {
      setText(hint, "Press Ctrl+C or ⌘C: the text is selected.");
      text.focus();
      text.select();
    }), { class: "hv-button hv-main" }, "Copy");
  const view = panel({ hv: "python-dialog", label: "This view as Python", closeLabel: "Close", class: "hv-python-panel" },
    hint, text, h("div", { class: "hv-panel-foot" }, again));
  let asked = false;

  function show() {
    setText(hint, "The browser did not let the page write to the clipboard.");
    view.open(text);
    text.select();
  }
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message) => {
    // Each view of the app hears the answer; the one that was asked takes it.
    if (message.type !== "python" || !asked) return;
    asked = false;
    text.value = message.text;
    copyText(message.text).then(() => say("Copied: paste it into a cell."), show);
  });
  return {
    ...view,
    ask() {
      asked = true;
      send({ type: "as-python" });
    },
  };
}
