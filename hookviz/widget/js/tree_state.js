// @ts-check
// What is ticked, open and found in a layer tree, without a screen.
import { applyFilter, buildRows, shownRows, stateOf, toggled, withTicks } from "./tree_rows.js";

/** @typedef {import("./tree_rows.js").Row} Row */
/** @typedef {import("./tree_item.js").Facts} Facts */
/** One line on screen: a layer (call 0), or one call of it. @typedef {{row: Row, call: number}} Line */

/** More layers than this begin with their groups closed. */
const MANY = 1500;

export class TreeState {
  constructor() {
    /** @type {Row[]} */
    this.rows = [];
    /** @type {Record<string, Facts>} */
    this.facts = {};
    this.ticked = new Set();
    this.hiddenCalls = new Set();
    this.chips = new Set();
    this.text = "";
    /** @type {Set<string>} */
    this.closed = new Set();
    /** What the user opened (true) or shut (false); calls that were captured stand open at first.
     * @type {Map<string, boolean>} */
    this.openCalls = new Map();
    this.found = applyFilter([], { text: "", chips: this.chips, ticked: this.ticked });
  }

  /** @param {[string, string, boolean | number][]} raw another model's layers */
  takeRows(raw) {
    this.rows = buildRows(raw);
    this.openCalls.clear();
    const shut = this.rows.length > MANY ? this.rows.filter((row) => row.children.length && row.level > 1) : [];
    this.closed = new Set(shut.map((row) => row.name));
  }
  /** The lines that search, chips and open groups leave, from the top. @returns {Line[]} */
  lines() {
    this.found = applyFilter(this.rows, { text: this.text, chips: this.chips, ticked: this.ticked });
    const lines = [];
    for (const row of shownRows(this.rows, this.found, this.found.filtered ? new Set() : this.closed)) {
      lines.push({ row, call: 0 });
      const calls = this.facts[row.name]?.c ?? 1;
      if (calls > 1 && this.isOpen(row)) for (let call = 1; call <= calls; call += 1) lines.push({ row, call });
    }
    return lines;
  }
  /** Whether what is below a row is shown. @param {Row} row */
  isOpen(row) {
    if (row.children.length) return !this.closed.has(row.name);
    return this.openCalls.get(row.name) ?? Boolean(this.facts[row.name]?.d);
  }
  /** @param {Row} row @param {boolean} open */
  setOpen(row, open) {
    if (!row.children.length) this.openCalls.set(row.name, open);
    else if (open) this.closed.delete(row.name);
    else this.closed.add(row.name);
  }
  /** Whether a line's box is ticked. @param {Line} line @returns {"true" | "false" | "mixed"} */
  stateOf({ row, call }) {
    if (!call) return stateOf(this.rows, row, this.found.match, this.ticked);
    return this.ticked.has(row.name) && !this.hiddenCalls.has(`${row.name}#${call}`) ? "true" : "false";
  }
  /** Ticks a line's box, or unticks it. @param {Line} line */
  toggle({ row, call }) {
    if (!call) {
      this.ticked = toggled(this.rows, row, this.found.match, this.ticked);
      return;
    }
    const all = Array.from({ length: this.facts[row.name]?.c ?? 0 }, (_, i) => `${row.name}#${i + 1}`);
    const key = `${row.name}#${call}`;
    const hidden = new Set(this.hiddenCalls);
    if (!this.ticked.has(row.name)) {
      for (const other of all) hidden.add(other);
      hidden.delete(key);
    } else if (!hidden.delete(key)) hidden.add(key);
    // A layer without any of its calls is not ticked.
    const none = all.every((other) => hidden.has(other));
    if (none) for (const other of all) hidden.delete(other);
    this.hiddenCalls = hidden;
    this.ticked = new Set(this.ticked);
    if (none) this.ticked.delete(row.name);
    else this.ticked.add(row.name);
  }
  /** Ticks each layer that is found where the rule says so, and unticks the others that are found.
   * @param {(name: string) => boolean} rule */
  tickFound(rule) {
    this.ticked = withTicks(this.rows.filter((row) => this.found.match[row.index]), this.ticked, rule);
  }
  /** How many layers are ticked, and the bytes that they give. */
  totals() {
    const ticked = this.rows.filter((row) => this.ticked.has(row.name)).map((row) => this.facts[row.name]);
    return {
      count: ticked.length,
      bytes: ticked.reduce((total, fact) => total + sum(fact?.b), 0),
      unknown: ticked.some((fact) => !fact?.b && !fact?.r),
    };
  }
}

/** @param {number[] | undefined} values */
export function sum(values) {
  return (values ?? []).reduce((total, value) => total + value, 0);
}
