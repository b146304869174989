// @ts-check
// A histogram: counts as bars of logarithmic height, with a mark at a value.
import "./histogram.css";
import { h, numberText, setAttribute, setText } from "./kit.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDE, HIGH] = [256, 72];

/** @param {string} name @param {Record<string, string | number>} attributes */
function svg(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  return element;
}

/**
 * Where a value stands between the ends of a histogram, 0 to 1; null for none.
 * @param {string | undefined} value as Python writes it
 * @param {number[]} ends
 */
export function markAt(value, ends) {
  const number = Number(value || NaN);
  if (!Number.isFinite(number) || ends.length !== 2 || !(ends[0] < ends[1])) return null;
  return Math.max(0, Math.min(1, (number - ends[0]) / (ends[1] - ends[0])));
}

/** @param {string} hv */
export function histogram(hv) {
  const picture = /** @type {SVGElement} */ (svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "hv-histogram", preserveAspectRatio: "none", role: "img", "data-hv": hv }));
  const bars = svg("path", { class: "hv-histogram-bars" });
  const mark = svg("path", { class: "hv-histogram-mark" });
  picture.append(bars, mark);
  const low = h("span");
  const high = h("span");
  /** @type {number[]} */
  let between = [];
  const view = {
    box: h("div", {}, picture, h("div", { class: "hv-histogram-ends hv-dim hv-note" }, low, high)),
    /** @param {number[]} counts @param {number[]} ends */
    show(counts, ends) {
      between = ends;
      const tallest = Math.log1p(Math.max(1, ...counts));
      bars.setAttribute("d", counts.map((count, i) => {
        const tall = (Math.log1p(count) / tallest) * (HIGH - 2);
        return count ? `M${(i * WIDE) / counts.length} ${HIGH}v${-Math.max(1, tall)}h${WIDE / counts.length}V${HIGH}z` : "";
      }).join(""));
      setText(low, numberText(ends[0]));
      setText(high, numberText(ends[1]));
      picture.setAttribute("aria-label", counts.length ? `Histogram of ${counts.length} parts from ${numberText(ends[0])} to ${numberText(ends[1])}; the largest holds ${Math.max(...counts)} values` : "");
      view.mark(undefined);
    },
    /** @param {string | undefined} value */
    mark(value) {
      const at = markAt(value, between);
      mark.setAttribute("d", at === null ? "" : `M${(at * WIDE).toFixed(2)} 0V${HIGH}`);
      setAttribute(picture, "data-mark", at === null ? null : String(value));
    },
  };
  return view;
}
