import { beforeEach, describe, expect, test } from "vitest";
import { renderImage } from "../../hookviz/widget/js/image.js";
import { PIECE, refusal, sendFile } from "../../hookviz/widget/js/upload.js";
import { saveFile } from "../../hookviz/widget/js/download.js";
import { FakeModel, part, parts, tick } from "./fake_model.js";

const file = (size, name = "a.png") => new File([new Uint8Array(size)], name, { type: "image/png" });

describe("upload", () => {
  test("pieces go one by one, each after the last was acknowledged", async () => {
    const model = new FakeModel();
    const shares = [];
    const done = sendFile(model, file(2 * PIECE + 5), (s) => shares.push(s), new AbortController().signal);
    const { id, size } = model.sent[0];
    expect(size).toBe(2 * PIECE + 5);
    for (const received of [0, PIECE, 2 * PIECE, 2 * PIECE + 5]) {
      model.hear({ type: "upload-ack", id, received });
      await tick(5);
    }
    const pieces = model.sent.filter((m) => m.type === "upload-piece");
    expect(pieces.map((m) => [m.offset, m.buffers[0].byteLength])).toEqual([[0, PIECE], [PIECE, PIECE], [2 * PIECE, 5]]);
    model.hear({ type: "upload-done", id });
    expect(await done).toBe("done");
    expect(shares.at(-1)).toBe(1);
    expect(model.listeners.get("msg:custom")).toEqual([]);
  });
  test("what belongs to another upload is not taken", async () => {
    const model = new FakeModel();
    sendFile(model, file(10), () => {}, new AbortController().signal);
    model.hear({ type: "upload-ack", id: "other", received: 0 });
    await tick(5);
    expect(model.types()).toEqual(["upload-start"]);
  });
  test("aborting tells Python", async () => {
    const model = new FakeModel();
    const control = new AbortController();
    const done = sendFile(model, file(10), () => {}, control.signal);
    control.abort();
    expect(await done).toBe("aborted");
    expect(model.types()).toEqual(["upload-start", "upload-abort"]);
  });
  test("empty and too large files are refused with their name and size", () => {
    expect(refusal({ name: "x.png", size: 0 }, 50e6)).toBe("“x.png” is empty.");
    expect(refusal({ name: "x.png", size: 60e6 }, 50e6)).toBe("“x.png” has 60 MB; at most 50 MB are accepted.");
    expect(refusal({ name: "x.png", size: 5 }, 50e6)).toBe("");
  });
});

describe("image input", () => {
  let model, el, leave;
  beforeEach(() => {
    leave?.();
    document.body.replaceChildren();
    model = new FakeModel({ info: {}, samples: ["chelsea.png"], choices: [["model", "own"], ["pad", "padded"]], choice: "model", max_bytes: 100, accept: "image/*" });
    el = document.createElement("div");
    document.body.append(el);
    leave = renderImage({ model, el });
  });
  const drop = (files) => {
    const event = new Event("drop", { bubbles: true, cancelable: true });
    event.dataTransfer = { files };
    part(el, "image").dispatchEvent(event);
    return event;
  };

  test("asks for the pictures once it is there", () => {
    expect(model.types()).toEqual(["pictures"]);
  });
  test("a drop is taken, and the page does not open it", () => {
    expect(drop([file(10, "cat.png")]).defaultPrevented).toBe(true);
    expect(model.sent.at(-1)).toMatchObject({ type: "upload-start", name: "cat.png", size: 10 });
    expect(part(el, "upload").hidden).toBe(false);
  });
  test("too large: nothing travels but the sentence", () => {
    drop([file(200, "big.png")]);
    expect(model.types()).toEqual(["pictures", "problem"]);
    expect(model.sent.at(-1).message).toContain("big.png");
    expect(model.sent.at(-1).remedy).toContain("smaller");
  });
  test("empty: the remedy is another file, not a smaller one", () => {
    drop([file(0, "empty.png")]);
    expect(model.sent.at(-1)).toMatchObject({ message: "“empty.png” is empty.", remedy: "Choose another file." });
  });
  test("a drop without a file says so", () => {
    drop([]);
    expect(model.sent.at(-1)).toMatchObject({ type: "problem", message: "What was dropped is not a file." });
  });
  test("the picture among several files is the one", () => {
    drop([new File(["x"], "notes.txt", { type: "text/plain" }), file(10, "cat.png")]);
    expect(model.sent.at(-1).name).toBe("cat.png");
  });
  test("of several photos the first is taken, and the others are named", () => {
    drop(["a", "b", "c", "d", "e", "f"].map((name) => file(10, `${name}.png`)));
    expect(model.sent.filter((m) => m.type === "upload-start").map((m) => m.name)).toEqual(["a.png"]);
    expect(part(el, "left-out").textContent).toBe("One image at a time: “a.png” was taken, not b.png, c.png, d.png and 2 more.");
    drop([file(10, "g.png")]);
    expect(part(el, "left-out").hidden).toBe(true);
  });
  test("size, mean and standard deviation can be set, and a refused value is said at its field", () => {
    model.change({ choice: "own", choices: [["model", "own"], ["own", "mine"]], own: { size: "28 × 28", mean: "0", std: "1", channels: "1", found: "Found by trial." } });
    expect(part(el, "own").hidden).toBe(false);
    expect(part(el, "own-channels").value).toBe("1");
    expect(part(el, "own-found").textContent).toBe("Found by trial.");
    const size = part(el, "own-size");
    size.value = "cat";
    size.dispatchEvent(new Event("change"));
    expect(model.sent.at(-1)).toMatchObject({ type: "own", values: { size: "cat" } });
    model.change({ alert: { message: "The size is “cat”; write 28.", field: "size" } });
    expect([size.value, size.getAttribute("aria-invalid")]).toEqual(["28 × 28", "true"]);
    expect(parts(el, "alert")).toEqual([]);
  });
  test("samples, names and sizes", () => {
    part(el, "sample").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "sample", name: "chelsea.png" });
    model.change({ info: { name: "cat.png", size: "4 × 3", format: "PNG", notes: ["turned"], seen: "2 × 2" } });
    expect(part(el, "image-caption").textContent).toBe("cat.png · 4 × 3 · PNG · turned");
    expect(part(el, "original").alt).toBe("Original: cat.png");
  });
  test("object URLs are let go of", () => {
    const made = [];
    const gone = [];
    const { createObjectURL, revokeObjectURL } = URL;
    URL.createObjectURL = () => made[made.push(`blob:${made.length}`) - 1];
    URL.revokeObjectURL = (url) => gone.push(url);
    const bytes = new DataView(new ArrayBuffer(4));
    for (let i = 0; i < 3; i += 1) model.hear({ type: "picture", which: "original", mime: "image/png" }, [bytes]);
    leave();
    leave = null;
    expect(gone).toEqual(made);
    Object.assign(URL, { createObjectURL, revokeObjectURL });
  });
  test("a name with markup stays text", () => {
    model.change({ info: { name: "<img src=x onerror=alert(1)>.png", size: "", format: "", notes: [] } });
    expect(parts(el, "image-caption")[0].children.length).toBe(0);
  });
});

describe("zip", () => {
  test("all pieces become one file", async () => {
    const model = new FakeModel();
    const saved = [];
    const done = saveFile(model, { id: "z", size: 5, name: "out.zip" }, (blob, name) => saved.push([blob.size, name]));
    model.hear({ type: "file-piece", id: "z", offset: 0 }, [new DataView(new ArrayBuffer(3))]);
    expect(model.sent.map((m) => m.offset)).toEqual([0, 3]);
    model.hear({ type: "file-piece", id: "z", offset: 0 }, [new DataView(new ArrayBuffer(3))]);
    model.hear({ type: "file-piece", id: "z", offset: 3 }, [new DataView(new ArrayBuffer(2))]);
    expect(await done).toBe(5);
    expect(saved).toEqual([[5, "out.zip"]]);
  });
});
