import { beforeEach, describe, expect, test } from "vitest";
import { columnEdge, within } from "../../hookviz/widget/js/columns.js";
import { Cleanup } from "../../hookviz/widget/js/kit.js";
import { press, tick } from "./fake_model.js";

describe("the edge of a column", () => {
  let root, edge, wide;
  const make = async (before = false) => {
    document.body.replaceChildren();
    root = document.createElement("section");
    const column = document.createElement("div");
    wide = 300;
    column.getBoundingClientRect = () => ({ width: Number.parseFloat(root.style.getPropertyValue("--hv-side-width")) || wide });
    edge = columnEdge({ name: "side", label: "Width", column: () => column, limits: () => [200, 500], before }, () => root, new Cleanup());
    root.append(column, edge);
    document.body.append(root);
    await tick(5);
  };
  const width = () => root.style.getPropertyValue("--hv-side-width");
  const pointer = (kind, x) => edge.dispatchEvent(new MouseEvent(kind, { bubbles: true, button: 0, clientX: x }));
  beforeEach(() => localStorage.clear());

  test("widths stay within their limits, the least first", () => {
    expect([within(10, [200, 500]), within(321.4, [200, 500]), within(900, [200, 500]), within(900, [200, 100])]).toEqual([200, 321, 500, 200]);
  });
  test("arrows, Home, End and Enter, and what a screen reader is told", async () => {
    await make();
    const told = () => ["aria-valuemin", "aria-valuenow", "aria-valuemax"].map((name) => edge.getAttribute(name));
    expect(edge.getAttribute("role")).toBe("separator");
    expect(told()).toEqual(["200", "300", "500"]);
    expect(width()).toBe("");
    for (const [key, more, wanted] of [["ArrowRight", {}, "316px"], ["ArrowLeft", {}, "300px"], ["ArrowLeft", { shiftKey: true }, "236px"], ["Home", {}, "200px"], ["ArrowLeft", {}, "200px"], ["End", {}, "500px"]]) {
      expect(press(edge, key, more).defaultPrevented).toBe(true);
      expect([key, width()]).toEqual([key, wanted]);
    }
    expect(told()[1]).toBe("500");
    expect(localStorage.getItem("hookviz:side-width")).toBe("500");
    press(edge, "Enter");
    expect([width(), localStorage.getItem("hookviz:side-width")]).toEqual(["", null]);
    expect(press(edge, "x").defaultPrevented).toBe(false);
  });
  test("it is dragged, and what stands is remembered for the next app", async () => {
    await make();
    pointer("pointermove", 900);
    expect(width()).toBe("");
    pointer("pointerdown", 300);
    pointer("pointermove", 340);
    expect([width(), localStorage.getItem("hookviz:side-width")]).toEqual(["340px", null]);
    pointer("pointerup", 340);
    expect(localStorage.getItem("hookviz:side-width")).toBe("340");
    pointer("pointermove", 400);
    expect(width()).toBe("340px");
    await make();
    expect(width()).toBe("340px");
    edge.dispatchEvent(new MouseEvent("dblclick"));
    expect(width()).toBe("");
  });
  test("before its column it grows to the left; what is remembered and makes no sense is left", async () => {
    localStorage.setItem("hookviz:side-width", "wide");
    await make(true);
    expect(width()).toBe("");
    press(edge, "ArrowLeft");
    expect(width()).toBe("316px");
  });
});
