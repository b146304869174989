"use strict";
// Shows the maps of a run. All texts come from the JSON of the page and are set as text alone; all
// values come from its data blocks: bytes that are first deflated and then written in base64.

/**
 * @typedef {object} Maps
 * @property {number[]} channels Index of each map.
 * @property {string[]} marks What must be known of each map: "dead", "= 3" or "".
 * @property {number} planes 1, or 3 where a map is a color image.
 * @property {number} height Rows of what is stored.
 * @property {number} width Columns of it.
 * @property {[number, number]} full Rows and columns of the layer's maps.
 * @property {number} factor How many rows and columns of the layer one value stands for.
 * @property {boolean} mean Whether it is their mean; else it is one of them.
 * @property {number} base A value is base + (code − zero) · step, within low to high.
 * @property {number} zero See base.
 * @property {number} step See base; 0 where all values are equal.
 * @property {number} low Smallest value.
 * @property {number} high Largest value.
 * @property {boolean} perChannel Whether each map has a scale of its own.
 * @property {boolean} clipped Whether some value lies beyond the scale.
 * @property {number[]} first Value of the first color: one, or one for each map.
 * @property {number[]} last Value of the last color.
 * @property {string} light Name of the color table on a light page.
 * @property {string} dark Name of that on a dark page.
 * @property {[string, string] | null} ends What stands at the ends of the colorbar, if there is one.
 */

/**
 * @typedef {object} Layer
 * @property {string} name
 * @property {string} kind Type, shape and dtype.
 * @property {string[]} facts
 * @property {[string, string, string][]} legend Color on a light page, on a dark one, and text.
 * @property {string} noun
 * @property {boolean} onPhoto Whether a map covers the photo.
 * @property {Maps} [maps]
 * @property {{light: string, dark: string, alt: string}} [figure]
 */

/** @type {<T extends HTMLElement = HTMLElement>(id: string) => T} */
const byId = (id) => /** @type {any} */ (document.getElementById(id));
const PAGE = JSON.parse(byId("page").textContent ?? "");
const DARK = matchMedia("(prefers-color-scheme: dark)");
const [NEGINF, POSINF, NAN] = [65533, 65534, 65535]; // codes of what is not finite
const COLORS = ["red ", "green ", "blue "];

/**
 * @param {string} tag
 * @param {Record<string, any>} properties
 * @param {(Node | string)[]} inside
 */
function make(tag, properties = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...inside); // strings become text, never markup
  return element;
}

/** @param {string} text */
const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** @param {Maps} maps */
function tableOf(maps) {
  const { colors, flags } = PAGE.tables[DARK.matches ? maps.dark : maps.light];
  return { colors: packed(colors), flags: packed(flags) };
}

/**
 * Colors as canvases hold them. The bytes are red, green, blue.
 * @param {string} text
 */
function packed(text) {
  const bytes = bytesOf(text);
  const rgba = new Uint8ClampedArray((bytes.length / 3) * 4).fill(255);
  bytes.forEach((byte, at) => (rgba[Math.floor(at / 3) * 4 + (at % 3)] = byte));
  return new Uint32Array(rgba.buffer);
}

/**
 * @param {Maps} maps
 * @param {number} code
 */
function valueOf(maps, code) {
  if (code >= NEGINF) return code === NAN ? NaN : code === POSINF ? Infinity : -Infinity;
  return Math.min(maps.high, Math.max(maps.low, maps.base + (code - maps.zero) * maps.step));
}

/**
 * A number with as many digits as the step between two values allows.
 * @param {Maps} maps
 * @param {number} value
 */
function numberText(maps, value) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+Inf" : "−Inf";
  const digits = Number.isInteger(maps.step) && maps.step ? 0 : 1 - Math.floor(Math.log10(maps.step));
  const large = Math.max(Math.abs(maps.low), Math.abs(maps.high));
  let text = String(value); // all values are equal, and this is the one
  if (maps.step && large < 1e9 && digits <= 9) text = value.toFixed(digits);
  else if (maps.step) text = value.toExponential(6);
  return text.replaceAll("-", "−").replace(/^−(0(\.0*)?)$/, "$1");
}

/** Where a value stands on a scale, 0 to 1, as the figures of hookviz have it. */
function placeOn(/** @type {number} */ value, /** @type {number} */ first, /** @type {number} */ last) {
  if (first < last) return (value / 2 - first / 2) / (last / 2 - first / 2);
  return 0.5 + Math.sign(value - first);
}

class LayerView {
  /**
   * @param {Layer} layer
   * @param {number} number
   */
  constructor(layer, number) {
    this.layer = layer;
    this.number = number;
    this.codes = /** @type {Uint16Array | null} */ (null);
    this.canvases = /** @type {HTMLCanvasElement[]} */ ([]);
    this.at = -1; // the map last pointed at, and the place
    this.y = 0;
    this.x = 0;
    this.mark = make("div", { className: "mark", hidden: true });
    const heading = make("h2", { id: `layer-${number}` }, layer.name);
    heading.append(make("span", { className: "kind" }, layer.kind));
    this.section = make("section", {}, heading);
    this.section.setAttribute("aria-labelledby", heading.id);
    this.section.append(make("p", { className: "facts" }, layer.facts.join(" · ")));
    this.legend = make("ul", { className: "legend", hidden: !layer.legend.length });
    if (layer.legend.length) this.section.append(this.legend);
    if (layer.figure) this.section.append(this.picture(layer.figure));
    if (layer.maps) this.section.append(...this.grid(layer.maps));
  }

  /** @param {{light: string, dark: string, alt: string}} figure */
  picture({ light, dark, alt }) {
    const source = make("source", { media: "(prefers-color-scheme: dark)", srcset: dark });
    return make("picture", {}, source, make("img", { className: "figure", src: light, alt }));
  }

  /** @param {Maps} maps */
  grid(maps) {
    this.bar = /** @type {HTMLCanvasElement} */ (make("canvas", { width: 256, height: 1 }));
    this.bar.setAttribute("aria-hidden", "true");
    const [first, last] = maps.ends ?? ["", ""];
    const bar = make("div", { className: "bar ends", hidden: !maps.ends }, first, this.bar, last);
    const grid = make("div", { className: maps.height > 1 ? "maps" : "maps strips" });
    grid.setAttribute("role", "group");
    grid.setAttribute("aria-label", `${this.layer.noun}s of ${this.layer.name}`);
    maps.channels.forEach((channel, at) => {
      const canvas = /** @type {HTMLCanvasElement} */ (make("canvas", {
        width: maps.width, height: maps.height, tabIndex: at ? -1 : 0,
      }));
      const mark = maps.marks[at] ? ` ${maps.marks[at]}` : "";
      canvas.setAttribute("role", "application");
      canvas.setAttribute("aria-label", `${this.layer.noun} ${channel}${mark}`);
      canvas.setAttribute("aria-describedby", "help");
      canvas.dataset.at = String(at);
      this.canvases.push(canvas);
      const caption = make("p", { className: mark === " dead" ? "dead" : "" }, `${channel}${mark}`);
      caption.setAttribute("aria-hidden", "true"); // the map's own name says the same
      const frame = make("div", { className: "frame" }, canvas);
      grid.append(make("div", { className: "tile" }, caption, frame));
    });
    for (const kind of ["pointermove", "pointerdown"]) {
      grid.addEventListener(kind, (event) => this.point(maps, /** @type {PointerEvent} */ (event)));
    }
    grid.addEventListener("keydown", (event) => this.key(maps, event));
    grid.addEventListener("focusin", (event) => {
      const at = this.canvases.indexOf(/** @type {HTMLCanvasElement} */ (event.target));
      if (at >= 0) this.show(maps, at, this.y, this.x);
    });
    return [bar, grid];
  }

  /** Reads the values, once, and paints. */
  async open() {
    const { maps } = this.layer;
    if (!maps || this.codes) return;
    const bytes = bytesOf(byId(`values-${this.number}`).textContent ?? "");
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const halves = new Uint8Array(await new Response(stream).arrayBuffer());
    const count = halves.length / 2; // first the low byte of every code, then the high ones
    const codes = new Uint16Array(count);
    for (let at = 0; at < count; at++) codes[at] = halves[at] | (halves[count + at] << 8);
    this.codes = codes;
    this.paint();
    if (this.at >= 0) this.show(maps, this.at, this.y, this.x);
  }

  /** Paints all of it in the colors of the theme. */
  paint() {
    const { legend, maps } = this.layer;
    this.legend.replaceChildren(...legend.map(([light, dark, text]) => {
      const swatch = make("span");
      swatch.style.background = DARK.matches ? dark : light;
      return make("li", {}, swatch, text);
    }));
    if (!maps || !this.bar) return;
    const { colors, flags } = tableOf(maps);
    draw(this.bar, (pixels) => pixels.set(colors));
    const faint = packed(DARK.matches ? PAGE.faint.dark : PAGE.faint.light)[0];
    const color = (/** @type {number} */ at, /** @type {number[]} */ codes) => {
      const parts = codes.map((code) => this.colorOf(maps, at, code));
      const odd = Math.max(...parts.map((part) => part.flag));
      const [red, green, blue] = parts.map((part) => part.level);
      if (odd) return flags[odd];
      if (codes.length > 1) return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
      return red < 0 ? faint : colors[red];
    };
    let known = new Uint32Array(65536); // colors of codes; 0 is not known yet
    this.canvases.forEach((canvas, at) => draw(canvas, (pixels) => {
      if (maps.perChannel) known = new Uint32Array(65536);
      for (let place = 0; place < pixels.length; place++) {
        const codes = this.codesAt(maps, at, place);
        pixels[place] = codes.length === 1 && known[codes[0]] ? known[codes[0]] : color(at, codes);
        if (codes.length === 1) known[codes[0]] = pixels[place];
      }
    }));
  }

  /**
   * The level of a value, 0 to 255, and why it has none: 0, or the number of a flag's color.
   * @param {Maps} maps
   * @param {number} at
   * @param {number} code
   */
  colorOf(maps, at, code) {
    if (code >= NEGINF) return { level: 0, flag: code - NEGINF + 3 };
    const number = maps.perChannel ? at : 0;
    const [first, last, value] = [maps.first[number], maps.last[number], valueOf(maps, code)];
    if (maps.perChannel && first === last) return { level: -1, flag: 0 };
    const place = placeOn(value, first, last);
    // A value that is not stored exactly may lie half a step beyond an end that it is in truth at.
    const beyond = maps.clipped && !maps.perChannel;
    if (beyond && value < first - maps.step * 0.5001) return { level: 0, flag: 1 };
    if (beyond && value > last + maps.step * 0.5001) return { level: 255, flag: 2 };
    return { level: Math.min(255, Math.max(0, Math.round(place * 255))), flag: 0 };
  }

  /**
   * @param {Maps} maps
   * @param {number} at
   * @param {number} place
   */
  codesAt({ planes, height, width }, at, place) {
    const codes = /** @type {Uint16Array} */ (this.codes);
    const [size, start] = [height * width, at * planes * height * width + place];
    return planes === 1 ? [codes[start]] : [codes[start], codes[start + size], codes[start + 2 * size]];
  }

  /**
   * @param {Maps} maps
   * @param {PointerEvent} event
   */
  point(maps, event) {
    const at = this.canvases.indexOf(/** @type {HTMLCanvasElement} */ (event.target));
    if (at < 0) return;
    const box = this.canvases[at].getBoundingClientRect();
    const inside = (/** @type {number} */ share, /** @type {number} */ count) =>
      Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    const y = inside((event.clientY - box.top) / box.height, maps.height);
    this.show(maps, at, y, inside((event.clientX - box.left) / box.width, maps.width));
  }

  /**
   * @param {Maps} maps
   * @param {KeyboardEvent} event
   */
  key(maps, event) {
    const at = this.canvases.indexOf(/** @type {HTMLCanvasElement} */ (event.target));
    if (at < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    const moves = /** @type {Record<string, [number, number]>} */ ({
      ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      Home: [0, -maps.width], End: [0, maps.width],
    });
    const turn = /** @type {Record<string, number>} */ ({ PageUp: -1, PageDown: 1 })[event.key];
    const move = moves[event.key];
    if (!turn && !move) return;
    event.preventDefault();
    if (turn) {
      const next = Math.min(this.canvases.length - 1, Math.max(0, at + turn));
      this.canvases[next].focus();
      return;
    }
    const y = Math.min(maps.height - 1, Math.max(0, this.y + move[0]));
    this.show(maps, at, y, Math.min(maps.width - 1, Math.max(0, this.x + move[1])));
  }

  /**
   * Says the value at a place and marks it on the map and on the photo.
   * @param {Maps} maps
   * @param {number} at
   * @param {number} y
   * @param {number} x
   */
  show(maps, at, y, x) {
    [this.at, this.y, this.x] = [at, y, x];
    this.canvases.forEach((canvas, one) => (canvas.tabIndex = one === at ? 0 : -1));
    byId("value").textContent = this.sentence(maps, at, y, x);
    for (const mark of document.querySelectorAll(".mark")) /** @type {any} */ (mark).hidden = true;
    /** @type {HTMLElement} */ (this.canvases[at].parentElement).append(this.mark);
    const marks = [this.mark];
    if (this.layer.onPhoto) marks.push(.../** @type {any} */ (document.querySelectorAll(".photo .mark")));
    const [rows, columns] = maps.full.map((length) => length / maps.factor);
    for (const mark of marks) {
      mark.hidden = false;
      // What is stored of the last rows and columns may stand for fewer of the layer.
      const [tall, wide] = mark === this.mark ? [maps.height, maps.width] : [rows, columns];
      mark.style.top = `${(100 * y) / tall}%`;
      mark.style.left = `${(100 * x) / wide}%`;
      mark.style.height = `${100 * Math.min(1 / tall, 1 - y / tall)}%`;
      mark.style.width = `${100 * Math.min(1 / wide, 1 - x / wide)}%`;
    }
  }

  /**
   * @param {Maps} maps
   * @param {number} at
   * @param {number} y
   * @param {number} x
   */
  sentence(maps, at, y, x) {
    const where = `${this.layer.name} · ${this.layer.noun} ${maps.channels[at]}`;
    if (!this.codes) return `${where} · the values are being read`;
    const codes = this.codesAt(maps, at, y * maps.width + x);
    const values = codes.map((code, plane) => {
      const { flag } = this.colorOf(maps, at, code);
      const beyond = flag === 1 ? " (below the scale)" : flag === 2 ? " (above the scale)" : "";
      return (codes.length > 1 ? COLORS[plane] : "") + numberText(maps, valueOf(maps, code)) + beyond;
    });
    const [rows, columns] = [y, x].map((place, axis) => span(place, maps.factor, maps.full[axis], maps.mean));
    const how = maps.factor > 1 && maps.mean ? "mean of " : "";
    return `${where} · ${how}y ${rows}, x ${columns} · ${values.join(", ")}`;
  }
}

/**
 * The rows or columns of the layer that a stored one stands for: "4–5", or the one taken.
 * @param {number} place
 * @param {number} factor
 * @param {number} length
 * @param {boolean} mean
 */
function span(place, factor, length, mean) {
  const last = Math.min(length, (place + 1) * factor) - 1;
  if (!mean) return String(Math.min(length - 1, place * factor + Math.floor(factor / 2)));
  return last > place * factor ? `${place * factor}–${last}` : String(last);
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {(pixels: Uint32Array) => void} fill
 */
function draw(canvas, fill) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, canvas.height);
  fill(new Uint32Array(image.data.buffer));
  context.putImageData(image, 0, 0);
}

function start() {
  document.title = PAGE.title;
  byId("title").textContent = PAGE.title;
  byId("untrained").textContent = PAGE.untrained;
  byId("untrained").hidden = !PAGE.untrained;
  byId("facts").append(...PAGE.facts.flatMap((/** @type {[string, string]} */ [term, text]) =>
    [make("dt", {}, term), make("dd", {}, text)]));
  byId("notes").append(...PAGE.notes.map((/** @type {string} */ note) => make("li", {}, note)));
  byId("notes").hidden = !PAGE.notes.length;
  for (const place of PAGE.photo ? document.querySelectorAll(".photo") : []) {
    /** @type {any} */ (place.querySelector("img")).src = PAGE.photo;
    /** @type {any} */ (place).hidden = false;
  }
  const width = /** @type {HTMLInputElement} */ (byId("width"));
  width.addEventListener("input", () =>
    document.documentElement.style.setProperty("--tile", `${width.value}px`));
  const views = PAGE.layers.map((/** @type {Layer} */ layer, /** @type {number} */ at) => new LayerView(layer, at));
  byId("layers").replaceChildren(...views.map((/** @type {LayerView} */ view) => view.section));
  // Layers are read when they come near the window: a page may hold hundreds.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      near.unobserve(entry.target);
      const view = views.find((/** @type {LayerView} */ one) => one.section === entry.target);
      view.open().catch((/** @type {unknown} */ error) => {
        const text = `The values cannot be read: ${error}. A current browser is needed.`;
        view.section.append(make("p", { className: "fault" }, text));
      });
    }
  }, { rootMargin: "600px" });
  for (const view of views) {
    if (!view.layer.maps) view.paint();
    near.observe(view.section);
  }
  DARK.addEventListener("change", () => {
    for (const view of views) if (view.codes || !view.layer.maps) view.paint();
  });
}

start();
