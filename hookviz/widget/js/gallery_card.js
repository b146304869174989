// @ts-check
// One layer's card in the gallery: its facts, its grid, its pages.
import { actionButtons, button, bytesText, focused, h, icon, isOff, middle, numberText, select, setAttribute, setChoices, setName, setOff, setText, showBytes } from "./kit.js";
import { sentence, worded } from "./wording.js";

/**
 * @typedef {{key: string, layer: string, call: number, calls: number, leaf: string,
 *   leaves: string[], type: string, state: string, reason: string, stale: boolean, edited: string,
 *   collapsed: boolean, statistics: boolean, filters: boolean | null,
 *   channels?: string, first?: number[], version: number}} CardState
 */
/**
 * What comes with a picture.
 * @typedef {{key: string, version: number, page: number, pages: number, width: number,
 *   height: number, shape: string, low: number | null, high: number | null, dead: number | null,
 *   channels: number, bytes: number, scale: string, bar?: {colors?: string[], ends?: number[], beyond?: string[]}, odd: string, alt: string, error?: string, message?: string, turned?: number, tiles?: Record<string, any>,
 *   note?: Record<string, any>}} PictureFacts
 */

/** @param {PictureFacts} facts @returns {string} */
export function factsText(facts) {
  const range = facts.low === null || facts.high === null ? "" : `${numberText(facts.low)} … ${numberText(facts.high)}`;
  const dead = facts.dead === null ? "" : `${facts.dead} dead`;
  return [facts.shape, range, dead, facts.odd].filter(Boolean).join(" · ");
}

/** A card's elements and how they follow its state. */
export class Card {
  /**
   * @param {string} key
   * @param {(message: any) => void} send
   */
  constructor(key, send) {
    this.key = key;
    this.send = send;
    /** @type {CardState | null} */
    this.state = null;
    this.page = 0;
    this.pages = 1;
    /** When a page was asked for last: pictures say up to when they were asked. */
    this.turned = 0;
    const tool = (/** @type {string} */ hv, /** @type {string} */ sign, /** @type {() => void} */ act) =>
      button(hv, act, { class: "hv-quiet" }, icon(sign));
    this.collapse = tool("collapse", "chevron", () => send({ type: "collapse", key, on: !this.state?.collapsed }));
    this.name = h("span", { class: "hv-card-name hv-name" });
    this.type = h("span", { class: "hv-tag" });
    this.call = h("span", { class: "hv-tag hv-call", hv: "call", hidden: true });
    this.stale = h("span", { hv: "stale", class: "hv-badge hv-warn", hidden: true,
      title: "Drawn from an earlier image, model or preprocessing. Run again." }, "stale");
    this.edited = h("span", { hv: "edited", class: "hv-badge hv-warn", hidden: true }, "edited");
    this.facts = h("span", { hv: "facts", class: "hv-card-facts" });
    this.scale = h("span", { hv: "colorbar", class: "hv-colorbar", role: "img", hidden: true });
    // What is set on this card alone; a press takes it away.
    this.own = button("own-channels", () => send({ type: "channels", key, channels: "" }), { class: "hv-chip hv-own-chip", hidden: true });
    this.first = button("own-first", () => send({ type: "none-first", key }), { class: "hv-chip hv-own-chip", hidden: true });
    this.leaf = select("leaf", "Leaf", [], (leaf) => send({ type: "leaf", key, leaf }));
    this.statistics = tool("statistics", "chart", () => send({ type: "statistics", key, on: !this.state?.statistics }));
    this.filters = tool("filters", "filters", () => send({ type: "filters", key, on: !this.state?.filters }));
    this.prev = tool("prev", "left", () => this.turn(-1));
    this.next = tool("next", "chevron", () => this.turn(1));
    this.number = h("input", { hv: "page", class: "hv-input hv-page", type: "number", min: "1",
      onchange: () => this.goTo(Number(this.number.value) - 1) });
    this.pageText = h("span", { hv: "page-text", class: "hv-dim hv-nowrap" });
    this.pager = h("span", { class: "hv-pager", role: "group", hidden: true },
      this.prev, this.pageText, this.number, this.next);
    this.img = h("img", { hv: "grid", class: "hv-grid", hidden: true, alt: "" });
    this.note = h("p", { hv: "card-note", class: "hv-dim hv-note", hidden: true });
    this.wait = h("div", { hv: "pending", class: "hv-pending" });
    this.body = h("div", { class: "hv-card-body" }, this.note, this.img, this.wait);
    this.el = h("article", { hv: "card", class: "hv-card", "data-key": key, tabindex: "-1" },
      h("header", { class: "hv-card-head" }, this.collapse,
        h("span", { class: "hv-card-what" }, this.name, this.type, this.call, this.stale, this.edited, this.first, this.own),
        this.facts, this.scale,
        h("span", { class: "hv-card-tools" }, this.leaf, this.pager, this.filters, this.statistics)),
      this.body);
  }

  /** @param {number} step */
  turn(step) {
    if (isOff(step < 0 ? this.prev : this.next)) return;
    this.goTo(this.page + step);
  }
  /** @param {number} page */
  goTo(page) {
    const wanted = Math.max(0, Math.min(this.pages - 1, Math.round(page) || 0));
    if (wanted !== this.page) {
      this.page = wanted;
      this.el.setAttribute("aria-busy", "true");
      this.el.dataset.version = String(Number(this.el.dataset.version ?? 0) + 1);
      this.turned = Math.max(this.turned + 1, Date.now());
      this.send({ type: "page", key: this.key, page: wanted, at: this.turned });
    }
    this.refreshPager();
  }
  refreshPager() {
    this.pager.hidden = this.pages < 2;
    this.number.hidden = this.pages <= 12;
    this.number.max = String(this.pages);
    if (focused(this.el) !== this.number) this.number.value = String(this.page + 1);
    setText(this.pageText, `${this.page + 1} of ${this.pages}`);
    setOff(this.prev, this.page <= 0);
    setOff(this.next, this.page >= this.pages - 1);
  }

  /** @param {CardState} state */
  show(state) {
    this.state = state;
    const called = state.calls > 1 ? ` call ${state.call} of ${state.calls}` : "";
    const name = state.layer || "(model)";
    const full = `${name}${called}`;
    this.el.dataset.layer = state.layer;
    this.el.dataset.call = String(state.call);
    this.el.dataset.version = String(state.version);
    this.el.dataset.state = state.state;
    this.el.setAttribute("aria-label", `${name} ${state.type}${called}`);
    setName(this.name, name);
    this.name.title = name;
    setText(this.type, state.type);
    setText(this.call, called.trim());
    this.call.hidden = !called;
    this.stale.hidden = !state.stale;
    this.edited.hidden = !state.edited;
    this.edited.title = state.edited ?? "";
    this.el.classList.toggle("hv-stale", state.stale);
    this.el.classList.toggle("hv-collapsed", state.collapsed);
    this.body.hidden = state.collapsed;
    for (const [control, text] of /** @type {[HTMLElement, string][]} */ ([
      [this.collapse, state.collapsed ? "Expand" : "Collapse"], [this.statistics, "Statistics of"], [this.filters, "Filters of"],
      [this.prev, "Previous page of"], [this.next, "Next page of"], [this.number, "Page of"], [this.pager, "Pages of"],
      [this.leaf, "Leaf of"],
    ])) {
      control.setAttribute("aria-label", `${text} ${full}`);
      if (control instanceof HTMLButtonElement) control.title = `${text} ${full}`;
    }
    this.collapse.setAttribute("aria-expanded", String(!state.collapsed));
    this.statistics.setAttribute("aria-pressed", String(state.statistics));
    this.filters.setAttribute("aria-pressed", String(Boolean(state.filters)));
    const [kept, few] = [(state.first ?? []).join(", "), state.channels ?? ""];
    this.first.hidden = !kept;
    this.own.hidden = !few;
    this.el.dataset.first = (state.first ?? []).join(" ");
    for (const [chip, text, about] of /** @type {[HTMLElement, string, string][]} */ ([
      [this.first, `★ ${middle(kept, 16)}`, `Channels ${kept} of ${full} come first: press to end that`],
      [this.own, middle(few, 16), `Channels ${few} of ${full} alone: press for those of all layers`]])) {
      chip.replaceChildren(text, h("span", { "aria-hidden": "true" }, " ×"));
      chip.title = about;
      chip.setAttribute("aria-label", about);
    }
    this.leaf.hidden = state.leaves.length < 2;
    setChoices(this.leaf, state.leaves.map((leaf) => [leaf, leaf || "(value)"]));
    this.leaf.value = state.leaf;
    const captured = state.state === "shown";
    this.statistics.hidden = !captured;
    this.filters.hidden = !captured || (state.filters ?? null) === null;
    if (!captured) {
      this.scale.hidden = true;
      showBytes(this.img, null);
      this.showTiles(undefined);
      delete this.img.dataset.version;
      setText(this.facts, "");
      this.note.hidden = true;
      this.pager.hidden = true;
    }
    this.refreshWait();
  }
  refreshWait() {
    const state = this.state;
    if (!state) return;
    const painted = this.img.dataset.version !== undefined && !this.img.hidden;
    const text = state.state === "shown" ? (painted ? "" : "Drawing …") : state.reason;
    this.wait.hidden = text === "";
    this.wait.classList.toggle("hv-busy", state.state === "shown");
    setText(this.wait, text);
    this.el.setAttribute("aria-busy",
      String(state.state === "shown" && this.img.dataset.version !== String(state.version)));
  }

  /** Where the maps stand in the picture, for pointing.js. @param {Record<string, any> | undefined} tiles */
  showTiles(tiles) {
    const any = Boolean(tiles?.channels);
    setAttribute(this.img, "data-tiles", any ? JSON.stringify(tiles) : null);
    setAttribute(this.img, "tabindex", any ? "0" : null);
    this.el.dispatchEvent(new CustomEvent("hv-painted", { bubbles: true }));
  }

  /**
   * @param {PictureFacts} facts
   * @param {DataView | undefined} png
   * @param {number} ratio device pixels per CSS pixel
   */
  paint(facts, png, ratio) {
    if (!this.state || facts.version < this.state.version) return;
    // Drawn before the page was turned: it would turn it back.
    if ((facts.turned ?? this.turned) < this.turned) return;
    this.state.version = facts.version;
    this.el.dataset.version = String(facts.version);
    setText(this.note, facts.note ? sentence(facts.note) : "");
    this.note.hidden = !facts.note;
    this.showScale(facts);
    if (facts.error) {
      const fault = { ...facts, message: facts.message ?? facts.error };
      showBytes(this.img, null);
      this.showTiles(undefined);
      this.img.dataset.version = String(facts.version);
      this.wait.replaceChildren(sentence(fault), ...actionButtons(worded(fault).actions, (action) =>
        this.send({ type: "view", changes: action === "show-dead" ? { hide_dead: false } : {} })));
      this.wait.hidden = false;
      this.wait.classList.remove("hv-busy");
      this.el.setAttribute("aria-busy", "false");
      return;
    }
    this.img.style.width = `${facts.width / ratio}px`;
    this.img.width = facts.width;
    this.img.height = facts.height;
    this.img.dataset.version = String(facts.version);
    this.img.alt = facts.alt;
    showBytes(this.img, png ?? null);
    this.showTiles(facts.tiles);
    this.page = facts.page;
    this.pages = facts.pages;
    setText(this.facts, factsText(facts));
    this.facts.title = `${facts.channels} channels · ${bytesText(facts.bytes)} · ${facts.scale}`;
    this.refreshPager();
    this.refreshWait();
  }
  /** The colors of the figure and what they stand for. @param {PictureFacts} facts */
  showScale({ bar, scale }) {
    const { colors = [], ends = [], beyond = [] } = bar ?? {};
    this.scale.hidden = !colors.length;
    this.scale.setAttribute("aria-label", `Scale: ${scale}`);
    this.scale.title = scale;
    const mark = (/** @type {string} */ color) => (color ? h("span", { class: "hv-beyond", style: `background:${color}` }) : "");
    this.scale.replaceChildren(ends.length ? numberText(ends[0]) : "min", mark(beyond[0]),
      h("span", { class: "hv-ramp", style: `background:linear-gradient(90deg,${colors.join(",")})` }),
      mark(beyond[1]), ends.length ? numberText(ends[1]) : "max");
  }
  remove() {
    showBytes(this.img, null);
    this.el.remove();
  }
}
