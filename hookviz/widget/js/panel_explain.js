// @ts-check
// The panel "Explain": method, target and options; what was found, over the image.
// Reads the traits methods, method, target, pinned, why_not, unedited, example, found, alert; figures arrive by message.
import "./panel_explain.css";
import { button, Cleanup, debounce, freshId, h, icon, isOff, labelled, onEnter, problemLine, select, setChoices, setOff, setText, showBytes, showPictures, textInput } from "./kit.js";
import { watchLook } from "./look.js";

/** @type {Record<string, [string, string, Record<string, string> | [string, string][]]>} Options as people read them: name, what an empty field stands for, and the number's limits or all choices. */
const OPTIONS = {
  channels: ["Strongest channels", "all", { min: "1" }],
  batch: ["Images at a time", "by itself", { min: "1" }],
  steps: ["Steps", "by itself", { min: "2" }],
  baseline: ["Compared with", "", [["black", "black"], ["gray", "gray"], ["white", "white"], ["mean", "the mean color"], ["blur", "the photo, blurred"]]],
  samples: ["Samples", "", { min: "1" }],
  noise: ["Noise (share of the range)", "", { min: "0", max: "1", step: "0.01" }],
  seed: ["Seed", "", { min: "0" }],
  window: ["Window in pixels", "by itself", { min: "1" }],
  stride: ["Stride in pixels", "by itself", { min: "1" }],
  query: ["Look from", "", [["", "the class token, or all patches"], ["mean", "all patches (mean)"]]],
};

/** The control of an option. @param {string} option @param {string} value */
function optionField(option, value) {
  const [label, empty, kind] = OPTIONS[option] ?? [option, "", {}];
  const hv = `explain-option-${option}`;
  if (!Array.isArray(kind)) return labelled(label, textInput(hv, label, { "data-option": option, value, placeholder: empty, class: "hv-input", ...(OPTIONS[option] ? { type: "number", ...kind } : {}) }));
  const box = select(hv, label, kind, () => undefined);
  box.dataset.option = option;
  box.value = value;
  return labelled(label, box);
}

/** From where attention looks: the class token, or the patch pointed at on the photo. @param {Cleanup} cleanup @param {import("./kit.js").Model} model */
function queryView(cleanup, model) {
  const photo = h("img", { hv: "explain-photo", class: "hv-explain-photo", tabindex: "0", alt: "" });
  const mark = h("span", { hv: "explain-mark", class: "hv-explain-mark", hidden: true });
  const frame = h("span", { class: "hv-explain-frame" }, photo, mark);
  const token = button("explain-class", () => model.send({ type: "query" }), {}, "Class token");
  const heads = select("explain-heads", "Heads", [], (value) => model.send({ type: "heads", heads: value }));
  const headsField = labelled("Heads", heads);
  const said = h("p", { hv: "explain-query", class: "hv-note", role: "status" });
  const box = h("div", { class: "hv-explain-query", hidden: true }, frame, h("div", { class: "hv-explain-side" }, said, token, headsField,
    h("p", { class: "hv-note hv-dim" }, "Point at the photo, or use the arrow keys on it: a patch there looks at the others.")));
  const now = () => (model.get("found") ?? {}).query ?? {};
  const ask = (/** @type {number} */ y, /** @type {number} */ x) => model.send({ type: "query", y: Math.min(1, Math.max(0, y)), x: Math.min(1, Math.max(0, x)) });
  photo.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const at = photo.getBoundingClientRect();
    ask((event.clientY - at.top) / (at.height || 1), (event.clientX - at.left) / (at.width || 1));
  });
  photo.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const { rows, cols, y, x } = now();
    if (!step || !rows || event.ctrlKey || event.metaKey || event.altKey) return;
    const [row, column] = y < 0 ? [rows >> 1, cols >> 1] : [y + step[0], x + step[1]];
    ask((Math.min(rows - 1, Math.max(0, row)) + 0.5) / rows, (Math.min(cols - 1, Math.max(0, column)) + 0.5) / cols);
    event.preventDefault();
    event.stopPropagation();
  });
  cleanup.follow(model, ["found"], () => {
    const { rows, cols, y, x, heads: which, count, class: there, mean } = now();
    box.hidden = !rows;
    if (!rows) return;
    token.hidden = !there;
    setOff(token, y < 0);
    headsField.hidden = !which;
    setChoices(heads, [["each", "each"], ["mean", "their mean"], .../** @type {[string, string][]} */ (Array.from({ length: count ?? 0 }, (_, head) => [String(head), `head ${head}`]))]);
    heads.value = which ?? "each";
    setText(said, mean ? "From all patches (mean)" : y < 0 ? "From the class token" : `From the patch in row ${y}, column ${x} of ${rows} × ${cols}`);
    photo.alt = `The photo as the network sees it. ${said.textContent}`;
    mark.hidden = y < 0;
    mark.style.cssText = `left:${(100 * x) / cols}%;top:${(100 * y) / rows}%;width:${100 / cols}%;height:${100 / rows}%`;
  });
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type === "photo") showBytes(photo, buffers[0] ?? null, "image/jpeg");
  });
  cleanup.add(() => showBytes(photo, null));
  return { box };
}

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
  onEnter([target], start);
  const problem = problemLine("explain-problem");
  const pinned = button("explain-pinned", () => { target.value = model.get("pinned"); target.focus(); },
    { class: "hv-link", title: "Explain what the network sees at the place that is pinned" }, "Use the pinned place");
  const fields = h("div", { hv: "explain-options", class: "hv-explain-options" });
  const more = h("details", { hv: "explain-more" }, h("summary", {}, "Options"), fields);
  const targetField = labelled("Target", target, { class: "hv-field hv-explain-wanted" });
  const why = h("span", { hv: "explain-why", class: "hv-dim hv-note" });
  const unedited = h("p", { hv: "explain-unedited", class: "hv-note hv-explain-unedited", role: "status", hidden: true });
  const go = button("explain", start, { class: "hv-button hv-primary" }, icon("play"), "Explain");
  const paper = h("span", { class: "hv-dim hv-note" });

  const title = h("h4", { hv: "explain-title" });
  const facts = h("p", { hv: "explain-facts", class: "hv-note" });
  const stale = h("p", { hv: "explain-stale", class: "hv-note hv-dim", hidden: true }, "This is of an earlier image: press Explain again.");
  const live = h("p", { hv: "explain-live", class: "hv-note", hidden: true }, h("span", { class: "hv-badge hv-warn" }, "live"), " This follows the newest frame of Live.");
  const save = button("explain-export", () => send({ type: "export", zipped: true }), {}, icon("export"), "Export as zip");
  const query = queryView(cleanup, model);
  const figures = h("div", { hv: "explain-figures", class: "hv-explain-figures" });
  const missing = h("ul", { class: "hv-note hv-dim" });
  const empty = h("p", { class: "hv-dim" }, "Choose a method and press Explain: a map says how much each place counts for the target.");
  const result = h("div", { class: "hv-explain-result", hidden: true },
    h("div", { class: "hv-inspect-head" }, title, save), facts, stale, live, query.box, figures, missing);
  const root = h("section", { hv: "explanation", class: "hv hv-part hv-explain", "aria-label": "Explain" },
    h("div", { class: "hv-explain-bar" }, labelled("Method", which), targetField, pinned, go),
    h("div", { class: "hv-explain-under" }, paper, why), unedited, problem.el, more, classes, empty, result);

  function start() {
    if (isOff(go)) return;
    const options = Object.fromEntries([...fields.querySelectorAll("input, select")].map((/** @type {any} */ input) => [input.dataset.option, input.value.trim()]));
    send({ type: "explain", target: target.value, options });
  }
  cleanup.follow(model, ["method"], () => {
    const [name, , by, , targeted, options] = named.get(model.get("method")) ?? methods[0];
    which.value = name;
    setText(paper, by);
    targetField.hidden = !targeted;
    showPinned();
    fields.replaceChildren(...Object.entries(options).map(([option, value]) => optionField(option, value)));
    more.hidden = !Object.keys(options).length;
  });
  cleanup.follow(model, ["target"], () => { target.value = model.get("target") ?? ""; });
  function showPinned() {
    pinned.hidden = targetField.hidden || !model.get("pinned");
  }
  cleanup.follow(model, ["pinned"], showPinned);
  cleanup.follow(model, ["example"], () => {
    const example = model.get("example");
    target.placeholder = example ? `for example: ${example}` : "the likeliest class";
  });
  cleanup.follow(model, ["unedited"], () => {
    setText(unedited, model.get("unedited") ?? "");
    unedited.hidden = !model.get("unedited");
  });
  cleanup.follow(model, ["why_not"], () => {
    const text = model.get("why_not") ?? "";
    setText(why, text);
    setOff(go, Boolean(text));
  });
  cleanup.follow(model, ["alert"], () => {
    const alert = model.get("alert") ?? {};
    problem.show(alert);
    if (alert.field === "options") more.open = true;
    target.toggleAttribute("aria-invalid", alert.field === "target");
  });
  cleanup.follow(model, ["found"], () => {
    const found = model.get("found") ?? {};
    empty.hidden = Boolean(found.title);
    result.hidden = !found.title;
    if (!found.title) {
      showPictures(figures);
      figures.replaceChildren();
      return;
    }
    setText(title, found.title);
    setText(facts, [...found.targets, found.image, `${found.seconds} s`].join(" · "));
    stale.hidden = !found.stale;
    live.hidden = !found.live;
    missing.replaceChildren(...found.missing.map((/** @type {string} */ text) => h("li", {}, text)));
  });
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type === "classes" && message.search === target.value) {
      classes.replaceChildren(...message.names.map((/** @type {string} */ name) => h("option", { value: name })));
    } else if (message.type === "figures") {
      const stated = (model.get("found") ?? {}).figures ?? [];
      showPictures(figures);
      figures.replaceChildren(...buffers.map((bytes, index) => {
        const { label = "", notes = [] } = stated[index] ?? {};
        const img = h("img", { class: "hv-explain-figure", alt: [label === "(model)" ? "The input" : label, ...notes].join(". ") });
        img.addEventListener("load", () => { img.style.width = `${img.naturalWidth / message.ratio}px`; });
        showBytes(img, bytes);
        return img;
      }));
    }
  });
  cleanup.add(() => showPictures(figures));
  watchLook(root, root, cleanup, (look) => send({ type: "look", ...look }), (on) => send({ type: "visible", on }));
  return cleanup.mount(el, root);
}

export default { render: renderExplain };
