import { beforeEach, describe, expect, test } from "vitest";
import { Cleanup, h } from "../../hookviz/widget/js/kit.js";
import { renderInspect } from "../../hookviz/widget/js/panel_inspect.js";
import { centersOf, knownAnswer, nearestTo, nextMap, placeAt, placeIn, placeOn, pointing } from "../../hookviz/widget/js/pointing.js";
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
  const even = (count, size) => Array.from({ length: count }, (_, i) => ((i + 0.5) * size) / count);
  const CENTERS = { "a#1": [even(4, 8), even(4, 16)], "b#1": [[0.5, 1, 6, 7.5], [2, 6, 10]], "c#1": [[4], [8]] };
  const ground = (more = {}) => ({ centers: (key) => CENTERS[key] ?? null, crop: null, seen: [16, 8], ...more });
  test("a place of another layer is the one whose center is nearest; none while that is not known", () => {
    expect(placeIn(place(), "a#1", TILES, ground())).toMatchObject({ y: 1, x: 2 });
    expect(placeIn(place(), "b#1", { ...TILES, rows: 4, cols: 3 }, ground())).toEqual({ y: 1, x: 2 }); // 3, 10
    expect(placeIn(place(), "c#1", { ...TILES, rows: 1, cols: 1 }, ground())).toEqual({ y: 0, x: 0 });
    expect(placeIn(place(), "d#1", TILES, ground())).toBeNull();
    expect(placeIn(place({ key: "d#1" }), "a#1", TILES, ground())).toBeNull();
    expect(placeIn(place({ image: false }), "b#1", TILES, ground())).toBeNull();
    expect(placeIn(place(), "b#1", { ...TILES, image: false }, ground())).toBeNull();
  });
  test("a pixel of the photo is a place only where the network sees it", () => {
    const pixel = place({ key: "", which: "original", y: 50, x: 100, rows: 100, cols: 200 });
    const cropped = ground({ crop: [0.25, 0, 0.75, 1] });
    expect(placeIn(pixel, "a#1", TILES, cropped)).toEqual({ y: 2, x: 2 });
    expect(placeIn({ ...pixel, x: 20 }, "a#1", TILES, cropped)).toBeNull();
    expect(placeIn(pixel, "a#1", TILES, ground())).toBeNull();
    expect(placeIn(place({ key: "", which: "seen", y: 1, x: 15, rows: 8, cols: 16 }), "b#1", TILES, ground())).toEqual({ y: 1, x: 2 });
  });
  test("on the photo a place is all pixels that it is the nearest of", () => {
    for (const axis of [even(4, 8), [0.5, 1, 6, 7.5], [7.5, 6, 1, 0.5], [2, 2, 5]]) {
      axis.forEach((_, index) => {
        if (axis.indexOf(axis[index]) !== index) return; // the first of equal ones is the nearest
        const [from, to] = nearestTo(axis, index, 8);
        for (let at = 0.05; at < 8; at += 0.1) {
          const best = axis.reduce((found, c, i) => (Math.abs(c - at) < Math.abs(axis[found] - at) ? i : found), 0);
          expect([axis, index, at, at > from && at < to]).toEqual([axis, index, at, best === index]);
        }
      });
    }
    expect(placeOn(place(), true, ground())).toEqual([0.5, 0.25, 0.75, 0.5]);
    expect(placeOn(place(), false, ground({ crop: [0.5, 0, 1, 1] }))).toEqual([0.75, 0.25, 0.875, 0.5]);
    expect(placeOn(place(), false, ground())).toBeNull();
    expect(placeOn(place({ key: "d#1" }), true, ground())).toBeNull();
    const pixel = place({ key: "", which: "seen", y: 4, x: 8, rows: 8, cols: 16 });
    expect(placeOn(pixel, true, ground())).toEqual([0.5, 0.5, 0.5625, 0.625]);
  });
  test("centers come as numbers, or as the rule of regular ones", () => {
    expect(centersOf([1, 2, 4])).toEqual([1, 2, 4]);
    expect(centersOf({ start: 8, step: 16, count: 3 })).toEqual([8, 24, 40]);
  });
  test("what was said of the places around is said again without asking, of that picture alone", () => {
    const kept = [{ key: "a#1", version: "5", channel: 7, of: 9, around: { y: 2, x: 1, rows: 2, cols: 3, values: ["1", "2", "3", "4", "NaN", "6"], ranks: [1, 2, 3, 4, null, 6] } }];
    expect(knownAnswer(kept, place({ y: 3, x: 2 }), "5")).toEqual({ key: "a#1", channel: 7, y: 3, x: 2, value: "NaN", rank: null, of: 9 });
    expect(knownAnswer(kept, place({ y: 2, x: 3 }), "5")).toMatchObject({ value: "3", rank: 3 });
    for (const wrong of [{ y: 1 }, { y: 4 }, { x: 0 }, { x: 4 }, { channel: 3 }, { key: "b#1" }, { key: "", which: "seen" }]) {
      expect(knownAnswer(kept, place({ y: 3, x: 2, ...wrong }), "5")).toBeNull();
    }
    expect(knownAnswer(kept, place({ y: 3, x: 2 }), "6")).toBeNull();
  });
  test("the map that the pointer is on the way to", () => {
    const to = (more, before, keys = false) => nextMap(place(more), before && place(before), TILES, keys);
    expect(to({}, null)).toMatchObject({ channel: 3, y: 1, x: 0 });
    expect(to({ channel: 3 }, { x: 3 })).toMatchObject({ channel: 9, x: 0 }); // from 7 to the right: the next row begins
    expect(to({ channel: 3 }, { channel: 3, x: 3 })).toMatchObject({ channel: 7, y: 1, x: 3 });
    expect(to({}, { y: 0 })).toMatchObject({ channel: 9, y: 0, x: 2 });
    expect(to({ channel: 9 }, {})).toBeNull(); // below there is none
    expect(to({ channel: 9 }, { channel: 9, y: 2 })).toMatchObject({ channel: 7, y: 3, x: 2 });
    expect(to({}, null, true)).toMatchObject({ channel: 3, y: 1, x: 2 });
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
  test("what was said of the places around needs no question; the next map is asked for ahead", async () => {
    at(11, 21);
    await tick(20);
    expect(sent[1]).toEqual({ type: "point", ask: 0, key: "a#1", version: 5, channel: 3, y: 0, x: 0 });
    const around = (from) => ({ y: 0, x: 0, rows: 1, cols: 3, values: [from, from + 1, from + 2].map(String), ranks: [1, 2, null] });
    reply(sent[0], { value: "1", rank: 1, of: 3, around: around(1) });
    reply(sent[1], { value: "4", rank: 1, of: 3, around: around(4) });
    at(25, 21);
    expect(part(root, "readout").textContent).toBe("channel 7 · y 0, x 1 · 2 · rank 2 of 3");
    at(61, 21);
    expect(part(root, "readout").textContent).toBe("channel 3 · y 0, x 0 · 4 · rank 1 of 3");
    expect(sent.length).toBe(2);
    grid.dataset.version = "6"; // another picture: what was said is of the old one
    at(25, 21);
    expect(sent.length).toBe(3);
    await tick(40);
    expect(part(root, "readout").getAttribute("aria-busy")).toBe("true");
  });
  test("a channel is kept first by the star over its map, or by p", async () => {
    at(65, 21);
    await tick(40);
    const star = part(root, "keep-first");
    expect([star.hidden, star.textContent, star.getAttribute("aria-pressed")]).toEqual([false, "☆", "false"]);
    star.dispatchEvent(new MouseEvent("pointermove", { bubbles: true }));
    star.click();
    expect(sent.at(-1)).toEqual({ type: "first", key: "a#1", channel: 3, on: true });
    root.querySelector("article").dataset.first = "9 3";
    at(66, 22);
    await tick(40);
    expect([star.textContent, star.getAttribute("aria-pressed")]).toEqual(["★", "true"]);
    star.click();
    expect(sent.at(-1)).toMatchObject({ channel: 3, on: false });
    at(300, 300);
    await tick(40);
    expect(star.hidden).toBe(true);
    grid.focus();
    await tick(40);
    expect(star.hidden).toBe(true); // the keys have p
    expect(press(grid, "p").defaultPrevented).toBe(true);
    expect(sent.at(-1)).toEqual({ type: "first", key: "a#1", channel: 7, on: true });
    expect(part(root, "said").textContent).toBe("Channel 7 comes first.");
  });
  test("an answer without a value shows nothing and is not asked again", async () => {
    at(11, 21);
    reply(sent[0], {});
    at(11, 21);
    await tick(40);
    expect(part(root, "readout").hidden).toBe(true);
    expect(sent.filter(({ ask }) => ask).length).toBe(1);
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
  test("a click pins the place that is pointed at, though its own coordinates are rounded", () => {
    // Four places lie within one pixel.
    grid.dataset.tiles = JSON.stringify({ ...TILES, rows: TILES.height * 4, cols: TILES.width * 4 });
    at(65.9, 35.9, "pointermove");
    at(65.9, 35.9, "pointerdown");
    at(65.9, 35.9, "pointerup");
    at(65, 35, "click");
    const pinned = sent.at(-1);
    at(65.9, 35.9, "click");
    expect(sent.at(-1)).toEqual(pinned);
    at(65, 35, "pointerup");
    at(65, 35, "click");
    expect(sent.at(-1)).not.toEqual(pinned);
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
