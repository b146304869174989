// @ts-check
// A file's way from the kernel to the browser's downloads, in pieces that the server lets pass.

/** @typedef {import("./kit.js").Model} Model */

/**
 * Fetches all pieces and hands them to the browser as one file.
 * @param {Model} model
 * @param {{id: string, size: number, name: string}} ready
 * @param {(blob: Blob, name: string) => void} [save]
 * @returns {Promise<number>} bytes received
 */
export function saveFile(model, ready, save = download) {
  return new Promise((resolve) => {
    /** @type {BlobPart[]} */
    const parts = [];
    let received = 0;
    const ask = () => model.send({ type: "file-piece", id: ready.id, offset: received });
    const onMessage = (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
      if (message.type !== "file-piece" || message.id !== ready.id || message.offset !== received) return;
      const piece = buffers[0];
      if (piece) {
        parts.push(/** @type {BlobPart} */ (/** @type {unknown} */ (piece)));
        received += piece.byteLength;
      }
      if (received < ready.size && piece?.byteLength) ask();
      else {
        model.off("msg:custom", onMessage);
        if (received === ready.size) save(new Blob(parts, { type: ready.name.endsWith(".html") ? "text/html" : "application/zip" }), ready.name);
        resolve(received);
      }
    };
    model.on("msg:custom", onMessage);
    ask();
  });
}

/** Hands a file to the browser. @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
