// @ts-check
// The panel "Data set": a survey's channels as a list, and what moves one of them most.
// Reads the traits folder, opened, layer, order, falling, dead, channels, channel, progress, why_not,
// said, alert; crops arrive by message, those of the list when their rows come near the screen.
import "./panel_dataset.css";
import { histogram } from "./histogram.js";
import { actionButtons, button, Cleanup, debounce, focused, h, icon, labelled, onEnter, problemLine, select, setAttribute, setChoices, setOff, setText, showBytes, showPictures, textInput } from "./kit.js";
import { worded } from "./wording.js";

/** The columns of the list: what they sort by, and their names. @type {[string, string][]} */
const COLUMNS = [["channel", "Channel"], ["mean", "Mean"], ["max", "Largest"], ["zeros", "Zeros"]];
/** What a crop shows of its image. @type {Record<string, string>} */
const SHOWS = {
  "field": "Each crop is what the value depends on; striped where that lies beyond the image.",
  "whole image": "Each value depends on the whole image, so the crops are all that the network saw of it.",
  "token patch": "Each crop is the token's own patch; through attention its value depends on the whole image.",
  "unknown field": "Which part of the image a value depends on is not known here, so the crops are all that the network saw.",
  "no crop": "There are no crops: they are made when a survey has ended, of images that are files.",
};
const KEPT_THUMBNAILS = 600;

/** @param {import("./kit.js").Context} context */
export function renderDataSet({ model, el }) {
  const cleanup = new Cleanup();
  const send = (/** @type {any} */ message) => model.send(message);

  // ── opening and surveying
  const folder = textInput("dataset-folder", "Survey's folder", { class: "hv-input hv-dataset-path", placeholder: "the folder of a survey" });
  const open = button("dataset-open", () => send({ type: "open", folder: folder.value }), {}, "Open");
  const folderProblem = problemLine("dataset-folder-problem");
  const images = textInput("dataset-images", "Folder of images", { class: "hv-input hv-dataset-path", placeholder: "photos" });
  const target = textInput("dataset-target", "Keep the survey in", { class: "hv-input hv-dataset-path", placeholder: "hookviz_surveys, by the images' name" });
  const batch = h("input", { hv: "dataset-batch", class: "hv-input hv-page", type: "number", min: "1", value: "32", "aria-label": "Images at a time" });
  const start = button("dataset-start", () => {
    if (!isBusy()) send({ type: "survey", images: images.value, folder: target.value, batch: Math.round(Number(batch.value)) || 0 });
  }, { class: "hv-button hv-primary" }, icon("play"), "Survey the ticked layers");
  const cancel = button("dataset-cancel", () => send({ type: "cancel" }), {}, "Cancel");
  const why = h("span", { hv: "dataset-why", class: "hv-dim hv-note" });
  const problem = problemLine("dataset-problem");
  const actions = h("div", { class: "hv-actions" });
  const progress = h("p", { hv: "dataset-progress", role: "status", class: "hv-note" });
  const making = h("details", { hv: "dataset-making" }, h("summary", {}, "Survey a folder of images"),
    h("div", { class: "hv-dataset-bar" }, labelled("Images", images), labelled("Keep it in", target), labelled("At a time", batch), start, why),
    h("p", { class: "hv-dim hv-note" }, "A cancelled survey goes on where it ended when it is started again."));
  const isBusy = () => Boolean(model.get("progress"));
  onEnter([folder], () => open.click());
  onEnter([images, target, batch], () => start.click());

  // ── what was opened
  const title = h("h4", { hv: "dataset-title" });
  const facts = h("p", { hv: "dataset-facts", class: "hv-note" });
  const goOn = button("dataset-go-on", () => send({ type: "go-on" }), { title: "Survey the images that are not done, with the model that the app has" }, "Go on with it");
  const failures = h("ul", { class: "hv-note" });
  const failed = h("summary");
  const failing = h("details", { hv: "dataset-failures" }, failed, failures);

  // ── the list of channels
  const layers = select("dataset-layer", "Layer", [], (layer) => send({ type: "layer", layer }));
  const dead = select("dataset-dead", "Dead channels", [["last", "Dead ones last"], ["first", "Dead ones first"]],
    () => send({ type: "dead", first: dead.value === "first" }));
  const heads = COLUMNS.map(([by, name]) => {
    const sign = h("span", { "aria-hidden": "true" });
    const sort = button(`dataset-by-${by}`, () => {
      const now = model.get("order") === by;
      send({ type: "sort", by, falling: now ? !model.get("falling") : by !== "channel" });
    }, { class: "hv-link" }, name, sign);
    return { by, sign, cell: h("th", { scope: "col" }, sort) };
  });
  const rows = h("tbody", { hv: "dataset-rows" });
  const table = h("table", { class: "hv-dataset-table", "aria-label": "Channels" },
    h("thead", {}, h("tr", {}, h("td"), ...heads.map((head) => head.cell))), rows);
  const more = button("dataset-more", () => send({ type: "more" }), {}, "Show more");
  const scroll = h("div", { class: "hv-dataset-scroll" }, table, more);
  const list = h("div", { class: "hv-dataset-list" }, h("div", { class: "hv-dataset-bar" }, labelled("Layer", layers), dead), scroll);

  // ── one channel
  const name = h("h4", { hv: "dataset-channel" });
  const kind = select("dataset-format", "Format of the figure", [["png", "PNG"], ["pdf", "PDF"], ["svg", "SVG"]], () => undefined);
  const save = button("dataset-export", () => send({ type: "export", form: kind.value }), {}, icon("export"), "Save the figure");
  const crops = h("ul", { hv: "dataset-crops", class: "hv-dataset-crops" });
  const shows = h("p", { class: "hv-dim hv-note" });
  const cropProblem = problemLine("dataset-crop-problem");
  const said = h("p", { hv: "dataset-said", class: "hv-note", role: "status" });
  const numbers = h("table", { hv: "dataset-numbers", class: "hv-dataset-numbers" });
  const values = histogram("dataset-histogram");
  const valuesBox = h("div", {}, h("h5", {}, "Values ", h("span", { class: "hv-dim" }, "logarithmic count, without the zeros")), values.box);
  const deadNote = h("p", { class: "hv-note" }, "This channel is dead: it had the same value everywhere, in all of these images.");
  const choose = h("p", { class: "hv-dim" }, "Choose a channel: its strongest images stand here.");
  const one = h("div", { class: "hv-dataset-one" }, h("div", { class: "hv-dataset-bar" }, name, kind, save), deadNote,
    h("h5", {}, "Strongest images ", h("span", { class: "hv-dim" }, "press one to open it in the app, with this channel")), crops, shows, cropProblem.el, said,
    h("div", { class: "hv-dataset-facts" }, numbers, valuesBox));
  const body = h("div", { class: "hv-dataset-body" }, list, h("div", { class: "hv-dataset-side" }, choose, one));
  const empty = h("p", { class: "hv-dim" }, "Open the folder of a survey, or survey a folder of images: then each channel's strongest images stand here.");
  const working = h("div", { class: "hv-dataset-bar" }, progress, cancel);
  const about = h("div", { hv: "dataset-opened", class: "hv-dataset-bar" }, title, facts, goOn);
  const root = h("section", { hv: "data-set", class: "hv hv-part hv-dataset", "aria-label": "Data set" },
    h("div", { class: "hv-dataset-bar" }, labelled("Survey", folder), open), folderProblem.el, making,
    working, problem.el, actions, empty, about, failing, body);

  cleanup.follow(model, ["folder"], () => { if (model.get("folder")) folder.value = model.get("folder"); });
  cleanup.follow(model, ["why_not", "progress"], () => {
    const busy = isBusy();
    setText(why, busy ? "" : model.get("why_not") ?? "");
    setOff(start, busy || Boolean(model.get("why_not")));
    setText(progress, model.get("progress") ?? "");
    working.hidden = !busy;
  });
  cleanup.follow(model, ["alert"], () => {
    const alert = model.get("alert") ?? {};
    for (const [field, line] of Object.entries({ folder: folderProblem, images: problem, crop: cropProblem })) {
      line.show(alert.field === field ? alert : {});
    }
    folder.toggleAttribute("aria-invalid", alert.field === "folder");
    actions.replaceChildren(...actionButtons(alert.message ? worded(alert).actions : [], (action) => send({ type: "action", do: action })));
  });
  cleanup.follow(model, ["opened"], () => {
    const opened = model.get("opened") ?? {};
    const has = Boolean(opened.title);
    empty.hidden = has;
    about.hidden = body.hidden = !has;
    goOn.hidden = !opened.rest;
    failing.hidden = !opened.failed;
    making.open = !has;
    if (!has) return;
    setText(title, opened.title);
    setText(facts, opened.facts.join(" "));
    setText(failed, `${opened.failed} could not be surveyed`);
    failures.replaceChildren(...opened.failures.map((/** @type {[string, string]} */ [who, reason]) => h("li", {}, `${who}: ${reason}`)),
      ...(opened.failed > opened.failures.length ? [h("li", {}, `and ${opened.failed - opened.failures.length} more`)] : []));
    setChoices(layers, opened.layers.map((/** @type {[string, number[]]} */ [layer, shape]) => [layer, `${layer || "(model)"} · ${shape.join("×")}`]));
    layers.value = model.get("layer") ?? "";
  });
  cleanup.follow(model, ["order", "falling", "dead"], () => {
    dead.value = model.get("dead") ?? "last";
    for (const { by, sign, cell } of heads) {
      const now = model.get("order") === by;
      setAttribute(cell, "aria-sort", now ? (model.get("falling") ? "descending" : "ascending") : null);
      setText(sign, now ? (model.get("falling") ? " ↓" : " ↑") : "");
    }
  });

  // ── thumbnails, as their rows come near
  /** @type {Map<string, DataView>} */
  const pictures = new Map();
  /** @type {Set<string>} */
  const near = new Set();
  const ask = debounce(60, () => {
    const wanted = [...near].filter((channel) => !pictures.has(channel)).slice(0, 40);
    if (wanted.length) send({ type: "thumbnails", channels: wanted });
  });
  const watch = new IntersectionObserver((entries) => {
    for (const { target: row, isIntersecting } of entries) {
      const channel = /** @type {HTMLElement} */ (row).dataset.channel ?? "";
      if (isIntersecting) near.add(channel);
      else near.delete(channel);
    }
    ask();
  }, { rootMargin: "200px" });
  cleanup.add(() => watch.disconnect());
  const rowOf = (/** @type {string | number | undefined} */ channel) => /** @type {HTMLElement | null} */ (rows.querySelector(`tr[data-channel="${channel}"]`));
  const pick = (/** @type {string} */ channel) => send({ type: "channel", channel: Number(channel) });

  cleanup.follow(model, ["layer"], () => {
    layers.value = model.get("layer") ?? "";
    pictures.clear();
  });
  cleanup.follow(model, ["channels"], () => {
    const { rows: all = [], of = 0 } = model.get("channels") ?? {};
    const at = focused(root);
    const channel = at && rows.contains(at) ? at.closest("tr")?.dataset.channel : undefined;
    watch.disconnect();
    near.clear();
    showPictures(rows);
    rows.replaceChildren(...all.map((/** @type {[number, string, string, string, string]} */ [number, mean, max, zeros, note]) => {
      const img = h("img", { class: "hv-dataset-thumb", alt: "", hidden: true });
      showBytes(img, pictures.get(String(number)) ?? null, "image/jpeg");
      const go = button("dataset-row", () => pick(String(number)), { class: "hv-link", tabindex: "-1", "aria-label": `Channel ${number}${note ? `, ${note}` : ""}` }, String(number));
      const row = h("tr", { "data-channel": number, onclick: (/** @type {Event} */ event) => { if (!go.contains(/** @type {Node} */ (event.target))) pick(String(number)); } },
        h("td", { class: "hv-dataset-thumb" }, img), h("th", { scope: "row" }, go, note ? h("span", { class: "hv-tag" }, note) : null), h("td", {}, mean), h("td", {}, max), h("td", {}, zeros));
      watch.observe(row);
      return row;
    }));
    more.hidden = all.length >= of;
    setText(more, `Show more of ${of}`);
    mark();
    if (channel !== undefined) (rowOf(channel)?.querySelector("button") ?? rows.querySelector("button"))?.focus({ preventScroll: true });
  });
  /** Marks the channel that is shown; Tab reaches that row, arrows the others. */
  function mark() {
    const now = rowOf((model.get("channel") ?? {}).channel);
    for (const row of rows.children) setAttribute(row, "aria-current", row === now ? "true" : null);
    const reach = now ?? rows.firstElementChild;
    rows.querySelectorAll("button").forEach((/** @type {HTMLElement} */ go) => { go.tabIndex = reach?.contains(go) ? 0 : -1; });
  }
  rows.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const all = /** @type {HTMLElement[]} */ ([...rows.querySelectorAll("button")]);
    const at = all.indexOf(/** @type {HTMLElement} */ (event.target));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const next = all[Math.max(0, Math.min(all.length - 1, to))];
    all.forEach((go) => { go.tabIndex = go === next ? 0 : -1; });
    next.focus();
  });

  cleanup.follow(model, ["channel"], () => {
    const found = model.get("channel") ?? {};
    const has = found.channel !== undefined;
    choose.hidden = has;
    one.hidden = !has;
    showPictures(crops);
    mark();
    if (!has) {
      crops.replaceChildren();
      return;
    }
    setText(name, `Channel ${found.channel}`);
    deadNote.hidden = !found.dead;
    const hits = /** @type {any[]} */ (found.hits);
    crops.replaceChildren(...hits.map((hit) => {
      const where = [hit.place, hit.label && !hit.name.startsWith(`${hit.label}/`) ? hit.label : ""].filter(Boolean).join(" · ");
      const go = button("dataset-crop", () => hit.openable && send({ type: "show", rank: hit.rank }), {
        class: "hv-dataset-crop", title: hit.openable ? `${hit.name}: open it as the image` : `${hit.name} came without a file`,
        "aria-label": `${hit.openable ? "Open " : ""}${hit.name}: ${hit.value}${where ? ` at ${where}` : ""}` },
      h("img", { alt: "", hidden: true }), h("span", {}, hit.value), h("span", { class: "hv-dim", hv: "dataset-name" }, hit.name.split("/").at(-1)), h("span", { class: "hv-dim" }, where));
      setOff(go, !hit.openable);
      return h("li", {}, go);
    }));
    setText(shows, [...new Set(hits.map((hit) => SHOWS[hit.shows]))].join(" "));
    numbers.replaceChildren(h("tbody", {}, ...found.numbers.map((/** @type {[string, string, string]} */ [what, text, note]) =>
      h("tr", {}, h("th", { scope: "row" }, what), h("td", {}, text), h("td", { class: "hv-dim" }, note)))));
    valuesBox.hidden = !found.counts.length;
    values.show(found.counts, found.ends);
    // In one column it stands below the list.
    if (list.offsetTop + list.offsetHeight <= one.offsetTop) one.scrollIntoView?.({ block: "nearest" });
  });
  cleanup.follow(model, ["said"], () => setText(said, model.get("said") ?? ""));
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type === "crops" && message.channel === model.get("channel")?.channel) {
      showPictures(crops, buffers, "image/jpeg");
    } else if (message.type === "thumbnails" && message.layer === model.get("layer")) {
      message.channels.forEach((/** @type {number} */ channel, /** @type {number} */ i) => {
        if (pictures.size >= KEPT_THUMBNAILS) pictures.delete(pictures.keys().next().value ?? "");
        pictures.set(String(channel), buffers[i]);
        const img = /** @type {HTMLImageElement | null | undefined} */ (rowOf(channel)?.querySelector("img"));
        if (img && buffers[i].byteLength) showBytes(img, buffers[i], "image/jpeg");
      });
    }
  });
  cleanup.add(() => showPictures(root));
  const leave = cleanup.mount(el, root);
  if (model.get("channel")?.channel !== undefined) send({ type: "crops" });
  return leave;
}

export default { render: renderDataSet };
