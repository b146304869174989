import { beforeEach, describe, expect, test } from "vitest";
import { renderTree } from "../../hookviz/widget/js/tree.js";
import { applyFilter, buildRows, parseSearch, shownRows, stateOf, toggled } from "../../hookviz/widget/js/tree_rows.js";
import { FakeModel, part, parts, press } from "./fake_model.js";

const RAW = [
  ["", "Net", 0], ["conv1", "Conv2d", 1], ["layer1", "Sequential", 0], ["layer1.0", "Bottleneck", 0],
  ["layer1.0.conv", "Conv2d", 1], ["layer1.0.relu", "ReLU", 1], ["layer10", "Linear", 1],
];
const rows = buildRows(RAW);
const none = { text: "", chips: new Set(), ticked: new Set() };
const names = (filter) => {
  const found = applyFilter(rows, { ...none, ...filter });
  return rows.filter((r) => found.match[r.index]).map((r) => r.name);
};

describe("rows", () => {
  test("parents are the nearest names before the dot; the model's row has no children", () => {
    expect(rows.map((r) => r.parent)).toEqual([-1, -1, -1, 2, 3, 3, -1]);
    expect(rows.map((r) => r.label)).toEqual(["(model)", "conv1", "layer1", "0", "conv", "relu", "layer10"]);
    expect(rows[2].end).toBe(6);
    expect(rows[0].end).toBe(1);
  });
  test("a parent that is no layer itself is skipped", () => {
    const odd = buildRows([["", "Net", 0], ["a.b.c", "Conv2d", 1], ["a.b.c.d", "ReLU", 1]]);
    expect(odd.map((r) => [r.parent, r.label])).toEqual([[-1, "(model)"], [-1, "a.b.c"], [1, "d"]]);
  });
});

describe("search", () => {
  test("words are looked for in name and type, all of them, in any case", () => {
    expect(names({ text: "LAYER1 conv2d" })).toEqual(["layer1.0.conv"]);
    expect(names({ text: "linear" })).toEqual(["layer10"]);
  });
  test("/regex/ on name or type", () => {
    expect(names({ text: "/^layer1$/" })).toEqual(["layer1"]);
    expect(names({ text: "/^conv/i" })).toEqual(["conv1", "layer1.0.conv"]);
  });
  test("a regex that is none matches nothing and says so", () => {
    const { test: matches, error } = parseSearch("/(/");
    expect(error).toContain("Not a regular expression");
    expect(rows.some(matches)).toBe(false);
  });
  test("chips: types of leaves, blocks, leaves, ticked", () => {
    expect(names({ chips: new Set(["conv"]) })).toEqual(["conv1", "layer1.0.conv"]);
    expect(names({ chips: new Set(["conv", "relu"]) })).toEqual(["conv1", "layer1.0.conv", "layer1.0.relu"]);
    expect(names({ chips: new Set(["blocks"]) })).toEqual(["layer1", "layer1.0"]);
    expect(names({ chips: new Set(["leaves"]) })).not.toContain("layer1");
    expect(names({ chips: new Set(["ticked"]), ticked: new Set(["conv1"]) })).toEqual(["conv1"]);
  });
});

describe("three states", () => {
  const all = rows.map(() => true);
  test("a group is mixed until all below and itself are ticked", () => {
    expect(stateOf(rows, rows[2], all, new Set())).toBe("false");
    expect(stateOf(rows, rows[2], all, new Set(["layer1.0.conv"]))).toBe("mixed");
    const full = toggled(rows, rows[2], all, new Set(["layer1.0.conv"]));
    expect([...full].sort()).toEqual(["layer1", "layer1.0", "layer1.0.conv", "layer1.0.relu"]);
    expect(stateOf(rows, rows[2], all, full)).toBe("true");
    expect(toggled(rows, rows[2], all, full).size).toBe(0);
  });
  test("under a filter a group's box stands for the matches below it alone", () => {
    const found = applyFilter(rows, { ...none, text: "relu" });
    expect([...toggled(rows, rows[2], found.match, new Set())]).toEqual(["layer1.0.relu"]);
    expect(shownRows(rows, found, new Set()).map((r) => r.name)).toEqual(["layer1", "layer1.0", "layer1.0.relu"]);
  });
  test("a closed group hides what is below it", () => {
    const found = applyFilter(rows, none);
    expect(shownRows(rows, found, new Set(["layer1"])).map((r) => r.name)).toEqual(["", "conv1", "layer1", "layer10"]);
  });
});

describe("on screen", () => {
  let model, el, leave;
  beforeEach(() => {
    leave?.();
    document.body.replaceChildren();
    model = new FakeModel({ rows: RAW, facts: {}, selected: ["conv1"], hidden_calls: [], search: "", alert: {} });
    el = document.createElement("div");
    document.body.append(el);
    leave = renderTree({ model, el });
  });
  const row = (name) => el.querySelector(`[data-hv="row"][data-name="${name}"]:not([data-call])`);
  const click = (element) => element.dispatchEvent(new MouseEvent("click", { bubbles: true }));

  test("roles, states and the count", () => {
    expect(part(el, "treebox").getAttribute("role")).toBe("tree");
    expect(parts(el, "row").length).toBe(7);
    expect(row("conv1").getAttribute("aria-checked")).toBe("true");
    expect(row("layer1").getAttribute("aria-expanded")).toBe("true");
    expect(part(el, "summary").textContent).toBe("1 of 7");
  });
  test("a click ticks, in the model's order, and sends once", () => {
    click(row("layer1.0.relu").querySelector('[data-hv="tick"]'));
    click(row("").querySelector('[data-hv="tick"]'));
    expect(model.state.selected).toEqual(["", "conv1", "layer1.0.relu"]);
    expect(model.saved).toBe(2);
    // By a message as well, which nothing holds back: Run must not overtake it.
    expect(model.sent.map(({ type, selected, hidden_calls }) => [type, selected, hidden_calls])).toEqual([
      ["ticks", ["conv1", "layer1.0.relu"], []], ["ticks", ["", "conv1", "layer1.0.relu"], []]]);
    expect(row("layer1").getAttribute("aria-checked")).toBe("mixed");
  });
  test("the twisty opens and closes and ticks nothing", () => {
    click(row("layer1").querySelector('[data-hv="twisty"]'));
    expect(row("layer1.0")).toBeNull();
    expect(model.saved).toBe(0);
  });
  test("keys: arrows, space, Home, left to the parent", () => {
    const box = part(el, "treebox");
    press(box, "ArrowDown");
    press(box, "ArrowDown");
    expect(press(box, " ").defaultPrevented).toBe(true);
    expect(model.state.selected).toContain("layer1");
    press(box, "End");
    press(box, "ArrowUp");
    press(box, "ArrowLeft");
    expect(box.getAttribute("aria-activedescendant")).toBe(row("layer1.0").id);
    press(box, "ArrowLeft");
    expect(row("layer1.0").getAttribute("aria-expanded")).toBe("false");
  });
  test("all shown, none, invert, only this", () => {
    const search = part(el, "search");
    search.value = "conv";
    search.dispatchEvent(new Event("input", { bubbles: true }));
    click(part(el, "all"));
    expect(model.state.selected).toEqual(["conv1", "layer1.0.conv"]);
    click(part(el, "invert"));
    expect(model.state.selected).toEqual([]);
    search.value = "";
    search.dispatchEvent(new Event("input", { bubbles: true }));
    click(part(el, "all"));
    expect(model.state.selected.length).toBe(7);
    click(part(el, "only"));
    expect(model.state.selected.length).toBe(1);
    click(part(el, "none"));
    expect(model.state.selected).toEqual([]);
  });
  test("what Python ticks is shown; nothing is sent back", () => {
    model.change({ selected: ["layer10"] });
    expect(row("layer10").getAttribute("aria-checked")).toBe("true");
    expect(row("conv1").getAttribute("aria-checked")).toBe("false");
    expect(model.saved).toBe(0);
  });
  test("facts: shape and memory; a captured layer with three calls opens into them", () => {
    model.change({ facts: { "layer1.0.relu": { c: 3, s: ["64×8×8", "64×8×8", "256×8×8"], b: [1, 1, 2e6], d: 1 }, conv1: { c: 1, s: ["9×9"], b: [5e6] } } });
    expect(row("conv1").textContent).toContain("9×9");
    expect(part(el, "summary").textContent).toBe("1 of 7 · ≈ 5.0 MB");
    expect(el.querySelectorAll('[data-name="layer1.0.relu"][data-call]').length).toBe(3);
    click(el.querySelector('[data-name="layer1.0.relu"][data-call="3"] [data-hv="tick"]'));
    expect(model.state.selected).toContain("layer1.0.relu");
    expect(model.state.hidden_calls).toEqual(["layer1.0.relu#1", "layer1.0.relu#2"]);
  });
  test("a layer that did not run says why", () => {
    model.change({ facts: { conv1: { r: "not called in this forward" } } });
    expect(row("conv1").textContent).toContain("not called");
  });
  test("600 rows are built and ticked in one message", () => {
    const many = [["", "Net", 0], ...Array.from({ length: 600 }, (_, i) => [`b${Math.floor(i / 10)}${i % 10 ? `.c${i % 10}` : ""}`, "Conv2d", Number(i % 10 > 0)])];
    model.change({ rows: many });
    expect(parts(el, "row").length).toBe(601);
    click(part(el, "all"));
    expect(model.saved).toBe(1);
    expect(model.state.selected.length).toBe(601);
  });
  test("leaving takes every listener away", () => {
    leave();
    expect([...model.listeners.values()].flat()).toEqual([]);
    leave = null;
  });
});
