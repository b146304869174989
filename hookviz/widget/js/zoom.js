// @ts-check
// A picture in a frame that can be made larger and moved. The rule of the wheel: what it cannot do
// here goes on to the page. It moves an enlarged picture, with Ctrl (or ⌘, or two fingers) it
// enlarges; a turn that would change nothing, at an end or of a picture that is whole, is not taken.

/** What part of a picture is seen: how many times larger it is than the frame, and the seen part's left and top as shares of the picture. @typedef {{scale: number, x: number, y: number}} View */

/** @type {View} */
export const WHOLE = { scale: 1, x: 0, y: 0 };
const STEP = 1.25;
/** Pixels of a wheel that turns in lines and pages. */
const MODES = [1, 30, 400];

const within = (/** @type {number} */ value, /** @type {number} */ low, /** @type {number} */ high) => Math.max(low, Math.min(high, value));

/** @param {View} view @param {View} other */
export const same = (view, other) => view.scale === other.scale && view.x === other.x && view.y === other.y;

/** @param {number} scale @param {number} x @param {number} y @returns {View} */
function legal(scale, x, y) {
  const most = 1 - 1 / scale;
  return { scale, x: within(x, 0, most), y: within(y, 0, most) };
}

/**
 * Larger or smaller, the point under (across, down) of the frame staying there.
 * @param {View} view
 * @param {number} steps each a quarter larger; negative: smaller
 * @param {number} most the largest scale
 * @param {number} [across] share of the frame
 * @param {number} [down]
 */
export function zoomed(view, steps, most, across = 0.5, down = 0.5) {
  const scale = within(view.scale * STEP ** steps, 1, Math.max(1, most));
  return legal(scale, view.x + across / view.scale - across / scale, view.y + down / view.scale - down / scale);
}

/**
 * Moved by shares of the frame.
 * @param {View} view @param {number} across @param {number} down
 */
export function moved(view, across, down) {
  return legal(view.scale, view.x + across / view.scale, view.y + down / view.scale);
}

/**
 * Moved no further than it takes to see a box, in shares of the picture.
 * @param {View} view @param {[number, number, number, number]} box left, top, right, bottom
 */
export function showing(view, [left, top, right, bottom]) {
  const seen = 1 / view.scale;
  return legal(view.scale, Math.min(left, Math.max(view.x, right - seen)), Math.min(top, Math.max(view.y, bottom - seen)));
}

/**
 * What a turn of the wheel makes of a view.
 * @param {View} view
 * @param {{deltaX: number, deltaY: number, deltaMode: number, ctrlKey: boolean, metaKey: boolean, shiftKey: boolean}} turn
 * @param {{width: number, height: number, across: number, down: number, most: number}} frame its size in pixels, where the pointer is as shares, and the largest scale
 */
export function wheeled(view, turn, frame) {
  const unit = MODES[turn.deltaMode] ?? 1;
  if (turn.ctrlKey || turn.metaKey) return zoomed(view, within((-turn.deltaY * unit) / 50, -2, 2), frame.most, frame.across, frame.down);
  const [dx, dy] = turn.shiftKey && !turn.deltaX ? [turn.deltaY, 0] : [turn.deltaX, turn.deltaY];
  return moved(view, (dx * unit) / frame.width, (dy * unit) / frame.height);
}
