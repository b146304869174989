// @ts-check
// The panel "Live": a camera, a video or an animation through the model, frame by frame.
// Reads the traits why_not, clip, side, hold, holds, forms, recording, alert; maps arrive by message.
import "./panel_live.css";
import { button, Cleanup, h, icon, labelled, partAlert, select, setAttribute, setChoices, setHidden, setOff, setText, showBytes, isOff } from "./kit.js";
import { Chain } from "./live_chain.js";
import { LiveCard } from "./live_card.js";
import { Film } from "./live_film.js";
import { cameraProblem, Grabber, openCamera, stopStream } from "./live_sources.js";
import { watchLook } from "./look.js";

/** @typedef {"" | "camera" | "video" | "clip"} Kind */

const LOOK_EVERY = 250;
/** JupyterLab hides all of its page for a moment, on a slow machine a longer one, to change its theme. */
const MOMENT = 750;
const HIDDEN = "The camera was switched off, since nobody could see its maps. Press Camera to go on.";
const UNEVEN = "Its frames are not evenly apart: the numbers are those of an even rate.";
const GONE = "It was stopped: the kernel was restarted. Run the cell again.";

/** @param {import("./kit.js").Context} context */
export function renderLive({ model, el }) {
  const cleanup = new Cleanup();
  const send = (/** @type {any} */ message, /** @type {any[]} */ buffers = []) => model.send(message, undefined, buffers);
  const quietly = (/** @type {any} */ message) => {
    try {
      send(message);
    } catch {
      // The kernel is gone: there is nobody to tell.
    }
  };
  let closed = false;
  /** What runs, and which one: an answer to an earlier one is late. @type {Kind} */
  let kind = "";
  let turn = 0;
  /** @type {MediaStream | null} */
  let stream = null;
  let count = 0;
  let number = 0;
  let playing = false;
  let painted = 0;
  /** When it was in sight last. */
  let seen = 0;
  let fileName = "";
  let size = "";

  const video = h("video", { hv: "live-video", class: "hv-live-video", muted: true, playsinline: true, "aria-label": "What comes in", hidden: true });
  video.muted = true;
  const preview = h("img", { class: "hv-live-video", alt: "The frame", hidden: true });
  let film = new Film(video);
  const grabber = new Grabber(video, send);
  const chain = new Chain({
    busy: (on) => { root.dataset.busy = String(on); say(on ? "The kernel is busy: it goes on by itself." : ""); },
    failed: (problem) => { if (kind) say(String(/** @type {any} */ (problem)?.message ?? problem)); },
  });

  const file = h("input", { hv: "live-file", type: "file", class: "hv-file", accept: "video/*", "aria-label": "Video file", tabindex: "-1" });
  const open = {
    camera: button("live-camera", () => start("camera"), {}, icon("camera"), "Camera"),
    video: button("live-open", () => file.click(), {}, "Video…"),
    clip: button("live-clip", () => start("clip"), {}, "Play"),
    sample: button("live-sample", () => { send({ type: "sample-clip" }); sampleWanted = true; }, {}, "Sample clip"),
  };
  let sampleWanted = false;
  const freeze = button("live-freeze", () => act("freeze"), { class: "hv-button hv-primary", title: "Make this frame the image: all panels show it" }, "Freeze");
  const end = button("live-stop", () => stop(""), {}, "Stop");
  const play = button("live-play", () => (playing ? pause() : resume()), { "aria-pressed": "false" }, "Play");
  const back = button("live-back", () => step(-1), { class: "hv-quiet", label: "One frame back (,)" }, icon("left"));
  const forward = button("live-forward", () => step(1), { class: "hv-quiet", label: "One frame forward (.)" }, icon("chevron"));
  const slider = h("input", { hv: "live-slider", type: "range", min: "0", max: "0", value: "0", "aria-label": "Frame" });
  const where = h("span", { hv: "live-number", class: "hv-live-number" });
  const hold = select("live-hold", "Scale", [], (how) => send({ type: "hold", how }));
  const amount = h("input", { hv: "live-amount", class: "hv-input hv-live-amount", type: "number", min: "1", max: "2000", value: "20", "aria-label": "How many frames" });
  const form = select("live-form", "As", [], () => {});
  const record = button("live-record", () => isOff(record) || (recording() ? send({ type: "record-stop" }) : send({ type: "record", frames: Math.round(Number(amount.value)) || 0, form: form.value })), {}, "Record");
  const recorded = h("span", { hv: "live-recorded", class: "hv-note", role: "status" });
  const stats = h("span", { hv: "live-stats", class: "hv-note hv-dim" });
  const note = h("p", { hv: "live-note", class: "hv-note", role: "status", hidden: true });
  const why = h("p", { hv: "live-why", class: "hv-dim" });
  const missing = h("p", { class: "hv-note hv-dim hv-live-missing" });
  const cardsBox = h("div", { hv: "live-cards", class: "hv-live-cards" });
  const transport = h("div", { hv: "live-transport", class: "hv-live-row", role: "group", "aria-label": "Video", hidden: true }, play, back, slider, forward, where);
  const running = h("div", { class: "hv-live-row", hidden: true }, freeze, end, stats);
  const root = h("section", { hv: "live", class: "hv hv-part hv-live", "aria-label": "Live", "data-kind": "" },
    h("div", { class: "hv-live-row" }, open.camera, open.video, file, open.clip, open.sample, labelled("Scale", hold),
      h("span", { class: "hv-live-record", role: "group", "aria-label": "Recording" }, record, amount, h("span", { class: "hv-note" }, "frames"), form), recorded),
    partAlert(model, cleanup), why, note, running, transport,
    h("div", { class: "hv-live-body" }, h("div", { class: "hv-live-source" }, video, preview), cardsBox), missing);
  /** @type {Map<string, LiveCard>} */
  const cards = new Map();

  const say = (/** @type {string} */ text) => {
    setText(note, text);
    note.hidden = !text;
  };
  const recording = () => {
    const { done, total, path } = model.get("recording") ?? {};
    return total > 0 && !path && done < total;
  };

  // ── sources

  /** @param {Kind} wanted @param {File} [chosen] */
  async function start(wanted, chosen) {
    stop("");
    if (isOff(open.camera)) return;
    const mine = turn += 1;
    const still = () => !closed && mine === turn;
    kind = wanted;
    seen = performance.now();
    chain.reset();
    grabber.reset();
    number = count = 0;
    size = "";
    say(wanted === "camera" ? "Waiting for the camera …" : "");
    show();
    try {
      if (wanted === "camera") {
        // Kept at once: whatever stops it from now on finds it.
        await openCamera(video, (opened) => still() && Boolean(stream = opened));
        if (!still()) return;
        fileName = "camera";
        playing = true;
      } else if (wanted === "video" && chosen) {
        film = new Film(video);
        await film.open(chosen);
        if (!still()) return;
        fileName = chosen.name;
        count = film.count;
        // A file may be broken further on.
        video.onerror = () => still() && stop(`“${chosen.name}” cannot be played any further.`);
        video.requestVideoFrameCallback(onVideoFrame(mine));
        await goTo(0);
      } else {
        const clip = model.get("clip") ?? {};
        count = clip.count ?? 0;
        fileName = clip.name ?? "";
        await goTo(0);
      }
      if (wanted === "camera") {
        video.requestVideoFrameCallback(onVideoFrame(mine));
        say("");
      }
    } catch (problem) {
      if (!still()) return;
      stop(wanted === "camera" ? cameraProblem(problem) : String(/** @type {any} */ (problem)?.message ?? problem));
    }
    show();
  }

  /** Ends the source: the camera's light goes out. @param {string} text why */
  function stop(text) {
    const was = kind;
    turn += 1;
    kind = "";
    playing = false;
    chain.stop();
    stopStream(stream);
    stream = null;
    video.pause();
    video.srcObject = null;
    video.removeAttribute("src");
    film.close();
    if (was) quietly({ type: "stop" });
    say(text);
    show();
  }

  /** @param {number} mine */
  function onVideoFrame(mine) {
    return (/** @type {number} */ _now, /** @type {any} */ facts) => {
      if (mine !== turn || closed) return;
      if (kind === "camera") number = facts.presentedFrames;
      else if (playing) number = film.numberAt(facts.mediaTime);
      if (playing) offer(facts.mediaTime ?? 0);
      video.requestVideoFrameCallback(onVideoFrame(mine));
    };
  }

  /** Has the frame that is shown sent. @param {number} seconds when it is shown */
  function offer(seconds) {
    const facts = { number, seconds, name: fileName, paused: !playing };
    const which = kind === "video" ? (/** @type {() => void} */ draw) => {
      const shown = film.drawn(draw);
      return facts.paused ? { seconds: shown.seconds } : shown;
    } : null;
    chain.offer((seq) => grabber.grab(model.get("side") ?? 256, { seq, ...facts }, which));
  }

  /** Goes to a frame of a video or an animation by its number. @param {number} wanted */
  async function goTo(wanted) {
    if (!count) return; // it is being opened: nobody else may go anywhere in it
    const mine = turn;
    number = Math.max(0, Math.min(count - 1, wanted));
    show();
    if (kind === "clip") {
      const asked = number;
      chain.offer((seq) => send({ type: "clip-frame", seq, number: asked, paused: !playing }));
    } else if (kind === "video") {
      await film.seek(number);
      if (mine !== turn) return;
      if (!film.steady) say(UNEVEN);
      offer(video.currentTime);
    }
  }
  /** @param {number} by */
  function step(by) {
    if (kind !== "video" && kind !== "clip") return;
    pause();
    goTo(number + by);
  }
  function pause() {
    const was = playing;
    playing = false;
    video.pause();
    show();
    if (was && kind !== "camera") goTo(number);
  }
  async function resume() {
    if (kind === "camera") return;
    playing = true;
    show();
    if (kind === "clip") goTo(number + 1 < count ? number + 1 : 0);
    else {
      if (number + 1 >= count) await film.seek(0);
      // A pause that comes at once is no fault.
      await video.play().catch(() => {});
    }
  }
  /** @param {string} what */
  function act(what) {
    quietly({ type: what });
    stop(what === "freeze" ? "The frame is the image now: the gallery and every panel show it." : "");
  }

  // ── what comes back

  /** A few times a second: figures that change with each frame cannot be read, and cost a layout. */
  function tellFigures() {
    setText(stats, size && [`${chain.rate.toFixed(1)} frames a second`, `${Math.round(chain.delay)} ms`, `${chain.dropped} dropped`,
      chain.lost ? `${chain.lost} lost` : "", size, grabber.packing.png ? "as PNG" : ""].filter(Boolean).join(" · "));
  }

  /** @param {any} message @param {DataView[]} buffers */
  function paint(message, buffers) {
    const seen = new Set();
    for (const state of message.cards) {
      seen.add(state.key);
      const card = cards.get(state.key) ?? new LiveCard(state.key);
      if (!cards.has(state.key)) cardsBox.append(card.el);
      cards.set(state.key, card);
      card.show(state, buffers);
    }
    for (const [key, card] of cards) {
      if (seen.has(key)) continue;
      card.remove();
      cards.delete(key);
    }
    setText(missing, message.missing.join("\n"));
    if (message.preview !== undefined) showBytes(preview, buffers[message.preview]);
    root.dataset.number = String(message.number ?? "");
    root.dataset.colors = message.style;
    root.dataset.painted = String(painted += 1);
    root.dataset.rate = chain.rate.toFixed(1);
    root.dataset.delay = chain.delay.toFixed(1);
    size = message.size.join(" × ");
    show();
  }
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    const { type, seq } = message;
    if (type === "tiles") {
      const delay = chain.answered(seq);
      if (delay === null) return;
      grabber.packing.took(delay - message.milliseconds);
      if (kind === "clip" && playing) {
        const mine = turn;
        setTimeout(() => mine === turn && playing && goTo((number + 1) % count), Math.max(0, 1000 * message.lasts - delay));
      }
      const taken = performance.now() - delay;
      paint(message, buffers);
      chain.next();
      requestAnimationFrame(() => { root.dataset.shown = (performance.now() - taken).toFixed(1); });
    } else if (type === "figures" && seq === chain.seq && !playing) {
      message.keys.forEach((/** @type {string} */ key, /** @type {number} */ at) => cards.get(key)?.showFigure(buffers[at], message.ratio));
    } else if (type === "busy") {
      const mine = turn;
      say("A run is under way: it goes on afterwards.");
      setTimeout(() => {
        if (mine !== turn) return;
        chain.answered(seq);
        say("");
        if (kind === "camera") chain.next();
        else goTo(number);
      }, 500);
    } else if (type === "failed") {
      if (chain.answered(seq) !== null) stop(message.text);
    }
  });

  // ── state

  function show() {
    root.dataset.kind = kind;
    const still = kind === "video" || kind === "clip";
    setHidden(video, kind !== "camera" && kind !== "video");
    setHidden(preview, kind !== "clip");
    setHidden(running, !kind);
    setHidden(transport, !still);
    setText(play, playing ? "Pause" : "Play");
    setAttribute(play, "aria-pressed", String(playing));
    setAttribute(slider, "max", String(Math.max(0, count - 1)));
    slider.value = String(number);
    setAttribute(slider, "aria-valuetext", `frame ${number} of ${count}`);
    setText(where, still ? `frame ${number} of ${count}` : "");
    setOff(record, !kind && !recording());
  }
  cleanup.follow(model, ["why_not"], () => {
    const text = model.get("why_not") ?? "";
    setText(why, text || "");
    why.hidden = !text;
    for (const each of Object.values(open)) setOff(each, Boolean(text));
  });
  cleanup.follow(model, ["clip"], () => {
    const { name = "", count: frames = 0 } = model.get("clip") ?? {};
    open.clip.hidden = !frames;
    setText(open.clip, `Play ${name} (${frames} frames)`);
    if (sampleWanted && frames) {
      sampleWanted = false;
      start("clip");
    } else if (kind === "clip" && !frames) stop("");
  });
  cleanup.follow(model, ["hold", "holds"], () => {
    setChoices(hold, model.get("holds") ?? []);
    hold.value = model.get("hold") ?? "none";
  });
  cleanup.follow(model, ["forms"], () => setChoices(form, model.get("forms") ?? []));
  cleanup.follow(model, ["recording"], () => {
    const { done = 0, total = 0, path = "", files = 0 } = model.get("recording") ?? {};
    setText(record, recording() ? "Stop recording" : "Record");
    setAttribute(record, "aria-pressed", String(recording()));
    setText(recorded, path ? `${done} frames: ${files} files in ${path}` : total ? `${done} of ${total} frames` : "");
    show();
  });
  file.addEventListener("change", () => {
    const [chosen] = file.files ?? [];
    file.value = "";
    if (chosen) start("video", chosen);
  });
  video.addEventListener("ended", () => {
    if (kind !== "video" || !playing) return;
    number = count - 1;
    pause();
  });
  slider.addEventListener("input", () => {
    const wanted = Number(slider.value);
    pause();
    goTo(wanted);
  });
  root.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest("input:not([type=range]), select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = /** @type {Record<string, () => void>} */ ({ ",": () => step(-1), ".": () => step(1) });
    if ((kind !== "video" && kind !== "clip") || !(event.key in keys)) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation();
  });
  // What Image, or the app, asks for.
  root.addEventListener("hv-live-start", (/** @type {any} */ event) => start(event.detail.source, event.detail.file));

  // ── what switches the camera off

  /** Whether frames are on the screen, or the explanation that follows them. @param {HTMLElement | null} app */
  function looked(app) {
    return [root, app?.querySelector('[data-hv="explanation"]')].some((part) => part && part.checkVisibility?.() !== false);
  }
  function leave() {
    if (kind === "camera") stop(HIDDEN);
    else if (playing) pause();
  }
  const timer = setInterval(() => {
    chain.look();
    if (!kind) return;
    tellFigures();
    const app = /** @type {HTMLElement | null} */ (root.closest('[data-hv="app"]'));
    const now = performance.now();
    if (root.isConnected && looked(app)) seen = now;
    if (app?.dataset.state === "dead") stop(GONE);
    else if (document.hidden || now - seen > MOMENT) leave();
  }, LOOK_EVERY);
  cleanup.listen(model, "comm_live_update", () => /** @type {any} */ (model).comm_live === false && kind && stop(GONE));
  const hidden = () => document.hidden && leave();
  addEventListener("pagehide", leave);
  document.addEventListener("visibilitychange", hidden);
  cleanup.add(() => {
    removeEventListener("pagehide", leave);
    document.removeEventListener("visibilitychange", hidden);
    clearInterval(timer);
    stop("");
    closed = true;
    cards.forEach((card) => card.remove());
    showBytes(preview, null);
  });
  watchLook(root, cardsBox, cleanup, (look) => {
    quietly({ type: "look", ...look });
    // A frame that stands is drawn again for it.
    if ((kind === "video" || kind === "clip") && !playing) goTo(number);
  });
  show();
  const away = cleanup.mount(el, root);
  setTimeout(() => root.dispatchEvent(new CustomEvent("hv-live-ready", { bubbles: true })), 0);
  return away;
}

export default { render: renderLive };
