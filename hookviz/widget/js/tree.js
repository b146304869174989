// @ts-check
// The layer tree on screen: one widget for any number of layers.
// A little over 300 lines: its controls, keys and rows share what is ticked, open and found.
// Reads the traits rows, facts, selected, hidden_calls, search; writes the last three.
import "./tree.css";
import { alertBox, bytesText, Cleanup, debounce, freshId, h, icon, setText } from "./kit.js";
import { rowElement, sum } from "./tree_item.js";
import { applyFilter, buildRows, shownRows, stateOf, toggled } from "./tree_rows.js";

/** @typedef {import("./kit.js").Model} Model */
/** @typedef {import("./tree_rows.js").Row} Row */
/** @typedef {import("./tree_item.js").Facts} Facts */

const CHIPS = [
  ["conv", "Conv"], ["relu", "ReLU"], ["pool", "Pool"], ["norm", "Norm"],
  ["blocks", "Blocks"], ["leaves", "Leaves"], ["ticked", "Ticked"],
];

/** @param {{model: Model, el: HTMLElement}} context */
export function renderTree({ model, el }) {
  const cleanup = new Cleanup();
  const id = freshId("tree");
  /** @type {Row[]} */
  let rows = [];
  let ticked = new Set();
  let hiddenCalls = new Set();
  /** @type {Set<string>} */
  const closed = new Set();
  /** What the user opened (true) or shut (false); calls that were captured stand open at first.
   * @type {Map<string, boolean>} */
  const openCalls = new Map();
  const chips = new Set();
  /** @type {Record<string, Facts>} */
  let facts = {};
  /** @type {HTMLElement[]} */
  let items = [];
  let focusKey = "";
  /** @type {ReturnType<typeof applyFilter>} */
  let found = { match: [], context: [], filtered: false, count: 0, error: "" };

  const search = h("input", {
    hv: "search", class: "hv-input", type: "search", "aria-label": "Search layers",
    placeholder: "Search: conv, layer1, /conv\\d$/", spellcheck: "false", autocomplete: "off",
    "aria-describedby": `${id}-found`,
  });
  const foundText = h("div", { id: `${id}-found`, class: "hv-found", hv: "found", role: "status" });
  const chipBar = h("div", { class: "hv-chips", role: "group", "aria-label": "Layer types" },
    ...CHIPS.map(([chip, text]) => h("button", {
      hv: "chip", "data-chip": chip, type: "button", class: "hv-chip", "aria-pressed": "false",
      onclick: (/** @type {any} */ event) => {
        if (chips.has(chip)) chips.delete(chip);
        else chips.add(chip);
        event.currentTarget.setAttribute("aria-pressed", String(chips.has(chip)));
        refill();
      },
    }, text)));
  const tool = (/** @type {string} */ hv, /** @type {string} */ label, /** @type {string} */ text,
    /** @type {() => void} */ act) => h("button",
    { hv, type: "button", class: "hv-link", "aria-label": label, title: label, onclick: act }, text);
  const tools = h("div", { class: "hv-tree-tools", role: "group", "aria-label": "Tick" },
    tool("all", "Tick all shown", "All", () => tickShown(() => true)),
    tool("none", "Untick all shown", "None", () => tickShown(() => false)),
    tool("invert", "Invert shown", "Invert", () => tickShown((name) => !ticked.has(name))),
    tool("only", "Only this layer", "Only this", onlyThis),
    tool("copy-name", "Copy layer name", "Copy name", copyName));
  const box = h("div", {
    hv: "treebox", class: "hv-treebox", role: "tree", tabindex: "0", "aria-label": "Layer tree",
    "aria-multiselectable": "true",
  });
  const summary = h("div", { hv: "summary", class: "hv-summary", "aria-live": "polite" });
  const alert = alertBox(() => model.send({ type: "dismiss" }));
  const root = h("section", { hv: "tree", class: "hv hv-part hv-tree", "aria-label": "Layers" },
    h("h3", { class: "hv-title" }, h("span", { class: "hv-step" }, "2"), "Layers", summary),
    alert.place,
    h("div", { class: "hv-search" }, icon("search"), search), chipBar, foundText, tools, box);

  /** @param {Set<string>} next */
  function setTicked(next) {
    ticked = next;
    model.set("selected", rows.filter((r) => ticked.has(r.name)).map((r) => r.name));
    model.save_changes();
    if (chips.has("ticked")) refill();
    else refreshTicks();
  }
  /** @param {(name: string) => boolean} rule */
  function tickShown(rule) {
    const next = new Set(ticked);
    for (const row of rows) {
      if (!found.match[row.index]) continue;
      if (rule(row.name)) next.add(row.name);
      else next.delete(row.name);
    }
    setTicked(next);
  }
  const focused = () => items.find((item) => item.dataset.key === focusKey) ?? null;
  const rowOf = (/** @type {HTMLElement | null} */ item) => (item ? rows[Number(item.dataset.index)] : null);

  function onlyThis() {
    const row = rowOf(focused());
    if (row) setTicked(new Set([row.name]));
  }
  function copyName() {
    const row = rowOf(focused());
    if (!row) return;
    const said = () => setText(foundText, `Copied ${row.name || "(model)"}.`);
    const pending = navigator.clipboard?.writeText(row.name);
    if (pending) pending.then(said, () => setText(foundText, `The name is: ${row.name}`));
    else setText(foundText, `The name is: ${row.name}`);
  }
  /** @param {HTMLElement} item */
  function tick(item) {
    const row = rowOf(item);
    if (!row) return;
    const call = item.dataset.call;
    if (!call) {
      setTicked(toggled(rows, row, found.match, ticked));
      return;
    }
    const all = Array.from({ length: facts[row.name]?.c ?? 0 }, (_, i) => `${row.name}#${i + 1}`);
    const key = `${row.name}#${call}`;
    const next = new Set(hiddenCalls);
    if (!ticked.has(row.name)) {
      for (const other of all) next.add(other);
      next.delete(key);
    } else if (next.has(key)) next.delete(key);
    else next.add(key);
    const none = all.every((other) => next.has(other));
    if (none) for (const other of all) next.delete(other);
    hiddenCalls = next;
    model.set("hidden_calls", [...next].sort());
    const selected = new Set(ticked);
    if (none) selected.delete(row.name);
    else selected.add(row.name);
    setTicked(selected);
  }
  /** @param {HTMLElement} item @param {boolean} open */
  function setOpen(item, open) {
    const row = rowOf(item);
    if (!row || item.getAttribute("aria-expanded") === null) return;
    if (!row.children.length) openCalls.set(row.name, open);
    else if (open) closed.delete(row.name);
    else closed.add(row.name);
    refill();
  }
  /** @param {HTMLElement | null} item */
  function moveTo(item) {
    if (!item) return;
    focused()?.classList.remove("hv-focused");
    focusKey = item.dataset.key ?? "";
    item.classList.add("hv-focused");
    box.setAttribute("aria-activedescendant", item.id);
    const top = item.offsetTop - box.offsetTop;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + item.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = top + item.offsetHeight - box.clientHeight;
    }
  }

  /** @param {Row} row @param {string} state @param {number} call */
  function item(row, state, call) {
    return rowElement(id, row, {
      state, call, fact: facts[row.name] ?? {}, matches: found.match[row.index],
      open: row.children.length ? !closed.has(row.name) : callsOpen(row),
    });
  }
  /** @param {Row} row */
  function callsOpen(row) {
    return openCalls.get(row.name) ?? Boolean(facts[row.name]?.d);
  }
  /** @param {Row} row @param {number} call */
  function callState(row, call) {
    return String(ticked.has(row.name) && !hiddenCalls.has(`${row.name}#${call}`));
  }

  function refill() {
    found = applyFilter(rows, { text: search.value, chips, ticked });
    const shown = shownRows(rows, found, found.filtered ? new Set() : closed);
    items = [];
    for (const row of shown) {
      items.push(item(row, stateOf(rows, row, found.match, ticked), 0));
      const calls = facts[row.name]?.c ?? 1;
      if (calls > 1 && (row.children.length ? !closed.has(row.name) : callsOpen(row))) {
        for (let c = 1; c <= calls; c += 1) items.push(item(row, callState(row, c), c));
      }
    }
    box.replaceChildren(...items);
    if (!items.length) {
      box.append(h("div", { class: "hv-none" },
        rows.length ? "No layer is like that." : "The model's layers appear here."));
    }
    setText(foundText, found.error || (found.filtered ? `${found.count} of ${rows.length} shown` : ""));
    foundText.classList.toggle("hv-bad", Boolean(found.error));
    const again = focused();
    if (again) again.classList.add("hv-focused");
    else {
      focusKey = items[0]?.dataset.key ?? "";
      items[0]?.classList.add("hv-focused");
    }
    const now = focused();
    if (now) box.setAttribute("aria-activedescendant", now.id);
    else box.removeAttribute("aria-activedescendant");
    refreshSummary();
  }
  function refreshTicks() {
    for (const node of items) {
      const row = rows[Number(node.dataset.index)];
      const call = Number(node.dataset.call ?? 0);
      const state = call ? callState(row, call) : stateOf(rows, row, found.match, ticked);
      if (node.getAttribute("aria-checked") !== state) node.setAttribute("aria-checked", state);
    }
    refreshSummary();
  }
  function refreshSummary() {
    let bytes = 0;
    let unknown = false;
    let count = 0;
    for (const row of rows) {
      if (!ticked.has(row.name)) continue;
      count += 1;
      const fact = facts[row.name];
      if (fact?.b) bytes += sum(fact.b) ?? 0;
      else if (!fact?.r) unknown = true;
    }
    const size = count && bytes ? ` · ≈ ${bytesText(bytes)}${unknown ? " or more" : ""}` : "";
    setText(summary, `${count} of ${rows.length}${size}`);
  }
  function takeTicks() {
    ticked = new Set(model.get("selected") ?? []);
    hiddenCalls = new Set(model.get("hidden_calls") ?? []);
  }

  box.addEventListener("click", (/** @type {any} */ event) => {
    const node = event.target.closest?.('[data-hv="row"]');
    if (!node) return;
    moveTo(node);
    if (event.target.closest('[data-hv="twisty"]') && node.hasAttribute("aria-expanded")) {
      setOpen(node, node.getAttribute("aria-expanded") !== "true");
    } else tick(node);
  });
  box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = items.findIndex((node) => node.dataset.key === focusKey);
    const node = items[at];
    const open = node?.getAttribute("aria-expanded");
    const acts = /** @type {Record<string, () => void>} */ ({
      ArrowDown: () => moveTo(items[Math.min(at + 1, items.length - 1)]),
      ArrowUp: () => moveTo(items[Math.max(at - 1, 0)]),
      Home: () => moveTo(items[0]),
      End: () => moveTo(items[items.length - 1]),
      " ": () => node && tick(node),
      ArrowRight: () => (open === "false" ? setOpen(node, true) : open && moveTo(items[at + 1])),
      ArrowLeft: () => {
        if (open === "true") setOpen(node, false);
        else moveTo(items.slice(0, at).reverse().find((other) =>
          Number(other.ariaLevel ?? other.getAttribute("aria-level")) < Number(node.getAttribute("aria-level"))) ?? null);
      },
    });
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  const sendSearch = debounce(300, () => {
    model.set("search", search.value);
    model.save_changes();
  });
  search.addEventListener("input", () => {
    refill();
    sendSearch();
  });
  search.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && search.value) {
      event.stopPropagation();
      search.value = "";
      refill();
      sendSearch();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      event.stopPropagation();
      box.focus();
    }
  });
  const takeRows = () => {
    rows = buildRows(model.get("rows") ?? []);
    closed.clear();
    openCalls.clear();
    if (rows.length > 1500) for (const r of rows) if (r.children.length && r.level > 1) closed.add(r.name);
    facts = model.get("facts") ?? {};
    takeTicks();
    refill();
  };
  cleanup.listen(model, "change:rows", takeRows);
  cleanup.listen(model, "change:facts", () => {
    facts = model.get("facts") ?? {};
    refill();
  });
  const ticksChanged = () => {
    takeTicks();
    if (chips.has("ticked")) refill();
    else refreshTicks();
  };
  cleanup.listen(model, "change:selected", ticksChanged);
  cleanup.listen(model, "change:hidden_calls", ticksChanged);
  cleanup.listen(model, "change:alert", () => alert.show(model.get("alert")));
  search.value = model.get("search") ?? "";
  alert.show(model.get("alert"));
  takeRows();
  el.classList.add("hv-host");
  el.append(root);
  return () => cleanup.run();
}

export default { render: renderTree };
