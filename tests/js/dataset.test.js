import { expect, test } from "vitest";
import { h } from "../../hookviz/widget/js/kit.js";
import { renderDataSet } from "../../hookviz/widget/js/panel_dataset.js";
import { FakeModel, part, parts, press } from "./fake_model.js";

const HIT = { rank: 1, value: "5", place: "y 1, x 2", name: "cats/a.png", label: "cats", shows: "field", openable: true };
const CHANNEL = { channel: 7, numbers: [["Mean", "2", ""]], dead: false, counts: [3, 1], ends: [0, 5], hits: [HIT] };

function shown(more = {}) {
  const model = new FakeModel({
    opened: { title: "net", facts: ["3 of 4 images"], layers: [["conv", [8, 4, 4]], ["relu", [8, 4, 4]]], failures: [["b.png", "No image."]], failed: 1, rest: "" },
    layer: "conv", order: "mean", falling: true, dead: "last", channel: {}, progress: "", why_not: "", said: "", alert: {}, folder: "survey",
    channels: { of: 90, rows: [[7, "2", "5", "1.0 %", ""], [3, "1", "9", "2.0 %", ""], [0, "0", "0", "100.0 %", "dead"]] }, ...more,
  });
  const el = h("div");
  document.body.replaceChildren(el);
  const leave = renderDataSet({ model, el });
  return { model, el, leave };
}

test("rows are reached by one Tab and arrows, and one is chosen by a press on any part of it", () => {
  const { model, el } = shown();
  const rows = parts(el, "dataset-row");
  expect(rows.map((row) => row.tabIndex)).toEqual([0, -1, -1]);
  rows[0].focus();
  press(rows[0], "ArrowDown");
  expect(document.activeElement).toBe(rows[1]);
  press(rows[1], "End");
  expect(document.activeElement).toBe(rows[2]);
  press(rows[2], "ArrowDown");
  expect(rows.map((row) => row.tabIndex)).toEqual([-1, -1, 0]);
  rows[2].click();
  rows[1].closest("tr").lastElementChild.click();
  expect(model.sent.filter((m) => m.type === "channel").map((m) => m.channel)).toEqual([0, 3]);
  expect(rows[2].getAttribute("aria-label")).toBe("Channel 0, dead");
});

test("the focus stays on its channel when the order changes", () => {
  const { model, el } = shown();
  parts(el, "dataset-row")[0].focus();
  const rows = model.get("channels").rows;
  part(el, "dataset-by-max").click();
  part(el, "dataset-by-mean").click();
  expect(model.sent.slice(-2)).toEqual([{ type: "sort", by: "max", falling: true, buffers: undefined }, { type: "sort", by: "mean", falling: false, buffers: undefined }]);
  model.change({ channels: { of: 90, rows: [rows[1], rows[0], rows[2]] }, order: "max" });
  expect(document.activeElement.textContent).toBe("7");
  expect(part(el, "dataset-by-max").closest("th").getAttribute("aria-sort")).toBe("descending");
  expect(part(el, "dataset-by-mean").closest("th").hasAttribute("aria-sort")).toBe(false);
});

test("a channel's crops are named, and open where they have a file", () => {
  const { model, el } = shown();
  model.change({ channel: { ...CHANNEL, hits: [HIT, { ...HIT, rank: 2, name: "3", label: "", openable: false }] } });
  const [first, second] = parts(el, "dataset-crop");
  expect(first.getAttribute("aria-label")).toBe("Open cats/a.png: 5 at y 1, x 2");
  first.click();
  second.click();
  expect(model.sent.filter((m) => m.type === "show").map((m) => m.rank)).toEqual([1]);
  expect(second.getAttribute("aria-disabled")).toBe("true");
  model.hear({ type: "crops", channel: 8 }, [new DataView(new ArrayBuffer(4))]);
  expect(first.querySelector("img").hidden).toBe(true); // of another channel
  model.hear({ type: "crops", channel: 7 }, [new DataView(new ArrayBuffer(4)), new DataView(new ArrayBuffer(0))]);
  expect([first, second].map((crop) => crop.querySelector("img").hidden)).toEqual([false, true]);
});

test("what is wrong stands at its field, with what can be done about it", () => {
  const { model, el } = shown();
  model.change({ alert: { message: "There is no survey in 'x'.", field: "folder" } });
  expect(part(el, "dataset-folder-problem").textContent).toContain("no survey");
  expect(part(el, "dataset-problem").hidden).toBe(true);
  model.change({ alert: { message: "The data have 2 images that the survey lacks.", code: "new-images", field: "images", remedy: "extend=True adds them." } });
  expect(part(el, "dataset-folder-problem").hidden).toBe(true);
  expect(part(el, "dataset-problem").textContent).not.toContain("extend");
  part(el, "alert-action").click();
  expect(model.sent.at(-1)).toMatchObject({ type: "action", do: "more-images" });
});

test("while one runs none is started, and it can be cancelled", () => {
  const { model, el } = shown({ progress: "3 of 9 images are done and kept." });
  part(el, "dataset-images").value = "photos";
  part(el, "dataset-start").click();
  expect(model.types()).not.toContain("survey");
  part(el, "dataset-cancel").click();
  expect(model.sent.at(-1).type).toBe("cancel");
  model.change({ progress: "" });
  press(part(el, "dataset-images"), "Enter");
  expect(model.sent.at(-1)).toMatchObject({ type: "survey", images: "photos", batch: 32 });
});

test("a view that comes back asks for its crops", () => {
  const { model, leave } = shown({ channel: CHANNEL });
  expect(model.types()).toContain("crops");
  leave();
  model.change({ channel: {} });
});
