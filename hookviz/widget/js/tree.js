// @ts-check
// The layer tree on screen: one widget for any number of layers.
// Reads the traits rows, facts, selected, hidden_calls, search, alert; writes selected,
// hidden_calls and search.
import "./tree.css";
import { button, bytesText, Cleanup, copyText, debounce, freshId, h, icon, partAlert, setAttribute, setText, textInput } from "./kit.js";
import { rowElement } from "./tree_item.js";
import { TreeState } from "./tree_state.js";

/** @typedef {import("./tree_state.js").Line} Line */

const CHIPS = [
  ["conv", "Conv"], ["relu", "ReLU"], ["pool", "Pool"], ["norm", "Norm"],
  ["blocks", "Blocks"], ["leaves", "Leaves"], ["ticked", "Ticked"],
];

/** @param {import("./kit.js").Context} context */
export function renderTree({ model, el }) {
  const cleanup = new Cleanup();
  const state = new TreeState();
  const id = freshId("tree");
  const list = lineList(id, state, { toggle, setOpen });

  const search = textInput("search", "Search layers", { class: "hv-input", type: "search", "aria-describedby": `${id}-found`,
    placeholder: "Search: conv, layer1, /conv\\d$/", oninput: () => searchFor(search.value), onkeydown: onSearchKey });
  const found = h("div", { id: `${id}-found`, class: "hv-found", hv: "found", role: "status" });
  const chips = h("div", { class: "hv-chips", role: "group", "aria-label": "Layer types" },
    ...CHIPS.map(([chip, text]) => {
      const box = button("chip", () => {
        if (!state.chips.delete(chip)) state.chips.add(chip);
        box.setAttribute("aria-pressed", String(state.chips.has(chip)));
        refill();
      }, { "data-chip": chip, class: "hv-chip", "aria-pressed": "false" }, text);
      return box;
    }));
  const tool = (/** @type {string} */ hv, /** @type {string} */ label, /** @type {string} */ text,
    /** @type {() => void} */ act) => button(hv, act, { class: "hv-link", label }, text);
  const tickFound = (/** @type {(name: string) => boolean} */ rule) => {
    state.tickFound(rule);
    tellTicks();
  };
  const tools = h("div", { class: "hv-tree-tools", role: "group", "aria-label": "Tick" },
    tool("all", "Tick all shown", "All", () => tickFound(() => true)),
    tool("none", "Untick all shown", "None", () => tickFound(() => false)),
    tool("invert", "Invert shown", "Invert", () => tickFound((name) => !state.ticked.has(name))),
    tool("only", "Only this layer", "Only this", onlyThis),
    tool("copy-name", "Copy layer name", "Copy name", copyName));
  const summary = h("div", { hv: "summary", class: "hv-summary", "aria-live": "polite" });
  const root = h("section", { hv: "tree", class: "hv hv-part hv-tree", "aria-label": "Layers" },
    h("h3", { class: "hv-title" }, h("span", { class: "hv-step" }, "2"), "Layers", summary),
    partAlert(model, cleanup), h("div", { class: "hv-search" }, icon("search"), search), chips, found, tools, list.el);

  // ── what the user does
  /** @param {Line} line */
  function toggle(line) {
    state.toggle(line);
    if (line.call) model.set("hidden_calls", [...state.hiddenCalls].sort());
    tellTicks();
  }
  /** @param {Line} line @param {boolean} open */
  function setOpen({ row }, open) {
    state.setOpen(row, open);
    refill();
  }
  function tellTicks() {
    model.set("selected", state.rows.filter((row) => state.ticked.has(row.name)).map((row) => row.name));
    model.save_changes();
    // ipywidgets holds a trait back until the change before it is answered, but no message: what is
    // pressed next, Run for one, must not come before the ticks.
    model.send({ type: "ticks", selected: model.get("selected"), hidden_calls: model.get("hidden_calls") ?? [] });
    refreshTicks();
  }
  function onlyThis() {
    const line = list.current();
    if (!line) return;
    state.ticked = new Set([line.row.name]);
    tellTicks();
  }
  function copyName() {
    const row = list.current()?.row;
    if (!row) return;
    copyText(row.name).then(() => setText(found, `Copied ${row.name || "(model)"}.`),
      () => setText(found, `The name is: ${row.name}`));
  }
  const tellSearch = debounce(300, () => {
    model.set("search", state.text);
    model.save_changes();
  });
  /** @param {string} text */
  function searchFor(text) {
    state.text = text;
    refill();
    tellSearch();
  }
  /** @param {KeyboardEvent} event */
  function onSearchKey(event) {
    if (event.key === "Escape" && search.value) {
      search.value = "";
      searchFor("");
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      list.el.focus();
    } else return;
    event.stopPropagation();
  }

  // ── what is on screen
  function refill() {
    list.show(state.lines());
    const { error, filtered, count } = state.found;
    setText(found, error || (filtered ? `${count} of ${state.rows.length} shown` : ""));
    found.classList.toggle("hv-bad", Boolean(error));
    refreshSummary();
  }
  function refreshTicks() {
    if (state.chips.has("ticked")) refill();
    else list.refreshTicks();
    refreshSummary();
  }
  function refreshSummary() {
    const { count, bytes, unknown } = state.totals();
    const size = bytes ? ` · ≈ ${bytesText(bytes)}${unknown ? " or more" : ""}` : "";
    setText(summary, `${count} of ${state.rows.length}${size}`);
  }
  function takeTicks() {
    state.ticked = new Set(model.get("selected") ?? []);
    state.hiddenCalls = new Set(model.get("hidden_calls") ?? []);
  }
  const takeFacts = () => {
    state.facts = model.get("facts") ?? {};
    refill();
  };
  const takeRows = () => {
    state.takeRows(model.get("rows") ?? []);
    takeTicks();
    takeFacts();
  };
  const takeNewTicks = () => {
    takeTicks();
    refreshTicks();
  };
  cleanup.listen(model, "change:facts", takeFacts);
  cleanup.listen(model, "change:selected", takeNewTicks);
  cleanup.listen(model, "change:hidden_calls", takeNewTicks);
  search.value = state.text = model.get("search") ?? "";
  cleanup.follow(model, ["rows"], takeRows);
  return cleanup.mount(el, root);
}

/**
 * The box with the lines: which one the keys act on, and what keys and clicks do.
 * @param {string} id
 * @param {TreeState} state
 * @param {{toggle: (line: Line) => void, setOpen: (line: Line, open: boolean) => void}} act
 */
function lineList(id, state, { toggle, setOpen }) {
  /** @type {Line[]} */
  let lines = [];
  /** @type {HTMLElement[]} */
  let items = [];
  let key = "";
  const el = h("div", { hv: "treebox", class: "hv-treebox", role: "tree", tabindex: "0", "aria-label": "Layer tree",
    "aria-multiselectable": "true", onclick: onClick, onkeydown: onKey });
  const place = () => items.findIndex((item) => item.dataset.key === key);

  /** @param {number} at */
  function mark(at) {
    items[place()]?.classList.remove("hv-focused");
    const item = items[at];
    key = item?.dataset.key ?? "";
    item?.classList.add("hv-focused");
    setAttribute(el, "aria-activedescendant", item?.id ?? null);
    return item;
  }
  /** @param {number} at */
  function moveTo(at) {
    const item = mark(Math.max(0, Math.min(items.length - 1, at)));
    if (!item) return;
    const top = item.offsetTop - el.offsetTop;
    if (top < el.scrollTop) el.scrollTop = top;
    else if (top + item.offsetHeight > el.scrollTop + el.clientHeight) {
      el.scrollTop = top + item.offsetHeight - el.clientHeight;
    }
  }
  /** @param {any} event */
  function onClick(event) {
    const item = event.target.closest?.('[data-hv="row"]');
    if (!item) return;
    moveTo(items.indexOf(item));
    const line = lines[place()];
    const open = item.getAttribute("aria-expanded");
    if (event.target.closest('[data-hv="twisty"]') && open !== null) setOpen(line, open !== "true");
    else toggle(line);
  }
  /** @param {KeyboardEvent} event */
  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = place();
    const line = lines[at];
    const open = items[at]?.getAttribute("aria-expanded");
    const level = (/** @type {HTMLElement | undefined} */ item) => Number(item?.getAttribute("aria-level"));
    const acts = /** @type {Record<string, () => void>} */ ({
      ArrowDown: () => moveTo(at + 1),
      ArrowUp: () => moveTo(at - 1),
      Home: () => moveTo(0),
      End: () => moveTo(items.length - 1),
      " ": () => line && toggle(line),
      ArrowRight: () => (open === "false" ? setOpen(line, true) : open && moveTo(at + 1)),
      ArrowLeft: () => {
        if (open === "true") setOpen(line, false);
        else {
          const up = items.slice(0, Math.max(0, at)).reverse().find((item) => level(item) < level(items[at]));
          if (up) moveTo(items.indexOf(up));
        }
      },
    });
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }
  return {
    el,
    /** The line that the keys act on. @returns {Line | undefined} */
    current: () => lines[place()],
    /** @param {Line[]} shown */
    show(shown) {
      lines = shown;
      items = shown.map((line) => rowElement(id, line.row, { state: state.stateOf(line), call: line.call,
        fact: state.facts[line.row.name] ?? {}, matches: state.found.match[line.row.index], open: state.isOpen(line.row) }));
      el.replaceChildren(...items);
      if (!items.length) {
        el.append(h("div", { class: "hv-none" }, state.rows.length ? "No matching layer." : "The model's layers appear here."));
      }
      mark(Math.max(0, place()));
    },
    refreshTicks() {
      lines.forEach((line, at) => {
        const now = state.stateOf(line);
        if (items[at].getAttribute("aria-checked") !== now) items[at].setAttribute("aria-checked", now);
      });
    },
  };
}

export default { render: renderTree };
