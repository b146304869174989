// @ts-check
// How wide, how finely and in which theme a part of the app is seen: its figures are drawn for that.
import { debounce, isDark } from "./kit.js";

/** Pixels of the screen to one of the page, as far as figures follow it. */
export const pixelRatio = () => Math.max(1, Math.min(3, devicePixelRatio || 1));

/**
 * Tells width, resolution and theme, at first and after each change. Figures are drawn for the width
 * that they have on screen, so that no pixel is resampled.
 * @param {HTMLElement} root
 * @param {HTMLElement} list
 * @param {import("./kit.js").Cleanup} cleanup
 * @param {(look: {width: number, ratio: number, style: string}) => void} tell
 * @param {(on: boolean) => void} [see] told whenever it comes on the screen or goes from it; a first look says so by itself
 */
export function watchLook(root, list, cleanup, tell, see) {
  let told = "";
  let seen = true;
  function refresh() {
    const on = Boolean(list.clientWidth);
    if (told && on !== seen) see?.(on);
    seen = on;
    if (!on) return;
    const ratio = pixelRatio();
    const style = isDark(root) ? "dark" : "light";
    const look = { width: Math.round(Math.max(320, list.clientWidth - 12) * ratio), ratio, style };
    root.dataset.style = style;
    const now = JSON.stringify(look);
    if (now !== told) tell(look);
    told = now;
  }
  const refreshSoon = debounce(200, refresh);
  const size = new ResizeObserver(() => (told ? refreshSoon() : refresh()));
  size.observe(list);
  const theme = new MutationObserver(refreshSoon);
  // JupyterLab names its theme on the body, marimo on body and root by class or attribute.
  for (const node of [document.documentElement, document.body]) {
    theme.observe(node, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-theme", "class"] });
  }
  cleanup.add(() => [size, theme].forEach((observer) => observer.disconnect()));
  refresh();
}
