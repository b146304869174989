// @ts-check
// The panel "Explain": method, target and options; what was found, over the image.
// Reads the traits methods, method, target, pinned, why_not, found, alert; figures arrive by message.
import "./panel_explain.css";
import { button, Cleanup, debounce, freshId, h, icon, isOff, labelled, select, setOff, setText, showBytes, textInput } from "./kit.js";
import { watchLook } from "./look.js";
import { sentence } from "./wording.js";

/** @type {Record<string, [string, string]>} Options as people read them: name, what may be typed. */
const OPTIONS = {
  channels: ["Strongest channels", "a number; empty for all"],
  batch: ["Images at a time", "a number; empty to choose"],
  steps: ["Steps", "a number; empty to choose"],
  baseline: ["Compared with", "black, mean, blur …"],
  samples: ["Samples", "a number"],
  noise: ["Noise", "a share of the range"],
  seed: ["Seed", "a number"],
  window: ["Window", "pixels; empty to choose"],
  stride: ["Stride", "pixels; empty to choose"],
};

/** @param {import("./kit.js").Context} context */
export function renderExplain({ model, el }) {
  const cleanup = new Cleanup();
  const methods = /** @type {[string, string, string, boolean, boolean, Record<string, string>][]} */ (model.get("methods") ?? []);
  const named = new Map(methods.map((method) => [method[0], method]));
  const send = (/** @type {any} */ message) => model.send(message);

  const which = select("explain-method", "Method", [], (name) => send({ type: "method", method: name }));
  for (const [label, ofLayers] of /** @type {[string, boolean][]} */ ([["Of the ticked layers", true], ["Of the input's pixels", false]])) {
    which.append(h("optgroup", { label }, ...methods.filter((m) => m[3] === ofLayers).map(([name, title]) => h("option", { value: name }, title))));
  }
  const listId = freshId("classes");
  const classes = h("datalist", { id: listId });
  const target = textInput("explain-target", "Target", { list: listId, placeholder: "the likeliest class", class: "hv-input hv-explain-target" });
  target.addEventListener("input", debounce(150, () => send({ type: "classes", search: target.value })));
  target.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter") return;
    event.stopPropagation();
    start();
  });
  const problem = h("p", { hv: "explain-problem", class: "hv-field-problem", role: "alert", hidden: true });
  const pinned = button("explain-pinned", () => { target.value = model.get("pinned"); target.focus(); },
    { class: "hv-link", title: "Explain what the network sees at the place that is pinned" }, "Use the pinned place");
  const fields = h("div", { hv: "explain-options", class: "hv-explain-options" });
  const more = h("details", { hv: "explain-more" }, h("summary", {}, "Options"), fields);
  const why = h("span", { hv: "explain-why", class: "hv-dim hv-note" });
  const go = button("explain", start, { class: "hv-button hv-primary" }, icon("play"), "Explain");
  const paper = h("span", { class: "hv-dim hv-note" });

  const title = h("h4", { hv: "explain-title" });
  const facts = h("p", { hv: "explain-facts", class: "hv-note" });
  const stale = h("p", { hv: "explain-stale", class: "hv-note hv-dim", hidden: true }, "This is of an earlier image: press Explain again.");
  const save = button("explain-export", () => send({ type: "export", zipped: true }), {}, icon("export"), "Export as zip");
  const figures = h("div", { hv: "explain-figures", class: "hv-explain-figures" });
  const missing = h("ul", { class: "hv-note hv-dim" });
  const empty = h("p", { class: "hv-dim" }, "Choose a method and press Explain: a map says how much each place counts for the target.");
  const result = h("div", { class: "hv-explain-result", hidden: true },
    h("div", { class: "hv-inspect-head" }, title, save), facts, stale, figures, missing);
  const root = h("section", { hv: "explanation", class: "hv hv-part hv-explain", "aria-label": "Explain" },
    h("div", { class: "hv-explain-bar" }, labelled("Method", which), labelled("Target", target), pinned, go),
    h("div", { class: "hv-explain-under" }, paper, why), problem, more, classes, empty, result);

  function start() {
    if (isOff(go)) return;
    const options = Object.fromEntries([...fields.querySelectorAll("input")].map((input) => [input.dataset.option, input.value.trim()]));
    send({ type: "explain", target: target.value, options });
  }
  cleanup.follow(model, ["method"], () => {
    const [name, , by, , targeted, options] = named.get(model.get("method")) ?? methods[0];
    which.value = name;
    setText(paper, by);
    target.disabled = !targeted;
    fields.replaceChildren(...Object.entries(options).map(([option, value]) => {
      const [label, hint] = OPTIONS[option] ?? [option, ""];
      return labelled(label, textInput(`explain-option-${option}`, label, { "data-option": option, value, placeholder: hint, class: "hv-input" }));
    }));
    more.hidden = !Object.keys(options).length;
  });
  cleanup.follow(model, ["target"], () => { target.value = model.get("target") ?? ""; });
  cleanup.follow(model, ["pinned"], () => { pinned.hidden = !model.get("pinned"); });
  cleanup.follow(model, ["why_not"], () => {
    const text = model.get("why_not") ?? "";
    setText(why, text);
    setOff(go, Boolean(text));
  });
  cleanup.follow(model, ["alert"], () => {
    const alert = model.get("alert") ?? {};
    problem.hidden = !alert.message;
    setText(problem, alert.message ? sentence(alert) : "");
    if (alert.field === "options") more.open = true;
    target.toggleAttribute("aria-invalid", alert.field === "target");
  });
  cleanup.follow(model, ["found"], () => {
    const found = model.get("found") ?? {};
    empty.hidden = Boolean(found.title);
    result.hidden = !found.title;
    if (!found.title) {
      for (const img of figures.querySelectorAll("img")) showBytes(img, null);
      figures.replaceChildren();
      return;
    }
    setText(title, found.title);
    setText(facts, [...found.targets, found.image, `${found.seconds} s`].join(" · "));
    stale.hidden = !found.stale;
    missing.replaceChildren(...found.missing.map((/** @type {string} */ text) => h("li", {}, text)));
  });
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type === "classes" && message.search === target.value) {
      classes.replaceChildren(...message.names.map((/** @type {string} */ name) => h("option", { value: name })));
    } else if (message.type === "figures") {
      const stated = (model.get("found") ?? {}).figures ?? [];
      for (const img of figures.querySelectorAll("img")) showBytes(img, null);
      figures.replaceChildren(...buffers.map((bytes, index) => {
        const { label = "", notes = [] } = stated[index] ?? {};
        const img = h("img", { class: "hv-explain-figure", alt: [label === "(model)" ? "The input" : label, ...notes].join(". ") });
        img.addEventListener("load", () => { img.style.width = `${img.naturalWidth / message.ratio}px`; });
        showBytes(img, bytes);
        return img;
      }));
    }
  });
  cleanup.add(() => figures.querySelectorAll("img").forEach((/** @type {HTMLImageElement} */ img) => showBytes(img, null)));
  watchLook(root, root, cleanup, (look) => send({ type: "look", ...look }));
  return cleanup.mount(el, root);
}

export default { render: renderExplain };
