// @ts-check
// The choices of an earlier app of the same cell: kept in the browser's storage, and offered again
// after the kernel was restarted. Python decides whether there is anything to offer, and checks it.
import { button, h, icon, setText } from "./kit.js";

const PREFIX = "hookviz:choices:";
/** How many cells are remembered. */
const MOST = 40;

/** @returns {Storage | null} null where the browser keeps nothing for this page */
function storage() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

/**
 * Keeps choices for a cell; those of the cells that were remembered longest ago go.
 * @param {string} cell
 * @param {string} app which app made them
 * @param {string} text
 */
export function keep(cell, app, text) {
  const store = storage();
  try {
    store?.setItem(PREFIX + cell, JSON.stringify({ app, text, at: Date.now() }));
  } catch {
    return; // It is full.
  }
  const all = Object.keys(store ?? {}).filter((key) => key.startsWith(PREFIX));
  const when = (/** @type {string} */ key) => entry(key)?.at ?? 0;
  for (const key of all.sort((a, b) => when(a) - when(b)).slice(0, Math.max(0, all.length - MOST))) store?.removeItem(key);
}

/** @param {string} key @returns {{app: string, text: string, at: number} | null} */
function entry(key) {
  try {
    const found = JSON.parse(storage()?.getItem(key) ?? "null");
    return typeof found?.text === "string" ? found : null;
  } catch {
    return null;
  }
}

/** What another app of the cell chose; "" for nothing. @param {string} cell @param {string} app */
export function keptFor(cell, app) {
  const found = entry(PREFIX + cell);
  return found && found.app !== app ? found.text : "";
}

/**
 * @param {import("./kit.js").Model} model the app's
 * @param {import("./kit.js").Cleanup} cleanup
 * @param {(message: any) => void} send
 */
export function formerChoices(model, cleanup, send) {
  const [cell, app] = [model.get("cell") ?? "", model.get("tree") ?? ""];
  const text = h("span", { hv: "former-text" });
  const el = h("div", { hv: "former", class: "hv-former", role: "status", hidden: true }, text,
    button("use-former", () => send({ type: "use-former" }), { class: "hv-button" }, "Use the former choices"),
    button("no-former", () => send({ type: "no-former" }), { class: "hv-quiet", label: "No, leave them" }, icon("close")));
  cleanup.follow(model, ["former"], () => {
    const former = model.get("former") ?? {};
    setText(text, former.text ? `This cell had: ${former.text}.` : "");
    el.hidden = !former.text;
  });
  if (cell) {
    cleanup.listen(model, "msg:custom", (/** @type {any} */ message) => {
      if (message.type === "choices") keep(cell, app, message.text);
    });
    const kept = keptFor(cell, app);
    if (kept) send({ type: "former", text: kept });
  }
  return el;
}
