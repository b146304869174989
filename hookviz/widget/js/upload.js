// @ts-check
// A file's way to the kernel: pieces of 2 MB, the next one only after the last was acknowledged.
// One big message would pass the server's limit and be dropped without a word.

import { bytesText, freshId } from "./kit.js";

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
