// @ts-check
// The panel "Inspect": what the pinned place sees of the photo, its values in every layer, and the
// channels of a region. Reads the traits place, field, photo, vectors, region, inside.
import "./panel_inspect.css";
import { button, channelBar, Cleanup, h, setText, showBytes } from "./kit.js";
import { fieldText, sentence, shownNumber } from "./wording.js";

const SVG = "http://www.w3.org/2000/svg";

/** @param {import("./kit.js").Context} context */
export function renderInspect({ model, el }) {
  const cleanup = new Cleanup();
  const empty = h("p", { class: "hv-dim" }, "Click a place of a map, or press Enter on it, to pin it. Drag over the photo to mark a region.");
  const title = h("h4", { hv: "inspect-place" });
  const facts = h("p", { hv: "inspect-value", class: "hv-dim hv-note" });
  const unpin = button("unpin", () => model.send({ type: "unpin" }), { class: "hv-link" }, "Unpin");
  const img = h("img", { hv: "inspect-photo", class: "hv-inspect-photo", alt: "The photo, with what the pinned place sees", hidden: true });
  const marks = document.createElementNS(SVG, "svg");
  marks.setAttribute("class", "hv-field-box");
  marks.setAttribute("aria-hidden", "true");
  marks.setAttribute("preserveAspectRatio", "none");
  const frame = h("div", { class: "hv-inspect-frame" }, img);
  frame.append(marks);
  const sees = h("p", { hv: "inspect-field", class: "hv-note", role: "status" });
  const vectors = h("div", { hv: "inspect-vectors" });
  const marked = h("h4", { hv: "inspect-region" });
  const clear = button("no-region", () => model.send({ type: "no-region" }), { class: "hv-link" }, "Clear");
  const inside = h("div", { hv: "inspect-inside" });
  const open = button("inspect-channel", () => {
    const { key, channel } = model.get("place") ?? {};
    model.send({ type: "open-channel", key, channel });
  }, { class: "hv-link" });
  const head = h("div", { class: "hv-inspect-head" }, title, open, unpin);
  const regionHead = h("div", { class: "hv-inspect-head" }, marked, clear);
  const root = h("section", { hv: "inspect", class: "hv hv-part hv-inspect", "aria-label": "Inspect" },
    empty, head, facts, frame, sees, vectors, regionHead, inside);

  /** One layer's channels as bars. @param {any} layer @param {string} where */
  function bars(layer, where) {
    const rows = layer.bars.map((/** @type {[number, string, number]} */ [channel, value, share]) =>
      h("li", {}, button("inspect-bar", () => model.send({ type: "show", key: layer.key, channel }),
        { class: "hv-vector-bar", "data-channel": channel, "data-key": layer.key, title: `Show channel ${channel} of ${layer.label}` },
        ...channelBar(channel, share, shownNumber(value)))));
    const more = layer.of > layer.bars.length && layer.bars.length
      ? button("inspect-more", () => model.send({ type: "more", key: layer.key }), { class: "hv-link", "aria-label": `More channels of ${layer.label}` },
        `${layer.of - layer.bars.length} more`) : null;
    return h("div", { class: "hv-vector", "data-key": layer.key }, h("h5", { class: "hv-vector-name", title: layer.note ?? null }, layer.label, " ", h("span", { class: "hv-dim" }, where)),
      layer.bars.length ? h("ul", { "aria-label": `Channels of ${layer.label}` }, ...rows) : h("p", { class: "hv-dim hv-note" }, sentence(layer)), more);
  }
  /** Replaces bars, and gives the focus back to the one that had it. @param {HTMLElement} box @param {Node[]} content */
  function renew(box, content) {
    const at = /** @type {HTMLElement | null} */ (/** @type {any} */ (box.getRootNode()).activeElement ?? null);
    const name = at && box.contains(at) ? [at.dataset.hv, at.dataset.key ?? at.closest(".hv-vector")?.getAttribute("data-key"), at.dataset.channel] : null;
    box.replaceChildren(...content);
    if (!name) return;
    const again = [...box.querySelectorAll("button")].find((b) => b.dataset.hv === name[0] && b.closest(".hv-vector")?.getAttribute("data-key") === name[1] && b.dataset.channel === name[2]);
    (again ?? box.querySelector("button"))?.focus({ preventScroll: true });
  }
  function drawBox() {
    const [wide, high] = model.get("photo") ?? [];
    const { box, beyond = [0, 0, 0, 0] } = model.get("field") ?? {};
    marks.setAttribute("viewBox", `0 0 ${wide || 1} ${high || 1}`);
    marks.replaceChildren();
    delete marks.dataset.box;
    if (!box || !wide) return;
    const [left, top, right, bottom] = box;
    marks.dataset.box = box.join(" ");
    const lines = [[left, top, left, bottom], [left, top, right, top], [right, top, right, bottom], [left, bottom, right, bottom]];
    for (const kind of ["under", "over"]) {
      lines.forEach(([x1, y1, x2, y2], side) => {
        const line = document.createElementNS(SVG, "path");
        line.setAttribute("d", `M${x1} ${y1}L${x2} ${y2}`);
        line.setAttribute("class", `hv-mark hv-mark-${kind} hv-field-side${beyond[side] ? " hv-past" : ""}`);
        marks.append(line);
      });
    }
  }
  cleanup.follow(model, ["place", "region"], () => {
    const place = model.get("place") ?? {};
    const region = model.get("region") ?? [];
    const has = Boolean(place.key);
    empty.hidden = has || region.length > 0;
    head.hidden = facts.hidden = sees.hidden = !has;
    regionHead.hidden = region.length !== 4;
    if (has) {
      setText(title, `${place.label} · y ${place.y}, x ${place.x} of ${place.rows} × ${place.cols}`);
      setText(open, `Open channel ${place.channel}`);
      setText(facts, `Channel ${place.channel}: ${shownNumber(place.value || "…")}${place.rank ? `, rank ${place.rank} of ${place.of}` : ""}`);
    }
    if (region.length === 4) setText(marked, `Region ${region[2] - region[0]} × ${region[3] - region[1]} at x ${region[0]}, y ${region[1]}: mean inside / outside`);
  });
  cleanup.follow(model, ["field", "photo"], () => {
    setText(sees, fieldText(model.get("field")));
    frame.hidden = !(model.get("photo") ?? []).length;
    drawBox();
  });
  cleanup.follow(model, ["vectors"], () => renew(vectors, (model.get("vectors") ?? []).map((/** @type {any} */ layer) =>
    bars(layer, `y ${layer.y}, x ${layer.x} of ${layer.rows} × ${layer.cols}`))));
  cleanup.follow(model, ["inside"], () => renew(inside, (model.get("inside") ?? []).map((/** @type {any} */ layer) =>
    bars(layer, layer.places ? `${layer.places} places inside` : ""))));
  cleanup.listen(model, "msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.type === "photo") showBytes(img, buffers[0] ?? null, "image/jpeg");
  });
  cleanup.add(() => showBytes(img, null));
  model.send({ type: "photo" });
  return cleanup.mount(el, root);
}

export default { render: renderInspect };
