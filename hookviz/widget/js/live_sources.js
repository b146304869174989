// @ts-check
// Where frames come from: a camera, or a film. Both are drawn to a canvas
// and read as raw RGB; nothing is compressed with loss, as values are claimed of them.

/** Milliseconds that the way of a frame may take before frames travel as PNG. */
const SLOW = 150;
const JUDGED = 5;
/** As PNG, the way must take less than this share of what it took. */
const WORTH = 0.7;

/** @param {unknown} problem @returns {string} why there is no camera, as a sentence */
export function cameraProblem(problem) {
  const name = /** @type {any} */ (problem)?.name ?? "";
  if (name === "NotAllowedError" || name === "SecurityError") return "The camera is not allowed: allow it in the browser's address bar, then press Camera again.";
  if (name === "NotFoundError" || name === "OverconstrainedError") return "No camera was found.";
  if (name === "NotReadableError" || name === "AbortError") return "The camera cannot be read: another program may be using it.";
  return `The camera cannot be used: ${String(/** @type {any} */ (problem)?.message ?? problem)}`;
}

/**
 * Opens the camera into a video element.
 * @param {HTMLVideoElement} video
 * @param {(stream: MediaStream) => boolean} take gets the stream as soon as there is one; whether
 *   it is still wanted, else it is stopped at once
 */
export async function openCamera(video, take) {
  if (!isSecureContext) throw new Error("A camera needs a secure page: open it by https, or on localhost.");
  if (!navigator.mediaDevices?.getUserMedia) throw new Error("This browser gives pages no camera.");
  const stream = await navigator.mediaDevices.getUserMedia({ video: { height: { ideal: 480 } }, audio: false });
  if (!take(stream)) {
    stopStream(stream);
    return;
  }
  video.srcObject = stream;
  await video.play();
}

/** @param {MediaStream | null} stream */
export function stopStream(stream) {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

/**
 * Whether frames travel as PNG: on a slow link. Where the kernel is what has a frame wait, PNG does
 * not help, and they are raw again.
 */
export class Packing {
  png = false;
  /** @type {number[]} */
  ways = [];
  judged = JUDGED;
  raw = 0;

  /** How long the way of a frame was, without its computation. @param {number} milliseconds */
  took(milliseconds) {
    this.ways.push(milliseconds);
    if (this.ways.length < this.judged) return;
    const way = Math.min(...this.ways.slice(-JUDGED));
    const vain = this.png && way > WORTH * this.raw;
    this.ways = [];
    this.judged = vain ? 20 * JUDGED : JUDGED;
    if (vain) this.png = false;
    else if (!this.png && way > SLOW) [this.png, this.raw] = [true, way];
  }
}

/**
 * RGB of RGBA. Browsers take and give 131 kB of a message at once: less is there earlier.
 * @param {Uint8ClampedArray} pixels
 */
export function opaque(pixels) {
  const rgb = new Uint8Array((pixels.length / 4) * 3);
  for (let from = 0, to = 0; from < pixels.length; from += 4, to += 3) {
    rgb[to] = pixels[from];
    rgb[to + 1] = pixels[from + 1];
    rgb[to + 2] = pixels[from + 2];
  }
  return rgb.buffer;
}

/** Reads frames of a video element, and sends them. */
export class Grabber {
  /** @param {HTMLVideoElement} video @param {(message: any, buffers: any[]) => void} send */
  constructor(video, send) {
    this.video = video;
    this.send = send;
    this.canvas = document.createElement("canvas");
    this.paint = this.canvas.getContext("2d", { willReadFrequently: true });
    this.packing = new Packing();
  }

  /** Begins with raw frames. */
  reset() {
    this.packing = new Packing();
  }

  /**
   * @param {number} side pixels of the shorter side; a smaller frame is not enlarged
   * @param {Record<string, any>} facts
   * @param {((draw: () => void) => Record<string, any>) | null} which draws, and tells more facts
   *   of the frame that was drawn
   */
  async grab(side, facts, which = null) {
    const { videoWidth, videoHeight } = this.video;
    if (!videoWidth || !this.paint) throw new Error("There is no frame yet.");
    const share = Math.min(1, side / Math.min(videoWidth, videoHeight));
    const width = Math.max(1, Math.round(videoWidth * share));
    const height = Math.max(1, Math.round(videoHeight * share));
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.paint.imageSmoothingQuality = "high";
    const { paint, packing: { png } } = this;
    const draw = () => paint.drawImage(this.video, 0, 0, width, height);
    const message = { type: "frame", width, height, png, ...facts, ...(which ? which(draw) : draw()) };
    if (!png) {
      this.send(message, [opaque(paint.getImageData(0, 0, width, height).data)]);
      return;
    }
    const blob = await new Promise((resolve) => this.canvas.toBlob(resolve, "image/png"));
    this.send(message, [await blob.arrayBuffer()]);
  }
}
