import { beforeEach, describe, expect, test, vi } from "vitest";
import { renderApp } from "../../hookviz/widget/js/app.js";
import { FakeModel, part, parts, press, tick } from "./fake_model.js";

const STATE = {
  model_info: { name: "vgg16", weights: "bundled", trained: true, note: "" }, devices: ["cuda", "cpu"], device: "cpu",
  status: { state: "idle", text: "Ready." }, why_not: "", why_no_export: "", predictions: {}, export_result: {}, auto_run: false, alert: {}, max_bytes: 5e7,
};

describe("app", () => {
  let model, el, outside, leaks, leave;
  beforeEach(() => {
    leave?.();
    document.body.replaceChildren();
    model = new FakeModel(structuredClone(STATE));
    outside = document.createElement("div");
    el = document.createElement("div");
    outside.append(el);
    document.body.append(outside);
    leaks = [];
    outside.addEventListener("keydown", (event) => leaks.push(event.key));
    leave = renderApp({ model, el });
    model.sent = [];
  });
  const root = () => part(el, "app");

  test("header, state and devices", () => {
    expect(part(el, "model-button").textContent).toBe("vgg16");
    expect(part(el, "state").textContent).toBe("Ready.");
    expect(part(el, "device").value).toBe("cpu");
    expect(part(el, "untrained")).toBeNull();
    model.change({ model_info: { name: "resnet18", weights: "none", trained: false } });
    expect(part(el, "untrained").textContent).toBe("UNTRAINED");
  });
  test("predictions change where they stand, and go where there are none", () => {
    const lines = () => parts(el, "prediction").map((line) => line.textContent);
    model.change({ predictions: { items: [["cat", 0.5], ["dog", 0.25]] } });
    expect(lines()).toEqual(["cat50.0 %", "dog25.0 %"]);
    const [first] = parts(el, "prediction");
    const [text] = first.firstChild.childNodes;
    model.change({ predictions: { items: [["car", 0.75], ["dog", 0.125]] } });
    expect(lines()).toEqual(["car75.0 %", "dog12.5 %"]);
    expect([first.firstChild.title, first.querySelector("[style]").getAttribute("style")]).toEqual(["car", "width:75.0%"]);
    expect([parts(el, "prediction")[0], text.data]).toEqual([first, "car"]);
    expect(part(el, "predictions").querySelector("summary").textContent).toBe("car75.0 %");
    model.change({ predictions: { items: [["car", 1]] } });
    expect(lines()).toEqual(["car100.0 %"]);
    model.change({ predictions: { reason: "No classes." } });
    expect(lines()).toEqual([]);
    expect([part(el, "predictions").hidden, part(el, "predictions-reason").textContent]).toEqual([true, "No classes."]);
  });
  test("run, its reasons, cancel and progress", () => {
    part(el, "run").click();
    expect(model.types()).toEqual(["run"]);
    model.change({ why_not: "Choose an image." });
    part(el, "run").click();
    expect(model.types()).toEqual(["run"]);
    expect(part(el, "run-reason").textContent).toBe("Choose an image.");
    model.change({ why_not: "", status: { state: "running", text: "Running …", done: 3, total: 8, unit: "layers" } });
    expect(part(el, "run").getAttribute("aria-disabled")).toBe("true");
    expect(part(el, "progress").getAttribute("aria-valuenow")).toBe("3");
    expect(part(el, "progress-text").textContent).toBe("3 of 8 layers");
    part(el, "cancel").click();
    expect(model.types()).toEqual(["run", "cancel"]);
  });
  test.each(["x", "b", "m", "d", "ArrowDown", "Enter", "Escape", ".", "/", "a", "Delete"])("the key %s does not leave the app", (key) => {
    for (const control of root().querySelectorAll("button, input, select")) press(control, key);
    press(root(), key);
    expect(leaks).toEqual([]);
  });
  test("Shift+Enter and pasting do not reach the notebook; saving does", () => {
    press(part(el, "run"), "Enter", { shiftKey: true });
    press(part(el, "run"), "Enter", { ctrlKey: true });
    press(part(el, "run"), "v", { ctrlKey: true });
    expect(leaks).toEqual([]);
    press(part(el, "run"), "s", { ctrlKey: true });
    expect(leaks).toEqual(["s"]);
  });
  test("keys: Enter runs, . cancels, e exports, ? helps, Esc closes", () => {
    press(root(), "Enter");
    expect(model.types()).toEqual(["run"]);
    press(root(), "?");
    expect(part(el, "help-dialog").hidden).toBe(false);
    press(part(el, "help-dialog"), "Escape");
    expect(part(el, "help-dialog").hidden).toBe(true);
    press(root(), "e");
    expect(part(el, "export-dialog").hidden).toBe(false);
    press(root(), "Escape");
    expect(part(el, "export-dialog").hidden).toBe(true);
    model.change({ status: { state: "running", text: "" } });
    press(root(), ".");
    expect(model.types()).toEqual(["run", "page-size", "cancel"]);
  });
  test("the page's size is said before it is made, for what is chosen", () => {
    part(el, "export-button").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "page-size", scope: "ticked", key: "" });
    expect(part(el, "page-about").textContent).not.toContain("at most");
    model.hear({ type: "page-size", scope: "all", key: "", size: 1e6 });
    expect(part(el, "page-about").textContent).not.toContain("at most");
    model.hear({ type: "page-size", scope: "ticked", key: "", size: 4.1e6 });
    expect(part(el, "page-about").textContent).toContain("at most 4.1 MB");
    part(el, "share").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "zip", scope: "ticked", what: ["page"] });
    parts(el, "export-scope")[2].click();
    expect(part(el, "share").getAttribute("aria-disabled")).toBe("true");
    expect(part(el, "page-about").textContent).not.toContain("at most");
    const sent = model.sent.length;
    part(el, "share").click();
    model.change({ why_no_export: "Run the model first." });
    part(el, "share").click();
    expect(model.sent.slice(sent).map((m) => m.type)).not.toContain("zip");
  });
  test("one alert, with remedy, folded details and an action; none is none", () => {
    expect(part(el, "alert")).toBeNull();
    model.change({ alert: { message: "Out of memory.", remedy: "Tick fewer.", traceback: "Trace", action: { label: "Retry on CPU", do: "retry-cpu" } } });
    expect(parts(el, "alert").length).toBe(1);
    expect(part(el, "alert").getAttribute("role")).toBe("alert");
    expect(part(el, "alert-details").open).toBe(false);
    part(el, "alert-action").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "action", do: "retry-cpu" });
    part(el, "alert-dismiss").click();
    expect(model.sent.at(-1).type).toBe("dismiss");
    model.change({ alert: {} });
    expect(part(el, "alert")).toBeNull();
  });
  test.each([
    ["ok", "M3.5 8.5"], ["failed", "M4.5 4.5"], ["cancelled", "<rect"],
  ])("how a job ended is told by a sign of its own: %s", (outcome, drawn) => {
    model.change({ status: { state: "idle", text: "So it ended.", outcome } });
    const light = part(el, "state").parentElement;
    expect(light.dataset.outcome).toBe(outcome);
    expect(light.querySelector("svg").outerHTML).toContain(drawn);
  });
  test("a status is written once", () => {
    model.change({ status: { state: "idle", text: "Done in 0.96 s: 3 layers.", outcome: "ok" } });
    expect(el.textContent.split("Done in 0.96 s").length).toBe(2);
  });
  test.each([
    [{ done: 3, total: 34, unit: "layers" }, "3 of 34 layers"], [{ done: 29491000, total: 102530000, unit: "bytes" }, "29 MB of 103 MB"],
    [{ done: 5, total: 9, unit: "files" }, "5 of 9 files"],
  ])("what is counted is named: %j", (status, text) => {
    model.change({ status: { state: "loading", text: "", ...status } });
    expect(part(el, "progress-text").textContent).toBe(text);
    expect(part(el, "progress").getAttribute("aria-valuetext")).toBe(text);
  });
  test("weights that cannot be had: buttons that do what helps", () => {
    model.change({ alert: { message: "resnet50.pth could not be downloaded.", remedy: "… or use weights=None.", code: "download-failed",
      details: { file: "resnet50.pth", folder: "/cache", url: "http://www.w3.org/resnet50.pth", model: "resnet50" } } });
    expect(part(el, "alert").textContent).not.toContain("weights=");
    expect(parts(el, "alert-action").map((b) => b.textContent)).toEqual(["Try again", "Choose a file", "Load it untrained"]);
    parts(el, "alert-action")[0].click();
    expect(model.sent.at(-1)).toMatchObject({ type: "action", do: "retry" });
    parts(el, "alert-action")[1].click();
    expect(part(el, "model-dialog").hidden).toBe(false);
    expect(model.sent.at(-1)).toMatchObject({ type: "models", search: "resnet50" });
    model.hear({ type: "models", search: "resnet50", names: [["resnet50", false], ["wide_resnet50_2", false]], current: "vgg16" });
    expect(model.sent.at(-1)).toMatchObject({ type: "weights", model: "resnet50" });
    model.hear({ type: "weights", model: "resnet50", choices: [["auto", "automatic", ""], ["file", "a file of my own …", ""]] });
    expect(part(el, "model-weights").value).toBe("file");
    expect(document.activeElement).toBe(part(el, "model-file"));
  });
  test("a model without its classifier offers the full one", () => {
    model.change({ model_info: { name: "vgg16", weights: "bundled", trained: true, note: "use weights='DEFAULT'", partial: 527.8 } });
    expect(part(el, "note").textContent).not.toContain("DEFAULT");
    const [button] = parts(el, "alert-action");
    expect(button.textContent).toBe("Download the full model (528 MB)");
    button.click();
    expect(model.sent.at(-1)).toMatchObject({ type: "action", do: "download-full" });
  });
  test("export sends what was chosen", () => {
    part(el, "export-button").click();
    const [grid, , channels] = parts(el, "export-scope");
    channels.checked = true;
    channels.dispatchEvent(new Event("change"));
    part(el, "export-channels").value = "0-3";
    part(el, "export-start").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "export", scope: "channels", channels: "0-3", what: ["grids", "channels"], values: "npz", folder: "hookviz_exports" });
    expect(grid.checked).toBe(false);
    model.change({ export_result: { path: "/tmp/out", files: 3 } });
    expect(part(el, "export-path").textContent).toBe("/tmp/out");
    model.change({ why_no_export: "Run the model first." });
    part(el, "zip").click();
    expect(model.sent.at(-1).type).toBe("export");
    model.change({ why_no_export: "" });
    for (const kind of ["export-grids", "export-svg", "export-pdf"]) part(el, kind).click();
    part(el, "zip").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "zip", what: ["svg", "pdf", "channels"] });
  });
  const typed = (search, text) => {
    search.value = text;
    search.dispatchEvent(new Event("input"));
    return tick(150);
  };
  test("choosing a model: search, arrows, weights, load", async () => {
    part(el, "model-button").click();
    expect(model.types()).toEqual(["models"]);
    model.hear({ type: "models", search: "", names: ["vgg16", "resnet18", "resnet50"].map((name) => [name, false]), current: "vgg16" });
    expect(model.sent.at(-1)).toMatchObject({ type: "weights", model: "vgg16" });
    const search = el.querySelector('[aria-label="Search models"]');
    await typed(search, "resnet");
    expect(model.sent.at(-1)).toMatchObject({ type: "models", search: "resnet" });
    model.hear({ type: "models", search: "", names: [["an answer to an older search", false]], current: "vgg16" });
    model.hear({ type: "models", search: "resnet", names: [["resnet18", false], ["resnet50", false]], current: "vgg16" });
    expect(parts(el, "model-option").map((o) => o.dataset.name)).toEqual(["resnet18", "resnet50"]);
    press(search, "ArrowDown");
    model.hear({ type: "weights", model: "resnet50", choices: [["auto", "best", ""], ["none", "none", "Random."]] });
    part(el, "model-weights").value = "none";
    part(el, "model-load").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "load", model: "resnet50", weights: "none" });
    expect(part(el, "model-dialog").hidden).toBe(true);
  });
  test("a name of timm's and a checkpoint's path can be typed; what is on this machine is marked", async () => {
    part(el, "model-button").click();
    model.hear({ type: "models", search: "", names: [["resnet18", false], ["vgg16", true]], current: "vgg16" });
    expect(parts(el, "model-option").map((o) => o.textContent)).toEqual(["resnet18", "vgg16on this machine"]);
    const search = el.querySelector('[aria-label="Search models"]');
    for (const text of ["timm:resnet10t", "~/runs/best.ckpt", "C:\\models\\net.pt"]) {
      await typed(search, text);
      expect(model.sent.at(-1)).toMatchObject({ type: "models", search: text });
      model.hear({ type: "models", search: text, names: [["timm:resnet10t.a1_in1k", false], [text, true]], current: "vgg16" });
      expect(part(el, "model-list").querySelector('[aria-selected="true"]').dataset.name).toBe(text);
    }
    press(search, "Enter");
    expect(model.sent.at(-1)).toMatchObject({ type: "load", model: "C:\\models\\net.pt", weights: "auto" });
    part(el, "model-button").click();
    await typed(search, "resnet99");
    model.hear({ type: "models", search: "resnet99", names: [], current: "vgg16" });
    expect(part(el, "model-list").textContent).toBe("No matching model.");
    expect(part(el, "model-load").getAttribute("aria-disabled")).toBe("true");
  });
  describe("Copy as Python", () => {
    const asWritten = (write) => Object.defineProperty(navigator, "clipboard", { value: { writeText: write }, configurable: true });
    test("puts the kernel's answer into the clipboard and says so", async () => {
      const written = [];
      asWritten(async (text) => void written.push(text));
      model.hear({ type: "python", text: "asked by another view" });
      await tick();
      expect(written).toEqual([]);
      part(el, "python").click();
      expect(model.types()).toEqual(["as-python"]);
      model.hear({ type: "python", text: "import hookviz\n" });
      await tick();
      expect(written).toEqual(["import hookviz\n"]);
      expect(part(el, "copied").textContent).toContain("Copied");
      expect(part(el, "python-dialog").hidden).toBe(true);
      model.change({ why_not: "" });
      expect(part(el, "copied").textContent).toBe("");
    });
    test("shows the text where the page may not write", async () => {
      asWritten(() => Promise.reject(new Error("denied")));
      part(el, "python").click();
      model.hear({ type: "python", text: "import hookviz\n" });
      await tick();
      expect(part(el, "python-dialog").hidden).toBe(false);
      expect(part(el, "python-text").value).toBe("import hookviz\n");
      expect(document.activeElement).toBe(part(el, "python-text"));
      part(el, "python-again").click();
      await tick();
      expect(part(el, "python-hint").textContent).toContain("Ctrl+C");
      press(part(el, "python-text"), "Escape");
      expect(part(el, "python-dialog").hidden).toBe(true);
    });
    test("is off with the reason while something is missing", () => {
      model.change({ why_not: "Choose an image." });
      part(el, "python").click();
      expect(model.sent).toEqual([]);
      expect(part(el, "python").title).toBe("Choose an image.");
    });
  });
  test("a large run is asked about", () => {
    model.hear({ type: "ask-large", question: "About 2 GB." });
    expect(part(el, "large-dialog").getAttribute("role")).toBe("alertdialog");
    expect(part(el, "large-text").textContent).toBe("About 2 GB.");
    [...part(el, "large-dialog").querySelectorAll("button")].find((b) => b.textContent === "Run anyway").click();
    expect(model.sent.at(-1)).toMatchObject({ type: "run", anyway: true });
  });
  test("a kernel that was restarted: run the cell again", async () => {
    el.classList.add("jupyter-widgets-disconnected");
    for (const callback of model.listeners.get("comm_live_update")) callback();
    await tick(5);
    expect(root().dataset.state).toBe("dead");
    expect(part(el, "dead").textContent).toContain("run the cell again");
    model.change({ status: { state: "idle", text: "" } });
    expect(root().dataset.state).toBe("dead");
  });
  test("a kernel that does not answer is asked, then said to be silent, until it answers", () => {
    vi.useFakeTimers();
    part(el, "run").click();
    vi.advanceTimersByTime(3100);
    expect(model.types()).toEqual(["run", "ping"]);
    vi.advanceTimersByTime(7000);
    expect(part(el, "dead").textContent).toContain("has not answered");
    model.hear({ type: "pong" });
    expect(part(el, "dead").hidden).toBe(true);
    part(el, "cancel").click();
    vi.useRealTimers();
  });
  test("each part is drawn by the host, in its place; one that cannot be says why", async () => {
    leave();
    const drawn = [];
    const host = { getWidget: async (reference) => {
      if (reference === "anywidget:2") throw new Error("no such widget");
      return { render: async ({ el: slot, signal }) => drawn.push([reference, slot.className, signal.aborted]) };
    } };
    Object.assign(model.state, { image_input: "anywidget:1", tree: "anywidget:2", gallery: "anywidget:3" });
    leave = renderApp({ model, el, host });
    await tick(1);
    expect(drawn).toEqual([["anywidget:1", "hv-place hv-place-image_input", false], ["anywidget:3", "hv-place hv-place-gallery", false]]);
    expect(el.lastElementChild.querySelector(".hv-place-tree").textContent).toContain("no such widget");
    leave();
    leave(); // a host may end a view twice
    expect([...model.listeners.values()].flat()).toEqual([]);
    leave = null;
  });
  test("goodbye is said when the output goes, not when the notebook goes", async () => {
    leave();
    await tick(350);
    expect(model.types()).toEqual(["view-closed"]);
    model.sent = [];
    outside.className = "jp-NotebookPanel";
    leave = renderApp({ model, el });
    model.sent = [];
    await tick(5);
    outside.remove();
    leave();
    await tick(350);
    expect(model.types()).toEqual([]);
    leave = null;
  });
});
