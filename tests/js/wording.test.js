import { readFileSync, readdirSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { sentence, weightsText, worded } from "../../hookviz/widget/js/wording.js";

const python = (folder) => readdirSync(folder, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.name.endsWith(".py"))
  .map((entry) => readFileSync(`${entry.parentPath}/${entry.name}`, "utf8")).join("\n");
const PACKAGE = `${import.meta.dirname}/../../hookviz`;
const LIBRARY = python(PACKAGE);
const TABLE = readFileSync(`${PACKAGE}/widget/js/wording.js`, "utf8");

describe("the app's own words", () => {
  test("a fault that the table does not know is said as the library says it", () => {
    expect(worded({ message: "No.", remedy: "Do." })).toEqual({ message: "No.", remedy: "Do.", actions: [] });
  });
  test("every code of the library has words here, and every code here is the library's", () => {
    // Of `reproduce`, which the app does not call.
    const elsewhere = ["model-not-at-hand", "image-not-at-hand"];
    const raised = new Set([...LIBRARY.matchAll(/\bcode="([a-z-]+)"/g)].map((found) => found[1]));
    const known = new Set([...TABLE.matchAll(/^ {2}"([a-z-]+)": \(/gm)].map((found) => found[1]));
    expect([...raised].filter((code) => !elsewhere.includes(code)).sort()).toEqual([...known].sort());
  });
  test("no words of the app speak of arguments", () => {
    const said = [...TABLE.matchAll(/`[^`]*`|"[^"]*"/g)].map((found) => found[0]).join("\n");
    expect(said).not.toMatch(/\w+=['\w]|\bFalse\b|\bNone\b|\w+\(\)/);
  });
  test("one text of message and remedy", () => {
    expect(sentence({ message: "A.", remedy: "B." })).toBe("A. B.");
    expect(weightsText("as passed in")).toBe("your own module");
  });
});
