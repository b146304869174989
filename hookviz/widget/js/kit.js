// @ts-check
// What every part of the app uses: building elements, listening to a widget's model, pictures
// that arrive as bytes. Nothing here knows layers, images or runs.
import { sentence, worded } from "./wording.js";

/**
 * The part of a Jupyter widget's model that anywidget hands over.
 * @typedef {{
 *   get(name: string): any,
 *   set(name: string, value: any): void,
 *   save_changes(): void,
 *   send(content: any, callbacks?: any, buffers?: (ArrayBuffer | ArrayBufferView)[]): void,
 *   on(name: string, callback: (...args: any[]) => void): void,
 *   off(name: string, callback?: (...args: any[]) => void): void,
 *   widget_manager?: any,
 * }} Model
 */

/**
 * What anywidget hands to render. `host` shows other widgets, in every front end alike.
 * @typedef {{model: Model, el: HTMLElement, host?: {getWidget(reference: string): Promise<{
 *   render(where: {el: HTMLElement, signal: AbortSignal}): Promise<void>}>}}} Context
 */

/** @typedef {Record<string, any>} Props */

/** @type {Record<string, string>} */
const SVG = {
  chevron: '<path d="M6 4l4 4-4 4"/>',
  down: '<path d="M4 6l4 4 4-4"/>',
  search: '<circle cx="7" cy="7" r="4"/><path d="M10 10l3.5 3.5"/>',
  upload: '<path d="M8 10.5V3M5 5.5L8 2.5l3 3M3 11v2h10v-2"/>',
  close: '<path d="M4 4l8 8M12 4l-8 8"/>',
  left: '<path d="M10 4L6 8l4 4"/>',
  chart: '<path d="M3 13V8M7 13V3M11 13V6M2 13.5h12"/>',
  filters: '<rect x="2.5" y="2.5" width="4.5" height="4.5"/><rect x="9" y="2.5" width="4.5" height="4.5"/><rect x="2.5" y="9" width="4.5" height="4.5"/><rect x="9" y="9" width="4.5" height="4.5"/>',
  sliders: '<path d="M2.5 5h6M11.5 5h2M2.5 11h2M7.5 11h6"/><circle cx="10" cy="5" r="1.5"/><circle cx="6" cy="11" r="1.5"/>',
  wide: '<path d="M9.5 2.5h4v4M13.5 2.5l-4 4M6.5 13.5h-4v-4M2.5 13.5l4-4"/>',
  copy: '<rect x="5.5" y="5.5" width="7" height="8" rx="1"/><path d="M10 5.5V3.5a1 1 0 0 0-1-1H4.5a1 1 0 0 0-1 1V10a1 1 0 0 0 1 1h1"/>',
  export: '<path d="M8 2.5V10M5 7.5l3 3 3-3M3 11v2h10v-2"/>',
  ok: '<path d="M3.5 8.5l3 3 6-7"/>',
  failed: '<path d="M4.5 4.5l7 7M11.5 4.5l-7 7"/>',
  cancelled: '<rect x="4.5" y="4.5" width="7" height="7" fill="currentColor"/>',
  busy: '<path d="M8 2.5a5.5 5.5 0 1 0 5.5 5.5"/>',
  play: '<path d="M5 3.5v9l7-4.5z" fill="currentColor"/>',
  camera: '<rect x="2" y="4.5" width="8.5" height="7" rx="1"/><path d="M10.5 7.2L14 5v6l-3.5-2.2"/>',
  layers: '<path d="M8 2.5L14 6 8 9.5 2 6zM2.5 9L8 12.5 13.5 9"/>',
};

/**
 * A small drawn sign, hidden from screen readers.
 * @param {string} name
 * @returns {HTMLElement}
 */
export function icon(name) {
  const holder = document.createElement("span");
  holder.className = "hv-icon";
  holder.setAttribute("aria-hidden", "true");
  holder.innerHTML =
    '<svg viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" ' +
    'stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round">' + SVG[name] + "</svg>";
  return holder;
}

/**
 * Builds an element. `props`: attributes; `hv` is short for data-hv; `on…` functions listen;
 * null, undefined and false leave an attribute out.
 * @param {string} tag
 * @param {Props} [props]
 * @param {...(Node | string | null | undefined)} children
 * @returns {any}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on") && typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (name === "hv") {
      element.setAttribute("data-hv", value);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/**
 * A name with its middle left out where it is long: beginnings are often alike, and ends differ.
 * @param {string} text
 * @param {number} most characters
 * @returns {string}
 */
export function middle(text, most) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const tail = Math.floor(most / 2);
  return `${letters.slice(0, most - tail - 1).join("")}…${letters.slice(-tail).join("")}`;
}

/**
 * A name that, where room is short, is cut in its middle: its last letters stay.
 * @param {Element} element
 * @param {string} text
 */
export function setName(element, text) {
  if (element.textContent === text) return;
  const at = text.length > 12 ? text.length - 6 : text.length;
  element.replaceChildren(h("span", { class: "hv-name-start" }, text.slice(0, at)), text.slice(at));
}

/**
 * A button.
 * @param {string} hv
 * @param {() => void} act
 * @param {Props} props its `class` is "hv-button" where none is given; `label` names it, where it has no text, and is its title
 * @param {...(Node | string)} inside
 * @returns {HTMLButtonElement}
 */
export function button(hv, act, { label, ...props }, ...inside) {
  return h("button", { hv, type: "button", class: "hv-button", "aria-label": label, title: label, onclick: act, ...props }, ...inside);
}

/**
 * A text field of its own line in a panel, without what browsers do to prose.
 * @param {string} hv
 * @param {string} label
 * @param {Props} [props]
 * @returns {HTMLInputElement}
 */
export function textInput(hv, label, props) {
  return h("input", { hv, class: "hv-input hv-wide", type: "text", "aria-label": label, spellcheck: "false", autocomplete: "off", ...props });
}

/**
 * A control with its name before it.
 * @param {string} name
 * @param {Node} control
 * @param {Props} [props]
 * @returns {HTMLLabelElement}
 */
export function labelled(name, control, props = { class: "hv-field" }) {
  return h("label", props, h("span", {}, name), control);
}

/**
 * Sets an attribute only where it differs, as browsers compute styles again even for the same
 * value; null takes it away.
 * @param {Element} element
 * @param {string} name
 * @param {string | null} value
 */
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/**
 * Hides an element or shows it; nothing is done where it is so already.
 * @param {HTMLElement} element
 * @param {boolean} hidden
 */
export function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

/**
 * Sets an element's text only where it differs, so that screen readers are not told twice.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent === text) return;
  const only = element.childNodes.length === 1 ? element.firstChild : null;
  // A text that changes costs the browser less than one that goes and one that comes.
  if (text && only instanceof Text) only.data = text;
  else element.textContent = text;
}

/**
 * Marks a control as unable to act without taking the focus away from it.
 * @param {Element} element
 * @param {boolean} off
 */
export function setOff(element, off) {
  setAttribute(element, "aria-disabled", off ? "true" : null);
}

/** @param {Element} element */
export function isOff(element) {
  return element.getAttribute("aria-disabled") === "true";
}

/**
 * The element with the focus, also inside a shadow root (marimo shows widgets in one).
 * @param {Node} inside
 * @returns {HTMLElement | null}
 */
export function focused(inside) {
  const root = /** @type {Document | ShadowRoot} */ (inside.getRootNode());
  return /** @type {HTMLElement | null} */ (root.activeElement ?? null);
}

/**
 * The key of the result card that an event happened on, or "".
 * @param {Event} event
 * @returns {string}
 */
export function cardKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  return /** @type {HTMLElement | null} */ (target.closest?.('[data-hv="card"]'))?.dataset.key ?? "";
}

/**
 * A labelled checkbox.
 * @param {string} hv
 * @param {string} label
 * @param {Props} [props] of the input; `shown` is the text beside it where it is not the label
 */
export function checkbox(hv, label, { shown = label, ...props } = {}) {
  const input = h("input", { hv, type: "checkbox", "aria-label": label, ...props });
  return { input, line: h("label", { class: "hv-check", title: label }, input, shown) };
}

/** Acts on Enter in any of some fields; the notebook does not get that key. @param {HTMLElement[]} inputs @param {() => void} act */
export function onEnter(inputs, act) {
  for (const input of inputs) {
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.stopPropagation();
      act();
    });
  }
}

/** A line that says what was refused. @param {string} hv */
export function problemLine(hv) {
  const el = h("p", { hv, class: "hv-field-problem", role: "alert", hidden: true });
  return {
    el,
    /** @param {Props | null | undefined} alert */
    show(alert) {
      el.hidden = !alert?.message;
      setText(el, alert?.message ? sentence(alert) : "");
    },
  };
}

/**
 * What stands in the line of a channel: its number, a bar, a text.
 * @param {number} channel
 * @param {number} share of the longest bar; below 0 it is marked so
 * @param {string} text
 */
export function channelBar(channel, share, text) {
  const fill = h("span", { class: share < 0 ? "hv-vector-fill hv-negative" : "hv-vector-fill" });
  fill.style.width = `${Math.round(Math.abs(share) * 1000) / 10}%`;
  return [h("span", { class: "hv-vector-channel" }, String(channel)), h("span", { class: "hv-vector-track" }, fill), h("span", {}, text)];
}

/** An id that no other widget of the page has: each has a copy of this module. @param {string} what */
export function freshId(what) {
  return `hv-${what}-${Math.random().toString(36).slice(2)}`;
}

/**
 * A text field whose value is asked of Python. It shows what stands; where a value was refused,
 * the one before stands, and the sentence below it says why.
 * @param {string} hv
 * @param {string} label
 * @param {Props} props of the input
 * @param {(text: string) => void} commit called with what was typed, on Enter or on leaving
 */
export function textField(hv, label, props, commit) {
  const id = freshId("field");
  const problem = h("span", { id, hv: "field-problem", class: "hv-field-problem", role: "alert", hidden: true });
  const input = textInput(hv, label, props);
  let stands = "";
  /** What Python was asked for and has not answered. @type {string | null} */
  let asked = null;
  const send = () => {
    if (input.value === (asked ?? stands)) return;
    asked = input.value;
    commit(asked ?? "");
  };
  input.addEventListener("change", send);
  onEnter([input], send);
  return {
    input, problem,
    /** @param {string} value what stands, as Python says */
    show(value) {
      if (asked !== null || focused(input) !== input || input.value === stands) input.value = value;
      stands = value;
      this.refuse("");
    },
    /** @param {string} text why a value was refused; "" for none */
    refuse(text) {
      asked = null;
      if (text) input.value = stands;
      setText(problem, text);
      problem.hidden = !text;
      setAttribute(input, "aria-invalid", text ? "true" : null);
      setAttribute(input, "aria-describedby", text ? id : null);
    },
  };
}

/** A view that is shown, and what is to be undone when it goes. */
export class Cleanup {
  constructor() {
    /** @type {(() => void)[]} */
    this.tasks = [];
  }
  /** @param {() => void} task */
  add(task) {
    this.tasks.push(task);
  }
  /**
   * Listens to a model until the view goes.
   * @param {Model} model
   * @param {string} name
   * @param {(...args: any[]) => void} callback
   */
  listen(model, name, callback) {
    model.on(name, callback);
    this.add(() => model.off(name, callback));
  }
  /**
   * Shows the present state of some traits, and each later one.
   * @param {Model} model
   * @param {string[]} traits
   * @param {() => void} refresh
   */
  follow(model, traits, refresh) {
    for (const trait of traits) this.listen(model, `change:${trait}`, refresh);
    refresh();
  }
  /**
   * Puts a view into its place. Returns what takes it away.
   * @param {HTMLElement} el
   * @param {Node} root
   */
  mount(el, root) {
    el.classList.add("hv-host");
    el.append(root);
    return () => {
      for (const task of this.tasks.splice(0).reverse()) task();
    };
  }
}

/**
 * 1 234 567 → "1.2 MB".
 * @param {number} bytes
 * @returns {string}
 */
export function bytesText(bytes) {
  if (!(bytes >= 0)) return "";
  if (bytes < 1000) return `${Math.round(bytes)} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = bytes / 1000;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value < 10 ? value.toFixed(1) : value.toFixed(0)} ${units[unit]}`;
}

/**
 * A number in at most four significant digits, with a real minus sign.
 * @param {number | null | undefined} value
 * @returns {string}
 */
export function numberText(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const digits = size >= 100 ? 1 : size >= 10 ? 2 : 3;
  const text = size !== 0 && (size >= 1e5 || size < 1e-3) ? value.toExponential(1) : value.toFixed(digits);
  return text.replace(/^-/, "−").replace("e-", "e−").replace("e+", "e");
}

/**
 * Shows bytes in an <img> and lets go of the bytes that it showed before.
 * @param {HTMLImageElement} img
 * @param {DataView | ArrayBuffer | Uint8Array | null} bytes
 * @param {string} [type]
 */
export function showBytes(img, bytes, type = "image/png") {
  const before = img.getAttribute("src");
  const part = /** @type {BlobPart} */ (/** @type {unknown} */ (bytes));
  setAttribute(img, "src", bytes && URL.createObjectURL(new Blob([part], { type })));
  img.hidden = !bytes;
  if (before) URL.revokeObjectURL(before);
}

/**
 * Shows pictures in the <img>s of a box, each in its place; those without one show nothing.
 * @param {Element} box
 * @param {DataView[]} [buffers]
 * @param {string} [type]
 */
export function showPictures(box, buffers = [], type) {
  box.querySelectorAll("img").forEach((img, i) => showBytes(img, buffers[i]?.byteLength ? buffers[i] : null, type));
}

/**
 * A select with its options. `choices` are [value, text] pairs.
 * @param {string} hv
 * @param {string} label
 * @param {[string, string][]} choices
 * @param {(value: string) => void} onChange
 * @returns {HTMLSelectElement}
 */
export function select(hv, label, choices, onChange) {
  const box = h("select", { hv, class: "hv-select", "aria-label": label, onchange: () => onChange(box.value) });
  setChoices(box, choices);
  return box;
}

/**
 * @param {HTMLSelectElement} box
 * @param {[string, string][]} choices
 */
export function setChoices(box, choices) {
  const now = JSON.stringify(choices);
  if (box.dataset.choices === now) return;
  box.dataset.choices = now;
  const value = box.value;
  box.replaceChildren(...choices.map(([v, text]) => h("option", { value: v }, text)));
  if (choices.some(([v]) => v === value)) box.value = value;
}

/** Whether the host's page is dark here: by what is painted, as hosts name their themes in many ways. @param {Element} element */
export function isDark(element) {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  if (!paint) return false;
  paint.fillStyle = getComputedStyle(element).backgroundColor;
  paint.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = paint.getImageData(0, 0, 1, 1).data;
  return alpha > 0 && 0.2126 * red + 0.7152 * green + 0.0722 * blue < 110;
}

/**
 * Where a click is, as finely as the pointer's other events say it: a browser rounds a click's
 * coordinates, so that on a fine screen it would be a place beside the one that was pointed at.
 * @param {HTMLElement} root
 * @returns {(click: {clientX: number, clientY: number}) => {clientX: number, clientY: number}}
 */
export function clickPlace(root) {
  /** @type {{clientX: number, clientY: number} | null} */
  let last = null;
  for (const kind of ["pointerdown", "pointerup"]) {
    root.addEventListener(kind, (event) => {
      const { clientX, clientY } = /** @type {PointerEvent} */ (event);
      last = { clientX, clientY };
    });
  }
  return (click) => (last && Math.abs(last.clientX - click.clientX) < 1 && Math.abs(last.clientY - click.clientY) < 1 ? last : click);
}

/** Puts a text into the clipboard; rejects where the page may not. @param {string} text */
export async function copyText(text) {
  await navigator.clipboard.writeText(text);
}

/**
 * Waits until calls stop for a while, then makes the last one.
 * @param {number} milliseconds
 * @param {(...args: any[]) => void} callback
 */
export function debounce(milliseconds, callback) {
  /** @type {any} */
  let timer;
  return (/** @type {any[]} */ ...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => callback(...args), milliseconds);
  };
}

/**
 * Buttons that do what a sentence advises.
 * @param {{label: string, do: string}[] | undefined} actions
 * @param {(action: string) => void} onAction
 */
export function actionButtons(actions, onAction) {
  return (actions ?? []).map((action) => button("alert-action", () => onAction(action.do), { "data-do": action.do }, action.label));
}

/**
 * The message box of a part or of the app: one sentence, what to do, the traceback folded away.
 * @param {(action: string) => void} onAction called with an action's name, or "dismiss"
 */
export function alertBox(onAction) {
  const message = h("span", { hv: "alert-message", class: "hv-alert-message" });
  const remedy = h("span", { hv: "alert-remedy", class: "hv-alert-remedy" });
  const trace = h("pre", { tabindex: "0", "aria-label": "Traceback" });
  const details = h("details", { hv: "alert-details" }, h("summary", {}, "Details"), trace);
  const actions = h("div", { class: "hv-actions" });
  const box = h("div", { hv: "alert", role: "alert", class: "hv-alert" },
    h("div", { class: "hv-alert-text" }, message, " ", remedy, details), actions,
    button("alert-dismiss", () => onAction("dismiss"), { class: "hv-quiet", label: "Dismiss" }, icon("close")));
  // In the page only while there is something to say: the parts of an app have none of their own.
  const place = h("div", { style: "display:contents" });
  return {
    place,
    /** @param {Props | null} alert */
    show(alert) {
      if (!alert?.message) {
        box.remove();
        return;
      }
      const before = box.isConnected;
      if (!before) place.append(box);
      const words = worded(alert);
      setText(message, words.message);
      setText(remedy, words.remedy ?? "");
      trace.textContent = alert.traceback ?? "";
      details.hidden = !alert.traceback;
      details.open = false;
      actions.replaceChildren(...actionButtons(words.actions, onAction));
      // The button that was pressed may lie far below.
      if (!before) box.scrollIntoView?.({ block: "nearest" });
    },
  };
}

/**
 * Where a part shows what goes wrong: what belongs to one of its fields stands there.
 * @param {Model} model
 * @param {Cleanup} cleanup
 * @param {Record<string, ReturnType<typeof textField>>} [fields]
 * @returns {Node}
 */
export function partAlert(model, cleanup, fields = {}) {
  const box = alertBox((action) => model.send(action === "dismiss" ? { type: "dismiss" } : { type: "action", do: action }));
  cleanup.follow(model, ["alert"], () => {
    const alert = model.get("alert") ?? {};
    for (const [name, field] of Object.entries(fields)) field.refuse(alert.field === name ? sentence(alert) : "");
    box.show(alert.field in fields ? {} : alert);
  });
  return box.place;
}
