// @ts-check
// The panel "Channel": one channel's map large, its numbers, where it answers most, what it reads.
// Reads the traits shown, places, inputs, earlier, sent, looks_for; pictures arrive by message. What the
// pointer is on is found and asked for by pointing.js, which takes this map for one of the maps.
import "./panel_channel.css";
import { histogram } from "./histogram.js";
import { button, channelBar, Cleanup, focused, h, icon, isOff, labelled, numberText, onEnter, problemLine, setAttribute, setOff, setText, showBytes, showPictures, textInput } from "./kit.js";
import { pixelRatio, watchLook } from "./look.js";
import { answerText, fieldText, shownNumber } from "./wording.js";
import { moved, same, showing, wheeled, WHOLE, zoomed } from "./zoom.js";

/** Pixels of the page that one activation gets at most. */
const LARGEST_CELL = 48;

/** The map in its frame, with its photo under it. @param {Cleanup} cleanup @param {import("./kit.js").Model} model */
function mapView(cleanup, model) {
  const under = h("img", { hv: "channel-photo", class: "hv-channel-img", alt: "", hidden: true });
  const map = h("img", { hv: "channel-map", class: "hv-channel-img hv-channel-map", alt: "", hidden: true });
  const frame = h("div", { hv: "channel-frame", class: "hv-channel-frame" }, under, map);
  const cursor = h("p", { hv: "channel-cursor", class: "hv-note hv-channel-cursor" });
  const said = h("p", { class: "hv-note", role: "status", hidden: true });
  const scale = h("div", { hv: "channel-scale", class: "hv-dim hv-note" });
  let view = WHOLE;
  let dragged = false;
  const size = () => ({ width: frame.clientWidth || 1, height: frame.clientHeight || 1 });
  const most = () => Math.max(4, (LARGEST_CELL * (model.get("shown")?.cols ?? 1)) / size().width);
  /** @param {import("./zoom.js").View} next @returns {boolean} whether that changes anything */
  function show(next) {
    if (same(view, next)) return false;
    view = next;
    place();
    return true;
  }
  function place() {
    for (const img of [under, map]) {
      img.style.width = img.style.height = `${100 * view.scale}%`;
      img.style.left = `${-100 * view.scale * view.x}%`;
      img.style.top = `${-100 * view.scale * view.y}%`;
    }
    frame.dataset.view = [view.scale, view.x, view.y].map((n) => n.toFixed(4)).join(" ");
    const whole = view.scale === 1;
    setOff(less, whole);
    setOff(all, whole);
    setOff(more, view.scale >= most() - 1e-9);
    for (const [step, dx, dy] of arrows) setOff(step, same(moved(view, dx, dy), view));
    // The outlines over it lie where it lies.
    map.dispatchEvent(new CustomEvent("hv-moved", { bubbles: true }));
  }
  const zoom = (/** @type {number} */ steps) => show(zoomed(view, steps, most()));
  const less = button("channel-less", () => zoom(-2), { class: "hv-quiet", label: "Smaller (−)" }, "−");
  const more = button("channel-more", () => zoom(2), { class: "hv-quiet", label: "Larger (+)" }, "+");
  const all = button("channel-whole", () => show(WHOLE), { class: "hv-link", title: "The whole map (0)" }, "Whole");
  const arrows = /** @type {[HTMLElement, number, number][]} */ (/** @type {[string, string, number, number][]} */ ([
    ["left", "←", -0.5, 0], ["up", "↑", 0, -0.5], ["down", "↓", 0, 0.5], ["right", "→", 0.5, 0],
  ]).map(([name, sign, dx, dy]) => [button(`channel-${name}`, () => show(moved(view, dx, dy)), { class: "hv-quiet", label: `Move ${name}` }, sign), dx, dy]));
  const slider = h("input", { hv: "channel-opacity", class: "hv-slider", type: "range", min: "0", max: "100", value: "0", oninput: () => {
    map.style.opacity = String(1 - Number(slider.value) / 100);
  } });
  const photo = h("label", { class: "hv-field", title: "How much of the photo shows through the map" }, h("span", {}, "Photo"), slider);
  const tools = h("div", { class: "hv-channel-tools", role: "group", "aria-label": "View of the map" }, less, more, all, ...arrows.map(([step]) => step), photo);
  const box = h("div", { class: "hv-channel-left" }, frame, said, cursor, tools, scale);

  frame.addEventListener("wheel", (/** @type {WheelEvent} */ event) => {
    const at = frame.getBoundingClientRect();
    const [across, down] = [(event.clientX - at.left) / (at.width || 1), (event.clientY - at.top) / (at.height || 1)];
    if (show(wheeled(view, event, { ...size(), across, down, most: most() }))) event.preventDefault();
  }, { passive: false });
  /** @type {{x: number, y: number, view: import("./zoom.js").View} | null} */
  let grip = null;
  frame.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    dragged = false;
    grip = event.button === 0 && view.scale > 1 ? { x: event.clientX, y: event.clientY, view } : null;
  });
  frame.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (!grip || !(event.buttons & 1)) return;
    const [dx, dy] = [event.clientX - grip.x, event.clientY - grip.y];
    dragged ||= Math.hypot(dx, dy) > 4;
    if (dragged) show(moved(grip.view, -dx / size().width, -dy / size().height));
  });
  frame.addEventListener("pointerup", () => { grip = null; });
  // A drag moves the map; it pins nothing.
  frame.addEventListener("click", (/** @type {Event} */ event) => dragged && event.stopPropagation());
  frame.addEventListener("dragstart", (/** @type {Event} */ event) => event.preventDefault());
  const resized = new ResizeObserver(place);
  resized.observe(frame);
  cleanup.add(() => resized.disconnect());
  place();

  return {
    box, map, frame,
    /** @param {string} key @returns {boolean} whether it was one of ours */
    onKey(key) {
      const acts = /** @type {Record<string, () => void>} */ ({ "+": () => zoom(2), "=": () => zoom(2), "-": () => zoom(-2), 0: () => show(WHOLE) });
      acts[key]?.();
      return key in acts;
    },
    /** A new map; the view stays where the maps are alike. @param {any} message @param {DataView[]} buffers */
    paint(message, buffers) {
      const { rows, cols, image, of, label } = model.get("shown");
      const failed = Boolean(message.message);
      const tiles = { left: 0, top: 0, width: cols, height: rows, across: cols, down: rows, columns: 1, channels: [message.channel], rows, cols, image };
      frame.hidden = tools.hidden = cursor.hidden = scale.hidden = failed;
      said.hidden = !failed;
      setText(said, failed ? `It cannot be drawn as a map. ${message.message}` : "");
      showBytes(map, failed ? null : buffers[0]);
      const below = buffers[failed ? 0 : 1] ?? null;
      showBytes(under, below, "image/jpeg");
      photo.hidden = !below;
      map.style.opacity = below ? String(1 - Number(slider.value) / 100) : "1";
      map.dataset.key = message.key;
      map.dataset.version = String(message.version);
      map.dataset.channel = String(message.channel);
      map.setAttribute("width", String(cols));
      map.setAttribute("height", String(rows));
      map.alt = `Channel ${message.channel} of ${of} of ${label}, ${rows} × ${cols}. ${message.scale ?? ""}`;
      setAttribute(map, "data-tiles", failed ? null : JSON.stringify(tiles));
      setAttribute(map, "tabindex", failed ? null : "0");
      const ratio = `${cols} / ${rows}`;
      if (frame.style.aspectRatio !== ratio) view = WHOLE;
      frame.style.aspectRatio = ratio;
      place();
      const ends = message.ends ?? [];
      scale.replaceChildren(...(ends.length ? [numberText(ends[0]), h("span", { class: "hv-ramp", style: `background:linear-gradient(90deg,${message.colors.join(",")})` }), numberText(ends[1]), " · "] : []), message.scale ?? "");
      map.dispatchEvent(new CustomEvent("hv-painted", { bubbles: true }));
    },
    /** What pointing.js found at the cursor. @param {any} said @param {boolean} byKeys */
    tell(said, byKeys) {
      setText(cursor, said ? answerText(said.facts) : "Point at the map, or use the arrow keys on it.");
      cursor.classList.toggle("hv-out", Boolean(said?.waits));
      const { rows, cols } = model.get("shown") ?? {};
      if (said && byKeys && rows) show(showing(view, [said.facts.x / cols, said.facts.y / rows, (said.facts.x + 1) / cols, (said.facts.y + 1) / rows]));
    },
  };
}

/** The channel's values as bars, with a mark at the one under the pointer. @param {import("./kit.js").Model} model */
function histogramView(model) {
  const view = histogram("channel-histogram");
  const box = h("div", {}, h("h5", {}, "Values ", h("span", { class: "hv-dim" }, "logarithmic count")), view.box);
  return {
    box,
    show() {
      const { counts = [], ends = [] } = model.get("shown") ?? {};
      box.hidden = !counts.length;
      view.show(counts, ends);
    },
    mark: view.mark,
  };
}

/** The picture that the channel answers to. @param {Cleanup} cleanup @param {import("./kit.js").Model} model */
function looksForView(cleanup, model) {
  const number = (/** @type {string} */ name, /** @type {string} */ label, /** @type {Record<string, string>} */ props) =>
    h("input", { hv: `channel-${name}`, class: "hv-input hv-page", type: "number", "aria-label": label, ...props });
  const size = number("size", "Size in pixels", { min: "8", max: "512", placeholder: "auto" });
  const steps = number("steps", "Steps", { min: "1", max: "4096", value: "128" });
  const seed = number("seed", "Seed", { min: "0", value: "0" });
  let wanted = false;
  const go = button("channel-looks", () => {
    if (isOff(go)) return;
    model.send({ type: "visualize", size: whole(size, 0), steps: whole(steps, 128), seed: whole(seed, 0) });
    // It grows below the button that asked for it.
    wanted = true;
  }, {}, "What does it look for?");
  const stop = button("channel-looks-cancel", () => model.send({ type: "cancel" }), { class: "hv-button", title: "The picture so far stays" }, "Cancel");
  const save = button("channel-looks-export", () => model.send({ type: "export" }), {}, icon("export"), "Export as zip");
  const problem = problemLine("channel-looks-problem");
  const fill = h("span", { class: "hv-bar-fill" });
  const bar = h("div", { hv: "channel-looks-bar", class: "hv-bar", role: "progressbar", "aria-label": "Steps of the picture", hidden: true, "aria-valuemin": "0" }, fill);
  const said = h("p", { class: "hv-note hv-dim" });
  const img = h("img", { hv: "channel-looks-picture", class: "hv-channel-looks-picture", alt: "", hidden: true });
  const values = h("table", { hv: "channel-looks-values", class: "hv-channel-numbers hv-channel-looks-values", hidden: true });
  const done = h("p", { hv: "channel-looks-done", class: "hv-note", role: "status" });
  const beside = h("div", { class: "hv-channel-right" }, said, values, done, save);
  const box = h("div", {}, h("h5", {}, "What it looks for ", h("span", { class: "hv-dim" }, "a picture made so that the channel answers strongly to it; it is of no photo")),
    h("div", { class: "hv-actions" }, go, labelled("Size", size), labelled("Steps", steps), labelled("Seed", seed), stop), problem.el, bar,
    h("div", { class: "hv-channel-top" }, img, beside));
  onEnter([size, steps, seed], () => go.click());
  cleanup.follow(model, ["looks_for"], () => {
    const { state = "none", why_not: why = "", step = 0, steps: of = 0, title, clean, robust, note, value, edited } = model.get("looks_for") ?? {};
    const working = state === "working";
    if (!working && focused(box) === stop) go.focus({ preventScroll: true });
    setOff(go, Boolean(why) || working || state === "busy");
    stop.hidden = !working;
    bar.hidden = !working;
    bar.setAttribute("aria-valuemax", String(of));
    bar.setAttribute("aria-valuenow", String(step));
    fill.style.width = `${of ? (100 * step) / of : 0}%`;
    setText(said, why || (working ? `Step ${step} of ${of}${value ? `: ${value}` : ""}` : state === "busy" ? "Another channel's picture is being made." : edited ? "The model has edits on; the picture is of the model without them." : ""));
    const has = Boolean(title) && !working;
    values.hidden = save.hidden = !has;
    if (has) values.replaceChildren(h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Seen"), h("th", { scope: "col" }, "Mean value"))), h("tbody", {},
      ...[["as it is", clean], ["under small moves (8 fresh ones)", robust]].map(([name, text]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, text)))));
    setText(done, has ? `${title}: ${note}` : "");
    img.alt = has ? `What ${title} looks for` : working ? "The picture so far" : "";
    if (state === "none" || (state === "busy" && !title)) showBytes(img, null);
  });
  img.addEventListener("load", () => {
    if (wanted) box.scrollIntoView?.({ block: "nearest" });
    wanted = false;
  });
  cleanup.follow(model, ["alert"], () => problem.show(model.get("alert")));
  return { box, img };
}

/** @param {HTMLInputElement} input @param {number} otherwise */
function whole(input, otherwise) {
  const number = Math.round(Number(input.value));
  return input.value !== "" && Number.isFinite(number) ? number : otherwise;
}

/** Puts a channel's tensor into the notebook. @param {Cleanup} cleanup @param {import("./kit.js").Model} model */
function sender(cleanup, model) {
  const name = textInput("channel-name", "Name of the variable", { class: "hv-input hv-channel-name", maxlength: "100" });
  const send = (/** @type {boolean} */ again) => model.send({ type: "send", name: name.value, again });
  const go = button("channel-send", () => send(false), {}, "Send to cell");
  const text = h("p", { hv: "channel-sent", class: "hv-note", role: "status" });
  const again = button("channel-replace", () => send(true), { class: "hv-button" }, "Replace it");
  onEnter([name], () => send(false));
  name.addEventListener("input", () => { again.hidden = true; });
  cleanup.follow(model, ["sent"], () => {
    const sent = model.get("sent") ?? {};
    setText(text, sent.text ?? "");
    again.hidden = sent.state !== "taken" || sent.name !== name.value.trim();
  });
  return { box: h("div", { class: "hv-channel-send" }, h("div", { class: "hv-actions" }, name, go, again), text), name };
}

/** @param {import("./kit.js").Context} context */
export function renderChannel({ model, el }) {
  const cleanup = new Cleanup();
  const view = mapView(cleanup, model);
  const histogram = histogramView(model);
  const notebook = sender(cleanup, model);
  const looks = looksForView(cleanup, model);
  const empty = h("p", { class: "hv-dim" }, "Double-click a map, or press c on it, to see its channel here.");
  const title = h("h4", { hv: "channel-title" });
  const stale = h("span", { class: "hv-badge hv-warn", title: "From an earlier image, model or preprocessing. Run again." }, "stale");
  const edited = h("span", { class: "hv-badge hv-warn" }, "edited");
  const step = (/** @type {number} */ by) => model.send({ type: "step", by });
  const previous = button("channel-previous", () => step(-1), { class: "hv-quiet", label: "Previous channel (Page Up)" }, icon("left"));
  const next = button("channel-next", () => step(1), { class: "hv-quiet", label: "Next channel (Page Down)" }, icon("chevron"));
  const number = h("input", { hv: "channel-number", class: "hv-input hv-page", type: "number", min: "0", "aria-label": "Channel", onchange: () => {
    const wanted = Math.round(Number(number.value));
    if (number.value !== "" && Number.isFinite(wanted)) model.send({ type: "open", key: model.get("shown").key, channel: wanted });
    number.value = String(model.get("shown").channel);
  } });
  const of = h("span", { class: "hv-dim hv-nowrap" });
  const inGallery = button("channel-gallery", () => model.send({ type: "gallery" }), { class: "hv-link" }, "Show in gallery");
  const head = h("div", { class: "hv-channel-head" }, title, stale, edited, h("span", { class: "hv-pager", role: "group", "aria-label": "Channels" }, previous, number, of, next), inGallery);
  const numbers = h("table", { hv: "channel-numbers", class: "hv-channel-numbers" });
  const places = h("ul", { hv: "channel-places", class: "hv-channel-places" });
  const placesBox = h("div", {}, h("h5", {}, "Strongest places ", h("span", { class: "hv-dim" }, "what each sees of the photo; stripes lie beyond it")), places);
  const inputs = h("ul", { hv: "channel-inputs" });
  const inputsNote = h("p", { class: "hv-dim hv-note" });
  const filters = h("img", { hv: "channel-filters", class: "hv-channel-filters", alt: "", hidden: true });
  const filtersNote = h("p", { class: "hv-dim hv-note" });
  const inputsTitle = h("h5");
  const inputsBox = h("div", {}, inputsTitle, h("div", { class: "hv-channel-inputs" },
    h("div", { class: "hv-vector" }, inputs, inputsNote), h("div", { class: "hv-channel-kernels" }, filters, filtersNote)));
  const earlier = h("ul", { hv: "channel-earlier", class: "hv-channel-places" });
  const earlierNote = h("p", { class: "hv-dim hv-note" });
  const earlierBox = h("div", {}, h("h5", {}, "This channel for earlier images ", h("span", { class: "hv-dim" }, "on one scale, computed again")), earlier, earlierNote);
  const body = h("div", { class: "hv-channel-body" },
    h("div", { class: "hv-channel-top" }, view.box, h("div", { class: "hv-channel-right" }, numbers, histogram.box, notebook.box)),
    placesBox, looks.box, inputsBox, earlierBox);
  const root = h("section", { hv: "channel", class: "hv hv-part hv-channel", "aria-label": "Channel" }, empty, head, body);

  cleanup.follow(model, ["shown"], () => {
    const shown = model.get("shown") ?? {};
    const has = Boolean(shown.key);
    empty.hidden = has;
    head.hidden = body.hidden = !has;
    if (!has) return;
    setText(title, `${shown.label} ${shown.type}`);
    stale.hidden = !shown.stale;
    edited.hidden = !shown.edited;
    edited.title = shown.edited ?? "";
    root.classList.toggle("hv-stale", shown.stale);
    number.max = String(shown.of - 1);
    number.value = String(shown.channel);
    setText(of, `of ${shown.of}`);
    setOff(previous, shown.channel <= 0);
    setOff(next, shown.channel >= shown.of - 1);
    const rows = shown.numbers.map((/** @type {[string, string, number | null]} */ [name, value, rank]) =>
      h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value), h("td", { class: "hv-dim" }, rank ? `${rank} of ${shown.of}` : "")));
    numbers.replaceChildren(h("thead", {}, h("tr", {}, h("th", { scope: "col" }, `${shown.rows} × ${shown.cols}`), h("th", { scope: "col" }, "Value"), h("th", { scope: "col", title: "1 is the largest" }, "Rank"))),
      h("tbody", {}, ...rows, ...(shown.odd ? [h("tr", {}, h("th", { scope: "row" }, "Not finite"), h("td", { colspan: "2" }, shown.odd))] : [])));
    if (notebook.name.dataset.of !== shown.name) notebook.name.value = notebook.name.dataset.of = shown.name;
    histogram.show();
  });
  /** What has the focus is about to be replaced: the map takes it. @param {HTMLElement} box */
  function keepFocus(box) {
    if (box.contains(focused(box))) (view.map.hasAttribute("tabindex") ? view.map : number).focus({ preventScroll: true });
  }
  cleanup.follow(model, ["places"], () => {
    const list = model.get("places") ?? [];
    keepFocus(places);
    placesBox.hidden = !list.length;
    showPictures(places);
    places.replaceChildren(...list.map((/** @type {any} */ place) => {
      const { key, channel } = model.get("shown");
      const value = shownNumber(place.value);
      return h("li", {}, button("channel-place", () => model.send({ type: "pin", key, channel, y: place.y, x: place.x }),
        { class: "hv-channel-place", title: fieldText(place.field), "data-place": `${place.y} ${place.x}`, "aria-label": `Pin y ${place.y}, x ${place.x}: ${value}. ${fieldText(place.field)}` },
        h("img", { alt: "", hidden: true }), h("span", {}, value), h("span", { class: "hv-dim" }, `y ${place.y}, x ${place.x}`)));
    }));
  });
  cleanup.follow(model, ["inputs"], () => {
    const { bars = [], of: count, total, leads, nearest, filters: said } = model.get("inputs") ?? {};
    keepFocus(inputs);
    inputsBox.hidden = !bars.length;
    if (!bars.length) showBytes(filters, null);
    const from = leads?.label ? ` of ${leads.label}` : "";
    inputsTitle.replaceChildren(`Input channels by weight${from} `, h("span", { class: "hv-dim" }, `it reads ${count} of ${total}; − where the weights add up to less than zero`));
    inputs.replaceChildren(...bars.map((/** @type {[number, string, number, boolean]} */ [channel, size, share, negative]) => {
      const inside = channelBar(channel, negative ? -share : share, `${negative ? "−" : "+"} ${size}`);
      return h("li", {}, leads?.key
        ? button("channel-input", () => {
          view.map.focus();
          model.send({ type: "open", key: leads.key, channel });
        }, { class: "hv-vector-bar", "data-channel": channel, title: `Open channel ${channel}${from}` }, ...inside)
        : h("span", { class: "hv-vector-bar hv-vector-still", "data-channel": channel }, ...inside));
    }));
    setText(inputsNote, leads?.key ? (leads.through.length ? `${leads.label} gives them through ${leads.through.join(", ")}.` : "")
      : nearest ? `Tick ${nearest}, which gives them, to open them here.` : "No layer is known to give them just so.");
    setText(filtersNote, said ?? "");
    filters.alt = said ?? "";
  });
  cleanup.follow(model, ["earlier"], () => {
    const list = model.get("earlier") ?? [];
    earlierBox.hidden = !list.length;
    showPictures(earlier);
    earlier.replaceChildren(...list.map((/** @type {any} */ one, /** @type {number} */ i) => h("li", { class: "hv-channel-image" },
      h("img", { alt: `What the network saw of ${one.name}`, hidden: true }), h("img", { class: "hv-channel-map", alt: `Its map for ${one.name}: ${one.low} to ${one.high}`, hidden: true }),
      h("span", {}, i ? one.name : `${one.name}, now`), h("span", { class: "hv-dim" }, `${one.low} to ${one.high}`))));
    setText(earlierNote, list[0]?.scale ?? "");
  });
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.channel !== model.get("shown")?.channel) return;
    if (message.type === "map") view.paint(message, buffers);
    else if (message.type === "looks-for") showBytes(looks.img, buffers[0] ?? null);
    else if (message.type === "crops") showPictures(places, buffers);
    else if (message.type === "filters") {
      showBytes(filters, buffers[0] ?? null);
      filters.style.width = "";
      filters.onload = () => { filters.style.width = `${filters.naturalWidth / pixelRatio()}px`; };
    } else if (message.type === "earlier") showPictures(earlier, buffers);
  });
  root.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input:not([type=range])")) return;
    const onMap = target === view.map;
    const by = event.key === "PageDown" || (onMap && event.shiftKey && event.key === "ArrowRight") ? 1
      : event.key === "PageUp" || (onMap && event.shiftKey && event.key === "ArrowLeft") ? -1 : 0;
    if (by) step(by);
    else if (!view.onKey(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  });
  cleanup.add(() => {
    showPictures(root);
  });

  const leave = cleanup.mount(el, root);
  const app = root.closest('[data-hv="app"]');
  const onSaid = (/** @type {any} */ event) => {
    const own = event.detail?.img === view.map ? event.detail : null;
    view.tell(own, Boolean(own?.byKeys));
    histogram.mark(own?.facts.value);
    if (own) event.preventDefault(); // it stands here
  };
  app?.addEventListener("hv-said", onSaid);
  cleanup.add(() => app?.removeEventListener("hv-said", onSaid));
  view.tell(null, false);
  const tell = (/** @type {any} */ message) => {
    try {
      model.send(message);
    } catch {
      // The kernel is gone: the app says so elsewhere.
    }
  };
  // A page before this one may have shown it.
  if (!root.clientWidth) tell({ type: "visible", on: false });
  watchLook(root, root, cleanup, (look) => tell({ type: "look", ...look }), (on) => tell({ type: "visible", on }));
  return leave;
}

export default { render: renderChannel };
