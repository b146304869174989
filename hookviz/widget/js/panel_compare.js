// @ts-check
// The panel "Compare": the tray of the session's runs, one line for each layer of two of them, and
// a layer's channels side by side, as difference, blinking, or under a wipe.
// Reads the traits tray, compared, layers, summary, layer, scale, pin, exported; pictures arrive by
// message. Python sends one picture of each run and of each difference, all with the same tiles at
// the same places (`_painted` in _compare.py): they are put together here, tile by tile and pixel
// by pixel, so that another way to look at them asks for nothing. No value is taken from a color.
import "./panel_compare.css";
import { button, bytesText, checkbox, Cleanup, clickPlace, freshId, h, icon, isOff, middle, numberText, partAlert, select, setAttribute, setChoices, setName, setOff, setText, showBytes, showPictures } from "./kit.js";
import { pixelRatio, watchLook } from "./look.js";
import { sentence, shownNumber } from "./wording.js";

/** @typedef {{x: number, y: number, part: number, channel: number, index: number}} Cell of the canvas, in its pixels */
/** @typedef {{channel: number, y: number, x: number}} Place */

const SVG = "http://www.w3.org/2000/svg";
const BLINK = 800;
const SMALLEST = 5;
const MODES = /** @type {[string, string][]} */ ([["side", "Side by side"], ["difference", "Difference"], ["blink", "Blink"], ["wipe", "Wipe"]]);
const shapeText = (/** @type {number[]} */ shape) => shape.join("×");

/**
 * What came of two runs, in a sentence.
 * @param {any[]} layers
 * @param {any} summary
 */
export function verdict(layers, summary) {
  if (!layers.length) return "";
  if (summary.same) return "No difference: every value is the same.";
  const first = layers[summary.first ?? -1];
  if (!first) return "No difference beyond rounding.";
  if (first.reason) return `First difference: ${first.label}. ${first.reason}`;
  if (first.mismatched) return `First difference: ${first.label}, ${first.mismatched} values are NaN or infinite in one of the two.`;
  return `First difference beyond rounding: ${first.label}, up to ${numberText(100 * first.relative)} % of its largest magnitude (rounding: ${numberText(100 * first.tolerance)} %).`;
}

/** @param {any} tray */
export function trayText(tray) {
  const count = tray.runs?.length ?? 0;
  const held = `${count} of at most ${tray.most} runs, ${bytesText(tray.bytes)} of at most ${bytesText(tray.limit)}`;
  const gone = tray.let_go ? `; ${tray.let_go === 1 ? "the oldest one was" : `the ${tray.let_go} oldest were`} let go` : "";
  const large = tray.too_large ? ` The last run was not kept: it takes ${bytesText(tray.too_large)}. Tick fewer layers.` : "";
  return `${held}${gone}.${large}`;
}

/**
 * Where the tiles stand.
 * @param {{mode: string, parts: number[], channels: number[], tile: {width: number, height: number}, wide: number, ratio: number}} ask
 * @returns {{cells: Cell[], height: number, strip: number}}
 */
export function arrange({ mode, parts, channels, tile, wide, ratio }) {
  const [gap, strip] = [Math.round(4 * ratio), Math.round(15 * ratio)];
  const each = mode === "side" ? parts.length : 1;
  const group = each * (tile.width + gap) + (each > 1 ? 3 * gap : 0);
  const columns = Math.max(1, Math.min(channels.length, Math.floor((wide + gap) / group)));
  const cells = channels.flatMap((channel, index) => Array.from({ length: each }, (_, at) => ({
    x: (index % columns) * group + at * (tile.width + gap),
    y: Math.floor(index / columns) * (tile.height + strip + gap) + strip,
    part: parts[at], channel, index,
  })));
  return { cells, height: Math.ceil(channels.length / columns) * (tile.height + strip + gap), strip };
}

/** @param {import("./kit.js").Context} context */
export function renderCompare({ model, el }) {
  const cleanup = new Cleanup();
  const send = (/** @type {any} */ message) => model.send(message);
  const tray = makeTray(model, cleanup, send);
  const table = makeTable(send);
  const maps = makeMaps(model, cleanup, send);
  const against = select("compare-against", "Shown against the reference", [], (value) => send({ type: "against", number: Number(value) }));
  const reference = h("p", { hv: "compare-reference", class: "hv-compare-run" });
  const other = h("p", { hv: "compare-other", class: "hv-compare-run" });
  const closing = button("compare-close", () => send({ type: "close" }), { class: "hv-link" }, "Close comparison");
  const said = h("p", { hv: "compare-verdict", class: "hv-compare-verdict", role: "status" });
  const first = button("compare-first", () => send({ type: "layer", index: model.get("summary").first }), { class: "hv-link" }, "Show it");
  const only = h("p", { hv: "compare-only", class: "hv-dim hv-note" });
  const exportOne = button("compare-export", () => send({ type: "export", everything: false }), {}, icon("export"), "Export this layer");
  const exportAll = button("compare-export-all", () => send({ type: "export", everything: true }), {}, "Export all layers");
  const exported = h("p", { hv: "compare-exported", class: "hv-note", role: "status" });
  const result = h("div", { hv: "compare-result", class: "hv-compare-result" },
    h("div", { class: "hv-compare-head" }, h("div", { class: "hv-compare-runs" }, reference, other), against, closing),
    h("div", { class: "hv-compare-head" }, said, first), only, table.el, maps.el,
    h("div", { class: "hv-compare-head" }, exportOne, exportAll, exported));
  const root = h("section", { hv: "compare", class: "hv hv-part hv-compare", "aria-label": "Compare" }, tray.el, partAlert(model, cleanup), result);

  cleanup.follow(model, ["compared", "layers", "summary", "layer"], () => {
    const compared = model.get("compared") ?? {};
    const ready = compared.state === "ready";
    const layers = model.get("layers") ?? [];
    const summary = model.get("summary") ?? {};
    root.dataset.state = compared.state ?? "";
    result.hidden = !compared.state;
    result.setAttribute("aria-busy", String(compared.state === "comparing"));
    for (const part of [table.el, maps.el, exportOne, exportAll]) part.hidden = !ready;
    tray.fold(Boolean(compared.state), (compared.keys ?? []).join());
    const words = compared.words ?? [];
    setText(reference, words.length ? `1 (reference): ${words[0]}` : "");
    setText(other, words.length ? `${compared.against + 1}: ${words[compared.against]}` : "");
    for (const line of [reference, other]) line.title = line.textContent;
    setChoices(against, words.slice(1).map((/** @type {string} */ text, /** @type {number} */ i) => [String(i + 1), `Run ${i + 2}: ${middle(text, 40)}`]));
    against.value = String(compared.against ?? 1);
    against.hidden = words.length < 3;
    setText(said, compared.state === "comparing" ? "Comparing …" : compared.state === "failed" ? sentence(compared) : verdict(layers, summary));
    first.hidden = !ready || summary.first === null || summary.first === undefined || summary.first === model.get("layer");
    const [a, b] = summary.only ?? [[], []];
    const lists = [[a, 1], [b, (compared.against ?? 1) + 1]].filter(([labels]) => labels.length).map(([labels, run]) =>
      `Only in run ${run}: ${labels.slice(0, 6).join(", ")}${labels.length > 6 ? ` and ${labels.length - 6} more` : ""}.`);
    const matched = summary.matched === "order" ? "Layers are matched in order of execution." : "";
    setText(only, [...lists, matched].filter(Boolean).join(" "));
    only.hidden = !only.textContent;
    table.show(layers, summary, model.get("layer") ?? -1);
    setAttribute(exportOne, "title", layers[model.get("layer")]?.label ?? null);
  });
  cleanup.follow(model, ["exported"], () => {
    const { path, files } = model.get("exported") ?? {};
    setText(exported, path ? `${files} files in ${path}` : "");
  });
  const leave = cleanup.mount(el, root);
  send({ type: "thumbnails" });
  watchLook(root, maps.el, cleanup, (look) => {
    send({ type: "look", ...look });
    maps.draw();
  }, (on) => on && maps.draw());
  return leave;
}

/** @param {import("./kit.js").Model} model @param {Cleanup} cleanup @param {(message: any) => void} send */
function makeTray(model, cleanup, send) {
  /** Keys in the order of ticking: the first is the reference. @type {string[]} */
  let ticked = [];
  /** @type {Map<string, DataView>} */
  const pictures = new Map();
  const list = h("ul", { class: "hv-tray", "aria-label": "Runs of this session" });
  const go = button("compare-go", () => !isOff(go) && send({ type: "compare", keys: ticked }), { class: "hv-button hv-main" }, "Compare");
  const hint = h("span", { hv: "compare-hint", class: "hv-dim hv-note", role: "status" });
  const calls = select("compare-calls", "Compare the calls of", [], (layer) => {
    if (layer) send({ type: "calls", key: ticked[0], layer });
    calls.value = "";
  });
  const held = h("span", { hv: "compare-held", class: "hv-dim hv-note" });
  const summary = h("summary", { hv: "compare-tray-summary" }, "Runs of this session");
  const fold = h("details", { hv: "compare-tray", class: "hv-tray-fold", open: true }, summary, list, h("div", { class: "hv-compare-head" }, go, calls, hint), held);

  function say() {
    const runs = model.get("tray")?.runs ?? [];
    ticked = ticked.filter((key) => runs.some((/** @type {any} */ run) => run.key === key));
    for (const item of list.children) {
      const at = ticked.indexOf(item.dataset.key ?? "");
      item.querySelector("input").checked = at >= 0;
      const badge = item.querySelector(".hv-badge");
      badge.hidden = at < 0;
      setText(badge, at === 0 ? "1 reference" : String(at + 1));
    }
    setOff(go, ticked.length < 2);
    const one = ticked.length === 1 ? runs.find((/** @type {any} */ run) => run.key === ticked[0]) : null;
    calls.hidden = !one?.calls.length;
    setChoices(calls, [["", "or the calls of …"], ...(one?.calls ?? []).map((/** @type {string} */ name) => [name, name])]);
    setText(hint, !runs.length ? "Each run of the model comes here. Press Run, change the photo or the model, and run again."
      : ticked.length < 2 ? "Tick two or more; the first is the reference." : "");
  }
  /** @param {any} run */
  function item(run) {
    const name = `${run.title ? `${run.title}: ` : ""}${run.model}, ${run.image}`;
    const time = new Date(run.time * 1000).toLocaleTimeString();
    const box = checkbox("compare-tick", `Run ${run.key}: ${name}, ${time}`, { shown: "", onchange: () => {
      ticked = box.input.checked ? [...ticked, run.key] : ticked.filter((key) => key !== run.key);
      say();
    } });
    const img = h("img", { alt: "", width: 44, height: 44 });
    const bytes = pictures.get(run.key);
    if (bytes) showBytes(img, bytes, "image/jpeg");
    const title = h("span", { class: "hv-tray-name hv-name", title: name });
    setName(title, run.title || run.model);
    box.line.append(img, h("span", { class: "hv-tray-text" }, title, h("span", { class: "hv-dim" }, middle(run.title ? `${run.model}, ${run.image}` : run.image, 26)),
      h("span", { class: "hv-dim" }, `${time} · ${run.device} ${run.dtype} · ${run.layers === 1 ? "1 layer" : `${run.layers} layers`}${run.trained ? "" : " · untrained"}`)),
    h("span", { class: "hv-badge hv-warn", hidden: true }));
    return h("li", { hv: "compare-run", class: "hv-tray-run", "data-key": run.key }, box.line,
      button("compare-forget", () => send({ type: "forget", key: run.key }), { class: "hv-quiet", label: `Let go of run ${run.key}: ${name}` }, icon("close")));
  }
  cleanup.follow(model, ["tray"], () => {
    const runs = model.get("tray")?.runs ?? [];
    const wanted = new Set(runs.map((/** @type {any} */ run) => run.key));
    for (const old of [...list.children]) if (!wanted.has(old.dataset.key)) {
      showBytes(old.querySelector("img"), null);
      pictures.delete(old.dataset.key);
      old.remove();
    }
    const there = new Set([...list.children].map((old) => old.dataset.key));
    for (const run of runs) if (!there.has(run.key)) list.append(item(run));
    setText(held, trayText(model.get("tray") ?? {}));
    held.hidden = !runs.length && !model.get("tray")?.too_large;
    say();
  });
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type !== "thumbnails") return;
    message.keys.forEach((/** @type {string} */ key, /** @type {number} */ index) => {
      pictures.set(key, buffers[index]);
      const img = list.querySelector(`[data-key="${CSS.escape(key)}"] img`);
      if (img) showBytes(img, buffers[index], "image/jpeg");
    });
  });
  cleanup.add(() => showPictures(list));
  let folded = "";
  return {
    el: fold,
    /** Folds for a new comparison, so that it has the room; unfolds when it ends. @param {boolean} on @param {string} which */
    fold(on, which) {
      const now = on ? `on ${which}` : "";
      if (now !== folded) fold.open = !on;
      folded = now;
    },
  };
}

/** @param {(message: any) => void} send */
function makeTable(send) {
  const heads = ["Layer", "Verdict", "Largest diff.", "Mean diff.", "Cosine", "Correlation", "Shape"];
  const body = h("tbody");
  const el = h("div", { hv: "compare-layers", class: "hv-compare-layers" },
    h("table", { "aria-label": "Layers in order of execution" }, h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { scope: "col" }, text)))), body));
  /** @type {any[]} */
  let rows = [];
  /** @type {any} */
  let of = null;
  /** @type {HTMLButtonElement[]} */
  let buttons = [];
  let at = -1;
  body.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const now = buttons.indexOf(/** @type {any} */ (event.target));
    const next = { ArrowUp: now - 1, ArrowDown: now + 1, Home: 0, End: buttons.length - 1, PageUp: now - 8, PageDown: now + 8 }[event.key];
    if (now < 0 || next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const to = buttons[Math.max(0, Math.min(buttons.length - 1, next))];
    to.focus();
    to.scrollIntoView({ block: "nearest" });
  });
  return {
    el,
    /** @param {any[]} layers @param {any} summary @param {number} layer */
    show(layers, summary, layer) {
      if (layers !== rows || summary !== of) {
        [rows, of] = [layers, summary];
        at = -1;
        buttons = [];
        body.replaceChildren(...layers.map((row, index) => {
          const name = button("compare-layer", () => send({ type: "layer", index }), { class: "hv-link hv-compare-layer", title: `${row.label} ${row.type}` }, middle(row.label, 48));
          buttons.push(name);
          const [a, b] = row.shapes.map(shapeText);
          const isFirst = index === summary.first;
          const cell = (/** @type {string} */ text, /** @type {string} */ title = "") => h("td", { title: title || null }, text);
          const fine = (/** @type {number | null} */ value) => (value === null ? "–" : shownNumber(value.toFixed(6)));
          return h("tr", { "data-verdict": row.verdict, "data-label": row.label }, h("th", { scope: "row" }, name),
            h("td", { title: row.reason || row.note || null }, h("span", { class: isFirst ? "hv-badge hv-warn" : "hv-dim" }, isFirst ? "first difference" : row.verdict),
              row.mismatched ? ` ${row.mismatched} not finite` : ""),
            cell(numberText(row.max_abs), row.place ? `at ${row.place.join(", ")}` : ""), cell(numberText(row.mean_abs)), cell(fine(row.cosine)), cell(fine(row.correlation)),
            cell(a === b ? a : `${a} | ${b}`, row.note));
        }));
      }
      if (layer === at) return;
      at = layer;
      buttons.forEach((name, index) => {
        name.tabIndex = index === Math.max(0, layer) ? 0 : -1;
        setAttribute(name, "aria-current", index === layer ? "true" : null);
        name.closest("tr")?.classList.toggle("hv-compare-now", index === layer);
      });
      const now = buttons[layer]?.closest("tr");
      // Only the table scrolls: the page stays where it is.
      if (now && (now.offsetTop < el.scrollTop + 24 || now.offsetTop + now.offsetHeight > el.scrollTop + el.clientHeight)) el.scrollTop = now.offsetTop - el.clientHeight / 3;
    },
  };
}

/** @param {import("./kit.js").Model} model @param {Cleanup} cleanup @param {(message: any) => void} send */
function makeMaps(model, cleanup, send) {
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let mode = "side";
  /** @type {any} */
  let facts = null;
  /** @type {(ImageBitmap | null)[]} */
  let bitmaps = [];
  /** @type {ReturnType<typeof arrange>} */
  let layout = { cells: [], height: 0, strip: 0 };
  /** Position in `parts` of the run that blinks now: 0 is the reference. */
  let blinked = 0;
  let playing = !still.matches;
  /** @type {Place | null} */
  let cursor = null;
  let byKeys = false;
  /** @type {any} */
  let answer = null;
  /** @type {any} */
  let question = null;
  let asked = 0;

  const chips = MODES.map(([name, text]) => button(`compare-mode-${name}`, () => setMode(name), { class: "hv-chip" }, text));
  const relative = checkbox("compare-relative", "Relative difference: as a share of the larger of the two values", { shown: "Relative", onchange: draw });
  const scale = select("compare-scale", "Scale of the maps", [["auto", "98 % of values"], ["full", "full range"]], (value) => send({ type: "scale", scale: value }));
  const prev = button("compare-prev", () => turn(-1), { class: "hv-quiet", label: "Previous channels" }, icon("left"));
  const next = button("compare-next", () => turn(1), { class: "hv-quiet", label: "More channels" }, icon("chevron"));
  const pageText = h("span", { class: "hv-dim hv-nowrap" });
  const pager = h("span", { class: "hv-pager", role: "group", "aria-label": "Pages of channels" }, prev, pageText, next);
  const play = button("compare-play", () => { playing = !playing; refresh(); }, {}, "Pause");
  const turnOver = button("compare-switch", () => { playing = false; blinked = 1 - blinked; refresh(); }, {}, "Switch");
  const shows = h("span", { hv: "compare-shows", class: "hv-dim" });
  const share = h("input", { hv: "compare-wipe", class: "hv-slider hv-wipe", type: "range", min: "0", max: "100", value: "50", "aria-label": "Wipe: share of the reference", oninput: draw });
  const wipe = h("label", { class: "hv-field" }, h("span", {}, "1"), share, h("span", { class: "hv-wipe-other" }, "2"));
  const blinking = h("span", { class: "hv-compare-blink" }, play, turnOver, shows);
  const legend = h("p", { hv: "compare-scale-text", class: "hv-dim hv-note" });
  const bars = h("span", { class: "hv-compare-bars" });
  const readout = h("p", { hv: "compare-readout", class: "hv-compare-readout" });
  const spoken = h("span", { class: "hv-said", role: "status" });
  const hintId = freshId("hint");
  const hint = h("span", { id: hintId, class: "hv-said" }, "Arrows move the place, with Shift from channel to channel; Enter pins it, Escape takes the pin away.");
  const canvas = h("canvas", { hv: "compare-maps", class: "hv-compare-canvas", tabindex: "0", role: "img", "aria-describedby": hintId });
  const marks = document.createElementNS(SVG, "svg");
  marks.setAttribute("class", "hv-marks");
  marks.setAttribute("aria-hidden", "true");
  const lines = ["pin", "hover", "hover-tile"].flatMap((name) => ["under", "over"].map((kind) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", `hv-mark hv-mark-${kind} hv-mark-${name}`);
    path.dataset.mark = name;
    marks.append(path);
    return path;
  }));
  const whole = h("img", { hv: "compare-whole", class: "hv-compare-whole", hidden: true, alt: "" });
  const note = h("p", { hv: "compare-note", class: "hv-dim" });
  const frame = h("div", { class: "hv-compare-frame" }, canvas);
  frame.append(marks);
  const controls = h("div", { class: "hv-view" }, h("span", { class: "hv-compare-modes", role: "group", "aria-label": "How the runs are shown" }, ...chips), relative.line, scale, blinking, wipe, pager);
  const el = h("div", { class: "hv-compare-maps" }, controls, h("div", { class: "hv-compare-legend" }, bars, legend), readout, note, frame, whole, spoken, hint);

  const parts = () => /** @type {any[]} */ (facts?.parts ?? []);
  const indexOf = (/** @type {string} */ part) => parts().findIndex((one) => one.part === part);
  const runs = () => parts().map((one, index) => ({ ...one, index })).filter((one) => one.part === "run");
  const apart = () => indexOf(relative.input.checked ? "relative" : "difference");
  const againstRun = () => model.get("compared")?.against ?? 1;
  const other = () => parts().findIndex((one) => one.part === "run" && one.run === againstRun());
  /** What a tile is, in a few letters. @param {number} index of its part */
  function short(index) {
    const part = parts()[index];
    if (part.part === "run") return String(part.run + 1);
    return part.part === "relative" ? "relative" : `${part.run + 1} − 1`;
  }
  const isMaps = () => Boolean(facts?.tiles) && bitmaps.length > 0;

  /** @param {string} name */
  function setMode(name) {
    mode = name;
    refresh();
  }
  /** @param {number} step */
  function turn(step) {
    if (!isOff(step < 0 ? prev : next)) send({ type: "page", page: (facts?.page ?? 0) + step });
  }
  function refresh() {
    chips.forEach((chip, index) => setAttribute(chip, "aria-pressed", String(MODES[index][0] === mode)));
    const there = isMaps();
    frame.hidden = readout.hidden = !there;
    for (const part of [blinking, wipe, relative.line, pager, controls.firstElementChild]) part.hidden = !there;
    blinking.hidden ||= mode !== "blink";
    wipe.hidden ||= mode !== "wipe";
    setText(/** @type {Element} */ (wipe.lastElementChild), String(againstRun() + 1));
    relative.line.hidden ||= mode === "blink" || mode === "wipe";
    play.hidden = still.matches;
    setText(play, playing ? "Pause" : "Play");
    pager.hidden ||= (facts?.pages ?? 1) < 2;
    setText(pageText, facts ? `${facts.page + 1} of ${facts.pages}` : "");
    setOff(prev, !facts || facts.page <= 0);
    setOff(next, !facts || facts.page >= facts.pages - 1);
    draw();
  }

  // ── the picture

  function chosenParts() {
    if (mode === "side") return [...runs().map((one) => one.index), apart()];
    if (mode === "difference") return [apart()];
    return mode === "blink" ? [blinked ? other() : 0] : [0];
  }
  function draw() {
    if (!isMaps()) return;
    const ratio = pixelRatio();
    const wide = Math.max(100, Math.floor(frame.clientWidth * ratio));
    const { tiles, channels } = facts;
    layout = arrange({ mode, parts: chosenParts(), channels, tile: tiles, wide, ratio });
    const { cells, height, strip } = layout;
    if (canvas.width !== wide) canvas.width = wide;
    if (canvas.height !== height) canvas.height = height;
    canvas.style.cssText = `width:${wide / ratio}px;height:${height / ratio}px`;
    const paint = /** @type {CanvasRenderingContext2D | null} */ (canvas.getContext("2d"));
    if (paint) {
      paint.clearRect(0, 0, wide, height);
      paint.imageSmoothingEnabled = false;
      const style = getComputedStyle(readout);
      paint.fillStyle = style.color;
      paint.font = `${11 * ratio}px ${style.fontFamily}`;
      const edge = mode === "wipe" ? Math.round((Number(share.value) / 100) * tiles.width) : tiles.width;
      for (const { x, y, part, channel, index } of cells) {
        const [left, top] = [tiles.left + (index % tiles.columns) * tiles.across, tiles.top + Math.floor(index / tiles.columns) * tiles.down];
        const copy = (/** @type {number} */ from, /** @type {number} */ start, /** @type {number} */ end) => {
          const bitmap = bitmaps[from];
          if (bitmap && end > start) paint.drawImage(bitmap, left + start, top, end - start, tiles.height, x + start, y, end - start, tiles.height);
        };
        copy(part, 0, edge);
        if (mode === "wipe") {
          copy(other(), edge, tiles.width);
          paint.fillRect(x + Math.min(edge, tiles.width - 1), y, Math.max(1, Math.round(ratio)), tiles.height);
        }
        const words = mode === "side" ? (part === 0 ? `${channel} · 1` : short(part)) : String(channel);
        const text = [words, part === 0 ? String(channel) : ""].find((one) => paint.measureText(one).width <= tiles.width + 4 * ratio);
        if (text) paint.fillText(text, x, y - Math.round(strip / 4));
      }
    }
    const view = MODES.find(([name]) => name === mode)?.[1] ?? "";
    canvas.setAttribute("aria-label", `${facts.label}: ${channels.length} of ${facts.total} channels, those that differ most first. ${view}.`);
    Object.assign(canvas.dataset, { mode, version: facts.version, wipe: share.value, parts: chosenParts().map(short).join(" "), cells: JSON.stringify(cells), tile: JSON.stringify([tiles.width, tiles.height]) });
    const now = parts()[blinked ? other() : 0];
    setText(shows, now ? `Shown: run ${now.run + 1}` : "");
    sayScales();
    drawMarks();
  }
  function sayScales() {
    const used = [...new Set(mode === "side" ? [0, apart()] : mode === "difference" ? [apart()] : [0])].map((index) => parts()[index]).filter(Boolean);
    const text = [...new Set(used.map((part) => part.scale))].join("; ");
    setText(legend, `${text ? text[0].toUpperCase() + text.slice(1) : ""}. Most different channels first.${(facts.notes ?? []).filter((/** @type {string} */ one) => one.startsWith("compared on")).map((/** @type {string} */ one) => ` ${one[0].toUpperCase()}${one.slice(1).replace("a has", "1 has").replace("b has", `${againstRun() + 1} has`)}.`).join("")}`);
    bars.replaceChildren(...used.filter((part, index) => part.bar?.ends && (index === 0 || JSON.stringify(part.bar) !== JSON.stringify(used[0].bar))).map((part) => {
      const ramp = h("span", { class: "hv-ramp" });
      ramp.style.background = `linear-gradient(to right, ${part.bar.colors.join()})`;
      const [low, high] = part.bar.ends;
      return h("span", { class: "hv-colorbar", role: "img", "aria-label": `Colors of ${part.part === "run" ? "the runs" : "the difference"} from ${numberText(low)} to ${numberText(high)}` }, numberText(low), ramp, numberText(high));
    }));
  }

  // ── places

  /** @param {{clientX: number, clientY: number}} event @returns {(Place & {cell: Cell, across: number}) | null} */
  function placeUnder(event) {
    const box = canvas.getBoundingClientRect();
    if (!isMaps() || !box.width) return null;
    const { width, height } = facts.tiles;
    const [x, y] = [((event.clientX - box.left) / box.width) * canvas.width, ((event.clientY - box.top) / box.height) * canvas.height];
    const cell = layout.cells.find((one) => x >= one.x && x < one.x + width && y >= one.y && y < one.y + height);
    return cell ? { cell, across: (x - cell.x) / width, channel: cell.channel, y: Math.floor(((y - cell.y) * facts.rows) / height), x: Math.floor(((x - cell.x) * facts.cols) / width) } : null;
  }
  const same = (/** @type {any} */ a, /** @type {any} */ b) => Boolean(a && b && a.channel === b.channel && a.y === b.y && a.x === b.x);
  /** @param {Place | null} place @param {boolean} [keys] */
  function moveTo(place, keys = false) {
    byKeys = keys && place !== null;
    if (!same(cursor, place)) {
      cursor = place && { channel: place.channel, y: place.y, x: place.x };
      ask();
    }
    drawMarks();
  }
  function ask() {
    if (!cursor || question) return;
    asked += 1;
    question = { ask: asked, place: cursor, version: facts.version };
    send({ type: "point", ask: asked, version: facts.version, ...cursor });
  }
  function drawMarks() {
    if (!isMaps()) return;
    marks.setAttribute("viewBox", `0 0 ${canvas.width} ${canvas.height}`);
    marks.style.cssText = `left:0;top:0;width:${canvas.style.width};height:${canvas.style.height}`;
    const { width, height } = facts.tiles;
    const least = SMALLEST * (canvas.width / Math.max(1, canvas.clientWidth));
    const box = (/** @type {number} */ left, /** @type {number} */ top, /** @type {number} */ wide, /** @type {number} */ high, /** @type {number} */ smallest) => {
      const [spareX, spareY] = [Math.max(0, smallest - wide) / 2, Math.max(0, smallest - high) / 2];
      return `M${(left - spareX).toFixed(1)} ${(top - spareY).toFixed(1)}h${(wide + 2 * spareX).toFixed(1)}v${(high + 2 * spareY).toFixed(1)}h${(-wide - 2 * spareX).toFixed(1)}Z`;
    };
    const cellOf = (/** @type {any} */ place) => layout.cells.map((cell) => box(cell.x + (place.x * width) / facts.cols, cell.y + (place.y * height) / facts.rows, width / facts.cols, height / facts.rows, least)).join("");
    const pin = model.get("pin") ?? {};
    const shapes = /** @type {Record<string, string>} */ ({
      pin: "channel" in pin ? cellOf(pin) : "",
      hover: cursor ? cellOf(cursor) : "",
      "hover-tile": cursor ? layout.cells.filter((cell) => cell.channel === cursor?.channel).map((cell) => box(cell.x, cell.y, width, height, 0)).join("") : "",
    });
    for (const path of lines) path.setAttribute("d", shapes[path.dataset.mark ?? ""]);
    tell();
  }
  /** @param {any} place with its values */
  function placeText(place) {
    const values = place.values.map((/** @type {string} */ text, /** @type {number} */ run) => (text ? `run ${run + 1}: ${shownNumber(text)}` : "")).filter(Boolean);
    return [`channel ${place.channel} · y ${place.y}, x ${place.x}`, ...values, `${againstRun() + 1} − 1: ${shownNumber(place.difference)}`, `relative ${shownNumber(place.relative)}`].join(" · ");
  }
  function tell() {
    const pin = model.get("pin") ?? {};
    const place = cursor ? answer : "channel" in pin ? pin : null;
    const waits = Boolean(cursor) && !same(cursor, answer);
    readout.classList.toggle("hv-dim", waits || !place);
    readout.setAttribute("aria-busy", String(waits));
    setText(readout, place ? `${place === pin ? "Pinned: " : ""}${placeText(place)}` : "Point at a map for the exact values; a click pins the place.");
    readout.dataset.place = place ? [place.channel, place.y, place.x].join(" ") : "";
    readout.dataset.values = place ? place.values.join(" ") : "";
    readout.dataset.difference = place?.difference ?? "";
  }

  let dragged = false;
  let held = false;
  canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    const place = placeUnder(event);
    if (held && mode === "wipe" && place && (dragged || Math.abs(event.movementX) > 0)) {
      dragged = true;
      share.value = String(Math.round(100 * place.across));
      draw();
    }
    if (place) moveTo(place);
    else if (!byKeys) moveTo(null);
  });
  canvas.addEventListener("pointerleave", () => !byKeys && moveTo(null));
  canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    dragged = false;
    held = event.button === 0;
    if (mode === "wipe") canvas.setPointerCapture?.(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { held = false; });
  const exactly = clickPlace(canvas);
  canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const place = placeUnder(exactly(event));
    if (place && !dragged) send({ type: "pin", channel: place.channel, y: place.y, x: place.x });
    dragged = false;
  });
  canvas.addEventListener("focus", () => {
    if (canvas.matches(":focus-visible") && !cursor) start();
  });
  canvas.addEventListener("blur", () => byKeys && moveTo(null));
  function start() {
    if (!isMaps()) return;
    const pin = model.get("pin") ?? {};
    const there = "channel" in pin && facts.channels.includes(pin.channel);
    moveTo(there ? pin : { channel: facts.channels[0], y: Math.floor((facts.rows - 1) / 2), x: Math.floor((facts.cols - 1) / 2) }, true);
  }
  canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !isMaps()) return;
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const pin = model.get("pin") ?? {};
    if (event.key === "Escape" && "channel" in pin) send({ type: "unpin" });
    else if (event.key === "PageUp" || event.key === "PageDown") turn(event.key === "PageUp" ? -1 : 1);
    else if (event.key === "Enter" || step) {
      if (!cursor) start();
      else if (!step) send({ type: "pin", ...cursor });
      else if (event.shiftKey) {
        // One channel on, or to the row of tiles above or below.
        const { channels } = facts;
        const columns = Math.max(1, layout.cells.filter((cell) => cell.y === layout.cells[0].y && cell.part === layout.cells[0].part).length);
        const to = channels.indexOf(cursor.channel) + step[0] + step[1] * columns;
        if (to >= 0 && to < channels.length) moveTo({ ...cursor, channel: channels[to] }, true);
      } else moveTo({ ...cursor, y: Math.max(0, Math.min(facts.rows - 1, cursor.y + step[1])), x: Math.max(0, Math.min(facts.cols - 1, cursor.x + step[0])) }, true);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });

  // ── what arrives

  /** @param {any} message @param {DataView[]} buffers */
  async function take(message, buffers) {
    const made = message.tiles ? await Promise.all(buffers.map((bytes) => createImageBitmap(new Blob([/** @type {BlobPart} */ (/** @type {unknown} */ (bytes))], { type: "image/png" })))) : [];
    if ((facts && facts.version > message.version) || !model.get("compared")?.state) {
      made.forEach((bitmap) => bitmap.close());
      return;
    }
    bitmaps.forEach((bitmap) => bitmap?.close());
    facts = message;
    bitmaps = made;
    question = answer = null;
    if (cursor && !(facts.channels?.includes(cursor.channel) && cursor.y < facts.rows && cursor.x < facts.cols)) cursor = null;
    const plain = !message.tiles && buffers.length > 0;
    showBytes(whole, plain ? buffers[0] : null);
    whole.alt = plain ? `${message.label}: run 1, run ${againstRun() + 1} and their difference` : "";
    setText(note, message.error ? sentence({ message: message.error, code: message.code }) : "");
    note.hidden = !message.error;
    setText(legend, plain ? "a is run 1, the reference." : "");
    bars.replaceChildren();
    el.dataset.version = String(message.version);
    refresh();
    ask();
  }
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type === "maps") take(message, buffers);
    else if (message.type === "pointed" && question && message.ask === question.ask) {
      const moved = cursor && !same(cursor, question.place);
      answer = message.values ? message : answer;
      question = null;
      if (moved) ask();
      tell();
      if (byKeys && message.values && same(cursor, message)) setText(spoken, placeText(message));
    }
  });
  cleanup.follow(model, ["scale"], () => { scale.value = model.get("scale") ?? "auto"; });
  cleanup.follow(model, ["pin"], drawMarks);
  cleanup.follow(model, ["compared"], () => {
    if (model.get("compared")?.state) return;
    bitmaps.forEach((bitmap) => bitmap?.close());
    [facts, bitmaps, cursor, answer, question] = [null, [], null, null, null];
    showBytes(whole, null);
  });
  cleanup.add(() => {
    bitmaps.forEach((bitmap) => bitmap?.close());
    showBytes(whole, null);
  });

  const timer = setInterval(() => {
    if (mode !== "blink" || !playing || still.matches || !isMaps() || !canvas.checkVisibility?.()) return;
    blinked = 1 - blinked;
    draw();
  }, BLINK);
  cleanup.add(() => clearInterval(timer));
  const motion = () => refresh();
  still.addEventListener("change", motion);
  cleanup.add(() => still.removeEventListener("change", motion));

  refresh();
  return { el, draw };
}

export default { render: renderCompare };
