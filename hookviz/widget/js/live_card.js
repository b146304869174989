// @ts-check
// One layer in "Live": its maps as levels, colored by a table; its figure where the source stands.
import { h, setAttribute, setHidden, setText, showBytes } from "./kit.js";

const GAP = 2;

/** Packed colors of a table: 256 for levels, 6 for what has none. @param {DataView} bytes */
export function packedTable(bytes) {
  const packed = new Uint32Array(262);
  for (let at = 0; at < 262; at += 1) {
    packed[at] = 0xff000000 | (bytes.getUint8(3 * at + 2) << 16) | (bytes.getUint8(3 * at + 1) << 8) | bytes.getUint8(3 * at);
  }
  return packed;
}

/** @typedef {{form: string, width: number, height: number, pixels: Uint32Array}} Mosaic */

/**
 * Tiles as one mosaic.
 * @param {{tiles: [number, number, number], constant?: number[]}} card
 * @param {Uint8Array} levels (n, h, w)
 * @param {[Uint32Array, Uint8Array] | null} flagged places among all levels that have none, and the
 *   flag of each
 * @param {Uint32Array} table
 * @param {number} faint the color of a map that has no place on a scale of its own
 * @param {Mosaic | null} former the mosaic before: drawn over where its tiles are as many and as
 *   large, as memory that is new for each frame keeps the garbage collector at work beside the model
 * @returns {Mosaic} pixels between tiles are clear
 */
export function mosaic({ tiles: [count, high, wide], constant = [] }, levels, flagged, table, faint, former = null) {
  const columns = Math.ceil(Math.sqrt((count * high) / wide));
  const rows = Math.ceil(count / columns);
  const width = columns * (wide + GAP) - GAP;
  const height = rows * (high + GAP) - GAP;
  const form = [count, high, wide].join();
  const pixels = former?.form === form ? former.pixels : new Uint32Array(width * height);
  const plain = new Set(constant);
  let at = 0;
  for (let tile = 0; tile < count; tile += 1) {
    const left = (tile % columns) * (wide + GAP);
    const top = Math.floor(tile / columns) * (high + GAP);
    const own = plain.has(tile) ? new Uint32Array(256).fill(faint) : table;
    for (let y = 0; y < high; y += 1) {
      let to = (top + y) * width + left;
      for (const end = at + wide; at < end; at += 1, to += 1) pixels[to] = own[levels[at]];
    }
  }
  flagged?.[0].forEach((place, n) => {
    const tile = Math.floor(place / (high * wide));
    const y = Math.floor(tile / columns) * (high + GAP) + (Math.floor(place / wide) % high);
    pixels[y * width + (tile % columns) * (wide + GAP) + (place % wide)] = table[256 + flagged[1][n]];
  });
  return { form, width, height, pixels };
}

/**
 * Places, uint32 each, and the flag of each. A copy: what comes in a message need not lie at a
 * multiple of four.
 * @param {Uint8Array} places @param {Uint8Array} flags @returns {[Uint32Array, Uint8Array]}
 */
export const pair = (places, flags) => [new Uint32Array(places.slice().buffer), flags];

export class LiveCard {
  /** @param {string} key */
  constructor(key) {
    this.key = key;
    /** @type {Mosaic | null} */
    this.drawn = null;
    this.name = h("span", { class: "hv-card-name" });
    this.facts = h("span", { class: "hv-dim hv-note" });
    this.canvas = h("canvas", { class: "hv-live-maps", role: "img", width: 1, height: 1 });
    this.figure = h("img", { class: "hv-live-figure", alt: "", hidden: true });
    this.text = h("p", { class: "hv-dim hv-note" });
    this.el = h("article", { hv: "live-card", class: "hv-live-card", "data-key": key },
      h("div", { class: "hv-live-card-head" }, this.name, this.facts), this.canvas, this.figure, this.text);
  }

  /** @param {any} card @param {DataView[]} buffers */
  show(card, buffers) {
    setText(this.name, card.label || "(model)");
    const dead = card.dead ? `${card.dead} dead` : "";
    const part = card.total > card.channels?.length ? `${card.channels.length} of ${card.total} channels` : "";
    setText(this.facts, [card.kind, card.shape, part, dead, card.scale].filter(Boolean).join(" · "));
    setText(this.text, card.text ?? "");
    setHidden(this.figure, true);
    setHidden(this.facts, false);
    setHidden(this.canvas, !card.tiles);
    if (!card.tiles) return;
    const bytes = (/** @type {number | undefined} */ at) => at === undefined ? null
      : new Uint8Array(buffers[at].buffer, buffers[at].byteOffset, buffers[at].byteLength);
    const levels = /** @type {Uint8Array} */ (bytes(card.levels));
    const [places, flags] = [bytes(card.flagged), bytes(card.flags)];
    const flagged = places && flags && pair(places, flags);
    const drawn = mosaic(card, levels, flagged, packedTable(buffers[card.colors]), 0x80808080, this.drawn);
    const { width, height, pixels } = this.drawn = drawn;
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    setAttribute(this.canvas, "aria-label", `${card.label}: maps of ${card.channels.length} channels. ${card.scale}`);
    this.canvas.dataset.ends = card.ends.join(" … ");
    const image = new ImageData(new Uint8ClampedArray(/** @type {ArrayBuffer} */ (pixels.buffer)), width, height);
    this.canvas.getContext("2d")?.putImageData(image, 0, 0);
  }

  /** @param {DataView} bytes @param {number} ratio */
  showFigure(bytes, ratio) {
    this.figure.onload = () => {
      this.figure.style.width = `${this.figure.naturalWidth / ratio}px`;
      this.canvas.hidden = this.facts.hidden = true; // the figure says them itself
    };
    this.figure.alt = this.canvas.getAttribute("aria-label") ?? "";
    showBytes(this.figure, bytes);
  }

  remove() {
    showBytes(this.figure, null);
    this.el.remove();
  }
}
