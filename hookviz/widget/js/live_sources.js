// @ts-check
// Where frames come from: a camera, or a video that the browser plays. Both are drawn to a canvas
// and read as raw RGBA; nothing is compressed with loss, as values are claimed of them.

/** Milliseconds that the way of a frame may take before frames travel as PNG. */
const SLOW = 150;
const MEASURED = 12;

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
 * Opens a file into a video element, at its first frame.
 * @param {HTMLVideoElement} video
 * @param {File} file
 */
export async function openVideo(video, file) {
  const url = URL.createObjectURL(file);
  await new Promise((resolve, reject) => {
    video.onloadeddata = resolve;
    video.onerror = () => reject(new Error(`The browser cannot play “${file.name}”: give it as WebM or MP4, or as a GIF.`));
    video.src = url;
  });
  video.onerror = video.onloadeddata = null;
  return url;
}

/** @param {HTMLVideoElement} video @param {string} name @returns {Promise<void>} */
const once = (video, name) => new Promise((resolve) => video.addEventListener(name, () => resolve(), { once: true }));

/**
 * The frames a second of a video, by playing its beginning: the file itself is not asked.
 * @param {HTMLVideoElement} video
 * @returns {Promise<{rate: number, steady: boolean}>} `steady`: whether frames are evenly apart
 */
export async function measureRate(video) {
  /** @type {{time: number, frame: number}[]} */
  const seen = [];
  video.currentTime = 0;
  await video.play();
  await Promise.race([
    new Promise((resolve) => {
      const take = (/** @type {number} */ _now, /** @type {any} */ { mediaTime, presentedFrames }) => {
        seen.push({ time: mediaTime, frame: presentedFrames });
        if (seen.length > MEASURED) resolve(null);
        else video.requestVideoFrameCallback(take);
      };
      video.requestVideoFrameCallback(take);
    }),
    once(video, "ended"),
    new Promise((resolve) => setTimeout(resolve, 3000)),
  ]);
  video.pause();
  const found = rateOf(seen);
  video.currentTime = 0.5 / found.rate;
  await once(video, "seeked");
  return found;
}

/** @param {{time: number, frame: number}[]} seen @returns {{rate: number, steady: boolean}} */
export function rateOf(seen) {
  const steps = seen.slice(1).map(({ time, frame }, i) => (time - seen[i].time) / (frame - seen[i].frame)).filter((step) => step > 0);
  if (!steps.length) return { rate: 25, steady: false };
  steps.sort((a, b) => a - b);
  const step = steps[steps.length >> 1];
  // Containers count in milliseconds at worst: whole rates are meant where they are that near.
  const rate = Math.abs(1 / step - Math.round(1 / step)) < 0.02 / step ? Math.round(1 / step) : 1 / step;
  return { rate, steady: steps.every((each) => Math.abs(each - step) < 0.2 * step) };
}

/** Goes to a frame by its number; its middle, as its beginning may be the one before. @param {HTMLVideoElement} video @param {number} number @param {number} rate */
export async function seekTo(video, number, rate) {
  const sought = once(video, "seeked");
  video.currentTime = (number + 0.5) / rate;
  await sought;
}

/** Reads frames of a video element, and sends them. */
export class Grabber {
  /** @param {HTMLVideoElement} video @param {(message: any, buffers: any[]) => void} send */
  constructor(video, send) {
    this.video = video;
    this.send = send;
    this.canvas = document.createElement("canvas");
    this.paint = this.canvas.getContext("2d", { willReadFrequently: true });
    this.png = false;
    /** @type {number[]} */
    this.ways = [];
  }

  /** How long the way of a frame was: a slow one has frames travel as PNG. @param {number} milliseconds */
  took(milliseconds) {
    this.ways = [...this.ways, milliseconds].slice(-5);
    if (this.ways.length === 5 && Math.min(...this.ways) > SLOW) this.png = true;
  }

  /**
   * @param {number} side pixels of the shorter side; a smaller frame is not enlarged
   * @param {Record<string, any>} facts
   */
  async grab(side, facts) {
    const { videoWidth, videoHeight } = this.video;
    if (!videoWidth || !this.paint) throw new Error("There is no frame yet.");
    const share = Math.min(1, side / Math.min(videoWidth, videoHeight));
    const width = Math.max(1, Math.round(videoWidth * share));
    const height = Math.max(1, Math.round(videoHeight * share));
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.paint.imageSmoothingQuality = "high";
    this.paint.drawImage(this.video, 0, 0, width, height);
    const message = { type: "frame", width, height, png: this.png, ...facts };
    if (!this.png) {
      this.send(message, [this.paint.getImageData(0, 0, width, height).data.buffer]);
      return;
    }
    const blob = await new Promise((resolve) => this.canvas.toBlob(resolve, "image/png"));
    this.send(message, [await blob.arrayBuffer()]);
  }
}
