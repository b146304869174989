// @ts-check
// Pointing at maps and at the photo: what the pointer or the keys are on is outlined on every map
// and on the photo, and Python says what stands there; a click or Enter pins it, a drag over the
// photo marks a region. Reads the app's traits pin, region, photo and centers. The maps' places come with
// the pictures (`tiles_of` in _painting.py); no value is ever taken from a color.
//
// A place of another layer is the one whose center in the network's input is nearest; the app's
// trait centers has them, and until they are known nothing is outlined there. What Python says of a
// place it says of those around it, too: the next ones are said without asking.
// One question is under way at a time; while it is, the last answer stands greyed, as a whole: with
// the place that it is of.
import "./pointing.css";
import { button, clickPlace, h, setAttribute, setText } from "./kit.js";
import { answerText } from "./wording.js";

/** @typedef {import("./kit.js").Model} Model */
/** @typedef {import("./kit.js").Cleanup} Cleanup */
/**
 * @typedef {{left: number, top: number, width: number, height: number, across: number, down: number,
 *   columns: number, channels: number[], rows: number, cols: number, image: boolean}} Tiles
 */
/**
 * A place: of a map, or of a photo (`which`), whose rows and columns are its pixels.
 * @typedef {{key: string, which: string, channel: number, y: number, x: number, rows: number,
 *   cols: number, image: boolean}} Place
 */
/** @typedef {[number, number, number, number]} Box left, top, right, bottom */

/** A layer's maps, and the large one of a channel's page. */
const MAPS = '[data-hv="grid"], [data-hv="channel-map"]';
const PHOTOS = '[data-hv="original"], [data-hv="seen"], [data-hv="inspect-photo"]';
/** Pixels: an outline is never smaller, or it would not be seen. */
const SMALLEST = 5;
/** Milliseconds after which an answer is not waited for any more: the kernel was restarted. */
const PATIENCE = 10_000;

/**
 * What lies at a pixel of a picture.
 * @param {Tiles} tiles
 * @param {number} x
 * @param {number} y
 * @returns {{channel: number, y: number, x: number} | null}
 */
export function placeAt(tiles, x, y) {
  const column = Math.floor((x - tiles.left) / tiles.across);
  const row = Math.floor((y - tiles.top) / tiles.down);
  const [dx, dy] = [x - tiles.left - column * tiles.across, y - tiles.top - row * tiles.down];
  const index = row * tiles.columns + column;
  if (column < 0 || row < 0 || column >= tiles.columns || dx >= tiles.width || dy >= tiles.height || index >= tiles.channels.length) return null;
  return { channel: tiles.channels[index], y: Math.floor((dy * tiles.rows) / tiles.height), x: Math.floor((dx * tiles.cols) / tiles.width) };
}

/**
 * Where a card's rows and columns lie in the network's input, in its pixels.
 * @typedef {[number[], number[]]} Centers
 */
/**
 * What is known of where places lie.
 * @typedef {{centers: (key: string) => Centers | null, crop: Box | null, seen: [number, number] | null}} Ground
 *   `crop`: the part of the photo that the network sees, as shares; `seen`: width and height of its input
 */

/** Centers as Python sends them. @param {number[] | {start: number, step: number, count: number}} axis */
export function centersOf(axis) {
  return Array.isArray(axis) ? axis : Array.from({ length: axis.count }, (_, i) => axis.start + i * axis.step);
}

/** The index of the center that is nearest. @param {number[]} centers @param {number} at */
export function nearest(centers, at) {
  let found = 0;
  for (let i = 1; i < centers.length; i += 1) if (Math.abs(centers[i] - at) < Math.abs(centers[found] - at)) found = i;
  return found;
}

/**
 * From where to where, of `size` pixels, a center is the nearest one.
 * @param {number[]} centers
 * @param {number} index
 * @param {number} size
 * @returns {[number, number]}
 */
export function nearestTo(centers, index, size) {
  const own = centers[index];
  const [below, above] = [centers.filter((c) => c < own), centers.filter((c) => c > own)];
  const half = (/** @type {number} */ other) => Math.max(0, Math.min(size, (own + other) / 2));
  return [below.length ? half(Math.max(...below)) : 0, above.length ? half(Math.min(...above)) : size];
}

/**
 * The place of a card that a place of another one, or of a photo, stands for: `Run.place_at`.
 * @param {Place} place
 * @param {string} key
 * @param {Tiles} tiles
 * @param {Ground} ground
 * @returns {{y: number, x: number} | null} null for none, and while it is not known
 */
export function placeIn(place, key, tiles, { centers, crop, seen }) {
  if (place.key && place.key === key) return place;
  const own = place.key ? centers(place.key) : null;
  const other = centers(key);
  if (!place.image || !tiles.image || !other || (place.key && !own)) return null;
  let [y, x] = [place.y + 0.5, place.x + 0.5]; // pixels of the input
  if (own) [y, x] = [own[0][place.y], own[1][place.x]];
  else if (place.which === "original") {
    if (!crop || !seen) return null;
    x = ((x / place.cols - crop[0]) / (crop[2] - crop[0])) * seen[0];
    y = ((y / place.rows - crop[1]) / (crop[3] - crop[1])) * seen[1];
    if (x < 0 || y < 0 || x >= seen[0] || y >= seen[1]) return null;
  }
  return { y: nearest(other[0], y), x: nearest(other[1], x) };
}

/**
 * The part of a photo that a place stands for, as shares: all pixels that it is the nearest place
 * of; of a pixel of the other photo, that pixel.
 * @param {Place} place
 * @param {boolean} onSeen on what the network sees, not on the photo
 * @param {Ground} ground
 * @returns {Box | null}
 */
export function placeOn(place, onSeen, { centers, crop, seen }) {
  if (!place.image) return null;
  let box = cellBox([0, 0, 1, 1], place, place);
  if (place.key) {
    const own = centers(place.key);
    if (!own || !seen) return null;
    const [[top, bottom], [left, right]] = [nearestTo(own[0], place.y, seen[1]), nearestTo(own[1], place.x, seen[0])];
    box = [left / seen[0], top / seen[1], right / seen[0], bottom / seen[1]];
  }
  const ofSeen = Boolean(place.key) || place.which === "seen";
  if (ofSeen === onSeen) return box;
  if (!crop) return null;
  const [left, top, wide, high] = [crop[0], crop[1], crop[2] - crop[0], crop[3] - crop[1]];
  if (ofSeen) return [left + box[0] * wide, top + box[1] * high, left + box[2] * wide, top + box[3] * high];
  return [(box[0] - left) / wide, (box[1] - top) / high, (box[2] - left) / wide, (box[3] - top) / high];
}

/**
 * What Python said of places around those that were asked for.
 * @typedef {{key: string, version: string, channel: number, of: number, around: {y: number, x: number, rows: number,
 *   cols: number, values: string[], ranks: (number | null)[]}}} Around
 */
/** How many of them are kept. */
const KEPT = 48;

/**
 * The answer for a place out of what was said before; null where it was not.
 * @param {Around[]} kept
 * @param {Place} place
 * @param {string} version of the card's picture
 */
export function knownAnswer(kept, place, version) {
  for (const { key, version: of, channel, of: count, around } of kept) {
    const [row, column] = [place.y - around.y, place.x - around.x];
    if (key !== place.key || of !== version || channel !== place.channel) continue;
    if (row < 0 || column < 0 || row >= around.rows || column >= around.cols) continue;
    const at = row * around.cols + column;
    return { key, channel, y: place.y, x: place.x, value: around.values[at], rank: around.ranks[at], of: count };
  }
  return null;
}

/** @param {number} index of a tile @param {Tiles} tiles @returns {Box} of the tile in the picture */
function tileBox(index, tiles) {
  const left = tiles.left + (index % tiles.columns) * tiles.across;
  const top = tiles.top + Math.floor(index / tiles.columns) * tiles.down;
  return [left, top, left + tiles.width, top + tiles.height];
}

/** @param {Box} tile @param {{y: number, x: number}} at @param {{rows: number, cols: number}} size @returns {Box} */
function cellBox([left, top, right, bottom], { y, x }, { rows, cols }) {
  const [wide, high] = [(right - left) / cols, (bottom - top) / rows];
  return [left + x * wide, top + y * high, left + (x + 1) * wide, top + (y + 1) * high];
}

/** @param {Box} box @param {number} smallest @returns {string} the path around it */
function around([left, top, right, bottom], smallest) {
  const [spareX, spareY] = [Math.max(0, smallest - right + left) / 2, Math.max(0, smallest - bottom + top) / 2];
  const n = (/** @type {number} */ value) => value.toFixed(1);
  return `M${n(left - spareX)} ${n(top - spareY)}H${n(right + spareX)}V${n(bottom + spareY)}H${n(left - spareX)}Z`;
}

/**
 * Where the pointer would come onto the next map in its direction; the keys keep their place there.
 * @param {Place} place
 * @param {Place | null} before where it came from, of the same card
 * @param {Tiles} tiles
 * @param {boolean} byKeys
 * @returns {Place | null}
 */
export function nextMap(place, before, tiles, byKeys) {
  const index = tiles.channels.indexOf(place.channel);
  const from = before ? tiles.channels.indexOf(before.channel) : -1;
  let [across, down] = before ? [place.x - before.x, place.y - before.y] : [1, 0];
  if (from >= 0 && from !== index) {
    across = (index % tiles.columns) - (from % tiles.columns);
    down = Math.floor(index / tiles.columns) - Math.floor(from / tiles.columns);
  }
  const sideways = Math.abs(across) >= Math.abs(down);
  const channel = tiles.channels[index + (sideways ? Math.sign(across) || 1 : Math.sign(down) * tiles.columns)];
  if (index < 0 || channel === undefined) return null;
  if (byKeys) return { ...place, channel };
  if (sideways) return { ...place, channel, x: across < 0 ? tiles.cols - 1 : 0 };
  return { ...place, channel, y: down < 0 ? tiles.rows - 1 : 0 };
}

/** @param {any} pin the trait @returns {Place | null} */
function pinned(pin) {
  return pin?.key ? { which: "", ...pin } : null;
}

const same = (/** @type {Place | null} */ a, /** @type {any} */ b) =>
  Boolean(a && b && (a.key || "") === (b.key || "") && (a.which || "") === (b.which || "") && a.y === b.y && a.x === b.x && (!a.key || a.channel === b.channel));

/**
 * Lets the user point at what an app shows.
 * @param {HTMLElement} root the app's element
 * @param {Model} model the app's
 * @param {(message: any) => void} send
 * @param {Cleanup} cleanup
 */
export function pointing(root, model, send, cleanup) {
  const readout = h("div", { hv: "readout", class: "hv-readout", hidden: true });
  const spoken = h("div", { hv: "said", class: "hv-said", role: "status" });
  const keep = button("keep-first", () => cursor && keepFirst(cursor), { class: "hv-keep", tabindex: "-1", hidden: true }, "☆");
  root.append(readout, spoken, keep);
  /** What the pointer or the keys are on. @type {Place | null} */
  let cursor = null;
  /** Whether the keys put it there. */
  let byKeys = false;
  /** @type {any} */
  let answer = null;
  /** @type {{ask: number, place: Place, version: string, at: number} | null} */
  let question = null;
  let out = false;
  let count = 0;
  /** The place that was asked for before. @type {Place | null} */
  let last = null;
  /** What Python said last, newest first. @type {Around[]} */
  let kept = [];
  /** A region that is being drawn: its fixed corner and the other one. @type {{x0: number, y0: number, x1: number, y1: number, moved: boolean} | null} */
  let drag = null;
  /** What opened a channel's page: the keys go on there at that place. @type {Place | null} */
  let landing = null;
  /** Whether the page was opened just now and takes the focus with its picture. */
  let entering = false;
  /** A channel that is to be shown once its picture is there. @type {{key: string, channel: number} | null} */
  let wanted = null;

  const all = (/** @type {string} */ selector) => /** @type {HTMLImageElement[]} */ ([...root.querySelectorAll(selector)]);
  const visible = (/** @type {Element} */ element) => element.checkVisibility?.() ?? true;
  const gridOf = (/** @type {string} */ key) => all(MAPS).find((img) => keyOf(img) === key && visible(img));
  const keyOf = (/** @type {Element} */ img) => /** @type {HTMLElement | null} */ (img.closest("[data-key]"))?.dataset.key ?? "";
  const photo = () => model.get("photo") ?? {};
  const crop = () => /** @type {Box | null} */ (photo().crop ?? null);
  const pin = () => pinned(model.get("pin"));
  /** @type {Map<string, {sent: any, centers: Centers}>} */
  const unpacked = new Map();
  /** @type {Ground["centers"]} */
  const centers = (key) => {
    const sent = (model.get("centers") ?? {})[key];
    if (sent && unpacked.get(key)?.sent !== sent) unpacked.set(key, { sent, centers: [centersOf(sent[0]), centersOf(sent[1])] });
    return sent ? /** @type {any} */ (unpacked.get(key)).centers : null;
  };
  /** @returns {Ground} */
  const ground = () => ({ centers, crop: crop(), seen: photo().seen ?? null });

  // ── where the pointer is

  /** @param {HTMLImageElement} img @param {{clientX: number, clientY: number}} event @returns {Place | null} */
  function placeUnder(img, event) {
    const box = img.getBoundingClientRect();
    if (!box.width || !box.height) return null;
    const [across, down] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const tiles = tilesOf(img);
    if (tiles) {
      const [wide, high] = pictureSize(img);
      const found = placeAt(tiles, across * wide, down * high);
      return found && { key: keyOf(img), which: "", ...found, rows: tiles.rows, cols: tiles.cols, image: tiles.image };
    }
    return img.matches(PHOTOS) ? photoPlace(img, across, down) : null;
  }
  /** @param {HTMLImageElement} img @param {number} across @param {number} down as shares @returns {Place | null} */
  function photoPlace(img, across, down) {
    const which = img.dataset.hv === "seen" ? "seen" : "original";
    const [cols, rows] = (which === "seen" ? photo().seen : photo().size) ?? [];
    if (!cols || !rows) return null;
    const at = (/** @type {number} */ share, /** @type {number} */ n) => Math.max(0, Math.min(n - 1, Math.floor(share * n)));
    return { key: "", which, channel: 0, y: at(down, rows), x: at(across, cols), rows, cols, image: true };
  }
  /** @param {Place | null} place @param {boolean} keys */
  function moveTo(place, keys = false) {
    byKeys = keys && place !== null;
    if (!same(cursor, place) || (cursor === null) !== (place === null)) {
      cursor = place;
      ask();
    }
    drawSoon();
  }

  // ── what stands there

  function ask() {
    if (!cursor) return;
    const version = cursor.key ? gridOf(cursor.key)?.dataset.version ?? "" : "";
    const known = knownAnswer(kept, cursor, version);
    if (known) {
      said(known);
      return;
    }
    const waits = out && question && Date.now() - question.at < PATIENCE;
    if (waits || (question && same(cursor, question.place) && question.version === version)) return;
    count += 1;
    question = { ask: count, place: cursor, version, at: Date.now() };
    out = true;
    const { key, which, channel, y, x } = cursor;
    send(which ? { type: "point-photo", ask: count, which, y, x } : { type: "point", ask: count, key, version: Number(version), channel, y, x });
    if (key) askAhead(cursor, version, count);
    last = cursor;
  }
  /**
   * Asks for the map that the pointer is on the way to, while the answer is on its way. Jupyter's
   * server sends "busy" before it, and holds it back until the browser has confirmed that (Nagle's
   * algorithm, 40 ms): a message from here carries the confirmation.
   * @param {Place} place @param {string} version @param {number} number of the question
   */
  function askAhead(place, version, number) {
    setTimeout(() => {
      const tiles = tilesOf(gridOf(place.key) ?? root);
      if (!out || question?.ask !== number || !tiles) return;
      const next = nextMap(place, last?.key === place.key ? last : null, tiles, byKeys);
      if (next && !knownAnswer(kept, next, version)) send({ type: "point", ask: 0, key: next.key, version: Number(version), channel: next.channel, y: next.y, x: next.x });
    }, 8);
  }
  /** @param {any} facts of a place; null for none */
  function said(facts) {
    answer = facts;
    if (byKeys && answer && same(cursor, answer)) setText(spoken, answerText(answer));
    tell(); // at once: what is drawn in the next frame has it
  }
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message) => {
    if (message.around) kept = [{ ...message, version: String(message.version) }, ...kept.slice(0, KEPT - 1)];
    if (message.type === "pointed" && message.ask === question?.ask) {
      out = false;
      said(message.value || message.values ? message : null);
      ask();
      drawSoon();
    } else if (message.type === "show-channel") {
      wanted = { key: message.key, channel: message.channel };
      const gallery = root.querySelector('[data-hv="gallery"]');
      if (gallery && !visible(gallery)) /** @type {HTMLElement | null} */ (root.querySelector('[data-hv="tab-gallery"]'))?.click();
      root.querySelector(`[data-hv="card"][data-key="${CSS.escape(message.key)}"]`)?.scrollIntoView({ block: "nearest" });
      goToWanted();
    } else if (message.type === "show-panel") {
      const tab = /** @type {HTMLElement | null} */ (root.querySelector(`[data-hv="tab-${message.panel}"]`));
      entering ||= tab?.getAttribute("aria-selected") !== "true";
      tab?.click();
    }
  });
  root.addEventListener("hv-moved", () => drawSoon());
  root.addEventListener("hv-painted", (event) => {
    enter(target(event));
    goToWanted();
    stayOnPage();
    drawSoon();
  });
  /** @param {HTMLImageElement} img */
  function enter(img) {
    if (!entering || img.dataset.hv !== "channel-map") return;
    entering = false;
    img.focus({ preventScroll: true });
    img.scrollIntoView?.({ block: "nearest" }); // in one column the results stand below
    const tiles = tilesOf(img);
    if (landing?.key === keyOf(img) && tiles) moveTo({ ...landing, channel: tiles.channels[0] }, true);
    landing = null;
  }
  /** Another page, or another size: the keys go on at what is shown, the mouse has to move. */
  function stayOnPage() {
    const tiles = cursor?.key ? tilesOf(gridOf(cursor.key) ?? root) : null;
    if (!cursor?.key || !tiles) return;
    const { channel, y, x } = cursor;
    const there = tiles.channels.includes(channel) && y < tiles.rows && x < tiles.cols;
    if (there) ask();
    else moveTo(byKeys ? { ...cursor, channel: tiles.channels[0], y: Math.min(y, tiles.rows - 1), x: Math.min(x, tiles.cols - 1), rows: tiles.rows, cols: tiles.cols } : null, byKeys);
  }
  function goToWanted() {
    const img = wanted && gridOf(wanted.key);
    const tiles = img && tilesOf(img);
    const card = /** @type {HTMLElement | null} */ (img?.closest('[data-hv="card"]') ?? null);
    if (!wanted || !img || !tiles || img.dataset.version !== card?.dataset.version || !tiles.channels.includes(wanted.channel)) return;
    const at = onCard(wanted.key, tiles) ?? { y: Math.floor(tiles.rows / 2), x: Math.floor(tiles.cols / 2) };
    const place = { key: wanted.key, which: "", channel: wanted.channel, y: at.y, x: at.x, rows: tiles.rows, cols: tiles.cols, image: tiles.image };
    wanted = null;
    moveTo(place, true);
    img.focus({ preventScroll: true });
    reveal = true;
  }
  /** The pinned place on a card. @param {string} key @param {Tiles} tiles */
  function onCard(key, tiles) {
    const place = pin();
    return place && placeIn(place, key, tiles, ground());
  }

  // ── drawing

  let drawn = 0;
  let reveal = false;
  function drawSoon() {
    if (!drawn) drawn = requestAnimationFrame(() => {
      drawn = 0;
      draw();
    });
  }
  cleanup.add(() => cancelAnimationFrame(drawn));
  function draw() {
    const marks = /** @type {[string, Place | null][]} */ ([["pin", pin()], ["hover", cursor]]);
    for (const img of all(MAPS)) {
      const tiles = tilesOf(img);
      const seen = tiles && onScreen(img);
      if (!seen && !overlays.has(img)) continue;
      const [wide, high] = pictureSize(img);
      const scale = wide / (img.clientWidth || wide);
      const shapes = /** @type {Record<string, string>} */ ({});
      if (seen && tiles) for (const [name, place] of marks) {
        const at = place && placeIn(place, keyOf(img), tiles, ground());
        shapes[name] = at ? tiles.channels.map((_, index) => around(cellBox(tileBox(index, tiles), at, tiles), SMALLEST * scale)).join("") : "";
        const own = place && place.key === keyOf(img) ? tiles.channels.indexOf(place.channel) : -1;
        shapes[`${name}-tile`] = own < 0 ? "" : around(tileBox(own, tiles), 0);
      }
      paint(img, wide, high, shapes);
    }
    for (const img of all(PHOTOS)) {
      const seen = visible(img) && img.naturalWidth > 0 && !img.hidden;
      if (!seen && !overlays.has(img)) continue;
      const [wide, high] = [img.naturalWidth || 1, img.naturalHeight || 1];
      const shapes = /** @type {Record<string, string>} */ ({});
      for (const [name, place] of marks) {
        const box = place && placeOn(place, img.dataset.hv === "seen", ground());
        shapes[name] = box ? around([box[0] * wide, box[1] * high, box[2] * wide, box[3] * high], (SMALLEST * wide) / (img.clientWidth || wide)) : "";
      }
      shapes.region = img.dataset.hv === "seen" ? "" : regionPath(wide, high);
      paint(img, wide, high, shapes);
    }
    tell();
    placeKeep();
    if (reveal) {
      reveal = false;
      const tile = cursor && gridOf(cursor.key) && overlays.get(/** @type {any} */ (gridOf(cursor.key)))?.querySelector(".hv-mark-hover-tile");
      tile?.scrollIntoView?.({ block: "nearest", inline: "nearest" });
    }
  }
  /** @param {number} wide @param {number} high */
  function regionPath(wide, high) {
    const [width, height] = photo().size ?? [1, 1];
    const region = drag?.moved ? regionOf(drag) : model.get("region") ?? [];
    if (region.length !== 4) return "";
    return around([(region[0] / width) * wide, (region[1] / height) * high, (region[2] / width) * wide, (region[3] / height) * high], 1);
  }
  /** Whether a channel is kept before the others of its card. @param {Place} place */
  const isFirst = ({ key, channel }) => cardOf(key)?.dataset.first?.split(" ").includes(String(channel)) ?? false;
  const cardOf = (/** @type {string} */ key) => /** @type {HTMLElement | null} */ (root.querySelector(`[data-hv="card"][data-key="${CSS.escape(key)}"]`));
  /** @param {Place} place */
  function keepFirst(place) {
    const on = !isFirst(place);
    send({ type: "first", key: place.key, channel: place.channel, on });
    setText(spoken, on ? `Channel ${place.channel} comes first.` : `Channel ${place.channel} is in its place again.`);
  }
  /** The star over the map that the mouse is on: beside the map's number, so that it hides nothing. */
  function placeKeep() {
    const img = cursor?.key && !byKeys && !drag ? gridOf(cursor.key) : null;
    const tiles = img && tilesOf(img);
    const index = cursor && tiles ? tiles.channels.indexOf(cursor.channel) : -1;
    keep.hidden = index < 0;
    if (!cursor || !img || !tiles || index < 0) return;
    const [frame, box, [wide, high]] = [root.getBoundingClientRect(), img.getBoundingClientRect(), pictureSize(img)];
    const tile = tileBox(index, tiles);
    const on = isFirst(cursor);
    setText(keep, on ? "★" : "☆");
    keep.setAttribute("aria-pressed", String(on));
    keep.title = on ? `Channel ${cursor.channel} comes first: press to end that (p)` : `Keep channel ${cursor.channel} first (p)`;
    keep.setAttribute("aria-label", keep.title);
    keep.style.left = `${box.left - frame.left + (tile[2] / wide) * box.width - keep.offsetWidth}px`;
    keep.style.top = `${box.top - frame.top + (tile[1] / high) * box.height - keep.offsetHeight + 3}px`;
  }
  /** Writes what is said at the place that it is of. */
  function tell() {
    const facts = cursor ? answer : model.get("pin")?.key ? model.get("pin") : null;
    const img = facts && (facts.key ? gridOf(facts.key) : all(`[data-hv="${facts.which}"]`)[0]);
    const waits = Boolean(cursor) && !same(cursor, facts);
    // A channel's page says it itself.
    const detail = img ? { img, facts, waits, byKeys } : null;
    const elsewhere = !root.dispatchEvent(new CustomEvent("hv-said", { cancelable: true, detail }));
    readout.hidden = !img || elsewhere;
    if (!img) return;
    readout.classList.toggle("hv-out", waits);
    readout.setAttribute("aria-busy", String(waits));
    setText(readout, answerText(facts));
    readout.dataset.value = facts.value ?? "";
    readout.dataset.place = [facts.key || facts.which, facts.channel ?? "", facts.y, facts.x].join(" ");
    const frame = root.getBoundingClientRect();
    const box = img.getBoundingClientRect();
    const tiles = tilesOf(img);
    const [wide, high] = pictureSize(img);
    const index = tiles ? tiles.channels.indexOf(facts.channel) : -1;
    if (tiles && index < 0) {
      readout.hidden = true; // pinned on another page
      return;
    }
    const tile = tiles ? tileBox(index, tiles) : [0, 0, wide, high];
    const seen = inSight(img, root);
    const [left, above, below] = [box.left + (tile[0] / wide) * box.width, box.top + (tile[1] / high) * box.height, box.top + (tile[3] / high) * box.height];
    // Scrolled away, or below the run bar: there it would say a value over something else.
    if (below <= seen.top || above >= seen.bottom) {
      readout.hidden = true;
      return;
    }
    const inside = below - frame.top + 5 + readout.offsetHeight < seen.bottom - frame.top;
    const top = inside ? below - frame.top + 5 : above - frame.top - readout.offsetHeight - 5;
    readout.style.left = `${Math.max(4, Math.min(left - frame.left, frame.width - readout.offsetWidth - 6))}px`;
    readout.style.top = `${Math.max(4, Math.min(top, seen.bottom - frame.top - readout.offsetHeight - 4))}px`;
  }

  // ── the mouse

  const target = (/** @type {Event} */ event) => /** @type {HTMLImageElement} */ (event.target);
  const isMap = (/** @type {Element} */ element) => element.matches?.(MAPS);
  const isPhoto = (/** @type {Element} */ element) => element.matches?.(PHOTOS);
  root.addEventListener("pointermove", (event) => {
    const img = target(event);
    if (keep.contains(img)) return;
    const over = (isMap(img) || isPhoto(img)) && placeUnder(img, event);
    if (drag && over && over.which === "original") {
      [drag.x1, drag.y1] = [over.x, over.y];
      drag.moved ||= Math.hypot(event.movementX, event.movementY) > 0 && (drag.x1 !== drag.x0 || drag.y1 !== drag.y0);
    }
    if (over) moveTo(over);
    else if (!byKeys) moveTo(null);
  });
  root.addEventListener("pointerleave", () => !byKeys && moveTo(null));
  root.addEventListener("pointerdown", (event) => {
    const img = target(event);
    const at = event.button === 0 && isPhoto(img) && img.dataset.hv !== "seen" ? placeUnder(img, event) : null;
    if (!at) return;
    img.setPointerCapture?.(event.pointerId);
    drag = { x0: at.x, y0: at.y, x1: at.x, y1: at.y, moved: false };
  });
  const regionOf = (/** @type {{x0: number, y0: number, x1: number, y1: number}} */ { x0, y0, x1, y1 }) =>
    [Math.min(x0, x1), Math.min(y0, y1), Math.max(x0, x1) + 1, Math.max(y0, y1) + 1];
  function mark() {
    if (drag?.moved) {
      const [left, top, right, bottom] = regionOf(drag);
      send({ type: "region", left, top, right, bottom });
    }
  }
  let justMarked = false;
  root.addEventListener("pointerup", () => {
    justMarked = Boolean(drag?.moved);
    mark();
    drag = null;
    drawSoon();
  });
  root.addEventListener("dragstart", (event) => isPhoto(target(event)) && event.preventDefault());
  const exactly = clickPlace(root);
  root.addEventListener("click", (event) => {
    const img = target(event);
    const place = (isMap(img) || isPhoto(img)) && !justMarked ? placeUnder(img, exactly(event)) : null;
    justMarked = false;
    if (place) pinPlace(place);
  });
  root.addEventListener("dblclick", (event) => {
    const img = target(event);
    const place = isMap(img) ? placeUnder(img, exactly(event)) : null;
    if (place) openChannel(img, place, false);
  });
  /** @param {HTMLElement} img @param {Place} place @param {boolean} [keys] */
  function openChannel(img, place, keys = true) {
    landing = keys ? place : null;
    if (img.dataset.hv === "grid") send({ type: "open-channel", key: place.key, channel: place.channel });
  }
  /** @param {Place} place */
  function pinPlace(place) {
    if (place.key) send({ type: "pin", key: place.key, channel: place.channel, y: place.y, x: place.x });
    else {
      // The photo has no channels: the card in use gets the pin.
      const card = /** @type {HTMLElement | null} */ (root.querySelector(".hv-current") ?? root.querySelector('[data-hv="card"]'));
      const img = card && /** @type {HTMLImageElement | null} */ (card.querySelector('[data-hv="grid"]'));
      const tiles = img && tilesOf(img);
      const at = tiles && placeIn(place, keyOf(img), tiles, ground());
      const now = pin();
      if (tiles && at) send({ type: "pin", key: keyOf(img), channel: now?.key === keyOf(img) ? now.channel : tiles.channels[0], ...{ y: at.y, x: at.x } });
    }
  }

  // ── the keys

  root.addEventListener("focusin", (event) => {
    const img = target(event);
    if (!(isMap(img) || isPhoto(img)) || !img.matches(":focus-visible") || cursor) return;
    startOn(img);
  });
  /** @param {HTMLImageElement} img */
  function startOn(img) {
    const tiles = tilesOf(img);
    if (tiles) {
      const now = pin();
      const at = onCard(keyOf(img), tiles) ?? { y: Math.floor((tiles.rows - 1) / 2), x: Math.floor((tiles.cols - 1) / 2) };
      const channel = now?.key === keyOf(img) && tiles.channels.includes(now.channel) ? now.channel : tiles.channels[0];
      moveTo({ key: keyOf(img), which: "", channel, y: at.y, x: at.x, rows: tiles.rows, cols: tiles.cols, image: tiles.image }, true);
    } else moveTo(photoPlace(img, 0.5, 0.5), true);
    reveal = true;
  }
  root.addEventListener("focusout", (event) => {
    if (byKeys && (isMap(target(event)) || isPhoto(target(event)))) {
      drag = null;
      moveTo(null);
    }
  });
  /** @param {KeyboardEvent} event @returns {boolean} whether it was one of ours */
  function onKey(event) {
    const img = target(event);
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") return leave(img);
    if (event.key === "c" && isMap(img) && cursor?.key === keyOf(img)) {
      openChannel(img, cursor);
      return true;
    }
    if (event.key === "p" && isMap(img) && cursor?.key === keyOf(img)) {
      keepFirst(cursor);
      return true;
    }
    if (!(isMap(img) || isPhoto(img)) || !(step || event.key === "Enter")) return false;
    const here = cursor && (cursor.key ? cursor.key === keyOf(img) : isPhoto(img));
    if (!here || !cursor) startOn(img);
    else if (event.key === "Enter") {
      if (drag?.moved) mark();
      else if (cursor.key && same(cursor, pin())) openChannel(img, cursor);
      else pinPlace(cursor);
      drag = null;
    } else if (step && cursor.key) moveOnMap(img, step, event.shiftKey);
    else if (step) moveOnPhoto(step, event.shiftKey);
    if (event.key === "Enter" && !here && cursor) pinPlace(cursor);
    reveal = Boolean(cursor?.key);
    drawSoon();
    return true;
  }
  /** @param {HTMLImageElement} img @param {number[]} step @param {boolean} tilewise */
  function moveOnMap(img, [dx, dy], tilewise) {
    const tiles = tilesOf(img);
    if (!tiles || !cursor) return;
    const index = tiles.channels.indexOf(cursor.channel);
    const next = index + dx + dy * tiles.columns;
    if (tilewise) {
      const inRow = !dx || Math.floor(next / tiles.columns) === Math.floor(index / tiles.columns);
      if (inRow && next >= 0 && next < tiles.channels.length) moveTo({ ...cursor, channel: tiles.channels[next] }, true);
    } else {
      const [y, x] = [Math.max(0, Math.min(tiles.rows - 1, cursor.y + dy)), Math.max(0, Math.min(tiles.cols - 1, cursor.x + dx))];
      moveTo({ ...cursor, y, x }, true);
    }
  }
  /** @param {number[]} step @param {boolean} marking */
  function moveOnPhoto([dx, dy], marking) {
    if (!cursor) return;
    const by = Math.max(1, Math.round(cursor.cols / 64));
    const [x, y] = [Math.max(0, Math.min(cursor.cols - 1, cursor.x + dx * by)), Math.max(0, Math.min(cursor.rows - 1, cursor.y + dy * by))];
    if (marking && cursor.which === "original") {
      drag ??= { x0: cursor.x, y0: cursor.y, x1: x, y1: y, moved: true };
      [drag.x1, drag.y1] = [x, y];
    } else drag = null;
    moveTo({ ...cursor, y, x }, true);
  }
  /** @param {HTMLElement} at */
  function leave(at) {
    const dialog = [...root.querySelectorAll('[role$="dialog"]')].some((box) => !(/** @type {HTMLElement} */ (box).hidden));
    if (dialog || at.closest?.("input, textarea, select")) return false;
    if (drag) drag = null;
    else if (pin()) send({ type: "unpin" });
    else if (model.get("region")?.length) send({ type: "no-region" });
    else return false;
    drawSoon();
    return true;
  }
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (onKey(event)) event.preventDefault();
  });

  // ── what else changes the picture

  cleanup.follow(model, ["pin", "region", "centers"], () => {
    setAttribute(root, "data-pinned", pin() || model.get("region")?.length ? "" : null);
    drawSoon();
  });
  cleanup.follow(model, ["photo"], () => {
    for (const img of all('[data-hv="original"]')) {
      if (photo().size) img.tabIndex = 0;
      else img.removeAttribute("tabindex");
    }
    drawSoon();
  });
  cleanup.listen(model, "change:photo", () => setTimeout(drawSoon, 100));
  root.addEventListener("scroll", drawSoon, { capture: true, passive: true });
  root.addEventListener("load", drawSoon, { capture: true });
  const sizes = new ResizeObserver(drawSoon);
  sizes.observe(root);
  cleanup.add(() => sizes.disconnect());
}

/** @type {WeakMap<Element, {text: string, tiles: Tiles | null}>} */
const parsed = new WeakMap();

/** Where a picture's maps stand; null where there are none. @param {HTMLElement} img @returns {Tiles | null} */
function tilesOf(img) {
  const text = img.dataset.tiles ?? "";
  const known = parsed.get(img);
  if (known?.text === text) return known.tiles;
  const tiles = text ? JSON.parse(text) : null;
  parsed.set(img, { text, tiles });
  return tiles;
}

/** @param {HTMLImageElement} img @returns {[number, number]} width and height of the picture in its own pixels */
function pictureSize(img) {
  const own = (/** @type {string} */ name, /** @type {number} */ natural) => Number(img.getAttribute(name)) || natural || 1;
  return [own("width", img.naturalWidth), own("height", img.naturalHeight)];
}

/**
 * The part of the app's height in which an element can be seen, whatever scrolls around it.
 * @param {Element} element
 * @param {Element} root
 */
function inSight(element, root) {
  let { top, bottom } = root.getBoundingClientRect();
  for (let box = element.parentElement; box && box !== root; box = box.parentElement) {
    if (getComputedStyle(box).overflowY === "visible" || !box.clientHeight) continue;
    const rect = box.getBoundingClientRect();
    [top, bottom] = [Math.max(top, rect.top), Math.min(bottom, rect.bottom)];
  }
  return { top, bottom };
}

/** @param {HTMLElement} img */
function onScreen(img) {
  if (img.hidden || !(img.checkVisibility?.() ?? true)) return false;
  const box = img.getBoundingClientRect();
  return box.bottom >= 0 && box.top <= innerHeight;
}

const SVG = "http://www.w3.org/2000/svg";
/** @type {WeakMap<Element, SVGElement>} */
const overlays = new WeakMap();

/**
 * Draws outlines over a picture, each as a light line on a dark one.
 * @param {HTMLImageElement} img
 * @param {number} wide
 * @param {number} high
 * @param {Record<string, string>} shapes paths in the picture's pixels, by name
 */
function paint(img, wide, high, shapes) {
  let svg = overlays.get(img);
  if (!svg) {
    if (!Object.values(shapes).some(Boolean)) return;
    svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("class", "hv-marks");
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("preserveAspectRatio", "none");
    for (const name of ["region", "pin-tile", "pin", "hover-tile", "hover"]) {
      for (const kind of ["under", "over"]) {
        const path = document.createElementNS(SVG, "path");
        path.setAttribute("class", `hv-mark hv-mark-${kind} hv-mark-${name}`);
        path.dataset.mark = name;
        svg.append(path);
      }
    }
    overlays.set(img, svg);
  }
  if (img.nextSibling !== svg) img.after(svg);
  img.parentElement?.classList.add("hv-pointed");
  svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  svg.style.cssText = `left:${img.offsetLeft}px;top:${img.offsetTop}px;width:${img.offsetWidth}px;height:${img.offsetHeight}px`;
  for (const path of /** @type {NodeListOf<SVGPathElement>} */ (svg.querySelectorAll("path"))) {
    const shape = shapes[path.dataset.mark ?? ""] ?? "";
    if (path.getAttribute("d") !== shape) path.setAttribute("d", shape);
  }
}
