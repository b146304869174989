// @ts-check
// A video that the browser plays, as frames that have numbers.

const RATE = 25;
/** How far from its even place a frame may be, as a share of the distance of two. */
const OFF = 0.3;
/** How long a video is looked at for frames that are missing, in milliseconds. */
const CHECKED = 500;

/** The greatest common divisor. @param {number} a @param {number} b @returns {number} */
const common = (a, b) => (b ? common(b, a % b) : a);

/** @param {HTMLVideoElement} video @param {string} name @returns {Promise<void>} */
const once = (video, name) => new Promise((resolve) => video.addEventListener(name, () => resolve(), { once: true }));

/** When the frame that a video shows begins, in seconds; NaN where the browser does not tell. @param {HTMLVideoElement} video */
function begins(video) {
  if (typeof VideoFrame === "undefined") return NaN;
  const frame = new VideoFrame(video);
  const seconds = frame.timestamp / 1e6;
  frame.close();
  return seconds;
}

/**
 * How far apart frames are: found by going to ever later ones, as a file is not asked for it and
 * its times may be whole milliseconds.
 * @param {(seconds: number) => Promise<number>} at goes to a time; when the frame there begins
 * @param {number} end of the video, in seconds
 * @returns {Promise<{first: number, step: number, count: number, steady: boolean}>} when the first
 *   frame begins, the distance of two, how many there are, and whether they are evenly apart
 */
export async function pace(at, end) {
  const last = await at(end);
  if (Number.isNaN(last)) return { first: 0, step: 1 / RATE, count: Math.max(1, Math.round(end * RATE)), steady: false };
  const first = await at(0);
  if (last <= first) return { first, step: 1 / RATE, count: 1, steady: true };
  let step = 0;
  // Less than twice as far each time: the first frame that is another one is the second.
  for (let by = 0.001; step <= 0; by *= 1.9) step = (await at(Math.min(first + by, end))) - first;
  let steady = true;
  let places = 1;
  for (let reach = 3, stamp = first; stamp < last; reach *= 3) {
    const middle = first + (reach + 0.5) * step;
    stamp = middle < last ? await at(middle) : last;
    const exact = (stamp - first) / step;
    const near = Math.round(exact);
    steady &&= near > 0 && Math.abs(exact - near) < OFF;
    if (near <= 0) continue; // no frame that far
    places = near;
    step = (stamp - first) / places;
  }
  const count = places + 1;
  // Where a frame was left out, or lasts for two, the others' beginnings are no less even: as many
  // places are looked at as little time allows, spread over all of them.
  const until = performance.now() + CHECKED;
  let stride = Math.max(1, Math.round(0.618 * count));
  while (common(stride, count) > 1) stride += 1;
  for (let n = 0, place = 0; steady && n < count && performance.now() < until; n += 1, place = (place + stride) % count) {
    // On a busy machine the frame before may be there for a little longer.
    for (let tries = 0; tries === 0 || (!steady && tries < 3); tries += 1) {
      steady = Math.abs((await at(first + (place + 0.5) * step) - first) / step - place) < OFF;
    }
  }
  return { first, step, count, steady };
}

export class Film {
  /** @param {HTMLVideoElement} video */
  constructor(video) {
    this.video = video;
    this.url = "";
    this.first = 0;
    this.step = 1 / RATE;
    this.count = 0;
    this.steady = true;
  }

  /** Opens a file, at its first frame. @param {File} file */
  async open(file) {
    const { video } = this;
    this.url = URL.createObjectURL(file);
    await new Promise((resolve, reject) => {
      video.onloadeddata = resolve;
      video.onerror = () => reject(new Error(`The browser cannot play “${file.name}”: give it as WebM or MP4, or as a GIF.`));
      video.src = this.url;
    });
    video.onerror = video.onloadeddata = null;
    const at = (/** @type {number} */ seconds) => this.at(seconds);
    // What a browser recorded itself may have no end before one has gone there.
    if (!Number.isFinite(video.duration)) await at(1e9);
    const end = Number.isFinite(video.duration) ? video.duration : video.currentTime;
    Object.assign(this, await pace(at, end));
  }

  /** Lets go of the file; whoever waits for a frame of it waits for ever. */
  close() {
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = "";
  }

  /** Goes to a time; when the frame there begins. @param {number} seconds */
  async at(seconds) {
    const sought = once(this.video, "seeked");
    this.video.currentTime = seconds;
    await sought;
    return this.begun();
  }

  /** When the frame that is shown begins, once there is one. */
  async begun() {
    for (let tries = 0; ; tries += 1) {
      if (!this.url) await new Promise(() => {}); // closed meanwhile: nobody waits for it any more
      try {
        return begins(this.video);
      } catch (problem) {
        // On a busy machine a video has sought before it has the frame.
        if (tries >= 100) throw problem;
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    }
  }

  /** Goes to a frame: to its middle, as its beginning may still be the one before. @param {number} number */
  async seek(number) {
    const off = (/** @type {number} */ begin) => Math.abs((begin - this.first) / this.step - number) > OFF;
    let begin = await this.at(this.first + (number + 0.5) * this.step);
    // The frame may come a little later than the word that it is there.
    for (let tries = 0; tries < 3 && off(begin); tries += 1) {
      await new Promise((resolve) => setTimeout(resolve, 20));
      begin = await this.begun();
    }
    if (off(begin)) this.steady = false;
  }

  /**
   * Draws the frame that is shown.
   * @param {() => void} draw
   * @returns {{number: number, seconds: number}} which one that is: a video that plays goes on meanwhile
   */
  drawn(draw) {
    let seconds = begins(this.video);
    for (let before = NaN, tries = 0; before !== seconds && tries < 3; tries += 1) {
      before = seconds;
      draw();
      seconds = begins(this.video);
    }
    if (Number.isNaN(seconds)) seconds = this.video.currentTime;
    return { number: this.numberAt(seconds), seconds };
  }

  /** The number of the frame that begins, or is shown, at a time. @param {number} seconds */
  numberAt(seconds) {
    const places = (seconds - this.first) / this.step;
    // A frame's beginning may be a little early; without it, the time lies somewhere within.
    return Math.max(0, Math.min(this.count - 1, Math.floor(places + OFF)));
  }
}
