import { beforeEach, describe, expect, test } from "vitest";
import { h } from "../../hookviz/widget/js/kit.js";
import { markAt } from "../../hookviz/widget/js/histogram.js";
import { renderChannel } from "../../hookviz/widget/js/panel_channel.js";
import { moved, showing, wheeled, WHOLE, zoomed } from "../../hookviz/widget/js/zoom.js";
import { FakeModel, part, parts, press } from "./fake_model.js";

const turn = (more) => ({ deltaX: 0, deltaY: 0, deltaMode: 0, ctrlKey: false, metaKey: false, shiftKey: false, ...more });
const FRAME = { width: 300, height: 300, across: 0.5, down: 0.5, most: 8 };

describe("a view", () => {
  test("enlarged at a point, that point stays where it is", () => {
    const view = zoomed(WHOLE, 3, 8, 0.25, 0.75);
    expect(view.scale).toBeCloseTo(1.25 ** 3);
    expect((0.25 - view.x) * view.scale).toBeCloseTo(0.25);
    expect((0.75 - view.y) * view.scale).toBeCloseTo(0.75);
    expect(zoomed(view, -3, 8, 0.25, 0.75)).toEqual(WHOLE);
  });
  test("it never shows what is beyond the picture, nor more or less than it may", () => {
    expect(zoomed(WHOLE, 99, 8).scale).toBe(8);
    expect(zoomed(WHOLE, -5, 8)).toEqual(WHOLE);
    expect(moved({ scale: 2, x: 0, y: 0 }, 9, -9)).toEqual({ scale: 2, x: 0.5, y: 0 });
    const smaller = zoomed({ scale: 4, x: 0.75, y: 0.75 }, -3, 8, 0, 0);
    expect(smaller.x).toBeCloseTo(1 - 1 / smaller.scale);
  });
  test("a box is brought into sight by the smallest move", () => {
    const view = { scale: 4, x: 0.25, y: 0.25 };
    expect(showing(view, [0.3, 0.3, 0.4, 0.4])).toEqual(view);
    expect(showing(view, [0.9, 0.1, 1, 0.2])).toEqual({ scale: 4, x: 0.75, y: 0.1 });
  });
  test("what the wheel cannot do leaves the view as it is, so that it goes on to the page", () => {
    for (const deltaY of [100, -100]) expect(wheeled(WHOLE, turn({ deltaY }), FRAME)).toEqual(WHOLE);
    const view = { scale: 2, x: 0, y: 0.5 };
    expect(wheeled(view, turn({ deltaY: 100 }), FRAME)).toEqual(view);
    expect(wheeled(view, turn({ deltaY: -30 }), FRAME).y).toBeCloseTo(0.45);
    expect(wheeled(view, turn({ deltaY: 30, shiftKey: true }), FRAME)).toMatchObject({ x: 0.05, y: 0.5 });
    expect(wheeled(WHOLE, turn({ deltaY: 100, ctrlKey: true }), FRAME)).toEqual(WHOLE);
    expect(wheeled(WHOLE, turn({ deltaY: -50, ctrlKey: true }), FRAME).scale).toBeCloseTo(1.25);
    expect(wheeled({ scale: 8, x: 0, y: 0 }, turn({ deltaY: -50, metaKey: true }), FRAME).scale).toBe(8);
    expect(wheeled(view, turn({ deltaY: -1, deltaMode: 1 }), FRAME).y).toBeCloseTo(0.45);
  });
});

test("a value's mark in the histogram", () => {
  expect(markAt("0.5", [-1, 2])).toBe(0.5);
  expect(markAt("-1", [-1, 2])).toBe(0);
  for (const value of ["NaN", "+Inf", "-Inf", "", undefined, "1+2j"]) expect(markAt(value, [-1, 2])).toBeNull();
  expect(markAt("3", [])).toBeNull();
});

const SHOWN = { key: "a#1", channel: 3, label: "a", type: "Conv2d", of: 8, rows: 4, cols: 4, image: true, stale: false,
  numbers: [["Minimum", "−1", null], ["Maximum", "2", 5]], odd: "", counts: [1, 0, 7], ends: [-1, 2], name: "a_channel_3" };

describe("the panel", () => {
  let model, el, app;
  const PNG = new DataView(new ArrayBuffer(8));
  beforeEach(() => {
    document.body.replaceChildren();
    URL.createObjectURL = () => "blob:x";
    URL.revokeObjectURL = () => {};
    model = new FakeModel({ shown: SHOWN, places: [], inputs: {}, earlier: [], sent: {} });
    el = h("div");
    app = h("section", { hv: "app" }, el);
    document.body.append(app);
    renderChannel({ model, el });
    model.hear({ type: "map", key: "a#1", channel: 3, version: 9, ends: [-1, 2], colors: ["#000000", "#ffffff"], scale: "one scale" }, [PNG, PNG]);
    model.sent = [];
  });

  test("says the channel, its numbers and ranks", () => {
    expect(part(el, "channel-title").textContent).toBe("a Conv2d");
    expect(part(el, "channel-number").value).toBe("3");
    expect([...part(el, "channel-numbers").querySelectorAll("tbody tr")].map((row) => row.textContent)).toEqual(["Minimum−1", "Maximum25 of 8"]);
    const map = part(el, "channel-map");
    expect(JSON.parse(map.dataset.tiles)).toMatchObject({ channels: [3], rows: 4, cols: 4 });
    expect([map.dataset.key, map.dataset.version, map.tabIndex]).toEqual(["a#1", "9", 0]);
  });
  test("a map of another channel, which comes late, is not shown", () => {
    model.hear({ type: "map", key: "a#1", channel: 2, version: 10, ends: [0, 1], colors: [] }, [PNG]);
    expect(part(el, "channel-map").dataset.version).toBe("9");
  });
  test("keys: the next and the previous channel, larger, smaller, whole", () => {
    const map = part(el, "channel-map");
    for (const [key, more] of [["PageDown", {}], ["PageUp", {}], ["ArrowRight", { shiftKey: true }], ["ArrowLeft", { shiftKey: true }]]) {
      expect(press(map, key, more).defaultPrevented).toBe(true);
    }
    expect(model.sent.map((m) => m.by)).toEqual([1, -1, 1, -1]);
    const scale = () => Number(part(el, "channel-frame").dataset.view.split(" ")[0]);
    press(map, "+");
    expect(scale()).toBeCloseTo(1.25 ** 2, 3);
    press(map, "-");
    expect(scale()).toBe(1);
    press(map, "+");
    press(map, "0");
    expect(scale()).toBe(1);
    expect(press(part(el, "channel-name"), "0").defaultPrevented).toBe(false);
    expect(press(map, "+", { ctrlKey: true }).defaultPrevented).toBe(false);
  });
  test("the wheel over a whole map goes on to the page, over an enlarged one until its end", () => {
    const frame = part(el, "channel-frame");
    for (const name of ["clientWidth", "clientHeight"]) Object.defineProperty(frame, name, { value: 300 });
    const wheel = (deltaY) => {
      const event = new WheelEvent("wheel", { deltaY, bubbles: true, cancelable: true });
      frame.dispatchEvent(event);
      return event.defaultPrevented;
    };
    expect([wheel(50), wheel(-50)]).toEqual([false, false]);
    part(el, "channel-more").click();
    expect([wheel(1), wheel(9999), wheel(50)]).toEqual([true, true, false]);
    expect([wheel(-9999), wheel(-50)]).toEqual([true, false]);
  });
  test("what pointing finds stands here and in the histogram, and nowhere else", () => {
    const say = (detail) => {
      const event = new CustomEvent("hv-said", { cancelable: true, detail });
      app.dispatchEvent(event);
      return event.defaultPrevented;
    };
    const facts = { key: "a#1", channel: 3, y: 1, x: 2, value: "0.5", rank: 2, of: 8 };
    expect(say({ img: part(el, "channel-map"), facts, waits: false, byKeys: false })).toBe(true);
    expect(part(el, "channel-cursor").textContent).toBe("channel 3 · y 1, x 2 · 0.5 · rank 2 of 8");
    expect(part(el, "channel-histogram").dataset.mark).toBe("0.5");
    expect(say({ img: h("img"), facts, waits: false, byKeys: false })).toBe(false);
    expect(part(el, "channel-histogram").dataset.mark).toBeUndefined();
  });
  test("strongest places pin, input channels lead on where their layer is known", () => {
    const field = { state: "known", size: [3, 3], beyond: [1, 0, 0, 0], whole: false, note: "" };
    model.change({ places: [{ y: 1, x: 2, value: "-5", field }] });
    part(el, "channel-place").click();
    expect(part(el, "channel-place").getAttribute("aria-label")).toBe("Pin y 1, x 2: −5. Sees 3 × 3 pixels of the input, 1 past its left edge.");
    const inputs = { bars: [[4, "0.2", 1, false], [1, "0.1", 0.5, true]], of: 6, total: 6, nearest: "r", filters: "6 kernels" };
    model.change({ inputs: { ...inputs, leads: { key: "b#1", label: "b", through: ["r"] } } });
    parts(el, "channel-input")[1].click();
    expect(model.sent).toMatchObject([{ type: "pin", key: "a#1", channel: 3, y: 1, x: 2 }, { type: "open", key: "b#1", channel: 1 }]);
    expect(el.textContent).toContain("− 0.1");
    model.change({ inputs: { ...inputs, leads: {} } });
    expect(parts(el, "channel-input")).toEqual([]);
    expect(el.textContent).toContain("Tick r");
  });
  test("a taken name is replaced only when asked", () => {
    expect(part(el, "channel-name").value).toBe("a_channel_3");
    part(el, "channel-send").click();
    model.change({ sent: { state: "taken", text: "There already.", name: "a_channel_3" } });
    expect(part(el, "channel-replace").hidden).toBe(false);
    part(el, "channel-replace").click();
    expect(model.sent).toMatchObject([{ type: "send", name: "a_channel_3", again: false }, { type: "send", again: true }]);
    part(el, "channel-name").dispatchEvent(new Event("input"));
    expect(part(el, "channel-replace").hidden).toBe(true);
  });
  test("what it looks for is asked for, grows, can be cancelled, and stands with both values", () => {
    const [size, steps] = [part(el, "channel-size"), part(el, "channel-steps")];
    size.value = "64";
    steps.value = "40";
    press(steps, "Enter");
    expect(model.sent).toMatchObject([{ type: "visualize", size: 64, steps: 40, seed: 0 }]);
    const bar = part(el, "channel-looks-bar");
    model.change({ looks_for: { state: "working", why_not: "", step: 10, steps: 40, value: "3.5" } });
    model.hear({ type: "looks-for", key: "a#1", channel: 3 }, [PNG]);
    const img = part(el, "channel-looks-picture");
    expect([img.hidden, img.alt, bar.hidden, bar.getAttribute("aria-valuenow")]).toEqual([false, "The picture so far", false, "10"]);
    part(el, "channel-looks").click();
    part(el, "channel-looks-cancel").click();
    expect(model.types()).toEqual(["visualize", "cancel"]);
    model.change({ looks_for: { state: "done", why_not: "", title: "channel 3 of a", clean: "9.1", robust: "7.2", note: "40 steps" } });
    expect([...part(el, "channel-looks-values").querySelectorAll("td")].map((cell) => cell.textContent)).toEqual(["9.1", "7.2"]);
    expect([bar.hidden, img.alt]).toEqual([true, "What channel 3 of a looks for"]);
    part(el, "channel-looks-export").click();
    expect(model.types().at(-1)).toBe("export");
    model.change({ alert: { message: "The size is 4.", field: "looks-for" } });
    expect(part(el, "channel-looks-problem").textContent).toContain("The size is 4.");
    model.change({ looks_for: { state: "none", why_not: "" } });
    expect(img.hidden).toBe(true);
  });
  test("without a channel it says how one is opened", () => {
    model.change({ shown: {} });
    expect(part(el, "channel-title").closest("[hidden]")).not.toBeNull();
    expect(el.textContent).toContain("Double-click a map");
  });
});
