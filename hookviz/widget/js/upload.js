// @ts-check
// A file's way to the kernel: pieces of 2 MB, the next one only after the last was acknowledged.
// One big message would pass the server's limit and be dropped without a word.

import { bytesText, freshId, h } from "./kit.js";

/** @typedef {import("./kit.js").Model} Model */

export const PIECE = 2_000_000;

/**
 * Why a file is not even sent, or "".
 * @param {{name: string, size: number}} file
 * @param {number} limit bytes
 * @returns {string}
 */
export function refusal(file, limit) {
  if (file.size === 0) return `“${file.name}” is empty.`;
  if (file.size <= limit) return "";
  return `“${file.name}” has ${bytesText(file.size)}; at most ${bytesText(limit)} are accepted.`;
}

/**
 * Sends a file. Resolves "done", "refused" (Python said no) or "aborted".
 * @param {Model} model
 * @param {File} file
 * @param {(share: number) => void} onProgress from 0 to 1
 * @param {AbortSignal} signal
 * @returns {Promise<"done" | "refused" | "aborted">}
 */
export function sendFile(model, file, onProgress, signal) {
  const id = freshId("upload");
  return new Promise((resolve, reject) => {
    const finish = (/** @type {"done" | "refused" | "aborted"} */ how) => {
      model.off("msg:custom", onMessage);
      signal.removeEventListener("abort", onAbort);
      resolve(how);
    };
    const onAbort = () => {
      model.send({ type: "upload-abort", id });
      finish("aborted");
    };
    const sendPiece = async (/** @type {number} */ offset) => {
      try {
        const piece = await file.slice(offset, offset + PIECE).arrayBuffer();
        if (!signal.aborted) model.send({ type: "upload-piece", id, offset }, undefined, [piece]);
      } catch (problem) {
        model.off("msg:custom", onMessage);
        reject(problem);
      }
    };
    const onMessage = (/** @type {any} */ message) => {
      if (message.id !== id) return;
      if (message.type === "upload-ack") {
        onProgress(file.size ? message.received / file.size : 1);
        if (message.received < file.size) sendPiece(message.received);
      } else if (message.type === "upload-done") finish("done");
      else if (message.type === "upload-refused") finish("refused");
    };
    model.on("msg:custom", onMessage);
    signal.addEventListener("abort", onAbort);
    model.send({ type: "upload-start", id, name: file.name, size: file.size, mime: file.type });
  });
}

/** Whether a file is a video, which the browser plays. @param {File} file */
export const isVideo = (file) => file.type.startsWith("video/") || /\.(webm|mp4|m4v|mov|mkv|ogv|avi)$/i.test(file.name);

/**
 * The files of a drop or a paste, images first.
 * @param {DataTransfer | null} transfer
 * @returns {File[]}
 */
export function filesOf(transfer) {
  const files = [...(transfer?.files ?? [])];
  const isImage = (/** @type {File} */ file) => file.type.startsWith("image/");
  return [...files.filter(isImage), ...files.filter((file) => !isImage(file))];
}

/** Sends files to Python, one at a time, with a bar that shows how far it is. @param {Model} model */
export function uploader(model) {
  let sending = new AbortController();
  const fill = h("span", { class: "hv-bar-fill" });
  const bar = h("div", { hv: "upload", class: "hv-bar", role: "progressbar", "aria-label": "Upload", hidden: true,
    "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": "0" }, fill);
  /** @param {number} share */
  function progress(share) {
    const percent = String(Math.round(share * 100));
    bar.hidden = false;
    bar.setAttribute("aria-valuenow", percent);
    fill.style.width = `${percent}%`;
  }
  /** @param {File} file */
  async function take(file) {
    const message = refusal(file, model.get("max_bytes") ?? Infinity);
    if (message) {
      model.send({ type: "problem", message, remedy: file.size ? "Choose a smaller image file." : "Choose another file." });
      return;
    }
    sending.abort();
    const mine = sending = new AbortController();
    progress(0);
    try {
      await sendFile(model, file, progress, mine.signal);
    } catch (trouble) {
      model.send({ type: "problem", message: `“${file.name}” cannot be read by the browser.`,
        remedy: "If it is a folder, drop a single image file.", details: String(trouble) });
    }
    if (mine === sending) bar.hidden = true;
  }
  return { bar, take, stop: () => sending.abort() };
}

/**
 * Lets an element take files by drop and paste, and keeps JupyterLab from opening them.
 * @param {HTMLElement} root where drop and paste are heard
 * @param {HTMLElement} zone what lights up
 * @param {(transfer: DataTransfer | null) => boolean} take
 * @param {(message: string) => void} refuse
 */
export function takeFiles(root, zone, take, refuse) {
  let depth = 0;
  const light = (/** @type {number} */ change) => {
    depth = Math.max(0, change === 0 ? 0 : depth + change);
    zone.classList.toggle("hv-over", depth > 0);
  };
  root.addEventListener("dragenter", (event) => {
    event.preventDefault();
    light(1);
  });
  root.addEventListener("dragleave", () => light(-1));
  root.addEventListener("dragover", (event) => {
    event.preventDefault();
    event.stopPropagation();
    if (event.dataTransfer) event.dataTransfer.dropEffect = "copy";
  });
  root.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    light(0);
    if (!take(event.dataTransfer)) refuse("What was dropped is not a file.");
  });
  root.addEventListener("paste", (event) => {
    if (take(event.clipboardData)) {
      event.preventDefault();
      event.stopPropagation();
    } else if (!/** @type {HTMLElement} */ (event.target).closest?.("input, textarea")) {
      refuse("There is no picture in the clipboard.");
    }
  });
}
