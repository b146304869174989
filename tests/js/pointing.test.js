import { beforeEach, describe, expect, test } from "vitest";
import { Cleanup, h } from "../../hookviz/widget/js/kit.js";
import { renderInspect } from "../../hookviz/widget/js/panel_inspect.js";
import { placeAt, placeIn, pointing, scaled } from "../../hookviz/widget/js/pointing.js";
import { answerText, fieldText } from "../../hookviz/widget/js/wording.js";
import { FakeModel, part, parts, press, tick } from "./fake_model.js";

const TILES = { left: 10, top: 20, width: 40, height: 40, across: 50, down: 60, columns: 2, channels: [7, 3, 9], rows: 4, cols: 4, image: true };
const place = (more = {}) => ({ key: "a#1", which: "", channel: 7, y: 1, x: 2, rows: 4, cols: 4, image: true, ...more });

describe("places", () => {
  test("a pixel of the picture is a place of a map, or none between them", () => {
    expect(placeAt(TILES, 10, 20)).toEqual({ channel: 7, y: 0, x: 0 });
    expect(placeAt(TILES, 99.9, 59.9)).toEqual({ channel: 3, y: 3, x: 3 });
    expect(placeAt(TILES, 35, 95)).toEqual({ channel: 9, y: 1, x: 2 });
    for (const [x, y] of [[9, 30], [55, 30], [20, 65], [70, 90], [120, 30], [20, 200]]) expect(placeAt(TILES, x, y)).toBeNull();
  });
  test("a place of another layer lies at the same share, in whole numbers as in Python", () => {
    expect([0, 1, 2, 3].map((y) => scaled(y, 4, 2))).toEqual([0, 0, 1, 1]);
    expect(scaled(1, 2, 56)).toBe(42);
    expect(placeIn(place(), "a#1", TILES, null)).toMatchObject({ y: 1, x: 2 });
    expect(placeIn(place(), "b#1", { ...TILES, rows: 8, cols: 2 }, null)).toEqual({ y: 3, x: 1 });
    expect(placeIn(place({ image: false }), "b#1", TILES, null)).toBeNull();
    expect(placeIn(place(), "b#1", { ...TILES, image: false }, null)).toBeNull();
  });
  test("a pixel of the photo is a place only where the network sees it", () => {
    const pixel = place({ key: "", which: "original", y: 50, x: 100, rows: 100, cols: 200 });
    expect(placeIn(pixel, "a#1", TILES, [0.25, 0, 0.75, 1])).toEqual({ y: 2, x: 2 });
    expect(placeIn({ ...pixel, x: 20 }, "a#1", TILES, [0.25, 0, 0.75, 1])).toBeNull();
    expect(placeIn(pixel, "a#1", TILES, null)).toBeNull();
  });
  test("what is said", () => {
    expect(answerText({ key: "a#1", channel: 3, y: 1, x: 2, value: "-0.5", rank: 4, of: 9 })).toBe("channel 3 · y 1, x 2 · −0.5 · rank 4 of 9");
    expect(answerText({ key: "a#1", channel: 3, y: 1, x: 2, value: "NaN", rank: null, of: 9 })).toBe("channel 3 · y 1, x 2 · NaN");
    expect(answerText({ which: "seen", y: 1, x: 2, values: ["-1", "2"] })).toBe("input · y 1, x 2 · −1, 2");
    expect(fieldText({ state: "known", size: [196, 190], beyond: [0, 26, 0, 3], whole: false, note: "" }))
      .toBe("Sees 190 × 196 pixels of the input, 26 past its top edge, 3 past its bottom edge.");
    expect(fieldText({ state: "known", size: [24, 24], beyond: [0, 0, 0, 0], whole: true, note: "The whole image: 'fc' …" })).toBe("The whole image: 'fc' …");
  });
});

describe("pointing", () => {
  let root, model, sent, grid, cleanup;
  const at = (x, y, kind = "pointermove", more = {}) => grid.dispatchEvent(new MouseEvent(kind, { bubbles: true, clientX: x, clientY: y, ...more }));
  beforeEach(() => {
    document.body.replaceChildren();
    model = new FakeModel({ pin: {}, region: [], photo: {} });
    sent = [];
    grid = h("img", { hv: "grid", width: "200", height: "200", "data-version": "5", "data-tiles": JSON.stringify(TILES), tabindex: "0" });
    grid.getBoundingClientRect = () => ({ left: 0, top: 0, right: 200, bottom: 200, width: 200, height: 200 });
    root = h("section", {}, h("article", { hv: "card", "data-key": "a#1", "data-version": "5" }, h("div", {}, grid)));
    root.checkVisibility = grid.checkVisibility = () => true;
    document.body.append(root);
    cleanup = new Cleanup();
    pointing(root, model, (message) => sent.push(message), cleanup);
  });
  const reply = (message, more = { value: "1.5", rank: 2, of: 3 }) => model.hear({ ...message, type: "pointed", ...more });

  test("one question is under way, the newest wins, and the last answer is greyed meanwhile", async () => {
    at(11, 21);
    expect(sent).toEqual([{ type: "point", ask: 1, key: "a#1", version: 5, channel: 7, y: 0, x: 0 }]);
    at(25, 21);
    at(45, 21);
    expect(sent.length).toBe(1);
    reply(sent[0]);
    expect(sent.length).toBe(2);
    expect(sent[1]).toMatchObject({ channel: 7, y: 0, x: 3 });
    await tick(40);
    expect(part(root, "readout").textContent).toBe("channel 7 · y 0, x 0 · 1.5 · rank 2 of 3");
    expect(part(root, "readout").classList.contains("hv-out")).toBe(true);
    reply(sent[0], { value: "9" }); // late: of a question that is over
    reply(sent[1], { value: "-2.5", rank: 3, of: 3 });
    await tick(40);
    expect(part(root, "readout").textContent).toBe("channel 7 · y 0, x 3 · −2.5 · rank 3 of 3");
    expect(part(root, "readout").classList.contains("hv-out")).toBe(false);
    expect(grid.nextElementSibling.querySelector(".hv-mark-over.hv-mark-hover").getAttribute("d").match(/M/g).length).toBe(3);
    root.dispatchEvent(new MouseEvent("pointerleave"));
    await tick(40);
    expect(part(root, "readout").hidden).toBe(true);
  });
  test("an answer without a value shows nothing and is not asked again", async () => {
    at(11, 21);
    reply(sent[0], {});
    at(11, 21);
    await tick(40);
    expect(part(root, "readout").hidden).toBe(true);
    expect(sent.length).toBe(1);
  });
  test("arrows move by a place and by a map, Enter pins, Escape unpins", () => {
    grid.focus(); // begins in the middle of the first map
    expect(sent.at(-1)).toMatchObject({ type: "point", channel: 7, y: 1, x: 1 });
    const go = (key, more) => {
      reply(sent.at(-1));
      expect(press(grid, key, more).defaultPrevented).toBe(true);
    };
    go("ArrowRight");
    expect(sent.at(-1)).toMatchObject({ channel: 7, y: 1, x: 2 });
    go("ArrowDown", { shiftKey: true });
    expect(sent.at(-1)).toMatchObject({ channel: 9, y: 1, x: 2 });
    go("ArrowRight", { shiftKey: true }); // no map stands there
    expect(sent.at(-1)).toMatchObject({ channel: 9 });
    go("Enter");
    expect(sent.at(-1)).toEqual({ type: "pin", key: "a#1", channel: 9, y: 1, x: 2 });
    expect(press(grid, "Escape").defaultPrevented).toBe(false);
    model.change({ pin: { key: "a#1", channel: 9, y: 1, x: 2, rows: 4, cols: 4, image: true } });
    expect(press(grid, "Escape").defaultPrevented).toBe(true);
    expect(sent.at(-1)).toEqual({ type: "unpin" });
  });
  test("a click pins; a channel that is asked for gets the focus once its picture is there", () => {
    at(75, 35, "click");
    expect(sent.at(-1)).toEqual({ type: "pin", key: "a#1", channel: 3, y: 1, x: 1 });
    grid.setAttribute("data-tiles", JSON.stringify({ ...TILES, channels: [1, 2] }));
    model.hear({ type: "show-channel", key: "a#1", channel: 9 });
    expect(document.activeElement).not.toBe(grid);
    grid.setAttribute("data-tiles", JSON.stringify(TILES));
    grid.dispatchEvent(new CustomEvent("hv-painted", { bubbles: true }));
    expect(document.activeElement).toBe(grid);
    expect(sent.at(-1)).toMatchObject({ type: "point", channel: 9 });
  });
  test("another page: the keys go on at its first map, the mouse points at nothing", () => {
    const turn = () => {
      grid.setAttribute("data-tiles", JSON.stringify({ ...TILES, channels: [1, 2], rows: 2, cols: 2 }));
      grid.dispatchEvent(new CustomEvent("hv-painted", { bubbles: true }));
    };
    at(75, 55);
    expect(sent.at(-1)).toMatchObject({ channel: 3, y: 3, x: 1 });
    reply(sent.at(-1));
    turn();
    expect(sent.length).toBe(1);
    grid.setAttribute("data-tiles", JSON.stringify(TILES));
    grid.focus();
    press(grid, "ArrowRight");
    press(grid, "ArrowRight");
    reply(sent.at(-1));
    expect(sent.at(-1)).toMatchObject({ channel: 7, x: 3 });
    reply(sent.at(-1));
    turn();
    expect(sent.at(-1)).toMatchObject({ channel: 1, y: 1, x: 1 });
  });
  test("leaving lets go of all", () => {
    cleanup.mount(h("div"), root)();
    expect([...model.listeners.values()].flat()).toEqual([]);
  });
});

describe("the panel", () => {
  test("bars lead to their channels; more are asked for; nothing is said without a pin", () => {
    const model = new FakeModel({ place: {}, region: [], photo: [], vectors: [], inside: [], field: {} });
    const el = document.createElement("div");
    document.body.append(el);
    const leave = renderInspect({ model, el });
    expect(part(el, "inspect-field").hidden).toBe(true);
    model.change({
      place: { key: "a#1", label: "a", channel: 4, y: 1, x: 2, rows: 5, cols: 6, value: "-1.5", rank: 8, of: 9 },
      vectors: [{ key: "a#1", label: "a", y: 1, x: 2, rows: 5, cols: 6, of: 9, bars: [[7, "2.5", 1], [4, "-1.5", -0.6]] }],
      field: { state: "known", size: [11, 11], beyond: [2, 0, 0, 0], box: [0, 3, 9, 14], whole: false, note: "" }, photo: [20, 20],
    });
    expect(part(el, "inspect-value").textContent).toBe("Channel 4: −1.5, rank 8 of 9");
    expect(el.querySelector(".hv-field-box").dataset.box).toBe("0 3 9 14");
    expect(el.querySelectorAll(".hv-field-side.hv-past").length).toBe(2); // the left side: a light line on a dark one
    parts(el, "inspect-bar")[1].click();
    expect(model.sent.at(-1)).toMatchObject({ type: "show", key: "a#1", channel: 4 });
    part(el, "inspect-more").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "more", key: "a#1" });
    parts(el, "inspect-bar")[0].focus();
    model.change({ vectors: [{ ...model.state.vectors[0], bars: [[7, "3.5", 1]] }] });
    expect(document.activeElement).toBe(parts(el, "inspect-bar")[0]);
    leave();
  });
});
