// @ts-check
// The image on screen: drop, paste, browse or a sample; the original and what the network sees.
// Reads the traits info, samples, choice, choices, own, max_bytes, accept, alert; sends messages.
import "./image.css";
import { alertBox, Cleanup, h, icon, select, setChoices, setText, showBytes, textField } from "./kit.js";
import { filesOf, refusal, sendFile } from "./upload.js";
import { sentence } from "./wording.js";

/** @typedef {import("./kit.js").Model} Model */

/** @param {{model: Model, el: HTMLElement}} context */
export function renderImage({ model, el }) {
  const cleanup = new Cleanup();
  let sending = new AbortController();

  const file = h("input", {
    hv: "file", class: "hv-file", type: "file", accept: model.get("accept") ?? "image/*",
    "aria-label": "Image file", tabindex: "-1",
  });
  const browse = h("button", {
    hv: "browse", type: "button", class: "hv-button", "aria-label": "Browse for an image",
    onclick: () => file.click(),
  }, "Browse…");
  const limit = Math.round((model.get("max_bytes") ?? 0) / 1e6);
  const bar = h("div", {
    hv: "upload", class: "hv-bar", role: "progressbar", "aria-label": "Upload", hidden: true,
    "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": "0",
  }, h("span", { class: "hv-bar-fill" }));
  const samples = h("div", { class: "hv-samples", role: "group", "aria-label": "Sample photos" });
  const drop = h("div", { hv: "drop", class: "hv-drop" },
    h("div", { class: "hv-drop-call" }, icon("upload"),
      h("span", {}, h("b", {}, "Drop"), " or ", h("b", {}, "paste"), " a photo here")),
    h("div", { class: "hv-drop-more" }, browse, file,
      h("span", { class: "hv-dim" }, `up to ${limit} MB`)),
    bar, samples);

  const original = h("img", { hv: "original", class: "hv-photo", alt: "", hidden: true });
  const seen = h("img", { hv: "seen", class: "hv-photo hv-pixels", alt: "What the network sees", hidden: true });
  const caption = h("div", { hv: "image-caption", class: "hv-caption" });
  const seenCaption = h("div", { hv: "seen-caption", class: "hv-caption" });
  const figures = h("div", { class: "hv-photos", hidden: true },
    h("figure", {}, h("div", { class: "hv-frame" }, original), h("figcaption", {}, "Original"), caption),
    h("figure", {}, h("div", { class: "hv-frame" }, seen),
      h("figcaption", {}, "What the network sees"), seenCaption));
  const preprocess = select("preprocess", "Preprocessing", model.get("choices") ?? [],
    (choice) => model.send({ type: "preprocess", choice }));
  const preprocessLine = h("label", { class: "hv-field", hidden: true }, h("span", {}, "Preprocessing"), preprocess);
  const channels = select("own-channels", "Channels of the input", [["3", "color"], ["1", "grey"]], (value) => own("channels", value));
  const own = (/** @type {string} */ name, /** @type {string} */ value) => model.send({ type: "own", values: { [name]: value } });
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ hint) =>
    textField(`own-${name}`, label, { class: "hv-input", placeholder: hint }, (value) => own(name, value));
  /** @type {Record<string, ReturnType<typeof textField>>} */
  const fields = { size: field("size", "Size of the input", "28, or 240 × 320"), mean: field("mean", "Mean", "0.5"),
    std: field("std", "Standard deviation", "0.5") };
  const labelled = (/** @type {string} */ text, /** @type {Node} */ control) => h("label", {}, h("span", {}, text), control);
  const found = h("p", { hv: "own-found", class: "hv-dim hv-note" });
  const ownBox = h("div", { hv: "own", class: "hv-own", role: "group", "aria-label": "Own preprocessing", hidden: true },
    labelled("Size", fields.size.input), labelled("As", channels), labelled("Mean", fields.mean.input),
    labelled("Std", fields.std.input), ...Object.values(fields).map((each) => each.problem), found);
  const left = h("p", { hv: "left-out", class: "hv-dim hv-note", role: "status", hidden: true });
  const alert = alertBox((action) => model.send(action === "dismiss" ? { type: "dismiss" } : { type: "action", do: action }));
  const root = h("section", { hv: "image", class: "hv hv-part hv-image", "aria-label": "Image" },
    h("h3", { class: "hv-title" }, h("span", { class: "hv-step" }, "1"), "Image"),
    alert.place, drop, left, figures, preprocessLine, ownBox);

  /** @param {File} chosen */
  async function take(chosen) {
    const problem = refusal(chosen, model.get("max_bytes") ?? Infinity);
    if (problem) {
      const remedy = chosen.size ? "Choose a smaller image file." : "Choose another file.";
      model.send({ type: "problem", message: problem, remedy });
      return;
    }
    sending.abort();
    sending = new AbortController();
    const mine = sending;
    progress(0);
    try {
      await sendFile(model, chosen, progress, mine.signal);
    } catch (trouble) {
      model.send({
        type: "problem", message: `“${chosen.name}” cannot be read by the browser.`,
        remedy: "If it is a folder, drop a single image file.", details: String(trouble),
      });
    }
    if (mine === sending) bar.hidden = true;
  }
  /** @param {number} share */
  function progress(share) {
    bar.hidden = false;
    const percent = Math.round(share * 100);
    bar.setAttribute("aria-valuenow", String(percent));
    /** @type {HTMLElement} */ (bar.firstElementChild).style.width = `${percent}%`;
  }
  /** @param {DataTransfer | null} transfer @returns {boolean} */
  function takeTransfer(transfer) {
    return takeFirst(filesOf(transfer));
  }
  /** @param {File[]} files @returns {boolean} */
  function takeFirst([first, ...others]) {
    if (!first) return false;
    const names = others.map((file) => file.name);
    const more = names.length > 3 ? ` and ${names.length - 3} more` : "";
    setText(left, others.length ? `One image at a time: “${first.name}” was taken, not ${names.slice(0, 3).join(", ")}${more}.` : "");
    left.hidden = !others.length;
    take(first);
    return true;
  }

  function refresh() {
    const info = model.get("info") ?? {};
    const has = Boolean(info.name);
    drop.classList.toggle("hv-small", has);
    figures.hidden = !has;
    preprocessLine.hidden = !has;
    original.alt = has ? `Original: ${info.name}` : "";
    setText(caption, has ? [info.name, info.size, info.format, ...(info.notes ?? [])].filter(Boolean).join(" · ") : "");
    caption.title = caption.textContent ?? "";
    setText(seenCaption, info.seen ?? "");
    seenCaption.title = info.seen_long ?? info.seen ?? "";
    if (!has) {
      showBytes(original, null);
      showBytes(seen, null);
    }
  }
  function refreshSamples() {
    const names = model.get("samples") ?? [];
    samples.replaceChildren(...(names.length ? [h("span", { class: "hv-dim" }, "or try")] : []),
      ...names.map((/** @type {string} */ name) => h("button", {
        hv: "sample", type: "button", class: "hv-chip", "data-name": name,
        "aria-label": `Sample ${name.replace(/\.\w+$/, "")}`,
        onclick: () => model.send({ type: "sample", name }),
      }, name.replace(/\.\w+$/, ""))));
  }
  const refreshChoice = () => {
    setChoices(preprocess, model.get("choices") ?? []);
    preprocess.value = model.get("choice") ?? "model";
    const values = model.get("own") ?? {};
    ownBox.hidden = preprocess.value !== "own";
    channels.value = values.channels ?? "3";
    setText(found, values.found ?? "");
    for (const [name, each] of Object.entries(fields)) each.show(values[name] ?? "");
  };
  const refreshAlert = () => {
    const now = model.get("alert") ?? {};
    for (const [name, each] of Object.entries(fields)) each.refuse(now.field === name ? sentence(now) : "");
    alert.show(now.field in fields ? {} : now);
  };

  file.addEventListener("change", () => {
    takeFirst([...(file.files ?? [])]);
    // Emptied at once: choosing the same file again must count as a new choice.
    file.value = "";
  });
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type !== "picture") return;
    showBytes(message.which === "seen" ? seen : original, buffers[0] ?? null, message.mime);
  });
  cleanup.listen(model, "change:info", refresh);
  cleanup.listen(model, "change:samples", refreshSamples);
  cleanup.listen(model, "change:choice", refreshChoice);
  cleanup.listen(model, "change:choices", refreshChoice);
  cleanup.listen(model, "change:own", refreshChoice);
  cleanup.listen(model, "change:alert", refreshAlert);
  // The app hands over what was dropped or pasted anywhere on it.
  cleanup.hear(root, "hv-transfer", (event) => takeTransfer(event.detail));
  takeFiles(root, drop, takeTransfer, (message) =>
    model.send({ type: "problem", message, remedy: "Save the picture as a file and drop that." }));
  refresh();
  refreshSamples();
  refreshChoice();
  refreshAlert();
  el.classList.add("hv-host");
  el.append(root);
  model.send({ type: "pictures" });
  return () => {
    cleanup.run();
    sending.abort();
    showBytes(original, null);
    showBytes(seen, null);
  };
}

/**
 * Lets an element take files by drop and paste, and keeps JupyterLab from opening them.
 * @param {HTMLElement} root where drop and paste are heard
 * @param {HTMLElement} zone what lights up
 * @param {(transfer: DataTransfer | null) => boolean} take
 * @param {(message: string) => void} refuse
 */
function takeFiles(root, zone, take, refuse) {
  let depth = 0;
  const light = (/** @type {number} */ change) => {
    depth = Math.max(0, change === 0 ? 0 : depth + change);
    zone.classList.toggle("hv-over", depth > 0);
  };
  root.addEventListener("dragenter", (event) => {
    event.preventDefault();
    light(1);
  });
  root.addEventListener("dragleave", () => light(-1));
  root.addEventListener("dragover", (event) => {
    event.preventDefault();
    event.stopPropagation();
    if (event.dataTransfer) event.dataTransfer.dropEffect = "copy";
  });
  root.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    light(0);
    if (!take(event.dataTransfer)) refuse("What was dropped is not a file.");
  });
  root.addEventListener("paste", (event) => {
    if (take(event.clipboardData)) {
      event.preventDefault();
      event.stopPropagation();
    } else if (!/** @type {HTMLElement} */ (event.target).closest?.("input, textarea")) {
      refuse("There is no picture in the clipboard.");
    }
  });
}

export default { render: renderImage };
