import { beforeEach, describe, expect, test } from "vitest";
import { formerChoices, keep, keptFor } from "../../hookviz/widget/js/former.js";
import { Cleanup } from "../../hookviz/widget/js/kit.js";
import { FakeModel, part } from "./fake_model.js";

describe("former choices", () => {
  beforeEach(() => localStorage.clear());
  test("they are kept by cell, for other apps alone, and of so many cells", () => {
    keep("nb#1", "app-1", "{}");
    expect([keptFor("nb#1", "app-1"), keptFor("nb#1", "app-2"), keptFor("nb#2", "app-2")]).toEqual(["", "{}", ""]);
    localStorage.setItem("hookviz:choices:nb#3", "no JSON");
    expect(keptFor("nb#3", "x")).toBe("");
    for (let i = 0; i < 60; i += 1) keep(`many#${i}`, "a", "{}");
    expect(Object.keys(localStorage).filter((key) => key.startsWith("hookviz:choices:")).length).toBe(40);
    expect(keptFor("many#59", "b")).toBe("{}");
  });
  test("Python is told of them, offers them, and hears what is wanted", () => {
    keep("nb#1", "app-1", "{\"a\": 1}");
    const model = new FakeModel({ cell: "nb#1", tree: "app-2", former: {} });
    const sent = [];
    const el = formerChoices(model, new Cleanup(), (message) => sent.push(message));
    expect(sent).toEqual([{ type: "former", text: "{\"a\": 1}" }]);
    expect(el.hidden).toBe(true);
    model.change({ former: { text: "vgg16, 2 layers" } });
    expect([el.hidden, part(el, "former-text").textContent]).toEqual([false, "This cell had: vgg16, 2 layers."]);
    part(el, "use-former").click();
    part(el, "no-former").click();
    expect(sent.slice(1)).toEqual([{ type: "use-former" }, { type: "no-former" }]);
    model.hear({ type: "choices", text: "{}" });
    expect([keptFor("nb#1", "app-2"), keptFor("nb#1", "app-3")]).toEqual(["", "{}"]);
  });
  test("outside a notebook nothing is kept", () => {
    const model = new FakeModel({ cell: "", tree: "app-1" });
    formerChoices(model, new Cleanup(), () => {});
    model.hear({ type: "choices", text: "{}" });
    expect(localStorage.length).toBe(0);
  });
});
