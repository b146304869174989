import { expect, test } from "vitest";
import { h } from "../../hookviz/widget/js/kit.js";
import { renderExplain } from "../../hookviz/widget/js/panel_explain.js";
import { renderWhatIf } from "../../hookviz/widget/js/panel_whatif.js";
import { FakeModel, part, parts } from "./fake_model.js";

const METHODS = [
  ["gradcam", "Grad-CAM", "a paper", true, true, {}],
  ["integrated_gradients", "Integrated gradients", "a paper", false, true, { baseline: "black", steps: "" }],
  ["rollout", "Attention rollout", "a paper", true, false, { query: "" }],
  ["attention", "Attention", "a paper", true, false, {}],
];

function explain(more = {}) {
  const model = new FakeModel({ methods: METHODS, method: "gradcam", target: "", pinned: "", why_not: "", unedited: "", example: "", found: {}, alert: {}, ...more });
  const el = h("div");
  document.body.replaceChildren(el);
  renderExplain({ model, el });
  return { model, el };
}

function whatIf(more = {}) {
  const model = new FakeModel({ edits: [], run_edited: false, images: [], layer: "", layers: ["conv", "attn"], parts: {}, pinned: {}, target: "", undoable: 0, why_not: "", found: {}, ranking: {}, alert: {}, ...more });
  const el = h("div");
  document.body.replaceChildren(el);
  renderWhatIf({ model, el });
  return { model, el };
}

test("options that have choices or limits offer these, and what is chosen is sent", () => {
  const { model, el } = explain({ method: "integrated_gradients" });
  const baseline = part(el, "explain-option-baseline");
  expect(baseline.tagName).toBe("SELECT");
  expect(part(el, "explain-option-steps").type).toBe("number");
  baseline.value = "mean";
  part(el, "explain").click();
  expect(model.sent.at(-1).options).toEqual({ baseline: "mean", steps: "" });
});

test("a target is asked for where the method has one, and one is shown where the model has no classes", () => {
  const { model, el } = explain({ example: "channel 0 of features.30" });
  const field = part(el, "explain-target").closest("label");
  expect(field.hidden).toBe(false);
  expect(part(el, "explain-target").placeholder).toBe("for example: channel 0 of features.30");
  model.change({ method: "rollout" });
  expect(field.hidden).toBe(true);
});

test("as many heads are offered as there are; rollout has none to choose", () => {
  const query = { rows: 4, cols: 4, y: 1, x: 2, class: true };
  const found = { title: "Attention", targets: [], image: "a.png", seconds: 1, missing: [], figures: [], stale: false, live: true };
  const { model, el } = explain({ method: "attention", found: { ...found, query: { ...query, heads: "2", count: 3 } } });
  const heads = part(el, "explain-heads");
  expect([...heads.options].map((o) => o.value)).toEqual(["each", "mean", "0", "1", "2"]);
  expect(heads.value).toBe("2");
  expect(part(el, "explain-live").hidden).toBe(false);
  model.change({ found: { ...found, live: false, query: { ...query, y: -1, x: -1, class: false, mean: true } } });
  expect(heads.closest("label").hidden).toBe(true);
  expect(part(el, "explain-query").textContent).toBe("From all patches (mean)");
  expect(part(el, "explain-live").hidden).toBe(true);
});

test("heads are pressed, not typed, and leave no channels or places to name", () => {
  const { model, el } = whatIf({ layer: "attn", parts: { layer: "attn", channels: 16, places: [9], heads: 4 } });
  part(el, "whatif-channels").value = "3";
  expect(part(el, "whatif-channels").placeholder).toBe("all (0–15)");
  expect(part(el, "whatif-place").placeholder).toBe("all (0–8)");
  for (const at of [3, 0, 2, 2]) parts(el, "whatif-head")[at].click();
  expect(part(el, "whatif-channels").disabled).toBe(true);
  part(el, "whatif-add").click();
  expect(model.sent.at(-1)).toMatchObject({ type: "add", layer: "attn", heads: "0,3", channels: "", place: "" });
  model.change({ parts: { layer: "conv", channels: 8, places: [], heads: 0 } });
  expect(parts(el, "whatif-head")).toEqual([]);
  expect(part(el, "whatif-channels").disabled).toBe(false);
});

test("the pinned place fills the fields", () => {
  const { model, el } = whatIf({ pinned: { layer: "conv", channel: 3, y: 5, x: 7 } });
  part(el, "whatif-pinned").click();
  part(el, "whatif-add").click();
  expect(model.sent.at(-1)).toMatchObject({ layer: "conv", channels: "3", place: "5, 7", heads: "" });
});
