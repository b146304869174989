// @ts-check
// The panel "What if": a list of edits, the predictions without and with them, and the channels of
// a layer by their effect. Reads the traits edits, run_edited, images, layer, layers, parts, pinned, target, undoable,
// why_not, found, ranking.
import "./panel_whatif.css";
import { button, channelBar, checkbox, Cleanup, debounce, focused, freshId, h, icon, labelled, onEnter, problemLine, select, setChoices, setOff, setText, textInput } from "./kit.js";
import { download } from "./download.js";
import { filesOf, takeFiles, uploader } from "./upload.js";

/** @type {[string, string][]} */
const KINDS = [["zero", "Set to zero"], ["scale", "Scale"], ["replace_by_mean", "Replace by its mean"],
  ["replace_by_noise", "Replace by noise"], ["other_image", "From another image"]];
const percent = (/** @type {number} */ share) => `${(100 * share).toFixed(1)} %`;

/** @param {import("./kit.js").Context} context */
export function renderWhatIf({ model, el }) {
  const cleanup = new Cleanup();
  const send = (/** @type {any} */ message) => model.send(message);
  // ── the fields of a new edit
  const kind = select("whatif-kind", "Change", KINDS, () => showFields());
  const listId = freshId("layers");
  const names = h("datalist", { id: listId });
  const layer = textInput("whatif-layer", "Layer", { class: "hv-input", list: listId });
  const look = () => send({ type: "layer", layer: layer.value });
  layer.addEventListener("input", debounce(150, look));
  const channels = textInput("whatif-channels", "Channels", { class: "hv-input", placeholder: "all, or 0-3,7" });
  const place = textInput("whatif-place", "Place", { class: "hv-input", placeholder: "all, or row, column" });
  const heads = h("span", { hv: "whatif-heads", class: "hv-whatif-heads", role: "group", "aria-label": "Heads of attention" });
  const headsField = h("div", { class: "hv-field hv-whatif-wide", hidden: true }, h("span", {}, "Heads"), heads);
  const pinned = button("whatif-pinned", () => {
    const pin = model.get("pinned");
    [layer.value, channels.value, place.value] = [pin.layer, String(pin.channel), `${pin.y}, ${pin.x}`];
    look();
  }, { class: "hv-link", title: "Change what the network sees at the place that is pinned" }, "Use the pinned place");
  const factor = h("input", { hv: "whatif-factor", class: "hv-input", type: "number", step: "0.1", value: "0.5", "aria-label": "Factor" });
  const image = select("whatif-image", "Image", [], () => undefined);
  const upload = uploader(model);
  let wanted = "";
  const file = h("input", { hv: "whatif-file", type: "file", accept: "image/*,.heic,.heif", hidden: true, onchange: () => {
    if (file.files?.[0]) upload.take(file.files[0]);
    file.value = "";
  } });
  const another = button("whatif-another", () => file.click(), { class: "hv-link", title: "Or drop a photo here" }, "Another photo …");
  const [channelsField, placeField, factorField] = [labelled("Channels", channels), labelled("Place", place), labelled("Factor", factor)];
  const imageField = h("span", { hv: "whatif-drop", class: "hv-whatif-drop" }, labelled("Image", image), another, file, upload.bar);
  takeFiles(imageField, imageField, (transfer) => {
    const [first] = filesOf(transfer);
    if (first) upload.take(first);
    return Boolean(first);
  }, () => undefined);
  const add = button("whatif-add", () => send({ type: "add", what: kind.value, layer: layer.value, channels: chosen() ? "" : channels.value, place: chosen() ? "" : place.value,
    heads: chosen(), factor: Number(factor.value) || 0, image: image.value }), { class: "hv-button" }, "Add");
  /** The heads that are pressed: "0,3". */
  function chosen() {
    return [...heads.querySelectorAll('[aria-pressed="true"]')].map((chip) => /** @type {HTMLElement} */ (chip).dataset.head).join(",");
  }
  /** Heads are a part of their own: no channels and no place of them. */
  function showHeads() {
    for (const input of [channels, place]) input.disabled = Boolean(chosen());
  }
  const problem = problemLine("whatif-problem");
  function showFields() {
    factorField.hidden = kind.value !== "scale";
    imageField.hidden = kind.value !== "other_image";
  }
  showFields();
  onEnter([layer, channels, place, factor], () => add.click());
  // ── the list
  const list = h("ol", { hv: "whatif-edits", class: "hv-whatif-edits", "aria-label": "Edits, in the order in which they are made" });
  const undo = button("whatif-undo", () => send({ type: "undo" }), {}, "Undo");
  const compare = button("whatif-compare", () => send({ type: "compare" }), { title: "Show the ticked layers before, after and their difference" }, "Compare the maps");
  const edited = checkbox("whatif-run", "Run the layers with these edits", { title: "The gallery, its files and what is saved are then of the edited model, and say so" });
  edited.input.addEventListener("change", () => send({ type: "run-edited", on: edited.input.checked }));
  const empty = h("p", { class: "hv-dim" }, "Change a part of a layer: what that does to the model's answer stands here at once.");
  // ── target, answer, ranking
  const target = textInput("whatif-target", "Target", { class: "hv-input hv-whatif-target", placeholder: "the likeliest class" });
  target.addEventListener("change", () => send({ type: "target", target: target.value }));
  const effect = h("p", { hv: "whatif-effect", role: "status", class: "hv-whatif-effect" });
  const bars = h("table", { hv: "whatif-classes", class: "hv-whatif-classes" });
  const reason = h("p", { class: "hv-dim hv-note" });
  const stale = h("p", { class: "hv-dim hv-note", hidden: true }, "This is of an earlier image: change an edit or the target to see it for the present one.");
  const rank = button("whatif-rank", () => send({ type: "rank", layer: layer.value }), { title: "By what the target loses or wins without each channel of the layer above" }, "Rank the layer's channels");
  const table = button("whatif-table", () => send({ type: "table" }), { class: "hv-link" }, "Save as CSV");
  const rankTitle = h("h4", { hv: "whatif-ranking" });
  const ranking = h("ul", { class: "hv-whatif-ranks" });
  const ranked = h("div", { hidden: true }, h("div", { class: "hv-whatif-bar" }, rankTitle, table), ranking);
  const why = h("p", { class: "hv-dim hv-note" });
  const root = h("section", { hv: "what-if", class: "hv hv-part hv-whatif", "aria-label": "What if" },
    h("div", { class: "hv-whatif-form" }, labelled("Change", kind), labelled("Layer", layer), channelsField, placeField, factorField, imageField, headsField,
      h("div", { class: "hv-whatif-bar hv-whatif-wide" }, add, pinned)), names,
    problem.el, why, empty, list, h("div", { class: "hv-whatif-bar" }, undo, compare, edited.line),
    h("div", { class: "hv-whatif-bar" }, labelled("Target", target), rank),
    effect, stale, bars, reason, ranked);

  /** Gives the focus back to the control of the list that had it. @param {() => void} change */
  function keepingFocus(change) {
    const at = focused(root);
    const name = at && list.contains(at) ? [at.dataset.hv, at.dataset.index] : null;
    change();
    if (!name) return;
    const again = /** @type {HTMLElement | null} */ (list.querySelector(`[data-hv="${name[0]}"][data-index="${name[1]}"]`));
    (again ?? layer).focus({ preventScroll: true });
  }
  cleanup.follow(model, ["edits"], () => keepingFocus(() => {
    const edits = /** @type {{text: string, on: boolean, factor: number | null}[]} */ (model.get("edits") ?? []);
    list.replaceChildren(...edits.map((edit, index) => {
      const on = checkbox("whatif-on", edit.text, { checked: edit.on, "data-index": index });
      on.input.addEventListener("change", () => send({ type: "switch", index, on: on.input.checked }));
      const slider = edit.factor === null ? null : h("input", { hv: "whatif-slider", type: "range", min: "-2", max: "4", step: "0.1", value: edit.factor,
        "aria-label": `Factor of: ${edit.text}`, "data-index": index });
      slider?.addEventListener("change", () => send({ type: "factor", index, factor: Number(slider.value) }));
      const step = (/** @type {string} */ hv, /** @type {string} */ label, /** @type {number} */ to, /** @type {string} */ sign) => {
        const made = button(hv, () => { if (to >= 0 && to < edits.length) send({ type: "move", index, to }); }, { label: `${label}: ${edit.text}`, "data-index": index, class: "hv-link" }, sign);
        setOff(made, to < 0 || to >= edits.length);
        return made;
      };
      return h("li", {}, on.line, slider, step("whatif-up", "Earlier", index - 1, "↑"), step("whatif-down", "Later", index + 1, "↓"),
        button("whatif-remove", () => send({ type: "remove", index }), { label: `Remove: ${edit.text}`, "data-index": index, class: "hv-link" }, icon("close")));
    }));
    empty.hidden = edits.length > 0;
    edited.line.hidden = !edits.length;
    setOff(compare, !edits.some((edit) => edit.on));
  }));
  cleanup.follow(model, ["run_edited"], () => { edited.input.checked = model.get("run_edited") ?? false; });
  cleanup.follow(model, ["images"], () => {
    setChoices(image, model.get("images") ?? []);
    if (wanted && [...image.options].some((option) => option.value === wanted)) [image.value, wanted] = [wanted, ""];
  });
  cleanup.add(upload.stop);
  cleanup.follow(model, ["undoable"], () => setOff(undo, !model.get("undoable")));
  cleanup.follow(model, ["layers"], () => names.replaceChildren(...(model.get("layers") ?? []).map((/** @type {string} */ value) => h("option", { value }))));
  cleanup.follow(model, ["layer"], () => {
    if (focused(root) === layer || !model.get("layer") || layer.value === model.get("layer")) return;
    layer.value = model.get("layer");
    look();
  });
  cleanup.follow(model, ["pinned"], () => { pinned.hidden = !model.get("pinned")?.layer; });
  cleanup.follow(model, ["parts"], () => {
    const { channels: count = 0, places = [], heads: several = 0 } = model.get("parts") ?? {};
    const last = (/** @type {number} */ n) => `0–${n - 1}`;
    channels.placeholder = count ? `all (${last(count)})` : "all, or 0-3,7";
    place.placeholder = places.length ? `all (${places.map(last).join(", ")})` : count ? "all" : "all, or row, column";
    place.title = places.length === 1 ? "The number of a token, or row and column of a patch: 5, 7" : "Row and column: 5, 7";
    headsField.hidden = !several;
    if (heads.children.length !== several) {
      heads.replaceChildren(...Array.from({ length: several }, (_, head) => {
        const chip = button("whatif-head", () => {
          chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
          showHeads();
        }, { class: "hv-chip", "aria-pressed": "false", "aria-label": `Head ${head}`, "data-head": head }, String(head));
        return chip;
      }));
    }
    showHeads();
  });
  cleanup.follow(model, ["target"], () => { target.value = model.get("target") ?? ""; });
  cleanup.follow(model, ["why_not"], () => {
    setText(why, model.get("why_not") ?? "");
    why.hidden = !model.get("why_not");
  });
  cleanup.follow(model, ["alert"], () => problem.show(model.get("alert")));
  cleanup.follow(model, ["found"], () => {
    const found = model.get("found") ?? {};
    setText(effect, found.effect ?? "");
    setText(reason, found.reason ?? "");
    stale.hidden = !found.stale;
    const classes = /** @type {[string, number, number][]} */ (found.classes ?? []);
    bars.hidden = !classes.length;
    bars.replaceChildren(
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Class"), h("th", { scope: "col" }, "Before"), h("th", { scope: "col" }, "After"))),
      h("tbody", {}, ...classes.map(([name, before, after]) => h("tr", {}, h("th", { scope: "row" }, name), bar(before, "before"), bar(after, "after")))));
  });
  cleanup.follow(model, ["ranking"], () => {
    const found = model.get("ranking") ?? {};
    ranked.hidden = !found.title;
    if (!found.title) return;
    setText(rankTitle, `${found.title}${found.of > found.rows.length ? ` (${found.rows.length} of ${found.of} channels)` : ""}${found.edited ? " – of the model without the edits" : ""}${found.stale ? " – of an earlier image" : ""}`);
    ranking.replaceChildren(...found.rows.map((/** @type {[number, string, number]} */ [channel, text, share]) =>
      h("li", {}, button("whatif-rank-channel", () => send({ type: "add", what: "zero", layer: found.layer, channels: String(channel) }),
        { class: "hv-vector-bar", title: `Set channel ${channel} to zero` }, ...channelBar(channel, share, text)))));
  });
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message) => {
    if (message.type === "upload-done" && message.image) {
      wanted = message.image;
      if ([...image.options].some((option) => option.value === wanted)) image.value = wanted;
    }
    if (message.type === "table") download(new Blob([message.text], { type: "text/csv" }), message.name);
  });
  return cleanup.mount(el, root);
}

/** A share of one as a bar with its number. @param {number} share @param {string} which */
function bar(share, which) {
  const fill = h("span", { class: `hv-whatif-fill hv-whatif-${which}` });
  fill.style.width = `${Math.round(1000 * share) / 10}%`;
  return h("td", {}, h("span", { class: "hv-whatif-track" }, fill), h("span", {}, percent(share)));
}

export default { render: renderWhatIf };
