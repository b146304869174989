import { describe, expect, it, vi } from "vitest";
import training from "../../hookviz/widget/js/training.js";
import { FakeModel, part } from "./fake_model.js";

const STATE = {
  about: "Net: step 40, running", alerts: ["Step 3: <b>no</b>"], notes: [], alert: {},
  quantity: "zeros", quantities: [["loss", "loss"], ["zeros", "share of zeros"]],
  layer: "all", layers: [["all", "all layers"], ["0", "conv"]],
  drawn: "conv, maps", figures: [["conv, maps", "conv, maps"]],
  step: 40, steps: [0, 20, 40], channel: -1, channels: 6,
};

function shown(state = {}) {
  URL.createObjectURL ??= () => "blob:x";
  URL.revokeObjectURL ??= () => {};
  globalThis.ResizeObserver ??= class { observe() {} disconnect() {} };
  const model = new FakeModel({ ...STATE, ...state });
  const el = document.createElement("div");
  document.body.append(el);
  const done = training.render({ model, el });
  return { model, el, done, at: (name) => part(el, `training-${name}`) };
}

describe("a watched training", () => {
  it("shows where it is, and texts as texts", () => {
    const { at } = shown();
    expect(at("about").textContent).toBe("Net: step 40, running");
    expect(at("alerts").textContent).toBe("Step 3: <b>no</b>");
    expect([at("quantity").value, at("layer").value, at("drawn").value]).toEqual(["zeros", "all", "conv, maps"]);
  });

  it("goes through time by the slider, which says the step", () => {
    const { model, at } = shown();
    expect([at("slider").value, at("slider").max, at("step").textContent]).toEqual(["2", "2", "after 40 steps (0 to 40)"]);
    at("slider").value = "1";
    at("slider").dispatchEvent(new Event("input"));
    expect([model.get("step"), model.saved]).toEqual([20, 1]);
    model.change({ step: 20 });
    expect(at("slider").getAttribute("aria-valuetext")).toBe("after 20 steps");
    model.change({ step: 0, steps: [0] });
    expect(at("slider").disabled).toBe(true);
  });

  it("chooses a channel by its number, and by a click on its map", () => {
    const { model, at } = shown();
    at("channel").value = "99";
    at("channel").dispatchEvent(new Event("change"));
    expect(model.get("channel")).toBe(5); // the last one there is
    const tiles = { left: 10, top: 20, width: 30, height: 30, across: 40, down: 50, columns: 3, channels: [0, 1, 2, 3, 4, 5] };
    model.hear({ type: "picture", part: "maps", alt: "maps", tiles }, [new DataView(new ArrayBuffer(4))]);
    const img = at("maps");
    expect([img.alt, img.hidden]).toEqual(["maps", false]);
    Object.defineProperty(img, "naturalWidth", { value: 400 });
    img.getBoundingClientRect = () => ({ left: 100, top: 0, width: 200, height: 100 }); // at half its size
    const click = (x, y) => img.dispatchEvent(new MouseEvent("click", { clientX: 100 + x / 2, clientY: y / 2 }));
    click(10 + 40 + 5, 20 + 50 + 5);
    expect(model.get("channel")).toBe(4);
    click(10 + 35, 25); // between two maps
    click(2, 2);
    expect(model.get("channel")).toBe(4);
    at("channel").value = "";
    at("channel").dispatchEvent(new Event("change"));
    expect(model.get("channel")).toBe(-1);
  });

  it("says why there is no picture, and lets go of those it showed", () => {
    const { model, at, done } = shown();
    model.hear({ type: "picture", part: "curves", text: "No gradient norm is known." }, [new DataView(new ArrayBuffer(0))]);
    expect([at("curves").hidden, at("curves-text").textContent, at("curves-text").hidden]).toEqual([true, "No gradient norm is known.", false]);
    model.hear({ type: "picture", part: "curves", alt: "c" }, [new DataView(new ArrayBuffer(4))]);
    expect(at("curves-text").hidden).toBe(true);
    const revoke = vi.spyOn(URL, "revokeObjectURL");
    done();
    expect(revoke).toHaveBeenCalled();
  });

  it("has no maps to show where none are drawn, and no channels of colors", () => {
    const { model, at } = shown({ figures: [], channels: 0 });
    expect(at("slider").closest("section").hidden).toBe(true);
    expect(at("channel").closest("div").hidden).toBe(true);
    model.change({ figures: STATE.figures, channels: 6 });
    expect(at("slider").closest("section").hidden).toBe(false);
  });
});
