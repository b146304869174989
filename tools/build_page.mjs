// Builds the page side of the widgets: each one's modules and style sheets put together.
//
//   npm run build              what is committed: one statement or rule a line, with its names, so
//                              that it can be read and compared, but without the comments and
//                              spaces that would travel to each page
//   npm run dev                the same with source maps, again after every change
//   npm run build -- FOLDER    somewhere else
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import * as esbuild from "esbuild";

const folder = "hookviz/widget";
const watch = process.argv.includes("--watch");
const target = process.argv.slice(2).find((word) => !word.startsWith("--")) ?? `${folder}/static`;

const bare = (text) => text
  .replace(/^\s*\/\*[\s\S]*?\*\/[ \t]*$/gm, "")
  .split("\n").map((line) => line.trim()).filter((line) => line && !line.startsWith("//"))
  .join("\n") + "\n";

/** A style sheet, one rule a line. */
const dense = (text) => bare(text).replace(/(?<=[;{,])\n/g, "").replace(/(?<=[:,]) | (?=\{)|;(?=\n?\})/g, "").replace(/(?<!\})\n(?=\})/g, "");

const write = {
  name: "write",
  setup: (build) => build.onEnd(({ outputFiles = [] }) => {
    mkdirSync(target, { recursive: true });
    for (const { path, text } of outputFiles) {
      writeFileSync(join(target, basename(path)), watch ? text : (path.endsWith(".css") ? dense : bare)(text));
    }
  }),
};

const context = await esbuild.context({
  entryPoints: ["app.js", "tree.js", "image.js", "gallery.js", "training.js", ...readdirSync(`${folder}/js`).filter((name) => /^panel_.*\.js$/.test(name))]
    .map((name) => `${folder}/js/${name}`),
  bundle: true, format: "esm", target: "es2022", charset: "utf8", legalComments: "none",
  outdir: target, entryNames: "[name].min", write: false, minifySyntax: !watch, logLevel: "warning",
  sourcemap: watch && "inline", plugins: [write],
});
if (watch) await context.watch();
else {
  await context.rebuild();
  await context.dispose();
}
