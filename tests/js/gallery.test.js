import { beforeEach, describe, expect, test } from "vitest";
import { renderGallery } from "../../hookviz/widget/js/gallery.js";
import { factsText } from "../../hookviz/widget/js/gallery_card.js";
import { bytesText, numberText } from "../../hookviz/widget/js/kit.js";
import { FakeModel, part, parts, press } from "./fake_model.js";

const CHOICES = { cmaps: ["auto", "magma"], scales: [["auto", "automatic"], ["fixed", "fixed"]], orders: ["index", "mean"] };
const card = (key, more = {}) => ({ key, layer: key.split("#")[0], call: Number(key.split("#")[1]), calls: 1, type: "Conv2d", state: "shown", reason: "", leaf: "", leaves: [], stale: false, collapsed: false, statistics: false, version: 1, ...more });
const pixels = (key, more = {}) => ({ type: "pixels", key, version: 1, page: 0, pages: 8, width: 600, height: 400, shape: "512×14×14", low: -344.06, high: 361.13, dead: 0, channels: 512, bytes: 4e5, scale: "per layer", odd: "", alt: "maps", ...more });
const PNG = [new DataView(new ArrayBuffer(8))];

describe("texts", () => {
  test("numbers and bytes", () => {
    expect(numberText(-344.06)).toBe("−344.1");
    expect(numberText(0.000012)).toBe("1.2e−5");
    expect(numberText(null)).toBe("–");
    expect([0, 999, 1000, 12845056, 999600, 3.2e9].map(bytesText)).toEqual(["0 B", "999 B", "1.0 kB", "13 MB", "1.0 MB", "3.2 GB"]);
    expect(factsText(pixels("a#1"))).toBe("512×14×14 · −344.1 … 361.1 · 0 dead");
  });
});

describe("gallery", () => {
  let model, el, leave;
  beforeEach(() => {
    leave?.();
    document.body.replaceChildren();
    model = new FakeModel({ cards: [card("a#1"), card("b#1")], view: { cmap: "auto", scale: "auto", order: "index", per_page: 64 }, choices: CHOICES, empty: "Nothing." });
    el = document.createElement("div");
    document.body.append(el);
    leave = renderGallery({ model, el });
    model.sent = [];
  });
  const of = (key, name) => el.querySelector(`[data-key="${key}"] [data-hv="${name}"]`);

  test("channels are those of all layers, or of the card in use; what a card has alone is said on it", () => {
    const [box, of_] = [part(el, "view-channels"), part(el, "view-channels-of")];
    const type = (text) => {
      box.value = text;
      box.dispatchEvent(new Event("change", { bubbles: true }));
    };
    of("b#1", "collapse").dispatchEvent(new MouseEvent("mousedown", { bubbles: true }));
    expect([...of_.options].map((o) => o.textContent)).toEqual(["all layers", "b"]);
    type("0-3");
    expect(model.sent.at(-1)).toMatchObject({ type: "view", changes: { channels: "0-3" } });
    of_.value = "one";
    of_.dispatchEvent(new Event("change"));
    expect(box.value).toBe("");
    type("5,6");
    expect(model.sent.at(-1)).toMatchObject({ type: "channels", key: "b#1", channels: "5,6" });
    model.change({ cards: [card("a#1"), card("b#1", { channels: "5,6", first: [9, 2] })] });
    expect(box.value).toBe("5,6");
    expect(of("a#1", "own-first").hidden && of("a#1", "own-channels").hidden).toBe(true);
    expect(of("b#1", "own-first").textContent).toBe("★ 9, 2 ×");
    of("b#1", "own-first").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "none-first", key: "b#1" });
    of("b#1", "own-channels").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "channels", key: "b#1", channels: "" });
    of("a#1", "collapse").dispatchEvent(new MouseEvent("mousedown", { bubbles: true }));
    expect(box.value).toBe("");
    model.change({ alert: { message: "no", field: "channels" } });
    expect(box.getAttribute("aria-invalid")).toBe("true");
  });
  test("a picture is shown with its facts and pages", () => {
    expect(of("a#1", "pending").textContent).toBe("Drawing …");
    model.hear(pixels("a#1"), PNG);
    expect(of("a#1", "grid").dataset.version).toBe("1");
    expect(of("a#1", "page-text").textContent).toBe("1 of 8");
    expect(of("a#1", "pending").hidden).toBe(true);
    expect(of("a#1", "prev").getAttribute("aria-disabled")).toBe("true");
  });
  test("an older picture than the one waited for is not shown", () => {
    model.change({ cards: [card("a#1", { version: 3 })] });
    model.hear(pixels("a#1", { version: 2 }), PNG);
    expect(of("a#1", "grid").dataset.version).toBeUndefined();
  });
  test("turning pages asks for the next one and stops at the ends", () => {
    model.hear(pixels("a#1"), PNG);
    of("a#1", "prev").click();
    of("a#1", "next").click();
    expect(model.sent.filter((m) => m.type === "page")).toMatchObject([{ key: "a#1", page: 1 }]);
    expect(of("a#1", "page-text").textContent).toBe("2 of 8");
    expect(el.querySelector('[data-key="a#1"]').getAttribute("aria-busy")).toBe("true");
  });
  test("a picture that was drawn before the page was turned does not turn it back", () => {
    model.hear(pixels("a#1", { turned: 0 }), PNG);
    of("a#1", "next").click();
    const { at } = model.sent.at(-1);
    expect(at).toBeGreaterThan(0);
    model.hear(pixels("a#1", { version: 2, turned: 0, page: 0 }), PNG);
    expect(of("a#1", "page-text").textContent).toBe("2 of 8");
    model.hear(pixels("a#1", { version: 3, turned: at, page: 1 }), PNG);
    expect(of("a#1", "grid").dataset.version).toBe("3");
    expect(of("a#1", "page-text").textContent).toBe("2 of 8");
  });
  test("keys: ] goes to the next card, PageDown turns its page", () => {
    model.hear(pixels("b#1"), PNG);
    const root = part(el, "gallery");
    expect(press(root, "]").defaultPrevented).toBe(true);
    expect(el.querySelector(".hv-current").dataset.key).toBe("b#1");
    press(root, "PageDown");
    expect(model.sent.at(-1)).toMatchObject({ type: "page", key: "b#1", page: 1 });
  });
  test("keys typed into a box stay there", () => {
    const box = part(el, "view-channels");
    expect(press(box, "]").defaultPrevented).toBe(false);
    box.value = "0-3";
    press(box, "Enter");
    expect(model.sent.at(-1)).toMatchObject({ type: "view", changes: { channels: "0-3" } });
  });
  test("a refused value: the one before stands, and the sentence is at the field", () => {
    model.change({ view: { channels: "0-3", scale: "fixed", vmin: "0", vmax: "1" } });
    const box = part(el, "view-channels");
    box.value = "64";
    press(box, "Enter");
    box.dispatchEvent(new Event("change"));
    expect(model.sent.filter((m) => m.type === "view").length).toBe(1);
    model.change({ alert: { message: "channels names 64 …", code: "no-such-channel", field: "channels",
      details: { channel: "64", last: "63", noun: "channel" } } });
    expect(box.value).toBe("0-3");
    expect(box.getAttribute("aria-invalid")).toBe("true");
    const said = document.getElementById(box.getAttribute("aria-describedby"));
    expect(said.textContent).toBe("This layer has the channels 0 to 63, not 64.");
    expect(parts(el, "alert")).toEqual([]);
    model.change({ alert: {}, view: { channels: "5", scale: "fixed", vmin: "0", vmax: "1" } });
    expect([box.value, box.getAttribute("aria-invalid"), said.hidden]).toEqual(["5", null, true]);
  });
  test("a refusal without a field of its own is an alert", () => {
    model.change({ alert: { message: "No such colormap.", field: "cmap" } });
    expect(part(el, "alert").textContent).toContain("No such colormap.");
  });
  test("what a card cannot follow is said on it; what it cannot draw has a button", () => {
    model.hear(pixels("a#1", { note: { message: "overlay needs maps", remedy: "Draw it without overlay.", code: "overlay-needs-maps", details: {} } }), PNG);
    expect(of("a#1", "card-note").textContent).toBe("These values have no place on the image, so they are drawn without it.");
    model.hear({ type: "pixels", key: "b#1", version: 1, error: "hide_dead=False shows them.", message: "Nothing to draw.",
      remedy: "hide_dead=False shows them.", code: "all-dead", details: { noun: "channel" } });
    expect(of("b#1", "pending").textContent).not.toContain("hide_dead");
    of("b#1", "alert-action").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "view", changes: { hide_dead: false } });
  });
  test("view controls send their change and follow Python", () => {
    const cmap = part(el, "view-cmap");
    cmap.value = "magma";
    cmap.dispatchEvent(new Event("change"));
    expect(model.sent.at(-1).changes).toEqual({ cmap: "magma" });
    model.change({ view: { cmap: "turbo", scale: "fixed", vmin: "-1", vmax: "1", per_page: 9, order: "similarity:3" } });
    expect(cmap.value).toBe("turbo");
    expect(part(el, "view-vmin").closest(".hv-range").hidden).toBe(false);
    expect(part(el, "view-tiles").value).toBe("9");
    expect(part(el, "view-order").value).toBe("similarity:3");
  });
  test("cards come, go and keep their order and their elements", () => {
    const b = el.querySelector('[data-key="b#1"]');
    model.change({ cards: [card("b#1"), card("c#2", { calls: 3 })] });
    expect(parts(el, "card").map((c) => c.dataset.key)).toEqual(["b#1", "c#2"]);
    expect(el.querySelector('[data-key="b#1"]')).toBe(b);
    expect(of("c#2", "call").textContent).toBe("call 2 of 3");
  });
  test("stale, waiting and failing cards say so", () => {
    model.change({ cards: [card("a#1", { stale: true }), card("b#1", { state: "pending", reason: "Run to see it." })] });
    expect(of("a#1", "stale").hidden).toBe(false);
    expect(of("b#1", "pending").textContent).toBe("Run to see it.");
    model.hear({ type: "pixels", key: "a#1", version: 1, error: "No channel 42." });
    expect(of("a#1", "pending").textContent).toBe("No channel 42.");
  });
  test("nothing to show: the text of Python", () => {
    model.change({ cards: [], empty: "Drop a photo." });
    expect(part(el, "empty").hidden).toBe(false);
    expect(part(el, "empty").textContent).toBe("Drop a photo.");
  });
  test("leaving lets go of all", () => {
    leave();
    expect([...model.listeners.values()].flat()).toEqual([]);
    leave = null;
  });
});
