// @ts-check
// The panel "About": facts of the layer in use, as names and values. Reads the trait facts.
import "./panel_about.css";
import { Cleanup, h } from "./kit.js";

/** @param {import("./kit.js").Context} context */
export function renderAbout({ model, el }) {
  const cleanup = new Cleanup();
  const list = h("dl", { hv: "about", class: "hv-facts" });
  const empty = h("p", { class: "hv-dim" }, "Tick a layer: what it is stands here.");
  const refresh = () => {
    const facts = model.get("facts") ?? [];
    empty.hidden = facts.length > 0;
    list.replaceChildren(...facts.flatMap((/** @type {[string, string]} */ [name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  };
  cleanup.follow(model, ["facts"], refresh);
  return cleanup.mount(el, h("section", { class: "hv hv-part", "aria-label": "About this layer" }, empty, list));
}

export default { render: renderAbout };
