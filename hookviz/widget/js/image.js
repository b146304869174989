// @ts-check
// The image on screen: drop, paste, browse or a sample; the original and what the network sees.
// Reads the traits info, samples, choice, choices, own, max_bytes, accept, alert; sends messages.
import "./image.css";
import { button, Cleanup, focused, h, icon, labelled, middle, partAlert, select, setChoices, setText, showBytes, textField } from "./kit.js";
import { filesOf, isVideo, takeFiles, uploader } from "./upload.js";

/** @typedef {import("./kit.js").Model} Model */

/** @param {{model: Model, el: HTMLElement}} context */
export function renderImage({ model, el }) {
  const cleanup = new Cleanup();
  const upload = uploader(model);
  const photos = photoPair(model, cleanup);
  const preprocessing = preprocessingBox(model, cleanup);
  const file = h("input", { hv: "file", class: "hv-file", type: "file", accept: model.get("accept") ?? "image/*",
    "aria-label": "Image file", tabindex: "-1" });
  const browse = button("browse", () => file.click(), { "aria-label": "Browse for an image" }, "Browse…");
  // Cameras, videos and animations are shown in the app's panel "Live", which hears of it.
  const live = (/** @type {any} */ detail) => root.dispatchEvent(new CustomEvent("hv-live", { bubbles: true, detail }));
  const clip = h("input", { hv: "video-file", class: "hv-file", type: "file", accept: "video/*", "aria-label": "Video file", tabindex: "-1" });
  clip.addEventListener("change", () => {
    takeFirst([...(clip.files ?? [])]);
    clip.value = "";
  });
  const frames = button("frames", () => live({ source: "clip" }), { class: "hv-link", hidden: true }, "Play its frames");
  const moving = h("div", { hv: "moving", class: "hv-drop-more", hidden: true },
    button("camera", () => live({ source: "camera" }), {}, icon("camera"), "Camera"), button("video", () => clip.click(), {}, "Video…"), clip);
  setTimeout(() => { moving.hidden = !root.closest('[data-hv="app"]'); }, 0);
  const limit = Math.round((model.get("max_bytes") ?? 0) / 1e6);
  const samples = h("div", { class: "hv-samples", role: "group", "aria-label": "Sample photos" });
  const drop = h("div", { hv: "drop", class: "hv-drop" },
    h("div", { class: "hv-drop-call" }, icon("upload"),
      h("span", {}, h("b", {}, "Drop"), " or ", h("b", {}, "paste"), " a photo here")),
    h("div", { class: "hv-drop-more" }, browse, file, h("span", { class: "hv-dim" }, `up to ${limit} MB`)),
    moving, upload.bar, samples);
  const left = h("p", { hv: "left-out", class: "hv-dim hv-note", role: "status", hidden: true });
  const title = h("h3", { class: "hv-title" }, h("span", { class: "hv-step" }, "1"), "Image");
  // Once there is a photo, what chooses another one and how it is prepared is a press away.
  const fold = h("div", { hv: "image-fold", class: "hv-fold" }, drop, preprocessing.line, preprocessing.own, photos.more);
  const unfold = (/** @type {boolean} */ open) => {
    // What had the focus goes out of sight: the button beside it takes it over.
    if (!open && fold.contains(focused(root))) photos.change.focus();
    fold.hidden = !open;
    photos.change.setAttribute("aria-expanded", String(open));
    setText(photos.change, open ? "Close" : "Change…");
  };
  photos.change.addEventListener("click", () => unfold(fold.hidden));
  const root = h("section", { hv: "image", class: "hv hv-part hv-image", "aria-label": "Image" },
    title, partAlert(model, cleanup, preprocessing.fields), photos.el, frames, left, fold);

  /** @param {File[]} files @returns {boolean} whether there was one */
  function takeFirst([first, ...others]) {
    if (!first) return false;
    const names = others.map(({ name }) => name);
    const more = names.length > 3 ? ` and ${names.length - 3} more` : "";
    setText(left, `One image at a time: “${first.name}” was taken, not ${names.slice(0, 3).join(", ")}${more}.`);
    left.hidden = !others.length;
    if (!moving.hidden && isVideo(first)) live({ source: "video", file: first });
    else upload.take(first);
    return true;
  }
  const takeTransfer = (/** @type {DataTransfer | null} */ transfer) => takeFirst(filesOf(transfer));
  file.addEventListener("change", () => {
    takeFirst([...(file.files ?? [])]);
    // Emptied at once: choosing the same file again must count as a new choice.
    file.value = "";
  });
  // The app hands over what was dropped or pasted anywhere on it.
  root.addEventListener("hv-transfer", (/** @type {any} */ event) => takeTransfer(event.detail));
  takeFiles(root, drop, takeTransfer, (message) =>
    model.send({ type: "problem", message, remedy: "Save the picture as a file and drop that." }));
  let shown = "";
  cleanup.listen(model, "change:choice", () => model.get("choice") === "own" && unfold(true));
  cleanup.follow(model, ["info"], () => {
    const name = model.get("info")?.name ?? "";
    const has = Boolean(name);
    drop.classList.toggle("hv-small", has);
    title.hidden = has;
    frames.hidden = moving.hidden || !model.get("info")?.animated;
    preprocessing.line.hidden = !has;
    // The same photo, prepared otherwise, leaves the fold as it is.
    if (!has || name !== shown) unfold(!has);
    shown = name;
  });
  cleanup.follow(model, ["samples"], () => {
    const names = (model.get("samples") ?? []).map((/** @type {string} */ name) => [name, name.replace(/\.\w+$/, "")]);
    samples.replaceChildren(names.length ? h("span", { class: "hv-dim" }, "or try") : "",
      ...names.map((/** @type {string[]} */ [name, text]) => button("sample", () => model.send({ type: "sample", name }),
        { class: "hv-chip", "data-name": name, "aria-label": `Sample ${text}` }, text)));
  });
  cleanup.add(upload.stop);
  model.send({ type: "pictures" });
  return cleanup.mount(el, root);
}

/**
 * What was chosen, as it is and as the network sees it.
 * @param {Model} model
 * @param {Cleanup} cleanup
 */
function photoPair(model, cleanup) {
  const original = h("img", { hv: "original", class: "hv-photo", alt: "", hidden: true });
  const seen = h("img", { hv: "seen", class: "hv-photo hv-pixels", alt: "What the network sees", hidden: true });
  const caption = h("div", { hv: "image-caption", class: "hv-caption" });
  const seenCaption = h("div", { hv: "seen-caption", class: "hv-caption" });
  const cut = h("span", { hv: "crop", class: "hv-crop", hidden: true });
  const change = button("change", () => {}, { class: "hv-link", "aria-expanded": "false", "aria-label": "Change the image or how it is prepared" }, "Change…");
  const el = h("div", { class: "hv-photos" },
    h("span", { class: "hv-frame", title: "Original, with what the network sees of it" }, original, cut),
    h("span", { class: "hv-frame", title: "What the network sees" }, seen),
    h("div", { class: "hv-photo-text" }, caption, change));
  const more = h("div", {}, h("b", {}, "The network sees"), seenCaption);
  const clear = () => [original, seen].forEach((image) => showBytes(image, null));
  cleanup.follow(model, ["info"], () => {
    const { name: called, size, format, notes, seen: steps, seen_long: all, crop } = model.get("info") ?? {};
    el.hidden = !called;
    more.hidden = !steps;
    original.alt = called ? `Original: ${called}` : "";
    const facts = [size, format, ...(notes ?? [])];
    setText(caption, [middle(called ?? "", 32), ...facts].filter(Boolean).join(" · "));
    caption.title = [called, ...facts].filter(Boolean).join(" · ");
    setText(seenCaption, steps ?? "");
    seenCaption.title = all ?? steps ?? "";
    cut.hidden = !crop;
    const [x, y, right, bottom] = (crop ?? [0, 0, 1, 1]).map((/** @type {number} */ share) => 100 * Math.min(1, Math.max(0, share)));
    cut.style.cssText = `left:${x}%;top:${y}%;width:${right - x}%;height:${bottom - y}%`;
    if (!called) clear();
  });
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type === "picture") showBytes(message.which === "seen" ? seen : original, buffers[0] ?? null, message.mime);
  });
  cleanup.add(clear);
  return { el, change, more };
}

/**
 * Which preprocessing, and the values of one's own.
 * @param {Model} model
 * @param {Cleanup} cleanup
 */
function preprocessingBox(model, cleanup) {
  const choice = select("preprocess", "Preprocessing", [], (value) => model.send({ type: "preprocess", choice: value }));
  const line = labelled("Preprocessing", choice);
  const change = (/** @type {string} */ name, /** @type {string} */ value) => model.send({ type: "own", values: { [name]: value } });
  const channels = select("own-channels", "Channels of the input", [["3", "color"], ["1", "grey"]], (value) => change("channels", value));
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ hint) =>
    textField(`own-${name}`, label, { class: "hv-input", placeholder: hint }, (value) => change(name, value));
  const fields = { size: field("size", "Size of the input", "28, or 240 × 320"), mean: field("mean", "Mean", "0.5"),
    std: field("std", "Standard deviation", "0.5") };
  const found = h("p", { hv: "own-found", class: "hv-dim hv-note" });
  const own = h("div", { hv: "own", class: "hv-own", role: "group", "aria-label": "Own preprocessing" },
    labelled("Size", fields.size.input, {}), labelled("As", channels, {}), labelled("Mean", fields.mean.input, {}),
    labelled("Std", fields.std.input, {}), ...Object.values(fields).map(({ problem }) => problem), found);
  cleanup.follow(model, ["choice", "choices", "own"], () => {
    setChoices(choice, model.get("choices") ?? []);
    choice.value = model.get("choice") ?? "model";
    const values = model.get("own") ?? {};
    own.hidden = choice.value !== "own";
    channels.value = values.channels ?? "3";
    setText(found, values.found ?? "");
    for (const [name, each] of Object.entries(fields)) each.show(values[name] ?? "");
  });
  return { line, own, fields };
}

export default { render: renderImage };
