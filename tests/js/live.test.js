import { beforeEach, describe, expect, test, vi } from "vitest";
import { BUSY_AFTER, Chain, GIVE_UP_AFTER } from "../../hookviz/widget/js/live_chain.js";
import { mosaic, packedTable, pair } from "../../hookviz/widget/js/live_card.js";
import { Film, pace } from "../../hookviz/widget/js/live_film.js";
import { cameraProblem, opaque, Packing } from "../../hookviz/widget/js/live_sources.js";
import { renderLive } from "../../hookviz/widget/js/panel_live.js";
import { FakeModel, part, press, tick } from "./fake_model.js";

describe("the chain of frames", () => {
  let time, sent, busy, failed, chain;
  const offer = (name) => chain.offer((seq) => { sent.push([seq, name]); });
  beforeEach(() => {
    time = 0;
    sent = [];
    busy = [];
    failed = [];
    chain = new Chain({ busy: (on) => busy.push(on), failed: (problem) => failed.push(String(problem)), now: () => time });
  });

  test("one is under way, the newest wins, the others are counted", () => {
    for (const name of ["a", "b", "c", "d"]) offer(name);
    expect(sent).toEqual([[1, "a"]]);
    expect(chain.dropped).toBe(2);
    time = 40;
    expect(chain.answered(1)).toBe(40);
    chain.next();
    expect(sent).toEqual([[1, "a"], [2, "d"]]);
  });
  test("no answer: the kernel is busy after a second, and after five the newest is sent", () => {
    offer("a");
    offer("b");
    time = BUSY_AFTER;
    chain.look();
    expect(busy).toEqual([]);
    time = BUSY_AFTER + 1;
    chain.look();
    chain.look();
    expect(busy).toEqual([true]);
    time = GIVE_UP_AFTER + 1;
    chain.look();
    expect(sent).toEqual([[1, "a"], [2, "b"]]);
    expect(chain.answered(1)).toBe(null);
    expect([chain.late, chain.lost]).toEqual([1, 1]);
    expect(busy).toEqual([true]);
    expect(chain.answered(2)).toBe(0);
    expect(busy).toEqual([true, false]);
  });
  test("what cannot be sent, at once or later, does not stop it", async () => {
    chain.offer(() => { throw new Error("at once"); });
    chain.offer(async () => { throw new Error("later"); });
    await tick();
    expect(failed).toEqual(["Error: at once", "Error: later"]);
    expect(chain.flying).toBe(null);
    offer("c");
    expect(sent).toEqual([[3, "c"]]);
  });
  test("after a stop nothing is sent and answers are late", () => {
    offer("a");
    offer("b");
    chain.stop();
    expect(chain.answered(1)).toBe(null);
    chain.look();
    chain.next();
    expect(sent).toEqual([[1, "a"]]);
  });
  test("rate and delay are those of the last two seconds", () => {
    for (let n = 1; n <= 60; n += 1) {
      offer(n);
      time += n % 2 ? 30 : 70;
      chain.answered(n);
      time += 50;
    }
    expect(chain.rate).toBeCloseTo(10, 0);
    expect([30, 70]).toContain(chain.delay);
    expect(chain.answers.length).toBeLessThan(22);
  });
});

test("tiles become a mosaic of the table's colors, flags before levels", () => {
  const bytes = new Uint8Array(262 * 3).map((_, at) => at % 251);
  const table = packedTable(new DataView(bytes.buffer));
  const color = (at) => (0xff000000 | (bytes[3 * at + 2] << 16) | (bytes[3 * at + 1] << 8) | bytes[3 * at]) >>> 0;
  const levels = Uint8Array.from({ length: 3 * 2 * 4 }, (_, at) => 10 * at);
  const flags = [Uint32Array.of(9), Uint8Array.of(2)];
  const former = mosaic({ tiles: [3, 2, 4] }, levels.toReversed(), null, table, 7);
  const drawn = mosaic({ tiles: [3, 2, 4], constant: [2] }, levels, flags, table, 7, former);
  const { width, height, pixels } = drawn;
  expect(pixels).toBe(former.pixels);
  expect(drawn).toEqual(mosaic({ tiles: [3, 2, 4], constant: [2] }, levels, flags, table, 7));
  expect(mosaic({ tiles: [3, 4, 2] }, levels, null, table, 7, former)).toEqual(mosaic({ tiles: [3, 4, 2] }, levels, null, table, 7));
  expect([width, height]).toEqual([2 * 4 + 2, 2 * 2 + 2]);
  const at = (x, y) => pixels[y * width + x] >>> 0;
  expect([at(0, 0), at(3, 1)]).toEqual([color(0), color(70)]);
  expect(at(6, 0)).toBe(color(80));
  expect(at(7, 0)).toBe(color(258));
  expect([at(4, 0), at(5, 5)]).toEqual([0, 0]);
  expect([at(0, 4), at(3, 5)]).toEqual([7, 7]);
});

describe("the frames of a video", () => {
  /** A video that shows at each time the last frame that has begun, times in whole milliseconds. */
  const playing = (begins) => {
    const times = begins.map((time) => Math.round(1000 * time) / 1000);
    return async (seconds) => times.filter((time) => time <= Math.max(seconds, times[0])).at(-1);
  };
  const even = (rate, count, first = 0) => Array.from({ length: count }, (_, n) => first + n / rate);

  test.each([[25, 60], [30, 3], [30000 / 1001, 5000], [24000 / 1001, 240], [60, 700], [120, 500], [5, 2]])(
    "their distance and number are found: %f a second, %i", async (rate, count) => {
      for (const first of [0, 0.08]) {
        const found = await pace(playing(even(rate, count, first)), first + count / rate);
        expect([found.count, found.steady]).toEqual([count, true]);
        const film = Object.assign(new Film(null), found);
        for (const number of [0, 1, count >> 1, count - 1]) {
          const middle = film.first + (number + 0.5) * film.step;
          expect(film.numberAt(await playing(even(rate, count, first))(middle))).toBe(number);
          expect((middle - first) * rate - number).toBeCloseTo(0.5, 0);
        }
      }
    });
  test("uneven ones are said to be so, and one alone is one", async () => {
    expect((await pace(playing([0, 0.02, 0.05, 0.343, 0.37, 0.655]), 0.68)).steady).toBe(false);
    const gaps = even(25, 60).filter((_, n) => ![20, 21, 44].includes(n));
    expect(await pace(playing(gaps), 2.4)).toMatchObject({ count: 60, steady: false });
    const slower = [...even(25, 30), ...even(12.5, 20, 1.2)];
    expect(await pace(playing(slower), 2.8)).toMatchObject({ count: 69, steady: false });
    expect(await pace(playing([0]), 0.5)).toMatchObject({ count: 1, steady: true });
    expect(await pace(async () => NaN, 2)).toMatchObject({ count: 50, steady: false });
  });
  test("a frame that changes while it is drawn is drawn again", () => {
    const times = [0.04, 0.08, 0.08];
    vi.stubGlobal("VideoFrame", class { timestamp = 1e6 * times.shift(); close() {} });
    const film = Object.assign(new Film(null), { step: 0.04, count: 10 });
    const draw = vi.fn();
    expect(film.drawn(draw)).toEqual({ number: 2, seconds: 0.08 });
    expect(draw).toHaveBeenCalledTimes(2);
    vi.unstubAllGlobals();
  });
});

test("flags come as places and kinds, wherever they lie in a message", () => {
  const bytes = new Uint8Array(11);
  new DataView(bytes.buffer).setUint32(3, 6, true);
  new DataView(bytes.buffer).setUint32(7, 2, true);
  const table = new Uint32Array(262).map((_, at) => at);
  const flagged = pair(bytes.subarray(3), new Uint8Array([4, 2]));
  const { width, pixels } = mosaic({ tiles: [2, 2, 2] }, new Uint8Array(8), flagged, table, 7);
  expect(width).toBe(6);
  expect([...pixels]).toEqual([0, 0, 0, 0, 0, 0, 258, 0, 0, 0, 260, 0]);
});

test("frames travel as PNG where that helps: on a slow link, not for a busy kernel", () => {
  const packing = new Packing();
  const took = (times, milliseconds) => { for (let n = 0; n < times; n += 1) packing.took(milliseconds(packing.png)); };
  took(20, () => 40);
  expect(packing.png).toBe(false);
  took(5, (png) => (png ? 60 : 900));
  expect(packing.png).toBe(true);
  took(100, (png) => (png ? 60 : 900));
  expect(packing.png).toBe(true);
  const other = new Packing();
  for (let n = 0; n < 5; n += 1) other.took(400);
  expect(other.png).toBe(true);
  for (let n = 0; n < 104; n += 1) {
    other.took(400);
    expect(other.png).toBe(n < 4);
  }
});

test("a video that has sought before it has the frame is waited for", async () => {
  let tries = 0;
  vi.stubGlobal("VideoFrame", class { timestamp = 40_000; constructor() { if ((tries += 1) < 3) throw new Error("Invalid source state"); } close() {} });
  const film = new Film({ addEventListener: (_name, heard) => setTimeout(heard, 0) });
  film.url = "blob:a";
  expect(await film.at(0.05)).toBe(0.04);
  expect(tries).toBe(3);
  vi.unstubAllGlobals();
});

test("a frame travels without the canvas's alpha", () => {
  const pixels = new Uint8ClampedArray([1, 2, 3, 255, 4, 5, 6, 255]);
  expect([...new Uint8Array(opaque(pixels))]).toEqual([1, 2, 3, 4, 5, 6]);
});

test("what a browser answers about a camera is one sentence", () => {
  for (const name of ["NotAllowedError", "NotFoundError", "NotReadableError", "Oops"]) {
    expect(cameraProblem({ name, message: "so." })).toMatch(/^[A-Z][^.]*\.$/);
  }
});

describe("the panel", () => {
  let model, el, leave;
  beforeEach(() => {
    leave?.();
    model = new FakeModel({ why_not: "", clip: { name: "a.gif", count: 5 }, side: 256, hold: "none", alert: {}, recording: {},
      holds: [["none", "of each frame"], ["running", "the widest so far"]], forms: [["files", "PNGs"], ["gif", "GIF"]] });
    el = document.createElement("div");
    document.body.replaceChildren(el);
    leave = renderLive({ model, el });
    part(el, "live").checkVisibility = () => true;
  });
  const frames = () => model.sent.filter((m) => m.type === "clip-frame");
  const tiles = (seq, number) => ({ type: "tiles", seq, number, at: 0, cards: [], missing: [], size: [4, 3], milliseconds: 1, lasts: 0.01, name: "a" });
  const started = async () => {
    part(el, "live-clip").click();
    await tick();
    model.hear(tiles(1, 0));
  };

  test("an animation begins at its first frame and is stepped by keys, one under way", async () => {
    await started();
    expect(frames().map(({ seq, number, paused }) => [seq, number, paused])).toEqual([[1, 0, true]]);
    for (const key of [".", ".", "."]) press(part(el, "live"), key);
    expect(frames().length).toBe(2);
    model.hear(tiles(2, 1));
    expect(frames().map((m) => m.number)).toEqual([0, 1, 3]);
    model.hear(tiles(3, 3));
    press(part(el, "live"), ",");
    expect(frames().at(-1).number).toBe(2);
    expect(part(el, "live-number").textContent).toBe("frame 2 of 5");
  });
  test("the slider goes to a frame", async () => {
    await started();
    const slider = part(el, "live-slider");
    slider.value = "3";
    slider.dispatchEvent(new Event("input"));
    expect(frames().at(-1)).toMatchObject({ number: 3, paused: true });
    expect(slider.value).toBe("3");
  });
  test("it plays on, pauses at a frame, and stops", async () => {
    await started();
    part(el, "live-play").click();
    expect(frames().at(-1)).toMatchObject({ number: 1, paused: false });
    model.hear(tiles(2, 1));
    await vi.waitFor(() => expect(frames().at(-1).number).toBe(2));
    model.hear(tiles(3, 2));
    part(el, "live-play").click();
    expect(frames().at(-1)).toMatchObject({ number: 2, paused: true });
    part(el, "live-stop").click();
    expect(model.types().at(-1)).toBe("stop");
    expect(part(el, "live").dataset.kind).toBe("");
  });
  test("a frame that failed ends it; a late answer changes nothing", async () => {
    await started();
    press(part(el, "live"), ".");
    model.hear({ type: "failed", seq: 2, text: "Tick at least one layer." });
    expect(part(el, "live-note").textContent).toBe("Tick at least one layer.");
    model.hear(tiles(2, 1));
    expect(part(el, "live").dataset.number).toBe("0");
  });
  test("no camera where the page has none: one sentence, and nothing runs", async () => {
    part(el, "live-camera").click();
    await vi.waitFor(() => expect(part(el, "live-note").textContent).toMatch(/camera/i));
    await vi.waitFor(() => expect(part(el, "live").dataset.kind).toBe(""));
  });
  test("a camera that is allowed after the view has gone is switched off at once", async () => {
    const track = { stop: vi.fn() };
    let allow;
    vi.stubGlobal("isSecureContext", true);
    vi.stubGlobal("navigator", { mediaDevices: { getUserMedia: () => new Promise((resolve) => { allow = resolve; }) } });
    part(el, "live-camera").click();
    await tick();
    leave();
    leave = undefined;
    allow({ getTracks: () => [track] });
    await tick();
    expect(track.stop).toHaveBeenCalledOnce();
    vi.unstubAllGlobals();
  });
  test("a camera goes off when nobody sees its maps, and when the app's kernel is gone", async () => {
    vi.stubGlobal("isSecureContext", true);
    const app = document.createElement("div");
    app.dataset.hv = "app";
    for (const how of ["hidden", "dead", "unmounted"]) {
      const track = { stop: vi.fn() };
      vi.stubGlobal("navigator", { mediaDevices: { getUserMedia: async () => ({ getTracks: () => [track] }) } });
      const video = part(el, "live-video");
      Object.defineProperty(video, "srcObject", { writable: true, value: null });
      Object.assign(video, { play: async () => {}, pause: () => {}, requestVideoFrameCallback: () => 0 });
      app.dataset.state = "idle";
      document.body.replaceChildren(app);
      app.append(el);
      part(el, "live").checkVisibility = () => true;
      part(el, "live-camera").click();
      await vi.waitFor(() => expect(part(el, "live").dataset.kind).toBe("camera"));
      if (how === "hidden") part(el, "live").checkVisibility = () => false;
      else if (how === "dead") app.dataset.state = "dead";
      else {
        leave();
        leave = undefined;
      }
      await vi.waitFor(() => expect([how, track.stop.mock.calls.length, part(el, "live-note").textContent]).toEqual([how, 1, expect.anything()]), 3000);
    }
    vi.unstubAllGlobals();
  });
  test("nobody goes anywhere in a video that is being opened", async () => {
    const detail = { source: "video", file: new File(["x"], "a.webm") };
    part(el, "live").dispatchEvent(new CustomEvent("hv-live-start", { detail }));
    expect(part(el, "live").dataset.kind).toBe("video");
    press(part(el, "live"), ".");
    await tick();
    part(el, "live-video").dispatchEvent(new Event("seeked"));
    await tick();
    expect([part(el, "live-note").textContent, model.types()]).toEqual(["", []]);
  });
  test("a frame writes to the page only what tells it from the one before", async () => {
    await started();
    const slider = part(el, "live-slider");
    const again = (seq) => {
      slider.value = "1";
      slider.dispatchEvent(new Event("input"));
      model.hear({ ...tiles(seq, 1), cards: [{ key: "a", label: "conv", kind: "Conv2d", shape: "1 × 2", text: "No maps." }] });
    };
    again(2);
    const written = [];
    const watch = new MutationObserver((records) => written.push(...records.map((r) => r.attributeName ?? r.type)));
    watch.observe(el, { subtree: true, childList: true, characterData: true, attributes: true });
    again(3);
    await tick();
    watch.disconnect();
    expect(written).toContain("data-painted");
    expect(written.filter((name) => !name.startsWith("data-"))).toEqual([]);
  });
  test("what is out of sight for a moment goes on: JupyterLab hides its page to change its theme", async () => {
    await started();
    part(el, "live-play").click();
    const pressed = () => part(el, "live-play").getAttribute("aria-pressed");
    part(el, "live").checkVisibility = () => false;
    await new Promise((resolve) => setTimeout(resolve, 400));
    expect(pressed()).toBe("true");
    await vi.waitFor(() => expect(pressed()).toBe("false"), 3000);
  });
  test("a recording says how far it is and where it lies", () => {
    model.change({ recording: { done: 3, total: 20 } });
    expect(part(el, "live-recorded").textContent).toBe("3 of 20 frames");
    part(el, "live-record").click();
    expect(model.types().at(-1)).toBe("record-stop");
    model.change({ recording: { done: 20, total: 20, path: "/x/y", files: 40 } });
    expect(part(el, "live-recorded").textContent).toBe("20 frames: 40 files in /x/y");
  });
  test("without a layer nothing can be begun, and why is said", () => {
    model.change({ why_not: "Tick at least one layer." });
    part(el, "live-clip").click();
    expect(frames()).toEqual([]);
    expect(part(el, "live-why").textContent).toBe("Tick at least one layer.");
  });
});
