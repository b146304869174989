// @ts-check
// A watched training: curves, alerts, the probe's maps with a slider through time, and one channel
// at several steps. Reads the traits about, alerts, notes, quantity(ies), layer(s), drawn, figures,
// step(s), channel(s); pictures arrive by message.
import "./training.css";
import { Cleanup, h, labelled, partAlert, select, setAttribute, setChoices, setText, showBytes } from "./kit.js";
import { watchLook } from "./look.js";

/** @param {import("./kit.js").Context} context */
export function render({ model, el }) {
  const cleanup = new Cleanup();
  /** @param {string} name @param {any} value */
  const choose = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };

  const about = h("h3", { hv: "training-about" });
  const alerts = h("ul", { hv: "training-alerts", class: "hv-training-alerts", "aria-label": "Alerts" });
  const notes = h("ul", { hv: "training-notes", class: "hv-training-notes hv-dim hv-note", "aria-label": "Notes" });
  const quantity = select("training-quantity", "Curves of", [], (value) => choose("quantity", value));
  const layer = select("training-layer", "Layer of the curves", [], (value) => choose("layer", value));
  const drawn = select("training-drawn", "Figure", [], (value) => choose("drawn", value));
  const slider = h("input", { hv: "training-slider", class: "hv-training-slider", type: "range", min: "0", max: "0", value: "0", "aria-label": "Step" });
  const at = h("output", { hv: "training-step", class: "hv-training-step" });
  const channel = h("input", { hv: "training-channel", class: "hv-input hv-training-channel", type: "number", min: "0", "aria-label": "Channel", placeholder: "none" });
  const of = h("span", { class: "hv-dim" });

  /** A picture with what is said where there is none. @param {string} part */
  const frame = (part) => ({
    img: h("img", { hv: `training-${part}`, class: "hv-training-figure", alt: "", hidden: true }),
    text: h("p", { hv: `training-${part}-text`, class: "hv-dim", hidden: true }),
  });
  /** @type {Record<string, {img: HTMLImageElement, text: HTMLElement}>} */
  const frames = { curves: frame("curves"), maps: frame("maps"), strip: frame("strip") };

  const time = h("div", { class: "hv-training-row hv-training-wide" }, labelled("Step", slider, { class: "hv-field hv-training-time" }), at);
  const one = h("div", { class: "hv-training-row" }, labelled("Channel over the steps", channel), of);
  const maps = h("section", { class: "hv-training-part", "aria-label": "Maps" },
    h("div", { class: "hv-training-row" }, labelled("Figure", drawn), time), // above: it stays where it is
    frames.maps.img, frames.maps.text, one, frames.strip.img, frames.strip.text);
  const curves = h("section", { class: "hv-training-part", "aria-label": "Curves" },
    h("div", { class: "hv-training-row" }, labelled("Curves", quantity), labelled("of", layer)),
    frames.curves.img, frames.curves.text);
  const root = h("section", { hv: "training", class: "hv hv-part hv-training", "aria-label": "Training" },
    partAlert(model, cleanup), about, h("div", { role: "status" }, alerts), notes, curves, maps);

  // A slider that is dragged is answered by each step that it passes, the last one at the latest.
  slider.addEventListener("input", () => choose("step", (model.get("steps") ?? [])[Number(slider.value)] ?? 0));
  channel.addEventListener("change", () => {
    const chosen = channel.value === "" ? -1 : Math.round(Number(channel.value));
    const most = model.get("channels") - 1;
    choose("channel", Math.max(-1, Math.min(most, chosen)));
    showChannel();
  });
  // A click on a map chooses its channel.
  frames.maps.img.addEventListener("click", (event) => {
    const tiles = JSON.parse(frames.maps.img.dataset.tiles ?? "null");
    if (!tiles?.channels || !model.get("channels")) return;
    const box = frames.maps.img.getBoundingClientRect();
    const scale = frames.maps.img.naturalWidth / box.width;
    const x = (event.clientX - box.left) * scale - tiles.left;
    const y = (event.clientY - box.top) * scale - tiles.top;
    const [column, row] = [Math.floor(x / tiles.across), Math.floor(y / tiles.down)];
    const inside = x >= 0 && y >= 0 && column < tiles.columns && x - column * tiles.across < tiles.width && y - row * tiles.down < tiles.height;
    const found = inside ? tiles.channels[row * tiles.columns + column] : undefined;
    if (found !== undefined) choose("channel", found);
  });

  // The notebook has keys of its own, arrows among them.
  root.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && event.key !== "Escape") event.stopPropagation();
  });

  /** @param {HTMLElement} list @param {string[]} texts */
  function say(list, texts) {
    const now = JSON.stringify(texts);
    if (list.dataset.texts === now) return;
    list.dataset.texts = now;
    list.replaceChildren(...texts.map((text) => h("li", {}, text)));
  }
  function showChannel() {
    const chosen = model.get("channel");
    channel.value = chosen < 0 ? "" : String(chosen);
  }
  /** @param {HTMLSelectElement} box @param {string} choices @param {string} value */
  const follow = (box, choices, value) => cleanup.follow(model, [choices, value], () => {
    setChoices(box, model.get(choices) ?? []);
    box.value = model.get(value) ?? "";
  });
  cleanup.follow(model, ["about"], () => setText(about, model.get("about") ?? ""));
  cleanup.follow(model, ["alerts"], () => say(alerts, model.get("alerts") ?? []));
  cleanup.follow(model, ["notes"], () => say(notes, model.get("notes") ?? []));
  follow(quantity, "quantities", "quantity");
  follow(layer, "layers", "layer");
  follow(drawn, "figures", "drawn");
  cleanup.follow(model, ["step", "steps"], () => {
    const steps = model.get("steps") ?? [];
    const text = `after ${model.get("step")} steps`;
    slider.max = String(Math.max(0, steps.length - 1));
    slider.value = String(Math.max(0, steps.indexOf(model.get("step"))));
    slider.disabled = steps.length < 2;
    slider.setAttribute("aria-valuetext", text);
    setText(at, steps.length > 1 ? `${text} (${steps[0]} to ${steps.at(-1)})` : text);
  });
  cleanup.follow(model, ["figures"], () => { maps.hidden = !(model.get("figures") ?? []).length; });
  cleanup.follow(model, ["channel", "channels"], () => {
    const count = model.get("channels");
    one.hidden = !count;
    channel.max = String(count - 1);
    setText(of, `of 0 to ${count - 1}; or click a map`);
    frames.maps.img.classList.toggle("hv-training-pick", count > 0);
    showChannel();
  });
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    const shown = message.type === "picture" ? frames[message.part] : undefined;
    if (!shown) return;
    const bytes = buffers[0]?.byteLength ? buffers[0] : null;
    showBytes(shown.img, bytes);
    shown.img.alt = message.alt ?? "";
    shown.img.dataset.style = message.style ?? "";
    setAttribute(shown.img, "data-tiles", message.tiles?.channels ? JSON.stringify(message.tiles) : null);
    setText(shown.text, message.text ?? "");
    shown.text.hidden = !message.text;
  });
  cleanup.add(() => Object.values(frames).forEach(({ img }) => showBytes(img, null)));
  const done = cleanup.mount(el, root);
  watchLook(root, root, cleanup, (look) => model.send({ type: "look", ...look }));
  return done;
}

export default { render };
