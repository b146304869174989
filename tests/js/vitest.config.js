import { defineConfig } from "vitest/config";

export default defineConfig({
  // The modules under test lie outside this folder.
  server: { fs: { allow: ["../.."] } },
  root: import.meta.dirname,
  test: { environment: "happy-dom", include: ["*.test.js"] },
});
