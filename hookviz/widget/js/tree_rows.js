// @ts-check
// The layer tree without a screen: parents, the search, three-state ticks. Pure functions.

/**
 * One layer. `parent` is an index into the same list, -1 at the top.
 * @typedef {{index: number, name: string, label: string, type: string, leaf: boolean,
 *   parent: number, children: number[], level: number, end: number}} Row
 */

/** @typedef {{text: string, chips: Set<string>, ticked: Set<string>}} Filter */

const TYPE_CHIPS = { conv: /conv/i, relu: /relu/i, pool: /pool/i, norm: /norm/i };

/**
 * Rows from what Python sends: [name, type, leaf] in named_modules() order, the model first.
 * @param {[string, string, boolean | number][]} raw
 * @returns {Row[]}
 */
export function buildRows(raw) {
  /** @type {Map<string, number>} */
  const known = new Map();
  /** @type {Row[]} */
  const rows = [];
  for (const [name, type, leaf] of raw) {
    const index = rows.length;
    let parent = -1;
    let prefix = name;
    while (parent < 0 && prefix.includes(".")) {
      prefix = prefix.slice(0, prefix.lastIndexOf("."));
      parent = known.get(prefix) ?? -1;
    }
    const label = parent < 0 ? name : name.slice(rows[parent].name.length + 1);
    rows.push({
      index, name, label: name === "" ? "(model)" : label, type, leaf: Boolean(leaf), parent,
      children: [], level: parent < 0 ? 1 : rows[parent].level + 1, end: index + 1,
    });
    if (parent >= 0) rows[parent].children.push(index);
    known.set(name, index);
  }
  // named_modules() walks depth first, so what lies below a row follows it without a gap.
  for (let i = rows.length - 1; i >= 0; i -= 1) {
    const up = rows[i].parent;
    if (up >= 0) rows[up].end = Math.max(rows[up].end, rows[i].end);
  }
  return rows;
}

/**
 * What a search text asks: words that must all occur, or /a regular expression/.
 * @param {string} text
 * @returns {{test: (row: Row) => boolean, error: string}}
 */
export function parseSearch(text) {
  const trimmed = text.trim();
  const pattern = /^\/(.+?)(?:\/([imsu]*))?$/.exec(trimmed);
  if (pattern) {
    try {
      const expression = new RegExp(pattern[1], pattern[2] ?? "");
      return { test: (row) => expression.test(row.name) || expression.test(row.type), error: "" };
    } catch (problem) {
      const reason = String(/** @type {any} */ (problem).message).replace(/^Invalid regular expression: /, "");
      return { test: () => false, error: `Not a regular expression: ${reason}` };
    }
  }
  const words = trimmed.toLowerCase().split(/\s+/).filter(Boolean);
  return {
    test: (row) => {
      const where = `${row.name} ${row.type}`.toLowerCase();
      return words.every((word) => where.includes(word));
    },
    error: "",
  };
}

/**
 * Which rows the search and the chips keep, and which rows lead to them.
 * @param {Row[]} rows
 * @param {Filter} filter
 * @returns {{match: boolean[], context: boolean[], filtered: boolean, count: number, error: string}}
 */
export function applyFilter(rows, filter) {
  const { test, error } = parseSearch(filter.text);
  const types = Object.entries(TYPE_CHIPS).filter(([chip]) => filter.chips.has(chip));
  const blocks = filter.chips.has("blocks");
  const leaves = filter.chips.has("leaves");
  const filtered = filter.text.trim() !== "" || filter.chips.size > 0;
  const match = rows.map((row) => {
    if (types.length && !(row.leaf && types.some(([, kind]) => kind.test(row.type)))) return false;
    if (blocks !== leaves && (row.name === "" || row.leaf !== leaves)) return false;
    if (filter.chips.has("ticked") && !filter.ticked.has(row.name)) return false;
    return test(row);
  });
  const context = rows.map(() => false);
  let count = 0;
  for (const row of rows) {
    if (!match[row.index]) continue;
    count += 1;
    for (let up = row.parent; up >= 0 && !context[up]; up = rows[up].parent) context[up] = true;
  }
  return { match, context, filtered, count, error };
}

/**
 * The rows that a row's box stands for: itself and what is below it, as far as the filter keeps
 * them. The model's own row stands for itself alone.
 * @param {Row[]} rows
 * @param {Row} row
 * @param {boolean[]} match
 * @returns {Row[]}
 */
function scopeOf(rows, row, match) {
  return rows.slice(row.index, row.end).filter((r) => match[r.index]);
}

/**
 * @param {Row[]} rows
 * @param {Row} row
 * @param {boolean[]} match
 * @param {Set<string>} ticked
 * @returns {"true" | "false" | "mixed"}
 */
export function stateOf(rows, row, match, ticked) {
  const scope = scopeOf(rows, row, match);
  const count = scope.filter(({ name }) => ticked.has(name)).length;
  if (count === 0) return "false";
  return count === scope.length ? "true" : "mixed";
}

/**
 * What is ticked once a rule has said it of some rows.
 * @param {Row[]} some
 * @param {Set<string>} ticked
 * @param {(name: string) => boolean} rule
 */
export function withTicks(some, ticked, rule) {
  const next = new Set(ticked);
  for (const { name } of some) {
    if (rule(name)) next.add(name);
    else next.delete(name);
  }
  return next;
}

/**
 * What is ticked after a click on a row's box: all of its scope, or none where all were.
 * @param {Row[]} rows
 * @param {Row} row
 * @param {boolean[]} match
 * @param {Set<string>} ticked
 * @returns {Set<string>}
 */
export function toggled(rows, row, match, ticked) {
  const on = stateOf(rows, row, match, ticked) !== "true";
  return withTicks(scopeOf(rows, row, match), ticked, () => on);
}

/**
 * The rows on screen, from the top: matches and what leads to them, closed groups shut.
 * @param {Row[]} rows
 * @param {{match: boolean[], context: boolean[]}} found
 * @param {Set<string>} closed
 * @returns {Row[]}
 */
export function shownRows(rows, found, closed) {
  const shown = [];
  for (let i = 0; i < rows.length; ) {
    const row = rows[i];
    const visible = found.match[i] || found.context[i];
    if (visible) shown.push(row);
    i = !visible || closed.has(row.name) ? row.end : i + 1;
  }
  return shown;
}
