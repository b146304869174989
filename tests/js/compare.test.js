import { describe, expect, it } from "vitest";
import { arrange, trayText, verdict } from "../../hookviz/widget/js/panel_compare.js";

const tile = { width: 60, height: 40 };

describe("arrange", () => {
  it("keeps the parts of a channel beside each other, as many channels in a row as fit", () => {
    const { cells, height } = arrange({ mode: "side", parts: [0, 1, 2], channels: [7, 3, 9], tile, wide: 430, ratio: 1 });
    expect(cells.map((cell) => [cell.channel, cell.part])).toEqual([[7, 0], [7, 1], [7, 2], [3, 0], [3, 1], [3, 2], [9, 0], [9, 1], [9, 2]]);
    expect(new Set(cells.slice(0, 6).map((cell) => cell.y)).size).toBe(1);
    expect(cells[6].y).toBeGreaterThan(cells[0].y + tile.height);
    for (const { x, y } of cells) {
      expect(x).toBeGreaterThanOrEqual(0);
      expect(x + tile.width).toBeLessThanOrEqual(430);
      expect(y + tile.height).toBeLessThanOrEqual(height);
    }
    const overlaps = cells.some((a, i) => cells.some((b, j) => i < j && Math.abs(a.x - b.x) < tile.width && Math.abs(a.y - b.y) < tile.height));
    expect(overlaps).toBe(false);
  });

  it("shows one tile of each channel in the other ways, and never fewer than one in a row", () => {
    const { cells } = arrange({ mode: "wipe", parts: [0], channels: [1, 2], tile, wide: 20, ratio: 2 });
    expect(cells.map(({ x, part, index }) => [x, part, index])).toEqual([[0, 0, 0], [0, 0, 1]]);
  });
});

describe("verdict", () => {
  const row = { label: "conv", reason: "", mismatched: 0, relative: 0.5, tolerance: 1e-6 };
  it("names the first difference, or says that there is none", () => {
    expect(verdict([], {})).toBe("");
    expect(verdict([row], { same: true, first: null })).toBe("No difference: every value is the same.");
    expect(verdict([row], { same: false, first: null })).toBe("No difference beyond rounding.");
    expect(verdict([row], { same: false, first: 0 })).toContain("First difference beyond rounding: conv, up to 50.00 %");
    expect(verdict([{ ...row, mismatched: 3 }], { first: 0 })).toContain("3 values are NaN or infinite");
    expect(verdict([{ ...row, reason: "The shapes differ." }], { first: 0 })).toBe("First difference: conv. The shapes differ.");
  });
});

describe("trayText", () => {
  it("says the limits, what was let go, and what was too large", () => {
    const tray = { runs: [{}, {}], bytes: 26e6, most: 8, limit: 5e8, let_go: 0, too_large: 0 };
    expect(trayText(tray)).toBe("2 of at most 8 runs, 26 MB of at most 500 MB.");
    expect(trayText({ ...tray, let_go: 1 })).toContain("the oldest one was let go");
    expect(trayText({ ...tray, let_go: 3 })).toContain("the 3 oldest were let go");
    expect(trayText({ ...tray, too_large: 1.2e9 })).toContain("The last run was not kept: it takes 1.2 GB.");
  });
});
